# The bucket, unless it exists: private, encrypted, TLS only.

resource "aws_s3_bucket" "lake" {
  count  = var.lake.create ? 1 : 0
  bucket = var.lake.bucket
  tags   = var.tags

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_public_access_block" "lake" {
  count                   = var.lake.create ? 1 : 0
  bucket                  = aws_s3_bucket.lake[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "lake" {
  count  = var.lake.create ? 1 : 0
  bucket = aws_s3_bucket.lake[0].id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.lake.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.lake.kms_key_arn
    }
    bucket_key_enabled = var.lake.kms_key_arn != null
  }
}

# Parts of an upload that a crash left behind cost money and are seen by nobody.
resource "aws_s3_bucket_lifecycle_configuration" "lake" {
  count  = var.lake.create ? 1 : 0
  bucket = aws_s3_bucket.lake[0].id
  rule {
    id     = "abandoned-uploads"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
}

resource "aws_s3_bucket_policy" "lake" {
  count  = var.lake.create ? 1 : 0
  bucket = aws_s3_bucket.lake[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
  depends_on = [aws_s3_bucket_public_access_block.lake]
}

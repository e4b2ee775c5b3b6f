# What the machine may do: read, write and delete under the lake's prefix, list it, read one secret.

locals {
  bucket_arn = "arn:${data.aws_partition.current.partition}:s3:::${var.lake.bucket}"

  keys = concat(
    var.lake.kms_key_arn == null ? [] : [{
      Sid      = "LakeKey"
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource = var.lake.kms_key_arn
    }],
    try(var.password_secret.kms_key_arn, null) == null ? [] : [{
      Sid      = "SecretKey"
      Effect   = "Allow"
      Action   = ["kms:Decrypt"]
      Resource = var.password_secret.kms_key_arn
    }]
  )

  policy = {
    Version = "2012-10-17"
    Statement = concat([
      {
        Sid    = "LakeObjects"
        Effect = "Allow"
        Action = [
          "s3:GetObject", "s3:PutObject", "s3:DeleteObject",
          "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts",
        ]
        Resource = "${local.bucket_arn}/${var.lake.prefix}/*"
      },
      {
        # Without it S3 answers "forbidden" for an object that is not there. S3 judges that case by
        # the object's own name as the prefix.
        Sid       = "LakeNames"
        Effect    = "Allow"
        Action    = ["s3:ListBucket"]
        Resource  = local.bucket_arn
        Condition = { StringLike = { "s3:prefix" = ["${var.lake.prefix}/*"] } }
      },
      ], var.password_secret == null ? [] : [{
        Sid      = "Password"
        Effect   = "Allow"
        Action   = ["secretsmanager:GetSecretValue"]
        Resource = var.password_secret.arn
    }], local.keys)
  }
}

resource "aws_iam_role" "this" {
  name_prefix = "${var.name}-"
  description = "The machine that runs Tidegate"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
  tags = var.tags
}

resource "aws_iam_role_policy" "this" {
  name   = "lake"
  role   = aws_iam_role.this.id
  policy = jsonencode(local.policy)
}

resource "aws_iam_role_policy_attachment" "session_manager" {
  count      = var.session_manager ? 1 : 0
  role       = aws_iam_role.this.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "this" {
  name_prefix = "${var.name}-"
  role        = aws_iam_role.this.name
  tags        = var.tags
}

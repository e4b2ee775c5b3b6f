# The bucket, unless it exists: private, rights by IAM alone.

resource "google_storage_bucket" "lake" {
  count                       = var.lake.create ? 1 : 0
  project                     = var.project
  name                        = var.lake.bucket
  location                    = var.lake.location
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = var.labels

  # Parts of an upload that a crash left behind cost money and are seen by nobody.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }

  lifecycle {
    prevent_destroy = true
  }
}

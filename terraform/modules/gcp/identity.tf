# What the machine may do: read, write, delete and list under the lake's prefix, read one secret.

locals {
  secret_project = var.password_secret == null ? null : coalesce(var.password_secret.project, var.project)
  lake_objects   = "projects/_/buckets/${var.lake.bucket}/objects/${var.lake.prefix}/"
}

resource "google_service_account" "this" {
  project      = var.project
  account_id   = var.name
  display_name = "The machine that runs Tidegate"
}

resource "google_storage_bucket_iam_member" "lake" {
  bucket = var.lake.create ? google_storage_bucket.lake[0].name : var.lake.bucket
  role   = "roles/storage.objectUser"
  member = "serviceAccount:${google_service_account.this.email}"
  condition {
    title       = "the lake's prefix"
    description = "Objects under the prefix, and listings of it"
    expression = join(" || ", [
      "resource.name.startsWith(\"${local.lake_objects}\")",
      "api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"${var.lake.prefix}/\")",
    ])
  }
}

resource "google_secret_manager_secret_iam_member" "password" {
  count     = var.password_secret == null ? 0 : 1
  project   = local.secret_project
  secret_id = var.password_secret.secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.this.email}"
}

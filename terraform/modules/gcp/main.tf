# One machine that replicates into one prefix of one bucket, as a service account that can do just
# that.

module "user_data" {
  source = "../user-data"

  artifact      = var.artifact
  mode          = var.mode
  schedule      = var.schedule
  pipeline      = var.pipeline
  lake          = "gs://${var.lake.bucket}/${var.lake.prefix}"
  source_url    = var.source_url
  tables        = var.tables
  interval      = var.interval
  more_settings = var.more_settings
  source_ca     = var.source_ca
  state_disk_gb = var.state_disk_gb
  password_secret = var.password_secret == null ? null : join("#", compact([
    "gcp:projects/${local.secret_project}/secrets/${var.password_secret.secret_id}", var.password_secret.json_key
  ]))
}

# cloud-init reads user data once: another artifact or configuration means another machine.
resource "terraform_data" "user_data" {
  input = sha256(module.user_data.user_data)
}

resource "google_compute_disk" "state" {
  project = var.project
  zone    = var.zone
  name    = "${var.name}-state"
  type    = "pd-balanced"
  size    = var.state_disk_gb
  labels  = var.labels
}

resource "google_compute_instance" "this" {
  project      = var.project
  zone         = var.zone
  name         = var.name
  machine_type = var.machine_type
  labels       = var.labels

  boot_disk {
    initialize_params {
      image = var.image
      size  = 16
      type  = "pd-balanced"
    }
  }

  attached_disk {
    source      = google_compute_disk.state.id
    device_name = "tidegate-state"
  }

  # No access_config: no public address.
  network_interface {
    subnetwork = var.subnetwork
  }

  # The scope is wide, the account's roles are not.
  service_account {
    email  = google_service_account.this.email
    scopes = ["cloud-platform"]
  }

  metadata = {
    user-data              = module.user_data.user_data
    enable-oslogin         = "TRUE"
    block-project-ssh-keys = "TRUE"
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  lifecycle {
    replace_triggered_by = [terraform_data.user_data]
    # A newer image is no reason to replace a machine that works.
    ignore_changes = [boot_disk[0].initialize_params[0].image]
  }

  # The machine reads the secret and writes to the lake as soon as it is up.
  depends_on = [
    google_storage_bucket_iam_member.lake,
    google_secret_manager_secret_iam_member.password,
  ]
}

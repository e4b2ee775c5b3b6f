# A machine that follows a database into a new bucket of Google Cloud Storage.

terraform {
  required_version = ">= 1.9, < 2.0"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}

provider "google" {
  project = "example-project"
  region  = "europe-west3"
}

variable "subnetwork" {
  type = string
}

variable "artifact" {
  type = object({ url = string, sha256 = string })
}

module "tidegate" {
  source = "../../modules/gcp"

  name       = "tidegate-shop"
  project    = "example-project"
  zone       = "europe-west3-a"
  network    = "default"
  subnetwork = var.subnetwork
  database   = { cidr_blocks = ["10.20.0.0/24"] }
  iap_ssh    = true

  artifact        = var.artifact
  pipeline        = "shop"
  source_url      = "postgres://replicator@10.20.0.7/shop?sslmode=require"
  tables          = ["public.*"]
  interval        = "30s"
  password_secret = { secret_id = "shop-replicator" }
  lake            = { bucket = "example-shop-lake", location = "EUROPE-WEST3" }
}

output "lake_url" {
  value = module.tidegate.lake_url
}

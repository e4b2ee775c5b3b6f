# A machine that brings a new container of Blob Storage up to date every 15 minutes.

terraform {
  required_version = ">= 1.9, < 2.0"
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = "~> 4.55"
    }
  }
}

# The subscription comes from ARM_SUBSCRIPTION_ID. The account has no keys: storage_use_azuread.
provider "azurerm" {
  storage_use_azuread = true
  features {}
}

variable "subnet_id" {
  type = string
}

variable "key_vault_id" {
  type = string
}

variable "ssh_public_key" {
  type = string
}

variable "artifact" {
  type = object({ url = string, sha256 = string })
}

module "tidegate" {
  source = "../../modules/azure"

  name                = "tidegate-shop"
  resource_group_name = "example"
  location            = "germanywestcentral"
  subnet_id           = var.subnet_id
  database            = { cidr_blocks = ["10.20.0.0/24"] }
  admin               = { ssh_public_key = var.ssh_public_key }

  artifact        = var.artifact
  mode            = "batch"
  schedule        = "*:0/15"
  pipeline        = "shop"
  source_url      = "postgres://replicator@10.20.0.7/shop?sslmode=require"
  tables          = ["public.*"]
  password_secret = { key_vault_id = var.key_vault_id, name = "shop-replicator" }
  lake            = { storage_account = "exampleshoplake" }
}

output "lake_url" {
  value = module.tidegate.lake_url
}

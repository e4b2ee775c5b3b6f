# A machine that follows a database on RDS into a new bucket, and a parameter group for that database.

terraform {
  required_version = ">= 1.9, < 2.0"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
  }
}

provider "aws" {
  region = "eu-central-1"
}

variable "vpc_id" {
  type = string
}

variable "subnet_id" {
  type = string
}

variable "database_security_group_id" {
  type = string
}

variable "password_secret_arn" {
  type = string
}

variable "artifact" {
  type = object({ url = string, sha256 = string })
}

variable "rds_ca" {
  description = "The region's bundle: https://truststore.pki.rds.amazonaws.com/eu-central-1/eu-central-1-bundle.pem, and its SHA-256."
  type        = object({ url = string, sha256 = string })
}

module "tidegate" {
  source = "../../modules/aws"

  name      = "tidegate-shop"
  vpc_id    = var.vpc_id
  subnet_id = var.subnet_id
  database  = { security_group_id = var.database_security_group_id }

  artifact        = var.artifact
  pipeline        = "shop"
  source_url      = "postgres://replicator@shop.abc123.eu-central-1.rds.amazonaws.com/shop?sslmode=verify-full&sslrootcert=/etc/tidegate/source-ca.pem"
  source_ca       = var.rds_ca
  tables          = ["public.*"]
  password_secret = { arn = var.password_secret_arn, json_key = "password" }
  lake            = { bucket = "example-shop-lake" }

  rds_parameter_group = { family = "postgres17" }
  tags                = { service = "tidegate" }
}

output "lake_url" {
  value = module.tidegate.lake_url
}

output "security_group_id" {
  value = module.tidegate.security_group_id
}

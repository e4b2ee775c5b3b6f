# A machine that brings a bucket that exists up to date every night.

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

variable "password_secret_arn" {
  type = string
}

variable "artifact" {
  type = object({ url = string, sha256 = string })
}

module "tidegate" {
  source = "../../modules/aws"

  name      = "tidegate-nightly"
  vpc_id    = var.vpc_id
  subnet_id = var.subnet_id
  database  = { cidr_blocks = ["10.20.0.0/24"] }

  artifact        = var.artifact
  mode            = "batch"
  schedule        = "*-*-* 02:30:00"
  pipeline        = "shop_nightly"
  source_url      = "postgres://replicator@10.20.0.7/shop?sslmode=require"
  tables          = ["public.orders", "public.customers"]
  password_secret = { arn = var.password_secret_arn }
  lake            = { bucket = "example-data", prefix = "replicas/shop", create = false }
}

output "lake_url" {
  value = module.tidegate.lake_url
}

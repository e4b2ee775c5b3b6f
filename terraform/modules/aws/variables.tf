variable "name" {
  description = "Name of the machine and of what belongs to it."
  type        = string
  default     = "tidegate"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "name must be 2 to 31 of a-z, 0-9 and -, and begin with a letter."
  }
}

variable "vpc_id" {
  description = "The VPC of the subnet."
  type        = string
}

variable "subnet_id" {
  description = "Where the machine stands. It must reach the database, S3, Secrets Manager and the artifact: by a NAT gateway, endpoints or a public address."
  type        = string
}

variable "associate_public_ip_address" {
  description = "A public address, for subnets without a NAT gateway. Nothing can connect to it."
  type        = bool
  default     = false
}

variable "instance_type" {
  description = "Of the architecture of the artifact."
  type        = string
  default     = "m7i.large"
}

variable "ami_id" {
  description = "An image with systemd, cloud-init, Python 3 and curl. Null: the newest Ubuntu 24.04 for x86-64 at the time of creation."
  type        = string
  default     = null
}

variable "database" {
  description = "What the machine may connect to besides HTTPS: the database's port, at a security group or at address ranges."
  type = object({
    port              = optional(number, 5432)
    security_group_id = optional(string)
    cidr_blocks       = optional(list(string), [])
  })
  validation {
    condition     = var.database.security_group_id != null || length(var.database.cidr_blocks) > 0
    error_message = "database needs a security_group_id or cidr_blocks."
  }
}

variable "package_updates" {
  description = "Lets the machine reach port 80, over which Ubuntu's signed security updates come."
  type        = bool
  default     = true
}

variable "lake" {
  description = "The bucket and the prefix in it that the machine is limited to. The bucket is made unless `create` is false. `kms_key_arn`: the key the bucket is, or is to be, encrypted with; without one S3's own."
  type = object({
    bucket      = string
    prefix      = optional(string, "lake")
    create      = optional(bool, true)
    kms_key_arn = optional(string)
  })
  validation {
    condition     = can(regex("^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$", var.lake.prefix))
    error_message = "lake.prefix must be plain words with slashes between, such as lake or shop/lake."
  }
}

variable "password_secret" {
  description = "The secret of Secrets Manager with the source's password. `json_key` if it is a JSON object (`password` for the secrets of RDS), `kms_key_arn` if it has a key of its own. Its value is read by the machine, never by Terraform. Null: the login needs no password."
  type = object({
    arn         = string
    json_key    = optional(string)
    kms_key_arn = optional(string)
  })
  default = null
  validation {
    condition     = var.password_secret == null || can(regex("^arn:[a-z-]+:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[^*?\\s]+$", var.password_secret.arn))
    error_message = "password_secret.arn must be the whole ARN of one secret."
  }
}

variable "state_disk_gb" {
  description = "Size of the disk for the index and other local state, in GiB. It can be made again from the lake."
  type        = number
  default     = 50
  validation {
    condition     = var.state_disk_gb >= 1
    error_message = "state_disk_gb must be at least 1."
  }
}

variable "session_manager" {
  description = "Lets Session Manager log in, without any open port. Attaches AWS's own policy AmazonSSMManagedInstanceCore, which is not limited to this machine's resources."
  type        = bool
  default     = false
}

variable "rds_parameter_group" {
  description = "Makes a parameter group for RDS with logical replication on; attach it to the database and reboot that. Null: none."
  type = object({
    family                    = string
    max_replication_slots     = optional(number, 10)
    max_wal_senders           = optional(number, 15)
    max_slot_wal_keep_size_mb = optional(number, 51200)
  })
  default = null
  validation {
    condition     = var.rds_parameter_group == null || can(regex("^postgres1[3-8]$", var.rds_parameter_group.family))
    error_message = "rds_parameter_group.family must be postgres13 to postgres18."
  }
}

variable "tags" {
  description = "Tags of everything made here."
  type        = map(string)
  default     = {}
}

# Passed on to user-data, which judges them.

variable "artifact" {
  description = "The archive that `make dist` wrote: an https URL that needs no credentials, and its SHA-256. The URL stands in user data, so a signed one is refused."
  type = object({
    url    = string
    sha256 = string
  })
}

variable "mode" {
  description = "`streaming`: a service that follows the source. `batch`: a timer that brings the lake up to date and ends."
  type        = string
  default     = "streaming"
}

variable "schedule" {
  description = "When a batch runs, as systemd's OnCalendar= takes it. Not used for streaming."
  type        = string
  default     = "hourly"
}

variable "pipeline" {
  description = "Name of the pipeline, of its replication slot and of its publication."
  type        = string
  default     = "tidegate"
}

variable "source_url" {
  description = "The database, without a password: postgres://user@host:port/database?sslmode=verify-full"
  type        = string
}

variable "tables" {
  description = "Patterns of the tables to replicate, such as public.* or shop.orders."
  type        = list(string)
}

variable "interval" {
  description = "Longest wait of a committed change for its commit in the lake. Null: the program's default."
  type        = string
  default     = null
}

variable "more_settings" {
  description = "More sections of tidegate.toml, as TOML: [handoff], [limits]."
  type        = string
  default     = ""
}

variable "source_ca" {
  description = "Certificates that the source's certificate is checked against, if the system does not know them: an https URL and its SHA-256. Lies in /etc/tidegate/source-ca.pem: add sslrootcert=/etc/tidegate/source-ca.pem to source_url."
  type = object({
    url    = string
    sha256 = string
  })
  default = null
}

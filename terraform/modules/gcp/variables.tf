variable "name" {
  description = "Name of the machine and of what belongs to it."
  type        = string
  default     = "tidegate"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.name))
    error_message = "name must be 6 to 30 of a-z, 0-9 and -, as a service account takes it."
  }
}

variable "project" {
  description = "The project everything is made in."
  type        = string
}

variable "zone" {
  description = "Zone of the machine and of its disk."
  type        = string
}

variable "network" {
  description = "The network of the subnetwork, as name or self link: the firewall rules are its."
  type        = string
}

variable "subnetwork" {
  description = "Where the machine stands, as self link. It must reach the database, and through Cloud NAT the artifact; Private Google Access is enough for Cloud Storage and Secret Manager. The machine has no public address."
  type        = string
}

variable "machine_type" {
  description = "Of the architecture of the artifact."
  type        = string
  default     = "n2-standard-2"
}

variable "image" {
  description = "An image with systemd, cloud-init, Python 3 and curl (Debian's images for Google have no cloud-init)."
  type        = string
  default     = "ubuntu-os-cloud/ubuntu-2404-lts-amd64"
}

variable "iap_ssh" {
  description = "Lets Identity-Aware Proxy reach port 22; logins are then OS Login's."
  type        = bool
  default     = false
}

variable "database" {
  description = "What the machine may connect to besides HTTPS: the database's port at address ranges."
  type = object({
    port        = optional(number, 5432)
    cidr_blocks = list(string)
  })
  validation {
    condition     = length(var.database.cidr_blocks) > 0
    error_message = "database.cidr_blocks must name at least one range."
  }
}

variable "package_updates" {
  description = "Lets the machine reach port 80, over which Ubuntu's signed security updates come."
  type        = bool
  default     = true
}

variable "lake" {
  description = "The bucket and the prefix in it that the machine is limited to. The bucket is made, at `location`, unless `create` is false; it must have uniform bucket-level access."
  type = object({
    bucket   = string
    prefix   = optional(string, "lake")
    create   = optional(bool, true)
    location = optional(string)
  })
  validation {
    condition     = can(regex("^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$", var.lake.prefix))
    error_message = "lake.prefix must be plain words with slashes between, such as lake or shop/lake."
  }
  validation {
    condition     = !var.lake.create || var.lake.location != null
    error_message = "lake.location must be given for a bucket that is made here."
  }
}

variable "password_secret" {
  description = "The secret of Secret Manager with the source's password: its name, and its project if it is another. `json_key` if it is a JSON object. Its value is read by the machine, never by Terraform. Null: the login needs no password."
  type = object({
    secret_id = string
    project   = optional(string)
    json_key  = optional(string)
  })
  default = null
  validation {
    condition     = var.password_secret == null || can(regex("^[A-Za-z0-9_-]+$", var.password_secret.secret_id))
    error_message = "password_secret.secret_id must be the secret's name alone."
  }
}

variable "state_disk_gb" {
  description = "Size of the disk for the index and other local state, in GiB, at least 10. It can be made again from the lake."
  type        = number
  default     = 50
  validation {
    condition     = var.state_disk_gb >= 10
    error_message = "state_disk_gb must be at least 10."
  }
}

variable "labels" {
  description = "Labels of what takes them."
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

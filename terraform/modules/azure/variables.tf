variable "name" {
  description = "Name of the machine and of what belongs to it."
  type        = string
  default     = "tidegate"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "name must be 2 to 31 of a-z, 0-9 and -, and begin with a letter."
  }
}

variable "resource_group_name" {
  description = "The resource group everything is made in. It exists."
  type        = string
}

variable "location" {
  description = "Region of everything made here."
  type        = string
}

variable "subnet_id" {
  description = "Where the machine stands. It must reach the database, and through a NAT gateway the artifact, Blob Storage and Key Vault. The machine has no public address."
  type        = string
}

variable "size" {
  description = "Of the architecture of the artifact."
  type        = string
  default     = "Standard_D2s_v5"
}

variable "admin" {
  description = "The login that Azure asks for: a user name and an SSH public key. No port is open to it; use Bastion or the serial console."
  type = object({
    username       = optional(string, "azureuser")
    ssh_public_key = string
  })
}

variable "image" {
  description = "An image with systemd, cloud-init, Python 3 and curl."
  type = object({
    publisher = string
    offer     = string
    sku       = string
    version   = string
  })
  default = {
    publisher = "Canonical"
    offer     = "ubuntu-24_04-lts"
    sku       = "server"
    version   = "latest"
  }
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
  description = "The storage account and the container that is the lake; the machine is limited to the container, so let it hold nothing else. Both are made unless `create` is false; then `storage_account_id` names the account."
  type = object({
    storage_account    = string
    container          = optional(string, "lake")
    create             = optional(bool, true)
    storage_account_id = optional(string)
    replication        = optional(string, "ZRS")
  })
  validation {
    condition     = can(regex("^[a-z0-9]{3,24}$", var.lake.storage_account))
    error_message = "lake.storage_account must be 3 to 24 of a-z and 0-9."
  }
  validation {
    condition     = can(regex("^[a-z0-9](-?[a-z0-9]){2,62}$", var.lake.container))
    error_message = "lake.container must be 3 to 63 of a-z, 0-9 and single -."
  }
  validation {
    condition     = var.lake.create || can(endswith(var.lake.storage_account_id, "/storageAccounts/${var.lake.storage_account}"))
    error_message = "lake.storage_account_id must name the account of lake.storage_account if create is false."
  }
}

variable "password_secret" {
  description = "The secret of Key Vault with the source's password: the vault's resource id and the secret's name. The vault must use role-based access. `json_key` if it is a JSON object, `vault_uri` for vaults outside the public cloud. Its value is read by the machine, never by Terraform. Null: the login needs no password."
  type = object({
    key_vault_id = string
    name         = string
    vault_uri    = optional(string)
    json_key     = optional(string)
  })
  default = null
  validation {
    condition     = var.password_secret == null || can(regex("/vaults/[A-Za-z0-9-]+$", var.password_secret.key_vault_id)) && can(regex("^[A-Za-z0-9-]+$", var.password_secret.name))
    error_message = "password_secret needs a vault's resource id and a secret's name."
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

variable "tags" {
  description = "Tags of what takes them."
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

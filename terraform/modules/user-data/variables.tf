variable "artifact" {
  description = "The archive that `make dist` wrote: an https URL that needs no credentials, and its SHA-256. The URL stands in user data, so a signed one is refused."
  type = object({
    url    = string
    sha256 = string
  })
  validation {
    condition     = can(regex("^https://[^@?#\\s\"'\\\\%$]+$", var.artifact.url))
    error_message = "artifact.url must begin with https:// and hold no user, query, blank, quote or percent sign."
  }
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.artifact.sha256))
    error_message = "artifact.sha256 must be 64 hexadecimal digits in lower case."
  }
}

variable "mode" {
  description = "`streaming`: a service that follows the source. `batch`: a timer that brings the lake up to date and ends."
  type        = string
  default     = "streaming"
  validation {
    condition     = contains(["streaming", "batch"], var.mode)
    error_message = "mode must be streaming or batch."
  }
}

variable "schedule" {
  description = "When a batch runs, as systemd's OnCalendar= takes it. Not used for streaming."
  type        = string
  default     = "hourly"
  validation {
    condition     = can(regex("^[A-Za-z0-9 *,./:~_+-]+$", var.schedule))
    error_message = "schedule must be one OnCalendar= expression, such as hourly or *-*-* 02:30:00."
  }
}

variable "pipeline" {
  description = "Name of the pipeline, of its replication slot and of its publication."
  type        = string
  default     = "tidegate"
  validation {
    condition     = can(regex("^[a-z0-9_]{1,40}$", var.pipeline))
    error_message = "pipeline must be 1 to 40 of a-z, 0-9 and _."
  }
}

variable "lake" {
  description = "URL of the lake."
  type        = string
  validation {
    condition     = can(regex("^(s3|gs|az)://[^\\s@?]+$", var.lake))
    error_message = "lake must be an s3://, gs:// or az:// URL without user or query."
  }
}

variable "source_url" {
  description = "The database, without a password: postgres://user@host:port/database?sslmode=verify-full"
  type        = string
  validation {
    condition     = can(regex("^postgres(ql)?://[^:@/?\\s]+@[^@\\s]+$", var.source_url))
    error_message = "source_url must be postgres://user@host/database, and hold no password: that comes from the secret store."
  }
  validation {
    condition     = !can(regex("(?i)(password|passfile)", try(split("?", var.source_url)[1], "")))
    error_message = "source_url must hold no password: it comes from the secret store."
  }
}

variable "tables" {
  description = "Patterns of the tables to replicate, such as public.* or shop.orders."
  type        = list(string)
  validation {
    condition     = length(var.tables) > 0
    error_message = "tables must name at least one pattern."
  }
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
  validation {
    condition     = !can(regex("(?m)^\\s*\\[\\s*(source|state|stream)\\b|password", var.more_settings))
    error_message = "more_settings must not hold [source], [stream], [state] or a password."
  }
}

variable "environment" {
  description = "Environment of the program: what its object store needs to know. No credentials."
  type        = map(string)
  default     = {}
  validation {
    condition = alltrue([for name, value in var.environment :
      can(regex("^[A-Z][A-Z0-9_]*$", name)) && can(regex("^[A-Za-z0-9 ._:/#@=,+-]*$", value))
      && !can(regex("PASSWORD$|SECRET_ACCESS_KEY|ACCOUNT_KEY|ACCESS_KEY|SESSION_TOKEN|SAS|CLIENT_SECRET", name))
    ])
    error_message = "environment must hold plain words, and no password, key or token: the machine has an identity."
  }
}

variable "password_secret" {
  description = "The secret with the source's password, as ops/fetch-secret takes it (aws:ARN, gcp:projects/P/secrets/S, azure:URL, each with #KEY for a JSON object). Null: the login needs none."
  type        = string
  default     = null
  validation {
    condition     = var.password_secret == null || can(regex("^(aws:arn:[a-z-]+:secretsmanager:|gcp:projects/|azure:https://)\\S+$", var.password_secret))
    error_message = "password_secret must begin with aws:arn:, gcp:projects/ or azure:https://."
  }
}

variable "state_disk_gb" {
  description = "Size in GiB of the attached disk that is to hold the state; 0 for the system's disk."
  type        = number
  default     = 0
  validation {
    condition     = var.state_disk_gb >= 0 && floor(var.state_disk_gb) == var.state_disk_gb
    error_message = "state_disk_gb must be a whole number."
  }
}

variable "source_ca" {
  description = "Certificates that the source's certificate is checked against, if the system does not know them: an https URL and its SHA-256. Lies in /etc/tidegate/source-ca.pem: add sslrootcert=/etc/tidegate/source-ca.pem to source_url."
  type = object({
    url    = string
    sha256 = string
  })
  default = null
  validation {
    condition = var.source_ca == null || (
      can(regex("^https://[^@?#\\s\"'\\\\%$]+$", var.source_ca.url)) && can(regex("^[0-9a-f]{64}$", var.source_ca.sha256))
    )
    error_message = "source_ca needs an https URL without user and query, and a SHA-256 in lower case."
  }
}

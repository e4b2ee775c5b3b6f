output "user_data" {
  description = "The cloud-config, plain text. At most 16 KiB on AWS."
  value       = local.user_data
  precondition {
    condition     = length(local.user_data) <= 16384
    error_message = "The user data is larger than the 16 KiB that AWS takes: shorten tables or more_settings."
  }
}

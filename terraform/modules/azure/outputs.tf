output "virtual_machine_id" {
  description = "The machine."
  value       = azurerm_linux_virtual_machine.this.id
}

output "private_ip" {
  description = "Its address in the virtual network."
  value       = azurerm_network_interface.this.private_ip_address
}

output "identity_principal_id" {
  description = "The machine's managed identity."
  value       = azurerm_user_assigned_identity.this.principal_id
}

output "lake_url" {
  description = "The lake, as the program takes it with AZURE_STORAGE_ACCOUNT_NAME set."
  value       = "az://${var.lake.container}"
}

output "storage_account_name" {
  description = "The account that the lake's URL leaves to AZURE_STORAGE_ACCOUNT_NAME."
  value       = var.lake.storage_account
}

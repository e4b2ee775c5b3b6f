# What the machine may do: read, write, delete and list in the lake's container, read one secret.

locals {
  account_id   = var.lake.create ? one(azurerm_storage_account.lake[*].id) : var.lake.storage_account_id
  container_id = "${local.account_id}/blobServices/default/containers/${var.lake.container}"
}

resource "azurerm_user_assigned_identity" "this" {
  name                = var.name
  resource_group_name = var.resource_group_name
  location            = var.location
  tags                = var.tags
}

resource "azurerm_role_assignment" "lake" {
  scope                = local.container_id
  role_definition_name = "Storage Blob Data Contributor"
  principal_id         = azurerm_user_assigned_identity.this.principal_id
  principal_type       = "ServicePrincipal"

  depends_on = [azurerm_storage_container.lake]
}

resource "azurerm_role_assignment" "password" {
  count                = var.password_secret == null ? 0 : 1
  scope                = "${var.password_secret.key_vault_id}/secrets/${var.password_secret.name}"
  role_definition_name = "Key Vault Secrets User"
  principal_id         = azurerm_user_assigned_identity.this.principal_id
  principal_type       = "ServicePrincipal"
}

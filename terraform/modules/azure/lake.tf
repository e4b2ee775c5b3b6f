# The storage account and its container, unless they exist: private, TLS only, no account keys.

resource "azurerm_storage_account" "lake" {
  count                           = var.lake.create ? 1 : 0
  name                            = var.lake.storage_account
  resource_group_name             = var.resource_group_name
  location                        = var.location
  account_kind                    = "StorageV2"
  account_tier                    = "Standard"
  account_replication_type        = var.lake.replication
  min_tls_version                 = "TLS1_2"
  https_traffic_only_enabled      = true
  allow_nested_items_to_be_public = false
  # Only identities, so that no key can leak. The provider needs storage_use_azuread = true for it.
  shared_access_key_enabled = false
  tags                      = var.tags

  lifecycle {
    prevent_destroy = true
  }
}

resource "azurerm_storage_container" "lake" {
  count                 = var.lake.create ? 1 : 0
  name                  = var.lake.container
  storage_account_id    = azurerm_storage_account.lake[0].id
  container_access_type = "private"

  lifecycle {
    prevent_destroy = true
  }
}

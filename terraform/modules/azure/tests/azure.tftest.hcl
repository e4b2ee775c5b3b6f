# Plans against a provider that invents what only Azure could know.

mock_provider "azurerm" {
  override_during = plan
  mock_resource "azurerm_user_assigned_identity" {
    defaults = { client_id = "11111111-2222-3333-4444-555555555555", principal_id = "66666666-7777-8888-9999-000000000000" }
  }
  mock_resource "azurerm_storage_account" {
    defaults = { id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/shoplake" }
  }
}

variables {
  resource_group_name = "g"
  location            = "germanywestcentral"
  subnet_id           = "/subnets/1"
  database            = { cidr_blocks = ["10.0.0.0/24"] }
  admin               = { ssh_public_key = "ssh-ed25519 AAAA" }
  artifact            = { url = "https://downloads.example.com/tidegate-1.tar.gz", sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }
  source_url          = "postgres://replicator@db.example.com/shop"
  tables              = ["public.*"]
  password_secret     = { key_vault_id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.KeyVault/vaults/Shop-Vault", name = "replicator" }
  lake                = { storage_account = "shoplake" }
}

run "the_identity_is_limited_to_the_container_and_one_secret" {
  command = plan
  assert {
    condition     = azurerm_role_assignment.lake.scope == "/subscriptions/s/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/shoplake/blobServices/default/containers/lake" && azurerm_role_assignment.lake.role_definition_name == "Storage Blob Data Contributor"
    error_message = "the identity reaches further than the container"
  }
  assert {
    condition     = azurerm_role_assignment.password[0].scope == "/subscriptions/s/resourceGroups/g/providers/Microsoft.KeyVault/vaults/Shop-Vault/secrets/replicator" && azurerm_role_assignment.password[0].role_definition_name == "Key Vault Secrets User"
    error_message = "the identity reads other secrets"
  }
  assert {
    condition     = azurerm_role_assignment.lake.principal_id == "66666666-7777-8888-9999-000000000000" && azurerm_role_assignment.password[0].principal_id == azurerm_role_assignment.lake.principal_id
    error_message = "somebody else has the rights"
  }
}

run "the_machine_takes_no_passwords_and_boots_verified" {
  command = plan
  assert {
    condition     = azurerm_linux_virtual_machine.this.disable_password_authentication && azurerm_linux_virtual_machine.this.secure_boot_enabled
    error_message = "the machine is less closed than it should be"
  }
}

run "nothing_comes_in_and_little_goes_out" {
  command = plan
  assert {
    condition     = alltrue([for way in ["Inbound", "Outbound"] : azurerm_network_security_rule.nothing[way].access == "Deny" && azurerm_network_security_rule.nothing[way].direction == way])
    error_message = "what no rule allows passes"
  }
  assert {
    condition     = { for name, rule in azurerm_network_security_rule.out : name => rule.destination_port_range } == { https = "443", database = "5432", updates = "80" }
    error_message = "other ports go out"
  }
  assert {
    condition     = azurerm_network_security_rule.out["database"].destination_address_prefixes == toset(["10.0.0.0/24"]) && alltrue([for r in azurerm_network_security_rule.out : r.direction == "Outbound"])
    error_message = "a rule is not about the way out to the database"
  }
}

run "the_user_data_names_secret_identity_and_lake" {
  command = plan
  assert {
    condition = yamldecode(base64decode(azurerm_linux_virtual_machine.this.custom_data)).write_files[1].content == join("", [
      "AZURE_CLIENT_ID=11111111-2222-3333-4444-555555555555\n",
      "AZURE_STORAGE_ACCOUNT_NAME=shoplake\n",
      "TIDEGATE_PASSWORD_SECRET=azure:https://shop-vault.vault.azure.net/secrets/replicator\n",
    ])
    error_message = "the environment is another"
  }
  assert {
    condition     = strcontains(yamldecode(base64decode(azurerm_linux_virtual_machine.this.custom_data)).write_files[0].content, "lake = \"az://lake\"\n")
    error_message = "the lake is another"
  }
}

run "a_new_account_is_private_and_has_no_keys" {
  command = plan
  assert {
    condition     = !azurerm_storage_account.lake[0].shared_access_key_enabled && !azurerm_storage_account.lake[0].allow_nested_items_to_be_public && azurerm_storage_account.lake[0].https_traffic_only_enabled && azurerm_storage_account.lake[0].min_tls_version == "TLS1_2"
    error_message = "the account is less closed than it should be"
  }
  assert {
    condition     = azurerm_storage_container.lake[0].container_access_type == "private"
    error_message = "the container is public"
  }
}

run "an_existing_account_is_left_alone" {
  command = plan
  variables {
    lake = { storage_account = "other", container = "replicas", create = false, storage_account_id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/other" }
  }
  assert {
    condition     = length(azurerm_storage_account.lake) + length(azurerm_storage_container.lake) == 0 && endswith(azurerm_role_assignment.lake.scope, "/storageAccounts/other/blobServices/default/containers/replicas")
    error_message = "an account of somebody else would be changed, or the wrong one is used"
  }
}

run "an_existing_account_needs_its_id" {
  command = plan
  variables {
    lake = { storage_account = "other", create = false }
  }
  expect_failures = [var.lake]
}

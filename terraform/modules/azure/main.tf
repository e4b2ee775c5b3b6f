# One machine that replicates into one container of one storage account, with a managed identity that
# can do just that.

locals {
  vault_uri = var.password_secret == null ? null : coalesce(
    var.password_secret.vault_uri,
    "https://${lower(basename(var.password_secret.key_vault_id))}.vault.azure.net"
  )
}

module "user_data" {
  source = "../user-data"

  artifact      = var.artifact
  mode          = var.mode
  schedule      = var.schedule
  pipeline      = var.pipeline
  lake          = "az://${var.lake.container}"
  source_url    = var.source_url
  tables        = var.tables
  interval      = var.interval
  more_settings = var.more_settings
  source_ca     = var.source_ca
  state_disk_gb = var.state_disk_gb
  environment = {
    AZURE_STORAGE_ACCOUNT_NAME = var.lake.storage_account
    AZURE_CLIENT_ID            = azurerm_user_assigned_identity.this.client_id
  }
  password_secret = var.password_secret == null ? null : join("#", compact([
    "azure:${trimsuffix(local.vault_uri, "/")}/secrets/${var.password_secret.name}", var.password_secret.json_key
  ]))
}

resource "azurerm_network_interface" "this" {
  name                = var.name
  resource_group_name = var.resource_group_name
  location            = var.location
  tags                = var.tags

  ip_configuration {
    name                          = "internal"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = "Dynamic"
  }
}

resource "azurerm_linux_virtual_machine" "this" {
  name                  = var.name
  resource_group_name   = var.resource_group_name
  location              = var.location
  size                  = var.size
  network_interface_ids = [azurerm_network_interface.this.id]
  # cloud-init reads it once: another artifact or configuration means another machine.
  custom_data = base64encode(module.user_data.user_data)
  tags        = var.tags

  admin_username                  = var.admin.username
  disable_password_authentication = true
  admin_ssh_key {
    username   = var.admin.username
    public_key = var.admin.ssh_public_key
  }

  source_image_reference {
    publisher = var.image.publisher
    offer     = var.image.offer
    sku       = var.image.sku
    version   = var.image.version
  }

  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }

  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.this.id]
  }

  secure_boot_enabled = true
  vtpm_enabled        = true

  lifecycle {
    # A newer image is no reason to replace a machine that works.
    ignore_changes = [source_image_reference]
  }

  # The machine reads the secret and writes to the lake as soon as it is up.
  depends_on = [
    azurerm_role_assignment.lake,
    azurerm_role_assignment.password,
    azurerm_network_interface_security_group_association.this,
  ]
}

resource "azurerm_managed_disk" "state" {
  name                 = "${var.name}-state"
  resource_group_name  = var.resource_group_name
  location             = var.location
  storage_account_type = "StandardSSD_LRS"
  create_option        = "Empty"
  disk_size_gb         = var.state_disk_gb
  tags                 = var.tags
}

resource "azurerm_virtual_machine_data_disk_attachment" "state" {
  managed_disk_id    = azurerm_managed_disk.state.id
  virtual_machine_id = azurerm_linux_virtual_machine.this.id
  lun                = 0
  caching            = "ReadWrite"
}

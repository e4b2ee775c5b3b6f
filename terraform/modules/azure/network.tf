# No way in. Out: HTTPS to anywhere, and the database. Azure's own name and metadata services are
# outside these rules.

locals {
  out = merge(
    { https = { priority = 100, port = 443, ranges = ["*"] } },
    { database = { priority = 110, port = var.database.port, ranges = var.database.cidr_blocks } },
    var.package_updates ? { updates = { priority = 120, port = 80, ranges = ["*"] } } : {}
  )
}

resource "azurerm_network_security_group" "this" {
  name                = var.name
  resource_group_name = var.resource_group_name
  location            = var.location
  tags                = var.tags
}

resource "azurerm_network_security_rule" "nothing" {
  for_each                    = toset(["Inbound", "Outbound"])
  name                        = "nothing-${lower(each.key)}"
  resource_group_name         = var.resource_group_name
  network_security_group_name = azurerm_network_security_group.this.name
  direction                   = each.key
  priority                    = 4000
  access                      = "Deny"
  protocol                    = "*"
  source_address_prefix       = "*"
  source_port_range           = "*"
  destination_address_prefix  = "*"
  destination_port_range      = "*"
}

resource "azurerm_network_security_rule" "out" {
  for_each                     = local.out
  name                         = "out-${each.key}"
  resource_group_name          = var.resource_group_name
  network_security_group_name  = azurerm_network_security_group.this.name
  direction                    = "Outbound"
  priority                     = each.value.priority
  access                       = "Allow"
  protocol                     = "Tcp"
  source_address_prefix        = "*"
  source_port_range            = "*"
  destination_address_prefix   = contains(each.value.ranges, "*") ? "*" : null
  destination_address_prefixes = contains(each.value.ranges, "*") ? null : each.value.ranges
  destination_port_range       = tostring(each.value.port)
}

resource "azurerm_network_interface_security_group_association" "this" {
  network_interface_id      = azurerm_network_interface.this.id
  network_security_group_id = azurerm_network_security_group.this.id

  # Not for a moment with a group that has no rules yet.
  depends_on = [azurerm_network_security_rule.nothing, azurerm_network_security_rule.out]
}

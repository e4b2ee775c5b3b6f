# No way in but, if asked for, Identity-Aware Proxy's. Out: HTTPS to anywhere, and the database.
# The default network has a rule that lets everybody reach port 22; these come before it. The
# metadata server, with names and time, is outside the firewall.

locals {
  out = merge(
    { https = { port = 443, ranges = ["0.0.0.0/0"] } },
    { database = { port = var.database.port, ranges = var.database.cidr_blocks } },
    var.package_updates ? { updates = { port = 80, ranges = ["0.0.0.0/0"] } } : {}
  )
}

resource "google_compute_firewall" "nothing_in" {
  project                 = var.project
  network                 = var.network
  name                    = "${var.name}-nothing-in"
  description             = "Nothing reaches the machine that runs Tidegate"
  direction               = "INGRESS"
  priority                = 1000
  source_ranges           = ["0.0.0.0/0"]
  target_service_accounts = [google_service_account.this.email]
  deny {
    protocol = "all"
  }
}

resource "google_compute_firewall" "iap_ssh" {
  count                   = var.iap_ssh ? 1 : 0
  project                 = var.project
  network                 = var.network
  name                    = "${var.name}-iap-ssh"
  description             = "SSH through Identity-Aware Proxy"
  direction               = "INGRESS"
  priority                = 900
  source_ranges           = ["35.235.240.0/20"]
  target_service_accounts = [google_service_account.this.email]
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_firewall" "nothing_out" {
  project                 = var.project
  network                 = var.network
  name                    = "${var.name}-nothing-out"
  description             = "What the other rules do not allow stays in"
  direction               = "EGRESS"
  priority                = 1000
  destination_ranges      = ["0.0.0.0/0"]
  target_service_accounts = [google_service_account.this.email]
  deny {
    protocol = "all"
  }
}

resource "google_compute_firewall" "out" {
  for_each                = local.out
  project                 = var.project
  network                 = var.network
  name                    = "${var.name}-out-${each.key}"
  description             = "What the machine that runs Tidegate needs"
  direction               = "EGRESS"
  priority                = 900
  destination_ranges      = each.value.ranges
  target_service_accounts = [google_service_account.this.email]
  allow {
    protocol = "tcp"
    ports    = [tostring(each.value.port)]
  }
}

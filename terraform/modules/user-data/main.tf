# What a fresh machine is told at its first start. The one template of all clouds.

locals {
  # A JSON text is a TOML basic string. The program reads the name of a variable in `$` + `{`, and a
  # `$` before that as "not so".
  lake       = replace(jsonencode(var.lake), "$${", format("$%s", "$${"))
  source_url = replace(jsonencode(var.source_url), "$${", format("$%s", "$${"))

  config = join("\n", compact([
    "# Written by Terraform at the machine's first start.",
    "name = ${jsonencode(var.pipeline)}",
    "lake = ${local.lake}",
    "tables = ${jsonencode(var.tables)}",
    "[source]",
    "url = ${local.source_url}",
    var.password_secret == null ? "" : "password_file = \"/run/tidegate/password\"",
    "[state]",
    "dir = \"/var/lib/tidegate/state\"",
    var.interval == null ? "" : "[stream]\ninterval = ${jsonencode(var.interval)}",
    var.more_settings,
    ""
  ]))

  environment = merge(var.environment,
    var.password_secret == null ? {} : { TIDEGATE_PASSWORD_SECRET = var.password_secret }
  )

  unit = var.mode == "streaming" ? "tidegate.service" : "tidegate-batch.timer"

  bootstrap_command = join(" ", concat(
    ["/usr/local/sbin/tidegate-bootstrap", var.artifact.url, var.artifact.sha256, local.unit,
    format("%d", var.state_disk_gb * pow(1024, 3))],
    var.source_ca == null ? [] : [var.source_ca.url, var.source_ca.sha256]
  ))

  user_data = templatefile("${path.module}/cloud-init.yaml.tftpl", {
    config            = "${local.config}\n"
    environment       = join("", [for name, value in local.environment : "${name}=${value}\n"])
    bootstrap         = file("${path.module}/bootstrap.sh")
    bootstrap_command = local.bootstrap_command
    schedule          = var.mode == "batch" ? var.schedule : null
  })
}

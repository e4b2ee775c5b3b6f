# No way in. Out: HTTPS to anywhere, and the database.

resource "aws_security_group" "this" {
  name_prefix = "${var.name}-"
  description = "Tidegate: nothing in; HTTPS and the database out"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = var.name })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.this.id
  description       = "S3, Secrets Manager, the artifact"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_egress_rule" "updates" {
  count             = var.package_updates ? 1 : 0
  security_group_id = aws_security_group.this.id
  description       = "Signed security updates"
  ip_protocol       = "tcp"
  from_port         = 80
  to_port           = 80
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_egress_rule" "database_group" {
  count                        = var.database.security_group_id == null ? 0 : 1
  security_group_id            = aws_security_group.this.id
  description                  = "The database"
  ip_protocol                  = "tcp"
  from_port                    = var.database.port
  to_port                      = var.database.port
  referenced_security_group_id = var.database.security_group_id
}

resource "aws_vpc_security_group_egress_rule" "database_range" {
  for_each          = toset(var.database.cidr_blocks)
  security_group_id = aws_security_group.this.id
  description       = "The database"
  ip_protocol       = "tcp"
  from_port         = var.database.port
  to_port           = var.database.port
  cidr_ipv4         = each.value
}

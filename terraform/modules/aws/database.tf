# For a source on RDS: logical replication on, and a limit to what a stopped pipeline can fill.

resource "aws_db_parameter_group" "source" {
  count       = var.rds_parameter_group == null ? 0 : 1
  name_prefix = "${var.name}-"
  family      = var.rds_parameter_group.family
  description = "Logical replication for Tidegate"
  tags        = var.tags

  # Sets wal_level to logical. Takes a reboot of the database, as do slots and senders.
  parameter {
    name         = "rds.logical_replication"
    value        = "1"
    apply_method = "pending-reboot"
  }
  parameter {
    name         = "max_replication_slots"
    value        = tostring(var.rds_parameter_group.max_replication_slots)
    apply_method = "pending-reboot"
  }
  parameter {
    name         = "max_wal_senders"
    value        = tostring(var.rds_parameter_group.max_wal_senders)
    apply_method = "pending-reboot"
  }
  # In MB. Without it a pipeline that stands still fills the database's disk.
  parameter {
    name         = "max_slot_wal_keep_size"
    value        = tostring(var.rds_parameter_group.max_slot_wal_keep_size_mb)
    apply_method = "immediate"
  }

  lifecycle {
    create_before_destroy = true
  }
}

# One machine that replicates into one prefix of one bucket, with a role that can do just that.

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_ssm_parameter" "ubuntu" {
  count = var.ami_id == null ? 1 : 0
  name  = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}

data "aws_subnet" "this" {
  id = var.subnet_id
}

module "user_data" {
  source = "../user-data"

  artifact      = var.artifact
  mode          = var.mode
  schedule      = var.schedule
  pipeline      = var.pipeline
  lake          = "s3://${var.lake.bucket}/${var.lake.prefix}"
  source_url    = var.source_url
  tables        = var.tables
  interval      = var.interval
  more_settings = var.more_settings
  source_ca     = var.source_ca
  state_disk_gb = var.state_disk_gb
  environment   = { AWS_REGION = data.aws_region.current.region }
  password_secret = var.password_secret == null ? null : join("#", compact([
    "aws:${var.password_secret.arn}", var.password_secret.json_key
  ]))
}

resource "aws_instance" "this" {
  ami                         = var.ami_id == null ? nonsensitive(data.aws_ssm_parameter.ubuntu[0].value) : var.ami_id
  instance_type               = var.instance_type
  subnet_id                   = var.subnet_id
  vpc_security_group_ids      = [aws_security_group.this.id]
  associate_public_ip_address = var.associate_public_ip_address
  iam_instance_profile        = aws_iam_instance_profile.this.name
  user_data                   = module.user_data.user_data
  # cloud-init reads it once: another artifact or configuration means another machine.
  user_data_replace_on_change = true

  # Only IMDSv2, and not through a container's network.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 16
    encrypted   = true
  }

  tags = merge(var.tags, { Name = var.name })

  lifecycle {
    # A newer image is no reason to replace a machine that works.
    ignore_changes = [ami]
  }

  # The machine reads the secret and writes to the lake as soon as it is up.
  depends_on = [aws_iam_role_policy.this]
}

resource "aws_ebs_volume" "state" {
  availability_zone = data.aws_subnet.this.availability_zone
  type              = "gp3"
  size              = var.state_disk_gb
  encrypted         = true
  tags              = merge(var.tags, { Name = "${var.name}-state" })
}

resource "aws_volume_attachment" "state" {
  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.state.id
  instance_id = aws_instance.this.id
  # Unmounted before it is taken away.
  stop_instance_before_detaching = true
}

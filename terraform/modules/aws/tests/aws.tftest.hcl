# Plans against a provider that invents what only AWS could know.

mock_provider "aws" {
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { value = "ami-0123456789abcdef0" }
  }
  mock_data "aws_subnet" {
    defaults = { availability_zone = "eu-central-1a" }
  }
}

variables {
  vpc_id          = "vpc-1"
  subnet_id       = "subnet-1"
  database        = { security_group_id = "sg-db" }
  artifact        = { url = "https://downloads.example.com/tidegate-1.tar.gz", sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }
  source_url      = "postgres://replicator@db.example.com/shop"
  tables          = ["public.*"]
  password_secret = { arn = "arn:aws:secretsmanager:eu-central-1:111122223333:secret:shop-AbCdEf", json_key = "password", kms_key_arn = "arn:aws:kms:eu-central-1:111122223333:key/2" }
  lake            = { bucket = "b1", prefix = "shop/lake", kms_key_arn = "arn:aws:kms:eu-central-1:111122223333:key/1" }
}

run "the_role_is_limited_to_the_prefix_and_one_secret" {
  command = plan
  assert {
    condition = { for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid => s.Resource } == {
      LakeObjects = "arn:aws:s3:::b1/shop/lake/*"
      LakeNames   = "arn:aws:s3:::b1"
      Password    = "arn:aws:secretsmanager:eu-central-1:111122223333:secret:shop-AbCdEf"
      LakeKey     = "arn:aws:kms:eu-central-1:111122223333:key/1"
      SecretKey   = "arn:aws:kms:eu-central-1:111122223333:key/2"
    }
    error_message = "the role reaches further than prefix, secret and their keys"
  }
  assert {
    condition     = alltrue([for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Effect == "Allow" && alltrue([for a in flatten([s.Action]) : !strcontains(a, "*")])])
    error_message = "an action is a wildcard"
  }
  assert {
    condition     = [for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Condition.StringLike["s3:prefix"] if s.Sid == "LakeNames"] == [["shop/lake/*"]]
    error_message = "names outside the prefix can be listed"
  }
  assert {
    condition     = length(aws_iam_role_policy_attachment.session_manager) == 0
    error_message = "another policy is attached unasked"
  }
}

run "the_machine_has_only_imdsv2_and_encrypted_disks" {
  command = plan
  assert {
    condition     = aws_instance.this.metadata_options[0].http_tokens == "required" && aws_instance.this.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "credentials can be had through IMDSv1 or from a container"
  }
  assert {
    condition     = aws_instance.this.root_block_device[0].encrypted && aws_ebs_volume.state.encrypted
    error_message = "a disk is not encrypted"
  }
  assert {
    condition     = !aws_instance.this.associate_public_ip_address
    error_message = "the machine has a public address unasked"
  }
}

run "nothing_comes_in_and_little_goes_out" {
  command = plan
  assert {
    condition     = aws_vpc_security_group_egress_rule.https.from_port == 443 && aws_vpc_security_group_egress_rule.https.to_port == 443
    error_message = "more than HTTPS goes out"
  }
  assert {
    condition     = aws_vpc_security_group_egress_rule.database_group[0].referenced_security_group_id == "sg-db" && aws_vpc_security_group_egress_rule.database_group[0].to_port == 5432
    error_message = "the database can't be reached"
  }
}

run "the_user_data_names_secret_lake_and_region" {
  command = plan
  assert {
    condition = yamldecode(aws_instance.this.user_data).write_files[1].content == join("", [
      "AWS_REGION=eu-central-1\n",
      "TIDEGATE_PASSWORD_SECRET=aws:arn:aws:secretsmanager:eu-central-1:111122223333:secret:shop-AbCdEf#password\n",
    ])
    error_message = "the environment is another"
  }
  assert {
    condition     = strcontains(yamldecode(aws_instance.this.user_data).write_files[0].content, "lake = \"s3://b1/shop/lake\"\n")
    error_message = "the lake is another"
  }
  assert {
    condition     = strcontains(yamldecode(aws_instance.this.user_data).write_files[3].content, "tidegate.service 53687091200\n")
    error_message = "the state disk is not waited for"
  }
  assert {
    condition     = aws_instance.this.user_data_replace_on_change
    error_message = "a changed configuration would never be read"
  }
}

run "a_new_bucket_is_private_and_encrypted" {
  command = plan
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.lake[0].block_public_acls,
      aws_s3_bucket_public_access_block.lake[0].block_public_policy,
      aws_s3_bucket_public_access_block.lake[0].ignore_public_acls,
      aws_s3_bucket_public_access_block.lake[0].restrict_public_buckets,
    ])
    error_message = "the bucket can be made public"
  }
  assert {
    condition     = one(aws_s3_bucket_server_side_encryption_configuration.lake[0].rule).apply_server_side_encryption_by_default[0].sse_algorithm == "aws:kms"
    error_message = "the key is not used"
  }
}

run "an_existing_bucket_is_left_alone" {
  command = plan
  variables {
    lake = { bucket = "b1", create = false }
  }
  assert {
    condition     = length(aws_s3_bucket.lake) + length(aws_s3_bucket_policy.lake) + length(aws_s3_bucket_lifecycle_configuration.lake) + length(aws_s3_bucket_public_access_block.lake) + length(aws_s3_bucket_server_side_encryption_configuration.lake) == 0
    error_message = "a bucket of somebody else would be changed"
  }
  assert {
    condition     = output.lake_url == "s3://b1/lake"
    error_message = "the lake is elsewhere"
  }
}

run "a_login_without_a_password_may_read_no_secret" {
  command = plan
  variables {
    password_secret = null
    lake            = { bucket = "b1" }
  }
  assert {
    condition     = [for s in jsondecode(aws_iam_role_policy.this.policy).Statement : s.Sid] == ["LakeObjects", "LakeNames"]
    error_message = "the role has rights that nothing needs"
  }
}

run "a_database_on_rds_gets_its_parameters" {
  command = plan
  variables {
    rds_parameter_group = { family = "postgres17" }
  }
  assert {
    condition = { for p in aws_db_parameter_group.source[0].parameter : p.name => p.value } == {
      "rds.logical_replication" = "1"
      max_replication_slots     = "10"
      max_wal_senders           = "15"
      max_slot_wal_keep_size    = "51200"
    }
    error_message = "the parameters are others"
  }
}

run "a_prefix_with_a_wildcard_is_refused" {
  command = plan
  variables {
    lake = { bucket = "b1", prefix = "*" }
  }
  expect_failures = [var.lake]
}

run "an_empty_prefix_is_refused" {
  command = plan
  variables {
    lake = { bucket = "b1", prefix = "" }
  }
  expect_failures = [var.lake]
}

run "a_secret_with_a_wildcard_is_refused" {
  command = plan
  variables {
    password_secret = { arn = "arn:aws:secretsmanager:eu-central-1:111122223333:secret:*" }
  }
  expect_failures = [var.password_secret]
}

run "a_database_at_no_address_is_refused" {
  command = plan
  variables {
    database = {}
  }
  expect_failures = [var.database]
}

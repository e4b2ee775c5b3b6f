variables {
  artifact   = { url = "https://downloads.example.com/tidegate-1.tar.gz", sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }
  lake       = "s3://b/lake"
  source_url = "postgres://replicator@db.example.com/shop?sslmode=verify-full"
  tables     = ["public.*", "!public.\"Audit\""]
}

run "a_streaming_machine_gets_a_valid_cloud_config" {
  command = plan
  assert {
    condition     = startswith(output.user_data, "#cloud-config\n")
    error_message = "cloud-init takes what does not begin so for something else"
  }
  assert {
    condition = [for f in yamldecode(output.user_data).write_files : f.path] == [
      "/etc/tidegate/tidegate.toml", "/etc/tidegate/environment", "/usr/local/sbin/tidegate-bootstrap",
      "/etc/systemd/system/tidegate-bootstrap.service", "/etc/systemd/journald.conf.d/tidegate.conf",
    ]
    error_message = "the files are others"
  }
  assert {
    condition     = strcontains(yamldecode(output.user_data).write_files[3].content, "tidegate.service 0\n")
    error_message = "the service is not what is enabled"
  }
  assert {
    condition     = strcontains(yamldecode(output.user_data).write_files[0].content, "tables = [\"public.*\",\"!public.\\\"Audit\\\"\"]")
    error_message = "the tables are not what was given"
  }
}

run "a_batch_machine_gets_the_timer_and_its_schedule" {
  command = plan
  variables {
    mode          = "batch"
    schedule      = "*-*-* 02:30:00"
    state_disk_gb = 50
  }
  assert {
    condition     = strcontains(yamldecode(output.user_data).write_files[3].content, "tidegate-batch.timer 53687091200\n")
    error_message = "the timer is not what is enabled, or the disk's size is wrong"
  }
  assert {
    condition     = yamldecode(output.user_data).write_files[4].content == "[Timer]\nOnCalendar=\nOnCalendar=*-*-* 02:30:00\n"
    error_message = "the schedule does not replace the unit's own"
  }
}

run "the_secret_is_named_and_not_held" {
  command = plan
  variables {
    password_secret = "aws:arn:aws:secretsmanager:eu-central-1:111122223333:secret:shop-AbCdEf#password"
    environment     = { AWS_REGION = "eu-central-1" }
  }
  assert {
    condition = yamldecode(output.user_data).write_files[1].content == join("", [
      "AWS_REGION=eu-central-1\n",
      "TIDEGATE_PASSWORD_SECRET=aws:arn:aws:secretsmanager:eu-central-1:111122223333:secret:shop-AbCdEf#password\n",
    ])
    error_message = "the environment is another"
  }
  assert {
    condition     = strcontains(yamldecode(output.user_data).write_files[0].content, "password_file = \"/run/tidegate/password\"\n")
    error_message = "the program is not told where the password will be"
  }
}

run "a_dollar_is_no_variable" {
  command = plan
  variables {
    source_url = "postgres://u@h/d$${X}"
  }
  assert {
    condition     = strcontains(yamldecode(output.user_data).write_files[0].content, join("", ["/d$", "$${X}\""]))
    error_message = "the program would read a variable's name"
  }
}

run "a_password_in_the_url_is_refused" {
  command = plan
  variables {
    source_url = "postgres://replicator:hunter2@db.example.com/shop"
  }
  expect_failures = [var.source_url]
}

run "a_password_in_the_query_is_refused" {
  command = plan
  variables {
    source_url = "postgres://replicator@db.example.com/shop?password=hunter2"
  }
  expect_failures = [var.source_url]
}

run "a_key_in_the_environment_is_refused" {
  command = plan
  variables {
    environment = { AWS_SECRET_ACCESS_KEY = "hunter2" }
  }
  expect_failures = [var.environment]
}

run "a_password_in_other_settings_is_refused" {
  command = plan
  variables {
    more_settings = "[limits]\npassword = \"hunter2\"\n"
  }
  expect_failures = [var.more_settings]
}

run "a_signed_artifact_url_is_refused" {
  command = plan
  variables {
    artifact = { url = "https://b.example.com/t.tar.gz?X-Amz-Signature=1", sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }
  }
  expect_failures = [var.artifact]
}

run "an_artifact_without_its_checksum_is_refused" {
  command = plan
  variables {
    artifact = { url = "https://b.example.com/t.tar.gz", sha256 = "" }
  }
  expect_failures = [var.artifact]
}

run "a_second_line_in_the_schedule_is_refused" {
  command = plan
  variables {
    mode     = "batch"
    schedule = "hourly\nUnit=other.service"
  }
  expect_failures = [var.schedule]
}

run "more_than_aws_takes_is_refused" {
  command = plan
  variables {
    more_settings = join("\n", [for i in range(1000) : "# a comment of some length"])
  }
  expect_failures = [output.user_data]
}

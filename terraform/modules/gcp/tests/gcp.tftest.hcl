# Plans against a provider that invents what only Google could know.

mock_provider "google" {
  override_during = plan
  mock_resource "google_service_account" {
    defaults = { email = "tidegate@p1.iam.gserviceaccount.com" }
  }
}

variables {
  project         = "p1"
  zone            = "europe-west3-a"
  network         = "n1"
  subnetwork      = "s1"
  database        = { cidr_blocks = ["10.0.0.0/24"] }
  artifact        = { url = "https://downloads.example.com/tidegate-1.tar.gz", sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }
  source_url      = "postgres://replicator@db.example.com/shop"
  tables          = ["public.*"]
  password_secret = { secret_id = "shop", project = "p2" }
  lake            = { bucket = "b1", prefix = "shop/lake", location = "EU" }
}

run "the_account_is_limited_to_the_prefix_and_one_secret" {
  command = plan
  assert {
    condition     = google_storage_bucket_iam_member.lake.condition[0].expression == "resource.name.startsWith(\"projects/_/buckets/b1/objects/shop/lake/\") || api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"shop/lake/\")"
    error_message = "the account reaches further than the prefix"
  }
  assert {
    condition     = google_storage_bucket_iam_member.lake.role == "roles/storage.objectUser" && google_storage_bucket_iam_member.lake.bucket == "b1"
    error_message = "the role is another"
  }
  assert {
    condition     = google_secret_manager_secret_iam_member.password[0].secret_id == "shop" && google_secret_manager_secret_iam_member.password[0].project == "p2"
    error_message = "the account reads another secret"
  }
  assert {
    condition     = google_storage_bucket_iam_member.lake.member == "serviceAccount:tidegate@p1.iam.gserviceaccount.com" && google_secret_manager_secret_iam_member.password[0].member == google_storage_bucket_iam_member.lake.member
    error_message = "somebody else has the rights"
  }
}

run "the_machine_has_no_public_address_and_boots_verified" {
  command = plan
  assert {
    condition     = length(google_compute_instance.this.network_interface[0].access_config) == 0
    error_message = "the machine has a public address"
  }
  assert {
    condition     = google_compute_instance.this.shielded_instance_config[0].enable_secure_boot && google_compute_instance.this.metadata["block-project-ssh-keys"] == "TRUE"
    error_message = "the machine is less closed than it should be"
  }
}

run "nothing_comes_in_and_little_goes_out" {
  command = plan
  assert {
    condition     = google_compute_firewall.nothing_in.direction == "INGRESS" && one(google_compute_firewall.nothing_in.deny).protocol == "all" && length(google_compute_firewall.iap_ssh) == 0
    error_message = "the machine can be reached"
  }
  assert {
    condition     = { for name, rule in google_compute_firewall.out : name => join(",", one(rule.allow).ports) } == { https = "443", database = "5432", updates = "80" }
    error_message = "other ports go out"
  }
  assert {
    condition     = one(google_compute_firewall.nothing_out.deny).protocol == "all" && google_compute_firewall.nothing_out.priority > google_compute_firewall.out["database"].priority
    error_message = "what is not allowed goes out"
  }
}

run "the_user_data_names_secret_and_lake" {
  command = plan
  assert {
    condition     = yamldecode(google_compute_instance.this.metadata["user-data"]).write_files[1].content == "TIDEGATE_PASSWORD_SECRET=gcp:projects/p2/secrets/shop\n"
    error_message = "the environment is another"
  }
  assert {
    condition     = strcontains(yamldecode(google_compute_instance.this.metadata["user-data"]).write_files[0].content, "lake = \"gs://b1/shop/lake\"\n")
    error_message = "the lake is another"
  }
}

run "a_new_bucket_is_private" {
  command = plan
  assert {
    condition     = google_storage_bucket.lake[0].public_access_prevention == "enforced" && google_storage_bucket.lake[0].uniform_bucket_level_access
    error_message = "the bucket can be made public"
  }
}

run "an_existing_bucket_is_left_alone" {
  command = plan
  variables {
    lake = { bucket = "b1", create = false }
  }
  assert {
    condition     = length(google_storage_bucket.lake) == 0 && output.lake_url == "gs://b1/lake"
    error_message = "a bucket of somebody else would be changed"
  }
}

run "a_prefix_with_a_quote_is_refused" {
  command = plan
  variables {
    lake = { bucket = "b1", prefix = "x\") || true || (\"", create = false }
  }
  expect_failures = [var.lake]
}

run "a_new_bucket_needs_a_place" {
  command = plan
  variables {
    lake = { bucket = "b1" }
  }
  expect_failures = [var.lake]
}

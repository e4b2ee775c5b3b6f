"""A tree with one mistake in it must fail the check that is there for it.

The mistakes are planted in copies. Those that need Terraform share one run, each in a place of its own,
and each must be named in what the run says.
"""

import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import deploying

MODULES = "terraform/modules"


class Planted(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        for name in ["terraform", "ops", "packaging", "tests/deploy/rendered"]:
            shutil.copytree(ROOT / name, self.root / name,
                            ignore=shutil.ignore_patterns(".terraform*", "__pycache__"))
        for name in ["rust-toolchain.toml", "deny.toml"]:
            shutil.copy(ROOT / name, self.root)

    def edit(self, name, old, new):
        file = self.root / name
        text = file.read_text()
        self.assertEqual(text.count(old), 1, f"{old!r} in {name}: the mistake can't be planted")
        file.write_text(text.replace(old, new))

    def found(self, check):
        try:
            return "\n".join(check(self.root))
        except deploying.NotChecked as e:
            self.skipTest(f"NOT CHECKED {check.__name__}: {e}")

    def assert_found(self, check, *wanted):
        said = self.found(check)
        for text in wanted:
            self.assertRegex(said, text)

    def test_a_tree_without_mistakes_has_no_findings(self):
        for check in [deploying.policies, deploying.readmes, deploying.units, deploying.shell,
                      deploying.container]:
            with self.subTest(check.__name__):
                self.assertEqual(self.found(check), "")

    # Terraform

    def test_ill_formatted_code(self):
        self.edit(f"{MODULES}/aws/lake.tf", "  bucket = var.lake.bucket\n", "  bucket=var.lake.bucket\n")
        self.assert_found(deploying.terraform, "terraform fmt: .*lake.tf")

    def test_mistakes_of_terraform(self):
        shutil.rmtree(self.root / "terraform/examples")
        self.edit(f"{MODULES}/azure/main.tf", "  secure_boot_enabled = true\n",
                  "  secure_boot_enabeld = true\n")
        self.edit(f"{MODULES}/gcp/main.tf", "  machine_type = var.machine_type\n",
                  "  machine_type = [var.machine_type]\n")
        self.edit(f"{MODULES}/aws/main.tf", 'http_tokens                 = "required"',
                  'http_tokens                 = "optional"')
        self.edit(f"{MODULES}/aws/identity.tf", "${local.bucket_arn}/${var.lake.prefix}/*",
                  "${local.bucket_arn}/*")
        self.assert_found(
            deploying.terraform,
            r'argument named\s+"secure_boot_enabeld" is not expected',  # unknown argument
            r'Inappropriate value for attribute "machine_type": string required',  # wrong type
            "credentials can be had through IMDSv1",
            "the role reaches further than prefix, secret and their keys")

    def test_a_right_to_everything(self):
        self.edit(f"{MODULES}/aws/identity.tf", "Resource  = local.bucket_arn", 'Resource  = "*"')
        self.assert_found(deploying.policies, "identity.tf line .* gives a right to everything")

    def test_a_secret_in_the_state(self):
        with open(self.root / MODULES / "aws/main.tf", "a") as file:
            file.write('data "aws_secretsmanager_secret_version" "p" {\n  secret_id = "x"\n}\n')
        self.assert_found(deploying.policies, "reads a secret's value")

    def test_a_way_in(self):
        with open(self.root / MODULES / "aws/network.tf", "a") as file:
            file.write('resource "aws_vpc_security_group_ingress_rule" "ssh" {\n}\n')
        self.assert_found(deploying.policies, "opens a way in")

    def test_a_lock_file_of_one_machine(self):
        (self.root / MODULES / "aws/.terraform.lock.hcl").write_text("")
        self.assert_found(deploying.policies, "pins the providers")

    def test_an_input_that_no_readme_knows(self):
        with open(self.root / MODULES / "gcp/variables.tf", "a") as file:
            file.write('variable "news" {\n  description = "News."\n}\n')
        self.assert_found(deploying.readmes, "gcp/README.md is behind")

    # User data

    def plant_in_user_data(self, old, new):
        self.edit(f"{MODULES}/user-data/cloud-init.yaml.tftpl", old, new)

    def test_user_data_that_cloud_init_does_not_take(self):
        name = "tests/deploy/rendered/gcp-batch.yaml"
        for other in ["aws-streaming", "azure-streaming"]:
            (self.root / f"tests/deploy/rendered/{other}.yaml").unlink()
        for old, new, wanted in [
                ("  - [systemctl, daemon-reload]\n", "  - {systemctl: daemon-reload}\n",
                 "(?s)cloud-init refuses .*runcmd"),
                ('    permissions: "0644"\n    content: |\n      [Journal]',
                 "    permissions: 0644\n    content: |\n      [Journal]",
                 "(?s)cloud-init refuses .*permissions"),
                ("#cloud-config\n", "# cloud-config\n", "cloud-init refuses"),
                ("runcmd:\n", "run_cmd:\n", "knows no run_cmd")]:
            with self.subTest(new):
                shutil.copy(ROOT / name, self.root / name)
                self.edit(name, old, new)
                self.assert_found(deploying.cloud_init, wanted)

    def test_a_secret_in_user_data(self):
        kept = (ROOT / "tests/deploy/rendered/aws-streaming.yaml").read_text()
        self.assertEqual(list(deploying.secrets_in(kept)), [])
        for leak, what in [("AWS_KEY=AKIAABCDEFGHIJKLMNOP", "a key"),
                           ("PGPASSWORD=hunter2", "a password"),
                           ('password: "hunter2"', "a password"),
                           ("postgres://u:hunter2@h/d", "a password in a URL"),
                           ("https://x/y?sig=abc", "a signed URL")]:
            with self.subTest(leak):
                [finding] = deploying.secrets_in(f"{kept}# {leak}\n")
                self.assertTrue(finding.startswith(f"user data holds {what}: "), finding)

    def test_a_secret_that_the_template_itself_holds(self):
        self.plant_in_user_data("    content: ${jsonencode(environment)}\n",
                                '    content: ${jsonencode("${environment}PGPASSWORD=hunter2\\n")}\n')
        self.assert_found(deploying.user_data, "aws-streaming: user data holds a password",
                          "rendered/aws-streaming.yaml is not what is rendered now")

    def test_a_template_that_does_not_render(self):
        self.plant_in_user_data("%{ endif ~}\n", "")
        self.assert_found(deploying.user_data, "can't be rendered")

    # Units

    def test_a_unit_that_systemd_does_not_take_as_it_is(self):
        for old, new, wanted in [
                ("\nRestart=on-failure\n", "\nRestart=on-faliure\n", "verify of tidegate.service"),
                ("\nKillMode=mixed\n", "\nKilMode=mixed\n", "KilMode"),
                ("\nTimeoutStopSec=5min\n", "\nTimeoutStopSec=5 minuets\n", "Failed to parse time value"),
                ("ExecStart=/usr/bin/tidegate", "ExecStart=/usr/bin/nothing/tidegate", "verify")]:
            with self.subTest(new):
                file = self.root / "ops/tidegate.service"
                shutil.copy(ROOT / "ops/tidegate.service", file)
                self.edit("ops/tidegate.service", old, new)
                self.assert_found(deploying.units, wanted)

    def test_a_unit_that_is_less_closed(self):
        self.edit("ops/tidegate-batch.service", "\nCapabilityBoundingSet=\n", "\n")
        self.assert_found(deploying.units, "security of tidegate-batch.service: over")

    def test_a_schedule_that_is_none(self):
        self.edit("ops/tidegate-batch.timer", "OnCalendar=hourly", "OnCalendar=hurly")
        self.assert_found(deploying.units, "schedule is none")

    # Packaging

    def test_a_script_with_a_trap(self):
        self.edit("ops/hold", 'why" >"$held"', 'why" >$held')
        self.assert_found(deploying.shell, "SC2086")

    def test_a_container_that_is_built_or_run_in_the_wrong_way(self):
        for old, new, wanted in [
                ("USER 65532:65532\n", "USER root\n", "runs as root|DL3002"),
                ("STOPSIGNAL SIGTERM\n", "", "how it is stopped"),
                ("rust:1.95.0-bookworm", "rust:latest", "DL3007"),
                ("--release --locked", "--release", "Cargo.lock"),
                ('ENTRYPOINT ["/usr/bin/tidegate"]', "ENTRYPOINT /usr/bin/tidegate", "DL3025")]:
            with self.subTest(new):
                shutil.copy(ROOT / "packaging/Containerfile", self.root / "packaging")
                self.edit("packaging/Containerfile", old, new)
                self.assert_found(deploying.container, wanted)

    def test_a_licence_that_is_not_allowed(self):
        # cargo-deny needs the crate itself: what is allowed is made less instead.
        text = (ROOT / "deny.toml").read_text()
        with tempfile.TemporaryDirectory() as scratch:
            for name in ["Cargo.toml", "Cargo.lock", "src"]:
                Path(scratch, name).symlink_to(ROOT / name)
            Path(scratch, "deny.toml").write_text(text.replace('"BSL-1.0", ', ""))
            self.root = Path(scratch)
            self.assert_found(deploying.licences, r"(?s)BSL-1.0.*xxhash-rust")


if __name__ == "__main__":
    unittest.main()

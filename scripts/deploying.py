"""What can be judged of terraform/, ops/ and packaging/ without a cloud and without a container engine.

Each check takes the root of a tree and returns its findings as sentences; none is good. What can't be
judged on this machine raises `NotChecked`, and is said: nothing passes in silence. The tests plant
single mistakes in copies of the tree and ask for the finding.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import fetching

# systemd's exposure times ten. MEDIUM begins at 50; the units are at 12.
EXPOSURE = 15
CLOUDS = ["aws", "gcp", "azure"]
MODULES = ["user-data", *CLOUDS]
SCRIPTS = ["ops/hold", "packaging/install", "terraform/modules/user-data/bootstrap.sh"]
UNITS = ["tidegate.service", "tidegate-batch.service", "tidegate-batch.timer"]


class NotChecked(Exception):
    """What this machine lacks for a check."""


def run(command, **more):
    """Exit code and output, both streams together."""
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    return done.returncode, done.stdout.strip()


def brought(name):
    """A folder that `setup-deploy` brought."""
    place = fetching.cache() / "python" / "deploy.json"
    found = json.loads(place.read_text()).get(name) if place.exists() else None
    if not found or not Path(found).exists():
        raise NotChecked(f"scripts/setup-deploy brought no {name}")
    return Path(found)


def tool(name):
    return shutil.which(name) or brought("library") / "bin" / name


def terraform_program():
    program = shutil.which("terraform")
    if not program:
        raise NotChecked("there is no terraform on PATH")
    return program


def terraform_environment(**more):
    # No settings of the person's own where no provider is fetched.
    return {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1",
            "TF_CLI_CONFIG_FILE": os.devnull, **more}


def terraform(root):
    """Format, validation and the modules' own tests.

    TIDEGATE_TERRAFORM_CHECK may name a program that does this for a folder without a registry of
    providers, for machines that reach none. Without it the providers are fetched.
    """
    program = terraform_program()
    code, out = run([program, "fmt", "-check", "-recursive", root / "terraform"],
                    env=terraform_environment())
    if code != 0:
        return [f"terraform fmt: {out}"]
    checker = os.environ.get("TIDEGATE_TERRAFORM_CHECK")
    if checker:
        # What it brings stays in the cache.
        cache = fetching.cache() / "terraform"
        cache.mkdir(exist_ok=True)
        with fetching.lock("terraform"):
            code, out = run([checker, root / "terraform"],
                            env=terraform_environment(XDG_CACHE_HOME=str(cache)))
        return [] if code == 0 else [f"terraform: {out}"]
    findings, skipped = [], []
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "terraform")
        shutil.copytree(root / "terraform", copy, ignore=shutil.ignore_patterns(".terraform*"))
        for folder in sorted({file.parent for file in copy.rglob("*.tf")}):
            name = folder.relative_to(copy)
            # The person's own settings: they may name a mirror.
            code, out = run([program, f"-chdir={folder}", "init", "-backend=false",
                             "-input=false", "-no-color"])
            if code != 0:
                skipped.append(str(name))
                continue
            for what in ["validate", "test"]:
                code, out = run([program, f"-chdir={folder}", what, "-no-color"])
                if code != 0:
                    findings.append(f"terraform {what} of {name}: {out}")
    if skipped and not findings:
        raise NotChecked(f"the providers of {', '.join(skipped)} can't be fetched, and "
                         "TIDEGATE_TERRAFORM_CHECK names no program that does without")
    return findings


def policies(root):
    """Rules over the text, for what no plan with invented values shows."""
    findings = []
    rules = [
        (r'data\s+"\w*(secret_version|key_vault_secret|secret_version_access)\w*"|ephemeral\s+"',
         "reads a secret's value, which Terraform keeps in its state"),
        (r'resource\s+"\w*(secret_version|key_vault_secret)"', "holds a secret's value"),
        (r'resource\s+"\w*_ingress_rule"|^\s*ingress\s*\{|resource\s+"aws_security_group_rule"',
         "opens a way in"),
        (r'Resource\s*=\s*"\*"', "gives a right to everything"),
        (r'^\s*(admin_)?password\s*=', "holds a password"),
        (r'resource\s+"\w*(access_key|service_account_key|_sas)"', "makes a key that can leak"),
    ]
    for file in sorted((root / "terraform").rglob("*.tf")):
        text = file.read_text()
        for pattern, what in rules:
            for match in re.finditer(pattern, text, re.M):
                line = text[:match.start()].count("\n") + 1
                findings.append(f"{file.relative_to(root)} line {line} {what}: {match[0].strip()}")
    code, listed = run(["git", "-C", root, "ls-files", "--", "terraform"])
    names = listed.splitlines() if code == 0 else map(str, (root / "terraform").rglob("*"))
    findings += [f"{name} pins the providers of one machine" for name in names
                 if name.endswith(".terraform.lock.hcl")]
    return findings


SETTINGS = {
    "artifact": {"url": "https://downloads.example.com/tidegate.tar.gz", "sha256": "a" * 64},
    "tables": ["public.*", '!public."Audit"'],
    "state_disk_gb": 50,
}
RENDERED = {
    "aws-streaming": {
        "lake": "s3://example-lake/shop",
        "source_url": "postgres://replicator@db.example.com/shop?sslmode=verify-full"
                      "&sslrootcert=/etc/tidegate/source-ca.pem",
        "source_ca": {"url": "https://downloads.example.com/ca.pem", "sha256": "b" * 64},
        "password_secret": "aws:arn:aws:secretsmanager:eu-central-1:111122223333:secret:shop-AbCdEf"
                           "#password",
        "environment": {"AWS_REGION": "eu-central-1"}},
    "gcp-batch": {
        "mode": "batch", "schedule": "*-*-* 02:30:00", "lake": "gs://example-lake/shop",
        "source_url": "postgres://replicator@10.0.0.7/shop", "interval": "30s",
        "more_settings": "[limits]\nmemory_bytes = \"2 GiB\"\n",
        "password_secret": "gcp:projects/p/secrets/shop"},
    "azure-streaming": {
        "lake": "az://lake", "source_url": "postgres://replicator@10.0.0.7/shop",
        "password_secret": "azure:https://v.vault.azure.net/secrets/shop",
        "environment": {"AZURE_STORAGE_ACCOUNT_NAME": "examplelake", "AZURE_CLIENT_ID": "1-2-3"}},
}


def rendered(root):
    """The user data of each example setting, as Terraform renders it. Needs no provider."""
    program, texts = terraform_program(), {}
    with tempfile.TemporaryDirectory() as scratch:
        module = Path(scratch, "user-data")
        shutil.copytree(root / "terraform" / "modules" / "user-data", module,
                        ignore=shutil.ignore_patterns(".terraform*", "tests"))
        names = list(RENDERED)
        # One run for all: the settings are the modules' of a folder above.
        top = Path(scratch, "top")
        top.mkdir()
        (top / "main.tf.json").write_text(json.dumps({
            "module": {name: {"source": "../user-data", **escaped(SETTINGS | RENDERED[name])}
                       for name in names},
            "output": {name: {"value": f"${{module.{name}.user_data}}"} for name in names}}))
        for command in (["init", "-input=false"], ["apply", "-auto-approve", "-input=false"],
                        ["output", "-json"]):
            code, out = run([program, f"-chdir={top}", *command, *(
                [] if command[0] == "output" else ["-no-color"])], env=terraform_environment())
            if code != 0:
                raise ValueError(f"terraform {command[0]}: {out}")
    values = json.loads(out[out.index("{"):])
    for name in names:
        texts[name] = values[name]["value"]
    return texts


def escaped(value):
    """Plain values for Terraform's JSON, where `${` would be an expression."""
    if isinstance(value, dict):
        return {k: escaped(v) for k, v in value.items()}
    if isinstance(value, list):
        return [escaped(v) for v in value]
    return value.replace("${", "$${") if isinstance(value, str) else value


def user_data(root):
    """No secret in what is rendered; and it is what is kept in tests/deploy/rendered."""
    try:
        texts = rendered(root)
    except ValueError as e:
        return [f"user data can't be rendered: {e}"]
    findings = [f"{name}: {problem}" for name, text in texts.items() for problem in secrets_in(text)]
    for name, text in texts.items():
        kept = root / "tests" / "deploy" / "rendered" / f"{name}.yaml"
        if not kept.exists() or kept.read_text() != text:
            findings.append(f"{kept.relative_to(root)} is not what is rendered now: "
                            "scripts/check-deploy --write")
    return findings


def cloud_init(root):
    """cloud-init's own schema over the user data that is kept, and its list of top-level keys."""
    findings = []
    packages, library = brought("cloud_init"), brought("library")
    env = {**os.environ, "PYTHONPATH": f"{packages}:{library}", "PYTHONDONTWRITEBYTECODE": "1"}
    schema = json.loads((packages / "cloudinit/config/schemas/schema-cloud-config-v1.json")
                        .read_text())
    known = {key for part in schema["$defs"].values() for key in part.get("properties", {})}
    for file in sorted((root / "tests" / "deploy" / "rendered").glob("*.yaml")):
        code, out = run([sys.executable, "-m", "cloudinit.cmd.main", "schema", "--config-file", file],
                        env=env)
        # A sentence on standard output alone is no proof that it was read as cloud-config.
        if code != 0 or "Valid cloud-config" not in out:
            findings.append(f"cloud-init refuses {file.name}: {out}")
            continue
        code, out = run([sys.executable, "-c", "import sys, yaml, json; "
                         "print(json.dumps(list(yaml.safe_load(open(sys.argv[1])))))", file], env=env)
        findings += [f"cloud-init knows no {key}, which {file.name} has"
                     for key in json.loads(out) if key not in known]
    return findings


def secrets_in(text):
    """Whatever looks like a secret's value in a text that anybody may read."""
    for pattern, what in [(r"(?i)password\s*[=:]\s*[\"']?(?!\s|_|\\n|/run/)[^\s\"'\\]+", "a password"),
                          (r"://[^/@\s:\"]+:[^/@\s]+@", "a password in a URL"),
                          (r"AKIA[0-9A-Z]{16}|AccountKey=|-----BEGIN [A-Z ]*PRIVATE KEY", "a key"),
                          (r"[?&](sig|X-Amz-Signature|X-Goog-Signature)=", "a signed URL")]:
        match = re.search(pattern, text)
        if match:
            yield f"user data holds {what}: {match[0][:12]}…"


def units(root):
    """systemd's own judgement of the units, of those of the user data too."""
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        raise NotChecked("there is no systemd-analyze")
    findings = []
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        # Programs must exist for `verify`: they do, in the copy.
        (place / "program").write_text("#!/bin/sh\n")
        (place / "program").chmod(0o755)
        names = []
        texts = {name: (root / "ops" / name).read_text() for name in UNITS}
        try:
            texts |= {"tidegate-bootstrap.service": bootstrap_unit(root)}
        except NotChecked:
            pass
        for name, text in texts.items():
            # systemd takes `key=` it does not know with a warning.
            (place / name).write_text(re.sub(
                r"(?m)^(Exec\w+=)(/usr/(?:bin|lib/tidegate|local/sbin)/[\w-]+)",
                lambda m: f"{m[1]}{place / 'program'}", text))
            names.append(place / name)
        for name in names:
            # It exits 0 after a warning: any word of it counts.
            code, out = run([analyze, "verify", "--man=no", name])
            out = "\n".join(line for line in out.splitlines() if str(place) in line
                            or name.name in line)
            if code != 0 or out:
                findings.append(f"systemd-analyze verify of {name.name}: {out or code}")
        for name in names:
            if name.suffix == ".service" and "bootstrap" not in name.name:
                code, out = run([analyze, "security", "--offline=true", "--no-pager",
                                 f"--threshold={EXPOSURE}", name])
                if code != 0:
                    last = [line for line in out.splitlines() if line.strip()][-1:]
                    findings.append(f"systemd-analyze security of {name.name}: over "
                                    f"{EXPOSURE / 10}: {' '.join(last)}")
        calendar = re.search(r"(?m)^OnCalendar=(.+)$", texts["tidegate-batch.timer"])
        code, out = run([analyze, "calendar", calendar[1] if calendar else ""])
        if code != 0:
            findings.append(f"the timer's schedule is none: {out}")
    return findings


def bootstrap_unit(root):
    """The unit inside the user data."""
    kept = root / "tests" / "deploy" / "rendered" / "aws-streaming.yaml"
    if not kept.exists():
        raise NotChecked("no user data was rendered yet")
    block = re.search(r"tidegate-bootstrap\.service\n(?: +.*\n)*? +content: \|\n((?:      .*\n|\n)+)",
                      kept.read_text())
    return re.sub(r"(?m)^      ", "", block[1])


def shell(root):
    """shellcheck over the scripts that run on other people's machines."""
    shellcheck = tool("shellcheck")
    scripts = [root / name for name in SCRIPTS]
    scripts += [root / "packaging" / "debian" / name for name in ("postinst", "prerm", "postrm")]
    code, out = run([shellcheck, "--norc", *scripts])
    return [] if code == 0 else [f"shellcheck: {out}"]


def alerts(root):
    """promtool over the alert rules, and over the tests in which each alert fires."""
    promtool = shutil.which("promtool") or brought("promtool") / "promtool"
    folder = root / "ops" / "prometheus"
    findings = []
    for command in [["check", "rules", folder / "tidegate.rules.yaml"],
                    ["test", "rules", folder / "tidegate.tests.yaml"]]:
        code, out = run([promtool, *command])
        findings += [] if code == 0 else [f"promtool {' '.join(command[:2])}: {out}"]
    rules = re.findall(r"- alert: (\w+)", (folder / "tidegate.rules.yaml").read_text())
    tested = (folder / "tidegate.tests.yaml").read_text()
    # What is about one's own taste of numbers needs no test.
    untested = {"TidegateManyMaskedRows", "TidegateOldTransactionsHeld"}
    findings += [f"{name}: no test in which it fires" for name in rules
                 if name not in untested and f'alertname=\\"{name}' not in tested
                 and f'alertname="{name}"' not in tested]
    return findings


def container(root):
    """hadolint over the container file, and what it does not ask."""
    file = root / "packaging" / "Containerfile"
    code, out = run([tool("hadolint"), "--no-color", file])
    findings = [] if code == 0 else [f"hadolint: {out}"]
    text = file.read_text()
    last = text[text.rindex("\nFROM "):]
    toolchain = re.search(r'channel = "([\d.]+)"', (root / "rust-toolchain.toml").read_text())[1]
    for wanted, what in [
            (rf"(?m)^FROM rust:{re.escape(toolchain)}-", f"is not built by Rust {toolchain}"),
            (r"cargo build --release --locked", "does not build what Cargo.lock says")]:
        if not re.search(wanted, text):
            findings.append(f"packaging/Containerfile {what}")
    for wanted, what in [(r"(?m)^USER (?!0\b|root\b)\S+", "runs as root"),
                         (r"(?m)^STOPSIGNAL SIGTERM$", "does not say how it is stopped"),
                         (r'(?m)^ENTRYPOINT \["', "runs the program under a shell")]:
        if not re.search(wanted, last):
            findings.append(f"packaging/Containerfile {what}")
    return findings


def licences(root):
    """cargo-deny's judgement of licences, sources and duplicates; deny.toml says what is allowed."""
    command = [tool("cargo-deny"), "--offline", "--locked", "check", "licenses", "bans", "sources"]
    code, out = run(command, cwd=root)
    return [] if code == 0 else [f"cargo deny: {out}"]


def tables(module):
    """Inputs and outputs of a module, as its README shows them."""
    text = (module / "variables.tf").read_text()
    lines = ["| input | | default |", "|---|---|---|"]
    for name, body in re.findall(r'(?ms)^variable "(\w+)" \{\n(.*?)^\}', text):
        about = re.search(r'(?m)^  description\s*=\s*"((?:[^"\\]|\\.)*)"', body)
        default = re.search(r"(?m)^  default\s*=\s*(.+)$", body)
        value = "required" if not default else default[1]
        value = "an object" if value == "{" else value if value == "required" else f"`{value}`"
        lines.append(f"| `{name}` | {about[1] if about else ''} | {value} |")
    lines += ["", "| output | |", "|---|---|"]
    text = (module / "outputs.tf").read_text()
    for name, about in re.findall(r'(?ms)^output "(\w+)" \{\n\s+description\s*=\s*"(.*?)"$', text):
        lines.append(f"| `{name}` | {about} |")
    return "\n".join(lines).replace("\\\"", '"') + "\n"


MARK = "<!-- From variables.tf and outputs.tf, by scripts/check-deploy --write. -->\n"


def readmes(root):
    """Each module's README shows its inputs and outputs as they are."""
    findings = []
    for name in MODULES:
        module = root / "terraform" / "modules" / name
        file = module / "README.md"
        if not file.exists() or file.read_text().partition(MARK)[2] != tables(module):
            findings.append(f"{file.relative_to(root)} is behind its module: "
                            "scripts/check-deploy --write")
    return findings


def write(root):
    """Writes what is generated: the tables of the READMEs and the rendered user data."""
    for name in MODULES:
        module = root / "terraform" / "modules" / name
        head = (module / "README.md").read_text().partition(MARK)[0]
        (module / "README.md").write_text(head + MARK + tables(module))
    golden = root / "tests" / "deploy" / "rendered"
    golden.mkdir(exist_ok=True)
    for name, text in rendered(root).items():
        (golden / f"{name}.yaml").write_text(text)


CHECKS = [terraform, policies, readmes, user_data, cloud_init, units, alerts, shell, container,
          licences]

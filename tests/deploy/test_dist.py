"""What scripts/dist packs, from a stand-in for the program, and what a machine makes of it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import deploying

STAND_IN = Path("/bin/true").resolve()


def dist(out, *more, binary=STAND_IN, **env):
    return subprocess.run([ROOT / "scripts/dist", "--binary", binary, "--out", out, *more], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **env})


class Dist(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.out = Path(cls.scratch.name, "dist")
        done = dist(cls.out, "--stand-in")
        assert done.returncode == 0, done.stdout
        [cls.archive] = cls.out.glob("*.tar.gz")
        with tarfile.open(cls.archive) as tar:
            cls.members = tar.getmembers()
            tar.extractall(cls.scratch.name)
        cls.folder = Path(cls.scratch.name, cls.archive.name.removesuffix(".tar.gz"))
        cls.bill = json.loads((cls.folder / "doc/sbom.cdx.json").read_text())

    def test_the_same_program_and_commit_give_the_same_bytes(self):
        again = Path(self.scratch.name, "again")
        done = dist(again, "--stand-in")
        self.assertEqual(done.returncode, 0, done.stdout)
        for file in self.out.iterdir():
            self.assertEqual(file.read_bytes(), (again / file.name).read_bytes(), file.name)

    def test_checksums_are_those_of_the_files(self):
        files = [f for f in self.out.iterdir() if f.suffix != ".sha256"]
        self.assertGreaterEqual(len(files), 2)
        for file in files:
            self.assertEqual(Path(f"{file}.sha256").read_text(),
                             f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")

    def test_the_archive_does_not_tell_who_packed_it(self):
        self.assertEqual({(m.uid, m.gid, m.uname, m.gname) for m in self.members},
                         {(0, 0, "root", "root")})
        self.assertEqual({m.mode for m in self.members}, {0o755, 0o644})
        self.assertEqual({m.name.split("/")[0] for m in self.members}, {self.folder.name})

    def test_what_is_no_release_is_refused(self):
        with tempfile.TemporaryDirectory() as scratch:
            marked = Path(scratch, "tidegate")
            marked.write_bytes(STAND_IN.read_bytes() + b"TIDEGATE_FAILPOINTS")
            script = Path(scratch, "script")
            script.write_text("#!/bin/sh\n")
            arm = Path(scratch, "arm")
            head = bytearray(STAND_IN.read_bytes())
            head[18] = 40
            arm.write_bytes(head)
            for binary, why in [(marked, "built with failpoints"), (STAND_IN, "Cargo.toml has"),
                                (script, "no program for Linux"), (arm, "has no package here"),
                                (Path(scratch, "none"), "cargo build --release --locked")]:
                done = dist(scratch, binary=binary)
                self.assertEqual(done.returncode, 1)
                self.assertIn(why, done.stdout)
            self.assertEqual(list(Path(scratch).glob("*.tar.gz")), [])

    def test_the_bill_of_materials_is_valid_and_names_every_crate_that_is_shipped(self):
        names = {c["name"] for c in self.bill["components"]}
        for shipped in ["deltalake", "object_store", "zstd-sys", "tokio", "ring"]:
            self.assertIn(shipped, names)
        for not_shipped in ["proptest", "stateright", "cc"]:
            self.assertNotIn(not_shipped, names)
        refs = [self.bill["metadata"]["component"]["bom-ref"],
                *(c["bom-ref"] for c in self.bill["components"])]
        self.assertEqual(len(refs), len(set(refs)))
        self.assertEqual(sorted(refs), sorted(d["ref"] for d in self.bill["dependencies"]))
        for needed in self.bill["dependencies"]:
            self.assertLessEqual(set(needed["dependsOn"]), set(refs))
        lock = (ROOT / "Cargo.lock").read_text()
        for component in self.bill["components"]:
            self.assertIn(component["hashes"][0]["content"], lock)

    def test_the_bill_of_materials_holds_to_the_published_schema(self):
        self.assertEqual(schema_errors(self.bill), [])
        broken = json.loads(json.dumps(self.bill))
        broken["components"][0]["type"] = "crate"
        broken["components"][1]["hashes"][0]["content"] = "no hash"
        broken["colour"] = "blue"
        self.assertEqual(len(schema_errors(broken)), 3)

    def test_every_shipped_crates_licence_is_there(self):
        text = (self.folder / "doc/THIRD-PARTY-LICENSES.txt").read_text()
        for component in self.bill["components"]:
            line = f"    {component['name']} {component['version']}: " \
                   f"{component['licenses'][0]['expression']}\n"
            self.assertIn(line, text)
        for words in ["Permission is hereby granted, free of charge", "Mozilla Public License",
                      "Boost Software License", "UNICODE LICENSE V3"]:
            self.assertIn(words.lower(), text.lower())

    def test_install_places_what_the_units_name_and_keeps_a_configuration(self):
        with tempfile.TemporaryDirectory() as root:
            for _ in range(2):
                subprocess.run([self.folder / "install", "--root", root], check=True)
                Path(root, "etc/tidegate/tidegate.toml").write_text("# mine\n")
            self.assertEqual(Path(root, "etc/tidegate/tidegate.toml").read_text(), "# mine\n")
            self.assertEqual(Path(root, "etc/tidegate/environment").stat().st_mode & 0o777, 0o600)
            for unit in Path(root, "usr/lib/systemd/system").glob("*.service"):
                for line in unit.read_text().splitlines():
                    if line.startswith("Exec"):
                        program = line.split("=", 1)[1].split()[0]
                        self.assertTrue(os.access(root + program, os.X_OK), line)
                    if line.startswith("Documentation=file://"):
                        self.assertTrue(Path(root + line.split("file://")[1]).is_file(), line)
            self.assertEqual(list(Path(root).rglob("*.new")), [])

    def test_the_package_installs_makes_the_user_and_is_purged(self):
        if not all(map(shutil.which, ["dpkg", "dpkg-deb", "systemd-sysusers"])) or os.geteuid() != 0:
            self.skipTest("NOT CHECKED package: needs root, dpkg and systemd-sysusers")
        [package] = self.out.glob("*.deb")
        with tempfile.TemporaryDirectory() as root:
            for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"]:
                Path(root, folder).mkdir(parents=True)
            Path(root, "var/lib/dpkg/status").touch()

            def dpkg(*arguments):
                done = subprocess.run(
                    ["dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends",
                     f"--log={root}/log", *arguments],
                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 0, done.stdout)

            dpkg("--install", str(package))
            self.assertRegex(Path(root, "etc/passwd").read_text(),
                             r"(?m)^tidegate:.*:/var/lib/tidegate:/usr/sbin/nologin$")
            Path(root, "etc/tidegate/tidegate.toml").write_text("# mine\n")
            state = Path(root, "var/lib/tidegate")
            state.mkdir(parents=True)
            # An upgrade to the same files: the configuration is the person's.
            dpkg("--install", str(package))
            self.assertEqual(Path(root, "etc/tidegate/tidegate.toml").read_text(), "# mine\n")
            dpkg("--remove", "tidegate")
            self.assertTrue(Path(root, "etc/tidegate/tidegate.toml").exists() and state.exists())
            self.assertFalse(Path(root, "usr/bin/tidegate").exists())
            dpkg("--purge", "tidegate")
            self.assertFalse(Path(root, "etc/tidegate").exists() or state.exists())

    def test_the_package_asks_for_what_the_program_needs(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("NOT CHECKED package: there is no dpkg-deb")
        [package] = self.out.glob("*.deb")
        said = subprocess.run(["dpkg-deb", "--field", package, "Depends", "Version"], text=True,
                              stdout=subprocess.PIPE, check=True).stdout
        version = self.bill["metadata"]["component"]["version"]
        self.assertRegex(said, rf"libc6 \(>= 2\.\d+\), libgcc-s1, systemd, python3, ca-certificates\n"
                               rf"Version: {version}\n")


def schema_errors(bill):
    """By the schema that CycloneDX publishes, from the library that `make setup` brings."""
    try:
        library = deploying.brought("library")
    except deploying.NotChecked as e:
        raise unittest.SkipTest(f"NOT CHECKED schema of the SBOM: {e}")
    sys.path.insert(0, str(library))
    try:
        import jsonschema
        import referencing
    finally:
        sys.path.remove(str(library))
    place = library / "cyclonedx/schema/_res"
    schemas = {name: json.loads((place / f"{name}.SNAPSHOT.schema.json").read_text())
               for name in ["bom-1.5", "spdx", "jsf-0.82"]}
    registry = referencing.Registry().with_resources(
        [(s["$id"], referencing.Resource.from_contents(s)) for s in schemas.values()])
    validator = jsonschema.Draft7Validator(schemas["bom-1.5"], registry=registry)
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}"
            for e in validator.iter_errors(bill)]


if __name__ == "__main__":
    unittest.main()

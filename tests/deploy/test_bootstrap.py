"""The script that makes a fresh machine run Tidegate, with stand-ins for disks and the network."""

import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "terraform/modules/user-data/bootstrap.sh"
GIB = 1 << 30

# Each stand-in writes down how it was called; what it answers lies in files of the test's folder.
STAND_INS = {
    "curl": 'for a; do case $a in https://*) u=$a;; esac; [ "$p" = --output ] && o=$a; p=$a; done\n'
            'cp "$T/web/${u#https://}" "$o"',
    "lsblk": 'case "$*" in *NAME,SIZE,TYPE) cat "$T/disks";; '
             '*) for n; do :; done; grep -c "^$n " "$T/parts" | xargs -I{} seq 0 {};; esac',
    "blkid": 'case "$1" in --label) [ -e "$T/labelled" ] && cat "$T/labelled" || exit 2;; '
             '*) grep -q "^$2$" "$T/used" && exit 0 || exit 2;; esac',
    "mkfs.ext4": 'for n; do :; done; echo "$n" >"$T/labelled"',
    "mountpoint": '[ -e "$T/mounted" ]',
    "mount": 'touch "$T/mounted"',
    "systemctl": "true",
}


class Bootstrap(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.place = Path(scratch.name)
        for name in ["bin", "web", "root/etc/tidegate"]:
            (self.place / name).mkdir(parents=True)
        (self.place / "root/etc/fstab").write_text("LABEL=cloudimg-rootfs / ext4 defaults 0 1\n")
        for name, body in STAND_INS.items():
            file = self.place / "bin" / name
            file.write_text(f'#!/bin/bash\necho "{name} $*" >>"$T/calls"\n{body}\n')
            file.chmod(0o755)
        for name in ["parts", "used", "calls"]:
            (self.place / name).touch()
        self.disks(("/dev/nvme0n1", 16 * GIB), ("/dev/nvme1n1", 50 * GIB))
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            text = b'#!/bin/sh\ntouch "$T/installed"\n'
            member = tarfile.TarInfo("tidegate-1/install")
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text))
        (self.place / "web/a.tar.gz").write_bytes(archive.getvalue())
        self.sha256 = hashlib.sha256(archive.getvalue()).hexdigest()

    def disks(self, *disks):
        (self.place / "disks").write_text("".join(f"{n} {s} disk\n" for n, s in disks))

    def run_it(self, *more, sha256=None, size=50 * GIB):
        env = {"PATH": f"{self.place}/bin:{os.environ['PATH']}", "T": str(self.place),
               "TIDEGATE_ROOT": f"{self.place}/root", "TMPDIR": str(self.place)}
        done = subprocess.run(["bash", SCRIPT, "https://a.tar.gz", sha256 or self.sha256,
                               "tidegate.service", str(size), *more],
                              env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def calls(self, program):
        return [line for line in (self.place / "calls").read_text().splitlines()
                if line.startswith(program + " ")]

    def there(self, name):
        return (self.place / name).exists()

    def test_a_fresh_machine_is_made_ready_once(self):
        self.assertEqual(self.run_it(), (0, ""))
        self.assertEqual(self.calls("mkfs.ext4"), ["mkfs.ext4 -q -L tidegate /dev/nvme1n1"])
        self.assertTrue(self.there("mounted") and self.there("installed"))
        self.assertEqual(self.calls("systemctl")[1:], ["systemctl enable tidegate.service",
                                                       "systemctl start --no-block tidegate.service"])
        self.assertEqual((self.place / "root/etc/tidegate/installed").read_text(), self.sha256 + "\n")
        self.assertIn("--proto =https --proto-redir =https", self.calls("curl")[0])
        # Cut off and run again: nothing is made twice.
        self.assertEqual(self.run_it()[0], 0)
        self.assertEqual(len(self.calls("mkfs.ext4")), 1)
        fstab = (self.place / "root/etc/fstab").read_text()
        self.assertEqual(fstab.count("LABEL=tidegate "), 1)

    def test_an_artifact_of_another_checksum_is_not_used(self):
        code, said = self.run_it(sha256="0" * 64)
        self.assertEqual(code, 1)
        self.assertIn(f"is {self.sha256}, not {'0' * 64}", said)
        self.assertFalse(self.there("installed") or self.there("root/etc/tidegate/installed"))
        self.assertEqual([c for c in self.calls("systemctl") if "start" in c], [])

    def test_a_certificate_of_another_checksum_starts_nothing(self):
        (self.place / "web/ca.pem").write_text("pem")
        good = hashlib.sha256(b"pem").hexdigest()
        self.assertEqual(self.run_it("https://ca.pem", "1" * 64)[0], 1)
        self.assertFalse(self.there("root/etc/tidegate/source-ca.pem"))
        self.assertEqual([c for c in self.calls("systemctl") if "start" in c], [])
        self.assertEqual(self.run_it("https://ca.pem", good)[0], 0)
        self.assertEqual((self.place / "root/etc/tidegate/source-ca.pem").read_text(), "pem")

    def test_no_disk_that_holds_something_is_formatted(self):
        for disks, used, parts in [
                ([("/dev/a", 16 * GIB)], "", ""),                            # not attached yet
                ([("/dev/a", 50 * GIB), ("/dev/b", 50 * GIB)], "", ""),      # which one?
                ([("/dev/b", 50 * GIB)], "/dev/b\n", ""),                    # a filesystem
                ([("/dev/b", 50 * GIB)], "", "/dev/b 1\n")]:                 # a partition
            with self.subTest(disks=disks, used=used, parts=parts):
                self.disks(*disks)
                (self.place / "used").write_text(used)
                (self.place / "parts").write_text(parts)
                code, said = self.run_it()
                self.assertNotEqual(code, 0)
                self.assertIn("empty disks of 53687091200 bytes, not one", said)
                self.assertEqual(self.calls("mkfs.ext4") + self.calls("mount"), [])
                self.assertFalse(self.there("installed"))

    def test_the_disk_of_an_earlier_machine_is_used_as_it_is(self):
        (self.place / "labelled").write_text("/dev/nvme1n1\n")
        (self.place / "used").write_text("/dev/nvme1n1\n")
        self.assertEqual(self.run_it()[0], 0)
        self.assertEqual(self.calls("mkfs.ext4"), [])
        self.assertTrue(self.there("mounted"))

    def test_without_a_state_disk_no_disk_is_touched(self):
        self.assertEqual(self.run_it(size=0)[0], 0)
        self.assertEqual(self.calls("lsblk") + self.calls("blkid") + self.calls("mount"), [])


if __name__ == "__main__":
    unittest.main()

"""A private PostgreSQL for the benchmark: its own folder, a unix socket, gone at the end."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import fetching
from fetching import Failed

# What is measured is the way of the data, not the server's disk: no fsync, no vacuum or
# checkpoint by itself in the middle of a run.
SETTINGS = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
    "shared_buffers": "1GB", "wal_level": "logical", "max_wal_size": "32GB",
    "checkpoint_timeout": "1h", "autovacuum": "off", "jit": "off",
    "max_replication_slots": "10", "max_wal_senders": "10", "max_connections": "50",
    "listen_addresses": "", "logging_collector": "off", "log_min_messages": "warning",
    "logical_decoding_work_mem": "64MB",
}
NEEDED = ("initdb", "postgres", "psql", "pg_recvlogical")


def programs(version):
    """The distribution's folder of programs; with the client tools that are the opponents."""
    brought = fetching.run([Path(fetching.__file__).with_name("bring-postgres"), version])
    bin = Path(brought.split()[-1])
    missing = [p for p in NEEDED if not (bin / p).exists()]
    if missing:
        raise Failed(f"{bin} has no {', '.join(missing)}; install the distribution's server and "
                     f"client (Debian, Ubuntu: apt install postgresql-{version})")
    return bin


class Server:
    def __init__(self, bin):
        self.bin = bin
        self.who = {}
        self.user = "bench"
        if os.geteuid() == 0:
            user = fetching.server_user()
            self.who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        self.process = None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        if self.who:
            os.chown(self.folder, self.who["user"], self.who["group"])
        fetching.run([self.bin / "initdb", "-D", self.folder / "data", "-U", self.user, "-N",
                      "-A", "trust", "-E", "UTF8", "--locale", "C"],
                     as_server_user=True, cwd="/")
        command = [str(self.bin / "postgres"), "-D", str(self.folder / "data"),
                   "-k", str(self.folder)]
        for name, value in SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        self.log = open(self.folder / "log", "w+")
        # In a group of its own: Ctrl-C is for the benchmark, which then stops it in order.
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, cwd="/", start_new_session=True,
                                        **self.who)
        for _ in range(600):
            if self.process.poll() is not None:
                break
            with contextlib.suppress(Failed):
                self.sql("SELECT 1", database="postgres")
                self.sql("CREATE DATABASE bench", database="postgres")
                return
            time.sleep(0.1)
        self.log.seek(0)
        raise Failed(f"the server did not start:\n{self.log.read()[-2000:]}")

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def client(self, program, *arguments, database="bench"):
        """The command line of one of PostgreSQL's own programs."""
        return [str(self.bin / program), "-h", str(self.folder), "-U", self.user, "-d", database,
                *arguments]

    def sql(self, text, database="bench"):
        return fetching.run(self.client("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text,
                                        database=database), limit=7200).strip()

    @property
    def url(self):
        return f"host={self.folder} user={self.user} dbname=bench"

    def cpu_seconds(self):
        """CPU of the server's processes that have ended: a difference is that of the sessions
        that were opened and closed in between."""
        self.quiet()
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    def quiet(self):
        """Waits until nobody else is connected."""
        others = ("SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                  "AND backend_type IN ('client backend', 'walsender')")
        for _ in range(600):
            if self.sql(others) == "0":
                return
            time.sleep(0.05)
        raise Failed("a session of an earlier run did not end")

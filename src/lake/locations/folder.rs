//! The folder of one index: its lock, its manifest, its file names, and what happens to damage.
//!
//! The manifest names the durable runs and the table version whose rows they hold. It is replaced
//! by rename, after the runs are synced: after a crash or power cut it names whole runs of an
//! older or the newer version. Files it does not name are left-overs and are removed at open.
//!
//! Damage (a checksum that fails, a run that can't be read) removes the manifest: the error is
//! transient, as the next open finds no index and the caller builds a new one.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::Identity;
use crate::error::{Error, Kind, Result};
use crate::failpoint;

/// Changes with every change of the layout of pages, runs or manifest.
pub(super) const FORMAT: u32 = 1;

const MANIFEST: &str = "manifest";
const MANIFEST_NEW: &str = "manifest.new";
const LOCK: &str = "lock";
const RUN_SUFFIX: &str = ".run";

/// What the manifest says.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub(super) struct Manifest {
    pub format: u32,
    pub identity: Identity,
    pub multi: bool,
    /// The Delta version whose rows the runs hold.
    pub version: u64,
    pub stamp: u64,
    /// Oldest first.
    pub runs: Vec<NamedRun>,
}

/// A run as the manifest names it; size and footer must agree.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub(super) struct NamedRun {
    pub id: u64,
    pub bytes: u64,
    pub footer: u64,
}

/// The folder of one index, locked while anything of it is in use.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
    /// Binds every page to this index.
    pub digest: u128,
    next_run: AtomicU64,
    damaged: AtomicBool,
}

impl Folder {
    /// Locks the folder, which is made if it is missing.
    pub fn lock(path: &Path, identity: &Identity, multi: bool) -> Result<Folder> {
        let fail = |error| io_error("open", path, error);
        fs::create_dir_all(path).map_err(fail)?;
        let file = File::options().create(true).truncate(false).write(true).open(path.join(LOCK));
        let lock = file.map_err(fail)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!("the location index {} is in use", path.display());
                let next = "stop the other process that works on this pipeline, or give this one \
                            another state folder";
                return Err(Error::failed(message).next(next));
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let name = serde_json::to_vec(&(FORMAT, identity, multi)).map_err(|error| {
            Error::failed("the identity of a location index can't be written").because(error)
        })?;
        Ok(Folder {
            path: path.to_owned(),
            _lock: lock,
            digest: xxh3_128(&name),
            next_run: AtomicU64::new(1),
            damaged: AtomicBool::new(false),
        })
    }

    /// A run number that no file has.
    pub fn new_run(&self) -> u64 {
        self.next_run.fetch_add(1, Ordering::Relaxed)
    }

    /// The file of run `id`.
    pub fn run_path(&self, id: u64) -> PathBuf {
        self.path.join(format!("{id:016x}{RUN_SUFFIX}"))
    }

    /// The folder, for messages.
    pub fn display(&self) -> impl std::fmt::Display + '_ {
        self.path.display()
    }

    /// The manifest, or None where there is none or it is damaged.
    pub fn manifest(&self) -> Result<Option<Manifest>> {
        let path = self.path.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("read", &path, error)),
        };
        let Some((sum, body)) = text.split_at_checked(17) else { return Ok(None) };
        if sum != checksum_line(body) {
            return Ok(None);
        }
        Ok(serde_json::from_slice(body).ok())
    }

    /// Puts `manifest` in the place of the present one; durable once this returns.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        self.check()?;
        let new = self.path.join(MANIFEST_NEW);
        let fail = |error| io_error("write", &new, error);
        let body = serde_json::to_vec(manifest).map_err(|error| {
            Error::failed("the manifest of a location index can't be written").because(error)
        })?;
        let mut file = File::create(&new).map_err(fail)?;
        file.write_all(&checksum_line(&body)).map_err(fail)?;
        file.write_all(&body).map_err(fail)?;
        file.sync_all().map_err(fail)?;
        failpoint::at("index.manifest.before")?;
        fs::rename(&new, self.path.join(MANIFEST)).map_err(fail)?;
        self.sync()?;
        failpoint::at("index.manifest.after")
    }

    /// Makes renames and new files of the folder durable.
    fn sync(&self) -> Result<()> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(|error| io_error("sync", &self.path, error))
    }

    /// Removes every file of an index but the manifest and the runs `keep`; other files are left.
    pub fn sweep(&self, keep: &[u64]) -> Result<()> {
        let fail = |error| io_error("clean", &self.path, error);
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let run = name.strip_suffix(RUN_SUFFIX).filter(|n| n.len() == 16);
            let run = run.and_then(|n| u64::from_str_radix(n, 16).ok());
            if let Some(id) = run {
                self.next_run.fetch_max(id.saturating_add(1), Ordering::Relaxed);
            }
            if run.is_some_and(|id| !keep.contains(&id)) || name == MANIFEST_NEW {
                remove(&entry.path()).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// Removes the index: the manifest first, so that no moment shows half of it.
    pub fn wipe(&self) -> Result<()> {
        let path = self.path.join(MANIFEST);
        remove(&path).map_err(|error| io_error("remove", &path, error))?;
        self.sync()?;
        self.sweep(&[])
    }

    /// An error if damage was found: nothing that this index says is used any more.
    pub fn check(&self) -> Result<()> {
        match self.damaged.load(Ordering::Acquire) {
            true => Err(self.damage_error("damage was found before")),
            false => Ok(()),
        }
    }

    /// Gives the index up: the next open finds none. Returns the error to hand on.
    pub fn damage(&self, what: impl std::fmt::Display) -> Error {
        self.damaged.store(true, Ordering::Release);
        // If that fails the next open finds the same damage again and comes here again.
        let _ = remove(&self.path.join(MANIFEST)).map(|()| self.sync());
        self.damage_error(what)
    }

    fn damage_error(&self, what: impl std::fmt::Display) -> Error {
        Error::new(
            Kind::Transient,
            format!("the location index {} is damaged: {what}", self.path.display()),
        )
        .next("nothing, it is a cache and is built again from the lake; check the local disk if this comes back")
    }
}

fn checksum_line(body: &[u8]) -> [u8; 17] {
    let mut line = [b'\n'; 17];
    let text = format!("{:016x}", xxh3_64(body));
    for (to, from) in line.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    line
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// An error of the local disk that is no damage: no room, no rights.
pub(super) fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    Error::failed(format!("can't {what} {} of the location index", path.display()))
        .because(error)
        .next("make room or give rights on the local disk, or choose another state folder")
}

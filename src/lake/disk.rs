//! The few things done to a local disk: each one, and nothing else, can fail or be cut off.
//!
//! All writes to a lake on a local disk go through here, so a test can make any of them fail, and
//! can record them to see what a power cut after any of them leaves (`faults`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[cfg(feature = "failpoints")]
use super::faults;
use super::patience::{Patience, disk_may_recover};

/// Runs a step; with the feature, faults act before and after it and it is recorded.
macro_rules! step {
    ($name:literal, $path:expr, $detail:expr, $act:expr) => {{
        #[cfg(feature = "failpoints")]
        {
            faults::disk($name, $path, $detail, || $act)
        }
        #[cfg(not(feature = "failpoints"))]
        {
            let _ = $path;
            $act
        }
    }};
}

/// Creates a file that is not there yet.
pub(super) fn create(path: &Path) -> io::Result<File> {
    step!("disk-create", path, faults::Detail::None, File::create_new(path))
}

/// Writes all bytes at a place in a file.
pub(super) fn write_at(file: &File, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(feature = "failpoints")]
    faults::tear(path, bytes, |part| file.write_all_at(part, offset))?;
    step!(
        "disk-write",
        path,
        faults::Detail::Bytes(offset, bytes),
        file.write_all_at(bytes, offset)
    )
}

/// Makes a file's content durable.
pub(super) fn sync(file: &File, path: &Path) -> io::Result<()> {
    step!("disk-sync", path, faults::Detail::None, file.sync_all())
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    step!("disk-sync-folder", folder, faults::Detail::None, File::open(folder)?.sync_all())
}

/// Gives a file a second name, which must be free.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<()> {
    step!("disk-link", to, faults::Detail::From(from), fs::hard_link(from, to))
}

/// Gives a file another name; a file of that name is replaced.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step!("disk-rename", to, faults::Detail::From(from), fs::rename(from, to))
}

/// Removes a name.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    step!("disk-remove", path, faults::Detail::None, fs::remove_file(path))
}

/// Creates a folder whose parent is there.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    step!("disk-folder", folder, faults::Detail::None, fs::create_dir(folder))
}

/// A new file that is written from its beginning to its end. A full disk is waited for.
#[derive(Debug)]
pub(super) struct NewLocalFile {
    file: File,
    path: PathBuf,
    written: u64,
    patience: Patience,
}

impl NewLocalFile {
    /// Creates it.
    pub fn create(path: &Path, patience: Patience) -> io::Result<Self> {
        let file = while_full(&patience, path, || create(path))?;
        Ok(NewLocalFile { file, path: path.to_owned(), written: 0, patience })
    }

    /// Makes its content durable.
    pub fn sync(&self) -> io::Result<()> {
        sync(&self.file, &self.path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Write for NewLocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let NewLocalFile { file, path, written, patience } = self;
        // At its place: a write that failed may have left a part of it.
        while_full(patience, path, || write_at(file, path, bytes, *written))?;
        *written += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tries again while the disk is full.
fn while_full<T>(
    patience: &Patience,
    path: &Path,
    act: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    let mut waits = patience.waits();
    loop {
        let error = match act() {
            Err(error) if disk_may_recover(&error) => error,
            other => return other,
        };
        let Some(wait) = waits.next() else {
            return Err(io::Error::other(patience.gave_up(error)));
        };
        let path = path.display();
        tracing::warn!(wait_ms = wait.as_millis() as u64, "writing {path}: {error}; trying again");
        waits.pause_blocking(wait);
    }
}

//! The demo's folder: its own by a marker file, and emptied only of what an earlier demo made.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::server::can_enter;
use crate::error::{Error, Result};

/// Says that the folder is a demo's; locked while one runs.
const MARKER: &str = ".tidegate-demo";

const LAKE: &str = "lake";
const STATE: &str = "state";
const SERVER: &str = "server";

/// The folder, claimed for as long as this lives.
pub struct Place {
    folder: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes or takes over the folder, and removes what an earlier demo left in it.
    ///
    /// # Errors
    /// It holds other things, another demo runs in it, or it can't be written to.
    pub fn claim(folder: &Path) -> Result<Place> {
        let wrong = |e: std::io::Error| {
            Error::failed(format!("the demo can't use the folder {}", folder.display()))
                .because(e)
                .next("give another folder with --dir")
        };
        fs::create_dir_all(folder).map_err(wrong)?;
        let folder = folder.canonicalize().map_err(wrong)?;
        let marker = folder.join(MARKER);
        if !marker.is_file() && fs::read_dir(&folder).map_err(wrong)?.next().is_some() {
            return Err(Error::config(format!(
                "the folder {} is not empty and not from an earlier demo",
                folder.display()
            ))
            .next("give an empty or a new folder with --dir; nothing in this one was touched"));
        }
        let mut lock = File::options().create(true).append(true).open(&marker).map_err(wrong)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::config(format!(
                    "another demo is running in {}",
                    folder.display()
                ))
                .next("let it end, or give another folder with --dir"));
            }
            Err(TryLockError::Error(e)) => return Err(wrong(e)),
        }
        if lock.metadata().map_err(wrong)?.len() == 0 {
            lock.write_all(
                b"`tidegate demo` made this folder and empties it when it runs again.\n",
            )
            .map_err(wrong)?;
        }
        for name in [LAKE, STATE, SERVER] {
            match fs::remove_dir_all(folder.join(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(wrong(e)),
                _ => {}
            }
        }
        Ok(Place { folder, _lock: lock })
    }

    /// Where the Delta tables go.
    pub fn lake(&self) -> PathBuf {
        self.folder.join(LAKE)
    }

    /// Where the location index goes.
    pub fn state(&self) -> PathBuf {
        self.folder.join(STATE)
    }

    /// A new folder that the server's user gets into: here, else among the temporary files. The
    /// server removes it.
    ///
    /// # Errors
    /// There is none.
    pub fn server(&self) -> Result<PathBuf> {
        if can_enter(&self.folder) {
            return Ok(self.folder.join(SERVER));
        }
        let temporary = [std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")];
        let place = temporary.iter().find(|folder| can_enter(folder)).ok_or_else(|| {
            Error::failed(format!(
                "the private server's user can get into neither {} nor {}",
                self.folder.display(),
                std::env::temp_dir().display()
            ))
            .next("give a folder open to all users with --dir")
        })?;
        tempfile::Builder::new()
            .prefix("tidegate-demo-")
            .tempdir_in(place)
            .map(tempfile::TempDir::keep)
            .map_err(|e| {
                Error::failed(format!("no folder can be made in {}", place.display())).because(e)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn only_what_a_demo_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join("mine");
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join("thesis.txt"), "years").unwrap();
        fs::create_dir(mine.join(LAKE)).unwrap();
        let error = Place::claim(&mine).err().unwrap();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.to_string().contains("not empty"), "{error}");
        assert!(mine.join("thesis.txt").exists() && mine.join(LAKE).exists());

        let demo = dir.path().join("new/demo");
        let place = Place::claim(&demo).unwrap();
        fs::create_dir(place.lake()).unwrap();
        fs::write(place.lake().join("old"), "").unwrap();
        fs::write(demo.join("notes.txt"), "mine").unwrap();
        let error = Place::claim(&demo).err().unwrap();
        assert!(error.to_string().contains("another demo is running"), "{error}");
        drop(place);
        let place = Place::claim(&demo).unwrap();
        assert!(!place.lake().exists() && demo.join("notes.txt").exists());
    }
}

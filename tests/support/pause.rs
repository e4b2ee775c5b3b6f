//! Pauses at the program's named points (`src/failpoint.rs`), so that a test acts exactly there.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::program::Running;
use super::{PATIENCE, wait_until};

/// A pause at one named point: the program stops there until the test lets it go.
pub struct Pause {
    point: String,
    passage: Option<u64>,
    stem: PathBuf,
    released: Cell<bool>,
}

impl Pause {
    /// A pause at the point `name`, with its files in `folder`. Holds every passage until the
    /// release, and none after it.
    pub fn new(folder: &Path, name: &str) -> Pause {
        let plain: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let stem = folder.join(format!("pause-{plain}"));
        Pause { point: name.to_owned(), passage: None, stem, released: Cell::new(false) }
    }

    /// Only at the N-th passage, from 1.
    pub fn nth(mut self, passage: u64) -> Pause {
        self.passage = Some(passage);
        self.stem.as_mut_os_string().push(format!("-{passage}"));
        self
    }

    /// What the program must be told: an entry of `TIDEGATE_FAILPOINTS`.
    pub fn entry(&self) -> String {
        let at = self.passage.map_or_else(String::new, |n| format!("{n}*"));
        format!("{}={at}pause:{}", self.point, self.stem.display())
    }

    /// Whether the program stands at the point, or has stood there.
    pub fn is_reached(&self) -> bool {
        self.file("reached").exists()
    }

    /// Waits until the program stands at the point.
    ///
    /// # Panics
    /// The program ended before it got there, or was not there in time.
    pub fn reached(&self, program: &mut Running) {
        self.reached_within(program, PATIENCE);
    }

    /// As [`Pause::reached`], with a limit.
    pub fn reached_within(&self, program: &mut Running, limit: Duration) {
        wait_until(&format!("the point {}", self.point), limit, || {
            // Looked at first: a program that paused can't have ended on its way.
            let reached = self.is_reached();
            if !reached && program.has_ended() && !self.is_reached() {
                panic!("ended before the point {}:\n{}", self.point, program.output());
            }
            reached
        });
    }

    /// Lets the program go on.
    pub fn release(&self) {
        if !self.released.replace(true) {
            fs::write(self.file("go"), "").unwrap_or_else(|e| panic!("can't release: {e}"));
        }
    }

    fn file(&self, ending: &str) -> PathBuf {
        PathBuf::from(format!("{}.{ending}", self.stem.display()))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        // A program that still runs is not left hanging at a pause nobody will end.
        let _ = fs::write(self.file("go"), "");
    }
}

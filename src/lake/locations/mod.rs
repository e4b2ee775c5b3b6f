//! The location index of one table: key -> where its current row stands.
//!
//! # What it guarantees
//!
//! - Of the entries put for a key the newest is told, or an error: every byte on disk is
//!   checksummed and bound to the index it was written for. A wrong location would mask the wrong
//!   row, so what can't be proven is thrown away.
//! - It is a cache: all it holds can be read again from the key columns in the lake. It needs no
//!   journal, and nothing is synced at a commit. After a crash it stands at an older version
//!   ([`Locations::version`]), from which the caller stages the keys of the files added since.
//! - Nothing is ever deleted. The caller knows which rows are live, and takes an entry whose
//!   location is dead for absent; merges drop such entries.
//! - Memory is bounded by [`Options::memory_bytes`], however many entries there are.
//!
//! # How
//!
//! ```text
//!  newest                                                            oldest
//!  staged ──commit──► overlay ──flush──► runs ... ──merge──► runs ──merge──► oldest run
//!  memory, may spill  memory             files that the manifest names
//! ```
//!
//! All of these are [runs](run): immutable sorted sequences of entries in [pages](page). Only the
//! [fences](fences) and [filters](filter) of a run in a file are in memory. A look-up goes from the
//! newest to the oldest with a whole sorted batch of keys, so that each page is read once.
//!
//! Rows of a table without a key are found by a digest of the row ([`Options::multi`]): then
//! several rows may have the same key, all locations are kept, and none replaces another.

mod build;
mod fences;
mod filter;
mod folder;
mod index;
mod lookup;
mod merge;
mod page;
mod run;
mod tier;
mod write;

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod tests;

pub use build::{PendingRun, RunBuilder};
pub use index::Locations;
pub use tier::{MergePlan, MergedRun};

use serde::{Deserialize, Serialize};

/// The longest key that is taken.
pub const MAX_KEY_BYTES: usize = 1 << 16;

/// Where a row stands: the number of its data file, and its place in it from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The number of the data file, unique in the table for ever.
    pub file: u32,
    /// The row in the file, from 0.
    pub row: u32,
}

/// What an index was made for. An index with another identity is not opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `metaData.id` of the Delta table.
    pub table_id: String,
    /// What the key is made of: columns and types, or the row digest.
    pub key: String,
    /// The caller's encoding of keys and numbering of files; goes up when either changes.
    pub format: u32,
}

/// Bounds and mode of an index.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of memory for overlay, staged entries, fences and filters; at least 1 MiB. Bulk load
    /// and merges take up to half as much again while they run.
    pub memory_bytes: usize,
    /// Several locations may stand with one key.
    pub multi: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { memory_bytes: 64 << 20, multi: false }
    }
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries, superseded ones among them.
    pub entries_estimated: u64,
    /// Runs in files, and in memory.
    pub runs: usize,
    /// Runs in memory: overlay and staged.
    pub memory_runs: usize,
    /// Bytes of the files.
    pub disk_bytes: u64,
    /// Bytes held in memory.
    pub memory_bytes: usize,
}

//! Speaks Delta: commits, files, deletion vectors, locations, ledger.
//!
//! Knows nothing of PostgreSQL's protocol. Carries these guarantees: data, checkpoint and tag are
//! one commit; a commit is a compare-and-swap whose outcome is read from the log, never assumed;
//! what is acknowledged is durable; what other programs did to a table is recognised, and followed
//! only where the rows stayed the same.
//!
//! ```text
//!   files, stats, dv ──► table, ledger ──► log ──► judge      (what lies there decides; pure)
//!        read, digest        history        └───► store ──► patience ──► (faults) ──► durable, disk
//! ```

pub mod actions;
pub mod checkpoint;
pub mod compaction;
pub mod digest;
mod disk;
pub mod draft;
pub mod durable;
pub mod dv;
#[cfg(any(test, feature = "failpoints"))]
pub mod faults;
pub mod files;
pub mod history;
pub mod judge;
pub mod lease;
pub mod ledger;
pub mod locations;
mod log;
mod log_checkpoint;
mod naming;
pub mod orphans;
pub mod partition;
pub mod patience;
pub mod pins;
pub mod read;
mod remote;
pub mod retention;
mod rows_writer;
pub mod schema;
pub mod stats;
pub mod store;
pub mod sweep;
pub mod table;
#[cfg(test)]
mod tests;
pub mod travel;

pub use checkpoint::{Checkpoint, SourceIdentity, SourceTable, Tag, VersionKind};
pub use digest::RowDigest;
pub use files::{DataFileWriter, FileNo, FileNumbers, FileOptions, NewFile, file_no_of, used_up};
pub use history::{VersionInfo, handoffs, versions};
pub use lease::Lease;
pub use ledger::{
    BoundaryEntry, Event, Fence, LastCommit, LeafEntry, Ledger, Phase, PipelineState, SpoolState,
    TableEntry,
};
pub use partition::{PartitionValues, TableColumns, can_partition};
pub use read::{FileRef, ScanBatch, digest_file, read_rows, scan_file};
pub use rows_writer::{Places, RowsWriter};
pub use store::Lake;
pub(crate) use store::store_error;
pub use table::{Change, CommitOutcome, LakeTable, LiveFile};
pub use travel::PastTable;

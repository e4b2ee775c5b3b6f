//! What the ledger says: the state of the pipeline and of each table, its fence, its events.

use chrono::Utc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lake::checkpoint::SourceIdentity;
use crate::lake::files::FileNo;
use crate::position::Lsn;

/// The newest format of [`PipelineState`] that this program knows: 2 while a table is not followed,
/// which a program that knows 1 alone would go on with as if it had missed nothing; else 1.
pub const PIPELINE_FORMAT: u32 = 2;
/// Where a pipeline stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Copies chunks.
    Snapshot,
    /// All chunks are copied, at several boundaries: brings them to one position. Nothing is
    /// visible yet.
    Drain,
    /// Publishes tables and drains to the fence.
    Publish,
    /// Follows.
    Live,
    /// Gave up; a new generation is needed.
    Failed,
}

/// One table of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TableEntry {
    /// Schema name at the source.
    pub schema: String,
    /// Table name at the source.
    pub name: String,
    /// Folder in the lake.
    pub folder: String,
    /// `pg_class.oid`.
    pub oid: u32,
    /// Digest of columns, types and key.
    pub fingerprint: String,
    /// Where the table stands: `snapshot`, `live`, `again` (to be read again, while the others go
    /// on), `stopped` (no longer followed).
    pub phase: String,
    /// Why it is to be read again, or is no longer followed, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The last fence at which it was followed, while it is not: cuts beyond it leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed_to: Option<Lsn>,
    /// Rows the source expected it to have when its snapshot began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_estimated: Option<u64>,
    /// Goes up whenever its chunks are dropped and it is copied again: chunks of other attempts
    /// don't count.
    #[serde(default)]
    pub attempt: u32,
    /// Its rows must all be of one boundary: it has no key, or too much of it changed between two.
    #[serde(default)]
    pub whole: bool,
    /// Where its rows lay when the attempt began. Empty once it is published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaves: Vec<LeafEntry>,
    /// Chunks of the attempt, those that are still to be copied among them, as planned last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u64>,
    /// No data file of the run has this number or a higher one.
    #[serde(default)]
    pub next_file_no: FileNo,
    /// Versions of the catalog rows by which the table is published, when its chunks were begun:
    /// others once it was taken out of the publication and put back.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub membership: String,
}

/// A piece of a table's storage: the table itself, or a leaf partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeafEntry {
    /// `pg_class.oid`.
    pub oid: u32,
    /// The file of its rows; another one after a rewrite or a TRUNCATE.
    pub relfilenode: u32,
    /// Another number once it was detached and attached again; 0 for what is no partition.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub link: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A boundary at which chunks are, or were, copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BoundaryEntry {
    /// Its number in the run, from 1.
    pub number: u32,
    /// The position its snapshot shows.
    pub base: Lsn,
    /// Name of the exported snapshot.
    pub snapshot: String,
    /// When it was made, RFC 3339: since then the source keeps dead rows for it.
    pub at: String,
    /// Whether the run holds it. After a crash the source has let it go all the same.
    pub held: bool,
}

/// The state of a pipeline, in the domain `tidegate.pipeline` of its ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PipelineState {
    /// Format of this object; 1, and 2 while a table is not followed.
    pub format: u32,
    /// Name of the pipeline.
    pub pipeline: String,
    /// The source.
    pub source: SourceIdentity,
    /// Goes up whenever continuity is given up.
    pub generation: u64,
    /// Where the pipeline stands.
    pub phase: Phase,
    /// The snapshot run in progress, or the last one.
    pub run: String,
    /// The position of the first boundary, from which the slot keeps everything, once there is one;
    /// the tables' common base once they are live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Lsn>,
    /// The run's latest boundary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundary: Option<BoundaryEntry>,
    /// The position at which the run publishes its tables, from the phase `publish` on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handoff: Option<Lsn>,
    /// The tables.
    pub tables: Vec<TableEntry>,
    /// Whether Tidegate made the publication, and may drop it.
    pub created_publication: bool,
    /// Whether Tidegate made the slot, and may drop it.
    pub created_slot: bool,
    /// Digest of the options that decide what rows look like in the lake.
    pub options: String,
    /// Why the snapshot was given up, and what to do, while the phase is `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A position all tables have reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fence {
    /// The position.
    pub lsn: Lsn,
    /// When it was reached, RFC 3339.
    pub at: String,
    /// The generation it belongs to.
    pub generation: u64,
    /// The last transaction before it that the stream brought: the server's log must still have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastCommit>,
}

/// A transaction's commit as the source's log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastCommit {
    /// Where the commit record starts.
    pub lsn: Lsn,
    /// The transaction.
    pub xid: u32,
    /// When it committed, microseconds since 2000-01-01 by the source's clock.
    pub committed_at_us: i64,
}

/// The changes that a run has in the lake already, in the domain `tidegate.spool` of its ledger: the
/// server may have forgotten everything before `to`. The files are in the run's events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpoolState {
    /// Format of this object; 1.
    pub format: u32,
    /// The run whose changes they are.
    pub run: String,
    /// Every transaction whose commit record starts at or after this,
    pub from: Lsn,
    /// and before this, is in the spool.
    pub to: Lsn,
    /// Durable steps, each an event.
    pub steps: u64,
    /// Files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, microseconds since 1970.
    pub at_us: i64,
    /// The run it belongs to.
    pub run: String,
    /// What: `chunk`, `published`, `pin`, …
    pub kind: String,
    /// The table, `schema.name`; empty if it concerns none.
    pub table: String,
    /// Number of the chunk.
    pub chunk: Option<i64>,
    /// The position it was copied at.
    pub base: Option<Lsn>,
    /// Rows.
    pub rows: Option<i64>,
    /// Bytes.
    pub bytes: Option<i64>,
    /// The rest.
    pub detail: Value,
}

impl Phase {
    /// The word in outputs, as in the JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Snapshot => "snapshot",
            Phase::Drain => "drain",
            Phase::Publish => "publish",
            Phase::Live => "live",
            Phase::Failed => "failed",
        }
    }
}

impl Event {
    /// An event of now, without numbers.
    pub fn now(run: &str, kind: &str, table: &str, detail: Value) -> Self {
        Event {
            at_us: Utc::now().timestamp_micros(),
            run: run.to_owned(),
            kind: kind.to_owned(),
            table: table.to_owned(),
            chunk: None,
            base: None,
            rows: None,
            bytes: None,
            detail,
        }
    }
}

impl PipelineState {
    /// The format that a program must know to go on with this.
    pub(super) fn format_needed(&self) -> u32 {
        if self.tables.iter().all(TableEntry::is_followed) { 1 } else { PIPELINE_FORMAT }
    }
}

impl TableEntry {
    /// Whether the stream is applied to it.
    pub fn is_followed(&self) -> bool {
        self.phase != AGAIN && self.phase != STOPPED
    }

    /// `schema.name`.
    pub fn display(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// The stream is no longer applied to it, since `fence`: it is to be read again, or left.
    pub fn set_apart(&mut self, phase: &str, why: &str, fence: Option<Lsn>) {
        self.phase = phase.to_owned();
        self.why = Some(why.to_owned());
        self.followed_to = self.followed_to.or(fence);
    }

    /// A table that the pipeline is to read for the first time.
    pub fn unread(schema: &str, name: &str, folder: String) -> TableEntry {
        TableEntry {
            schema: schema.to_owned(),
            name: name.to_owned(),
            folder,
            oid: 0,
            fingerprint: String::new(),
            phase: AGAIN.to_owned(),
            why: None,
            followed_to: None,
            rows_estimated: None,
            attempt: 0,
            whole: false,
            leaves: Vec::new(),
            chunks: None,
            next_file_no: 0,
            membership: String::new(),
        }
    }
}

/// A published table that the stream is applied to.
pub const LIVE: &str = "live";
/// A table that is to be read again.
pub const AGAIN: &str = "again";
/// A table that is no longer followed.
pub const STOPPED: &str = "stopped";

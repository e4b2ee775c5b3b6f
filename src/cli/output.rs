//! What commands answer: the types behind `--json`. Other tools rely on these names; their schemas
//! stand in `schemas/`. Keys may be added, none renamed or removed.

use std::collections::BTreeMap;
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, Kind, Result};
use crate::lake::pins::Pin;
use crate::lake::{Lake, VersionInfo, VersionKind};
use crate::position::Lsn;

/// `tidegate status --json`: how far the pipeline is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "tidegate status --json")]
pub struct StatusOutput {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Goes up whenever a new snapshot replaced the old one.
    pub generation: u64,
    /// What the pipeline is doing or was doing when it stopped.
    pub phase: String,
    /// The snapshot run in progress, or the last one.
    pub run: String,
    /// Why the snapshot was given up, and what to do; null unless the phase is `failed`.
    pub failure: Option<String>,
    /// The position of the snapshot, of the first one where a run has several; null before there
    /// is one.
    pub base: Option<Lsn>,
    /// The latest snapshot of a run that copies; null once it has published.
    pub boundary: Option<BoundaryStatus>,
    /// The position all tables have reached; null before the handoff.
    pub fence: Option<Lsn>,
    /// One entry per table.
    pub tables: Vec<TableStatus>,
    /// Cuts that no clean-up removes.
    pub pins: Vec<PinOutput>,
    /// The replication slot; null where the source was not asked or has none.
    pub slot: Option<SlotStatus>,
    /// The spool of changes in the lake; null where there is none.
    pub spool: Option<SpoolStatus>,
}

/// A snapshot from which tables are copied.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BoundaryStatus {
    /// Its number in the run, from 1.
    pub number: u32,
    /// The position it shows.
    pub base: Lsn,
    /// Its name at the source.
    pub snapshot: String,
    /// When it was made (RFC 3339).
    pub made_at: String,
    /// How long the run has held it, in seconds: so long the source could not clear away rows that
    /// died. Null once it was let go. A run that was killed holds nothing.
    pub age_seconds: Option<u64>,
}

/// How far one table is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TableStatus {
    /// `schema.table`.
    pub table: String,
    /// What the table is in: `snapshot`, `drain`, `publish`, `live` or `failed`; `again` while it is
    /// read again, `stopped` when it is no longer followed and the others are.
    pub phase: String,
    /// Why it is read again or no longer followed, and what to do; null otherwise.
    pub why: Option<String>,
    /// Its latest Delta version; null before the handoff.
    pub version: Option<u64>,
    /// The position of its snapshot.
    pub base: Option<Lsn>,
    /// Everything that committed before this position is in the table.
    pub applied: Option<Lsn>,
    /// Rows copied by the snapshot so far.
    pub rows_copied: u64,
    /// Bytes of the data files that hold them.
    pub bytes_copied: u64,
    /// Chunks copied so far.
    pub chunks_copied: u64,
    /// All chunks, as planned at the latest snapshot; null before.
    pub chunks: Option<u64>,
    /// PostgreSQL's estimate of the table's rows; null where it has none.
    pub rows_estimated: Option<u64>,
    /// What it is made of; null before the handoff.
    pub storage: Option<StorageStatus>,
}

/// What the newest version of a table is made of.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct StorageStatus {
    /// Its data files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Rows in the files that are superseded or deleted.
    pub masked_rows: u64,
    /// Versions that can be read.
    pub versions: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// A named cut, as `tidegate pin --json` answers and `status` lists it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "tidegate pin --json")]
pub struct PinOutput {
    /// Its name.
    pub name: String,
    /// The position all tables show.
    pub lsn: Lsn,
    /// When it was pinned (RFC 3339).
    pub at: String,
    /// The version of each table.
    pub tables: BTreeMap<String, u64>,
}

impl From<Pin> for PinOutput {
    fn from(pin: Pin) -> Self {
        let name = |folder: String| match Lake::table_name(&folder) {
            Some((schema, table)) => format!("{schema}.{table}"),
            None => folder,
        };
        PinOutput {
            name: pin.name,
            lsn: pin.lsn,
            at: pin.at,
            tables: pin.tables.into_iter().map(|(folder, v)| (name(folder), v)).collect(),
        }
    }
}

/// `tidegate versions --at … --json`: the version of every table at one fence.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "tidegate versions --at --json")]
pub struct CutOutput {
    /// The position all tables show.
    pub lsn: Lsn,
    /// The version of each table; a table that was published later is not among them.
    pub tables: BTreeMap<String, u64>,
}

/// `tidegate diff --summary`: how many rows changed between two versions.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "tidegate diff --summary")]
pub struct DiffOutput {
    /// The table, as schema.table.
    pub table: String,
    /// The version that was compared from.
    pub from: u64,
    /// The version that was compared to.
    pub to: u64,
    /// Rows that only `to` has.
    pub inserted: u64,
    /// Rows whose values differ.
    pub updated: u64,
    /// Rows that only `from` has.
    pub deleted: u64,
}

/// `tidegate maintain --json`: what was done, or would be.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "tidegate maintain --json")]
pub struct MaintainOutput {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Compactions made; null where a running pipeline makes them itself, `compact` is off, or no
    /// source was given.
    pub compactions: Option<u64>,
    /// Tables of which something was removed.
    pub cleaned: Vec<CleanedTable>,
}

/// What was removed of a table.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CleanedTable {
    /// `schema.table`.
    pub table: String,
    /// Versions.
    pub versions: u64,
    /// Data files and files of deletion vectors.
    pub files: u64,
    /// Bytes of the data files.
    pub bytes: u64,
}

/// The state of the replication slot.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SlotStatus {
    /// Name of the slot.
    pub name: String,
    /// Whether a process reads from it now.
    pub active: bool,
    /// What has been acknowledged to the source; null before the slot is ready.
    pub confirmed: Option<Lsn>,
    /// WAL that the source keeps for this slot, in bytes.
    pub retained_bytes: u64,
    /// PostgreSQL's `wal_status`: `reserved`, `extended`, `unreserved`, `lost`; null if unknown.
    pub wal_status: Option<String>,
    /// WAL that can still be written before the slot is lost, in bytes; null without a limit.
    pub safe_bytes: Option<i64>,
    /// The most WAL the slot may make the source keep, in bytes: the smaller of the server's limit
    /// and `[handoff] max_retained_wal`; null without a limit.
    pub limit_bytes: Option<u64>,
    /// What is left to that limit, in bytes; null without a limit.
    pub margin_bytes: Option<u64>,
}

/// The changes that wait in the lake, while a snapshot is copied and until they are in the tables.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SpoolStatus {
    /// It has everything that committed from here on,
    pub from: Lsn,
    /// and before this.
    pub to: Lsn,
    /// Its files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One version of a table, as in the list of `tidegate versions --json`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Version")]
pub struct VersionOutput {
    /// The Delta version.
    pub version: u64,
    /// What made it.
    pub kind: VersionKind,
    /// The generation it belongs to; null for a foreign version.
    pub generation: Option<u64>,
    /// The position of the snapshot beneath it.
    pub base: Option<Lsn>,
    /// Everything that committed before this position is in it.
    pub applied: Option<Lsn>,
    /// When the last transaction in it committed on the source (RFC 3339); null where none did.
    pub source_time: Option<String>,
    /// When the version was committed to the lake (RFC 3339).
    pub committed_at: Option<String>,
    /// Rows it added.
    pub inserted: Option<u64>,
    /// Rows it removed.
    pub deleted: Option<u64>,
    /// Names of the pins that keep it.
    pub pins: Vec<String>,
}

impl From<VersionInfo> for VersionOutput {
    fn from(info: VersionInfo) -> Self {
        let ours = info.generation.is_some();
        VersionOutput {
            version: info.version,
            kind: info.kind,
            generation: info.generation,
            base: info.base,
            applied: info.applied,
            source_time: info.source_time,
            committed_at: info.committed_at,
            inserted: ours.then_some(info.inserted),
            deleted: ours.then_some(info.deleted),
            pins: Vec::new(),
        }
    }
}

/// `tidegate verify --json`: whether source and lake are equal.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "tidegate verify --json")]
pub struct VerifyOutput {
    /// Whether every table is equal.
    pub equal: bool,
    /// The position at which source and lake were compared.
    pub at: Lsn,
    /// One entry per table.
    pub tables: Vec<VerifyTable>,
}

/// The comparison of one table.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct VerifyTable {
    /// `schema.table`.
    pub table: String,
    /// Whether every column of every row is equal.
    pub equal: bool,
    /// Rows in the source.
    pub source_rows: u64,
    /// Rows in the lake.
    pub lake_rows: u64,
    /// Rows of the source that the lake lacks.
    pub missing: u64,
    /// Rows of the lake that the source lacks.
    pub extra: u64,
    /// Rows in both, with a column that differs.
    pub different: u64,
    /// A few of the differences.
    pub samples: Vec<VerifySample>,
}

/// One difference.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct VerifySample {
    /// The row's key, as PostgreSQL prints it.
    pub key: String,
    /// What is wrong with the row.
    pub kind: DifferenceKind,
    /// The first column that differs; absent for a row that is missing or extra.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// The source's value as PostgreSQL prints it; absent for NULL or no such row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The lake's value as PostgreSQL would print it; absent for NULL or no such row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lake: Option<String>,
}

/// What is wrong with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceKind {
    /// The source has it, the lake not.
    Missing,
    /// The lake has it, the source not.
    Extra,
    /// Both have it, and a column differs.
    Different,
}

impl DifferenceKind {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DifferenceKind::Missing => "missing",
            DifferenceKind::Extra => "extra",
            DifferenceKind::Different => "different",
        }
    }
}

impl VerifyOutput {
    /// The error that makes the program exit 6; `None` when all is equal.
    pub fn error(&self) -> Option<Error> {
        let unequal: Vec<&str> =
            self.tables.iter().filter(|t| !t.equal).map(|t| t.table.as_str()).collect();
        if self.equal && unequal.is_empty() {
            return None;
        }
        let tables = if unequal.is_empty() { "the source".to_owned() } else { unequal.join(", ") };
        let error = Error::new(
            Kind::Different,
            format!("lake and source differ at {} in {tables}", self.at),
        );
        Some(error.next(
            "keep the lake as it is, look at the samples, and report it: this must not happen",
        ))
    }
}

/// Writes `value` to standard output as JSON, over several lines.
///
/// # Errors
/// [`crate::error::Kind::Failed`]: standard output can't be written to.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(value)
        .map_err(|error| Error::failed("the answer can't be written as JSON").because(error))?;
    print(&json)
}

/// Writes `text` and a line end to standard output. A reader that has gone away (`| head`) is no
/// error.
///
/// # Errors
/// [`crate::error::Kind::Failed`]: standard output can't be written to.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written =
        writeln!(out, "{}", text.strip_suffix('\n').unwrap_or(text)).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::failed("standard output can't be written to").because(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_alike_in_json_and_text() {
        use VersionKind::{
            Changes, Compaction, Foreign, Handoff, Reseed, Schema, Takeover, Truncate,
        };
        for kind in [Handoff, Changes, Reseed, Schema, Truncate, Compaction, Takeover, Foreign] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for kind in [DifferenceKind::Missing, DifferenceKind::Extra, DifferenceKind::Different] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn a_status_has_every_promised_key_even_without_a_slot() {
        let status = StatusOutput {
            pipeline: "p".into(),
            generation: 1,
            phase: "live".into(),
            run: "r1".into(),
            failure: None,
            boundary: None,
            base: Some(Lsn::new(16)),
            fence: None,
            tables: vec![TableStatus {
                table: "a.b".into(),
                phase: "live".into(),
                why: None,
                version: Some(0),
                base: None,
                applied: None,
                bytes_copied: 0,
                chunks_copied: 0,
                chunks: None,
                rows_copied: 1,
                rows_estimated: None,
                storage: None,
            }],
            pins: Vec::new(),
            slot: None,
            spool: None,
        };
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            serde_json::json!({
                "pipeline": "p", "generation": 1, "phase": "live", "run": "r1", "failure": null,
                "base": "0/10", "boundary": null, "fence": null,
                "tables": [{"table": "a.b", "phase": "live", "why": null, "version": 0, "base": null, "applied": null,
                            "rows_copied": 1, "bytes_copied": 0, "chunks_copied": 0, "chunks": null,
                            "rows_estimated": null, "storage": null}],
                "pins": [],
                "slot": null,
                "spool": null,
            })
        );
    }

    #[test]
    fn a_difference_is_an_error_with_exit_code_6() {
        let mut output = VerifyOutput { equal: true, at: Lsn::new(1), tables: Vec::new() };
        assert!(output.error().is_none());
        output.equal = false;
        assert_eq!(output.error().unwrap().kind().exit_code(), 6);
    }
}

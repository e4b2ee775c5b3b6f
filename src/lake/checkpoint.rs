//! What a table says of itself: how far it is, from which source, and what each version did.
//!
//! The [`Checkpoint`] is the authority on progress. It stands in the Delta domain
//! `tidegate.checkpoint` of the same commit as the data, so that data and progress can't disagree.
//! The [`Tag`] stands in the commit's `userMetadata` and is for people and for `versions`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::files::FileNo;
use crate::error::{Error, Kind, Result};
use crate::position::Lsn;

/// The Delta domain that holds a table's [`Checkpoint`].
pub const CHECKPOINT_DOMAIN: &str = "tidegate.checkpoint";

/// The only format of [`Checkpoint`] so far.
pub const CHECKPOINT_FORMAT: u32 = 1;

/// Refuses the text of an object whose `format` is above the one we `know`. To be asked before the
/// rest is read: what a newer program writes there may be of any shape.
///
/// # Errors
/// [`Kind::Check`]: a newer tidegate wrote it.
pub(super) fn refuse_newer(text: &str, know: u32, what: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Format {
        format: u64,
    }
    match serde_json::from_str::<Format>(text) {
        Ok(Format { format }) if format > u64::from(know) => Err(Error::new(
            Kind::Check,
            format!(
                "{what} was written by a newer tidegate (format {format}, this one knows {know})"
            ),
        )
        .next("use the version of tidegate that wrote it, or a newer one; nothing was changed")),
        _ => Ok(()),
    }
}

/// Which source a position belongs to. A position without it means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceIdentity {
    /// `system_identifier` of the cluster, in decimal.
    pub system_identifier: String,
    /// The timeline the position was read on.
    pub timeline: u32,
    /// Name of the database.
    pub database: String,
    /// Name of the replication slot.
    pub slot: String,
    /// Name of the publication.
    pub publication: String,
    /// Digest of the publication's tables, actions, column lists and row filters.
    pub contract: String,
}

/// The source table a Delta table mirrors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceTable {
    /// `pg_class.oid`.
    pub oid: u32,
    /// Schema name.
    pub schema: String,
    /// Table name.
    pub name: String,
    /// Digest of the table's columns, types and key.
    pub fingerprint: String,
}

/// A table's progress, in the domain `tidegate.checkpoint` of every commit of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    /// Format of this object; 1.
    pub format: u32,
    /// Name of the pipeline that writes the table.
    pub pipeline: String,
    /// The source the positions belong to.
    pub source: SourceIdentity,
    /// The source table.
    pub table: SourceTable,
    /// Goes up whenever continuity is given up and a new snapshot replaces the table.
    pub generation: u64,
    /// The position the snapshot shows.
    pub base: Lsn,
    /// Everything committed before this position is in the table, nothing after it is.
    pub applied: Lsn,
    /// Where the table stands: `publish`, `live`, …
    pub phase: String,
    /// The snapshot run that made the table.
    pub run: String,
    /// Set by the lake: `metaData.id`. CREATE OR REPLACE keeps domains but changes it.
    #[serde(default)]
    pub table_id: String,
    /// Set by the lake: the operation that wrote this checkpoint (`commitInfo.txnId`).
    #[serde(default)]
    pub commit: String,
    /// Set by the lake: no data file of the table has had this number or a higher one.
    #[serde(default)]
    pub next_file_no: FileNo,
    /// Set by the lake: numbers of live files that others wrote (OPTIMIZE), by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub foreign_files: BTreeMap<String, FileNo>,
    /// Set by the lake: rows of the table, which no rewrite by others may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_rows: Option<u64>,
}

/// What a version of a table did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VersionKind {
    /// Published a snapshot: the first version of a table or of a generation.
    Handoff,
    /// Merged a batch of changes.
    Changes,
    /// Read rows again from the source.
    Reseed,
    /// Followed a schema change.
    Schema,
    /// A TRUNCATE without rows after it in its batch.
    Truncate,
    /// Merged small files; the rows are the same.
    Compaction,
    /// A newer process took the table over from one that gave no sign of life; the rows are the
    /// same.
    Takeover,
    /// Written by somebody else; the rows are the same.
    Foreign,
}

impl VersionKind {
    /// The word used in logs and tables, as in the JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            VersionKind::Handoff => "handoff",
            VersionKind::Changes => "changes",
            VersionKind::Reseed => "reseed",
            VersionKind::Schema => "schema",
            VersionKind::Truncate => "truncate",
            VersionKind::Compaction => "compaction",
            VersionKind::Takeover => "takeover",
            VersionKind::Foreign => "foreign",
        }
    }

    /// Delta's name of the operation, as `DESCRIBE HISTORY` shows it.
    pub(super) fn operation(self) -> &'static str {
        match self {
            VersionKind::Handoff => "CREATE TABLE AS SELECT",
            VersionKind::Compaction => "OPTIMIZE",
            VersionKind::Schema => "ADD COLUMNS",
            VersionKind::Truncate => "TRUNCATE",
            VersionKind::Changes
            | VersionKind::Reseed
            | VersionKind::Takeover
            | VersionKind::Foreign => "MERGE",
        }
    }
}

/// What stands in `commitInfo.userMetadata` of a version of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tag {
    /// What the version did.
    pub kind: VersionKind,
    /// The generation it belongs to.
    pub generation: u64,
    /// The position the snapshot shows.
    pub base: Lsn,
    /// The position the version shows.
    pub applied: Lsn,
    /// Commit time at the source of the newest transaction in it, RFC 3339 with microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_time: Option<String>,
    /// Rows written.
    pub rows_in: u64,
    /// Rows masked or removed.
    pub rows_out: u64,
    /// Name of the pipeline.
    pub pipeline: String,
    /// The snapshot run of the table.
    pub run: String,
}

impl Tag {
    /// The tag of a version that stands where the table's checkpoint says.
    pub fn of(kind: VersionKind, checkpoint: &Checkpoint) -> Tag {
        Tag {
            kind,
            generation: checkpoint.generation,
            base: checkpoint.base,
            applied: checkpoint.applied,
            source_time: None,
            rows_in: 0,
            rows_out: 0,
            pipeline: checkpoint.pipeline.clone(),
            run: checkpoint.run.clone(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn checkpoint(applied: u64) -> Checkpoint {
        Checkpoint {
            format: CHECKPOINT_FORMAT,
            pipeline: "shop".into(),
            source: SourceIdentity {
                system_identifier: "7300000000000000001".into(),
                timeline: 1,
                database: "shop".into(),
                slot: "tidegate_shop".into(),
                publication: "tidegate_shop".into(),
                contract: "c0".into(),
            },
            table: SourceTable {
                oid: 16384,
                schema: "public".into(),
                name: "orders".into(),
                fingerprint: "f0".into(),
            },
            generation: 1,
            base: Lsn::new(100),
            applied: Lsn::new(applied),
            phase: "live".into(),
            run: "r1".into(),
            table_id: String::new(),
            commit: String::new(),
            next_file_no: 0,
            foreign_files: BTreeMap::new(),
            live_rows: None,
        }
    }

    pub fn tag(kind: VersionKind, applied: u64) -> Tag {
        Tag {
            kind,
            generation: 1,
            base: Lsn::new(100),
            applied: Lsn::new(applied),
            source_time: Some("2024-05-06T07:08:09.123456Z".into()),
            rows_in: 3,
            rows_out: 1,
            pipeline: "shop".into(),
            run: "r1".into(),
        }
    }

    #[test]
    fn a_checkpoint_of_an_older_program_is_still_read() {
        let mut json = serde_json::to_value(checkpoint(120)).unwrap();
        for field in ["table_id", "commit", "next_file_no"] {
            json.as_object_mut().unwrap().remove(field);
        }
        let read: Checkpoint = serde_json::from_value(json).unwrap();
        assert_eq!(read, checkpoint(120));
    }

    #[test]
    fn positions_are_written_as_postgresql_prints_them() {
        let json = serde_json::to_string(&tag(VersionKind::Changes, 0x16_B374_D848)).unwrap();
        assert!(json.contains(r#""applied":"16/B374D848""#), "{json}");
        assert!(json.contains(r#""kind":"changes""#), "{json}");
    }
}

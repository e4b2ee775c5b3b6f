//! What the ledger keeps of a run: one event for each copied chunk, each count, each file read
//! again. From these alone a later start knows what need not be copied.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::handoff::copy::CopiedChunk;
use crate::handoff::plan::Pages;
use crate::lake::{Event, FileNo, NewFile, TableEntry, file_no_of};
use crate::position::Lsn;

/// Kind of the ledger's events that record a copied chunk.
pub const CHUNK_EVENT: &str = "chunk";
/// Kind of the events that record a table's count in a snapshot.
pub const COUNT_EVENT: &str = "count";
/// Kind of the events that record rows read again by their keys.
pub const REREAD_EVENT: &str = "reread";

/// A copied chunk, or rows read again.
#[derive(Clone, Debug)]
pub struct ChunkRecord {
    /// Number of its first file, also where it has none for want of rows.
    pub number: FileNo,
    /// Oid of the leaf.
    pub leaf: u32,
    /// The pages of it.
    pub pages: Pages,
    /// The position it shows.
    pub base: Lsn,
    /// Rows.
    pub rows: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// The files: none for an empty chunk, several for one of a partitioned lake table.
    pub files: Vec<NewFile>,
    /// Its keys are at hand, sorted, and need not be read from the lake.
    pub keys_at_hand: bool,
}

impl ChunkRecord {
    /// The numbers of its files.
    pub fn file_numbers(&self) -> impl Iterator<Item = FileNo> {
        self.files.iter().filter_map(|file| file_no_of(&file.path))
    }
}

/// Rows of a table in a snapshot, as the source counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The position of the snapshot.
    pub base: Lsn,
    /// Rows.
    pub rows: u64,
}

/// What is recorded of one table.
#[derive(Debug, Default)]
pub struct TableRecords {
    /// Chunks in the order of their numbers.
    pub chunks: Vec<ChunkRecord>,
    /// Rows read again, likewise.
    pub rereads: Vec<ChunkRecord>,
    /// The latest count.
    pub counted: Option<Counted>,
    /// Files of chunks of other attempts.
    pub dropped: Vec<String>,
}

/// The detail of an event. What older programs left out has a default.
#[derive(Serialize, Deserialize)]
struct Detail {
    /// Oid of the table.
    #[serde(default)]
    oid: u32,
    /// [`TableEntry::attempt`].
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    leaf_oid: u32,
    #[serde(default)]
    relfilenode: u32,
    #[serde(default)]
    leaf: (String, String),
    #[serde(default)]
    pages: Pages,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    file: Option<NewFile>,
    /// Those after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    more: Vec<NewFile>,
}

impl Detail {
    fn with(files: &[NewFile], detail: Detail) -> Detail {
        let mut files = files.iter().cloned();
        Detail { file: files.next(), more: files.collect(), ..detail }
    }

    fn files(self) -> impl Iterator<Item = NewFile> {
        self.file.into_iter().chain(self.more)
    }
}

fn event(run: &str, kind: &str, plan: &TablePlan, base: Lsn, detail: &Detail) -> Result<Event> {
    let detail = serde_json::to_value(detail)
        .map_err(|e| Error::failed("a chunk's record can't be written").because(e))?;
    Ok(Event { base: Some(base), ..Event::now(run, kind, &plan.to_string(), detail) })
}

fn detail(entry: &TableEntry) -> Detail {
    Detail {
        oid: entry.oid,
        attempt: entry.attempt,
        leaf_oid: 0,
        relfilenode: 0,
        leaf: Default::default(),
        pages: (0, None),
        digest: String::new(),
        file: None,
        more: Vec::new(),
    }
}

/// The event of a copied chunk, and what it records.
///
/// # Errors
/// None in practice: it is plain JSON.
pub fn chunk_event(
    run: &str,
    plan: &TablePlan,
    entry: &TableEntry,
    base: Lsn,
    copied: &CopiedChunk,
) -> Result<(Event, ChunkRecord)> {
    let CopiedChunk { chunk, rows, digest, files, .. } = copied;
    let record = ChunkRecord {
        number: chunk.number,
        leaf: chunk.leaf_oid,
        pages: (chunk.from_page, chunk.to_page),
        base,
        rows: *rows,
        bytes: files.iter().map(|file| file.size).sum(),
        files: files.clone(),
        keys_at_hand: true,
    };
    let detail = Detail {
        leaf_oid: chunk.leaf_oid,
        relfilenode: chunk.relfilenode,
        leaf: chunk.leaf.clone(),
        pages: record.pages,
        digest: digest.hex(),
        ..Detail::with(files, detail(entry))
    };
    let event = Event {
        chunk: Some(i64::from(chunk.number)),
        rows: Some(*rows as i64),
        bytes: Some(record.bytes as i64),
        ..event(run, CHUNK_EVENT, plan, base, &detail)?
    };
    Ok((event, record))
}

/// The event of rows read again.
///
/// # Errors
/// As [`chunk_event`].
pub fn reread_event(
    run: &str,
    plan: &TablePlan,
    entry: &TableEntry,
    record: &ChunkRecord,
) -> Result<Event> {
    let detail = Detail::with(&record.files, detail(entry));
    Ok(Event {
        chunk: Some(i64::from(record.number)),
        rows: Some(record.rows as i64),
        bytes: Some(record.bytes as i64),
        ..event(run, REREAD_EVENT, plan, record.base, &detail)?
    })
}

/// The event of a count.
///
/// # Errors
/// As [`chunk_event`].
pub fn count_event(
    run: &str,
    plan: &TablePlan,
    entry: &TableEntry,
    counted: Counted,
) -> Result<Event> {
    let event = event(run, COUNT_EVENT, plan, counted.base, &detail(entry))?;
    Ok(Event { rows: Some(counted.rows as i64), ..event })
}

/// What `events` of a run record of the table of `entry`, in its present attempt.
///
/// # Errors
/// A record that is unreadable.
pub fn of_table(events: &[Event], entry: &TableEntry) -> Result<TableRecords> {
    let name = format!("{}.{}", entry.schema, entry.name);
    let mut records = TableRecords::default();
    let (mut chunks, mut rereads) = (BTreeMap::new(), BTreeMap::new());
    for event in events.iter().filter(|event| event.table == name) {
        if ![CHUNK_EVENT, COUNT_EVENT, REREAD_EVENT].contains(&event.kind.as_str()) {
            continue;
        }
        let detail: Detail = serde_json::from_value(event.detail.clone()).map_err(|e| {
            Error::failed(format!("{name}: a record in the ledger is unreadable")).because(e)
        })?;
        if detail.attempt != entry.attempt || (detail.oid != entry.oid && detail.oid != 0) {
            records.dropped.extend(detail.files().map(|file| file.path));
            continue;
        }
        let base = event.base.unwrap_or_default();
        let rows = event.rows.unwrap_or(0).max(0) as u64;
        if event.kind == COUNT_EVENT {
            let counted = Counted { base, rows };
            if records.counted.is_none_or(|before| before.base <= base) {
                records.counted = Some(counted);
            }
            continue;
        }
        let number = event.chunk.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        let record = ChunkRecord {
            number,
            leaf: detail.leaf_oid,
            pages: detail.pages,
            base,
            rows,
            bytes: event.bytes.unwrap_or(0).max(0) as u64,
            files: detail.files().collect(),
            keys_at_hand: false,
        };
        let of_kind = if event.kind == CHUNK_EVENT { &mut chunks } else { &mut rereads };
        of_kind.insert(number, record);
    }
    records.chunks = chunks.into_values().collect();
    records.rereads = rereads.into_values().collect();
    Ok(records)
}

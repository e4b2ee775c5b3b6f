//! Changes on their way from the stream to the lake, as the bytes PostgreSQL sent.
//!
//! A batch ends at a transaction's end. It travels in one or more parts, so that memory stays
//! bounded whatever a transaction holds; only the last part says where the batch ends, and nothing
//! of it is visible before. Tuples are kept whole in one arena per table: nothing is allocated per
//! change.

use std::sync::Arc;

use crate::lake::LastCommit;
use crate::position::Lsn;

/// A transaction that has changes in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// LSN of its commit record.
    pub commit_lsn: Lsn,
    /// When it committed, microseconds since 1970 UTC by the source's clock.
    pub committed_at_us: i64,
}

/// The end of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEnd {
    /// Everything that committed before this LSN is in the batch or in earlier ones.
    pub applied: Lsn,
    /// Commit time of the last transaction, if the batch has one.
    pub source_time_us: Option<i64>,
    /// The last transaction that the stream brought, with changes of our tables or without.
    pub last: Option<LastCommit>,
}

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new row.
    Insert,
    /// A row changed, its key perhaps too.
    Update,
    /// A row removed.
    Delete,
    /// All rows removed.
    Truncate,
}

/// A tuple in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Whether it is large enough to matter by itself for the memory of a part.
    pub fn is_large(self) -> bool {
        self.len >= 64 * 1024
    }
}

/// The old tuple of an update or delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// Not sent: the key did not change.
    None,
    /// The key columns only.
    Key(Span),
    /// The whole old row (replica identity FULL).
    Full(Span),
}

/// One change of one row, or a truncation.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Index into [`Part::transactions`].
    pub transaction: u32,
    /// Order in its transaction, from 1.
    pub seq: u64,
    /// What it does.
    pub op: Op,
    /// The old tuple, if sent.
    pub old: Old,
    /// The new tuple of an insert or update.
    pub new: Option<Span>,
}

/// How the stream's columns map to the table's plan.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// For each column of the stream, its index in the plan; none for one that is not replicated.
    pub columns: Vec<Option<usize>>,
}

/// The changes of one table in a part.
#[derive(Debug)]
pub struct TablePart {
    /// Index of the table in the pipeline.
    pub table: usize,
    /// Columns of the tuples.
    pub layout: Arc<Layout>,
    /// In the order of the stream.
    pub changes: Vec<Change>,
    arena: Vec<u8>,
}

impl TablePart {
    /// An empty part.
    pub fn new(table: usize, layout: Arc<Layout>) -> Self {
        TablePart { table, layout, changes: Vec::new(), arena: Vec::new() }
    }

    /// Keeps a tuple; none when the arena would pass 4 GiB.
    pub fn keep(&mut self, tuple: &[u8]) -> Option<Span> {
        let start = u32::try_from(self.arena.len()).ok()?;
        let len = u32::try_from(tuple.len()).ok()?;
        start.checked_add(len)?;
        self.arena.extend_from_slice(tuple);
        Some(Span { start, len })
    }

    /// The bytes of a kept tuple.
    pub fn tuple(&self, span: Span) -> &[u8] {
        let (start, len) = (span.start as usize, span.len as usize);
        self.arena.get(start..start + len).unwrap_or_default()
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.arena.len() + self.changes.len() * size_of::<Change>()
    }
}

/// Some or all of a batch.
#[derive(Debug, Default)]
pub struct Part {
    /// Transactions with changes in this part.
    pub transactions: Vec<Transaction>,
    /// Tables with changes in this part.
    pub tables: Vec<TablePart>,
    /// Set on the last part of a batch.
    pub end: Option<BatchEnd>,
}

impl Part {
    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(TablePart::bytes).sum()
    }

    /// Changes of all tables.
    pub fn changes(&self) -> usize {
        self.tables.iter().map(|table| table.changes.len()).sum()
    }
}

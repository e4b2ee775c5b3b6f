//! The tables of a run: what is copied of each, what is missing, what may be kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::apply::plan::{RowIdentity, TablePlan};
use crate::failpoint;
use crate::handoff::plan::{Pages, gaps};
use crate::handoff::rules::{CopiedSoFar, StartAgain, keep_chunks};
use crate::lake::locations::{Locations, PendingRun};
use crate::lake::{FileNo, LeafEntry, TableEntry};
use crate::position::Lsn;
use crate::source::catalog::{Leaf, TableInfo};

use super::records::{ChunkRecord, Counted, TableRecords};

/// One table of a run.
pub struct RunTable {
    /// The catalog's entry, as of the latest look.
    pub info: TableInfo,
    /// Its plan, of the same look.
    pub plan: Arc<TablePlan>,
    /// What is held of it.
    pub held: Held,
}

/// What is copied of a table, and not visible yet.
pub struct Held {
    /// Its entry in the ledger's state.
    pub entry: TableEntry,
    /// Copied chunks.
    pub chunks: Vec<ChunkRecord>,
    /// Rows read again.
    pub rereads: Vec<ChunkRecord>,
    /// The latest count.
    pub counted: Option<Counted>,
    /// Sorted keys of the chunks copied by this process.
    pub runs: Vec<PendingRun>,
    /// The index that these runs belong to.
    pub index: Option<Locations>,
    /// Files of chunks that were dropped.
    pub dropped: Vec<String>,
}

impl Held {
    /// A table of which nothing is copied.
    pub fn nothing(plan: &TablePlan, info: &TableInfo, next_file_no: FileNo) -> Held {
        Held::recorded(
            TableEntry {
                schema: plan.schema.clone(),
                name: plan.name.clone(),
                folder: plan.folder.clone(),
                oid: plan.oid,
                fingerprint: plan.fingerprint.clone(),
                phase: "snapshot".to_owned(),
                why: None,
                followed_to: None,
                rows_estimated: (info.rows_estimated >= 0.0).then_some(info.rows_estimated as u64),
                attempt: 0,
                whole: false,
                leaves: leaf_entries(info),
                chunks: None,
                next_file_no,
                membership: String::new(),
            },
            TableRecords::default(),
        )
    }

    /// A table as the ledger has it.
    pub fn recorded(entry: TableEntry, records: TableRecords) -> Held {
        let TableRecords { chunks, rereads, counted, dropped } = records;
        Held { entry, chunks, rereads, counted, runs: Vec::new(), index: None, dropped }
    }

    fn bases(&self) -> impl Iterator<Item = Lsn> {
        self.chunks.iter().chain(&self.rereads).map(|chunk| chunk.base)
    }

    /// The lowest base of its chunks; none where there are none.
    pub fn lowest(&self) -> Option<Lsn> {
        self.bases().min()
    }

    /// The highest base of its chunks.
    pub fn highest(&self) -> Option<Lsn> {
        self.bases().max()
    }

    /// The base of each file.
    pub fn file_bases(&self) -> BTreeMap<FileNo, Lsn> {
        let chunks = self.chunks.iter().chain(&self.rereads);
        chunks.flat_map(|chunk| chunk.file_numbers().map(|no| (no, chunk.base))).collect()
    }

    fn copied(&self, leaf: u32) -> Vec<Pages> {
        self.chunks.iter().filter(|chunk| chunk.leaf == leaf).map(|chunk| chunk.pages).collect()
    }

    fn is_complete(&self) -> bool {
        self.entry.leaves.iter().all(|leaf| gaps(&self.copied(leaf.oid)).is_empty())
    }

    /// Paths of the files that count.
    pub fn files(&self) -> BTreeSet<&str> {
        let files = self.chunks.iter().chain(&self.rereads).flat_map(|chunk| &chunk.files);
        files.map(|file| file.path.as_str()).collect()
    }

    /// Drops what is copied.
    pub fn drop_chunks(&mut self) {
        let files: Vec<String> = self.files().into_iter().map(str::to_owned).collect();
        self.dropped.extend(files);
        self.entry.attempt += 1;
        self.chunks.clear();
        self.rereads.clear();
        self.counted = None;
        self.runs.clear();
        self.index = None;
    }
}

impl RunTable {
    /// Whether its rows can be told apart over two boundaries.
    pub fn splits(&self) -> bool {
        matches!(self.plan.identity, RowIdentity::Key(_)) && !self.held.entry.whole
    }

    /// The pieces that no chunk has, by the latest look.
    pub fn missing(&self) -> Vec<(&Leaf, Pages)> {
        let mut missing = Vec::new();
        for leaf in &self.info.leaves {
            let gaps = gaps(&self.held.copied(leaf.oid));
            missing.extend(gaps.into_iter().map(|pages| (leaf, pages)));
        }
        missing
    }

    /// Whether every piece is copied.
    pub fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    /// Whether the source's count is to be compared and is not known: one of before the last chunk
    /// says nothing.
    pub fn lacks_count(&self) -> bool {
        let highest = self.held.highest();
        self.held.counted.is_none_or(|counted| highest.is_some_and(|base| counted.base < base))
    }

    /// Whether what is held of it may be kept, by what is found of it now.
    ///
    /// # Errors
    /// Why not.
    pub fn may_keep(&self) -> Result<(), StartAgain> {
        let held = &self.held;
        let recorded: BTreeMap<u32, LeafEntry> =
            held.entry.leaves.iter().map(|leaf| (leaf.oid, *leaf)).collect();
        let found: BTreeMap<u32, LeafEntry> =
            leaf_entries(&self.info).into_iter().map(|leaf| (leaf.oid, leaf)).collect();
        keep_chunks(CopiedSoFar {
            complete: held.is_complete(),
            one_base: held.lowest() == held.highest(),
            keyed: self.splits(),
            same_schema: held.entry.oid == self.plan.oid
                && held.entry.fingerprint == self.plan.fingerprint,
            same_leaves: recorded.keys().eq(found.keys()),
            same_files: recorded == found || failpoint::wrong("keep-rewritten-chunks"),
        })
    }

    /// Drops what is held, and takes the table as it is found now.
    pub fn start_again(&mut self, why: &dyn std::fmt::Display) {
        let rows: u64 = self.held.chunks.iter().map(|chunk| chunk.rows).sum();
        tracing::warn!(table = %self.plan, rows, "copied again from its beginning: {why}");
        self.held.drop_chunks();
        self.as_found();
    }

    /// Takes the table as it is found now; nothing is held of it.
    pub fn as_found(&mut self) {
        let entry = &mut self.held.entry;
        entry.oid = self.plan.oid;
        entry.fingerprint = self.plan.fingerprint.clone();
        entry.leaves = leaf_entries(&self.info);
    }
}

/// Where its rows lie.
pub(super) fn leaf_entries(info: &TableInfo) -> Vec<LeafEntry> {
    let entry =
        |leaf: &Leaf| LeafEntry { oid: leaf.oid, relfilenode: leaf.relfilenode, link: leaf.link };
    info.leaves.iter().map(entry).collect()
}

//! Compaction of a table that is being brought forward: begun and ended between two batches, with
//! the rewrite on another thread in between (see [`crate::lake::compaction`]).
//!
//! The index holds a place meanwhile: the rows that move are older than all that batches commit
//! until the end, so a key that is updated meanwhile is found where the update put it.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::runtime::Handle;

use super::TableApplier;
use crate::apply::keys::KeyEncoder;
use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::lake::compaction::{Bounds, Candidate, Pace, Rewrite, Rewritten, pick};
use crate::lake::locations::{Location, PendingRun, RunBuilder};
use crate::lake::{
    Change, CommitOutcome, FileNo, LiveFile, PartitionValues, Tag, VersionKind, file_no_of,
};

/// A rewrite with all that its thread needs.
pub struct Compaction {
    plan: Arc<TablePlan>,
    rewrite: Rewrite,
    index: Option<RunBuilder>,
}

/// A rewrite that is done and waits for its commit.
pub struct Compacted {
    number: FileNo,
    rewritten: Rewritten,
    entries: Option<PendingRun>,
}

/// What a compaction came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The version.
    pub version: u64,
    /// Files that went.
    pub files: usize,
    /// Rows that moved.
    pub rows: u64,
    /// Bytes of the new file.
    pub bytes: u64,
}

impl Compaction {
    /// Does the rewrite. Blocking, for a thread of its own.
    ///
    /// # Errors
    /// The lake or the local disk fails, or it was cancelled.
    pub fn run(self, runtime: &Handle, pace: &Pace) -> Result<Compacted> {
        let Compaction { plan, rewrite, mut index } = self;
        let number = rewrite.number;
        let encoder = KeyEncoder::new(&plan)?;
        let overflow = format!("{}overflow", plan.prefix);
        let rewritten = rewrite.run(runtime, pace, |rows, first| {
            let (Some(encoder), Some(index)) = (&encoder, &mut index) else { return Ok(()) };
            let keys = encoder.encode_batch(rows, &overflow)?;
            for (i, row) in (0..keys.len()).zip(first..) {
                index.push(keys.get(i), Location { file: number, row })?;
            }
            Ok(())
        })?;
        let entries = index.map(RunBuilder::finish_one).transpose()?.flatten();
        failpoint::at("compaction.written")?;
        Ok(Compacted { number, rewritten, entries })
    }
}

impl TableApplier {
    /// The files that should become one, if it is time.
    pub fn compaction_due(&self, bounds: &Bounds) -> Option<Vec<FileNo>> {
        let candidate = |file: &LiveFile| Candidate {
            number: file.number,
            bytes: file.size,
            rows: file.rows,
            masked: file.mask.len(),
            foreign: file_no_of(&file.path).is_none(),
        };
        let files = self.table.files().values();
        let unseen = |file: &&LiveFile| file.is_encoded() && !file.mask.is_empty();
        if let Some(file) = files.clone().find(unseen) {
            return Some(vec![file.number]);
        }
        if self.table.partitioned_by().is_empty() {
            return pick(&files.map(candidate).collect::<Vec<_>>(), bounds);
        }
        // A file has rows of one partition only.
        let mut partitions: BTreeMap<&PartitionValues, Vec<Candidate>> = BTreeMap::new();
        for file in files {
            partitions.entry(&file.partition).or_default().push(candidate(file));
        }
        partitions.values().find_map(|files| pick(files, bounds))
    }

    /// Begins a compaction of the files `picked`, between two batches.
    ///
    /// # Errors
    /// In the middle of a batch, or the local disk fails.
    pub fn begin_compaction(&mut self, picked: &[FileNo]) -> Result<Compaction> {
        if !self.stage.is_empty() || self.table.next_file_no() == FileNo::MAX {
            return Err(Error::failed(format!("{}: it can't be compacted now", self.plan)));
        }
        let sources = picked.iter().filter_map(|no| self.table.file(*no)).cloned().collect();
        let number = self.table.next_file_no();
        let index = match &mut self.index {
            None => None,
            Some(index) => {
                index.hold(u64::from(number))?;
                Some(index.run_builder())
            }
        };
        self.table.take_file_no();
        Ok(Compaction {
            plan: self.plan.clone(),
            rewrite: Rewrite {
                lake: self.lake.clone(),
                folder: self.plan.folder.clone(),
                schema: self.plan.lake_schema(),
                options: self.file_options.clone(),
                number,
                sources,
            },
            index,
        })
    }

    /// Ends the compaction without a commit.
    pub fn give_up_compaction(&mut self) {
        if let Some(index) = &mut self.index {
            index.release_held();
        }
    }

    /// Ends a compaction that was done and will not be committed: its file goes.
    pub async fn discard_compacted(&mut self, compacted: Compacted) {
        self.give_up_compaction();
        let Some(file) = compacted.rewritten.file else { return };
        let path = Path::from(format!("{}/{}", self.plan.folder, file.path));
        if let Err(error) = self.lake.store().delete(&path).await {
            tracing::debug!("{path} is left over: {error}");
        }
    }

    /// Commits a compaction, between two batches: rows that were masked meanwhile stay masked. None
    /// if nothing is left of what was compacted, as after a truncation.
    ///
    /// # Errors
    /// As [`TableApplier::commit`].
    pub async fn commit_compaction(&mut self, compacted: Compacted) -> Result<Option<Outcome>> {
        if !self.stage.is_empty() {
            return Err(Error::failed(format!("{}: a compaction within a batch", self.plan)));
        }
        let (dead, removes) = compacted.rewritten.dead(|no| self.table.file(no))?;
        if removes.is_empty() {
            self.discard_compacted(compacted).await;
            return Ok(None);
        }
        let Compacted { number, rewritten, entries } = compacted;
        let sources = removes.iter().filter_map(|no| self.table.file(*no));
        let live: u64 = sources.map(crate::lake::LiveFile::live_rows).sum();
        let (rows, bytes) = rewritten.file.as_ref().map_or((0, 0), |file| (file.rows, file.size));
        if rows.saturating_sub(dead.len()) != live {
            return Err(Error::failed(format!(
                "{}: the compacted file {number} has {rows} rows, {} of them masked, where {live} live rows were",
                self.plan,
                dead.len()
            ))
            .next("nothing was committed; this is a defect, report it"));
        }
        let checkpoint = self.table.checkpoint().clone();
        let tag = Tag::of(VersionKind::Compaction, &checkpoint);
        let mut change = Change::new(checkpoint, tag);
        change.adds = rewritten.file.into_iter().map(|file| (file, dead.clone())).collect();
        change.removes = removes.iter().copied().collect();
        failpoint::at("compaction.commit.before")?;
        let version = match self.table.commit(&change).await.map_err(|e| e.at(&*self.plan))? {
            CommitOutcome::Done(version) => version,
            CommitOutcome::ForeignRewrite { replaced, .. } => {
                self.give_up_compaction();
                return Err(Error::transient(format!(
                    "{}: another program rewrote {} of its files while they were compacted; reading the table again",
                    self.plan,
                    replaced.len()
                )));
            }
        };
        failpoint::at("compaction.commit.after")?;
        if let Some(index) = &mut self.index {
            index.put_held(entries.into_iter().collect())?;
            index.commit_staged(u64::from(self.table.next_file_no()))?;
            index.flush()?;
            let table = &self.table;
            index.maintain(|location| !table.is_masked(location.file, location.row))?;
        }
        failpoint::at("compaction.index.after")?;
        Ok(Some(Outcome { version, files: removes.len(), rows: live, bytes }))
    }
}

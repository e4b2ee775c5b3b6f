//! Which runs are merged, and when: few runs to search, few bytes written again.
//!
//! Runs of similar size are merged when there are [`FANOUT`] of them, so an entry is written again
//! about once for each eightfold growth. When all that is newer has half the size of the oldest run, all
//! are merged: superseded entries never take more than about that half.

use std::ops::Range;
use std::sync::Arc;

use super::Location;
use super::filter::Filter;
use super::folder::Folder;
use super::merge::{Same, merge_into};
use super::run::Run;
use super::write::RunWriter;
use crate::error::Result;

/// Runs of similar size that are left apart.
pub(super) const FANOUT: usize = 8;
/// Runs read at once by a merge; more are merged in several passes.
pub(super) const WAYS: usize = 32;
/// Bytes of the buffer of each run that is merged.
pub(super) const MERGE_BUFFER: usize = 64 << 10;

/// The newest runs that should become one, of runs with these sizes, oldest first. No result of a
/// merge would be larger than `limit` bytes.
///
/// Runs are taken from the newest on while the next older one is at most twice as large as all
/// that were taken: what is merged grows with each merge.
pub(super) fn pick(sizes: &[u64], limit: u64) -> Option<Range<usize>> {
    let (mut start, mut total) = (sizes.len(), 0u64);
    while let Some((before, &size)) = start.checked_sub(1).and_then(|i| Some((i, sizes.get(i)?))) {
        if start < sizes.len() && size > total.saturating_mul(2) || total + size > limit {
            break;
        }
        (start, total) = (before, total + size);
    }
    (sizes.len() - start >= FANOUT).then_some(start..sizes.len())
}

/// As [`pick`], for runs on disk: also when the newer ones have half the size of the oldest.
pub(super) fn pick_durable(sizes: &[u64]) -> Option<Range<usize>> {
    let newer: u64 = sizes.iter().skip(1).sum();
    match sizes.first() {
        Some(oldest) if newer > 0 && newer >= oldest / 2 => Some(0..sizes.len()),
        _ => pick(sizes, u64::MAX),
    }
}

/// A merge of immutable runs that can be done in any thread while the index is in use.
pub struct MergePlan {
    pub(super) folder: Arc<Folder>,
    /// Oldest first, neighbours in the index.
    pub(super) runs: Vec<Arc<Run>>,
    pub(super) multi: bool,
    /// Whether there are no older runs.
    pub(super) oldest: bool,
    /// Bytes of memory for fences and filter of the result.
    pub(super) memory: usize,
    /// While it lives no other merge is planned.
    pub(super) token: Arc<()>,
}

/// What [`MergePlan::run`] made, for [`super::Locations::apply_merge`].
pub struct MergedRun {
    pub(super) run: Option<Run>,
    pub(super) replaces: Vec<Arc<Run>>,
    pub(super) _token: Arc<()>,
}

impl MergePlan {
    /// Does the merge. Entries whose location `is_live` denies are left out: it must know of every
    /// version that was committed before the plan was made, and deny only what is gone for good.
    ///
    /// # Errors
    /// The local disk can't be written, or a run is damaged.
    pub fn run(self, is_live: impl Fn(Location) -> bool) -> Result<MergedRun> {
        let entries = self.runs.iter().map(|run| run.entries).sum();
        let mut writer = RunWriter::file(&self.folder, self.memory / 4)?;
        // Every look-up ends in the oldest run: a filter would tell it little.
        if !self.oldest && Filter::size(entries) <= self.memory as u64 / 4 * 3 {
            writer = writer.with_filter(entries);
        }
        let same = if self.multi { Same::EachLocation } else { Same::Newest };
        merge_into(&mut writer, &self.runs, same, MERGE_BUFFER, is_live)?;
        let run = writer.finish()?;
        if let Some(file) = run.as_ref().and_then(Run::file) {
            file.sync()?;
        }
        Ok(MergedRun { run, replaces: self.runs, _token: self.token })
    }

    /// Entries to be read.
    pub fn entries(&self) -> u64 {
        self.runs.iter().map(|run| run.entries).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_written_again_few_times() {
        let mut sizes: Vec<u64> = Vec::new();
        let (mut written, mut most) = (0, 0);
        for _ in 0..10_000 {
            sizes.push(1 << 20);
            while let Some(range) = pick_durable(&sizes) {
                let total: u64 = sizes.drain(range.clone()).sum();
                sizes.insert(range.start, total);
                written += total;
            }
            most = most.max(sizes.len());
        }
        assert_eq!(sizes.iter().sum::<u64>(), 10_000 << 20);
        assert!(written / (10_000 << 20) <= 8, "{}", written / (10_000 << 20));
        assert!(most <= 30, "{most}");
    }

    #[test]
    fn a_merge_in_memory_stays_below_its_limit() {
        assert_eq!(pick(&[10; 8], 80), Some(0..8));
        assert_eq!(pick(&[10; 8], 79), None);
        assert_eq!(pick(&[10; 9], 80), Some(1..9));
        assert_eq!(pick(&[1000, 10, 10, 10, 10, 10, 10, 10, 10], 80), Some(1..9));
        assert_eq!(pick(&[10; 7], 1000), None);
    }
}

//! [`Locations`]: the runs of one index in their order, and what is done with them.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::build::{PendingRun, RunBuilder};
use super::filter::Filter;
use super::folder::{FORMAT, Folder, Manifest, NamedRun};
use super::merge::{Merge, Same, merge_into};
use super::run::Run;
use super::tier::{MERGE_BUFFER, MergePlan, MergedRun, WAYS, pick, pick_durable};
use super::write::{RunWriter, check_key};
use super::{Identity, Location, Options, Stats};
use crate::error::{Error, Result};
use crate::failpoint;

/// The location index of one table. See the [module](super).
///
/// An error of a look-up is never a wrong answer, but the end of this value: drop it, and open or
/// create the index again.
pub struct Locations {
    pub(super) folder: Arc<Folder>,
    identity: Identity,
    pub(super) options: Options,
    /// Committed, oldest first: runs the manifest names, then the overlay.
    pub(super) runs: Vec<Arc<Run>>,
    /// Not committed, oldest first.
    pub(super) staged: Vec<Arc<Run>>,
    committed: (u64, u64),
    durable: (u64, u64),
    next_stamp: u64,
    merging: Weak<()>,
    held: Option<Held>,
}

/// A place among the runs that is kept for entries that are older than what is committed meanwhile.
#[derive(Clone, Copy)]
struct Held {
    /// Runs before the place.
    after: usize,
    /// The version that the index does not pass meanwhile.
    version: u64,
}

impl Locations {
    /// Opens the index in `folder`. None: there is none for this identity and mode, or it is torn
    /// or damaged; the caller makes a new one with [`Locations::create`].
    ///
    /// # Errors
    /// The folder is in use by another process, or can't be read.
    pub fn open(folder: &Path, identity: &Identity, options: Options) -> Result<Option<Locations>> {
        if !folder.is_dir() {
            return Ok(None);
        }
        let mut index = Locations::empty(folder, identity, options)?;
        let Some(manifest) = index.folder.manifest()? else { return Ok(None) };
        let same = manifest.format == FORMAT
            && manifest.identity == *identity
            && manifest.multi == options.multi;
        if !same {
            return Ok(None);
        }
        let ids: Vec<u64> = manifest.runs.iter().map(|run| run.id).collect();
        index.folder.sweep(&ids)?;
        for named in &manifest.runs {
            let memory = index.run_memory();
            let Some(run) = Run::open(&index.folder, named, memory) else { return Ok(None) };
            index.runs.push(Arc::new(run));
        }
        index.committed = (manifest.version, manifest.stamp);
        (index.durable, index.next_stamp) = (index.committed, manifest.stamp);
        Ok(Some(index))
    }

    /// Makes an empty index at version 0 in `folder` and removes the one that was there. It is not
    /// found by [`Locations::open`] before the first [`Locations::load`] or flush.
    ///
    /// # Errors
    /// The folder is in use by another process, or can't be written.
    pub fn create(folder: &Path, identity: &Identity, options: Options) -> Result<Locations> {
        let index = Locations::empty(folder, identity, options)?;
        index.folder.wipe()?;
        Ok(index)
    }

    fn empty(folder: &Path, identity: &Identity, mut options: Options) -> Result<Locations> {
        options.memory_bytes = options.memory_bytes.max(1 << 20);
        Ok(Locations {
            folder: Arc::new(Folder::lock(folder, identity, options.multi)?),
            identity: identity.clone(),
            options,
            runs: Vec::new(),
            staged: Vec::new(),
            committed: (0, 0),
            durable: (0, 0),
            next_stamp: 0,
            merging: Weak::new(),
            held: None,
        })
    }

    /// The Delta version whose rows the durable part holds: where a restart goes on from.
    pub fn version(&self) -> u64 {
        self.durable.0
    }

    /// The stamp that was set when [`Locations::version`] was committed.
    pub fn stamp(&self) -> u64 {
        self.durable.1
    }

    /// Sets a number that goes with the versions loaded or committed from now on. A hash of the
    /// log entry of the version tells a lake that was restored to an older state and went on from
    /// there: the same version number, other rows.
    pub fn set_stamp(&mut self, stamp: u64) {
        self.next_stamp = stamp;
    }

    /// The version of the newest commit, durable or not.
    pub fn committed_version(&self) -> u64 {
        self.committed.0
    }

    fn same(&self) -> Same {
        if self.options.multi { Same::EachLocation } else { Same::Newest }
    }

    /// Memory left for fences and filter of one more run. Half of what is left at most, so that
    /// there is always room for another.
    fn run_memory(&self) -> usize {
        let runs = self.runs.iter().chain(&self.staged).filter(|run| run.file().is_some());
        let used: usize = runs.map(|run| run.memory()).sum();
        (self.options.memory_bytes / 4).saturating_sub(used) / 2
    }

    /// A builder of sorted runs for [`Locations::load`], to be filled in any thread. Each takes up
    /// to a quarter of the index's memory.
    pub fn run_builder(&self) -> RunBuilder {
        RunBuilder::new(self.folder.clone(), self.options.memory_bytes / 4)
    }

    fn is_ours(&self, run: &PendingRun) -> bool {
        run.0.file().is_some_and(|file| Arc::ptr_eq(&file.folder, &self.folder))
    }

    /// Fills an empty index with all that the builders gathered, as the rows of `version`, and
    /// makes it durable. Returns the entries. `on_duplicate` is told of every entry whose key stood
    /// before, as (key, location before, this location); it may fail the load. If it does not, the
    /// greatest location stands.
    ///
    /// # Errors
    /// That of `on_duplicate`; the index is not empty; the local disk can't be written. The index
    /// is empty then.
    pub fn load(
        &mut self,
        runs: Vec<PendingRun>,
        version: u64,
        mut on_duplicate: impl FnMut(&[u8], Location, Location) -> Result<()>,
    ) -> Result<u64> {
        self.folder.check()?;
        let ours = runs.iter().all(|run| self.is_ours(run));
        if !self.runs.is_empty() || !self.staged.is_empty() || !ours {
            return Err(Error::failed(format!(
                "the location index {} is not empty, or runs of another are loaded",
                self.folder.display()
            ))
            .next("report this as a bug"));
        }
        let mut runs: Vec<Arc<Run>> = runs.into_iter().map(|run| Arc::new(run.0)).collect();
        let fences = self.run_memory();
        let buffer = (self.options.memory_bytes / 8 / WAYS).min(256 << 10);
        while runs.len() > WAYS {
            // The smallest first: they are written again.
            runs.sort_by_key(|run| run.entries);
            let few: Vec<_> = runs.drain(..WAYS.min(runs.len() - WAYS + 1)).collect();
            let mut writer = RunWriter::file(&self.folder, fences)?;
            merge_into(&mut writer, &few, Same::All, buffer, |_| true)?;
            runs.extend(writer.finish()?.map(Arc::new));
        }
        let unique = matches!(runs.as_slice(), [run] if run.repeats == 0);
        if !unique {
            let mut writer = RunWriter::file(&self.folder, fences)?;
            let mut merge = Merge::new(&runs, Same::All, buffer)?;
            let mut last: Option<(Vec<u8>, Location)> = None;
            while let Some((key, location)) = merge.next()? {
                match &mut last {
                    Some((last, before)) if last == key => {
                        if self.options.multi {
                            if *before != location {
                                writer.push(last, *before)?;
                            }
                        } else {
                            on_duplicate(key, *before, location)?;
                        }
                        *before = location;
                    }
                    Some((last, before)) => {
                        writer.push(last, *before)?;
                        last.clear();
                        last.extend_from_slice(key);
                        *before = location;
                    }
                    None => last = Some((key.to_vec(), location)),
                }
            }
            if let Some((last, location)) = last {
                writer.push(&last, location)?;
            }
            runs = writer.finish()?.map(Arc::new).into_iter().collect();
        }
        let committed = (version, self.next_stamp);
        self.name(&runs, committed)?;
        let entries = runs.iter().map(|run| run.entries).sum();
        (self.runs, self.committed, self.durable) = (runs, committed, committed);
        Ok(entries)
    }

    fn memory_of(runs: &[Arc<Run>]) -> usize {
        runs.iter().filter(|run| run.file().is_none()).map(|run| run.memory()).sum()
    }

    /// Puts entries that are not committed yet: look-ups see them, [`Locations::discard_staged`]
    /// forgets them. Keys ascend, in multi mode (key, location). May be called several times for
    /// one commit; later puts replace earlier ones.
    ///
    /// # Errors
    /// The keys do not ascend; the local disk can't be written; the index is damaged. What was
    /// staged is to be discarded then.
    pub fn stage<'a>(
        &mut self,
        entries: impl IntoIterator<Item = (&'a [u8], Location)>,
    ) -> Result<()> {
        self.folder.check()?;
        let piece = self.options.memory_bytes / 8;
        let entries = entries.into_iter();
        let mut expected = entries.size_hint().1.unwrap_or(usize::MAX) as u64;
        let begin = |expected: u64| match Filter::size(expected.min(1 << 40)) {
            size if size <= piece as u64 / 2 => RunWriter::memory().with_filter(expected),
            _ => RunWriter::memory(),
        };
        let mut writer = begin(expected);
        for (key, location) in entries {
            check_key(key)?;
            if let Some((last, place)) = writer.last() {
                let multi = self.options.multi && last == key && place < Some(location);
                if last >= key && !multi {
                    return Err(out_of_order());
                }
                if writer.memory_used() >= piece && last < key {
                    let full = std::mem::replace(&mut writer, begin(expected));
                    self.add_staged(full)?;
                }
            }
            writer.push(key, location)?;
            expected = expected.saturating_sub(1);
        }
        self.add_staged(writer)
    }

    fn add_staged(&mut self, writer: RunWriter) -> Result<()> {
        self.staged.extend(writer.finish()?.map(Arc::new));
        let same = self.same();
        tidy_memory(&mut self.staged, same, self.options.memory_bytes / 4)?;
        let overlay = Self::memory_of(&self.runs);
        if overlay + Self::memory_of(&self.staged) > self.options.memory_bytes / 2 {
            if overlay > self.options.memory_bytes / 4 { self.flush()? } else { self.spill()? }
        }
        Ok(())
    }

    /// Moves what is staged in memory to a file, which no manifest names yet.
    fn spill(&mut self) -> Result<()> {
        let staged = self.on_disk(&self.staged)?;
        self.staged = staged;
        let files: Vec<u64> = self.staged.iter().map(|run| run.size()).collect();
        if let Some(range) = pick(&files, u64::MAX) {
            let merged = self.merge_to_file(&self.staged[range.clone()])?;
            self.staged.splice(range, merged);
        }
        Ok(())
    }

    /// Forgets what is staged.
    pub fn discard_staged(&mut self) {
        self.staged.clear();
    }

    /// The Delta commit succeeded: what is staged becomes part of the index, as of `version`.
    ///
    /// # Errors
    /// The local disk can't be written: drop the index, open it again at its older version.
    pub fn commit_staged(&mut self, version: u64) -> Result<()> {
        self.folder.check()?;
        let spilled = self.staged.iter().any(|run| run.file().is_some());
        self.runs.append(&mut self.staged);
        let version = match self.held {
            Some(held) if !failpoint::wrong("index-passes-moved-rows") => held.version.min(version),
            _ => version,
        };
        self.committed = (version, self.next_stamp);
        // Durable runs stand before the overlay: what was spilled may not stay in between.
        if spilled {
            return self.flush();
        }
        let (same, limit) = (self.same(), self.options.memory_bytes / 4);
        tidy_memory(&mut self.runs, same, limit)
    }

    /// Makes all that is committed durable: the overlay becomes a run in a file, and the manifest
    /// names it and the version.
    ///
    /// # Errors
    /// The local disk can't be written: nothing is lost, it can be tried again.
    pub fn flush(&mut self) -> Result<()> {
        self.folder.check()?;
        let in_memory = self.runs.iter().any(|run| run.file().is_none());
        if !in_memory && self.durable == self.committed {
            return Ok(());
        }
        let runs = self.on_disk(&self.runs)?;
        self.name(&runs, self.committed)?;
        (self.runs, self.durable) = (runs, self.committed);
        Ok(())
    }

    /// `runs` with each sequence of runs in memory merged to a file.
    fn on_disk(&self, runs: &[Arc<Run>]) -> Result<Vec<Arc<Run>>> {
        let mut result: Vec<Arc<Run>> = Vec::new();
        for group in runs.chunk_by(|a, b| a.file().is_none() && b.file().is_none()) {
            match group {
                [run] if run.file().is_some() => result.push(run.clone()),
                _ => result.extend(self.merge_to_file(group)?),
            }
        }
        Ok(result)
    }

    fn merge_to_file(&self, runs: &[Arc<Run>]) -> Result<Option<Arc<Run>>> {
        let memory = self.run_memory();
        let entries = runs.iter().map(|run| run.entries).sum();
        let mut writer = RunWriter::file(&self.folder, memory / 4)?;
        if !self.runs.is_empty() && Filter::size(entries) <= memory as u64 / 4 * 3 {
            writer = writer.with_filter(entries);
        }
        merge_into(&mut writer, runs, self.same(), MERGE_BUFFER, |_| true)?;
        Ok(writer.finish()?.map(Arc::new))
    }

    /// Syncs the runs and makes the manifest name them, and them alone.
    fn name(&self, runs: &[Arc<Run>], (version, stamp): (u64, u64)) -> Result<()> {
        let files = || runs.iter().filter_map(|run| Some((run, run.file()?)));
        for (_, file) in files() {
            if !file.named.load(Ordering::Acquire) {
                file.sync()?;
            }
        }
        let named = files().map(|(run, file)| NamedRun {
            id: file.id,
            bytes: run.file_bytes,
            footer: run.footer,
        });
        // From the first moment at which the manifest may name them they are not ours to remove.
        files().for_each(|(_, file)| file.named.store(true, Ordering::Release));
        self.folder.write_manifest(&Manifest {
            format: FORMAT,
            identity: self.identity.clone(),
            multi: self.options.multi,
            version,
            stamp,
            runs: named.collect(),
        })
    }

    /// Keeps a place for entries that are gathered from now on and put in later
    /// ([`Locations::put_held`]): among entries of one key they are older than all that is committed
    /// meanwhile, and newer than all that is there. Until then the index stays at `version`, so
    /// that after a crash the caller stages again all that came since.
    ///
    /// # Errors
    /// The local disk can't be written; a place is held already.
    pub fn hold(&mut self, version: u64) -> Result<()> {
        if self.held.is_some() || !self.staged.is_empty() || version < self.committed.0 {
            return Err(Error::failed(format!(
                "the location index {} can't hold a place now",
                self.folder.display()
            ))
            .next("report this as a bug"));
        }
        self.flush()?;
        self.held = Some(Held { after: self.runs.len(), version });
        Ok(())
    }

    /// Puts the entries in the place that is held, as committed.
    ///
    /// # Errors
    /// No place is held, or the runs are of another index.
    pub fn put_held(&mut self, runs: Vec<PendingRun>) -> Result<()> {
        self.folder.check()?;
        let held = self.held.take().filter(|held| held.after <= self.runs.len());
        let (Some(held), true) = (held, runs.iter().all(|run| self.is_ours(run))) else {
            return Err(Error::failed(format!(
                "the location index {} holds no place for these runs",
                self.folder.display()
            ))
            .next("report this as a bug"));
        };
        let runs = runs.into_iter().map(|run| Arc::new(run.0));
        let newest = failpoint::wrong("moved-rows-are-newest");
        let at = if newest { self.runs.len() } else { held.after };
        self.runs.splice(at..at, runs);
        Ok(())
    }

    /// Gives the place up that is held, if one is.
    pub fn release_held(&mut self) {
        self.held = None;
    }

    /// The merge that is due, if any and if none is under way. None reaches over a place that is
    /// held. It runs in any thread while the
    /// index is in use; hand its result to [`Locations::apply_merge`].
    pub fn merge_plan(&mut self) -> Option<MergePlan> {
        if self.merging.strong_count() > 0 || self.folder.check().is_err() {
            return None;
        }
        let from = self.held.map_or(0, |held| held.after);
        let durable = self.runs.iter().skip(from).take_while(|run| run.file().is_some()).cloned();
        let durable: Vec<_> = durable.collect();
        let sizes: Vec<u64> = durable.iter().map(|run| run.size()).collect();
        let range = if from == 0 { pick_durable(&sizes) } else { pick(&sizes, u64::MAX) }?;
        let runs: Vec<_> = durable.get(range.clone())?.to_vec();
        // The merged runs give their memory back.
        let memory = self.run_memory() + runs.iter().map(|run| run.memory()).sum::<usize>() / 2;
        let token = Arc::new(());
        self.merging = Arc::downgrade(&token);
        Some(MergePlan {
            folder: self.folder.clone(),
            runs,
            multi: self.options.multi,
            oldest: from + range.start == 0,
            memory,
            token,
        })
    }

    /// Puts the result of a merge in the place of the runs it was made of, durably.
    ///
    /// # Errors
    /// The local disk can't be written: nothing is lost, the merge will be planned again.
    pub fn apply_merge(&mut self, merged: MergedRun) -> Result<()> {
        self.folder.check()?;
        let MergedRun { run, replaces, _token } = merged;
        let same =
            |window: &[Arc<Run>]| window.iter().zip(&replaces).all(|(a, b)| Arc::ptr_eq(a, b));
        let Some(at) = self.runs.windows(replaces.len().max(1)).position(same) else {
            return Err(Error::failed("a merge of another location index was to be applied")
                .next("report this as a bug"));
        };
        let mut runs = self.runs.clone();
        runs.splice(at..at + replaces.len(), run.map(Arc::new));
        self.name(&runs, self.durable)?;
        for file in replaces.iter().filter_map(|run| run.file()) {
            file.named.store(false, Ordering::Release);
        }
        self.runs = runs;
        Ok(())
    }

    /// Does one merge that is due. Returns whether there was one.
    ///
    /// # Errors
    /// As [`MergePlan::run`] and [`Locations::apply_merge`].
    pub fn maintain(&mut self, is_live: impl Fn(Location) -> bool) -> Result<bool> {
        let Some(plan) = self.merge_plan() else { return Ok(false) };
        let merged = plan.run(is_live)?;
        self.apply_merge(merged)?;
        Ok(true)
    }

    /// Figures for metrics.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for run in self.runs.iter().chain(&self.staged) {
            stats.entries_estimated += run.entries;
            stats.disk_bytes += run.file_bytes;
            stats.memory_bytes += run.memory();
            match run.file() {
                Some(_) => stats.runs += 1,
                None => stats.memory_runs += 1,
            }
        }
        stats
    }
}

/// Merges runs in memory of similar size, up to `limit` bytes.
fn tidy_memory(runs: &mut Vec<Arc<Run>>, same: Same, limit: usize) -> Result<()> {
    loop {
        let files = runs.iter().rposition(|run| run.file().is_some()).map_or(0, |last| last + 1);
        let sizes: Vec<u64> = runs.iter().skip(files).map(|run| run.size()).collect();
        let Some(range) = pick(&sizes, limit as u64) else { return Ok(()) };
        let range = range.start + files..range.end + files;
        let entries = runs.iter().skip(range.start).map(|run| run.entries).sum();
        let mut writer = RunWriter::memory().with_filter(entries);
        merge_into(&mut writer, &runs[range.clone()], same, MERGE_BUFFER, |_| true)?;
        let merged = writer.finish()?.map(Arc::new);
        runs.splice(range, merged);
    }
}

pub(super) fn out_of_order() -> Error {
    Error::failed("keys were handed to the location index out of order")
        .next("report this as a bug")
}

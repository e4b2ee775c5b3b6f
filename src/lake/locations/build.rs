//! Bulk load: sorted runs out of rows that come in any order, in bounded memory.
//!
//! Rows of a table that was filled in the order of its key come sorted; then nothing is sorted or
//! merged at all. A key above all before goes straight to a file (the ascending run); any other
//! waits in a buffer, which is sorted and written when it is full. Buffers that prove sorted as a
//! whole start a new ascending run.

use std::sync::Arc;

use super::Location;
use super::filter::Filter;
use super::folder::Folder;
use super::merge::{Same, merge_into};
use super::page::common_prefix;
use super::run::Run;
use super::tier::WAYS;
use super::write::{RunWriter, check_key};
use crate::error::Result;

/// A sorted run that waits for [`super::Locations::load`]. Dropped, its file is removed.
pub struct PendingRun(pub(super) Run);

impl PendingRun {
    /// Entries, duplicates among them.
    pub fn entries(&self) -> u64 {
        self.0.entries
    }
}

/// Takes keys and locations in any order and makes sorted runs. One for each copying thread.
pub struct RunBuilder {
    folder: Arc<Folder>,
    memory: usize,
    ascending: Option<RunWriter>,
    keys: Vec<u8>,
    ends: Vec<u32>,
    locations: Vec<Location>,
    /// Bytes that all keys of the buffer begin with.
    prefix: usize,
    /// Whether the buffer is sorted as it stands.
    sorted: bool,
    /// Finished runs with the number of merges behind them.
    runs: Vec<(u32, Run)>,
}

impl RunBuilder {
    pub(super) fn new(folder: Arc<Folder>, memory: usize) -> RunBuilder {
        RunBuilder {
            folder,
            memory: memory.max(1 << 16),
            ascending: None,
            keys: Vec::new(),
            ends: Vec::new(),
            locations: Vec::new(),
            prefix: 0,
            sorted: true,
            runs: Vec::new(),
        }
    }

    /// Takes a key and where its row stands.
    ///
    /// # Errors
    /// The key is too long, or the local disk can't be written.
    pub fn push(&mut self, key: &[u8], location: Location) -> Result<()> {
        check_key(key)?;
        let ascending = match &mut self.ascending {
            Some(ascending) => ascending,
            none => none.insert(RunWriter::file(&self.folder, self.memory / 8)?),
        };
        let above = match ascending.last() {
            None => true,
            Some((last, place)) => {
                last < key || last == key && place.is_some_and(|place| place <= location)
            }
        };
        if above {
            return ascending.push_counting(key, location);
        }
        self.keep(key, location);
        // Key bytes, end, location, and what sorting adds.
        if self.keys.len() + self.ends.len() * 28 >= self.memory {
            self.spill()?;
        }
        Ok(())
    }

    fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends.get(i - 1).map_or(0, |&e| e as usize) };
        let end = self.ends.get(i).map_or(start, |&e| e as usize);
        self.keys.get(start..end).unwrap_or_default()
    }

    fn keep(&mut self, key: &[u8], location: Location) {
        match self.locations.last() {
            None => (self.prefix, self.sorted) = (key.len(), true),
            Some(&last) => {
                let first = self.key(0);
                if !first.get(..self.prefix).is_some_and(|shared| key.starts_with(shared)) {
                    self.prefix = common_prefix(first, key);
                }
                if self.sorted {
                    let newest = self.key(self.ends.len() - 1);
                    self.sorted = (newest, last) <= (key, location);
                }
            }
        }
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len() as u32);
        self.locations.push(location);
    }

    fn spill(&mut self) -> Result<()> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let mut writer = RunWriter::file(&self.folder, self.memory / 8)?;
        if self.sorted {
            for (i, &location) in self.locations.iter().enumerate() {
                writer.push_counting(self.key(i), location)?;
            }
            // Goes on where the buffer ended; the old ascending run had been left behind.
            if let Some(old) = self.ascending.replace(writer) {
                self.add(old)?;
            }
        } else {
            let mut order: Vec<(u64, u32)> = Vec::with_capacity(self.ends.len());
            for i in 0..self.ends.len() {
                order.push((leading(self.key(i).get(self.prefix..)), i as u32));
            }
            order.sort_unstable_by(|&(a, i), &(b, j)| {
                a.cmp(&b).then_with(|| {
                    let (i, j) = (i as usize, j as usize);
                    let by_key = self.key(i).cmp(self.key(j));
                    by_key.then_with(|| self.locations.get(i).cmp(&self.locations.get(j)))
                })
            });
            for (_, i) in order {
                let i = i as usize;
                let location = self.locations.get(i).copied().unwrap_or_default();
                writer.push_counting(self.key(i), location)?;
            }
            self.add(writer)?;
        }
        self.keys.clear();
        self.ends.clear();
        self.locations.clear();
        Ok(())
    }

    /// Adds a finished run; many small ones become one, so that open files stay few.
    fn add(&mut self, writer: RunWriter) -> Result<()> {
        let Some(run) = writer.finish()? else { return Ok(()) };
        self.runs.push((0, run));
        let mut level = 0;
        while self.runs.iter().filter(|(l, _)| *l == level).count() >= WAYS {
            let (merged, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.runs).into_iter().partition(|(l, _)| *l == level);
            self.runs = rest;
            let merged: Vec<_> = merged.into_iter().map(|(_, run)| Arc::new(run)).collect();
            let mut writer = RunWriter::file(&self.folder, self.memory / 8)?;
            merge_into(&mut writer, &merged, Same::All, self.memory / WAYS, |_| true)?;
            level += 1;
            if let Some(run) = writer.finish()? {
                self.runs.push((level, run));
            }
        }
        Ok(())
    }

    /// All as one run that tells quickly which keys it does not hold, for
    /// [`super::Locations::put_held`]; none if nothing was pushed.
    ///
    /// # Errors
    /// The local disk can't be written.
    pub fn finish_one(self) -> Result<Option<PendingRun>> {
        let (folder, memory) = (self.folder.clone(), self.memory);
        let runs: Vec<_> = self.finish()?.into_iter().map(|run| Arc::new(run.0)).collect();
        let entries = runs.iter().map(|run| run.entries).sum();
        let mut writer = RunWriter::file(&folder, memory / 8)?;
        if Filter::size(entries) <= memory as u64 / 4 {
            writer = writer.with_filter(entries);
        }
        merge_into(&mut writer, &runs, Same::All, memory / WAYS / 4, |_| true)?;
        Ok(writer.finish()?.map(PendingRun))
    }

    /// The sorted runs, for [`super::Locations::load`].
    ///
    /// # Errors
    /// The local disk can't be written.
    pub fn finish(mut self) -> Result<Vec<PendingRun>> {
        self.spill()?;
        if let Some(ascending) = self.ascending.take() {
            self.add(ascending)?;
        }
        Ok(self.runs.drain(..).map(|(_, run)| PendingRun(run)).collect())
    }
}

/// The first eight bytes as a number that sorts as they do.
fn leading(key: Option<&[u8]>) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(key.unwrap_or_default()) {
        *to = *from;
    }
    u64::from_be_bytes(bytes)
}

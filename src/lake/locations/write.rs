//! Writing a run: entries come in order, pages go to a file or to memory.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use xxhash_rust::xxh3::xxh3_64;

use super::fences::Fences;
use super::filter::{Filter, hash};
use super::folder::{Folder, io_error};
use super::page::{PageBuilder, UNIT, page_seed};
use super::run::{Footer, Run, RunFile, Source};
use super::{Location, MAX_KEY_BYTES};
use crate::error::{Error, Result};

/// Bytes gathered before they are written to the file.
const BUFFER: usize = 64 * UNIT;

/// Writes one run. Its file is removed again unless the finished run gets into a manifest.
pub(super) struct RunWriter {
    page: PageBuilder,
    out: Vec<u8>,
    file: Option<RunFile>,
    seed: u64,
    units: u32,
    fences: Fences,
    filter: Option<Filter>,
    /// The last key of the page before.
    before: Option<Vec<u8>>,
    entries: u64,
    repeats: u64,
}

impl RunWriter {
    /// A run in memory.
    pub fn memory() -> RunWriter {
        RunWriter {
            page: PageBuilder::default(),
            out: Vec::new(),
            file: None,
            seed: 0,
            units: 0,
            fences: Fences::new(usize::MAX),
            filter: None,
            before: None,
            entries: 0,
            repeats: 0,
        }
    }

    /// A run in a new file, with fences of at most `fences` bytes.
    pub fn file(folder: &Arc<Folder>, fences: usize) -> Result<RunWriter> {
        let id = folder.new_run();
        let path = folder.run_path(id);
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|error| io_error("create", &path, error))?;
        // A number no other life of this folder had: its pages are not taken for ours.
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        let named = AtomicBool::new(false);
        Ok(RunWriter {
            file: Some(RunFile { folder: folder.clone(), id, file, named }),
            seed,
            fences: Fences::new(fences),
            ..RunWriter::memory()
        })
    }

    /// Adds a filter for at most `keys` keys.
    pub fn with_filter(mut self, keys: u64) -> RunWriter {
        self.filter = Some(Filter::new(keys));
        self
    }

    /// Adds an entry; keys come in ascending order (the caller sees to it).
    #[inline]
    pub fn push(&mut self, key: &[u8], location: Location) -> Result<()> {
        if !self.page.push(key, location) {
            self.end_page()?;
            self.page.push(key, location);
        }
        if let Some(filter) = &mut self.filter {
            filter.insert(hash(key));
        }
        self.entries += 1;
        Ok(())
    }

    /// As [`RunWriter::push`], and counts keys that stand twice.
    pub fn push_counting(&mut self, key: &[u8], location: Location) -> Result<()> {
        if self.last().is_some_and(|(last, _)| last == key) {
            self.repeats += 1;
        }
        self.push(key, location)
    }

    /// The newest entry, whose location is known while its page is open.
    pub fn last(&self) -> Option<(&[u8], Option<Location>)> {
        match &self.before {
            _ if !self.page.is_empty() => Some((self.page.last_key(), self.page.last_location())),
            Some(before) => Some((before, None)),
            None => None,
        }
    }

    /// Bytes of memory held, for a run in memory.
    pub fn memory_used(&self) -> usize {
        self.out.len() + self.fences.memory()
    }

    fn end_page(&mut self) -> Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        self.fences.push(self.before.as_deref(), self.page.first_key(), self.units);
        let before = self.before.get_or_insert_default();
        before.clear();
        before.extend_from_slice(self.page.last_key());
        let seed = self.file.as_ref().map(|_| page_seed(self.seed, self.units));
        let units = self.page.finish(&mut self.out, seed);
        self.units = self.units.checked_add(units).ok_or_else(|| {
            Error::failed("a run of the location index would be larger than 16 TiB")
                .next("split the table")
        })?;
        if self.file.is_some() && self.out.len() >= BUFFER {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        if let Some(RunFile { file, folder, id, .. }) = &mut self.file {
            let written = file.write_all(&self.out);
            written.map_err(|error| io_error("write", &folder.run_path(*id), error))?;
            self.out.clear();
        }
        Ok(())
    }

    /// The finished run; None if there is no entry. A file is not synced yet.
    pub fn finish(mut self) -> Result<Option<Run>> {
        self.end_page()?;
        if self.entries == 0 {
            return Ok(None);
        }
        self.fences.shrink();
        let (mut file_bytes, mut sum) = (0, 0);
        if self.file.is_some() {
            self.write_out()?;
            self.fences.encode(&mut self.out);
            let (fences, fences_sum) = (self.out.len() as u64, xxh3_64(&self.out));
            self.write_out()?;
            if let Some(filter) = &self.filter {
                filter.encode(&mut self.out);
            }
            let (filter, filter_sum) = (self.out.len() as u64, xxh3_64(&self.out));
            self.write_out()?;
            let file = self.file.as_ref();
            let footer = Footer {
                id: file.map_or(0, |file| file.id),
                seed: self.seed,
                entries: self.entries,
                units: u64::from(self.units),
                fences,
                fences_sum,
                filter,
                filter_sum,
            };
            (self.out, sum) = footer.encode(file.map_or(0, |file| file.folder.digest));
            file_bytes = footer.units * UNIT as u64 + fences + filter + self.out.len() as u64;
            self.write_out()?;
        } else {
            self.out.shrink_to_fit();
        }
        Ok(Some(Run {
            source: match self.file {
                Some(file) => Source::File(file),
                None => Source::Memory(self.out),
            },
            fences: self.fences,
            filter: self.filter,
            entries: self.entries,
            units: self.units,
            seed: self.seed,
            file_bytes,
            footer: sum,
            repeats: self.repeats,
        }))
    }
}

/// An error if the key is too long to be kept.
#[inline]
pub(super) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() <= MAX_KEY_BYTES {
        return Ok(());
    }
    Err(Error::failed(format!(
        "a key of {} bytes is longer than the {MAX_KEY_BYTES} the location index takes",
        key.len()
    ))
    .next("use a shorter key, or replica identity FULL without a key"))
}

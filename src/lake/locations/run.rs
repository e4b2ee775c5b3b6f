//! Runs: immutable sorted sequences of entries, in a file or in memory, and looking keys up in them.
//!
//! ```text
//! file = pages | fences | filter | footer
//! ```
//!
//! The footer is bound to the identity of the index; fences and filter are checked when the run is
//! opened, each page when it is read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::Location;
use super::fences::Fences;
use super::filter::Filter;
use super::folder::{Folder, NamedRun, io_error};
use super::page::{Page, UNIT, page_seed};
use crate::error::Result;

const MAGIC: u64 = u64::from_le_bytes(*b"tg-run-1");
const FOOTER: usize = 96;
/// Pages this near to each other are read in one go, up to `SPAN` bytes.
const GAP: usize = 2 * UNIT;
const SPAN: usize = 64 * UNIT;

/// The last bytes of a run's file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Footer {
    pub id: u64,
    pub seed: u64,
    pub entries: u64,
    /// Units of pages.
    pub units: u64,
    pub fences: u64,
    pub fences_sum: u64,
    pub filter: u64,
    pub filter_sum: u64,
}

impl Footer {
    /// The bytes, and their checksum, by which the manifest knows the run.
    pub fn encode(&self, digest: u128) -> (Vec<u8>, u64) {
        let mut out = Vec::with_capacity(FOOTER);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&digest.to_le_bytes());
        #[rustfmt::skip]
        let fields = [
            self.id, self.seed, self.entries, self.units,
            self.fences, self.fences_sum, self.filter, self.filter_sum,
        ];
        for field in fields {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        (out, sum)
    }

    fn decode(bytes: &[u8], digest: u128, sum: u64) -> Option<Footer> {
        let (fields, rest) = bytes.get(24..)?.as_chunks::<8>();
        if !rest.is_empty() || fields.len() != 9 {
            return None;
        }
        let field = |i: usize| fields.get(i).map(|&f| u64::from_le_bytes(f));
        let footer = Footer {
            id: field(0)?,
            seed: field(1)?,
            entries: field(2)?,
            units: field(3)?,
            fences: field(4)?,
            fences_sum: field(5)?,
            filter: field(6)?,
            filter_sum: field(7)?,
        };
        // What it would be written as again: magic, identity and checksum agree, too.
        (footer.encode(digest) == (bytes.to_vec(), sum)).then_some(footer)
    }
}

/// The file of a run. Unless a manifest names it, it is removed when it is no longer in use.
pub(super) struct RunFile {
    pub folder: Arc<Folder>,
    pub id: u64,
    pub file: File,
    pub named: AtomicBool,
}

impl RunFile {
    /// Makes the bytes of the file durable.
    pub fn sync(&self) -> Result<()> {
        let synced = self.file.sync_all();
        synced.map_err(|error| io_error("sync", &self.folder.run_path(self.id), error))
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        if !self.named.load(Ordering::Acquire) {
            let _ = std::fs::remove_file(self.folder.run_path(self.id));
        }
    }
}

pub(super) enum Source {
    Memory(Vec<u8>),
    File(RunFile),
}

/// An immutable sorted sequence of entries.
pub(super) struct Run {
    pub source: Source,
    pub fences: Fences,
    pub filter: Option<Filter>,
    pub entries: u64,
    /// Units of pages; the file goes on with fences, filter and footer.
    pub units: u32,
    /// Seeds the checksums of the pages.
    pub seed: u64,
    /// The file's bytes and footer checksum; zero in memory.
    pub file_bytes: u64,
    pub footer: u64,
    /// Entries whose key is that of the entry before.
    pub repeats: u64,
}

impl Run {
    /// Opens the run that the manifest names. None: it is missing, torn, damaged or another's.
    pub fn open(folder: &Arc<Folder>, named: &NamedRun, memory: usize) -> Option<Run> {
        let file = File::open(folder.run_path(named.id)).ok()?;
        // From here on the drop of `file` must not remove what the manifest names.
        let named_flag = AtomicBool::new(true);
        let file = RunFile { folder: folder.clone(), id: named.id, file, named: named_flag };
        let bytes = file.file.metadata().ok()?.len();
        if bytes != named.bytes {
            return None;
        }
        let read = |offset: u64, length: u64| {
            let mut buffer = vec![0; usize::try_from(length).ok()?];
            file.file.read_exact_at(&mut buffer, offset).ok()?;
            Some(buffer)
        };
        let start = bytes.checked_sub(FOOTER as u64)?;
        let footer = Footer::decode(&read(start, FOOTER as u64)?, folder.digest, named.footer)?;
        let pages = footer.units.checked_mul(UNIT as u64)?;
        let filter_start = pages.checked_add(footer.fences)?;
        if footer.id != named.id || filter_start.checked_add(footer.filter)? != start {
            return None;
        }
        let section = read(pages, footer.fences)?;
        if xxh3_64(&section) != footer.fences_sum {
            return None;
        }
        let fences = Fences::decode(&section, memory / 4)?;
        drop(section);
        let mut filter = None;
        // A filter that does not fit in memory is not used: it only saves reads.
        if footer.filter > 0 && footer.filter <= memory as u64 / 4 * 3 {
            let section = read(filter_start, footer.filter)?;
            if xxh3_64(&section) != footer.filter_sum {
                return None;
            }
            filter = Some(Filter::decode(&section)?);
        }
        Some(Run {
            fences,
            filter,
            entries: footer.entries,
            units: u32::try_from(footer.units).ok()?,
            seed: footer.seed,
            file_bytes: bytes,
            footer: named.footer,
            repeats: 0,
            source: Source::File(file),
        })
    }

    /// The file, unless the run is in memory.
    pub fn file(&self) -> Option<&RunFile> {
        match &self.source {
            Source::File(file) => Some(file),
            Source::Memory(_) => None,
        }
    }

    /// Bytes of memory held: fences and filter, and the pages of a run in memory.
    pub fn memory(&self) -> usize {
        let pages = match &self.source {
            Source::Memory(bytes) => bytes.capacity(),
            Source::File(_) => 0,
        };
        pages + self.fences.memory() + self.filter.as_ref().map_or(0, Filter::memory)
    }

    /// Bytes of pages: the size by which merges are chosen.
    pub fn size(&self) -> u64 {
        u64::from(self.units) * UNIT as u64
    }

    /// The bytes of the units `from..to`, through `buffer` if they are in a file.
    pub fn read<'a>(&'a self, from: u32, to: u32, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let (start, length) = (from as usize * UNIT, (to.saturating_sub(from)) as usize * UNIT);
        match &self.source {
            Source::Memory(bytes) => Ok(bytes.get(start..start + length).unwrap_or_default()),
            Source::File(file) => {
                if buffer.len() < length {
                    buffer.resize(length, 0);
                }
                let bytes = buffer.get_mut(..length).unwrap_or_default();
                match file.file.read_exact_at(bytes, start as u64) {
                    Ok(()) => Ok(bytes),
                    Err(error) => Err(file.folder.damage(format_args!(
                        "run {:x} can't be read at {start}: {error}",
                        file.id
                    ))),
                }
            }
        }
    }

    /// The page that stands at `unit` and at the start of `bytes`, checked.
    #[inline]
    pub fn page<'a>(&self, bytes: &'a [u8], unit: u32) -> Result<Page<'a>> {
        let (seed, folder) = match &self.source {
            Source::Memory(_) => (None, None),
            Source::File(file) => (Some(page_seed(self.seed, unit)), Some(file)),
        };
        match (Page::parse(bytes, seed), folder) {
            (Some(page), _) => Ok(page),
            (None, Some(file)) => Err(file
                .folder
                .damage(format_args!("page {unit} of run {:x} is not what was written", file.id))),
            (None, None) => Err(crate::error::Error::failed(
                "a page of the location index in memory can't be read",
            )
            .next("report this as a bug")),
        }
    }

    /// The end of group `group` in units.
    fn group_end(&self, group: usize) -> u32 {
        self.fences.start(group + 1).unwrap_or(self.units)
    }

    /// Looks for `keys[w]` for each `w` in `wanted`; both ascend, and every key stands once in the
    /// run. Calls `found` with `w` and the location.
    pub fn find_sorted(
        &self,
        keys: &[&[u8]],
        wanted: &[u32],
        scratch: &mut Scratch,
        mut found: impl FnMut(u32, Location),
    ) -> Result<()> {
        let Scratch { buffer, groups } = scratch;
        groups.clear();
        let mut group = 0;
        for &w in wanted {
            group = self.fences.find(keys.get(w as usize).copied().unwrap_or_default(), group);
            groups.push(group as u32);
        }
        let start_of = |group: u32| self.fences.start(group as usize).unwrap_or(self.units);
        let mut at = 0;
        while let Some(&first) = groups.get(at) {
            let start = start_of(first);
            let mut end = self.group_end(first as usize);
            let mut until = at + 1;
            while let Some(&next) = groups.get(until) {
                let next_end = self.group_end(next as usize);
                let gap = start_of(next).saturating_sub(end) as usize * UNIT;
                if next_end > end && (gap > GAP || (next_end - start) as usize * UNIT > SPAN) {
                    break;
                }
                (end, until) = (next_end, until + 1);
            }
            let bytes = self.read(start, end, buffer)?;
            let page_at = |unit: u32| {
                let offset = (unit - start) as usize * UNIT;
                self.page(bytes.get(offset..).unwrap_or_default(), unit)
            };
            let (mut here, mut unit, mut page, mut entry) = (u32::MAX, start, None, 0);
            for i in at..until {
                let (Some(&group), Some(&w)) = (groups.get(i), wanted.get(i)) else { break };
                let key = keys.get(w as usize).copied().unwrap_or_default();
                if group != here {
                    (here, unit, page, entry) = (group, start_of(group), None, 0);
                }
                let mut current: Page<'_> = match page {
                    Some(page) => page,
                    None => page_at(unit)?,
                };
                // A group of several pages: go on while the next one starts at or before the key.
                let group_end = self.group_end(group as usize);
                while unit + (current.units as u32) < group_end {
                    let next = page_at(unit + current.units as u32)?;
                    if !next.starts_at_or_before(key) {
                        break;
                    }
                    (unit, current, entry) = (unit + current.units as u32, next, 0);
                }
                let (place, equal) = current.find(key, entry);
                if equal {
                    found(w, current.location(place));
                }
                (entry, page) = (place, Some(current));
            }
            at = until;
        }
        Ok(())
    }

    /// Calls `found` with every location that stands with `key`, which may be many. `group` is
    /// where the search for the key before ended: keys ascend.
    pub fn find_all(
        &self,
        key: &[u8],
        group: &mut usize,
        buffer: &mut Vec<u8>,
        mut found: impl FnMut(Location),
    ) -> Result<()> {
        *group = self.fences.find_first(key, *group);
        let mut at = *group;
        while let Some(start) = self.fences.start(at) {
            let end = self.group_end(at);
            let bytes = self.read(start, end, buffer)?;
            let mut unit = start;
            while unit < end {
                let offset = (unit - start) as usize * UNIT;
                let page = self.page(bytes.get(offset..).unwrap_or_default(), unit)?;
                let (mut place, mut equal) = page.find(key, 0);
                while equal {
                    found(page.location(place));
                    place += 1;
                    equal = place < page.count
                        && key.strip_prefix(page.prefix()) == Some(page.suffix(place));
                }
                if place < page.count {
                    return Ok(());
                }
                unit += page.units as u32;
            }
            at += 1;
        }
        Ok(())
    }
}

/// Buffers that look-ups use again.
#[derive(Default)]
pub(super) struct Scratch {
    pub buffer: Vec<u8>,
    groups: Vec<u32>,
}

//! Merging: many sorted runs read as one, with bounded memory.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::Location;
use super::page::UNIT;
use super::run::{Run, Source};
use super::write::RunWriter;
use crate::error::Result;

/// What a merge does with entries of the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Same {
    /// The entry of the newest run stands for all.
    Newest,
    /// Every location is kept, each once.
    EachLocation,
    /// All are kept: duplicates are still to be told.
    All,
}

/// Reads one run from the start to the end, a page at a time.
struct Cursor {
    run: Arc<Run>,
    buffer: Vec<u8>,
    /// The units that are in the buffer, and the next page to open.
    loaded: Range<u32>,
    unit: u32,
    /// The open page.
    keys: Vec<u8>,
    ends: Vec<u32>,
    locations: Vec<Location>,
    entry: usize,
    start: usize,
}

impl Cursor {
    /// None: the run has no entry.
    fn open(run: Arc<Run>, units: u32) -> Result<Option<Cursor>> {
        let mut cursor = Cursor {
            run,
            buffer: Vec::new(),
            loaded: 0..0,
            unit: 0,
            keys: Vec::new(),
            ends: Vec::new(),
            locations: Vec::new(),
            entry: 0,
            start: 0,
        };
        let there = cursor.open_page(units)?;
        Ok(there.then_some(cursor))
    }

    /// Reads the page at `self.unit`, or says false at the end.
    fn open_page(&mut self, units: u32) -> Result<bool> {
        let total = self.run.units;
        if self.unit >= total {
            return Ok(false);
        }
        let in_file = self.run.file().is_some();
        if in_file && !self.loaded.contains(&self.unit) {
            self.loaded = self.unit..self.unit.saturating_add(units).min(total);
            self.run.read(self.loaded.start, self.loaded.end, &mut self.buffer)?;
        }
        if in_file {
            // A page that goes on beyond the buffer is read again from its start.
            let offset = (self.unit - self.loaded.start) as usize * UNIT;
            let size = self.buffer.get(offset + 8..offset + 12).and_then(|b| b.try_into().ok());
            let end = self.unit.saturating_add(size.map_or(1, u32::from_le_bytes)).min(total);
            if end > self.loaded.end {
                self.loaded = self.unit..end;
                self.run.read(self.loaded.start, self.loaded.end, &mut self.buffer)?;
            }
        }
        let bytes = match &self.run.source {
            Source::Memory(bytes) => bytes.get(self.unit as usize * UNIT..),
            Source::File(_) => {
                let length = self.loaded.len() * UNIT;
                let offset = (self.unit - self.loaded.start) as usize * UNIT;
                self.buffer.get(offset..length)
            }
        };
        let page = self.run.page(bytes.unwrap_or_default(), self.unit)?;
        self.keys.clear();
        self.ends.clear();
        self.locations.clear();
        for i in 0..page.count {
            self.keys.extend_from_slice(page.prefix());
            self.keys.extend_from_slice(page.suffix(i));
            self.ends.push(self.keys.len() as u32);
            self.locations.push(page.location(i));
        }
        self.unit += page.units as u32;
        (self.entry, self.start) = (0, 0);
        Ok(true)
    }

    #[inline]
    fn end(&self) -> usize {
        self.ends.get(self.entry).map_or(self.start, |&end| end as usize)
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.keys.get(self.start..self.end()).unwrap_or_default()
    }

    #[inline]
    fn location(&self) -> Location {
        self.locations.get(self.entry).copied().unwrap_or_default()
    }

    /// Goes to the next entry, or says false at the end.
    #[inline]
    fn advance(&mut self, units: u32) -> Result<bool> {
        self.start = self.end();
        self.entry += 1;
        if self.entry < self.ends.len() { Ok(true) } else { self.open_page(units) }
    }
}

/// Several runs read as one sequence by key; equal keys by location or by age.
pub(super) struct Merge {
    cursors: Vec<Cursor>,
    /// A binary heap, smallest entry first: the first bytes of a cursor's key, which mostly
    /// decide, and its place in `cursors`.
    heap: Vec<(u128, u32)>,
    same: Same,
    units: u32,
    started: bool,
}

impl Merge {
    /// Reads `runs`, oldest first, with buffers of `buffer_bytes` each.
    pub fn new(runs: &[Arc<Run>], same: Same, buffer_bytes: usize) -> Result<Merge> {
        let units = (buffer_bytes / UNIT).clamp(1, 64) as u32;
        let mut cursors = Vec::with_capacity(runs.len());
        for run in runs {
            cursors.extend(Cursor::open(run.clone(), units)?);
        }
        let heap = cursors.iter().zip(0..).map(|(cursor, i)| (leading(cursor.key()), i)).collect();
        let mut merge = Merge { cursors, heap, same, units, started: false };
        for place in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(place);
        }
        Ok(merge)
    }

    /// Whether the entry at heap place `a` comes before the one at `b`.
    #[inline]
    fn before(&self, a: usize, b: usize) -> bool {
        match (self.heap.get(a), self.heap.get(b)) {
            (Some(a), Some(b)) if a.0 == b.0 => self.before_by_key(a.1, b.1),
            (Some(a), Some(b)) => a.0 < b.0,
            _ => false,
        }
    }

    fn before_by_key(&self, a: u32, b: u32) -> bool {
        let (Some(x), Some(y)) = (self.cursors.get(a as usize), self.cursors.get(b as usize))
        else {
            return false;
        };
        let order = x.key().cmp(y.key()).then_with(|| match self.same {
            // The newest first: what follows it with the same key is passed over.
            Same::Newest => b.cmp(&a),
            _ => x.location().cmp(&y.location()),
        });
        order == Ordering::Less
    }

    #[inline]
    fn sift_down(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            if left >= self.heap.len() {
                return;
            }
            let least =
                if right < self.heap.len() && self.before(right, left) { right } else { left };
            if !self.before(least, place) {
                return;
            }
            self.heap.swap(least, place);
            place = least;
        }
    }

    /// The next entry; equal keys are all told.
    #[inline]
    pub fn next(&mut self) -> Result<Option<(&[u8], Location)>> {
        if self.started {
            let Some((first, top)) = self.heap.first_mut() else { return Ok(None) };
            let Some(cursor) = self.cursors.get_mut(*top as usize) else { return Ok(None) };
            if cursor.advance(self.units)? {
                *first = leading(cursor.key());
            } else {
                self.heap.swap_remove(0);
            }
            self.sift_down(0);
        }
        self.started = true;
        let top = self.heap.first().and_then(|&(_, top)| self.cursors.get(top as usize));
        Ok(top.map(|cursor| (cursor.key(), cursor.location())))
    }
}

/// The first sixteen bytes as a number that sorts as they do.
#[inline]
fn leading(key: &[u8]) -> u128 {
    if let Some(bytes) = key.first_chunk::<16>() {
        return u128::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(key) {
        *to = *from;
    }
    u128::from_be_bytes(bytes)
}

/// Merges `runs` (oldest first) into `writer`. Entries whose location `is_live` denies are left
/// out.
pub(super) fn merge_into(
    writer: &mut RunWriter,
    runs: &[Arc<Run>],
    same: Same,
    buffer_bytes: usize,
    is_live: impl Fn(Location) -> bool,
) -> Result<()> {
    let mut merge = Merge::new(runs, same, buffer_bytes)?;
    let mut last: Option<(Vec<u8>, Location)> = None;
    while let Some((key, location)) = merge.next()? {
        match (&mut last, same) {
            (_, Same::All) => {
                writer.push_counting(key, location)?;
                continue;
            }
            (Some((last, place)), _) if last == key => {
                if same == Same::Newest || *place == location {
                    continue;
                }
                *place = location;
            }
            (Some((last, place)), _) => {
                last.clear();
                last.extend_from_slice(key);
                *place = location;
            }
            (None, _) => last = Some((key.to_vec(), location)),
        }
        if is_live(location) {
            writer.push(key, location)?;
        }
    }
    Ok(())
}

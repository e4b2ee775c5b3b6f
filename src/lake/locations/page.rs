//! Pages: the unit in which entries stand on disk, are read and are checked.
//!
//! A page holds entries in ascending order of the key. What they share is stored once: the common
//! prefix of the keys, and the smallest file and row number, so that a location takes only the
//! bytes by which it differs. A key longer than a page gets a page of its own of several units.
//!
//! ```text
//! checksum u64 | units u32 | count u16 | form u8 | widths u8 | prefix u32 | suffix u32 | file u32 | row u32
//! prefix | ends u16 x count (keys of several lengths) | suffixes | files | rows | zeros
//! ```
//!
//! The checksum covers all the rest, seeded with the run and the place in it: a page that is
//! damaged, or is another one than was asked for, is never taken for the right one.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Location;

/// Pages start at multiples of this many bytes and fill them.
pub(super) const UNIT: usize = 4096;

const HEADER: usize = 32;
const FIXED: u8 = 0;
const VARIED: u8 = 1;

/// The seed of the checksum of the page at `unit` of a run.
pub(super) fn page_seed(run: u64, unit: u32) -> u64 {
    run ^ u64::from(unit).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Gathers the entries of one page.
#[derive(Default)]
pub(super) struct PageBuilder {
    keys: Vec<u8>,
    ends: Vec<u32>,
    locations: Vec<Location>,
    /// Bytes that all keys begin with; sorted, so the first and the last decide.
    prefix: usize,
    /// Whether all keys are as long as the first.
    uniform: bool,
    low: Location,
    high: Location,
}

impl PageBuilder {
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The first key of the page.
    pub fn first_key(&self) -> &[u8] {
        let end = self.ends.first().map_or(0, |&e| e as usize);
        self.keys.get(..end).unwrap_or_default()
    }

    /// The last key of the page.
    pub fn last_key(&self) -> &[u8] {
        let start = match self.ends.len() {
            0 | 1 => 0,
            n => self.ends.get(n - 2).map_or(0, |&e| e as usize),
        };
        self.keys.get(start..).unwrap_or_default()
    }

    /// The last location of the page.
    pub fn last_location(&self) -> Option<Location> {
        self.locations.last().copied()
    }

    /// Adds an entry, or says false where the page is full. An empty page takes any key.
    pub fn push(&mut self, key: &[u8], location: Location) -> bool {
        if self.is_empty() {
            (self.prefix, self.uniform) = (key.len(), true);
            (self.low, self.high) = (location, location);
        } else {
            let first = self.first_key();
            let uniform = self.uniform && first.len() == key.len();
            let prefix = match first.get(..self.prefix) {
                Some(shared) if key.starts_with(shared) => self.prefix,
                _ => common_prefix(first, key),
            };
            let low = Location {
                file: self.low.file.min(location.file),
                row: self.low.row.min(location.row),
            };
            let high = Location {
                file: self.high.file.max(location.file),
                row: self.high.row.max(location.row),
            };
            let count = self.ends.len() + 1;
            let each = width(high.file - low.file) + width(high.row - low.row);
            let ends = if uniform { 0 } else { 2 };
            // Every key but the shared prefix, which stands once.
            let size = HEADER + self.keys.len() + key.len() + prefix + count * (each + ends);
            if size > UNIT + count * prefix || count > usize::from(u16::MAX) {
                return false;
            }
            (self.prefix, self.uniform, self.low, self.high) = (prefix, uniform, low, high);
        }
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len() as u32);
        self.locations.push(location);
        true
    }

    /// Writes the page to the end of `out` and empties the builder. Returns the units it takes.
    /// Without a seed (a page that stays in memory) there is no checksum.
    pub fn finish(&mut self, out: &mut Vec<u8>, seed: Option<u64>) -> u32 {
        let start = out.len();
        let count = self.ends.len();
        let (files, rows) =
            (width(self.high.file - self.low.file), width(self.high.row - self.low.row));
        let suffixes = self.keys.len() - count * self.prefix;
        let length = if self.uniform { suffixes / count.max(1) } else { suffixes };
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&(count as u16).to_le_bytes());
        out.push(if self.uniform { FIXED } else { VARIED });
        out.push((files | rows << 4) as u8);
        out.extend_from_slice(&(self.prefix as u32).to_le_bytes());
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&self.low.file.to_le_bytes());
        out.extend_from_slice(&self.low.row.to_le_bytes());
        out.extend_from_slice(self.keys.get(..self.prefix).unwrap_or_default());
        if !self.uniform {
            for (i, &end) in self.ends.iter().enumerate() {
                let end = end as usize - (i + 1) * self.prefix;
                out.extend_from_slice(&(end as u16).to_le_bytes());
            }
        }
        let mut from = 0;
        for &end in &self.ends {
            out.extend_from_slice(
                self.keys.get(from + self.prefix..end as usize).unwrap_or_default(),
            );
            from = end as usize;
        }
        if files > 0 {
            for l in &self.locations {
                put(out, l.file - self.low.file, files);
            }
        }
        if rows > 0 {
            for l in &self.locations {
                put(out, l.row - self.low.row, rows);
            }
        }
        let units = (out.len() - start).div_ceil(UNIT);
        out.resize(start + units * UNIT, 0);
        if let Some(page) = out.get_mut(start..) {
            page[8..12].copy_from_slice(&(units as u32).to_le_bytes());
            if let Some(seed) = seed {
                let sum = xxh3_64_with_seed(&page[8..], seed);
                page[..8].copy_from_slice(&sum.to_le_bytes());
            }
        }
        self.keys.clear();
        self.ends.clear();
        self.locations.clear();
        units as u32
    }
}

/// One page as it stands in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    prefix: &'a [u8],
    ends: Option<&'a [u8]>,
    suffixes: &'a [u8],
    length: usize,
    files: &'a [u8],
    rows: &'a [u8],
    file_width: usize,
    row_width: usize,
    low: Location,
    /// Entries.
    pub count: usize,
    /// Units from the start of this page to the next.
    pub units: usize,
}

impl<'a> Page<'a> {
    /// Reads the page at the start of `bytes`; checks it if there is a seed. None: it is damaged.
    pub fn parse(bytes: &'a [u8], seed: Option<u64>) -> Option<Page<'a>> {
        let header = bytes.get(..HEADER)?;
        let units = u32_at(header, 8)? as usize;
        let bytes = bytes.get(..units.checked_mul(UNIT)?)?;
        if let Some(seed) = seed {
            let sum = u64::from_le_bytes(header.get(..8)?.try_into().ok()?);
            if bytes.is_empty() || xxh3_64_with_seed(bytes.get(8..)?, seed) != sum {
                return None;
            }
        }
        let count = usize::from(u16::from_le_bytes(header.get(12..14)?.try_into().ok()?));
        let (form, widths) = (*header.get(14)?, usize::from(*header.get(15)?));
        let (file_width, row_width) = (widths & 15, widths >> 4);
        let length = u32_at(header, 20)? as usize;
        let low = Location { file: u32_at(header, 24)?, row: u32_at(header, 28)? };
        if count == 0 || file_width > 4 || row_width > 4 || form > VARIED {
            return None;
        }
        let rest = bytes.get(HEADER..)?;
        let (prefix, rest) = rest.split_at_checked(u32_at(header, 16)? as usize)?;
        let (ends, rest) = match form {
            FIXED => (None, rest),
            _ => {
                let (ends, rest) = rest.split_at_checked(count * 2)?;
                (Some(ends), rest)
            }
        };
        let size = if ends.is_some() { length } else { length.checked_mul(count)? };
        let (suffixes, rest) = rest.split_at_checked(size)?;
        let (files, rest) = rest.split_at_checked(count * file_width)?;
        let rows = rest.get(..count * row_width)?;
        #[rustfmt::skip]
        let page = Page {
            prefix, ends, suffixes, length, files, rows, file_width, row_width, low, count, units,
        };
        Some(page)
    }

    /// What all keys of the page begin with.
    pub fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    /// What follows the prefix in the key of entry `i`.
    #[inline]
    pub fn suffix(&self, i: usize) -> &'a [u8] {
        let (start, end) = match self.ends {
            None => (i * self.length, (i + 1) * self.length),
            Some(ends) => (if i == 0 { 0 } else { u16_at(ends, i - 1) }, u16_at(ends, i)),
        };
        self.suffixes.get(start..end).unwrap_or_default()
    }

    /// The location of entry `i`.
    #[inline]
    pub fn location(&self, i: usize) -> Location {
        Location {
            file: self.low.file.wrapping_add(take(self.files, i, self.file_width)),
            row: self.low.row.wrapping_add(take(self.rows, i, self.row_width)),
        }
    }

    /// Whether the first key of the page is at most `key`.
    pub fn starts_at_or_before(&self, key: &[u8]) -> bool {
        match key.strip_prefix(self.prefix) {
            Some(rest) => self.suffix(0) <= rest,
            None => self.prefix < key,
        }
    }

    /// The first entry from `from` on whose key is not below `key`, and whether it is equal.
    #[inline]
    pub fn find(&self, key: &[u8], from: usize) -> (usize, bool) {
        let Some(rest) = key.strip_prefix(self.prefix) else {
            return (if key < self.prefix { from } else { self.count }, false);
        };
        let (mut low, mut high) = (from, self.count);
        while low < high {
            let middle = (low + high) / 2;
            match self.suffix(middle).cmp(rest) {
                std::cmp::Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        (low, low < self.count && self.suffix(low) == rest)
    }
}

/// Bytes needed for a difference.
fn width(difference: u32) -> usize {
    4 - difference.leading_zeros() as usize / 8
}

fn put(out: &mut Vec<u8>, value: u32, width: usize) {
    out.extend_from_slice(value.to_le_bytes().get(..width).unwrap_or_default());
}

#[inline]
fn take(bytes: &[u8], i: usize, width: usize) -> u32 {
    let bytes = bytes.get(i * width..(i + 1) * width).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn u16_at(bytes: &[u8], i: usize) -> usize {
    match bytes.get(i * 2..i * 2 + 2) {
        Some(&[a, b]) => usize::from(u16::from_le_bytes([a, b])),
        _ => 0,
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// The number of bytes with which both begin.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entries: &[(Vec<u8>, Location)]) {
        let mut builder = PageBuilder::default();
        let mut bytes = Vec::new();
        let mut placed = 0;
        while placed < entries.len() {
            let start = bytes.len();
            let first = placed;
            while placed < entries.len() && builder.push(&entries[placed].0, entries[placed].1) {
                placed += 1;
            }
            assert!(placed > first);
            builder.finish(&mut bytes, Some(7));
            let page = Page::parse(&bytes[start..], Some(7)).unwrap();
            assert_eq!(page.count, placed - first);
            assert!(page.units == 1 || page.count == 1);
            for (i, (key, location)) in entries[first..placed].iter().enumerate() {
                assert_eq!([page.prefix(), page.suffix(i)].concat(), *key);
                assert_eq!(page.location(i), *location);
                assert_eq!(page.find(key, 0), (i, true));
                assert!(page.starts_at_or_before(key));
                let mut after = key.clone();
                after.push(0);
                assert!(page.find(&after, 0).0 > i);
            }
        }
    }

    #[test]
    fn keys_of_every_shape_come_back() {
        let l = |file, row| Location { file, row };
        check(&[(vec![], l(u32::MAX, 0))]);
        check(&[(vec![], l(0, u32::MAX)), (vec![0], l(u32::MAX, 0)), (vec![0; 70_000], l(1, 1))]);
        let fixed: Vec<_> =
            (0..9000u64).map(|i| (i.to_be_bytes().to_vec(), l(3, i as u32 * 7))).collect();
        check(&fixed);
        let varied: Vec<_> =
            (0..3000usize).map(|i| (vec![b'x'; i], l(i as u32 % 3, 1 << (i % 32)))).collect();
        check(&varied);
    }

    #[test]
    fn a_flipped_bit_or_another_place_is_noticed() {
        let mut builder = PageBuilder::default();
        let mut bytes = Vec::new();
        builder.push(b"abc", Location { file: 1, row: 2 });
        builder.push(b"abd", Location { file: 1, row: 9 });
        builder.finish(&mut bytes, Some(page_seed(5, 0)));
        assert!(Page::parse(&bytes, Some(page_seed(5, 0))).is_some());
        assert!(Page::parse(&bytes, Some(page_seed(5, 1))).is_none());
        for i in 0..bytes.len() {
            bytes[i] ^= 1 << (i % 8);
            assert!(Page::parse(&bytes, Some(page_seed(5, 0))).is_none(), "byte {i}");
            bytes[i] ^= 1 << (i % 8);
        }
    }
}

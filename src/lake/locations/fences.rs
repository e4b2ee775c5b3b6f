//! Fences: the first key of each group of pages, in memory, to know which page to read.
//!
//! Only as many bytes of a key are kept as tell it from the key before it. Where the fences would
//! outgrow their bound every second one is dropped: a group is then two pages, four, and so on,
//! read in one go. So memory is bounded however large the run is, at the price of longer reads.

use super::page::common_prefix;

/// Where the groups of pages of one run start, and with which key.
#[derive(Default)]
pub(super) struct Fences {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    units: Vec<u32>,
    /// Pages to a group, and how many of the newest group are there already.
    stride: u32,
    filled: u32,
    limit: usize,
}

impl Fences {
    /// Empty fences which take at most about `limit` bytes of memory.
    pub fn new(limit: usize) -> Fences {
        Fences { stride: 1, limit, ..Fences::default() }
    }

    /// Adds the page at `unit`, whose first key is `first`; `before` is the key before it.
    pub fn push(&mut self, before: Option<&[u8]>, first: &[u8], unit: u32) {
        if self.filled > 0 && self.filled < self.stride {
            self.filled += 1;
            return;
        }
        self.filled = 1;
        let length = before.map_or(0, |before| common_prefix(before, first) + 1);
        self.bytes.extend_from_slice(first.get(..length).unwrap_or(first));
        self.ends.push(self.bytes.len() as u32);
        self.units.push(unit);
        if self.used() > self.limit && self.len() > 1 {
            self.thin();
        }
    }

    /// Groups.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// The unit at which group `group` starts, if there is one.
    pub fn start(&self, group: usize) -> Option<u32> {
        self.units.get(group).copied()
    }

    fn used(&self) -> usize {
        self.bytes.len() + 4 * (self.ends.len() + self.units.len())
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + 4 * (self.ends.capacity() + self.units.capacity())
    }

    /// Gives back memory reserved for growth.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.units.shrink_to_fit();
    }

    #[inline]
    fn key(&self, group: usize) -> &[u8] {
        let start = match group {
            0 => 0,
            _ => self.ends.get(group - 1).map_or(0, |&e| e as usize),
        };
        let end = self.ends.get(group).map_or(start, |&e| e as usize);
        self.bytes.get(start..end).unwrap_or_default()
    }

    fn thin(&mut self) {
        // An odd last group keeps what it has and waits for its second half.
        let odd = self.len() % 2 == 1;
        self.filled = if odd { self.filled } else { self.stride + self.filled };
        self.stride = self.stride.saturating_mul(2);
        let (mut bytes, mut ends, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for group in (0..self.len()).step_by(2) {
            bytes.extend_from_slice(self.key(group));
            ends.push(bytes.len() as u32);
            units.extend(self.start(group));
        }
        (self.bytes, self.ends, self.units) = (bytes, ends, units);
    }

    /// The last group, not before group `from`, that starts at or below `key`. A search for
    /// ascending keys hands in the group found before.
    #[inline]
    pub fn find(&self, key: &[u8], from: usize) -> usize {
        self.search(from, |fence| fence <= key)
    }

    /// The first group that can hold `key` where several entries may have the same key.
    pub fn find_first(&self, key: &[u8], from: usize) -> usize {
        self.search(from, |fence| fence < key)
    }

    #[inline]
    fn search(&self, from: usize, below: impl Fn(&[u8]) -> bool) -> usize {
        // `low` is below (or the start), `high` is not; reach out in doubling steps first.
        let (mut low, mut step) = (from, 1);
        let mut high = loop {
            let probe = low + step;
            if probe >= self.len() {
                break self.len();
            }
            if !below(self.key(probe)) {
                break probe;
            }
            low = probe;
            step *= 2;
        };
        while high - low > 1 {
            let middle = (low + high) / 2;
            if below(self.key(middle)) { low = middle } else { high = middle }
        }
        low
    }

    /// The bytes that [`Fences::decode`] takes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        for value in self.ends.iter().chain(&self.units) {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&self.bytes);
    }

    /// Reads what [`Fences::encode`] wrote, thinned to `limit` bytes.
    pub fn decode(bytes: &[u8], limit: usize) -> Option<Fences> {
        let (count, rest) = bytes.split_at_checked(4)?;
        let count = u32::from_le_bytes(count.try_into().ok()?) as usize;
        let (ends, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
        let (units, bytes) = rest.split_at_checked(count * 4)?;
        let values = |bytes: &[u8]| -> Vec<u32> {
            let (chunks, _) = bytes.as_chunks::<4>();
            chunks.iter().map(|&chunk| u32::from_le_bytes(chunk)).collect()
        };
        let (ends, units, bytes) = (values(ends), values(units), bytes.to_vec());
        let mut fences = Fences { bytes, ends, units, limit, ..Fences::new(limit) };
        while fences.used() > limit && fences.len() > 1 {
            fences.thin();
        }
        fences.shrink();
        Some(fences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(limit: usize, pages: u32) -> Fences {
        let mut fences = Fences::new(limit);
        let mut before: Option<Vec<u8>> = None;
        for page in 0..pages {
            let key = (page * 10).to_be_bytes().to_vec();
            fences.push(before.as_deref(), &key, page * 3);
            before = Some((page * 10 + 9).to_be_bytes().to_vec());
        }
        fences
    }

    #[test]
    fn a_key_is_sought_in_the_group_that_may_hold_it() {
        for limit in [0, 100, 1000, usize::MAX] {
            for pages in [1, 2, 3, 7, 100, 1000] {
                let fences = filled(limit, pages);
                let mut bytes = Vec::new();
                fences.encode(&mut bytes);
                let again = Fences::decode(&bytes, limit / 2).unwrap();
                for fences in [fences, again] {
                    let mut from = 0;
                    for key in 0..pages * 10 {
                        from = fences.find(&key.to_be_bytes(), from);
                        let start = fences.start(from).unwrap();
                        let end = fences.start(from + 1).unwrap_or(u32::MAX);
                        assert!(start <= key / 10 * 3 && key / 10 * 3 < end);
                        assert_eq!(fences.find(&key.to_be_bytes(), 0), from);
                    }
                }
            }
        }
    }

    #[test]
    fn fences_of_a_huge_run_stay_within_their_bound() {
        let fences = filled(4096, 200_000);
        assert!(fences.used() <= 4096 + 16 && fences.memory() <= 3 * 4096, "{}", fences.memory());
        assert!(fences.len() > 100);
    }

    #[test]
    fn equal_keys_over_several_groups_are_sought_from_the_first() {
        let mut fences = Fences::new(usize::MAX);
        fences.push(None, b"a", 0);
        fences.push(Some(b"b"), b"b", 1);
        fences.push(Some(b"b"), b"b", 2);
        fences.push(Some(b"b"), b"c", 3);
        assert_eq!(fences.find_first(b"b", 0), 0);
        assert_eq!(fences.find(b"b", 0), 2);
        assert_eq!(fences.find_first(b"bb", 0), 2);
    }
}

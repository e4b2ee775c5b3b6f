//! Compares two multisets of rows in bounded memory: both sides are spilled to disk in buckets of
//! equal keys, then one bucket at a time is sorted and merged.
//!
//! A row is kept as a hash of its key and a BLAKE3 digest of all its values, so two different rows
//! pass as equal only if somebody breaks BLAKE3.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::error::{Error, Result};

const KEY_BYTES: usize = 16;
const ROW_BYTES: usize = 20;
const ENTRY_BYTES: usize = KEY_BYTES + ROW_BYTES;
/// Memory for one bucket of one side, in bytes, as far as the estimate of rows is right.
const BUCKET_BYTES: u64 = 32 << 20;

type Entry = [u8; ENTRY_BYTES];

/// Hash of a key, by which differences are reported and looked up again.
pub type KeyHash = [u8; KEY_BYTES];

/// A row by its key and all its values, each with its length so that no two rows look alike.
#[derive(Default)]
pub struct RowText {
    values: Vec<u8>,
    key: Vec<u8>,
}

impl RowText {
    /// Begins the next row.
    pub fn clear(&mut self) {
        self.values.clear();
        self.key.clear();
    }

    /// Adds a value, `None` for NULL.
    pub fn push(&mut self, value: Option<&[u8]>, is_key: bool) {
        let start = self.values.len();
        match value {
            None => self.values.push(0),
            Some(value) => {
                self.values.push(1);
                self.values.extend_from_slice(&(value.len() as u64).to_le_bytes());
                self.values.extend_from_slice(value);
            }
        }
        if is_key {
            self.key.extend_from_slice(self.values.get(start..).unwrap_or_default());
        }
    }

    /// Hash of the key; of the whole row where the table has none.
    pub fn key_hash(&self) -> KeyHash {
        let key = if self.key.is_empty() { &self.values } else { &self.key };
        xxhash_rust::xxh3::xxh3_128(key).to_be_bytes()
    }

    /// The values again, for a message.
    pub fn texts(&self) -> Vec<Option<String>> {
        let mut texts = Vec::new();
        let mut rest = self.values.as_slice();
        while let Some((flag, after)) = rest.split_first() {
            let Some((length, value)) = after.split_first_chunk::<8>().filter(|_| *flag == 1)
            else {
                texts.push(None);
                rest = after;
                continue;
            };
            let length = u64::from_le_bytes(*length) as usize;
            let (value, next) = value.split_at_checked(length).unwrap_or((value, &[]));
            texts.push(Some(String::from_utf8_lossy(value).into_owned()));
            rest = next;
        }
        texts
    }

    fn entry(&self) -> Entry {
        let mut entry = [0; ENTRY_BYTES];
        let (key, row) = entry.split_at_mut(KEY_BYTES);
        key.copy_from_slice(&self.key_hash());
        row.copy_from_slice(blake3::hash(&self.values).as_bytes().split_at(ROW_BYTES).0);
        entry
    }
}

/// One side of the comparison, on disk.
pub struct Side {
    buckets: Vec<BufWriter<File>>,
    rows: u64,
}

impl Side {
    /// An empty side in `folder`; its files have no name and vanish with it.
    pub fn create(folder: &Path, rows_estimated: u64) -> Result<Self> {
        let buckets = (rows_estimated * ENTRY_BYTES as u64 / BUCKET_BYTES + 1).min(512);
        let buckets = (0..buckets)
            .map(|_| {
                Ok(BufWriter::with_capacity(
                    64 * 1024,
                    tempfile::tempfile_in(folder).map_err(disk)?,
                ))
            })
            .collect::<Result<_>>()?;
        Ok(Side { buckets, rows: 0 })
    }

    /// Adds a row.
    pub fn add(&mut self, row: &RowText) -> Result<()> {
        let entry = row.entry();
        let [a, b, c, d, ..] = entry;
        let bucket = u32::from_be_bytes([a, b, c, d]) as usize % self.buckets.len().max(1);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.write_all(&entry).map_err(disk)?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Rows added.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn load(bucket: BufWriter<File>) -> Result<Vec<Entry>> {
        use std::io::Seek;
        let mut file = bucket.into_inner().map_err(|e| disk(e.into_error()))?;
        file.rewind().map_err(disk)?;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut entries = Vec::new();
        let mut entry = [0; ENTRY_BYTES];
        loop {
            match reader.read_exact(&mut entry) {
                Ok(()) => entries.push(entry),
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => break,
                Err(e) => return Err(disk(e)),
            }
        }
        entries.sort_unstable();
        Ok(entries)
    }
}

/// What the comparison found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Rows of the source that the lake lacks.
    pub missing: u64,
    /// Rows of the lake that the source lacks.
    pub extra: u64,
    /// Rows whose key stands on both sides with different values.
    pub different: u64,
    /// Keys of some of them.
    pub keys: Vec<KeyHash>,
}

/// Compares; both sides must have been made with the same estimate.
///
/// # Errors
/// The disk.
pub fn compare(source: Side, lake: Side, samples: usize) -> Result<Differences> {
    let mut found = Differences::default();
    for (source, lake) in source.buckets.into_iter().zip(lake.buckets) {
        let (source, lake) = (Side::load(source)?, Side::load(lake)?);
        let (mut s, mut l) = (source.as_slice(), lake.as_slice());
        loop {
            let key = match (s.first(), l.first()) {
                (None, None) => break,
                (Some(a), None) => key_of(a),
                (None, Some(b)) => key_of(b),
                (Some(a), Some(b)) => key_of(a).min(key_of(b)),
            };
            let (these, rest) = s.split_at(s.partition_point(|e| key_of(e) <= key));
            let (those, other) = l.split_at(l.partition_point(|e| key_of(e) <= key));
            (s, l) = (rest, other);
            let equal = common(these, those);
            let (missing, extra) = (these.len() - equal, those.len() - equal);
            let pairs = missing.min(extra);
            if missing + extra > 0 && found.keys.len() < samples {
                found.keys.push(key);
            }
            found.different += pairs as u64;
            found.missing += (missing - pairs) as u64;
            found.extra += (extra - pairs) as u64;
        }
    }
    Ok(found)
}

fn key_of(entry: &Entry) -> KeyHash {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(entry.split_at(KEY_BYTES).0);
    key
}

/// How many entries of two sorted lists pair up.
fn common(mut a: &[Entry], mut b: &[Entry]) -> usize {
    let mut equal = 0;
    while let (Some((x, rest_a)), Some((y, rest_b))) = (a.split_first(), b.split_first()) {
        match x.cmp(y) {
            std::cmp::Ordering::Less => a = rest_a,
            std::cmp::Ordering::Greater => b = rest_b,
            std::cmp::Ordering::Equal => {
                equal += 1;
                (a, b) = (rest_a, rest_b);
            }
        }
    }
    equal
}

fn disk(e: std::io::Error) -> Error {
    Error::failed("the temporary files of the comparison")
        .because(e)
        .next("free disk space in the state folder")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn row(key: u8, value: Option<&str>) -> RowText {
        let mut row = RowText::default();
        row.push(Some(&[key]), true);
        row.push(value.map(str::as_bytes), false);
        row
    }

    #[test]
    fn null_differs_from_empty_and_values_do_not_run_together() {
        assert_ne!(row(1, None).entry(), row(1, Some("")).entry());
        let (mut a, mut b) = (RowText::default(), RowText::default());
        a.push(Some(b"ab"), false);
        a.push(Some(b"c"), false);
        b.push(Some(b"a"), false);
        b.push(Some(b"bc"), false);
        assert_ne!(a.entry(), b.entry());
    }

    proptest! {
        #[test]
        fn every_difference_is_counted_once(
            source in proptest::collection::btree_map(0u8..20, 0u8..3, 0..20),
            lake in proptest::collection::btree_map(0u8..20, 0u8..3, 0..20),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let side = |rows: &BTreeMap<u8, u8>| {
                let mut side = Side::create(folder.path(), 10_000_000).unwrap();
                for (k, v) in rows {
                    side.add(&row(*k, Some(&v.to_string()))).unwrap();
                }
                side
            };
            let found = compare(side(&source), side(&lake), 100).unwrap();
            let missing = source.keys().filter(|k| !lake.contains_key(k)).count() as u64;
            let extra = lake.keys().filter(|k| !source.contains_key(k)).count() as u64;
            let different = source.iter().filter(|(k, v)| lake.get(k).is_some_and(|l| l != *v)).count() as u64;
            prop_assert_eq!((found.missing, found.extra, found.different), (missing, extra, different));
            prop_assert_eq!(found.keys.len() as u64, missing + extra + different);
        }
    }
}

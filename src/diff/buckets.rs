//! Candidates on disk, in buckets by key that fit in memory.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Which version a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one that is compared from.
    From,
    /// The other.
    To,
}

/// Where a row stands: the number of its file in the list of its side, and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: u32,
    pub row: u32,
}

/// A row by digests of its key and of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub key: [u8; 16],
    pub side: Side,
    pub digest: [u8; 16],
    pub place: Place,
}

const ENTRY_BYTES: usize = 16 + 1 + 16 + 4 + 4;
/// Memory for one bucket, in bytes, about.
const BUCKET_BYTES: u64 = 48 << 20;
const MOST_BUCKETS: u64 = 512;

pub struct Buckets {
    files: Vec<BufWriter<File>>,
}

impl Buckets {
    /// For so many rows; the files have no name and vanish with it.
    pub fn create(folder: &Path, rows: u64) -> Result<Buckets> {
        let count = (rows.saturating_mul(ENTRY_BYTES as u64) / BUCKET_BYTES + 1).min(MOST_BUCKETS);
        let file = |_| {
            let file = tempfile::tempfile_in(folder).map_err(disk)?;
            Ok(BufWriter::with_capacity(64 << 10, file))
        };
        Ok(Buckets { files: (0..count).map(file).collect::<Result<_>>()? })
    }

    pub fn add(&mut self, entry: Entry) -> Result<()> {
        let [a, b, c, d, ..] = entry.key;
        let bucket = u32::from_be_bytes([a, b, c, d]) as usize % self.files.len().max(1);
        let Some(file) = self.files.get_mut(bucket) else { return Ok(()) };
        let side = [u8::from(entry.side == Side::To)];
        let (no, row) = (entry.place.file.to_le_bytes(), entry.place.row.to_le_bytes());
        for bytes in [&entry.key[..], &side, &entry.digest, &no, &row] {
            file.write_all(bytes).map_err(disk)?;
        }
        Ok(())
    }

    /// The entries, bucket by bucket.
    pub fn finish(self) -> impl Iterator<Item = Result<Vec<Entry>>> {
        self.files.into_iter().map(load)
    }
}

fn load(file: BufWriter<File>) -> Result<Vec<Entry>> {
    let mut file = file.into_inner().map_err(|e| disk(e.into_error()))?;
    let bytes = file.stream_position().map_err(disk)?;
    file.rewind().map_err(disk)?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let count = bytes / ENTRY_BYTES as u64;
    let mut entries = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (key, side) = (take(&mut reader)?, take::<1>(&mut reader)?);
        let side = if side == [0] { Side::From } else { Side::To };
        let digest = take(&mut reader)?;
        let file = u32::from_le_bytes(take(&mut reader)?);
        let row = u32::from_le_bytes(take(&mut reader)?);
        entries.push(Entry { key, side, digest, place: Place { file, row } });
    }
    Ok(entries)
}

fn take<const N: usize>(reader: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes).map_err(disk)?;
    Ok(bytes)
}

fn disk(e: std::io::Error) -> Error {
    Error::failed("the temporary files of the comparison")
        .because(e)
        .next("free disk space in the folder for temporary files (TMPDIR)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_with_their_key_in_one_bucket() {
        let folder = tempfile::tempdir().unwrap();
        // As if for many rows, so that there are several buckets.
        let mut buckets = Buckets::create(folder.path(), 5_000_000).unwrap();
        assert!(buckets.files.len() > 3);
        let entry = |n: u32| {
            let mut key = [0; 16];
            key[..4].copy_from_slice(&(n % 50).to_be_bytes());
            let side = if n.is_multiple_of(3) { Side::From } else { Side::To };
            Entry { key, side, digest: [n as u8; 16], place: Place { file: n / 7, row: n } }
        };
        let mut expected: Vec<Entry> = (0..500).map(entry).collect();
        expected.iter().for_each(|entry| buckets.add(*entry).unwrap());
        let loaded: Vec<Vec<Entry>> = buckets.finish().map(Result::unwrap).collect();
        let homes = |key: [u8; 16]| {
            loaded.iter().filter(|bucket| bucket.iter().any(|entry| entry.key == key)).count()
        };
        assert!(expected.iter().all(|entry| homes(entry.key) == 1));
        let mut all: Vec<Entry> = loaded.concat();
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }
}

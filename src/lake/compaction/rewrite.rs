//! Writes the live rows of several data files into one, and says where each went.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use roaring::RoaringBitmap;
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::lake::{
    DataFileWriter, FileNo, FileOptions, Lake, LiveFile, NewFile, RowDigest, digest_file, scan_file,
};

/// A rewrite that waits for its thread.
pub struct Rewrite {
    /// The lake.
    pub lake: Lake,
    /// The table's folder.
    pub folder: String,
    /// Columns of the new file.
    pub schema: SchemaRef,
    /// How it is written.
    pub options: FileOptions,
    /// Its number, taken before anything that is committed while it is written.
    pub number: FileNo,
    /// The files as they are now, in the order of their numbers, all of one partition.
    pub sources: Vec<LiveFile>,
}

/// Live rows of several files in one new file, which no version names yet.
#[derive(Debug)]
pub struct Rewritten {
    /// The new file; none if no row was live.
    pub file: Option<NewFile>,
    /// Where the rows came from.
    pub sources: Vec<Moved>,
}

/// A file whose live rows stand, in their order, in a new one.
#[derive(Clone, Debug)]
pub struct Moved {
    /// Its number.
    pub number: FileNo,
    /// Its path.
    pub path: String,
    /// Rows in it, masked ones too.
    pub rows: u64,
    /// Rows that were masked when it was read; they were left behind.
    pub mask: RoaringBitmap,
    /// The place of its first row in the new file.
    pub first: u32,
}

impl Moved {
    /// Where `rows` stand in the new file. Rows that were left behind or do not exist are passed over.
    pub fn places<'a>(&'a self, rows: &'a RoaringBitmap) -> impl Iterator<Item = u32> + 'a {
        let mut left_behind = self.mask.iter().peekable();
        let mut before = 0;
        rows.iter().take_while(|row| u64::from(*row) < self.rows).filter_map(move |row| {
            while left_behind.next_if(|masked| *masked < row).is_some() {
                before += 1;
            }
            match left_behind.peek() {
                Some(masked) if *masked == row => None,
                _ => self.first.checked_add(row.checked_sub(before)?),
            }
        })
    }

    fn live(&self) -> u64 {
        self.rows.saturating_sub(self.mask.len())
    }
}

impl Rewritten {
    /// Rows of the new file that died while it was written: masked since, or of a file that is gone.
    /// `now` gives the state of a source.
    ///
    /// # Errors
    /// A row that was masked is live again, or a file is another: nothing here does that.
    pub fn dead<'a>(
        &self,
        now: impl Fn(FileNo) -> Option<&'a LiveFile>,
    ) -> Result<(RoaringBitmap, Vec<FileNo>)> {
        let (mut dead, mut removes) = (RoaringBitmap::new(), Vec::new());
        for source in &self.sources {
            let Some(file) = now(source.number).filter(|file| file.path == source.path) else {
                let end = u64::from(source.first).saturating_add(source.live());
                dead.insert_range(source.first..u32::try_from(end).unwrap_or(u32::MAX));
                continue;
            };
            if file.rows != source.rows || !source.mask.is_subset(&file.mask) {
                return Err(Error::failed(format!(
                    "rows of the data file {} came back while it was compacted",
                    source.path
                ))
                .next("this is a defect; report it"));
            }
            dead.extend(source.places(&(&file.mask - &source.mask)));
            removes.push(source.number);
        }
        Ok((dead, removes))
    }
}

/// Lets batches go first, and ends the work when it is no longer wanted.
#[derive(Debug, Default)]
pub struct Pace {
    /// A batch is being applied.
    pub busy: AtomicBool,
    /// Nobody will commit the result.
    pub cancelled: AtomicBool,
}

impl Pace {
    /// While a batch is applied, rests as long as the last step took.
    ///
    /// # Errors
    /// The work was cancelled.
    fn step(&self, took: Duration) -> Result<()> {
        let mut rest = if self.busy.load(Ordering::Relaxed) { took } else { Duration::ZERO };
        loop {
            if self.cancelled.load(Ordering::Acquire) {
                return Err(Error::transient("the compaction was given up"));
            }
            if rest.is_zero() {
                return Ok(());
            }
            let slice = rest.min(Duration::from_millis(20));
            std::thread::sleep(slice);
            rest -= slice;
        }
    }
}

impl Rewrite {
    /// Does it. Blocking. `each` is given the live rows as they are written, with the place of the
    /// first of them. The file is read back and compared before it counts.
    ///
    /// # Errors
    /// A file can't be read or written, what was written reads back otherwise, `each` fails, or it
    /// was cancelled. What was written of the file is removed then, as far as that is possible.
    pub fn run(
        self,
        runtime: &Handle,
        pace: &Pace,
        mut each: impl FnMut(&RecordBatch, u32) -> Result<()>,
    ) -> Result<Rewritten> {
        let mut writer: Option<DataFileWriter> = None;
        match self.write(runtime, pace, &mut writer, &mut each) {
            Err(error) => {
                if let Some(writer) = writer {
                    writer.abort();
                }
                Err(error)
            }
            Ok((digest, sources)) => {
                let mut file = writer.map(DataFileWriter::finish).transpose()?;
                if let Some(file) = &mut file {
                    if let Some(source) = self.sources.first() {
                        file.partition = source.partition.clone();
                    }
                    let schema = &self.schema;
                    let back = digest_file(&self.lake, runtime, &self.folder, &*file, schema)?;
                    if back != digest {
                        return Err(Error::failed(format!(
                            "{}: the compacted file {} reads back otherwise than it was written",
                            self.folder, file.path
                        ))
                        .next("nothing of it was used; check the store or the disk"));
                    }
                }
                Ok(Rewritten { file, sources })
            }
        }
    }

    fn write(
        &self,
        runtime: &Handle,
        pace: &Pace,
        writer: &mut Option<DataFileWriter>,
        each: &mut impl FnMut(&RecordBatch, u32) -> Result<()>,
    ) -> Result<(RowDigest, Vec<Moved>)> {
        let mut digest = RowDigest::default();
        let mut moved = Vec::with_capacity(self.sources.len());
        let mut next = 0u32;
        for source in &self.sources {
            moved.push(Moved {
                number: source.number,
                path: source.path.clone(),
                rows: source.rows,
                mask: source.mask.clone(),
                first: next,
            });
            let folder = &self.folder;
            let mask = Some(&source.mask);
            let mut read = 0u64;
            let mut began = Instant::now();
            for piece in scan_file(&self.lake, runtime, folder, source, &self.schema, mask)? {
                let piece = piece?;
                read += piece.batch.num_rows() as u64;
                let rows = piece.live_rows()?;
                if rows.num_rows() > 0 {
                    if writer.is_none() {
                        *writer = Some(DataFileWriter::create(
                            &self.lake,
                            runtime,
                            folder,
                            self.number,
                            self.schema.clone(),
                            &self.options,
                        )?);
                    }
                    digest.update(&rows)?;
                    if let Some(writer) = writer {
                        writer.write(&rows)?;
                    }
                    each(&rows, next)?;
                    next = u32::try_from(rows.num_rows())
                        .ok()
                        .and_then(|n| next.checked_add(n))
                        .ok_or_else(|| Error::failed("a compacted file of too many rows"))?;
                }
                pace.step(began.elapsed())?;
                began = Instant::now();
            }
            if read != source.rows {
                return Err(Error::failed(format!(
                    "{folder}/{} has {read} rows where the log says {}",
                    source.path, source.rows
                ))
                .next("the file was damaged or replaced; restore it or re-seed the table"));
            }
        }
        Ok((digest, moved))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_row_goes_where_counting_says(
            rows in 1u64..3000,
            masked in prop::collection::btree_set(0u32..3000, 0..400),
            asked in prop::collection::btree_set(0u32..3000, 0..400),
            first in 0u32..10_000,
        ) {
            let mask: RoaringBitmap = masked.into_iter().filter(|r| u64::from(*r) < rows).collect();
            let moved = Moved { number: 1, path: "p".into(), rows, mask: mask.clone(), first };
            let all: RoaringBitmap = (0..rows as u32 + 5).collect();
            let some: RoaringBitmap = asked.into_iter().collect();
            let mut next = first;
            let (mut expected, mut of_some) = (Vec::new(), Vec::new());
            for row in (0..rows as u32).filter(|row| !mask.contains(*row)) {
                expected.push(next);
                if some.contains(row) {
                    of_some.push(next);
                }
                next += 1;
            }
            prop_assert_eq!(moved.places(&all).collect::<Vec<_>>(), expected);
            prop_assert_eq!(moved.places(&some).collect::<Vec<_>>(), of_some);
            prop_assert_eq!(u64::from(next - first), moved.live());
        }
    }
}

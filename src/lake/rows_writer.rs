//! Writes rows of a table to new data files: to one, or to some for each partition.
//!
//! Rows of a partitioned table wait in memory, by partition, until one of them has enough for a file
//! or all together have too many. So one file is written at a time, and memory is bounded whatever the
//! number of partitions; an encoder for each of them would not be.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;

use super::files::{DataFileWriter, FileNo, FileOptions, NewFile};
use super::locations::Location;
use super::partition::{self, PartitionValues, TableColumns};
use super::store::Lake;
use crate::error::{Error, Result};

/// Bytes of rows that wait, at most, besides what one batch adds.
const MOST_WAITING: usize = 64 << 20;
/// Bytes of rows of one partition that are enough for a file.
const ENOUGH: usize = 32 << 20;
/// Files of one writer. More are partitions of a few rows, and a log that nobody wants to read.
const MOST_FILES: usize = 10_000;

/// Where the rows of a batch stand.
#[derive(Debug)]
pub enum Places {
    /// One after the other, from here.
    From(Location),
    /// Each by itself.
    Each(Vec<Location>),
}

impl Places {
    /// Where row `index` of the batch stands.
    pub fn get(&self, index: usize) -> Option<Location> {
        match self {
            Places::From(first) => {
                let row = u32::try_from(index).ok().and_then(|index| first.row.checked_add(index));
                row.map(|row| Location { file: first.file, row })
            }
            Places::Each(places) => places.get(index).copied(),
        }
    }
}

/// Gives the numbers of new files.
pub type Numbers<'a> = &'a mut dyn FnMut() -> Result<FileNo>;

/// Writes rows of one table. Blocking: for threads that may wait.
pub struct RowsWriter {
    to: Target,
    to_go: ToGo,
    done: Vec<(FileNo, NewFile)>,
    done_bytes: u64,
}

/// Where files are written, and how.
struct Target {
    lake: Lake,
    runtime: Handle,
    folder: String,
    options: FileOptions,
    schema: SchemaRef,
}

/// Rows that are in no finished file.
enum ToGo {
    /// In the one file of a table without partitions.
    File(Option<Box<(FileNo, DataFileWriter)>>),
    /// In memory, by partition.
    Waiting(Waiting),
}

struct Waiting {
    partitioned_by: Vec<String>,
    rows: BTreeMap<PartitionValues, Rows>,
    bytes: usize,
    /// Files that were begun.
    begun: usize,
    /// [`ENOUGH`] and [`MOST_WAITING`], but in tests.
    limits: (usize, usize),
}

struct Rows {
    number: FileNo,
    batches: Vec<RecordBatch>,
    count: u32,
    bytes: usize,
}

impl RowsWriter {
    /// For rows of the table in `folder` that has these columns.
    pub fn new(
        lake: &Lake,
        runtime: &Handle,
        folder: &str,
        columns: &TableColumns,
        options: FileOptions,
    ) -> RowsWriter {
        let TableColumns { schema, partitioned_by } = columns;
        let to_go = if partitioned_by.is_empty() {
            ToGo::File(None)
        } else {
            ToGo::Waiting(Waiting {
                partitioned_by: partitioned_by.clone(),
                rows: BTreeMap::new(),
                bytes: 0,
                begun: 0,
                limits: (ENOUGH, MOST_WAITING),
            })
        };
        RowsWriter {
            to: Target {
                lake: lake.clone(),
                runtime: runtime.clone(),
                folder: folder.to_owned(),
                options,
                schema: schema.clone(),
            },
            to_go,
            done: Vec::new(),
            done_bytes: 0,
        }
    }

    /// Takes the rows of a batch, and says where each will stand.
    ///
    /// # Errors
    /// The store or disk refuses, the table has more partitions than can be, or `numbers` fails.
    pub fn write(&mut self, batch: &RecordBatch, numbers: Numbers<'_>) -> Result<Places> {
        match &mut self.to_go {
            ToGo::File(file) => {
                let (number, writer) = match file {
                    Some(file) => &mut **file,
                    None => {
                        let number = numbers()?;
                        file.insert(Box::new((number, self.to.create(number)?)))
                    }
                };
                let row = row_no(writer.rows_written(), batch.num_rows())?;
                writer.write(batch)?;
                Ok(Places::From(Location { file: *number, row }))
            }
            ToGo::Waiting(waiting) => {
                let places = waiting.take_in(batch, numbers)?;
                while let Some((values, rows)) = waiting.next_due() {
                    self.done_bytes += self.to.write(values, rows, &mut self.done)?;
                }
                Ok(places)
            }
        }
    }

    /// Bytes handed to the store so far, and of a file that is being written those encoded.
    pub fn bytes_written(&self) -> u64 {
        let open = match &self.to_go {
            ToGo::File(file) => file.as_ref().map_or(0, |file| file.1.bytes_written()),
            ToGo::Waiting(_) => 0,
        };
        self.done_bytes + open
    }

    /// Ends the files; gives them by their numbers. When it returns they are durable, and still
    /// invisible.
    ///
    /// # Errors
    /// The store or disk refuses.
    pub fn finish(mut self) -> Result<Vec<(FileNo, NewFile)>> {
        match self.to_go {
            ToGo::File(None) => {}
            ToGo::File(Some(file)) => self.done.push((file.0, file.1.finish()?)),
            ToGo::Waiting(waiting) => {
                for (values, rows) in waiting.rows {
                    self.to.write(values, rows, &mut self.done)?;
                }
            }
        }
        self.done.sort_unstable_by_key(|(number, _)| *number);
        Ok(self.done)
    }
}

impl Target {
    fn create(&self, number: FileNo) -> Result<DataFileWriter> {
        let Target { lake, runtime, folder, options, schema } = self;
        DataFileWriter::create(lake, runtime, folder, number, schema.clone(), options)
    }

    /// Writes a file of one partition's rows; gives its bytes.
    fn write(
        &self,
        values: PartitionValues,
        rows: Rows,
        done: &mut Vec<(FileNo, NewFile)>,
    ) -> Result<u64> {
        let mut writer = self.create(rows.number)?;
        for batch in &rows.batches {
            writer.write(batch)?;
        }
        let file = NewFile { partition: values, ..writer.finish()? };
        let bytes = file.size;
        done.push((rows.number, file));
        Ok(bytes)
    }
}

impl Waiting {
    fn take_in(&mut self, batch: &RecordBatch, numbers: Numbers<'_>) -> Result<Places> {
        let groups = partition::groups(batch, &self.partitioned_by)?;
        let wrong = |e| Error::failed("a batch can't be partitioned").because(e);
        let mut places = vec![Location { file: 0, row: 0 }; batch.num_rows()];
        for group in groups {
            let Some(numbered) = group.rows else {
                return Ok(Places::From(self.append(group.values, batch.clone(), numbers)?));
            };
            let part = take_record_batch(batch, &numbered).map_err(wrong)?;
            let first = self.append(group.values, part, numbers)?;
            for (row, at) in (first.row..).zip(numbered.values()) {
                if let Some(place) = places.get_mut(*at as usize) {
                    *place = Location { file: first.file, row };
                }
            }
        }
        Ok(Places::Each(places))
    }

    /// Adds rows of one partition; where the first of them will stand.
    fn append(
        &mut self,
        values: PartitionValues,
        batch: RecordBatch,
        numbers: Numbers<'_>,
    ) -> Result<Location> {
        if !self.rows.contains_key(&values) {
            if self.begun == MOST_FILES {
                return Err(Error::unfit(format!(
                    "its rows have too many different values of {}: more than {MOST_FILES} files \
                     for one piece of it",
                    self.partitioned_by.join(", ")
                ))
                .next(
                    "partition it by a column with fewer values, or not at all: `partition_by`",
                ));
            }
            self.begun += 1;
            let rows = Rows { number: numbers()?, batches: Vec::new(), count: 0, bytes: 0 };
            self.rows.insert(values.clone(), rows);
        }
        let rows = self.rows.get_mut(&values).ok_or_else(|| Error::failed("no such partition"))?;
        let row = row_no(rows.count.into(), batch.num_rows())?;
        let bytes = batch.get_array_memory_size();
        rows.count += batch.num_rows() as u32;
        rows.bytes += bytes;
        self.bytes += bytes;
        rows.batches.push(batch);
        Ok(Location { file: rows.number, row })
    }

    /// The rows that should become a file now.
    fn next_due(&mut self) -> Option<(PartitionValues, Rows)> {
        let (values, largest) = self.rows.iter().max_by_key(|(_, rows)| rows.bytes)?;
        let (enough, most) = self.limits;
        if largest.bytes < enough && self.bytes <= most {
            return None;
        }
        let values = values.clone();
        let rows = self.rows.remove(&values)?;
        self.bytes = self.bytes.saturating_sub(rows.bytes);
        Some((values, rows))
    }
}

/// The number of the first of `more` rows that come after `rows` of a file.
fn row_no(rows: u64, more: usize) -> Result<u32> {
    let end = u64::try_from(more).ok().and_then(|more| rows.checked_add(more));
    end.filter(|end| *end <= u64::from(u32::MAX))
        .and_then(|_| u32::try_from(rows).ok())
        .ok_or_else(|| Error::failed("a data file of more than 4 billion rows"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;
    use crate::lake::{RowDigest, digest_file};

    fn batch(rows: &[(i64, i64)]) -> RecordBatch {
        let column = |of: fn(&(i64, i64)) -> i64| -> ArrayRef {
            Arc::new(rows.iter().map(|row| Some(of(row))).collect::<Int64Array>())
        };
        RecordBatch::try_from_iter_with_nullable([
            ("p", column(|row| row.0), true),
            ("v", column(|row| row.1), true),
        ])
        .unwrap()
    }

    /// Writes the batches, and reads back what stands at each place.
    fn written(
        lake: &Lake,
        runtime: &Handle,
        batches: &[RecordBatch],
        limits: (usize, usize),
    ) -> Vec<(FileNo, NewFile)> {
        let schema = batches[0].schema();
        let columns = TableColumns { schema: schema.clone(), partitioned_by: vec!["p".into()] };
        let mut writer = RowsWriter::new(lake, runtime, "t", &columns, FileOptions::default());
        let ToGo::Waiting(waiting) = &mut writer.to_go else { panic!("not partitioned") };
        waiting.limits = limits;
        let (mut next, mut digest) = (0, RowDigest::default());
        let mut at = BTreeMap::new();
        for batch in batches {
            let places = writer
                .write(batch, &mut || {
                    next += 1;
                    Ok(next)
                })
                .unwrap();
            digest.update(batch).unwrap();
            for row in 0..batch.num_rows() {
                let place = places.get(row).unwrap();
                assert!(at.insert((place.file, place.row), batch.slice(row, 1)).is_none());
            }
        }
        let files = writer.finish().unwrap();
        let mut back = RowDigest::default();
        for (number, file) in &files {
            back.merge(digest_file(lake, runtime, "t", file, &schema).unwrap());
            for piece in crate::lake::scan_file(lake, runtime, "t", file, &schema, None).unwrap() {
                let piece = piece.unwrap();
                for row in 0..piece.batch.num_rows() {
                    let place = (*number, piece.first_row + row as u32);
                    assert_eq!(at.remove(&place).unwrap(), piece.batch.slice(row, 1));
                }
            }
        }
        assert!(at.is_empty());
        assert_eq!(back, digest);
        files
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_row_stands_where_it_is_said_to_stand() {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::open(folder.path().to_str().unwrap()).unwrap();
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            let rows = |from: i64| (from..from + 50).map(|n| (n % 3, n)).collect::<Vec<_>>();
            let files = written(
                &lake,
                &runtime,
                &[batch(&rows(0)), batch(&rows(100))],
                (ENOUGH, MOST_WAITING),
            );
            let values: Vec<_> = files.iter().map(|(_, f)| f.partition["p"].clone()).collect();
            assert_eq!(values, [Some("0".into()), Some("1".into()), Some("2".into())]);
            // More rows than may wait, of all partitions or of one: some have several files.
            let many = |n: i64| batch(&(0..5_000).map(|row| (row % n, row)).collect::<Vec<_>>());
            let files = written(&lake, &runtime, &vec![many(40); 30], (ENOUGH, 300_000));
            assert!(files.len() > 40 && files.len() < 400, "{}", files.len());
            let files = written(&lake, &runtime, &vec![many(2); 30], (200_000, MOST_WAITING));
            assert!(files.len() > 4 && files.len() < 60, "{}", files.len());
        })
        .await
        .unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_partition_for_each_row_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::open(folder.path().to_str().unwrap()).unwrap();
        let runtime = Handle::current();
        let error = tokio::task::spawn_blocking(move || {
            let rows = batch(&(0..=MOST_FILES as i64).map(|n| (n, n)).collect::<Vec<_>>());
            let columns = TableColumns { schema: rows.schema(), partitioned_by: vec!["p".into()] };
            let mut writer =
                RowsWriter::new(&lake, &runtime, "t", &columns, FileOptions::default());
            let mut next = 0;
            writer.write(&rows, &mut || {
                next += 1;
                Ok(next)
            })
        });
        let error = error.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("different values of p"), "{error}");
    }
}

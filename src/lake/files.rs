//! Writes data files: Parquet, streamed to where it will stay, with the statistics Delta wants.
//!
//! A data file is invisible until a commit names it. So a local file is written straight under its
//! final name, and made durable before [`DataFileWriter::finish`] returns; a remote one is
//! uploaded in parts while it is written. Memory is bounded by the row group and the parts in
//! flight, whatever the file's size.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::disk::{self, NewLocalFile};
use super::durable;
use super::partition::PartitionValues;
use super::patience;
use super::stats;
use super::store::{Lake, WHEN_THE_STORE_WORKS, store_error};
use crate::error::{Error, Kind, Result};
use crate::failpoint;

/// Number of a data file, unique in its table for ever: the location index keeps it for a path.
pub type FileNo = u32;

/// Numbers of new files of one table, one after the other.
#[derive(Debug)]
pub struct FileNumbers(FileNo);

impl FileNumbers {
    /// From `first` on.
    pub fn from(first: FileNo) -> FileNumbers {
        FileNumbers(first)
    }

    /// The next one.
    ///
    /// # Errors
    /// There are no more.
    pub fn take(&mut self) -> Result<FileNo> {
        let number = self.0;
        self.0 = number.checked_add(1).ok_or_else(used_up)?;
        Ok(number)
    }
}

/// The error of a table that has had as many files as there are numbers.
pub fn used_up() -> Error {
    Error::failed("the table has used up its data file numbers").next(
        "move its folder away, then read it again with `tidegate reseed`: numbers begin anew there",
    )
}

/// The number in a data file's name; `None` for files that others wrote.
pub fn file_no_of(path: &str) -> Option<FileNo> {
    let name = path.rsplit('/').next()?.strip_prefix("part-")?.strip_suffix(".parquet")?;
    let (number, id) = name.split_at_checked(8)?;
    Uuid::parse_str(id.strip_prefix('-')?).ok()?;
    let digits = number.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if digits { u32::from_str_radix(number, 16).ok() } else { None }
}

/// The name of the data file number `number`; URL-safe, and never used twice.
pub fn data_file_name(number: FileNo) -> String {
    format!("part-{number:08x}-{}.parquet", Uuid::new_v4())
}

/// A finished data file that a commit can name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFile {
    /// Path below the table's folder.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Rows in it, masked ones too.
    pub rows: u64,
    /// Delta's statistics, as JSON.
    pub stats: String,
    /// The values of the partition columns.
    #[serde(default, skip_serializing_if = "PartitionValues::is_empty")]
    pub partition: PartitionValues,
}

/// How data files are written.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Columns whose least and greatest values stand in the log. Each costs bytes in every commit
    /// that touches the file, so few: the key and what readers filter by.
    pub stats_columns: Vec<String>,
    /// Columns with few different values, written with a dictionary.
    pub dictionary_columns: Vec<String>,
    /// Rows in a row group, at most.
    pub row_group_rows: usize,
    /// Bytes in a row group, at most; about the memory a writer takes.
    pub row_group_bytes: usize,
    /// Rows in a page, at most: what a look-up of one row decodes.
    pub page_rows: usize,
    /// Level of zstd.
    pub zstd_level: i32,
    /// Bytes of one part of an upload.
    pub part_bytes: usize,
    /// Parts uploaded at a time, at most.
    pub parts_in_flight: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions {
            stats_columns: Vec::new(),
            dictionary_columns: Vec::new(),
            row_group_rows: 131_072,
            row_group_bytes: 32 << 20,
            page_rows: 8_192,
            zstd_level: 1,
            part_bytes: 8 << 20,
            parts_in_flight: 4,
        }
    }
}

/// Writes one data file. Blocking: for threads that may wait.
pub struct DataFileWriter {
    path: String,
    folder: String,
    writer: ArrowWriter<Sink>,
    written: Arc<AtomicU64>,
    schema: SchemaRef,
    stats_columns: Vec<String>,
    with_nan: BTreeSet<String>,
    rows: u64,
}

impl DataFileWriter {
    /// Starts the data file number `number` of the table in `folder`.
    ///
    /// # Errors
    /// The file can't be created, or the schema can't be written as Parquet.
    pub fn create(
        lake: &Lake,
        runtime: &Handle,
        folder: &str,
        number: FileNo,
        schema: SchemaRef,
        options: &FileOptions,
    ) -> Result<Self> {
        let path = data_file_name(number);
        let written = Arc::new(AtomicU64::new(0));
        let sink =
            Sink::create(lake, runtime, &format!("{folder}/{path}"), options, written.clone())
                .map_err(|e| {
                    let kind = patience::kind_of(&e).unwrap_or(Kind::Transient);
                    Error::new(kind, format!("{folder}/{path} can't be created"))
                        .because(e)
                        .next(WHEN_THE_STORE_WORKS)
                })?;
        let writer_options = ArrowWriterOptions::new()
            .with_properties(properties(options)?)
            // Readers go by the Delta schema; Arrow's copy would only cost bytes in every file.
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(sink, schema.clone(), writer_options)
            .map_err(|e| {
                Error::failed(format!("{folder}/{path} can't be written as Parquet")).because(e)
            })?;
        let stats_columns = options.stats_columns.clone();
        Ok(DataFileWriter {
            path,
            folder: folder.to_owned(),
            writer,
            written,
            schema,
            stats_columns,
            with_nan: BTreeSet::new(),
            rows: 0,
        })
    }

    /// Appends rows.
    ///
    /// # Errors
    /// The store or disk refuses; the batch is not of the file's schema.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for name in &self.stats_columns {
            if !self.with_nan.contains(name)
                && batch.column_by_name(name).is_some_and(|c| has_nan(c))
            {
                self.with_nan.insert(name.clone());
            }
        }
        self.writer.write(batch).map_err(|e| write_error(&self.folder, &self.path, e))?;
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Bytes handed to the store so far, and those encoded but not yet written.
    pub fn bytes_written(&self) -> u64 {
        self.written.load(Ordering::Relaxed) + self.writer.in_progress_size() as u64
    }

    /// Rows written so far.
    pub fn rows_written(&self) -> u64 {
        self.rows
    }

    /// Path below the table's folder.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Ends the file. When it returns the file is durable, and still invisible.
    ///
    /// # Errors
    /// The store or disk refuses.
    pub fn finish(mut self) -> Result<NewFile> {
        let wrong = |e| write_error(&self.folder, &self.path, e);
        let metadata = self.writer.finish().map_err(wrong)?;
        let stats = stats::of_file(&metadata, &self.schema, &self.stats_columns, &self.with_nan)?;
        // Parquet's end has been written and flushed; now the file itself is made durable.
        self.writer
            .inner_mut()
            .finish()
            .map_err(|e| write_error(&self.folder, &self.path, e.into()))?;
        failpoint::at("lake.file.written")?;
        Ok(NewFile {
            path: self.path,
            size: self.written.load(Ordering::Relaxed),
            rows: self.rows,
            stats,
            partition: PartitionValues::new(),
        })
    }

    /// Gives the file up and removes what was written of it, as far as that is possible.
    pub fn abort(self) {
        // Dropping the Parquet writer does not end the file; only the sink needs to be told.
        let mut writer = self.writer;
        writer.inner_mut().abort();
    }
}

fn write_error(folder: &str, path: &str, error: parquet::errors::ParquetError) -> Error {
    let kind = patience::kind_of(&error).unwrap_or(Kind::Transient);
    Error::new(kind, format!("writing {folder}/{path}")).because(error).next(WHEN_THE_STORE_WORKS)
}

fn properties(options: &FileOptions) -> Result<WriterProperties> {
    let level = ZstdLevel::try_new(options.zstd_level).map_err(|e| {
        Error::config(format!("there is no zstd level {}", options.zstd_level)).because(e)
    })?;
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_created_by(concat!("tidegate version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(options.row_group_rows.max(1)))
        .set_max_row_group_bytes(Some(options.row_group_bytes.max(1)))
        .set_data_page_row_count_limit(options.page_rows.max(1))
        // Element and entry names as the Parquet specification has them.
        .set_coerce_types(true);
    for column in &options.dictionary_columns {
        builder = builder.set_column_dictionary_enabled(ColumnPath::from(column.as_str()), true);
    }
    for column in &options.stats_columns {
        builder = builder.set_column_statistics_enabled(
            ColumnPath::from(column.as_str()),
            EnabledStatistics::Page,
        );
    }
    Ok(builder.build())
}

/// Parquet leaves NaN out of its statistics; engines for which NaN is the greatest value would
/// then skip files that hold it.
fn has_nan(array: &dyn Array) -> bool {
    match array.data_type() {
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().values().iter().any(|v| v.is_nan())
        }
        DataType::Float64 => {
            array.as_primitive::<Float64Type>().values().iter().any(|v| v.is_nan())
        }
        _ => false,
    }
}

/// Where the bytes go.
struct Sink {
    to: To,
    written: Arc<AtomicU64>,
}

enum To {
    Local(BufWriter<NewLocalFile>),
    Remote(Box<Remote>),
    Done,
}

struct Remote {
    store: Arc<dyn ObjectStore>,
    at: Path,
    runtime: Handle,
    /// What has not been handed to the upload: a file that stays below one part is put at once.
    buffer: Vec<u8>,
    upload: Option<WriteMultipart>,
    part_bytes: usize,
    parts_in_flight: usize,
}

impl Sink {
    fn create(
        lake: &Lake,
        runtime: &Handle,
        path: &str,
        options: &FileOptions,
        written: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let to = match lake.local_path() {
            Some(folder) => {
                let path = folder.join(path);
                if let Some(folder) = path.parent() {
                    durable::create_folder(folder)?;
                }
                let file = NewLocalFile::create(&path, lake.patience().clone())?;
                To::Local(BufWriter::with_capacity(1 << 20, file))
            }
            None => To::Remote(Box::new(Remote {
                store: lake.store(),
                at: Path::from(path),
                runtime: runtime.clone(),
                buffer: Vec::new(),
                upload: None,
                part_bytes: options.part_bytes.max(5 << 20),
                parts_in_flight: options.parts_in_flight.max(1),
            })),
        };
        Ok(Sink { to, written })
    }

    fn finish(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.to, To::Done) {
            To::Local(mut file) => {
                file.flush()?;
                file.get_ref().sync()?;
                durable::sync_folder_of(file.get_ref().path())
            }
            To::Remote(remote) => remote.finish(),
            To::Done => Ok(()),
        }
    }

    fn abort(&mut self) {
        match std::mem::replace(&mut self.to, To::Done) {
            To::Local(file) => {
                let (file, _) = file.into_parts();
                let _ = disk::remove(file.path());
            }
            To::Remote(mut remote) => {
                if let Some(upload) = remote.upload.take() {
                    // Not waited for: whoever gives a file up has an error to tell.
                    remote.runtime.spawn(upload.abort());
                }
            }
            To::Done => {}
        }
    }
}

impl Drop for Sink {
    /// What was not finished is nobody's: no half file stays, and no upload that costs space.
    fn drop(&mut self) {
        self.abort();
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Local(file) => file.write_all(bytes)?,
            To::Remote(remote) => remote.write(bytes)?,
            To::Done => return Err(io::Error::other("the file was given up")),
        }
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Remote {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < self.part_bytes {
            return Ok(());
        }
        // The upload spawns its parts as tasks.
        let _inside = self.runtime.enter();
        if self.upload.is_none() {
            let upload = self
                .runtime
                .block_on(self.store.put_multipart(&self.at))
                .map_err(io::Error::other)?;
            self.upload = Some(WriteMultipart::new_with_chunk_size(upload, self.part_bytes));
        }
        if let Some(upload) = &mut self.upload {
            self.runtime
                .block_on(upload.wait_for_capacity(self.parts_in_flight))
                .map_err(io::Error::other)?;
            upload.put(std::mem::take(&mut self.buffer).into());
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        let _inside = self.runtime.enter();
        let rest = std::mem::take(&mut self.buffer);
        let answer = match self.upload.take() {
            None => self.runtime.block_on(self.store.put(&self.at, rest.into())).map(|_| ()),
            Some(mut upload) => {
                upload.put(rest.into());
                match self.runtime.block_on(upload.wait_for_capacity(0)) {
                    Ok(()) => self.runtime.block_on(upload.finish()).map(|_| ()),
                    Err(error) => {
                        self.runtime.spawn(upload.abort());
                        Err(error)
                    }
                }
            }
        };
        answer.map_err(|e| io::Error::other(store_error(format!("writing {}", self.at), e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_from_names_and_foreign_names_have_none() {
        for number in [0, 1, 0xabcd, u32::MAX] {
            assert_eq!(file_no_of(&data_file_name(number)), Some(number));
        }
        for name in [
            "part-00000-1f2a4b6c-1111-4222-8333-abcdefabcdef-c000.snappy.parquet",
            "part-00000000.parquet",
            "part-0000000G-1f2a4b6c-1111-4222-8333-abcdefabcdef.parquet",
            "x.parquet",
            "",
        ] {
            assert_eq!(file_no_of(name), None, "{name}");
        }
    }
}

//! Reads data files: single rows of them, or all with the number of each row.
//!
//! Columns are asked for by an Arrow schema. A column the file does not have (it was added later)
//! comes back as nulls; one whose layout differs is cast; one that the table is partitioned by has the
//! value that the log says.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, new_null_array,
};
use arrow::compute::{cast, concat_batches, filter_record_batch};
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use parquet::arrow::async_reader::{ParquetRecordBatchStream, ParquetRecordBatchStreamBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::PageIndexPolicy;
use roaring::RoaringBitmap;
use tokio::runtime::Handle;

use super::digest::RowDigest;
use super::files::NewFile;
use super::partition::{self, PartitionValues};
use super::patience;
use super::remote::RemoteFile;
use super::store::Lake;
use super::table::LiveFile;
use crate::error::{Error, Kind, Result};

/// Rows of a batch when a whole file is read.
const SCAN_ROWS: usize = 8_192;

fn read_error(path: &str, error: ParquetError) -> Error {
    // A file that is gone or damaged stays so; what the store says of the network may pass.
    let kind = patience::kind_of(&error);
    let error = Error::new(kind.unwrap_or(Kind::Failed), format!("reading the data file {path}"))
        .because(error);
    match kind {
        Some(Kind::Transient) => error,
        _ => error.next("restore the file or its rights, or re-seed the table"),
    }
}

/// A data file to be read.
#[derive(Clone, Copy, Debug)]
pub struct FileRef<'a> {
    /// Path below the table's folder.
    pub path: &'a str,
    /// The values of its partition columns.
    pub partition: &'a PartitionValues,
}

impl<'a> From<&'a NewFile> for FileRef<'a> {
    fn from(file: &'a NewFile) -> Self {
        FileRef { path: &file.path, partition: &file.partition }
    }
}

impl<'a> From<&'a LiveFile> for FileRef<'a> {
    fn from(file: &'a LiveFile) -> Self {
        FileRef { path: &file.path, partition: &file.partition }
    }
}

/// A file of a table without partitions.
impl<'a> From<&'a str> for FileRef<'a> {
    fn from(path: &'a str) -> Self {
        static NONE: PartitionValues = PartitionValues::new();
        FileRef { path, partition: &NONE }
    }
}

/// Reads columns of a data file, blocking or not, local or not.
struct Source {
    path: String,
    columns: SchemaRef,
    partition: PartitionValues,
    place: Place,
}

enum Place {
    Local(PathBuf),
    Remote(RemoteFile),
}

impl Source {
    fn new(lake: &Lake, folder: &str, file: FileRef<'_>, columns: &SchemaRef) -> Self {
        let path = format!("{folder}/{}", file.path);
        let place = match lake.local_path() {
            Some(folder) => Place::Local(folder.join(&path)),
            None => Place::Remote(RemoteFile::new(lake.store(), key(&path))),
        };
        Source { path, columns: columns.clone(), partition: file.partition.clone(), place }
    }

    fn options() -> ArrowReaderOptions {
        ArrowReaderOptions::new()
            .with_offset_index_policy(PageIndexPolicy::Optional)
            .with_column_index_policy(PageIndexPolicy::Skip)
    }

    fn mask(&self, footer: &ArrowReaderMetadata) -> ProjectionMask {
        let roots = footer.schema().fields().iter().enumerate();
        let wanted = roots.filter(|(_, f)| self.is_wanted(f.name())).map(|(i, _)| i);
        ProjectionMask::roots(footer.parquet_schema(), wanted)
    }

    /// Whether a column of the file is to be read: what the log says counts before the file.
    fn is_wanted(&self, name: &str) -> bool {
        self.columns.field_with_name(name).is_ok() && !self.partition.contains_key(name)
    }

    fn footer_local(&self, lake: &Lake, file: &File) -> Result<ArrowReaderMetadata> {
        if let Some(footer) = lake.footer(&self.path) {
            return Ok(footer);
        }
        let footer = ArrowReaderMetadata::load(file, Self::options())
            .map_err(|e| read_error(&self.path, e))?;
        lake.keep_footer(self.path.clone(), footer.clone());
        Ok(footer)
    }

    async fn footer_remote(
        &self,
        lake: &Lake,
        reader: &mut RemoteFile,
    ) -> Result<ArrowReaderMetadata> {
        if let Some(footer) = lake.footer(&self.path) {
            return Ok(footer);
        }
        let footer = ArrowReaderMetadata::load_async(reader, Self::options())
            .await
            .map_err(|e| read_error(&self.path, e))?;
        lake.keep_footer(self.path.clone(), footer.clone());
        Ok(footer)
    }

    fn open_local(
        &self,
        lake: &Lake,
        file: &PathBuf,
        rows: Option<&[u32]>,
    ) -> Result<ParquetRecordBatchReader> {
        let file = File::open(file).map_err(|e| read_error(&self.path, e.into()))?;
        let footer = self.footer_local(lake, &file)?;
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, footer.clone())
            .with_projection(self.mask(&footer))
            .with_batch_size(SCAN_ROWS);
        if let Some(rows) = rows {
            builder = builder.with_row_selection(select(rows, &footer, &self.path)?);
        }
        builder.build().map_err(|e| read_error(&self.path, e))
    }

    async fn open_remote(
        &self,
        lake: &Lake,
        reader: &RemoteFile,
        rows: Option<&[u32]>,
    ) -> Result<ParquetRecordBatchStream<RemoteFile>> {
        let mut reader = reader.clone();
        let footer = self.footer_remote(lake, &mut reader).await?;
        let mut builder =
            ParquetRecordBatchStreamBuilder::new_with_metadata(reader, footer.clone())
                .with_projection(self.mask(&footer))
                .with_batch_size(SCAN_ROWS);
        if let Some(rows) = rows {
            builder = builder.with_row_selection(select(rows, &footer, &self.path)?);
        }
        builder.build().map_err(|e| read_error(&self.path, e))
    }

    /// The batch with exactly the columns asked for, in their order and types.
    fn fit(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let wrong = |e| {
            Error::failed(format!("the data file {} does not fit the table", self.path)).because(e)
        };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.columns.fields().len());
        for field in self.columns.fields() {
            if let Some(value) = self.partition.get(field.name()) {
                let column =
                    partition::column(value.as_deref(), field.data_type(), batch.num_rows());
                columns.push(column.map_err(|e| e.at(&self.path))?);
                continue;
            }
            columns.push(match batch.column_by_name(field.name()) {
                None => new_null_array(field.data_type(), batch.num_rows()),
                Some(column) if column.data_type() == field.data_type() => column.clone(),
                Some(column) => cast(column, field.data_type()).map_err(wrong)?,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.columns.clone(), columns, &options).map_err(wrong)
    }
}

/// The key of a file in a store. As it is where it can be: what other programs wrote into a name, such
/// as `%2F`, is the name.
fn key(path: &str) -> Path {
    Path::parse(path).unwrap_or_else(|_| Path::from(path))
}

/// Turns sorted row numbers into runs to skip and to read.
fn select(rows: &[u32], footer: &ArrowReaderMetadata, path: &str) -> Result<RowSelection> {
    let total = footer.metadata().file_metadata().num_rows();
    let mut selectors: Vec<RowSelector> = Vec::new();
    let mut at = 0u32;
    for &row in rows {
        if row < at || i64::from(row) >= total {
            return Err(Error::failed(format!("row {row} of the data file {path} was asked for out of order or beyond its {total} rows"))
                .next("rebuild the location index"));
        }
        match selectors.last_mut() {
            Some(last) if row == at && !last.skip => last.row_count += 1,
            _ => {
                if row > at {
                    selectors.push(RowSelector::skip((row - at) as usize));
                }
                selectors.push(RowSelector::select(1));
            }
        }
        at = row + 1;
    }
    Ok(RowSelection::from(selectors))
}

/// Reads rows of a data file: those of the sorted, distinct row numbers `rows`, or all.
///
/// # Errors
/// The file can't be read, or does not have such rows.
pub async fn read_rows<'a>(
    lake: &Lake,
    folder: &str,
    file: impl Into<FileRef<'a>>,
    columns: &SchemaRef,
    rows: Option<&[u32]>,
) -> Result<RecordBatch> {
    let file = file.into();
    let path = file.path;
    let source = Source::new(lake, folder, file, columns);
    let mut batches = Vec::new();
    match &source.place {
        Place::Local(file) => {
            let (lake, file, rows) = (lake.clone(), file.clone(), rows.map(<[u32]>::to_vec));
            let task = tokio::task::spawn_blocking(move || {
                let reader = source.open_local(&lake, &file, rows.as_deref())?;
                let mut batches = Vec::new();
                for batch in reader {
                    let batch = batch.map_err(|e| read_error(&source.path, e.into()))?;
                    batches.push(source.fit(&batch)?);
                }
                Ok::<_, Error>(batches)
            });
            batches =
                task.await.map_err(|e| Error::failed("a read was cancelled").because(e))??;
        }
        Place::Remote(reader) => {
            let mut stream = source.open_remote(lake, reader, rows).await?;
            while let Some(batch) = stream.next().await {
                let batch = batch.map_err(|e| read_error(&source.path, e))?;
                batches.push(source.fit(&batch)?);
            }
        }
    }
    let batch = concat_batches(columns, &batches).map_err(|e| {
        Error::failed(format!("rows of {folder}/{path} can't be joined")).because(e)
    })?;
    if let Some(rows) = rows
        && rows.len() != batch.num_rows()
    {
        return Err(Error::failed(format!(
            "{folder}/{path} gave {} rows of {}",
            batch.num_rows(),
            rows.len()
        )));
    }
    Ok(batch)
}

/// Number of rows of a data file, from its footer.
///
/// # Errors
/// The file can't be read.
pub async fn count_rows(lake: &Lake, folder: &str, path: &str) -> Result<u64> {
    let source =
        Source::new(lake, folder, path.into(), &Arc::new(arrow::datatypes::Schema::empty()));
    let mut reader = RemoteFile::new(lake.store(), key(&source.path));
    let footer = source.footer_remote(lake, &mut reader).await?;
    Ok(footer.metadata().file_metadata().num_rows().max(0) as u64)
}

/// A piece of a data file.
#[derive(Clone, Debug)]
pub struct ScanBatch {
    /// Number in its file of the batch's first row.
    pub first_row: u32,
    /// All rows of the piece, masked ones too: row `i` is `first_row + i`.
    pub batch: RecordBatch,
    /// Which rows are live; `None`: all.
    pub live: Option<BooleanArray>,
}

impl ScanBatch {
    /// The live rows alone.
    ///
    /// # Errors
    /// Never for batches of a scan.
    pub fn live_rows(&self) -> Result<RecordBatch> {
        match &self.live {
            None => Ok(self.batch.clone()),
            Some(live) => filter_record_batch(&self.batch, live)
                .map_err(|e| Error::failed("rows can't be filtered").because(e)),
        }
    }

    /// Whether row `i` of the batch is live.
    pub fn is_live(&self, i: usize) -> bool {
        self.live.as_ref().is_none_or(|live| i < live.len() && live.value(i))
    }
}

/// All batches of a data file, in order. Blocking: for threads that may wait.
pub struct Scan {
    source: Source,
    batches: Batches,
    mask: Option<RoaringBitmap>,
    next_row: u32,
}

enum Batches {
    Local(ParquetRecordBatchReader),
    Remote(Box<ParquetRecordBatchStream<RemoteFile>>, Handle),
}

/// Scans a data file; rows in `mask` are marked as not live. Blocking.
///
/// # Errors
/// The file can't be opened.
pub fn scan_file<'a>(
    lake: &Lake,
    runtime: &Handle,
    folder: &str,
    file: impl Into<FileRef<'a>>,
    columns: &SchemaRef,
    mask: Option<&RoaringBitmap>,
) -> Result<Scan> {
    let source = Source::new(lake, folder, file.into(), columns);
    let batches = match &source.place {
        Place::Local(file) => Batches::Local(source.open_local(lake, file, None)?),
        Place::Remote(reader) => {
            let stream = runtime.block_on(source.open_remote(lake, reader, None))?;
            Batches::Remote(Box::new(stream), runtime.clone())
        }
    };
    let mask = mask.filter(|m| !m.is_empty()).cloned();
    Ok(Scan { source, batches, mask, next_row: 0 })
}

impl Iterator for Scan {
    type Item = Result<ScanBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = match &mut self.batches {
            Batches::Local(reader) => {
                reader.next()?.map_err(|e| read_error(&self.source.path, e.into()))
            }
            Batches::Remote(stream, runtime) => {
                runtime.block_on(stream.next())?.map_err(|e| read_error(&self.source.path, e))
            }
        };
        Some(batch.and_then(|batch| {
            let first_row = self.next_row;
            let rows = batch.num_rows() as u32;
            self.next_row += rows;
            let live = self
                .mask
                .as_ref()
                .filter(|m| m.range_cardinality(first_row..first_row + rows) > 0)
                .map(|mask| {
                    let mut live = vec![true; rows as usize];
                    for row in mask.range(first_row..first_row + rows) {
                        if let Some(live) = live.get_mut((row - first_row) as usize) {
                            *live = false;
                        }
                    }
                    BooleanArray::from(live)
                });
            Ok(ScanBatch { first_row, batch: self.source.fit(&batch)?, live })
        }))
    }
}

/// Digest of all rows of a finished file, read back from the store. Blocking.
///
/// # Errors
/// The file can't be read.
pub fn digest_file<'a>(
    lake: &Lake,
    runtime: &Handle,
    folder: &str,
    file: impl Into<FileRef<'a>>,
    columns: &SchemaRef,
) -> Result<RowDigest> {
    let mut digest = RowDigest::default();
    for piece in scan_file(lake, runtime, folder, file, columns, None)? {
        digest.update(&piece?.batch)?;
    }
    Ok(digest)
}

//! Delta's own checkpoints of the log, so that readers need not read every commit.
//!
//! Written beside the commits, every 100 versions, and read back: a checkpoint that does not show
//! what the log showed is deleted again. A failure is a warning, never a reason to stop: the
//! commits are there.
//!
//! Files that were removed are left out of it. Delta keeps them for foreign vacuums, which leave our
//! files alone anyway (`delta.deletedFileRetentionDuration`); a checkpoint would grow with every
//! commit of that time, as each commit replaces the vector of every file it touches.

use arrow::compute::{filter_record_batch, is_null};
use bytes::Bytes;
use deltalake::DeltaTable;
use deltalake::kernel::EagerSnapshot;
use deltalake::protocol::checkpoints::create_checkpoint;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use tokio::task::JoinHandle;

use super::log::{TableLog, delta_error};
use super::read::count_rows;
use super::store::Lake;
use crate::error::{Error, Result};
use crate::failpoint;

/// Versions from one checkpoint to the next.
pub const INTERVAL: u64 = 100;

/// A checkpoint that is being written, if one is.
#[derive(Default)]
pub(super) struct Background {
    task: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a checkpoint when one is due and none is being written.
    pub fn after_commit(&mut self, log: &TableLog, files: usize) {
        if !log.version.is_multiple_of(INTERVAL)
            || self.task.as_ref().is_some_and(|t| !t.is_finished())
        {
            return;
        }
        let log = log.clone();
        self.task = Some(tokio::spawn(async move {
            if let Err(error) = write(&log, Some(files)).await {
                tracing::warn!(table = %log.folder, version = log.version, %error, "no checkpoint of the log");
            }
        }));
    }

    /// Waits for the checkpoint that is being written.
    pub async fn settle(&mut self) {
        if let Some(task) = self.task.take() {
            // A panic in there would be deltalake's; the commits are not touched by it.
            let _ = task.await;
        }
    }
}

/// Writes the checkpoint of the log's version and reads it back.
///
/// # Errors
/// It can't be written, or does not show `files` files and the domains of before.
pub(super) async fn write(log: &TableLog, files: Option<usize>) -> Result<()> {
    let doing = || format!("writing the checkpoint of version {} of {}", log.version, log.folder);
    failpoint::at("lake.checkpoint.before")?;
    let before = shown(log).await?;
    let mut table = DeltaTable::new(log.store.clone());
    table.load_version(log.version).await.map_err(|e| delta_error(doing(), e))?;
    create_checkpoint(&table, None).await.map_err(|e| delta_error(doing(), e))?;
    if let Err(error) = drop_removed(log).await {
        tracing::warn!(table = %log.folder, version = log.version, %error, "the log's checkpoint is larger than it need be");
    }
    let after = shown(log).await;
    let same =
        matches!(&after, Ok(after) if *after == before && files.is_none_or(|n| n == after.0));
    if same {
        failpoint::at("lake.checkpoint.after")?;
        return Ok(());
    }
    let path = Path::from(format!("_delta_log/{:020}.checkpoint.parquet", log.version));
    let store = log.store.object_store(None);
    // The hint first: a hint without its checkpoint is tolerated, a wrong checkpoint is not.
    let _ = store.delete(&Path::from("_delta_log/_last_checkpoint")).await;
    let _ = store.delete(&path).await;
    Err(Error::failed(format!("{}: it does not show what the log shows, and was deleted", doing())))
}

fn path_of(folder: &str, version: u64) -> String {
    format!("{folder}/_delta_log/{version:020}.checkpoint.parquet")
}

/// Writes the checkpoint again without the files that were removed.
async fn drop_removed(log: &TableLog) -> Result<()> {
    let path = path_of(&log.folder, log.version);
    let Some(bytes) = log.lake.get(&path).await? else { return Ok(()) };
    let task = tokio::task::spawn_blocking(move || without_removed(bytes));
    let written = task.await.map_err(|e| Error::failed("a write was cancelled").because(e))?;
    let written = written.map_err(|e| {
        Error::failed(format!("the checkpoint {path} can't be written again")).because(e)
    })?;
    match written {
        Some(bytes) => log.lake.put(&path, bytes).await,
        None => Ok(()),
    }
}

/// The rows of a checkpoint that are no removed files; none if that is all of them.
fn without_removed(bytes: Bytes) -> Result<Option<Bytes>, ParquetError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?;
    let rows = reader.metadata().file_metadata().num_rows();
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("tidegate version ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let options = ArrowWriterOptions::new().with_properties(properties);
    let mut writer =
        ArrowWriter::try_new_with_options(Vec::new(), reader.schema().clone(), options)?;
    let mut kept = 0;
    for batch in reader.build()? {
        let batch = batch?;
        let Some(removed) = batch.column_by_name("remove") else { return Ok(None) };
        let batch = filter_record_batch(&batch, &is_null(removed)?)?;
        kept += batch.num_rows() as i64;
        writer.write(&batch)?;
    }
    let bytes = writer.into_inner()?;
    Ok((kept < rows).then(|| bytes.into()))
}

/// Makes the log's hint name the checkpoint of `version`, unless it names a newer one.
///
/// A hint that names a checkpoint which is gone makes the table unreadable.
///
/// # Errors
/// The store fails.
pub(super) async fn point_to(lake: &Lake, folder: &str, version: u64) -> Result<()> {
    let path = format!("{folder}/_delta_log/_last_checkpoint");
    let named = lake.get(&path).await?.and_then(|bytes| {
        let hint: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
        hint.get("version")?.as_u64()
    });
    if named.is_some_and(|named| named >= version) {
        return Ok(());
    }
    let name = format!("_delta_log/{version:020}.checkpoint.parquet");
    let size = count_rows(lake, folder, &name).await?;
    let hint = serde_json::json!({ "version": version, "size": size });
    lake.put(&path, hint.to_string().into()).await
}

/// Number of files and the domains' texts at the log's version.
async fn shown(log: &TableLog) -> Result<(usize, Vec<Option<String>>)> {
    let doing = || format!("reading version {} of {}", log.version, log.folder);
    let snapshot = EagerSnapshot::try_new(log.store.as_ref(), Some(log.version))
        .await
        .map_err(|e| delta_error(doing(), e))?;
    let files: Vec<_> = snapshot
        .file_views(log.store.as_ref(), None)
        .try_collect()
        .await
        .map_err(|e| delta_error(doing(), e))?;
    let mut domains = Vec::new();
    for name in [
        super::checkpoint::CHECKPOINT_DOMAIN,
        super::ledger::PIPELINE_DOMAIN,
        super::ledger::FENCE_DOMAIN,
    ] {
        domains.push(log.domain(&snapshot, name).await?);
    }
    Ok((files.len(), domains))
}

//! Delta's own checkpoints of the log, so that readers need not read every commit.
//!
//! Written beside the commits, every 100 versions, and read back: a checkpoint that does not show
//! what the log showed is deleted again. A failure is a warning, never a reason to stop: the
//! commits are there.

use deltalake::DeltaTable;
use deltalake::kernel::EagerSnapshot;
use deltalake::protocol::checkpoints::create_checkpoint;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::task::JoinHandle;

use super::log::{TableLog, delta_error};
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

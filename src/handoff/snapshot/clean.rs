//! What is left of a run, and what goes: nothing is removed that a record names.

use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::session::Session;
use crate::handoff::spool;
use crate::lake::Phase;
use crate::source::{catalog, slot};

use super::Run;
use super::records::CHUNK_EVENT;

/// Whether the run is given up after `error`: it would come again, and nothing is published. Chunks
/// are worth keeping through everything else: a cut connection, a right that is missing for the
/// next boundary, another process that took over.
pub async fn is_final(session: &Session, error: &Error) -> bool {
    let Some(ledger) = &session.ledger else { return false };
    let state = ledger.state();
    if state.phase == Phase::Publish {
        return false;
    }
    match error.kind() {
        Kind::Transient | Kind::Fenced => false,
        Kind::Failed | Kind::Unfit | Kind::Different | Kind::HistoryLost => true,
        Kind::Config | Kind::Check => {
            let copied = ledger.read_events(Some(&state.run), Some(CHUNK_EVENT)).await;
            copied.is_ok_and(|chunks| chunks.is_empty())
        }
    }
}

/// Removes the slot of an earlier run or generation, which must be ours.
///
/// # Errors
/// It is in use; the source failing.
pub async fn drop_slot(session: &mut Session) -> Result<()> {
    // Whoever took the pipeline over meanwhile has a slot of the same name.
    session.ledger_mut()?.claim().await?;
    if slot::drop_slot(&session.client, &session.config.name).await? {
        tracing::info!(slot = session.config.name, "dropped the slot of the run before this one");
    }
    Ok(())
}

/// The files of a run that was never published.
///
/// # Errors
/// The lake failing.
pub async fn left_files(session: &Session) -> Result<Vec<String>> {
    let Some(ledger) = &session.ledger else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for table in &ledger.state().tables {
        files.extend(session.lake.unpublished(&table.folder).await?);
    }
    Ok(files)
}

/// Removes files that were found while the pipeline was ours: whoever comes after us has others of
/// the same kind, and a claim that succeeds after the finding proves that nobody had come.
///
/// # Errors
/// [`Kind::Fenced`]: somebody has. The lake failing.
pub async fn remove_ours(session: &mut Session, files: &[String]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    session.ledger_mut()?.claim().await?;
    failpoint::at("handoff.cleanup")?;
    session.lake.remove(files).await
}

/// Removes what no record of the run names: dropped chunks, chunks that were in hand, files of a
/// drain that did not end. In a folder where an earlier generation is published only chunks that
/// are known to be dropped: its own files have numbers too.
///
/// # Errors
/// The lake failing.
pub async fn sweep(session: &mut Session, run: &mut Run) -> Result<()> {
    let mut orphans = Vec::new();
    for table in &mut run.tables {
        let folder = table.held.entry.folder.clone();
        let dropped = std::mem::take(&mut table.held.dropped);
        let files = table.held.files();
        let published = session.lake.first_file(&format!("{folder}/_delta_log")).await?.is_some();
        let keep = |path: &str, _| {
            files.contains(path) || (published && !dropped.iter().any(|dropped| dropped == path))
        };
        orphans.extend(session.lake.orphans(&folder, keep).await?);
    }
    remove_ours(session, &orphans).await?;
    if !orphans.is_empty() {
        tracing::info!(removed = orphans.len(), "removed files of chunks that don't count");
    }
    Ok(())
}

/// The ledger no longer says that a snapshot is held.
pub async fn release(session: &mut Session) {
    let Some(ledger) = &mut session.ledger else { return };
    let mut state = ledger.state().clone();
    let Some(boundary) = state.boundary.as_mut().filter(|boundary| boundary.held) else { return };
    boundary.held = false;
    if let Err(e) = ledger.set_state(state, &[]).await {
        tracing::debug!("the ledger still names the snapshot: {e}");
    }
}

/// Leaves nothing half made after a definite error: no slot that holds back the log, no files.
pub async fn give_up(session: &mut Session, error: &Error) {
    let name = session.config.name.clone();
    let Some(ledger) = &mut session.ledger else { return };
    let mut state = ledger.state().clone();
    state.phase = Phase::Failed;
    state.failure = Some(error.to_string());
    state.boundary = None;
    let state = state;
    // Looked at before the record, by compare-and-swap, that proves that nobody took the pipeline
    // over until then. Whoever does so later has other files, and a slot that stands further on.
    let mut files = Vec::new();
    for folder in state.tables.iter().map(|table| &table.folder) {
        match session.lake.unpublished(folder).await {
            Ok(found) => files.extend(found),
            Err(e) => tracing::warn!("{folder}: files of the unfinished snapshot are left: {e}"),
        }
    }
    let end = catalog::insert_lsn(&session.client, session.server.in_recovery).await;
    if let Err(e) = ledger.set_state(state.clone(), &[]).await {
        tracing::warn!("the slot {name} and the copied files are left as they are: {e}");
        return;
    }
    if let Err(e) = failpoint::at("handoff.cleanup") {
        tracing::warn!("the slot {name} and the copied files are left as they are: {e}");
        return;
    }
    let dropped = match end {
        Ok(end) => slot::drop_slot_before(&session.client, &name, end).await,
        Err(error) => Err(error),
    };
    if let Err(e) = dropped {
        tracing::warn!("the slot {name} could not be dropped: {e}");
    }
    if let Err(e) = session.lake.remove(&files).await {
        tracing::warn!("files of the unfinished snapshot could not be removed: {e}");
    }
    let Some(ledger) = &mut session.ledger else { return };
    if let Err(e) = spool::discard(ledger, &session.lake).await {
        tracing::warn!("the spool of the unfinished snapshot could not be removed: {e}");
    }
    drop_publication(session, &name).await;
}

async fn drop_publication(session: &mut Session, name: &str) {
    match session.made_here().await {
        Ok(made) if made.publication => {}
        Ok(_) => return,
        Err(e) => {
            tracing::warn!("the publication {name} is left as it is: {e}");
            return;
        }
    }
    let Some(ledger) = &mut session.ledger else { return };
    let mut state = ledger.state().clone();
    // Whoever comes next uses the publication that is there. So first it is recorded, again by
    // compare-and-swap, that it is no longer ours.
    state.created_publication = false;
    if let Err(e) = ledger.set_state(state, &[]).await {
        tracing::warn!("the publication {name} is left as it is: {e}");
        return;
    }
    if let Err(e) = slot::drop_publication(&session.client, name).await {
        tracing::warn!("the publication {name} could not be dropped: {e}");
    }
}

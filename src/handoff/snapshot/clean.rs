//! What is left of a run, and what goes: nothing is removed that a record names.

use crate::error::{Error, Kind, Result};
use crate::handoff::session::Session;
use crate::handoff::spool;
use crate::lake::{Ledger, Phase};
use crate::source::client::Client;
use crate::source::slot;

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
        Kind::Failed | Kind::Different | Kind::HistoryLost => true,
        Kind::Config | Kind::Check => {
            let copied = ledger.read_events(Some(&state.run), Some(CHUNK_EVENT)).await;
            copied.is_ok_and(|chunks| chunks.is_empty())
        }
    }
}

/// Removes the slot of an earlier run or generation, if we made it.
///
/// # Errors
/// It is in use; the source failing.
pub async fn drop_slot(session: &Session) -> Result<()> {
    if session.made_here().await?.slot
        && slot::drop_slot(&session.client, &session.config.name).await?
    {
        tracing::info!(slot = session.config.name, "dropped the slot of the run before this one");
    }
    Ok(())
}

/// Removes the files of a run that was never published.
///
/// # Errors
/// The lake failing.
pub async fn remove_files(session: &Session) -> Result<()> {
    let Some(ledger) = &session.ledger else { return Ok(()) };
    for table in &ledger.state().tables {
        session.lake.remove_unpublished(&table.folder).await?;
    }
    Ok(())
}

/// Removes what no record of the run names: dropped chunks, chunks that were in hand, files of a
/// drain that did not end. In a folder where an earlier generation is published only chunks that
/// are known to be dropped: its own files have numbers too.
///
/// # Errors
/// The lake failing.
pub async fn sweep(session: &Session, run: &mut Run) -> Result<()> {
    for table in &mut run.tables {
        let folder = table.held.entry.folder.clone();
        let dropped = std::mem::take(&mut table.held.dropped);
        let files = table.held.files();
        let published = session.lake.first_file(&format!("{folder}/_delta_log")).await?.is_some();
        let keep = |path: &str, _| {
            files.contains(path) || (published && !dropped.iter().any(|dropped| dropped == path))
        };
        let removed = session.lake.remove_orphans(&folder, keep).await?;
        if removed > 0 {
            tracing::info!(table = %table.plan, removed, "removed files of chunks that don't count");
        }
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
    // By compare-and-swap, and first: if another process took the pipeline over, slot and files
    // are its own by now.
    if let Err(e) = ledger.set_state(state.clone(), &[]).await {
        tracing::warn!("the slot {name} and the copied files are left as they are: {e}");
        return;
    }
    if let Err(e) = slot::drop_slot(&session.client, &name).await {
        tracing::warn!("the slot {name} could not be dropped: {e}");
    }
    for folder in state.tables.iter().map(|table| &table.folder) {
        if let Err(e) = session.lake.remove_unpublished(folder).await {
            tracing::warn!("{folder}: files of the unfinished snapshot could not be removed: {e}");
        }
    }
    let Some(ledger) = &mut session.ledger else { return };
    if let Err(e) = spool::discard(ledger, &session.lake).await {
        tracing::warn!("the spool of the unfinished snapshot could not be removed: {e}");
    }
    drop_publication(&session.client, ledger, &name).await;
}

async fn drop_publication(client: &Client, ledger: &mut Ledger, name: &str) {
    let mut state = ledger.state().clone();
    if !state.created_publication {
        return;
    }
    match slot::drop_publication(client, name).await {
        Ok(()) => {
            state.created_publication = false;
            if let Err(e) = ledger.set_state(state, &[]).await {
                tracing::warn!("the ledger still names the publication {name}: {e}");
            }
        }
        Err(e) => tracing::warn!("the publication {name} could not be dropped: {e}"),
    }
}

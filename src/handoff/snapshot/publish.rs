//! Makes drafts visible: one commit each, all at one position, then the fence there.

use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::session::{Session, blocking};
use crate::lake::ledger::LIVE;
use crate::lake::{LakeTable, Phase, PipelineState, Tag, VersionKind};
use crate::position::Lsn;

use super::drafts::{Drafted, checkpoint};

/// Publishes every draft, then goes live at `handoff`.
///
/// # Errors
/// [`Kind::Fenced`] when another process published; source or lake failing.
pub async fn publish(session: &mut Session, tables: Vec<Drafted>, handoff: Lsn) -> Result<()> {
    let state = session.ledger_mut()?.state().clone();
    for table in tables {
        publish_table(session, table, &state, handoff).await?;
    }
    go_live(session, state, handoff).await
}

/// Whether this run has published the table in `folder`; what an earlier generation left, if not.
///
/// # Errors
/// [`Kind::Fenced`]: somebody else published there.
pub async fn look(session: &Session, folder: &str, state: &PipelineState) -> Result<Published> {
    let Some(table) = LakeTable::open(&session.lake, folder).await? else {
        return Ok(Published::No(None));
    };
    let checkpoint = table.checkpoint();
    if checkpoint.run == state.run {
        return Ok(Published::Yes);
    }
    if checkpoint.pipeline != state.pipeline || checkpoint.generation >= state.generation {
        return Err(Error::new(
            Kind::Fenced,
            format!("{folder}: another run published it meanwhile"),
        )
        .next("look for a second process of this pipeline"));
    }
    Ok(Published::No(Some(Box::new(table))))
}

/// What [`look`] finds.
pub enum Published {
    /// This run has published the table.
    Yes,
    /// It has not; an earlier generation may have.
    No(Option<Box<LakeTable>>),
}

/// One commit makes the table exist: protocol, metadata, files, checkpoint and tag.
async fn publish_table(
    session: &Session,
    table: Drafted,
    state: &PipelineState,
    handoff: Lsn,
) -> Result<()> {
    let plan = table.applier.plan().clone();
    let existing = match look(session, &plan.folder, state).await? {
        Published::Yes => return Ok(()),
        Published::No(existing) => existing.map(|table| *table),
    };
    failpoint::at("handoff.publish.before")?;
    put(session, table, existing, state, handoff).await?;
    failpoint::at("handoff.publish.after")
}

/// Puts a draft in the place of `existing`, by one commit right above the version that is known of
/// it: whoever committed in between is met there.
///
/// # Errors
/// [`Kind::Fenced`] when another process of the pipeline committed; the lake failing.
pub async fn put(
    session: &Session,
    table: Drafted,
    existing: Option<LakeTable>,
    state: &PipelineState,
    at: Lsn,
) -> Result<()> {
    let plan = table.applier.plan().clone();
    let (draft, index) = table.applier.into_parts();
    let rows = draft.live_rows();
    let checkpoint = checkpoint(&plan, state, at);
    let tag = Tag {
        rows_in: rows,
        rows_out: existing.as_ref().map_or(0, LakeTable::live_rows),
        ..Tag::of(VersionKind::Handoff, &checkpoint)
    };
    let properties = plan.known.properties()?;
    let published = draft.publish(&session.lake, existing, checkpoint, tag, &properties).await;
    published.map_err(|e| e.at(&*plan))?;
    if let Some(mut index) = index {
        let flushed = blocking(move || index.flush()).await;
        if let Err(e) = flushed {
            tracing::warn!("{plan}: {e}; the next start makes the index from the lake");
        }
    }
    tracing::info!(table = %plan, rows, base = %at, "published");
    Ok(())
}

/// The fence at the handoff: all tables show the same position.
async fn go_live(session: &mut Session, mut state: PipelineState, handoff: Lsn) -> Result<()> {
    state.phase = Phase::Live;
    state.base = Some(handoff);
    for table in &mut state.tables {
        // What only a run in progress needs; a pipeline may have very many partitions.
        table.leaves.clear();
        if table.is_followed() {
            table.phase = LIVE.to_owned();
        }
    }
    failpoint::at("handoff.live.before")?;
    session.ledger_mut()?.go_live(state, handoff).await?;
    failpoint::at("handoff.live.after")
}

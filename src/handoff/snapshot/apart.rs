//! Copies some tables of a live pipeline again, at a boundary of their own, beside the stream.
//!
//! ```text
//!   fence F stays ──────────────────────────────────────── stream of all from F
//!      │  stream of the others, their tables go on           ▲
//!      ╰─► boundary B ─► copy, validate ─► draft ─► publish ─╯
//! ```
//!
//! The boundary comes after the fence was held, so B is not below it and the slot keeps every
//! change from B on. The new rows, with the columns of B, take the place of all the old ones in one
//! commit, a handoff version at B. What a reader finds until then is the table as it was.

use std::sync::Arc;

use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::session::{Session, blocking};
use crate::lake::{FileNo, LakeTable, PipelineState, Tag, VersionKind};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::catalog::TableInfo;

use super::copying::{self, Ended};
use super::drafts::{self, Drafted, checkpoint};
use super::tables::{Held, RunTable};
use super::{Run, boundary};

/// A table to copy again.
pub struct Wanted {
    /// The catalog's entry.
    pub info: TableInfo,
    /// Its plan.
    pub plan: Arc<TablePlan>,
    /// The first number its new files may have.
    pub next_file_no: FileNo,
}

/// Tables that were copied again and wait for their commit.
pub struct Apart {
    /// The position they show.
    pub base: Lsn,
    /// The run's name.
    pub run: String,
    /// The tables.
    pub tables: Vec<Drafted>,
}

/// Copies the tables. None: the program was asked to stop. The fence must be held.
///
/// # Errors
/// Source or lake failing, a failed validation; transient when a table changes at that moment.
pub async fn copy_apart(
    session: &Session,
    state: &PipelineState,
    wanted: Vec<Wanted>,
    stop: &StopSignal,
) -> Result<Option<Apart>> {
    let mut exported = boundary::next(session).await?;
    failpoint::at("again.boundary")?;
    let looked_at = wanted.iter().map(|table| (&table.info, &table.plan));
    let (guard, again) = boundary::lock(session, &exported.snapshot, looked_at).await?;
    exported.again = Some(again);
    let table = |Wanted { info, plan, next_file_no }: Wanted| {
        let held = Held::nothing(&plan, &info, next_file_no);
        RunTable { info, plan, held }
    };
    let tables = wanted.into_iter().map(table).collect();
    let mut run = Run { tables, boundaries: 1, looked: true };
    let tasks = copying::plan(session, &mut run);
    let ended = copying::copy_apart(session, &mut run, &state.run, tasks, &exported, stop).await?;
    drop(guard);
    let base = exported.base;
    drop(exported);
    if ended != Ended::Done {
        return Ok(None);
    }
    failpoint::at("again.copied")?;
    let indexed = run.tables.iter().filter(|table| table.plan.needs_index()).count();
    let memory = session.config.limits.index_memory_bytes as usize / 2 / indexed.max(1);
    let mut drafts = Vec::with_capacity(run.tables.len());
    for table in run.tables {
        let copied: u64 = table.held.chunks.iter().map(|chunk| chunk.rows).sum();
        if let Some(counted) = table.held.counted.filter(|counted| counted.rows != copied) {
            return Err(Error::failed(format!(
                "{}: {copied} rows were copied, the snapshot has {}",
                table.plan, counted.rows
            ))
            .next("nothing was published; report this with the server's version"));
        }
        drafts.push(drafts::draft(session, state, table, base, memory, true).await?);
    }
    Ok(Some(Apart { base, run: state.run.clone(), tables: drafts }))
}

/// One commit puts the new rows in the place of the old ones.
///
/// # Errors
/// [`Kind::Fenced`](crate::error::Kind::Fenced) when another process wrote the table; the lake
/// failing.
pub async fn publish_apart(
    session: &Session,
    state: &PipelineState,
    table: Drafted,
    base: Lsn,
) -> Result<()> {
    let plan = table.applier.plan().clone();
    let existing = LakeTable::open(&session.lake, &plan.folder).await?;
    failpoint::at("again.publish.before")?;
    let (draft, index) = table.applier.into_parts();
    let rows = draft.live_rows();
    let tag = Tag {
        kind: VersionKind::Handoff,
        generation: state.generation,
        base,
        applied: base,
        source_time: None,
        rows_in: rows,
        rows_out: existing.as_ref().map_or(0, LakeTable::live_rows),
        pipeline: state.pipeline.clone(),
        run: state.run.clone(),
    };
    let checkpoint = checkpoint(&plan, state, base);
    let properties = plan.known.properties()?;
    let published = draft.publish(&session.lake, existing, checkpoint, tag, &properties).await;
    published.map_err(|e| e.at(&*plan))?;
    if let Some(mut index) = index
        && let Err(e) = blocking(move || index.flush()).await
    {
        tracing::warn!("{plan}: {e}; the next start makes the index from the lake");
    }
    tracing::info!(table = %plan, rows, %base, "published anew");
    failpoint::at("again.publish.after")
}

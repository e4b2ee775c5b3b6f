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
use crate::handoff::session::Session;
use crate::lake::{FileNo, LakeTable, PipelineState};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::catalog::TableInfo;

use super::copying::{self, Ended};
use super::drafts::{self, Drafted};
use super::tables::{Held, RunTable};
use super::{Run, boundary, publish};

/// A table to copy again.
pub struct Wanted {
    /// The catalog's entry.
    pub info: TableInfo,
    /// Its plan.
    pub plan: Arc<TablePlan>,
    /// The lake table whose place it takes, as it was before the copy: the commit goes right above
    /// that version, and so not over one of a process that took the pipeline over meanwhile.
    pub existing: Option<LakeTable>,
    /// The first number its new files may have.
    pub next_file_no: FileNo,
}

/// Tables that were copied again and wait for their commit.
pub struct Apart {
    /// The position they show.
    pub base: Lsn,
    /// The run's name.
    pub run: String,
    /// The tables, each with the one whose place it takes.
    pub tables: Vec<(Drafted, Option<LakeTable>)>,
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
    let table = |Wanted { info, plan, existing, next_file_no }: Wanted| {
        let held = Held::nothing(&plan, &info, next_file_no);
        (RunTable { info, plan, held }, existing)
    };
    let (tables, existing): (Vec<_>, Vec<_>) = wanted.into_iter().map(table).unzip();
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
    for (table, existing) in run.tables.into_iter().zip(existing) {
        let copied: u64 = table.held.chunks.iter().map(|chunk| chunk.rows).sum();
        if let Some(counted) = table.held.counted.filter(|counted| counted.rows != copied) {
            return Err(Error::failed(format!(
                "{}: {copied} rows were copied, the snapshot has {}",
                table.plan, counted.rows
            ))
            .next("nothing was published; report this with the server's version"));
        }
        let draft = drafts::draft(session, state, table, base, memory, true).await?;
        drafts.push((draft, existing));
    }
    Ok(Some(Apart { base, run: state.run.clone(), tables: drafts }))
}

/// One commit for each table puts the new rows in the place of the old ones.
///
/// The ledger must have been claimed since the copy: a process that was taken over ends there, and one
/// that is taken over after it meets the version its successor made of each table.
///
/// # Errors
/// [`Kind::Fenced`](crate::error::Kind::Fenced) when another process wrote a table; the lake
/// failing.
pub async fn publish_apart(session: &Session, state: &PipelineState, apart: Apart) -> Result<()> {
    for (table, existing) in apart.tables {
        failpoint::at("again.publish.before")?;
        publish::put(session, table, existing, state, apart.base).await?;
        failpoint::at("again.publish.after")?;
    }
    Ok(())
}

//! Takes the first snapshot of all tables and publishes it: the handoff.
//!
//! ```text
//!   announce ─► publication ─► slot + exported snapshot ─► lock, look again ─► copy, validate
//!      (ledger)                    (the first boundary)        ▲                   │
//!                                                              │ old, or a restart │ every chunk
//!                                   next boundary (a temporary slot) ◄─────────────┤ is recorded
//!                                                                                  ▼
//!   live ◄─ fence ◄─ publish each table ◄─ recorded ◄─ drain to one position, if there were several
//!  (ledger)            (one commit each)    (ledger)
//! ```
//!
//! The run is announced in the ledger before the slot is made, so a slot without a record is a
//! stranger's. Nothing is visible before every table is copied, brought to one position and
//! validated. A run that ends before that is taken up by the next start: finished chunks stay valid
//! at their own base, the rest is copied at a new boundary, and the slot, which keeps everything
//! from the first boundary on, joins them ([`rules`](crate::handoff::rules), `bases`). Only an error
//! that would come again gives the run up and leaves nothing behind. From the record "publish" on, a
//! crash is continued, not restarted: files and digests are in the ledger.

mod apart;
mod boundary;
mod clean;
mod copying;
mod drafts;
mod drain;
mod open;
mod publish;
mod records;
mod reread;
mod tables;

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::retain::Retention;
use crate::handoff::session::Session;
use crate::lake::{Event, Phase};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;

pub use apart::{Apart, Wanted, copy_apart, publish_apart};
pub use records::{ChunkRecord, Counted, TableRecords, of_table};

use boundary::Exported;
use copying::Ended;
use drafts::Drafted;
use drain::{Drained, Stretch};
use tables::RunTable;

/// How often moved rows are read again before the tables that have them are copied again.
const REREADS: u32 = 8;

/// The tables of a run in progress.
pub struct Run {
    /// In the order of the catalog.
    tables: Vec<RunTable>,
    /// Boundaries made so far.
    boundaries: u32,
    /// The tables were just looked at, not before the boundary before this one.
    looked: bool,
}

/// What came of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All tables are published.
    Published,
    /// The program was asked to stop; finished chunks are kept.
    Stopped,
}

/// Takes the snapshot from scratch; what an earlier, unpublished run left is removed. Tables that
/// an earlier generation published stay readable until the new generation's commit replaces them.
///
/// # Errors
/// Findings of the check, a failed validation, source or lake failing. After a definite error slot
/// and files of the run are removed.
pub async fn take(session: &mut Session, stop: &StopSignal) -> Result<Taken> {
    let run = open::announce(session).await?;
    failpoint::at("handoff.announced")?;
    copy_and_publish(session, run, stop).await
}

/// Goes on with a run that ended before it published, and whose slot still has its whole history.
///
/// # Errors
/// As [`take`].
pub async fn resume(session: &mut Session, stop: &StopSignal) -> Result<Taken> {
    session.ledger_mut()?.claim().await?;
    let Some(run) = open::taken_up(session).await? else {
        tracing::warn!("the interrupted snapshot can't be continued; it starts again");
        return take(session, stop).await;
    };
    failpoint::at("handoff.resumed")?;
    copy_and_publish(session, run, stop).await
}

/// Publishes what a run recorded before it ended.
///
/// # Errors
/// Source or lake failing.
pub async fn continue_publishing(session: &mut Session, stop: &StopSignal) -> Result<Taken> {
    session.ledger_mut()?.claim().await?;
    let state = session.ledger_mut()?.state().clone();
    let no_base = || Error::failed("the ledger has no base position for the snapshot");
    let slot = state.base.ok_or_else(no_base)?;
    let handoff = state.handoff.unwrap_or(slot);
    let run = open::to_be_published(session).await?;
    let Some((mut tables, given_up)) =
        bring_to(session, run.tables, Stretch { slot, from: slot, until: handoff }, false, stop)
            .await?
    else {
        return Ok(Taken::Stopped);
    };
    let folder = |index: &usize| tables.get(*index).map(|table| table.entry.folder.clone());
    let left: BTreeMap<String, String> =
        given_up.iter().filter_map(|(index, why)| Some((folder(index)?, why.clone()))).collect();
    tables.retain(|table| !left.contains_key(&table.entry.folder));
    open::leave_to_be_read_again(session, &left).await?;
    publish::publish(session, tables, handoff).await?;
    Ok(Taken::Published)
}

async fn copy_and_publish(session: &mut Session, mut run: Run, stop: &StopSignal) -> Result<Taken> {
    loop {
        match attempt(session, run, stop).await {
            Ok(Outcome::Published) => return Ok(Taken::Published),
            Ok(Outcome::Stopped) => {
                clean::release(session).await;
                tracing::info!("stopped while copying: the finished chunks are kept");
                return Ok(Taken::Stopped);
            }
            Ok(Outcome::Again(again)) => run = again,
            Err(error) => {
                if clean::is_final(session, &error).await {
                    clean::give_up(session, &error).await;
                }
                return Err(error);
            }
        }
    }
}

enum Outcome {
    Published,
    Stopped,
    /// Some tables must be copied again.
    Again(Run),
}

async fn attempt(session: &mut Session, mut run: Run, stop: &StopSignal) -> Result<Outcome> {
    while needs_boundary(session, &run) {
        let boundary = open::boundary(session, &mut run).await?;
        let Opened { exported, guard, tasks } = boundary;
        // The slot and the spool begin at the first base, whichever boundary this is.
        let plans: Vec<_> = run.tables.iter().map(|table| table.plan.clone()).collect();
        let slot = session.ledger_mut()?.state().base.unwrap_or(exported.base);
        let mut retention = Retention::begin(session, slot, &plans).await?;
        let ended = copying::copy(session, &mut run, tasks, &exported, &mut retention, stop).await;
        let ended = retention.end(session, ended).await?;
        drop(guard);
        drop(exported);
        match ended {
            Ended::Done => {}
            Ended::Old => tracing::info!(
                "the snapshot is as old as [handoff] max_snapshot_age allows; going on at a new one"
            ),
            Ended::Stopped => return Ok(Outcome::Stopped),
        }
    }
    join_and_publish(session, run, stop).await
}

/// A boundary with its locks, and what is to be copied at it.
pub struct Opened {
    exported: Exported,
    guard: crate::source::wire::Wire,
    tasks: Vec<(crate::handoff::queue::Task, Option<crate::handoff::queue::Group>)>,
}

fn needs_boundary(session: &Session, run: &Run) -> bool {
    let count = session.config.handoff.validate_count;
    run.tables.iter().any(|table| {
        !table.is_complete() || (count && !table.info.leaves.is_empty() && table.lacks_count())
    }) || run.boundaries == 0
}

/// Brings all tables to the largest base, reads again what moved, and publishes.
async fn join_and_publish(session: &mut Session, run: Run, stop: &StopSignal) -> Result<Outcome> {
    let state = session.ledger_mut()?.state().clone();
    let no_base = || Error::failed("the ledger has no base position for the snapshot");
    let slot = state.base.ok_or_else(no_base)?;
    let bases = |table: &RunTable| [table.held.highest(), table.held.counted.map(|c| c.base)];
    let mut handoff = run.tables.iter().flat_map(bases).flatten().max().unwrap_or(slot);
    let mut boundaries = run.boundaries;
    let mut again: BTreeMap<usize, String> = BTreeMap::new();
    let mut rereads: Vec<(usize, ChunkRecord)> = Vec::new();
    let stretch = Stretch { slot, from: slot, until: handoff };
    let Some((mut tables, given_up)) = bring_to(session, run.tables, stretch, true, stop).await?
    else {
        return Ok(Outcome::Stopped);
    };
    again.extend(given_up);
    for round in 1.. {
        let moved =
            |table: &Drafted| table.applier.join().is_some_and(|join| join.unresolved_len() > 0);
        if !tables.iter().enumerate().any(|(i, t)| moved(t) && !again.contains_key(&i)) {
            break;
        }
        if round > REREADS {
            for (index, table) in tables.iter_mut().enumerate().filter(|(_, t)| moved(t)) {
                table.entry.whole = true;
                let why = format!("rows of it moved again while they were read {REREADS} times");
                again.entry(index).or_insert(why);
            }
            break;
        }
        let exported = boundary::next(session).await?;
        boundaries += 1;
        open::record_boundary(session, exported.entry(boundaries)).await?;
        let locked = tables.iter().map(|table| (&table.info, table.applier.plan()));
        let (guard, _) = boundary::lock(session, &exported.snapshot, locked).await?;
        let (read, records) = reread::reread(session, tables, &exported).await?;
        rereads.extend(records);
        let stretch = Stretch { slot, from: handoff, until: exported.base };
        drop((guard, exported));
        handoff = stretch.until;
        match drain::drain(session, read, stretch, stop).await? {
            Drained::To(drained, given_up) => {
                tables = drained;
                again.extend(given_up);
            }
            Drained::Stopped => return Ok(Outcome::Stopped),
        }
    }
    if !again.is_empty() {
        return open::again(session, tables, &again).await.map(Outcome::Again);
    }
    record(session, &tables, &rereads, handoff).await?;
    publish::publish(session, tables, handoff).await?;
    Ok(Outcome::Published)
}

/// Makes drafts of the tables, and drains them to the end of `stretch` where one stands below it.
/// None: the program was asked to stop.
async fn bring_to(
    session: &mut Session,
    tables: Vec<RunTable>,
    stretch: Stretch,
    validate: bool,
    stop: &StopSignal,
) -> Result<Option<(Vec<Drafted>, BTreeMap<usize, String>)>> {
    let until = stretch.until;
    let from = tables.iter().filter_map(|table| table.held.lowest()).min().unwrap_or(until);
    let joins = from < until;
    let indexed = tables.iter().filter(|table| table.plan.needs_index()).count();
    let memory = session.config.limits.index_memory_bytes as usize / indexed.max(1);
    let state = session.ledger_mut()?.state().clone();
    let mut drafts = Vec::with_capacity(tables.len());
    for table in tables {
        // What is copied at one position is compared with the source's count as it is.
        let one_base = table
            .held
            .counted
            .filter(|counted| table.held.lowest() == Some(counted.base) && validate);
        let copied: u64 = table.held.chunks.iter().map(|chunk| chunk.rows).sum();
        if let Some(counted) = one_base.filter(|counted| counted.rows != copied) {
            return Err(Error::failed(format!(
                "{}: {copied} rows were copied, the snapshot has {}",
                table.plan, counted.rows
            ))
            .next("nothing was published; report this with the server's version"));
        }
        let index = joins || validate;
        let mut draft = drafts::draft(session, &state, table, until, memory, index).await?;
        if !validate || one_base.is_some() {
            draft.counted = None;
        }
        drafts.push(draft);
    }
    if !joins {
        return Ok(Some((drafts, BTreeMap::new())));
    }
    let publishing = session.ledger_mut()?.state().phase == Phase::Publish;
    if !publishing {
        let mut state = session.ledger_mut()?.state().clone();
        state.phase = Phase::Drain;
        if let Some(boundary) = &mut state.boundary {
            boundary.held = false;
        }
        session.ledger_mut()?.set_state(state, &[]).await?;
    }
    tracing::info!(%from, %until, tables = drafts.len(), "draining to one position");
    failpoint::at("handoff.drain.before")?;
    let drained = drain::drain(session, drafts, Stretch { from, ..stretch }, stop).await?;
    failpoint::at("handoff.drain.after")?;
    Ok(match drained {
        Drained::To(drafts, given_up) => Some((drafts, given_up)),
        Drained::Stopped => None,
    })
}

/// Everything is copied, brought to `handoff` and validated: from here on the run is published.
async fn record(
    session: &mut Session,
    tables: &[Drafted],
    rereads: &[(usize, ChunkRecord)],
    handoff: Lsn,
) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    state.phase = Phase::Publish;
    state.handoff = Some(handoff);
    if let Some(boundary) = &mut state.boundary {
        boundary.held = false;
    }
    let mut events: Vec<Event> = Vec::with_capacity(rereads.len());
    for (index, record) in rereads {
        if let Some(table) = tables.get(*index) {
            let plan = table.applier.plan();
            events.push(records::reread_event(&state.run, plan, &table.entry, record)?);
        }
    }
    failpoint::at("handoff.validated")?;
    session.ledger_mut()?.set_state(state, &events).await?;
    failpoint::at("handoff.recorded")
}

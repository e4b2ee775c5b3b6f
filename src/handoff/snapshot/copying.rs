//! Copies what is missing of all tables at one boundary, until it is done, old, or stopped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::copy::{CopyRun, Done, run_workers};
use crate::handoff::plan::{Chunk, ChunkLimits, chunks, largest_first};
use crate::handoff::queue::{Group, Queue, Task};
use crate::handoff::retain::Retention;
use crate::handoff::session::Session;
use crate::lake::Event;
use crate::lake::locations::Locations;
use crate::observe::metrics::CopyPlan;
use crate::observe::progress::Progress;
use crate::observe::stop::StopSignal;
use crate::position::Lsn;

use super::Run;
use super::boundary::Exported;
use super::records::{self, Counted};
use super::tables::RunTable;

/// Rows from which PostgreSQL 14 and later can copy a range of ctids without reading the rest.
const TID_RANGE_VERSION: u32 = 140_000;
/// No chunk is smaller than this, unless its table is.
const MIN_CHUNK_BYTES: u64 = 16 << 20;

/// Why the copy at a boundary ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing is left to copy.
    Done,
    /// The boundary is as old as it may be.
    Old,
    /// The program was asked to stop.
    Stopped,
}

/// Cuts what is missing into chunks, and numbers them; the tables' entries say how many there are.
pub fn plan(session: &Session, run: &mut Run) -> Vec<(Task, Option<Group>)> {
    let config = &session.config.handoff;
    let limits = ChunkLimits {
        workers: config.worker_count(),
        max_bytes: config.chunk_bytes,
        min_bytes: MIN_CHUNK_BYTES,
        ranges: session.server.version >= TID_RANGE_VERSION,
    };
    let (mut whole, mut split): (Vec<Vec<Chunk>>, Vec<Chunk>) = (Vec::new(), Vec::new());
    for (index, table) in run.tables.iter_mut().enumerate() {
        let first = table.held.entry.next_file_no;
        let mut cut = chunks(&table.missing(), index, first, limits);
        let count = cut.len() as u32;
        table.held.entry.next_file_no = first.saturating_add(count);
        table.held.entry.chunks = Some(table.held.chunks.len() as u64 + u64::from(count));
        if cut.is_empty() {
            continue;
        }
        if table.splits() {
            split.append(&mut cut);
        } else {
            largest_first(&mut cut);
            whole.push(cut);
        }
    }
    // Tables that can't be split first: they are never the ones that wait for the next boundary.
    let pages = |chunks: &Vec<Chunk>| chunks.iter().map(|chunk| chunk.pages).sum::<u64>();
    whole.sort_by_key(|chunks| std::cmp::Reverse(pages(chunks)));
    largest_first(&mut split);
    let mut tasks: Vec<(Task, Option<Group>)> = Vec::new();
    for chunk in whole.into_iter().flatten() {
        let group = Group::Chunks(chunk.table);
        tasks.push((Task::Copy(chunk), Some(group)));
    }
    tasks.extend(split.into_iter().map(|chunk| (Task::Copy(chunk), None)));
    if config.validate_count {
        let lacking = run
            .tables
            .iter()
            .enumerate()
            .filter(|(_, table)| table.lacks_count() || !table.is_complete());
        for (index, table) in lacking {
            for leaf in &table.info.leaves {
                let task = Task::Count(index, (leaf.schema.clone(), leaf.name.clone()));
                tasks.push((task, Some(Group::Counts(index))));
            }
        }
    }
    tasks
}

/// Copies what `tasks` say; each chunk that is done goes to the ledger.
///
/// # Errors
/// A chunk that can't be copied or is not what was copied; source or lake failing. What the ledger
/// has stays.
pub async fn copy(
    session: &mut Session,
    run: &mut Run,
    tasks: Vec<(Task, Option<Group>)>,
    boundary: &Exported,
    retention: &mut Retention,
    stop: &StopSignal,
) -> Result<Ended> {
    let age = session.config.handoff.max_snapshot_age;
    let until = (!age.is_zero()).then(|| boundary.made.checked_add(age)).flatten();
    let id = session.ledger_mut()?.state().run.clone();
    let mut work = Work::begin(session, run, &id, tasks, boundary, until)?;
    let (progress, stopped) = (work.progress.clone(), work.stopped.clone());
    stopped.store(stop.is_set(), Ordering::Relaxed);
    let mut given_up: Option<Error> = None;
    let metrics = session.metrics.clone();
    loop {
        tokio::select! {
            received = work.done.recv() => {
                let Some(first) = received else { break };
                let mut events = Vec::new();
                let mut next = Some(first);
                while let Some(result) = next {
                    if matches!(result, Done::Copied(_)) {
                        metrics.chunk_done();
                    }
                    work.gather.take_in(result, &mut run.tables, &mut events)?;
                    next = work.done.try_recv().ok();
                }
                if !events.is_empty() {
                    session.ledger_mut()?.append_events(&events).await?;
                    session.chunks_recorded += events.len() as u64;
                    failpoint::at("handoff.chunk.recorded")?;
                }
            }
            event = retention.event(), if given_up.is_none() => {
                if let Err(error) = retention.act(session, &progress, event).await {
                    given_up = Some(error);
                    stopped.store(true, Ordering::Relaxed);
                }
            }
            () = stop.requested(), if !stopped.load(Ordering::Relaxed) => {
                stopped.store(true, Ordering::Relaxed);
            }
        }
    }
    work.end(run, given_up).await
}

/// As [`copy`], beside a running stream, for a run that the ledger has no chunks of: one that ends
/// before its end is lost.
///
/// # Errors
/// A chunk that can't be copied or is not what was copied; source or lake failing.
pub async fn copy_apart(
    session: &Session,
    run: &mut Run,
    id: &str,
    tasks: Vec<(Task, Option<Group>)>,
    boundary: &Exported,
    stop: &StopSignal,
) -> Result<Ended> {
    let mut work = Work::begin(session, run, id, tasks, boundary, None)?;
    work.stopped.store(stop.is_set(), Ordering::Relaxed);
    let mut unrecorded = Vec::new();
    loop {
        tokio::select! {
            received = work.done.recv() => {
                let Some(result) = received else { break };
                work.gather.take_in(result, &mut run.tables, &mut unrecorded)?;
                unrecorded.clear();
            }
            () = stop.requested(), if !work.stopped.load(Ordering::Relaxed) => {
                work.stopped.store(true, Ordering::Relaxed);
            }
        }
    }
    work.end(run, None).await
}

/// The workers of a copy.
struct Work {
    done: tokio::sync::mpsc::UnboundedReceiver<Done>,
    task: tokio::task::JoinHandle<(CopyRun, Result<()>)>,
    queue: Arc<Queue>,
    gather: Gather,
    progress: Progress,
    stopped: Arc<AtomicBool>,
}

impl Work {
    fn begin(
        session: &Session,
        run: &mut Run,
        id: &str,
        tasks: Vec<(Task, Option<Group>)>,
        boundary: &Exported,
        until: Option<Instant>,
    ) -> Result<Work> {
        let workers = session.config.handoff.worker_count().min(tasks.len()).max(1);
        let queue = Arc::new(Queue::new(tasks, until, workers));
        let progress = show(session, run);
        let stopped = Arc::new(AtomicBool::new(false));
        let again = boundary.again.as_ref();
        let copy = CopyRun {
            source: session.source.clone(),
            snapshots: [Some(&boundary.snapshot), again.map(|again| &again.name)]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            shows: again.map(|again| again.shows.clone()),
            base: boundary.base,
            plans: run.tables.iter().map(|table| table.plan.clone()).collect(),
            lake: session.lake.clone(),
            runtime: tokio::runtime::Handle::current(),
            indexes: indexes(session, run, id)?,
            next_file_nos: run
                .tables
                .iter()
                .map(|table| AtomicU32::new(table.held.entry.next_file_no))
                .collect(),
            progress: progress.clone(),
            stop: stopped.clone(),
        };
        let (sender, done) = tokio::sync::mpsc::unbounded_channel();
        let given = queue.clone();
        let task = tokio::task::spawn_blocking(move || {
            let result = run_workers(&copy, &given, workers, &|result| {
                sender.send(result).map_err(|_| Error::failed("the snapshot was given up"))
            });
            (copy, result)
        });
        let gather = Gather::new(id, run, boundary.base, &progress);
        Ok(Work { done, task, queue, gather, progress, stopped })
    }

    async fn end(self, run: &mut Run, given_up: Option<Error>) -> Result<Ended> {
        let ended = self.task.await;
        let (copy, result) = ended.map_err(|e| Error::failed("the copy died").because(e))?;
        let of_tables = copy.indexes.into_iter().zip(copy.next_file_nos);
        for (table, (index, next_file_no)) in run.tables.iter_mut().zip(of_tables) {
            table.held.index = index;
            table.held.entry.next_file_no = next_file_no.into_inner();
        }
        if let Some(error) = given_up {
            return Err(error);
        }
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(Ended::Stopped);
        }
        result?;
        if self.queue.has_tasks() {
            return Ok(Ended::Old);
        }
        self.progress.finish();
        Ok(Ended::Done)
    }
}

fn show(session: &Session, run: &Run) -> Progress {
    let left = |table: &RunTable| {
        let kept: u64 = table.held.chunks.iter().map(|chunk| chunk.rows).sum();
        (table.info.rows_estimated.max(0.0) as u64).saturating_sub(kept)
    };
    session.metrics.copy_begins(copy_plan(run));
    let left = run.tables.iter().map(left).sum();
    let progress = Progress::of_snapshot(left, session.metrics.copied.clone());
    progress.set_tables(run.tables.len() as u64);
    for _ in run.tables.iter().filter(|table| table.is_complete()) {
        progress.table_done();
    }
    progress
}

/// What there is to copy, and what of it is copied.
fn copy_plan(run: &Run) -> CopyPlan {
    let mut plan = CopyPlan::default();
    for table in &run.tables {
        let kept = &table.held.chunks;
        let rows: u64 = kept.iter().map(|chunk| chunk.rows).sum();
        plan.rows += rows;
        plan.bytes += kept.iter().map(|chunk| chunk.bytes).sum::<u64>();
        plan.expected_rows += (table.info.rows_estimated.max(0.0) as u64).max(rows);
        plan.source_bytes += table.info.leaves.iter().map(|leaf| leaf.bytes).sum::<u64>();
        plan.chunks += kept.len() as u64;
        plan.expected_chunks += table.held.entry.chunks.unwrap_or(kept.len() as u64);
    }
    plan
}

/// The index of each table that has chunks to come and needs one.
fn indexes(session: &Session, run: &mut Run, id: &str) -> Result<Vec<Option<Locations>>> {
    let indexed = run.tables.iter().filter(|table| table.plan.needs_index()).count();
    let memory = session.config.limits.index_memory_bytes as usize / indexed.max(1);
    let mut indexes = Vec::with_capacity(run.tables.len());
    for table in &mut run.tables {
        let index = match table.held.index.take() {
            Some(index) => Some(index),
            None if table.plan.needs_index() && !table.is_complete() => {
                Some(new_index(session, &table.plan, id, memory)?)
            }
            None => None,
        };
        indexes.push(index);
    }
    Ok(indexes)
}

/// An empty index of a table of the run.
///
/// # Errors
/// The state folder can't be used.
pub fn new_index(
    session: &Session,
    plan: &TablePlan,
    run: &str,
    memory: usize,
) -> Result<Locations> {
    let (identity, options) = crate::handoff::index::settings(plan, run, memory);
    Locations::create(&session.index_folder(plan), &identity, options).map_err(|e| e.at(plan))
}

/// Takes the workers' results in.
struct Gather {
    run: String,
    base: Lsn,
    progress: Progress,
    /// Leaves still to be counted and rows counted, by table.
    counts: HashMap<usize, (usize, u64)>,
}

impl Gather {
    fn new(id: &str, run: &Run, base: Lsn, progress: &Progress) -> Gather {
        let leaves = |table: &RunTable| (table.info.leaves.len(), 0);
        Gather {
            run: id.to_owned(),
            base,
            progress: progress.clone(),
            counts: run.tables.iter().map(leaves).enumerate().collect(),
        }
    }

    fn take_in(
        &mut self,
        result: Done,
        tables: &mut [RunTable],
        events: &mut Vec<Event>,
    ) -> Result<()> {
        match result {
            Done::Counted(index, rows) => {
                let (Some((leaves, counted)), Some(table)) =
                    (self.counts.get_mut(&index), tables.get_mut(index))
                else {
                    return Err(Error::failed("a count of no table"));
                };
                *leaves -= 1;
                *counted += rows;
                if *leaves == 0 {
                    let counted = Counted { base: self.base, rows: *counted };
                    let (plan, entry) = (&table.plan, &table.held.entry);
                    events.push(records::count_event(&self.run, plan, entry, counted)?);
                    table.held.counted = Some(counted);
                }
            }
            Done::Copied(copied) => {
                let table = tables
                    .get_mut(copied.chunk.table)
                    .ok_or_else(|| Error::failed("a chunk of no table"))?;
                let (event, record) = records::chunk_event(
                    &self.run,
                    &table.plan,
                    &table.held.entry,
                    self.base,
                    &copied,
                )?;
                events.push(event);
                table.held.chunks.push(record);
                table.held.runs.extend(copied.runs);
                if table.is_complete() {
                    self.progress.table_done();
                }
            }
        }
        Ok(())
    }
}

//! Brings tables that were copied at several boundaries to one position, before anybody sees them.
//!
//! ```text
//!   chunks of B1, B2, … ─► drafts ─► stream from B1 to the largest base ─► keys without a row?
//!                                       ▲        (nothing is acknowledged)    │no        │yes
//!                                       └─── read these at a boundary B' ◄────┼──────────┘
//!                                            go on to B'                      └─► publish
//! ```
//!
//! The slot keeps everything from the first base until the tables are published: only then is
//! anything acknowledged. So a crash here costs the drain and nothing else, which is done again
//! from the first base, over the same chunks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::apply::collect::{Collector, Limits};
use crate::apply::part::{BatchEnd, Part};
use crate::apply::plan::TablePlan;
use crate::apply::table::TableApplier;
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::follow::stream_options;
use crate::handoff::session::{Session, blocking};
use crate::handoff::spool::source::Source;
use crate::handoff::stream::{self, Ended, Shared};
use crate::lake::Phase;
use crate::observe::progress::{Progress, ProgressKind};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;

use super::drafts::Drafted;
use super::records::Counted;

/// A part of the drain is one data file per table with rows in it.
const PART_BYTES: u64 = 64 << 20;
/// Nobody waits for a batch of the drain: parts end by size.
const INTERVAL: Duration = Duration::from_secs(3600);

/// From where to where the stream is read.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Where the slot begins, and what may be acknowledged.
    pub slot: Lsn,
    /// Everything before this is in the drafts.
    pub from: Lsn,
    /// Up to here.
    pub until: Lsn,
}

/// How a stretch ended.
pub enum Drained {
    /// All drafts stand at its end. Of the tables that can't be brought there: index and why.
    To(Vec<Drafted>, BTreeMap<usize, String>),
    /// The program was asked to stop.
    Stopped,
}

/// Reads the stream over a stretch and applies it to the drafts. Compares each count where the
/// drafts stand at its position.
///
/// # Errors
/// Source or lake failing; a count that differs.
pub async fn drain(
    session: &Session,
    tables: Vec<Drafted>,
    stretch: Stretch,
    stop: &StopSignal,
) -> Result<Drained> {
    // The slot leaves out what is below the stretch; the spool gives whole steps.
    let start = |table: &Drafted| (table.applier.plan().clone(), table.lowest.max(stretch.from));
    let starts: Vec<(Arc<TablePlan>, Lsn)> = tables.iter().map(start).collect();
    let mut cuts: Vec<Lsn> = tables
        .iter()
        .flat_map(|table| table.applier.join().map(|join| join.bases()))
        .flatten()
        .collect();
    cuts.extend(tables.iter().filter_map(|table| Some(table.counted?.base)));
    cuts.sort_unstable();
    cuts.dedup();
    let source = open(session, stretch, &starts).await?;
    let config = &session.config;
    let limits = Limits {
        part_bytes: PART_BYTES
            .min(config.stream.max_batch_bytes)
            .min(config.limits.memory_bytes / 8) as usize,
        batch_bytes: config.stream.max_batch_bytes as usize,
        batch_changes: config.stream.max_batch_rows as usize,
        until: Some(stretch.until),
        not_before: Lsn::ZERO,
    };
    let shared = stream::shared(stretch.slot);
    let (sender, parts) = stream::queue();
    let reader = {
        let shared = shared.clone();
        let mut source = source;
        tokio::task::spawn_blocking(move || {
            let mut collector = Collector::new(&starts, stretch.from, limits).unpublished(cuts);
            let ended = stream::read(&mut source, &mut collector, &sender, &shared, INTERVAL);
            drop(sender);
            ended.map(|ended| (ended, source, collector.given_up()))
        })
    };
    let applier = {
        let (shared, runtime) = (shared.clone(), tokio::runtime::Handle::current());
        let bytes = stretch.until.bytes_since(stretch.from);
        let progress = Progress::new(ProgressKind::Drain, None, Some(bytes));
        std::thread::Builder::new()
            .name("drain".to_owned())
            .spawn(move || {
                let mut apply = Apply { tables, runtime, progress, at: stretch.from };
                let result = apply.all(&parts);
                if result.is_err() {
                    shared.failed.store(true, Ordering::Release);
                }
                (apply.tables, result)
            })
            .map_err(|e| Error::failed("the drain's thread can't be started").because(e))?
    };
    let signal = {
        let (shared, stop) = (shared.clone(), stop.clone());
        tokio::spawn(async move {
            stop.requested().await;
            shared.stop.store(true, Ordering::Release);
        })
    };
    let read = reader.await.map_err(|e| Error::failed("the reader died").because(e))?;
    let (mut tables, applied) = blocking(move || {
        applier.join().map_err(|_| Error::failed("the drain died").next("report this"))
    })
    .await?;
    signal.abort();
    // The applier's error is the cause when both failed.
    applied?;
    let (ended, source, mut given_up) = read?;
    close(source, &shared).await;
    match ended {
        Ended::Reached => {}
        Ended::Stopped => return Ok(Drained::Stopped),
        // Tables nobody sees are given up one by one.
        Ended::ApplierFailed | Ended::Changed(_) => {
            return Err(Error::failed("the drain ended without a word").next("report this"));
        }
    }
    for (index, table) in tables.iter_mut().enumerate() {
        if table.applier.join().is_some_and(|join| join.overflowed()) {
            let why =
                "more of its rows moved between two snapshots than [limits] reread_bytes allows";
            given_up.entry(index).or_insert_with(|| why.to_owned());
            table.entry.whole = true;
        }
        if !given_up.contains_key(&index) {
            compare(table, stretch.until)?;
        }
    }
    Ok(Drained::To(tables, given_up))
}

/// Holds the slot, and proves that it and the spool still have everything.
async fn open(
    session: &Session,
    stretch: Stretch,
    starts: &[(Arc<TablePlan>, Lsn)],
) -> Result<Source> {
    let plans: Vec<Arc<TablePlan>> = starts.iter().map(|(plan, _)| plan.clone()).collect();
    let options = stream_options(&session.config, session.server.version, &plans)?;
    let ledger = session.ledger()?;
    let opened = Source::open_from(session, ledger, stretch.slot, stretch.from, &options).await;
    opened.map_err(|e| match e.kind() {
        // Nothing is visible: the next attempt sees that the history is gone, and starts again.
        Kind::HistoryLost if ledger.state().phase != Phase::Publish => {
            Error::transient("the copied chunks can't be joined").because(e)
        }
        _ => e,
    })
}

async fn close(source: Source, shared: &Arc<Shared>) {
    let shared = shared.clone();
    if let Err(e) = blocking(move || stream::close(source, &shared)).await {
        tracing::debug!("closing the stream: {e}");
    }
}

/// Applies parts to drafts.
struct Apply {
    tables: Vec<Drafted>,
    runtime: tokio::runtime::Handle,
    progress: Progress,
    at: Lsn,
}

impl Apply {
    fn all(&mut self, parts: &Receiver<Part>) -> Result<()> {
        while let Ok(part) = parts.recv() {
            let first = part.transactions.first().map(|t| t.commit_lsn);
            if let Some(at) = first {
                for table in &mut self.tables {
                    compare(table, at)?;
                }
            }
            for changes in &part.tables {
                let table = self
                    .tables
                    .get_mut(changes.table)
                    .ok_or_else(|| Error::failed("changes of a table that is not open"))?;
                table.applier.stage(changes, &part.transactions)?;
                settle(&mut table.applier, &self.runtime)?;
                failpoint::at("handoff.drain.part")?;
            }
            let last = part.transactions.last().map(|t| t.commit_lsn);
            if let Some(last) = part.end.map(|end| end.applied).or(last) {
                self.progress.add(part.changes() as u64, last.bytes_since(self.at));
                self.at = self.at.max(last);
            }
        }
        Ok(())
    }
}

/// Takes what is staged into the draft. Not at a transaction's end only: nobody sees it.
pub fn settle(applier: &mut TableApplier, runtime: &tokio::runtime::Handle) -> Result<()> {
    let applied = applier.table().checkpoint().applied;
    runtime.block_on(applier.commit(BatchEnd { applied, source_time_us: None, last: None }))?;
    Ok(())
}

/// The source's count, once the draft holds everything before `at` and nothing after it.
fn compare(table: &mut Drafted, at: Lsn) -> Result<()> {
    let join = table.applier.join();
    if join.is_some_and(|join| join.overflowed()) {
        return Ok(());
    }
    let Some(Counted { base, rows }) = table.counted.filter(|counted| counted.base <= at) else {
        return Ok(());
    };
    table.counted = None;
    let unresolved = join.map_or(0, |join| join.unresolved_len());
    let found = table.applier.table().live_rows() + unresolved as u64;
    if found == rows {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{}: {found} rows were copied and brought to {base}, the source had {rows}",
        table.applier.plan()
    ))
    .next("nothing was published; report this with the server's version"))
}

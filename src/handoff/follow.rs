//! Brings the published tables forward along the stream, until a target or until told to stop.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream as streams};

use crate::apply::collect::{Changed, Collector, Limits};
use crate::apply::part::{BatchEnd, Part};
use crate::apply::plan::TablePlan;
use crate::apply::table::TableApplier;
use crate::config::{Config, Format};
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::clean::Cleaning;
use crate::handoff::cut::TORN_EVENT;
use crate::handoff::housekeeping::{self, Housekeeper};
use crate::handoff::session::{Session, blocking};
use crate::handoff::spool::source::Source;
use crate::handoff::stream::{self, Ended, Shared};
use crate::handoff::tables::TABLES_AT_A_TIME;
use crate::handoff::{figures, index, marks, rules, spool};
use crate::lake::locations::Locations;
use crate::lake::{Event, Lake, LakeTable, Ledger};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::catalog;
use crate::source::wire::{SessionKind, Wire};

/// A part of a batch is applied while the next one is read. Each part with rows is one data file,
/// so parts are large enough that only a backlog makes more than one a batch.
const PART_BYTES: u64 = 16 << 20;

/// Indexes that are opened at a time: one that is built from the lake takes memory and a core.
const INDEXES_AT_A_TIME: usize = 4;

/// How often the ledger is asked for notes of others.
const NOTES_EVERY: Duration = Duration::from_secs(5);

/// How far to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Until told to stop.
    Forever,
    /// Until everything that committed before this LSN is visible.
    Lsn(Lsn),
}

/// How the following ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// At the target, or where it was told to stop: everything before this is in the tables. It is
    /// the fence, unless that was held.
    To(Lsn),
    /// Before a table that the stream names otherwise than its plan does.
    Changed(Box<Changed>),
    /// A change does not fit what the lake has of its table; nothing of the batch is committed.
    Unfit(Unfit),
}

/// A table to which the stream can't be applied any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Its folder.
    pub folder: String,
    /// Why.
    pub why: String,
}

/// A published table, opened.
pub struct OpenTable {
    /// Its plan.
    pub plan: Arc<TablePlan>,
    /// Its lake table.
    pub table: LakeTable,
    /// Its location index, once that was opened: none inside where the table needs none.
    pub index: Option<Option<Locations>>,
}

/// The options of START_REPLICATION for these tables.
///
/// # Errors
/// The configured format is not possible.
pub fn stream_options(
    config: &Config,
    version: u32,
    tables: &[Arc<TablePlan>],
) -> Result<Vec<(String, String)>> {
    let mut options = vec![
        ("proto_version".to_owned(), "1".to_owned()),
        ("publication_names".to_owned(), catalog::quote_ident(&config.name)),
    ];
    if binary(config.stream.format, version, tables)? {
        options.push(("binary".to_owned(), "true".to_owned()));
    }
    Ok(options)
}

/// Whether the stream's values are asked for in binary form.
fn binary(format: Format, version: u32, tables: &[Arc<TablePlan>]) -> Result<bool> {
    const BINARY_VERSION: u32 = 140_000;
    let text_only = tables.iter().find(|plan| !plan.has_binary());
    let refused = |why: String| {
        Error::config(format!("[stream] format = \"binary\" is not possible: {why}"))
            .next("use \"auto\", which takes text where it must")
    };
    match format {
        Format::Text => Ok(false),
        Format::Auto => Ok(version >= BINARY_VERSION && text_only.is_none()),
        Format::Binary => match text_only {
            _ if version < BINARY_VERSION => Err(refused("the server is older than 14".to_owned())),
            Some(plan) => Err(refused(format!("{plan} has a type that is only exact as text"))),
            None => Ok(true),
        },
    }
}

/// The highest position of any table.
pub fn reached(tables: &[OpenTable]) -> Lsn {
    tables.iter().map(|open| open.table.checkpoint().applied).max().unwrap_or_default()
}

/// Follows the stream from the ledger's fence. With `holds_fence` the tables go on and the fence
/// stays, so that the slot keeps what a table that is read again will need.
///
/// # Errors
/// Transient ones may be tried again from the durable fence; definite ones stop the pipeline.
pub async fn follow(
    session: &mut Session,
    tables: Vec<OpenTable>,
    target: Target,
    holds_fence: bool,
    stop: &StopSignal,
) -> Result<Followed> {
    let mut ledger = session.take_ledger()?;
    let fence = ledger.fence().map(|fence| fence.lsn).unwrap_or_default();
    if let Target::Lsn(until) = target
        && until <= fence
    {
        session.ledger = Some(ledger);
        session.kept = tables;
        return Ok(Followed::To(fence));
    }
    let starts: Vec<(Arc<TablePlan>, Lsn)> = tables
        .iter()
        .map(|open| {
            (open.plan.clone(), rules::resume_table(open.table.checkpoint().applied, fence))
        })
        .collect();
    let config = &session.config;
    // Where the fence stays nothing has to end where all tables can.
    let together = if holds_fence { Lsn::ZERO } else { reached(&tables) };
    let limits = Limits {
        part_bytes: PART_BYTES
            .min(config.stream.max_batch_bytes)
            .min(config.limits.memory_bytes / 8) as usize,
        batch_bytes: config.stream.max_batch_bytes as usize,
        batch_changes: config.stream.max_batch_rows as usize,
        until: match target {
            Target::Forever => None,
            // After a crash some table may be beyond the target: then all are brought that far.
            Target::Lsn(until) => Some(until.max(together)),
        },
        not_before: together,
    };
    let plans: Vec<Arc<TablePlan>> = tables.iter().map(|open| open.plan.clone()).collect();
    let options = stream_options(config, session.server.version, &plans)?;
    let interval = config.stream.interval;
    let bounds = config.maintenance.compact.then(|| housekeeping::bounds(&config.maintenance));
    let housekeeper = Housekeeper::new(bounds, tables.len(), tokio::runtime::Handle::current());
    let standby = StandbyTimeline::of(session).await?;
    let requests = marks::requests(&ledger).await?;
    let shared = stream::observed(fence, &session.metrics);
    let (sender, parts) = stream::queue();
    let runtime = tokio::runtime::Handle::current();
    let held = hold(session, &mut ledger, tables, &options, fence).await;
    let (appliers, source) = match held {
        Ok(held) => held,
        Err(error) => {
            // Kept, so that the next attempt knows whether the pipeline is still ours.
            session.ledger = Some(ledger);
            return Err(error);
        }
    };

    let reader = {
        let shared = shared.clone();
        let mut source = source;
        tokio::task::spawn_blocking(move || {
            let mut collector = Collector::new(&starts, fence, limits);
            let ended = stream::read(&mut source, &mut collector, &sender, &shared, interval);
            drop(sender);
            ended.map(|ended| (ended, source))
        })
    };
    let applier = {
        let (shared, lake) = (shared.clone(), session.lake.clone());
        std::thread::Builder::new()
            .name("applier".to_owned())
            .spawn(move || {
                Applier {
                    appliers,
                    ledger,
                    lake,
                    runtime,
                    shared,
                    housekeeper,
                    standby,
                    holds_fence,
                    noted_at: Instant::now(),
                    requests,
                }
                .run(&parts)
            })
            .map_err(|e| Error::failed("the applier thread can't be started").because(e))?
    };
    let signal = {
        let (shared, stop) = (shared.clone(), stop.clone());
        tokio::spawn(async move {
            stop.requested().await;
            shared.stop.store(true, Ordering::Release);
        })
    };
    let cleaning = Cleaning::begin(session.lake.clone(), session.config.maintenance.clone());
    let read = reader.await.map_err(|e| Error::failed("the reader died").because(e))?;
    let (ledger, appliers, applied) = blocking(move || {
        applier.join().map_err(|_| Error::failed("the applier died").next("report this"))
    })
    .await?;
    signal.abort();
    drop(cleaning);
    session.ledger = Some(ledger);
    let reached = shared.applied.load(Ordering::Acquire).max(shared.fence.load(Ordering::Acquire));
    let unfit = shared.unfit.lock().unwrap_or_else(PoisonError::into_inner).take();
    if applied.is_ok() || unfit.is_some() {
        // They stand at their last commits, and go on from there without being read again.
        session.kept = appliers.into_iter().map(kept).collect();
    }
    if let Some(unfit) = unfit {
        return Ok(Followed::Unfit(unfit));
    }
    // The applier's error is the cause when both failed.
    applied?;
    let (ended, source) = read?;

    let shared = shared.clone();
    if let Err(e) = blocking(move || stream::close(source, &shared)).await {
        tracing::debug!("closing the stream: {e}");
    }
    match ended {
        Ended::Reached | Ended::Stopped => Ok(Followed::To(Lsn::new(reached))),
        Ended::Changed(changed) => Ok(Followed::Changed(changed)),
        Ended::ApplierFailed => {
            Err(Error::failed("the applier ended without a word").next("report this"))
        }
    }
}

fn kept(applier: TableApplier) -> OpenTable {
    let plan = applier.plan().clone();
    let (table, index) = applier.into_parts();
    OpenTable { plan, table, index: Some(index) }
}

/// Takes the pipeline over: the ledger, then the slot; proves that both are still as they were.
pub(super) async fn hold(
    session: &Session,
    ledger: &mut Ledger,
    tables: Vec<OpenTable>,
    options: &[(String, String)],
    fence: Lsn,
) -> Result<(Vec<TableApplier>, Source)> {
    ledger.claim().await?;
    // What a crash after the drain left.
    spool::tidy(ledger, &session.lake).await?;
    let reached = reached(&tables);
    if reached > fence {
        // Some tables have a batch that others lack: what it reached is no fence.
        let detail = serde_json::json!({ "after": fence, "until": reached });
        ledger.append_events(&[Event::now("", TORN_EVENT, "", detail)]).await?;
    }
    let appliers = appliers(session, tables, &tokio::runtime::Handle::current()).await?;
    let source = Source::open(session, ledger, fence, options).await?;
    still_ours(session, ledger, &appliers).await?;
    Ok((appliers, source))
}

/// With the slot held and every table loaded: is everything as it was when it was looked at?
///
/// That the slot sends everything was proven when it was opened. A newer process may have taken the ledger over
/// and committed to a table after we loaded it; one that committed before that shows in its log.
async fn still_ours(
    session: &Session,
    ledger: &mut Ledger,
    appliers: &[TableApplier],
) -> Result<()> {
    let looks = appliers.iter().map(|applier| async move {
        let table = applier.table();
        let next = format!("{}/_delta_log/{:020}.json", table.folder(), table.version() + 1);
        if session.lake.get(&next).await?.is_some() {
            return Err(Error::transient(format!(
                "{}: another program committed to it while it was being opened",
                table.folder()
            )));
        }
        Ok(())
    });
    streams::iter(looks).buffer_unordered(TABLES_AT_A_TIME).try_collect::<()>().await?;
    ledger.claim().await
}

/// Opens the indexes.
async fn appliers(
    session: &Session,
    tables: Vec<OpenTable>,
    runtime: &tokio::runtime::Handle,
) -> Result<Vec<TableApplier>> {
    let memory = session.config.limits.index_memory_bytes as usize / tables.len().max(1);
    let timeline = session.system.timeline;
    let opens = tables.into_iter().map(|OpenTable { plan, table, index }| {
        let (lake, runtime) = (session.lake.clone(), runtime.clone());
        let folder = session.index_folder(&plan);
        blocking(move || {
            let index = match index {
                Some(open) => open,
                None => index::open(&plan, &lake, &runtime, &table, &folder, memory.max(1 << 20))?,
            };
            let mut applier = TableApplier::new(plan, lake, runtime, table, index)?;
            applier.set_timeline(timeline);
            Ok(applier)
        })
    });
    streams::iter(opens).buffered(INDEXES_AT_A_TIME).try_collect().await
}

/// Takes parts, stages them, commits batches, moves the fence.
struct Applier {
    appliers: Vec<TableApplier>,
    ledger: Ledger,
    lake: Lake,
    runtime: tokio::runtime::Handle,
    shared: Arc<Shared>,
    housekeeper: Housekeeper,
    standby: Option<StandbyTimeline>,
    holds_fence: bool,
    noted_at: Instant,
    /// Requests in the ledger that are known.
    requests: usize,
}

/// A stream from a standby goes on over a promotion, its own or its primary's, without a word. What
/// comes after belongs to the new timeline, which must be recorded first: so before a batch is
/// committed, the standby must still be on the timeline of the record.
struct StandbyTimeline {
    wire: Wire,
    timeline: u32,
}

impl StandbyTimeline {
    /// None for a primary, whose timeline never changes while it runs.
    async fn of(session: &Session) -> Result<Option<StandbyTimeline>> {
        if !session.server.in_recovery {
            return Ok(None);
        }
        let (source, timeline) = (session.source.clone(), session.system.timeline);
        let wire = blocking(move || Wire::connect(&source, SessionKind::Replication)).await?;
        Ok(Some(StandbyTimeline { wire, timeline }))
    }

    fn holds(&mut self) -> Result<()> {
        let found = self.wire.identify_system()?.timeline;
        if found == self.timeline {
            return Ok(());
        }
        Err(Error::transient(format!(
            "the source went from timeline {} to {found} in the middle of the stream",
            self.timeline
        ))
        .next("the stream begins anew by itself, on the new timeline"))
    }
}

impl Applier {
    fn run(mut self, parts: &Receiver<Part>) -> (Ledger, Vec<TableApplier>, Result<()>) {
        let result = self.work(parts);
        if result.is_err() {
            self.shared.failed.store(true, Ordering::Release);
        }
        self.housekeeper.stop(&mut self.appliers);
        for applier in &mut self.appliers {
            applier.discard();
            if let Err(e) = applier.flush_index() {
                tracing::warn!("{e}; the next start reads the newest keys from the lake");
            }
            // What is written beside the commits would die with the process, half done.
            self.runtime.block_on(applier.settle());
        }
        self.runtime.block_on(self.ledger.settle());
        (self.ledger, self.appliers, result)
    }

    fn work(&mut self, parts: &Receiver<Part>) -> Result<()> {
        let mut within_batch = false;
        loop {
            if !within_batch {
                self.housekeeper.between_batches(&mut self.appliers)?;
                figures::note_tables(&self.shared.metrics, &self.appliers);
            }
            let part = match parts.recv_timeout(Duration::from_secs(1)) {
                Ok(part) => part,
                Err(RecvTimeoutError::Timeout) => {
                    self.read_notes()?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            self.housekeeper.batch_begins(true);
            within_batch = part.end.is_none();
            let began = Instant::now();
            for changes in &part.tables {
                let applier = self
                    .appliers
                    .get_mut(changes.table)
                    .ok_or_else(|| Error::failed("changes of a table that is not open"))?;
                applier.stage(changes, &part.transactions).inspect_err(|error| {
                    if error.kind() == Kind::Unfit {
                        let unfit = Unfit {
                            folder: applier.table().folder().to_owned(),
                            why: error.what().replace('\n', " "),
                        };
                        let mut place =
                            self.shared.unfit.lock().unwrap_or_else(PoisonError::into_inner);
                        *place = Some(unfit);
                    }
                })?;
            }
            self.shared.metrics.staged(began.elapsed());
            if let Some(end) = part.end {
                self.commit(end)?;
            }
        }
    }

    /// Looks now and then whether somebody asked for something in the ledger: the stream ends then,
    /// and begins anew with it.
    fn read_notes(&mut self) -> Result<()> {
        if self.noted_at.elapsed() < NOTES_EVERY {
            return Ok(());
        }
        self.noted_at = Instant::now();
        let runtime = self.runtime.clone();
        if runtime.block_on(self.ledger.has_notes())? {
            let requests = runtime.block_on(marks::requests(&self.ledger))?;
            if requests != std::mem::replace(&mut self.requests, requests) {
                self.shared.stop.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Commits every table that has changes, then the fence.
    fn commit(&mut self, end: BatchEnd) -> Result<()> {
        failpoint::at("stream.commit.before")?;
        let began = Instant::now();
        if let Some(standby) = &mut self.standby {
            standby.holds()?;
        }
        let runtime = self.runtime.clone();
        let committed: Vec<Result<Option<u64>>> =
            runtime.block_on(join_all(self.appliers.iter_mut().map(|applier| applier.commit(end))));
        let mut tables = 0;
        for result in committed {
            tables += usize::from(result?.is_some());
        }
        if self.holds_fence {
            self.shared.applied.fetch_max(end.applied.bytes(), Ordering::AcqRel);
            tracing::debug!(applied = %end.applied, tables, "batch committed, the fence is held");
            return self.read_notes();
        }
        failpoint::at("stream.fence.before")?;
        let fence = self.ledger.fence().map(|fence| fence.lsn).unwrap_or_default();
        let next = rules::fence(
            fence,
            end.applied,
            self.appliers.iter().map(|applier| rules::Progress::Untouched {
                applied: applier.table().checkpoint().applied,
            }),
        );
        if next < end.applied {
            return Err(Error::new(
                Kind::Failed,
                format!("a table stands beyond {}, so no fence can", end.applied),
            )
            .next("report this: the batch should have ended later"));
        }
        if let Some(last) = end.last {
            self.ledger.set_last(last);
        }
        if next > fence {
            runtime.block_on(self.ledger.commit_fence(next, chrono::Utc::now()))?;
            self.shared.fence.fetch_max(next.bytes(), Ordering::AcqRel);
        }
        self.shared.metrics.committed(tables, began.elapsed(), end.source_time_us);
        failpoint::at("stream.fence.after")?;
        if self.ledger.spool().is_some() {
            runtime.block_on(spool::tidy(&mut self.ledger, &self.lake))?;
        }
        runtime.block_on(self.ledger.merge_events())?;
        self.read_notes()?;
        tracing::debug!(fence = %next, tables, "batch committed");
        Ok(())
    }
}

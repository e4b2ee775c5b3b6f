//! Keeps the tables of a running pipeline small, beside the stream.
//!
//! ```text
//!   applier thread   batch │ commit │ between_batches │ batch │ commit │ between_batches │ …
//!                                     begin a rewrite                    commit it
//!   compaction thread                 └── reads, writes, reads back ─────┘
//! ```
//!
//! One table at a time, one file at a time. What a batch waits for is one commit at most: the
//! rewrite rests while a batch is applied. A rewrite that fails is given up with a warning and is
//! tried again later; the stream goes on. A commit that fails is the stream's failure too: the
//! table's state is not known then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::apply::table::{Compacted, TableApplier};
use crate::config::{Config, Maintenance};
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::follow::{hold, stream_options};
use crate::handoff::ownership;
use crate::handoff::rules::{Refusal, Resume};
use crate::handoff::session::{Session, blocking};
use crate::handoff::spool::source::Source;
use crate::handoff::tables;
use crate::lake::compaction::{Bounds, Pace};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;

/// Files of similar size that are merged: fewer lie about, more are written again.
const FANOUT: usize = 8;
/// After a rewrite that failed its table rests.
const REST: Duration = Duration::from_secs(60);

/// What the configuration asks for.
pub fn bounds(maintenance: &Maintenance) -> Bounds {
    Bounds {
        target_bytes: maintenance.target_file_bytes,
        masked_percent: maintenance.max_masked_percent,
        fanout: FANOUT,
    }
}

/// The compactions of a running pipeline.
pub struct Housekeeper {
    bounds: Option<Bounds>,
    runtime: Handle,
    pace: Arc<Pace>,
    working: Option<Working>,
    /// Of each table the version that was looked at and found in order.
    in_order: Vec<Option<u64>>,
    /// Tables that rest after a failure.
    resting: Vec<Option<Instant>>,
    next: usize,
}

struct Working {
    table: usize,
    since: Instant,
    thread: JoinHandle<Result<Compacted>>,
}

impl Housekeeper {
    /// For tables of a pipeline; none of them is compacted where `bounds` is none.
    pub fn new(bounds: Option<Bounds>, tables: usize, runtime: Handle) -> Housekeeper {
        Housekeeper {
            bounds,
            runtime,
            pace: Arc::default(),
            working: None,
            in_order: vec![None; tables],
            resting: vec![None; tables],
            next: 0,
        }
    }

    /// Tells the rewrite that a batch is being applied, or no longer.
    pub fn batch_begins(&self, begins: bool) {
        self.pace.busy.store(begins, Ordering::Relaxed);
    }

    /// Commits a rewrite that is done, and begins the next one that is due. Only between batches.
    ///
    /// # Errors
    /// The commit's.
    pub fn between_batches(&mut self, appliers: &mut [TableApplier]) -> Result<()> {
        self.batch_begins(false);
        if self.working.as_ref().is_some_and(|working| working.thread.is_finished()) {
            self.commit(appliers)?;
        }
        if self.working.is_none() {
            self.begin(appliers)?;
        }
        Ok(())
    }

    /// Compacts until nothing is due. Returns the compactions made.
    ///
    /// # Errors
    /// The commit's.
    pub fn until_done(
        &mut self,
        appliers: &mut [TableApplier],
        stopped: impl Fn() -> bool,
    ) -> Result<u64> {
        let mut made = 0;
        while !stopped() {
            self.between_batches(appliers)?;
            let Some(working) = &self.working else { return Ok(made) };
            while !working.thread.is_finished() && !stopped() {
                std::thread::sleep(Duration::from_millis(5));
            }
            made += 1;
        }
        Ok(made)
    }

    fn begin(&mut self, appliers: &mut [TableApplier]) -> Result<()> {
        let Some(bounds) = self.bounds else { return Ok(()) };
        for _ in 0..appliers.len() {
            let table = self.next % appliers.len();
            self.next = table + 1;
            let Some(applier) = appliers.get_mut(table) else { return Ok(()) };
            let version = Some(applier.table().version());
            let (Some(in_order), Some(resting)) =
                (self.in_order.get_mut(table), self.resting.get_mut(table))
            else {
                return Ok(());
            };
            if *in_order == version || resting.is_some_and(|since| since.elapsed() < REST) {
                continue;
            }
            let Some(picked) = applier.compaction_due(&bounds) else {
                *in_order = version;
                continue;
            };
            tracing::debug!(table = %applier.plan(), files = picked.len(), "compaction begins");
            let compaction = applier.begin_compaction(&picked)?;
            let (runtime, pace) = (self.runtime.clone(), self.pace.clone());
            let spawned = std::thread::Builder::new()
                .name("compaction".to_owned())
                .spawn(move || compaction.run(&runtime, &pace));
            match spawned {
                Ok(thread) => {
                    self.working = Some(Working { table, since: Instant::now(), thread });
                }
                Err(error) => {
                    applier.give_up_compaction();
                    *resting = Some(Instant::now());
                    tracing::warn!(table = %applier.plan(), "no thread for a compaction: {error}");
                }
            }
            return Ok(());
        }
        Ok(())
    }

    fn commit(&mut self, appliers: &mut [TableApplier]) -> Result<()> {
        let Some(Working { table, since, thread }) = self.working.take() else { return Ok(()) };
        let Some(applier) = appliers.get_mut(table) else { return Ok(()) };
        let died = |_| Error::failed("the compaction died").next("report this");
        let compacted = match thread.join().map_err(died).and_then(|compacted| compacted) {
            Ok(compacted) => compacted,
            Err(error) => {
                applier.give_up_compaction();
                if let Some(resting) = self.resting.get_mut(table) {
                    *resting = Some(Instant::now());
                }
                tracing::warn!(table = %applier.plan(), "files were not compacted: {error}");
                return Ok(());
            }
        };
        failpoint::at("compaction.done")?;
        if let Some(done) = self.runtime.block_on(applier.commit_compaction(compacted))? {
            tracing::info!(
                table = %applier.plan(), version = done.version, files = done.files,
                rows = done.rows, bytes = done.bytes, ms = since.elapsed().as_millis() as u64,
                "compacted"
            );
        }
        Ok(())
    }

    /// Gives up what is not committed.
    pub fn stop(&mut self, appliers: &mut [TableApplier]) {
        self.pace.cancelled.store(true, Ordering::Release);
        let Some(Working { table, thread, .. }) = self.working.take() else { return };
        let compacted = thread.join();
        let Some(applier) = appliers.get_mut(table) else { return };
        match compacted {
            Ok(Ok(compacted)) => self.runtime.block_on(applier.discard_compacted(compacted)),
            _ => applier.give_up_compaction(),
        }
    }
}

/// Compacts the tables in `folders` (all of the pipeline's if none is named) until nothing is due,
/// by a command of its own. It holds the slot meanwhile, as a running pipeline does: none if one
/// runs, which compacts by itself.
///
/// # Errors
/// Source or lake fail; the pipeline can't be continued.
pub async fn compact(
    config: &Config,
    folders: &[String],
    stop: &StopSignal,
) -> Result<Option<u64>> {
    let mut session = Session::open(config).await?;
    let fence = session.ledger_mut()?.fence().map(|fence| fence.lsn).unwrap_or_default();
    match session.resume(fence).await? {
        Resume::Stream { .. } | Resume::Refuse(Refusal::SlotInUse) => {}
        Resume::Refuse(refusal) => {
            return Err(Error::from(refusal).at(format!("slot {}", config.name)));
        }
        _ => {
            return Err(Error::failed("the tables are not published yet")
                .next("publish them with `tidegate run`"));
        }
    }
    let ours = match ownership::take(&mut session, stop).await {
        Ok(Some(ours)) => ours,
        Ok(None) => return Ok(Some(0)),
        Err(error) if error.kind() == Kind::Fenced => return Ok(None),
        Err(error) => return Err(error),
    };
    let result = compact_alone(session, folders, stop).await;
    ownership::end(config, Some(ours), result).await.map(Some)
}

async fn compact_alone(mut session: Session, folders: &[String], stop: &StopSignal) -> Result<u64> {
    let config = session.config.clone();
    let fence = session.ledger()?.fence().map(|fence| fence.lsn).unwrap_or_default();
    let found = tables::look(&session).await?;
    let tables = tables::open(&mut session, &found, &Default::default()).await?.tables;
    let mut ledger = session.take_ledger()?;
    let plans: Vec<_> = tables.iter().map(|open| open.plan.clone()).collect();
    let options = stream_options(&config, session.server.version, &plans)?;
    let (mut appliers, source) = hold(&session, &mut ledger, tables, &options, fence).await?;
    let mut bounds = bounds(&config.maintenance);
    // By hand is thorough: any two small files are merged.
    bounds.fanout = 2;
    if !folders.is_empty() {
        appliers.retain(|applier| folders.iter().any(|f| f == applier.table().folder()));
    }
    let (runtime, stop) = (Handle::current(), stop.clone());
    let made = blocking(move || {
        let held = Held::keep(source, fence)?;
        let mut housekeeper = Housekeeper::new(Some(bounds), appliers.len(), runtime);
        let made = housekeeper.until_done(&mut appliers, || stop.is_set() || held.is_lost());
        housekeeper.stop(&mut appliers);
        for applier in &mut appliers {
            applier.flush_index()?;
            housekeeper.runtime.block_on(applier.settle());
        }
        if held.is_lost() {
            return Err(Error::transient("the connection that holds the slot was lost"));
        }
        made
    });
    made.await
}

/// Holds a slot without taking anything from it.
struct Held {
    done: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Held {
    fn keep(mut source: Source, fence: Lsn) -> Result<Held> {
        let (done, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (ends, tells) = (done.clone(), lost.clone());
        let work = move || {
            let mut told = Instant::now();
            while !ends.load(Ordering::Acquire) {
                let mut alive = source.next(Duration::from_millis(100)).map(|_| ());
                if alive.is_ok() && told.elapsed() > Duration::from_secs(5) {
                    // What was sent is not acknowledged: it is sent again to who applies it.
                    let durable = source.durable().max(fence);
                    alive = source.send_status(durable, durable);
                    told = Instant::now();
                }
                if let Err(error) = alive {
                    tracing::warn!("the slot is no longer held: {error}");
                    tells.store(true, Ordering::Release);
                    return;
                }
            }
            if let Err(error) = source.finish() {
                tracing::debug!("closing the stream: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("slot".to_owned()).spawn(work);
        let thread = thread.map_err(|e| Error::failed("no thread to hold the slot").because(e))?;
        Ok(Held { done, lost, thread: Some(thread) })
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

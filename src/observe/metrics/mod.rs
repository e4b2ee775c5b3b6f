//! The figures of a running pipeline, for whoever asks: Prometheus, the status page, an orchestrator.
//!
//! One [`Metrics`] is handed down from the run to all that has something to count. Nothing here costs
//! work per row: workers add once per batch of rows, reader and applier once per batch of changes, all
//! of it to atomics or, where a figure is a set of values, under a lock that is held for a copy.
//! Whoever asks gets what is in memory; neither the source nor the lake notices.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::Error;
use crate::position::Lsn;

pub mod catalog;
pub mod freshness;
pub mod histogram;
pub mod history;
pub mod text;

use freshness::{Freshness, Lag};
use histogram::Histogram;
use history::{History, Point};

/// Errors kept for the status page.
const TROUBLES: usize = 20;
/// Tables whose figures are kept: beyond it a collector suffers, not only we.
pub const MOST_TABLES: usize = 2_000;

/// What the lake's store made necessary.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Operations that failed in a way that may pass, and were tried again.
    pub retries: AtomicU64,
    /// Commits that found a version of somebody else in their place.
    pub conflicts: AtomicU64,
}

/// What snapshots copied since the process began.
#[derive(Debug, Default)]
pub struct Copied {
    /// Rows.
    pub rows: AtomicU64,
    /// Bytes of the data files.
    pub bytes: AtomicU64,
}

/// How far a snapshot was when this process took it up, and what is expected of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyPlan {
    /// Rows that were copied before.
    pub rows: u64,
    /// Bytes of their data files.
    pub bytes: u64,
    /// PostgreSQL's estimate of all rows.
    pub expected_rows: u64,
    /// Bytes of the tables at the source.
    pub source_bytes: u64,
    /// Chunks copied before.
    pub chunks: u64,
    /// All chunks.
    pub expected_chunks: u64,
}

#[derive(Debug, Default)]
struct Copying {
    plan: CopyPlan,
    /// What had been counted when the plan was made.
    rows_then: u64,
    bytes_then: u64,
}

/// What the ledger says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerFigures {
    /// The generation.
    pub generation: u64,
    /// Where the pipeline stands.
    pub phase: &'static str,
    /// The run.
    pub run: String,
    /// The position of the snapshot.
    pub base: Option<Lsn>,
    /// The last fence of the generation.
    pub fence: Option<Lsn>,
    /// When it was recorded.
    pub fence_at: Option<DateTime<Utc>>,
    /// Since when a snapshot is held on the source.
    pub snapshot_since: Option<DateTime<Utc>>,
    /// Bytes of the spool.
    pub spool_bytes: u64,
    /// Tables that are read again.
    pub tables_again: u64,
    /// Tables that are followed no longer.
    pub tables_stopped: u64,
}

/// One look at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SourceLook {
    /// The end of its log.
    pub end: Lsn,
    /// The slot is there.
    pub slot: bool,
    /// Somebody streams from it.
    pub slot_active: bool,
    /// What it needed is gone.
    pub slot_lost: bool,
    /// WAL kept for it.
    pub retained: u64,
    /// The most it may keep.
    pub limit: Option<u64>,
    /// What is left to that.
    pub margin: Option<u64>,
    /// When that is reached at the present growth.
    pub time_to_limit: Option<Duration>,
    /// Transactions since the oldest one whose dead rows the source keeps for us.
    pub xmin_age: Option<u64>,
}

/// The newest version of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableFigures {
    /// Its version.
    pub version: u64,
    /// The position of its snapshot.
    pub base: Lsn,
    /// The position it shows.
    pub applied: Lsn,
    /// Data files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// Rows in the files that are superseded or deleted.
    pub masked: u64,
}

/// The last comparison with the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verified {
    /// When it was made.
    pub at: DateTime<Utc>,
    /// The position at which source and lake were compared.
    pub lsn: Lsn,
    /// Whether they were equal.
    pub equal: bool,
}

/// Something that went wrong, with what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trouble {
    /// When, RFC 3339; the last time where it came several times in a row.
    pub at: String,
    /// How often in a row.
    pub times: u64,
    /// What happened, and to what.
    pub what: String,
    /// What to do.
    pub next: String,
}

/// The figures of a running pipeline.
#[derive(Debug)]
pub struct Metrics {
    started: DateTime<Utc>,
    pipeline: String,
    /// Counted by the lake.
    pub store: Arc<StoreCounts>,
    /// Counted by the workers that copy.
    pub copied: Arc<Copied>,
    copying: Mutex<Option<Copying>>,
    chunks: AtomicU64,
    attempts: AtomicU64,
    readers: AtomicU64,
    settled: AtomicU64,
    changes: AtomicU64,
    change_bytes: AtomicU64,
    batch_changes: Histogram,
    read_micros: AtomicU64,
    stage_micros: AtomicU64,
    commit: Histogram,
    delay: Histogram,
    commits: AtomicU64,
    ledger: Mutex<LedgerFigures>,
    ready: AtomicBool,
    source: Mutex<Option<SourceLook>>,
    fresh: Mutex<Freshness>,
    tables: Mutex<BTreeMap<String, TableFigures>>,
    verified: Mutex<Option<Verified>>,
    troubles: Mutex<VecDeque<Trouble>>,
    history: Mutex<History>,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new("")
    }
}

/// A value is whole whenever the lock is free: who panicked with it left no half of one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Metrics {
    /// The figures of the pipeline of this name, from now on.
    pub fn new(pipeline: &str) -> Self {
        Metrics {
            started: Utc::now(),
            pipeline: pipeline.to_owned(),
            store: Arc::default(),
            copied: Arc::default(),
            copying: Mutex::default(),
            chunks: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            readers: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            change_bytes: AtomicU64::new(0),
            batch_changes: Histogram::numbers(),
            read_micros: AtomicU64::new(0),
            stage_micros: AtomicU64::new(0),
            commit: Histogram::seconds(),
            delay: Histogram::seconds(),
            commits: AtomicU64::new(0),
            ledger: Mutex::default(),
            ready: AtomicBool::new(false),
            source: Mutex::default(),
            fresh: Mutex::default(),
            tables: Mutex::default(),
            verified: Mutex::default(),
            troubles: Mutex::default(),
            history: Mutex::default(),
        }
    }

    /// A snapshot is taken or taken up.
    pub fn copy_begins(&self, plan: CopyPlan) {
        let copying = Copying {
            plan,
            rows_then: read(&self.copied.rows),
            bytes_then: read(&self.copied.bytes),
        };
        self.chunks.store(plan.chunks, Ordering::Relaxed);
        *lock(&self.copying) = Some(copying);
    }

    /// One more chunk is copied.
    pub fn chunk_done(&self) {
        add(&self.chunks, 1);
    }

    /// The stream is read from now on, until what this gives is dropped.
    pub fn reading(&self) -> Reading<'_> {
        self.settled.store(0, Ordering::Relaxed);
        add(&self.readers, 1);
        Reading(self)
    }

    /// Whether somebody reads the stream.
    pub fn is_streaming(&self) -> bool {
        read(&self.readers) > 0
    }

    /// Nothing that committed before `lsn` waits for its commit in the lake.
    pub fn settled(&self, lsn: Lsn) {
        self.settled.fetch_max(lsn.bytes(), Ordering::Relaxed);
    }

    /// Some of a batch was taken from the stream.
    pub fn part(&self, changes: usize, bytes: usize) {
        add(&self.changes, changes as u64);
        add(&self.change_bytes, bytes as u64);
    }

    /// A batch with changes has ended, so long after its first one came.
    pub fn batch(&self, changes: usize, took: Duration) {
        self.batch_changes.value(changes as f64);
        add(&self.read_micros, micros(took));
    }

    /// Some of a batch was written to files that no version names yet.
    pub fn staged(&self, took: Duration) {
        add(&self.stage_micros, micros(took));
    }

    /// A batch is durable, with its fence; `source_time` is the commit time of its last transaction,
    /// in microseconds since 1970.
    pub fn committed(&self, tables: usize, took: Duration, source_time: Option<i64>) {
        add(&self.commits, tables as u64);
        if tables > 0 {
            self.commit.time(took);
        }
        if let Some(then) = source_time {
            self.delay.value((Utc::now().timestamp_micros() - then) as f64 / 1e6);
        }
    }

    /// Forgets the tables that are none of the pipeline any more.
    pub fn keep_tables(&self, is_ours: impl Fn(&str) -> bool) {
        lock(&self.tables).retain(|table, _| is_ours(table));
    }

    /// Notes a table's newest version.
    pub fn set_table(&self, table: &str, figures: TableFigures) {
        let mut tables = lock(&self.tables);
        if let Some(known) = tables.get_mut(table) {
            *known = figures;
        } else if tables.len() < MOST_TABLES {
            tables.insert(table.to_owned(), figures);
        }
    }

    /// What is known of a table.
    pub fn table(&self, table: &str) -> Option<TableFigures> {
        lock(&self.tables).get(table).copied()
    }

    /// What the ledger says from now on.
    pub fn set_ledger(&self, figures: LedgerFigures) {
        let ready = figures.phase == "live" && figures.fence.is_some();
        let mut known = lock(&self.ledger);
        if known.generation != figures.generation {
            lock(&self.fresh).forget();
        }
        if ready
            && !self.ready.load(Ordering::Acquire)
            && let Some(at) = figures.fence_at
        {
            lock(&self.fresh).seen_at(at.timestamp_millis());
        }
        *known = figures;
        self.ready.store(ready, Ordering::Release);
    }

    /// What the ledger says.
    pub fn ledger(&self) -> LedgerFigures {
        lock(&self.ledger).clone()
    }

    /// Whether the ledger holds a fence of the current generation.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Everything that committed before this can be read in the lake, or is no change of a table.
    pub fn visible(&self) -> Lsn {
        let fence = lock(&self.ledger).fence.unwrap_or_default();
        if self.is_streaming() { fence.max(Lsn::new(read(&self.settled))) } else { fence }
    }

    /// The source as it is; none if it does not answer.
    pub fn set_source(&self, look: Option<SourceLook>) {
        *lock(&self.source) = look;
        let now = Utc::now().timestamp_millis();
        if self.is_ready() {
            let visible = self.visible();
            let mut fresh = lock(&self.fresh);
            if let Some(look) = look {
                fresh.note(now, look.end);
            }
            fresh.shown(visible);
        }
        let lag = self.lag();
        let mut history = lock(&self.history);
        if history.is_due(now) {
            history.push(Point {
                at: now,
                lag_seconds: lag.and_then(|lag| lag.seconds),
                lag_bytes: lag.and_then(|lag| lag.bytes),
                retained_bytes: look.filter(|look| look.slot).map(|look| look.retained),
                changes: read(&self.changes),
                copied_rows: read(&self.copied.rows),
            });
        }
    }

    /// The source as it was when it was looked at last.
    pub fn source(&self) -> Option<SourceLook> {
        *lock(&self.source)
    }

    /// How far the tables are behind the source.
    pub fn lag(&self) -> Option<Lag> {
        if !self.is_ready() {
            return None;
        }
        let (visible, answers) = (self.visible(), self.source().is_some());
        let mut fresh = lock(&self.fresh);
        fresh.shown(visible);
        fresh.lag(Utc::now().timestamp_millis(), visible, answers)
    }

    /// The last comparison with the source.
    pub fn set_verified(&self, verified: Option<Verified>) {
        *lock(&self.verified) = verified;
    }

    /// An attempt failed and is made again.
    pub fn tries_again(&self, error: &Error) {
        add(&self.attempts, 1);
        self.trouble(error);
    }

    /// Something went wrong.
    pub fn trouble(&self, error: &Error) {
        let what = error.what();
        let next = error.next_step().unwrap_or("nothing: it is tried again by itself").to_owned();
        let at = Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
        let mut troubles = lock(&self.troubles);
        if let Some(last) = troubles.back_mut().filter(|last| last.what == what) {
            last.times += 1;
            last.at = at;
            return;
        }
        if troubles.len() == TROUBLES {
            troubles.pop_front();
        }
        troubles.push_back(Trouble { at, times: 1, what, next });
    }

    /// What went wrong of late, the newest first.
    pub fn troubles(&self) -> Vec<Trouble> {
        lock(&self.troubles).iter().rev().cloned().collect()
    }

    /// The last hour, oldest first.
    pub fn history(&self) -> Vec<Point> {
        lock(&self.history).points()
    }

    /// When the process began.
    pub fn started(&self) -> DateTime<Utc> {
        self.started
    }
}

/// Ends with whoever reads the stream.
#[derive(Debug)]
pub struct Reading<'a>(&'a Metrics);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory of this process that is in use, in bytes; none where the system does not say.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(fence: u64) -> LedgerFigures {
        LedgerFigures {
            generation: 1,
            phase: "live",
            fence: Some(Lsn::new(fence)),
            fence_at: Some(Utc::now()),
            ..LedgerFigures::default()
        }
    }

    #[test]
    fn an_idle_stream_shows_everything_though_its_fence_stands_still() {
        let metrics = Metrics::new("p");
        metrics.set_ledger(live(100));
        let _reading = metrics.reading();
        let look = |end| Some(SourceLook { end: Lsn::new(end), ..SourceLook::default() });
        metrics.set_source(look(150));
        assert_eq!(metrics.lag().unwrap().bytes, Some(50));
        metrics.settled(Lsn::new(150));
        let lag = metrics.lag().unwrap();
        assert_eq!((lag.bytes, lag.seconds), (Some(0), Some(0.0)));
    }

    #[test]
    fn what_a_broken_stream_had_received_is_not_shown() {
        let metrics = Metrics::new("p");
        metrics.set_ledger(live(100));
        drop({
            let reading = metrics.reading();
            metrics.settled(Lsn::new(150));
            reading
        });
        assert_eq!(metrics.visible(), Lsn::new(100));
        let _again = metrics.reading();
        assert_eq!(metrics.visible(), Lsn::new(100));
    }

    #[test]
    fn a_new_generation_is_not_ready_before_its_own_fence() {
        let metrics = Metrics::new("p");
        metrics.set_ledger(live(100));
        assert!(metrics.is_ready());
        let snapshot = LedgerFigures { generation: 2, phase: "snapshot", ..Default::default() };
        metrics.set_ledger(snapshot);
        assert!(!metrics.is_ready());
        assert_eq!(metrics.lag(), None);
    }

    #[test]
    fn the_same_trouble_again_takes_no_more_room() {
        let metrics = Metrics::new("p");
        for _ in 0..100 {
            metrics.tries_again(&Error::transient("the connection broke").next("wait"));
        }
        for number in 0..100 {
            metrics.trouble(&Error::failed(format!("table {number}")));
        }
        let troubles = metrics.troubles();
        assert_eq!(troubles.len(), TROUBLES);
        assert_eq!(troubles[0].what, "table 99");
        metrics.tries_again(&Error::transient("x"));
        metrics.tries_again(&Error::transient("x"));
        assert_eq!(metrics.troubles()[0].times, 2);
    }

    #[test]
    fn no_more_tables_than_a_collector_takes() {
        let metrics = Metrics::new("p");
        for number in 0..MOST_TABLES + 10 {
            metrics.set_table(&format!("public.t{number}"), TableFigures::default());
        }
        assert_eq!(lock(&metrics.tables).len(), MOST_TABLES);
        metrics.set_table("public.t3", TableFigures { version: 7, ..Default::default() });
        assert_eq!(metrics.table("public.t3").unwrap().version, 7);
        metrics.keep_tables(|table| table == "public.t3");
        assert_eq!(lock(&metrics.tables).len(), 1);
        assert!(metrics.table("public.t4").is_none());
    }
}

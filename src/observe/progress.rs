//! Progress of a long piece of work: a bar on a terminal, a log line every few seconds elsewhere.
//!
//! Workers pay one atomic add per batch; a thread of its own draws. Totals are PostgreSQL's
//! estimates and may be absent or wrong: what is shown never exceeds 100 %, and no time left is
//! promised that the figures don't support.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::log;
use super::metrics::Copied;
use super::reading::{Reading, line};

/// Between two log lines.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Between two drawings of the bar.
const DRAW_EVERY: Duration = Duration::from_millis(120);
/// How far back the rate looks: long enough to be steady, short enough to follow a change.
const RATE_OVER: Duration = Duration::from_secs(20);
const UNKNOWN: u64 = u64::MAX;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressKind {
    /// Copying rows of the exported snapshot.
    Snapshot,
    /// Applying what was committed during the snapshot; bytes are bytes of WAL.
    Drain,
    /// Comparing source and lake.
    Verify,
}

impl fmt::Display for ProgressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgressKind::Snapshot => "snapshot",
            ProgressKind::Drain => "drain",
            ProgressKind::Verify => "verify",
        })
    }
}

struct Counters {
    kind: ProgressKind,
    rows_total: Option<u64>,
    bytes_total: Option<u64>,
    rows: AtomicU64,
    bytes: AtomicU64,
    tables: AtomicU64,
    tables_total: AtomicU64,
    retained: AtomicU64,
    retained_limit: AtomicU64,
    seconds_to_limit: AtomicU64,
    copied: Option<Arc<Copied>>,
}

/// The progress of one piece of work. Clones share it; when the last one is dropped the display
/// ends, without a closing line unless [`Progress::finish`] was called.
#[derive(Clone)]
pub struct Progress(Arc<Shown>);

struct Shown {
    counters: Arc<Counters>,
    /// A message means finished; a closed channel means dropped.
    finish: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Progress {
    /// Starts showing progress. Totals that are `None` or 0 are not known.
    pub fn new(kind: ProgressKind, rows_total: Option<u64>, bytes_total: Option<u64>) -> Self {
        Progress::start(kind, rows_total, bytes_total, None)
    }

    /// Progress of a snapshot; what is copied is counted in `copied` too.
    pub fn of_snapshot(rows_total: u64, copied: Arc<Copied>) -> Self {
        Progress::start(ProgressKind::Snapshot, Some(rows_total), None, Some(copied))
    }

    fn start(
        kind: ProgressKind,
        rows_total: Option<u64>,
        bytes_total: Option<u64>,
        copied: Option<Arc<Copied>>,
    ) -> Self {
        let counters = Arc::new(Counters {
            kind,
            rows_total: rows_total.filter(|total| *total > 0),
            bytes_total: bytes_total.filter(|total| *total > 0),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            tables_total: AtomicU64::new(0),
            retained: AtomicU64::new(UNKNOWN),
            retained_limit: AtomicU64::new(UNKNOWN),
            seconds_to_limit: AtomicU64::new(UNKNOWN),
            copied,
        });
        let (finish, finished) = crossbeam_channel::bounded(1);
        let drawn = counters.clone();
        // Work must not fail because its progress can't be shown: without a thread it is silent.
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || show(&drawn, &finished))
            .ok();
        Progress(Arc::new(Shown { counters, finish: Some(finish), thread }))
    }

    /// Counts rows and bytes that are done; once per batch.
    pub fn add(&self, rows: u64, bytes: u64) {
        self.0.counters.rows.fetch_add(rows, Ordering::Relaxed);
        self.0.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(copied) = &self.0.counters.copied {
            copied.rows.fetch_add(rows, Ordering::Relaxed);
            copied.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// How many tables there are.
    pub fn set_tables(&self, total: u64) {
        self.0.counters.tables_total.store(total, Ordering::Relaxed);
    }

    /// One more table is done.
    pub fn table_done(&self) {
        self.0.counters.tables.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of WAL the source holds back for us.
    pub fn set_retained(&self, bytes: u64) {
        self.0.counters.retained.store(bytes, Ordering::Relaxed);
    }

    /// How much WAL it may hold back, and when that is reached if it goes on like this.
    pub fn set_wal_limit(&self, limit: Option<u64>, time_to_limit: Option<Duration>) {
        let counters = &self.0.counters;
        counters.retained_limit.store(limit.unwrap_or(UNKNOWN), Ordering::Relaxed);
        let seconds = time_to_limit.map_or(UNKNOWN, |time| time.as_secs());
        counters.seconds_to_limit.store(seconds, Ordering::Relaxed);
    }

    /// Rows counted so far.
    pub fn rows(&self) -> u64 {
        self.0.counters.rows.load(Ordering::Relaxed)
    }

    /// The work is done: the closing line is written when the last clone is dropped, or before.
    pub fn finish(&self) {
        if let Some(finish) = &self.0.finish {
            // Full means finished before.
            let _ = finish.try_send(());
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.finish.take());
        if let Some(thread) = self.thread.take() {
            // The closing line stands before whatever the caller writes next.
            let _ = thread.join();
        }
    }
}

/// The rate over the last seconds.
struct Rate {
    samples: VecDeque<(Duration, u64, u64)>,
}

impl Rate {
    fn new() -> Self {
        Rate { samples: VecDeque::from([(Duration::ZERO, 0, 0)]) }
    }

    /// Takes a sample and gives rows and bytes per second since the oldest one kept.
    fn update(&mut self, now: Duration, rows: u64, bytes: u64) -> (f64, f64) {
        self.samples.push_back((now, rows, bytes));
        while self.samples.len() > 2
            && self.samples.get(1).is_some_and(|(at, ..)| now - *at >= RATE_OVER)
        {
            self.samples.pop_front();
        }
        let Some((then, rows_then, bytes_then)) = self.samples.front() else { return (0.0, 0.0) };
        let seconds = now.saturating_sub(*then).as_secs_f64();
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        (
            rows.saturating_sub(*rows_then) as f64 / seconds,
            bytes.saturating_sub(*bytes_then) as f64 / seconds,
        )
    }
}

fn read(counters: &Counters, start: Instant, rate: &mut Rate, finished: bool) -> Reading {
    let (rows, bytes) =
        (counters.rows.load(Ordering::Relaxed), counters.bytes.load(Ordering::Relaxed));
    let elapsed = start.elapsed();
    let (rows_per_second, bytes_per_second) = rate.update(elapsed, rows, bytes);
    let tables_total = counters.tables_total.load(Ordering::Relaxed);
    let known = |counter: &AtomicU64| {
        Some(counter.load(Ordering::Relaxed)).filter(|value| *value != UNKNOWN)
    };
    Reading {
        elapsed,
        rows,
        rows_total: counters.rows_total,
        bytes,
        bytes_total: counters.bytes_total,
        tables: (tables_total > 0)
            .then(|| (counters.tables.load(Ordering::Relaxed).min(tables_total), tables_total)),
        retained: known(&counters.retained),
        retained_limit: known(&counters.retained_limit),
        time_to_limit: known(&counters.seconds_to_limit).map(Duration::from_secs),
        rows_per_second,
        bytes_per_second,
        finished,
    }
}

fn show(counters: &Counters, finished: &Receiver<()>) {
    let start = Instant::now();
    let mut rate = Rate::new();
    let bar = log::bars_allowed().then(|| bar(counters.kind));
    let every = if bar.is_some() { DRAW_EVERY } else { LINE_EVERY };
    let done = loop {
        match finished.recv_timeout(every) {
            Ok(()) => break true,
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => {
                let reading = read(counters, start, &mut rate, false);
                match &bar {
                    Some(bar) => draw(bar, &reading),
                    None => write(counters.kind, &reading),
                }
            }
        }
    };
    if let Some(bar) = bar {
        log::set_bar(None);
        bar.finish_and_clear();
    }
    if done {
        write(counters.kind, &read(counters, start, &mut rate, true));
    }
}

fn write(kind: ProgressKind, reading: &Reading) {
    tracing::info!("{kind}  {}", line(reading));
}

fn bar(kind: ProgressKind) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:24}] {wide_msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(kind.to_string());
    log::set_bar(Some(bar.clone()));
    bar
}

fn draw(bar: &ProgressBar, reading: &Reading) {
    bar.set_position((reading.fraction().unwrap_or(0.0) * 1000.0) as u64);
    bar.set_message(line(reading));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_last_seconds_only() {
        let mut rate = Rate::new();
        for second in 1..=60u64 {
            rate.update(Duration::from_secs(second), second.min(30) * 1000, 0);
        }
        let (rows, _) = rate.update(Duration::from_secs(61), 30_000, 0);
        assert_eq!(rows, 0.0);
        assert!(rate.samples.len() < 30);
    }

    #[test]
    fn dropping_ends_the_thread_at_once() {
        let start = Instant::now();
        let progress = Progress::new(ProgressKind::Snapshot, Some(10), None);
        let other = progress.clone();
        std::thread::spawn(move || {
            other.add(5, 50);
            other.set_tables(1);
            other.table_done();
            other.set_retained(7);
            other.finish();
            other.finish();
        })
        .join()
        .unwrap();
        assert_eq!(progress.rows(), 5);
        drop(progress);
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}

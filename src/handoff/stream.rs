//! Follows the slot: reads, decodes and batches on one thread, applies and commits on another.
//!
//! ```text
//!   spool, server ──► reader thread ──(parts, at most two waiting)──► applier thread ──► lake
//!      ◄── flush position ── durable fence (atomic) ◄── ledger commit ◄──┘
//! ```
//!
//! The reader never waits for the lake without answering the server: while the queue is full it
//! goes on sending its status. The flush position it reports is the durable fence, or the end of the
//! durable spool while the fence is below it, and nothing else: so the server forgets no change that
//! neither a table nor the spool holds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError};

use crate::apply::collect::{Changed, Collector, Step};
use crate::apply::part::Part;
use crate::error::Result;
use crate::failpoint;
use crate::handoff::follow::Unfit;
use crate::handoff::rules;
use crate::handoff::spool::source::Source;
use crate::observe::metrics::Metrics;
use crate::position::Lsn;
use crate::source::pgoutput;
use crate::source::wire::Frame;

/// Waits are cut short so that a stop or a due batch is seen soon.
const TICK: Duration = Duration::from_millis(100);
/// An idle pipeline moves its fence when so much log has passed, or [`IDLE_FENCE_EVERY`] has.
const IDLE_FENCE_BYTES: u64 = 16 << 20;
const IDLE_FENCE_EVERY: Duration = Duration::from_secs(60);
/// A server that asks for a reply twice within this time waits for one: it does so while it shuts
/// down, until everything it sent is confirmed (`WalSndDone`). Otherwise it asks after half of
/// `wal_sender_timeout`.
const HURRY: Duration = Duration::from_secs(1);
/// Messages between two looks at the clock, at the applier and at what is to be told the server.
const LOOK_EVERY: u32 = 64;

/// What reader and applier share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The durable fence.
    pub fence: AtomicU64,
    /// Everything that committed before this is in the tables, be the fence there or held.
    pub applied: AtomicU64,
    /// The highest position received.
    pub received: AtomicU64,
    /// Set to stop at the next good moment.
    pub stop: AtomicBool,
    /// Set by the applier when it has failed: nobody takes parts any more.
    pub failed: AtomicBool,
    /// What both count.
    pub metrics: Arc<Metrics>,
    /// Why, where it is one table's trouble alone.
    pub unfit: Mutex<Option<Unfit>>,
}

/// Why the reader ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The target was reached; the last batch ends there.
    Reached,
    /// It was asked to stop.
    Stopped,
    /// A table has other columns, key or identity from a transaction on. What was not ended before
    /// it is not to be committed.
    Changed(Box<Changed>),
    /// The applier failed and has the error.
    ApplierFailed,
}

/// Reads until the target, a stop or an error. Blocking.
///
/// # Errors
/// The connection (transient) or the stream's content (definite).
pub fn read(
    source: &mut Source,
    collector: &mut Collector,
    parts: &Sender<Part>,
    shared: &Shared,
    interval: Duration,
) -> Result<Ended> {
    let mut reader = Reader {
        parts,
        shared,
        acknowledged: source.durable(),
        status_at: Instant::now(),
        batch_since: None,
        last_end: (collector.applied(), Instant::now()),
        asked_at: None,
        interval,
    };
    let mut until_look = 0u32;
    let _reading = shared.metrics.reading();
    loop {
        // Messages at hand follow each other within a microsecond.
        let at_hand = source.buffered();
        if !at_hand || until_look == 0 {
            until_look = LOOK_EVERY;
            if shared.failed.load(Ordering::Acquire) {
                return Ok(Ended::ApplierFailed);
            }
            if shared.stop.load(Ordering::Acquire) {
                if collector.may_end() && collector.batch_changes() > 0 {
                    reader.end_batch(source, collector, None)?;
                }
                return Ok(Ended::Stopped);
            }
            reader.status(source, false)?;
            reader.settle(collector);
        }
        until_look -= 1;
        let wait = if at_hand { Duration::ZERO } else { reader.wait() };
        let step = match source.next(wait)? {
            None => {
                if reader.due() && collector.may_end() {
                    reader.end_batch(source, collector, None)?;
                }
                continue;
            }
            Some(Frame::Keepalive { end, reply, .. }) => {
                shared.received.fetch_max(end.bytes(), Ordering::AcqRel);
                let step = collector.keepalive(end);
                if reply {
                    reader.status(source, true)?;
                    if reader.is_waited_for(collector) && collector.may_end() {
                        reader.end_batch(source, collector, None)?;
                    }
                }
                step
            }
            Some(Frame::XLogData { data, end, .. }) => {
                shared.received.fetch_max(end.bytes(), Ordering::AcqRel);
                let (_, message) = pgoutput::decode(data, false)?;
                collector.message(message)?
            }
        };
        match step {
            Step::Continue => {}
            Step::PartFull => {
                let part = collector.cut_part();
                reader.send(source, part)?;
            }
            Step::TransactionEnd => {
                if collector.batch_changes() > 0 {
                    reader.batch_since.get_or_insert_with(Instant::now);
                }
            }
            Step::Changed(changed) => return Ok(Ended::Changed(changed)),
            Step::Reached(at) => {
                reader.end_batch(source, collector, Some(at))?;
                return Ok(Ended::Reached);
            }
        }
        if collector.may_end()
            && (reader.due() || collector.batch_full() || reader.idle_due(collector.applied()))
        {
            reader.end_batch(source, collector, None)?;
        }
    }
}

struct Reader<'a> {
    parts: &'a Sender<Part>,
    shared: &'a Shared,
    acknowledged: Lsn,
    status_at: Instant,
    batch_since: Option<Instant>,
    last_end: (Lsn, Instant),
    /// When the server last asked for a reply.
    asked_at: Option<Instant>,
    interval: Duration,
}

impl Reader<'_> {
    fn due(&self) -> bool {
        self.batch_since.is_some_and(|since| since.elapsed() >= self.interval)
    }

    fn idle_due(&self, applied: Lsn) -> bool {
        let (at, since) = self.last_end;
        let waited = since.elapsed();
        self.batch_since.is_none()
            && applied > at
            && (waited >= IDLE_FENCE_EVERY
                || (applied.bytes_since(at) >= IDLE_FENCE_BYTES && waited >= self.interval))
    }

    /// Whether the server waits for a confirmation, and a batch may bring one.
    fn is_waited_for(&mut self, collector: &Collector) -> bool {
        let asked = self.asked_at.replace(Instant::now());
        let (at, ended) = self.last_end;
        let brings = collector.batch_changes() > 0 || collector.applied() > at;
        brings && asked.is_some_and(|at| at.elapsed() < HURRY) && ended.elapsed() >= TICK
    }

    fn wait(&self) -> Duration {
        match self.batch_since {
            Some(since) => {
                self.interval.saturating_sub(since.elapsed()).clamp(Duration::from_millis(1), TICK)
            }
            None => TICK,
        }
    }

    /// Notes what needs no commit any more: nothing of it waits here or in the queue.
    fn settle(&self, collector: &Collector) {
        let fence = self.shared.fence.load(Ordering::Acquire);
        if collector.batch_changes() == 0 && collector.may_end() && fence >= self.last_end.0.bytes()
        {
            let received = self.shared.received.load(Ordering::Acquire);
            self.shared.metrics.settled(Lsn::new(received));
        }
    }

    /// Tells the server what is durable, when it asked, when that moved, or now and then.
    fn status(&mut self, source: &mut Source, asked: bool) -> Result<()> {
        let received = Lsn::new(self.shared.received.load(Ordering::Acquire));
        let fence = Lsn::new(self.shared.fence.load(Ordering::Acquire));
        let flushed = rules::may_acknowledge(fence, received.max(fence), self.acknowledged);
        let moved = flushed > self.acknowledged;
        if !asked && !moved && self.status_at.elapsed() < source.status_every() {
            return Ok(());
        }
        source.send_status(received.max(flushed), flushed)?;
        self.acknowledged = flushed;
        self.status_at = Instant::now();
        if moved { failpoint::at("stream.acknowledged") } else { Ok(()) }
    }

    fn end_batch(
        &mut self,
        source: &mut Source,
        collector: &mut Collector,
        at: Option<Lsn>,
    ) -> Result<()> {
        if let Some(since) = self.batch_since {
            self.shared.metrics.batch(collector.batch_changes(), since.elapsed());
        }
        let part = collector.end_batch(at)?;
        self.batch_since = None;
        self.last_end = (collector.applied(), Instant::now());
        self.send(source, part)
    }

    /// Hands a part on; while the applier is busy the server is kept informed.
    fn send(&mut self, source: &mut Source, mut part: Part) -> Result<()> {
        self.shared.metrics.part(part.changes(), part.bytes());
        loop {
            match self.parts.try_send(part) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => {
                    self.shared.failed.store(true, Ordering::Release);
                    return Ok(());
                }
                Err(TrySendError::Full(back)) => {
                    part = back;
                    self.status(source, false)?;
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }
}

/// After the reader ended: waits until the applier is done with what was sent, then tells the
/// server the final fence and frees the slot.
///
/// # Errors
/// The connection; the fence is durable all the same.
pub fn close(mut source: Source, shared: &Shared) -> Result<()> {
    let fence = Lsn::new(shared.fence.load(Ordering::Acquire));
    let received = Lsn::new(shared.received.load(Ordering::Acquire));
    let flushed = rules::may_acknowledge(fence, received.max(fence), source.durable());
    source.send_status(received.max(flushed), flushed)?;
    source.finish()
}

/// A queue of parts between reader and applier.
pub fn queue() -> (Sender<Part>, Receiver<Part>) {
    crossbeam_channel::bounded(2)
}

/// A new shared state whose fence stands at `fence`.
pub fn shared(fence: Lsn) -> Arc<Shared> {
    observed(fence, &Arc::default())
}

/// As [`shared`]; what both do is counted in `metrics`.
pub fn observed(fence: Lsn, metrics: &Arc<Metrics>) -> Arc<Shared> {
    let shared = Shared { metrics: metrics.clone(), ..Shared::default() };
    shared.fence.store(fence.bytes(), Ordering::Release);
    Arc::new(shared)
}

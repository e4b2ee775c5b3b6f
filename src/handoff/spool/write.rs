//! Streams from the slot into segment files while a snapshot is copied, on a thread of its own.
//!
//! ```text
//!   receive ─► segment ─► put (durable) ─► owner: record in the ledger ─► acknowledge to the server
//! ```
//!
//! A step ends between transactions, and is recorded whole: a transaction larger than a file spans
//! several, which are stored as they fill and recorded together once it is complete. Nothing is
//! acknowledged that is not recorded. Whatever happens to a session in between costs only that what
//! it received since the last record comes again; its files are removed, now or at the next start.
//!
//! Trouble with the connection or the lake never ends the copy: the slot retains what is not
//! recorded, as it does without a spool. Only a history that is gone is an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::intake::Intake;
use super::segment::Header;
use super::{SegmentFile, Step, folder};
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::rules;
use crate::lake::{Lake, SpoolState};
use crate::position::Lsn;
use crate::source::options::ConnectOptions;
use crate::source::slot;
use crate::source::wire::{Frame, Replication, ServerSession, SessionKind, Wire, is_other_server};

const TICK: Duration = Duration::from_millis(100);
/// Messages between two looks at the clock.
const LOOK_EVERY: u32 = 64;
/// Without a message a step is recorded when so much log has passed, or so much time.
const IDLE_STEP_BYTES: u64 = 16 << 20;
const IDLE_STEP_EVERY: Duration = Duration::from_secs(60);
/// After so many steps the interval is once more as long.
const SLOWER_EVERY: u64 = 500;
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What a spool is made with.
pub struct Settings {
    /// The source.
    pub source: ConnectOptions,
    /// A session of its server.
    pub anchor: ServerSession,
    /// The slot.
    pub slot: String,
    /// The stream's options.
    pub options: Vec<(String, String)>,
    /// The lake.
    pub lake: Lake,
    /// A file ends at this size.
    pub segment_bytes: u64,
    /// A step ends, at the next transaction's end, after this time.
    pub interval: Duration,
    /// The most that all files of the run may take.
    pub limit_bytes: u64,
}

/// How a spool ended.
#[derive(Debug)]
pub enum End {
    /// It was told to.
    Stopped,
    /// It has no room left: the slot holds what comes from now on.
    Full,
    /// It can't go on.
    Failed(Error),
}

/// What the thread tells the owner of the ledger.
#[derive(Debug)]
pub enum Note {
    /// A step is stored. To be recorded, then answered; unanswered it counts as not recorded.
    Step(Step, std_mpsc::SyncSender<()>),
    /// Nothing more comes.
    Ended(End),
}

/// A spool in the making.
pub struct Spooler {
    notes: mpsc::UnboundedReceiver<Note>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Spooler {
    /// Begins to stream from where `spool` ends. The slot must be free, and what is before that
    /// must be recorded.
    pub fn start(settings: Settings, spool: &SpoolState) -> Spooler {
        let (sender, notes) = mpsc::unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut writer = Writer {
            settings,
            runtime: Handle::current(),
            notes: sender.clone(),
            stop: stop.clone(),
            run: spool.run.clone(),
            recorded: spool.to,
            steps: spool.steps,
            bytes: spool.bytes,
        };
        let thread = tokio::task::spawn_blocking(move || {
            let end = writer.run();
            // Without a receiver the copy was given up.
            let _ = sender.send(Note::Ended(end));
        });
        Spooler { notes, stop, thread }
    }

    /// What it has to say next; `None` after the end. May be cancelled.
    pub async fn note(&mut self) -> Option<Note> {
        self.notes.recv().await
    }

    /// Asks it to end: between transactions what it has is recorded first.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Ends it without recording anything more, and waits until the slot is free.
    pub async fn abandon(self) {
        self.stop();
        drop(self.notes);
        let _ = self.thread.await;
    }
}

struct Writer {
    settings: Settings,
    runtime: Handle,
    notes: mpsc::UnboundedSender<Note>,
    stop: Arc<AtomicBool>,
    run: String,
    /// Everything before is recorded.
    recorded: Lsn,
    steps: u64,
    bytes: u64,
}

/// Why a session ended without an error.
enum SessionEnd {
    Stopped,
    Full,
    /// Nobody takes steps any more.
    Alone,
}

impl Writer {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.notes.is_closed()
    }

    /// Sessions, one after the other, until told to stop.
    fn run(&mut self) -> End {
        let mut wait = FIRST_WAIT;
        loop {
            if self.stopped() {
                return End::Stopped;
            }
            let before = self.recorded;
            match self.session() {
                Ok(SessionEnd::Stopped | SessionEnd::Alone) => return End::Stopped,
                Ok(SessionEnd::Full) => return End::Full,
                // Of another server the run must know first whether it continues the history.
                Err(error) if error.is_transient() && !is_other_server(&error) => {
                    if self.recorded > before {
                        wait = FIRST_WAIT;
                    }
                    tracing::warn!(
                        wait_ms = wait.as_millis() as u64,
                        "{error}; the slot holds the changes until the spool goes on"
                    );
                    let until = Instant::now() + wait;
                    while Instant::now() < until && !self.stopped() {
                        std::thread::sleep(TICK.min(wait));
                    }
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                Err(error) => return End::Failed(error),
            }
        }
    }

    /// One connection, from what is recorded on.
    fn session(&mut self) -> Result<SessionEnd> {
        let Settings { source, slot, options, .. } = &self.settings;
        let wire = Wire::connect(source, SessionKind::Replication)?;
        let replication = wire.start_replication(slot, self.recorded, options)?;
        self.prove()?;
        tracing::debug!(from = %self.recorded, "spooling");
        let header = Header {
            run: self.run.clone(),
            session: Uuid::new_v4().to_string(),
            number: 0,
            options: options.clone(),
        };
        let mut session = Session {
            replication,
            acknowledged: self.recorded,
            status_at: Instant::now(),
            intake: Intake::new(header, self.recorded),
            files: Vec::new(),
        };
        let result = self.take(&mut session);
        self.remove(&session.files);
        let end = result?;
        // In the middle of a large transaction the server may not end in time; it does later.
        if let Err(e) = session.replication.finish() {
            tracing::debug!("ending the spool's stream: {e}");
        }
        Ok(end)
    }

    /// With the slot held: does it still send everything from what is recorded on? A start below
    /// the slot's confirmed position is moved up to it without a word.
    fn prove(&self) -> Result<()> {
        let Settings { source, slot, anchor, .. } = &self.settings;
        let mut wire = Wire::connect(source, SessionKind::Query)?;
        wire.must_know(anchor)?;
        let found = slot::slot_info_over(&mut wire, slot)?;
        let found = found.as_ref().map(|slot| rules::Slot {
            database: slot.database.as_deref().unwrap_or_default(),
            plugin: slot.plugin.as_deref().unwrap_or_default(),
            active: slot.active,
            confirmed: slot.confirmed,
            lost: slot.lost().is_some(),
        });
        rules::may_stream(self.recorded, found.as_ref())?;
        Ok(())
    }

    fn take(&mut self, session: &mut Session) -> Result<SessionEnd> {
        let mut until_look = 0u32;
        loop {
            let at_hand = session.replication.buffered();
            if !at_hand || until_look == 0 {
                until_look = LOOK_EVERY;
                if self.stopped() {
                    // What belongs to an open transaction comes again, from the slot.
                    let complete = !session.intake.open && session.intake.reached > self.recorded;
                    return if complete { self.end_step(session) } else { Ok(None) }
                        .map(|end| end.unwrap_or(SessionEnd::Stopped));
                }
                session.status(self.recorded, false)?;
            }
            until_look -= 1;
            let wait = if at_hand { Duration::ZERO } else { TICK };
            match session.replication.next(wait)? {
                None => {}
                Some(Frame::Keepalive { end, reply, .. }) => {
                    session.intake.keepalive(end);
                    if reply {
                        session.status(self.recorded, true)?;
                    }
                }
                Some(Frame::XLogData { start, end, data, .. }) => {
                    session.intake.message(start, end, data)?;
                }
            }
            let full = session.intake.size() >= self.settings.segment_bytes;
            if full && !self.end_segment(session)? {
                return Ok(SessionEnd::Full);
            }
            if self.due(session)
                && let Some(end) = self.end_step(session)?
            {
                return Ok(end);
            }
        }
    }

    /// Whether a step is to end here.
    fn due(&self, session: &Session) -> bool {
        let intake = &session.intake;
        if intake.open || intake.reached <= self.recorded {
            return false;
        }
        let waited = intake.since.elapsed();
        // Every step is a file of the ledger, which a start reads: the longer a copy takes, the
        // fewer they become. Under load a full file ends the step before.
        let slower = u32::try_from(self.steps / SLOWER_EVERY).unwrap_or(u32::MAX);
        let interval = self.settings.interval.saturating_mul(slower.saturating_add(1));
        if intake.records > 0 || !session.files.is_empty() {
            return !session.files.is_empty() || waited >= interval;
        }
        let passed = intake.reached.bytes_since(self.recorded);
        waited >= IDLE_STEP_EVERY || (passed >= IDLE_STEP_BYTES && waited >= interval)
    }

    /// Stores the file in the making; false if there is no room for it.
    fn end_segment(&mut self, session: &mut Session) -> Result<bool> {
        let Some(writer) = session.intake.segment.take() else { return Ok(true) };
        let sealed = writer.seal()?;
        let size = sealed.bytes.len() as u64;
        let stored: u64 = session.files.iter().map(|file| file.size).sum();
        if self.bytes + stored + size > self.settings.limit_bytes {
            return Ok(false);
        }
        // No name is ever used twice, so that another process can't store something else there.
        let name = format!("{:08}-{}.seg", session.intake.header.number, Uuid::new_v4().simple());
        let path = format!("{}/{name}", folder(&self.run));
        let (records, checksum) = (sealed.records, sealed.checksum);
        session.files.push(SegmentFile { name, size, records, checksum });
        failpoint::at("spool.segment.before")?;
        let lake = self.settings.lake.clone();
        let mut put = self.runtime.spawn(async move { lake.put(&path, sealed.bytes).await });
        let every = session.replication.status_every();
        let runtime = self.runtime.clone();
        let _timers = runtime.enter();
        loop {
            match runtime.block_on(tokio::time::timeout(every, &mut put)) {
                Ok(answer) => {
                    answer.map_err(|e| {
                        Error::transient("a write of the spool was cancelled").because(e)
                    })??;
                    break;
                }
                // A lake that does not answer does not hold up the end: the slot has it all.
                Err(_) if self.stopped() => {
                    put.abort();
                    return Err(Error::transient("a file of the spool was given up"));
                }
                Err(_) => session.status(self.recorded, false)?,
            }
        }
        failpoint::at("spool.segment.after")?;
        Ok(true)
    }

    /// Stores what is left of the step, has it recorded, and acknowledges it. Some if that is the
    /// end of all steps.
    fn end_step(&mut self, session: &mut Session) -> Result<Option<SessionEnd>> {
        if !self.end_segment(session)? {
            return Ok(Some(SessionEnd::Full));
        }
        // From here on the files may be recorded, whatever answer comes: they stay.
        let files = std::mem::take(&mut session.files);
        let (number, from, to) = (self.steps + 1, self.recorded, session.intake.reached);
        let step = Step { number, from, to, files };
        let (bytes, count) = (step.bytes(), step.files.len());
        let (answer, recorded) = std_mpsc::sync_channel(1);
        if self.notes.send(Note::Step(step, answer)).is_err() {
            return Ok(Some(SessionEnd::Alone));
        }
        loop {
            match recorded.recv_timeout(session.replication.status_every()) {
                Ok(()) => break,
                Err(std_mpsc::RecvTimeoutError::Timeout) => session.status(self.recorded, false)?,
                Err(std_mpsc::RecvTimeoutError::Disconnected) => {
                    return Ok(Some(SessionEnd::Alone));
                }
            }
        }
        self.recorded = to;
        self.steps = number;
        self.bytes += bytes;
        session.intake.next_step();
        tracing::debug!(%to, files = count, bytes, "spooled");
        failpoint::at("spool.acknowledge.before")?;
        session.status(self.recorded, false)?;
        failpoint::at("spool.acknowledge.after")?;
        Ok(None)
    }

    /// Files of a step that was not completed. What can't be removed is at the next start.
    fn remove(&self, files: &[SegmentFile]) {
        let store = self.settings.lake.store();
        for file in files {
            let path = Path::from(format!("{}/{}", folder(&self.run), file.name));
            match self.runtime.block_on(store.delete(&path)) {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => tracing::debug!("{path} is left over: {e}"),
            }
        }
    }
}

/// A connection and what came over it.
struct Session {
    replication: Replication,
    acknowledged: Lsn,
    status_at: Instant,
    intake: Intake,
    /// Stored and not recorded.
    files: Vec<SegmentFile>,
}

impl Session {
    /// Tells the server what is recorded, when it asked, when that moved, or now and then.
    fn status(&mut self, recorded: Lsn, asked: bool) -> Result<()> {
        let received = self.intake.received;
        let too_much = failpoint::wrong("spool-acknowledges-received");
        let recorded = if too_much { received } else { recorded };
        let flushed = rules::may_acknowledge(recorded, received.max(recorded), self.acknowledged);
        let moved = flushed > self.acknowledged;
        if !asked && !moved && self.status_at.elapsed() < self.replication.status_every() {
            return Ok(());
        }
        self.replication.send_status(received.max(flushed), flushed, flushed, false)?;
        self.acknowledged = flushed;
        self.status_at = Instant::now();
        Ok(())
    }
}

//! `run`: decides from ledger, server and slot what to do, does it, and tries again what may pass.
//!
//! ```text
//!   attempt ──► done
//!      │ transient ─────► wait with back-off and jitter ──► attempt     while there is progress, or
//!      │                                                                `[limits] retry_for` is not over
//!      │ lost history ──► `on_lost_history = "resnapshot"`: attempt with a new generation, once
//!      └ definite ──────► error
//! ```
//!
//! A new generation is begun by the same code whether it was asked for (`--resnapshot`) or is the
//! answer to a lost history. The old versions stay until the new handoff replaces them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Config, OnLostHistory};
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::figures;
use crate::handoff::follow::Target;
use crate::handoff::live::{self, Newcomers};
use crate::handoff::ownership::{self, Ownership};
use crate::handoff::rules::{self, Refusal, Resume};
use crate::handoff::session::Session;
use crate::handoff::snapshot::{self, Taken};
use crate::lake::Ledger;
use crate::observe::metrics::Metrics;
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::{catalog, client, slot};

/// When to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Never, until stopped.
    Forever,
    /// Once everything that had committed when the command started is visible.
    CaughtUp,
    /// Once everything that committed before this LSN is visible.
    Lsn(Lsn),
}

const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Runs the pipeline. Gives the fence reached. `resnapshot` begins a new generation first.
///
/// # Errors
/// A definite error, or a transient one that lasted longer than `[limits] retry_for` without
/// progress.
pub async fn run(
    config: &Config,
    until: Until,
    resnapshot: bool,
    stop: &StopSignal,
) -> Result<Lsn> {
    run_observed(config, until, resnapshot, stop, &Arc::default()).await
}

/// As [`run`]; what it does is counted in `metrics`.
///
/// # Errors
/// As [`run`].
pub async fn run_observed(
    config: &Config,
    until: Until,
    resnapshot: bool,
    stop: &StopSignal,
    metrics: &Arc<Metrics>,
) -> Result<Lsn> {
    let mut run = Run {
        config,
        metrics,
        until,
        stop,
        target: None,
        owner: None,
        new_generation: resnapshot,
        begun_here: false,
        seen: Seen::default(),
        moved_on: false,
        trouble: None,
        ours: None,
    };
    let result = run.until_done().await;
    ownership::end(config, run.ours.take(), result).await
}

/// How far the pipeline is seen to be. More is progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    generation: u64,
    fence: Lsn,
    /// Chunks that this process recorded; they are kept whatever happens.
    chunks: u64,
}

/// A row of attempts that failed in a way that may pass, without progress in between.
struct Trouble {
    since: Instant,
    at: Seen,
    wait: Duration,
}

struct Run<'a> {
    config: &'a Config,
    metrics: &'a Arc<Metrics>,
    until: Until,
    stop: &'a StopSignal,
    /// Fixed once: what commits while a snapshot is copied is not waited for.
    target: Option<Target>,
    /// The name under which this process owned the ledger last.
    owner: Option<String>,
    /// The next attempt begins a new generation.
    new_generation: bool,
    /// It does so, or one did, in answer to a lost history.
    begun_here: bool,
    seen: Seen,
    /// The fence of the generation in the ledger is beyond its base.
    moved_on: bool,
    trouble: Option<Trouble>,
    /// Set once this process works on the pipeline alone.
    ours: Option<Ownership>,
}

impl Run<'_> {
    async fn until_done(&mut self) -> Result<Lsn> {
        loop {
            match self.attempt().await {
                Ok(fence) => return Ok(fence),
                // What was asked for is to end, and everything that is durable stays.
                Err(error) if self.stop.is_set() && error.is_transient() => {
                    tracing::warn!("while stopping: {}", error.what());
                    return Ok(self.seen.fence);
                }
                Err(error) if self.stop.is_set() => return Err(error),
                Err(error) if error.is_transient() => {
                    if !self.wait(error).await? {
                        return Ok(self.seen.fence);
                    }
                }
                Err(error) if rules::is_lost_history(&error) => self.start_over(error)?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn attempt(&mut self) -> Result<Lsn> {
        let Some(mut session) = open(self.config, self.stop).await? else { return Ok(Lsn::ZERO) };
        figures::observe(&mut session, self.metrics);
        if let (Some(ours), Some(ledger)) = (self.owner.as_deref(), &session.ledger)
            && !ledger.was_owned_by(ours)
        {
            return Err(ownership::overtaken());
        }
        self.look(&session);
        let result = self.act(&mut session).await;
        if let Some(epoch) = session.ledger.as_ref().and_then(Ledger::epoch) {
            self.owner = Some(epoch.to_owned());
        }
        self.seen.chunks += session.chunks_recorded;
        self.look(&session);
        result
    }

    async fn act(&mut self, session: &mut Session) -> Result<Lsn> {
        let to = match self.target {
            Some(target) => target,
            None => *self.target.insert(self.until.fix(session).await?),
        };
        let fence =
            |session: &Session| session.ledger.as_ref().and_then(Ledger::fence).map(|f| f.lsn);
        let mut resume = session.resume(fence(session).unwrap_or_default()).await?;
        if self.ours.is_none() {
            let ours = match &resume {
                _ if self.new_generation => {
                    ownership::take_for_new_generation(session, self.stop).await?
                }
                // It may be free as soon as the server notices that its client is gone.
                Resume::Refuse(refusal) if *refusal != Refusal::SlotInUse => None,
                _ => ownership::take(session, self.stop).await?,
            };
            self.ours = ours;
            if self.ours.is_none() && self.stop.is_set() {
                return Ok(Lsn::ZERO);
            }
        }
        // Looked at again: before, we were not alone.
        if self.ours.is_some() {
            self.look(session);
            resume = session.resume(fence(session).unwrap_or_default()).await?;
        }
        if !self.new_generation && resume.goes_on() {
            follow_timeline(session).await?;
        }
        let taken = match resume {
            // The ledger is still ours: it is our own connection of before, which the server has
            // not noticed to be dead yet.
            Resume::Refuse(Refusal::SlotInUse) if self.owner.is_some() => {
                return Err(Error::transient(
                    "the server still holds the slot for our lost connection",
                ));
            }
            Resume::Refuse(refusal)
                if !self.new_generation || refusal.kind() != Kind::HistoryLost =>
            {
                return Err(refuse(refusal, session));
            }
            _ if self.new_generation => self.take_new_generation(session).await?,
            Resume::FreshSnapshot => snapshot::take(session, self.stop).await?,
            Resume::RestartSnapshot => {
                tracing::warn!(
                    "an earlier snapshot can't be continued; it starts from the beginning"
                );
                snapshot::take(session, self.stop).await?
            }
            Resume::ResumeSnapshot => snapshot::resume(session, self.stop).await?,
            Resume::ContinuePublish => snapshot::continue_publishing(session, self.stop).await?,
            Resume::Stream { .. } | Resume::Refuse(_) => Taken::Published,
        };
        if taken == Taken::Stopped {
            return Ok(Lsn::ZERO);
        }
        // An idle server whose log ends where we are gives nothing to make progress with.
        let idle = session.system.xlogpos <= self.seen.fence;
        let began = Instant::now();
        let result = live::stream(session, to, Newcomers::Join, self.stop).await;
        if idle && began.elapsed() >= self.config.limits.source_timeout {
            self.trouble = None;
        }
        result
    }

    /// Takes note of how far the pipeline is.
    fn look(&mut self, session: &Session) {
        let Some(ledger) = &session.ledger else { return };
        let (state, fence) = (ledger.state(), ledger.fence());
        let fence = fence.filter(|fence| fence.generation == state.generation).map(|f| f.lsn);
        let published = state.handoff.or(state.base);
        self.moved_on = fence.zip(published).is_some_and(|(fence, at)| fence > at);
        let fence = fence.unwrap_or_default();
        let seen = Seen { generation: state.generation, fence, ..self.seen };
        self.seen = self.seen.max(seen);
    }

    /// Waits before the next attempt, longer each time while there is no progress.
    /// False: a stop was asked for meanwhile.
    async fn wait(&mut self, error: Error) -> Result<bool> {
        let seen = self.seen;
        let trouble = match &mut self.trouble {
            Some(trouble) if seen <= trouble.at => trouble,
            other => other.insert(Trouble { since: Instant::now(), at: seen, wait: FIRST_WAIT }),
        };
        let limit = self.config.limits.retry_for;
        if trouble.since.elapsed() > limit {
            tracing::warn!("tried for {limit:?} without progress ([limits] retry_for)");
            return Err(error);
        }
        let wait = jittered(trouble.wait);
        self.metrics.tries_again(&error);
        tracing::warn!(
            fence = %seen.fence,
            chunks = seen.chunks,
            wait_ms = wait.as_millis() as u64,
            next = error.next_step().unwrap_or("it is tried again by itself"),
            "{}; trying again",
            error.what()
        );
        trouble.wait = (trouble.wait * 2).min(LONGEST_WAIT);
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(true),
            () = self.stop.requested() => Ok(false),
        }
    }

    /// Gives the recorded history up. Once the new run is announced, what fails is tried again as
    /// any snapshot is.
    async fn take_new_generation(&mut self, session: &mut Session) -> Result<Taken> {
        let run = |session: &Session| session.ledger.as_ref().map(|l| l.state().run.clone());
        let before = run(session);
        let result = snapshot::take(session, self.stop).await;
        if run(session) != before {
            self.new_generation = false;
        }
        result
    }

    /// The answer to a lost history.
    fn start_over(&mut self, error: Error) -> Result<()> {
        if self.config.on_lost_history == OnLostHistory::Refuse {
            return Err(error);
        }
        let lost = rules::LostGeneration {
            number: self.seen.generation,
            moved_on: self.moved_on,
            begun_here: self.begun_here,
        };
        if !rules::may_start_over(lost) {
            return Err(error.next(
                "a new generation would be lost like this one, which never moved beyond its \
                 snapshot: see that the log is kept long enough (max_slot_wal_keep_size) and that \
                 nobody else uses slot and publication, then `tidegate run --resnapshot`",
            ));
        }
        self.metrics.trouble(&error);
        tracing::warn!(
            generation = lost.number,
            "{}; beginning a new generation, as on_lost_history says",
            error.what()
        );
        self.new_generation = true;
        self.begun_here = true;
        if self.until == Until::CaughtUp {
            // Positions of the lost history may mean nothing in the new one.
            self.target = None;
        }
        Ok(())
    }
}

/// A session whose lake is waited for no longer once a stop is asked for; none if that came first.
async fn open(config: &Config, stop: &StopSignal) -> Result<Option<Session>> {
    let session = tokio::select! {
        session = Session::open(config) => session?,
        () = stop.requested() => return Ok(None),
    };
    let (patience, stop) = (session.lake.patience().clone(), stop.clone());
    tokio::spawn(async move {
        stop.requested().await;
        patience.end();
    });
    Ok(Some(session))
}

/// Three to five quarters of `wait`: many pipelines of one server that restarted do not come back
/// in one moment.
fn jittered(wait: Duration) -> Duration {
    let chance = (uuid::Uuid::new_v4().as_u128() & 0xffff) as f64 / 65_536.0;
    wait.mul_f64(0.75 + chance / 2.0)
}

/// Records that the source's history goes on on a later timeline, which was proven to contain ours:
/// before the first change of it is applied, as positions beyond the switch belong to it alone.
pub(super) async fn follow_timeline(session: &mut Session) -> Result<()> {
    let found = session.system.timeline;
    let ledger = session.ledger_mut()?;
    let recorded = ledger.state().source.timeline;
    if recorded >= found {
        return Ok(());
    }
    ledger.claim().await?;
    let mut state = ledger.state().clone();
    state.source.timeline = found;
    ledger.set_state(state, &[]).await?;
    tracing::info!(from = recorded, to = found, "the source was promoted; its history goes on");
    failpoint::at("stream.timeline")
}

/// The error for a refusal, with what it is about.
pub(crate) fn refuse(refusal: Refusal, session: &Session) -> Error {
    let subject = refusal.subject(&session.config.name);
    Error::from(refusal).at(subject)
}

impl Until {
    /// The target, as it is now.
    async fn fix(self, session: &Session) -> Result<Target> {
        Ok(match self {
            Until::Forever => Target::Forever,
            Until::Lsn(lsn) => Target::Lsn(lsn),
            Until::CaughtUp => {
                let in_recovery = session.server.in_recovery;
                Target::Lsn(catalog::insert_lsn(&session.client, in_recovery).await?)
            }
        })
    }
}

/// On an idle server nothing may be written beyond a target near the log's end, and no keepalive
/// would ever pass it. A logical message makes the log grow by a few bytes.
pub(super) fn nudge(session: &Session, target: Target) -> tokio::task::JoinHandle<()> {
    let source = session.source.clone();
    let in_recovery = session.server.in_recovery;
    tokio::spawn(async move {
        let Target::Lsn(until) = target else { return };
        if in_recovery {
            return;
        }
        let mut connection = None;
        loop {
            if connection.is_none() {
                connection = client::connect(&source).await.ok();
            }
            if let Some(client) = &connection {
                match catalog::current_lsn(client, false).await {
                    Ok(end) if end > until => return,
                    Ok(end) if until.bytes_since(end) > 1 << 20 => {}
                    Ok(_) => {
                        let sql = "SELECT pg_catalog.pg_logical_emit_message(true, 'tidegate', '')";
                        if let Err(e) = client.simple_query(sql).await {
                            tracing::debug!("no logical message could be written: {e}");
                            connection = None;
                        }
                    }
                    Err(_) => connection = None,
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}

/// Drops the slot and, if the pipeline made it, the publication. Never the lake.
///
/// # Errors
/// The slot is in use, or rights are missing.
pub async fn teardown(config: &Config) -> Result<Vec<String>> {
    let mut session = Session::open(config).await?;
    let ours = ownership::take(&mut session, &StopSignal::manual()).await?;
    let result = drop_what_is_ours(&mut session).await;
    ownership::end(config, ours, result).await
}

async fn drop_what_is_ours(session: &mut Session) -> Result<Vec<String>> {
    let name = session.config.name.clone();
    let ours = session.made_here().await?;
    let mut done = Vec::new();
    if ours.slot && slot::drop_slot(&session.client, &name).await? {
        done.push(format!("dropped the slot {name}"));
    }
    if ours.publication {
        slot::drop_publication(&session.client, &name).await?;
        done.push(format!("dropped the publication {name}"));
        let ledger = session.ledger_mut()?;
        ledger.claim().await?;
        let mut state = ledger.state().clone();
        state.created_publication = false;
        ledger.set_state(state, &[]).await?;
    }
    if done.is_empty() {
        done.push(
            "nothing to drop: slot and publication were not made by this pipeline".to_owned(),
        );
    }
    Ok(done)
}

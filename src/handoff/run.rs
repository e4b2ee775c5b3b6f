//! `run`: decides from ledger, server and slot what to do, does it, and tries again what may pass.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::handoff::follow::{Target, follow, open_tables, reached};
use crate::handoff::guard::Guard;
use crate::handoff::ownership::{self, Ownership};
use crate::handoff::rules::{Refusal, Resume};
use crate::handoff::session::Session;
use crate::handoff::snapshot::{self, Taken};
use crate::lake::Ledger;
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::{catalog, slot};

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

/// Runs the pipeline. Gives the fence reached.
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
    let mut ours = None;
    let result = run_owned(config, until, resnapshot, stop, &mut ours).await;
    ownership::end(config, ours, result).await
}

async fn run_owned(
    config: &Config,
    until: Until,
    resnapshot: bool,
    stop: &StopSignal,
    ours: &mut Option<Ownership>,
) -> Result<Lsn> {
    if resnapshot {
        let mut session = open(config, stop).await?;
        let to = Until::fix(until, &session).await?;
        *ours = Some(ownership::take_for_new_generation(&mut session, stop).await?);
        return match snapshot::take(&mut session, stop).await? {
            Taken::Published => stream(&mut session, to, stop).await,
            Taken::Stopped => Ok(Lsn::ZERO),
        };
    }
    let mut target = None;
    let mut wait = FIRST_WAIT;
    let mut trouble: Option<(Instant, Lsn)> = None;
    let mut owner: Option<String> = None;
    loop {
        let mut fence = Lsn::ZERO;
        let mut copied = 0;
        let progress = (&mut fence, &mut copied);
        match attempt(config, until, &mut target, &mut owner, stop, progress, ours).await {
            Ok(fence) => return Ok(fence),
            Err(error) if error.is_transient() && !stop.is_set() => {
                let (since, at) = *trouble.get_or_insert((Instant::now(), fence));
                if fence > at || copied > 0 {
                    trouble = Some((Instant::now(), fence));
                    wait = FIRST_WAIT;
                } else if since.elapsed() > config.limits.retry_for {
                    return Err(error);
                }
                tracing::warn!(wait_ms = wait.as_millis() as u64, "{error}; trying again");
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = stop.requested() => return Err(error),
                }
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            Err(error) => return Err(error),
        }
    }
}

/// A session whose lake is waited for no longer once a stop is asked for.
async fn open(config: &Config, stop: &StopSignal) -> Result<Session> {
    let session = tokio::select! {
        session = Session::open(config) => session?,
        () = stop.requested() => return Err(Error::failed("stopped before anything was done")),
    };
    let (patience, stop) = (session.lake.patience().clone(), stop.clone());
    tokio::spawn(async move {
        stop.requested().await;
        patience.end();
    });
    Ok(session)
}

async fn attempt(
    config: &Config,
    until: Until,
    target: &mut Option<Target>,
    owner: &mut Option<String>,
    stop: &StopSignal,
    (fence, copied): (&mut Lsn, &mut u64),
    ours: &mut Option<Ownership>,
) -> Result<Lsn> {
    let mut session = open(config, stop).await?;
    if let (Some(ours), Some(ledger)) = (owner.as_deref(), &session.ledger)
        && !ledger.was_owned_by(ours)
    {
        return Err(ownership::overtaken());
    }
    *fence = session.ledger.as_ref().and_then(Ledger::fence).map(|f| f.lsn).unwrap_or_default();
    // The target is fixed once: what commits while a snapshot is copied is not waited for.
    let to = match *target {
        Some(target) => target,
        None => *target.insert(until.fix(&session).await?),
    };
    let mut resume = session.resume(*fence).await?;
    if ours.is_none() && !matches!(resume, Resume::Refuse(_)) {
        *ours = Some(ownership::take(&mut session).await?);
        // Looked at before we were alone.
        *fence = session.ledger.as_ref().and_then(Ledger::fence).map(|f| f.lsn).unwrap_or_default();
        resume = session.resume(*fence).await?;
    }
    if resume == Resume::Refuse(Refusal::SlotInUse) && owner.is_some() {
        // The ledger is still ours: it is our own connection of before, which the server has not
        // noticed to be dead yet.
        return Err(Error::transient("the server still holds the slot for our lost connection"));
    }
    let result = act(&mut session, resume, to, stop).await;
    *copied = session.chunks_recorded;
    if let Some(epoch) = session.ledger.as_ref().and_then(Ledger::epoch) {
        *owner = Some(epoch.to_owned());
    }
    result
}

async fn act(
    session: &mut Session,
    resume: Resume,
    target: Target,
    stop: &StopSignal,
) -> Result<Lsn> {
    let taken = match resume {
        Resume::FreshSnapshot => snapshot::take(session, stop).await?,
        Resume::RestartSnapshot => {
            tracing::warn!("an earlier snapshot can't be continued; it starts from the beginning");
            snapshot::take(session, stop).await?
        }
        Resume::ResumeSnapshot => snapshot::resume(session, stop).await?,
        Resume::ContinuePublish => snapshot::continue_publishing(session, stop).await?,
        Resume::Stream { .. } => Taken::Published,
        Resume::Refuse(refusal) => return Err(refuse(refusal, session)),
    };
    match taken {
        Taken::Published => stream(session, target, stop).await,
        Taken::Stopped => Ok(Lsn::ZERO),
    }
}

/// Follows the stream; the tables may be ahead of the fence after a crash.
async fn stream(session: &mut Session, target: Target, stop: &StopSignal) -> Result<Lsn> {
    let tables = open_tables(session).await?;
    if let Resume::Refuse(refusal) = session.resume(reached(&tables)).await? {
        return Err(refuse(refusal, session));
    }
    if session.guard.is_none() {
        session.guard = Some(Guard::start(session));
    }
    let nudge = nudge(session, target);
    let result = follow(session, tables, target, stop).await;
    nudge.abort();
    result
}

fn refuse(refusal: Refusal, session: &Session) -> Error {
    Error::from(refusal).at(format!("slot {}", session.config.name))
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
fn nudge(session: &Session, target: Target) -> tokio::task::JoinHandle<()> {
    let source = session.source.clone();
    let in_recovery = session.server.in_recovery;
    tokio::spawn(async move {
        let Target::Lsn(until) = target else { return };
        if in_recovery {
            return;
        }
        let Ok(client) = crate::source::client::connect(&source).await else { return };
        loop {
            match catalog::current_lsn(&client, false).await {
                Ok(end) if end > until => return,
                Ok(end) if until.bytes_since(end) > 1 << 20 => {}
                Ok(_) => {
                    let sql = "SELECT pg_catalog.pg_logical_emit_message(true, 'tidegate', '')";
                    if let Err(e) = client.simple_query(sql).await {
                        tracing::debug!("no logical message could be written: {e}");
                        return;
                    }
                }
                Err(_) => return,
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
    let ours = ownership::take(&mut session).await?;
    let result = drop_what_is_ours(&mut session).await;
    ownership::end(config, Some(ours), result).await
}

async fn drop_what_is_ours(session: &mut Session) -> Result<Vec<String>> {
    let name = session.config.name.clone();
    let (ours_slot, ours_publication) = session
        .ledger
        .as_ref()
        .map_or((false, false), |l| (l.state().created_slot, l.state().created_publication));
    let mut done = Vec::new();
    if ours_slot && slot::drop_slot(&session.client, &name).await? {
        done.push(format!("dropped the slot {name}"));
    }
    if ours_publication {
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

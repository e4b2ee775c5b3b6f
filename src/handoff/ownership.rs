//! One process at a time: takes a pipeline over from the process before, and tells at the end
//! whether somebody else has taken it over from us.
//!
//! On one host with one state folder a lock tells it at once: the operating system gives it back
//! when its process ends, however it ends. From elsewhere the slot and the lease tell.
//!
//! A slot that is in use proves nothing yet: of a machine that lost its power, or its network, the
//! server learns only when `wal_sender_timeout` is over. So a slot whose holder gives no sign of
//! life is waited for that long.
//!
//! The order matters. First it is known that the owner before is not alive (the slot is not in use,
//! and its lease is gone or silent), then the ledger is claimed, and only then is anything else
//! touched: files, slot, publication, tables. Whoever was the owner until then fails at its next
//! commit to the ledger. One that was silent may wake up in the middle of a commit to a table, so
//! each table gets a version of ours first: the version it was going to make is taken.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::rules::Refusal;
use crate::handoff::session::Session;
use crate::handoff::snapshot;
use crate::handoff::tables::TABLES_AT_A_TIME;
use crate::lake::lease::{self, Before};
use crate::lake::sweep;
use crate::lake::{Lake, LakeTable, Lease, Ledger, Phase};
use crate::observe::stop::StopSignal;
use crate::source::slot;

/// A table that its last owner goes on writing to at this very moment is looked at again so often.
const TRIES: u32 = 5;
/// The slot is looked at so often while it is waited for.
const SLOT_PAUSE: Duration = Duration::from_millis(200);
/// The server ends a silent stream when it next looks, some time after `wal_sender_timeout`.
const SENDER_GRACE: Duration = Duration::from_secs(5);
/// Changes of what the server shows of a slot's holder that prove it to be alive. What it had said
/// before it died may still be read, and is one.
const SIGNS: u32 = 2;

/// This process works on the pipeline, alone.
pub struct Ownership {
    lease: Lease,
    /// Locked as long as the process lives.
    _lock: File,
}

/// Locks the state folder, or says which process has it.
fn lock(session: &Session) -> Result<File> {
    let folder = session.state_folder();
    let wrong = |e: std::io::Error| {
        Error::failed(format!("the state folder {} can't be used", folder.display()))
            .because(e)
            .next("give the user that runs tidegate the right to it, or choose another (state.dir)")
    };
    std::fs::create_dir_all(&folder).map_err(wrong)?;
    let path = folder.join("owner");
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(&path).map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(e)) => return Err(wrong(e)),
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            return Err(Error::new(
                Kind::Fenced,
                format!(
                    "another tidegate of the pipeline {} is alive: process {} of this host",
                    session.config.name,
                    pid.trim()
                ),
            )
            .next("leave it to that process, or end it (one that was stopped, too)"));
        }
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(wrong)?;
    Ok(file)
}

/// Takes the pipeline over. What the session knew of ledger and tables is read again. None if a
/// stop was asked for first.
///
/// # Errors
/// [`Kind::Fenced`]: the owner is alive, or somebody else was faster. Source or lake failing.
pub async fn take(session: &mut Session, stop: &StopSignal) -> Result<Option<Ownership>> {
    let lock = lock(session)?;
    let owner = session.ledger.as_ref().and_then(Ledger::holder).map(str::to_owned);
    let silent_after = session.config.limits.takeover_after;
    let name = &session.config.name;
    let (watched, ()) = tokio::select! {
        known = async {
            tokio::try_join!(
                lease::watch(&session.lake, name, owner.as_deref()),
                wait_for_slot(session),
            )
        } => known?,
        () = stop.requested() => return Ok(None),
    };
    let lease = Lease::take(&session.lake, name, owner.as_deref(), watched, silent_after).await?;
    // Watching took a while, or the owner went on until it ended.
    session.ledger = Ledger::open(&session.lake).await?;
    failpoint::at("handoff.claim.before")?;
    if let Some(ledger) = &mut session.ledger {
        if ledger.holder().is_some_and(|now| owner.as_deref() != Some(now)) {
            return Err(overtaken());
        }
        ledger.claim().await?;
        if lease.before() == Before::Silent {
            let (lake, name) = (&session.lake, &session.config.name);
            let tables = ledger.state().tables.iter();
            let takes = tables.map(|table| take_table(lake, &table.folder, name));
            stream::iter(takes).buffer_unordered(TABLES_AT_A_TIME).try_collect::<()>().await?;
        }
    }
    tokio::spawn(sweep::sweep(session.lake.clone()));
    Ok(Some(Ownership { lease, _lock: lock }))
}

/// Waits until nobody has the slot, as long as the server may take to notice that its client is
/// gone. A slot of another database is not waited for: it is none of ours.
///
/// # Errors
/// [`Kind::Fenced`]: its holder is alive, or still has it. The source failing.
async fn wait_for_slot(session: &Session) -> Result<()> {
    let (client, name) = (&session.client, &session.config.name);
    let Some(mut known) = slot::holder(client, name).await? else { return Ok(()) };
    let limits = &session.config.limits;
    let patience = match slot::sender_timeout(client).await? {
        Some(timeout) => (timeout + SENDER_GRACE).min(limits.retry_for),
        None => limits.takeover_after,
    };
    let by = known.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
    tracing::info!(
        "the slot {name} is held by {by} of the server; if its client is gone, the server notices \
         within wal_sender_timeout: waiting for up to {} s",
        patience.as_secs_f32()
    );
    let (began, mut signs) = (Instant::now(), 0);
    while began.elapsed() < patience && signs < SIGNS {
        tokio::time::sleep(SLOT_PAUSE).await;
        let Some(now) = slot::holder(client, name).await? else { return Ok(()) };
        if now != known {
            signs += 1;
            known = now;
        }
    }
    Err(Error::from(Refusal::SlotInUse).at(format!("slot {name}")))
}

/// As [`take`], before a new generation takes the place of all tables.
///
/// # Errors
/// As [`take`].
pub async fn take_for_new_generation(
    session: &mut Session,
    stop: &StopSignal,
) -> Result<Option<Ownership>> {
    let Some(ours) = take(session, stop).await? else { return Ok(None) };
    let publishing = session.ledger.as_ref().is_some_and(|l| l.state().phase == Phase::Publish);
    if publishing && ours.lease.before() == Before::Silent {
        // A table that does not exist yet has no version to take. So what the silent one may still
        // publish is published first.
        snapshot::continue_publishing(session, stop).await?;
    }
    Ok(Some(ours))
}

/// Makes a version of a table, if it is one of this pipeline.
async fn take_table(lake: &Lake, folder: &str, pipeline: &str) -> Result<()> {
    for _ in 1..TRIES {
        let Some(mut table) = LakeTable::open(lake, folder).await? else { return Ok(()) };
        if table.checkpoint().pipeline != pipeline {
            return Ok(());
        }
        match table.take_over().await {
            // The last owner woke up and committed in between; it can't move the fence any more.
            Err(error) if error.kind() == Kind::Fenced => {}
            other => return other,
        }
    }
    Err(Error::new(Kind::Fenced, format!("{folder}: another process goes on committing to it"))
        .next("look for a second process of this pipeline"))
}

/// Ends the ownership. What failed because somebody else took over is told as that.
///
/// # Errors
/// The one of `result`.
pub async fn end<T>(config: &Config, ours: Option<Ownership>, result: Result<T>) -> Result<T> {
    let Some(ours) = ours else { return result };
    let result = match result {
        Err(error) if error.kind() != Kind::Fenced && is_overtaken(config).await => {
            Err(overtaken().because(error))
        }
        other => other,
    };
    ours.lease.release().await;
    result
}

async fn is_overtaken(config: &Config) -> bool {
    let Some(lake) = config.lake().ok().and_then(|lake| Lake::open(lake).ok()) else {
        return false;
    };
    let ledger = Ledger::open(&lake).await.ok().flatten();
    ledger.as_ref().and_then(Ledger::holder).is_some_and(|now| now != lease::holder())
}

/// Another process owns the pipeline now.
pub fn overtaken() -> Error {
    Error::new(Kind::Fenced, "another process took this pipeline over meanwhile")
        .next("leave it to that process; if there is none, start this one again")
}

//! The spool: a run's changes as files in the lake, while its snapshot is copied.
//!
//! With `[handoff] retain = "spool"` the source's WAL need not wait for the copy:
//!
//! ```text
//!   slot ──► write: segment files ──► ledger: one event a step ──► slot: acknowledged up to there
//!                 (durable)              (durable, owner only)
//!   drain ◄── source: the spool's messages, then the slot's from the spool's end
//! ```
//!
//! Carries the guarantee that the server forgets nothing that is not durable here: a step is
//! acknowledged only once its files *and* the ledger's record of them are stored, and it ends
//! between transactions. A file without a record is an orphan, whoever left it; a recorded file that
//! is missing or differs in a bit stops the drain with an error. What must hold of positions is
//! decided in [`rules`](super::rules): `needed_from_slot`, `joined`, `spool_is_drained`.
//!
//! Each step names the tables again whose rows it holds, so it can be read without the ones before.

mod intake;
pub mod read;
pub mod segment;
pub mod source;
pub mod write;

use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::rules::{self, Spooled};
use crate::lake::{Event, Lake, Ledger, Phase, SpoolState};
use crate::position::Lsn;

/// Kind of the ledger's events that record a durable step.
pub const SPOOL_EVENT: &str = "spool";

/// One file of a step, in its event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentFile {
    /// Name in the run's folder.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Messages.
    pub records: u64,
    /// xxh3-128 of the whole file, in hexadecimal digits.
    pub checksum: String,
}

/// One durable step: everything that committed in `[from, to)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number in the run, from 1.
    pub number: u64,
    /// Where the step before ended.
    pub from: Lsn,
    /// The next one begins here.
    pub to: Lsn,
    /// Its files, in order; none if nothing was sent.
    pub files: Vec<SegmentFile>,
}

#[derive(Serialize, Deserialize)]
struct Detail {
    to: Lsn,
    files: Vec<SegmentFile>,
}

impl Step {
    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    fn event(&self, run: &str) -> Result<Event> {
        let detail = Detail { to: self.to, files: self.files.clone() };
        let detail = serde_json::to_value(&detail)
            .map_err(|e| Error::failed("a step of the spool can't be recorded").because(e))?;
        let records: u64 = self.files.iter().map(|file| file.records).sum();
        Ok(Event {
            chunk: Some(self.number as i64),
            base: Some(self.from),
            rows: Some(records as i64),
            bytes: Some(self.bytes() as i64),
            ..Event::now(run, SPOOL_EVENT, "", detail)
        })
    }

    fn of(event: Event) -> Result<Step> {
        let odd = || Error::failed("the ledger's record of a step of the spool is unreadable");
        let detail: Detail = serde_json::from_value(event.detail).map_err(|e| odd().because(e))?;
        let (Some(number), Some(from)) = (event.chunk, event.base) else { return Err(odd()) };
        Ok(Step { number: number.max(0) as u64, from, to: detail.to, files: detail.files })
    }
}

/// Folder of a run's spool.
pub fn folder(run: &str) -> String {
    format!("_tidegate/spool/{run}")
}

/// The spool of the ledger's present run, if it has one.
pub fn recorded(ledger: &Ledger) -> Option<&SpoolState> {
    ledger.spool().filter(|spool| spool.run == ledger.state().run)
}

/// What it has.
pub fn range(spool: &SpoolState) -> Spooled {
    Spooled { from: spool.from, to: spool.to }
}

/// The recorded steps of the run's spool, proven to join.
///
/// # Errors
/// A record is missing or unreadable: what was acknowledged can't be found again.
pub async fn steps(ledger: &Ledger, spool: &SpoolState) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for event in ledger.read_events(Some(&spool.run), Some(SPOOL_EVENT)).await? {
        steps.push(Step::of(event)?);
    }
    steps.sort_by_key(|step| step.number);
    let broken = |why: String| {
        Error::failed(format!("the spool of the run {}: {why}", spool.run)).next(
            "restore the ledger under _tidegate, or start a new generation with `tidegate run --resnapshot`",
        )
    };
    let joined = rules::joined(spool.from, steps.iter().map(|step| (step.from, step.to)))
        .map_err(|gap| broken(gap.to_string()))?;
    if joined.to != spool.to || steps.len() as u64 != spool.steps {
        return Err(broken(format!(
            "its records end at {} after {} steps, not at {} after {}",
            joined.to,
            steps.len(),
            spool.to,
            spool.steps
        )));
    }
    Ok(steps)
}

/// Announces the run's spool before its first file, so that files without a record are found.
///
/// # Errors
/// The ledger can't be written, or is another process's.
pub async fn announce(ledger: &mut Ledger, base: Lsn) -> Result<SpoolState> {
    if let Some(spool) = recorded(ledger) {
        return Ok(spool.clone());
    }
    let run = ledger.state().run.clone();
    let spool = SpoolState { format: 1, run, from: base, to: base, steps: 0, files: 0, bytes: 0 };
    ledger.set_spool(Some(spool.clone()), &[]).await?;
    Ok(spool)
}

/// Records a step whose files are stored; from here on it may be acknowledged.
///
/// # Errors
/// As [`announce`]; the step does not follow what is recorded.
pub async fn record(ledger: &mut Ledger, step: &Step) -> Result<()> {
    let none = || Error::failed("a step of a spool that was not announced").next("report this");
    let mut spool = recorded(ledger).cloned().ok_or_else(none)?;
    if step.number != spool.steps + 1 {
        return Err(Error::failed("a step of the spool was recorded before").next("report this"));
    }
    rules::joined(spool.to, [(step.from, step.to)])
        .map_err(|gap| Error::failed(gap.to_string()).next("report this"))?;
    spool.to = step.to;
    spool.steps += 1;
    spool.files += step.files.len() as u64;
    spool.bytes += step.bytes();
    let event = step.event(&spool.run)?;
    failpoint::at("spool.record.before")?;
    ledger.set_spool(Some(spool), &[event]).await?;
    failpoint::at("spool.record.after")
}

/// Removes a spool that no start needs any more: drained, or of a run that was given up. The
/// ledger must be owned. Files first: a crash in between is made up for at the next start.
///
/// # Errors
/// The ledger can't be written; files that can't be removed are left, with a warning.
pub async fn tidy(ledger: &mut Ledger, lake: &Lake) -> Result<()> {
    let Some(spool) = ledger.spool().cloned() else { return Ok(()) };
    let state = ledger.state();
    let drained = state.phase == Phase::Live
        && ledger.fence().is_some_and(|fence| {
            fence.generation == state.generation
                && rules::spool_is_drained(fence.lsn, range(&spool))
        });
    if spool.run == state.run && !drained {
        return Ok(());
    }
    discard(ledger, lake).await
}

/// Removes the spool, whatever is in it: only for a run that starts again from nothing.
///
/// # Errors
/// As [`tidy`].
pub async fn discard(ledger: &mut Ledger, lake: &Lake) -> Result<()> {
    let Some(spool) = ledger.spool().cloned() else { return Ok(()) };
    failpoint::at("spool.remove.before")?;
    let removed = remove(lake, &spool.run, |_| true).await;
    match removed {
        Ok(files) => tracing::info!(files, bytes = spool.bytes, "removed the spool"),
        Err(e) => {
            // The record stays, and with it the next start's attempt.
            tracing::warn!("{e}; the next start tries to remove the spool again");
            return Ok(());
        }
    }
    failpoint::at("spool.remove.after")?;
    ledger.set_spool(None, &[]).await
}

/// Removes the files that no record names: what a step left that was never completed.
///
/// They are found first, and the ledger is claimed between: a process that took the run over has
/// files of its own there, already acknowledged to the slot.
///
/// # Errors
/// Fenced: somebody took the pipeline over. The store fails.
pub async fn remove_orphans(
    lake: &Lake,
    ledger: &mut Ledger,
    spool: &SpoolState,
    steps: &[Step],
) -> Result<()> {
    let known: std::collections::HashSet<&str> =
        steps.iter().flat_map(|step| &step.files).map(|file| file.name.as_str()).collect();
    let found = list(lake, &spool.run, |name| !known.contains(name)).await?;
    if found.is_empty() {
        return Ok(());
    }
    ledger.claim().await?;
    let removed = delete(lake, &spool.run, found).await?;
    if removed > 0 {
        tracing::info!(files = removed, "removed files of the spool that no record names");
    }
    Ok(())
}

/// Removes those files of a run's folder whose name is chosen; gives their number.
async fn remove(lake: &Lake, run: &str, chosen: impl Fn(&str) -> bool) -> Result<usize> {
    let found = list(lake, run, chosen).await?;
    delete(lake, run, found).await
}

/// Those files of a run's folder whose name is chosen.
async fn list(lake: &Lake, run: &str, chosen: impl Fn(&str) -> bool) -> Result<Vec<Path>> {
    let folder = folder(run);
    lake.store()
        .list(Some(&Path::from(folder.as_str())))
        .map_ok(|object| object.location)
        .try_filter(|at| std::future::ready(at.filename().is_some_and(&chosen)))
        .try_collect()
        .await
        .map_err(|e| crate::lake::store_error(format!("listing {folder}"), e))
}

async fn delete(lake: &Lake, run: &str, found: Vec<Path>) -> Result<usize> {
    let folder = folder(run);
    let failed = |e| crate::lake::store_error(format!("removing files of {folder}"), e);
    let store = lake.store();
    let count = found.len();
    let mut gone = store.delete_stream(futures::stream::iter(found.into_iter().map(Ok)).boxed());
    while let Some(answer) = gone.next().await {
        match answer {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    drop(gone);
    if let Some(local) = lake.local_path() {
        // Only an empty folder goes.
        let _ = std::fs::remove_dir(local.join(folder));
    }
    Ok(count)
}

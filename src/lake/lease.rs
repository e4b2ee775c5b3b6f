//! Who is alive: what keeps a second process of a pipeline away where the slot does not.
//!
//! While a stream runs, the slot is in use and nobody else can have it. While a snapshot is copied,
//! or between two connections, it is free. So the process that owns the ledger writes an object of
//! its own under `_tidegate/alive/` again and again, and removes it when it ends. A start that finds
//! the ledger owned by somebody else watches that somebody's object:
//!
//! ```text
//! not there                           -> ended; go on
//! its process on this host is gone    -> died; go on at once
//! it changes                          -> alive; refuse
//! it does not change for its time     -> silent: dead, cut off or stopped; take over
//! ```
//!
//! No clock is compared with another one: the watcher's own tells how long nothing changed. The
//! lease keeps nobody from writing, that is what the ledger's epoch and the tables' commits are for
//! (compare-and-swap). It only keeps a start from ending a process that is well. Who takes over from
//! a silent one makes a version of every table, so that the silent one, should it wake up, finds its
//! own next version taken.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::store::{Lake, store_error};
use crate::error::{Error, Kind, Result};

/// Folder of the objects.
const FOLDER: &str = "_tidegate/alive";
/// Beats in the time after which a silent process counts as dead.
const BEATS: u32 = 4;
/// How long the last beat of a process that ends is waited for.
const LAST_BEAT: Duration = Duration::from_secs(5);
/// However long somebody says to be silent, nobody waits longer.
const LONGEST: Duration = Duration::from_secs(600);

/// A process, told apart from all others that ever ran on its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    /// Of the kernel since it was started.
    boot: String,
    /// The space in which `pid` is a name: containers have their own.
    space: String,
    pid: u32,
    /// When it was started, in the kernel's own count.
    started: u64,
}

/// What the object says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Beat {
    format: u32,
    pipeline: String,
    host: String,
    pid: u32,
    /// Where it can be known.
    process: Option<Process>,
    since: String,
    beat: u64,
    /// After so long without a new beat it counts as dead.
    silent_after_ms: u64,
}

impl Beat {
    fn who(&self) -> String {
        format!("process {} on {}, since {}", self.pid, self.host, self.since)
    }

    fn silent_after(&self) -> Duration {
        Duration::from_millis(self.silent_after_ms).min(LONGEST)
    }
}

/// What became of the owner before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// There was none, or it ended in good order, or it is known to have died.
    Gone,
    /// It gave no sign of life: it may still wake up.
    Silent,
}

/// An owner that was watched, and is not alive.
#[derive(Debug)]
pub struct Watched {
    before: Before,
    /// What it had said last, if it may still wake up.
    last: Option<Beat>,
}

impl Watched {
    fn gone() -> Watched {
        Watched { before: Before::Gone, last: None }
    }
}

/// This process is alive. It says so until this is dropped.
#[derive(Debug)]
pub struct Lease {
    lake: Lake,
    before: Before,
    ending: Arc<Notify>,
    beating: JoinHandle<()>,
}

/// The name of this process in ledgers: unique in the world.
pub fn holder() -> &'static str {
    static HOLDER: LazyLock<String> = LazyLock::new(|| Uuid::new_v4().simple().to_string());
    &HOLDER
}

/// A new epoch for the ledger: it begins with the holder's name.
pub(super) fn new_epoch() -> String {
    format!("{}.{}", holder(), Uuid::new_v4().simple())
}

/// The holder that an epoch names; none for one written before there were leases.
pub(super) fn holder_of(epoch: &str) -> Option<&str> {
    epoch.split_once('.').map(|(holder, _)| holder)
}

fn path_of(holder: &str) -> String {
    format!("{FOLDER}/{holder}.json")
}

impl Lease {
    /// Says that this process is alive, after `owner`, which the ledger names, was [`watch`]ed.
    /// Claim the ledger right after.
    ///
    /// # Errors
    /// [`Kind::Fenced`]: the owner has woken up since. The store fails.
    pub async fn take(
        lake: &Lake,
        pipeline: &str,
        owner: Option<&str>,
        watched: Watched,
        silent_after: Duration,
    ) -> Result<Lease> {
        let Watched { before, last } = watched;
        if let (Some(owner), Some(last)) = (owner, last)
            && let Some(now) = look(lake, owner).await?
            && now != last
        {
            return Err(alive(pipeline, &now));
        }
        let mut beat = Beat {
            format: 1,
            pipeline: pipeline.to_owned(),
            host: host(),
            pid: std::process::id(),
            process: process(std::process::id()),
            since: chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            beat: 1,
            silent_after_ms: silent_after.as_millis() as u64,
        };
        put(lake, &beat).await?;
        let (ours, ending) = (lake.clone(), Arc::new(Notify::new()));
        let end = ending.clone();
        let beating = tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(silent_after / BEATS) => {}
                    () = end.notified() => return,
                }
                beat.beat += 1;
                if let Err(error) = put(&ours, &beat).await {
                    tracing::warn!("no sign of life could be left in the lake: {error}");
                }
            }
        });
        if let Some(owner) = owner.filter(|owner| *owner != holder()) {
            let _ = lake.store().delete(&path_of(owner).into()).await;
        }
        Ok(Lease { lake: lake.clone(), before, ending, beating })
    }

    /// What became of the owner before.
    pub fn before(&self) -> Before {
        self.before
    }

    /// Says that this process has ended, so that the next one need not watch.
    pub async fn release(mut self) {
        // A beat that is being written would come back after it was removed. One that can't be
        // written for long is not waited for.
        self.ending.notify_one();
        let _ = tokio::time::timeout(LAST_BEAT, &mut self.beating).await;
        let path = path_of(holder());
        if let Err(error) = self.lake.store().delete(&path.as_str().into()).await {
            tracing::debug!("{path} is left in the lake: {error}");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

async fn put(lake: &Lake, beat: &Beat) -> Result<()> {
    let text = serde_json::to_vec(beat)
        .map_err(|e| Error::failed("a sign of life can't be written").because(e))?;
    lake.put(&path_of(holder()), Bytes::from(text)).await
}

async fn look(lake: &Lake, owner: &str) -> Result<Option<Beat>> {
    // What can't be read is of another version of the program, and is watched like any other.
    let bytes = lake.get(&path_of(owner)).await?;
    Ok(bytes.map(|bytes| {
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Beat {
            format: 0,
            pipeline: String::new(),
            host: "an unknown host".to_owned(),
            pid: 0,
            process: None,
            since: "an unknown time".to_owned(),
            beat: xxhash_rust::xxh3::xxh3_64(&bytes),
            silent_after_ms: 60_000,
        })
    }))
}

/// Watches until it is known that `owner`, which the ledger names, is not alive.
///
/// # Errors
/// [`Kind::Fenced`]: it is. The store fails.
pub async fn watch(lake: &Lake, pipeline: &str, owner: Option<&str>) -> Result<Watched> {
    let Some(owner) = owner.filter(|owner| *owner != holder()) else { return Ok(Watched::gone()) };
    let Some(first) = look(lake, owner).await? else { return Ok(Watched::gone()) };
    if first.process.as_ref().is_some_and(has_died) {
        tracing::info!("process {} on this host died without a word; going on after it", first.pid);
        return Ok(Watched::gone());
    }
    let time = first.silent_after();
    let who = first.who();
    tracing::info!(
        "the pipeline {pipeline} is owned by {who}; if it gives no sign of life for {} s it is taken over",
        time.as_secs_f32()
    );
    let pause = (time / BEATS / 8).clamp(Duration::from_millis(20), Duration::from_secs(1));
    // Only time in which the lake could be read counts: while it is away nobody can beat.
    let mut quiet = Duration::ZERO;
    while quiet < time {
        let before = Instant::now();
        tokio::time::sleep(pause).await;
        match look(lake, owner).await? {
            None => return Ok(Watched::gone()),
            Some(now) if now != first => return Err(alive(pipeline, &now)),
            Some(_) => quiet += before.elapsed().min(pause * 3),
        }
        if first.process.as_ref().is_some_and(has_died) {
            return Ok(Watched::gone());
        }
    }
    tracing::warn!("{who} gave no sign of life for {} s: taking over", time.as_secs_f32());
    Ok(Watched { before: Before::Silent, last: Some(first) })
}

fn alive(pipeline: &str, beat: &Beat) -> Error {
    let what = format!("another tidegate of the pipeline {pipeline} is alive: {}", beat.who());
    Error::new(Kind::Fenced, what).next(format!(
        "leave it to that process, or end it; one that died without a word is taken over after {} s",
        beat.silent_after().as_secs_f32()
    ))
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "an unknown host".to_owned() } else { name.to_owned() }
}

/// A process of this host; `None` where that can't be known.
fn process(pid: u32) -> Option<Process> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(Process {
        boot: boot.trim().to_owned(),
        space: space.to_string_lossy().into_owned(),
        pid,
        started: started(pid)?,
    })
}

/// The 22nd field of `/proc/PID/stat`; the second is in brackets and may hold anything. None for a
/// process that has ended and was not waited for by its parent.
fn started(pid: u32) -> Option<u64> {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether it ran here, where its number means the same, and runs no more.
fn has_died(then: &Process) -> bool {
    let Some(here) = process(std::process::id()) else { return false };
    if (&here.boot, &here.space) != (&then.boot, &then.space) {
        return false;
    }
    started(then.pid) != Some(then.started)
}

/// Removes signs of life of processes that do not own the ledger, once they are a day old.
///
/// # Errors
/// The store fails.
pub(super) async fn forget_old(lake: &Lake, owner: Option<&str>) -> Result<()> {
    use futures::TryStreamExt;
    let failed = |e| store_error(format!("cleaning {FOLDER}"), e);
    let listed: Vec<_> =
        lake.store().list(Some(&FOLDER.into())).try_collect().await.map_err(failed)?;
    let day = chrono::TimeDelta::days(1);
    for object in listed {
        let name = object.location.filename().unwrap_or_default();
        let keep = [Some(holder()), owner].into_iter().flatten();
        let kept = keep.into_iter().any(|holder| name == format!("{holder}.json"));
        if !kept && chrono::Utc::now() - object.last_modified > day {
            lake.store().delete(&object.location).await.map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lake() -> (tempfile::TempDir, Lake) {
        let dir = tempfile::tempdir().unwrap();
        let lake = Lake::open(dir.path().to_str().unwrap()).unwrap();
        (dir, lake)
    }

    fn beat(process: Option<Process>, beat: u64) -> Bytes {
        let beat = Beat {
            format: 1,
            pipeline: "p".to_owned(),
            host: "elsewhere".to_owned(),
            pid: 7,
            process,
            since: "then".to_owned(),
            beat,
            silent_after_ms: 300,
        };
        serde_json::to_vec(&beat).unwrap().into()
    }

    #[tokio::test]
    async fn who_is_alive_is_not_taken_over_and_who_is_silent_is() {
        let (_dir, lake) = lake();
        assert_eq!(watch(&lake, "p", Some("a")).await.unwrap().before, Before::Gone);
        lake.put(&path_of("a"), beat(None, 1)).await.unwrap();
        let (other, ending) = (lake.clone(), Arc::new(Notify::new()));
        let end = ending.clone();
        let beating = tokio::spawn(async move {
            for n in 2.. {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(75)) => {}
                    () = end.notified() => return,
                }
                other.put(&path_of("a"), beat(None, n)).await.unwrap();
            }
        });
        let error = watch(&lake, "p", Some("a")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Fenced);
        assert!(error.to_string().contains("process 7 on elsewhere, since then"), "{error}");
        ending.notify_one();
        beating.await.unwrap();
        let began = Instant::now();
        let silent = watch(&lake, "p", Some("a")).await.unwrap();
        assert_eq!(silent.before, Before::Silent);
        assert!(began.elapsed() >= Duration::from_millis(300));
        // It wakes up before anybody took its place.
        lake.put(&path_of("a"), beat(None, 1_000_000)).await.unwrap();
        let short = Duration::from_millis(200);
        let error = Lease::take(&lake, "p", Some("a"), silent, short).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Fenced);
        lake.put(&path_of("a"), "{".into()).await.unwrap();
        assert!(look(&lake, "a").await.unwrap().is_some_and(|beat| beat.format == 0));
    }

    #[tokio::test]
    async fn a_process_of_this_host_that_died_is_not_waited_for() {
        let (_dir, lake) = lake();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let alive = process(child.id()).unwrap();
        assert!(!has_died(&alive));
        assert!(has_died(&Process { started: alive.started + 1, ..alive.clone() }));
        assert!(!has_died(&Process { boot: "another".to_owned(), ..alive.clone() }));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_died(&alive));
        lake.put(&path_of("a"), beat(Some(alive), 1)).await.unwrap();
        let began = Instant::now();
        assert_eq!(watch(&lake, "p", Some("a")).await.unwrap().before, Before::Gone);
        assert!(began.elapsed() < Duration::from_millis(250));
    }

    #[tokio::test]
    async fn a_lease_is_left_and_removed() {
        let (_dir, lake) = lake();
        let lease = Lease::take(&lake, "p", None, Watched::gone(), Duration::from_millis(200))
            .await
            .unwrap();
        let first = look(&lake, holder()).await.unwrap().unwrap();
        let mut now = first.clone();
        while now == first {
            tokio::time::sleep(Duration::from_millis(10)).await;
            now = look(&lake, holder()).await.unwrap().unwrap();
        }
        assert_eq!(holder_of(&new_epoch()), Some(holder()));
        lease.release().await;
        assert!(look(&lake, holder()).await.unwrap().is_none());
    }
}

//! Files that nobody names: left by a crash between writing a file and committing it.
//!
//! ```text
//! a file of ours  -  named by a version that the log still has  -  recorded by the snapshot run
//!                 -  may still be committed                      =  an orphan
//! ```
//!
//! A version that can be travelled to keeps every file it ever named, live or removed. A file may
//! still be committed if its number is not below the table's next one (the owner hands them out in
//! order, and a version says how far) or if it is young. Only names of our own making are looked
//! at: what other programs write may be in the middle of something.

use std::collections::BTreeSet;
use std::path::Path as FsPath;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use serde_json::Value;
use uuid::Uuid;

use super::actions::Action;
use super::checkpoint::{CHECKPOINT_DOMAIN, Checkpoint};
use super::dv;
use super::files::{FileNo, file_no_of};
use super::lease;
use super::ledger::{self, Ledger, Phase};
use super::log::TableLog;
use super::store::{Lake, store_error};
use crate::error::{Error, Result};

/// Younger files are left alone, unless somebody says otherwise: a vector is committed seconds
/// after it was written, a chunk's file is recorded as soon as it is finished.
pub const MIN_AGE: Duration = Duration::from_secs(24 * 3600);
/// Commits read at a time.
const COMMITS_AT_A_TIME: usize = 16;

/// A file that nobody names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Path in the lake.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
}

/// Finds and removes the orphans of the pipeline in a lake, beside other work.
pub async fn sweep(lake: Lake) {
    let swept = async {
        let Some(ledger) = Ledger::open(&lake).await? else { return Ok(()) };
        let orphans = find(&lake, &ledger, MIN_AGE).await?;
        remove(&lake, &ledger, &orphans, MIN_AGE).await?;
        if !orphans.is_empty() {
            let bytes: u64 = orphans.iter().map(|orphan| orphan.bytes).sum();
            tracing::info!(files = orphans.len(), bytes, "removed files that no version names");
        }
        Ok::<(), Error>(())
    };
    if let Err(error) = swept.await {
        tracing::warn!("files that no version names are left: {error}");
    }
}

/// The orphans of a pipeline: of its tables, of its ledger, and what was being written when a
/// process died.
///
/// # Errors
/// Ledger, logs or listings can't be read. Nothing is removed then.
pub async fn find(lake: &Lake, ledger: &Ledger, min_age: Duration) -> Result<Vec<Orphan>> {
    let before = Utc::now() - TimeDelta::from_std(min_age).unwrap_or(TimeDelta::MAX);
    let state = ledger.state();
    let recorded = recorded(ledger).await?;
    let mut orphans = Vec::new();
    for table in &state.tables {
        let folder = table.folder.as_str();
        // While a run copies, only what its process writes now is neither named nor recorded, and
        // that is young.
        orphans.extend(of_table(lake, folder, &recorded, before).await?);
    }
    orphans.extend(of_table(lake, ledger::FOLDER, &BTreeSet::new(), before).await?);
    let probes = lake.store().list(Some(&Path::from("_tidegate")));
    let failed = |e| store_error("listing _tidegate", e);
    let probes: Vec<_> = probes.try_collect().await.map_err(failed)?;
    for probe in probes {
        if probe.location.as_ref().starts_with("_tidegate/check-") && probe.last_modified < before {
            orphans.push(Orphan { path: probe.location.to_string(), bytes: probe.size });
        }
    }
    Ok(orphans)
}

/// Removes orphans, what was being written to a local disk by processes that died, and signs of
/// life of those.
///
/// # Errors
/// The store fails.
pub async fn remove(
    lake: &Lake,
    ledger: &Ledger,
    orphans: &[Orphan],
    min_age: Duration,
) -> Result<()> {
    let paths: Vec<String> = orphans.iter().map(|orphan| orphan.path.clone()).collect();
    lake.remove(&paths).await?;
    lease::forget_old(lake, ledger.holder()).await?;
    let Some(local) = lake.local_path().map(FsPath::to_owned) else { return Ok(()) };
    let mut folders: Vec<String> = ledger.state().tables.iter().map(|t| t.folder.clone()).collect();
    folders.extend([ledger::FOLDER.to_owned(), "_tidegate".to_owned()]);
    let cleaned = tokio::task::spawn_blocking(move || {
        for folder in folders {
            remove_staged(&local.join(&folder), min_age);
            for below in ["_delta_log", dv::FOLDER, "alive"] {
                remove_staged(&local.join(&folder).join(below), min_age);
            }
        }
    });
    cleaned.await.map_err(|e| Error::failed("cleaning the lake was cancelled").because(e))
}

/// What was being written under a passing name (`NAME#NUMBER`) when a process died.
fn remove_staged(folder: &FsPath, min_age: Duration) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let staged =
            name.to_str().and_then(|name| name.rsplit_once('#')).is_some_and(|(_, number)| {
                !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
            });
        let old = entry.metadata().and_then(|m| m.modified()).ok().and_then(|m| m.elapsed().ok());
        if staged && old.is_some_and(|age| age >= min_age) {
            // The next clean-up tries again.
            let _ = super::disk::remove(&entry.path());
        }
    }
}

/// The files that the current run recorded: they are published from there.
async fn recorded(ledger: &Ledger) -> Result<BTreeSet<String>> {
    let state = ledger.state();
    if state.phase == Phase::Live {
        return Ok(BTreeSet::new());
    }
    let mut files = BTreeSet::new();
    // Of any run and kind: what a later one may still use is not for a clean-up to decide.
    for event in ledger.read_events(None, None).await? {
        data_files_in(&event.detail, &mut files);
    }
    Ok(files)
}

/// Every text in a record that is a data file's name.
fn data_files_in(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if file_no_of(text).is_some() => {
            found.insert(text.clone());
        }
        Value::Array(values) => values.iter().for_each(|value| data_files_in(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| data_files_in(value, found)),
        _ => {}
    }
}

async fn of_table(
    lake: &Lake,
    folder: &str,
    recorded: &BTreeSet<String>,
    before: DateTime<Utc>,
) -> Result<Vec<Orphan>> {
    // Listed before the log is read: what is committed in between is named by then.
    let listed = lake.store().list(Some(&Path::from(folder)));
    let listed: Vec<_> =
        listed.try_collect().await.map_err(|e| store_error(format!("listing {folder}"), e))?;
    let mut candidates = Vec::new();
    for object in listed {
        let Some(inside) = object.location.as_ref().strip_prefix(folder) else { continue };
        let inside = inside.trim_start_matches('/').to_owned();
        if object.last_modified < before && is_ours(&inside) && !recorded.contains(&inside) {
            candidates.push((inside, object.size));
        }
    }
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let (named, next) = named(lake, folder).await?;
    let orphan = |(path, _): &(String, u64)| {
        let may_come = file_no_of(path).zip(next).is_some_and(|(number, next)| number >= next);
        !named.contains(path) && !may_come
    };
    let orphans = candidates.into_iter().filter(orphan);
    Ok(orphans.map(|(path, bytes)| Orphan { path: format!("{folder}/{path}"), bytes }).collect())
}

/// A name that only we give: a data file's, or a vector's under our folder.
fn is_ours(path: &str) -> bool {
    if let Some(name) = path.strip_prefix(dv::FOLDER).and_then(|rest| rest.strip_prefix('/')) {
        let id = name.strip_prefix("deletion_vector_").and_then(|n| n.strip_suffix(".bin"));
        return id.is_some_and(|id| Uuid::parse_str(id).is_ok());
    }
    !path.contains('/') && file_no_of(path).is_some()
}

/// Every file that a version in the log names, and the next number that the newest one gives.
async fn named(lake: &Lake, folder: &str) -> Result<(BTreeSet<String>, Option<FileNo>)> {
    let mut named = BTreeSet::new();
    let Some((log, snapshot)) = TableLog::load(lake, folder).await? else {
        return Ok((named, None));
    };
    let checkpoint = log.domain(&snapshot, CHECKPOINT_DOMAIN).await?;
    let checkpoint = checkpoint.and_then(|text| serde_json::from_str::<Checkpoint>(&text).ok());
    let commits = commits(lake, folder).await?;
    // Where older commits were cleaned away, a checkpoint of the log stands for them.
    for version in commits.iter().copied().filter(|v| *v > 0 && !commits.contains(&(v - 1))) {
        let (old, snapshot) = TableLog::load_at(lake, folder, Some(version))
            .await?
            .ok_or_else(|| log.gone(version))?;
        let mut next = 0;
        let known = Default::default();
        let files = super::table::live_files(&old, &snapshot, &known, &mut next).await?;
        for file in files.values() {
            named.insert(file.path.clone());
            named.extend(file.vector_path()?);
        }
    }
    let reads = commits.iter().copied().map(|version: u64| {
        let log = log.clone();
        async move { log.read(version).await?.ok_or_else(|| log.gone(version)) }
    });
    let mut reads = stream::iter(reads).buffer_unordered(COMMITS_AT_A_TIME);
    while let Some(commit) = reads.try_next().await? {
        for action in &commit.actions {
            let (path, vector) = match action {
                Action::Add(add) => (&add.path, &add.deletion_vector),
                Action::Remove(remove) => (&remove.path, &remove.deletion_vector),
                _ => continue,
            };
            named.insert(path.clone());
            // A vector of another program lies where we don't look.
            named.extend(vector.as_ref().and_then(|vector| vector.path().ok()));
        }
    }
    Ok((named, checkpoint.map(|checkpoint| checkpoint.next_file_no)))
}

/// The versions whose commits the log has.
async fn commits(lake: &Lake, folder: &str) -> Result<BTreeSet<u64>> {
    let at = format!("{folder}/_delta_log");
    let listed = lake.store().list(Some(&Path::from(at.as_str())));
    let listed: Vec<_> =
        listed.try_collect().await.map_err(|e| store_error(format!("listing {at}"), e))?;
    let versions = listed
        .iter()
        .filter_map(|object| object.location.filename()?.strip_suffix(".json")?.parse().ok());
    Ok(versions.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_our_making_are_looked_at() {
        let id = "1f2a4b6c-1111-4222-8333-abcdefabcdef";
        assert!(is_ours(&format!("part-0000002a-{id}.parquet")));
        assert!(is_ours(&format!("_dv/deletion_vector_{id}.bin")));
        for path in [
            format!("part-00000-{id}-c000.snappy.parquet"),
            format!("deletion_vector_{id}.bin"),
            format!("_delta_log/part-0000002a-{id}.parquet"),
            format!("_dv/other/deletion_vector_{id}.bin"),
            format!("_delta_log/{:020}.json", 3),
        ] {
            assert!(!is_ours(&path), "{path}");
        }
    }
}

//! Plans and does the clean-up of one table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use chrono::Utc;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt};

use super::folder::LogFolder;
use super::plan::{Kept, Policy, Search};
use crate::error::{Error, Result};
use crate::failpoint;
use crate::lake::actions::{Action, Add, Commit};
use crate::lake::checkpoint::{Tag, VersionKind};
use crate::lake::log::{TableLog, convert, delta_error};
use crate::lake::store::{Lake, store_error};
use crate::lake::{durable, log_checkpoint};

/// Requests at a time.
const AT_A_TIME: usize = 8;

/// A clean-up of one table that can be done.
#[derive(Clone, Debug)]
pub struct Cleanup {
    /// The table's folder.
    pub folder: String,
    /// Which versions stay and which go.
    pub kept: Kept,
    /// Data files and vectors that go, by path below the table.
    pub files: BTreeSet<String>,
    /// Bytes of the data files among them.
    pub bytes: u64,
    /// The log as it was listed.
    log: LogFolder,
}

/// What a clean-up removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Versions.
    pub versions: u64,
    /// Data files and files of deletion vectors.
    pub files: u64,
    /// Bytes of the data files.
    pub bytes: u64,
}

/// Paths that versions need, with the bytes of data files.
type Paths = BTreeMap<String, u64>;

/// What of a table can be removed; none if nothing can. `domain` is the one that commits of the
/// table's owner carry.
///
/// # Errors
/// There is no such table, or it can't be read.
pub async fn plan_cleanup(
    lake: &Lake,
    folder: &str,
    policy: &Policy,
    domain: &str,
) -> Result<Option<Cleanup>> {
    let listed = LogFolder::list(lake, folder).await?;
    let Some((log, _)) = TableLog::load(lake, folder).await? else { return Ok(None) };
    // The log may have grown since it was listed; what came since is kept anyway.
    let (Some(first), Some(newest)) = (listed.tail(), listed.newest()) else { return Ok(None) };
    let floor = last_of_ours(&log, newest, domain).await?;
    let retain = i64::try_from(policy.retain.as_millis()).unwrap_or(i64::MAX);
    let cutoff = Utc::now().timestamp_millis().saturating_sub(retain);
    let mut search = Search::new(first, newest, floor);
    while let Some(version) = search.asks() {
        let time = committed_at(&commit(&log, version).await?, version, folder)?;
        search.tell(version, time <= cutoff);
    }
    let oldest = search.found();
    if listed.commits.range(..oldest).next().is_none() {
        return Ok(None);
    }
    let before: Vec<u64> = listed.commits.range(..oldest).copied().collect();
    let reads = before.into_iter().map(|version| {
        let log = &log;
        async move {
            // Another clean-up may have been quicker.
            let Some(commit) = log.read(version).await? else { return Ok(None) };
            Ok::<_, Error>(Some((version, kind_of(&commit), added(&commit))))
        }
    });
    let read: Vec<_> = stream::iter(reads).buffered(AT_A_TIME).try_collect().await?;
    let mut kinds = BTreeMap::new();
    let mut adds = BTreeMap::new();
    for (version, kind, paths) in read.into_iter().flatten() {
        kinds.insert(version, kind);
        adds.insert(version, paths);
    }
    let kept = Kept::new(&listed, oldest, policy, |v| kinds.get(&v).copied());
    if kept.expired.is_empty() {
        return Ok(None);
    }
    let mut needed = live(lake, folder, oldest).await?;
    for version in &kept.alone {
        needed.extend(live(lake, folder, *version).await?);
    }
    let mut candidates = Paths::new();
    for version in &kept.expired {
        candidates.extend(adds.remove(version).unwrap_or_default());
        // All that stood there when the row of commits began came with commits that are gone.
        if *version > 0 && listed.begins(*version) {
            match live(lake, folder, *version).await {
                Ok(paths) => candidates.extend(paths),
                Err(error) if error.is_transient() => return Err(error),
                // An earlier clean-up was interrupted in its last steps: the files are gone.
                Err(error) => tracing::debug!("{folder}: version {version} can't be read: {error}"),
            }
        }
    }
    candidates.retain(|path, _| !needed.contains_key(path) && is_plain(path));
    Ok(Some(Cleanup {
        folder: folder.to_owned(),
        kept,
        bytes: candidates.values().sum(),
        files: candidates.into_keys().collect(),
        log: listed,
    }))
}

impl Cleanup {
    /// Whether one of these versions would go.
    pub fn touches(&self, versions: impl IntoIterator<Item = u64>) -> bool {
        versions.into_iter().any(|version| self.kept.expired.contains(&version))
    }

    /// Writes the checkpoints that the kept versions will need. Removes nothing.
    ///
    /// # Errors
    /// One can't be written, or does not show what the log shows.
    pub async fn prepare(&self, lake: &Lake) -> Result<()> {
        let wanted = self.kept.alone.iter().chain([&self.kept.oldest]);
        let mut newest = self.log.classic.range(self.kept.oldest..).next_back().copied();
        for version in wanted.copied().filter(|v| !self.log.classic.contains(v)) {
            let gone = || Error::transient(format!("{}: it is gone", self.folder));
            let loaded = TableLog::load_at(lake, &self.folder, Some(version)).await?;
            let (log, _) = loaded.ok_or_else(gone)?;
            log_checkpoint::write(&log, None).await?;
            newest = newest.max(Some(version).filter(|v| *v >= self.kept.oldest));
        }
        failpoint::at("retention.checkpoint.written")?;
        match newest {
            Some(newest) => log_checkpoint::point_to(lake, &self.folder, newest).await,
            None => Err(Error::failed(format!(
                "{}: no checkpoint of its log at {} or later",
                self.folder, self.kept.oldest
            ))),
        }
    }

    /// Removes what is not kept, after [`Cleanup::prepare`].
    ///
    /// # Errors
    /// The store fails: do it again.
    pub async fn remove(&self, lake: &Lake) -> Result<Cleaned> {
        failpoint::at("retention.files.before")?;
        let below = |name: &str| Path::from(format!("{}/{name}", self.folder));
        delete(lake, self.files.iter().map(|path| below(path)).collect()).await?;
        failpoint::at("retention.files.after")?;
        let in_log = |name: String| below(&format!("_delta_log/{name}"));
        let json = |version: &u64| in_log(format!("{version:020}.json"));
        let (first, rest): (Vec<u64>, Vec<u64>) =
            self.kept.expired.iter().copied().partition(|version| self.log.begins(*version));
        delete(lake, rest.iter().rev().map(json).collect()).await?;
        failpoint::at("retention.commits.after")?;
        delete(lake, first.iter().rev().map(json).collect()).await?;
        self.sync(lake).await?;
        failpoint::at("retention.firsts.after")?;
        let mut left: Vec<Path> = Vec::new();
        for (version, names) in self.log.checkpoints.iter().chain(&self.log.others) {
            // Also those of an earlier clean-up that was interrupted here.
            if *version < self.kept.oldest && !self.kept.alone.contains(version) {
                left.extend(names.iter().cloned().map(in_log));
            }
        }
        delete(lake, left).await?;
        failpoint::at("retention.checkpoints.after")?;
        Ok(Cleaned {
            versions: self.kept.expired.len() as u64,
            files: self.files.len() as u64,
            bytes: self.bytes,
        })
    }

    /// On a local disk a removal may be undone by a power cut; not in another order than this.
    async fn sync(&self, lake: &Lake) -> Result<()> {
        let Some(log) = lake.local_path().map(|lake| lake.join(&self.folder).join("_delta_log/x"))
        else {
            return Ok(());
        };
        let sync = move |path: PathBuf| durable::sync_folder_of(&path);
        let answer = tokio::task::spawn_blocking(move || sync(log)).await;
        answer.map_err(|e| Error::failed("a removal was cancelled").because(e))?.map_err(|e| {
            Error::transient(format!("{}: its log can't be synced", self.folder)).because(e)
        })
    }
}

/// Removes objects; those that are not there count as removed.
async fn delete(lake: &Lake, paths: Vec<Path>) -> Result<()> {
    let store = lake.store();
    let deletes = paths.into_iter().map(|path| {
        let store = store.clone();
        async move {
            match store.delete(&path).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
                Err(e) => Err(store_error(format!("removing {path}"), e)),
            }
        }
    });
    stream::iter(deletes).buffered(AT_A_TIME).try_collect().await
}

/// The newest commit that carries the owner's domain.
async fn last_of_ours(log: &TableLog, newest: u64, domain: &str) -> Result<u64> {
    let mut version = newest;
    loop {
        match log.read(version).await? {
            Some(commit) if commit.domain(domain).is_some() => return Ok(version),
            // Nothing of ours is left in the log: then nothing of it may go.
            None => return Ok(0),
            Some(_) => match version.checked_sub(1) {
                Some(before) => version = before,
                None => return Ok(0),
            },
        }
    }
}

async fn commit(log: &TableLog, version: u64) -> Result<Commit> {
    log.read(version).await?.ok_or_else(|| log.gone(version))
}

fn committed_at(commit: &Commit, version: u64, folder: &str) -> Result<i64> {
    let time = commit.info().and_then(|info| info.in_commit_timestamp.or(info.timestamp));
    time.ok_or_else(|| {
        Error::failed(format!("{folder}: version {version} does not say when it was committed"))
    })
}

fn kind_of(commit: &Commit) -> VersionKind {
    let text = commit.info().and_then(|info| info.user_metadata.as_deref());
    text.and_then(|text| serde_json::from_str::<Tag>(text).ok())
        .map_or(VersionKind::Foreign, |tag| tag.kind)
}

fn added(commit: &Commit) -> Paths {
    let mut paths = Paths::new();
    for action in &commit.actions {
        if let Action::Add(add) = action {
            let Add { path, size, deletion_vector, .. } = add.as_ref();
            paths.insert(path.clone(), u64::try_from(*size).unwrap_or(0));
            if let Some(Ok(vector)) = deletion_vector.as_ref().map(|vector| vector.path()) {
                paths.insert(vector, 0);
            }
        }
    }
    paths
}

/// Data files and vectors of a version.
async fn live(lake: &Lake, folder: &str, version: u64) -> Result<Paths> {
    let gone = || Error::failed(format!("{folder}: it is gone"));
    let (log, snapshot) = TableLog::load_at(lake, folder, Some(version)).await?.ok_or_else(gone)?;
    let views: Vec<_> = snapshot
        .file_views(log.store.as_ref(), None)
        .try_collect()
        .await
        .map_err(|e| delta_error(format!("reading the files of {folder}"), e))?;
    let mut paths = Paths::new();
    for view in &views {
        paths.insert(view.path().into_owned(), u64::try_from(view.size()).unwrap_or(0));
        if let Some(vector) = view.deletion_vector_descriptor() {
            let vector: crate::lake::dv::Descriptor = convert(&vector)?;
            paths.insert(vector.path().map_err(|e| e.at(folder))?, 0);
        }
    }
    Ok(paths)
}

/// Only what lies below the table, under a name that means the same to all, is ours to remove.
fn is_plain(path: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-=".contains(&b);
    path.bytes().all(plain)
        && !path.starts_with('/')
        && !path.starts_with("_delta_log")
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_below_the_table_are_removed() {
        for path in ["part-1.parquet", "_dv/deletion_vector_x.bin", "a=1/b.parquet"] {
            assert!(is_plain(path), "{path}");
        }
        for path in
            ["/etc/x", "../x", "a/../../x", "s3://b/x", "a%20b", "_delta_log/0.json", "", "a//b"]
        {
            assert!(!is_plain(path), "{path}");
        }
    }
}

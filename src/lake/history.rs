//! The versions of a table, from the tags in its commits.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use serde::Serialize;

use super::actions::CommitInfo;
use super::checkpoint::{Tag, VersionKind};
use super::retention::LogFolder;
use super::store::{Lake, store_error};
use crate::error::{Error, Result};
use crate::position::Lsn;

const READS_AT_A_TIME: usize = 8;

/// One version of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VersionInfo {
    /// Number of the version.
    pub version: u64,
    /// What it did.
    pub kind: VersionKind,
    /// Delta's name of the operation.
    pub operation: String,
    /// Its generation; `None` for versions of others, as below.
    pub generation: Option<u64>,
    /// The position its snapshot shows.
    pub base: Option<Lsn>,
    /// The position it shows.
    pub applied: Option<Lsn>,
    /// Commit time at the source of its newest transaction, RFC 3339.
    pub source_time: Option<String>,
    /// When it was committed here, RFC 3339 with milliseconds.
    pub committed_at: Option<String>,
    /// Rows written.
    pub inserted: u64,
    /// Rows masked or removed.
    pub deleted: u64,
}

/// The versions whose commits are still in the log, oldest first.
///
/// # Errors
/// The log can't be read.
pub async fn versions(lake: &Lake, folder: &str) -> Result<Vec<VersionInfo>> {
    let log = Path::from(format!("{folder}/_delta_log"));
    let store = lake.store();
    let listed: Vec<_> = store
        .list(Some(&log))
        .try_collect()
        .await
        .map_err(|e| store_error(format!("listing the log of {folder}"), e))?;
    let mut numbers: Vec<u64> =
        listed.iter().filter_map(|m| m.location.filename().and_then(version_of)).collect();
    numbers.sort_unstable();
    // Gone between listing and reading: cleaned up.
    let reads = numbers.into_iter().map(|version| read_version(lake, folder, version));
    let found: Vec<Option<VersionInfo>> =
        stream::iter(reads).buffered(READS_AT_A_TIME).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// The versions among those listed that publish a snapshot, oldest first. Reads few commits of a
/// long log: a generation has one, its first, so that it is sought where the generation changes.
///
/// # Errors
/// The log can't be read.
pub async fn handoffs(lake: &Lake, folder: &str, log: &LogFolder) -> Result<Vec<VersionInfo>> {
    let (Some(first), Some(newest)) = (log.tail(), log.newest()) else { return Ok(Vec::new()) };
    let mut found = BTreeMap::new();
    // What a clean-up kept stands by itself.
    for version in log.commits.range(..first) {
        if let Some(info) = read_version(lake, folder, *version).await? {
            found.insert(*version, info);
        }
    }
    let mut stretches = vec![(
        nearest_of_ours(lake, folder, first, newest, &mut found).await?,
        nearest_of_ours(lake, folder, newest, newest, &mut found).await?,
    )];
    while let Some((low, high)) = stretches.pop() {
        let same = low.1 == high.1 && low.1.is_some();
        if same || high.0.saturating_sub(low.0) < 2 {
            continue;
        }
        let middle = low.0 + (high.0 - low.0) / 2;
        let middle = nearest_of_ours(lake, folder, middle, high.0, &mut found).await?;
        if middle.0 >= high.0 {
            // Between the middle and the end are strangers' alone.
            stretches.push((low, (low.0 + (high.0 - low.0) / 2, high.1)));
            continue;
        }
        stretches.push((low, middle));
        stretches.push((middle, high));
    }
    Ok(found.into_values().filter(|info| info.kind == VersionKind::Handoff).collect())
}

/// The first version from `from` on, `until` at the latest, that has a generation; and which.
async fn nearest_of_ours(
    lake: &Lake,
    folder: &str,
    from: u64,
    until: u64,
    found: &mut BTreeMap<u64, VersionInfo>,
) -> Result<(u64, Option<u64>)> {
    for version in from..=until {
        if !found.contains_key(&version)
            && let Some(info) = read_version(lake, folder, version).await?
        {
            found.insert(version, info);
        }
        let generation = found.get(&version).and_then(|info| info.generation);
        if generation.is_some() {
            return Ok((version, generation));
        }
    }
    Ok((until, None))
}

async fn read_version(lake: &Lake, folder: &str, version: u64) -> Result<Option<VersionInfo>> {
    let bytes = lake.get(&format!("{folder}/_delta_log/{version:020}.json")).await?;
    bytes.map(|bytes| version_info(version, &bytes).map_err(|e| e.at(folder))).transpose()
}

fn version_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".json")?;
    if digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()) {
        digits.parse().ok()
    } else {
        None
    }
}

/// What a commit says of its version. A commit without a tag of ours is foreign.
///
/// # Errors
/// It is not a Delta commit.
pub fn version_info(version: u64, commit: &[u8]) -> Result<VersionInfo> {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(rename = "commitInfo")]
        info: Option<CommitInfo>,
    }
    let mut info = CommitInfo::default();
    for line in commit.split(|b| *b == b'\n').filter(|l| !l.trim_ascii().is_empty()) {
        let line: Line = serde_json::from_slice(line).map_err(|e| {
            Error::failed(format!("version {version} is no Delta commit")).because(e)
        })?;
        if let Some(found) = line.info {
            info = found;
            break;
        }
    }
    let tag = info.user_metadata.as_deref().and_then(|text| serde_json::from_str::<Tag>(text).ok());
    let committed_at = info
        .in_commit_timestamp
        .or(info.timestamp)
        .and_then(DateTime::from_timestamp_millis)
        .map(|t| t.to_rfc3339_opts(SecondsFormat::Millis, true));
    Ok(VersionInfo {
        version,
        kind: tag.as_ref().map_or(VersionKind::Foreign, |t| t.kind),
        operation: info.operation,
        generation: tag.as_ref().map(|t| t.generation),
        base: tag.as_ref().map(|t| t.base),
        applied: tag.as_ref().map(|t| t.applied),
        committed_at,
        inserted: tag.as_ref().map_or(0, |t| t.rows_in),
        deleted: tag.as_ref().map_or(0, |t| t.rows_out),
        source_time: tag.and_then(|t| t.source_time),
    })
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint::tests::tag;
    use super::*;

    #[test]
    fn a_tag_comes_back_and_others_commits_are_foreign() {
        let text = serde_json::to_string(&tag(VersionKind::Changes, 130)).unwrap();
        let info = serde_json::json!({"commitInfo": {"operation": "MERGE", "inCommitTimestamp": 1_700_000_000_001i64, "userMetadata": text}});
        let ours = version_info(4, format!("{info}\n{{\"add\":{{}}}}\n").as_bytes()).unwrap();
        assert_eq!(ours.kind, VersionKind::Changes);
        assert_eq!(ours.applied, Some(Lsn::new(130)));
        assert_eq!(ours.committed_at.as_deref(), Some("2023-11-14T22:13:20.001Z"));
        let foreign =
            version_info(5, br#"{"commitInfo":{"operation":"OPTIMIZE","userMetadata":"by hand"}}"#)
                .unwrap();
        assert_eq!(
            (foreign.kind, foreign.applied, foreign.operation.as_str()),
            (VersionKind::Foreign, None, "OPTIMIZE")
        );
        assert!(version_info(6, b"not json").is_err());
    }

    #[test]
    fn checkpoints_and_checksums_are_no_versions() {
        assert_eq!(version_of("00000000000000000007.json"), Some(7));
        for name in [
            "00000000000000000007.checkpoint.parquet",
            "7.json",
            "00000000000000000007.crc",
            "_last_checkpoint",
        ] {
            assert_eq!(version_of(name), None);
        }
    }
}

//! The files of a Delta log, by what they are.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt;
use object_store::path::Path;

use crate::error::Result;
use crate::lake::store::{Lake, store_error};

/// What lies in a `_delta_log`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFolder {
    /// Versions whose commit is there.
    pub commits: BTreeSet<u64>,
    /// Names of the files of each version's checkpoints.
    pub checkpoints: BTreeMap<u64, Vec<String>>,
    /// Versions with a whole checkpoint of the classic kind, in one file.
    pub classic: BTreeSet<u64>,
    /// What else belongs to a version (checksums, merged commits), by the first version.
    pub others: BTreeMap<u64, Vec<String>>,
    /// Bytes of all of it.
    pub bytes: u64,
}

impl LogFolder {
    /// Lists the log of a table.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(lake: &Lake, folder: &str) -> Result<LogFolder> {
        let log = Path::from(format!("{folder}/_delta_log"));
        let wrong = |e| store_error(format!("listing the log of {folder}"), e);
        let objects: Vec<_> = lake.store().list(Some(&log)).try_collect().await.map_err(wrong)?;
        let mut found = LogFolder::default();
        for object in objects {
            found.bytes += object.size;
            if let Some(name) = object.location.filename() {
                found.add(name);
            }
        }
        Ok(found)
    }

    fn add(&mut self, name: &str) {
        let Some((digits, rest)) = name.split_at_checked(20) else { return };
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return;
        }
        let Ok(version) = digits.parse::<u64>() else { return };
        match rest {
            ".json" => {
                self.commits.insert(version);
            }
            ".checkpoint.parquet" => {
                self.classic.insert(version);
                self.checkpoints.entry(version).or_default().push(name.to_owned());
            }
            _ if rest.starts_with(".checkpoint.") => {
                self.checkpoints.entry(version).or_default().push(name.to_owned());
            }
            _ => self.others.entry(version).or_default().push(name.to_owned()),
        }
    }

    /// The newest version.
    pub fn newest(&self) -> Option<u64> {
        self.commits.last().copied()
    }

    /// The first version of the unbroken row of commits that ends at the newest one.
    pub fn tail(&self) -> Option<u64> {
        let mut first = self.newest()?;
        while first.checked_sub(1).is_some_and(|before| self.commits.contains(&before)) {
            first -= 1;
        }
        Some(first)
    }

    /// Whether an unbroken row of commits begins at `version`.
    pub fn begins(&self, version: u64) -> bool {
        !version.checked_sub(1).is_some_and(|before| self.commits.contains(&before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let mut found = LogFolder::default();
        for name in [
            "00000000000000000003.json",
            "00000000000000000003.checkpoint.parquet",
            "00000000000000000003.crc",
            "00000000000000000007.json",
            "00000000000000000008.json",
            "00000000000000000008.checkpoint.0000000001.0000000002.parquet",
            "00000000000000000007.00000000000000000008.compacted.json",
            "_last_checkpoint",
            "x.json",
            "0000000000000000000x.json",
            "_commits",
        ] {
            found.add(name);
        }
        assert_eq!(found.commits, BTreeSet::from([3, 7, 8]));
        assert_eq!(found.classic, BTreeSet::from([3]));
        assert_eq!(found.checkpoints.keys().copied().collect::<Vec<_>>(), [3, 8]);
        assert_eq!(found.others.keys().copied().collect::<Vec<_>>(), [3, 7]);
        assert_eq!((found.newest(), found.tail()), (Some(8), Some(7)));
        assert!(found.begins(3) && found.begins(7) && !found.begins(8));
    }
}

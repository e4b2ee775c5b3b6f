//! What a change does to a table's files, computed before anything is stored.

use std::collections::BTreeMap;

use chrono::Utc;

use super::{Change, LiveFile};
use crate::error::{Error, Result};
use crate::lake::actions::{Action, Domain, Txn};
use crate::lake::checkpoint::{CHECKPOINT_DOMAIN, Checkpoint, VersionKind};
use crate::lake::dv::Packer;
use crate::lake::files::{FileNo, file_no_of};
use crate::lake::store::Lake;

/// What a change comes to, for the files there are.
pub(super) struct Plan {
    removes: Vec<Action>,
    adds: Vec<Action>,
    vectors: Option<(String, bytes::Bytes)>,
    /// Files that come or change, and `None` for those that go.
    pub(super) after: BTreeMap<FileNo, Option<LiveFile>>,
}

impl Plan {
    pub(super) fn of(
        change: &Change,
        files: &BTreeMap<FileNo, LiveFile>,
        folder: &str,
    ) -> Result<Plan> {
        let now = Utc::now().timestamp_millis();
        let data_change = change.tag.kind != VersionKind::Compaction;
        let mut packer = Packer::default();
        let mut plan =
            Plan { removes: Vec::new(), adds: Vec::new(), vectors: None, after: BTreeMap::new() };
        let impossible = |what: String| {
            Error::failed(format!("{folder}: {what}"))
                .next("this is a defect; rebuild the location index and report it")
        };
        for number in change.masks.keys().chain(&change.removes) {
            if !files.contains_key(number) {
                return Err(impossible(format!(
                    "file {number} is not live, so no row of it can be masked"
                )));
            }
        }
        for (number, file) in files {
            let mask = change.masks.get(number).filter(|m| !m.is_empty());
            if change.remove_all || change.removes.contains(number) {
                plan.removes.push(file.remove(now, data_change));
                plan.after.insert(*number, None);
                continue;
            }
            let Some(mask) = mask else { continue };
            if mask.max().is_some_and(|row| u64::from(row) >= file.rows) {
                return Err(impossible(format!(
                    "file {number} has {} rows and no row {:?}",
                    file.rows,
                    mask.max()
                )));
            }
            plan.removes.push(file.remove(now, data_change));
            let union = mask | &file.mask;
            if union.len() >= file.rows {
                plan.after.insert(*number, None);
                continue;
            }
            let mut masked = file.clone();
            masked.vector = Some(packer.add(&union)?);
            masked.mask = union;
            plan.adds.push(masked.add(data_change));
            plan.after.insert(*number, Some(masked));
        }
        for (new, mask) in &change.adds {
            let number = file_no_of(&new.path)
                .ok_or_else(|| impossible(format!("{:?} is not named as a data file", new.path)))?;
            if files.contains_key(&number) || plan.after.contains_key(&number) {
                return Err(impossible(format!("there is a data file {number} already")));
            }
            if mask.max().is_some_and(|row| u64::from(row) >= new.rows) {
                return Err(impossible(format!(
                    "the new file {number} has {} rows and no row {:?}",
                    new.rows,
                    mask.max()
                )));
            }
            if mask.len() >= new.rows {
                continue;
            }
            let file = LiveFile {
                number,
                path: new.path.clone(),
                size: new.size,
                rows: new.rows,
                stats: new.stats.clone(),
                partition: new.partition.clone(),
                logged: None,
                vector: if mask.is_empty() { None } else { Some(packer.add(mask)?) },
                mask: mask.clone(),
                modified: now,
            };
            plan.adds.push(file.add(data_change));
            plan.after.insert(number, Some(file));
        }
        if !packer.is_empty() {
            let (path, bytes) = packer.finish();
            plan.vectors = Some((path, bytes.into()));
        }
        Ok(plan)
    }

    pub(super) fn next_file_no(&self, floor: FileNo) -> FileNo {
        self.after.keys().next_back().map_or(floor, |n| floor.max(n + 1))
    }

    /// The checkpoint with what the lake knows.
    pub(super) fn checkpoint(
        &self,
        change: &Change,
        table_id: &str,
        operation: &str,
        next_file_no: FileNo,
        files: &BTreeMap<FileNo, LiveFile>,
    ) -> Checkpoint {
        let kept = files.values().filter(|f| !self.after.contains_key(&f.number));
        let live = kept.chain(self.after.values().flatten());
        let (mut rows, mut foreign) = (0, BTreeMap::new());
        for file in live {
            rows += file.live_rows();
            if file_no_of(&file.path) != Some(file.number) {
                foreign.insert(file.path.clone(), file.number);
            }
        }
        Checkpoint {
            table_id: table_id.to_owned(),
            commit: operation.to_owned(),
            next_file_no,
            foreign_files: foreign,
            live_rows: Some(rows),
            ..change.checkpoint.clone()
        }
    }

    pub(super) async fn write_vectors(&self, lake: &Lake, folder: &str) -> Result<()> {
        match &self.vectors {
            Some((path, bytes)) => lake.put(&format!("{folder}/{path}"), bytes.clone()).await,
            None => Ok(()),
        }
    }

    pub(super) fn actions(&self, checkpoint: &Checkpoint) -> Result<Vec<Action>> {
        let configuration = serde_json::to_string(checkpoint)
            .map_err(|e| Error::failed("a checkpoint can't be written").because(e))?;
        let mut actions = vec![
            Action::Txn(Txn {
                app_id: format!("tidegate.{}", checkpoint.pipeline),
                version: checkpoint.applied.as_i64(),
                last_updated: Some(Utc::now().timestamp_millis()),
            }),
            Action::DomainMetadata(Domain {
                domain: CHECKPOINT_DOMAIN.into(),
                configuration,
                removed: false,
            }),
        ];
        actions.extend(self.removes.iter().chain(&self.adds).cloned());
        Ok(actions)
    }
}

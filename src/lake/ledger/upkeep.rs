//! Keeps the ledger small: its events in few files, its log by the common clean-up.

use std::collections::BTreeSet;

use chrono::Utc;

use super::Ledger;
use crate::error::Result;
use crate::lake::actions::{Action, Remove};
use crate::lake::pins::CLEAN_EVENT;

/// Files of events that are left apart.
const FILES: usize = 64;

impl Ledger {
    /// Reads what others added since.
    ///
    /// # Errors
    /// It can't be read; fenced if this run owned the pipeline and another took over.
    pub async fn refresh(&mut self) -> Result<()> {
        let rules = self.rules();
        self.reload(rules).await
    }

    /// Merges the files of events into one, once there are many; of what clean-ups said only the
    /// newest for each table stays. Returns whether it did.
    ///
    /// # Errors
    /// Fenced if another run took over; failed if this run does not own the pipeline.
    pub async fn merge_events(&mut self) -> Result<bool> {
        if self.files.len() < FILES {
            return Ok(false);
        }
        let merged = self.files.clone();
        let mut events = self.read_events(None, None).await?;
        let mut told: BTreeSet<String> = BTreeSet::new();
        let mut kept = Vec::with_capacity(events.len());
        // From the newest on: a clean-up supersedes what earlier ones said of the same tables.
        while let Some(event) = events.pop() {
            if event.kind == CLEAN_EVENT {
                let tables = event.detail.as_object().into_iter().flat_map(|tables| tables.keys());
                let before = told.len();
                told.extend(tables.cloned());
                if told.len() == before {
                    continue;
                }
            }
            kept.push(event);
        }
        kept.reverse();
        let file = self.write_events(&kept).await?;
        let mut actions = self.owned()?;
        let now = Utc::now().timestamp_millis();
        actions.extend(merged.iter().map(|path| {
            Action::Remove(Box::new(Remove {
                path: path.clone(),
                deletion_timestamp: Some(now),
                data_change: false,
                extended_file_metadata: None,
                partition_values: None,
                size: None,
                deletion_vector: None,
            }))
        }));
        self.put(actions, file, "OPTIMIZE").await?;
        self.files.retain(|path| !merged.contains(path));
        Ok(true)
    }
}

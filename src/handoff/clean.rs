//! Cleans all tables of a pipeline up, and its ledger. Needs no ownership: several may do it at
//! once, beside a running pipeline.
//!
//! What is given up is said in the ledger before anything goes, and pins are read again after that
//! (see [`crate::lake::pins`]).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::Maintenance;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::lake::pins::{Left, Pins, clean_event};
use crate::lake::retention::{Cleaned, Cleanup, Policy, plan_cleanup};
use crate::lake::{Lake, Ledger, checkpoint, ledger};

/// How long the ledger's own versions stay: nobody travels to them.
const LEDGER_VERSIONS: Duration = Duration::from_secs(3600);
/// After the start of a pipeline.
const FIRST: Duration = Duration::from_secs(60);

/// What a clean-up did, or would do, for one table.
#[derive(Clone, Debug)]
pub struct TableCleaned {
    /// The table's folder.
    pub folder: String,
    /// What it removed.
    pub cleaned: Cleaned,
}

/// Cleans up the tables in `folders`, all of the pipeline's if none is named, and the ledger. With
/// `dry_run` it only says what it would do.
///
/// # Errors
/// Lake or ledger fail; what was removed by then was not needed by any version that is kept.
pub async fn clean(
    lake: &Lake,
    maintenance: &Maintenance,
    folders: &[String],
    dry_run: bool,
) -> Result<Vec<TableCleaned>> {
    let mut ledger = open(lake).await?;
    let pins = Pins::read(&ledger).await?;
    let mut plans = Vec::new();
    let all = ledger.state().tables.iter().map(|table| table.folder.clone());
    for folder in all.filter(|folder| folders.is_empty() || folders.contains(folder)) {
        let policy = Policy {
            retain: maintenance.retain_versions_for,
            keep_handoffs: maintenance.keep_handoffs as usize,
            pinned: pins.of_table(&folder),
        };
        plans.extend(plan_cleanup(lake, &folder, &policy, checkpoint::CHECKPOINT_DOMAIN).await?);
    }
    if dry_run {
        return Ok(plans.iter().map(would).collect());
    }
    if !plans.is_empty() {
        for plan in &plans {
            plan.prepare(lake).await?;
        }
        let left: BTreeMap<String, Left> =
            plans.iter().map(|plan| (plan.folder.clone(), Left::from(&plan.kept))).collect();
        ledger.append_events(&[clean_event(&left)?]).await?;
        failpoint::at("retention.said")?;
        ledger.refresh().await?;
        let pins = Pins::read(&ledger).await?;
        // One that was pinned in between waits, with its table, for the next time.
        plans.retain(|plan| !plan.touches(pins.of_table(&plan.folder)));
    }
    let mut done = Vec::with_capacity(plans.len());
    for plan in &plans {
        let cleaned = plan.remove(lake).await?;
        tracing::info!(
            table = %plan.folder, versions = cleaned.versions, files = cleaned.files,
            bytes = cleaned.bytes, oldest = plan.kept.oldest, "cleaned up"
        );
        done.push(TableCleaned { folder: plan.folder.clone(), cleaned });
    }
    let policy = Policy {
        retain: maintenance.retain_versions_for.min(LEDGER_VERSIONS),
        ..Policy::default()
    };
    if let Some(plan) = plan_cleanup(lake, ledger::FOLDER, &policy, ledger::WRITER_DOMAIN).await? {
        plan.prepare(lake).await?;
        plan.remove(lake).await?;
    }
    Ok(done)
}

fn would(plan: &Cleanup) -> TableCleaned {
    TableCleaned {
        folder: plan.folder.clone(),
        cleaned: Cleaned {
            versions: plan.kept.expired.len() as u64,
            files: plan.files.len() as u64,
            bytes: plan.bytes,
        },
    }
}

async fn open(lake: &Lake) -> Result<Ledger> {
    Ledger::open(lake).await?.ok_or_else(|| {
        Error::failed("the lake has no ledger").next("start a pipeline with `tidegate run`")
    })
}

/// A clean-up now and then, beside a running pipeline; it ends when this is dropped, in the middle
/// if need be: a clean-up can be interrupted anywhere.
pub struct Cleaning(tokio::task::JoinHandle<()>);

impl Cleaning {
    /// Begins. A failure is a warning: the next time does what is left.
    pub fn begin(lake: Lake, maintenance: Maintenance) -> Cleaning {
        Cleaning(tokio::spawn(async move {
            if !maintenance.clean {
                return;
            }
            let mut wait = maintenance.clean_every.min(FIRST);
            loop {
                tokio::time::sleep(wait).await;
                if let Err(error) = clean(&lake, &maintenance, &[], false).await {
                    tracing::warn!("old versions were not removed: {error}");
                }
                wait = maintenance.clean_every;
            }
        }))
    }
}

impl Drop for Cleaning {
    fn drop(&mut self) {
        self.0.abort();
    }
}

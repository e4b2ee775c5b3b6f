//! `maintain`, `pin` and `unpin`.

use std::collections::BTreeMap;

use chrono::{SecondsFormat, Utc};

use super::commands::{find_table, no_pipeline, open_ledger};
use super::cuts;
use super::output::{CleanedTable, MaintainOutput, PinOutput, StorageStatus, print, print_json};
use crate::config::Config;
use crate::error::Result;
use crate::handoff::clean::clean;
use crate::handoff::housekeeping::compact;
use crate::lake::pins::{self, Pin};
use crate::lake::retention::LogFolder;
use crate::lake::{Lake, LakeTable, LiveFile};
use crate::observe::human;
use crate::observe::stop::StopSignal;

/// Merges files where nobody else does, and removes old versions.
pub async fn maintain(
    config: Config,
    tables: &[String],
    dry_run: bool,
    json: bool,
    stop: StopSignal,
) -> Result<()> {
    let (lake, ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let folders: Vec<String> =
        tables.iter().map(|table| find_table(&ledger, table)).collect::<Result<_>>()?;
    drop(ledger);
    let compactions = match config.source() {
        Ok(_) if !dry_run && config.maintenance.compact => {
            compact(&config, &folders, &stop).await?
        }
        _ => None,
    };
    let cleaned = clean(&lake, &config.maintenance, &folders, dry_run).await?;
    let cleaned = cleaned.into_iter().map(|done| CleanedTable {
        table: name_of(&done.folder),
        versions: done.cleaned.versions,
        files: done.cleaned.files,
        bytes: done.cleaned.bytes,
    });
    let output = MaintainOutput { dry_run, compactions, cleaned: cleaned.collect() };
    if json { print_json(&output) } else { print(&text(&output)) }
}

fn text(output: &MaintainOutput) -> String {
    let mut lines = Vec::new();
    match output.compactions {
        Some(made) => lines.push(format!("{made} compactions")),
        None if output.dry_run => {}
        None => lines.push(
            "nothing was compacted: a running pipeline does it itself, `compact` is off, or no source was given"
                .to_owned(),
        ),
    }
    let verb = if output.dry_run { "would remove" } else { "removed" };
    for table in &output.cleaned {
        lines.push(format!(
            "{}: {verb} {} versions, {} files, {} of data",
            table.table,
            human::count(table.versions),
            human::count(table.files),
            human::bytes(table.bytes),
        ));
    }
    if output.cleaned.is_empty() {
        lines.push("nothing is older than the retention".to_owned());
    }
    lines.join("\n")
}

/// Names a cut of all tables.
pub async fn pin(config: Config, name: &str, at: Option<&str>, json: bool) -> Result<()> {
    let (lake, mut ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let cut = cuts::find(&lake, &ledger, at).await?.cut;
    let pin = Pin {
        name: name.to_owned(),
        lsn: cut.lsn,
        at: Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true),
        tables: cut.tables,
    };
    pins::pin(&mut ledger, &pin).await?;
    let output = PinOutput::from(pin);
    if json {
        return print_json(&output);
    }
    let versions = |tables: &BTreeMap<String, u64>| {
        let each = tables.iter().map(|(table, version)| format!("  {table} version {version}"));
        each.collect::<Vec<_>>().join("\n")
    };
    print(&format!("pinned {} at {}\n{}", output.name, output.lsn, versions(&output.tables)))
}

/// Lets a cut go.
pub async fn unpin(config: Config, name: &str) -> Result<()> {
    let (_, mut ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    pins::unpin(&mut ledger, name).await?;
    print(&format!("unpinned {name}; the next clean-up removes what nothing else keeps"))
}

/// What the newest version of a table is made of.
pub async fn storage(lake: &Lake, table: &LakeTable) -> Result<StorageStatus> {
    let log = LogFolder::list(lake, table.folder()).await?;
    let files = table.files();
    Ok(StorageStatus {
        files: files.len() as u64,
        bytes: files.values().map(|file| file.size).sum(),
        rows: files.values().map(LiveFile::live_rows).sum(),
        masked_rows: files.values().map(|file| file.mask.len()).sum(),
        versions: log.commits.len() as u64,
        log_bytes: log.bytes,
    })
}

/// `schema.table` of a folder.
pub(super) fn name_of(folder: &str) -> String {
    match Lake::table_name(folder) {
        Some((schema, table)) => format!("{schema}.{table}"),
        None => folder.to_owned(),
    }
}

//! `maintain`, `pin` and `unpin`.

use std::collections::BTreeMap;

use chrono::{SecondsFormat, Utc};

use super::commands::{find_table, no_pipeline, open_ledger};
use super::output::{CleanedTable, MaintainOutput, PinOutput, StorageStatus, print, print_json};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::handoff::clean::clean;
use crate::handoff::cut::{At, Fences, TORN_EVENT, Versions, cut};
use crate::handoff::housekeeping::compact;
use crate::lake::pins::{self, Pin};
use crate::lake::retention::LogFolder;
use crate::lake::{self, Lake, LakeTable, Ledger, LiveFile};
use crate::observe::human;
use crate::observe::stop::StopSignal;
use crate::position::Lsn;

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
    let fence = ledger.fence().cloned().ok_or_else(|| {
        Error::failed("the tables are not published yet")
            .next("wait for `tidegate status` to say live")
    })?;
    let at = match at {
        None => At::Newest,
        Some(at) => parse_at(at, &ledger)?,
    };
    let mut torn = Vec::new();
    for event in ledger.read_events(None, Some(TORN_EVENT)).await? {
        let lsn = |key: &str| -> Option<Lsn> { event.detail.get(key)?.as_str()?.parse().ok() };
        torn.extend(lsn("after").zip(lsn("until")));
    }
    let mut tables = Vec::new();
    for recorded in &ledger.state().tables {
        let versions = lake::versions(&lake, &recorded.folder).await?;
        tables.push(Versions { folder: recorded.folder.clone(), versions });
    }
    let fences = Fences { last: fence.lsn, generation: fence.generation, torn };
    let cut = cut(&tables, &fences, &at)?;
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

fn parse_at(text: &str, ledger: &Ledger) -> Result<At> {
    if let Ok(lsn) = text.parse::<Lsn>() {
        return Ok(At::Lsn(lsn));
    }
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        return Ok(At::Time(time.to_utc()));
    }
    let wrong = |what: &str| {
        Error::config(format!("--at {text:?} {what}"))
            .next("give a position such as 16/B374D848, a time such as 2025-03-07T18:00:00Z, or a version such as public.orders@12")
    };
    let (table, version) = match (text.rsplit_once('@'), ledger.state().tables.as_slice()) {
        (Some((table, version)), _) => (find_table(ledger, table)?, version),
        (None, [only]) => (only.folder.clone(), text),
        (None, _) => return Err(wrong("names no position, time, or version of a table")),
    };
    let version = version.parse().map_err(|_| wrong("names no version"))?;
    Ok(At::Version(table, version))
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

fn name_of(folder: &str) -> String {
    match Lake::table_name(folder) {
        Some((schema, table)) => format!("{schema}.{table}"),
        None => folder.to_owned(),
    }
}

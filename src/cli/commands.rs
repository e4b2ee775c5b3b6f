//! One function per command: here the command line meets the protocol.

use std::path::Path;

use super::args::{Engine, Until};
use super::confirm::confirm;
use super::cuts::{self, Filter};
use super::maintain::name_of;
use super::output::{CutOutput, VersionOutput, print, print_json};
use super::status;
use super::text::{self, Style};
use super::views::{self, TableView};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::handoff::marks;
use crate::handoff::run::{self as pipeline, teardown as tear_down};
use crate::handoff::session::{belongs_to, connect_options};
use crate::handoff::watch::lost_history;
use crate::http;
use crate::lake::pins::Pins;
use crate::lake::{self, Lake, Ledger};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::{check as source_check, client, slot};

/// Takes the snapshot if there is none, then follows the changes.
pub async fn run(config: Config, until: Until, resnapshot: bool, stop: StopSignal) -> Result<()> {
    let until = match until {
        Until::Stopped => pipeline::Until::Forever,
        Until::CaughtUp => pipeline::Until::CaughtUp,
        Until::Lsn(lsn) => pipeline::Until::Lsn(lsn),
    };
    // First of all: an address that is taken is said before anything is done.
    let served = http::serve(&config).await?;
    let fence =
        pipeline::run_observed(&config, until, resnapshot, &stop, &served.metrics()).await?;
    if fence == Lsn::ZERO {
        tracing::info!("stopped before the snapshot was published; the next run goes on with it");
    } else {
        tracing::info!(%fence, "stopped; the next run goes on from here");
    }
    Ok(())
}

/// Says what stands in the way of `run`.
pub async fn check(config: Config, json: bool) -> Result<()> {
    let client = client::connect(&connect_options(&config)?).await?;
    let ledger = open_ledger(&config).await?;
    let started = ledger.as_ref().is_some_and(|(_, l)| l.fence().is_some());
    let request = source_check::CheckRequest {
        tables: config.tables()?,
        treatments: &config.treatments,
        column_prefix: &config.column_prefix,
        slot: &config.name,
        publication: &config.name,
        started,
        publication_ours: ledger.as_ref().is_some_and(|(_, l)| l.state().created_publication),
        server: None,
    };
    let mut report = source_check::check(&client, &request).await?;
    let lake = Lake::open(config.lake()?)?;
    if let Err(error) = lake.check_writable().await {
        let fix = error.next_step().unwrap_or("see the message").to_owned();
        let subject = lake.url().as_str();
        let finding = source_check::Finding::error("lake", subject, error.what(), fix);
        report.findings.push(finding);
    }
    if started && let Some(lost) = lost_history(&config).await? {
        let fix = lost.next_step().unwrap_or("see the message").to_owned();
        let text = lost.what();
        let (subject, what) = text.split_once(": ").unwrap_or(("the source", &text));
        report.findings.insert(0, source_check::Finding::error("history", subject, what, fix));
    }
    if json {
        print_json(&report)?;
    } else {
        print(&report.to_text())?;
    }
    if report.has_errors() {
        return Err(Error::new(Kind::Check, "the source or the lake is not ready")
            .next("mend the findings above, then check again"));
    }
    Ok(())
}

/// Says how far the pipeline is. The source is optional: without it the slot is not asked about.
pub async fn status(config: Config, json: bool) -> Result<()> {
    let (lake, ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let mut status = status::of_lake(&lake, &ledger, |_| None).await?;
    if config.source().is_ok() {
        let client = client::connect(&connect_options(&config)?).await?;
        let slot = slot::slot_info(&client, &config.name).await?;
        status.slot = slot.map(|slot| status::of_slot(&config, slot));
    }
    if json { print_json(&status) } else { print(&text::status(&status, Style::detect())) }
}

/// Lists the versions of `table` (`schema.table`), or names the versions of one cut.
pub async fn versions(
    config: Config,
    table: Option<&str>,
    at: Option<&str>,
    filter: &Filter,
    json: bool,
) -> Result<()> {
    let (lake, ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let Some(table) = table else {
        let cut = cuts::find(&lake, &ledger, at).await?.cut;
        let tables = cut.tables.into_iter().map(|(folder, v)| (name_of(&folder), v)).collect();
        let output = CutOutput { lsn: cut.lsn, tables };
        return if json { print_json(&output) } else { print(&text::cut(&output)) };
    };
    let folder = find_table(&ledger, table)?;
    let (infos, only) = match at {
        None => (lake::versions(&lake, &folder).await?, None),
        Some(_) => {
            let found = cuts::find(&lake, &ledger, at).await?;
            let only = found.cut.tables.get(&folder).copied().ok_or_else(|| {
                Error::failed(format!("{table} was published after {}", found.cut.lsn))
                    .next(format!("`tidegate versions {table}` lists what there is of it"))
            })?;
            let of_table = found.tables.into_iter().find(|t| t.folder == folder);
            (of_table.map(|t| t.versions).unwrap_or_default(), Some(only))
        }
    };
    let pins = Pins::read(&ledger).await?;
    let chosen = infos.into_iter().filter(|v| only.is_none_or(|only| v.version == only));
    let mut versions: Vec<VersionOutput> =
        filter.apply(chosen).into_iter().map(VersionOutput::from).collect();
    for version in &mut versions {
        version.pins = pins.names(&folder, version.version);
    }
    if json { print_json(&versions) } else { print(&text::versions(&versions, Style::detect())) }
}

/// Folder of a table by its name, `schema.table` or `table` in schema public.
pub(super) fn find_table(ledger: &Ledger, table: &str) -> Result<String> {
    let state = ledger.state();
    let name = |t: &lake::TableEntry| format!("{}.{}", t.schema, t.name);
    let found =
        state.tables.iter().find(|t| name(t) == table || (t.schema == "public" && t.name == table));
    found.map(|t| t.folder.clone()).ok_or_else(|| {
        let names: Vec<String> = state.tables.iter().map(name).collect();
        Error::config(format!("the pipeline has no table {table:?}"))
            .next(format!("choose one of: {}", names.join(", ")))
    })
}

/// Compares source and lake; no `tables` means all of the pipeline's.
pub async fn verify(config: Config, tables: &[String], json: bool, stop: StopSignal) -> Result<()> {
    let output = crate::verify::verify(&config, tables, &stop).await?;
    if json {
        print_json(&output)?;
    } else {
        print(&text::verify(&output, Style::detect()))?;
    }
    output.error().map_or(Ok(()), Err)
}

/// Prints SQL or code that opens the tables in `engine`, each at the version that shows one cut.
pub async fn views(config: Config, engine: Engine, at: Option<&str>) -> Result<()> {
    let (lake, ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let cut = cuts::find(&lake, &ledger, at).await?.cut;
    let mut note =
        format!("Pipeline {}: every table at the fence {}.", ledger.state().pipeline, cut.lsn);
    let mut tables = Vec::new();
    for recorded in &ledger.state().tables {
        let Some(version) = cut.tables.get(&recorded.folder) else {
            let name = format!("{}.{}", recorded.schema, recorded.name);
            note += &format!("\n{} was published later.", name.escape_debug());
            continue;
        };
        tables.push(TableView {
            schema: recorded.schema.clone(),
            table: recorded.name.clone(),
            location: lake.location(&recorded.folder),
            version: Some(*version),
        });
    }
    print(&views::text(engine, &note, &tables))
}

/// Asks for tables to be read again; no `tables` means all.
pub async fn reseed(config: Config, tables: &[String]) -> Result<()> {
    let (_, mut ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    if ledger.state().phase != lake::Phase::Live {
        return Err(Error::new(Kind::Check, "the pipeline has not published its tables yet")
            .next("let `tidegate run` finish the snapshot first"));
    }
    let wanted: Vec<String> =
        tables.iter().map(|table| find_table(&ledger, table)).collect::<Result<_>>()?;
    let entries = ledger.state().tables.iter();
    let chosen: Vec<_> =
        entries.filter(|e| wanted.is_empty() || wanted.contains(&e.folder)).collect();
    let requests: Vec<_> = chosen.iter().map(|entry| marks::request(entry)).collect();
    let names: Vec<String> = chosen.iter().map(|entry| entry.display()).collect();
    ledger.append_events(&requests).await?;
    print(&format!(
        "asked for {}: a running pipeline begins within seconds, else the next `tidegate run` does; \
         `tidegate status` shows it",
        names.join(", ")
    ))
}

/// Drops slot and publication.
pub async fn teardown(config: Config, yes: bool) -> Result<()> {
    let question = format!(
        "Drop the slot and the publication {} on the source? The lake stays readable, but can't be continued.",
        config.name
    );
    if !confirm(&question, yes)? {
        return print("nothing was dropped");
    }
    for line in tear_down(&config).await? {
        print(&line)?;
    }
    Ok(())
}

/// Shows the whole job in `dir`.
pub async fn demo(dir: &Path, data: Option<&Path>, stop: StopSignal) -> Result<()> {
    crate::demo::run(dir, data, &stop).await
}

pub(super) async fn open_ledger(config: &Config) -> Result<Option<(Lake, Ledger)>> {
    let lake = Lake::open_existing(config.lake()?)?;
    let Some(lake) = lake else { return Ok(None) };
    let Some(ledger) = Ledger::open(&lake).await? else { return Ok(None) };
    belongs_to(ledger.state(), config)?;
    Ok(Some((lake, ledger)))
}

pub(super) fn no_pipeline(config: &Config) -> Error {
    Error::new(
        Kind::Check,
        format!("there is no pipeline in the lake {}", config.lake().unwrap_or_default()),
    )
    .next("check --lake, or start one with `tidegate run`")
}

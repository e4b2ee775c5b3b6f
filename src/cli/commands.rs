//! One function per command: here the command line meets the protocol.

use std::path::Path;

use super::args::{Engine, Until};
use super::confirm::confirm;
use super::maintain;
use super::output::{
    BoundaryStatus, PinOutput, SlotStatus, SpoolStatus, StatusOutput, TableStatus, VersionOutput,
    print, print_json,
};
use super::text::{self, Style};
use super::views::{self, TableView};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::handoff::run::{self as pipeline, teardown as tear_down};
use crate::handoff::session::{belongs_to, connect_options};
use crate::handoff::snapshot::of_table;
use crate::handoff::watch::lost_history;
use crate::handoff::{guard, rules, spool};
use crate::lake::pins::Pins;
use crate::lake::{self, Lake, LakeTable, Ledger};
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
    let fence = pipeline::run(&config, until, resnapshot, &stop).await?;
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
        let what = error.to_string().split("\n  next: ").next().unwrap_or_default().to_owned();
        report.findings.push(source_check::Finding::error("lake", lake.url().as_str(), what, fix));
    }
    if started && let Some(lost) = lost_history(&config).await? {
        let fix = lost.next_step().unwrap_or("see the message").to_owned();
        let text = lost.to_string();
        let text = text.split("\n  next: ").next().unwrap_or_default();
        let (subject, what) = text.split_once(": ").unwrap_or(("the source", text));
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
    let state = ledger.state();
    let events = ledger.read_events(Some(&state.run), None).await?;
    let fence = ledger.fence().map(|fence| fence.lsn);
    let mut tables = Vec::with_capacity(state.tables.len());
    for recorded in &state.tables {
        let open = LakeTable::open(&lake, &recorded.folder).await?;
        let checkpoint = open.as_ref().map(LakeTable::checkpoint);
        let copied = of_table(&events, recorded)?.chunks;
        tables.push(TableStatus {
            table: format!("{}.{}", recorded.schema, recorded.name),
            phase: match checkpoint {
                Some(_) => "live".to_owned(),
                None => state.phase.as_str().to_owned(),
            },
            version: open.as_ref().map(LakeTable::version),
            base: checkpoint.map(|c| c.base),
            applied: checkpoint.map(|c| fence.map_or(c.applied, |fence| c.applied.max(fence))),
            rows_copied: copied.iter().map(|chunk| chunk.rows).sum(),
            bytes_copied: copied.iter().map(|chunk| chunk.bytes).sum(),
            chunks_copied: copied.len() as u64,
            chunks: recorded.chunks,
            rows_estimated: recorded.rows_estimated,
            storage: match &open {
                Some(table) => Some(maintain::storage(&lake, table).await?),
                None => None,
            },
        });
    }
    let slot = match config.source() {
        Ok(_) => {
            let client = client::connect(&connect_options(&config)?).await?;
            slot::slot_info(&client, &config.name).await?
        }
        Err(_) => None,
    };
    let outlook = slot
        .as_ref()
        .map(|slot| rules::outlook(guard::retained(Some(slot)), guard::bounds(&config), None));
    let status = StatusOutput {
        pipeline: state.pipeline.clone(),
        generation: state.generation,
        phase: state.phase.as_str().to_owned(),
        run: state.run.clone(),
        failure: state.failure.clone(),
        base: state.base,
        boundary: boundary_status(state),
        fence,
        tables,
        pins: Pins::read(&ledger).await?.pins.into_values().map(PinOutput::from).collect(),
        slot: slot.zip(outlook).map(|(slot, outlook)| SlotStatus {
            name: slot.name,
            active: slot.active,
            confirmed: (slot.confirmed > Lsn::ZERO).then_some(slot.confirmed),
            retained_bytes: slot.retained_bytes.max(0) as u64,
            wal_status: slot.wal_status,
            safe_bytes: slot.safe_bytes,
            limit_bytes: outlook.limit,
            margin_bytes: outlook.margin,
        }),
        spool: spool::recorded(&ledger).map(|spool| SpoolStatus {
            from: spool.from,
            to: spool.to,
            files: spool.files,
            bytes: spool.bytes,
        }),
    };
    if json { print_json(&status) } else { print(&text::status(&status, Style::detect())) }
}

/// The latest snapshot of a run that has not published.
fn boundary_status(state: &lake::PipelineState) -> Option<BoundaryStatus> {
    let boundary = state.boundary.as_ref().filter(|_| state.phase != lake::Phase::Live)?;
    let made = chrono::DateTime::parse_from_rfc3339(&boundary.at).ok();
    let age = made.map(|made| (chrono::Utc::now() - made.to_utc()).num_seconds().max(0) as u64);
    Some(BoundaryStatus {
        number: boundary.number,
        base: boundary.base,
        snapshot: boundary.snapshot.clone(),
        made_at: boundary.at.clone(),
        age_seconds: age.filter(|_| boundary.held),
    })
}

/// Lists the versions of `table` (`schema.table`).
pub async fn versions(config: Config, table: &str, json: bool) -> Result<()> {
    let (lake, ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let recorded = find_table(&ledger, table)?;
    let pins = Pins::read(&ledger).await?;
    let mut versions: Vec<VersionOutput> =
        lake::versions(&lake, &recorded).await?.into_iter().map(VersionOutput::from).collect();
    for version in &mut versions {
        version.pins = pins.names(&recorded, version.version);
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

/// Prints SQL that opens the tables in `engine`, each at the version that shows the fence.
pub async fn views(config: Config, engine: Engine) -> Result<()> {
    let (lake, ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let fence = ledger.fence().map(|fence| fence.lsn).ok_or_else(|| {
        Error::failed("the tables are not published yet")
            .next("wait for `tidegate status` to say live")
    })?;
    let mut tables = Vec::new();
    for recorded in &ledger.state().tables {
        let versions = lake::versions(&lake, &recorded.folder).await?;
        let version = versions
            .iter()
            .rev()
            .find(|v| v.applied.is_some_and(|applied| applied <= fence))
            .map(|v| v.version);
        tables.push(TableView {
            schema: recorded.schema.clone(),
            table: recorded.name.clone(),
            location: lake.location(&recorded.folder),
            version,
        });
    }
    let note = format!("Pipeline {}: every table at the fence {fence}.", ledger.state().pipeline);
    print(&views::sql(engine, &note, &tables))
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

//! Names a position by a temporary slot, brings the lake to it, and compares table by table.

use std::time::Duration;

use tokio::runtime::Handle;

use crate::cli::output::{VerifyOutput, VerifyTable};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::handoff::follow::{OpenTable, Target};
use crate::handoff::live::{self, Newcomers};
use crate::handoff::ownership;
use crate::handoff::rules::{Refusal, Resume};
use crate::handoff::run::refuse;
use crate::handoff::session::{Session, blocking};
use crate::handoff::tables as lake_tables;
use crate::lake::Event;
use crate::observe::stop::StopSignal;
use crate::source::catalog::{self, TableInfo, quote_literal};
use crate::source::slot::{self, SlotOptions};
use crate::source::wire::{SessionKind, Wire};
use crate::verify::{Comparison, VERIFIED_EVENT};

/// How often a comparison is begun, where something passing comes in between: tables that change at
/// the source, a connection that is lost.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Compares source and lake; no `wanted` means all tables of the pipeline.
///
/// # Errors
/// A pipeline that is not live or that runs, a table it does not have, source or lake failing.
pub async fn verify(config: &Config, wanted: &[String], stop: &StopSignal) -> Result<VerifyOutput> {
    let mut session = Session::open(config).await?;
    for _ in 1..ATTEMPTS {
        match attempt(&mut session, wanted, stop).await {
            Err(error) if error.is_transient() && !stop.is_set() => {
                tracing::warn!("{}; comparing again, at a later position", error.what());
                tokio::time::sleep(PAUSE).await;
                session = Session::open(config).await?;
            }
            result => return result,
        }
    }
    attempt(&mut session, wanted, stop).await
}

async fn attempt(
    session: &mut Session,
    wanted: &[String],
    stop: &StopSignal,
) -> Result<VerifyOutput> {
    let not_live = || {
        Error::new(Kind::Check, "the pipeline has not published its tables yet")
            .next("let `tidegate run` finish the snapshot first")
    };
    let ledger = session.ledger.as_ref().ok_or_else(not_live)?;
    let known: Vec<String> =
        ledger.state().tables.iter().map(|t| format!("{}.{}", t.schema, t.name)).collect();
    if let Some(odd) =
        wanted.iter().find(|w| !known.iter().any(|k| k == *w || *k == format!("public.{w}")))
    {
        return Err(Error::config(format!("the pipeline has no table {odd:?}"))
            .next(format!("choose from: {}", known.join(", "))));
    }
    let fence = ledger.fence().map(|fence| fence.lsn).ok_or_else(not_live)?;
    match session.resume(fence).await? {
        // The slot may be held for a client that is gone: that is waited for.
        Resume::Stream { .. } | Resume::Refuse(Refusal::SlotInUse) => {}
        Resume::Refuse(refusal) => return Err(refuse(refusal, session)),
        _ => return Err(not_live()),
    }
    // The lake is brought to a position, as a run does it, and by one process alone.
    let config = session.config.clone();
    let Some(ours) = ownership::take(session, stop).await? else { return Err(stopped()) };
    let result = alone(session, wanted, stop).await;
    ownership::end(&config, Some(ours), result).await
}

fn stopped() -> Error {
    Error::failed("stopped before all tables were compared").next("run verify again")
}

fn moved(what: impl std::fmt::Display) -> Error {
    Error::transient(format!("{what} changed at the source meanwhile"))
        .next("run verify again when nobody alters tables")
}

async fn alone(
    session: &mut Session,
    wanted: &[String],
    stop: &StopSignal,
) -> Result<VerifyOutput> {
    let fence = session.ledger()?.fence().map(|fence| fence.lsn).unwrap_or_default();
    if let Resume::Refuse(refusal) = session.resume(fence).await? {
        return Err(refuse(refusal, session));
    }
    // Changes of tables first: they may need a position of their own.
    let now = catalog::insert_lsn(&session.client, session.server.in_recovery).await?;
    live::stream(session, Target::Lsn(now), Newcomers::Wait, stop).await?;
    let before = lake_tables::look(session).await?.infos;

    let (source, name) = (session.source.clone(), temporary_name(&session.config.name));
    let (boundary, keeper) = blocking(move || {
        let mut wire = Wire::connect(&source, SessionKind::Replication)?;
        let options = SlotOptions { temporary: true, ..SlotOptions::default() };
        let boundary = slot::create_slot(&mut wire, &name, options)?;
        Ok((boundary, wire))
    })
    .await?;
    let at = boundary.base();
    let reached = live::stream(session, Target::Lsn(at), Newcomers::Wait, stop).await?;
    if stop.is_set() {
        return Err(stopped());
    }
    if reached != at {
        return Err(moved("a table that was read again"));
    }
    let compared = compare_at(session, boundary.snapshot().as_str(), wanted, stop).await;
    drop(keeper);
    let unsure = match &compared {
        Ok(tables) => tables.iter().any(|table| !table.equal),
        Err(_) => !stop.is_set(),
    };
    // A snapshot shows a table's old rows, but not the files or columns that it had.
    if unsure && let Some(table) = altered(&before, &lake_tables::look(session).await?.infos) {
        return Err(moved(table));
    }
    let tables = compared?;
    let equal = tables.iter().all(|table| table.equal);
    let output = VerifyOutput { equal, at, tables };
    note(session, &output).await;
    Ok(output)
}

/// A table that is not as it was: gone, altered, or its rows in other files.
fn altered(before: &[TableInfo], now: &[TableInfo]) -> Option<String> {
    let files = |info: &TableInfo| -> Vec<(u32, u32)> {
        info.leaves.iter().map(|leaf| (leaf.oid, leaf.relfilenode)).collect()
    };
    let same = |a: &TableInfo, b: &TableInfo| {
        a.fingerprint() == b.fingerprint()
            && a.columns_version == b.columns_version
            && files(a) == files(b)
    };
    let altered = before.iter().find(|was| {
        now.iter().find(|info| info.oid == was.oid).is_none_or(|info| !same(was, info))
    });
    altered.map(TableInfo::display)
}

/// Compares the tables with the lake, which is at the position that the snapshot shows.
async fn compare_at(
    session: &mut Session,
    snapshot: &str,
    wanted: &[String],
    stop: &StopSignal,
) -> Result<Vec<VerifyTable>> {
    let found = lake_tables::look(session).await?;
    let tables = lake_tables::open(session, &found, &Default::default()).await?.tables;
    let infos = found.infos;
    for entry in session.ledger_mut()?.state().tables.iter().filter(|entry| !entry.is_followed()) {
        let (name, why) = (entry.display(), entry.why.clone().unwrap_or_default());
        if wanted.iter().any(|w| *w == name || format!("public.{w}") == name) {
            return Err(Error::new(Kind::Check, format!("{name} is not followed: {why}"))
                .next("`tidegate run` reads it again, if it can be; `tidegate status` shows it"));
        }
        tracing::warn!(table = name, "is not compared, as it is not followed: {why}");
    }
    let (source, snapshot) = (session.source.clone(), snapshot.to_owned());
    let (lake, folder, runtime) =
        (session.lake.clone(), session.config.state_dir.clone(), Handle::current());
    let wanted = wanted.to_vec();
    let stop = stop.clone();
    blocking(move || {
        std::fs::create_dir_all(&folder).map_err(|e| {
            Error::failed(format!("the state folder {} can't be made", folder.display())).because(e)
        })?;
        let mut wire = Wire::connect(&source, SessionKind::Query)?;
        wire.simple_query(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
            quote_literal(&snapshot)
        ))?;
        let mut compared = Vec::new();
        for OpenTable { plan, table, .. } in &tables {
            let name = plan.to_string();
            if !wanted.is_empty()
                && !wanted.iter().any(|w| *w == name || format!("public.{w}") == name)
            {
                continue;
            }
            if stop.is_set() {
                return Err(stopped());
            }
            let info = infos
                .iter()
                .find(|info| info.oid == plan.oid)
                .ok_or_else(|| Error::failed(format!("{name}: gone from the source")))?;
            let comparison =
                Comparison { plan, info, lake: &lake, table, runtime: &runtime, folder: &folder };
            compared.push(comparison.run(&mut wire).map_err(|e| e.at(&name))?);
        }
        Ok(compared)
    })
    .await
}

/// Tells whoever watches the pipeline. The comparison holds also where that can't be written down.
async fn note(session: &mut Session, output: &VerifyOutput) {
    let noted = async {
        let ledger = session.ledger_mut()?;
        // Of some tables a difference is worth knowing; that they are equal says little of the rest.
        if output.equal && output.tables.len() < ledger.state().tables.len() {
            return Ok(());
        }
        let generation = ledger.state().generation;
        let detail =
            serde_json::json!({ "at": output.at, "equal": output.equal, "generation": generation });
        ledger.append_events(&[Event::now("", VERIFIED_EVENT, "", detail)]).await
    };
    if let Err(error) = noted.await {
        tracing::warn!("the result could not be noted in the ledger: {error}");
    }
}

/// A slot name of our own that lives as long as its connection.
fn temporary_name(pipeline: &str) -> String {
    format!("{pipeline}_verify_{}", std::process::id())
}

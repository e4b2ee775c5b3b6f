//! How a run begins, is taken up again, and comes to its next boundary.
//!
//! Whatever a run goes on with was looked at under the boundary's lock, and is in the ledger before
//! the first chunk is copied at it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::apply::plan::TablePlan;
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::figures;
use crate::handoff::rules;
use crate::handoff::session::Session;
use crate::handoff::spool;
use crate::handoff::tables as lake_tables;
use crate::lake::ledger::AGAIN;
use crate::lake::{BoundaryEntry, LakeTable, Ledger, Phase, PipelineState, TableEntry};
use crate::source::catalog::{TableInfo, TableKind};
use crate::source::check::{self, Severity};
use crate::source::slot;
use crate::source::types::TypeCatalog;

use super::drafts::Drafted;
use super::publish::{Published, look};
use super::records::of_table;
use super::tables::{Held, RunTable, leaf_entries};
use super::{Opened, Run, boundary as boundaries, clean, copying};

/// Looks at everything, records that a run begins, and clears what the run before it left.
///
/// In this order: once slot or files of the run before are gone, that run can't be continued. A
/// start that finds the record clears and begins; one that finds a live pipeline without its slot
/// could only refuse.
///
/// # Errors
/// Findings of the check; a folder of the lake that holds other data; source or lake failing.
pub async fn announce(session: &mut Session) -> Result<Run> {
    let (infos, types) = prepare(session).await?;
    let plans = session.plans(&infos, &types)?;
    let left = clean::left_files(session).await?;
    let mut tables = Vec::with_capacity(plans.len());
    // Above one whose tables may still be published by a process that does not know it was taken
    // over. One that was still copying can't be, and its number is free, but never a lower one: it
    // may be that of a run that was publishing when that one began.
    let mut generation = match session.ledger.as_ref().map(|ledger| ledger.state()) {
        Some(state) if matches!(state.phase, Phase::Publish | Phase::Live) => state.generation + 1,
        Some(state) => state.generation.max(1),
        None => 1,
    };
    for (info, plan) in infos.into_iter().zip(plans) {
        let published = published(session, &plan, &left).await?;
        if let Some(table) = &published {
            if let Some(why) = lake_tables::renamed_away(table, &info, &session.config.treatments) {
                return Err(Error::new(Kind::Check, format!("{plan}: {why}"))
                    .next("correct [[columns]] in tidegate.toml and run again"));
            }
            generation = generation.max(table.checkpoint().generation + 1);
        }
        let next = published.as_ref().map_or(0, LakeTable::next_file_no);
        let held = Held::nothing(&plan, &info, next);
        tables.push(RunTable { info, plan, held });
    }
    let ours = session.made_here().await?;
    let state = PipelineState {
        format: 1,
        pipeline: session.config.name.clone(),
        source: session.identity(""),
        generation,
        phase: Phase::Snapshot,
        run: uuid::Uuid::now_v7().to_string(),
        base: None,
        boundary: None,
        handoff: None,
        tables: tables.iter().map(|table| table.held.entry.clone()).collect(),
        created_publication: ours.publication,
        created_slot: true,
        options: String::new(),
        failure: None,
    };
    match &mut session.ledger {
        Some(ledger) => {
            ledger.claim().await?;
            ledger.set_state(state, &[]).await?;
        }
        None => session.ledger = Some(Ledger::create(&session.lake, state).await?),
    }
    figures::observe_ledger(session);
    if ours.slot {
        clean::drop_slot(session).await?;
    }
    failpoint::at("handoff.dropped")?;
    clean::remove_ours(session, &left).await?;
    let lake = session.lake.clone();
    spool::tidy(session.ledger_mut()?, &lake).await?;
    Ok(Run { tables, boundaries: 0, looked: true })
}

/// The run that the ledger has, with what may be kept of it. None: nothing may, as changes are
/// missing from the stream.
///
/// # Errors
/// As [`announce`].
pub async fn taken_up(session: &mut Session) -> Result<Option<Run>> {
    let state = session.ledger_mut()?.state().clone();
    let Some(published) = published_tables(session).await? else { return Ok(None) };
    let now = published.0.contract();
    if rules::same_publication(&state.source.contract, &now).is_err() {
        return Ok(None);
    }
    let (infos, types) = prepare(session).await?;
    let plans = session.plans(&infos, &types)?;
    let mut held = Vec::with_capacity(state.tables.len());
    let events = session.ledger_mut()?.read_events(Some(&state.run), None).await?;
    for entry in &state.tables {
        let mut table = Held::recorded(entry.clone(), of_table(&events, entry)?);
        // Files of chunks that were in hand have numbers too, and none is used twice.
        let unused = session.lake.unused_file_no(&entry.folder).await?;
        table.entry.next_file_no = entry.next_file_no.max(unused);
        held.push(table);
    }
    let boundaries = state.boundary.as_ref().map_or(0, |boundary| boundary.number);
    let mut run =
        Run { tables: merge(session, held, infos, plans).await?, boundaries, looked: true };
    judge(&mut run, Some(&published));
    let kept: u64 = run.tables.iter().map(|table| table.held.chunks.len() as u64).sum();
    tracing::info!(run = state.run, chunks = kept, "going on with the interrupted snapshot");
    record(session, &run).await?;
    clean::sweep(session, &mut run).await?;
    Ok(Some(run))
}

/// The tables of a run that is being published, without those that are. One that is another table
/// by now can't be decoded as it was copied: it is left to be read again once the others are live.
///
/// # Errors
/// Source or lake failing.
pub async fn to_be_published(session: &mut Session) -> Result<Run> {
    let found = lake_tables::look(session).await?;
    let prefix = session.config.column_prefix.clone();
    let state = session.ledger_mut()?.state().clone();
    let events = session.ledger_mut()?.read_events(Some(&state.run), None).await?;
    let mut tables = Vec::with_capacity(state.tables.len());
    let mut changed = BTreeMap::new();
    for entry in state.tables.iter().filter(|entry| entry.is_followed()) {
        if let Published::Yes = look(session, &entry.folder, &state).await? {
            continue;
        }
        let info = found.named(&entry.schema, &entry.name).filter(|info| info.oid == entry.oid);
        let plan = info.and_then(|info| found.plan(info, &prefix).ok());
        // Rows of partitions come and go without a word in the stream.
        let same_leaves =
            |info: &TableInfo| info.kind == TableKind::Plain || leaf_entries(info) == entry.leaves;
        let same = plan.filter(|plan| plan.fingerprint == entry.fingerprint);
        let (Some(info), Some(plan)) = (info.filter(|info| same_leaves(info)).cloned(), same)
        else {
            let why = "its columns or partitions changed between its snapshot and its publication";
            changed.insert(entry.folder.clone(), why.to_owned());
            continue;
        };
        let mut held = Held::recorded(entry.clone(), of_table(&events, entry)?);
        let unused = session.lake.unused_file_no(&entry.folder).await?;
        held.entry.next_file_no = entry.next_file_no.max(unused);
        tables.push(RunTable { info, plan, held });
    }
    leave_to_be_read_again(session, &changed).await?;
    let mut run = Run { tables, boundaries: 0, looked: true };
    record(session, &run).await?;
    clean::sweep(session, &mut run).await?;
    Ok(run)
}

/// Leaves tables, by folder, out of a run that is being published: they are read again by
/// themselves once the others are live.
///
/// # Errors
/// The ledger failing.
pub async fn leave_to_be_read_again(
    session: &mut Session,
    tables: &BTreeMap<String, String>,
) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let mut state = session.ledger_mut()?.state().clone();
    for entry in &mut state.tables {
        if let Some(why) = tables.get(&entry.folder) {
            tracing::warn!(
                table = entry.display(),
                "is read again once the others are live: {why}"
            );
            entry.set_apart(AGAIN, why, None);
        }
    }
    session.ledger_mut()?.set_state(state, &[]).await
}

/// The run without what was copied of the tables in `again`, by index.
///
/// # Errors
/// As [`taken_up`]; the publication gone.
pub async fn again(
    session: &mut Session,
    tables: Vec<Drafted>,
    again: &BTreeMap<usize, String>,
) -> Result<Run> {
    let mut state = session.ledger_mut()?.state().clone();
    for (index, why) in again {
        let Some(table) = tables.get(*index) else { continue };
        let same = |entry: &&mut crate::lake::TableEntry| entry.folder == table.entry.folder;
        let Some(entry) = state.tables.iter_mut().find(same) else { continue };
        tracing::warn!(table = %table.applier.plan(), "copied again from its beginning: {why}");
        entry.attempt += 1;
        entry.whole = table.entry.whole;
    }
    // Their indexes hold what is not to be.
    drop(tables);
    state.phase = Phase::Snapshot;
    session.ledger_mut()?.set_state(state, &[]).await?;
    taken_up(session).await?.ok_or_else(|| {
        Error::transient("the publication was dropped or changed while the tables were drained")
    })
}

/// Makes the next boundary of a run, and plans what is copied at it.
///
/// # Errors
/// The check's findings, the server's refusals; transient when a table changes at that moment.
pub async fn boundary(session: &mut Session, run: &mut Run) -> Result<Opened> {
    let later = session.ledger_mut()?.state().base.is_some();
    if !std::mem::take(&mut run.looked) {
        let (infos, types) = prepare(session).await?;
        let plans = session.plans(&infos, &types)?;
        let held = std::mem::take(&mut run.tables).into_iter().map(|table| table.held).collect();
        run.tables = merge(session, held, infos, plans).await?;
    }
    let published = published_tables(session).await?;
    let since = publication(session, run).await?;
    let mut exported =
        if later { boundaries::next(session).await? } else { boundaries::first(session).await? };
    run.boundaries += 1;
    tracing::info!(
        base = %exported.base, snapshot = exported.snapshot, tables = run.tables.len(),
        boundary = run.boundaries, "snapshot exported"
    );
    record_boundary(session, exported.entry(run.boundaries)).await?;
    let looked_at = run.tables.iter().map(|table| (&table.info, &table.plan));
    let (guard, again) = boundaries::lock(session, &exported.snapshot, looked_at).await?;
    exported.again = Some(again);
    judge(run, published.as_ref());
    for table in run.tables.iter_mut().filter(|table| table.held.chunks.is_empty()) {
        table.held.entry.membership = since.0.membership(table.plan.oid).to_owned();
    }
    let tasks = copying::plan(session, run);
    record(session, run).await?;
    clean::sweep(session, run).await?;
    failpoint::at("handoff.planned")?;
    Ok(Opened { exported, guard, tasks })
}

/// Records a boundary. From the first one on a start can go on with the run.
///
/// # Errors
/// The ledger's.
pub async fn record_boundary(session: &mut Session, boundary: BoundaryEntry) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    state.base.get_or_insert(boundary.base);
    state.boundary = Some(boundary);
    session.ledger_mut()?.set_state(state, &[]).await
}

/// Checks the source; a finding that is an error stops.
async fn prepare(session: &mut Session) -> Result<(Vec<TableInfo>, TypeCatalog)> {
    let ours = session.made_here().await?;
    let request = check::CheckRequest {
        tables: session.config.tables()?,
        treatments: &session.config.treatments,
        column_prefix: &session.config.column_prefix,
        slot: &session.config.name,
        publication: &session.config.name,
        // Our own slot is there for what is copied, or goes before the new one is made.
        started: ours.slot && session.slot().await?.is_some(),
        publication_ours: ours.publication,
        server: Some(&session.server),
    };
    let (mut report, facts) = check::check_tables(&session.client, &request).await?;
    // A slot of ours that is lost goes; one that is still needed was looked at before.
    report.findings.retain(|finding| !(ours.slot && finding.id == "slot-lost"));
    for finding in &report.findings {
        if finding.severity == Severity::Warning {
            tracing::warn!("{}: {} (fix: {})", finding.subject, finding.what, finding.fix);
        }
    }
    if let Some(error) = check::as_error(&report.findings) {
        return Err(error);
    }
    session.lake.check_writable().await?;
    Ok((facts.selection.tables, facts.types))
}

/// What an earlier generation published; a folder that holds anything else, but for files that are
/// `left` of a run, is not ours to fill.
async fn published(
    session: &Session,
    plan: &TablePlan,
    left: &[String],
) -> Result<Option<LakeTable>> {
    let found = session.lake.first_file_beside(&plan.folder, left).await?;
    let Some(found) = found else { return Ok(None) };
    let known = session.ledger.as_ref().is_some_and(|l| l.fence().is_some());
    match LakeTable::open(&session.lake, &plan.folder).await {
        Ok(Some(table)) if known && table.checkpoint().pipeline == session.config.name => {
            Ok(Some(table))
        }
        // A store that is away, or a table of a newer tidegate, is nobody else's data.
        Err(error) if error.is_transient() || error.kind() == Kind::Check => Err(error),
        _ => Err(Error::new(
            Kind::Check,
            format!(
                "{plan}: its folder in the lake holds data that is not this pipeline's ({found})"
            ),
        )
        .next("choose another --lake, or move that folder away")),
    }
}

/// The publication as it is found.
struct PublishedNow(slot::PublicationInfo);

/// The tables whose changes the server has been sending; none without a publication.
async fn published_tables(session: &Session) -> Result<Option<PublishedNow>> {
    let (client, name) = (&session.client, &session.config.name);
    let found = slot::publication_info(client, name, session.server.version).await?;
    Ok(found.map(PublishedNow))
}

/// The publication must be there, with every table, before the boundary is.
async fn publication(session: &mut Session, run: &Run) -> Result<PublishedNow> {
    let infos: Vec<TableInfo> = run.tables.iter().map(|table| table.info.clone()).collect();
    let name = session.config.name.clone();
    let state = session.ledger()?.state();
    let (ours, run, version) = (state.created_publication, &state.run, session.server.version);
    let publication =
        slot::ensure_publication(&session.client, &name, &infos, ours, run, version).await?;
    let mut state = session.ledger_mut()?.state().clone();
    state.created_publication |= publication.created;
    state.source.contract = publication.contract_digest.clone();
    session.ledger_mut()?.set_state(state, &[]).await?;
    failpoint::at("handoff.publication")?;
    Ok(PublishedNow(publication))
}

/// Gives what is held to the tables found: one that is gone leaves the run, a new one joins it.
async fn merge(
    session: &mut Session,
    held: Vec<Held>,
    infos: Vec<TableInfo>,
    plans: Vec<Arc<TablePlan>>,
) -> Result<Vec<RunTable>> {
    let mut held: BTreeMap<String, Held> =
        held.into_iter().map(|held| (held.entry.folder.clone(), held)).collect();
    let mut tables = Vec::with_capacity(plans.len());
    for (info, plan) in infos.into_iter().zip(plans) {
        let held = match held.remove(&plan.folder) {
            Some(held) => held,
            None => {
                let published = published(session, &plan, &[]).await?;
                let next = published.as_ref().map_or(0, LakeTable::next_file_no);
                tracing::info!(table = %plan, "joins the snapshot");
                Held::nothing(&plan, &info, next)
            }
        };
        tables.push(RunTable { info, plan, held });
    }
    for (folder, held) in held {
        tracing::warn!(
            table = format!("{}.{}", held.entry.schema, held.entry.name),
            "gone from the source, or no longer selected: it leaves the snapshot"
        );
        let files = session.lake.unpublished(&folder).await?;
        clean::remove_ours(session, &files).await?;
    }
    Ok(tables)
}

/// Drops what may not be kept of each table.
fn judge(run: &mut Run, published: Option<&PublishedNow>) {
    let sent = |entry: &TableEntry| {
        published.is_some_and(|PublishedNow(publication)| {
            publication.table(entry.oid).is_some_and(|table| {
                rules::same_membership(&entry.membership, &table.membership).is_ok()
            })
        })
    };
    for table in &mut run.tables {
        if table.held.chunks.is_empty() {
            table.as_found();
        } else if !sent(&table.held.entry) {
            table.start_again(&"its changes were not published for a time");
        } else if let Err(why) = table.may_keep() {
            table.start_again(&why);
        }
    }
}

/// Records the tables as they are now.
async fn record(session: &mut Session, run: &Run) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    let publishing = state.phase == Phase::Publish;
    for table in &run.tables {
        let entry = &table.held.entry;
        match state.tables.iter_mut().find(|old| old.folder == entry.folder) {
            Some(old) => *old = entry.clone(),
            None => state.tables.push(entry.clone()),
        }
    }
    if !publishing {
        let folders: HashSet<&str> =
            run.tables.iter().map(|table| table.held.entry.folder.as_str()).collect();
        state.tables.retain(|entry| folders.contains(entry.folder.as_str()));
        state.phase = Phase::Snapshot;
    }
    session.ledger_mut()?.set_state(state, &[]).await
}

//! Takes the first snapshot of all tables and publishes it: the handoff.
//!
//! ```text
//!   announce ─► publication ─► slot + exported snapshot ─► lock, look again ─► copy, validate
//!      (ledger)                    (the boundary)                                  │
//!   live ◄─ fence at the base ◄─ publish each table ◄─ all chunks recorded ◄───────┘
//!  (ledger)                       (one commit each)        (ledger)
//! ```
//!
//! The run is announced in the ledger before the slot is made, so a slot without a record is a
//! stranger's. Nothing is visible before every table is copied and validated. From the record
//! "publish" on, a crash is continued, not restarted: files and digests are in the ledger.
//!
//! The exported snapshot can't protect the tables' files: TRUNCATE and a rewrite show an empty or
//! rewritten table to older snapshots. So every leaf is locked in share mode inside the snapshot
//! for the time of the copy, as pg_dump does, and compared with what was planned before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roaring::RoaringBitmap;

use crate::apply::plan::TablePlan;
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::handoff::copy::{CopiedChunk, CopyRun, Done, Task, run_workers};
use crate::handoff::plan::{Chunk, ChunkLimits, chunks, largest_first};
use crate::handoff::retain::Retention;
use crate::handoff::session::{Session, blocking};
use crate::handoff::spool;
use crate::lake::locations::{Locations, PendingRun};
use crate::lake::{
    Change, Checkpoint, CommitOutcome, Event, LakeTable, Ledger, NewFile, Phase, PipelineState,
    SourceTable, TableEntry, Tag, VersionKind,
};
use crate::observe::progress::{Progress, ProgressKind};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::catalog::{TableInfo, sql_name};
use crate::source::check::{self, Severity};
use crate::source::client::query_error;
use crate::source::slot::{self, Boundary, SlotOptions};
use crate::source::wire::{LOCK_TIMEOUT, SessionKind, Wire};

/// Kind of the ledger's events that record a copied chunk.
pub const CHUNK_EVENT: &str = "chunk";
/// Rows from which PostgreSQL 14 and later can copy a range of ctids without reading the rest.
const TID_RANGE_VERSION: u32 = 140_000;
/// No chunk is smaller than this, unless its table is.
const MIN_CHUNK_BYTES: u64 = 16 << 20;

/// Takes the snapshot from scratch; what an earlier, unpublished run left is removed. Tables that
/// an earlier generation published stay readable until the new generation's commit replaces them.
///
/// # Errors
/// Findings of the check, a failed validation, source or lake failing. Slot and files of the run
/// are removed then.
pub async fn take(session: &mut Session, stop: &StopSignal) -> Result<()> {
    let (tables, types) = prepare(session).await?;
    let plans = session.plans(&tables, &types)?;
    remove_files(session).await?;
    let published = published(session, &plans).await?;
    // Only now: until everything was looked at, a running generation keeps its slot.
    drop_slot(session).await?;
    announce(session, &tables, &plans, &published).await?;
    let lake = session.lake.clone();
    spool::tidy(session.ledger_mut()?, &lake).await?;
    failpoint::at("handoff.announced")?;
    match copy_and_record(session, &tables, &plans, &published, stop).await {
        Ok(()) => publish(session, &plans).await,
        Err(error) => {
            clean_up(session, &plans, &error).await;
            Err(error)
        }
    }
}

/// Checks the source; a finding that is an error stops.
async fn prepare(
    session: &mut Session,
) -> Result<(Vec<TableInfo>, crate::source::types::TypeCatalog)> {
    let ours = session.ledger.as_ref().is_some_and(|l| l.state().created_publication);
    let own_slot = session.ledger.as_ref().is_some_and(|l| l.state().created_slot);
    let request = check::CheckRequest {
        tables: session.config.tables()?,
        slot: &session.config.name,
        publication: &session.config.name,
        // Our own slot goes before the new one is made.
        started: own_slot && session.slot().await?.is_some(),
        publication_ours: ours,
        server: Some(&session.server),
    };
    let report = check::check(&session.client, &request).await?;
    for finding in &report.findings {
        if finding.severity == Severity::Warning {
            tracing::warn!("{}: {} (fix: {})", finding.subject, finding.what, finding.fix);
        }
    }
    if let Some(error) = check::as_error(&report.findings) {
        return Err(error);
    }
    session.lake.check_writable().await?;
    session.tables().await
}

/// Removes the files of a run that was never published.
async fn remove_files(session: &Session) -> Result<()> {
    let Some(ledger) = &session.ledger else { return Ok(()) };
    for table in &ledger.state().tables {
        session.lake.remove_unpublished(&table.folder).await?;
    }
    Ok(())
}

/// Drops the slot of an earlier run or generation, if we made it.
async fn drop_slot(session: &Session) -> Result<()> {
    let ours = session.ledger.as_ref().is_some_and(|ledger| ledger.state().created_slot);
    if ours && slot::drop_slot(&session.client, &session.config.name).await? {
        tracing::info!(slot = session.config.name, "dropped the slot of the run before this one");
    }
    Ok(())
}

/// What an earlier generation published; a folder that holds anything else is not ours to fill.
async fn published(session: &Session, plans: &[Arc<TablePlan>]) -> Result<Vec<Option<LakeTable>>> {
    let mut published = Vec::with_capacity(plans.len());
    for plan in plans {
        let foreign = |what: &str| {
            Error::new(
                Kind::Check,
                format!(
                    "{plan}: its folder in the lake holds data that is not this pipeline's ({what})"
                ),
            )
            .next("choose another --lake, or move that folder away")
        };
        let Some(found) = session.lake.first_file(&plan.folder).await? else {
            published.push(None);
            continue;
        };
        let known = session.ledger.as_ref().is_some_and(|l| l.fence().is_some());
        match LakeTable::open(&session.lake, &plan.folder).await {
            Ok(Some(table)) if known && table.checkpoint().pipeline == session.config.name => {
                published.push(Some(table));
            }
            _ => return Err(foreign(&found)),
        }
    }
    Ok(published)
}

/// Records that a run begins.
async fn announce(
    session: &mut Session,
    tables: &[TableInfo],
    plans: &[Arc<TablePlan>],
    published: &[Option<LakeTable>],
) -> Result<()> {
    let generation = published.iter().flatten().map(|t| t.checkpoint().generation).max();
    let previous = session.ledger.as_ref().map(|ledger| ledger.state().clone());
    let state = PipelineState {
        format: 1,
        pipeline: session.config.name.clone(),
        source: session.identity(""),
        generation: generation.map_or(1, |published| published + 1),
        phase: Phase::Snapshot,
        run: uuid::Uuid::now_v7().to_string(),
        base: None,
        tables: plans.iter().zip(tables).map(|(p, t)| table_entry(p, t)).collect(),
        created_publication: previous.is_some_and(|state| state.created_publication),
        created_slot: true,
        options: String::new(),
        failure: None,
    };
    match &mut session.ledger {
        Some(ledger) => {
            ledger.claim().await?;
            ledger.set_state(state, &[]).await
        }
        None => {
            session.ledger = Some(Ledger::create(&session.lake, state).await?);
            Ok(())
        }
    }
}

fn table_entry(plan: &TablePlan, table: &TableInfo) -> TableEntry {
    TableEntry {
        schema: plan.schema.clone(),
        name: plan.name.clone(),
        folder: plan.folder.clone(),
        oid: plan.oid,
        fingerprint: plan.fingerprint.clone(),
        phase: "snapshot".to_owned(),
        rows_estimated: (table.rows_estimated >= 0.0).then_some(table.rows_estimated as u64),
    }
}

/// What was copied of one table, and is not visible yet.
#[derive(Default)]
struct CopiedTable {
    files: Vec<NewFile>,
    runs: Vec<PendingRun>,
    index: Option<Locations>,
    /// Chunks still to come.
    chunks: u32,
    next_file_no: u32,
    rows: u64,
    counted: Option<u64>,
}

/// Copies and validates all tables and records them; from here on the run can be published.
async fn copy_and_record(
    session: &mut Session,
    tables: &[TableInfo],
    plans: &[Arc<TablePlan>],
    published: &[Option<LakeTable>],
    stop: &StopSignal,
) -> Result<()> {
    let name = session.config.name.clone();
    let ours = session.ledger_mut()?.state().created_publication;
    let publication =
        slot::ensure_publication(&session.client, &name, tables, ours, session.server.version)
            .await?;
    let mut state = session.ledger_mut()?.state().clone();
    state.created_publication |= publication.created;
    state.source.contract = publication.contract_digest.clone();
    session.ledger_mut()?.set_state(state.clone(), &[]).await?;
    failpoint::at("handoff.publication")?;

    let exported = export(session).await?;
    let base = exported.base;
    tracing::info!(%base, snapshot = exported.snapshot, tables = plans.len(), "snapshot exported");
    failpoint::at("handoff.boundary")?;
    state.base = Some(base);
    session.ledger_mut()?.set_state(state, &[]).await?;
    let guard = lock(session, &exported.snapshot, tables, plans).await?;

    let mut retention = Retention::begin(session, base, plans).await?;
    let copied = copy(session, tables, plans, published, &exported, &mut retention, stop).await;
    let mut copied = retention.end(session, copied).await?;
    drop(guard);
    drop(exported);
    validate(session, plans, &copied)?;
    for (plan, table) in plans.iter().zip(&mut copied) {
        if let Some(index) = table.index.take() {
            fill_index(plan, index, std::mem::take(&mut table.runs), table.next_file_no).await?;
        }
    }
    let mut state = session.ledger_mut()?.state().clone();
    state.phase = Phase::Publish;
    failpoint::at("handoff.validated")?;
    session.ledger_mut()?.set_state(state, &[]).await?;
    failpoint::at("handoff.recorded")
}

/// The exported snapshot and the connections that keep it.
struct Exported {
    base: Lsn,
    snapshot: String,
    _keepers: Vec<Wire>,
}

/// Makes the slot and its snapshot in one act.
async fn export(session: &Session) -> Result<Exported> {
    let (source, name) = (session.source.clone(), session.config.name.clone());
    blocking(move || {
        if failpoint::wrong("position-before-snapshot")
            || failpoint::wrong("position-after-snapshot")
        {
            return export_apart(&source, &name);
        }
        let mut wire = Wire::connect(&source, SessionKind::Replication)?;
        let boundary: Boundary = slot::create_slot(&mut wire, &name, SlotOptions::default())?;
        Ok(Exported {
            base: boundary.base(),
            snapshot: boundary.snapshot().as_str().to_owned(),
            _keepers: vec![wire],
        })
    })
    .await
}

/// The wrong way, for the tests to catch: position and snapshot in two acts, with a pause between.
fn export_apart(source: &crate::source::options::ConnectOptions, name: &str) -> Result<Exported> {
    let mut wire = Wire::connect(source, SessionKind::Replication)?;
    let mut keeper = Wire::connect(source, SessionKind::Query)?;
    let snapshot = |keeper: &mut Wire| -> Result<String> {
        let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_catalog.pg_export_snapshot()";
        let rows = keeper.simple_query(sql)?;
        let name = rows.into_iter().flatten().flatten().next();
        name.ok_or_else(|| Error::failed("no snapshot"))
    };
    let (base, snapshot) = if failpoint::wrong("position-before-snapshot") {
        let base = slot::create_slot(&mut wire, name, SlotOptions::default())?.base();
        failpoint::at("handoff.apart")?;
        (base, snapshot(&mut keeper)?)
    } else {
        let snapshot = snapshot(&mut keeper)?;
        failpoint::at("handoff.apart")?;
        (slot::create_slot(&mut wire, name, SlotOptions::default())?.base(), snapshot)
    };
    Ok(Exported { base, snapshot, _keepers: vec![wire, keeper] })
}

/// Locks every leaf in share mode inside the snapshot and looks whether the plan still holds.
async fn lock(
    session: &Session,
    snapshot: &str,
    tables: &[TableInfo],
    plans: &[Arc<TablePlan>],
) -> Result<Wire> {
    let leaves: Vec<String> = tables
        .iter()
        .flat_map(|table| &table.leaves)
        .map(|leaf| sql_name(&leaf.schema, &leaf.name))
        .collect();
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
        crate::source::catalog::quote_literal(snapshot)
    );
    let source = session.source.clone();
    let wire = blocking(move || {
        let mut wire = Wire::connect(&source, SessionKind::Query)?;
        wire.simple_query(&sql)?;
        for leaves in leaves.chunks(100) {
            wire.simple_query(&format!(
                "LOCK TABLE ONLY {} IN ACCESS SHARE MODE",
                leaves.join(", ONLY ")
            ))?;
        }
        Ok(wire)
    })
    .await?;
    // Asking for sizes takes a lock for a moment: it must not queue for ever behind a TRUNCATE that
    // queues behind ours.
    let (name, value) = LOCK_TIMEOUT;
    let limited = session.client.batch_execute(&format!("SET {name} = '{value}'")).await;
    limited.map_err(|e| query_error("limiting waits for locks", e))?;
    let (now, _) = session.tables().await?;
    for (table, plan) in tables.iter().zip(plans) {
        let same = now.iter().find(|t| t.oid == table.oid).is_some_and(|t| {
            t.fingerprint() == plan.fingerprint
                && t.leaves.len() == table.leaves.len()
                && t.leaves
                    .iter()
                    .zip(&table.leaves)
                    .all(|(a, b)| (a.oid, a.relfilenode) == (b.oid, b.relfilenode))
        });
        if !same {
            return Err(Error::transient(format!(
                "{plan}: changed, truncated or rewritten while the snapshot was made"
            ))
            .next(
                "the snapshot starts again by itself; keep schema changes out of its first second",
            ));
        }
    }
    Ok(wire)
}

/// Copies all chunks; each that is done goes to the ledger.
async fn copy(
    session: &mut Session,
    tables: &[TableInfo],
    plans: &[Arc<TablePlan>],
    published: &[Option<LakeTable>],
    exported: &Exported,
    retention: &mut Retention,
    stop: &StopSignal,
) -> Result<Vec<CopiedTable>> {
    let config = session.config.clone();
    let workers = config.handoff.worker_count();
    let limits = ChunkLimits {
        workers,
        max_bytes: config.handoff.chunk_bytes,
        min_bytes: MIN_CHUNK_BYTES,
        ranges: session.server.version >= TID_RANGE_VERSION,
    };
    let mut copied: Vec<CopiedTable> = plans.iter().map(|_| CopiedTable::default()).collect();
    let mut all: Vec<Chunk> = Vec::new();
    for (index, table) in tables.iter().enumerate() {
        let first = published
            .get(index)
            .and_then(Option::as_ref)
            .map_or(0, |table| table.checkpoint().next_file_no);
        let chunks = chunks(&table.leaves, index, first, limits);
        if let Some(copied) = copied.get_mut(index) {
            copied.chunks = chunks.len() as u32;
            copied.next_file_no = first + copied.chunks;
        }
        all.extend(chunks);
    }
    largest_first(&mut all);
    let mut tasks: Vec<Task> = all.into_iter().map(Task::Copy).collect();
    if config.handoff.validate_count {
        for (index, table) in tables.iter().enumerate() {
            // Nothing to count in a partitioned table that has no partition yet.
            if table.leaves.is_empty()
                && let Some(copied) = copied.get_mut(index)
            {
                copied.counted = Some(0);
            }
            for leaf in &table.leaves {
                tasks.push(Task::Count(index, (leaf.schema.clone(), leaf.name.clone())));
            }
        }
    }
    let rows: f64 = tables.iter().map(|table| table.rows_estimated.max(0.0)).sum();
    let progress = Progress::new(ProgressKind::Snapshot, Some(rows as u64), None);
    progress.set_tables(tables.len() as u64);
    for _ in copied.iter().filter(|table| table.chunks == 0) {
        progress.table_done();
    }
    let run_id = session.ledger_mut()?.state().run.clone();
    let indexes = new_indexes(session, plans)?;
    let stopped = Arc::new(AtomicBool::new(false));
    let run = CopyRun {
        source: session.source.clone(),
        snapshot: exported.snapshot.clone(),
        base: exported.base,
        plans: plans.to_vec(),
        lake: session.lake.clone(),
        runtime: tokio::runtime::Handle::current(),
        indexes,
        progress: progress.clone(),
        stop: stopped.clone(),
    };
    let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
    let work = tokio::task::spawn_blocking(move || -> Result<Vec<Option<Locations>>> {
        run_workers(&run, tasks, workers, &|result| {
            sender.send(result).map_err(|_| Error::failed("the snapshot was given up"))
        })?;
        Ok(run.indexes)
    });
    let mut given_up: Option<Error> = None;
    let gather = Gather { run: &run_id, plans, base: exported.base, progress: &progress };
    loop {
        tokio::select! {
            received = done.recv() => {
                let Some(first) = received else { break };
                let mut events = Vec::new();
                let mut next = Some(first);
                while let Some(result) = next {
                    gather.take_in(result, &mut copied, &mut events)?;
                    next = done.try_recv().ok();
                }
                if !events.is_empty() {
                    session.ledger_mut()?.append_events(&events).await?;
                    failpoint::at("handoff.chunk.recorded")?;
                }
            }
            event = retention.event(), if given_up.is_none() => {
                if let Err(error) = retention.act(session, &progress, event).await {
                    given_up = Some(error);
                    stopped.store(true, Ordering::Relaxed);
                }
            }
            () = stop.requested(), if !stopped.load(Ordering::Relaxed) => {
                stopped.store(true, Ordering::Relaxed);
            }
        }
    }
    let result = work.await.map_err(|e| Error::failed("the copy died").because(e))?;
    progress.finish();
    if let Some(error) = given_up {
        return Err(error);
    }
    let indexes = result?;
    if stopped.load(Ordering::Relaxed) {
        return Err(Error::failed("stopped while copying; nothing was published")
            .next("run again: the snapshot starts from the beginning"));
    }
    for (copied, index) in copied.iter_mut().zip(indexes) {
        copied.index = index;
    }
    Ok(copied)
}

/// An empty index for each table that needs one.
fn new_indexes(session: &Session, plans: &[Arc<TablePlan>]) -> Result<Vec<Option<Locations>>> {
    let indexed = plans.iter().filter(|plan| plan.needs_index()).count();
    let memory = session.config.limits.index_memory_bytes as usize / indexed.max(1);
    let mut indexes = Vec::with_capacity(plans.len());
    for plan in plans {
        if !plan.needs_index() {
            indexes.push(None);
            continue;
        }
        let (identity, options) = super::index::settings(plan, memory);
        let index = Locations::create(&session.index_folder(plan), &identity, options)
            .map_err(|e| e.at(&**plan))?;
        indexes.push(Some(index));
    }
    Ok(indexes)
}

/// Takes the workers' results in.
struct Gather<'a> {
    run: &'a str,
    plans: &'a [Arc<TablePlan>],
    base: Lsn,
    progress: &'a Progress,
}

impl Gather<'_> {
    fn take_in(
        &self,
        result: Done,
        copied: &mut [CopiedTable],
        events: &mut Vec<Event>,
    ) -> Result<()> {
        let Gather { run, plans, base, progress } = *self;
        match result {
            Done::Counted(table, rows) => {
                if let Some(table) = copied.get_mut(table) {
                    *table.counted.get_or_insert(0) += rows;
                }
            }
            Done::Copied(CopiedChunk { chunk, rows, digest, file, runs }) => {
                let (Some(table), Some(plan)) =
                    (copied.get_mut(chunk.table), plans.get(chunk.table))
                else {
                    return Err(Error::failed("a chunk of no table"));
                };
                let detail = serde_json::json!({
                    "leaf": [chunk.leaf.0, chunk.leaf.1],
                    "pages": [chunk.from_page, chunk.to_page],
                    "digest": digest.hex(),
                    "file": file,
                });
                events.push(Event {
                    chunk: Some(i64::from(chunk.number)),
                    base: Some(base),
                    rows: Some(rows as i64),
                    bytes: file.as_ref().map(|file| file.size as i64),
                    ..Event::now(run, CHUNK_EVENT, &plan.to_string(), detail)
                });
                table.rows += rows;
                table.files.extend(file);
                table.runs.extend(runs);
                table.chunks = table.chunks.saturating_sub(1);
                if table.chunks == 0 {
                    progress.table_done();
                }
            }
        }
        Ok(())
    }
}

/// The sum of the chunks must be the table's count in the same snapshot.
fn validate(session: &Session, plans: &[Arc<TablePlan>], copied: &[CopiedTable]) -> Result<()> {
    for (plan, table) in plans.iter().zip(copied) {
        if session.config.handoff.validate_count && table.counted != Some(table.rows) {
            return Err(Error::failed(format!(
                "{plan}: {} rows were copied, the snapshot has {}",
                table.rows,
                table.counted.unwrap_or(0)
            ))
            .next("nothing was published; report this with the server's version"));
        }
    }
    Ok(())
}

/// Publishes every table that is not yet, then goes live.
async fn publish(session: &mut Session, plans: &[Arc<TablePlan>]) -> Result<()> {
    let state = session.ledger_mut()?.state().clone();
    for (plan, (files, next)) in plans.iter().zip(read_back(session, plans, &state).await?) {
        publish_table(session, plan, &state, files, next).await?;
    }
    go_live(session, state).await
}

/// Publishes what a run recorded before it ended.
///
/// # Errors
/// A table whose columns changed meanwhile; source or lake failing.
pub async fn continue_publishing(session: &mut Session) -> Result<()> {
    session.ledger_mut()?.claim().await?;
    let (tables, types) = session.tables().await?;
    let all = session.plans(&tables, &types)?;
    let state = session.ledger_mut()?.state().clone();
    let mut plans = Vec::with_capacity(state.tables.len());
    for table in &state.tables {
        let plan = all.iter().find(|plan| plan.folder == table.folder);
        let plan = plan.filter(|plan| plan.fingerprint == table.fingerprint).ok_or_else(|| {
            Error::failed(format!(
                "{}.{}: its columns changed between its snapshot and its publication",
                table.schema, table.name
            ))
            .next("undo the change, or start a new generation with `tidegate run --resnapshot`")
        })?;
        plans.push(plan.clone());
    }
    publish(session, &plans).await
}

/// The files of every table as the ledger has them, with the number after the last chunk's.
async fn read_back(
    session: &Session,
    plans: &[Arc<TablePlan>],
    state: &PipelineState,
) -> Result<Vec<(Vec<NewFile>, u32)>> {
    let ledger = session.ledger.as_ref().ok_or_else(|| Error::failed("the lake has no ledger"))?;
    let mut by_table: BTreeMap<String, (BTreeMap<i64, NewFile>, u32)> = BTreeMap::new();
    for event in ledger.read_events(Some(&state.run), Some(CHUNK_EVENT)).await? {
        let (files, chunks) = by_table.entry(event.table.clone()).or_default();
        let number = event.chunk.unwrap_or(0);
        *chunks = (*chunks).max(u32::try_from(number).unwrap_or(0) + 1);
        let file = event.detail.get("file").cloned().unwrap_or_default();
        let file: Option<NewFile> = serde_json::from_value(file)
            .map_err(|e| Error::failed("a chunk record in the ledger is unreadable").because(e))?;
        if let Some(file) = file {
            files.insert(number, file);
        }
    }
    Ok(plans
        .iter()
        .map(|plan| {
            let (files, chunks) = by_table.remove(&plan.to_string()).unwrap_or_default();
            (files.into_values().collect(), chunks)
        })
        .collect())
}

/// Merges the sorted keys of all chunks; a key that stands twice fails the validation.
async fn fill_index(
    plan: &Arc<TablePlan>,
    mut index: Locations,
    runs: Vec<PendingRun>,
    next_file_no: u32,
) -> Result<()> {
    let plan = plan.clone();
    blocking(move || {
        index.load(runs, u64::from(next_file_no), |_, a, b| {
            Err(Error::failed(format!(
                "{plan}: its key is not unique: row {} of file {} and row {} of file {} have the same",
                a.row, a.file, b.row, b.file
            ))
            .next("REINDEX the key at the source, mend the rows, and run again; nothing was published"))
        })?;
        Ok(())
    })
    .await
}

/// The position of the run's snapshot.
fn base_of(state: &PipelineState) -> Result<Lsn> {
    state.base.ok_or_else(|| Error::failed("the ledger has no base position for the snapshot"))
}

/// One commit makes the table exist: protocol, metadata, files, checkpoint and tag.
async fn publish_table(
    session: &Session,
    plan: &Arc<TablePlan>,
    state: &PipelineState,
    files: Vec<NewFile>,
    next_file_no: u32,
) -> Result<()> {
    let existing = LakeTable::open(&session.lake, &plan.folder).await?;
    if let Some(table) = &existing {
        let checkpoint = table.checkpoint();
        if checkpoint.run == state.run {
            return Ok(());
        }
        if checkpoint.pipeline != state.pipeline || checkpoint.generation >= state.generation {
            return Err(Error::new(
                Kind::Fenced,
                format!("{plan}: another run published it meanwhile"),
            )
            .next("look for a second process of this pipeline"));
        }
    }
    failpoint::at("handoff.publish.before")?;
    let rows = files.iter().map(|file| file.rows).sum();
    let base = base_of(state)?;
    let files: Vec<_> = files.into_iter().map(|file| (file, RoaringBitmap::new())).collect();
    let checkpoint = Checkpoint {
        pipeline: state.pipeline.clone(),
        format: 1,
        source: state.source.clone(),
        table: SourceTable {
            oid: plan.oid,
            schema: plan.schema.clone(),
            name: plan.name.clone(),
            fingerprint: plan.fingerprint.clone(),
        },
        generation: state.generation,
        base,
        applied: base,
        phase: "live".to_owned(),
        run: state.run.clone(),
        table_id: String::new(),
        commit: String::new(),
        next_file_no,
        foreign_files: BTreeMap::new(),
        live_rows: None,
    };
    let tag = Tag {
        kind: VersionKind::Handoff,
        generation: state.generation,
        base,
        applied: base,
        source_time: None,
        rows_in: rows,
        rows_out: existing.as_ref().map_or(0, LakeTable::live_rows),
        pipeline: state.pipeline.clone(),
        run: state.run.clone(),
    };
    let schema =
        crate::source::types::RowsBuilder::new(plan.columns.clone(), &plan.prefix, 0).schema();
    match existing {
        None => {
            let (lake, folder, none) = (&session.lake, &plan.folder, BTreeMap::new());
            LakeTable::create(lake, folder, schema, files, checkpoint, tag, &none)
                .await
                .map_err(|e| e.at(&**plan))?;
        }
        Some(mut table) => {
            let mut change = Change::new(checkpoint, tag);
            change.adds = files;
            change.remove_all = true;
            change.schema = Some(schema);
            // All old files go, so it does not matter where another program moved their rows.
            while let CommitOutcome::ForeignRewrite { .. } =
                table.commit(&change).await.map_err(|e| e.at(&**plan))?
            {}
        }
    }
    tracing::info!(table = %plan, rows, %base, "published");
    failpoint::at("handoff.publish.after")
}

/// The fence at the base: all tables show the same position.
async fn go_live(session: &mut Session, mut state: PipelineState) -> Result<()> {
    state.phase = Phase::Live;
    let base = base_of(&state)?;
    failpoint::at("handoff.live.before")?;
    session.ledger_mut()?.go_live(state, base).await?;
    failpoint::at("handoff.live.after")
}

/// Leaves nothing half made after an error: no slot that holds back the log, no files.
async fn clean_up(session: &mut Session, plans: &[Arc<TablePlan>], error: &Error) {
    let name = session.config.name.clone();
    let Some(ledger) = &mut session.ledger else { return };
    let mut state = ledger.state().clone();
    state.phase = Phase::Failed;
    state.failure = Some(error.to_string());
    // By compare-and-swap, and first: if another process took the pipeline over, slot and files
    // are its own by now.
    if let Err(e) = ledger.set_state(state.clone(), &[]).await {
        tracing::warn!("the slot {name} and the copied files are left as they are: {e}");
        return;
    }
    if let Err(e) = slot::drop_slot(&session.client, &name).await {
        tracing::warn!("the slot {name} could not be dropped: {e}");
    }
    if let Err(e) = spool::discard(ledger, &session.lake).await {
        tracing::warn!("the spool of the unfinished snapshot could not be removed: {e}");
    }
    for plan in plans {
        if let Err(e) = session.lake.remove_unpublished(&plan.folder).await {
            tracing::warn!("{plan}: files of the unfinished snapshot could not be removed: {e}");
        }
    }
    if !state.created_publication {
        return;
    }
    match slot::drop_publication(&session.client, &name).await {
        Ok(()) => {
            state.created_publication = false;
            if let Err(e) = ledger.set_state(state, &[]).await {
                tracing::warn!("the ledger still names the publication {name}: {e}");
            }
        }
        Err(e) => tracing::warn!("the publication {name} could not be dropped: {e}"),
    }
}

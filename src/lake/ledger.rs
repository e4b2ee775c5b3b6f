//! The pipeline's own memory: a Delta table under `_tidegate/ledger`.
//!
//! Its domains hold the state of the pipeline, the last fence and who writes; its rows are events:
//! finished chunks, published tables, pins. A run that owns the pipeline claims it with a fresh
//! epoch, and every commit of an owner carries that epoch. So a run that was thought dead finds a
//! foreign epoch at its next commit and ends as fenced. Programs that don't own the pipeline can
//! add events only.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{
    DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType,
};
use chrono::{DateTime, SecondsFormat, Utc};
use deltalake::kernel::EagerSnapshot;
use futures::TryStreamExt;
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::Handle;
use uuid::Uuid;

use super::actions::{Action, Add, CommitInfo, Domain, Protocol};
use super::checkpoint::refuse_newer;
use super::files::{DataFileWriter, FileNo, FileOptions, NewFile, file_no_of};
use super::lease;
use super::log::{Draft, Put, Rules, TableLog, delta_error};
use super::log_checkpoint;
use super::read::read_rows;
use super::store::Lake;
use super::table::new_metadata;
use crate::error::{Error, Result};
use crate::position::Lsn;

/// Folder of the ledger in the lake.
pub const FOLDER: &str = "_tidegate/ledger";
/// The domain of the [`PipelineState`].
pub const PIPELINE_DOMAIN: &str = "tidegate.pipeline";
/// The domain of the [`Fence`].
pub const FENCE_DOMAIN: &str = "tidegate.fence";
/// The domain of the [`SpoolState`].
pub const SPOOL_DOMAIN: &str = "tidegate.spool";
/// The domain that names the owner.
pub const WRITER_DOMAIN: &str = "tidegate.writer";

const RULES: Rules = Rules {
    domains: &[PIPELINE_DOMAIN, FENCE_DOMAIN, SPOOL_DOMAIN, WRITER_DOMAIN],
    shared: true,
    before: "lake.ledger.before",
    after: "lake.ledger.after",
};

/// Rules for programs that only add notes: what the owner does does not fence them.
const NOTES: Rules = Rules { domains: &[], ..RULES };

/// Redoings above what others added, before giving up.
const REDOINGS: u32 = 20;

mod state;
mod upkeep;

pub use state::{
    AGAIN, BoundaryEntry, Event, Fence, LIVE, LastCommit, LeafEntry, PIPELINE_FORMAT, Phase,
    PipelineState, STOPPED, SpoolState, TableEntry,
};

/// Is told what the ledger says, whenever that changed.
pub type Listener = Arc<dyn Fn(&Ledger) + Send + Sync>;

/// The ledger of a lake.
pub struct Ledger {
    log: TableLog,
    state: PipelineState,
    fence: Option<Fence>,
    spool: Option<SpoolState>,
    /// Set once this run owns the pipeline.
    epoch: Option<String>,
    /// The owner that the ledger named when it was opened.
    found: Option<String>,
    files: Vec<String>,
    next_file_no: FileNo,
    /// The last transaction the stream brought since the ledger was opened.
    last: Option<LastCommit>,
    /// Somebody added notes since the ledger was opened, or since they were last asked for.
    noted: bool,
    log_checkpoint: log_checkpoint::Background,
    listener: Option<Listener>,
}

impl Ledger {
    /// Opens the ledger for reading and notes; `None` if there is none.
    ///
    /// # Errors
    /// It can't be read, or is of another program's making.
    pub async fn open(lake: &Lake) -> Result<Option<Ledger>> {
        let Some((log, snapshot)) = TableLog::load(lake, FOLDER).await? else { return Ok(None) };
        Ok(Some(Self::from_snapshot(log, &snapshot, None).await?))
    }

    async fn from_snapshot(
        log: TableLog,
        snapshot: &EagerSnapshot,
        epoch: Option<String>,
    ) -> Result<Ledger> {
        let wrong = |what: &str| {
            Error::failed(format!("the ledger {FOLDER} {what}"))
                .next("move it away, or choose another lake")
        };
        let text = log
            .domain(snapshot, PIPELINE_DOMAIN)
            .await?
            .ok_or_else(|| wrong("is not one of Tidegate"))?;
        refuse_newer(&text, PIPELINE_FORMAT, &format!("the ledger {FOLDER}"))?;
        let state = serde_json::from_str(&text)
            .map_err(|e| wrong("holds a state that can't be read").because(e))?;
        let found = log.domain(snapshot, WRITER_DOMAIN).await?;
        let found = found.and_then(|text| {
            let writer: Value = serde_json::from_str(&text).ok()?;
            Some(writer.get("epoch")?.as_str()?.to_owned())
        });
        let fence = log.domain(snapshot, FENCE_DOMAIN).await?;
        let fence = fence.map(|text| serde_json::from_str(&text)).transpose();
        let fence = fence.map_err(|e| wrong("holds a fence that can't be read").because(e))?;
        let spool = log.domain(snapshot, SPOOL_DOMAIN).await?;
        let spool: Option<Option<SpoolState>> =
            spool.map(|text| serde_json::from_str(&text)).transpose().map_err(|e| {
                wrong("holds a record of spooled changes that can't be read").because(e)
            })?;
        let views: Vec<_> = snapshot
            .file_views(log.store.as_ref(), None)
            .try_collect()
            .await
            .map_err(|e| delta_error("reading the ledger's files".into(), e))?;
        let mut files: Vec<String> = views.iter().map(|v| v.path().into_owned()).collect();
        files.sort();
        let next_file_no =
            files.iter().filter_map(|p| file_no_of(p)).max().map_or(0, |n| n.saturating_add(1));
        Ok(Ledger {
            log,
            state,
            fence,
            spool: spool.flatten(),
            epoch,
            found,
            files,
            next_file_no,
            last: None,
            noted: false,
            log_checkpoint: Default::default(),
            listener: None,
        })
    }

    /// Creates the ledger, owned by this run. Of two at once one gets an error.
    ///
    /// # Errors
    /// There is one already; the store fails.
    pub async fn create(lake: &Lake, state: PipelineState) -> Result<Ledger> {
        let schema = event_schema();
        let metadata =
            new_metadata(&schema.into(), &BTreeMap::new(), Some("tidegate ledger".into()))?;
        let protocol = Protocol::ours(false);
        let epoch = lease::new_epoch();
        let actions = vec![
            Action::Protocol(protocol.clone()),
            Action::MetaData(Box::new(metadata.clone())),
            domain(WRITER_DOMAIN, &writer(&epoch))?,
            domain(PIPELINE_DOMAIN, &state)?,
        ];
        let draft =
            Draft { operation: Uuid::new_v4().to_string(), info: info("CREATE TABLE"), actions };
        let log = TableLog::create(lake, FOLDER, metadata, protocol, &draft, RULES).await?;
        Ok(Ledger {
            log,
            state,
            fence: None,
            spool: None,
            found: Some(epoch.clone()),
            epoch: Some(epoch),
            files: Vec::new(),
            next_file_no: 0,
            last: None,
            noted: false,
            log_checkpoint: Default::default(),
            listener: None,
        })
    }

    /// Whether others added notes since this was last asked. One read of the store.
    ///
    /// # Errors
    /// Fenced if another run took over; the store fails.
    pub async fn has_notes(&mut self) -> Result<bool> {
        if self.log.read(self.log.version + 1).await?.is_some() {
            self.reload(self.rules()).await?;
        }
        Ok(std::mem::take(&mut self.noted))
    }

    /// Takes the pipeline over: whoever owned it is fenced from now on.
    ///
    /// # Errors
    /// Another run claimed it in the same moment; the store fails.
    pub async fn claim(&mut self) -> Result<()> {
        let epoch = lease::new_epoch();
        let actions = vec![domain(WRITER_DOMAIN, &writer(&epoch))?];
        self.put_by(actions, None, "CLAIM", RULES).await?;
        self.epoch = Some(epoch);
        Ok(())
    }

    /// Tells `listener` what the ledger says, now and after each change that this process makes.
    pub fn listen(&mut self, listener: Listener) {
        self.listener = Some(listener);
        self.tell();
    }

    fn tell(&self) {
        if let Some(listener) = &self.listener {
            listener(self);
        }
    }

    /// The name under which this run owns the pipeline, once it does.
    pub fn epoch(&self) -> Option<&str> {
        self.epoch.as_deref()
    }

    /// Whether the ledger, when it was opened, still named `epoch` as its owner.
    pub fn was_owned_by(&self, epoch: &str) -> bool {
        self.found.as_deref() == Some(epoch)
    }

    /// The process that owned the pipeline when the ledger was opened, to be watched (see
    /// [`lease`]).
    pub fn holder(&self) -> Option<&str> {
        self.found.as_deref().and_then(lease::holder_of)
    }

    /// The state of the pipeline.
    pub fn state(&self) -> &PipelineState {
        &self.state
    }

    /// The last fence.
    pub fn fence(&self) -> Option<&Fence> {
        self.fence.as_ref()
    }

    /// What of the stream is in the lake's spool, whichever run put it there.
    pub fn spool(&self) -> Option<&SpoolState> {
        self.spool.as_ref()
    }

    /// Records how far the changes are spooled, with the step's event, in one commit; `None` once
    /// there is no spool any more.
    ///
    /// # Errors
    /// As [`Ledger::set_state`].
    pub async fn set_spool(&mut self, spool: Option<SpoolState>, events: &[Event]) -> Result<()> {
        let mut actions = self.owned()?;
        actions.push(domain(SPOOL_DOMAIN, &spool)?);
        let file = self.write_events(events).await?;
        self.put(actions, file, "SPOOL").await?;
        self.spool = spool;
        self.tell();
        Ok(())
    }

    /// The ledger's version.
    pub fn version(&self) -> u64 {
        self.log.version
    }

    /// Sets the state, with events, in one commit.
    ///
    /// # Errors
    /// Fenced if another run took over; failed if this run does not own the pipeline.
    pub async fn set_state(&mut self, mut state: PipelineState, events: &[Event]) -> Result<()> {
        state.format = state.format_needed();
        let mut actions = self.owned()?;
        actions.push(domain(PIPELINE_DOMAIN, &state)?);
        let file = self.write_events(events).await?;
        self.put(actions, file, "SET STATE").await?;
        self.state = state;
        self.tell();
        Ok(())
    }

    /// All tables are published: sets the state and the first fence of its generation, in one
    /// commit.
    ///
    /// # Errors
    /// As [`Ledger::set_state`].
    pub async fn go_live(&mut self, mut state: PipelineState, base: Lsn) -> Result<()> {
        state.format = state.format_needed();
        let at = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
        let fence = Fence { lsn: base, at, generation: state.generation, last: None };
        let mut actions = self.owned()?;
        actions.push(domain(PIPELINE_DOMAIN, &state)?);
        actions.push(domain(FENCE_DOMAIN, &fence)?);
        self.put(actions, None, "GO LIVE").await?;
        (self.state, self.fence) = (state, Some(fence));
        self.tell();
        Ok(())
    }

    /// Names the last transaction before the next fence.
    pub fn set_last(&mut self, last: LastCommit) {
        self.last = Some(last);
    }

    /// Adds events. Needs no ownership; with it, checks it.
    ///
    /// # Errors
    /// Fenced if this run owned the pipeline and another took over.
    pub async fn append_events(&mut self, events: &[Event]) -> Result<()> {
        let file = self.write_events(events).await?;
        if file.is_none() {
            return Ok(());
        }
        let actions = if self.epoch.is_some() { self.owned()? } else { Vec::new() };
        self.put(actions, file, "WRITE").await
    }

    /// Records that all tables have reached a position. Small: no file is written.
    ///
    /// # Errors
    /// Fenced if another run took over; failed if the fence would go back or isn't ours to set.
    pub async fn commit_fence(&mut self, lsn: Lsn, at: DateTime<Utc>) -> Result<()> {
        let generation = self.state.generation;
        if let Some(last) =
            self.fence.as_ref().filter(|f| f.generation == generation && f.lsn > lsn)
        {
            return Err(Error::failed(format!(
                "the fence would go back from {} to {lsn}",
                last.lsn
            ))
            .next("this is a defect; report it"));
        }
        let before = self.fence.as_ref().filter(|fence| fence.generation == generation);
        let last = self.last.or(before.and_then(|fence| fence.last));
        let at = at.to_rfc3339_opts(SecondsFormat::Micros, true);
        let fence = Fence { lsn, at, generation, last };
        let mut actions = self.owned()?;
        actions.push(domain(FENCE_DOMAIN, &fence)?);
        self.put(actions, None, "FENCE").await?;
        self.fence = Some(fence);
        self.tell();
        Ok(())
    }

    /// Events, oldest first, of one run and kind where given.
    ///
    /// # Errors
    /// A file of the ledger can't be read.
    pub async fn read_events(&self, run: Option<&str>, kind: Option<&str>) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for path in &self.files {
            let batch =
                read_rows(&self.log.lake, FOLDER, path.as_str(), &event_schema(), None).await?;
            events.extend(from_batch(&batch)?);
        }
        events.retain(|e| {
            run.is_none_or(|run| e.run == run) && kind.is_none_or(|kind| e.kind == kind)
        });
        events.sort_by_key(|e| e.at_us);
        Ok(events)
    }

    /// Waits for a log checkpoint that is being written beside the commits.
    pub async fn settle(&mut self) {
        self.log_checkpoint.settle().await;
    }

    /// The action every commit of the owner carries.
    fn owned(&self) -> Result<Vec<Action>> {
        let Some(epoch) = &self.epoch else {
            return Err(Error::failed("this run does not own the pipeline")
                .next("this is a defect: claim the ledger first"));
        };
        Ok(vec![domain(WRITER_DOMAIN, &writer(epoch))?])
    }

    async fn put(
        &mut self,
        actions: Vec<Action>,
        file: Option<NewFile>,
        operation: &str,
    ) -> Result<()> {
        let rules = self.rules();
        self.put_by(actions, file, operation, rules).await
    }

    fn rules(&self) -> Rules {
        if self.epoch.is_some() { RULES } else { NOTES }
    }

    async fn put_by(
        &mut self,
        mut actions: Vec<Action>,
        file: Option<NewFile>,
        operation: &str,
        rules: Rules,
    ) -> Result<()> {
        if let Some(file) = &file {
            actions.push(Action::Add(Box::new(Add {
                path: file.path.clone(),
                partition_values: BTreeMap::new(),
                size: file.size as i64,
                modification_time: Utc::now().timestamp_millis(),
                data_change: true,
                stats: Some(file.stats.clone()),
                deletion_vector: None,
            })));
        }
        let draft = Draft { operation: Uuid::new_v4().to_string(), info: info(operation), actions };
        for _ in 0..REDOINGS {
            if let Put::Done(_) = self.log.put(&draft, rules).await? {
                self.files.extend(file.map(|f| f.path));
                self.log_checkpoint.after_commit(&self.log, self.files.len());
                return Ok(());
            }
            self.reload(rules).await?;
        }
        Err(Error::transient(format!(
            "the ledger could not be written: others wrote it {REDOINGS} times in between"
        )))
    }

    /// Reads what others added; every commit of theirs has just been judged to be harmless.
    async fn reload(&mut self, rules: Rules) -> Result<()> {
        let seen = self.log.version;
        let lost = || {
            Error::failed("the ledger is gone").next("restore it, or start anew in another lake")
        };
        let (log, snapshot) = TableLog::load(&self.log.lake, FOLDER).await?.ok_or_else(lost)?;
        // A commit may have come since the look; only against the old state can it be judged.
        let judged = TableLog { version: log.version, ..self.log.clone() };
        judged.judge_since(seen, rules).await?;
        let fresh = Self::from_snapshot(log, &snapshot, self.epoch.take()).await?;
        let next_file_no = self.next_file_no.max(fresh.next_file_no);
        let listener = self.listener.take();
        *self = Ledger { next_file_no, noted: true, last: self.last, listener, ..fresh };
        Ok(())
    }

    async fn write_events(&mut self, events: &[Event]) -> Result<Option<NewFile>> {
        if events.is_empty() {
            return Ok(None);
        }
        let batch = to_batch(events)?;
        let number = self.next_file_no;
        self.next_file_no += 1;
        let (lake, runtime) = (self.log.lake.clone(), Handle::current());
        let options = FileOptions {
            stats_columns: vec!["at".into(), "run".into(), "kind".into()],
            ..Default::default()
        };
        let task = tokio::task::spawn_blocking(move || {
            let mut writer =
                DataFileWriter::create(&lake, &runtime, FOLDER, number, batch.schema(), &options)?;
            writer.write(&batch)?;
            writer.finish()
        });
        task.await.map_err(|e| Error::failed("a write was cancelled").because(e))?.map(Some)
    }
}

fn info(operation: &str) -> CommitInfo {
    CommitInfo { operation: operation.to_owned(), ..Default::default() }
}

fn writer(epoch: &str) -> Value {
    serde_json::json!({ "epoch": epoch })
}

fn domain(name: &str, value: &impl Serialize) -> Result<Action> {
    let configuration = serde_json::to_string(value)
        .map_err(|e| Error::failed("the ledger's state can't be written").because(e))?;
    Ok(Action::DomainMetadata(Domain { domain: name.to_owned(), configuration, removed: false }))
}

/// All nullable: to Spark a column without nulls is an invariant, a feature our tables lack.
fn event_schema() -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let number = |name: &str| Field::new(name, DataType::Int64, true);
    Arc::new(Schema::new(vec![
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        text("run"),
        text("kind"),
        text("table"),
        number("chunk"),
        number("base"),
        number("rows"),
        number("bytes"),
        text("detail"),
    ]))
}

fn to_batch(events: &[Event]) -> Result<RecordBatch> {
    let texts = |of: fn(&Event) -> &str| {
        Arc::new(StringArray::from_iter_values(events.iter().map(of))) as ArrayRef
    };
    let numbers = |of: fn(&Event) -> Option<i64>| {
        Arc::new(Int64Array::from_iter(events.iter().map(of))) as ArrayRef
    };
    let at = TimestampMicrosecondArray::from_iter_values(events.iter().map(|e| e.at_us))
        .with_timezone("UTC");
    let detail = StringArray::from_iter_values(events.iter().map(|e| e.detail.to_string()));
    let columns = vec![
        Arc::new(at) as ArrayRef,
        texts(|e| &e.run),
        texts(|e| &e.kind),
        texts(|e| &e.table),
        numbers(|e| e.chunk),
        numbers(|e| e.base.map(Lsn::as_i64)),
        numbers(|e| e.rows),
        numbers(|e| e.bytes),
        Arc::new(detail),
    ];
    RecordBatch::try_new(event_schema(), columns)
        .map_err(|e| Error::failed("events can't be written").because(e))
}

/// Of a batch of exactly [`event_schema`], as [`read_rows`] makes it.
fn from_batch(batch: &RecordBatch) -> Result<Vec<Event>> {
    let at = batch.column(0).as_primitive::<TimestampMicrosecondType>();
    let text =
        |column: usize, row: usize| batch.column(column).as_string::<i32>().value(row).to_owned();
    let number = |column: usize, row: usize| {
        let column = batch.column(column).as_primitive::<Int64Type>();
        column.is_valid(row).then(|| column.value(row))
    };
    let event = |row: usize| {
        let detail = text(8, row);
        let detail = serde_json::from_str(&detail).map_err(|e| {
            Error::failed(format!("the ledger holds an event whose detail is no JSON: {detail}"))
                .because(e)
        })?;
        Ok(Event {
            at_us: at.value(row),
            run: text(1, row),
            kind: text(2, row),
            table: text(3, row),
            chunk: number(4, row),
            base: number(5, row).map(|v| Lsn::new(v.max(0) as u64)),
            rows: number(6, row),
            bytes: number(7, row),
            detail,
        })
    };
    (0..batch.num_rows()).map(event).collect()
}

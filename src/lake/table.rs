//! A Delta table of ours: its live files with their masks, and the commits that change them.
//!
//! The state is read once, at [`LakeTable::open`], and then follows our own commits. On opening,
//! everything that could betray another writer is compared: the table's id, every commit since our
//! last one, and the number of live rows, which no honest rewrite changes.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::SchemaRef;
use chrono::Utc;
use deltalake::kernel::EagerSnapshot;
use roaring::RoaringBitmap;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::actions::{Action, CommitInfo, Format, Metadata, Protocol};
use super::checkpoint::{
    CHECKPOINT_DOMAIN, CHECKPOINT_FORMAT, Checkpoint, Tag, VersionKind, refuse_newer,
};
use super::files::{FileNo, NewFile};
use super::log::{Draft, Put, Rules, TableLog};
use super::log_checkpoint;
use super::partition::TableColumns;
use super::schema;
use super::store::Lake;
use crate::error::{Error, Kind, Result};
use crate::failpoint;

mod live;
mod plan;

pub use live::LiveFile;
pub(super) use live::live_files;
use plan::Plan;

const RULES: Rules = Rules {
    domains: &[CHECKPOINT_DOMAIN],
    shared: false,
    before: "lake.commit.before",
    after: "lake.commit.after",
};

/// What one commit does. Everything in it becomes visible at once.
#[derive(Clone, Debug)]
pub struct Change {
    /// New files, each with the rows of it that are already superseded.
    pub adds: Vec<(NewFile, RoaringBitmap)>,
    /// Rows of live files that are superseded or deleted, besides those masked already.
    pub masks: BTreeMap<FileNo, RoaringBitmap>,
    /// Live files that go whole: their rows stand in `adds` (compaction) or are to go.
    pub removes: BTreeSet<FileNo>,
    /// All live files go, before `adds` (truncate, a new generation).
    pub remove_all: bool,
    /// The columns from this version on, if they change.
    pub columns: Option<TableColumns>,
    /// Properties of the table that are set from this version on; the others stay.
    pub properties: BTreeMap<String, String>,
    /// Progress. The fields set by the lake are overwritten.
    pub checkpoint: Checkpoint,
    /// For people. [`VersionKind::Compaction`] marks the commit as one that changes no rows.
    pub tag: Tag,
}

impl Change {
    /// A change that moves the position only.
    pub fn new(checkpoint: Checkpoint, tag: Tag) -> Self {
        Change {
            adds: Vec::new(),
            masks: BTreeMap::new(),
            removes: BTreeSet::new(),
            remove_all: false,
            columns: None,
            properties: BTreeMap::new(),
            checkpoint,
            tag,
        }
    }
}

/// What came of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It is stored, at this version.
    Done(u64),
    /// It is not stored: another program moved rows to other files (OPTIMIZE). The table has been
    /// read again; look up the rows of `replaced` in `added`, and commit again.
    ForeignRewrite {
        /// Files that are gone, or whose mask is another.
        replaced: Vec<FileNo>,
        /// Files that have come.
        added: Vec<FileNo>,
    },
}

/// A Delta table that Tidegate writes.
pub struct LakeTable {
    pub(super) place: Place,
    pub(super) files: BTreeMap<FileNo, LiveFile>,
    pub(super) columns: TableColumns,
    pub(super) checkpoint: Checkpoint,
    pub(super) next_file_no: FileNo,
    rewritten: bool,
    log_checkpoint: log_checkpoint::Background,
}

/// Where the state of a table stands.
pub(super) enum Place {
    /// In its log; readers see it.
    Published(Box<TableLog>),
    /// In memory alone: a draft (see `draft`).
    Draft { folder: String },
}

impl LakeTable {
    /// Opens a table; `None` if there is none. Proves that only Tidegate changed its rows.
    ///
    /// # Errors
    /// The table is not Tidegate's, was changed by others, or can't be read.
    pub async fn open(lake: &Lake, folder: &str) -> Result<Option<LakeTable>> {
        let Some((log, snapshot)) = TableLog::load(lake, folder).await? else { return Ok(None) };
        Ok(Some(Self::from_snapshot(log, &snapshot, &BTreeMap::new(), 0).await?))
    }

    /// Opens a table all of whose rows are to be replaced: what others did to them does not matter.
    /// The commit still goes right above the version that is found here.
    ///
    /// # Errors
    /// The table is not Tidegate's, or can't be read.
    pub async fn open_to_replace(lake: &Lake, folder: &str) -> Result<Option<LakeTable>> {
        let Some((log, snapshot)) = TableLog::load(lake, folder).await? else { return Ok(None) };
        let checkpoint = checkpoint_of(&log, &snapshot).await?;
        Ok(Some(Self::read(log, &snapshot, checkpoint, &BTreeMap::new(), 0).await?))
    }

    async fn from_snapshot(
        log: TableLog,
        snapshot: &EagerSnapshot,
        known: &BTreeMap<String, FileNo>,
        floor: FileNo,
    ) -> Result<LakeTable> {
        let folder = log.folder.clone();
        let checkpoint = checkpoint_of(&log, snapshot).await?;
        if checkpoint.table_id != log.metadata.id {
            return Err(Error::failed(format!(
                "{folder}: the table was replaced by another program (its id is not ours)"
            ))
            .next("read the table again with `tidegate reseed`"));
        }
        let rewritten = verify_continuity(&log, &checkpoint).await?;
        let table = Self::read(log, snapshot, checkpoint, known, floor).await?;
        let (rows, left) = (table.live_rows(), table.checkpoint.live_rows);
        if left != Some(rows) {
            let ours = left.map_or("an unknown number".to_owned(), |r| r.to_string());
            return Err(Error::failed(format!(
                "{folder}: the table has {rows} rows where Tidegate left {ours}"
            ))
            .next(
                "another program changed its rows; read the table again with `tidegate reseed`",
            ));
        }
        Ok(LakeTable { rewritten, ..table })
    }

    /// Reads what the table is made of.
    async fn read(
        log: TableLog,
        snapshot: &EagerSnapshot,
        checkpoint: Checkpoint,
        known: &BTreeMap<String, FileNo>,
        floor: FileNo,
    ) -> Result<LakeTable> {
        let mut next_file_no = checkpoint.next_file_no.max(floor);
        let mut known = known.clone();
        known.extend(checkpoint.foreign_files.clone());
        let files = live_files(&log, snapshot, &known, &mut next_file_no).await?;
        let columns = TableColumns {
            schema: schema::from_delta(&log.metadata.schema_string)
                .map_err(|e| e.at(&log.folder))?,
            partitioned_by: log.metadata.partition_columns.clone(),
        };
        Ok(Self::at(log, files, columns, checkpoint, next_file_no))
    }

    fn at(
        log: TableLog,
        files: BTreeMap<FileNo, LiveFile>,
        columns: TableColumns,
        checkpoint: Checkpoint,
        next_file_no: FileNo,
    ) -> LakeTable {
        Self::standing(Place::Published(Box::new(log)), files, columns, checkpoint, next_file_no)
    }

    pub(super) fn standing(
        place: Place,
        files: BTreeMap<FileNo, LiveFile>,
        columns: TableColumns,
        checkpoint: Checkpoint,
        next_file_no: FileNo,
    ) -> LakeTable {
        LakeTable {
            place,
            files,
            columns,
            checkpoint,
            next_file_no,
            rewritten: false,
            log_checkpoint: Default::default(),
        }
    }

    /// Publishes a table: its first version, with all files at once.
    ///
    /// # Errors
    /// There is a table already; the store fails.
    pub async fn create(
        lake: &Lake,
        folder: &str,
        columns: TableColumns,
        files: Vec<(NewFile, RoaringBitmap)>,
        checkpoint: Checkpoint,
        tag: Tag,
        properties: &BTreeMap<String, String>,
    ) -> Result<LakeTable> {
        let protocol = Protocol::ours(schema::needs_ntz(&columns.schema));
        let metadata = new_metadata(
            &columns,
            properties,
            Some(format!("{}.{}", checkpoint.table.schema, checkpoint.table.name)),
        )?;
        // A log that does not exist yet; `create` makes it so.
        let mut change = Change::new(checkpoint, tag);
        change.adds = files;
        let floor = change.checkpoint.next_file_no;
        let plan = Plan::of(&change, &BTreeMap::new(), folder)?;
        let next_file_no = plan.next_file_no(floor);
        let operation = Uuid::new_v4().to_string();
        let checkpoint =
            plan.checkpoint(&change, &metadata.id, &operation, next_file_no, &BTreeMap::new());
        let mut actions =
            vec![Action::Protocol(protocol.clone()), Action::MetaData(Box::new(metadata.clone()))];
        plan.write_vectors(lake, folder).await?;
        actions.extend(plan.actions(&checkpoint)?);
        let draft = Draft { operation, info: info(&change.tag)?, actions };
        let log = TableLog::create(lake, folder, metadata, protocol, &draft, RULES).await?;
        let files =
            plan.after.into_iter().filter_map(|(number, file)| Some((number, file?))).collect();
        Ok(Self::at(log, files, columns, checkpoint, next_file_no))
    }

    /// Commits a change above the current version; to a draft, in memory.
    ///
    /// # Errors
    /// [`Kind::Fenced`]: another writer committed. Failed: others changed the table, or the change
    /// is impossible. Transient: the outcome is unknown; open the table again and look at its
    /// checkpoint.
    pub async fn commit(&mut self, change: &Change) -> Result<CommitOutcome> {
        let Place::Published(log) = &mut self.place else {
            self.apply(change)?;
            return Ok(CommitOutcome::Done(0));
        };
        let plan = Plan::of(change, &self.files, &log.folder)?;
        let next_file_no = plan.next_file_no(self.next_file_no);
        let operation = Uuid::new_v4().to_string();
        let checkpoint =
            plan.checkpoint(change, &log.metadata.id, &operation, next_file_no, &self.files);
        let mut actions = redefine(log, &self.columns, change)?;
        plan.write_vectors(&log.lake, &log.folder).await?;
        failpoint::at("lake.vectors.written")?;
        actions.extend(plan.actions(&checkpoint)?);
        let draft = Draft { operation, info: info(&change.tag)?, actions };
        match log.put(&draft, RULES).await? {
            Put::Done(version) => {
                for (number, file) in plan.after {
                    match file {
                        Some(file) => self.files.insert(number, file),
                        None => self.files.remove(&number),
                    };
                }
                if let Some(columns) = &change.columns {
                    self.columns = columns.clone();
                }
                self.checkpoint = checkpoint;
                self.next_file_no = next_file_no;
                self.log_checkpoint.after_commit(log, self.files.len());
                Ok(CommitOutcome::Done(version))
            }
            Put::Rewritten => {
                let lake = log.lake.clone();
                self.reload(&lake).await
            }
        }
    }

    /// Makes a version in which nothing changes, so that the next version of a process that may
    /// still wake up is taken.
    ///
    /// # Errors
    /// As [`LakeTable::commit`].
    pub async fn take_over(&mut self) -> Result<()> {
        let checkpoint = self.checkpoint.clone();
        let tag = Tag::of(VersionKind::Takeover, &checkpoint);
        let change = Change::new(checkpoint, tag);
        while let CommitOutcome::ForeignRewrite { .. } = self.commit(&change).await? {}
        Ok(())
    }

    /// Reads the table again after a foreign rewrite.
    async fn reload(&mut self, lake: &Lake) -> Result<CommitOutcome> {
        let folder = self.folder().to_owned();
        let lost = || {
            Error::failed(format!("{folder}: the table is gone"))
                .next("restore it, or start a new generation")
        };
        let (log, snapshot) = TableLog::load(lake, &folder).await?.ok_or_else(lost)?;
        let known = self.files.values().map(|f| (f.path.clone(), f.number)).collect();
        let fresh = Self::from_snapshot(log, &snapshot, &known, self.next_file_no).await?;
        let same = |a: &LiveFile, b: &LiveFile| a.path == b.path && a.mask == b.mask;
        let missing = |from: &LakeTable, other: &LakeTable| -> Vec<FileNo> {
            let differs = |f: &&LiveFile| !other.files.get(&f.number).is_some_and(|o| same(f, o));
            from.files.values().filter(differs).map(|f| f.number).collect()
        };
        let (replaced, added) = (missing(self, &fresh), missing(&fresh, self));
        self.place = fresh.place;
        self.files = fresh.files;
        self.columns = fresh.columns;
        self.checkpoint = fresh.checkpoint;
        self.next_file_no = fresh.next_file_no;
        self.rewritten = true;
        Ok(CommitOutcome::ForeignRewrite { replaced, added })
    }

    /// No data file has this number or a higher one, others' files included.
    pub fn next_file_no(&self) -> FileNo {
        self.next_file_no
    }

    /// Takes the next number for a data file. Numbers of files that are never committed are lost.
    pub fn take_file_no(&mut self) -> FileNo {
        let number = self.next_file_no;
        self.next_file_no += 1;
        number
    }

    /// A data file has this number: the next ones have higher ones.
    pub fn pass_file_no(&mut self, number: FileNo) {
        self.next_file_no = self.next_file_no.max(number.saturating_add(1));
    }

    /// The live files by their numbers.
    pub fn files(&self) -> &BTreeMap<FileNo, LiveFile> {
        &self.files
    }

    /// One live file.
    pub fn file(&self, number: FileNo) -> Option<&LiveFile> {
        self.files.get(&number)
    }

    /// Whether a row is not there: masked, or in a file that is not live.
    pub fn is_masked(&self, number: FileNo, row: u32) -> bool {
        self.files.get(&number).is_none_or(|f| f.mask.contains(row))
    }

    /// Rows of the table.
    pub fn live_rows(&self) -> u64 {
        self.files.values().map(LiveFile::live_rows).sum()
    }

    /// The version of this state; 0 for a draft.
    pub fn version(&self) -> u64 {
        match &self.place {
            Place::Published(log) => log.version,
            Place::Draft { .. } => 0,
        }
    }

    /// `metaData.id`; empty for a draft.
    pub fn table_id(&self) -> &str {
        match &self.place {
            Place::Published(log) => &log.metadata.id,
            Place::Draft { .. } => "",
        }
    }

    /// A property of the table; a draft has none yet.
    pub fn property(&self, name: &str) -> Option<&str> {
        match &self.place {
            Place::Published(log) => log.metadata.configuration.get(name).map(String::as_str),
            Place::Draft { .. } => None,
        }
    }

    /// The table's folder in the lake.
    pub fn folder(&self) -> &str {
        match &self.place {
            Place::Published(log) => &log.folder,
            Place::Draft { folder } => folder,
        }
    }

    /// The table's columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.columns.schema
    }

    /// Names of the columns that its files are partitioned by.
    pub fn partitioned_by(&self) -> &[String] {
        &self.columns.partitioned_by
    }

    /// How far the table is.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Whether others moved rows since our last commit: locations kept elsewhere may be stale.
    pub fn was_rewritten(&self) -> bool {
        self.rewritten
    }

    /// Waits for a log checkpoint that is being written beside the commits.
    pub async fn settle(&mut self) {
        self.log_checkpoint.settle().await;
    }
}

/// The checkpoint that the table carries.
async fn checkpoint_of(log: &TableLog, snapshot: &EagerSnapshot) -> Result<Checkpoint> {
    let folder = &log.folder;
    let Some(text) = log.domain(snapshot, CHECKPOINT_DOMAIN).await? else {
        return Err(Error::failed(format!(
            "{folder}: there is a Delta table that Tidegate does not write, or no longer"
        ))
        .next("move it away, or choose another lake"));
    };
    refuse_newer(&text, CHECKPOINT_FORMAT, &format!("{folder}: its checkpoint"))?;
    refuse_unknown_features(log)?;
    serde_json::from_str(&text).map_err(|e| {
        Error::failed(format!("{folder}: its checkpoint can't be read"))
            .because(e)
            .next("move the folder away, and `tidegate reseed` the table")
    })
}

/// What a change does to the table's definition.
fn redefine(log: &TableLog, now: &TableColumns, change: &Change) -> Result<Vec<Action>> {
    let mut metadata = log.metadata.clone();
    let mut actions = Vec::new();
    if let Some(columns) = change.columns.as_ref().filter(|columns| *columns != now) {
        let schema = &columns.schema;
        metadata.schema_string = schema::to_delta(schema)?;
        metadata.partition_columns = columns.partitioned_by.clone();
        let mut protocol = log.protocol.clone();
        if schema::needs_ntz(schema)
            && !protocol.reader_features.iter().any(|f| f == "timestampNtz")
        {
            protocol.reader_features.push("timestampNtz".into());
            protocol.writer_features.push("timestampNtz".into());
            actions.push(Action::Protocol(protocol));
        }
    }
    metadata.configuration.extend(change.properties.clone());
    if metadata != log.metadata {
        actions.push(Action::MetaData(Box::new(metadata)));
    }
    Ok(actions)
}

/// A feature that writers must honour and this program does not know forbids writing.
fn refuse_unknown_features(log: &TableLog) -> Result<()> {
    let known = Protocol::ours(true).writer_features;
    match log.protocol.writer_features.iter().find(|feature| !known.contains(feature)) {
        None => Ok(()),
        Some(feature) => Err(Error::new(
            Kind::Check,
            format!("{}: the table has the Delta feature {feature}, which this version of tidegate does not write", log.folder),
        )
        .next("use the version of tidegate that wrote it, or a newer one; if another program added the feature, read the table again with `tidegate reseed`")),
    }
}

/// Every commit since our last one must be one we can follow. Returns whether rows were moved.
async fn verify_continuity(log: &TableLog, checkpoint: &Checkpoint) -> Result<bool> {
    let mut version = log.version;
    loop {
        let commit = log.read(version).await?.ok_or_else(|| log.gone(version))?;
        let ours =
            commit.info().and_then(|i| i.txn_id.as_deref()) == Some(checkpoint.commit.as_str());
        if ours && commit.domain(CHECKPOINT_DOMAIN).is_some() {
            return log.judge_since(version, RULES).await;
        }
        version = version.checked_sub(1).ok_or_else(|| log.gone(0))?;
    }
}

pub(super) fn new_metadata(
    columns: &TableColumns,
    properties: &BTreeMap<String, String>,
    name: Option<String>,
) -> Result<Metadata> {
    let ours = [
        ("delta.enableDeletionVectors", "true"),
        ("delta.enableInCommitTimestamps", "true"),
        ("delta.checkpointInterval", "100"),
        // Pinned versions must outlive other programs' clean-up of the log.
        ("delta.enableExpiredLogCleanup", "false"),
        ("delta.deletedFileRetentionDuration", "interval 3650 days"),
    ];
    let mut configuration = properties.clone();
    configuration.extend(ours.map(|(k, v)| (k.to_owned(), v.to_owned())));
    Ok(Metadata {
        id: Uuid::new_v4().to_string(),
        name,
        description: None,
        format: Format::default(),
        schema_string: schema::to_delta(&columns.schema)?,
        partition_columns: columns.partitioned_by.clone(),
        created_time: Some(Utc::now().timestamp_millis()),
        configuration,
    })
}

fn info(tag: &Tag) -> Result<CommitInfo> {
    let text = |value: String| Value::String(value);
    Ok(CommitInfo {
        operation: tag.kind.operation().to_owned(),
        operation_parameters: Map::from_iter([
            ("kind".to_owned(), text(tag.kind.as_str().to_owned())),
            ("pipeline".to_owned(), text(tag.pipeline.clone())),
            ("applied".to_owned(), text(tag.applied.to_string())),
        ]),
        operation_metrics: Map::from_iter([
            ("numOutputRows".to_owned(), text(tag.rows_in.to_string())),
            ("numDeletedRows".to_owned(), text(tag.rows_out.to_string())),
        ]),
        user_metadata: Some(
            serde_json::to_string(tag)
                .map_err(|e| Error::failed("a tag can't be written").because(e))?,
        ),
        ..Default::default()
    })
}

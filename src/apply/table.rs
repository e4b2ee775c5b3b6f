//! Brings one lake table forward: stages parts of a batch, then commits them as one version.
//!
//! Staged rows lie in data files that no version names yet, staged masks and index entries in
//! memory (or in index files that no manifest names). A crash leaves orphans, never half a batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{RecordBatch, StringBuilder};
use arrow::datatypes::SchemaRef;
use roaring::RoaringBitmap;

use crate::apply::join::{Join, KeyColumns};
use crate::apply::keys::{KeyEncoder, Keys};
use crate::apply::net::{self, Deleted, KeyedChange, Net};
use crate::apply::part::{BatchEnd, Change, Old, Op, TablePart, Transaction};
use crate::apply::plan::{RowIdentity, TablePlan};
use crate::apply::rows::{Fetch, Rows};
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::lake::locations::{Location, Locations};
use crate::lake::{
    self, CommitOutcome, FileNo, FileNumbers, FileOptions, FileRef, Lake, LakeTable, NewFile,
    RowsWriter, TableColumns,
};
use crate::source::pgoutput::{Datum, Tuple};
use crate::source::types::ColumnBuilder;

mod compact;

pub use compact::{Compacted, Compaction, Outcome};

/// Rows decoded at a time.
const ROWS_PER_BATCH: usize = 16_384;

/// A data file that this batch has written and no version names yet.
pub(super) struct StagedFile {
    pub(super) file: NewFile,
    pub(super) masked: RoaringBitmap,
}

/// What the batch in progress will do.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) files: BTreeMap<FileNo, StagedFile>,
    masks: BTreeMap<u32, RoaringBitmap>,
    remove_all: bool,
    pub(super) inserted: u64,
    deleted: u64,
}

impl Stage {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.masks.is_empty() && !self.remove_all
    }
}

/// One table being brought forward.
pub struct TableApplier {
    pub(super) plan: Arc<TablePlan>,
    lake: Lake,
    runtime: tokio::runtime::Handle,
    table: LakeTable,
    pub(super) keys: Option<KeyEncoder>,
    pub(super) index: Option<Locations>,
    pub(super) stage: Stage,
    /// Set while rows of several bases are brought to one position, before publication.
    pub(super) join: Option<Join>,
    columns: TableColumns,
    file_options: FileOptions,
    timeline: Option<u32>,
}

impl TableApplier {
    /// An applier for a table that is open, with its index brought up to the table's version.
    pub fn new(
        plan: Arc<TablePlan>,
        lake: Lake,
        runtime: tokio::runtime::Handle,
        table: LakeTable,
        index: Option<Locations>,
    ) -> Result<Self> {
        let keys = KeyEncoder::new(&plan)?;
        Ok(TableApplier {
            columns: plan.table_columns(),
            file_options: file_options(&plan),
            plan,
            lake,
            runtime,
            table,
            keys,
            index,
            stage: Stage::default(),
            join: None,
            timeline: None,
        })
    }

    /// The timeline that the changes to come are read on, for the checkpoints.
    pub fn set_timeline(&mut self, timeline: u32) {
        self.timeline = Some(timeline);
    }

    /// The lake table at its last committed version.
    pub fn table(&self) -> &LakeTable {
        &self.table
    }

    /// The table's plan.
    pub fn plan(&self) -> &Arc<TablePlan> {
        &self.plan
    }

    /// Encodes keys; none for a table whose rows are never looked up.
    pub fn key_encoder(&self) -> Option<&KeyEncoder> {
        self.keys.as_ref()
    }

    /// The table and its index. What is staged is lost.
    pub fn into_parts(self) -> (LakeTable, Option<Locations>) {
        (self.table, self.index)
    }

    /// Stages the changes of a part. Blocking.
    ///
    /// # Errors
    /// A change of a row that the table does not have, a value that can't be decoded, the lake or
    /// the index failing. The stage is to be discarded then.
    pub fn stage(&mut self, part: &TablePart, transactions: &[Transaction]) -> Result<()> {
        let subject = self.plan.to_string();
        self.stage_part(part, transactions).map_err(|e| {
            let first = transactions.first().map(|t| t.commit_lsn).unwrap_or_default();
            e.at(format!("{subject}, batch from {first}"))
        })
    }

    fn stage_part(&mut self, part: &TablePart, transactions: &[Transaction]) -> Result<()> {
        let (keys, keyed, columns) = self.key_changes(part)?;
        let net = match &self.plan.identity {
            RowIdentity::Key(_) => {
                // What goes before the table is published was never there.
                let kept = self.plan.keeps_deleted && self.join.is_none();
                let deleted = if kept { Deleted::Kept } else { Deleted::Gone };
                net::by_key(keyed.iter().copied(), |i| keys.get(i as usize), deleted)?
            }
            RowIdentity::WholeRow => net::by_row(
                keyed.iter().copied().zip(part.changes.iter().map(|change| change.old)),
                |i| keys.get(i as usize),
            )?,
            RowIdentity::AppendOnly => append_only(part)?,
        };
        if net.truncated {
            self.truncate();
        }
        if let Some(mut join) = self.join.take() {
            let staged = self.stage_joined(&mut join, part, transactions, net, &keys, &columns);
            self.join = Some(join);
            return staged;
        }
        let before = self.mask(&net, &keys)?;
        self.write(part, transactions, &net, &keys, &before)
    }

    /// Decodes the keys of all changes: key `i` of change `n` by the indices in its [`KeyedChange`].
    /// Also the columns they are made of.
    fn key_changes(&self, part: &TablePart) -> Result<(Keys, Vec<KeyedChange>, KeyColumns)> {
        let Some(encoder) = &self.keys else {
            return Ok((Keys::Digests(Vec::new()), Vec::new(), Vec::new()));
        };
        let columns = encoder.columns();
        let mut place_of = vec![None; self.plan.columns.len()];
        for (place, (column, _)) in columns.iter().enumerate() {
            if let Some(slot) = place_of.get_mut(*column) {
                *slot = Some(place);
            }
        }
        let mut key_places: Vec<Option<usize>> = part
            .layout
            .columns
            .iter()
            .map(|column| column.and_then(|c| place_of.get(c).copied().flatten()))
            .collect();
        // Nobody looks at what stands behind the key's last column.
        key_places.truncate(key_places.iter().rposition(Option::is_some).map_or(0, |i| i + 1));
        let mut decoder = KeyDecoder {
            columns: columns
                .iter()
                .filter_map(|(c, overflows)| Some((self.plan.columns.get(*c)?, overflows)))
                .map(|(c, overflows)| KeyColumn {
                    values: ColumnBuilder::of(c, part.changes.len()),
                    texts: overflows.then(StringBuilder::new),
                    name: &c.name,
                })
                .collect(),
            key_places,
            count: 0,
        };
        let mut keyed = Vec::with_capacity(part.changes.len());
        for change in &part.changes {
            keyed.push(decoder.change(part, change)?);
        }
        let mut arrays = Vec::with_capacity(decoder.columns.len());
        for column in &mut decoder.columns {
            let texts = column.texts.as_mut().map(StringBuilder::finish);
            arrays.push((column.values.finish()?, texts));
        }
        Ok((encoder.encode(arrays.clone())?, keyed, arrays))
    }

    fn truncate(&mut self) {
        let live = self.table.live_rows();
        let staged: u64 = self.stage.files.values().map(|f| f.file.rows - f.masked.len()).sum();
        let already: u64 = self.stage.masks.values().map(RoaringBitmap::len).sum();
        self.stage.inserted = self.stage.inserted.saturating_sub(staged);
        if !self.stage.remove_all {
            self.stage.deleted += live.saturating_sub(already);
        }
        self.stage.remove_all = true;
        self.stage.masks.clear();
        self.stage.files.clear();
    }

    /// Whether the row at `location` shows, with what is staged.
    pub(super) fn is_live(&self, location: Location) -> bool {
        if let Some(staged) = self.stage.files.get(&location.file) {
            return u64::from(location.row) < staged.file.rows
                && !staged.masked.contains(location.row);
        }
        !self.stage.remove_all
            && !self.table.is_masked(location.file, location.row)
            && !self.stage.masks.get(&location.file).is_some_and(|m| m.contains(location.row))
    }

    /// Masks the rows that the part replaces; gives where those of unique keys stood, by the
    /// index of the key.
    fn mask(&mut self, net: &Net, keys: &Keys) -> Result<Vec<Option<Location>>> {
        if net.masked.is_empty() && net.perhaps_masked.is_empty() {
            return Ok(Vec::new());
        }
        let mut before = vec![None; keys.len()];
        let mut wanted: Vec<(u32, u32)> = net.masked.clone();
        wanted.extend(net.perhaps_masked.iter().map(|key| (*key, 0)));
        keys.sort(&mut wanted, |(key, _)| *key, Ord::cmp);
        let index = self.index.as_ref().ok_or_else(|| Error::failed("no location index"))?;
        let mut masked: Vec<Location> = Vec::with_capacity(wanted.len());
        if self.plan.identity == RowIdentity::WholeRow {
            let mut found = Vec::new();
            for (key, n) in &wanted {
                found.clear();
                index.get_all(keys.get(*key as usize), &mut found)?;
                found.retain(|location| self.is_live(*location));
                if found.len() < *n as usize {
                    return Err(not_there(*n, found.len()));
                }
                masked.extend(found.iter().rev().take(*n as usize));
            }
        } else {
            let sorted: Vec<&[u8]> =
                wanted.iter().map(|(key, _)| keys.get(*key as usize)).collect();
            let mut found = Vec::with_capacity(sorted.len());
            index.get_batch(&sorted, &mut found)?;
            for ((key, n), location) in wanted.iter().zip(found) {
                let location = match location.filter(|location| self.is_live(*location)) {
                    Some(location) => location,
                    None if *n == 0 => continue,
                    None => return Err(not_there(*n, 0)),
                };
                if let Some(before) = before.get_mut(*key as usize) {
                    *before = Some(location);
                }
                masked.push(location);
            }
        }
        self.mask_locations(masked);
        Ok(before)
    }

    /// Masks live rows, each once.
    pub(super) fn mask_locations(&mut self, mut masked: Vec<Location>) {
        self.stage.deleted += masked.len() as u64;
        // By file and row, so that each bitmap is met once and grows at its end.
        masked.sort_unstable_by_key(|location| (location.file, location.row));
        for of_file in masked.chunk_by(|a, b| a.file == b.file) {
            let Some(file) = of_file.first().map(|location| location.file) else { continue };
            let rows: RoaringBitmap = of_file.iter().map(|location| location.row).collect();
            match self.stage.files.get_mut(&file) {
                Some(staged) => staged.masked |= rows,
                None => *self.stage.masks.entry(file).or_default() |= rows,
            }
        }
    }

    pub(super) fn write(
        &mut self,
        part: &TablePart,
        transactions: &[Transaction],
        net: &Net,
        keys: &Keys,
        before: &[Option<Location>],
    ) -> Result<()> {
        if net.rows.is_empty() {
            return Ok(());
        }
        let mut writer = RowsWriter::new(
            &self.lake,
            &self.runtime,
            &self.plan.folder,
            &self.columns,
            self.file_options.clone(),
        );
        let mut numbers = FileNumbers::from(self.table.next_file_no());
        let rows = Rows { plan: &self.plan, part, transactions, net, before };
        let fetch = FetchFromLake { applier: self };
        let mut places = Vec::new();
        let mut start = 0;
        while start < net.rows.len() {
            let end = (start + ROWS_PER_BATCH).min(net.rows.len());
            let batch = rows.build(start..end, &fetch)?;
            places.push(writer.write(&batch, &mut || numbers.take())?);
            start = end;
        }
        let files = writer.finish()?;
        failpoint::at("apply.file.written")?;
        if let Some(index) = &mut self.index {
            let mut entries: Vec<(u32, u32)> = net.row_keys.iter().copied().zip(0..).collect();
            keys.sort(&mut entries, |(key, _)| *key, |(_, a), (_, b)| a.cmp(b));
            let mut placed = Vec::with_capacity(entries.len());
            for (key, row) in entries {
                let (batch, row) = (row as usize / ROWS_PER_BATCH, row as usize % ROWS_PER_BATCH);
                let place = places.get(batch).and_then(|places| places.get(row));
                let place = place.ok_or_else(|| Error::failed("a row without a place"))?;
                placed.push((keys.get(key as usize), place));
            }
            index.stage(placed)?;
        }
        for (number, file) in files {
            self.add_staged(number, file);
        }
        Ok(())
    }

    /// Stages a data file that is written.
    pub(super) fn add_staged(&mut self, number: FileNo, file: NewFile) {
        self.table.pass_file_no(number);
        self.stage.inserted += file.rows;
        self.stage.files.insert(number, StagedFile { file, masked: RoaringBitmap::new() });
    }

    /// Commits what is staged as one version; none when nothing is.
    ///
    /// # Errors
    /// [`Kind::Fenced`] when another writer of this pipeline committed.
    pub async fn commit(&mut self, end: BatchEnd) -> Result<Option<u64>> {
        if self.stage.is_empty() {
            self.discard();
            return Ok(None);
        }
        let stage = std::mem::take(&mut self.stage);
        let mut checkpoint = self.table.checkpoint().clone();
        if end.applied < checkpoint.applied {
            return Err(Error::new(
                Kind::Failed,
                format!("{}: a batch would take the table back in time", self.plan),
            ));
        }
        checkpoint.applied = end.applied;
        checkpoint.source.timeline = self.timeline.unwrap_or(checkpoint.source.timeline);
        let kind = if stage.remove_all && stage.files.is_empty() {
            lake::VersionKind::Truncate
        } else {
            lake::VersionKind::Changes
        };
        let tag = lake::Tag {
            source_time: end.source_time_us.and_then(rfc3339),
            rows_in: stage.inserted,
            rows_out: stage.deleted,
            ..lake::Tag::of(kind, &checkpoint)
        };
        let change = lake::Change {
            adds: stage.files.into_values().map(|f| (f.file, f.masked)).collect(),
            masks: stage.masks,
            removes: BTreeSet::new(),
            remove_all: stage.remove_all,
            columns: None,
            properties: BTreeMap::new(),
            checkpoint,
            tag,
        };
        let version = match self.table.commit(&change).await.map_err(|e| e.at(&*self.plan))? {
            CommitOutcome::Done(version) => version,
            CommitOutcome::ForeignRewrite { replaced, .. } => {
                return Err(Error::transient(format!(
                    "{}: another program rewrote {} of its files at this moment; reading the table again",
                    self.plan,
                    replaced.len()
                )));
            }
        };
        if let Some(index) = &mut self.index {
            index.commit_staged(u64::from(self.table.next_file_no()))?;
            let table = &self.table;
            index.maintain(|location| !table.is_masked(location.file, location.row))?;
        }
        Ok(Some(version))
    }

    /// Forgets what is staged.
    pub fn discard(&mut self) {
        self.stage = Stage::default();
        if let Some(index) = &mut self.index {
            index.discard_staged();
        }
    }

    /// Waits for what is written beside the commits: checkpoints of the log.
    pub async fn settle(&mut self) {
        self.table.settle().await;
    }

    /// Makes the index durable, so that the next start need not read the newest files again.
    pub fn flush_index(&mut self) -> Result<()> {
        self.index.as_mut().map_or(Ok(()), Locations::flush)
    }
}

/// The error of a change whose row is not where every row should be.
pub(super) fn not_there(n: u32, found: usize) -> Error {
    Error::unfit(format!("a change names a row that the lake does not have ({found} of {n} found)"))
        .next("run `tidegate verify`, and `tidegate reseed` the table if it finds differences")
}

struct FetchFromLake<'a> {
    applier: &'a TableApplier,
}

impl Fetch for FetchFromLake<'_> {
    fn fetch(&self, file: u32, columns: &SchemaRef, rows: &[u32]) -> Result<RecordBatch> {
        let applier = self.applier;
        let staged = applier.stage.files.get(&file);
        let file: FileRef<'_> = match staged {
            Some(staged) => (&staged.file).into(),
            None => applier.table.file(file).map(FileRef::from).ok_or_else(|| {
                Error::failed(format!("data file {file} of the table is not known"))
            })?,
        };
        applier.runtime.block_on(lake::read_rows(
            &applier.lake,
            &applier.plan.folder,
            file,
            columns,
            Some(rows),
        ))
    }
}

/// Collects key values, one per slot; an unchanged key has one slot for old and new.
struct KeyDecoder<'a> {
    columns: Vec<KeyColumn<'a>>,
    /// For each column of the stream, its place in the key.
    key_places: Vec<Option<usize>>,
    count: u32,
}

struct KeyColumn<'a> {
    values: ColumnBuilder,
    /// What the lake's type can't hold; none for a type that holds everything.
    texts: Option<StringBuilder>,
    name: &'a str,
}

impl KeyDecoder<'_> {
    fn change(&mut self, part: &TablePart, change: &Change) -> Result<KeyedChange> {
        let (mut old_key, mut new_key) = (0, 0);
        let old = match change.old {
            Old::None => None,
            Old::Key(span) | Old::Full(span) => Some(Tuple::parse(part.tuple(span))?),
        };
        if let Some(old) = &old {
            old_key = self.slot(old, None)?;
        }
        if let Some(new) = change.new {
            let new = Tuple::parse(part.tuple(new))?;
            new_key = self.slot(&new, old.as_ref())?;
            if old.is_none() {
                old_key = new_key;
            }
        } else if old.is_none() && change.op == Op::Delete {
            return Err(Error::unfit("a DELETE came without the key of its row")
                .next("check the table's replica identity"));
        }
        // An old tuple is sent under FULL for every update: equal keys must count as unchanged.
        Ok(KeyedChange { op: change.op, old_key, new_key })
    }

    fn slot(&mut self, tuple: &Tuple<'_>, instead: Option<&Tuple<'_>>) -> Result<u32> {
        for (index, (datum, place)) in tuple.iter().zip(&self.key_places).enumerate() {
            let mut datum = datum?;
            let Some(column) = place.and_then(|place| self.columns.get_mut(place)) else {
                continue;
            };
            if let (Datum::Unchanged, Some(instead)) = (&datum, instead) {
                datum = instead
                    .iter()
                    .nth(index)
                    .ok_or_else(|| Error::failed("an old tuple that is too short"))??;
            }
            let text = match datum {
                Datum::Null => {
                    column.values.append_null();
                    None
                }
                Datum::Text(text) => column.values.append_text(text)?,
                Datum::Binary(bytes) => column.values.append_binary(bytes)?,
                Datum::Unchanged => {
                    return Err(Error::unfit(format!(
                        "the stream left out the value of key column {:?}",
                        column.name
                    ))
                    .next("ALTER TABLE … REPLICA IDENTITY FULL, or use a shorter key"));
                }
            };
            if let Some(texts) = &mut column.texts {
                texts.append_option(text);
            }
        }
        let slot = self.count;
        self.count += 1;
        Ok(slot)
    }
}

/// Net effect on a table whose rows are only ever added.
fn append_only(part: &TablePart) -> Result<Net> {
    let mut net = Net::default();
    for (index, change) in (0u32..).zip(&part.changes) {
        net.previous.push(net::Previous::None);
        match change.op {
            Op::Insert => {
                net.rows.push(index);
                net.row_keys.push(index);
            }
            Op::Truncate => {
                net.rows.clear();
                net.row_keys.clear();
                net.truncated = true;
            }
            Op::Update | Op::Delete => {
                return Err(Error::unfit(
                    "an UPDATE or DELETE on a table that can only grow (replica identity NOTHING)",
                )
                .next("ALTER TABLE … REPLICA IDENTITY FULL, then `tidegate reseed` the table"));
            }
        }
    }
    Ok(net)
}

/// Microseconds since 1970 as RFC 3339; none for a time beyond its years.
fn rfc3339(us: i64) -> Option<String> {
    let time = chrono::DateTime::from_timestamp_micros(us)?;
    Some(time.to_rfc3339_opts(chrono::SecondsFormat::Micros, true))
}

/// How data files of a table are written.
pub fn file_options(plan: &TablePlan) -> FileOptions {
    let mut stats_columns: Vec<String> = match &plan.identity {
        RowIdentity::Key(key) => {
            key.iter().filter_map(|i| plan.columns.get(*i)).map(|c| c.name.clone()).collect()
        }
        _ => Vec::new(),
    };
    let partition = |name: &String| plan.columns.iter().any(|c| c.partition && c.name == *name);
    stats_columns.retain(|name| !partition(name));
    for column in plan.columns.iter().filter(|column| !column.partition) {
        if stats_columns.len() >= 8 {
            break;
        }
        if !stats_columns.contains(&column.name) {
            stats_columns.push(column.name.clone());
        }
    }
    stats_columns.push(format!("{}lsn", plan.prefix));
    let dictionary_columns = vec![format!("{}op", plan.prefix), format!("{}lsn", plan.prefix)];
    FileOptions { stats_columns, dictionary_columns, ..FileOptions::default() }
}

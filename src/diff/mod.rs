//! What became of a table's rows between two of its versions: inserted, updated, deleted.
//!
//! Rows that stand in the same place of the same file in both versions are never looked at: only
//! files that one version lacks, and rows that only one of them masks. Of those the key and a digest
//! of the values go to disk, in buckets that fit in memory; a row that compaction moved, or that was
//! read again as it was, cancels out there. What is left is fetched from where it stands.
//!
//! ```text
//!   rows of `from` that `to` lacks ─┐                      ┌─► deleted
//!                                   ├─► buckets by key ──► ├─► updated, before and after
//!   rows of `to` that `from` lacks ─┘                      └─► inserted
//! ```
//!
//! A row counts as updated when a column of `to`, as readers see it, has another value; the columns
//! that Tidegate adds don't count, but for those that hold values (`_tg_overflow`, `_tg_deleted`). A
//! table whose key is not the same in both versions, or that has none, is a multiset of rows: then
//! rows are deleted and inserted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt32Array, new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options, interleave_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use roaring::RoaringBitmap;
use tokio::runtime::Handle;

use crate::apply::keys::overflow_text;
use crate::apply::known::KnownTable;
use crate::error::{Error, Result};
use crate::lake::digest::row_digests;
use crate::lake::{LiveFile, PastTable};

mod buckets;
pub mod output;

use buckets::{Buckets, Entry, Place, Side};

/// The column that says what became of the row, as Delta's change data feed has it.
pub const CHANGE_TYPE: &str = "_change_type";
/// Rows that are fetched at a time, at most.
const ROWS_AT_A_TIME: usize = 8_192;
/// Bytes that such rows should have at most, as they lie in their files.
const BYTES_AT_A_TIME: u64 = 4 << 20;

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `from` does not have it.
    Insert,
    /// `to` does not have it.
    Delete,
    /// As it was, followed by what it became.
    Update,
}

/// How many rows changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows that `from` does not have.
    pub inserted: u64,
    /// Rows with another value.
    pub updated: u64,
    /// Rows that `to` does not have.
    pub deleted: u64,
}

/// Two versions of a table.
pub struct Diff<'a> {
    /// The one.
    pub from: &'a PastTable,
    /// The other; it may be the older one.
    pub to: &'a PastTable,
    /// What the added columns begin with.
    pub prefix: &'a str,
    /// For temporary files, which have no name.
    pub scratch: &'a Path,
    /// Runs reads.
    pub runtime: &'a Handle,
}

impl Diff<'_> {
    /// The schema of the rows that are handed on: what became of them, the columns of `to`, and those
    /// that only `from` has. A column of another type in each is text.
    pub fn schema(&self) -> SchemaRef {
        let (from, to) = (self.from.schema(), self.to.schema());
        let mut fields = vec![Arc::new(Field::new(CHANGE_TYPE, DataType::Utf8, false))];
        for field in to.fields() {
            let other = from.field_with_name(field.name()).ok();
            let same = other.is_none_or(|other| other.data_type() == field.data_type());
            let data_type = if same { field.data_type().clone() } else { DataType::Utf8 };
            fields.push(Arc::new(Field::new(field.name(), data_type, true)));
        }
        let only = from.fields().iter().filter(|field| to.field_with_name(field.name()).is_err());
        fields.extend(only.map(|field| Arc::new(field.as_ref().clone().with_nullable(true))));
        Arc::new(Schema::new(fields))
    }

    /// Hands every change on, in batches of [`Diff::schema`]. Blocking.
    ///
    /// # Errors
    /// A file of either version is gone or can't be read, the local disk is full, or `with` fails.
    pub fn each(&self, mut with: impl FnMut(RecordBatch) -> Result<()>) -> Result<Counts> {
        self.compare(Some(&mut with))
    }

    /// As [`Diff::each`], without the rows.
    ///
    /// # Errors
    /// As [`Diff::each`].
    pub fn count(&self) -> Result<Counts> {
        self.compare(None)
    }

    fn compare(&self, with: Option<With<'_>>) -> Result<Counts> {
        let (before, after) = (lacking(self.from, self.to), lacking(self.to, self.from));
        let rows = |lacking: &[Lacking<'_>]| lacking.iter().map(|l| l.rows.len()).sum::<u64>();
        let mut buckets = Buckets::create(self.scratch, rows(&before) + rows(&after))?;
        let key = self.key()?;
        self.spill(self.from, &before, Side::From, key.as_deref(), &mut buckets)?;
        self.spill(self.to, &after, Side::To, key.as_deref(), &mut buckets)?;
        let mut found = Found {
            diff: self,
            files: [files(&before), files(&after)],
            schema: self.schema(),
            with,
            counts: Counts::default(),
        };
        for bucket in buckets.finish() {
            found.bucket(bucket?, key.is_some())?;
        }
        Ok(found.counts)
    }

    /// Names of the key's columns, if both versions have the same.
    fn key(&self) -> Result<Option<Vec<String>>> {
        let key = |table: &PastTable| -> Result<Option<Vec<String>>> {
            let Some(text) = table.property(crate::apply::known::PROPERTY) else { return Ok(None) };
            let known = KnownTable::parse(text)?;
            let name = |place: &usize| known.columns.get(*place).map(|c| c.name.clone());
            Ok(known.key.as_ref().and_then(|key| key.iter().map(name).collect()))
        };
        let (from, to) = (key(self.from)?, key(self.to)?);
        Ok(from.filter(|from| to.as_ref() == Some(from)))
    }

    /// Whether a column's value is one of the row's, and not of its history.
    fn counts(&self, name: &str) -> bool {
        let added = name.strip_prefix(self.prefix);
        !added.is_some_and(|name| ["lsn", "seq", "op", "committed_at"].contains(&name))
    }

    fn spill(
        &self,
        table: &PastTable,
        lacking: &[Lacking<'_>],
        side: Side,
        key: Option<&[String]>,
        buckets: &mut Buckets,
    ) -> Result<()> {
        let fields = table.schema().fields().iter().filter(|field| self.counts(field.name()));
        let columns: SchemaRef = Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>()));
        for (number, lacking) in (0u32..).zip(lacking) {
            lacking.each(table, self.runtime, &columns, |first, rows, batch| {
                let whole = self.values(batch)?;
                let digests = row_digests(&whole)?;
                let keys = match key {
                    Some(key) => row_digests(&self.key_values(batch, key)?)?,
                    None => digests.clone(),
                };
                for (index, (key, digest)) in keys.into_iter().zip(digests).enumerate() {
                    let row = rows.and_then(|rows| rows.get(index).copied());
                    let row = row.unwrap_or(first + index as u32);
                    if rows.is_some() || lacking.rows.contains(row) {
                        let place = Place { file: number, row };
                        buckets.add(Entry { key, digest, side, place })?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The values of the rows, in the columns and types that both versions are compared in.
    fn values(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let to = self.to.schema();
        let wanted = to.fields().iter().filter(|field| self.counts(field.name()));
        wanted.map(|field| self.column(batch, field.name(), field.data_type())).collect()
    }

    /// The values of the key, each with its text where the column can't hold it.
    fn key_values(&self, batch: &RecordBatch, key: &[String]) -> Result<Vec<ArrayRef>> {
        let overflow = batch.column_by_name(&format!("{}overflow", self.prefix));
        let overflow = overflow.and_then(|column| column.as_map_opt());
        let mut values = Vec::with_capacity(key.len() * 2);
        for name in key {
            let of_to = self.to.schema().field_with_name(name).map_err(|e| {
                Error::failed(format!("the key column {name:?} is not there")).because(e)
            })?;
            values.push(self.column(batch, name, of_to.data_type())?);
            values.push(Arc::new(overflow_text(overflow, name, batch.num_rows())));
        }
        Ok(values)
    }

    /// A column as both versions have it: NULL where one lacks it, text where the types differ.
    fn column(&self, batch: &RecordBatch, name: &str, data_type: &DataType) -> Result<ArrayRef> {
        let types = [self.from, self.to].map(|t| {
            t.schema().field_with_name(name).map_or(data_type.clone(), |f| f.data_type().clone())
        });
        let [from, to] = &types;
        let wanted = if from == to { data_type } else { &DataType::Utf8 };
        match batch.column_by_name(name) {
            None => Ok(new_null_array(wanted, batch.num_rows())),
            Some(column) => as_type(column, wanted).map_err(|e| e.at(format!("column {name:?}"))),
        }
    }
}

fn as_type(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef> {
    if column.data_type() == wanted {
        return Ok(column.clone());
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(column, wanted, &options).map_err(|e| {
        Error::failed(format!(
            "a {} can't be compared with what it is in the other version",
            column.data_type()
        ))
        .because(e)
        .next("compare versions on the same side of the change of its type")
    })
}

/// Rows of a file that the other version lacks.
struct Lacking<'a> {
    file: &'a LiveFile,
    rows: RoaringBitmap,
}

/// The rows of `table` that `other` does not have in the same place.
fn lacking<'a>(table: &'a PastTable, other: &PastTable) -> Vec<Lacking<'a>> {
    let others: BTreeMap<&str, &LiveFile> =
        other.files().iter().map(|file| (file.path.as_str(), file)).collect();
    let mut found = Vec::new();
    for file in table.files() {
        let rows = match others.get(file.path.as_str()) {
            Some(other) => &other.mask - &file.mask,
            None => {
                let mut rows = RoaringBitmap::new();
                rows.insert_range(0..u32::try_from(file.rows).unwrap_or(u32::MAX));
                rows - &file.mask
            }
        };
        if !rows.is_empty() {
            found.push(Lacking { file, rows });
        }
    }
    found
}

fn files<'a>(lacking: &[Lacking<'a>]) -> Vec<&'a LiveFile> {
    lacking.iter().map(|lacking| lacking.file).collect()
}

impl Lacking<'_> {
    /// Reads the rows: those alone, where they are few, or all of the file's. Hands on the number of
    /// the batch's first row, or the numbers of all of them.
    fn each(
        &self,
        table: &PastTable,
        runtime: &Handle,
        columns: &SchemaRef,
        mut with: impl FnMut(u32, Option<&[u32]>, &RecordBatch) -> Result<()>,
    ) -> Result<()> {
        // A page has some thousand rows: with one row in hundred every page is read anyway.
        if self.rows.len() * 100 > self.file.rows {
            return table
                .scan_one(runtime, self.file, columns, |first, batch| with(first, None, batch));
        }
        let rows: Vec<u32> = self.rows.iter().collect();
        for rows in rows.chunks(at_a_time(self.file)) {
            let batch = table.read(runtime, self.file, columns, rows)?;
            with(0, Some(rows), &batch)?;
        }
        Ok(())
    }
}

/// Rows of a file that are fetched at a time.
fn at_a_time(file: &LiveFile) -> usize {
    let bytes = (file.size / file.rows.max(1)).max(1);
    usize::try_from(BYTES_AT_A_TIME / bytes).unwrap_or(ROWS_AT_A_TIME).clamp(1, ROWS_AT_A_TIME)
}

type With<'a> = &'a mut dyn FnMut(RecordBatch) -> Result<()>;

/// Takes what the buckets say, and fetches the rows.
struct Found<'a, 'w> {
    diff: &'a Diff<'a>,
    /// Of `from` and `to`, by the numbers in the entries.
    files: [Vec<&'a LiveFile>; 2],
    schema: SchemaRef,
    with: Option<With<'w>>,
    counts: Counts,
}

impl Found<'_, '_> {
    fn bucket(&mut self, mut entries: Vec<Entry>, keyed: bool) -> Result<()> {
        entries.sort_unstable();
        let (mut deleted, mut inserted, mut updated) = (Vec::new(), Vec::new(), Vec::new());
        for of_key in entries.chunk_by(|a, b| a.key == b.key) {
            let (before, after) = uncommon(of_key);
            if keyed && before.len() == 1 && after.len() == 1 {
                updated.extend(before.into_iter().zip(after));
            } else {
                deleted.extend(before);
                inserted.extend(after);
            }
        }
        self.counts.deleted += deleted.len() as u64;
        self.counts.inserted += inserted.len() as u64;
        self.counts.updated += updated.len() as u64;
        if self.with.is_none() {
            return Ok(());
        }
        self.hand_on_all(Side::From, Change::Delete, deleted)?;
        self.hand_on_all(Side::To, Change::Insert, inserted)?;
        updated.sort_unstable();
        let step = self.at_a_time();
        for pairs in updated.chunks(step) {
            let (before, after): (Vec<Place>, Vec<Place>) = pairs.iter().copied().unzip();
            let before = self.fetch(Side::From, &before)?;
            let after = self.fetch(Side::To, &after)?;
            self.hand_on_pairs(&before, &after)?;
        }
        Ok(())
    }

    fn hand_on_all(&mut self, side: Side, change: Change, mut places: Vec<Place>) -> Result<()> {
        places.sort_unstable();
        let step = self.at_a_time();
        for places in places.chunks(step) {
            let rows = self.fetch(side, places)?;
            let name = if change == Change::Delete { "delete" } else { "insert" };
            let kind: ArrayRef = Arc::new(StringArray::new_repeated(name, rows.num_rows()));
            self.hand_on(kind, rows)?;
        }
        Ok(())
    }

    fn hand_on_pairs(&mut self, before: &RecordBatch, after: &RecordBatch) -> Result<()> {
        let order: Vec<(usize, usize)> =
            (0..before.num_rows()).flat_map(|row| [(0, row), (1, row)]).collect();
        let rows = interleave_record_batch(&[before, after], &order).map_err(wrong)?;
        let kinds = ["update_preimage", "update_postimage"].into_iter().cycle();
        let kinds: StringArray = kinds.take(rows.num_rows()).map(Some).collect();
        self.hand_on(Arc::new(kinds), rows)
    }

    fn hand_on(&mut self, kind: ArrayRef, rows: RecordBatch) -> Result<()> {
        let mut columns = vec![kind];
        columns.extend(rows.columns().iter().cloned());
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(wrong)?;
        match &mut self.with {
            Some(with) => with(batch),
            None => Ok(()),
        }
    }

    fn at_a_time(&self) -> usize {
        let files = self.files.iter().flatten();
        files.map(|file| at_a_time(file)).min().unwrap_or(ROWS_AT_A_TIME)
    }

    /// The rows at `places`, in their order, with the columns that are handed on.
    fn fetch(&self, side: Side, places: &[Place]) -> Result<RecordBatch> {
        let (table, files) = match side {
            Side::From => (self.diff.from, &self.files[0]),
            Side::To => (self.diff.to, &self.files[1]),
        };
        let mut of_file: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (index, place) in (0u32..).zip(places) {
            of_file.entry(place.file).or_default().push((place.row, index));
        }
        let mut fetched = Vec::with_capacity(of_file.len());
        let mut order = vec![0u32; places.len()];
        let mut before = 0u32;
        for (number, mut wanted) in of_file {
            wanted.sort_unstable();
            let rows: Vec<u32> = wanted.iter().map(|(row, _)| *row).collect();
            let file = files.get(number as usize).ok_or_else(|| Error::failed("no such file"))?;
            fetched.push(table.read(self.diff.runtime, file, table.schema(), &rows)?);
            for ((_, index), at) in wanted.into_iter().zip(before..) {
                if let Some(slot) = order.get_mut(index as usize) {
                    *slot = at;
                }
            }
            before += rows.len() as u32;
        }
        let rows = arrow::compute::concat_batches(table.schema(), &fetched).map_err(wrong)?;
        let rows = take_record_batch(&rows, &UInt32Array::from(order)).map_err(wrong)?;
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields().iter().skip(1) {
            columns.push(match rows.column_by_name(field.name()) {
                Some(column) => as_type(column, field.data_type())?,
                None => new_null_array(field.data_type(), rows.num_rows()),
            });
        }
        let fields: Vec<_> = self.schema.fields().iter().skip(1).cloned().collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(wrong)
    }
}

fn wrong(e: arrow::error::ArrowError) -> Error {
    Error::failed("changed rows can't be put together").because(e).next("report this")
}

/// The places of one key's rows that don't cancel out, before and after. Sorted entries: of a side
/// and a digest they stand together.
fn uncommon(of_key: &[Entry]) -> (Vec<Place>, Vec<Place>) {
    let split = of_key.partition_point(|entry| entry.side == Side::From);
    let (mut before, mut after) = of_key.split_at(split);
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    loop {
        match (before.split_first(), after.split_first()) {
            (None, None) => return (gone, come),
            (Some((b, rest_b)), Some((a, rest_a))) if b.digest == a.digest => {
                (before, after) = (rest_b, rest_a);
            }
            (Some((b, rest)), a) if a.is_none_or(|(a, _)| b.digest < a.digest) => {
                gone.push(b.place);
                before = rest;
            }
            (_, Some((a, rest))) => {
                come.push(a.place);
                after = rest;
            }
            (Some((b, rest)), None) => {
                gone.push(b.place);
                before = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(side: Side, digest: u8, row: u32) -> Entry {
        Entry { key: [7; 16], digest: [digest; 16], side, place: Place { file: 0, row } }
    }

    proptest! {
        #[test]
        fn equal_rows_cancel_out_one_by_one(
            before in prop::collection::vec(0u8..4, 0..12),
            after in prop::collection::vec(0u8..4, 0..12),
        ) {
            let side = |side: Side, rows: &[u8]| -> Vec<Entry> {
                rows.iter().zip(0..).map(|(digest, row)| entry(side, *digest, row)).collect()
            };
            let mut entries = side(Side::From, &before);
            entries.extend(side(Side::To, &after));
            entries.sort_unstable();
            let (gone, come) = uncommon(&entries);
            for digest in 0..4u8 {
                let count = |of: &[u8]| of.iter().filter(|d| **d == digest).count();
                let left = |places: &[Place], of: &[u8]| {
                    places.iter().filter(|place| of[place.row as usize] == digest).count()
                };
                let common = count(&before).min(count(&after));
                prop_assert_eq!(left(&gone, &before), count(&before) - common);
                prop_assert_eq!(left(&come, &after), count(&after) - common);
            }
        }
    }
}

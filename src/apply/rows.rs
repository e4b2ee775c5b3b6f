//! Makes the rows of a part: decodes the tuples that remain, and fetches what they leave out.
//!
//! PostgreSQL does not send a TOAST value that an UPDATE left alone. It is found in an earlier
//! change of the same part, in the old tuple (replica identity FULL), or at the row's location in
//! the lake; each is tried in that order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{Fields, Schema, SchemaRef};

use crate::apply::keys::overflow_text;
use crate::apply::net::{Net, Previous};
use crate::apply::part::{Old, Op, TablePart, Transaction};
use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::lake::locations::Location;
use crate::source::pgoutput::{Datum, Tuple};
use crate::source::types::{self, RowsBuilder};

/// Reads some rows (sorted, distinct) of a data file.
pub trait Fetch {
    /// Exactly `rows`, in order, with exactly `columns`; NULL where the file is older than one.
    fn fetch(&self, file: u32, columns: &SchemaRef, rows: &[u32]) -> Result<RecordBatch>;
}

/// What it takes to build the rows of a part.
pub struct Rows<'a> {
    /// The table.
    pub plan: &'a TablePlan,
    /// Its changes.
    pub part: &'a TablePart,
    /// Transactions of the part.
    pub transactions: &'a [Transaction],
    /// Their net effect.
    pub net: &'a Net,
    /// Where the rows of before stand, by key index.
    pub before: &'a [Option<Location>],
}

impl Rows<'_> {
    /// Builds the rows `range` of the net effect.
    ///
    /// # Errors
    /// A value that can't be decoded, or that is nowhere to be found.
    pub fn build(&self, range: std::ops::Range<usize>, fetch: &dyn Fetch) -> Result<RecordBatch> {
        let rows = self.net.rows.get(range).unwrap_or_default();
        let mut builder = self.plan.rows_builder(rows.len());
        let fetched = self.fetch_missing(rows, builder.schema(), fetch)?;
        for &index in rows {
            let change = self.change(index)?;
            self.each_value(index, |column, datum| match datum {
                Datum::Null => builder.append_null(column),
                Datum::Text(text) => builder.append_text(column, text),
                Datum::Binary(bytes) => builder.append_binary(column, bytes),
                Datum::Unchanged => match self.unchanged(index, column)? {
                    Source::Sent(Datum::Null) => builder.append_null(column),
                    Source::Sent(Datum::Text(text)) => builder.append_text(column, text),
                    Source::Sent(Datum::Binary(bytes)) => builder.append_binary(column, bytes),
                    Source::Sent(Datum::Unchanged) => Err(broken("a value that is nowhere")),
                    Source::At(at) => fetched.append(&mut builder, column, at),
                    Source::Nowhere => Err(broken("a row without location")),
                },
            })?;
            let transaction = self
                .transactions
                .get(change.transaction as usize)
                .ok_or_else(|| broken("a change without a transaction"))?;
            let op = match change.op {
                Op::Insert => types::Op::Insert,
                Op::Delete => types::Op::Delete,
                Op::Update | Op::Truncate => types::Op::Update,
            };
            let committed_at = Some(transaction.committed_at_us);
            builder.end_row(transaction.commit_lsn, change.seq, op, committed_at);
        }
        builder.finish()
    }

    /// Whether a value of the row that change `index` makes is nowhere to be found: the stream left
    /// it out, and the row it was in is none that the lake has.
    ///
    /// # Errors
    /// A tuple that can't be read.
    pub fn lacks_value(&self, index: u32) -> Result<bool> {
        let Some(new) = self.change(index)?.new else { return Ok(false) };
        let tuple = Tuple::parse(self.part.tuple(new))?;
        for (datum, place) in tuple.iter().zip(&self.part.layout.columns) {
            if let (Datum::Unchanged, Some(column)) = (datum?, *place)
                && matches!(self.unchanged(index, column)?, Source::Nowhere)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads from the lake what neither the part's tuples nor old tuples have.
    fn fetch_missing(&self, rows: &[u32], schema: SchemaRef, fetch: &dyn Fetch) -> Result<Fetched> {
        let mut wanted: BTreeMap<u32, (BTreeSet<u32>, BTreeSet<usize>)> = BTreeMap::new();
        for &index in rows {
            self.each_value(index, |column, datum| {
                if let Datum::Unchanged = datum
                    && let Source::At(at) = self.unchanged(index, column)?
                {
                    let (rows, columns) = wanted.entry(at.file).or_default();
                    rows.insert(at.row);
                    columns.insert(column);
                }
                Ok(())
            })?;
        }
        let overflow_name = format!("{}overflow", self.plan.prefix);
        let mut files = BTreeMap::new();
        for (file, (rows, columns)) in wanted {
            let fields: Fields = schema
                .fields()
                .iter()
                .enumerate()
                .filter(|(i, f)| columns.contains(i) || *f.name() == overflow_name)
                .map(|(_, f)| f.clone())
                .collect();
            let rows: Vec<u32> = rows.into_iter().collect();
            let found = fetch.fetch(file, &Arc::new(Schema::new(fields)), &rows)?;
            let map = found.column_by_name(&overflow_name).and_then(|map| map.as_map_opt());
            let mut values = BTreeMap::new();
            for column in columns {
                let Some(plan) = self.plan.columns.get(column) else { continue };
                let array = found
                    .column_by_name(&plan.name)
                    .ok_or_else(|| broken("a column that was not read"))?;
                let texts = plan.can_overflow().then(|| overflow_text(map, &plan.name, rows.len()));
                values.insert(column, (array.clone(), texts));
            }
            files.insert(file, FetchedFile { rows, values });
        }
        Ok(Fetched { files })
    }

    /// Hands on each column of the row that change `index` makes, once. Of a deleted row that is kept
    /// the stream has the key, or all of it under replica identity FULL; what it has not is unchanged.
    fn each_value(
        &self,
        index: u32,
        mut with: impl FnMut(usize, Datum<'_>) -> Result<()>,
    ) -> Result<()> {
        let change = self.change(index)?;
        let (span, whole) = match (change.new, change.old) {
            (Some(new), _) => (new, true),
            (None, Old::Full(old)) => (old, true),
            (None, Old::Key(old)) => (old, false),
            (None, Old::None) => return Err(broken("a row without a tuple")),
        };
        let tuple = Tuple::parse(self.part.tuple(span))?;
        for (datum, place) in tuple.iter().zip(&self.part.layout.columns) {
            let Some(column) = *place else { continue };
            let sent = whole || self.plan.is_key(column);
            with(column, if sent { datum? } else { Datum::Unchanged })?;
        }
        Ok(())
    }

    fn change(&self, index: u32) -> Result<&crate::apply::part::Change> {
        self.part.changes.get(index as usize).ok_or_else(|| broken("a change out of range"))
    }

    /// Follows the row back to the change or location that has the value of `column`.
    fn unchanged(&self, mut index: u32, column: usize) -> Result<Source<'_>> {
        let place = self
            .part
            .layout
            .columns
            .iter()
            .position(|c| *c == Some(column))
            .ok_or_else(|| broken("a column without a place"))?;
        loop {
            let change = self.change(index)?;
            if let Some(new) = change.new {
                match nth(self.part.tuple(new), place)? {
                    Datum::Unchanged => {}
                    sent => return Ok(Source::Sent(sent)),
                }
            }
            if let Old::Full(old) = change.old {
                match nth(self.part.tuple(old), place)? {
                    Datum::Unchanged => {}
                    sent => return Ok(Source::Sent(sent)),
                }
            }
            match self.net.previous.get(index as usize) {
                Some(Previous::Change(earlier)) if *earlier < index => index = *earlier,
                Some(Previous::Before(key)) => {
                    let at = self.before.get(*key as usize).copied().flatten();
                    return Ok(at.map_or(Source::Nowhere, Source::At));
                }
                // An UPDATE by which a row comes to satisfy the publication's row filter is sent as
                // an INSERT, without the large values that it left alone.
                _ => {
                    let name = self.plan.columns.get(column).map_or("?", |column| &column.name);
                    return Err(Error::unfit(format!(
                        "a row came without the value of column {name:?}, which the WAL does not repeat"
                    )));
                }
            }
        }
    }
}

/// Values read from the lake, by file, row and column.
struct Fetched {
    files: BTreeMap<u32, FetchedFile>,
}

struct FetchedFile {
    rows: Vec<u32>,
    values: BTreeMap<usize, (ArrayRef, Option<StringArray>)>,
}

impl Fetched {
    fn append(&self, builder: &mut RowsBuilder, column: usize, at: Location) -> Result<()> {
        let not_read = || broken("a value that was not read");
        let file = self.files.get(&at.file).ok_or_else(not_read)?;
        let row = file.rows.binary_search(&at.row).map_err(|_| not_read())?;
        let (array, texts) = file.values.get(&column).ok_or_else(not_read)?;
        let text = texts.as_ref().filter(|texts| texts.is_valid(row)).map(|texts| texts.value(row));
        builder.append_lake(column, array.as_ref(), row, text)
    }
}

enum Source<'a> {
    Sent(Datum<'a>),
    At(Location),
    Nowhere,
}

/// Column `place` of a kept tuple.
fn nth(tuple: &[u8], place: usize) -> Result<Datum<'_>> {
    Tuple::parse(tuple)?.iter().nth(place).ok_or_else(|| broken("a tuple that is too short"))?
}

fn broken(what: &str) -> Error {
    Error::failed(format!("a batch is inconsistent: {what}"))
        .next("nothing of it was written; report this with the table's definition")
}

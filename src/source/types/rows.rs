//! Builds batches of rows of one table: the source's columns, then those Tidegate adds.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    TimestampMicrosecondArray, new_null_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::column::ColumnBuilder;
use super::cursor::Cursor;
use super::kind::{Kind, map_entries};
use super::plan::ColumnPlan;
use super::values::{broken, map_array};
use crate::error::{Error, Result};
use crate::position::Lsn;

/// The columns Tidegate adds, after the prefix.
pub(super) const EXTRA_COLUMNS: [&str; 5] = ["lsn", "seq", "op", "committed_at", "overflow"];
/// The column that a table has besides where deleted rows are kept.
pub const DELETED_COLUMN: &str = "deleted";

/// Where a row came from: the column `_tg_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Snapshot,
    Insert,
    Update,
    Delete,
}

impl Op {
    /// `s`, `i`, `u`, or `d` for a deleted row that is kept.
    pub fn as_str(self) -> &'static str {
        match self {
            Op::Snapshot => "s",
            Op::Insert => "i",
            Op::Update => "u",
            Op::Delete => "d",
        }
    }
}

/// A value that its column can't hold.
struct Overflow {
    row: usize,
    column: usize,
    text: String,
}

/// A batch under construction.
///
/// A row is appended as a COPY tuple, or column by column and then ended. After an error the batch
/// is spoilt: `finish` refuses columns of different lengths.
pub struct RowsBuilder {
    plans: Arc<[ColumnPlan]>,
    schema: SchemaRef,
    columns: Vec<ColumnBuilder>,
    rows: usize,
    lsn: Vec<i64>,
    seq: Vec<i64>,
    op: Vec<u8>,
    committed_at: Vec<Option<i64>>,
    overflow: Vec<Overflow>,
    keeps_deleted: bool,
    constant: Option<(Lsn, Vec<ArrayRef>)>,
}

impl RowsBuilder {
    /// A builder with room for `capacity` rows; `prefix` begins the names of the added columns.
    pub fn new(plans: Arc<[ColumnPlan]>, prefix: &str, capacity: usize) -> Self {
        let schema = Arc::new(schema(&plans, prefix));
        let columns = plans.iter().map(|plan| ColumnBuilder::of(plan, capacity)).collect();
        RowsBuilder {
            plans,
            schema,
            columns,
            rows: 0,
            lsn: Vec::new(),
            seq: Vec::new(),
            op: Vec::new(),
            committed_at: Vec::new(),
            overflow: Vec::new(),
            keeps_deleted: false,
            constant: None,
        }
    }

    /// With a column that tells deleted rows from the others.
    pub fn keeping_deleted(mut self, prefix: &str) -> Self {
        self.keeps_deleted = true;
        let deleted = Field::new(format!("{prefix}{DELETED_COLUMN}"), DataType::Boolean, true);
        let fields = self.schema.fields().iter().cloned().chain([Arc::new(deleted)]);
        self.schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        self
    }

    /// The schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The columns of the source.
    pub fn plans(&self) -> &Arc<[ColumnPlan]> {
        &self.plans
    }

    /// Rows that were ended.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// An estimate of the batch's memory in bytes, for batching.
    pub fn bytes(&self) -> usize {
        let columns: usize = self.columns.iter().map(ColumnBuilder::bytes).sum();
        let overflow: usize = self.overflow.iter().map(|o| o.text.len() + 32).sum();
        columns + overflow + self.lsn.len() * 33
    }

    /// Appends one tuple of COPY BINARY, selected by [`ColumnPlan::select_expr`] of all columns in order.
    ///
    /// # Errors
    /// The tuple does not have the columns planned, or a value is malformed.
    pub fn append_copy_row(&mut self, tuple: &[u8]) -> Result<()> {
        let torn = |error: super::cursor::Malformed| {
            Error::failed(format!("a COPY tuple is torn: {}", error.0))
        };
        let mut cursor = Cursor::new(tuple);
        let count = cursor.i16().map_err(torn)?;
        if usize::try_from(count) != Ok(self.columns.len()) {
            return Err(Error::failed(format!(
                "a COPY tuple has {count} columns, not {}",
                self.columns.len()
            )));
        }
        for (index, column) in self.columns.iter_mut().enumerate() {
            let Some(value) = cursor.field().map_err(torn)? else {
                column.append_null();
                continue;
            };
            match column.append_copy_binary(value) {
                Ok(None) => {}
                Ok(Some(text)) => {
                    self.overflow.push(Overflow { row: self.rows, column: index, text })
                }
                Err(error) => return Err(at_column(&self.plans, index, error)),
            }
        }
        cursor.end().map_err(torn)?;
        self.rows += 1;
        Ok(())
    }

    /// Appends NULL to column `index` of the row at hand.
    ///
    /// # Errors
    /// There is no such column.
    pub fn append_null(&mut self, index: usize) -> Result<()> {
        self.column(index)?.append_null();
        Ok(())
    }

    /// Appends a value in text form to column `index` of the row at hand.
    ///
    /// # Errors
    /// There is no such column, or the value is malformed.
    pub fn append_text(&mut self, index: usize, text: &[u8]) -> Result<()> {
        let outcome = self.column(index)?.append_text(text);
        self.note(index, outcome)
    }

    /// Appends a value in binary form to column `index` of the row at hand.
    ///
    /// # Errors
    /// There is no such column, the value is malformed, or the kind has no binary form.
    pub fn append_binary(&mut self, index: usize, value: &[u8]) -> Result<()> {
        let outcome = self.column(index)?.append_binary(value);
        self.note(index, outcome)
    }

    /// Appends row `row` of `array`, read from the lake, to column `index` of the row at hand: an
    /// unchanged TOAST value. `overflow` is the text that stood in the overflow column, if any.
    ///
    /// # Errors
    /// There is no such column, or the array is of another type.
    pub fn append_lake(
        &mut self,
        index: usize,
        array: &dyn Array,
        row: usize,
        overflow: Option<&str>,
    ) -> Result<()> {
        let outcome = self.column(index)?.append_lake(array, row);
        self.note(index, outcome.map(|()| overflow.map(str::to_owned)))
    }

    fn column(&mut self, index: usize) -> Result<&mut ColumnBuilder> {
        let count = self.columns.len();
        self.columns.get_mut(index).ok_or_else(|| {
            Error::failed(format!("a row has a value for column {} of {count}", index + 1))
        })
    }

    fn note(&mut self, index: usize, outcome: Result<Option<String>>) -> Result<()> {
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(text)) => {
                self.overflow.push(Overflow { row: self.rows, column: index, text });
                Ok(())
            }
            Err(error) => Err(at_column(&self.plans, index, error)),
        }
    }

    /// Ends the row at hand. `committed_at_us` is Unix time in microseconds.
    pub fn end_row(&mut self, commit_lsn: Lsn, seq: u64, op: Op, committed_at_us: Option<i64>) {
        self.lsn.push(commit_lsn.as_i64());
        self.seq.push(i64::try_from(seq).unwrap_or(i64::MAX));
        self.op.extend_from_slice(op.as_str().as_bytes());
        self.committed_at.push(committed_at_us);
        self.rows += 1;
    }

    /// The batch of all rows appended by [`RowsBuilder::append_copy_row`], as rows of the snapshot at
    /// `base`. The builder is empty again.
    ///
    /// # Errors
    /// A text is not UTF-8, or an append had failed before.
    pub fn finish_snapshot(&mut self, base: Lsn) -> Result<RecordBatch> {
        let rows = self.rows;
        if !self.lsn.is_empty() {
            return Err(Error::failed("a snapshot batch has streamed rows"));
        }
        let constant = match self.constant.take() {
            Some((of, arrays))
                if of == base && arrays.first().is_some_and(|array| array.len() >= rows) =>
            {
                arrays
            }
            _ => self.constant_columns(base, rows),
        };
        let added = constant.iter().map(|array| array.slice(0, rows)).collect();
        self.constant = Some((base, constant));
        let deleted = self.keeps_deleted.then(|| BooleanBuffer::new_unset(rows));
        self.batch(added, deleted)
    }

    /// Position, `s` and no commit time: the same for all rows.
    fn constant_columns(&self, base: Lsn, rows: usize) -> Vec<ArrayRef> {
        vec![
            Arc::new(Int64Array::from_value(base.as_i64(), rows)),
            Arc::new(Int64Array::from_value(0, rows)),
            Arc::new(StringArray::new_repeated(Op::Snapshot.as_str(), rows)),
            new_null_array(&Kind::Timestamptz.arrow_type(), rows),
        ]
    }

    /// The batch of all rows ended. The builder is empty again.
    ///
    /// # Errors
    /// A text is not UTF-8, or a row has too many or too few values.
    pub fn finish(&mut self) -> Result<RecordBatch> {
        let committed_at: TimestampMicrosecondArray = std::mem::take(&mut self.committed_at).into();
        let deleted = self.keeps_deleted.then(|| {
            BooleanBuffer::collect_bool(self.op.len(), |row| self.op.get(row) == Some(&b'd'))
        });
        let ends = (0..=self.op.len()).map(|end| end as i32).collect::<Vec<_>>();
        let op = StringArray::try_new(
            OffsetBuffer::new(ScalarBuffer::from(ends)),
            std::mem::take(&mut self.op).into(),
            None,
        );
        let added: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(std::mem::take(&mut self.lsn))),
            Arc::new(Int64Array::from(std::mem::take(&mut self.seq))),
            Arc::new(op.map_err(broken)?),
            Arc::new(committed_at.with_timezone(super::kind::utc())),
        ];
        self.batch(added, deleted)
    }

    fn batch(
        &mut self,
        added: Vec<ArrayRef>,
        deleted: Option<BooleanBuffer>,
    ) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.rows);
        let overflow = self.overflow_column(rows)?;
        let mut arrays = Vec::with_capacity(self.columns.len() + EXTRA_COLUMNS.len());
        for (index, column) in self.columns.iter_mut().enumerate() {
            arrays.push(column.finish().map_err(|error| at_column(&self.plans, index, error))?);
        }
        arrays.extend(added);
        arrays.push(overflow);
        if let Some(deleted) = deleted {
            arrays.push(Arc::new(BooleanArray::new(deleted, None)));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options).map_err(broken)
    }

    fn overflow_column(&mut self, rows: usize) -> Result<ArrayRef> {
        let mut overflow = std::mem::take(&mut self.overflow);
        if overflow.is_empty() {
            return Ok(new_null_array(&overflow_type(), rows));
        }
        overflow.sort_by_key(|entry| (entry.row, entry.column));
        let mut ends = Vec::with_capacity(rows + 1);
        let mut next = 0;
        ends.push(0_i32);
        for row in 0..rows {
            while overflow.get(next).is_some_and(|entry| entry.row == row) {
                next += 1;
            }
            ends.push(
                i32::try_from(next)
                    .map_err(|_| Error::failed("a batch has too many overflowing values"))?,
            );
        }
        let total: usize = overflow.iter().map(|entry| entry.text.len()).sum();
        if next != overflow.len() || i32::try_from(total).is_err() {
            return Err(Error::failed(
                "the overflowing values do not belong to the batch's rows, or exceed 2 GiB",
            ));
        }
        let names =
            overflow.iter().map(|entry| self.plans.get(entry.column).map_or("", |plan| &plan.name));
        let keys = StringArray::from_iter_values(names);
        let values = StringArray::from_iter_values(overflow.iter().map(|entry| &entry.text));
        let nulls: NullBuffer =
            ends.iter().zip(ends.iter().skip(1)).map(|(start, end)| start != end).collect();
        Ok(Arc::new(map_array(
            OffsetBuffer::new(ScalarBuffer::from(ends)),
            keys,
            values,
            Some(nulls),
        )?))
    }
}

fn at_column(plans: &[ColumnPlan], index: usize, error: Error) -> Error {
    match plans.get(index) {
        Some(plan) => error.at(plan.place()),
        None => error,
    }
}

fn overflow_type() -> DataType {
    DataType::Map(map_entries(), false)
}

fn schema(plans: &[ColumnPlan], prefix: &str) -> Schema {
    // All nullable, though the first three are never null: to Spark a column without nulls is an
    // invariant, and it refuses a table that does not list that feature.
    let types = [
        DataType::Int64,
        DataType::Int64,
        DataType::Utf8,
        Kind::Timestamptz.arrow_type(),
        overflow_type(),
    ];
    let added = EXTRA_COLUMNS
        .iter()
        .zip(types)
        .map(|(name, data_type)| Field::new(format!("{prefix}{name}"), data_type, true));
    Schema::new(plans.iter().map(ColumnPlan::arrow_field).chain(added).collect::<Vec<_>>())
}

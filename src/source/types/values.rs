//! The plain vectors behind a column, and how they become arrays.
//!
//! They can be cut back, which Arrow's builders can't, and refuse what would not fit 32-bit offsets.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanBufferBuilder, MapArray, NullBufferBuilder,
    PrimitiveArray, StringArray, StructArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::DataType;

use super::column::ColumnBuilder;
use super::cursor::{Decode, Malformed};
use super::kind::{Kind, map_entries};
use crate::error::{Error, Result};

pub(super) enum Values {
    Bool(BooleanBufferBuilder),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    I128(Vec<i128>),
    Bytes(Bytes),
    List { ends: Ends, items: Box<ColumnBuilder> },
    Map { ends: Ends, keys: Bytes, values: Bytes, nulls: NullBufferBuilder },
}

/// Arrow's 32-bit offsets: 0, then the end of each value.
pub(super) struct Ends(Vec<i32>);

impl Ends {
    pub fn new(capacity: usize) -> Self {
        let mut ends = Vec::with_capacity(capacity + 1);
        ends.push(0);
        Ends(ends)
    }

    pub fn len(&self) -> usize {
        self.0.len() - 1
    }

    pub fn last(&self) -> usize {
        self.0.last().map_or(0, |end| *end as usize)
    }

    pub fn push(&mut self, end: usize) -> Decode<()> {
        let end = i32::try_from(end)
            .map_err(|_| Malformed("a batch holds more than 2 GiB in one column"))?;
        self.0.push(end);
        Ok(())
    }

    pub fn repeat(&mut self) {
        self.0.push(self.0.last().copied().unwrap_or_default());
    }

    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len + 1);
    }

    pub fn finish(&mut self) -> OffsetBuffer<i32> {
        let next = Ends::new(self.len());
        OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(self, next).0))
    }
}

pub(super) struct Bytes {
    pub ends: Ends,
    pub data: Vec<u8>,
}

impl Bytes {
    pub fn new(capacity: usize) -> Self {
        Bytes { ends: Ends::new(capacity), data: Vec::new() }
    }

    #[inline]
    pub fn push(&mut self, value: &[u8]) -> Decode<()> {
        self.ends.push(self.data.len() + value.len())?;
        self.data.extend_from_slice(value);
        Ok(())
    }

    /// Appends what `write` writes; nothing if it fails.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Decode<()>) -> Decode<()> {
        let start = self.data.len();
        let done = write(&mut self.data).and_then(|()| self.ends.push(self.data.len()));
        if done.is_err() {
            self.data.truncate(start);
        }
        done
    }

    pub fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.data.truncate(self.ends.last());
    }

    /// Whether there is a last value, and it is empty.
    pub fn last_is_empty(&self) -> bool {
        matches!(self.ends.0.as_slice(), [.., start, end] if start == end)
    }

    pub fn strings(&mut self, nulls: Option<NullBuffer>) -> Result<StringArray> {
        let next = Vec::with_capacity(self.data.len());
        let offsets = self.ends.finish();
        let data = Buffer::from_vec(std::mem::replace(&mut self.data, next));
        StringArray::try_new(offsets.clone(), data.clone(), nulls).map_err(|error| {
            let odd = offsets.windows(2).enumerate().find_map(|(row, ends)| {
                let value = data.get(ends[0] as usize..ends[1] as usize)?;
                std::str::from_utf8(value)
                    .is_err()
                    .then(|| format!("row {row} of the batch: {}", shown(value)))
            });
            Error::unfit(format!("text that is not UTF-8: {}", odd.unwrap_or_default()))
                .because(error)
                .next("mend the value in the source; the database is not in UTF-8 throughout")
        })
    }

    pub fn bytes(&self) -> usize {
        self.data.len() + 4 * self.ends.len()
    }
}

impl Values {
    pub fn new(kind: &Kind, capacity: usize) -> Values {
        match kind.arrow_type() {
            DataType::Boolean => Values::Bool(BooleanBufferBuilder::new(capacity)),
            DataType::Int16 => Values::I16(Vec::with_capacity(capacity)),
            DataType::Int32 | DataType::Date32 => Values::I32(Vec::with_capacity(capacity)),
            DataType::Int64 | DataType::Timestamp(..) => Values::I64(Vec::with_capacity(capacity)),
            DataType::Float32 => Values::F32(Vec::with_capacity(capacity)),
            DataType::Float64 => Values::F64(Vec::with_capacity(capacity)),
            DataType::Decimal128(..) => Values::I128(Vec::with_capacity(capacity)),
            DataType::List(_) => {
                let item = match kind {
                    Kind::Array(element) => &element.kind,
                    _ => &Kind::Float4,
                };
                Values::List {
                    ends: Ends::new(capacity),
                    items: Box::new(ColumnBuilder::new(item, capacity)),
                }
            }
            DataType::Map(..) => Values::Map {
                ends: Ends::new(capacity),
                keys: Bytes::new(capacity),
                values: Bytes::new(capacity),
                nulls: NullBufferBuilder::new(capacity),
            },
            _ => Values::Bytes(Bytes::new(capacity)),
        }
    }

    /// The place of a NULL.
    pub fn push_nothing(&mut self) {
        match self {
            Values::Bool(values) => values.append(false),
            Values::I16(values) => values.push(0),
            Values::I32(values) => values.push(0),
            Values::I64(values) => values.push(0),
            Values::F32(values) => values.push(0.0),
            Values::F64(values) => values.push(0.0),
            Values::I128(values) => values.push(0),
            Values::Bytes(values) => values.ends.repeat(),
            Values::List { ends, .. } | Values::Map { ends, .. } => ends.repeat(),
        }
    }

    pub fn truncate(&mut self, len: usize) {
        match self {
            Values::Bool(values) => values.truncate(len),
            Values::I16(values) => values.truncate(len),
            Values::I32(values) => values.truncate(len),
            Values::I64(values) => values.truncate(len),
            Values::F32(values) => values.truncate(len),
            Values::F64(values) => values.truncate(len),
            Values::I128(values) => values.truncate(len),
            Values::Bytes(values) => values.truncate(len),
            Values::List { ends, items } => {
                ends.truncate(len);
                items.truncate(ends.last());
            }
            Values::Map { ends, keys, values, nulls } => {
                ends.truncate(len);
                keys.truncate(ends.last());
                values.truncate(ends.last());
                nulls.truncate(ends.last());
            }
        }
    }

    /// Bytes of a value that was held.
    pub fn bytes(&self) -> usize {
        match self {
            Values::Bool(values) => values.len() / 8,
            Values::I16(values) => values.len() * 2,
            Values::I32(values) => values.len() * 4,
            Values::I64(values) => values.len() * 8,
            Values::F32(values) => values.len() * 4,
            Values::F64(values) => values.len() * 8,
            Values::I128(values) => values.len() * 16,
            Values::Bytes(values) => values.bytes(),
            Values::List { ends, items } => ends.len() * 4 + items.bytes(),
            Values::Map { ends, keys, values, .. } => {
                ends.len() * 4 + keys.bytes() + values.bytes()
            }
        }
    }
}

pub(super) fn take<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> PrimitiveArray<T> {
    let next = Vec::with_capacity(values.len());
    PrimitiveArray::new(ScalarBuffer::from(std::mem::replace(values, next)), nulls)
}

pub(super) fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    Arc::new(take::<T>(values, nulls))
}

/// A map<string,string> with the field names of Parquet.
pub(super) fn map_array(
    offsets: OffsetBuffer<i32>,
    keys: StringArray,
    values: StringArray,
    nulls: Option<NullBuffer>,
) -> Result<MapArray> {
    let entries = map_entries();
    let DataType::Struct(fields) = entries.data_type() else {
        return Err(Error::failed("the entries of a map are not a struct"));
    };
    let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(values)];
    let pairs = StructArray::try_new(fields.clone(), columns, None).map_err(broken)?;
    MapArray::try_new(entries, offsets, pairs, nulls, false).map_err(broken)
}

pub(super) fn broken(error: arrow::error::ArrowError) -> Error {
    Error::failed("an Arrow array can't be built")
        .because(error)
        .next("report this: it is a defect of Tidegate")
}

/// A value for a message: escaped, and cut.
pub(super) fn shown(value: &[u8]) -> String {
    const MOST: usize = 64;
    let head = value.get(..MOST).unwrap_or(value).escape_ascii();
    match value.len() {
        length if length > MOST => format!("\"{head}\"… ({length} bytes)"),
        _ => format!("\"{head}\""),
    }
}

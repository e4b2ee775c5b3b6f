//! Builds one Arrow column from PostgreSQL's values.
//!
//! Values go into plain vectors, so that nothing is allocated for a value and an array whose last
//! element does not fit can be taken back. Texts are checked to be UTF-8 once a column, at the end.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BinaryArray, BooleanArray, BooleanBufferBuilder,
    ListArray, MapArray, NullBufferBuilder, PrimitiveArray, StringArray, StructArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};

use super::array::{Sent, Text, Texts};
use super::cursor::{Decode, Malformed, exactly};
use super::kind::{Kind, list_item, map_entries, utc};
use super::{bytes, datetime, extension, numeric, scalar, wire_text};
use crate::error::{Error, Result};

/// A column under construction.
pub struct ColumnBuilder {
    kind: Kind,
    values: Values,
    nulls: NullBufferBuilder,
    /// Undone escapes of the element at hand.
    scratch: Vec<u8>,
}

/// What became of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// It was appended.
    Held,
    /// The Delta type can't hold it; nothing was appended.
    Overflow,
}

enum Values {
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
struct Ends(Vec<i32>);

impl Ends {
    fn new(capacity: usize) -> Self {
        let mut ends = Vec::with_capacity(capacity + 1);
        ends.push(0);
        Ends(ends)
    }

    fn len(&self) -> usize {
        self.0.len() - 1
    }

    fn last(&self) -> usize {
        self.0.last().map_or(0, |end| *end as usize)
    }

    fn push(&mut self, end: usize) -> Decode<()> {
        let end = i32::try_from(end)
            .map_err(|_| Malformed("a batch holds more than 2 GiB in one column"))?;
        self.0.push(end);
        Ok(())
    }

    fn repeat(&mut self) {
        self.0.push(self.0.last().copied().unwrap_or_default());
    }

    fn truncate(&mut self, len: usize) {
        self.0.truncate(len + 1);
    }

    fn finish(&mut self) -> OffsetBuffer<i32> {
        let next = Ends::new(self.len());
        OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(self, next).0))
    }
}

struct Bytes {
    ends: Ends,
    data: Vec<u8>,
}

impl Bytes {
    fn new(capacity: usize) -> Self {
        Bytes { ends: Ends::new(capacity), data: Vec::new() }
    }

    #[inline]
    fn push(&mut self, value: &[u8]) -> Decode<()> {
        self.ends.push(self.data.len() + value.len())?;
        self.data.extend_from_slice(value);
        Ok(())
    }

    /// Appends what `write` writes; nothing if it fails.
    fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Decode<()>) -> Decode<()> {
        let start = self.data.len();
        let done = write(&mut self.data).and_then(|()| self.ends.push(self.data.len()));
        if done.is_err() {
            self.data.truncate(start);
        }
        done
    }

    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.data.truncate(self.ends.last());
    }

    fn strings(&mut self, nulls: Option<NullBuffer>) -> Result<StringArray> {
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
            Error::failed(format!("text that is not UTF-8: {}", odd.unwrap_or_default()))
                .because(error)
                .next("mend the value in the source; the database is not in UTF-8 throughout")
        })
    }

    fn bytes(&self) -> usize {
        self.data.len() + 4 * self.ends.len()
    }
}

impl Values {
    fn new(kind: &Kind, capacity: usize) -> Values {
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
    fn push_nothing(&mut self) {
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

    fn truncate(&mut self, len: usize) {
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
    fn bytes(&self) -> usize {
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

impl ColumnBuilder {
    /// A builder for columns of `kind` with room for `capacity` values.
    pub fn new(kind: &Kind, capacity: usize) -> Self {
        ColumnBuilder {
            kind: kind.clone(),
            values: Values::new(kind, capacity),
            nulls: NullBufferBuilder::new(capacity),
            scratch: Vec::new(),
        }
    }

    /// The number of values, NULLs included.
    pub fn len(&self) -> usize {
        self.nulls.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An estimate of the memory the values take, in bytes.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.len() / 8
    }

    /// Appends NULL.
    pub fn append_null(&mut self) {
        self.values.push_nothing();
        self.nulls.append_null();
    }

    /// Appends a field of COPY BINARY, as [`super::ColumnPlan::select_expr`] selects it. Some(text)
    /// is the value as PostgreSQL prints it where the Delta type can't hold it; NULL was appended.
    ///
    /// # Errors
    /// The bytes are not a value of the kind.
    #[inline]
    pub fn append_copy_binary(&mut self, value: &[u8]) -> Result<Option<String>> {
        if self.kind.has_binary() { self.append_binary(value) } else { self.append_text(value) }
    }

    /// Appends a value in text form. Result as for [`ColumnBuilder::append_copy_binary`].
    ///
    /// # Errors
    /// The text is not one PostgreSQL prints for the kind.
    pub fn append_text(&mut self, text: &[u8]) -> Result<Option<String>> {
        match self.push_text(text).map_err(|error| refused(error, text))? {
            Fit::Held => Ok(None),
            Fit::Overflow => {
                self.append_null();
                overflow_text(text.to_vec()).map(Some)
            }
        }
    }

    /// Appends a value in binary form. Result as for [`ColumnBuilder::append_copy_binary`].
    ///
    /// # Errors
    /// The bytes are not a value of the kind, or the kind is read as text only.
    pub fn append_binary(&mut self, value: &[u8]) -> Result<Option<String>> {
        match self.push_binary(value).map_err(|error| refused(error, value))? {
            Fit::Held => Ok(None),
            Fit::Overflow => {
                let mut text = Vec::new();
                wire_text::write(&self.kind, value, &mut text)
                    .map_err(|error| refused(error, value))?;
                self.append_null();
                overflow_text(text).map(Some)
            }
        }
    }

    /// Appends row `row` of an array of the same type, as it was read from the lake.
    ///
    /// # Errors
    /// The array is of another type, or ends before `row`.
    pub fn append_lake(&mut self, array: &dyn Array, row: usize) -> Result<()> {
        if row >= array.len() {
            return Err(Error::failed(format!("row {row} of an array of {}", array.len())));
        }
        if array.is_null(row) {
            self.append_null();
            return Ok(());
        }
        let len = self.len();
        match self.push_lake(array, row) {
            Some(Ok(())) => {
                self.nulls.append_non_null();
                return Ok(());
            }
            Some(Err(error)) => {
                self.truncate(len);
                return Err(refused(error, b""));
            }
            None => self.truncate(len),
        }
        let wanted = self.kind.arrow_type();
        Err(Error::failed(format!(
            "a value of type {} was read from the lake, not {wanted}",
            array.data_type()
        ))
        .next("re-seed the table: its columns in the lake are not those of the source"))
    }

    /// None if the array is of another type.
    fn push_lake(&mut self, array: &dyn Array, row: usize) -> Option<Decode<()>> {
        match &mut self.values {
            Values::Bool(values) => values.append(array.as_boolean_opt()?.value(row)),
            Values::I16(values) => values.push(array.as_primitive_opt::<Int16Type>()?.value(row)),
            Values::I32(values) if self.kind == Kind::Date => {
                values.push(array.as_primitive_opt::<Date32Type>()?.value(row));
            }
            Values::I32(values) => values.push(array.as_primitive_opt::<Int32Type>()?.value(row)),
            Values::I64(values) if matches!(self.kind, Kind::Timestamp | Kind::Timestamptz) => {
                let array = array.as_primitive_opt::<TimestampMicrosecondType>()?;
                // A time of day with a zone is not one without.
                (array.timezone().is_some() == (self.kind == Kind::Timestamptz)).then_some(())?;
                values.push(array.value(row));
            }
            Values::I64(values) => values.push(array.as_primitive_opt::<Int64Type>()?.value(row)),
            Values::F32(values) => values.push(array.as_primitive_opt::<Float32Type>()?.value(row)),
            Values::F64(values) => values.push(array.as_primitive_opt::<Float64Type>()?.value(row)),
            Values::I128(values) => {
                (*array.data_type() == self.kind.arrow_type()).then_some(())?;
                values.push(array.as_primitive_opt::<Decimal128Type>()?.value(row));
            }
            Values::Bytes(values) if matches!(self.kind, Kind::Bytea | Kind::Ewkb) => {
                return Some(values.push(array.as_binary_opt::<i32>()?.value(row)));
            }
            Values::Bytes(values) => {
                return Some(values.push(array.as_string_opt::<i32>()?.value(row).as_bytes()));
            }
            Values::List { ends, items } => {
                let list = array.as_list_opt::<i32>()?.value(row);
                for index in 0..list.len() {
                    if items.append_lake(&list, index).is_err() {
                        items.truncate(ends.last());
                        return None;
                    }
                }
                return Some(ends.push(items.len()));
            }
            Values::Map { ends, keys, values, nulls } => {
                let entries = array.as_map_opt()?.value(row);
                let (from_keys, from_values) = (
                    entries.column(0).as_string_opt::<i32>()?,
                    entries.column(1).as_string_opt::<i32>()?,
                );
                for index in 0..entries.len() {
                    let (key, value) = (from_keys.value(index), from_values.value(index));
                    if let Err(error) =
                        keys.push(key.as_bytes()).and_then(|()| values.push(value.as_bytes()))
                    {
                        return Some(Err(error));
                    }
                    nulls.append(from_values.is_valid(index));
                }
                return Some(ends.push(keys.ends.len()));
            }
        }
        Some(Ok(()))
    }

    fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
        self.nulls.truncate(len);
    }

    /// Appends the value and its validity, or nothing.
    #[inline]
    fn push_text(&mut self, text: &[u8]) -> Decode<Fit> {
        let fit = self.push_text_value(text)?;
        if fit == Fit::Held {
            self.nulls.append_non_null();
        }
        Ok(fit)
    }

    #[inline]
    fn push_binary(&mut self, value: &[u8]) -> Decode<Fit> {
        let fit = self.push_binary_value(value)?;
        if fit == Fit::Held {
            self.nulls.append_non_null();
        }
        Ok(fit)
    }

    fn push_text_value(&mut self, text: &[u8]) -> Decode<Fit> {
        match (&self.kind, &mut self.values) {
            (Kind::Bool, Values::Bool(values)) => values.append(scalar::boolean(text)?),
            (Kind::Int2, Values::I16(values)) => {
                values.push(scalar::integer(text, i16::MIN.into(), i16::MAX.into())? as i16);
            }
            (Kind::Int4, Values::I32(values)) => {
                values.push(scalar::integer(text, i32::MIN.into(), i32::MAX.into())? as i32);
            }
            (Kind::Int8, Values::I64(values)) => {
                values.push(scalar::integer(text, i64::MIN, i64::MAX)?)
            }
            (Kind::Oid, Values::I64(values)) => {
                values.push(scalar::integer(text, 0, u32::MAX.into())?)
            }
            (Kind::Float4, Values::F32(values)) => values.push(scalar::float(text, f32::NAN)?),
            (Kind::Float8, Values::F64(values)) => values.push(scalar::float(text, f64::NAN)?),
            (Kind::Decimal { precision, scale }, Values::I128(values)) => {
                return Ok(held(numeric::scaled_from_text(text, *precision, *scale)?, values));
            }
            (Kind::Money, Values::I128(values)) => values.push(numeric::cents(text)?.into()),
            (Kind::Date, Values::I32(values)) => {
                return Ok(held(datetime::date_from_text(text)?, values));
            }
            (Kind::Timestamp, Values::I64(values)) => {
                return Ok(held(datetime::timestamp_from_text(text, false)?, values));
            }
            (Kind::Timestamptz, Values::I64(values)) => {
                return Ok(held(datetime::timestamp_from_text(text, true)?, values));
            }
            (Kind::Bytea, Values::Bytes(values)) => {
                let digits = bytes::bytea_digits(text)?;
                values.push_with(|out| bytes::from_hex(digits, out))?;
            }
            (Kind::Ewkb, Values::Bytes(values)) => {
                values.push_with(|out| bytes::from_hex(text, out))?
            }
            (_, Values::Bytes(values)) => values.push(text)?,
            (Kind::Vector, Values::List { ends, items }) => {
                let start = items.len();
                let pushed = push_vector(text, items).and_then(|()| ends.push(items.len()));
                if pushed.is_err() {
                    items.truncate(start);
                }
                pushed?;
            }
            (Kind::Array(element), Values::List { ends, items }) => {
                let start = items.len();
                let pushed = push_texts(text, element.delimiter, items, &mut self.scratch);
                return list_fit(pushed, start, ends, items);
            }
            (Kind::Hstore, Values::Map { ends, keys, values, nulls }) => {
                let start = ends.last();
                let pushed = extension::each_pair(text, |key, value| {
                    keys.push(key)?;
                    values.push(value.unwrap_or_default())?;
                    nulls.append(value.is_some());
                    Ok(())
                });
                let pushed = pushed.and_then(|()| ends.push(keys.ends.len()));
                if pushed.is_err() {
                    keys.truncate(start);
                    values.truncate(start);
                    nulls.truncate(start);
                }
                pushed?;
            }
            _ => return Err(Malformed("no text form for this kind")),
        }
        Ok(Fit::Held)
    }

    fn push_binary_value(&mut self, value: &[u8]) -> Decode<Fit> {
        match (&self.kind, &mut self.values) {
            (Kind::Bool, Values::Bool(values)) => values.append(wire_text::boolean(value)?),
            (Kind::Int2, Values::I16(values)) => values.push(i16::from_be_bytes(exactly(value)?)),
            (Kind::Int4, Values::I32(values)) => values.push(i32::from_be_bytes(exactly(value)?)),
            (Kind::Int8, Values::I64(values)) => values.push(i64::from_be_bytes(exactly(value)?)),
            (Kind::Oid, Values::I64(values)) => {
                values.push(u32::from_be_bytes(exactly(value)?).into())
            }
            (Kind::Float4, Values::F32(values)) => {
                let number = f32::from_be_bytes(exactly(value)?);
                values.push(if number.is_nan() { f32::NAN } else { number });
            }
            (Kind::Float8, Values::F64(values)) => {
                let number = f64::from_be_bytes(exactly(value)?);
                values.push(if number.is_nan() { f64::NAN } else { number });
            }
            (Kind::Decimal { precision, scale }, Values::I128(values)) => {
                return Ok(held(numeric::scaled(value, *precision, *scale)?, values));
            }
            (Kind::Money, Values::I128(values)) => {
                values.push(i64::from_be_bytes(exactly(value)?).into())
            }
            (Kind::Date, Values::I32(values)) => return Ok(held(datetime::date(value)?, values)),
            (Kind::Timestamp | Kind::Timestamptz, Values::I64(values)) => {
                return Ok(held(datetime::timestamp(value)?, values));
            }
            (Kind::Bytea | Kind::Text, Values::Bytes(values)) => values.push(value)?,
            (Kind::Jsonb, Values::Bytes(values)) => values.push(wire_text::jsonb(value)?)?,
            (kind, Values::Bytes(values)) => {
                values.push_with(|out| wire_text::write(kind, value, out))?
            }
            (Kind::Array(_), Values::List { ends, items }) => {
                let start = items.len();
                let pushed = push_elements(value, items);
                return list_fit(pushed, start, ends, items);
            }
            _ => return Err(Malformed("this type is read as text only")),
        }
        Ok(Fit::Held)
    }

    /// The array of everything appended; the builder is empty again.
    ///
    /// # Errors
    /// A text is not UTF-8.
    pub fn finish(&mut self) -> Result<ArrayRef> {
        let nulls = self.nulls.finish();
        let data_type = self.kind.arrow_type();
        Ok(match &mut self.values {
            Values::Bool(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::I16(values) => primitive::<Int16Type>(values, nulls),
            Values::I32(values) if data_type == DataType::Date32 => {
                primitive::<Date32Type>(values, nulls)
            }
            Values::I32(values) => primitive::<Int32Type>(values, nulls),
            Values::I64(values) => match data_type {
                DataType::Timestamp(_, None) => {
                    primitive::<TimestampMicrosecondType>(values, nulls)
                }
                DataType::Timestamp(_, Some(_)) => {
                    Arc::new(take::<TimestampMicrosecondType>(values, nulls).with_timezone(utc()))
                }
                _ => primitive::<Int64Type>(values, nulls),
            },
            Values::F32(values) => primitive::<Float32Type>(values, nulls),
            Values::F64(values) => primitive::<Float64Type>(values, nulls),
            Values::I128(values) => {
                Arc::new(take::<Decimal128Type>(values, nulls).with_data_type(data_type))
            }
            Values::Bytes(values) if data_type == DataType::Binary => {
                let next = Vec::with_capacity(values.data.len());
                let data = Buffer::from_vec(std::mem::replace(&mut values.data, next));
                Arc::new(BinaryArray::try_new(values.ends.finish(), data, nulls).map_err(broken)?)
            }
            Values::Bytes(values) => Arc::new(values.strings(nulls)?),
            Values::List { ends, items } => {
                let items = items.finish()?;
                let field = list_item(items.data_type().clone());
                Arc::new(ListArray::try_new(field, ends.finish(), items, nulls).map_err(broken)?)
            }
            Values::Map { ends, keys, values, nulls: value_nulls } => {
                let (keys, values) = (keys.strings(None)?, values.strings(value_nulls.finish())?);
                Arc::new(map_array(ends.finish(), keys, values, nulls)?)
            }
        })
    }
}

/// Appends a value that the Delta type holds.
#[inline]
fn held<T>(value: Option<T>, values: &mut Vec<T>) -> Fit {
    match value {
        Some(value) => {
            values.push(value);
            Fit::Held
        }
        None => Fit::Overflow,
    }
}

/// Ends a list, or takes its elements back.
fn list_fit(
    pushed: Decode<Fit>,
    start: usize,
    ends: &mut Ends,
    items: &mut ColumnBuilder,
) -> Decode<Fit> {
    let done = match pushed {
        Ok(Fit::Held) => ends.push(items.len()).map(|()| Fit::Held),
        other => other,
    };
    if done != Ok(Fit::Held) {
        items.truncate(start);
    }
    done
}

fn push_elements(value: &[u8], items: &mut ColumnBuilder) -> Decode<Fit> {
    let sent = Sent::parse(value)?;
    let Some(length) = sent.list_length() else { return Ok(Fit::Overflow) };
    let mut elements = sent.elements;
    for _ in 0..length {
        match elements.field()? {
            None => items.append_null(),
            Some(element) => {
                if items.push_binary(element)? == Fit::Overflow {
                    return Ok(Fit::Overflow);
                }
            }
        }
    }
    elements.end()?;
    Ok(Fit::Held)
}

fn push_texts(
    text: &[u8],
    delimiter: u8,
    items: &mut ColumnBuilder,
    scratch: &mut Vec<u8>,
) -> Decode<Fit> {
    let Some(mut texts) = Texts::parse(text, delimiter)? else { return Ok(Fit::Overflow) };
    while let Some(element) = texts.next(scratch)? {
        let fit = match element {
            Text::Null => {
                items.append_null();
                Fit::Held
            }
            Text::Plain(text) => items.push_text(text)?,
            Text::Unescaped => items.push_text(scratch)?,
        };
        if fit == Fit::Overflow {
            return Ok(fit);
        }
    }
    Ok(Fit::Held)
}

fn push_vector(text: &[u8], items: &mut ColumnBuilder) -> Decode<()> {
    extension::vector_items(text)?.try_for_each(|item| items.push_text(item).map(|_| ()))
}

fn take<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> PrimitiveArray<T> {
    let next = Vec::with_capacity(values.len());
    PrimitiveArray::new(ScalarBuffer::from(std::mem::replace(values, next)), nulls)
}

fn primitive<T: ArrowPrimitiveType>(
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

fn overflow_text(text: Vec<u8>) -> Result<String> {
    String::from_utf8(text)
        .map_err(|error| refused(Malformed("text that is not UTF-8"), error.as_bytes()))
}

fn refused(error: Malformed, value: &[u8]) -> Error {
    Error::failed(format!("{}: {}", error.0, shown(value)))
        .next("check that the session settings are not overridden in the source; otherwise report the value's type")
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

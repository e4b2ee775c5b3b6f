//! Builds one Arrow column from PostgreSQL's values.
//!
//! Values go into plain vectors, so that nothing is allocated for a value and an array whose last
//! element does not fit can be taken back. Texts are checked to be UTF-8 once a column, at the end.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, ListArray, NullBufferBuilder,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};

use super::array::{Sent, Text, Texts};
use super::cursor::{Decode, Malformed, exactly};
use super::kind::{Kind, list_item, utc};
use super::plan::ColumnPlan;
use super::values::{Ends, Values, broken, map_array, primitive, shown, take};
use super::{bytes, datetime, extension, numeric, scalar, wire_text};
use crate::error::{Error, Result};

/// A column under construction.
pub struct ColumnBuilder {
    kind: Kind,
    values: Values,
    nulls: NullBufferBuilder,
    /// Undone escapes of the element at hand.
    scratch: Vec<u8>,
    /// Values stand in Delta's log: see [`ColumnBuilder::of`].
    partition: bool,
}

/// 9999-12-31 in days since 1970: what is later has a sign in front, which not every reader knows.
const LAST_PLAIN_DAY: i32 = 2_932_896;

/// What became of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// It was appended.
    Held,
    /// The Delta type can't hold it; nothing was appended.
    Overflow,
}

impl ColumnBuilder {
    /// A builder for columns of `kind` with room for `capacity` values.
    pub fn new(kind: &Kind, capacity: usize) -> Self {
        ColumnBuilder {
            kind: kind.clone(),
            values: Values::new(kind, capacity),
            nulls: NullBufferBuilder::new(capacity),
            scratch: Vec::new(),
            partition: false,
        }
    }

    /// A builder for a column of a table. Where files are partitioned by it, its values stand as texts in
    /// Delta's log, which takes an empty one for NULL: those overflow, and so do dates of five digits.
    pub fn of(plan: &ColumnPlan, capacity: usize) -> Self {
        ColumnBuilder { partition: plan.partition, ..Self::new(&plan.kind, capacity) }
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
            Fit::Held if self.partition && self.last_is_no_partition() => {
                self.truncate(self.len() - 1);
                self.append_null();
                overflow_text(text.to_vec()).map(Some)
            }
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
        let mut fit = self.push_binary(value).map_err(|error| refused(error, value))?;
        if fit == Fit::Held && self.partition && self.last_is_no_partition() {
            self.truncate(self.len() - 1);
            fit = Fit::Overflow;
        }
        match fit {
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

    /// Whether the last value, which is not NULL, can't stand in Delta's log.
    fn last_is_no_partition(&self) -> bool {
        match &self.values {
            Values::Bytes(values) => values.last_is_empty(),
            Values::I32(days) if self.kind == Kind::Date => days.last() > Some(&LAST_PLAIN_DAY),
            _ => false,
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

    pub(super) fn truncate(&mut self, len: usize) {
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
            (Kind::Hashed(key), Values::Bytes(values)) => {
                let hash = key.hash(text)?;
                values.push_with(|out| {
                    bytes::push_hex(&hash, out);
                    Ok(())
                })?;
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

fn overflow_text(text: Vec<u8>) -> Result<String> {
    String::from_utf8(text)
        .map_err(|error| refused(Malformed("text that is not UTF-8"), error.as_bytes()))
}

fn refused(error: Malformed, value: &[u8]) -> Error {
    Error::unfit(format!("{}: {}", error.0, shown(value)))
        .next("check that the session settings are not overridden in the source; otherwise report the value's type")
}

//! A digest of rows that does not depend on their order.
//!
//! Every row is hashed to 128 bits and the hashes are added up, so that chunks, files and batches
//! can be compared however they were cut. It proves that what was decoded is what is in the
//! written file; it is not meant to withstand an adversary.
//!
//! It works column by column: one pass over each array updates a state per row. Every step is a
//! bijection of the state and of the value's hash, so neither can swallow the other; columns are
//! told apart by their place, a null from every value.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal128Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::error::{Error, Result};

/// Number of rows and the sum of their 128-bit hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RowDigest {
    /// Rows summed.
    pub rows: u64,
    /// Sum of the rows' low halves, wrapping.
    pub lo: u64,
    /// Sum of the rows' high halves, wrapping.
    pub hi: u64,
}

impl RowDigest {
    /// Adds the rows of a batch. Columns count by their place, not by their name.
    ///
    /// # Errors
    /// A column is of a type Tidegate does not write.
    pub fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        let states = states(batch.columns(), batch.num_rows()).map_err(|(place, e)| {
            e.at(format!("column {:?}", batch.schema_ref().field(place).name()))
        })?;
        self.rows += batch.num_rows() as u64;
        for state in states {
            self.lo = self.lo.wrapping_add(avalanche(state.0));
            self.hi = self.hi.wrapping_add(avalanche(state.1));
        }
        Ok(())
    }

    /// Adds the rows of another digest.
    pub fn merge(&mut self, other: RowDigest) {
        self.rows += other.rows;
        self.lo = self.lo.wrapping_add(other.lo);
        self.hi = self.hi.wrapping_add(other.hi);
    }

    /// The sum as 32 hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:016x}{:016x}", self.hi, self.lo)
    }
}

/// A digest of each row of these columns. They count by their place: equal digests are equal values.
///
/// # Errors
/// A column is of a type Tidegate does not write.
pub fn row_digests(columns: &[ArrayRef]) -> Result<Vec<[u8; 16]>> {
    let rows = columns.first().map_or(0, |column| column.len());
    let states = states(columns, rows).map_err(|(_, error)| error)?;
    let digest = |(lo, hi): State| {
        let mut bytes = [0; 16];
        let (first, second) = bytes.split_at_mut(8);
        first.copy_from_slice(&avalanche(lo).to_be_bytes());
        second.copy_from_slice(&avalanche(hi).to_be_bytes());
        bytes
    };
    Ok(states.into_iter().map(digest).collect())
}

/// The states of the rows of columns; an error comes with the column's place.
fn states(columns: &[ArrayRef], rows: usize) -> Result<Vec<State>, (usize, Error)> {
    let mut states = vec![START; rows];
    for (place, column) in columns.iter().enumerate() {
        mix_column(column, seed_of(place as u64), &mut states).map_err(|e| (place, e))?;
    }
    Ok(states)
}

type State = (u64, u64);

const START: State = (0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344);
const K: [u64; 4] =
    [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB];

fn seed_of(place: u64) -> u64 {
    avalanche(place.wrapping_add(1).wrapping_mul(K[0]))
}

/// The finalizer of splitmix64: every bit of the input moves every bit of the output.
#[inline(always)]
fn avalanche(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(K[2]);
    x = (x ^ x >> 27).wrapping_mul(K[3]);
    x ^ x >> 31
}

#[inline(always)]
fn mix(state: &mut State, a: u64, b: u64) {
    state.0 = (state.0.rotate_left(27) ^ a).wrapping_mul(K[0]).wrapping_add(K[3]);
    state.1 = (state.1.rotate_left(31) ^ b).wrapping_mul(K[1]).wrapping_add(K[2]);
}

#[inline(always)]
fn mix_word(state: &mut State, seed: u64, word: u64) {
    mix(state, avalanche(word.wrapping_add(seed)), avalanche(word ^ seed.rotate_left(32)));
}

#[inline(always)]
fn mix_null(state: &mut State, seed: u64) {
    state.0 = (state.0.rotate_left(11) ^ seed).wrapping_mul(K[2]).wrapping_add(1);
    state.1 = (state.1.rotate_left(17) ^ seed).wrapping_mul(K[3]).wrapping_add(1);
}

/// One pass over a column; `step` takes a row's state and its index, for rows that are not null.
#[inline(always)]
fn each(
    array: &dyn Array,
    seed: u64,
    states: &mut [State],
    mut step: impl FnMut(&mut State, usize),
) {
    match array.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
        None => states.iter_mut().enumerate().for_each(|(i, state)| step(state, i)),
        // Most overflow columns.
        Some(nulls) if nulls.null_count() == nulls.len() => {
            states.iter_mut().for_each(|state| mix_null(state, seed));
        }
        Some(nulls) => {
            for ((i, state), valid) in states.iter_mut().enumerate().zip(nulls.iter()) {
                if valid { step(state, i) } else { mix_null(state, seed) }
            }
        }
    }
}

macro_rules! words {
    ($array:expr, $seed:expr, $states:expr, $type:ty, |$v:ident| $word:expr) => {{
        let array = $array.as_primitive::<$type>();
        let values: &[_] = array.values();
        each(array, $seed, $states, |state, i| {
            if let Some($v) = values.get(i).copied() {
                mix_word(state, $seed, $word);
            }
        })
    }};
}

macro_rules! texts {
    ($array:expr, $seed:expr, $states:expr) => {{
        let array = $array;
        each(array, $seed, $states, |state, i| mix_bytes(state, $seed, array.value(i).as_ref()))
    }};
}

#[inline(always)]
fn mix_bytes(state: &mut State, seed: u64, bytes: &[u8]) {
    let hash = xxh3_128_with_seed(bytes, seed);
    mix(state, hash as u64, (hash >> 64) as u64);
}

fn mix_column(array: &ArrayRef, seed: u64, states: &mut [State]) -> Result<()> {
    match array.data_type() {
        DataType::Null => states.iter_mut().for_each(|state| mix_null(state, seed)),
        DataType::Boolean => {
            let array = array.as_boolean();
            each(array, seed, states, |state, i| mix_word(state, seed, u64::from(array.value(i))));
        }
        DataType::Int8 => words!(array, seed, states, Int8Type, |v| v as i64 as u64),
        DataType::Int16 => words!(array, seed, states, Int16Type, |v| v as i64 as u64),
        DataType::Int32 => words!(array, seed, states, Int32Type, |v| v as i64 as u64),
        DataType::Int64 => words!(array, seed, states, Int64Type, |v| v as u64),
        DataType::UInt8 => words!(array, seed, states, UInt8Type, |v| u64::from(v)),
        DataType::UInt16 => words!(array, seed, states, UInt16Type, |v| u64::from(v)),
        DataType::UInt32 => words!(array, seed, states, UInt32Type, |v| u64::from(v)),
        DataType::UInt64 => words!(array, seed, states, UInt64Type, |v| v),
        DataType::Date32 => words!(array, seed, states, Date32Type, |v| v as i64 as u64),
        DataType::Date64 => words!(array, seed, states, Date64Type, |v| v as u64),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            words!(array, seed, states, TimestampMicrosecondType, |v| v as u64)
        }
        DataType::Float32 => words!(array, seed, states, Float32Type, |v| u64::from(v.to_bits())),
        DataType::Float64 => words!(array, seed, states, Float64Type, |v| v.to_bits()),
        DataType::Decimal128(..) => {
            let array = array.as_primitive::<Decimal128Type>();
            each(array, seed, states, |state, i| {
                let value = array.value(i);
                mix_word(state, seed, value as u64);
                mix_word(state, seed, (value >> 64) as u64);
            });
        }
        DataType::Utf8 => texts!(array.as_string::<i32>(), seed, states),
        DataType::LargeUtf8 => texts!(array.as_string::<i64>(), seed, states),
        DataType::Utf8View => texts!(array.as_string_view(), seed, states),
        DataType::Binary => texts!(array.as_binary::<i32>(), seed, states),
        DataType::LargeBinary => texts!(array.as_binary::<i64>(), seed, states),
        DataType::BinaryView => texts!(array.as_binary_view(), seed, states),
        DataType::FixedSizeBinary(_) => texts!(array.as_fixed_size_binary(), seed, states),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            mix_lists(list, list.value_offsets(), list.values(), seed, states)?;
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            mix_lists(list, list.value_offsets(), list.values(), seed, states)?;
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
            mix_lists(map, map.value_offsets(), &entries, seed, states)?;
        }
        DataType::Struct(_) => {
            let parts = array.as_struct();
            let mut inner = vec![START; array.len()];
            for (place, column) in parts.columns().iter().enumerate() {
                mix_column(column, seed_of(place as u64), &mut inner)?;
            }
            each(array, seed, states, |state, i| {
                if let Some((a, b)) = inner.get(i) {
                    mix(state, avalanche(a ^ seed), avalanche(b ^ seed));
                }
            });
        }
        DataType::Dictionary(_, values) => {
            let plain = cast(array, values)
                .map_err(|e| Error::failed("a dictionary can't be expanded").because(e))?;
            mix_column(&plain, seed, states)?;
        }
        other => return Err(Error::failed(format!("rows of the type {other} can't be digested"))),
    }
    Ok(())
}

/// Lists and maps: their length, then their elements in order. Only the elements a row really has
/// are hashed: after slicing, or under a null, the child array holds others too.
fn mix_lists<O: arrow::array::OffsetSizeTrait>(
    array: &dyn Array,
    offsets: &[O],
    values: &ArrayRef,
    seed: u64,
    states: &mut [State],
) -> Result<()> {
    let first = offsets.first().map_or(0, |o| o.as_usize());
    let last = offsets.last().map_or(0, |o| o.as_usize());
    let mut elements = vec![START; last - first];
    mix_column(&values.slice(first, last - first), seed_of(seed), &mut elements)?;
    each(array, seed, states, |state, i| {
        let range = offsets
            .get(i)
            .zip(offsets.get(i + 1))
            .map(|(a, b)| a.as_usize() - first..b.as_usize() - first);
        let items = range.and_then(|range| elements.get(range)).unwrap_or_default();
        mix_word(state, seed, items.len() as u64);
        for (a, b) in items {
            mix(state, avalanche(*a), avalanche(*b));
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::*;
    use arrow::compute::{concat_batches, take_record_batch};
    use proptest::prelude::*;
    use std::sync::Arc;

    type Row = (
        Option<i32>,
        Option<String>,
        Option<Vec<Option<i64>>>,
        Option<Vec<(String, Option<String>)>>,
        Option<f64>,
    );

    fn batch(rows: &[Row]) -> RecordBatch {
        let ints: Int32Array = rows.iter().map(|r| r.0).collect();
        let texts: StringArray = rows.iter().map(|r| r.1.clone()).collect();
        let lists =
            ListArray::from_iter_primitive::<Int64Type, _, _>(rows.iter().map(|r| r.2.clone()));
        let mut maps = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for row in rows {
            for (key, value) in row.3.iter().flatten() {
                maps.keys().append_value(key);
                maps.values().append_option(value.as_ref());
            }
            maps.append(row.3.is_some()).unwrap();
        }
        let floats: Float64Array = rows.iter().map(|r| r.4).collect();
        RecordBatch::try_from_iter([
            ("i", Arc::new(ints) as ArrayRef),
            ("t", Arc::new(texts)),
            ("l", Arc::new(lists)),
            ("m", Arc::new(maps.finish())),
            ("f", Arc::new(floats)),
        ])
        .unwrap()
    }

    fn digest(batches: &[RecordBatch]) -> RowDigest {
        let mut digest = RowDigest::default();
        batches.iter().for_each(|b| digest.update(b).unwrap());
        digest
    }

    fn row() -> impl Strategy<Value = Row> {
        let text = "[a-c]{0,3}";
        (
            prop::option::of(0..3i32),
            prop::option::of(text),
            prop::option::of(prop::collection::vec(prop::option::of(0..3i64), 0..4)),
            prop::option::of(prop::collection::vec((text, prop::option::of(text)), 0..3)),
            prop::option::of(prop_oneof![Just(0.0), Just(-0.0), Just(f64::NAN), Just(1.5)]),
        )
    }

    proptest! {
        #[test]
        fn order_and_batch_boundaries_do_not_matter(rows in prop::collection::vec(row(), 0..40), cut in 0usize..40, turn in 0u32..40) {
            let whole = batch(&rows);
            let cut = cut.min(rows.len());
            let parts = [whole.slice(0, cut), whole.slice(cut, rows.len() - cut)];
            prop_assert_eq!(digest(std::slice::from_ref(&whole)), digest(&parts));
            let n = rows.len() as u32;
            let order: UInt32Array = (0..n).map(|i| (i + turn) % n).collect();
            prop_assert_eq!(digest(&[take_record_batch(&whole, &order).unwrap()]), digest(std::slice::from_ref(&whole)));
            let again = concat_batches(&whole.schema(), &parts).unwrap();
            prop_assert_eq!(digest(&[again]), digest(&[whole]));
        }

        #[test]
        fn different_rows_differ(a in prop::collection::vec(row(), 0..6), b in prop::collection::vec(row(), 0..6)) {
            let show = |rows: &[Row]| { let mut v: Vec<String> = rows.iter().map(|r| format!("{r:?}")).collect(); v.sort(); v };
            prop_assert_eq!(digest(&[batch(&a)]) == digest(&[batch(&b)]), show(&a) == show(&b));
        }
    }

    #[test]
    fn a_value_in_the_next_column_or_row_is_noticed() {
        let two = |a: Vec<Option<i64>>, b: Vec<Option<i64>>| {
            let a: ArrayRef = Arc::new(Int64Array::from(a));
            let b: ArrayRef = Arc::new(Int64Array::from(b));
            digest(&[RecordBatch::try_from_iter([("a", a), ("b", b)]).unwrap()])
        };
        let base = two(vec![Some(1), Some(2)], vec![Some(3), Some(4)]);
        assert_ne!(
            base,
            two(vec![Some(1), Some(2)], vec![Some(4), Some(3)]),
            "swapped between rows"
        );
        assert_ne!(
            base,
            two(vec![Some(3), Some(4)], vec![Some(1), Some(2)]),
            "swapped between columns"
        );
        assert_ne!(two(vec![Some(0)], vec![None]), two(vec![None], vec![Some(0)]));
        assert_ne!(
            two(vec![Some(0)], vec![None]),
            two(vec![Some(0)], vec![Some(0)]),
            "a null is no zero"
        );
    }

    #[test]
    fn text_layouts_agree() {
        let plain: ArrayRef = Arc::new(StringArray::from(vec![
            Some("abc"),
            None,
            Some("a text longer than twelve bytes"),
        ]));
        let view = cast(&plain, &DataType::Utf8View).unwrap();
        let large = cast(&plain, &DataType::LargeUtf8).unwrap();
        let of = |a: ArrayRef| digest(&[RecordBatch::try_from_iter([("t", a)]).unwrap()]);
        assert_eq!(of(plain.clone()), of(view));
        assert_eq!(of(plain), of(large));
    }
}

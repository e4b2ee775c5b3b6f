//! Key bytes: how a row is named in the location index.
//!
//! A key is made from the values as they stand in the lake, so that it is the same whether it was
//! copied in a snapshot, streamed, or read back to rebuild the index. PostgreSQL names the old row
//! byte for byte as it was stored (a change from 1.0 to 1.00 is a key change), so equal bytes are
//! what counts here, not equality by the type's operator. A value that the Delta type can't hold
//! stands in the overflow map; its text is part of the key then.
//!
//! A row of a table without a key is named by a BLAKE3 digest of the whole row.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MapArray, RecordBatch, StringArray, StringBuilder};
use arrow::row::{RowConverter, Rows, SortField};

use crate::apply::plan::{RowIdentity, TablePlan};
use crate::error::{Error, Result};

const DIGEST_BYTES: usize = 20;

/// Makes keys of one table.
pub struct KeyEncoder {
    converter: RowConverter,
    /// Indices of the columns, and whether a value of it can overflow.
    columns: Vec<(usize, bool)>,
    names: Vec<String>,
    whole_row: bool,
}

/// Keys of the rows of a batch, in its order.
pub enum Keys {
    /// The encoded key columns.
    Encoded(Rows),
    /// Digests of whole rows.
    Digests(Vec<[u8; DIGEST_BYTES]>),
}

impl Keys {
    /// Key of row `index`; empty if there is no such row.
    pub fn get(&self, index: usize) -> &[u8] {
        match self {
            Keys::Encoded(rows) if index < rows.num_rows() => rows.row(index).data(),
            Keys::Encoded(_) => &[],
            Keys::Digests(digests) => digests.get(index).map_or(&[], |digest| digest.as_slice()),
        }
    }

    /// Sorts `items` by the keys with the indices that `key` and the order that `then` give. Most
    /// comparisons are of the first bytes, kept beside the items: the keys are all over memory.
    pub fn sort<T: Copy>(
        &self,
        items: &mut Vec<T>,
        key: impl Fn(&T) -> u32,
        then: impl Fn(&T, &T) -> Ordering,
    ) {
        let mut order: Vec<(u128, T)> =
            items.iter().map(|item| (leading(self.get(key(item) as usize)), *item)).collect();
        order.sort_unstable_by(|(a, x), (b, y)| {
            a.cmp(b)
                .then_with(|| self.get(key(x) as usize).cmp(self.get(key(y) as usize)))
                .then_with(|| then(x, y))
        });
        items.clear();
        items.extend(order.into_iter().map(|(_, item)| item));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Keys::Encoded(rows) => rows.num_rows(),
            Keys::Digests(digests) => digests.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl KeyEncoder {
    /// An encoder for `plan`; none for a table whose rows are never looked up.
    pub fn new(plan: &TablePlan) -> Result<Option<Self>> {
        let (indices, whole_row) = match &plan.identity {
            RowIdentity::Key(key) => (key.clone(), false),
            RowIdentity::WholeRow => ((0..plan.columns.len()).collect(), true),
            RowIdentity::AppendOnly => return Ok(None),
        };
        let mut columns = Vec::with_capacity(indices.len());
        let mut names = Vec::with_capacity(indices.len());
        let mut fields = Vec::new();
        for index in indices {
            let Some(column) = plan.columns.get(index) else { continue };
            let overflows = column.can_overflow();
            fields.push(SortField::new(column.kind.arrow_type()));
            if overflows {
                fields.push(SortField::new(arrow::datatypes::DataType::Utf8));
            }
            columns.push((index, overflows));
            names.push(column.name.clone());
        }
        let converter = RowConverter::new(fields)
            .map_err(|e| Error::failed(format!("{plan}: its key can't be indexed")).because(e))?;
        Ok(Some(KeyEncoder { converter, columns, names, whole_row }))
    }

    /// Indices of the columns a key is made of, in order, and whether a value of it can overflow.
    pub fn columns(&self) -> &[(usize, bool)] {
        &self.columns
    }

    /// Whether a key is the whole row.
    pub fn whole_row(&self) -> bool {
        self.whole_row
    }

    /// Whether keys need the overflow map beside their columns.
    pub fn needs_overflow(&self) -> bool {
        self.columns.iter().any(|(_, overflows)| *overflows)
    }

    /// Names of the columns a key is made of.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Keys of all rows, from the key columns in order, each with the texts of values that overflow
    /// if it can have such.
    ///
    /// # Errors
    /// Arrays of another type than the plan's.
    pub fn encode(&self, columns: Vec<(ArrayRef, Option<StringArray>)>) -> Result<Keys> {
        let mut inputs = Vec::with_capacity(columns.len() * 2);
        for ((array, texts), (_, overflows)) in columns.into_iter().zip(&self.columns) {
            let rows = array.len();
            inputs.push(array);
            if *overflows {
                let texts = texts.unwrap_or_else(|| StringArray::new_null(rows));
                inputs.push(Arc::new(texts) as ArrayRef);
            }
        }
        let encoded = self
            .converter
            .convert_columns(&inputs)
            .map_err(|e| Error::failed("key columns of an unexpected type").because(e))?;
        if !self.whole_row {
            return Ok(Keys::Encoded(encoded));
        }
        Ok(Keys::Digests(
            encoded
                .iter()
                .map(|row| {
                    let mut digest = [0; DIGEST_BYTES];
                    let hash = blake3::hash(row.data());
                    digest.copy_from_slice(hash.as_bytes().split_at(DIGEST_BYTES).0);
                    digest
                })
                .collect(),
        ))
    }

    /// Keys of the rows of a batch that has the plan's columns first, then ours.
    pub fn encode_batch(&self, batch: &RecordBatch, overflow_name: &str) -> Result<Keys> {
        let overflow = batch.column_by_name(overflow_name).and_then(|map| map.as_map_opt());
        let mut columns = Vec::with_capacity(self.columns.len());
        for (name, (_, overflows)) in self.names.iter().zip(&self.columns) {
            let array = batch.column_by_name(name).ok_or_else(|| {
                Error::failed(format!("a data file lacks the key column {name:?}"))
            })?;
            let texts = overflows.then(|| overflow_text(overflow, name, batch.num_rows()));
            columns.push((array.clone(), texts));
        }
        self.encode(columns)
    }
}

/// The first bytes of a key, as a number in the order of keys; equal numbers decide nothing.
fn leading(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(key) {
        *to = *from;
    }
    u128::from_be_bytes(bytes)
}

/// For each row, the text under which `name` stands in the overflow map.
pub fn overflow_text(overflow: Option<&MapArray>, name: &str, rows: usize) -> StringArray {
    let Some(map) = overflow.filter(|map| map.null_count() < map.len()) else {
        return StringArray::new_null(rows);
    };
    let keys = map.keys().as_string_opt::<i32>();
    let values = map.values().as_string_opt::<i32>();
    let (Some(keys), Some(values)) = (keys, values) else { return StringArray::new_null(rows) };
    let mut out = StringBuilder::with_capacity(rows, 0);
    let offsets = map.value_offsets();
    for row in 0..rows {
        let range = match (offsets.get(row), offsets.get(row + 1)) {
            (Some(start), Some(end)) if map.is_valid(row) => *start as usize..*end as usize,
            _ => 0..0,
        };
        let found = range.into_iter().find(|entry| keys.value(*entry) == name);
        out.append_option(found.map(|entry| values.value(entry)));
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Also where a key is the beginning of another, or they differ behind the first bytes.
        #[test]
        fn keys_sort_as_their_bytes_do(
            texts in proptest::collection::vec("(a{14,18}|\\x00{0,3})[ab\\x00]{0,2}", 0..40),
        ) {
            let converter = RowConverter::new(vec![SortField::new(
                arrow::datatypes::DataType::Utf8,
            )]).unwrap();
            let array: ArrayRef = Arc::new(StringArray::from(texts.clone()));
            let keys = Keys::Encoded(converter.convert_columns(&[array]).unwrap());
            let mut items: Vec<u32> = (0..texts.len() as u32).rev().collect();
            keys.sort(&mut items, |i| *i, |a, b| a.cmp(b));
            let mut wanted: Vec<u32> = (0..texts.len() as u32).collect();
            wanted.sort_by_key(|i| (keys.get(*i as usize).to_vec(), *i));
            prop_assert_eq!(items, wanted);
        }
    }
}

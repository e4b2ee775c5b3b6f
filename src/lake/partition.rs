//! Partition columns: their values stand in the log, one for each data file.
//!
//! They stand in the file, too, as in any column: Polars looks there, unless the file's path has them.
//! The log's are what counts, as other programs leave them out of the files they write.
//!
//! Carries the guarantee that a value comes back as it went in: what is written as text here is read
//! by every engine as the value it was. An empty text would come back as NULL, so the columns' plan
//! never lets one come here. Source: Delta protocol, "Partition Value Serialization".

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array, new_null_array};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, SortField};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::error::{Error, Result};

/// The values of a file's partition columns, by their names; empty in a table without.
pub type PartitionValues = BTreeMap<String, Option<String>>;

/// The columns of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableColumns {
    /// All of them.
    pub schema: SchemaRef,
    /// Names of those that the files are partitioned by.
    pub partitioned_by: Vec<String>,
}

impl From<SchemaRef> for TableColumns {
    fn from(schema: SchemaRef) -> Self {
        TableColumns { schema, partitioned_by: Vec::new() }
    }
}

/// Whether a table can be partitioned by a column of this type: equal values have one text, which is
/// read back without loss. Not so floating-point numbers; instants have too many values.
pub fn can_partition(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Decimal128(..)
            | DataType::Date32
            | DataType::Utf8
    )
}

/// The rows of a batch that belong together, and the values they share.
pub(super) struct Group {
    /// The values.
    pub values: PartitionValues,
    /// The rows' numbers in the batch, ascending; none: all rows are of this group.
    pub rows: Option<UInt32Array>,
}

/// The rows of `batch` by their values of `columns`, in the order in which the values come.
///
/// # Errors
/// A column that the batch does not have, or of a type that can't partition.
pub(super) fn groups(batch: &RecordBatch, columns: &[String]) -> Result<Vec<Group>> {
    if batch.num_rows() == 0 {
        return Ok(Vec::new());
    }
    let mut arrays = Vec::with_capacity(columns.len());
    for name in columns {
        let array = batch.column_by_name(name).filter(|array| can_partition(array.data_type()));
        arrays.push(array.cloned().ok_or_else(|| {
            Error::failed(format!("a batch can't be partitioned by {name:?}")).next("report this")
        })?);
    }
    let wrong = |e| Error::failed("a batch can't be partitioned").because(e);
    let fields = arrays.iter().map(|array| SortField::new(array.data_type().clone())).collect();
    let rows = RowConverter::new(fields)
        .and_then(|converter| converter.convert_columns(&arrays))
        .map_err(wrong)?;
    let mut found: HashMap<_, usize> = HashMap::new();
    let mut members: Vec<Vec<u32>> = Vec::new();
    for (number, row) in (0u32..).zip(rows.iter()) {
        let group = *found.entry(row).or_insert(members.len());
        match members.get_mut(group) {
            Some(of_group) => of_group.push(number),
            None => members.push(vec![number]),
        }
    }
    let one = members.len() == 1;
    let mut groups = Vec::with_capacity(members.len());
    for of_group in members {
        let first = of_group.first().copied().unwrap_or_default() as usize;
        let mut values = PartitionValues::new();
        for (name, array) in columns.iter().zip(&arrays) {
            values.insert(name.clone(), text(array, first)?);
        }
        groups.push(Group { values, rows: (!one).then(|| of_group.into()) });
    }
    Ok(groups)
}

/// A value as the log has it.
fn text(array: &ArrayRef, row: usize) -> Result<Option<String>> {
    if array.is_null(row) {
        return Ok(None);
    }
    let wrong = |e| Error::failed("a partition value can't be written").because(e);
    let options = FormatOptions::new();
    let formatter = ArrayFormatter::try_new(array.as_ref(), &options).map_err(wrong)?;
    let text = formatter.value(row).try_to_string().map_err(wrong)?;
    if text.is_empty() {
        return Err(Error::failed("an empty text as a partition value, which Delta does not have")
            .next("report this"));
    }
    Ok(Some(text))
}

/// A column of `rows` rows that all have the value the log says.
///
/// # Errors
/// The text is none of the type's.
pub(super) fn column(value: Option<&str>, data_type: &DataType, rows: usize) -> Result<ArrayRef> {
    // The protocol has an empty text stand for NULL, whatever the type.
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(new_null_array(data_type, rows));
    };
    let wrong = |e| {
        Error::failed(format!("the partition value {value:?} is no {data_type}"))
            .because(e)
            .next("another program wrote the file: read the table again with `tidegate reseed`")
    };
    let text: ArrayRef = Arc::new(StringArray::from(vec![value]));
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let one = cast_with_options(&text, data_type, &options).map_err(wrong)?;
    take(&one, &UInt32Array::from_value(0, rows), None).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use arrow::array::{BooleanArray, Date32Array, Decimal128Array, Int16Array, Int64Array};
    use proptest::prelude::*;

    use super::*;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
            .unwrap()
    }

    fn there_and_back(array: &ArrayRef) {
        let batch = batch(vec![("v", array.clone())]);
        for group in groups(&batch, &["v".to_owned()]).unwrap() {
            let rows = group.rows.unwrap_or_else(|| (0..array.len() as u32).collect());
            let value = group.values["v"].as_deref();
            let back = column(value, array.data_type(), rows.len()).unwrap();
            assert_eq!(&take(array, &rows, None).unwrap(), &back, "{value:?}");
        }
    }

    #[test]
    fn every_value_comes_back_and_equal_ones_are_together() {
        let dates = [None, Some(-719_162), Some(0), Some(2_932_896), Some(0)];
        let decimals = [Some(-150), None, Some(0), Some(5), Some(i128::from(u64::MAX) * 10)];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true)])),
            Arc::new(Int16Array::from(vec![Some(i16::MIN), Some(-1), None, Some(-1)])),
            Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(i64::MAX), None])),
            Arc::new(Date32Array::from(dates.to_vec())),
            Arc::new(
                Decimal128Array::from(decimals.to_vec()).with_precision_and_scale(38, 2).unwrap(),
            ),
            Arc::new(StringArray::from(vec![Some("a b"), Some("A b"), Some(" "), None])),
        ];
        columns.iter().for_each(there_and_back);
        let found = groups(&batch(vec![("v", columns[0].clone())]), &["v".to_owned()]).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].values["v"].as_deref(), Some("true"));
        assert_eq!(found[0].rows.as_ref().unwrap().values(), &[0, 3]);
        let date = groups(&batch(vec![("v", columns[3].clone())]), &["v".to_owned()]).unwrap();
        assert_eq!(date[1].values["v"].as_deref(), Some("0001-01-01"));
        assert_eq!(date[3].values["v"].as_deref(), Some("9999-12-31"));
    }

    #[test]
    fn one_value_needs_no_row_numbers_and_an_empty_text_is_refused() {
        let same: ArrayRef = Arc::new(StringArray::from(vec!["eu", "eu"]));
        let found = groups(&batch(vec![("v", same)]), &["v".to_owned()]).unwrap();
        assert!(found.len() == 1 && found[0].rows.is_none());
        let empty: ArrayRef = Arc::new(StringArray::from(vec![""]));
        assert!(groups(&batch(vec![("v", empty)]), &["v".to_owned()]).is_err());
        assert!(column(Some("x"), &DataType::Int32, 1).is_err());
        assert!(column(Some(""), &DataType::Utf8, 2).unwrap().null_count() == 2);
    }

    proptest! {
        #[test]
        fn texts_come_back(texts in prop::collection::vec(prop::option::of(".{1,8}"), 1..20)) {
            there_and_back(&(Arc::new(StringArray::from(texts)) as ArrayRef));
        }

        #[test]
        fn rows_are_in_one_group_each(values in prop::collection::vec(prop::option::of(0i64..5), 1..200)) {
            let array: ArrayRef = Arc::new(Int64Array::from(values.clone()));
            let found = groups(&batch(vec![("v", array)]), &["v".to_owned()]).unwrap();
            let mut seen = vec![0; values.len()];
            for group in &found {
                let all: UInt32Array = (0..values.len() as u32).collect();
                for row in group.rows.as_ref().unwrap_or(&all).values() {
                    seen[*row as usize] += 1;
                    let text = values[*row as usize].map(|v| v.to_string());
                    prop_assert_eq!(&group.values["v"], &text);
                }
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }
    }
}

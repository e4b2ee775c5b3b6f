//! Delta's statistics of a data file, from what Parquet's footer already knows.
//!
//! Bounds may be wider than the values, never narrower: texts are cut (the upper bound is then
//! raised), timestamps are cut to milliseconds (the upper bound is rounded up), and what can't be
//! written safely (NaN in the file, infinities, years beyond four digits) is left out. Source:
//! Delta protocol, "Per-file Statistics".

use std::collections::BTreeSet;
use std::fmt::Write as _;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, SchemaRef, TimeUnit, TimestampMicrosecondType,
};
use chrono::{DateTime, Datelike, NaiveDate};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::ParquetMetaData;

use crate::error::{Error, Result};

/// Characters of a text bound, as Spark keeps.
const TEXT_CHARS: usize = 32;

/// The end of every statistic we write: bounds are of rows that are all there.
const TIGHT: &str = ",\"tightBounds\":true}";
const WIDE: &str = ",\"tightBounds\":false}";

/// Statistics of a file just written. `with_nan`: columns in which a NaN was seen.
///
/// # Errors
/// The footer does not fit the schema.
pub fn of_file(
    metadata: &ParquetMetaData,
    schema: &SchemaRef,
    columns: &[String],
    with_nan: &BTreeSet<String>,
) -> Result<String> {
    let (mut least, mut greatest, mut nulls) = (String::new(), String::new(), String::new());
    let groups = metadata.row_groups();
    let rows: i64 = groups.iter().map(|g| g.num_rows()).sum();
    for name in columns {
        let Ok(field) = schema.field_with_name(name) else { continue };
        if field.data_type().is_nested() {
            continue;
        }
        let wrong = |e| {
            Error::failed(format!("the statistics of column {name:?} can't be read back"))
                .because(e)
        };
        let converter =
            StatisticsConverter::try_new(name, schema, metadata.file_metadata().schema_descr())
                .map_err(wrong)?;
        let counts = converter.row_group_null_counts(groups).map_err(wrong)?;
        let count: u64 = counts.iter().flatten().sum();
        if counts.null_count() == 0 {
            member(&mut nulls, name, &count.to_string());
        }
        if with_nan.contains(name) || count == rows as u64 || !is_bounded(field.data_type()) {
            continue;
        }
        let mins = converter.row_group_mins(groups).map_err(wrong)?;
        let maxes = converter.row_group_maxes(groups).map_err(wrong)?;
        // A row group without bounds is harmless only if it holds nothing but nulls.
        let unknown = groups.iter().enumerate().any(|(i, group)| {
            (mins.is_null(i) || maxes.is_null(i))
                && (counts.is_null(i) || counts.value(i) != group.num_rows() as u64)
        });
        if unknown {
            continue;
        }
        if let (Some(low), Some(high)) = (bound(&mins, false), bound(&maxes, true)) {
            member(&mut least, name, &low);
            member(&mut greatest, name, &high);
        }
    }
    Ok(format!(
        "{{\"numRecords\":{rows},\"minValues\":{{{least}}},\"maxValues\":{{{greatest}}},\"nullCount\":{{{nulls}}}{TIGHT}"
    ))
}

/// The statistics of a file once rows of it are masked: its bounds hold, but may be too wide.
///
/// Works on the text, as parsing would round long decimals.
pub fn with_mask(stats: &str, rows: u64) -> String {
    if let Some(head) = stats.strip_suffix(TIGHT) {
        return format!("{head}{WIDE}");
    }
    if stats.ends_with(WIDE) {
        return stats.to_owned();
    }
    // Written by others: keep the bounds only where it is plain how to mark them.
    let mut places = stats.match_indices("\"tightBounds\":");
    match (places.next(), places.next(), stats.strip_prefix('{')) {
        (None, _, Some(rest)) if stats.contains("\"numRecords\"") => {
            format!("{{\"tightBounds\":false,{rest}")
        }
        (Some((at, key)), None, Some(_)) if stats[at + key.len()..].starts_with("true") => {
            let (head, tail) = stats.split_at(at + key.len());
            format!("{head}false{}", tail.strip_prefix("true").unwrap_or(tail))
        }
        _ => format!("{{\"numRecords\":{rows}{WIDE}"),
    }
}

/// The number of rows the statistics give.
pub fn num_records(stats: &str) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Rows {
        #[serde(rename = "numRecords")]
        rows: Option<u64>,
    }
    serde_json::from_str::<Rows>(stats).ok()?.rows
}

fn member(out: &mut String, name: &str, value: &str) {
    let comma = if out.is_empty() { "" } else { "," };
    let _ = write!(out, "{comma}{}:{value}", quoted(name));
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Types for which the protocol has bounds.
fn is_bounded(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Float32
            | DataType::Float64
            | DataType::Date32
            | DataType::Decimal128(..)
            | DataType::Utf8
            | DataType::Timestamp(TimeUnit::Microsecond, _)
    )
}

/// The least (or greatest) of the row groups' bounds, as JSON.
fn bound(array: &ArrayRef, upper: bool) -> Option<String> {
    macro_rules! pick {
        ($type:ty) => {{
            let values = array.as_primitive::<$type>().iter().flatten();
            if upper {
                values.max_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal))
            } else {
                values.min_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal))
            }
        }};
    }
    match array.data_type() {
        DataType::Int8 => pick!(Int8Type).map(|v| v.to_string()),
        DataType::Int16 => pick!(Int16Type).map(|v| v.to_string()),
        DataType::Int32 => pick!(Int32Type).map(|v| v.to_string()),
        DataType::Int64 => pick!(Int64Type).map(|v| v.to_string()),
        DataType::Float32 => pick!(Float32Type).and_then(|v| float(f64::from(v))),
        DataType::Float64 => pick!(Float64Type).and_then(float),
        DataType::Decimal128(_, scale) => pick!(Decimal128Type).map(|v| decimal(v, *scale)),
        DataType::Date32 => pick!(Date32Type).and_then(date),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            pick!(TimestampMicrosecondType).and_then(|v| timestamp(v, zone.is_some(), upper))
        }
        DataType::Utf8 => {
            let values = array.as_string::<i32>().iter().flatten();
            let value = if upper { values.max()? } else { values.min()? };
            if upper {
                text_above(value).as_deref().map(quoted)
            } else {
                Some(quoted(text_below(value)))
            }
        }
        _ => None,
    }
}

fn float(value: f64) -> Option<String> {
    // serde_json prints the shortest text that reads back as the same number.
    value.is_finite().then(|| serde_json::Value::from(value).to_string())
}

fn decimal(value: i128, scale: i8) -> String {
    let Some(scale) = usize::try_from(scale).ok().filter(|s| *s > 0) else {
        return value.to_string();
    };
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, part) = digits.split_at(digits.len() - scale);
    format!("{}{whole}.{part}", if value < 0 { "-" } else { "" })
}

fn date(days: i32) -> Option<String> {
    let date = NaiveDate::from_ymd_opt(1970, 1, 1)?
        .checked_add_signed(chrono::TimeDelta::days(i64::from(days)))?;
    (1..=9999).contains(&date.year()).then(|| format!("\"{date}\""))
}

fn timestamp(micros: i64, zoned: bool, upper: bool) -> Option<String> {
    let down = micros.div_euclid(1000);
    let millis = if upper && micros.rem_euclid(1000) != 0 { down + 1 } else { down };
    let time = DateTime::from_timestamp_millis(millis)?;
    let format = if zoned { "\"%Y-%m-%dT%H:%M:%S%.3fZ\"" } else { "\"%Y-%m-%dT%H:%M:%S%.3f\"" };
    (1..=9999).contains(&time.year()).then(|| time.format(format).to_string())
}

fn text_below(value: &str) -> &str {
    match value.char_indices().nth(TEXT_CHARS) {
        Some((end, _)) => value.get(..end).unwrap_or_default(),
        None => value,
    }
}

/// A text of at most 32 characters that is not below `value`, nor below any text it begins.
fn text_above(value: &str) -> Option<String> {
    let cut = text_below(value);
    if cut.len() == value.len() {
        return Some(value.to_owned());
    }
    // Raise the last character that can be raised, and drop what follows it.
    let mut chars: Vec<char> = cut.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            c => char::from_u32(c as u32 + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cut_upper_bound_is_raised() {
        let long = "z".repeat(40);
        assert_eq!(text_above(&long).unwrap(), format!("{}{{", "z".repeat(31)));
        assert_eq!(text_above("abc").unwrap(), "abc");
        assert_eq!(text_above(&"\u{10FFFF}".repeat(33)), None);
    }

    #[test]
    fn timestamps_are_never_cut_above() {
        assert_eq!(timestamp(1_000_001, true, true).unwrap(), "\"1970-01-01T00:00:01.001Z\"");
        assert_eq!(timestamp(1_000_999, true, false).unwrap(), "\"1970-01-01T00:00:01.000Z\"");
        assert_eq!(timestamp(-1, false, false).unwrap(), "\"1969-12-31T23:59:59.999\"");
        assert_eq!(timestamp(-1, false, true).unwrap(), "\"1970-01-01T00:00:00.000\"");
        assert_eq!(timestamp(i64::MAX, true, true), None);
    }

    #[test]
    fn decimals_keep_every_digit() {
        assert_eq!(decimal(i128::from(i64::MAX) * 1000, 3), "9223372036854775807.000");
        assert_eq!(decimal(-5, 3), "-0.005");
        assert_eq!(decimal(42, 0), "42");
    }

    #[test]
    fn masking_keeps_bounds_only_where_it_can_mark_them() {
        let ours = r#"{"numRecords":3,"minValues":{"d":1.10},"maxValues":{},"nullCount":{},"tightBounds":true}"#;
        let masked = with_mask(ours, 3);
        assert_eq!(masked, ours.replace("true", "false"));
        assert_eq!(with_mask(&masked, 3), masked);
        assert_eq!(
            with_mask(r#"{"numRecords":3,"tightBounds":true,"x":1}"#, 3),
            r#"{"numRecords":3,"tightBounds":false,"x":1}"#
        );
        assert_eq!(with_mask(r#"{"numRecords":3}"#, 3), r#"{"tightBounds":false,"numRecords":3}"#);
        assert_eq!(with_mask("", 7), r#"{"numRecords":7,"tightBounds":false}"#);
        assert_eq!(
            with_mask(r#"{"minValues":{"tightBounds":true},"tightBounds":true,"a":1}"#, 7),
            r#"{"numRecords":7,"tightBounds":false}"#
        );
    }

    proptest! {
        #[test]
        fn bounds_of_texts_hold(value in ".{0,50}") {
            prop_assert!(text_below(&value) <= value.as_str());
            if let Some(above) = text_above(&value) {
                prop_assert!(above.as_str() >= value.as_str());
                prop_assert!(above.chars().count() <= TEXT_CHARS);
            }
        }
    }
}

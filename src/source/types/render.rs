//! A value of the lake as PostgreSQL prints it.
//!
//! `verify` compares this text with the server's own. It reads Arrow only and shares nothing with
//! the decoders but the digits of floats, so that it can't repeat their mistakes.

use std::fmt::{Display, Write};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};
use chrono::{DateTime, Days, NaiveDate};

use super::float;
use super::kind::Kind;
use crate::error::{Error, Result};

/// Appends PostgreSQL's text of row `row` of `array`, a column of `kind`, under the session settings
/// of Tidegate's connections. The caller looks for NULL first.
///
/// # Errors
/// The array is not of the kind's type, or ends before `row`.
pub fn render(kind: &Kind, array: &dyn Array, row: usize, out: &mut String) -> Result<()> {
    if row >= array.len() {
        return Err(Error::failed(format!("row {row} of an array of {}", array.len())));
    }
    value(kind, array, row, out).ok_or_else(|| {
        Error::failed(format!(
            "a column of kind {kind:?} can't be read from an array of {}",
            array.data_type()
        ))
    })
}

/// Whether a rendered value and the server's text are the same value. They are equal texts, but for
/// decimals whose scale was configured: there `1.50` and `1.5000` agree.
pub fn agrees(kind: &Kind, rendered: &str, server: &str) -> bool {
    fn trimmed(number: &str) -> &str {
        if number.contains('.') {
            number.trim_end_matches('0').trim_end_matches('.')
        } else {
            number
        }
    }
    rendered == server
        || matches!(kind, Kind::Decimal { .. }) && trimmed(rendered) == trimmed(server)
}

fn value(kind: &Kind, array: &dyn Array, row: usize, out: &mut String) -> Option<()> {
    match kind {
        Kind::Bool => out.push(if array.as_boolean_opt()?.value(row) { 't' } else { 'f' }),
        Kind::Int2 => show(out, array.as_primitive_opt::<Int16Type>()?.value(row)),
        Kind::Int4 => show(out, array.as_primitive_opt::<Int32Type>()?.value(row)),
        Kind::Int8 | Kind::Oid => show(out, array.as_primitive_opt::<Int64Type>()?.value(row)),
        Kind::Float4 => float::write_f32(array.as_primitive_opt::<Float32Type>()?.value(row), out),
        Kind::Float8 => float::write_f64(array.as_primitive_opt::<Float64Type>()?.value(row), out),
        Kind::Decimal { .. } => {
            let DataType::Decimal128(_, scale) = array.data_type() else { return None };
            decimal(array.as_primitive_opt::<Decimal128Type>()?.value(row), *scale, out)?;
        }
        Kind::Money => money(array.as_primitive_opt::<Decimal128Type>()?.value(row), out),
        Kind::Numeric
        | Kind::Text
        | Kind::Jsonb
        | Kind::Uuid
        | Kind::Time
        | Kind::Timetz
        | Kind::Interval { .. }
        | Kind::Bit
        | Kind::Server
        | Kind::Hashed(_) => out.push_str(array.as_string_opt::<i32>()?.value(row)),
        Kind::Bytea => {
            out.push_str("\\x");
            for byte in array.as_binary_opt::<i32>()?.value(row) {
                write!(out, "{byte:02x}").ok()?;
            }
        }
        Kind::Ewkb => {
            for byte in array.as_binary_opt::<i32>()?.value(row) {
                write!(out, "{byte:02X}").ok()?;
            }
        }
        Kind::Date => {
            let days = array.as_primitive_opt::<Date32Type>()?.value(row);
            let epoch = NaiveDate::from_ymd_opt(1970, 1, 1)?;
            let away = Days::new(days.unsigned_abs().into());
            let date =
                if days < 0 { epoch.checked_sub_days(away) } else { epoch.checked_add_days(away) }?;
            write!(out, "{}", date.format("%Y-%m-%d")).ok()?;
        }
        Kind::Timestamp => timestamp(array, row, out)?,
        Kind::Timestamptz => {
            timestamp(array, row, out)?;
            out.push_str("+00");
        }
        Kind::Hstore => hstore(array, row, out)?,
        Kind::Vector => {
            let items = array.as_list_opt::<i32>()?.value(row);
            let items = items.as_primitive_opt::<Float32Type>()?;
            for (index, item) in items.values().iter().enumerate() {
                out.push(if index == 0 { '[' } else { ',' });
                float::write_f32(*item, out);
            }
            out.push(']');
        }
        Kind::Array(element) => list(&element.kind, element.delimiter.into(), array, row, out)?,
    }
    Some(())
}

fn show(out: &mut String, number: impl Display) {
    // Writing to a String does not fail.
    let _ = write!(out, "{number}");
}

fn decimal(unscaled: i128, scale: i8, out: &mut String) -> Option<()> {
    let scale = usize::try_from(scale).ok()?;
    let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at_checked(digits.len() - scale)?;
    if unscaled < 0 {
        out.push('-');
    }
    out.push_str(whole);
    if scale > 0 {
        out.push('.');
        out.push_str(fraction);
    }
    Some(())
}

fn money(cents: i128, out: &mut String) {
    let magnitude = cents.unsigned_abs();
    let (mut whole, mut groups) = (magnitude / 100, Vec::new());
    while whole >= 1000 {
        groups.push(format!(",{:03}", whole % 1000));
        whole /= 1000;
    }
    let sign = if cents < 0 { "-" } else { "" };
    show(out, format_args!("{sign}${whole}"));
    out.extend(groups.into_iter().rev());
    show(out, format_args!(".{:02}", magnitude % 100));
}

fn timestamp(array: &dyn Array, row: usize, out: &mut String) -> Option<()> {
    let us = array.as_primitive_opt::<TimestampMicrosecondType>()?.value(row);
    let at = DateTime::from_timestamp_micros(us)?;
    let text = at.format("%Y-%m-%d %H:%M:%S%.6f").to_string();
    out.push_str(trim_fraction(&text));
    Some(())
}

/// `…:00.120000` to `…:00.12`, `…:00.000000` to `…:00`.
fn trim_fraction(text: &str) -> &str {
    match text.split_once('.') {
        Some((clock, fraction)) if fraction.bytes().all(|b| b == b'0') => clock,
        _ => text.trim_end_matches('0'),
    }
}

fn hstore(array: &dyn Array, row: usize, out: &mut String) -> Option<()> {
    let quoted = |text: &str, out: &mut String| {
        out.push('"');
        out.push_str(&text.replace('\\', "\\\\").replace('"', "\\\""));
        out.push('"');
    };
    let entries = array.as_map_opt()?.value(row);
    let (keys, values) =
        (entries.column(0).as_string_opt::<i32>()?, entries.column(1).as_string_opt::<i32>()?);
    for index in 0..entries.len() {
        if index > 0 {
            out.push_str(", ");
        }
        quoted(keys.value(index), out);
        out.push_str("=>");
        match values.is_null(index) {
            true => out.push_str("NULL"),
            false => quoted(values.value(index), out),
        }
    }
    Some(())
}

fn list(
    element: &Kind,
    delimiter: char,
    array: &dyn Array,
    row: usize,
    out: &mut String,
) -> Option<()> {
    let items = array.as_list_opt::<i32>()?.value(row);
    let mut text = String::new();
    out.push('{');
    for index in 0..items.len() {
        if index > 0 {
            out.push(delimiter);
        }
        if items.is_null(index) {
            out.push_str("NULL");
            continue;
        }
        text.clear();
        value(element, &items, index, &mut text)?;
        let special = |c: char| c == delimiter || "\"\\{} \t\n\r\u{b}\u{c}".contains(c);
        if text.is_empty() || text.eq_ignore_ascii_case("null") || text.contains(special) {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
            show(out, format_args!("\"{escaped}\""));
        } else {
            out.push_str(&text);
        }
    }
    out.push('}');
    Some(())
}

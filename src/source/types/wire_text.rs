//! The text PostgreSQL prints for a value in its send form.
//!
//! It is what the text kinds hold, and what `_tg_overflow` gets for a binary value that the Delta
//! type can't hold.

use super::array;
use super::bytes;
use super::cursor::{Cursor, Decode, Malformed, exactly};
use super::kind::Kind;
use super::{datetime, float, numeric};

/// Appends the text of a binary value; not for kinds without [`Kind::has_binary`].
pub(super) fn write(kind: &Kind, value: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    match kind {
        Kind::Bool => out.push(if boolean(value)? { b't' } else { b'f' }),
        Kind::Int2 => push_number(i16::from_be_bytes(exactly(value)?), out),
        Kind::Int4 => push_number(i32::from_be_bytes(exactly(value)?), out),
        Kind::Int8 => push_number(i64::from_be_bytes(exactly(value)?), out),
        Kind::Oid => push_number(u32::from_be_bytes(exactly(value)?), out),
        Kind::Float4 => {
            let mut text = String::new();
            float::write_f32(f32::from_be_bytes(exactly(value)?), &mut text);
            out.extend_from_slice(text.as_bytes());
        }
        Kind::Float8 => {
            let mut text = String::new();
            float::write_f64(f64::from_be_bytes(exactly(value)?), &mut text);
            out.extend_from_slice(text.as_bytes());
        }
        Kind::Decimal { .. } | Kind::Numeric => numeric::write_text(value, out)?,
        Kind::Text => out.extend_from_slice(value),
        Kind::Jsonb => out.extend_from_slice(jsonb(value)?),
        Kind::Bytea => {
            out.extend_from_slice(b"\\x");
            bytes::push_hex(value, out);
        }
        Kind::Uuid => write_uuid(value, out)?,
        Kind::Date => datetime::write_date(value, out)?,
        Kind::Timestamp => datetime::write_timestamp(value, false, out)?,
        Kind::Timestamptz => datetime::write_timestamp(value, true, out)?,
        Kind::Time => datetime::write_clock(value, out)?,
        Kind::Timetz => datetime::write_zoned_clock(value, out)?,
        Kind::Interval { infinite } => datetime::write_interval(value, *infinite, out)?,
        Kind::Money => numeric::write_money(i64::from_be_bytes(exactly(value)?), out),
        Kind::Bit => write_bits(value, out)?,
        Kind::Array(element) => array::write_text(element, value, out)?,
        Kind::Server | Kind::Hashed(_) | Kind::Hstore | Kind::Vector | Kind::Ewkb => {
            return Err(Malformed("this type is read as text only"));
        }
    }
    Ok(())
}

fn push_number(number: impl ToString, out: &mut Vec<u8>) {
    out.extend_from_slice(number.to_string().as_bytes());
}

pub(super) fn boolean(value: &[u8]) -> Decode<bool> {
    match value {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(Malformed("not a boolean")),
    }
}

/// The text after the version byte (`jsonb_send`).
pub(super) fn jsonb(value: &[u8]) -> Decode<&[u8]> {
    match value {
        [1, text @ ..] => Ok(text),
        _ => Err(Malformed("the version of the jsonb form is unknown")),
    }
}

fn write_uuid(value: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    let value: [u8; 16] = exactly(value)?;
    let mut start = 0;
    for length in [4, 2, 2, 2, 6] {
        if start > 0 {
            out.push(b'-');
        }
        bytes::push_hex(value.get(start..start + length).unwrap_or_default(), out);
        start += length;
    }
    Ok(())
}

/// A length in bits, then the bits, the highest of a byte first (`varbit_send`).
fn write_bits(value: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    let mut cursor = Cursor::new(value);
    let count = usize::try_from(cursor.i32()?).map_err(|_| Malformed("a length is negative"))?;
    let packed = cursor.take(count.div_ceil(8))?;
    cursor.end()?;
    let bits = packed.iter().flat_map(|byte| (0..8).rev().map(move |bit| b'0' + (byte >> bit & 1)));
    out.extend(bits.take(count));
    Ok(())
}

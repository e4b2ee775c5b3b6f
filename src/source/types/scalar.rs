//! Single values from text: integers, booleans, floats. Strict: only what PostgreSQL prints.

use super::cursor::{Decode, Malformed};

const ODD: Malformed = Malformed("not an integer of the type's range");

/// An integer with an optional minus sign that lies in `low..=high`.
#[inline]
pub(super) fn integer(text: &[u8], low: i64, high: i64) -> Decode<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return Err(ODD);
    }
    // Nineteen digits stay below 2^64.
    let mut sum: u64 = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(ODD);
        }
        sum = sum * 10 + u64::from(digit);
    }
    let value = if negative { 0_i64.checked_sub_unsigned(sum) } else { i64::try_from(sum).ok() };
    value.filter(|value| (low..=high).contains(value)).ok_or(ODD)
}

pub(super) fn boolean(text: &[u8]) -> Decode<bool> {
    match text {
        b"t" => Ok(true),
        b"f" => Ok(false),
        _ => Err(Malformed("not a boolean")),
    }
}

/// A float; every NaN becomes the same NaN.
pub(super) fn float<F: std::str::FromStr + Into<f64> + Copy>(text: &[u8], nan: F) -> Decode<F> {
    const ODD: Malformed = Malformed("not a floating-point number");
    let number = match text {
        b"NaN" => return Ok(nan),
        b"Infinity" | b"-Infinity" => text,
        // Rust would read "inf" and "+1" too.
        [b'-' | b'0'..=b'9', rest @ ..]
            if rest.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'-' | b'+')) =>
        {
            text
        }
        _ => return Err(ODD),
    };
    let value: Option<F> = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    // A number too large would read as infinity.
    value.filter(|value| (*value).into().is_finite() || number.ends_with(b"y")).ok_or(ODD)
}

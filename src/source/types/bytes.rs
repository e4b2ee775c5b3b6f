//! Hexadecimal: `bytea` under bytea_output hex, and EWKB.

use super::cursor::{Decode, Malformed};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends two lower-case digits a byte.
pub(super) fn push_hex(value: &[u8], out: &mut Vec<u8>) {
    let digit = |nibble: u8| DIGITS.get(usize::from(nibble & 15)).copied().unwrap_or(b'0');
    out.extend(value.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]));
}

/// Appends the bytes that pairs of digits stand for.
pub(super) fn from_hex(text: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    if !text.len().is_multiple_of(2) {
        return Err(Malformed("an odd number of hexadecimal digits"));
    }
    // Above 15 marks what is no digit, in one check at the end.
    let mut worst = 0;
    out.extend(text.chunks_exact(2).map(|pair| {
        let (high, low) = match pair {
            [high, low] => (nibble(*high), nibble(*low)),
            _ => (255, 255),
        };
        worst |= high | low;
        high << 4 | low & 15
    }));
    if worst > 15 { Err(Malformed("not a hexadecimal digit")) } else { Ok(()) }
}

#[inline]
fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 255,
    }
}

/// The digits after `\x`.
pub(super) fn bytea_digits(text: &[u8]) -> Decode<&[u8]> {
    text.strip_prefix(b"\\x").ok_or(Malformed("not bytea in hexadecimal form"))
}

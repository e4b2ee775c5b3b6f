//! `numeric`: the send form and the text, to scaled integers and to text.
//!
//! The send form is base 10000: `ndigits i16, weight i16, sign u16, dscale u16, digits`; the first
//! digit stands for `digit * 10000^weight` (src/backend/utils/adt/numeric.c, `numeric_send`).

use super::cursor::{Cursor, Decode, Malformed};

const POSITIVE: u16 = 0x0000;
const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const MINUS_INFINITY: u16 = 0xF000;

/// A numeric in its send form, checked.
struct Sent<'a> {
    /// Exponent to base 10000 of the first digit.
    weight: i32,
    sign: u16,
    /// Decimal digits after the point that are printed.
    dscale: usize,
    digits: &'a [u8],
}

impl<'a> Sent<'a> {
    fn parse(bytes: &'a [u8]) -> Decode<Self> {
        let mut cursor = Cursor::new(bytes);
        let count = cursor.u16()?;
        let weight = i32::from(cursor.i16()?);
        let sign = cursor.u16()?;
        let dscale = usize::from(cursor.u16()?);
        let digits = cursor.take(usize::from(count) * 2)?;
        cursor.end()?;
        let sent = Sent { weight, sign, dscale, digits };
        if !matches!(sign, POSITIVE | NEGATIVE | NAN | INFINITY | MINUS_INFINITY) {
            return Err(Malformed("the sign word is unknown"));
        }
        if sent.digits().any(|digit| digit > 9999) {
            return Err(Malformed("a base-10000 digit is above 9999"));
        }
        Ok(sent)
    }

    fn digits(&self) -> impl Iterator<Item = u16> + 'a {
        self.digits.chunks_exact(2).map(|pair| match pair {
            [high, low] => u16::from_be_bytes([*high, *low]),
            _ => 0,
        })
    }

    fn special(&self) -> Option<&'static [u8]> {
        match self.sign {
            NAN => Some(b"NaN"),
            INFINITY => Some(b"Infinity"),
            MINUS_INFINITY => Some(b"-Infinity"),
            _ => None,
        }
    }
}

/// The text of a numeric in its send form, as `numeric_out` prints it.
pub(super) fn write_text(bytes: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    let sent = Sent::parse(bytes)?;
    if let Some(special) = sent.special() {
        out.extend_from_slice(special);
        return Ok(());
    }
    if sent.sign == NEGATIVE {
        out.push(b'-');
    }
    let mut digits = sent.digits();
    if sent.weight < 0 {
        out.push(b'0');
    } else {
        let start = out.len();
        for _ in 0..=sent.weight {
            push_group(out, digits.next().unwrap_or(0));
        }
        let whole = out.get(start..).unwrap_or_default();
        let zeros =
            whole.iter().take_while(|b| **b == b'0').count().min(whole.len().saturating_sub(1));
        out.drain(start..start + zeros);
    }
    if sent.dscale > 0 {
        out.push(b'.');
        let start = out.len();
        // Groups between the point and the first digit are zero.
        let mut position = -1;
        while out.len() - start < sent.dscale {
            let group = if position > sent.weight { 0 } else { digits.next().unwrap_or(0) };
            push_group(out, group);
            position -= 1;
        }
        if out.get(start + sent.dscale..).is_some_and(|cut| cut.iter().any(|b| *b != b'0')) {
            return Err(Malformed("there are digits beyond the scale that is printed"));
        }
        out.truncate(start + sent.dscale);
    }
    if digits.any(|digit| digit != 0) {
        return Err(Malformed("there are digits beyond the scale that is printed"));
    }
    Ok(())
}

fn push_group(out: &mut Vec<u8>, group: u16) {
    let digit = |n: u16| b'0' + (n % 10) as u8;
    out.extend_from_slice(&[
        digit(group / 1000),
        digit(group / 100),
        digit(group / 10),
        digit(group),
    ]);
}

/// `value * 10^scale` of a numeric in its send form; None where `decimal(precision, scale)` can't
/// hold it exactly.
pub(super) fn scaled(bytes: &[u8], precision: u8, scale: i8) -> Decode<Option<i128>> {
    let sent = Sent::parse(bytes)?;
    if sent.special().is_some() {
        return Ok(None);
    }
    Ok(magnitude(&sent, i32::from(scale)).and_then(|m| fits(m, sent.sign == NEGATIVE, precision)))
}

fn magnitude(sent: &Sent<'_>, scale: i32) -> Option<i128> {
    let mut sum: i128 = 0;
    // Decimal exponent of the digit at hand, relative to the last place held.
    let mut exponent = 4 * sent.weight + scale;
    let mut last = None;
    for digit in sent.digits() {
        if exponent >= 0 {
            sum = sum.checked_mul(10_000)?.checked_add(i128::from(digit))?;
            last = Some(exponent);
        } else if digit != 0 {
            let divisor = 10_u16.checked_pow(exponent.unsigned_abs())?;
            if digit % divisor != 0 {
                return None;
            }
            // The digit before was brought to its place by `last`, which is below 4 here.
            sum = shift(sum, last.take())?.checked_add(i128::from(digit / divisor))?;
        }
        exponent -= 4;
    }
    shift(sum, last)
}

fn shift(sum: i128, exponent: Option<i32>) -> Option<i128> {
    match exponent {
        Some(exponent) if sum != 0 => {
            sum.checked_mul(10_i128.checked_pow(exponent.unsigned_abs())?)
        }
        _ => Some(sum),
    }
}

fn fits(magnitude: i128, negative: bool, precision: u8) -> Option<i128> {
    let limit = 10_i128.checked_pow(u32::from(precision))?;
    (magnitude < limit).then_some(if negative { -magnitude } else { magnitude })
}

/// The same from the text `numeric_out` prints.
pub(super) fn scaled_from_text(text: &[u8], precision: u8, scale: i8) -> Decode<Option<i128>> {
    if matches!(text, b"NaN" | b"Infinity" | b"-Infinity") {
        return Ok(None);
    }
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let point = unsigned.iter().position(|b| *b == b'.');
    let (whole, fraction) = match point {
        Some(at) => {
            (unsigned.get(..at).unwrap_or_default(), unsigned.get(at + 1..).unwrap_or_default())
        }
        None => (unsigned, &[][..]),
    };
    if whole.is_empty() || (point.is_some() && fraction.is_empty()) {
        return Err(Malformed("not a number"));
    }
    if !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return Err(Malformed("not a number"));
    }
    let scale = usize::try_from(scale).map_err(|_| Malformed("the scale is negative"))?;
    let (held, beyond) = fraction.split_at(fraction.len().min(scale));
    if beyond.iter().any(|b| *b != b'0') {
        return Ok(None);
    }
    let whole_sum = digits(0, whole);
    let sum = whole_sum.and_then(|sum| digits(sum, held));
    let padded = sum.and_then(|sum| shift(sum, i32::try_from(scale - held.len()).ok()));
    Ok(padded.and_then(|m| fits(m, negative, precision)))
}

/// Goes on with a decimal number; None beyond 128 bits.
fn digits(mut sum: i128, text: &[u8]) -> Option<i128> {
    // 18 digits at a time stay in a machine word.
    for part in text.chunks(18) {
        let word = part.iter().fold(0_u64, |word, b| word * 10 + u64::from(b - b'0'));
        let power = 10_i128.pow(part.len() as u32);
        sum = sum.checked_mul(power)?.checked_add(i128::from(word))?;
    }
    Some(sum)
}

/// Cents from the text of `money` under lc_monetary C: `-$1,234.50`.
pub(super) fn cents(text: &[u8]) -> Decode<i64> {
    const ODD: Malformed = Malformed("not money as lc_monetary C prints it");
    let (negative, rest) = match text {
        [b'-', b'$', rest @ ..] => (true, rest),
        [b'$', rest @ ..] => (false, rest),
        _ => return Err(ODD),
    };
    let (whole, tail) = rest.split_at_checked(rest.len().wrapping_sub(3)).ok_or(ODD)?;
    let &[b'.', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = tail else { return Err(ODD) };
    let mut sum: i128 = 0;
    for (index, group) in whole.split(|b| *b == b',').enumerate() {
        let right_length =
            if index == 0 { (1..=3).contains(&group.len()) } else { group.len() == 3 };
        if !right_length || !group.iter().all(u8::is_ascii_digit) || index > 6 {
            return Err(ODD);
        }
        sum = group.iter().fold(sum, |sum, b| sum * 10 + i128::from(b - b'0'));
    }
    sum = sum * 100 + i128::from(tens - b'0') * 10 + i128::from(ones - b'0');
    i64::try_from(if negative { -sum } else { sum }).map_err(|_| ODD)
}

/// The text of `money` under lc_monetary C (`cash_out`).
pub(super) fn write_money(cents: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(if cents < 0 { b"-$" } else { b"$" });
    let cents = cents.unsigned_abs();
    let whole = (cents / 100).to_string();
    for (index, digit) in whole.bytes().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(b',');
        }
        out.push(digit);
    }
    let (tens, ones) = ((cents / 10 % 10) as u8, (cents % 10) as u8);
    out.extend_from_slice(&[b'.', b'0' + tens, b'0' + ones]);
}

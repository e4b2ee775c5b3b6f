//! Floats as PostgreSQL prints them: the shortest digits that read back as the same value.
//!
//! PostgreSQL's Ryu (src/common/d2s.c, f2s.c) does not use digits that lie exactly on the border
//! between two values, so 1e23 is printed as `9.999999999999999e+22`. Rust's formatter does use
//! them where the mantissa is even; those cases are found and given the next longer digits. A value
//! half-way between two shortest candidates goes to the even one in PostgreSQL, not always in Rust.
//! Fixed notation runs from 1e-4 to below 1e15 (float8) or 1e6 (float4), after that `d.ddde+XX`.

use std::fmt::Write;

/// A finite float taken apart: `mantissa * 2^exponent`.
struct Parts {
    mantissa: u64,
    exponent: i32,
    /// The next value below is half as far away as the next above.
    narrow_below: bool,
}

/// Appends a float8.
pub(super) fn write_f64(value: f64, out: &mut String) {
    if write_special(
        value.is_nan(),
        value.is_infinite(),
        value == 0.0,
        value.is_sign_negative(),
        out,
    ) {
        return;
    }
    let bits = value.to_bits();
    let (fraction, biased) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7FF) as i32);
    let parts = Parts {
        mantissa: if biased == 0 { fraction } else { fraction | 1 << 52 },
        exponent: biased.max(1) - 1075,
        narrow_below: fraction == 0 && biased > 1,
    };
    let value = value.abs();
    let shortest = Digits::parse(&format!("{value:e}"));
    let digits = without_border(
        shortest,
        &parts,
        17,
        |n| format!("{value:.n$e}"),
        |text| text.parse() == Ok(value),
    );
    digits.write(15, out);
}

/// Appends a float4.
pub(super) fn write_f32(value: f32, out: &mut String) {
    if write_special(
        value.is_nan(),
        value.is_infinite(),
        value == 0.0,
        value.is_sign_negative(),
        out,
    ) {
        return;
    }
    let bits = value.to_bits();
    let (fraction, biased) = (bits & ((1 << 23) - 1), (bits >> 23 & 0xFF) as i32);
    let parts = Parts {
        mantissa: u64::from(if biased == 0 { fraction } else { fraction | 1 << 23 }),
        exponent: biased.max(1) - 150,
        narrow_below: fraction == 0 && biased > 1,
    };
    let value = value.abs();
    let shortest = Digits::parse(&format!("{value:e}"));
    let digits = without_border(
        shortest,
        &parts,
        9,
        |n| format!("{value:.n$e}"),
        |text| text.parse() == Ok(value),
    );
    digits.write(6, out);
}

/// Writes what has no digits, and otherwise the sign.
fn write_special(nan: bool, infinite: bool, zero: bool, negative: bool, out: &mut String) -> bool {
    if nan {
        out.push_str("NaN");
        return true;
    }
    if negative {
        out.push('-');
    }
    if infinite {
        out.push_str("Infinity");
    } else if zero {
        out.push('0');
    }
    infinite || zero
}

/// `digits * 10^exponent`, without trailing zeros.
#[derive(Clone, Copy)]
struct Digits {
    digits: u64,
    exponent: i32,
}

impl Digits {
    /// Reads what `{:e}` writes.
    fn parse(text: &str) -> Digits {
        let (mut digits, mut exponent, mut after_point) = (0_u64, 0, false);
        let (number, power) = text.split_once('e').unwrap_or((text, "0"));
        for byte in number.bytes() {
            match byte {
                b'0'..=b'9' => {
                    digits = digits * 10 + u64::from(byte - b'0');
                    exponent -= i32::from(after_point);
                }
                _ => after_point = true,
            }
        }
        exponent += power.parse::<i32>().unwrap_or_default();
        Digits { digits, exponent }.trimmed()
    }

    fn trimmed(mut self) -> Digits {
        while self.digits != 0 && self.digits.is_multiple_of(10) {
            self.digits /= 10;
            self.exponent += 1;
        }
        self
    }

    fn text(self) -> String {
        format!("{}e{}", self.digits, self.exponent)
    }

    /// Fixed from 1e-4 to below `10^fixed_below`.
    fn write(self, fixed_below: i32, out: &mut String) {
        let digits = self.digits.to_string();
        let count = digits.len() as i32;
        let scientific = self.exponent + count - 1;
        let (head, tail) = digits.split_at_checked(1).unwrap_or((&digits, ""));
        if !(-4..fixed_below).contains(&scientific) {
            out.push_str(head);
            if !tail.is_empty() {
                out.push('.');
                out.push_str(tail);
            }
            let sign = if scientific < 0 { '-' } else { '+' };
            // Writing to a String does not fail.
            let _ = write!(out, "e{sign}{:02}", scientific.abs());
        } else if self.exponent >= 0 {
            out.push_str(&digits);
            out.extend(std::iter::repeat_n('0', self.exponent as usize));
        } else if scientific >= 0 {
            let (whole, fraction) =
                digits.split_at_checked((scientific + 1) as usize).unwrap_or((&digits, ""));
            out.push_str(whole);
            out.push('.');
            out.push_str(fraction);
        } else {
            out.push_str("0.");
            out.extend(std::iter::repeat_n('0', (-scientific - 1) as usize));
            out.push_str(&digits);
        }
    }
}

/// The shortest digits strictly inside the interval that reads back as the value.
fn without_border(
    shortest: Digits,
    parts: &Parts,
    most: usize,
    rounded: impl Fn(usize) -> String,
    reads_back: impl Fn(&str) -> bool,
) -> Digits {
    if !parts.on_border(shortest) {
        let even = parts.even(shortest);
        return if reads_back(&even.text()) && !parts.on_border(even) { even } else { shortest };
    }
    for count in shortest.digits.to_string().len()..=most {
        let nearest = Digits::parse(&rounded(count - 1));
        // `nearest` lost its trailing zeros; its neighbours differ by one in the last of `count` digits.
        let mut padded = nearest;
        while padded.digits.to_string().len() < count {
            padded = Digits { digits: padded.digits * 10, exponent: padded.exponent - 1 };
        }
        let neighbours = [padded.digits, padded.digits + 1, padded.digits.saturating_sub(1)];
        for digits in neighbours {
            let candidate = Digits { digits, exponent: padded.exponent }.trimmed();
            if reads_back(&candidate.text()) && !parts.on_border(candidate) {
                return candidate;
            }
        }
    }
    shortest
}

impl Parts {
    /// The even one of two candidates if the value lies exactly between them.
    fn even(&self, digits: Digits) -> Digits {
        let twos = self.mantissa.trailing_zeros();
        let (odd, power) = (self.mantissa >> twos, self.exponent + 1 + twos as i32);
        let half_off =
            |doubled| equal(Digits { digits: doubled, exponent: digits.exponent }, odd, power);
        if digits.digits.is_multiple_of(2) {
            digits
        } else if half_off(2 * digits.digits + 1) {
            Digits { digits: digits.digits + 1, ..digits }.trimmed()
        } else if half_off(2 * digits.digits - 1) {
            Digits { digits: digits.digits - 1, ..digits }.trimmed()
        } else {
            digits
        }
    }

    /// Whether the digits lie exactly half-way to a neighbouring value.
    fn on_border(&self, digits: Digits) -> bool {
        let above = equal(digits, 2 * self.mantissa + 1, self.exponent - 1);
        let below = if self.narrow_below {
            equal(digits, 4 * self.mantissa - 1, self.exponent - 2)
        } else {
            equal(digits, 2 * self.mantissa - 1, self.exponent - 1)
        };
        above || below
    }
}

/// Whether `digits.digits * 10^digits.exponent == odd * 2^power`, exactly.
fn equal(digits: Digits, odd: u64, power: i32) -> bool {
    let twos = digits.digits.trailing_zeros() as i32;
    if digits.digits == 0 || twos + digits.exponent != power {
        return false;
    }
    let rest = u128::from(digits.digits >> twos);
    let Some(fives) = 5_u128.checked_pow(digits.exponent.unsigned_abs()) else { return false };
    if digits.exponent >= 0 {
        rest.checked_mul(fives) == Some(u128::from(odd))
    } else {
        u128::from(odd).checked_mul(fives) == Some(rest)
    }
}

//! Dates, times and intervals: the send form and the text, to Unix days and microseconds and to text.
//!
//! PostgreSQL counts from 2000-01-01 in the proleptic Gregorian calendar, days in 32 bits and
//! microseconds in 64; the extreme values are the infinities (src/include/datatype/timestamp.h).
//! Delta holds the years 1 to 9999.

use super::cursor::{Cursor, Decode, Malformed, exactly};

const EPOCH_DAYS: i64 = 10_957;
const DAY_US: i64 = 86_400_000_000;
const EPOCH_US: i64 = EPOCH_DAYS * DAY_US;
/// 0001-01-01 and 9999-12-31 in Unix days.
const FIRST_DAY: i64 = -719_162;
const LAST_DAY: i64 = 2_932_896;

/// Unix days; None where Delta can't hold the date.
#[inline]
pub(super) fn date(bytes: &[u8]) -> Decode<Option<i32>> {
    let days = i64::from(i32::from_be_bytes(exactly(bytes)?)) + EPOCH_DAYS;
    Ok(held_day(days))
}

fn held_day(days: i64) -> Option<i32> {
    if (FIRST_DAY..=LAST_DAY).contains(&days) { i32::try_from(days).ok() } else { None }
}

/// Unix microseconds; None where Delta can't hold the timestamp.
#[inline]
pub(super) fn timestamp(bytes: &[u8]) -> Decode<Option<i64>> {
    let us = i64::from_be_bytes(exactly(bytes)?).checked_add(EPOCH_US);
    Ok(us.filter(|us| (FIRST_DAY * DAY_US..(LAST_DAY + 1) * DAY_US).contains(us)))
}

/// The same from text: `2024-02-29`, `0044-03-15 BC`, `infinity`.
pub(super) fn date_from_text(text: &[u8]) -> Decode<Option<i32>> {
    if matches!(text, b"infinity" | b"-infinity") {
        return Ok(None);
    }
    let (common_era, text) = era(text);
    let (year, month, day) = day_of(text, common_era)?;
    Ok(if common_era && year <= 9999 { held_day(days_from_civil(year, month, day)) } else { None })
}

/// The same from text: `2024-02-29 12:34:56.789`, with `+00` if `zoned`.
pub(super) fn timestamp_from_text(text: &[u8], zoned: bool) -> Decode<Option<i64>> {
    if matches!(text, b"infinity" | b"-infinity") {
        return Ok(None);
    }
    let (common_era, mut text) = era(text);
    if zoned {
        text = text.strip_suffix(b"+00").ok_or(Malformed("the time zone is not UTC"))?;
    }
    let space = text.iter().position(|b| *b == b' ').ok_or(Malformed("the time is missing"))?;
    let (date, time) = text.split_at(space);
    let (year, month, day) = day_of(date, common_era)?;
    let us = time_of(time.get(1..).unwrap_or_default())?;
    if !common_era || year > 9999 {
        return Ok(None);
    }
    Ok(held_day(days_from_civil(year, month, day)).map(|days| i64::from(days) * DAY_US + us))
}

fn era(text: &[u8]) -> (bool, &[u8]) {
    match text.strip_suffix(b" BC") {
        Some(text) => (false, text),
        None => (true, text),
    }
}

fn day_of(text: &[u8], common_era: bool) -> Decode<(i64, u32, u32)> {
    const ODD: Malformed = Malformed("not a date in DateStyle ISO");
    let (year, tail) = text.split_at_checked(text.len().wrapping_sub(6)).ok_or(ODD)?;
    let &[b'-', m1, m2, b'-', d1, d2] = tail else { return Err(ODD) };
    if !(4..=7).contains(&year.len()) || !year.iter().all(u8::is_ascii_digit) {
        return Err(ODD);
    }
    let year = year.iter().fold(0, |sum, b| sum * 10 + i64::from(b - b'0'));
    let (month, day) = (two(m1, m2).ok_or(ODD)?, two(d1, d2).ok_or(ODD)?);
    if year == 0 || !(1..=12).contains(&month) || day == 0 {
        return Err(ODD);
    }
    // 1 BC is the astronomical year 0, a leap year.
    let astronomical = if common_era { year } else { 1 - year };
    let leap = astronomical % 4 == 0 && (astronomical % 100 != 0 || astronomical % 400 == 0);
    let longest = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        _ => 31,
    };
    if day > longest {
        return Err(ODD);
    }
    Ok((year, month, day))
}

/// Microseconds of `HH:MM:SS[.f{1,6}]`, below 24:00.
fn time_of(text: &[u8]) -> Decode<i64> {
    const ODD: Malformed = Malformed("not a time in DateStyle ISO");
    let (clock, fraction) = text.split_at_checked(8).ok_or(ODD)?;
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = clock else { return Err(ODD) };
    let (hour, minute, second) = (two(h1, h2), two(m1, m2), two(s1, s2));
    let (Some(hour @ 0..24), Some(minute @ 0..60), Some(second @ 0..60)) = (hour, minute, second)
    else {
        return Err(ODD);
    };
    let mut us: i64 = 0;
    match fraction {
        [] => {}
        [b'.', digits @ ..]
            if (1..=6).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) =>
        {
            for place in 0..6 {
                us = us * 10 + digits.get(place).map_or(0, |b| i64::from(b - b'0'));
            }
        }
        _ => return Err(ODD),
    }
    Ok(i64::from((hour * 60 + minute) * 60 + second) * 1_000_000 + us)
}

#[inline]
fn two(tens: u8, ones: u8) -> Option<u32> {
    (tens.is_ascii_digit() && ones.is_ascii_digit())
        .then(|| u32::from(tens - b'0') * 10 + u32::from(ones - b'0'))
}

/// Unix days of a civil date (H. Hinnant, "chrono-compatible low-level date algorithms").
fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = i64::from((153 * ((month + 9) % 12) + 2) / 5 + day) - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year (0 is 1 BC), month and day of Unix days, by the same source.
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month as u32, day as u32)
}

/// The text of a date in its send form.
pub(super) fn write_date(bytes: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    match i32::from_be_bytes(exactly(bytes)?) {
        i32::MAX => out.extend_from_slice(b"infinity"),
        i32::MIN => out.extend_from_slice(b"-infinity"),
        days => {
            let before = push_day(out, i64::from(days) + EPOCH_DAYS);
            out.extend_from_slice(before);
        }
    }
    Ok(())
}

/// The text of a timestamp in its send form, in UTC if `zoned`.
pub(super) fn write_timestamp(bytes: &[u8], zoned: bool, out: &mut Vec<u8>) -> Decode<()> {
    match i64::from_be_bytes(exactly(bytes)?) {
        i64::MAX => out.extend_from_slice(b"infinity"),
        i64::MIN => out.extend_from_slice(b"-infinity"),
        us => {
            let before = push_day(out, us.div_euclid(DAY_US) + EPOCH_DAYS);
            out.push(b' ');
            push_time(out, us.rem_euclid(DAY_US));
            if zoned {
                out.extend_from_slice(b"+00");
            }
            out.extend_from_slice(before);
        }
    }
    Ok(())
}

/// Writes year, month and day; the era follows later.
fn push_day(out: &mut Vec<u8>, days: i64) -> &'static [u8] {
    let (year, month, day) = civil_from_days(days);
    let (printed, era): (i64, &[u8]) = if year > 0 { (year, b"") } else { (1 - year, b" BC") };
    if printed < 10_000 {
        push_two(out, printed / 100);
        push_two(out, printed % 100);
    } else {
        out.extend_from_slice(printed.to_string().as_bytes());
    }
    out.push(b'-');
    push_two(out, i64::from(month));
    out.push(b'-');
    push_two(out, i64::from(day));
    era
}

fn push_two(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&[b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8]);
}

/// `HH:MM:SS[.ffffff]` of microseconds that are not negative.
fn push_time(out: &mut Vec<u8>, us: i64) {
    let seconds = us / 1_000_000;
    push_hours(out, seconds / 3600);
    out.push(b':');
    push_two(out, seconds / 60 % 60);
    out.push(b':');
    push_two(out, seconds % 60);
    push_fraction(out, us % 1_000_000);
}

fn push_hours(out: &mut Vec<u8>, hours: i64) {
    if hours < 100 {
        push_two(out, hours);
    } else {
        out.extend_from_slice(hours.to_string().as_bytes());
    }
}

/// The point and up to six digits, without trailing zeros.
fn push_fraction(out: &mut Vec<u8>, mut us: i64) {
    if us == 0 {
        return;
    }
    out.push(b'.');
    let mut place = 100_000;
    while us > 0 {
        out.push(b'0' + (us / place % 10) as u8);
        us %= place;
        place /= 10;
    }
}

fn day_time(us: i64) -> Decode<i64> {
    if (0..=DAY_US).contains(&us) { Ok(us) } else { Err(Malformed("not a time of day")) }
}

/// The text of a time in its send form.
pub(super) fn write_clock(bytes: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    push_time(out, day_time(i64::from_be_bytes(exactly(bytes)?))?);
    Ok(())
}

/// The text of a timetz in its send form: microseconds, then seconds west of Greenwich.
pub(super) fn write_zoned_clock(bytes: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    let mut cursor = Cursor::new(bytes);
    let us = day_time(cursor.i64()?)?;
    let west = i64::from(cursor.i32()?);
    cursor.end()?;
    if west.abs() >= 1000 * 3600 {
        return Err(Malformed("the time zone is out of range"));
    }
    push_time(out, us);
    out.push(if west <= 0 { b'+' } else { b'-' });
    let away = west.abs();
    push_hours(out, away / 3600);
    if away % 3600 != 0 {
        out.push(b':');
        push_two(out, away / 60 % 60);
        if away % 60 != 0 {
            out.push(b':');
            push_two(out, away % 60);
        }
    }
    Ok(())
}

/// The text of an interval in its send form under IntervalStyle postgres (`EncodeInterval`).
pub(super) fn write_interval(bytes: &[u8], infinite: bool, out: &mut Vec<u8>) -> Decode<()> {
    let mut cursor = Cursor::new(bytes);
    let (us, days, months) = (cursor.i64()?, cursor.i32()?, cursor.i32()?);
    cursor.end()?;
    if infinite && (us, days, months) == (i64::MAX, i32::MAX, i32::MAX) {
        out.extend_from_slice(b"infinity");
        return Ok(());
    }
    if infinite && (us, days, months) == (i64::MIN, i32::MIN, i32::MIN) {
        out.extend_from_slice(b"-infinity");
        return Ok(());
    }
    let (mut first, mut after_negative) = (true, false);
    for (count, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if count != 0 {
            let space = if first { "" } else { " " };
            let plus = if after_negative && count > 0 { "+" } else { "" };
            let plural = if count == 1 { "" } else { "s" };
            out.extend_from_slice(format!("{space}{plus}{count} {unit}{plural}").as_bytes());
            (first, after_negative) = (false, count < 0);
        }
    }
    if first || us != 0 {
        if !first {
            out.push(b' ');
        }
        if us < 0 {
            out.push(b'-');
        } else if after_negative {
            out.push(b'+');
        }
        let magnitude = us.unsigned_abs();
        push_hours(out, (magnitude / 3_600_000_000) as i64);
        out.push(b':');
        push_two(out, (magnitude / 60_000_000 % 60) as i64);
        out.push(b':');
        push_two(out, (magnitude / 1_000_000 % 60) as i64);
        push_fraction(out, (magnitude % 1_000_000) as i64);
    }
    Ok(())
}

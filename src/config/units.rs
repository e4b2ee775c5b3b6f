//! Durations and sizes as people write them: `"10s"`, `"1m30s"`, `"256MiB"`.
//!
//! A duration without a unit is refused: nobody can tell seconds from milliseconds. A size without
//! one is bytes, because its key says so.

use std::time::Duration;

/// Reads `"250ms"`, `"10s"`, `"1h30m"`; units `ms`, `s`, `m`, `h`, `d`.
///
/// # Errors
/// A sentence without subject: it is put behind the key or flag by the caller.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "{text:?} is not a duration: a number and its unit (ms, s, m, h, d), such as \"10s\" or \"250ms\""
        )
    };
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (digits, after) = split_where(rest, |c| !c.is_ascii_digit());
        let (unit, after) = split_where(after, |c| !c.is_ascii_alphabetic());
        let milliseconds: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        total = number
            .checked_mul(milliseconds)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(wrong)?;
        rest = after.trim_start();
    }
    Ok(Duration::from_millis(total))
}

/// Reads `"64MiB"`, `"1GB"`, `"8192"`; decimal units (`kB`, `MB`, `GB`, `TB`) and binary ones
/// (`KiB`, `MiB`, `GiB`, `TiB`), in any case.
///
/// # Errors
/// A sentence without subject, as [`parse_duration`].
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("{text:?} is not a size: bytes, or a whole number and its unit, such as \"256MiB\"")
    };
    let (digits, unit) = split_where(text.trim(), |c| !c.is_ascii_digit());
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)
}

fn split_where(text: &str, end: impl FnMut(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

/// The shortest text [`parse_duration`] reads back.
pub fn duration_text(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    for (unit, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if milliseconds >= factor && milliseconds.is_multiple_of(factor) {
            return format!("{}{unit}", milliseconds / factor);
        }
    }
    format!("{milliseconds}ms")
}

/// The shortest text [`parse_bytes`] reads back, in binary units where it is a whole number.
pub fn bytes_text(bytes: u64) -> String {
    for (unit, factor) in
        [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
    {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

/// serde and JSON Schema for a [`Duration`] field: `#[serde(with = "units::duration")]` and
/// `#[schemars(with = "units::DurationText")]`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the shortest text.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::duration_text(*value))
    }

    /// Reads text; a bare number is refused with a sentence that asks for its unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a duration as text, such as \"10s\"")]
        enum Raw {
            Text(String),
            Number(i64),
        }
        let text = match Raw::deserialize(deserializer)? {
            Raw::Text(text) => text,
            Raw::Number(number) => number.to_string(),
        };
        super::parse_duration(&text).map_err(serde::de::Error::custom)
    }
}

/// serde and JSON Schema for a size in bytes: `#[serde(with = "units::bytes")]` and
/// `#[schemars(with = "units::BytesText")]`.
pub mod bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the shortest text.
    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::bytes_text(*value))
    }

    /// Reads a number of bytes, or text with a unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected a size: bytes as a number, or text such as \"256MiB\""
        )]
        enum Raw {
            Number(u64),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Number(bytes) => Ok(bytes),
            Raw::Text(text) => super::parse_bytes(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// As [`bytes`], for a size that may be left out.
pub mod optional_bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the shortest text.
    pub fn serialize<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => super::bytes::serialize(bytes, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a number of bytes, or text with a unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        #[derive(Deserialize)]
        struct Size(#[serde(with = "super::bytes")] u64);
        Ok(Option::<Size>::deserialize(deserializer)?.map(|size| size.0))
    }
}

/// How a duration looks in the JSON Schema.
pub struct DurationText;

impl schemars::JsonSchema for DurationText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": r"^\s*([0-9]+(ms|s|m|min|h|d)\s*)+$",
            "examples": ["10s", "250ms", "1h30m"],
        })
    }
}

/// How a size looks in the JSON Schema.
pub struct BytesText;

impl schemars::JsonSchema for BytesText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": r"^\s*[0-9]+\s*([kKmMgGtT]?i?)[bB]?\s*$",
            "examples": ["256MiB", 268435456],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_without_unit_is_no_duration() {
        for text in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "10 parsecs",
            "1s2",
            "99999999999999999999s",
            "9999999999999999d",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn durations_add_up() {
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration(" 1m 30s "), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn decimal_and_binary_sizes_differ() {
        assert_eq!(parse_bytes("1kB"), Ok(1_000));
        assert_eq!(parse_bytes("1 KiB"), Ok(1_024));
        assert_eq!(parse_bytes("8192"), Ok(8_192));
        for text in ["", "MiB", "-1", "1.5GiB", "1XB", "99999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(milliseconds in 0u64..1 << 50, bytes: u64) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse_duration(&duration_text(duration)), Ok(duration));
            prop_assert_eq!(parse_bytes(&bytes_text(bytes)), Ok(bytes));
        }
    }
}

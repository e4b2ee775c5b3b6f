//! Positions in the source's history: the only clock Tidegate trusts.
//!
//! An [`Lsn`] is PostgreSQL's own log position. A [`Position`] orders every change of a database:
//! the LSN of the transaction's commit record, then the order of the change in that transaction.
//! Rows of a snapshot carry `(base, 0)`, which is below every change after the base.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A write-ahead log position in bytes, written `X/Y` as PostgreSQL does.
///
/// It sorts as a number: text such as `0/BE0` and `0/151E` would sort wrongly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, JsonSchema)]
#[schemars(transparent)]
pub struct Lsn(#[schemars(with = "String", regex(pattern = r"^[0-9A-F]{1,8}/[0-9A-F]{1,8}$"))] u64);

impl Lsn {
    /// PostgreSQL's `InvalidXLogRecPtr`: no position.
    pub const ZERO: Lsn = Lsn(0);
    /// Above every position.
    pub const MAX: Lsn = Lsn(i64::MAX as u64);

    /// The position `bytes` after the start of the log.
    pub const fn new(bytes: u64) -> Self {
        Lsn(bytes)
    }

    /// Bytes since the start of the log.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The value of the column `_tg_lsn`. PostgreSQL positions stay far below 2^63.
    pub const fn as_i64(self) -> i64 {
        self.0 as i64
    }

    /// Bytes of log from `earlier` to here, zero when `earlier` is not earlier.
    pub const fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text was not two hexadecimal numbers joined by a slash.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not an LSN: two hexadecimal numbers joined by a slash, such as 16/B374D848")]
pub struct LsnSyntax(String);

impl FromStr for Lsn {
    type Err = LsnSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || LsnSyntax(text.to_owned());
        let half = |part: &str| {
            let digits =
                (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            if !digits {
                return Err(wrong());
            }
            u64::from_str_radix(part, 16).map_err(|_| wrong())
        };
        let (high, low) = text.split_once('/').ok_or_else(wrong)?;
        Ok(Lsn(half(high)? << 32 | half(low)?))
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Where a change stands in the source's history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// LSN of the transaction's commit record, or the base position of a snapshot row.
    pub commit_lsn: Lsn,
    /// Order of the change in its transaction, from 1; 0 for a snapshot row.
    pub seq: u64,
}

impl Position {
    /// The position of every row of a snapshot taken at `base`.
    pub const fn of_snapshot(base: Lsn) -> Self {
        Position { commit_lsn: base, seq: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_sort_as_numbers_not_as_text() {
        let (low, high): (Lsn, Lsn) = ("0/BE0".parse().unwrap(), "0/151E".parse().unwrap());
        assert!(low < high);
        assert!("0/BE0" > "0/151E");
    }

    #[test]
    fn a_snapshot_row_is_below_every_change_at_its_base() {
        let base = Lsn::new(100);
        assert!(Position::of_snapshot(base) < Position { commit_lsn: base, seq: 1 });
    }

    #[test]
    fn odd_text_is_refused() {
        for text in ["", "/", "0", "0/", "/0", "g/0", "0/0/0", "123456789/0", " 0/0", "+1/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn text_and_json_round_trip(bytes in 0..i64::MAX as u64) {
            let lsn = Lsn::new(bytes);
            prop_assert_eq!(lsn.to_string().parse::<Lsn>(), Ok(lsn));
            let json = serde_json::to_string(&lsn).unwrap();
            prop_assert_eq!(serde_json::from_str::<Lsn>(&json).unwrap(), lsn);
        }
    }
}

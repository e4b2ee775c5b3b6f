//! Columns that the lake has otherwise than the source prints them, because the configuration says
//! so: what must be equal then.

use std::borrow::Cow;

use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::source::types::{ColumnPlan, HashKey, Kind};

/// What is compared of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Treated {
    /// The text.
    Not,
    /// The source's text hashed, the lake's as it is.
    Hashed(HashKey),
    /// The text without zeros at the end of fractions: the decimal has digits of its own.
    Decimal,
}

impl Treated {
    /// For each column of a plan.
    pub(super) fn of(plan: &TablePlan) -> Vec<Treated> {
        let configured = |column: &ColumnPlan| {
            let known = plan.known.columns.iter().find(|known| known.name == column.name);
            known.is_some_and(|known| !known.options.is_empty())
        };
        let treated = |column: &ColumnPlan| match &column.kind {
            Kind::Hashed(key) => Treated::Hashed(key.clone()),
            Kind::Decimal { .. } | Kind::Array(_) if configured(column) => Treated::Decimal,
            _ => Treated::Not,
        };
        plan.columns.iter().map(treated).collect()
    }

    /// What the source prints, as it is compared.
    pub(super) fn source<'a>(&self, text: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        match self {
            Treated::Not => Ok(text.into()),
            Treated::Hashed(key) => match key.hex(text) {
                Some(hash) => Ok(hash.into_bytes().into()),
                None => Err(Error::config("the key of the hashes in the lake is not known")
                    .next("give it as TIDEGATE_HASH_KEY or `hash_key_file`")),
            },
            Treated::Decimal => Ok(short(text).into()),
        }
    }

    /// What the lake holds, as it is compared.
    pub(super) fn lake<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        match self {
            Treated::Not | Treated::Hashed(_) => text.into(),
            Treated::Decimal => short(text).into(),
        }
    }
}

/// Numbers in a text without zeros at the end of their fractions.
fn short(text: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(text.len());
    // Where the fraction at hand begins, with its point.
    let mut fraction = None;
    let end = |out: &mut Vec<u8>, fraction: &mut Option<usize>| {
        let Some(point) = fraction.take() else { return };
        while out.len() > point && matches!(out.last(), Some(b'0' | b'.')) {
            out.pop();
        }
    };
    for byte in text {
        match byte {
            b'.' => fraction = Some(out.len()),
            b'0'..=b'9' => {}
            _ => end(&mut out, &mut fraction),
        }
        out.push(*byte);
    }
    end(&mut out, &mut fraction);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_without_zeros_at_the_end() {
        for (text, expected) in [
            ("1.5000", "1.5"),
            ("100", "100"),
            ("100.00", "100"),
            ("-0.10", "-0.1"),
            ("NaN", "NaN"),
            ("{1.50,NULL,20.0,300}", "{1.5,NULL,20,300}"),
            ("[0:1]={1.0,0.001000}", "[0:1]={1,0.001}"),
        ] {
            assert_eq!(String::from_utf8(short(text.as_bytes())).unwrap(), expected);
        }
    }
}

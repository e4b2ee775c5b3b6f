//! `[[columns]]`: columns that the lake gets otherwise than they are, or not at all.
//!
//! Carries the guarantee that what can't be meant is said: two wishes for one column, a hash without
//! a key, a decimal that Delta does not have.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::Patterns;
use super::{secret, set};
use crate::error::{Error, Result};
use crate::source::catalog::{Rule, Treatments};
use crate::source::types::{ColumnOptions, HashKey};

/// A shorter key is found by trying.
const SHORTEST_KEY: usize = 16;

/// Columns that the lake gets otherwise than they are, or not at all; of two sections that name one
/// column the later one counts. Names are as the catalog has them. A table whose columns are named
/// otherwise than before is read again at the next start.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Columns")]
pub struct ColumnsFile {
    /// The tables, as under `tables`: `public.users`, `crm.*`.
    pub tables: Patterns,
    /// Columns that the lake does not have. Neither do snapshots read them; the stream brings them
    /// unless the publication's column list leaves them out, and they are dropped on arrival.
    #[serde(default)]
    pub leave_out: Vec<String>,
    /// Columns of which the lake has a hash: 64 hexadecimal digits of HMAC-SHA256 over the value as
    /// PostgreSQL prints it, with the secret of `hash_key_file` or TIDEGATE_HASH_KEY.
    #[serde(default)]
    pub hash: Vec<String>,
    /// Columns that the lake has as PostgreSQL prints them, whatever their type.
    #[serde(default)]
    pub text: Vec<String>,
    /// Columns of type numeric that the lake has as a decimal: `{ amount = "20,4" }` for 20 digits,
    /// 4 of them after the point. A value that does not fit exactly stands in the overflow column.
    #[serde(default)]
    pub decimal: BTreeMap<String, String>,
    /// Columns by which the lake's files are partitioned: a reader that asks for one value reads no
    /// other's files. For few values, of booleans, whole numbers, decimals, dates and texts. Adds to
    /// what else is said of the column.
    #[serde(default)]
    pub partition_by: Vec<String>,
}

impl ColumnsFile {
    /// The rule this is.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`]: a column named twice, a hash without a key, a decimal that
    /// Delta does not have, or nothing said at all.
    pub(super) fn rule(&self, key: Option<&HashKey>) -> Result<Rule> {
        let patterns = self.tables.list();
        let place = || format!("[[columns]] for {}", patterns.join(","));
        let mut columns: BTreeMap<String, ColumnOptions> = BTreeMap::new();
        let mut add = |name: &String, options: ColumnOptions| match columns.entry(name.clone()) {
            Entry::Occupied(_) => Err(Error::config(format!("column {name:?} is named twice"))
                .at(place())
                .next("name it once")),
            Entry::Vacant(free) => {
                free.insert(options);
                Ok(())
            }
        };
        let plain = ColumnOptions::default();
        for name in &self.leave_out {
            add(name, ColumnOptions { left_out: true, ..plain.clone() })?;
        }
        for name in &self.hash {
            let key = key.cloned().ok_or_else(|| {
                Error::config(format!("column {name:?} is to be hashed, and there is no key"))
                    .at(place())
                    .next("set TIDEGATE_HASH_KEY or `hash_key_file`; keep the key, as another one makes other hashes")
            })?;
            add(name, ColumnOptions { hash: Some(key), ..plain.clone() })?;
        }
        for name in &self.text {
            add(name, ColumnOptions { as_text: true, ..plain.clone() })?;
        }
        for (name, digits) in &self.decimal {
            let numbers = digits.split_once(',').and_then(|(precision, scale)| {
                Some((precision.trim().parse().ok()?, scale.trim().parse().ok()?))
            });
            let decimal = numbers.filter(|(precision, scale): &(u8, i8)| {
                (1..=38).contains(precision) && (0..=*precision as i8).contains(scale)
            });
            let decimal = decimal.ok_or_else(|| {
                Error::config(format!("{digits:?} is no decimal for column {name:?}"))
                    .at(place())
                    .next("write \"precision,scale\" with a precision of 1 to 38 and a scale of 0 to the precision")
            })?;
            add(name, ColumnOptions { decimal: Some(decimal), ..plain.clone() })?;
        }
        for name in &self.partition_by {
            let options = columns.entry(name.clone()).or_default();
            if options.left_out || options.partition {
                return Err(Error::config(format!("column {name:?} is named twice"))
                    .at(place())
                    .next("name it once; the lake can't be partitioned by what it does not have"));
            }
            options.partition = true;
        }
        if columns.is_empty() {
            return Err(Error::config("it names no column")
                .at(place())
                .next("say leave_out, hash, text, decimal or partition_by"));
        }
        Rule::new(&patterns, columns).map_err(|error| error.at("[[columns]] `tables`"))
    }
}

/// What the `[[columns]]` sections say, with the key of the hashes where one is asked for, and the
/// publication whose filters count.
pub(super) fn treatments(
    publication: &str,
    sections: &[ColumnsFile],
    key_file: Option<&Path>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Treatments> {
    let wanted = sections.iter().any(|section| !section.hash.is_empty());
    let secret = match (set(env, "TIDEGATE_HASH_KEY"), key_file) {
        _ if !wanted => None,
        (Some(secret), _) => Some(secret),
        (None, Some(path)) => Some(secret::first_line(path, "hash_key_file")?),
        (None, None) => None,
    };
    if secret.as_ref().is_some_and(|secret| secret.len() < SHORTEST_KEY) {
        return Err(Error::config(format!(
            "the key of the hashes has less than {SHORTEST_KEY} characters"
        ))
        .next("make one with `openssl rand -hex 32`, and keep it"));
    }
    let key = secret.map(|secret| HashKey::new(secret.as_bytes()));
    let rules = sections.iter().map(|section| section.rule(key.as_ref()));
    Ok(Treatments::new(rules.collect::<Result<_>>()?, key, publication))
}

//! `verify`: compares every column of every row of a table with the source, at one exact position.
//!
//! A temporary slot's exported snapshot names the position; the lake is brought to it; then both
//! sides are read and compared as PostgreSQL's own text. The source's side is what the types'
//! output functions print; the lake's side is what a reader finds in the files, rendered. Neither
//! decoders nor digests of the pipeline are trusted.

mod command;
mod spill;
mod treated;

pub use command::verify;

use std::collections::BTreeSet;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;

use crate::apply::keys::overflow_text;
use crate::apply::plan::{RowIdentity, TablePlan};
use crate::cli::output::{DifferenceKind, VerifySample, VerifyTable};
use crate::error::{Error, Result};
use crate::lake::{Lake, LakeTable, scan_file};
use crate::source::catalog::TableInfo;
use crate::source::catalog::{quote_ident, sql_name};
use crate::source::types::ColumnPlan;
use crate::source::types::render::render;
use crate::source::wire::Wire;
use spill::{Differences, KeyHash, RowText, Side, compare};
use treated::Treated;

/// Kind of the event by which the ledger knows of a comparison.
pub const VERIFIED_EVENT: &str = "verified";
/// How many differing rows are shown.
const SAMPLES: usize = 5;

/// One table to compare.
pub struct Comparison<'a> {
    /// Its plan.
    pub plan: &'a TablePlan,
    /// Its catalog entry: the leaves to read.
    pub info: &'a TableInfo,
    /// The lake.
    pub lake: &'a Lake,
    /// The table at the version to compare.
    pub table: &'a LakeTable,
    /// Reads remote files.
    pub runtime: &'a Handle,
    /// Where rows are spilled.
    pub folder: &'a Path,
}

impl Comparison<'_> {
    /// Compares the table with the snapshot `wire` is in. Blocking.
    ///
    /// # Errors
    /// Source, lake or disk failing; differences are a result, not an error.
    pub fn run(&self, wire: &mut Wire) -> Result<VerifyTable> {
        let estimate = self.table.live_rows().max(self.info.rows_estimated.max(0.0) as u64);
        let mut source = Side::create(self.folder, estimate)?;
        let mut lake = Side::create(self.folder, estimate)?;
        self.each_source_row(wire, &mut |row| source.add(row))?;
        self.each_lake_row(&mut |row| lake.add(row))?;
        let (source_rows, lake_rows) = (source.rows(), lake.rows());
        let found = compare(source, lake, SAMPLES)?;
        let samples = if found.keys.is_empty() { Vec::new() } else { self.samples(wire, &found)? };
        Ok(VerifyTable {
            table: self.plan.to_string(),
            equal: found.missing + found.extra + found.different == 0,
            source_rows,
            lake_rows,
            missing: found.missing,
            extra: found.extra,
            different: found.different,
            samples,
        })
    }

    /// The rows of the source as text, by PostgreSQL's output functions.
    fn each_source_row(
        &self,
        wire: &mut Wire,
        with: &mut dyn FnMut(&RowText) -> Result<()>,
    ) -> Result<()> {
        // format() calls the type's output function, whatever the type; IS NULL would also hold for a
        // row of NULLs, which prints as something.
        let text = |column: &ColumnPlan| {
            let name = quote_ident(&column.name);
            format!(
                "CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {name}) END"
            )
        };
        let columns: Vec<String> = self.plan.columns.iter().map(text).collect();
        let columns = columns.join(", ");
        let treated = Treated::of(self.plan);
        let condition = match &self.plan.row_filter {
            Some(filter) => format!(" WHERE {filter}"),
            None => String::new(),
        };
        let mut row = RowText::default();
        for leaf in &self.info.leaves {
            let sql = format!(
                "COPY (SELECT {columns} FROM ONLY {}{condition}) TO STDOUT (FORMAT binary)",
                sql_name(&leaf.schema, &leaf.name)
            );
            let mut copy = wire.copy_out(&sql)?;
            let mut first = true;
            while let Some(message) = copy.next()? {
                // Signature, flags and an empty extension come before the first row.
                let mut rest = if first { message.get(19..).unwrap_or_default() } else { message };
                first = false;
                if rest.is_empty() || rest == [0xff, 0xff] {
                    continue;
                }
                row.clear();
                let count = u16::from_be_bytes(take(&mut rest)?);
                if usize::from(count) != self.plan.columns.len() {
                    return Err(Error::failed(
                        "COPY sent another number of columns than asked for",
                    ));
                }
                for (index, treated) in treated.iter().enumerate() {
                    let value = match i32::from_be_bytes(take(&mut rest)?) {
                        -1 => None,
                        length => {
                            let (value, after) = usize::try_from(length)
                                .ok()
                                .and_then(|length| rest.split_at_checked(length))
                                .ok_or_else(cut_short)?;
                            rest = after;
                            Some(treated.source(value)?)
                        }
                    };
                    row.push(value.as_deref(), self.is_key(index));
                }
                with(&row)?;
            }
        }
        Ok(())
    }

    /// The rows of the lake as text.
    fn each_lake_row(&self, with: &mut dyn FnMut(&RowText) -> Result<()>) -> Result<()> {
        let mut row = RowText::default();
        let mut text = String::new();
        let schema = self.schema();
        let treated = Treated::of(self.plan);
        for file in self.table.files().values() {
            let (folder, mask) = (&self.plan.folder, Some(&file.mask));
            for piece in scan_file(self.lake, self.runtime, folder, file, &schema, mask)? {
                let batch = piece?.live_rows()?;
                let overflow = self.overflow(&batch);
                let deleted = self.plan.keeps_deleted.then(|| self.plan.deleted_column());
                let deleted = deleted.and_then(|name| batch.column_by_name(&name));
                let deleted = deleted.and_then(|column| column.as_boolean_opt());
                let is_there = |row: &usize| {
                    deleted.is_none_or(|deleted| deleted.is_null(*row) || !deleted.value(*row))
                };
                for index in (0..batch.num_rows()).filter(is_there) {
                    row.clear();
                    let columns = self.plan.columns.iter().zip(&treated);
                    for (place, (column, treated)) in columns.enumerate() {
                        let array = batch.column(place);
                        let is_key = self.is_key(place);
                        if array.is_valid(index) {
                            text.clear();
                            render(&column.kind, array, index, &mut text)?;
                            row.push(Some(&treated.lake(text.as_bytes())), is_key);
                        } else {
                            let spilled = overflow.get(place).and_then(Option::as_ref);
                            let spilled = spilled.filter(|texts| texts.is_valid(index));
                            let text =
                                spilled.map(|texts| treated.lake(texts.value(index).as_bytes()));
                            row.push(text.as_deref(), is_key);
                        }
                    }
                    with(&row)?;
                }
            }
        }
        Ok(())
    }

    fn schema(&self) -> SchemaRef {
        self.plan.lake_schema()
    }

    fn overflow(&self, batch: &RecordBatch) -> Vec<Option<StringArray>> {
        let map = batch.column_by_name(&format!("{}overflow", self.plan.prefix));
        let map = map.and_then(|map| map.as_map_opt());
        self.plan
            .columns
            .iter()
            .map(|column| {
                column.can_overflow().then(|| overflow_text(map, &column.name, batch.num_rows()))
            })
            .collect()
    }

    fn is_key(&self, column: usize) -> bool {
        matches!(&self.plan.identity, RowIdentity::Key(key) if key.contains(&column))
    }

    /// Reads both sides again for the rows behind the first differences.
    fn samples(&self, wire: &mut Wire, found: &Differences) -> Result<Vec<VerifySample>> {
        let wanted: BTreeSet<KeyHash> = found.keys.iter().copied().collect();
        let (mut source, mut lake) = (Vec::new(), Vec::new());
        self.each_source_row(wire, &mut |row| {
            if wanted.contains(&row.key_hash()) {
                source.push((row.key_hash(), row.texts()));
            }
            Ok(())
        })?;
        self.each_lake_row(&mut |row| {
            if wanted.contains(&row.key_hash()) {
                lake.push((row.key_hash(), row.texts()));
            }
            Ok(())
        })?;
        let mut samples = Vec::new();
        for key in &found.keys {
            let of = |side: &[(KeyHash, Vec<Option<String>>)]| {
                side.iter().find(|(k, _)| k == key).map(|(_, row)| row.clone())
            };
            samples.extend(self.sample(of(&source), of(&lake)));
        }
        Ok(samples)
    }

    fn sample(
        &self,
        source: Option<Vec<Option<String>>>,
        lake: Option<Vec<Option<String>>>,
    ) -> Vec<VerifySample> {
        let key = |row: &[Option<String>]| {
            let columns = self.plan.columns.iter().zip(row).enumerate();
            let has_key = matches!(self.plan.identity, RowIdentity::Key(_));
            let parts: Vec<String> = columns
                .filter(|(place, _)| !has_key || self.is_key(*place))
                .map(|(_, (c, v))| {
                    format!("{}={}", c.name, v.as_deref().map_or("NULL".into(), shorten))
                })
                .collect();
            parts.join(", ")
        };
        match (source, lake) {
            (Some(source), Some(lake)) => self
                .plan
                .columns
                .iter()
                .zip(source.iter().zip(&lake))
                .filter(|(_, (s, l))| s != l)
                .map(|(column, (s, l))| VerifySample {
                    key: key(&source),
                    kind: DifferenceKind::Different,
                    column: Some(column.name.clone()),
                    source: s.as_deref().map(shorten),
                    lake: l.as_deref().map(shorten),
                })
                .collect(),
            (Some(row), None) => vec![only(key(&row), DifferenceKind::Missing)],
            (None, Some(row)) => vec![only(key(&row), DifferenceKind::Extra)],
            (None, None) => Vec::new(),
        }
    }
}

fn only(key: String, kind: DifferenceKind) -> VerifySample {
    VerifySample { key, kind, column: None, source: None, lake: None }
}

/// A value short enough for a message.
fn shorten(text: &str) -> String {
    const CHARS: usize = 200;
    match text.char_indices().nth(CHARS) {
        None => text.to_owned(),
        Some((end, _)) => {
            format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len())
        }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or_else(cut_short)?;
    *rest = tail;
    Ok(*head)
}

fn cut_short() -> Error {
    Error::failed("COPY sent a row that is cut short")
}

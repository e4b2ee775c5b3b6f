//! A table whose chunks were copied at several boundaries, while it is drained past the largest.
//!
//! What may be kept and which change applies is decided in `handoff::rules` (`bases`); this stages
//! by it. A part of the stream lies on one side of each base, and its changes meet one of these
//! for each key:
//!
//! | where the key's row stands | what its changes do |
//! |---|---|
//! | in a chunk of a base above the part | nothing: the row shows them already |
//! | in a chunk of a base below, or written by an earlier change | they apply, as to any table |
//! | nowhere, and the part lies below the largest base | the last one makes the row, a delete does nothing |
//! | nowhere, and the part lies above | an error: by then every row of the source is known |
//!
//! A row that is in no chunk may come with TOAST values left out. They are nowhere, so the key is
//! *unresolved*: no row is kept for it, until a later change has all values, or deletes it, or it
//! is read again at a boundary of its own. How many such keys are kept is bounded.

use std::collections::{BTreeMap, HashSet};

use arrow::array::{Array, ArrayRef, StringArray};

use crate::apply::keys::{KeyEncoder, Keys};
use crate::apply::net::Net;
use crate::apply::part::{TablePart, Transaction};
use crate::apply::plan::TablePlan;
use crate::apply::rows::Rows;
use crate::apply::table::{TableApplier, not_there};
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::rules;
use crate::lake::locations::Location;
use crate::lake::{FileNo, NewFile};
use crate::position::Lsn;
use crate::source::types::render::render;

/// What a key in memory costs besides its bytes.
const KEY_OVERHEAD_BYTES: usize = 128;

/// Key columns of the changes of a part: values, and the texts of those that overflow.
pub(super) type KeyColumns = Vec<(ArrayRef, Option<StringArray>)>;

/// The keys without a row, and what is known of the rows' bases.
pub struct Join {
    /// The base of each chunk's file.
    bases: BTreeMap<FileNo, Lsn>,
    /// Bytes of a key to its values as PostgreSQL prints them.
    unresolved: BTreeMap<Box<[u8]>, Vec<String>>,
    unresolved_bytes: usize,
    limit_bytes: usize,
    overflowed: bool,
}

impl Join {
    /// Of chunks in files with these bases; unresolved keys may take `limit_bytes`.
    pub fn new(bases: BTreeMap<FileNo, Lsn>, limit_bytes: usize) -> Self {
        Join {
            bases,
            unresolved: BTreeMap::new(),
            unresolved_bytes: 0,
            limit_bytes,
            overflowed: false,
        }
    }

    /// The keys that have no row, as PostgreSQL prints their values.
    pub fn unresolved(&self) -> impl Iterator<Item = &[String]> {
        self.unresolved.values().map(Vec::as_slice)
    }

    /// How many keys have no row.
    pub fn unresolved_len(&self) -> usize {
        self.unresolved.len()
    }

    /// Whether there were more unresolved keys than there may be: the table must be copied again.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// The bases of its chunks.
    pub fn bases(&self) -> impl Iterator<Item = Lsn> {
        self.bases.values().copied()
    }

    fn largest(&self) -> Lsn {
        self.bases.values().copied().max().unwrap_or_default()
    }

    fn base_of(&self, file: FileNo) -> Option<Lsn> {
        self.bases.get(&file).copied()
    }

    fn resolve(&mut self, key: &[u8]) {
        if let Some(values) = self.unresolved.remove(key) {
            self.unresolved_bytes -= cost(key, &values);
        }
    }

    fn leave(&mut self, key: &[u8], values: Vec<String>) {
        let cost = cost(key, &values);
        if self.unresolved.insert(key.into(), values).is_none() {
            self.unresolved_bytes += cost;
        }
        if self.unresolved_bytes > self.limit_bytes {
            self.overflowed = true;
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.unresolved.clear();
        self.unresolved_bytes = 0;
    }

    /// The one side of every base on which the changes lie.
    fn side(&self, transactions: &[Transaction]) -> Result<Lsn> {
        let positions = || transactions.iter().map(|t| t.commit_lsn);
        let (first, last) =
            (positions().min().unwrap_or_default(), positions().max().unwrap_or_default());
        if self.bases.values().any(|base| first < *base && *base <= last) {
            return Err(Error::failed(format!(
                "a part from {first} to {last} lies on both sides of a base"
            ))
            .next("report this; nothing was published"));
        }
        Ok(first)
    }
}

fn cost(key: &[u8], values: &[String]) -> usize {
    let texts: usize = values.iter().map(|text| text.len() + size_of::<String>()).sum();
    key.len() + texts + KEY_OVERHEAD_BYTES
}

/// Where the row of a key stands that a part changes.
enum Stands {
    /// In a chunk that shows the part's changes already.
    Later,
    /// Here, as it was before the part.
    Here(Location),
    /// It is there, but its values are not known.
    Unresolved,
    /// In no chunk, and no change has made it.
    Nowhere,
}

impl TableApplier {
    /// Puts rows of a table with chunks of several bases where changes find them.
    pub fn joined(mut self, join: Join) -> Self {
        self.join = Some(join);
        self
    }

    /// What is known of a table with chunks of several bases.
    pub fn join(&self) -> Option<&Join> {
        self.join.as_ref()
    }

    pub(super) fn stage_joined(
        &mut self,
        join: &mut Join,
        part: &TablePart,
        transactions: &[Transaction],
        mut net: Net,
        keys: &Keys,
        columns: &KeyColumns,
    ) -> Result<()> {
        if join.overflowed {
            return Ok(());
        }
        let side = join.side(transactions)?;
        if net.truncated {
            join.forget();
        }
        let (before, masked, skipped) = self.look_up(join, &net, keys, side)?;
        let rows = Rows { plan: &self.plan, part, transactions, net: &net, before: &before };
        let (mut kept, mut kept_keys, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
        for (&change, &key) in net.rows.iter().zip(&net.row_keys) {
            if skipped.contains(&key) {
                continue;
            }
            if rows.lacks_value(change)? {
                lacking.push(key);
            } else {
                kept.push(change);
                kept_keys.push(key);
            }
        }
        let touched = net.masked.iter().map(|(key, _)| key).chain(&net.row_keys);
        for key in touched.filter(|key| !skipped.contains(*key)) {
            join.resolve(keys.get(*key as usize));
        }
        let encoder = self.keys.as_ref().ok_or_else(|| Error::failed("a table without keys"))?;
        for key in lacking {
            let values = texts(&self.plan, encoder, columns, key as usize)?;
            join.leave(keys.get(key as usize), values);
        }
        (net.rows, net.row_keys) = (kept, kept_keys);
        self.mask_locations(masked);
        self.write(part, transactions, &net, keys, &before)
    }

    /// Finds the rows that the part changes: where they stood by key index, those to be masked, and
    /// the keys whose changes don't count.
    #[allow(clippy::type_complexity)]
    fn look_up(
        &self,
        join: &Join,
        net: &Net,
        keys: &Keys,
        side: Lsn,
    ) -> Result<(Vec<Option<Location>>, Vec<Location>, HashSet<u32>)> {
        let replaced: HashSet<u32> = net.masked.iter().map(|(key, _)| *key).collect();
        let mut wanted: Vec<(u32, bool)> = replaced.iter().map(|key| (*key, true)).collect();
        wanted.extend(
            net.row_keys.iter().filter(|key| !replaced.contains(*key)).map(|key| (*key, false)),
        );
        keys.sort(&mut wanted, |(key, _)| *key, Ord::cmp);
        let index = self.index.as_ref().ok_or_else(|| Error::failed("no location index"))?;
        let sorted: Vec<&[u8]> = wanted.iter().map(|(key, _)| keys.get(*key as usize)).collect();
        let mut found = Vec::with_capacity(sorted.len());
        index.get_batch(&sorted, &mut found)?;
        let mut before = vec![None; keys.len()];
        let (mut masked, mut skipped) = (Vec::new(), HashSet::new());
        for ((key, replaces), location) in wanted.into_iter().zip(found) {
            let bytes = keys.get(key as usize);
            let stands = match location.filter(|location| self.is_live(*location)) {
                Some(at) => {
                    let base = join.base_of(at.file);
                    let applies =
                        rules::applies_to_row(base, side) || failpoint::wrong("ignore-row-bases");
                    if applies { Stands::Here(at) } else { Stands::Later }
                }
                None if join.unresolved.contains_key(bytes) => Stands::Unresolved,
                None => Stands::Nowhere,
            };
            match stands {
                Stands::Later => {
                    skipped.insert(key);
                }
                Stands::Here(at) if replaces => {
                    if let Some(before) = before.get_mut(key as usize) {
                        *before = Some(at);
                    }
                    masked.push(at);
                }
                Stands::Here(_) | Stands::Unresolved if !replaces => {
                    return Err(Error::unfit("a change makes a row whose key is already there")
                        .next("nothing was published; report this with the server's version"));
                }
                Stands::Nowhere if replaces && side >= join.largest() => {
                    return Err(not_there(1, 0));
                }
                Stands::Here(_) | Stands::Unresolved | Stands::Nowhere => {}
            }
        }
        Ok((before, masked, skipped))
    }

    /// Takes in rows that were read again at `base`: data files and the keys of their rows. Of a key
    /// that has a row already this one counts.
    ///
    /// # Errors
    /// The index failing.
    pub fn take_in(
        &mut self,
        files: Vec<(FileNo, NewFile)>,
        base: Lsn,
        mut entries: Vec<(Vec<u8>, Location)>,
    ) -> Result<()> {
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| key.as_slice()).collect();
        let index = self.index.as_mut().ok_or_else(|| Error::failed("no location index"))?;
        let mut found = Vec::with_capacity(keys.len());
        index.get_batch(&keys, &mut found)?;
        index.stage(entries.iter().map(|(key, place)| (key.as_slice(), *place)))?;
        let stale = found.into_iter().flatten().filter(|at| self.is_live(*at)).collect();
        self.mask_locations(stale);
        if let Some(join) = &mut self.join {
            join.bases.extend(files.iter().map(|(number, _)| (*number, base)));
            for (key, _) in &entries {
                join.resolve(key);
            }
        }
        for (number, file) in files {
            self.add_staged(number, file);
        }
        Ok(())
    }
}

/// The values of key `index` as PostgreSQL prints them.
fn texts(
    plan: &TablePlan,
    encoder: &KeyEncoder,
    columns: &KeyColumns,
    index: usize,
) -> Result<Vec<String>> {
    let mut values = Vec::with_capacity(columns.len());
    for ((array, overflow), (place, _)) in columns.iter().zip(encoder.columns()) {
        let Some(column) = plan.columns.get(*place) else { continue };
        if array.is_valid(index) {
            let mut text = String::new();
            render(&column.kind, array, index, &mut text)?;
            values.push(text);
            continue;
        }
        let spilled = overflow.as_ref().filter(|texts| texts.is_valid(index));
        let text = spilled.map(|texts| texts.value(index).to_owned());
        values.push(text.ok_or_else(|| {
            Error::unfit(format!("the key column {:?} of a change is NULL", column.name))
        })?);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lsn: u64) -> Transaction {
        Transaction { commit_lsn: Lsn::new(lsn), committed_at_us: 0 }
    }

    #[test]
    fn a_part_on_both_sides_of_a_base_is_refused() {
        let join = Join::new(BTreeMap::from([(0, Lsn::new(100)), (7, Lsn::new(200))]), 1 << 20);
        assert_eq!(join.side(&[at(100), at(199)]).unwrap(), Lsn::new(100));
        assert_eq!(join.side(&[at(200), at(900)]).unwrap(), Lsn::new(200));
        assert!(join.side(&[at(199), at(200)]).is_err());
        assert_eq!(join.largest(), Lsn::new(200));
    }

    #[test]
    fn unresolved_keys_are_counted_in_bytes_and_bounded() {
        let one = cost(b"key 1", &["1".to_owned()]);
        let mut join = Join::new(BTreeMap::new(), 2 * one);
        join.leave(b"key 1", vec!["1".to_owned()]);
        join.leave(b"key 1", vec!["1".to_owned()]);
        join.leave(b"key 2", vec!["2".to_owned()]);
        assert_eq!((join.unresolved_len(), join.unresolved_bytes), (2, 2 * one));
        join.resolve(b"key 1");
        join.resolve(b"key 1");
        assert_eq!((join.unresolved_len(), join.unresolved_bytes), (1, one));
        join.leave(b"key 3", vec!["3".to_owned()]);
        assert!(!join.overflowed());
        join.leave(b"key 4", vec!["4".to_owned()]);
        assert!(join.overflowed() && join.unresolved_len() == 0);
    }
}

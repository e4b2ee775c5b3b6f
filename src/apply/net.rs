//! The net effect of a part on one table. Pure.
//!
//! Of all changes to a key only the last matters to readers, so one row at most is written per key
//! and part, and the row that stood there before the part is masked. An insert is of a key that is
//! not there (it is unique at the source and every earlier change was applied), so it needs no
//! look-up; everything else must find its row, and if it does not, the table is not what its
//! position says: that is an error, never a guess.

use hashbrown::HashMap;

use crate::apply::part::{Old, Op};
use crate::error::{Error, Result};

/// Where the row was that a change replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// Nowhere: the change made it.
    None,
    /// Written by this change of the same part.
    Change(u32),
    /// In the lake before the part, under the key with this index.
    Before(u32),
}

/// A change by the indices of its keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyedChange {
    /// What it does.
    pub op: Op,
    /// Index of the key the row had before (update, delete).
    pub old_key: u32,
    /// Index of the key the row has now (insert, update).
    pub new_key: u32,
}

/// What a part does to a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// All rows of before are gone.
    pub truncated: bool,
    /// Changes whose new row stands at the end of the part, in stream order.
    pub rows: Vec<u32>,
    /// Index of the key of each of `rows`.
    pub row_keys: Vec<u32>,
    /// Keys under which a deleted row of before the part may stand, which their new row replaces.
    pub perhaps_masked: Vec<u32>,
    /// Keys whose row of before the part is gone or replaced; with how many of it (tables without
    /// a key can hold equal rows).
    pub masked: Vec<(u32, u32)>,
    /// For each change the row it replaced.
    pub previous: Vec<Previous>,
}

struct Slot {
    key: u32,
    /// What of before the part is to be masked.
    before: Before,
    /// The change that wrote the row standing now.
    current: Option<u32>,
    /// That row is a deleted one, which is kept.
    deleted: bool,
}

impl Slot {
    fn free(key: u32) -> Slot {
        Slot { key, before: Before::Nothing, current: None, deleted: false }
    }
}

/// What stood under a key before the part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing that counts.
    Nothing,
    /// Perhaps a deleted row.
    PerhapsDeleted,
    /// A row.
    Row,
}

/// What becomes of a deleted row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Gone,
    /// It stays, with the values it had, until a new row takes its key. A row that gets another key
    /// leaves nothing under the old one, and a truncation leaves nothing at all.
    Kept,
}

/// Net effect where rows have a unique key. `key_of(i)` gives the bytes of key `i`.
///
/// # Errors
/// A change of a row that is not there.
pub fn by_key<'k>(
    changes: impl Iterator<Item = KeyedChange>,
    key_of: impl Fn(u32) -> &'k [u8],
    deleted: Deleted,
) -> Result<Net> {
    let keeps = deleted == Deleted::Kept;
    let mut net = Net::default();
    let mut slots: HashMap<&'k [u8], Slot> = HashMap::new();
    for (index, change) in (0u32..).zip(changes) {
        let mut previous = Previous::None;
        match change.op {
            Op::Truncate => {
                slots.clear();
                net.truncated = true;
            }
            Op::Insert => {
                let perhaps = keeps && !net.truncated;
                arrive(&mut slots, &key_of, change.new_key, index, perhaps)?;
            }
            Op::Update | Op::Delete => {
                let stays = change.op == Op::Update && change.old_key == change.new_key;
                let truncated = net.truncated;
                let slot = slots.entry(key_of(change.old_key)).or_insert_with(|| {
                    previous = Previous::Before(change.old_key);
                    Slot { before: Before::Row, ..Slot::free(change.old_key) }
                });
                let was_deleted = std::mem::take(&mut slot.deleted);
                match (previous, slot.current.take()) {
                    _ if was_deleted => return Err(not_there(index)),
                    (Previous::Before(_), _) if truncated => return Err(not_there(index)),
                    (Previous::Before(_), _) => {}
                    (_, Some(current)) => previous = Previous::Change(current),
                    (_, None) => return Err(not_there(index)),
                }
                if stays {
                    slot.current = Some(index);
                } else if change.op == Op::Update {
                    arrive(&mut slots, &key_of, change.new_key, index, keeps && !truncated)?;
                } else if keeps {
                    (slot.current, slot.deleted) = (Some(index), true);
                }
            }
        }
        net.previous.push(previous);
    }
    let mut rows = Vec::new();
    for slot in slots.into_values() {
        match slot.before {
            Before::Row => net.masked.push((slot.key, 1)),
            Before::PerhapsDeleted => net.perhaps_masked.push(slot.key),
            Before::Nothing => {}
        }
        if let Some(change) = slot.current {
            rows.push((change, slot.key));
        }
    }
    rows.sort_unstable();
    (net.rows, net.row_keys) = rows.into_iter().unzip();
    Ok(net)
}

/// A row takes a key that must be free.
fn arrive<'k>(
    slots: &mut HashMap<&'k [u8], Slot>,
    key_of: &impl Fn(u32) -> &'k [u8],
    key: u32,
    change: u32,
    perhaps: bool,
) -> Result<()> {
    let before = if perhaps { Before::PerhapsDeleted } else { Before::Nothing };
    let slot = slots.entry(key_of(key)).or_insert(Slot { before, ..Slot::free(key) });
    let was_deleted = std::mem::take(&mut slot.deleted);
    if slot.current.replace(change).is_some() && !was_deleted {
        return Err(Error::unfit(format!(
            "change {change} of the batch makes a row whose key is already there"
        ))
        .next("run `tidegate verify`, and `tidegate reseed` the table if it finds differences"));
    }
    Ok(())
}

fn not_there(change: u32) -> Error {
    Error::unfit(format!("change {change} of the batch is of a row that is not there"))
        .next("run `tidegate verify`, and `tidegate reseed` the table if it finds differences")
}

/// Net effect where a row is named by all its values: the table is a multiset of rows.
///
/// # Errors
/// An update or delete that did not come with the whole old row.
pub fn by_row<'k>(
    changes: impl Iterator<Item = (KeyedChange, Old)>,
    key_of: impl Fn(u32) -> &'k [u8],
) -> Result<Net> {
    #[derive(Default)]
    struct Equal {
        key: u32,
        before: u32,
        pending: Vec<(u32, u32)>,
    }
    let mut net = Net::default();
    let mut rows: HashMap<&'k [u8], Equal> = HashMap::new();
    for (index, (change, old)) in (0u32..).zip(changes) {
        net.previous.push(Previous::None);
        if change.op == Op::Truncate {
            rows.clear();
            net.truncated = true;
            continue;
        }
        if matches!(change.op, Op::Update | Op::Delete) {
            if !matches!(old, Old::Full(_)) {
                return Err(Error::unfit(
                    "an UPDATE or DELETE came without the whole old row, which is all that names a row of a table without a key",
                )
                .next("ALTER TABLE … REPLICA IDENTITY FULL, then `tidegate reseed` the table"));
            }
            let equal = rows.entry(key_of(change.old_key)).or_default();
            equal.key = change.old_key;
            if equal.pending.pop().is_none() {
                if net.truncated {
                    return Err(not_there(index));
                }
                equal.before += 1;
            }
        }
        if matches!(change.op, Op::Insert | Op::Update) {
            let equal = rows.entry(key_of(change.new_key)).or_default();
            equal.pending.push((index, change.new_key));
        }
    }
    let mut written = Vec::new();
    for equal in rows.into_values() {
        if equal.before > 0 {
            net.masked.push((equal.key, equal.before));
        }
        written.extend(equal.pending);
    }
    written.sort_unstable();
    (net.rows, net.row_keys) = written.into_iter().unzip();
    Ok(net)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const KEYS: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];

    fn key(index: u32) -> &'static [u8] {
        KEYS[index as usize % KEYS.len()]
    }

    fn insert(new_key: u32) -> KeyedChange {
        KeyedChange { op: Op::Insert, old_key: 0, new_key }
    }
    fn update(old_key: u32, new_key: u32) -> KeyedChange {
        KeyedChange { op: Op::Update, old_key, new_key }
    }
    fn delete(old_key: u32) -> KeyedChange {
        KeyedChange { op: Op::Delete, old_key, new_key: 0 }
    }
    const TRUNCATE: KeyedChange = KeyedChange { op: Op::Truncate, old_key: 0, new_key: 0 };

    fn net(changes: &[KeyedChange]) -> Net {
        let mut net = by_key(changes.iter().copied(), key, Deleted::Gone).unwrap();
        net.masked.sort_unstable();
        net
    }

    #[test]
    fn the_second_update_in_a_transaction_wins() {
        let net = net(&[update(0, 0), update(0, 0)]);
        assert_eq!((net.rows, net.masked), (vec![1], vec![(0, 1)]));
        assert_eq!(net.previous, [Previous::Before(0), Previous::Change(0)]);
    }

    #[test]
    fn two_keys_swapped_through_a_third_leave_two_rows() {
        let net = net(&[update(0, 2), update(1, 0), update(2, 1)]);
        assert_eq!(net.rows, [1, 2]);
        assert_eq!(net.row_keys, [0, 1]);
        assert_eq!(net.masked, [(0, 1), (1, 1)]);
        assert_eq!(net.previous[2], Previous::Change(0));
    }

    #[test]
    fn a_row_inserted_and_given_another_key_stands_once() {
        let net = net(&[insert(0), update(0, 1)]);
        assert_eq!((net.rows, net.row_keys, net.masked), (vec![1], vec![1], vec![]));
    }

    #[test]
    fn only_rows_after_a_truncate_remain() {
        let net = net(&[insert(0), update(3, 3), TRUNCATE, insert(1)]);
        assert!(net.truncated);
        assert_eq!((net.rows, net.masked), (vec![3], vec![]));
    }

    #[test]
    fn a_change_of_a_row_deleted_or_truncated_before_is_refused() {
        assert!(by_key([delete(0), update(0, 0)].into_iter(), key, Deleted::Gone).is_err());
        assert!(by_key([TRUNCATE, delete(0)].into_iter(), key, Deleted::Gone).is_err());
        assert!(by_key([insert(0), insert(0)].into_iter(), key, Deleted::Gone).is_err());
    }

    #[test]
    fn a_deleted_row_is_kept_until_its_key_is_taken() {
        let kept = |changes: &[KeyedChange]| {
            let net = by_key(changes.iter().copied(), key, Deleted::Kept).unwrap();
            (net.rows, net.masked, net.perhaps_masked)
        };
        assert_eq!(kept(&[delete(0)]), (vec![0], vec![(0, 1)], vec![]));
        assert_eq!(kept(&[delete(0), insert(0)]), (vec![1], vec![(0, 1)], vec![]));
        assert_eq!(kept(&[insert(0)]), (vec![0], vec![], vec![0]));
        assert_eq!(kept(&[insert(0), delete(0)]), (vec![1], vec![], vec![0]));
        assert_eq!(kept(&[update(0, 1)]), (vec![0], vec![(0, 1)], vec![1]));
        assert_eq!(kept(&[update(0, 1), insert(0)]), (vec![0, 1], vec![(0, 1)], vec![1]));
        assert_eq!(kept(&[delete(0), TRUNCATE, insert(0)]), (vec![2], vec![], vec![]));
        let refused =
            |changes: &[KeyedChange]| by_key(changes.iter().copied(), key, Deleted::Kept).is_err();
        assert!(refused(&[delete(0), delete(0)]) && refused(&[delete(0), update(0, 0)]));
        assert!(refused(&[insert(0), insert(0)]));
    }

    #[test]
    fn one_of_three_equal_rows_is_deleted() {
        let full = Old::Full(crate::apply::part::TablePart::new(0, empty()).keep(b"x").unwrap());
        let changes = [(insert(0), Old::None), (delete(0), full), (delete(0), full)];
        let net = by_row(changes.into_iter(), key).unwrap();
        assert_eq!((net.rows, net.masked), (vec![], vec![(0, 1)]));
    }

    fn empty() -> std::sync::Arc<crate::apply::part::Layout> {
        std::sync::Arc::new(crate::apply::part::Layout { columns: Vec::new() })
    }

    proptest! {
        /// Against a table that simply does as it is told, one change after the other.
        #[test]
        fn the_net_effect_is_that_of_all_changes_in_order(
            steps in proptest::collection::vec((0..4u8, 0..5u32, 0..5u32), 0..60),
            present in proptest::collection::vec(any::<bool>(), 5),
            gone in proptest::collection::vec(any::<bool>(), 5),
        ) {
            let mut table: BTreeMap<u32, i64> = (0..5u32)
                .filter(|k| present[*k as usize]).map(|k| (k, -1)).collect();
            let before = table.clone();
            // Where deleted rows are kept: their keys, and the change that deleted each.
            let (mut dead, mut dead_before) = (BTreeMap::new(), BTreeMap::new());
            for k in (0..5u32).filter(|k| !present[*k as usize] && gone[*k as usize]) {
                dead.insert(k, -1);
                dead_before.insert(k, -1);
            }
            let mut changes = Vec::new();
            for (step, a, b) in steps {
                let index = changes.len() as i64;
                match step {
                    0 if !table.contains_key(&a) => {
                        table.insert(a, index);
                        dead.remove(&a);
                        changes.push(insert(a));
                    }
                    1 if table.contains_key(&a) && (a == b || !table.contains_key(&b)) => {
                        table.remove(&a);
                        table.insert(b, index);
                        dead.remove(&b);
                        changes.push(update(a, b));
                    }
                    2 if table.remove(&a).is_some() => {
                        dead.insert(a, index);
                        changes.push(delete(a));
                    }
                    3 if a == 0 => {
                        table.clear();
                        dead.clear();
                        changes.push(TRUNCATE);
                    }
                    _ => {}
                }
            }
            let net = by_key(changes.iter().copied(), key, Deleted::Gone).unwrap();
            let mut result = if net.truncated { BTreeMap::new() } else { before.clone() };
            for (k, n) in &net.masked {
                prop_assert_eq!(*n, 1);
                prop_assert!(net.truncated || result.remove(k).is_some());
            }
            for (change, k) in net.rows.iter().zip(&net.row_keys) {
                prop_assert!(result.insert(*k, i64::from(*change)).is_none());
            }
            prop_assert_eq!(result, table.clone());

            let net = by_key(changes.iter().copied(), key, Deleted::Kept).unwrap();
            let (mut rows, mut kept) = match net.truncated {
                true => (BTreeMap::new(), BTreeMap::new()),
                false => (before, dead_before),
            };
            for (k, _) in &net.masked {
                prop_assert!(net.truncated || rows.remove(k).is_some());
            }
            for k in &net.perhaps_masked {
                prop_assert!(!rows.contains_key(k));
                kept.remove(k);
            }
            for (change, k) in net.rows.iter().zip(&net.row_keys) {
                let index = i64::from(*change);
                let to = match changes[*change as usize].op {
                    Op::Delete => &mut kept,
                    _ => &mut rows,
                };
                prop_assert!(to.insert(*k, index).is_none());
            }
            prop_assert_eq!((rows, kept), (table, dead));
        }
    }
}

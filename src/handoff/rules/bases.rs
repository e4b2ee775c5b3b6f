//! A table whose chunks were copied at several boundaries: what of it may be kept, and which change
//! applies to which of its rows.
//!
//! A run that was interrupted, or held its snapshot long enough, goes on at a new boundary. Chunks
//! are ctid ranges, disjoint, and together the whole table. With `B1 < B2` and ranges `R1`, `R2`:
//!
//! ```text
//! table(B2)  =  C2                                     rows in R2, copied at B2
//!            +  rows of C1 whose key did not change in [B1, B2)
//!            +  the last state of keys that changed in [B1, B2), unless C2 has the key
//! ```
//!
//! A row that did not change did not move, as long as the table was not rewritten: so no row is in
//! neither chunk unless the stream has it. It holds for any number of boundaries, key by key.
//!
//! Three things follow. Of a key that stands in two chunks the one of the higher base counts. A
//! change applies to a key only if it is not below the base of the chunk that has the key. And an
//! UPDATE may be of a row that no chunk has (it moved from a range copied later into one copied
//! earlier): its unchanged TOAST values are nowhere, so the key is read again, at a boundary of its
//! own, before anything is published.

use crate::position::Lsn;

/// Whether the change committed at `commit_lsn` applies to a row that was copied at `row_base`, or
/// written by an earlier change of the stream (`None`).
///
/// Wrong way: to ask for the table's lowest base only. The change would be applied to a row that
/// shows it already: an old value comes back, a deleted row's successor is deleted.
pub fn applies_to_row(row_base: Option<Lsn>, commit_lsn: Lsn) -> bool {
    row_base.is_none_or(|base| commit_lsn >= base)
}

/// Of two chunks that have a row with the same key, whether the second one's counts.
///
/// Wrong way: the first found. The row of the lower base is the older one, or one that is gone.
pub fn later_counts(first_base: Lsn, second_base: Lsn) -> bool {
    second_base > first_base
}

/// A table of a run that did not publish, as recorded and as found at the new boundary (under its
/// lock, so that it stays as found).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CopiedSoFar {
    /// All chunks are recorded.
    pub complete: bool,
    /// Its recorded chunks are of one base.
    pub one_base: bool,
    /// Rows are told apart by a key.
    pub keyed: bool,
    /// Same table, columns, key and identity.
    pub same_schema: bool,
    /// The same partitions; of a plain table itself.
    pub same_leaves: bool,
    /// None of them was rewritten or truncated (`relfilenode`).
    pub same_files: bool,
}

/// Why a table's chunks are dropped and it is copied again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum StartAgain {
    /// Its columns, key or identity are others.
    #[error("its columns, key or replica identity changed")]
    Schema,
    /// Partitions were attached, detached, made or dropped.
    #[error("its partitions changed")]
    Leaves,
    /// VACUUM FULL, CLUSTER, TRUNCATE or a rewriting ALTER TABLE moved its rows.
    #[error("it was rewritten or truncated")]
    Rewritten,
    /// Without a key its rows can't be matched between two boundaries.
    #[error("it has no key, so chunks of two snapshots can't be joined")]
    NoKey,
}

/// Whether the chunks recorded of a table are kept when the run goes on at a new boundary.
///
/// Wrong ways: to keep ctid ranges of a table that was rewritten (rows moved without a change in
/// the stream: some are in no chunk, some in two); to join chunks of a table without a key (what
/// changed between the boundaries is applied to rows that show it already).
pub fn keep_chunks(table: CopiedSoFar) -> Result<(), StartAgain> {
    if !table.same_schema {
        return Err(StartAgain::Schema);
    }
    if !table.same_leaves {
        return Err(StartAgain::Leaves);
    }
    // A complete table at one base is a snapshot like any other: what came later is in the stream.
    if table.complete && table.one_base {
        return Ok(());
    }
    if !table.keyed {
        return Err(StartAgain::NoKey);
    }
    // Complete at several bases: no more ranges are read, so a rewrite after the last does no harm;
    // one before it was found at that boundary.
    if !table.complete && !table.same_files {
        return Err(StartAgain::Rewritten);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: CopiedSoFar = CopiedSoFar {
        complete: false,
        one_base: true,
        keyed: true,
        same_schema: true,
        same_leaves: true,
        same_files: true,
    };

    #[test]
    fn a_change_below_a_rows_base_is_in_the_row_already() {
        let base = Some(Lsn::new(20));
        assert!(!applies_to_row(base, Lsn::new(19)));
        assert!(applies_to_row(base, Lsn::new(20)));
        assert!(applies_to_row(None, Lsn::new(1)));
        assert!(
            later_counts(Lsn::new(10), Lsn::new(20)) && !later_counts(Lsn::new(20), Lsn::new(10))
        );
    }

    #[test]
    fn what_can_not_be_joined_starts_again() {
        assert_eq!(keep_chunks(KEPT), Ok(()));
        let again = |change: fn(&mut CopiedSoFar)| {
            let mut table = KEPT;
            change(&mut table);
            keep_chunks(table)
        };
        assert_eq!(again(|t| t.same_schema = false), Err(StartAgain::Schema));
        assert_eq!(again(|t| t.same_leaves = false), Err(StartAgain::Leaves));
        assert_eq!(again(|t| t.same_files = false), Err(StartAgain::Rewritten));
        assert_eq!(again(|t| t.keyed = false), Err(StartAgain::NoKey));
        let complete = CopiedSoFar { complete: true, same_files: false, ..KEPT };
        assert_eq!(keep_chunks(CopiedSoFar { keyed: false, ..complete }), Ok(()));
        assert_eq!(keep_chunks(complete), Ok(()));
    }
}

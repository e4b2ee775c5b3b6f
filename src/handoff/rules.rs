//! The protocol's decisions, as pure functions over plain values.
//!
//! Everything that makes
//!
//! ```text
//! table at version v  =  snapshot(base)  +  all changes with base <= commit_lsn < applied(v)
//! ```
//!
//! true is decided here and nowhere else: which change applies, what a batch brings a table to,
//! which position is a cut across all tables, what the server may forget, and what a start may do
//! with what the last one left. Nothing here does I/O. The program calls these functions, and so
//! does the model in `tests/model.rs`, which explores every interleaving of a small world with
//! them, and shows that each wrong way named below loses, doubles or tears a change.
//!
//! Positions are half open. PostgreSQL gives a commit record two positions: where it starts
//! (`Begin.final_lsn`, `Commit.commit_lsn`; the position of all changes of the transaction) and
//! where it ends (`Commit.end_lsn`). A slot's consistent point and a keepalive's position are ends
//! of records too, so "everything before X" always means `commit_lsn < X`, and a commit record may
//! start exactly at X.

mod bases;
mod resume;
mod schema;
mod spool;
mod wal;

use crate::position::Lsn;

pub use bases::*;
pub use resume::*;
pub use schema::*;
pub use spool::*;
pub use wal::*;

/// Whether a change of the transaction whose commit record starts at `commit_lsn` is to be applied
/// to a table that holds the snapshot of `base` and everything before `applied`.
///
/// A snapshot shows exactly the transactions whose commit record starts before the slot's
/// consistent point; a commit record that starts at it is the first one the slot delivers.
///
/// Wrong ways: `>` loses the transaction that commits right at the base, or right after the last
/// batch. The position of the change's own record instead of the commit's loses what a transaction
/// wrote before the base and committed after it.
pub fn applies(base: Lsn, applied: Lsn, commit_lsn: Lsn) -> bool {
    commit_lsn >= base.max(applied)
}

/// What `applied` becomes at the end of a batch, from what it was before it.
///
/// `last_commit_end` is the end of the commit record of the batch's last transaction, where it has
/// one. `keepalive` is the highest keepalive position received; the server sends it once it has
/// decoded all its log before it, so an idle table moves on, and the log of an idle publication on
/// a busy server can be freed. It counts only while no transaction is open, that is between
/// `Commit` and the next `Begin` (a streamed block in progress does not count as open: its commit
/// record is not written yet, so it lies above any keepalive).
///
/// Wrong ways: the *start* of the commit record would make the last transaction apply again. A
/// keepalive inside an open transaction would tear it.
pub fn applied_after(
    applied: Lsn,
    last_commit_end: Option<Lsn>,
    keepalive: Option<Lsn>,
    transaction_open: bool,
) -> Lsn {
    let keepalive = if transaction_open { None } else { keepalive };
    [last_commit_end, keepalive].into_iter().flatten().fold(applied, Lsn::max)
}

/// What the server may be told as flushed: it frees the log before it and never sends it again.
///
/// The fence that is durable in the ledger; never more than was received (a server accepts a flush
/// position beyond its own end and then skips what comes), and never going back.
///
/// Wrong ways: what was *received*, or what was *committed to the tables* while the fence is not
/// durable yet: after a crash the next start begins at the durable fence, and the server has
/// nothing left from there.
pub fn may_acknowledge(durable_fence: Lsn, received: Lsn, acknowledged: Lsn) -> Lsn {
    durable_fence.min(received).max(acknowledged)
}

/// How a table stands at the end of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Progress {
    /// The batch has nothing to apply to the table. `applied` is its latest durable checkpoint; it
    /// stands at the batch's end without a commit, unless it is beyond already.
    Untouched {
        /// From the table's latest durable checkpoint.
        applied: Lsn,
    },
    /// The batch changed the table. `applied` is its latest durable checkpoint.
    Changed {
        /// From the table's latest durable checkpoint.
        applied: Lsn,
    },
}

/// The fence after a batch that ends at `batch_end`: `batch_end` if every table stands exactly
/// there, else the `previous` one.
///
/// A table without changes in the batch has no version of its own for it: its implied applied
/// position is the fence. A table whose commit is not durable yet holds the fence back. So does a
/// table that is *beyond* the batch's end, as it can be after a crash between the commits of two
/// tables: there is no version of it that shows `batch_end`, so it is no consistent cut. The fence
/// then moves at a later batch.
///
/// Wrong way: the minimum of the tables alone. It is safe to resume from, but may name a position
/// at which no version of some table stands, and a query over all tables at that fence is torn.
pub fn fence(previous: Lsn, batch_end: Lsn, tables: impl IntoIterator<Item = Progress>) -> Lsn {
    let all_there = tables.into_iter().all(|table| match table {
        Progress::Untouched { applied } => applied <= batch_end,
        Progress::Changed { applied } => applied == batch_end,
    });
    if all_there { previous.max(batch_end) } else { previous }
}

/// The position below which a table's changes are skipped after a restart: the later of its own
/// checkpoint and the ledger's fence.
///
/// Its checkpoint is later if the crash came between its commit and the fence; the fence is later
/// if the last batches had nothing for it.
///
/// Wrong way: one of the two alone. The fence alone applies changes twice; the checkpoint alone
/// waits for changes that the server has been allowed to forget.
pub fn resume_table(checkpoint_applied: Lsn, fence: Lsn) -> Lsn {
    checkpoint_applied.max(fence)
}

/// Whether a table that was read again at `base` can join the others, whose stream begins anew at
/// the `fence`: every change that its snapshot does not show is still to come.
///
/// The fence was held since before the boundary was made, so it can't be above it.
///
/// Wrong way: to let the fence go on while the table is copied. What commits between the base and
/// the fence would be in neither.
pub fn may_join(base: Lsn, fence: Lsn) -> bool {
    base >= fence
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lsn(bytes: u64) -> Lsn {
        Lsn::new(bytes)
    }

    #[test]
    fn a_commit_right_at_the_base_or_at_applied_is_not_lost() {
        assert!(applies(lsn(100), lsn(100), lsn(100)));
        assert!(applies(lsn(100), lsn(150), lsn(150)));
        assert!(!applies(lsn(100), lsn(150), lsn(149)));
        assert!(!applies(lsn(100), Lsn::ZERO, lsn(99)));
    }

    #[test]
    fn a_keepalive_inside_a_transaction_does_not_tear_it() {
        assert_eq!(applied_after(lsn(10), Some(lsn(20)), Some(lsn(30)), true), lsn(20));
        assert_eq!(applied_after(lsn(10), Some(lsn(20)), Some(lsn(30)), false), lsn(30));
        assert_eq!(applied_after(lsn(10), None, Some(lsn(5)), false), lsn(10));
        assert_eq!(applied_after(lsn(10), None, None, false), lsn(10));
    }

    #[test]
    fn the_fence_waits_for_a_table_behind_and_for_one_beyond() {
        let (before, end) = (lsn(10), lsn(20));
        let there = Progress::Changed { applied: end };
        let idle = Progress::Untouched { applied: lsn(3) };
        assert_eq!(fence(before, end, [there, idle]), end);
        assert_eq!(fence(before, end, [there, Progress::Changed { applied: lsn(10) }]), before);
        assert_eq!(fence(before, end, [there, Progress::Untouched { applied: lsn(21) }]), before);
        assert_eq!(fence(before, end, []), end);
    }

    proptest! {
        #[test]
        fn an_acknowledgement_is_never_above_fence_or_received_and_never_goes_back(
            fence in 0..1000u64, received in 0..1000u64, before in 0..1000u64,
        ) {
            let ack = may_acknowledge(lsn(fence), lsn(received), lsn(before));
            prop_assert!(ack >= lsn(before));
            prop_assert!(ack == lsn(before) || (ack <= lsn(fence) && ack <= lsn(received)));
        }

        #[test]
        fn batches_cut_anywhere_apply_each_transaction_once(
            gaps in prop::collection::vec((0..3u64, 1..4u64), 1..20), base in 0..30u64, cuts: Vec<bool>,
        ) {
            let (mut at, mut log) = (0, Vec::new());
            for (idle, length) in gaps {
                log.push((lsn(at + idle), lsn(at + idle + length)));
                at += idle + length;
            }
            let base = lsn(base);
            let (mut applied, mut open_end, mut seen) = (base, None, Vec::new());
            for (i, (commit, end)) in log.iter().enumerate() {
                if applies(base, applied, *commit) {
                    seen.push(*commit);
                    open_end = Some(*end);
                }
                if cuts.get(i).copied().unwrap_or(false) {
                    applied = applied_after(applied, open_end.take(), None, false);
                }
            }
            let due: Vec<Lsn> = log.iter().map(|t| t.0).filter(|c| *c >= base).collect();
            prop_assert_eq!(seen, due);
        }
    }
}

//! The spool: changes that lie in the lake while a snapshot is copied, so that the server may forget
//! them before any table has them.
//!
//! A step of the spool is durable once its files are stored and the ledger names them in one commit.
//! It holds every transaction whose commit record starts in `[from, to)`, and only then may the slot
//! be acknowledged up to `to`:
//!
//! ```text
//!   base ├──step──┼──step──┼──step──┤ to          the slot has everything from `to` on
//!        ╰──────── in the lake ─────╯             and nothing is owed by it before
//! ```
//!
//! So from the first acknowledgement on the slot alone can't bring the tables forward from the base:
//! a start needs the whole spool from the lowest base on, and the slot from the spool's end.

use crate::position::Lsn;

/// What the spool has: every transaction whose commit record starts in `[from, to)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Spooled {
    /// The lowest base of the run that made it.
    pub from: Lsn,
    /// Everything that committed before this is in it.
    pub to: Lsn,
}

/// Whether the spool takes part in a drain that needs everything from `needed` on (the fence, or
/// the run's lowest base before there is one).
///
/// Wrong ways: to use a spool that begins after `needed` (what lies between is nowhere but in the
/// slot, if there); to read one that ends at or before it (everything in it is in the tables).
pub fn spool_counts(needed: Lsn, spool: Spooled) -> bool {
    spool.from <= needed && spool.to > needed
}

/// From where on the slot must still have everything, if the tables need everything from `needed`.
///
/// It is what [`may_stream`](super::may_stream) is asked with, where replication starts, and the
/// least that is ever acknowledged from then on: a server takes an acknowledgement that goes back,
/// and may have removed what it would send then.
///
/// Wrong ways: `needed` alone refuses to go on although nothing is lost, as the slot has been
/// acknowledged up to the spool's end; the spool's end alone, without a look at where the spool
/// begins, skips what lies between.
pub fn needed_from_slot(needed: Lsn, spool: Option<Spooled>) -> Lsn {
    match spool {
        Some(spool) if spool_counts(needed, spool) => spool.to,
        _ => needed,
    }
}

/// Whether the spool is of no use any more: all tables show everything that is in it.
///
/// The fence must be durable, and be of the run that made the spool.
///
/// Wrong way: to ask what was read, or committed to the tables, instead: after a crash the tables
/// go on at the fence, and the slot has nothing from there.
pub fn spool_is_drained(fence: Lsn, spool: Spooled) -> bool {
    fence >= spool.to
}

/// Steps that do not follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("the spool has everything up to {end}, and its next step begins at {next}")]
pub struct Gap {
    /// The end of the last step that joins.
    pub end: Lsn,
    /// Where the one after it begins.
    pub next: Lsn,
}

/// What recorded steps, in order, have together.
///
/// Wrong way: the first one's begin and the last one's end. A step that is missing in between would
/// go unnoticed, and with it its changes.
pub fn joined(from: Lsn, steps: impl IntoIterator<Item = (Lsn, Lsn)>) -> Result<Spooled, Gap> {
    let mut end = from;
    for (begins, ends) in steps {
        if begins != end || ends < begins {
            return Err(Gap { end, next: begins });
        }
        end = ends;
    }
    Ok(Spooled { from, to: end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::rules::may_acknowledge;
    use proptest::prelude::*;

    fn lsn(bytes: u64) -> Lsn {
        Lsn::new(bytes)
    }

    fn spool(from: u64, to: u64) -> Spooled {
        Spooled { from: lsn(from), to: lsn(to) }
    }

    #[test]
    fn a_spool_that_begins_after_what_is_needed_does_not_hide_the_hole() {
        assert_eq!(needed_from_slot(lsn(100), Some(spool(101, 200))), lsn(100));
        assert_eq!(needed_from_slot(lsn(100), Some(spool(100, 200))), lsn(200));
        assert_eq!(needed_from_slot(lsn(150), Some(spool(100, 200))), lsn(200));
        assert_eq!(needed_from_slot(lsn(200), Some(spool(100, 200))), lsn(200));
        assert_eq!(needed_from_slot(lsn(250), Some(spool(100, 200))), lsn(250));
        assert_eq!(needed_from_slot(lsn(100), None), lsn(100));
    }

    #[test]
    fn a_spool_is_kept_until_the_fence_is_at_its_end() {
        assert!(!spool_is_drained(lsn(199), spool(100, 200)));
        assert!(spool_is_drained(lsn(200), spool(100, 200)));
    }

    #[test]
    fn a_missing_step_is_noticed_wherever_it_is() {
        let steps = [(lsn(10), lsn(20)), (lsn(20), lsn(25)), (lsn(25), lsn(40))];
        assert_eq!(joined(lsn(10), steps), Ok(spool(10, 40)));
        assert_eq!(joined(lsn(10), []), Ok(spool(10, 10)));
        assert!(joined(lsn(10), steps[1..].iter().copied()).is_err());
        assert!(joined(lsn(10), [steps[0], steps[2]]).is_err());
        assert!(joined(lsn(10), [steps[1], steps[0]]).is_err());
        assert!(joined(lsn(10), [(lsn(10), lsn(9))]).is_err());
    }

    proptest! {
        /// Transactions with commits anywhere; the spool takes steps and acknowledges, dies at any
        /// moment; spool and slot together always have every commit from the base on, once.
        #[test]
        fn spool_and_slot_together_have_every_commit_once(
            base in 0..20u64, lengths in prop::collection::vec(1..5u64, 1..40),
            steps in prop::collection::vec((1..4u64, any::<bool>()), 0..10),
        ) {
            let mut at = 0;
            let commits: Vec<u64> = lengths.iter().map(|n| { at += n; at }).collect();
            let end = at + 1;
            let base = lsn(base);
            let (mut recorded, mut confirmed) = (Vec::new(), base);
            let mut to = base;
            for (length, acknowledged) in steps {
                let next = lsn((to.bytes() + length).min(end));
                if next <= to { continue; }
                recorded.push((to, next));
                to = next;
                if acknowledged {
                    confirmed = may_acknowledge(to, to, confirmed);
                }
            }
            let spool = joined(base, recorded.iter().copied()).unwrap();
            let from_slot = needed_from_slot(base, Some(spool));
            prop_assert!(confirmed <= from_slot);
            let due: Vec<u64> = commits.iter().copied().filter(|c| lsn(*c) >= base).collect();
            let spooled = commits.iter().filter(|c| spool.from <= lsn(**c) && lsn(**c) < spool.to);
            let streamed = commits.iter().filter(|c| lsn(**c) >= from_slot);
            let got: Vec<u64> = spooled.chain(streamed).copied().collect();
            prop_assert_eq!(got, due);
        }
    }
}

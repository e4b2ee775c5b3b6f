//! The rules of the spool: the program's own, or the program's own but for one wrong one.

use tidegate::handoff::rules::{self, Slot, Spooled};
use tidegate::position::Lsn;

/// One way of doing it wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// What was received is acknowledged.
    AcknowledgeReceived,
    /// A step is acknowledged once its file is stored, and not recorded yet.
    AcknowledgeStored,
    /// A step is recorded before its file is stored.
    RecordBeforeFile,
    /// Orphans are looked for after the ledger was seen to be still ours.
    LookThenList,
    /// Whatever lies in the spool's folder is replayed.
    UseOrphans,
    /// A step ends inside a transaction, and the part is replayed.
    PartialTail,
    /// The end of the spool is taken for what the table shows.
    EndIsApplied,
    /// With a spool any slot is good.
    TrustAnySlot,
    /// The slot alone is asked for what is needed; the spool is forgotten.
    ForgetSpool,
    /// The spool goes once the table has what is in it, before the fence is durable.
    RemoveBeforeFence,
    /// The record of a step does not ask whose the ledger is.
    RecordWithoutCas,
    /// Files are named by their steps' numbers, and stored over what is there.
    SameNames,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub wrong: Option<Wrong>,
}

pub fn lsn(position: u8) -> Lsn {
    Lsn::new(u64::from(position))
}

pub fn position(lsn: Lsn) -> u8 {
    u8::try_from(lsn.bytes()).unwrap()
}

impl Rules {
    pub fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    pub fn counts(&self, needed: u8, spool: Option<Spooled>) -> bool {
        spool.is_some_and(|spool| rules::spool_counts(lsn(needed), spool))
            && !self.is(Wrong::ForgetSpool)
    }

    pub fn needed_from_slot(&self, needed: u8, spool: Option<Spooled>) -> u8 {
        let spool = spool.filter(|_| !self.is(Wrong::ForgetSpool));
        position(rules::needed_from_slot(lsn(needed), spool))
    }

    pub fn may_stream(&self, from: u8, slot: Option<&Slot<'_>>) -> bool {
        self.is(Wrong::TrustAnySlot) && slot.is_some() || rules::may_stream(lsn(from), slot).is_ok()
    }

    /// `durable`: the end of the recorded steps, or the fence.
    pub fn may_acknowledge(&self, durable: u8, stored: u8, received: u8, confirmed: u8) -> u8 {
        let durable = match self.wrong {
            Some(Wrong::AcknowledgeReceived) => received,
            Some(Wrong::AcknowledgeStored) => durable.max(stored),
            _ => durable,
        };
        position(rules::may_acknowledge(lsn(durable), lsn(received), lsn(confirmed)))
    }

    pub fn is_drained(&self, fence: u8, applied: u8, spool: Spooled) -> bool {
        let at = if self.is(Wrong::RemoveBeforeFence) { applied } else { fence };
        rules::spool_is_drained(lsn(at), spool)
    }
}

//! The rules the model follows: the program's own, or the program's own but for one wrong one.

use tidegate::handoff::rules::{self, Progress, Recorded, Resume, Server, Slot};
use tidegate::position::Lsn;

/// One way of doing it wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The position is read, then the snapshot taken.
    PositionBeforeSnapshot,
    /// The snapshot is taken, then the position read.
    PositionAfterSnapshot,
    /// `commit_lsn > base`.
    AboveBase,
    /// Skip if `commit_lsn <= applied`.
    SkipAtApplied,
    /// The change's own position is compared with the base, not the commit's.
    PositionOfTheChange,
    /// `applied` is the start of the last commit record.
    AppliedIsCommitStart,
    /// The slot is acknowledged once the tables are committed, before the fence is.
    AcknowledgeBeforeFence,
    /// The slot is acknowledged up to what was received.
    AcknowledgeReceived,
    /// The run is published before its last chunk is done.
    PublishEarly,
    /// Data and checkpoint are two commits.
    CheckpointApart,
    /// A restart keeps finished chunks and publishes them at the new snapshot's base.
    KeepChunks,
    /// A commit whose answer was lost is put again, on top of whatever is there.
    RetryBlindly,
    /// A table's commit does not ask which version is there.
    TableWithoutCas,
    /// The ledger's commit does not ask which version is there.
    LedgerWithoutCas,
    /// A batch ends inside a transaction.
    CutTransaction,
    /// A slot is good because it exists.
    TrustAnySlot,
    /// The slot is looked at before the start, not again while it is held.
    LookAtSlotOnce,
    /// The ledger is taken over, and not looked at again once the tables are loaded.
    LookAtLedgerOnce,
    /// A new generation's number is above those of the tables only.
    NumberByTables,
    /// Rows that the new generation's snapshot does not have stay in the table.
    KeepVanished,
    /// The tables are emptied as soon as a new generation begins.
    EmptyFirst,
    /// The new generation's handoff does not ask which version is there.
    HandoffWithoutCas,
    /// The fence ignores that a table is beyond the batch.
    FenceIgnoresTableAhead,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub wrong: Option<Wrong>,
}

impl Rules {
    pub fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    pub fn applies(&self, base: Lsn, applied: Lsn, commit: Lsn, change: Lsn) -> bool {
        match self.wrong {
            Some(Wrong::AboveBase) => commit > base && rules::applies(base, applied, commit),
            Some(Wrong::SkipAtApplied) => commit >= base && commit > applied,
            Some(Wrong::PositionOfTheChange) => {
                change >= base && rules::applies(base, applied, commit)
            }
            _ => rules::applies(base, applied, commit),
        }
    }

    pub fn applied_after(&self, before: Lsn, last: Option<(Lsn, Lsn)>, received: Lsn) -> Lsn {
        match (self.wrong, last) {
            (Some(Wrong::AppliedIsCommitStart), Some((start, _))) => start,
            _ => rules::applied_after(before, last.map(|t| t.1), Some(received), false),
        }
    }

    pub fn may_acknowledge(
        &self,
        fence: Lsn,
        all_tables_at: Lsn,
        received: Lsn,
        acknowledged: Lsn,
    ) -> Lsn {
        let fence = match self.wrong {
            Some(Wrong::AcknowledgeBeforeFence) => fence.max(all_tables_at),
            Some(Wrong::AcknowledgeReceived) => received,
            _ => fence,
        };
        rules::may_acknowledge(fence, received, acknowledged)
    }

    pub fn fence(&self, before: Lsn, end: Lsn, tables: impl IntoIterator<Item = Progress>) -> Lsn {
        if self.is(Wrong::FenceIgnoresTableAhead) {
            return before.max(end);
        }
        rules::fence(before, end, tables)
    }

    pub fn resume(
        &self,
        recorded: Option<&Recorded<'_>>,
        server: &Server<'_>,
        slot: Option<&Slot<'_>>,
    ) -> Resume {
        let trusted = slot.map(|slot| Slot { confirmed: Lsn::ZERO, ..*slot });
        match self.wrong {
            Some(Wrong::TrustAnySlot) => rules::resume(recorded, server, trusted.as_ref()),
            _ => rules::resume(recorded, server, slot),
        }
    }

    pub fn may_stream(&self, from: Lsn, slot: &Slot<'_>) -> bool {
        self.is(Wrong::TrustAnySlot)
            || self.is(Wrong::LookAtSlotOnce)
            || rules::may_stream(from, Some(slot)).is_ok()
    }

    pub fn may_go_on(&self, ours: u8, head: u8) -> bool {
        self.is(Wrong::LookAtLedgerOnce) || rules::still_ours(ours.into(), head.into()).is_ok()
    }

    pub fn may_publish(&self, chunks_done: usize, chunks: usize) -> bool {
        chunks_done == chunks || self.is(Wrong::PublishEarly)
    }
}

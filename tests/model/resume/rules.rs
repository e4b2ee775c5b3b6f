//! The rules of a resumed snapshot: the program's own, or the program's own but for one wrong one.

use tidegate::handoff::rules::{self, CopiedSoFar, Slot, StartAgain};
use tidegate::position::Lsn;

/// One way of doing it wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Every change from the table's lowest base on applies to every row.
    IgnoreRowBase,
    /// `commit_lsn > base`, per row.
    AboveRowBase,
    /// Of a key that stands in two chunks the row first found counts, and the higher base.
    FirstChunkWins,
    /// Both rows of such a key are published.
    BothChunksCount,
    /// The stream is drained to the lowest base only.
    PublishBeforeMax,
    /// Chunks are kept though the table was rewritten.
    KeepAfterRewrite,
    /// The table's file is asked for in the snapshot, where `pg_class` shows the one before.
    FileInSnapshot,
    /// The file is looked at after the boundary, not also before it.
    LookOnlyAfter,
    /// The file is looked at around the boundary, not at every chunk.
    LookOnce,
    /// The file is not looked at where keys are read again.
    RereadUnlooked,
    /// Chunks of a table without a key are joined.
    JoinUnkeyed,
    /// A table that was started again is drained from the run's first base, not from its own.
    DrainFromRunsBase,
    /// A TOAST value that is nowhere is NULL.
    GuessNull,
    /// It is taken from the row that a later chunk's row has masked.
    GuessMasked,
    /// A key whose TOAST value is nowhere is left out.
    DropUnresolved,
    /// Keys are read again without a boundary, and called rows of the last one.
    RereadNow,
    /// Keys are read again in the snapshot of the last chunks, and called rows of a new boundary.
    RereadOld,
    /// Keys that were read again end the run, whatever else the stream brought meanwhile.
    RereadOnce,
    /// The boundary of a re-read counts only if a row was found at it.
    ForgetEmptyReread,
    /// What was drained is acknowledged before it is published.
    AcknowledgeEarly,
    /// A DELETE goes by the key alone.
    DeleteBelowBase,
    /// A TRUNCATE clears what later chunks hold.
    TruncateBelowBase,
    /// A change of a key is judged by the new key alone.
    KeyChangeAsOne,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub wrong: Option<Wrong>,
}

pub fn lsn(position: u8) -> Lsn {
    Lsn::new(u64::from(position))
}

impl Rules {
    pub fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// Whether a change concerns the table at all.
    pub fn applies_to_table(&self, lowest_base: u8, commit: u8) -> bool {
        self.is(Wrong::DrainFromRunsBase)
            || rules::applies(lsn(lowest_base), lsn(lowest_base), lsn(commit))
    }

    /// Whether it concerns a row of it.
    pub fn applies_to_row(&self, base: Option<u8>, commit: u8) -> bool {
        match self.wrong {
            Some(Wrong::IgnoreRowBase) => true,
            Some(Wrong::AboveRowBase) => base.is_none_or(|base| commit > base),
            _ => rules::applies_to_row(base.map(lsn), lsn(commit)),
        }
    }

    pub fn deletes_row(&self, base: Option<u8>, commit: u8) -> bool {
        self.is(Wrong::DeleteBelowBase) || self.applies_to_row(base, commit)
    }

    pub fn truncates_row(&self, base: Option<u8>, commit: u8) -> bool {
        self.is(Wrong::TruncateBelowBase) || self.applies_to_row(base, commit)
    }

    pub fn later_counts(&self, first: u8, second: u8) -> bool {
        rules::later_counts(lsn(first), lsn(second))
    }

    pub fn keep_chunks(&self, table: CopiedSoFar) -> Result<(), StartAgain> {
        let keyed = table.keyed || self.is(Wrong::JoinUnkeyed);
        let same_files = table.same_files || self.is(Wrong::KeepAfterRewrite);
        rules::keep_chunks(CopiedSoFar { keyed, same_files, ..table })
    }

    pub fn may_go_on(&self, first: u8, slot: Option<&Slot<'_>>) -> bool {
        rules::may_stream(lsn(first), slot).is_ok()
    }

    /// While a run copies, nothing is durable but what its first boundary showed.
    pub fn may_acknowledge(&self, first: u8, received: u8, acknowledged: u8) -> Lsn {
        let fence = if self.is(Wrong::AcknowledgeEarly) { received } else { first };
        rules::may_acknowledge(lsn(fence), lsn(received), lsn(acknowledged))
    }
}

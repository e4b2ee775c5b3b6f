//! What outlives a process: the log and its slot, the spool's files, the ledger, the table.

use tidegate::handoff::rules::{PLUGIN, Slot as SlotSeen, Spooled, joined};

use crate::size::spool::{FILES, STEPS, TRANSACTIONS};
use crate::spool::rules::lsn;

/// How many messages of each transaction.
pub type Messages = [u8; TRANSACTIONS];

/// Transaction `i` has this many.
pub fn messages_of(transaction: usize) -> u8 {
    1 + (transaction as u8 + 1) % 2
}

/// Every record is one byte long: transaction `i` is in the log from `commit` to `commit + 1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Log {
    commits: [u8; TRANSACTIONS],
    pub committed: u8,
    /// Where the next record will stand.
    pub end: u8,
}

impl Log {
    pub fn new() -> Self {
        Log { end: 1, ..Log::default() }
    }

    pub fn commit(&mut self) {
        self.commits[usize::from(self.committed)] = self.end;
        self.committed += 1;
        self.end += 1;
    }

    /// Transactions that commit at or after `from` and before `to`, with their positions.
    pub fn between(&self, from: u8, to: u8) -> impl Iterator<Item = (usize, u8)> {
        let committed = self.commits.into_iter().take(usize::from(self.committed)).enumerate();
        committed.filter(move |(_, commit)| (from..to).contains(commit))
    }

    /// What a table shows that has the snapshot of `base` and everything up to `applied`.
    pub fn truth(&self, base: u8, applied: u8) -> Messages {
        let mut truth = Messages::default();
        self.between(base, applied).for_each(|(i, _)| truth[i] = messages_of(i));
        truth
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    pub confirmed: u8,
    /// The process that streams from it, 0 for none.
    pub active: u8,
}

impl Slot {
    pub fn seen(&self) -> SlotSeen<'static> {
        SlotSeen {
            database: "shop",
            plugin: PLUGIN,
            active: self.active != 0,
            confirmed: lsn(self.confirmed),
            lost: false,
        }
    }
}

/// A durable step, in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    pub from: u8,
    pub to: u8,
    pub file: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ledger {
    pub version: u8,
    /// The process that owns it.
    pub writer: u8,
    /// Its chunks are done and the table is published; before that it is copying.
    pub streaming: bool,
    pub base: u8,
    pub fence: u8,
    pub steps: [Option<Step>; STEPS],
}

impl Ledger {
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().flatten()
    }

    /// What the recorded steps have together; `None` if they do not join.
    pub fn spooled(&self) -> Option<Spooled> {
        let steps = self.steps().map(|step| (lsn(step.from), lsn(step.to)));
        joined(lsn(self.base), steps).ok().filter(|_| self.steps[0].is_some())
    }

    pub fn spool_end(&self) -> u8 {
        self.steps().map(|step| step.to).last().unwrap_or(self.base)
    }

    /// What the table still needs, from here on.
    pub fn needed(&self) -> u8 {
        if self.streaming { self.fence } else { self.base }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Table {
    pub version: u8,
    pub applied: u8,
    pub rows: Messages,
}

/// The folder of the spool; a file is its messages.
pub type Files = [Option<Messages>; FILES];

//! One process of the pipeline: what it remembers, and what it wants to put next.
//!
//! All of it is lost in a crash.

use tidegate::handoff::rules::{Progress, Resume, resume_table};

use crate::rules::{Rules, Wrong};
use crate::world::*;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// It has looked and decided; now it takes the ledger over.
    Claim(Decision),
    /// It makes its slot and, in the same act, the snapshot.
    MakeBoundary {
        drop_slot: bool,
    },
    /// Only in the wrong ways: the other half of the boundary.
    OtherHalf {
        drop_slot: bool,
    },
    Copy,
    Publish,
    GoLive,
    StartReplication,
    /// It streams and has loaded the tables; is the ledger still its own?
    Confirm,
    Follow,
    Commit,
    Fence,
    Stopped(Why),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    Snapshot { drop_slot: bool },
    Publish,
    Stream,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    Fenced,
    SlotInUse,
    HistoryLost,
    SlotInTheWay,
    Disconnected,
}

/// What a put is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    Claim,
    Chunk(u8),
    Publishing,
    Table(u8),
    GoLive,
    Fence,
}

impl Target {
    pub fn table(self) -> Option<usize> {
        match self {
            Target::Table(table) => Some(usize::from(table)),
            _ => None,
        }
    }
}

/// What the process believes about a table: also where its rows are (its location index).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct View {
    pub version: u8,
    pub generation: u8,
    pub run: u8,
    pub base: u8,
    pub applied: u8,
    pub rows: Rows,
}

impl From<&Table> for View {
    fn from(table: &Table) -> Self {
        let Table { version, generation, run, base, applied, rows, .. } = *table;
        View { version, generation, run, base, applied, rows }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    pub id: u8,
    pub step: Step,
    /// The ledger as it knows it.
    pub ledger: Ledger,
    /// Of the snapshot it takes, if it takes one.
    pub generation: u8,
    pub base: u8,
    pub snapshot: [u8; KEYS],
    pub views: [View; TABLES],
    /// The server sends what commits at or after this.
    pub from: u8,
    /// End of the last finished batch.
    pub finished: u8,
    pub received: u8,
    /// Only in a wrong way: the first change of the next transaction is in the batch too.
    pub torn: bool,
    pub batch_end: u8,
    /// Tables to publish or commit, as bits.
    pub todo: u8,
    /// Tables that the batch changed, as bits.
    pub changed: u8,
    /// Only in a wrong way: tables whose data is committed, and their checkpoint not yet.
    pub half: u8,
    /// It does not know whether this put was stored.
    pub unsure: Option<Target>,
}

impl Process {
    pub fn new(id: u8, ledger: Ledger, generation: u8, resume: Resume) -> Self {
        let step = match resume {
            Resume::FreshSnapshot => Step::Claim(Decision::Snapshot { drop_slot: false }),
            Resume::RestartSnapshot | Resume::ResumeSnapshot => {
                Step::Claim(Decision::Snapshot { drop_slot: true })
            }
            Resume::ContinuePublish => Step::Claim(Decision::Publish),
            Resume::Stream { .. } => Step::Claim(Decision::Stream),
            Resume::Refuse(refusal) => Step::Stopped(match refusal.kind() {
                tidegate::error::Kind::Fenced => Why::SlotInUse,
                tidegate::error::Kind::HistoryLost => Why::HistoryLost,
                _ => Why::SlotInTheWay,
            }),
        };
        Process {
            id,
            step,
            ledger,
            generation,
            base: 0,
            snapshot: [0; KEYS],
            views: Default::default(),
            from: 0,
            finished: 0,
            received: 0,
            torn: false,
            batch_end: 0,
            todo: 0,
            changed: 0,
            half: 0,
            unsure: None,
        }
    }

    pub fn alive(&self) -> bool {
        !matches!(self.step, Step::Stopped(_))
    }

    /// What it may put now.
    pub fn targets(&self, rules: &Rules) -> Vec<Target> {
        if self.unsure.is_some() {
            return Vec::new();
        }
        let tables = || (0..TABLES as u8).filter(|t| self.todo & 1 << t != 0).map(Target::Table);
        match self.step {
            Step::Claim(_) => vec![Target::Claim],
            Step::Copy => {
                let left = (0u8..).zip(self.ledger.chunks).filter(|c| !c.1.done);
                let mut targets: Vec<Target> = left.map(|c| Target::Chunk(c.0)).collect();
                if rules.may_publish(KEYS - targets.len(), KEYS) {
                    targets.push(Target::Publishing);
                }
                targets
            }
            Step::Publish | Step::Commit => tables().collect(),
            Step::GoLive => vec![Target::GoLive],
            Step::Fence => vec![Target::Fence],
            _ => Vec::new(),
        }
    }

    /// The next version of the log that `target` is about.
    pub fn put(&self, target: Target, source: &Source, rules: &Rules) -> Put {
        let mut ledger =
            Ledger { version: self.ledger.version + 1, writer: self.id, ..self.ledger };
        match target {
            Target::Claim => {
                if let Step::Claim(Decision::Snapshot { .. }) = self.step {
                    ledger.stage = Stage::Copying;
                    (ledger.run, ledger.generation) = (self.id, self.generation);
                    if !rules.is(Wrong::KeepChunks) {
                        ledger.chunks = Default::default();
                    }
                }
            }
            Target::Chunk(key) => {
                let chunk = &mut ledger.chunks[usize::from(key)];
                *chunk = Chunk { done: true, value: self.snapshot[usize::from(key)] };
            }
            Target::Publishing => {
                ledger.stage = Stage::Publishing;
                ledger.base = self.base;
            }
            Target::GoLive => {
                ledger.stage = Stage::Streaming;
                ledger.fence = self.ledger.base;
            }
            Target::Fence => ledger.fence = self.next_fence(rules),
            Target::Table(table) => return self.put_table(usize::from(table), source, rules),
        }
        Put::Ledger(ledger)
    }

    fn put_table(&self, table: usize, source: &Source, rules: &Rules) -> Put {
        let view = &self.views[table];
        let commit = if self.step == Step::Publish {
            let base = self.ledger.base;
            let rows = (0u8..)
                .zip(self.ledger.chunks)
                .filter(|(key, chunk)| table_of(*key) == table && chunk.done && chunk.value != 0);
            let adds =
                Rows::of(rows.map(|(key, c)| Row { key, value: c.value, lsn: base, seq: 0 }));
            // Everything that the generation before left goes in the same commit.
            let vanished = |row: &&Row| adds.values().all(|(key, _)| key != row.key);
            let keep = rules.is(Wrong::KeepVanished);
            let masks = Rows::of(view.rows.iter().filter(|r| !keep || !vanished(r)).copied());
            let Ledger { generation, run, .. } = self.ledger;
            TableCommit { writer: self.id, generation, run, base, applied: base, masks, adds }
        } else {
            let (masks, adds) = match self.half & 1 << table != 0 {
                true => Default::default(),
                false => self.net_effect(table, source, rules),
            };
            let applied = match rules.is(Wrong::CheckpointApart) && self.half & 1 << table == 0 {
                true => view.applied,
                false => self.batch_end,
            };
            let View { generation, run, base, .. } = *view;
            TableCommit { writer: self.id, generation, run, base, applied, masks, adds }
        };
        Put::Table { table, version: view.version + 1, commit }
    }

    /// The rows a batch supersedes and the rows it leaves, per key.
    fn net_effect(&self, table: usize, source: &Source, rules: &Rules) -> (Rows, Rows) {
        let view = &self.views[table];
        let applied = resume_table(lsn(view.applied), lsn(self.ledger.fence));
        let mut last: [Option<Row>; KEYS] = Default::default();
        let sent = source.log().iter().filter(|t| t.commit >= self.from.max(self.finished));
        for transaction in sent {
            let torn = self.torn && transaction.commit >= self.received;
            let count = match transaction.commit < self.received {
                true => transaction.changes().len(),
                false => usize::from(torn),
            };
            for change in transaction.changes().iter().take(count) {
                let (commit, at) = (lsn(transaction.commit), lsn(change.lsn));
                if table_of(change.key) == table
                    && rules.applies(lsn(view.base), applied, commit, at)
                {
                    last[usize::from(change.key)] = Some(Row {
                        key: change.key,
                        value: change.value,
                        lsn: transaction.commit,
                        seq: change.seq,
                    });
                }
            }
            if torn {
                break;
            }
        }
        let touched = |key: u8| last[usize::from(key)].is_some();
        let masks = Rows::of(view.rows.iter().filter(|row| touched(row.key)).copied());
        let adds = Rows::of(last.into_iter().flatten().filter(|row| row.value != 0));
        (masks, adds)
    }

    /// The next transaction the server sends.
    pub fn next<'a>(&self, source: &'a Source) -> Option<&'a Transaction> {
        source.log().iter().find(|t| t.commit >= self.from.max(self.received))
    }

    /// Ends the batch: which tables does it change?
    pub fn close_batch(&mut self, source: &Source, rules: &Rules) {
        let sent =
            |t: &&Transaction| t.commit >= self.from.max(self.finished) && t.commit < self.received;
        let last = source.log().iter().rfind(sent).map(|t| (lsn(t.commit), lsn(t.end())));
        let end = rules.applied_after(lsn(self.finished), last, lsn(self.received));
        self.batch_end = position(end);
        for table in 0..TABLES {
            if self.net_effect(table, source, rules) != Default::default() {
                self.todo |= 1 << table;
            }
        }
        self.changed = self.todo;
        self.step = Step::Commit;
        self.settle(rules);
    }

    fn next_fence(&self, rules: &Rules) -> u8 {
        let tables = (0..TABLES).map(|table| {
            let applied = lsn(self.views[table].applied);
            match self.changed & 1 << table != 0 {
                true => Progress::Changed { applied },
                false => Progress::Untouched { applied },
            }
        });
        position(rules.fence(lsn(self.ledger.fence), lsn(self.batch_end), tables))
    }

    /// Moves on where nothing is left to put.
    fn settle(&mut self, rules: &Rules) {
        if self.step == Step::Publish && self.todo == 0 {
            self.step = Step::GoLive;
        }
        if self.step == Step::Commit && self.todo == 0 {
            self.step = Step::Fence;
            if self.next_fence(rules) == self.ledger.fence {
                self.end_batch();
            }
        }
    }

    fn end_batch(&mut self) {
        (self.finished, self.batch_end, self.changed, self.torn) = (self.batch_end, 0, 0, false);
        self.step = Step::Follow;
    }

    /// The put is known to be stored.
    pub fn stored(&mut self, target: Target, put: Put, rules: &Rules) {
        match put {
            Put::Ledger(ledger) => self.ledger = ledger,
            Put::Table { table, version, commit } => {
                let view = &mut self.views[table];
                view.version = version;
                view.rows = view.rows.after(&commit.masks, &commit.adds);
                (view.generation, view.run) = (commit.generation, commit.run);
                (view.base, view.applied) = (commit.base, commit.applied);
                let bit = 1 << table;
                if rules.is(Wrong::CheckpointApart) && self.step == Step::Commit {
                    self.half ^= bit;
                }
                if self.half & bit == 0 {
                    self.todo &= !bit;
                }
            }
        }
        match target {
            Target::Claim => {
                self.step = match self.step {
                    Step::Claim(Decision::Publish) => Step::Publish,
                    Step::Claim(Decision::Stream) => Step::StartReplication,
                    Step::Claim(Decision::Snapshot { drop_slot }) => {
                        Step::MakeBoundary { drop_slot }
                    }
                    other => other,
                }
            }
            Target::Publishing => self.step = Step::Publish,
            Target::GoLive => self.step = Step::StartReplication,
            Target::Fence => self.end_batch(),
            Target::Chunk(_) | Target::Table(_) => {}
        }
        if matches!(target, Target::Claim | Target::Publishing) && self.step == Step::Publish {
            self.todo = (1 << TABLES) - 1;
        }
        self.settle(rules);
    }

    /// Looks at the tables that it is to publish: of an earlier generation, or done already.
    pub fn open_tables(&mut self, tables: &[Table; TABLES], rules: &Rules) {
        for (i, table) in tables.iter().enumerate() {
            if table.version > 0 && table.run == self.ledger.run {
                self.published_already(i, table, rules);
            } else if table.version > 0 && table.generation >= self.ledger.generation {
                self.step = Step::Stopped(Why::Fenced);
                return;
            } else {
                self.views[i] = View::from(table);
            }
        }
    }

    /// A table of this very run is there: an earlier process, or a lost answer, has published it.
    pub fn published_already(&mut self, table: usize, found: &Table, rules: &Rules) {
        self.views[table] = View::from(found);
        self.todo &= !(1 << table);
        self.settle(rules);
    }
}

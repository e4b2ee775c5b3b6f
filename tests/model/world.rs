//! What outlives a process: the source with its log, the slot, the tables, the ledger.
//!
//! Everything is small and `Copy`, so that millions of worlds can be compared. Positions are bytes
//! of a toy log in which every record is one byte long: a commit record at `x` ends at `x + 1`.

use std::borrow::Cow;

use tidegate::position::Lsn;

pub use crate::size::handoff::{CHANGES, KEYS, Positions, SESSIONS, TRANSACTIONS};

/// Every third key belongs to table 1, the others to table 0. Every key is a chunk.
pub const TABLES: usize = 2;
const ROWS: usize = 2 * KEYS;

pub fn lsn(position: u8) -> Lsn {
    Lsn::new(u64::from(position))
}

pub fn position(lsn: Lsn) -> u8 {
    u8::try_from(lsn.bytes()).unwrap()
}

pub fn table_of(key: u8) -> usize {
    usize::from(key % 3 == 2)
}

/// What a session does, one transaction after the other.
pub type Script = Cow<'static, [Template]>;

/// One change of a transaction. A value is never 0.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// INSERT, or UPDATE where the key is there.
    Put(u8, u8),
    Delete(u8),
    /// UPDATE of the key.
    Rekey(u8, u8, u8),
}

/// One transaction of a session's script.
#[derive(Clone, Debug)]
pub struct Template {
    pub ops: Cow<'static, [Op]>,
    /// Its changes and its commit are separate moments, so others can come between.
    pub slow: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Change {
    /// Position of the change's own record.
    pub lsn: u8,
    pub seq: u8,
    pub key: u8,
    /// 0: the row is gone.
    pub value: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Transaction {
    /// Where the commit record starts.
    pub commit: u8,
    changes: [Change; CHANGES],
    count: u8,
}

impl Transaction {
    pub fn changes(&self) -> &[Change] {
        &self.changes[..usize::from(self.count)]
    }

    pub fn end(&self) -> u8 {
        self.commit + 1
    }

    fn push(&mut self, change: Change) {
        self.changes[usize::from(self.count)] = change;
        self.count += 1;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    initial: [u8; KEYS],
    log: [Transaction; TRANSACTIONS],
    committed: u8,
    /// Where the next record will stand.
    pub end: u8,
    /// Templates each session has finished.
    pub done: [u8; SESSIONS],
    open: [Option<Transaction>; SESSIONS],
}

impl Source {
    pub fn new(initial: [u8; KEYS]) -> Self {
        Source {
            initial,
            log: [Transaction::default(); TRANSACTIONS],
            committed: 0,
            end: 1,
            done: [0; SESSIONS],
            open: [None; SESSIONS],
        }
    }

    /// Committed transactions in commit order.
    pub fn log(&self) -> &[Transaction] {
        &self.log[..usize::from(self.committed)]
    }

    /// The committed value of every key, before `position`.
    pub fn values(&self, position: u8) -> [u8; KEYS] {
        let mut values = self.initial;
        for change in self.log().iter().filter(|t| t.commit < position).flat_map(|t| t.changes()) {
            values[usize::from(change.key)] = change.value;
        }
        values
    }

    /// The right-hand side of the promise: snapshot(base) + all changes before `applied`.
    pub fn truth(&self, table: usize, base: u8, applied: u8) -> Rows {
        let mut rows: [Row; KEYS] = Default::default();
        for (key, value) in (0u8..).zip(self.initial) {
            rows[usize::from(key)] = Row { key, value, lsn: base, seq: 0 };
        }
        for transaction in self.log().iter().filter(|t| t.commit < applied) {
            for change in transaction.changes() {
                let (lsn, seq) = match transaction.commit < base {
                    true => (base, 0),
                    false => (transaction.commit, change.seq),
                };
                rows[usize::from(change.key)] =
                    Row { key: change.key, value: change.value, lsn, seq };
            }
        }
        Rows::of(rows.into_iter().filter(|r| r.value != 0 && table_of(r.key) == table))
    }

    /// The next moment of a session, unless it is finished or waits for a lock.
    pub fn step(&self, session: usize, script: &[Template]) -> Option<Source> {
        let template = script.get(usize::from(self.done[session]))?;
        let mut next = *self;
        if let Some(mut open) = self.open[session] {
            open.commit = self.end;
            next.open[session] = None;
            next.commit(session, open);
            return Some(next);
        }
        let transaction = self.run(template)?;
        if !template.slow {
            next.commit(session, Transaction { commit: self.end, ..transaction });
        } else {
            next.open[session] = Some(transaction);
            next.end += 1;
        }
        Some(next)
    }

    fn commit(&mut self, session: usize, transaction: Transaction) {
        self.log[usize::from(self.committed)] = transaction;
        self.committed += 1;
        self.done[session] += 1;
        self.end += 1;
    }

    fn run(&self, template: &Template) -> Option<Transaction> {
        let mut values = self.values(u8::MAX);
        let mut transaction = Transaction::default();
        let locked =
            |key: u8| self.open.iter().flatten().any(|t| t.changes().iter().any(|c| c.key == key));
        for (seq, op) in (1..).zip(template.ops.iter()) {
            let writes: [(u8, u8); 2] = match *op {
                Op::Put(key, value) => [(key, value); 2],
                Op::Delete(key) => [(key, 0); 2],
                Op::Rekey(from, to, value) => [(from, 0), (to, value)],
            };
            if writes.iter().any(|w| locked(w.0)) {
                return None;
            }
            let here = values[usize::from(writes[0].0)] != 0;
            let possible = match *op {
                Op::Put(..) => true,
                Op::Delete(_) => here,
                Op::Rekey(_, to, _) => here && values[usize::from(to)] == 0,
            };
            if !possible {
                continue;
            }
            let count = if writes[0] == writes[1] { 1 } else { 2 };
            for (key, value) in writes.into_iter().take(count) {
                values[usize::from(key)] = value;
                transaction.push(Change { lsn: self.end, seq, key, value });
            }
        }
        Some(transaction)
    }

    pub fn finished(&self, scripts: &[Script; SESSIONS]) -> bool {
        self.done.iter().zip(scripts).all(|(done, script)| usize::from(*done) == script.len())
    }
}

/// A row of a table, with the position columns it carries. Two equal rows are two rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Row {
    pub key: u8,
    pub value: u8,
    pub lsn: u8,
    pub seq: u8,
}

/// A multiset of rows, sorted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rows {
    rows: [Row; ROWS],
    count: u8,
}

impl Rows {
    pub fn of(rows: impl IntoIterator<Item = Row>) -> Self {
        let mut all = Rows::default();
        rows.into_iter().for_each(|row| all.add(row));
        all
    }

    pub fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows[..usize::from(self.count)].iter()
    }

    pub fn add(&mut self, row: Row) {
        if usize::from(self.count) == ROWS {
            return;
        }
        self.rows[usize::from(self.count)] = row;
        self.count += 1;
        self.rows[..usize::from(self.count)].sort_unstable();
    }

    /// Masks one row, as a deletion vector does; a row that is masked already stays so.
    pub fn mask(&mut self, row: Row) {
        let at = self.iter().position(|r| *r == row);
        if let Some(at) = at {
            self.rows.copy_within(at + 1.., at);
            self.rows[ROWS - 1] = Row::default();
            self.count -= 1;
        }
    }

    pub fn after(mut self, masks: &Rows, adds: &Rows) -> Rows {
        masks.iter().for_each(|row| self.mask(*row));
        adds.iter().for_each(|row| self.add(*row));
        self
    }

    pub fn values(&self) -> impl Iterator<Item = (u8, u8)> {
        self.iter().map(|row| (row.key, row.value))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    pub confirmed: u8,
    /// The consistent point at which it was made.
    pub made_at: u8,
    /// The process that streams from it, 0 for none.
    pub active: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Stage {
    #[default]
    Nothing,
    Copying,
    Publishing,
    Streaming,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Chunk {
    pub done: bool,
    /// The value of its only key in the snapshot, 0 for no row.
    pub value: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ledger {
    pub version: u8,
    /// The process that wrote this version.
    pub writer: u8,
    pub stage: Stage,
    pub generation: u8,
    pub run: u8,
    pub base: u8,
    pub fence: u8,
    pub chunks: [Chunk; KEYS],
}

/// The latest version of a table. Version 0: there is no table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Table {
    pub version: u8,
    pub writer: u8,
    pub generation: u8,
    pub run: u8,
    pub base: u8,
    pub applied: u8,
    pub rows: Rows,
    /// The highest position each key was ever seen with.
    pub seen: [(u8, u8); KEYS],
    /// The applied positions of all versions, as bits.
    pub history: Positions,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TableCommit {
    pub writer: u8,
    pub generation: u8,
    pub run: u8,
    pub base: u8,
    pub applied: u8,
    pub masks: Rows,
    pub adds: Rows,
}

/// A create-only put of the next version of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Put {
    Ledger(Ledger),
    Table { table: usize, version: u8, commit: TableCommit },
}

impl Put {
    pub fn version(&self) -> u8 {
        match self {
            Put::Ledger(ledger) => ledger.version,
            Put::Table { version, .. } => *version,
        }
    }
}

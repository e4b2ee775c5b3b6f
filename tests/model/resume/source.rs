//! The source of the resume model: a heap whose rows move, its log, and what a snapshot shows.
//!
//! Where in a ctid range a row stands makes no difference to anybody, so a row's place is its
//! range. A range has room for every row: more moves than a real heap allows, not fewer. The log is
//! a toy in which every record is one byte long: a commit record at `x` ends at `x + 1`, and a
//! boundary made there shows what commits before `x + 1`.

use crate::size::resume::{CHANGES, KEYS, TRANSACTIONS};

/// A row's values. A value is never 0: that is NULL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Values {
    pub plain: u8,
    /// Stored out of line: an UPDATE that leaves it alone does not send it.
    pub toast: u8,
}

/// A row of the heap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cell {
    pub range: u8,
    pub values: Values,
}

/// What is visible at some moment, by key.
pub type Heap = [Option<Cell>; KEYS];

/// A record of the log. `old` is the row before it, which only a table without a key may look at
/// (its replica identity is FULL).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    Insert {
        key: u8,
        new: Values,
    },
    /// `from` is another key where the key changed. `sent`: the TOAST value is in the message.
    Update {
        from: u8,
        key: u8,
        new: Values,
        sent: bool,
        old: Values,
    },
    Delete {
        key: u8,
        old: Values,
    },
    Truncate,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Transaction {
    /// Where the commit record starts.
    pub commit: u8,
    changes: [Option<Change>; CHANGES],
}

impl Transaction {
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        self.changes.into_iter().flatten()
    }
}

/// What a session may do to the table next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Insert {
        key: u8,
        range: u8,
    },
    Update {
        from: u8,
        key: u8,
        sent: bool,
        range: u8,
    },
    Delete {
        key: u8,
    },
    Truncate,
    /// Every row moves, nothing is in the stream: to the front, or one range on.
    Rewrite {
        front: bool,
        kind: Rewrite,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rewrite {
    /// VACUUM FULL, CLUSTER: older snapshots see what they saw.
    Vacuum,
    /// ALTER TABLE: older snapshots see an empty table.
    Alter,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    initial: Heap,
    /// What is committed, and what the open transaction did.
    pub heap: Heap,
    log: [Option<Transaction>; TRANSACTIONS],
    open: Option<Transaction>,
    /// Where the next record will stand.
    pub end: u8,
    /// `relfilenode`.
    pub file: u8,
    /// Changes made, and the source of fresh values.
    pub made: u8,
    /// Keys from here on were never used.
    pub used: u8,
    pub rewrites: u8,
    pub truncates: u8,
}

impl Source {
    /// One row a range, as far as there are keys in `rows`.
    pub fn new(rows: u8, ranges: u8) -> Self {
        let row = |key: u8| {
            let values = Values { plain: key + 1, toast: key + 1 };
            (key < rows).then_some(Cell { range: key % ranges, values })
        };
        let heap = std::array::from_fn(|key| row(key as u8));
        Source {
            initial: heap,
            heap,
            log: [None; TRANSACTIONS],
            open: None,
            end: 1,
            file: 1,
            made: 0,
            used: rows,
            rewrites: 0,
            truncates: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Room for another change in the open transaction, if there is one.
    pub fn has_room(&self) -> bool {
        match self.open {
            Some(open) => open.changes().count() < CHANGES,
            None => self.log.iter().any(Option::is_none),
        }
    }

    pub fn log(&self) -> impl Iterator<Item = &Transaction> {
        self.log.iter().flatten()
    }

    /// The table as everything that commits before `position` left it.
    pub fn truth(&self, position: u8) -> [Option<Values>; KEYS] {
        let mut rows = self.initial.map(|cell| cell.map(|cell| cell.values));
        for change in self.log().filter(|t| t.commit < position).flat_map(Transaction::changes) {
            match change {
                Change::Insert { key, new } => rows[usize::from(key)] = Some(new),
                Change::Update { from, key, new, .. } => {
                    rows[usize::from(from)] = None;
                    rows[usize::from(key)] = Some(new);
                }
                Change::Delete { key, .. } => rows[usize::from(key)] = None,
                Change::Truncate => rows = [None; KEYS],
            }
        }
        rows
    }

    /// One change, in the open transaction or a new one.
    pub fn change(&mut self, op: Op, ranges: u8) {
        let fresh = 100 + self.made;
        let values = |key: u8| self.heap[usize::from(key)].map(|cell| cell.values);
        let change = match op {
            Op::Insert { key, range } => {
                let new = Values { plain: fresh, toast: fresh };
                self.heap[usize::from(key)] = Some(Cell { range, values: new });
                self.used = self.used.max(key + 1);
                Change::Insert { key, new }
            }
            Op::Update { from, key, sent, range } => {
                let old = values(from).unwrap_or_default();
                let new = Values { plain: fresh, toast: if sent { fresh } else { old.toast } };
                self.heap[usize::from(from)] = None;
                self.heap[usize::from(key)] = Some(Cell { range, values: new });
                self.used = self.used.max(key + 1);
                Change::Update { from, key, new, sent, old }
            }
            Op::Delete { key } => {
                let old = values(key).unwrap_or_default();
                self.heap[usize::from(key)] = None;
                Change::Delete { key, old }
            }
            Op::Truncate => {
                self.heap = [None; KEYS];
                self.file += 1;
                self.truncates += 1;
                Change::Truncate
            }
            Op::Rewrite { front, .. } => {
                move_all(&mut self.heap, front, ranges);
                self.file += 1;
                self.rewrites += 1;
                return;
            }
        };
        self.made += 1;
        let open = self.open.get_or_insert(Transaction { commit: 0, changes: [None; CHANGES] });
        if let Some(place) = open.changes.iter_mut().find(|c| c.is_none()) {
            *place = Some(change);
        }
    }

    pub fn commit(&mut self) {
        let Some(open) = self.open.take() else { return };
        if let Some(place) = self.log.iter_mut().find(|t| t.is_none()) {
            *place = Some(Transaction { commit: self.end, ..open });
        }
        self.end += 1;
    }
}

/// A rewrite puts every row somewhere else.
pub fn move_all(heap: &mut Heap, front: bool, ranges: u8) {
    for cell in heap.iter_mut().flatten() {
        cell.range = if front { 0 } else { (cell.range + 1) % ranges };
    }
}

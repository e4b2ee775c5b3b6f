//! What is recorded of a run, and what becomes of it when the stream is drained into it.
//!
//! The drain is a pure function of the record and the log: whoever begins it again comes to the
//! same rows. It is written for one reader of the stream and tables that nobody sees yet.

use crate::resume::rules::{Rules, Wrong};
use crate::resume::source::{Change, Source, Values};
use crate::size::resume::{KEYS, RANGES};

/// The rows of one ctid range, by key, as the boundary at `base` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Chunk {
    pub base: u8,
    pub rows: [Option<Values>; KEYS],
}

/// A run that has not published, as the ledger has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Run {
    /// Its first boundary, where its slot was made. Nothing is recorded before it.
    pub first: Option<u8>,
    pub chunks: [Option<Chunk>; RANGES],
    /// The file that the chunks were read from.
    pub file: u8,
    /// Keys that were read again, at a boundary of their own.
    pub reread: [Option<(u8, Values)>; KEYS],
    /// The highest boundary of a re-read, or of another table's chunk: all are published together.
    pub high: u8,
    /// The keys of the last re-read, as bits, as long as its boundary is the highest.
    pub just_read: u32,
    pub rereads: u8,
}

impl Run {
    fn bases(&self) -> impl Iterator<Item = u8> {
        self.chunks.iter().flatten().map(|chunk| chunk.base)
    }

    pub fn lowest(&self) -> u8 {
        self.bases().min().unwrap_or(0)
    }

    /// Where the drain ends and everything is published.
    pub fn end(&self) -> u8 {
        self.bases().fold(self.high, u8::max)
    }

    pub fn is_complete(&self, ranges: u8) -> bool {
        self.bases().count() == usize::from(ranges)
    }

    pub fn is_of_one_base(&self) -> bool {
        self.bases().all(|base| base == self.lowest()) && self.reread.iter().all(Option::is_none)
    }

    /// All but the place of the run's slot.
    pub fn forget(&mut self) {
        (self.chunks, self.reread) = Default::default();
    }
}

const ROWS: usize = 2 * KEYS;

/// A multiset of rows, sorted. A table without a key has 0 for all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rows {
    rows: [Option<(u8, Values)>; ROWS],
}

impl Rows {
    pub fn of(rows: impl IntoIterator<Item = (u8, Values)>) -> Self {
        let mut all = Rows::default();
        for (place, row) in all.rows.iter_mut().zip(rows) {
            *place = Some(row);
        }
        all.rows.sort_unstable();
        all
    }

    pub fn truth(source: &Source, position: u8, keyed: bool) -> Self {
        let rows = (0..).zip(source.truth(position));
        Rows::of(rows.filter_map(|(key, row)| row.map(|row| (if keyed { key } else { 0 }, row))))
    }

    pub fn count(&self) -> u32 {
        self.rows.iter().flatten().count() as u32
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Drained {
    pub rows: Rows,
    /// Keys whose row lacks a value that is nowhere, as bits.
    pub unresolved: u32,
}

impl Drained {
    /// What PostgreSQL has to count in the snapshot of the last boundary.
    pub fn count(&self) -> u32 {
        self.rows.count() + self.unresolved.count_ones()
    }
}

pub fn drain(run: &Run, source: &Source, keyed: bool, rules: &Rules) -> Drained {
    let until = match rules.is(Wrong::PublishBeforeMax) {
        true => run.lowest(),
        false => drain_end(run, rules),
    };
    let due = source
        .log()
        .filter(|t| t.commit < until && rules.applies_to_table(run.lowest(), t.commit))
        .flat_map(|t| t.changes().map(|change| (t.commit, change)));
    if keyed { by_key(run, due, rules) } else { by_row(run, due) }
}

pub fn drain_end(run: &Run, rules: &Rules) -> u8 {
    let found = run.reread.iter().flatten().map(|row| row.0).max().unwrap_or(0);
    match rules.is(Wrong::ForgetEmptyReread) && run.rereads > 0 {
        true => run.bases().fold(found, u8::max),
        false => run.end(),
    }
}

/// What the drain knows of a key.
#[derive(Clone, Copy)]
enum Known {
    Nothing,
    Row(Values),
    Unresolved,
}

struct Keys<'a> {
    known: [Known; KEYS],
    /// Of the chunk that has the key, if any has. It may as well be forgotten once a change was
    /// applied: what follows is above it too.
    base: [Option<u8>; KEYS],
    /// The row of a chunk that a later chunk's has masked.
    masked: [Option<Values>; KEYS],
    rules: &'a Rules,
}

impl Keys<'_> {
    fn load(&mut self, key: usize, base: u8, values: Values) {
        if let (Some(first), Known::Row(here)) = (self.base[key], self.known[key]) {
            let later = self.rules.later_counts(first, base);
            let masked = if later { here } else { values };
            self.masked[key] = Some(masked);
            if !later || self.rules.is(Wrong::FirstChunkWins) {
                self.base[key] = Some(first.max(base));
                return;
            }
        }
        (self.known[key], self.base[key]) = (Known::Row(values), Some(base));
    }

    fn apply(&mut self, commit: u8, change: Change) {
        let rules = self.rules;
        match change {
            Change::Insert { key, new } => {
                let key = usize::from(key);
                if rules.applies_to_row(self.base[key], commit) {
                    self.known[key] = Known::Row(new);
                }
            }
            Change::Delete { key, .. } => {
                let key = usize::from(key);
                if rules.deletes_row(self.base[key], commit) {
                    self.known[key] = Known::Nothing;
                }
            }
            Change::Truncate => {
                for (known, base) in self.known.iter_mut().zip(self.base) {
                    if rules.truncates_row(base, commit) {
                        *known = Known::Nothing;
                    }
                }
            }
            Change::Update { from, key, new, sent, .. } => {
                self.update(commit, usize::from(from), usize::from(key), new, sent);
            }
        }
    }

    fn update(&mut self, commit: u8, from: usize, key: usize, new: Values, sent: bool) {
        let rules = self.rules;
        let to_old = rules.applies_to_row(self.base[from], commit);
        let to_new = rules.applies_to_row(self.base[key], commit);
        if rules.is(Wrong::KeyChangeAsOne) && !to_new {
            return;
        }
        let toast = match self.known[from] {
            _ if sent => Some(new.toast),
            // A row of a later base is another row under the same key.
            Known::Row(values) if to_old => Some(values.toast),
            _ if rules.is(Wrong::GuessNull) => Some(0),
            _ if rules.is(Wrong::GuessMasked) => self.masked[from].map(|row| row.toast),
            _ => None,
        };
        if to_old && from != key {
            self.known[from] = Known::Nothing;
        }
        if to_new {
            let row = |toast| Known::Row(Values { toast, ..new });
            self.known[key] = toast.map_or(Known::Unresolved, row);
        }
    }
}

fn by_key(run: &Run, due: impl Iterator<Item = (u8, Change)>, rules: &Rules) -> Drained {
    let mut keys =
        Keys { known: [Known::Nothing; KEYS], base: [None; KEYS], masked: [None; KEYS], rules };
    for chunk in run.chunks.iter().flatten() {
        for (key, row) in chunk.rows.iter().enumerate() {
            if let Some(values) = row {
                keys.load(key, chunk.base, *values);
            }
        }
    }
    for (key, row) in run.reread.iter().enumerate() {
        if let Some((base, values)) = row {
            keys.load(key, *base, *values);
        }
    }
    due.for_each(|(commit, change)| keys.apply(commit, change));
    let mut unresolved = 0;
    for (key, known) in keys.known.iter().enumerate() {
        if let Known::Unresolved = known {
            unresolved |= 1 << key;
        }
    }
    if rules.is(Wrong::DropUnresolved) || rules.is(Wrong::RereadOnce) && run.rereads > 0 {
        unresolved = 0;
    }
    let rows = (0..).zip(keys.known).filter_map(|(key, known)| match known {
        Known::Row(values) => Some((key, values)),
        Known::Nothing | Known::Unresolved => None,
    });
    let both = (0..).zip(keys.masked).filter_map(|(key, row)| Some((key, row?)));
    let both = both.filter(|_| rules.is(Wrong::BothChunksCount));
    Drained { rows: Rows::of(rows.chain(both)), unresolved }
}

/// Without a key every row is what its values are. Its chunks are of one base, so every change from
/// there on applies.
fn by_row(run: &Run, due: impl Iterator<Item = (u8, Change)>) -> Drained {
    let rows = run.chunks.iter().flatten().flat_map(|chunk| chunk.rows.iter().flatten());
    let mut rows: Vec<Values> = rows.copied().collect();
    let delete = |rows: &mut Vec<Values>, old: Values| {
        if let Some(at) = rows.iter().position(|row| *row == old) {
            rows.swap_remove(at);
        }
    };
    for (_, change) in due {
        match change {
            Change::Insert { new, .. } => rows.push(new),
            Change::Update { new, old, .. } => {
                delete(&mut rows, old);
                rows.push(new);
            }
            Change::Delete { old, .. } => delete(&mut rows, old),
            Change::Truncate => rows.clear(),
        }
    }
    Drained { rows: Rows::of(rows.into_iter().map(|row| (0, row))), unresolved: 0 }
}

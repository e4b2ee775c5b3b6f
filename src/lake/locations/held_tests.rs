//! Rows that move to another file beside the stream: no stale place of a key ever wins, whatever
//! the stream did meanwhile, and wherever it crashed.
//!
//! The table is a model: files of rows with a key, some of them dead. The caller's part is played
//! as `handoff::index` does it: after a crash, live rows of the files from the index's version on
//! are staged again, in the order of their numbers.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::tests::{at, identity, small};
use super::*;

#[derive(Debug, Clone)]
enum Op {
    /// Keys that are written, or deleted.
    Batch(Vec<(u16, bool)>),
    Begin(u8),
    Finish,
    /// The lake's commit is stored, and then the process is gone.
    FinishAndCrash,
    GiveUp,
    Crash,
    Flush,
    Maintain,
    Check,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => prop::collection::vec((0..300u16, prop::bool::weighted(0.8)), 0..50).prop_map(Op::Batch),
        4 => any::<u8>().prop_map(Op::Begin),
        4 => Just(Op::Finish),
        1 => Just(Op::FinishAndCrash),
        1 => Just(Op::GiveUp),
        1 => Just(Op::Crash),
        2 => Just(Op::Flush),
        4 => Just(Op::Maintain),
        3 => Just(Op::Check),
    ];
    prop::collection::vec(op, 1..100)
}

/// Bytes of a key; long ones, so that few fill the memory.
fn key(number: u16) -> Vec<u8> {
    [vec![b'k'; 700], number.to_be_bytes().to_vec()].concat()
}

type Files = BTreeMap<u32, Vec<(u16, bool)>>;

struct Pending {
    number: u32,
    runs: Vec<PendingRun>,
    rows: Vec<(u16, Location)>,
    sources: Vec<u32>,
}

struct World<'a> {
    folder: &'a Path,
    options: Options,
    index: Option<Locations>,
    files: Files,
    next: u32,
    pending: Option<Pending>,
}

fn is_live(files: &Files, location: Location) -> bool {
    files.get(&location.file).is_some_and(|rows| rows[location.row as usize].1)
}

impl World<'_> {
    fn index(&mut self) -> &mut Locations {
        self.index.as_mut().unwrap()
    }

    fn live(&self, key: u16) -> Vec<Location> {
        let mut found = Vec::new();
        for (no, rows) in &self.files {
            for (row, (k, live)) in rows.iter().enumerate() {
                if *live && *k == key {
                    found.push(at(*no, row as u32));
                }
            }
        }
        found
    }

    fn stage(&mut self, mut entries: Vec<(Vec<u8>, Location)>) {
        entries.sort();
        self.index().stage(entries.iter().map(|(k, l)| (k.as_slice(), *l))).unwrap();
    }

    fn batch(&mut self, changes: &[(u16, bool)]) {
        let changes: BTreeMap<u16, bool> = changes.iter().copied().collect();
        for key in changes.keys() {
            for location in self.live(*key) {
                self.files.get_mut(&location.file).unwrap()[location.row as usize].1 = false;
            }
        }
        let no = self.next;
        self.next += 1;
        let rows: Vec<(u16, bool)> =
            changes.iter().filter(|(_, put)| **put).map(|(key, _)| (*key, true)).collect();
        let entries =
            rows.iter().enumerate().map(|(row, (k, _))| (key(*k), at(no, row as u32))).collect();
        self.stage(entries);
        self.files.insert(no, rows);
        self.files.retain(|_, rows| rows.iter().any(|(_, live)| *live));
        let version = u64::from(self.next);
        self.index().commit_staged(version).unwrap();
    }

    fn begin(&mut self, which: u8) {
        if self.pending.is_some() {
            return;
        }
        let chosen = |no: &u32| which == 0 || no.wrapping_mul(31) as u8 & 7 <= which & 7;
        let sources: Vec<u32> = self.files.keys().copied().filter(chosen).collect();
        let number = self.next;
        self.index().hold(u64::from(number)).unwrap();
        self.next += 1;
        let mut builder = self.index().run_builder();
        let mut rows = Vec::new();
        for no in &sources {
            for (row, (k, live)) in self.files[no].iter().enumerate() {
                if *live {
                    builder.push(&key(*k), at(number, rows.len() as u32)).unwrap();
                    rows.push((*k, at(*no, row as u32)));
                }
            }
        }
        let runs = builder.finish_one().unwrap().into_iter().collect();
        self.pending = Some(Pending { number, runs, rows, sources });
    }

    fn finish(&mut self, crash: bool) {
        let Some(Pending { number, runs, rows, sources }) = self.pending.take() else { return };
        let new: Vec<(u16, bool)> =
            rows.iter().map(|(key, from)| (*key, is_live(&self.files, *from))).collect();
        self.files.retain(|no, _| !sources.contains(no));
        self.files.insert(number, new);
        self.files.retain(|_, rows| rows.iter().any(|(_, live)| *live));
        if crash {
            drop(runs);
            return self.crash();
        }
        self.index().put_held(runs).unwrap();
        let version = u64::from(self.next);
        self.index().commit_staged(version).unwrap();
    }

    fn crash(&mut self) {
        self.pending = None;
        drop(self.index.take());
        let open = Locations::open(self.folder, &identity(), self.options).unwrap();
        let known = open.as_ref().map_or(0, Locations::version);
        self.index = Some(match open {
            Some(index) => index,
            None => Locations::create(self.folder, &identity(), self.options).unwrap(),
        });
        // Numbers of files that were never committed are lost, but not used again here.
        let newer: Vec<u32> =
            self.files.keys().copied().filter(|no| u64::from(*no) >= known).collect();
        for no in newer {
            let live = self.files[&no].iter().enumerate().filter(|(_, (_, live))| *live);
            let entries = live.map(|(row, (k, _))| (key(*k), at(no, row as u32))).collect();
            self.stage(entries);
        }
        let version = u64::from(self.next);
        self.index().commit_staged(version).unwrap();
    }

    fn check(&mut self) {
        let keys: Vec<Vec<u8>> = (0..300).map(key).collect();
        let sorted: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut found = Vec::new();
        self.index().get_batch(&sorted, &mut found).unwrap();
        for (key, found) in (0..300).zip(found) {
            let found: Vec<Location> =
                found.into_iter().filter(|location| is_live(&self.files, *location)).collect();
            assert_eq!(found, self.live(key), "key {key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_row_that_moved_is_found_where_it_stands(ops in ops()) {
        let dir = tempfile::tempdir().unwrap();
        let options = small(false);
        let mut world = World {
            folder: dir.path(),
            options,
            index: Some(Locations::create(dir.path(), &identity(), options).unwrap()),
            files: Files::new(),
            next: 0,
            pending: None,
        };
        for op in ops {
            match op {
                Op::Batch(changes) => world.batch(&changes),
                Op::Begin(which) => world.begin(which),
                Op::Finish => world.finish(false),
                Op::FinishAndCrash => world.finish(true),
                Op::GiveUp => {
                    world.pending = None;
                    world.index().release_held();
                }
                Op::Crash => world.crash(),
                Op::Flush => world.index().flush().unwrap(),
                Op::Maintain => {
                    let files = world.files.clone();
                    world.index().maintain(|location| is_live(&files, location)).unwrap();
                }
                Op::Check => world.check(),
            }
        }
        world.check();
    }
}

#[test]
fn a_place_is_held_once_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
    assert!(index.put_held(Vec::new()).is_err());
    index.hold(3).unwrap();
    assert!(index.hold(3).is_err());
    index.commit_staged(9).unwrap();
    assert_eq!(index.committed_version(), 3);
    index.release_held();
    index.commit_staged(9).unwrap();
    assert_eq!(index.committed_version(), 9);
}

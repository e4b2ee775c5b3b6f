//! The index against a model: random operations, restarts and copies of the folder in between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;

use super::*;

pub(super) fn identity() -> Identity {
    Identity { table_id: "t-1".into(), key: "id int8".into(), format: 1 }
}

pub(super) fn at(file: u32, row: u32) -> Location {
    Location { file, row }
}

pub(super) fn small(multi: bool) -> Options {
    Options { memory_bytes: 1, multi }
}

pub(super) fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        // A run may be removed in between, as it may under a real copy.
        let _ = std::fs::copy(entry.path(), to.join(entry.file_name()));
    }
}

type Model = BTreeMap<Vec<u8>, Location>;

fn stage(index: &mut Locations, puts: &Model) {
    index.stage(puts.iter().map(|(k, &l)| (k.as_slice(), l))).unwrap();
}

fn check(index: &Locations, model: &Model, dead: &BTreeSet<Location>, keys: &BTreeSet<Vec<u8>>) {
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut out = Vec::new();
    index.get_batch(&keys, &mut out).unwrap();
    for (key, found) in keys.iter().zip(out) {
        let found = found.filter(|location| !dead.contains(location));
        let expected = model.get(*key).copied().filter(|location| !dead.contains(location));
        assert_eq!(found, expected, "key {key:?}");
    }
}

#[derive(Debug, Clone)]
enum Op {
    Stage(Vec<(usize, u32)>),
    Discard,
    Commit,
    Flush,
    Reopen,
    Crash,
    Kill(usize),
    Maintain,
    Check,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => prop::collection::vec((0..400usize, 0..3u32), 0..60).prop_map(Op::Stage),
        1 => Just(Op::Discard),
        5 => Just(Op::Commit),
        3 => Just(Op::Flush),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
        2 => (0..400usize).prop_map(Op::Kill),
        2 => Just(Op::Maintain),
        3 => Just(Op::Check),
    ];
    prop::collection::vec(op, 1..80)
}

/// Key number `i`: short, long, empty, with common beginnings.
fn key(i: usize) -> Vec<u8> {
    match i % 7 {
        0 => vec![0; i % 50],
        1 => [vec![7; 3000], (i as u32).to_be_bytes().to_vec()].concat(),
        2 => [vec![b'k'; i], vec![0xff]].concat(),
        _ => [&[1][..], &(i as u64).to_be_bytes()].concat(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_newest_put_is_told_whatever_happens_in_between(ops in ops()) {
        let dir = tempfile::tempdir().unwrap();
        let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
        index.load(Vec::new(), 0, |_, _, _| Ok(())).unwrap();
        let keys: BTreeSet<Vec<u8>> = (0..400).map(key).collect();
        let mut dead = BTreeSet::new();
        // The model after each commit; a restart goes back to the durable one.
        let mut versions: Vec<Model> = vec![Model::new()];
        let mut staged = Model::new();
        let mut row = 0;
        let mut copies = Vec::new();
        for op in ops {
            match op {
                Op::Stage(puts) => {
                    let mut batch = Model::new();
                    for (k, file) in puts {
                        row += 1;
                        batch.insert(key(k), at(file, row));
                    }
                    stage(&mut index, &batch);
                    staged.extend(batch);
                }
                Op::Discard => {
                    index.discard_staged();
                    staged.clear();
                }
                Op::Commit => {
                    let mut model = versions.last().unwrap().clone();
                    for (key, location) in std::mem::take(&mut staged) {
                        if let Some(old) = model.insert(key, location) {
                            dead.insert(old);
                        }
                    }
                    index.commit_staged(versions.len() as u64).unwrap();
                    versions.push(model);
                }
                Op::Flush => {
                    index.flush().unwrap();
                    prop_assert_eq!(index.version() + 1, versions.len() as u64);
                }
                Op::Reopen | Op::Crash => {
                    if matches!(op, Op::Reopen) { index.flush().unwrap(); }
                    let copy = tempfile::tempdir().unwrap();
                    copy_folder(dir.path(), copy.path());
                    copies.push((copy, index.version()));
                    let version = index.version();
                    drop(index);
                    index = Locations::open(dir.path(), &identity(), small(false)).unwrap().unwrap();
                    prop_assert_eq!(index.version(), version);
                    staged.clear();
                    // Roll forward, as the caller does from the files added since.
                    for version in version as usize + 1..versions.len() {
                        let mut puts = versions[version].clone();
                        puts.retain(|k, l| versions[version - 1].get(k) != Some(l));
                        stage(&mut index, &puts);
                        index.commit_staged(version as u64).unwrap();
                    }
                }
                Op::Kill(k) => {
                    dead.extend(versions.last().unwrap().get(&key(k)));
                }
                Op::Maintain => {
                    index.maintain(|location| !dead.contains(&location)).unwrap();
                }
                Op::Check => {
                    let mut model = versions.last().unwrap().clone();
                    model.extend(staged.clone());
                    check(&index, &model, &dead, &keys);
                }
            }
        }
        let mut model = versions.last().unwrap().clone();
        model.extend(staged);
        check(&index, &model, &dead, &keys);
        for (copy, version) in copies {
            let index = Locations::open(copy.path(), &identity(), small(false)).unwrap().unwrap();
            prop_assert_eq!(index.version(), version);
            check(&index, &versions[version as usize], &dead, &keys);
        }
    }

    #[test]
    fn every_location_of_a_key_is_told_in_multi_mode(
        batches in prop::collection::vec(prop::collection::vec((0..12u8, 0..40u32), 0..200), 1..30),
        flush_every in 1..4usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut index = Locations::create(dir.path(), &identity(), small(true)).unwrap();
        let mut model: BTreeSet<(Vec<u8>, Location)> = BTreeSet::new();
        for (i, batch) in batches.iter().enumerate() {
            let puts: BTreeSet<_> = batch
                .iter()
                .map(|&(k, row)| (vec![k; 20], at(i as u32 / 2, row * 1000)))
                .collect();
            index.stage(puts.iter().map(|(k, l)| (k.as_slice(), *l))).unwrap();
            if i % 5 == 4 {
                index.discard_staged();
                continue;
            }
            index.commit_staged(i as u64).unwrap();
            model.extend(puts);
            if i % flush_every == 0 {
                index.flush().unwrap();
            }
            index.maintain(|l| l.row % 3000 != 0).unwrap();
        }
        for k in 0..12u8 {
            let mut out = Vec::new();
            index.get_all(&[k; 20], &mut out).unwrap();
            let key = vec![k; 20];
            let expected: Vec<_> = model.iter().filter(|(m, _)| *m == key).map(|(_, l)| *l).collect();
            let live = |all: &[Location]| -> Vec<Location> {
                all.iter().copied().filter(|l| l.row % 3000 != 0).collect()
            };
            prop_assert_eq!(live(&out), live(&expected));
        }
    }

    #[test]
    fn a_bulk_load_finds_every_row_and_every_duplicate(
        rows in prop::collection::vec((0..5000u32, 0..4u8), 0..4000),
        sorted in any::<bool>(),
        builders in 1..4usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
        let mut keys: Vec<Vec<u8>> =
            rows.iter().map(|(k, shape)| [vec![*shape; 1 + usize::from(*shape) * 30], k.to_be_bytes().to_vec()].concat()).collect();
        if sorted { keys.sort() }
        let mut model: BTreeMap<Vec<u8>, Vec<Location>> = BTreeMap::new();
        let mut parts: Vec<RunBuilder> = (0..builders).map(|_| index.run_builder()).collect();
        for (i, key) in keys.iter().enumerate() {
            let location = at((i * builders / keys.len()) as u32, i as u32);
            parts[location.file as usize].push(key, location).unwrap();
            model.entry(key.clone()).or_default().push(location);
        }
        let mut runs = Vec::new();
        for part in parts { runs.extend(part.finish().unwrap()) }
        let mut told: BTreeMap<Vec<u8>, Vec<Location>> = BTreeMap::new();
        let entries = index.load(runs, 9, |key, before, location| {
            let told = told.entry(key.to_vec()).or_default();
            if told.is_empty() { told.push(before) }
            told.push(location);
            Ok(())
        }).unwrap();
        prop_assert_eq!(entries, model.len() as u64);
        drop(index);
        let index = Locations::open(dir.path(), &identity(), small(false)).unwrap().unwrap();
        prop_assert_eq!(index.version(), 9);
        let newest = model.iter().map(|(k, l)| (k.clone(), *l.last().unwrap())).collect();
        check(&index, &newest, &BTreeSet::new(), &model.keys().cloned().collect());
        model.retain(|_, locations| locations.len() > 1);
        prop_assert_eq!(told, model);
    }
}

#[test]
fn a_duplicate_key_fails_the_load_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
    let mut builder = index.run_builder();
    for key in [b"a", b"b", b"b"] {
        builder.push(key, at(1, key[0].into())).unwrap();
    }
    let runs = builder.finish().unwrap();
    let refuse = |_: &[u8], _, _| Err(crate::error::Error::failed("twice"));
    assert!(index.load(runs, 1, refuse).is_err());
    assert_eq!(index.stats().runs, 0);
    drop(index);
    assert!(Locations::open(dir.path(), &identity(), small(false)).unwrap().is_none());
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "only the lock file");
}

#[test]
fn memory_stays_bounded_and_open_files_few_in_a_huge_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { memory_bytes: 1 << 20, multi: false };
    let mut index = Locations::create(dir.path(), &identity(), options).unwrap();
    let mut builder = index.run_builder();
    // Neither sorted nor compressible.
    let spread = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let count = 400_000u64;
    for i in 0..count {
        builder.push(&spread(i), at(i as u32 % 1000, i as u32 * 1000)).unwrap();
    }
    let runs = builder.finish().unwrap();
    assert!(runs.len() < 70, "{}", runs.len());
    assert_eq!(index.load(runs, 1, |_, _, _| panic!("no duplicates")).unwrap(), count);
    let mut keys: Vec<[u8; 8]> = (0..count + 200_000).map(spread).collect();
    keys.sort();
    for round in 0..3u32 {
        for slice in keys.chunks(100_000) {
            index.stage(slice.iter().map(|k| (k.as_slice(), at(2000 + round, 5)))).unwrap();
            let stats = index.stats();
            assert!(stats.memory_bytes <= 1 << 20, "{stats:?}");
            assert!(stats.runs <= 24, "{stats:?}");
        }
        if round == 1 {
            index.discard_staged();
        } else {
            index.commit_staged(2 + u64::from(round)).unwrap();
        }
        while index.maintain(|_| true).unwrap() {}
        assert!(index.stats().memory_bytes <= 1 << 20);
    }
    let some: Vec<&[u8]> = keys.iter().step_by(97).map(|k| k.as_slice()).collect();
    let mut out = Vec::new();
    index.get_batch(&some, &mut out).unwrap();
    assert!(out.iter().all(|found| *found == Some(at(2002, 5))));
    assert_eq!(index.stats().entries_estimated, keys.len() as u64);
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 2 + index.stats().runs, "old runs are removed");
}

#[test]
fn a_merge_beside_the_stream_keeps_what_was_put_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
    for version in 1..=3 {
        let puts: Model = (0..1000).map(|i| (key(3 + 7 * i), at(version, i as u32))).collect();
        stage(&mut index, &puts);
        index.commit_staged(version.into()).unwrap();
        index.flush().unwrap();
    }
    let plan = index.merge_plan().unwrap();
    assert!(index.merge_plan().is_none(), "one at a time");
    let merged = std::thread::spawn(move || plan.run(|l| l.row % 2 == 0).unwrap());
    stage(&mut index, &Model::from([(key(3), at(9, 9))]));
    index.commit_staged(4).unwrap();
    index.flush().unwrap();
    stage(&mut index, &Model::from([(key(17), at(9, 8))]));
    index.apply_merge(merged.join().unwrap()).unwrap();
    let mut out = Vec::new();
    let keys = [key(3), key(10), key(17)];
    index.get_batch(&keys.each_ref().map(|k| k.as_slice()), &mut out).unwrap();
    assert_eq!(out, [Some(at(9, 9)), None, Some(at(9, 8))]);
    assert_eq!(index.stats().runs, 2);
    drop(index);
    let index = Locations::open(dir.path(), &identity(), small(false)).unwrap().unwrap();
    assert_eq!(index.version(), 4);
    index.get_batch(&keys.each_ref().map(|k| k.as_slice()), &mut out).unwrap();
    assert_eq!(out, [Some(at(9, 9)), None, Some(at(3, 2))]);
}

#[test]
fn misuse_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
    assert!(index.stage([(&b"b"[..], at(0, 0)), (&b"a"[..], at(0, 0))]).is_err());
    index.discard_staged();
    assert!(index.stage([(&b"b"[..], at(0, 0)), (&b"b"[..], at(0, 1))]).is_err());
    index.discard_staged();
    assert!(index.get_batch(&[b"b", b"a"], &mut Vec::new()).is_err());
    let long = vec![0; MAX_KEY_BYTES + 1];
    assert!(index.stage([(long.as_slice(), at(0, 0))]).is_err());
    index.stage([(&long[1..], at(0, 7))]).unwrap();
    let mut out = Vec::new();
    index.get_batch(&[&long[1..]], &mut out).unwrap();
    assert_eq!(out, [Some(at(0, 7))]);
    // A second process may not work on the same folder.
    assert!(Locations::open(dir.path(), &identity(), small(false)).is_err());
    assert!(Locations::create(dir.path(), &identity(), small(false)).is_err());
}

#[test]
fn an_index_of_another_table_key_or_mode_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Locations::open(dir.path(), &identity(), small(false)).unwrap().is_none());
    let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
    index.set_stamp(77);
    index.stage([(&b"b"[..], at(0, 0))]).unwrap();
    index.commit_staged(5).unwrap();
    index.flush().unwrap();
    drop(index);
    let open = |identity: &Identity, multi| {
        let index = Locations::open(dir.path(), identity, small(multi)).unwrap();
        index.map(|index| (index.version(), index.stamp()))
    };
    let other = Identity { table_id: "t-2".into(), ..identity() };
    assert_eq!(open(&other, false), None);
    assert_eq!(open(&Identity { key: "id, name".into(), ..identity() }, false), None);
    assert_eq!(open(&Identity { format: 2, ..identity() }, false), None);
    assert_eq!(open(&identity(), true), None);
    assert_eq!(open(&identity(), false), Some((5, 77)));
}

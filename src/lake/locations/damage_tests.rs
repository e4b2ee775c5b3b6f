//! Damage of any byte of any file: the index is not opened or a look-up fails; it never lies.

use std::path::Path;

use super::tests::{at, copy_folder, identity, small};
use super::*;

const KEYS: u32 = 3000;

fn key(i: u32) -> Vec<u8> {
    // Multiples of ten are in the first run, the rest in the second; some keys have a tail.
    let tail = if i.is_multiple_of(3) { &b"tail"[..] } else { b"" };
    [&i.to_be_bytes()[..], tail].concat()
}

fn make(path: &Path, multi: bool) {
    let mut index = Locations::create(path, &identity(), small(multi)).unwrap();
    for (file, step) in [(1, 10), (2, 7)] {
        let keys: Vec<_> = (0..KEYS).step_by(step).map(|i| (key(i), at(file, i))).collect();
        index.stage(keys.iter().map(|(k, l)| (k.as_slice(), *l))).unwrap();
        index.commit_staged(file.into()).unwrap();
        index.flush().unwrap();
    }
    assert_eq!(index.stats().runs, 2);
}

/// What the index says of all keys, or None if it was not opened or failed.
fn all(path: &Path, multi: bool) -> Option<Vec<(u32, Location)>> {
    let index = Locations::open(path, &identity(), small(multi)).unwrap()?;
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut told = Vec::new();
    let result = if multi {
        index.get_all_batch(&keys, |_| true, &mut told)
    } else {
        let mut out = Vec::new();
        let result = index.get_batch(&keys, &mut out);
        let found = out.into_iter().enumerate();
        told.extend(found.filter_map(|(i, location)| Some((i as u32, location?))));
        result
    };
    let Err(error) = result else { return Some(told) };
    assert!(error.is_transient(), "{error}");
    assert!(index.get_batch(&[], &mut Vec::new()).is_err(), "it stays given up");
    drop(index);
    assert!(Locations::open(path, &identity(), small(multi)).unwrap().is_none());
    None
}

#[test]
fn a_flipped_byte_is_never_a_wrong_location() {
    for multi in [false, true] {
        let whole = tempfile::tempdir().unwrap();
        make(whole.path(), multi);
        let right = all(whole.path(), multi).unwrap();
        for entry in std::fs::read_dir(whole.path()).unwrap() {
            let name = entry.unwrap().file_name();
            let bytes = std::fs::read(whole.path().join(&name)).unwrap();
            // Every byte of the small files and sections, every 37th of the pages.
            let (mut noticed, mut tried) = (0, 0);
            for i in 0..bytes.len() {
                if i % 37 != 0 && i < bytes.len().saturating_sub(300) {
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                copy_folder(whole.path(), dir.path());
                let mut damaged = bytes.clone();
                damaged[i] ^= 1 << (i % 8);
                std::fs::write(dir.path().join(&name), damaged).unwrap();
                tried += 1;
                match all(dir.path(), multi) {
                    None => noticed += 1,
                    Some(told) => assert_eq!(told, right, "byte {i} of {name:?}"),
                }
            }
            assert_eq!(noticed, tried, "{name:?}");
        }
    }
}

#[test]
fn a_torn_missing_or_exchanged_file_is_noticed() {
    let whole = tempfile::tempdir().unwrap();
    make(whole.path(), false);
    let names: Vec<_> =
        std::fs::read_dir(whole.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    let runs: Vec<_> = names.iter().filter(|n| n.to_str().unwrap().ends_with(".run")).collect();
    assert_eq!(runs.len(), 2);
    let with = |damage: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(whole.path(), dir.path());
        damage(dir.path());
        all(dir.path(), false)
    };
    assert!(with(&|_| ()).is_some());
    for name in names.iter().filter(|n| *n != "lock") {
        assert!(with(&|dir| std::fs::remove_file(dir.join(name)).unwrap()).is_none());
        let length = std::fs::metadata(whole.path().join(name)).unwrap().len();
        for length in [0, length / 2, length - 1] {
            let cut = |dir: &Path| {
                let file = std::fs::File::options().write(true).open(dir.join(name)).unwrap();
                file.set_len(length).unwrap();
            };
            assert!(with(&cut).is_none(), "{name:?} of {length} bytes");
        }
    }
    let exchange = |dir: &Path| {
        std::fs::rename(dir.join(runs[0]), dir.join("x")).unwrap();
        std::fs::rename(dir.join(runs[1]), dir.join(runs[0])).unwrap();
        std::fs::rename(dir.join("x"), dir.join(runs[1])).unwrap();
    };
    assert!(with(&exchange).is_none());
    // A whole index of another table, copied into the place.
    let other = Identity { table_id: "t-2".into(), ..identity() };
    let foreign = |dir: &Path| {
        let mut index = Locations::create(dir, &other, small(false)).unwrap();
        index.commit_staged(1).unwrap();
        index.flush().unwrap();
    };
    assert!(with(&foreign).is_none());
}

#[test]
fn a_folder_copied_at_any_moment_opens_at_an_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = Locations::create(dir.path(), &identity(), small(false)).unwrap();
    let mut durable = None;
    for version in 1..60u32 {
        let keys: Vec<_> = (version..version + 500).map(|i| (key(i), at(version, i))).collect();
        index.stage(keys.iter().map(|(k, l)| (k.as_slice(), *l))).unwrap();
        index.commit_staged(version.into()).unwrap();
        match version % 4 {
            0 => {
                index.flush().unwrap();
                durable = Some(version);
            }
            1 => drop(index.maintain(|_| true).unwrap()),
            _ => {}
        }
        let copy = tempfile::tempdir().unwrap();
        copy_folder(dir.path(), copy.path());
        std::fs::write(copy.path().join("00000000000000ff.run"), b"left over").unwrap();
        std::fs::write(copy.path().join("manifest.new"), b"left over").unwrap();
        let again = Locations::open(copy.path(), &identity(), small(false)).unwrap();
        assert_eq!(again.as_ref().map(|i| i.version()), durable.map(u64::from));
        let Some(again) = again else { continue };
        assert!(!copy.path().join("00000000000000ff.run").exists());
        let last = durable.unwrap();
        let keys: Vec<Vec<u8>> = (1..last + 501).map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut out = Vec::new();
        again.get_batch(&keys, &mut out).unwrap();
        for (i, found) in (1..).zip(out) {
            let newest = last.min(i);
            assert_eq!(found, (newest + 500 > i).then(|| at(newest, i)));
        }
    }
}

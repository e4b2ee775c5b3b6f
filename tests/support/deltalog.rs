//! The logs of a lake, read as plain JSON: no commit stands twice, every file named is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::Value;

/// A file below the lake: path and bytes.
pub type Listing = BTreeMap<String, u64>;

/// A local lake as a store.
pub fn local(lake: &std::path::Path) -> Arc<dyn ObjectStore> {
    Arc::new(LocalFileSystem::new_with_prefix(lake).unwrap())
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Everything in the lake.
pub fn list(lake: &Arc<dyn ObjectStore>) -> Listing {
    let all: Vec<_> = wait(lake.list(None).try_collect()).unwrap();
    all.into_iter().map(|o| (o.location.to_string(), o.size)).collect()
}

/// The commits of a table's log, oldest first: version and actions.
pub fn commits(lake: &Arc<dyn ObjectStore>, folder: &str) -> Vec<(u64, Vec<Value>)> {
    let prefix = format!("{folder}/_delta_log/");
    let mut found = Vec::new();
    for path in list(lake).keys() {
        let Some(version) = path.strip_prefix(&prefix).and_then(|n| n.strip_suffix(".json")) else {
            continue;
        };
        let Ok(version) = version.parse::<u64>() else { continue };
        let bytes =
            wait(async { lake.get(&path.as_str().into()).await.unwrap().bytes().await.unwrap() });
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let actions = text.lines().map(|line| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{path} is torn ({e}): {line:?}"))
        });
        found.push((version, actions.collect()));
    }
    found
}

/// The folders that have a Delta log.
pub fn tables(lake: &Arc<dyn ObjectStore>) -> BTreeSet<String> {
    let folder = |path: &String| path.split_once("/_delta_log/").map(|(f, _)| f.to_owned());
    list(lake).keys().filter_map(folder).collect()
}

/// Files that a table's versions name: data files and vectors.
pub fn named(lake: &Arc<dyn ObjectStore>, folder: &str) -> BTreeMap<String, Option<u64>> {
    let mut named = BTreeMap::new();
    for (_, actions) in commits(lake, folder) {
        for action in &actions {
            for part in [&action["add"], &action["remove"]] {
                let Some(path) = part["path"].as_str() else { continue };
                let size = part["size"].as_u64();
                named.insert(format!("{folder}/{path}"), size);
                if let Some(vector) = part["deletionVector"]["pathOrInlineDv"].as_str() {
                    named.insert(format!("{folder}/{}", vector_path(vector)), None);
                }
            }
        }
    }
    named
}

/// Where a vector's file is: a prefix, then a uuid in z85.
pub fn vector_path(descriptor: &str) -> String {
    const DIGITS: &[u8] =
        b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    let (prefix, text) = descriptor.split_at(descriptor.len() - 20);
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks(5) {
        let value = group.iter().fold(0u32, |value, digit| {
            let digit = DIGITS.iter().position(|d| d == digit).unwrap() as u32;
            value.wrapping_mul(85).wrapping_add(digit)
        });
        bytes.extend(value.to_be_bytes());
    }
    let uuid = uuid::Uuid::from_slice(&bytes).unwrap();
    let file = format!("deletion_vector_{uuid}.bin");
    if prefix.is_empty() { file } else { format!("{prefix}/{file}") }
}

/// Every log of the lake: versions without a gap, no commit and no new file twice, and every file
/// that a version names is there, whole. Gives the number of commits.
#[track_caller]
pub fn assert_sound(lake: &Arc<dyn ObjectStore>) -> usize {
    let listing = list(lake);
    let mut count = 0;
    for folder in tables(lake) {
        let commits = commits(lake, &folder);
        let mut ids = BTreeSet::new();
        let mut live: BTreeSet<String> = BTreeSet::new();
        let mut ever: BTreeSet<String> = BTreeSet::new();
        for (at, (version, actions)) in commits.iter().enumerate() {
            assert_eq!(*version, at as u64, "{folder}: a version is missing");
            count += 1;
            for action in actions {
                if let Some(id) = action["commitInfo"]["txnId"].as_str() {
                    assert!(ids.insert(id.to_owned()), "{folder}: {id} was committed twice");
                }
                if let Some(path) = action["remove"]["path"].as_str() {
                    assert!(live.remove(path), "{folder} {version}: {path} was not live");
                }
            }
            for add in actions.iter().map(|action| &action["add"]) {
                let Some(path) = add["path"].as_str() else { continue };
                assert!(live.insert(path.to_owned()), "{folder} {version}: {path} is live already");
                let masked = !add["deletionVector"].is_null();
                assert!(
                    ever.insert(path.to_owned()) || masked,
                    "{folder} {version}: {path} came back"
                );
            }
        }
        for (path, size) in named(lake, &folder) {
            let found = listing.get(&path);
            assert!(found.is_some(), "{path} is named by a version and is not there");
            if let Some(size) = size {
                assert_eq!(found, Some(&size), "{path} is not whole");
            }
        }
    }
    count
}

/// Data files and vectors that no version names.
pub fn orphans(lake: &Arc<dyn ObjectStore>) -> BTreeSet<String> {
    let mut rest: BTreeSet<String> = list(lake).into_keys().collect();
    rest.retain(|path| path.ends_with(".parquet") || path.ends_with(".bin"));
    rest.retain(|path| !path.contains("/_delta_log/"));
    for folder in tables(lake) {
        for path in named(lake, &folder).into_keys() {
            rest.remove(&path);
        }
    }
    rest
}

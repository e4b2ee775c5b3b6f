//! A power cut after any step on a local disk leaves a lake that reads as an older or the newer
//! version, whole, with nothing lost that was answered; and the pipeline goes on from it.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use support::database::TestDb;
use support::disk::{self, Disk, Left, Loss, Step};
use support::pipeline::Pipeline;
use support::program::Tidegate;
use support::servers::usual;
use support::{deltalog, folder};
use tidegate::lake::{Lake, LakeTable};

const TABLES: [&str; 3] = ["public/r", "public/s", "_tidegate/ledger"];

/// The versions of each table whose commit was begun, and those that were answered.
#[derive(Default, Clone)]
struct Known {
    begun: BTreeMap<String, u64>,
    answered: BTreeMap<String, u64>,
    /// For each version of the ledger: what had been answered when it was begun.
    before_ledger: BTreeMap<u64, BTreeMap<String, u64>>,
}

/// The table and version that a step links or whose folder it syncs.
fn commit_of(lake: &Path, path: &Path) -> Option<(String, Option<u64>)> {
    let inside = path.strip_prefix(lake).ok()?.to_str()?;
    let (table, name) = inside.split_once("/_delta_log")?;
    let version = name.strip_prefix('/').and_then(|n| n.strip_suffix(".json")?.parse().ok());
    Some((table.to_owned(), version))
}

impl Known {
    fn take(&mut self, lake: &Path, step: &Step) {
        match (step.name.as_str(), commit_of(lake, &step.path)) {
            ("disk-link", Some((table, Some(version)))) => {
                if table == "_tidegate/ledger" {
                    self.before_ledger.insert(version, self.answered.clone());
                }
                self.begun.insert(table, version);
            }
            ("disk-sync-folder", Some((table, None))) => {
                if let Some(version) = self.begun.get(&table) {
                    self.answered.insert(table, *version);
                }
            }
            _ => {}
        }
    }
}

/// What a whole lake looks like: each commit's bytes, and the files that each version needs.
struct Truth {
    commits: BTreeMap<(String, u64), Vec<u8>>,
    needed: BTreeMap<(String, u64), BTreeSet<String>>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Truth {
    fn of(lake: &Path) -> Truth {
        let store = deltalog::local(lake);
        let mut truth =
            Truth { commits: BTreeMap::new(), needed: BTreeMap::new(), files: BTreeMap::new() };
        for table in deltalog::tables(&store) {
            let mut live: BTreeMap<String, Option<String>> = BTreeMap::new();
            for (version, actions) in deltalog::commits(&store, &table) {
                let path = lake.join(&table).join(format!("_delta_log/{version:020}.json"));
                truth.commits.insert((table.clone(), version), std::fs::read(path).unwrap());
                for remove in actions.iter().filter_map(|a| a["remove"]["path"].as_str()) {
                    live.remove(remove);
                }
                for add in actions.iter().map(|a| &a["add"]) {
                    let Some(path) = add["path"].as_str() else { continue };
                    let vector = add["deletionVector"]["pathOrInlineDv"].as_str();
                    live.insert(path.to_owned(), vector.map(deltalog::vector_path));
                }
                let needed = live.iter().flat_map(|(path, vector)| {
                    [Some(path.clone()), vector.clone()].into_iter().flatten()
                });
                let needed: BTreeSet<String> =
                    needed.map(|path| format!("{table}/{path}")).collect();
                for path in &needed {
                    let bytes = || std::fs::read(lake.join(path)).unwrap();
                    truth.files.entry(path.clone()).or_insert_with(bytes);
                }
                truth.needed.insert((table.clone(), version), needed);
            }
        }
        truth
    }

    /// The version that a table is left at, or why it is not whole.
    fn version_left(&self, left: &Left, table: &str) -> Result<Option<u64>, String> {
        let log = format!("{table}/_delta_log/");
        let names = left.range(log.clone()..).take_while(|(path, _)| path.starts_with(&log));
        let mut newest = None;
        for (path, found) in names {
            let version = path[log.len()..].strip_suffix(".json").and_then(|n| n.parse().ok());
            let Some(version) = version else { continue };
            if self.commits.get(&(table.to_owned(), version)) != Some(found) {
                return Err(format!("{table} {version} is torn"));
            }
            newest = newest.max(Some(version));
        }
        for version in 0..newest.map_or(0, |newest| newest + 1) {
            if !left.contains_key(&format!("{log}{version:020}.json")) {
                return Err(format!("{table} has a gap at {version}"));
            }
            for path in &self.needed[&(table.to_owned(), version)] {
                if left.get(path) != self.files.get(path) {
                    return Err(format!("{table} {version} names {path}, which is not whole"));
                }
            }
        }
        Ok(newest)
    }
}

fn pipeline(name: &str) -> (Pipeline, PathBuf) {
    let pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, repeat('x', 500) FROM generate_series(1, 3000) i;
         CREATE TABLE s(id int PRIMARY KEY, t text);
         INSERT INTO s SELECT i, 'row ' || i FROM generate_series(1, 50) i;
         ANALYZE",
    );
    let record = pipeline.state.path().join("record");
    (pipeline, record)
}

fn recorded(pipeline: &Pipeline, record: &Path) -> Tidegate {
    pipeline.run().env("TIDEGATE_DISK_RECORD", record)
}

fn change(pipeline: &Pipeline, round: usize) {
    pipeline.sql().run(&format!(
        "UPDATE r SET n = n + 1 WHERE id % 50 = {0}; DELETE FROM r WHERE id = 51 + {0} * 50;
         INSERT INTO r VALUES ({1}, 0, 'new'); UPDATE s SET t = t || '!' WHERE id = {0}",
        round % 50,
        10_000 + round
    ));
}

/// A snapshot and a few batches, recorded; a second slot keeps the log of the source from the
/// snapshot on. One run is killed between naming a commit and making the name durable.
fn a_life(pipeline: &Pipeline, record: &Path) {
    recorded(pipeline, record).succeed();
    pipeline.sql().run(&format!(
        "SELECT pg_copy_logical_replication_slot('{0}', '{0}_keep')",
        pipeline.db.name()
    ));
    for round in 1..3 {
        change(pipeline, round);
        recorded(pipeline, record).succeed();
    }
    change(pipeline, 3);
    recorded(pipeline, record)
        .env("TIDEGATE_STORE_FAULTS", "disk-link */public/r/_delta_log/* 1 lost-crash")
        .finish()
        .expect_signal();
    recorded(pipeline, record).succeed();
}

/// Cuts the power after every step; gives how many commits that were begun were lost by it. Steps
/// that are `left_out` were reported as done and never were.
fn cut_after_each(
    lake: &Path,
    steps: &[Step],
    truth: &Truth,
    left_out: impl Fn(&Step) -> bool,
) -> Result<u64, String> {
    let (mut disk, mut known) = (Disk::default(), Known::default());
    let mut lost = 0;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for (number, step) in steps.iter().enumerate() {
        if !left_out(step) {
            disk.take(step);
        }
        known.take(lake, step);
        let seed = number as u64;
        let losses = [
            Loss::Everything,
            Loss::Content,
            Loss::HalfOfContent,
            Loss::Some(seed),
            Loss::Some(!seed),
        ];
        for loss in losses {
            let what = |problem: String| {
                format!(
                    "step {number} ({} {}), {loss:?}: {problem}",
                    step.name,
                    step.path.display()
                )
            };
            let left = disk.cut(loss, lake);
            let mut versions = BTreeMap::new();
            for table in TABLES {
                versions.insert(table, truth.version_left(&left, table).map_err(what)?);
            }
            for (table, version) in &versions {
                if *version < known.answered.get(*table).copied() {
                    return Err(what(format!("{table} is back at {version:?}")));
                }
                lost += u64::from(*version < known.begun.get(*table).copied());
            }
            // The source may forget what the ledger says is done.
            let ledger = versions["_tidegate/ledger"];
            for (_, before) in known.before_ledger.range(..=ledger.unwrap_or(0)) {
                for (table, version) in before.iter().filter(|_| ledger.is_some()) {
                    if versions[table.as_str()] < Some(*version) {
                        return Err(what(format!("{table} is behind the ledger")));
                    }
                }
            }
            if number % 12 == 0 {
                let place = folder("cut");
                disk::lay_out(&left, place.path());
                let lake = Lake::open(place.path().to_str().unwrap()).unwrap();
                for table in ["public/r", "public/s"] {
                    let open = runtime.block_on(LakeTable::open(&lake, table)).unwrap();
                    assert_eq!(open.map(|table| table.version()), versions[table]);
                }
            }
        }
    }
    Ok(lost)
}

#[test]
fn a_power_cut_after_any_step_leaves_every_table_whole_at_some_version() {
    let (pipeline, record) = pipeline("power_cut");
    a_life(&pipeline, &record);
    let lake = pipeline.lake.path().canonicalize().unwrap();
    let truth = Truth::of(&lake);
    let steps = disk::read(&record);
    assert!(steps.len() > 150, "only {} steps were recorded", steps.len());
    let lost = cut_after_each(&lake, &steps, &truth, |_| false).unwrap();
    assert!(lost > 20, "the cuts lost nothing: {lost}");
    // The same record without one kind of sync must be found out.
    for (sync, of) in [
        ("disk-sync", "part-"),
        ("disk-sync", "_delta_log"),
        ("disk-sync", "_dv"),
        ("disk-sync-folder", "_delta_log"),
        ("disk-sync-folder", "public/r"),
        ("disk-sync-folder", "_dv"),
        ("disk-sync-folder", "public"),
    ] {
        let left_out = |step: &Step| {
            let path = step.path.to_string_lossy();
            let it = if sync == "disk-sync" { path.contains(of) } else { path.ends_with(of) };
            step.name == sync && it
        };
        let found = cut_after_each(&lake, &steps, &truth, left_out);
        assert!(found.is_err(), "without {sync} of {of} nothing was wrong: {found:?}");
    }
}

#[test]
fn a_pipeline_goes_on_from_what_a_power_cut_left() {
    let (mut pipeline, record) = pipeline("power_resume");
    a_life(&pipeline, &record);
    let lake = pipeline.lake.path().canonicalize().unwrap();
    let steps = disk::read(&record);
    let mut disk = Disk::default();
    let cuts: Vec<usize> = (1..=8).map(|i| i * steps.len() / 9).collect();
    for (number, step) in steps.iter().enumerate() {
        disk.take(step);
        if !cuts.contains(&number) {
            continue;
        }
        let what = format!("step {number} ({} {})", step.name, step.path.display());
        let loss = if number % 2 == 0 { Loss::Everything } else { Loss::Some(number as u64) };
        pipeline.lake = folder("cut");
        pipeline.state = folder("state");
        disk::lay_out(&disk.cut(loss, &lake), pipeline.lake.path());
        let name = pipeline.db.name().to_owned();
        let mut sql = pipeline.sql();
        sql.run(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
             WHERE slot_name = '{name}'"
        ));
        // The slot as it was: it is made after the run is announced, and moves after the fence.
        let store = deltalog::local(pipeline.lake.path());
        let published = deltalog::commits(&store, "_tidegate/ledger").iter().any(|(_, actions)| {
            let texts =
                actions.iter().filter_map(|a| a["domainMetadata"]["configuration"].as_str());
            texts.into_iter().any(|text| text.contains("\"phase\":\"publish\""))
        });
        if published {
            sql.run(&format!("SELECT pg_copy_logical_replication_slot('{name}_keep', '{name}')"));
        }
        change(&pipeline, number);
        let finished = pipeline.run().finish();
        assert_eq!(finished.code(), 0, "{what}: {}", finished.output());
        pipeline.assert_equal();
        deltalog::assert_sound(&store);
    }
}

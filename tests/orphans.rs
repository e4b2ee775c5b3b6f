//! Files that nobody names are found and removed; one that a version names, or may name, never is.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use support::database::TestDb;
use support::deltalog;
use support::judge::{self, Engine};
use support::pipeline::Pipeline;
use support::servers::usual;
use support::{PATIENCE, wait_until};
use tidegate::lake::{Lake, Ledger, sweep};

fn pipeline(name: &str) -> Pipeline {
    let pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, repeat('x', 500) FROM generate_series(1, 6000) i;
         ANALYZE",
    );
    pipeline
}

fn change(pipeline: &Pipeline, round: usize) {
    pipeline.sql().run(&format!(
        "UPDATE r SET n = n + 1 WHERE id % 50 = {round}; INSERT INTO r VALUES ({}, 0, 'new')",
        10_000 + round
    ));
}

/// What the clean-up finds whatever its age; and removes.
fn swept(lake: &Path, remove: bool) -> BTreeSet<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lake = Lake::open(lake.to_str().unwrap()).unwrap();
        let ledger = Ledger::open(&lake).await.unwrap().unwrap();
        let found = sweep::find(&lake, &ledger, Duration::ZERO).await.unwrap();
        if remove {
            sweep::remove(&lake, &ledger, &found, Duration::ZERO).await.unwrap();
        }
        found.into_iter().map(|orphan| orphan.path).collect()
    })
}

/// Names of files that were being written.
fn staged(lake: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![lake.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.file_name().to_string_lossy().contains('#') {
                found.push(entry.path().display().to_string());
            }
        }
    }
    found
}

#[test]
fn what_crashes_leave_behind_is_removed_and_every_version_still_reads() {
    let pipeline = pipeline("orphans_stream");
    pipeline.run().succeed();
    let lake = deltalog::local(pipeline.lake.path());
    for (round, step) in [
        "disk-half */public/r/part-* 1 crash",
        "disk-sync-folder */public/r 1 lost-crash",
        "disk-half */public/r/_dv* 1 crash",
        "disk-sync-folder */public/r/_dv 1 lost-crash",
        "create */public/r/_delta_log/* 1 crash",
        "disk-half */public/r/_delta_log/* 1 crash",
        "disk-link */public/r/_delta_log/* 1 lost-crash",
        "create */_tidegate/ledger/_delta_log/* 3 crash",
        "disk-half */_tidegate/ledger/_delta_log/* 1 crash",
    ]
    .iter()
    .enumerate()
    {
        change(&pipeline, round);
        pipeline.run().env("TIDEGATE_STORE_FAULTS", step).finish().expect_signal();
        pipeline.run().succeed();
    }
    // One more, so that no number of a dead process could still come.
    change(&pipeline, 40);
    pipeline.run().succeed();
    let before = deltalog::orphans(&lake);
    assert!(before.len() >= 4, "the crashes left nothing: {before:?}");
    assert!(!staged(pipeline.lake.path()).is_empty(), "nothing was being written");
    assert_eq!(swept(pipeline.lake.path(), true), before);
    assert_eq!(deltalog::orphans(&lake), BTreeSet::new());
    assert_eq!(staged(pipeline.lake.path()), Vec::<String>::new());
    // Every version, old ones too, has what it needs.
    deltalog::assert_sound(&lake);
    for version in pipeline.versions("r") {
        let version = version["version"].as_u64().unwrap();
        judge::rows(Engine::DuckDb, &pipeline.table("r"), version, &["id"]);
    }
    change(&pipeline, 41);
    pipeline.run().succeed();
    pipeline.assert_equal();
}

#[test]
fn files_of_a_snapshot_under_way_are_not_orphans() {
    let pipeline = pipeline("orphans_snapshot");
    for (point, passage) in [("handoff.chunk.recorded", 2), ("handoff.publish.before", 1)] {
        let pause = pipeline.pause(point).nth(passage);
        let mut running = pipeline.run().pause(&pause).start();
        pause.reached(&mut running);
        let lake = deltalog::local(pipeline.lake.path());
        let unnamed = deltalog::orphans(&lake);
        assert!(!unnamed.is_empty());
        let found = swept(pipeline.lake.path(), false);
        // What is recorded is kept, however old it were; what is written just now is young.
        let kept = unnamed.difference(&found).count();
        assert!(kept >= 2, "{point}: {found:?} of {unnamed:?}");
        if point == "handoff.publish.before" {
            assert_eq!(found, BTreeSet::new());
        }
        drop(running);
    }
    pipeline.run().succeed();
    pipeline.assert_equal();
}

#[test]
fn a_file_that_a_running_process_may_still_commit_is_not_an_orphan() {
    let pipeline = pipeline("orphans_live");
    pipeline.run().succeed();
    change(&pipeline, 1);
    let pause = pipeline.pause("lake.commit.before");
    let mut running = pipeline.run().pause(&pause).start();
    pause.reached(&mut running);
    let lake = deltalog::local(pipeline.lake.path());
    let data = |path: &String| path.ends_with(".parquet");
    assert_eq!(deltalog::orphans(&lake).iter().filter(|path| data(path)).count(), 1);
    assert_eq!(swept(pipeline.lake.path(), false).iter().filter(|path| data(path)).count(), 0);
    pause.release();
    running.finish().expect_code(0);
    pipeline.assert_equal();
}

#[test]
fn a_start_removes_old_orphans_by_itself_and_leaves_young_and_foreign_ones() {
    let pipeline = pipeline("orphans_start");
    pipeline.run().succeed();
    change(&pipeline, 1);
    pipeline.run().succeed();
    let table = pipeline.table("r");
    let id = "1f2a4b6c-1111-4222-8333-abcdefabcdef";
    let old = table.join(format!("part-00000000-{id}.parquet"));
    let young = table.join("part-00000000-2f2a4b6c-1111-4222-8333-abcdefabcdef.parquet");
    let foreign = table.join(format!("part-00000-{id}-c000.snappy.parquet"));
    let coming = table.join(format!("part-00ffffff-{id}.parquet"));
    let long_ago = SystemTime::now() - Duration::from_secs(100 * 3600);
    for path in [&old, &young, &foreign, &coming] {
        std::fs::write(path, "x").unwrap();
        if path != &young {
            std::fs::File::options()
                .append(true)
                .open(path)
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
        }
    }
    // What versions name is as old.
    for entry in std::fs::read_dir(&table).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "parquet") && path != young {
            std::fs::File::options()
                .append(true)
                .open(path)
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
        }
    }
    let mut running = pipeline.follow();
    wait_until("the orphan to go", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        !old.exists()
    });
    running.signal("TERM");
    running.finish().expect_code(0);
    for path in [&young, &foreign, &coming] {
        assert!(path.exists(), "{} is gone", path.display());
    }
    deltalog::assert_sound(&deltalog::local(pipeline.lake.path()));
    pipeline.assert_equal();
}

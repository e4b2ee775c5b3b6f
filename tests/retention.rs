//! What a clean-up keeps can be read for ever, what it removes is an error, and a crash in it
//! changes neither: in the eyes of readers that know nothing of us.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use support::database::TestDb;
use support::judge::{self, Engine, Rows};
use support::pipeline::Pipeline;
use support::program::{Finished, Running};
use support::servers::usual;
use support::{PATIENCE, wait_until};

/// A pipeline that keeps nothing but the newest version, handoffs and pins.
fn short(name: &str, keep_handoffs: u32) -> Pipeline {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.wrong.push("short-retention");
    pipeline.config.push_str(&format!(
        "[maintenance]\nretain_versions_for = \"0s\"\nclean = false\ncompact = false\nkeep_handoffs = {keep_handoffs}\n"
    ));
    pipeline.sql().run(
        "CREATE TABLE m(id int PRIMARY KEY, n int, t text);
         INSERT INTO m SELECT i, 0, md5(i::text) FROM generate_series(1, 300) i;
         CREATE TABLE s(id int PRIMARY KEY); INSERT INTO s VALUES (1)",
    );
    pipeline.run().succeed();
    pipeline
}

/// A few commits, each with masks, and what each version shows.
fn commits(pipeline: &Pipeline, n: usize) {
    for i in 0..n {
        pipeline.sql().run(&format!(
            "UPDATE m SET n = n + 1 WHERE id % {} = 0; DELETE FROM m WHERE id = (SELECT min(id) FROM m);
             INSERT INTO m SELECT max(id) + 1, 0, 'new' FROM m",
            i + 2
        ));
        pipeline.run_to_now();
    }
}

fn numbers(pipeline: &Pipeline, table: &str) -> Vec<u64> {
    pipeline.versions(table).iter().map(|v| v["version"].as_u64().unwrap()).collect()
}

fn shown(pipeline: &Pipeline) -> BTreeMap<u64, Rows> {
    let table = pipeline.table("m");
    let at = |v: u64| (v, judge::rows(Engine::DuckDb, &table, v, &[]));
    numbers(pipeline, "m").into_iter().map(at).collect()
}

fn maintain(pipeline: &Pipeline) -> Finished {
    pipeline.command(&["maintain"]).succeed()
}

/// Every version of before is right, or an error; those that are kept are right.
#[track_caller]
fn right_or_an_error(
    pipeline: &Pipeline,
    before: &BTreeMap<u64, Rows>,
    kept: &[u64],
    engines: &[Engine],
) {
    for engine in engines {
        for (version, rows) in before {
            match judge::attempt(*engine, &pipeline.table("m"), *version, &[]) {
                Ok(found) => {
                    let difference = judge::difference(&rows.rows, &found.rows);
                    assert_eq!(difference, None, "{engine:?} sees another version {version}");
                }
                Err(error) if kept.contains(version) => panic!("{engine:?}, {version}: {error}"),
                Err(_) => {}
            }
        }
    }
}

/// Data files and vectors below a table's folder.
fn on_disk(table: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in ["", "_dv"] {
        for entry in table.join(folder).read_dir().into_iter().flatten().flatten() {
            if entry.path().is_file() {
                found.insert(format!("{folder}/{}", entry.file_name().to_string_lossy()));
            }
        }
    }
    found
}

const QUICK: [Engine; 3] = [Engine::DuckDb, Engine::DeltaLake, Engine::Polars];

#[test]
fn kept_versions_are_read_by_all_and_removed_ones_are_an_error() {
    let pipeline = short("retention_kept", 10);
    commits(&pipeline, 6);
    let before = shown(&pipeline);
    let newest = *before.keys().last().unwrap();
    assert!(newest >= 5, "{newest}");
    pipeline.command(&["pin", "friday", "--at", "public.m@3"]).succeed();
    let told = pipeline.command(&["maintain", "--dry-run", "--json"]).succeed().json();
    assert_eq!(told["cleaned"][0]["table"], "public.m", "{told:#}");
    assert_eq!(numbers(&pipeline, "m").len(), before.len(), "a dry run removed something");
    let files = on_disk(&pipeline.table("m")).len();
    maintain(&pipeline);
    let kept = vec![0, 3, newest];
    assert_eq!(numbers(&pipeline, "m"), kept);
    assert!(on_disk(&pipeline.table("m")).len() < files);
    for version in &kept {
        judge::all_see(
            &pipeline.table("m"),
            *version,
            &before[version].columns.iter().map(String::as_str).collect::<Vec<_>>(),
            before[version].rows.clone(),
        );
    }
    for engine in judge::engines() {
        for gone in before.keys().filter(|v| !kept.contains(v)) {
            let found = judge::attempt(engine, &pipeline.table("m"), *gone, &[]);
            assert!(found.is_err(), "{engine:?} reads version {gone}, which is gone");
        }
    }
    let pinned = pipeline.versions("m").into_iter().find(|v| v["version"] == 3).unwrap();
    assert_eq!(pinned["pins"][0], "friday");
    assert_eq!(pipeline.status()["pins"][0]["name"], "friday");

    // Without the hint readers list the log, with its gaps.
    std::fs::remove_file(pipeline.table("m").join("_delta_log/_last_checkpoint")).unwrap();
    right_or_an_error(&pipeline, &before, &kept, &QUICK);

    // Another program's vacuum leaves what pins need.
    let vacuum = format!("VACUUM delta.`{}`", pipeline.table("m").display());
    judge::sql(Engine::Spark, &vacuum);
    right_or_an_error(&pipeline, &before, &kept, &[Engine::DuckDb, Engine::Spark]);

    // The pipeline goes on, and the pin with it, until it is let go.
    commits(&pipeline, 2);
    pipeline.assert_equal();
    maintain(&pipeline);
    right_or_an_error(&pipeline, &before, &[0, 3], &QUICK);
    pipeline.command(&["unpin", "friday"]).succeed();
    maintain(&pipeline);
    let left = numbers(&pipeline, "m");
    assert_eq!(left.len(), 2, "{left:?}");
    right_or_an_error(&pipeline, &before, &[0], &QUICK);
    pipeline.assert_equal();
}

#[test]
fn without_kept_handoffs_only_what_the_newest_version_needs_is_left() {
    let pipeline = short("retention_least", 0);
    commits(&pipeline, 4);
    pipeline.sql().run("TRUNCATE m; INSERT INTO m VALUES (1, 1, 'one'), (2, 2, 'two')");
    pipeline.run_to_now();
    maintain(&pipeline);
    assert_eq!(numbers(&pipeline, "m").len(), 1);
    assert_eq!(on_disk(&pipeline.table("m")).len(), 1, "{:?}", on_disk(&pipeline.table("m")));
    pipeline.sql().run("UPDATE m SET n = 3 WHERE id = 1");
    pipeline.run_to_now();
    maintain(&pipeline);
    // Two data files, and one with a vector.
    assert_eq!(on_disk(&pipeline.table("m")).len(), 3);
    pipeline.assert_equal();
    // Nothing to do leaves everything as it is.
    let disk = on_disk(&pipeline.table("m"));
    assert!(maintain(&pipeline).stdout.contains("nothing is older"));
    assert_eq!(on_disk(&pipeline.table("m")), disk);
}

#[test]
fn a_crash_anywhere_in_a_clean_up_shows_no_wrong_rows_and_is_done_again() {
    let points = [
        "retention.checkpoint.written",
        "retention.said",
        "retention.files.before",
        "retention.files.after",
        "retention.commits.after",
        "retention.firsts.after",
        "retention.checkpoints.after",
    ];
    let mut pipeline = short("retention_crash", 10);
    commits(&pipeline, 2);
    pipeline.command(&["pin", "early", "--at", "public.m@1"]).succeed();
    for point in points {
        commits(&pipeline, 2);
        let before = shown(&pipeline);
        let newest = *before.keys().last().unwrap();
        pipeline.command(&["maintain"]).failpoint(point, "1*crash").finish().expect_signal();
        right_or_an_error(&pipeline, &before, &[0, 1, newest], &QUICK);
        maintain(&pipeline);
        assert_eq!(numbers(&pipeline, "m"), [0, 1, newest], "after {point}");
        right_or_an_error(&pipeline, &before, &[0, 1, newest], &QUICK);
    }
    pipeline.command(&["unpin", "early"]).succeed();
    commits(&pipeline, 1);
    maintain(&pipeline);
    pipeline.assert_equal();
    // No step of the interrupted clean-ups left a file that nothing names.
    pipeline.sql().run("TRUNCATE m; INSERT INTO m VALUES (1, 1, 'one')");
    pipeline.run_to_now();
    pipeline.config = pipeline_config_without_handoffs(&pipeline);
    maintain(&pipeline);
    assert_eq!(on_disk(&pipeline.table("m")).len(), 1, "{:?}", on_disk(&pipeline.table("m")));
}

fn pipeline_config_without_handoffs(pipeline: &Pipeline) -> String {
    pipeline.config.replace("keep_handoffs = 10", "keep_handoffs = 0")
}

#[test]
fn a_pin_and_a_clean_up_that_meet_agree() {
    let pipeline = short("retention_meet", 0);
    commits(&pipeline, 4);
    let before = shown(&pipeline);
    // Pinned when the plan was made and nothing was given up yet: spared.
    let planned = pipeline.pause("retention.checkpoint.written").nth(1);
    let mut running = pipeline.command(&["maintain"]).pause(&planned).start();
    planned.reached(&mut running);
    pipeline.command(&["pin", "in-time", "--at", "public.m@2"]).succeed();
    planned.release();
    running.finish().expect_code(0);
    right_or_an_error(&pipeline, &before, &[2], &QUICK);
    // Given up already: refused, and no pin is left.
    let said = pipeline.pause("retention.said").nth(1);
    let mut running = pipeline.command(&["maintain"]).pause(&said).start();
    said.reached(&mut running);
    let late = pipeline.command(&["pin", "late", "--at", "public.m@1"]).finish().expect_code(1);
    assert!(late.stderr.contains("being removed"), "{}", late.stderr);
    said.release();
    running.finish().expect_code(0);
    let names: Vec<_> =
        pipeline.status()["pins"].as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
    assert_eq!(names, ["in-time"]);
    right_or_an_error(&pipeline, &before, &[2], &QUICK);
    pipeline.assert_equal();
}

#[test]
fn pins_name_the_same_moment_of_all_tables() {
    let pipeline = short("retention_cut", 10);
    commits(&pipeline, 2);
    pipeline.sql().run("INSERT INTO s VALUES (2)");
    pipeline.run_to_now();
    let now = pipeline.command(&["pin", "now", "--json"]).succeed().json();
    assert_eq!(now["tables"]["public.s"], 1, "{now:#}");
    assert_eq!(now["tables"]["public.m"], 2, "{now:#}");
    let first =
        pipeline.command(&["pin", "first", "--at", "public.m@1", "--json"]).succeed().json();
    assert_eq!(first["tables"]["public.s"], 0, "{first:#}");
    let at = now["lsn"].as_str().unwrap();
    let same = pipeline.command(&["pin", "same", "--at", at, "--json"]).succeed().json();
    assert_eq!(same["tables"], now["tables"]);
    let taken = pipeline.command(&["pin", "now"]).finish().expect_code(2);
    assert!(taken.stderr.contains("already"), "{}", taken.stderr);
    pipeline.command(&["pin", "x", "--at", "public.nothing@1"]).finish().expect_code(2);
    pipeline.command(&["pin", "x", "--at", "0/1"]).finish().expect_code(1);
    pipeline.command(&["unpin", "x"]).finish().expect_code(2);
}

fn applied_all(pipeline: &Pipeline, running: &mut Running, mark: u32) {
    pipeline.sql().run(&format!("INSERT INTO s VALUES ({mark})"));
    let query = format!(
        "SELECT count(*) FROM delta_scan('{}') WHERE id = {mark}",
        pipeline.table("s").display()
    );
    wait_until("the stream to show what was committed", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        judge::sql(Engine::DuckDb, &query).rows[0][0].as_deref() == Some("1")
    });
}

#[test]
fn many_commits_leave_a_bounded_lake_and_ledger() {
    let mut pipeline = short("retention_bounded", 1);
    pipeline.config = pipeline.config.replace(
        "clean = false\ncompact = false",
        "clean_every = \"1s\"\ntarget_file_bytes = \"1MiB\"",
    );
    let mut running = pipeline.follow();
    let mut sql = pipeline.sql();
    let log = pipeline.table("m").join("_delta_log");
    let ledger = pipeline.lake.path().join("_tidegate/ledger");
    let newest = |log: &Path| {
        let names = log.read_dir().unwrap().flatten().map(|f| f.file_name().into_string().unwrap());
        names.filter_map(|n| n.strip_suffix(".json")?.parse::<u64>().ok()).max().unwrap()
    };
    let mut i = 0;
    wait_until("many commits", PATIENCE * 3, || {
        assert!(!running.has_ended(), "{}", running.output());
        i += 1;
        sql.run(&format!("UPDATE m SET n = n + 1 WHERE id % 37 = {}", i % 37));
        newest(&log) > 100
    });
    applied_all(&pipeline, &mut running, 5000);
    let count = |folder: &Path| folder.read_dir().unwrap().count();
    let committed = newest(&ledger.join("_delta_log"));
    let began = Instant::now();
    wait_until("a clean-up after the last commit", PATIENCE * 2, || {
        let (log, ledger) = (count(&log), count(&ledger.join("_delta_log")));
        assert!(
            began.elapsed() < PATIENCE,
            "{log} files in the table's log, {ledger} in the ledger's of {committed}\n{}",
            running.output()
        );
        log < 30 && ledger < committed as usize / 2
    });
    assert!(on_disk(&pipeline.table("m")).len() < 60, "{:?}", on_disk(&pipeline.table("m")));
    running.signal("TERM");
    running.finish().expect_code(0);
    pipeline.sql().run("UPDATE m SET n = n + 1");
    pipeline.run_to_now();
    pipeline.assert_equal();
    pipeline.assert_positions_never_fall("m", "id");
}

#[test]
fn maintain_beside_a_running_pipeline_does_not_fence_it() {
    let mut pipeline = short("retention_beside", 1);
    pipeline.config = pipeline.config.replace("compact = false", "compact = true");
    let mut running = pipeline.follow();
    applied_all(&pipeline, &mut running, 100);
    for i in 0..4 {
        pipeline.sql().run("UPDATE m SET n = n + 1");
        applied_all(&pipeline, &mut running, 101 + i);
        let told = pipeline.command(&["maintain", "--json"]).succeed().json();
        assert_eq!(told["compactions"], serde_json::Value::Null);
    }
    running.signal("TERM");
    running.finish().expect_code(0);
    // Alone it compacts too: any two small files.
    let told = pipeline.command(&["maintain", "--json"]).succeed().json();
    assert!(told["compactions"].as_u64().unwrap() >= 1, "{told:#}");
    pipeline.sql().run("UPDATE m SET n = n + 1 WHERE id % 2 = 0");
    pipeline.run_to_now();
    pipeline.assert_equal();
}

//! Compaction beside the stream, against a real server: whatever happens between the rewrite and
//! its commit, source and lake stay equal, and no version shows other rows than the one before it.

mod support;

use support::PATIENCE;
use support::database::{Sql, TestDb};
use support::judge::{self, Engine};
use support::pause::Pause;
use support::pipeline::Pipeline;
use support::program::Running;
use support::servers::usual;
use support::{wait_for, wait_until};
use tidegate::lake::{Lake, LakeTable};

/// A table of 3,000 rows, and a target so small that a few commits make a compaction due.
fn compacting(name: &str) -> Pipeline {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.config.push_str("[maintenance]\ntarget_file_bytes = \"1MiB\"\n");
    pipeline.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, md5(i::text) FROM generate_series(1, 3000) i;
         CREATE TABLE mark(id int PRIMARY KEY)",
    );
    pipeline
}

/// Waits until all that has committed is visible in the lake.
fn visible(pipeline: &Pipeline, running: &mut Running, mark: i32) {
    pipeline.sql().run(&format!("INSERT INTO mark VALUES ({mark})"));
    let query = format!(
        "SELECT count(*) FROM delta_scan('{}') WHERE id = {mark}",
        pipeline.table("mark").display()
    );
    wait_until("the stream to show what was committed", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        judge::sql(Engine::DuckDb, &query).rows[0][0].as_deref() == Some("1")
    });
}

/// Data files of the newest version of a table: bytes, rows, masked rows.
fn files(pipeline: &Pipeline, table: &str) -> Vec<(u64, u64, u64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lake = Lake::open(pipeline.lake.path().to_str().unwrap()).unwrap();
        let table = LakeTable::open(&lake, &format!("public/{table}")).await.unwrap().unwrap();
        table.files().values().map(|f| (f.size, f.rows, f.mask.len())).collect()
    })
}

/// Versions of `r` that a compaction made.
fn compactions(pipeline: &Pipeline) -> Vec<u64> {
    let versions = pipeline.versions("r");
    let compactions = versions.iter().filter(|v| v["kind"] == "compaction");
    compactions.map(|v| v["version"].as_u64().unwrap()).collect()
}

/// A compaction changes no row, in the eyes of readers that know nothing of it.
#[track_caller]
fn changed_nothing(pipeline: &Pipeline, version: u64) {
    let table = pipeline.table("r");
    for engine in [Engine::DuckDb, Engine::DeltaLake] {
        let before = judge::rows(engine, &table, version - 1, &[]);
        let after = judge::rows(engine, &table, version, &[]);
        assert_eq!(judge::difference(&before.rows, &after.rows), None, "version {version}");
    }
}

/// Small transactions until `done`: each becomes a commit, and thus a file.
fn trickle(sql: &mut Sql, mut done: impl FnMut() -> bool) {
    let mut i = 0;
    wait_until("enough commits", PATIENCE, || {
        i += 1;
        sql.run(&format!("UPDATE r SET n = n + 1 WHERE id % 997 = {}", i % 997));
        done()
    });
}

/// Runs the stream until a rewrite stands at `point`, with what was committed before all visible.
fn up_to(pipeline: &Pipeline, point: &Pause) -> Running {
    let mut running = pipeline.command(&["run"]).pause(point).start();
    trickle(&mut pipeline.sql(), || {
        assert!(!running.has_ended(), "{}", running.output());
        point.is_reached()
    });
    point.reached(&mut running);
    running
}

fn stop(running: Running) {
    running.signal("TERM");
    running.finish().expect_code(0);
}

/// Every row is looked up once more: in this run's index, and in the next one's.
fn touch_all_and_compare(pipeline: &Pipeline) {
    pipeline.sql().run("UPDATE r SET n = n + 1");
    pipeline.run_to_now();
    pipeline.sql().run("UPDATE r SET pad = 'again' WHERE id % 3 = 0");
    pipeline.run_to_now();
    pipeline.assert_equal();
    pipeline.assert_positions_never_fall("r", "id");
}

#[test]
fn many_small_commits_leave_few_files() {
    let pipeline = compacting("compact_many");
    pipeline.run().succeed();
    let mut running = pipeline.follow();
    let mut sql = pipeline.sql();
    let mut commits = 0;
    trickle(&mut sql, || {
        assert!(!running.has_ended(), "{}", running.output());
        commits += 1;
        if commits % 7 == 0 {
            pipeline.sql().run(&format!(
                "DELETE FROM r WHERE id = {commits}; INSERT INTO r VALUES ({}, 1, 'new')",
                30_000 + commits
            ));
        }
        commits % 10 == 0 && pipeline.table("r").join("_delta_log").read_dir().unwrap().count() > 60
    });
    visible(&pipeline, &mut running, 1);
    // Two tiers of at most seven files below half the target, with one commit on its way.
    wait_for("the last compaction", PATIENCE, || (files(&pipeline, "r").len() <= 18).then_some(()));
    stop(running);
    let made = compactions(&pipeline);
    assert!(made.len() >= 3, "{made:?}");
    for version in &made {
        changed_nothing(&pipeline, *version);
    }
    touch_all_and_compare(&pipeline);
}

#[test]
fn rows_changed_while_their_files_are_rewritten_stay_changed() {
    let pipeline = compacting("compact_race");
    pipeline.run().succeed();
    let written = pipeline.pause("compaction.written");
    let mut running = up_to(&pipeline, &written);
    let mut sql = pipeline.sql();
    sql.run("UPDATE r SET n = n + 1 WHERE id % 2 = 0");
    sql.run("DELETE FROM r WHERE id % 5 = 0");
    sql.run("UPDATE r SET id = id + 100000 WHERE id % 7 = 0");
    visible(&pipeline, &mut running, 1);
    sql.run("INSERT INTO r SELECT i, 5, 'back' FROM generate_series(1, 3000) i WHERE i % 35 = 0");
    sql.run("BEGIN; UPDATE r SET id = -1 WHERE id = 1; UPDATE r SET id = 1 WHERE id = 2; UPDATE r SET id = 2 WHERE id = -1; COMMIT");
    visible(&pipeline, &mut running, 2);
    assert_eq!(compactions(&pipeline), Vec::<u64>::new());
    written.release();
    wait_until("the compaction", PATIENCE, || !compactions(&pipeline).is_empty());
    // With the index of the same run, in which the rows that moved stand among others.
    sql.run("UPDATE r SET n = n + 1; DELETE FROM r WHERE id % 11 = 0");
    visible(&pipeline, &mut running, 3);
    stop(running);
    for version in compactions(&pipeline) {
        changed_nothing(&pipeline, version);
    }
    touch_all_and_compare(&pipeline);
}

#[test]
fn a_table_truncated_while_its_files_are_rewritten_stays_truncated() {
    let pipeline = compacting("compact_truncate");
    pipeline.run().succeed();
    let written = pipeline.pause("compaction.written");
    let mut running = up_to(&pipeline, &written);
    pipeline
        .sql()
        .run("BEGIN; TRUNCATE r; INSERT INTO r VALUES (1, 1, 'new'), (2, 2, 'new'); COMMIT");
    visible(&pipeline, &mut running, 1);
    written.release();
    pipeline.sql().run("UPDATE r SET n = 7 WHERE id = 1; INSERT INTO r VALUES (3, 3, 'new')");
    visible(&pipeline, &mut running, 2);
    assert_eq!(files(&pipeline, "r").iter().map(|f| f.1 - f.2).sum::<u64>(), 3);
    stop(running);
    touch_all_and_compare(&pipeline);
}

#[test]
fn a_crash_anywhere_in_a_compaction_leaves_the_version_before_or_after_it() {
    let points = [
        "compaction.written",
        "compaction.done",
        "compaction.commit.before",
        "compaction.commit.after",
        "compaction.index.after",
    ];
    let pipeline = compacting("compact_crash");
    pipeline.run().succeed();
    for point in points {
        let mut running = pipeline.command(&["run"]).failpoint(point, "1*crash").start();
        trickle(&mut pipeline.sql(), || running.has_ended());
        running.finish().expect_signal();
        // Rows of before, of the compaction and of after it are looked up by the next run.
        pipeline
            .sql()
            .run("UPDATE r SET n = n + 1 WHERE id % 3 = 0; DELETE FROM r WHERE id % 1009 = 3");
        pipeline.run().succeed();
        pipeline.assert_equal();
    }
    for version in compactions(&pipeline) {
        changed_nothing(&pipeline, version);
    }
    touch_all_and_compare(&pipeline);
}

#[test]
fn a_rewrite_that_fails_does_not_stop_the_stream() {
    let pipeline = compacting("compact_error");
    pipeline.run().succeed();
    let mut running = pipeline.command(&["run"]).failpoint("compaction.written", "1*error").start();
    trickle(&mut pipeline.sql(), || running.stderr().contains("were not compacted"));
    visible(&pipeline, &mut running, 1);
    stop(running);
    touch_all_and_compare(&pipeline);
}

#[test]
fn tables_without_a_key_are_compacted_too() {
    let mut pipeline = compacting("compact_keyless");
    pipeline.sql().run(
        "CREATE TABLE w(a int, b text); ALTER TABLE w REPLICA IDENTITY FULL;
         INSERT INTO w SELECT i % 100, 'x' FROM generate_series(1, 5000) i;
         CREATE TABLE g(a int, b text); ALTER TABLE g REPLICA IDENTITY NOTHING",
    );
    pipeline.tables = "public.w,public.g,public.mark".to_owned();
    pipeline.run().succeed();
    let written = pipeline.pause("compaction.written").nth(1);
    let mut running = pipeline.command(&["run"]).pause(&written).start();
    let mut sql = pipeline.sql();
    let mut i = 0;
    let mut step = || {
        i += 1;
        sql.run(&format!(
            "UPDATE w SET b = b || 'y' WHERE a = {}; INSERT INTO g VALUES ({i}, 'grown');
             INSERT INTO w VALUES ({i}, 'x'), ({i}, 'x')",
            i % 100
        ));
    };
    wait_until("a rewrite", PATIENCE, || {
        step();
        written.is_reached()
    });
    sql_after(&pipeline, "DELETE FROM w WHERE a % 2 = 0; UPDATE w SET b = 'z' WHERE a % 5 = 1");
    visible(&pipeline, &mut running, 1);
    written.release();
    let both = || {
        ["w", "g"].iter().all(|t| pipeline.versions(t).iter().any(|v| v["kind"] == "compaction"))
    };
    wait_until("compactions of both", PATIENCE, || {
        step();
        both()
    });
    sql_after(&pipeline, "UPDATE w SET b = 'all'; DELETE FROM w WHERE a = 3");
    visible(&pipeline, &mut running, 2);
    stop(running);
    sql_after(&pipeline, "DELETE FROM w WHERE a % 3 = 0; UPDATE w SET a = a + 1");
    pipeline.run_to_now();
    pipeline.assert_equal();
}

fn sql_after(pipeline: &Pipeline, statements: &str) {
    pipeline.sql().run(statements);
}

#[test]
fn another_programs_optimize_in_mid_compaction_loses_neither() {
    let pipeline = compacting("compact_foreign");
    pipeline.run().succeed();
    for point in ["compaction.written", "compaction.commit.before"] {
        let pause = pipeline.pause(point);
        let mut running = up_to(&pipeline, &pause);
        if point == "compaction.written" {
            pipeline.sql().run("UPDATE r SET n = n + 1 WHERE id % 4 = 0");
            visible(&pipeline, &mut running, 1);
        }
        judge::sql(Engine::Spark, &format!("OPTIMIZE delta.`{}`", pipeline.table("r").display()));
        pause.release();
        let last = if point == "compaction.written" { 50_001 } else { 50_002 };
        pipeline.sql().run(&format!(
            "UPDATE r SET n = n + 1 WHERE id % 3 = 0; DELETE FROM r WHERE id % 1013 = 5;
             INSERT INTO r VALUES ({last}, 0, 'last')"
        ));
        // In `r` itself: it is read again from the fence, and other tables don't wait for that.
        let query = format!(
            "SELECT count(*) FROM delta_scan('{}') WHERE id = {last}",
            pipeline.table("r").display()
        );
        wait_until("the table to go on", PATIENCE, || {
            assert!(!running.has_ended(), "{}", running.output());
            judge::sql(Engine::DuckDb, &query).rows[0][0].as_deref() == Some("1")
        });
        stop(running);
        pipeline.assert_equal();
    }
    assert!(pipeline.versions("r").iter().any(|v| v["kind"] == "foreign"));
    touch_all_and_compare(&pipeline);
}

#[test]
fn a_stop_in_mid_compaction_leaves_no_file() {
    let pipeline = compacting("compact_stop");
    pipeline.run().succeed();
    let written = pipeline.pause("compaction.written");
    let running = up_to(&pipeline, &written);
    running.signal("TERM");
    wait_until("the stream to end", PATIENCE, || {
        let active = "SELECT active FROM pg_replication_slots WHERE slot_name = current_database()";
        // The applier waits for the rewrite; what it is waited for stands at the pause.
        written.release();
        pipeline.sql().one(active) == "f"
    });
    running.finish().expect_code(0);
    assert_eq!(orphans(&pipeline), Vec::<String>::new());
    touch_all_and_compare(&pipeline);
}

/// Data files of `r` that no version names.
fn orphans(pipeline: &Pipeline) -> Vec<String> {
    let table = pipeline.table("r");
    let mut log = String::new();
    for entry in table.join("_delta_log").read_dir().unwrap().flatten() {
        if entry.path().extension().is_some_and(|e| e == "json") {
            log.push_str(&std::fs::read_to_string(entry.path()).unwrap());
        }
    }
    let names = table.read_dir().unwrap().flatten().map(|f| f.file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".parquet") && !log.contains(name.as_str())).collect()
}

/// After the wrong way the stream must not find a row that is there: the table is read again.
#[track_caller]
fn noticed(mut running: Running) {
    let said = |running: &Running| running.stderr().contains("names a row");
    wait_until("the wrong way to be noticed", PATIENCE, || said(&running) || running.has_ended());
    assert!(said(&running), "{}", running.output());
    running.kill9();
}

#[test]
fn moved_rows_taken_for_the_newest_are_noticed() {
    let mut pipeline = compacting("compact_wrong_newest");
    pipeline.run().succeed();
    pipeline.wrong.push("moved-rows-are-newest");
    let written = pipeline.pause("compaction.written");
    let mut running = up_to(&pipeline, &written);
    pipeline.sql().run("UPDATE r SET n = n + 1 WHERE id % 2 = 0");
    visible(&pipeline, &mut running, 1);
    written.release();
    wait_until("the compaction", PATIENCE, || !compactions(&pipeline).is_empty());
    pipeline.sql().run("UPDATE r SET n = n + 1");
    noticed(running);
}

#[test]
fn an_index_that_passes_rows_on_the_move_is_noticed() {
    let mut pipeline = compacting("compact_wrong_version");
    pipeline.run().succeed();
    pipeline.wrong.push("index-passes-moved-rows");
    // So that the index is made durable between the rewrite and its commit.
    let written = pipeline.pause("compaction.written").nth(1);
    let crash = "compaction.commit.after";
    let mut running =
        pipeline.command(&["run"]).pause(&written).failpoint(crash, "1*error").start();
    trickle(&mut pipeline.sql(), || written.is_reached());
    visible(&pipeline, &mut running, 1);
    written.release();
    wait_until("the compaction", PATIENCE, || !compactions(&pipeline).is_empty());
    pipeline.sql().run("UPDATE r SET n = n + 1");
    noticed(running);
}

/// Not a test of right and wrong: `--ignored --nocapture` prints figures.
#[test]
#[ignore = "measures, and takes minutes"]
fn measure_scan_and_bytes_after_random_updates() {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), "compact_measure"));
    pipeline.config = "[stream]\ninterval = \"1s\"\n[maintenance]\nretain_versions_for = \"0s\"\nkeep_handoffs = 0\n".to_owned();
    pipeline.wrong.push("short-retention");
    let mut sql = pipeline.sql();
    sql.run(
        "CREATE TABLE a(id int PRIMARY KEY, branch int, balance bigint, filler text);
         INSERT INTO a SELECT i, i % 10, 0, md5(i::text) || md5((-i)::text) FROM generate_series(1, 1000000) i",
    );
    let fresh = support::folder("fresh");
    let copy = |to: &std::path::Path| {
        std::fs::create_dir_all(to.join("_delta_log")).unwrap();
        for entry in pipeline.table("a").read_dir().unwrap().flatten() {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
        for entry in pipeline.table("a").join("_delta_log").read_dir().unwrap().flatten() {
            std::fs::copy(entry.path(), to.join("_delta_log").join(entry.file_name())).unwrap();
        }
    };
    pipeline.run().succeed();
    copy(fresh.path());
    let fresh_bytes = bytes_below(fresh.path());
    let mut running = pipeline.follow();
    for i in 0..200 {
        sql.run(&format!(
            "SELECT setseed({}); UPDATE a SET balance = balance + 1 WHERE id IN
             (SELECT (random() * 999999)::int + 1 FROM generate_series(1, 1000))",
            f64::from(i) / 200.0
        ));
    }
    sql.run("CREATE TABLE mark(id int)");
    let end = pipeline.db.wal_position();
    stop_at(&pipeline, &mut running, &end);
    let before = bytes_below(&pipeline.table("a"));
    let live = files(&pipeline, "a");
    pipeline.command(&["maintain"]).start().finish_within(PATIENCE * 10).expect_code(0);
    let after = bytes_below(&pipeline.table("a"));
    let left = files(&pipeline, "a");
    let scan = |table: &std::path::Path| {
        let began = std::time::Instant::now();
        judge::sql(
            Engine::DuckDb,
            &format!(
                "SELECT count(*), sum(balance), sum(length(filler)) FROM delta_scan('{}')",
                table.display()
            ),
        );
        began.elapsed().as_secs_f64()
    };
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for _ in 0..7 {
        old.push(scan(fresh.path()));
        new.push(scan(&pipeline.table("a")));
    }
    old.sort_by(f64::total_cmp);
    new.sort_by(f64::total_cmp);
    let masked = |files: &[(u64, u64, u64)]| {
        let masked: u64 = files.iter().map(|f| f.2).sum();
        masked * 100 / files.iter().map(|f| f.1).sum::<u64>().max(1)
    };
    println!(
        "files {} (masked {} %), after maintain {} (masked {} %)\nbytes fresh {fresh_bytes}, before clean-up {before}, after {after}: {:.2} x\nscan fresh {:.3} s, now {:.3} s: {:.2} x",
        live.len(),
        masked(&live),
        left.len(),
        masked(&left),
        after as f64 / fresh_bytes as f64,
        old[3],
        new[3],
        new[3] / old[3]
    );
    pipeline.assert_equal();
}

fn stop_at(pipeline: &Pipeline, running: &mut Running, end: &str) {
    let reached = format!(
        "SELECT coalesce(bool_or(confirmed_flush_lsn >= '{end}'), false) FROM pg_replication_slots WHERE slot_name = current_database()"
    );
    wait_until("the stream to be at its end", PATIENCE * 10, || {
        assert!(!running.has_ended(), "{}", running.output());
        pipeline.sql().run("SELECT pg_logical_emit_message(true, 'x', 'y')");
        pipeline.sql().one(&reached) == "t"
    });
    running.signal("TERM");
    wait_until("the end", PATIENCE, || running.has_ended());
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.path() {
            path if path.is_dir() => bytes_below(&path),
            path => path.metadata().map_or(0, |m| m.len()),
        })
        .sum()
}

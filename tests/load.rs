//! The main job under load: pgbench writes all the while, the lake must be equal at the end.

mod support;

use std::process::Stdio;

use support::database::TestDb;
use support::pipeline::Pipeline;
use support::servers::{server, usual, versions};

/// pgbench's tables at `scale`, with `identity` for the history, which has no key.
fn bench(
    name: &str,
    server: &'static tidegate::demo::server::PrivateServer,
    scale: u32,
    identity: &str,
) -> Pipeline {
    let mut pipeline = Pipeline::new(TestDb::new(server, name));
    let made = pipeline.db.pgbench().args(["-i", "-q", "-s", &scale.to_string()]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    pipeline.sql().run(&format!("ALTER TABLE pgbench_history REPLICA IDENTITY {identity}"));
    pipeline.config = "[stream]\ninterval = \"500ms\"\n".to_owned();
    pipeline
}

/// Runs the pipeline while pgbench writes, then up to the position after the load.
fn under_load(pipeline: &Pipeline, seconds: u32) {
    let mut load = pipeline
        .db
        .pgbench()
        .args(["-n", "-c", "4", "-T", &seconds.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The first run takes the snapshot in the middle of the load and follows it for a while.
    pipeline.run().succeed();
    pipeline.run().succeed();
    assert!(load.wait().unwrap().success());
    pipeline.run_to_now();
    pipeline.assert_equal();
    let versions = pipeline.versions("pgbench_accounts");
    assert_eq!(versions[0]["kind"], "handoff");
    assert!(versions.len() > 1, "nothing was streamed: {versions:?}");
}

#[test]
fn a_loaded_database_is_equal_with_a_full_history_table() {
    under_load(&bench("load_full", usual(), 10, "FULL"), 15);
}

#[test]
fn a_loaded_database_is_equal_with_an_append_only_history_table() {
    under_load(&bench("load_nothing", usual(), 10, "NOTHING"), 15);
}

#[test]
fn the_main_job_works_on_every_supported_server() {
    for major in versions() {
        let pipeline = bench(&format!("all_{major}"), server(major), 1, "FULL");
        pipeline.sql().run(
            "CREATE TABLE odd (\"the key\" bigint PRIMARY KEY, ä numeric(10,2), t timestamptz, big text, g int GENERATED ALWAYS AS (1) STORED);
             INSERT INTO odd SELECT i, i / 3.0, now(), repeat(md5(i::text), 400) FROM generate_series(1, 500) i;
             CREATE TABLE parted (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
             CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
             CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
             INSERT INTO parted SELECT i, i % 2 + 1, 'v' FROM generate_series(1, 300) i;
             CREATE TABLE empty (id int PRIMARY KEY, v text)",
        );
        pipeline.run().succeed();
        pipeline.sql().run(
            "UPDATE odd SET ä = -ä WHERE \"the key\" % 3 = 0; UPDATE odd SET \"the key\" = \"the key\" + 1000 WHERE \"the key\" < 10;
             UPDATE parted SET part = 3 - part WHERE id % 5 = 0; DELETE FROM parted WHERE id > 290;
             INSERT INTO empty VALUES (1, NULL), (2, ''); BEGIN; DELETE FROM empty WHERE id = 1; TRUNCATE empty; INSERT INTO empty VALUES (3, 'three'); COMMIT",
        );
        let load = pipeline.db.pgbench().args(["-n", "-c", "2", "-t", "200"]).output().unwrap();
        assert!(load.status.success(), "{}", String::from_utf8_lossy(&load.stderr));
        pipeline.run_to_now();
        pipeline.assert_equal();
    }
}

#[test]
fn retained_wal_does_not_grow_while_other_tables_are_busy() {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), "idle"));
    pipeline
        .sql()
        .run("CREATE TABLE quiet (id int PRIMARY KEY); CREATE TABLE busy (id int, t text)");
    pipeline.tables = "public.quiet".to_owned();
    pipeline.config = "[stream]\ninterval = \"100ms\"\n".to_owned();
    let mut running = pipeline.follow();
    support::wait_until("the pipeline to be live", support::PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        pipeline.table("quiet").join("_delta_log").exists()
    });
    let mut sql = pipeline.sql();
    let slot = format!("FROM pg_replication_slots WHERE slot_name = '{}'", pipeline.db.name());
    let confirmed = sql.one(&format!("SELECT confirmed_flush_lsn {slot}"));
    sql.run("INSERT INTO busy SELECT i, repeat('x', 1000) FROM generate_series(1, 40000) i");
    support::wait_until("the slot to move on", support::PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        let mut sql = pipeline.sql();
        sql.one(&format!("SELECT confirmed_flush_lsn - '{confirmed}'::pg_lsn > 30000000 {slot}"))
            == "t"
    });
    running.signal("INT");
    running.finish().expect_code(0);
}

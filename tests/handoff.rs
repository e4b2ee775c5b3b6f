//! The races of the handoff, each driven to its exact moment by a pause, against a real server.
//!
//! The snapshot's chunks are copied one by one; a race is put before a chunk is read, or after it.
//! At the end the lake must equal the source at a recorded position, and no key's position may
//! ever fall. The wrong ways of taking the position must turn the same races red.

mod support;

use support::database::{Sql, TestDb};
use support::pipeline::Pipeline;
use support::program::{Finished, Running};
use support::servers::usual;

/// A table of five chunks: 10,000 rows of half a kilobyte.
fn races(name: &str) -> Pipeline {
    let pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, repeat('x', 500) FROM generate_series(1, 10000) i;
         ANALYZE r",
    );
    pipeline
}

/// Runs the pipeline and does `race` once before the first chunk is read and once after the first
/// one is read; then brings it to the end of the log.
fn with_race(pipeline: &Pipeline, race: impl Fn(&mut Sql, i32)) -> Finished {
    let before = pipeline.pause("handoff.chunk.before").nth(1);
    let after = pipeline.pause("handoff.chunk.after").nth(1);
    let mut running = pipeline.run().pause(&before).pause(&after).start();
    before.reached(&mut running);
    race(&mut pipeline.sql(), 0);
    before.release();
    after.reached(&mut running);
    race(&mut pipeline.sql(), 1);
    after.release();
    running.finish().expect_code(0);
    pipeline.run_to_now()
}

#[track_caller]
fn settled(pipeline: &Pipeline) {
    pipeline.assert_equal();
    pipeline.assert_positions_never_fall("r", "id");
}

#[test]
fn a_row_inserted_before_its_chunk_is_read_stands_once() {
    let pipeline = races("race_insert_before");
    let before = pipeline.pause("handoff.chunk.before").nth(2);
    let mut running = pipeline.run().pause(&before).start();
    before.reached(&mut running);
    pipeline.sql().run("INSERT INTO r VALUES (20001, 1, 'new'), (20002, 1, 'new')");
    before.release();
    running.finish().expect_code(0);
    pipeline.run_to_now();
    settled(&pipeline);
}

#[test]
fn a_row_inserted_after_its_chunk_is_read_is_not_lost() {
    let pipeline = races("race_insert_after");
    // Room in the first pages, so that the new row lies in a range that was read already.
    pipeline.sql().run("DELETE FROM r WHERE id <= 40");
    pipeline.sql().run("VACUUM r");
    let after = pipeline.pause("handoff.chunk.after").nth(1);
    let mut running = pipeline.run().pause(&after).start();
    after.reached(&mut running);
    let mut sql = pipeline.sql();
    sql.run("INSERT INTO r VALUES (7, 1, 'new')");
    assert_eq!(sql.one("SELECT ctid < '(100,0)'::tid FROM r WHERE id = 7"), "t");
    after.release();
    running.finish().expect_code(0);
    pipeline.run_to_now();
    settled(&pipeline);
}

#[test]
fn of_two_updates_in_one_transaction_the_second_wins() {
    let pipeline = races("race_update_twice");
    with_race(&pipeline, |sql, i| {
        sql.run(&format!(
            "BEGIN; UPDATE r SET n = 1 WHERE id % 100 = {i}; UPDATE r SET n = 2 WHERE id % 100 = {i}; COMMIT"
        ));
    });
    assert_eq!(pipeline.sql().one("SELECT count(*) FROM r WHERE n = 2"), "200");
    settled(&pipeline);
}

#[test]
fn of_two_updates_in_two_transactions_the_second_wins() {
    let pipeline = races("race_update_two");
    with_race(&pipeline, |sql, i| {
        sql.run(&format!("UPDATE r SET n = 1 WHERE id % 100 = {i}"));
        sql.run(&format!("UPDATE r SET n = 2 WHERE id % 100 = {i}"));
    });
    settled(&pipeline);
}

#[test]
fn a_row_of_the_snapshot_that_is_deleted_is_gone() {
    let pipeline = races("race_delete");
    with_race(&pipeline, |sql, i| sql.run(&format!("DELETE FROM r WHERE id % 100 = {i}")));
    assert_eq!(pipeline.sql().one("SELECT count(*) FROM r"), "9800");
    settled(&pipeline);
}

#[test]
fn a_row_deleted_and_made_again_with_its_key_is_the_new_one() {
    let pipeline = races("race_recreate");
    with_race(&pipeline, |sql, i| {
        sql.run(&format!("DELETE FROM r WHERE id % 100 = {i}"));
        sql.run(&format!("INSERT INTO r SELECT i, 7, 'again' FROM generate_series(1, 10000) i WHERE i % 100 = {i}"));
    });
    settled(&pipeline);
}

#[test]
fn keys_swapped_and_moved_while_copying_stand_once() {
    let pipeline = races("race_keys");
    with_race(&pipeline, |sql, i| {
        sql.run(&format!(
            "BEGIN; UPDATE r SET id = -1 WHERE id = 1; UPDATE r SET id = 1 WHERE id = 9999; \
             UPDATE r SET id = 9999 WHERE id = -1; COMMIT; UPDATE r SET id = id + {}000 WHERE id = 50",
            i + 20
        ));
        sql.run("INSERT INTO r VALUES (50, 0, 'back')");
    });
    settled(&pipeline);
}

#[test]
fn a_crash_in_the_last_chunk_leaves_nothing_visible_and_the_next_run_ends_right() {
    let pipeline = races("crash_chunk");
    pipeline.run().failpoint("handoff.chunk.read", "5*crash").finish().expect_signal();
    assert!(!pipeline.table("r").join("_delta_log").exists(), "half a snapshot is visible");
    pipeline.sql().run("UPDATE r SET n = 3 WHERE id % 7 = 0; DELETE FROM r WHERE id % 11 = 0");
    pipeline.run().succeed();
    pipeline.run_to_now();
    settled(&pipeline);
}

#[test]
fn a_crash_between_two_tables_publications_is_continued_at_the_same_base() {
    let pipeline = races("crash_publish");
    pipeline.sql().run("CREATE TABLE s AS SELECT i AS id, i AS n FROM generate_series(1, 100) i; ALTER TABLE s ADD PRIMARY KEY (id)");
    pipeline.run().failpoint("handoff.publish.after", "1*crash").finish().expect_signal();
    pipeline.sql().run("UPDATE r SET n = 3 WHERE id % 7 = 0; UPDATE s SET n = -n");
    pipeline.run().succeed();
    let base = |table: &str| pipeline.versions(table)[0]["base"].clone();
    assert_eq!(base("r"), base("s"));
    settled(&pipeline);
}

#[test]
fn a_crash_while_draining_loses_nothing_and_applies_nothing_twice() {
    let points = [
        "stream.commit.before",
        "apply.file.written",
        "lake.commit.before",
        "lake.commit.after",
        "stream.fence.before",
        "lake.ledger.before",
        "lake.ledger.after",
        "stream.fence.after",
    ];
    let pipeline = races("crash_drain");
    pipeline.run().succeed();
    for (i, point) in points.iter().enumerate() {
        let mut sql = pipeline.sql();
        sql.run(&format!(
            "UPDATE r SET n = n + 1 WHERE id % 100 = {i}; INSERT INTO r VALUES ({}, 0, NULL); \
             DELETE FROM r WHERE id = {}",
            30000 + i,
            100 * i + 3
        ));
        pipeline.run().failpoint(point, "1*crash").finish().expect_signal();
        sql.run(&format!("UPDATE r SET n = n + 1 WHERE id % 100 = {i}"));
        pipeline.run().succeed();
    }
    settled(&pipeline);
}

#[test]
fn changes_that_commit_at_the_boundary_are_on_one_side_of_it() {
    let pipeline = races("race_boundary");
    let boundary = pipeline.pause("handoff.boundary");
    let mut running = pipeline.run().pause(&boundary).start();
    boundary.reached(&mut running);
    pipeline.sql().run("INSERT INTO r VALUES (20001, 1, 'new'); UPDATE r SET n = 5 WHERE id < 100");
    boundary.release();
    running.finish().expect_code(0);
    pipeline.run_to_now();
    settled(&pipeline);
}

/// The same race with the position taken apart from the snapshot: the judges must see it.
fn wrong_way(rule: &str) {
    let pipeline = races(&rule.replace('-', "_"));
    let apart = pipeline.pause("handoff.apart");
    let mut running: Running = pipeline.run().wrong(rule).pause(&apart).start();
    apart.reached(&mut running);
    pipeline.sql().run("INSERT INTO r VALUES (20001, 1, 'new'); UPDATE r SET n = 5 WHERE id < 100");
    apart.release();
    if running.finish().code() == 0 {
        let (code, found) = pipeline.verify();
        assert_eq!(code, 6, "the wrong way went unnoticed: {found:#}");
    }
}

#[test]
fn a_position_taken_before_the_snapshot_is_caught() {
    wrong_way("position-before-snapshot");
}

#[test]
fn a_position_taken_after_the_snapshot_is_caught() {
    wrong_way("position-after-snapshot");
}

#[test]
fn a_stop_in_mid_stream_finishes_or_drops_the_batch() {
    let pipeline = races("graceful_stop");
    pipeline.run().succeed();
    let mut running = pipeline.follow();
    let mut sql = pipeline.sql();
    for i in 0..20 {
        sql.run(&format!("UPDATE r SET n = n + 1 WHERE id % 50 = {i}"));
        if i == 10 {
            running.signal("TERM");
        }
        let _ = running.has_ended();
    }
    running.finish().expect_code(0);
    pipeline.run_to_now();
    settled(&pipeline);
}

/// A copy that goes wrong in this way publishes nothing, and says what and where.
fn refused_validation(rule: &str, config: &str, words: &[&str]) {
    let mut pipeline = races(&rule.replace('-', "_"));
    pipeline.config = pipeline.config.replace("[handoff]", &format!("[handoff]\n{config}"));
    let finished = pipeline.run().wrong(rule).finish().expect_code(1);
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
    assert!(!pipeline.table("r").exists(), "something was published, or files are left");
    let slots = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}'",
        pipeline.db.name()
    );
    assert_eq!(pipeline.sql().one(&slots), "0", "the slot is left");
    assert_eq!(pipeline.status()["phase"], "failed");
    pipeline.run().succeed();
    settled(&pipeline);
}

#[test]
fn a_row_that_the_copy_lost_publishes_nothing() {
    refused_validation("lose-a-row", "", &["public.r", "were copied", "next:"]);
}

#[test]
fn a_row_that_the_copy_doubled_publishes_nothing() {
    refused_validation("double-a-row", "", &["public.r", "were copied", "next:"]);
}

#[test]
fn a_key_that_stands_twice_publishes_nothing() {
    // Without the count, so that it is the key that tells.
    let config = "validate_count = false";
    refused_validation("double-a-row", config, &["public.r", "is not unique", "next:"]);
}

#[test]
fn a_file_that_reads_back_otherwise_publishes_nothing() {
    refused_validation("write-another-row", "", &["public.r", "chunk", "read back", "next:"]);
}

/// The guard's lock, the TRUNCATE behind it and the worker behind that once waited for ever: no
/// deadlock that the server sees, as the session with the lock is idle.
#[test]
fn a_truncate_while_copying_goes_through_and_the_snapshot_begins_again() {
    let pipeline = races("race_truncate");
    let before = pipeline.pause("handoff.chunk.before").nth(2);
    let mut running = pipeline.run().pause(&before).start();
    before.reached(&mut running);
    let mut truncating = pipeline.sql();
    let backend = truncating.backend();
    let truncate = std::thread::spawn(move || {
        truncating.run("BEGIN; TRUNCATE r; INSERT INTO r VALUES (1, 1, 'after'); COMMIT");
    });
    let mut sql = pipeline.sql();
    support::wait_until("the TRUNCATE to wait for a lock", support::PATIENCE, || {
        let waits =
            format!("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {backend}");
        sql.one(&waits) == "t"
    });
    before.release();
    running.finish().expect_code(0);
    truncate.join().unwrap();
    pipeline.run_to_now();
    assert_eq!(pipeline.sql().one("SELECT count(*) FROM r"), "1");
    settled(&pipeline);
}

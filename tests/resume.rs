//! An interrupted snapshot goes on: finished chunks stay at their own base, the rest is copied at a
//! new boundary, and what joins them is proven row by row against the source.
//!
//! A race is a fixed schedule: the first chunk is recorded, the process is killed, rows move, and
//! the next start copies the rest. Pages are looked at, so that a row lies where the test says.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use support::database::{Sql, TestDb};
use support::deltalog;
use support::judge::{self, Engine};
use support::pause::Pause;
use support::pipeline::Pipeline;
use support::program::Finished;
use support::servers::usual;
use support::{PATIENCE, wait_until};
use tidegate::lake::{Event, Lake, Ledger};

/// A table of three chunks: 5,000 rows of half a kilobyte, each fiftieth with a value of 16 kB that
/// the stream leaves out when it did not change. `room`: the first pages have room for rows, and no
/// others have.
fn table(name: &str, room: bool) -> Pipeline {
    let pipeline = Pipeline::new(TestDb::new(usual(), name));
    let mut sql = pipeline.sql();
    sql.run(&fill("d"));
    if room {
        let rows_in = |sql: &mut Sql, page: &str| -> i32 {
            let rows = format!("SELECT count(*) FROM d WHERE (ctid::text::point)[0] = {page}");
            sql.one(&rows).parse().unwrap()
        };
        let last = "(SELECT max((ctid::text::point)[0]) FROM d)";
        let fits = rows_in(&mut sql, "100") - rows_in(&mut sql, last);
        sql.run(&format!(
            "INSERT INTO d SELECT i, 0, NULL, repeat('x', 480) FROM generate_series(6001, 6000 + {fits}) i; \
             DELETE FROM d WHERE id < 60"
        ));
        // A snapshot that another test holds keeps the rows for a moment.
        wait_until("the deleted rows to be gone", PATIENCE, || {
            // So few dead rows would be left to a later vacuum.
            sql.run("VACUUM (INDEX_CLEANUP ON) d");
            sql.one("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'd'") == "0"
        });
    }
    sql.run("ANALYZE d");
    pipeline
}

fn fill(table: &str) -> String {
    format!(
        "CREATE TABLE {table}(id int PRIMARY KEY, n int NOT NULL, blob text, pad text);
         ALTER TABLE {table} ALTER blob SET STORAGE EXTERNAL;
         INSERT INTO {table} SELECT i, 0, {BLOB}, repeat('x', 480) FROM generate_series(1, 5000) i;"
    )
}

const BLOB: &str = "CASE WHEN i % 50 = 0 THEN repeat(md5(i::text), 512) END";

/// Runs until `chunks` more chunks are recorded, and kills it before the next one is read.
fn kill_after(pipeline: &Pipeline, chunks: u64) -> Finished {
    let done = chunks_copied(pipeline) + chunks;
    let folder = pipeline.state.path().join(format!("kill-{done}-{chunks}"));
    std::fs::create_dir_all(&folder).unwrap();
    let before = Pause::new(&folder, "handoff.chunk.before").nth(chunks + 1);
    let mut running = pipeline.run().pause(&before).start();
    before.reached(&mut running);
    wait_until("the chunks to be recorded", PATIENCE, || chunks_copied(pipeline) == done);
    running.kill9()
}

/// Of all tables, by `status`; 0 without a ledger.
fn chunks_copied(pipeline: &Pipeline) -> u64 {
    if !pipeline.lake.path().join("_tidegate/ledger/_delta_log").exists() {
        return 0;
    }
    let status = pipeline.status();
    let tables = status["tables"].as_array().unwrap();
    tables.iter().map(|table| table["chunks_copied"].as_u64().unwrap()).sum()
}

/// The ledger's events of a kind, of the latest run.
fn events(pipeline: &Pipeline, kind: &str) -> Vec<Event> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let lake = Lake::open(pipeline.lake.path().to_str().unwrap()).unwrap();
        let ledger = Ledger::open(&lake).await.unwrap().unwrap();
        let run = ledger.state().run.clone();
        ledger.read_events(Some(&run), Some(kind)).await.unwrap()
    })
}

/// For each table the pages of its chunks, each with the position it was copied at. A range that
/// was copied twice stands twice.
fn copied(pipeline: &Pipeline) -> BTreeMap<String, Vec<(u64, String)>> {
    let mut copied: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    for event in events(pipeline, "chunk") {
        let from = event.detail["pages"][0].as_u64().unwrap();
        copied.entry(event.table).or_default().push((from, event.base.unwrap().to_string()));
    }
    copied.values_mut().for_each(|chunks| chunks.sort());
    copied
}

fn bases(pipeline: &Pipeline) -> BTreeSet<String> {
    copied(pipeline).into_values().flatten().map(|(_, base)| base).collect()
}

/// The version that the handoff published is the source, which has been still since then.
#[track_caller]
fn assert_handoff_is_source(pipeline: &Pipeline, table: &str) {
    let columns = ["id", "n", "blob", "pad"];
    let mut expected =
        pipeline.sql().rows(&format!("SELECT id::text, n::text, blob, pad FROM {table}"));
    expected.sort();
    let found = judge::rows(Engine::DuckDb, &pipeline.table(table), 0u64, &columns);
    if let Some(difference) = judge::difference(&expected, &found.rows) {
        panic!("the handoff of {table} is not the source: {:.2000}", difference);
    }
}

/// Where a row lies: its page.
fn page(sql: &mut Sql, id: i32) -> u64 {
    let page = sql.one(&format!("SELECT (ctid::text::point)[0]::int FROM d WHERE id = {id}"));
    page.parse().unwrap()
}

/// The first chunk is copied, the process killed, `race` run, the rest copied. Gives what the
/// second run said.
fn joined(pipeline: &Pipeline, race: impl FnOnce(&mut Sql)) -> Finished {
    kill_after(pipeline, 1);
    assert!(!pipeline.table("d").join("_delta_log").exists(), "half a snapshot is visible");
    race(&mut pipeline.sql());
    let finished = pipeline.run().succeed();
    assert_eq!(bases(pipeline).len(), 2, "{:?}", copied(pipeline));
    assert_handoff_is_source(pipeline, "d");
    settled(pipeline);
    finished
}

/// The stream goes on from the handoff without a gap.
#[track_caller]
fn settled(pipeline: &Pipeline) {
    pipeline
        .sql()
        .run("UPDATE d SET n = n + 10 WHERE id % 10 = 0; DELETE FROM d WHERE id % 99 = 1");
    pipeline.run_to_now();
    pipeline.assert_equal();
    pipeline.assert_positions_never_fall("d", "id");
}

fn rereads(pipeline: &Pipeline) -> i64 {
    events(pipeline, "reread").iter().filter_map(|event| event.rows).sum()
}

#[test]
fn kill_9_in_a_chunk_of_each_table_copies_only_what_was_missing() {
    let pipeline = Pipeline::new(TestDb::new(usual(), "resume_kills"));
    for table in ["a", "b", "d"] {
        pipeline.sql().run(&fill(table));
    }
    for kill in 0..4 {
        kill_after(&pipeline, 2);
        let mut sql = pipeline.sql();
        for table in ["a", "b", "d"] {
            sql.run(&format!(
                "UPDATE {table} SET n = n + 1 WHERE id % 7 = {kill}; \
                 DELETE FROM {table} WHERE id % 500 = {kill} + 100"
            ));
        }
    }
    let before = copied(&pipeline);
    pipeline.run().succeed();
    let after = copied(&pipeline);
    for (table, chunks) in &before {
        for chunk in chunks {
            assert!(after[table].contains(chunk), "{table}: {chunk:?} was not kept: {after:?}");
        }
    }
    for (table, chunks) in &after {
        let pages: BTreeSet<u64> = chunks.iter().map(|(from, _)| *from).collect();
        assert_eq!(pages.len(), chunks.len(), "{table}: a range was copied twice: {after:?}");
    }
    assert_eq!(bases(&pipeline).len(), 5, "{after:?}");
    for table in ["a", "b", "d"] {
        assert_handoff_is_source(&pipeline, table);
        let base = pipeline.versions(table)[0]["base"].clone();
        assert_eq!(base, pipeline.versions("d")[0]["base"], "the tables show two positions");
    }
    settled(&pipeline);
}

#[test]
fn a_row_moved_into_a_range_copied_before_keeps_its_large_value() {
    let pipeline = table("resume_toast", true);
    joined(&pipeline, |sql| {
        sql.run("UPDATE d SET n = 7 WHERE id IN (4800, 4850, 4900)");
        for id in [4800, 4850, 4900] {
            assert!(page(sql, id) < 128, "row {id} did not move into the first chunk");
        }
    });
    assert_eq!(rereads(&pipeline), 3);
    assert_eq!(pipeline.sql().one("SELECT count(*) FROM d WHERE id = 4900 AND n = 17"), "1");
}

#[test]
fn a_moved_row_without_a_large_value_comes_from_the_stream_alone() {
    let pipeline = table("resume_moved", true);
    joined(&pipeline, |sql| {
        sql.run("UPDATE d SET n = 7 WHERE id = 4801; UPDATE d SET blob = 'short' WHERE id = 4850");
        assert!(page(sql, 4801) < 128 && page(sql, 4850) < 128);
        // Left out first, sent later: nothing need be read again.
        sql.run("UPDATE d SET n = 8 WHERE id = 4900");
        assert!(page(sql, 4900) < 128);
        sql.run("UPDATE d SET blob = repeat('y', 16000) WHERE id = 4900");
        // Left out first, gone later.
        sql.run("UPDATE d SET n = 8 WHERE id = 4950; DELETE FROM d WHERE id = 4950");
    });
    assert_eq!(rereads(&pipeline), 0);
}

#[test]
fn of_a_key_in_two_chunks_the_later_row_counts() {
    let pipeline = table("resume_two_chunks", false);
    joined(&pipeline, |sql| {
        sql.run("UPDATE d SET n = 5 WHERE id <= 300 AND id % 3 = 0");
        for id in [3, 150, 300] {
            assert!(page(sql, id) >= 128, "row {id} stayed in the first chunk");
        }
        // Its changes between the boundaries are in the later row already.
        sql.run("UPDATE d SET n = 6 WHERE id = 150; UPDATE d SET n = n + 1 WHERE id = 3");
    });
    assert_eq!(rereads(&pipeline), 0);
}

#[test]
fn key_changes_with_large_values_into_and_out_of_copied_ranges_stand_once() {
    let pipeline = table("resume_keys_in", true);
    joined(&pipeline, |sql| {
        // Out of a range not copied yet into one that is: neither key is in a chunk.
        sql.run("UPDATE d SET id = 9001 WHERE id = 4900");
        assert!(page(sql, 9001) < 128);
        sql.run("UPDATE d SET id = 9002 WHERE id = 9001");
        // Within the copied range.
        sql.run("UPDATE d SET id = 9003 WHERE id = 100");
        // The key goes, and comes back elsewhere with another row.
        sql.run(
            "UPDATE d SET id = 9004 WHERE id = 150; INSERT INTO d VALUES (150, 1, 'again', 'p')",
        );
        sql.run("UPDATE d SET id = 9005 WHERE id = 4850");
        sql.run("INSERT INTO d VALUES (4850, 1, NULL, repeat('z', 2000))");
    });
    let pipeline = table("resume_keys_out", false);
    joined(&pipeline, |sql| {
        sql.run("UPDATE d SET id = 9001 WHERE id = 100");
        assert!(page(sql, 9001) >= 128);
        sql.run(
            "UPDATE d SET id = 9004 WHERE id = 150; INSERT INTO d VALUES (150, 1, 'again', 'p')",
        );
        assert!(page(sql, 150) >= 128 && page(sql, 9004) >= 128);
        sql.run("UPDATE d SET id = 9005 WHERE id = 4850");
    });
    assert_eq!(rereads(&pipeline), 0);
}

#[test]
fn a_key_changed_to_a_free_one_and_made_again_later_does_not_lend_its_value() {
    // 4850 goes to 9001 in a copied range; then a new 4850 is made in a range copied later: the
    // value of 9001 is not that of the row which the lake has for 4850.
    let pipeline = table("resume_lend", true);
    joined(&pipeline, |sql| {
        sql.run("UPDATE d SET id = 9001 WHERE id = 4850");
        assert!(page(sql, 9001) < 128);
        sql.run(
            "INSERT INTO d SELECT i, 0, NULL, repeat('f', 480) FROM generate_series(20000, 21000) i",
        );
        sql.run("INSERT INTO d VALUES (4850, 2, repeat('other', 4000), repeat('p', 480))");
        assert!(page(sql, 4850) >= 128);
    });
    assert_eq!(rereads(&pipeline), 1);
}

#[test]
fn deletes_inserts_and_swaps_between_the_boundaries_are_not_lost_and_not_doubled() {
    for room in [true, false] {
        let pipeline = table(if room { "resume_mix_room" } else { "resume_mix_full" }, room);
        joined(&pipeline, |sql| {
            // Deleted and made again elsewhere; deleted; made in a range that was copied.
            sql.run("DELETE FROM d WHERE id IN (100, 200, 4800)");
            sql.run("INSERT INTO d VALUES (100, 1, 'new', 'p'), (4800, 1, 'new', 'p'), (9100, 1, 'new', 'p')");
            sql.run("DELETE FROM d WHERE id BETWEEN 300 AND 320 OR id BETWEEN 4300 AND 4320");
            // Swaps: within the copied range, across, and outside of it; with large values.
            for (a, b) in [(400, 450), (500, 4500), (4550, 4600)] {
                sql.run(&format!(
                    "BEGIN; UPDATE d SET id = -1 WHERE id = {a}; UPDATE d SET id = {a} WHERE id = {b}; \
                     UPDATE d SET id = {b} WHERE id = -1; COMMIT"
                ));
            }
            // Made and gone in one transaction, and in two.
            sql.run("BEGIN; INSERT INTO d VALUES (9200, 0, NULL, 'p'); DELETE FROM d WHERE id = 9200; COMMIT");
            sql.run("INSERT INTO d VALUES (9201, 0, NULL, 'p')");
            sql.run("UPDATE d SET id = 9202 WHERE id = 9201");
            sql.run("DELETE FROM d WHERE id = 9202");
        });
    }
}

#[test]
fn full_identity_has_the_large_values_in_the_stream() {
    let pipeline = table("resume_full", true);
    pipeline.sql().run("ALTER TABLE d REPLICA IDENTITY FULL");
    joined(&pipeline, |sql| {
        sql.run("UPDATE d SET n = 7 WHERE id IN (4800, 4850)");
        assert!(page(sql, 4800) < 128);
        sql.run("UPDATE d SET id = 9001 WHERE id = 4900; DELETE FROM d WHERE id IN (100, 4700)");
    });
    assert_eq!(rereads(&pipeline), 0);
}

/// A table of two chunks.
fn two_chunks(name: &str, rest: &str) -> String {
    format!(
        "CREATE TABLE {name}(id int NOT NULL, n int NOT NULL, blob text, pad text) {rest};
         INSERT INTO {name} SELECT i, 0, NULL, repeat('x', 480) FROM generate_series(1, 2600) i;"
    )
}

#[test]
fn a_rewritten_or_altered_table_starts_again_and_the_others_keep_theirs() {
    let pipeline = Pipeline::new(TestDb::new(usual(), "resume_rewritten"));
    let mut sql = pipeline.sql();
    for table in ["altered", "clustered", "d", "full_vacuum", "truncated"] {
        sql.run(&two_chunks(table, ""));
        sql.run(&format!("ALTER TABLE {table} ADD PRIMARY KEY (id)"));
    }
    sql.run(&two_chunks("parted", "PARTITION BY RANGE (id)").replace(
        "INSERT",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (3000); \
         ALTER TABLE parted ADD PRIMARY KEY (id); INSERT",
    ));
    // The first chunk of each: they are larger than the second ones.
    kill_after(&pipeline, 6);
    let before = copied(&pipeline);
    assert_eq!(before.len(), 6, "{before:?}");
    sql.run("ALTER TABLE altered ADD COLUMN more int DEFAULT 7");
    sql.run("CLUSTER clustered USING clustered_pkey");
    sql.run("VACUUM FULL full_vacuum");
    sql.run("TRUNCATE truncated; INSERT INTO truncated VALUES (1, 1, 'only', 'row')");
    sql.run("CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (3000) TO (4000)");
    sql.run("INSERT INTO parted VALUES (3001, 1, NULL, 'new')");
    sql.run("UPDATE d SET n = n + 1 WHERE id % 5 = 0");
    let said = pipeline.run().succeed().stderr;
    for (table, why) in [
        ("public.altered", "its columns, key or replica identity changed"),
        ("public.clustered", "it was rewritten or truncated"),
        ("public.full_vacuum", "it was rewritten or truncated"),
        ("public.truncated", "it was rewritten or truncated"),
        ("public.parted", "its partitions changed"),
    ] {
        let told = said.lines().any(|line| line.contains(table) && line.contains(why));
        assert!(told, "{table}: {why:?} is not in:\n{said}");
    }
    let after = copied(&pipeline);
    assert_eq!(after["public.d"].len(), 2, "its first chunk was not kept: {after:?}");
    assert!(after["public.d"].contains(&before["public.d"][0]));
    for table in ["altered", "clustered", "full_vacuum", "truncated", "parted"] {
        let again = &after[&format!("public.{table}")];
        assert_eq!(again[0].0, again[1].0, "{table} did not start again: {after:?}");
    }
    // What counts is no file of before.
    pipeline.run_to_now();
    pipeline.assert_equal();
}

#[test]
fn chunks_of_a_table_without_a_key_are_not_joined() {
    let pipeline = Pipeline::new(TestDb::new(usual(), "resume_unkeyed"));
    let mut sql = pipeline.sql();
    sql.run(&two_chunks("f", ""));
    sql.run("ALTER TABLE f REPLICA IDENTITY FULL");
    sql.run(&two_chunks("nothing", ""));
    sql.run("ALTER TABLE nothing REPLICA IDENTITY NOTHING");
    sql.run(&two_chunks("d", ""));
    sql.run("ALTER TABLE d ADD PRIMARY KEY (id)");
    // All of the one, half of the other; these come first.
    kill_after(&pipeline, 3);
    let before = copied(&pipeline);
    assert_eq!((before["public.f"].len(), before["public.nothing"].len()), (2, 1), "{before:?}");
    sql.run("UPDATE f SET n = 1 WHERE id < 10; DELETE FROM f WHERE id BETWEEN 2000 AND 2010");
    sql.run("INSERT INTO f SELECT * FROM f WHERE id = 50");
    sql.run("INSERT INTO nothing SELECT i, 5, NULL, 'p' FROM generate_series(1, 50) i");
    let said = pipeline.run().succeed().stderr;
    assert!(said.contains("public.nothing") && said.contains("it has no key"), "{said}");
    let after = copied(&pipeline);
    assert_eq!((after["public.f"].len(), after["public.nothing"].len()), (2, 3), "{after:?}");
    pipeline.run_to_now();
    pipeline.assert_equal();
}

#[test]
fn a_slot_that_is_gone_or_was_moved_makes_everything_start_again() {
    for moved in [false, true] {
        let name = if moved { "resume_slot_moved" } else { "resume_slot_gone" };
        let pipeline = Pipeline::new(TestDb::new(usual(), name));
        let mut sql = pipeline.sql();
        sql.run(&two_chunks("d", ""));
        sql.run("ALTER TABLE d ADD PRIMARY KEY (id)");
        kill_after(&pipeline, 1);
        let before = copied(&pipeline);
        sql.run("UPDATE d SET n = 9 WHERE id < 50");
        let slot = pipeline.db.name();
        sql.run(&if moved {
            format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
        } else {
            format!("SELECT pg_drop_replication_slot('{slot}')")
        });
        pipeline.run().succeed();
        let after = copied(&pipeline);
        assert!(!after["public.d"].contains(&before["public.d"][0]), "{after:?}");
        assert_eq!(bases(&pipeline).len(), 1);
        pipeline.run_to_now();
        pipeline.assert_equal();
    }
}

#[test]
fn a_stop_and_a_passing_error_in_mid_copy_keep_the_finished_chunks() {
    let pipeline = table("resume_stop", false);
    let before = pipeline.pause("handoff.chunk.before").nth(2);
    let mut running = pipeline.run().pause(&before).start();
    before.reached(&mut running);
    wait_until("the chunk to be recorded", PATIENCE, || chunks_copied(&pipeline) == 1);
    running.signal("TERM");
    wait_until("the signal to be seen", PATIENCE, || running.stderr().contains("a second signal"));
    before.release();
    let stopped = running.finish().expect_code(0);
    assert!(stopped.stderr.contains("finished chunks are kept"), "{}", stopped.stderr);
    let status = pipeline.status();
    assert_eq!(
        (&status["phase"], &status["boundary"]["age_seconds"]),
        (&"snapshot".into(), &serde_json::Value::Null)
    );
    let first = copied(&pipeline);
    // The next one loses its way to the ledger after a chunk, and goes on by itself.
    pipeline.run().failpoint("handoff.chunk.recorded", "1*error").succeed();
    let after = copied(&pipeline);
    assert!(after["public.d"].contains(&first["public.d"][0]), "{after:?}");
    let pages: BTreeSet<u64> = after["public.d"].iter().map(|(from, _)| *from).collect();
    assert_eq!(pages.len(), after["public.d"].len(), "a range was copied twice: {after:?}");
    assert_handoff_is_source(&pipeline, "d");
    settled(&pipeline);
}

#[test]
fn a_snapshot_is_let_go_at_its_age_and_the_copy_goes_on_under_load() {
    let mut pipeline = table("resume_age", true);
    pipeline.config = pipeline.config.replace("[handoff]", "[handoff]\nmax_snapshot_age = \"1s\"");
    let mut running = pipeline.run().failpoint("handoff.chunk.before", "delay:700").start();
    let mut sql = pipeline.sql();
    let mut step = 0;
    while !running.has_ended() {
        step += 1;
        sql.run(&format!(
            "UPDATE d SET n = n + 1 WHERE id % 97 = {0}; DELETE FROM d WHERE id = 600 + {step}; \
             UPDATE d SET id = id + 10000 WHERE id = 4000 - {step}; \
             INSERT INTO d VALUES (30000 + {step}, 0, repeat('b', 9000), 'p')",
            step % 97
        ));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    running.finish().expect_code(0);
    assert!(bases(&pipeline).len() >= 2, "{:?}", copied(&pipeline));
    pipeline.run_to_now();
    pipeline.assert_equal();
    pipeline.assert_positions_never_fall("d", "id");
}

/// Keys of 2,000 bytes, so that few rows are many bytes to remember.
#[test]
fn a_table_of_which_more_rows_moved_than_may_be_read_again_is_copied_whole() {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), "resume_limit"));
    pipeline.config = pipeline.config.replace("1MiB", "4MiB");
    pipeline.config += "[limits]\nreread_bytes = \"1MiB\"\n";
    let mut sql = pipeline.sql();
    sql.run(
        "CREATE TABLE d(id int NOT NULL, k text PRIMARY KEY, n int, blob text, pad text);
         ALTER TABLE d ALTER k SET STORAGE PLAIN, ALTER blob SET STORAGE EXTERNAL;
         INSERT INTO d SELECT i, lpad(i::text, 2000, 'k'), 0, repeat('b', 3000)
         FROM generate_series(1, 3000) i;
         DELETE FROM d WHERE id <= 1400",
    );
    wait_until("the deleted rows to be gone", PATIENCE, || {
        sql.run("VACUUM (INDEX_CLEANUP ON) d");
        sql.one("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'd'") == "0"
    });
    kill_after(&pipeline, 1);
    sql.run("UPDATE d SET n = 1 WHERE id BETWEEN 2000 AND 2900");
    let moved = "SELECT count(*) FROM d WHERE n = 1 AND (ctid::text::point)[0] < 512";
    assert!(sql.one(moved).parse::<u32>().unwrap() > 600, "they did not move");
    let run = pipeline.run().succeed();
    assert!(run.stderr.contains("than [limits] reread_bytes allows"), "{}", run.stderr);
    assert_eq!(rereads(&pipeline), 0);
    assert_handoff_is_source(&pipeline, "d");
    settled(&pipeline);
}

#[test]
fn a_crash_at_any_step_of_boundary_drain_reread_and_publication_is_made_good() {
    let pipeline = table("resume_crashes", true);
    pipeline.sql().run(&two_chunks("e", ""));
    pipeline.sql().run("ALTER TABLE e ADD PRIMARY KEY (id)");
    kill_after(&pipeline, 1);
    let points = [
        "handoff.resumed",
        "handoff.publication",
        "handoff.boundary.next",
        "handoff.planned",
        "handoff.chunk.read",
        "handoff.drain.before",
        "apply.file.written",
        "handoff.drain.part",
        "handoff.drain.after",
        "handoff.reread.before",
        "handoff.reread.after",
        "handoff.validated",
        "handoff.recorded",
        "handoff.publish.before",
        "handoff.publish.after",
        "handoff.live.before",
    ];
    let mut sql = pipeline.sql();
    sql.run("UPDATE d SET n = 7 WHERE id IN (4800, 4850); UPDATE d SET id = 9001 WHERE id = 4900");
    assert!(page(&mut sql, 4800) < 128);
    for (i, point) in points.iter().enumerate() {
        sql.run(&format!(
            "UPDATE d SET n = n + 1 WHERE id % 50 = {i}; DELETE FROM e WHERE id = {i}"
        ));
        pipeline.run().failpoint(point, "1*crash").finish().expect_signal();
    }
    pipeline.run().succeed();
    pipeline.run_to_now();
    pipeline.assert_equal();
    pipeline.assert_positions_never_fall("d", "id");
    let base = |table: &str| pipeline.versions(table)[0]["base"].clone();
    assert_eq!(base("d"), base("e"), "the tables were published at two positions");
    assert_eq!(pipeline.status()["base"], base("d"));
    assert!(rereads(&pipeline) >= 3);
}

/// Somebody asked for a new generation once. Whatever was dropped for it by then, the next start goes
/// on with it by itself.
#[test]
fn a_new_generation_that_was_killed_as_it_began_is_begun_by_the_next_plain_run() {
    for point in ["handoff.dropped", "handoff.cleanup", "handoff.announced"] {
        let name = format!("again_{}", point.trim_start_matches("handoff."));
        let pipeline = Pipeline::new(TestDb::new(usual(), &name));
        pipeline.sql().run(&two_chunks("d", ""));
        pipeline.sql().run("ALTER TABLE d ADD PRIMARY KEY (id)");
        let again = || pipeline.run().arg("--resnapshot").failpoint(point, "1*crash").finish();
        // Its files are recorded, and none of them is published yet.
        pipeline.run().failpoint("handoff.publish.before", "1*crash").finish().expect_signal();
        again().expect_signal();
        pipeline.run().succeed();
        let lake = deltalog::local(pipeline.lake.path());
        assert_eq!(deltalog::orphans(&lake), BTreeSet::new(), "{point}: files are left");
        pipeline.sql().run("DELETE FROM d WHERE id = 1");
        let generation = pipeline.status()["generation"].as_u64();
        // Nothing is there to clean up behind a generation that lives.
        if point != "handoff.cleanup" {
            again().expect_signal();
            pipeline.sql().run("DELETE FROM d WHERE id = 2");
            pipeline.run().succeed();
            assert_eq!(pipeline.status()["generation"].as_u64(), generation.map(|g| g + 1));
        }
        pipeline.run_to_now();
        pipeline.assert_equal();
    }
}

#[test]
fn chunks_are_joined_from_the_spool_too() {
    let mut pipeline = table("resume_spool", true);
    pipeline.config = pipeline
        .config
        .replace("[handoff]", "[handoff]\nretain = \"spool\"\nspool_interval = \"100ms\"");
    joined(&pipeline, |sql| {
        sql.run("UPDATE d SET n = 7 WHERE id IN (4800, 4850); DELETE FROM d WHERE id = 100");
        assert!(page(sql, 4800) < 128);
        sql.run(
            "UPDATE d SET id = 9001 WHERE id = 4900; INSERT INTO d VALUES (9002, 1, 'new', 'p')",
        );
    });
    assert_eq!(rereads(&pipeline), 3);
}

/// The races of a resumed copy with a rule left out: it must show.
fn wrong_way(rule: &str, race: &[&str]) {
    let pipeline = table(&format!("wrong_{}", rule.replace('-', "_")), false);
    kill_after(&pipeline, 1);
    for statements in race {
        pipeline.sql().run(statements);
    }
    let finished = pipeline.run().wrong(rule).finish();
    if finished.code() == 0 {
        let (code, found) = pipeline.verify();
        assert_eq!(code, 6, "the wrong way went unnoticed: {found:#}");
    } else {
        // The validation saw it.
        assert!(finished.stderr.contains("public.d"), "{}", finished.stderr);
    }
}

#[test]
fn changes_applied_below_a_rows_base_are_caught() {
    wrong_way(
        "ignore-row-bases",
        &["UPDATE d SET n = 1 WHERE id = 300; UPDATE d SET n = 2 WHERE id = 300; \
             UPDATE d SET id = 9001 WHERE id = 301; INSERT INTO d VALUES (301, 5, 'again', 'p')"],
    );
}

#[test]
fn chunks_of_a_rewritten_table_that_are_kept_are_caught() {
    // In the other order, so that rows move whatever a snapshot elsewhere keeps alive.
    wrong_way(
        "keep-rewritten-chunks",
        &["CREATE INDEX d_back ON d (id DESC)", "CLUSTER d USING d_back"],
    );
}

#[test]
fn columns_that_came_and_went_between_the_boundaries_make_that_table_start_again() {
    // The catalog looks the same at both boundaries; rows of the stream in between do not fit.
    let pipeline = Pipeline::new(TestDb::new(usual(), "resume_came_and_went"));
    let mut sql = pipeline.sql();
    for table in ["d", "e"] {
        sql.run(&two_chunks(table, ""));
        sql.run(&format!("ALTER TABLE {table} ADD PRIMARY KEY (id)"));
    }
    kill_after(&pipeline, 2);
    let before = copied(&pipeline);
    sql.run("ALTER TABLE e ADD COLUMN passing int");
    sql.run("UPDATE e SET n = 5, passing = 1 WHERE id = 300; UPDATE d SET n = 5 WHERE id = 300");
    sql.run("ALTER TABLE e DROP COLUMN passing");
    let said = pipeline.run().succeed().stderr;
    let told = |line: &str| line.contains("public.e") && line.contains("\"passing\" is new");
    assert!(said.lines().any(told), "{said}");
    let after = copied(&pipeline);
    assert!(after["public.d"].contains(&before["public.d"][0]) && after["public.d"].len() == 2);
    assert!(after["public.e"].len() > 2, "e did not start again: {after:?}");
    for table in ["d", "e"] {
        assert_handoff_is_source(&pipeline, table);
    }
    settled(&pipeline);
}

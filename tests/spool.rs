//! The handoff buffer: changes spooled into the lake while a snapshot is copied, and the guard over
//! the WAL that the slot makes the source keep.
//!
//! The copy is held by a pause, as a copy of thirty hours would be; a writer goes on meanwhile.

mod support;

use std::path::PathBuf;

use serde_json::Value;
use support::database::{Sql, TestDb};
use support::pause::Pause;
use support::pipeline::Pipeline;
use support::program::Running;
use support::servers::{USUAL, own_server, server, usual};
use support::{PATIENCE, wait_for, wait_until};
use tidegate::demo::server::{Options, PrivateServer};

const SPOOL: &str = "[handoff]\nworkers = 1\nchunk_bytes = \"1MiB\"\nretain = \"spool\"\n\
    spool_interval = \"100ms\"\nspool_segment_bytes = \"64KiB\"\n[stream]\ninterval = \"100ms\"\n";
const MIB: u64 = 1 << 20;

/// A table of five chunks: 10,000 rows of half a kilobyte.
fn with_rows(db: TestDb) -> Pipeline {
    let mut pipeline = Pipeline::new(db);
    pipeline.config = SPOOL.to_owned();
    pipeline.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, repeat('x', 500) FROM generate_series(1, 10000) i;
         ANALYZE r",
    );
    pipeline
}

fn rows(name: &str) -> Pipeline {
    with_rows(TestDb::new(usual(), name))
}

/// A server for one test alone: its log grows by that test's writes only.
fn alone(major: u32, settings: &[(&str, &str)]) -> &'static PrivateServer {
    let settings = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let options = Options { settings, ..Options::default() };
    // The server's guardian stops it when this process ends.
    Box::leak(Box::new(own_server(major, options)))
}

/// The program, following, with its copy held before the first chunk.
fn held(pipeline: &Pipeline) -> (Running, Pause) {
    held_with(pipeline, &[])
}

fn held_with(pipeline: &Pipeline, failpoints: &[(&str, &str)]) -> (Running, Pause) {
    let pause = pipeline.pause("handoff.chunk.before").nth(1);
    let mut command = pipeline.command(&["run"]).pause(&pause);
    for (name, action) in failpoints {
        command = command.failpoint(name, action);
    }
    let mut running = command.start();
    pause.reached(&mut running);
    (running, pause)
}

fn slot(sql: &mut Sql, pipeline: &Pipeline, what: &str) -> String {
    let name = pipeline.db.name();
    sql.rows(&format!("SELECT {what} FROM pg_replication_slots WHERE slot_name = '{name}'"))
        .first()
        .and_then(|row| row[0].clone())
        .unwrap_or_default()
}

fn retained(sql: &mut Sql, pipeline: &Pipeline) -> u64 {
    slot(sql, pipeline, "pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8")
        .parse()
        .unwrap_or(0)
}

/// Waits until the slot has been acknowledged up to the end of the log as it was.
fn wait_acknowledged(pipeline: &Pipeline, running: &mut Running) {
    let mut sql = pipeline.sql();
    let end = sql.one("SELECT pg_current_wal_lsn()");
    // A step ends with a transaction, so there must be one after the position.
    sql.run("UPDATE r SET n = n WHERE id = 1");
    wait_until("the slot to be acknowledged", PATIENCE, || {
        assert!(!running.has_ended(), "ended:\n{}", running.output());
        slot(&mut sql, pipeline, &format!("confirmed_flush_lsn >= '{end}'")) == "t"
    });
}

/// Lets a following program reach the end of the log, and ends it.
fn caught_up(pipeline: &Pipeline, mut running: Running) -> String {
    let mut sql = pipeline.sql();
    let end = sql.one("SELECT pg_current_wal_lsn()");
    sql.run("UPDATE r SET n = n WHERE id = 1");
    wait_until("the fence", PATIENCE, || {
        assert!(!running.has_ended(), "ended:\n{}", running.output());
        let fence = pipeline.status()["fence"].clone();
        fence.as_str().is_some_and(|f| sql.one(&format!("SELECT '{f}'::pg_lsn >= '{end}'")) == "t")
    });
    running.signal("TERM");
    running.finish().expect_code(0).stderr
}

#[track_caller]
fn settled(pipeline: &Pipeline) {
    pipeline.run_to_now();
    pipeline.assert_equal();
    pipeline.assert_positions_never_fall("r", "id");
}

/// Files of all spools in the lake.
fn spool_files(pipeline: &Pipeline) -> Vec<PathBuf> {
    let top = pipeline.lake.path().join("_tidegate/spool");
    let folders = std::fs::read_dir(top).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = folders
        .filter_map(|folder| std::fs::read_dir(folder.path()).ok())
        .flat_map(|files| files.flatten().map(|file| file.path()))
        .collect();
    files.sort();
    files
}

fn spool_bytes(pipeline: &Pipeline) -> u64 {
    spool_files(pipeline).iter().filter_map(|file| file.metadata().ok()).map(|m| m.len()).sum()
}

/// Some of everything, about 200 kB of changes.
fn write(sql: &mut Sql, round: u32) {
    sql.run(&format!(
        "INSERT INTO r SELECT i, {round}, md5(i::text) FROM generate_series({0} + 1, {0} + 2000) i",
        20_000 + 10_000 * round
    ));
    sql.run(&format!("UPDATE r SET n = n + 1, pad = md5(pad) WHERE id % 50 = {round}"));
    sql.run(&format!("DELETE FROM r WHERE id % 90 = {}", round + 2));
    sql.run(&format!("UPDATE r SET id = id + 1000000 WHERE id = {}", 7 + round));
    sql.run("BEGIN; SAVEPOINT a; UPDATE r SET n = -1 WHERE id < 50; ROLLBACK TO a; COMMIT");
    sql.run("BEGIN; DELETE FROM r; ROLLBACK");
}

#[test]
fn the_wal_kept_for_a_copy_that_takes_long_stays_small() {
    let pipeline = with_rows(TestDb::new(alone(USUAL, &[]), "spool_bound"));
    let (mut running, pause) = held(&pipeline);
    let mut sql = pipeline.sql();
    let begin = sql.one("SELECT pg_current_wal_lsn()");
    let mut most = 0;
    for round in 0..10 {
        sql.run(&format!(
            "INSERT INTO r SELECT i, {round}, repeat('y', 500) FROM generate_series({0}, {0} + 19999) i",
            100_000 + 20_000 * round
        ));
        // Logs the running transactions, as the server does by itself every 15 seconds: without
        // that record no slot can let go of its log.
        sql.run("CHECKPOINT");
        wait_acknowledged(&pipeline, &mut running);
        most = most.max(retained(&mut sql, &pipeline));
    }
    let diff = format!("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{begin}')::int8");
    let written: u64 = sql.one(&diff).parse().unwrap();
    println!("written {} MiB of WAL, at most {} MiB kept", written / MIB, most / MIB);
    assert!(written > 100 * MIB, "only {written} bytes were written");
    assert!(most < 40 * MIB, "{most} bytes of WAL were kept");
    assert!(!pipeline.table("r").join("_delta_log").exists(), "something is visible already");
    pause.release();
    let said = caught_up(&pipeline, running);
    assert!(said.contains("reading the spool"), "{said}");
    settled(&pipeline);
    assert_eq!(spool_files(&pipeline), Vec::<PathBuf>::new());
}

#[test]
fn kill9_at_every_durable_step_of_the_spool_loses_nothing_and_doubles_nothing() {
    for (i, (point, action)) in [
        ("spool.segment.before", "2*crash"),
        ("spool.segment.after", "2*crash"),
        ("spool.record.before", "2*crash"),
        ("spool.record.after", "2*crash"),
        ("spool.acknowledge.before", "2*crash"),
        ("spool.acknowledge.after", "2*crash"),
    ]
    .into_iter()
    .enumerate()
    {
        let pipeline = rows(&format!("spool_kill_{i}"));
        let (mut running, _pause) = held_with(&pipeline, &[(point, action)]);
        let mut sql = pipeline.sql();
        let mut round = 0;
        wait_until("the crash", PATIENCE, || {
            if round < 8 {
                write(&mut sql, round);
                round += 1;
            }
            running.has_ended()
        });
        running.finish().expect_signal();
        assert!(!pipeline.table("r").join("_delta_log").exists(), "{point}: visible too early");
        write(&mut sql, 8);
        pipeline.run().succeed();
        settled(&pipeline);
        assert_eq!(spool_files(&pipeline), Vec::<PathBuf>::new(), "{point}");
    }
}

#[test]
fn kill9_between_the_copy_and_the_end_of_the_drain_loses_nothing_and_doubles_nothing() {
    for (i, (point, action)) in [
        ("handoff.validated", "crash"),
        ("handoff.recorded", "crash"),
        ("handoff.publish.after", "crash"),
        ("handoff.live.after", "crash"),
        ("stream.fence.before", "1*crash"),
        ("stream.fence.after", "1*crash"),
        ("spool.remove.before", "crash"),
        ("spool.remove.after", "crash"),
    ]
    .into_iter()
    .enumerate()
    {
        let pipeline = rows(&format!("spool_drain_{i}"));
        let (mut running, pause) = held_with(&pipeline, &[(point, action)]);
        let mut sql = pipeline.sql();
        for round in 0..3 {
            write(&mut sql, round);
            wait_acknowledged(&pipeline, &mut running);
        }
        pause.release();
        running.finish().expect_signal();
        write(&mut sql, 3);
        settled(&pipeline);
        pipeline.run_to_now();
        assert_eq!(spool_files(&pipeline), Vec::<PathBuf>::new(), "{point}");
    }
}

#[test]
fn a_transaction_of_300_000_rows_over_many_files_is_acknowledged_whole_and_applied_whole() {
    let pipeline = rows("spool_large");
    let (mut running, pause) = held(&pipeline);
    let mut sql = pipeline.sql();
    sql.run(
        "BEGIN; INSERT INTO r SELECT i, 1, md5(i::text) FROM generate_series(100001, 400000) i; \
         SAVEPOINT a; DELETE FROM r WHERE id > 390000; ROLLBACK TO a; COMMIT",
    );
    sql.run("BEGIN; INSERT INTO r SELECT i, 1, md5(i::text) FROM generate_series(500001, 550000) i; ROLLBACK");
    wait_acknowledged(&pipeline, &mut running);
    let files = spool_files(&pipeline).len();
    println!("{files} files, {} bytes", spool_bytes(&pipeline));
    assert!(files > 20, "{files} files are no proof");
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
    let lsns = |ids: &str| pipeline.sql().one(&format!("SELECT count(*) FROM r WHERE {ids}"));
    assert_eq!(lsns("id > 100000"), "300000");
}

#[test]
fn a_transaction_that_is_half_spooled_when_the_copy_ends_comes_from_the_slot() {
    let pipeline = rows("spool_half");
    let (mut running, pause) = held_with(&pipeline, &[("spool.segment.after", "delay:400")]);
    let mut sql = pipeline.sql();
    write(&mut sql, 0);
    wait_acknowledged(&pipeline, &mut running);
    let before = spool_files(&pipeline).len();
    sql.run("INSERT INTO r SELECT i, 1, md5(i::text) FROM generate_series(100001, 200000) i");
    wait_until("some files of the transaction", PATIENCE, || {
        spool_files(&pipeline).len() > before + 3
    });
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
}

#[test]
fn a_cut_stream_of_the_spool_goes_on_where_its_record_ends() {
    let pipeline = rows("spool_cut");
    let (mut running, pause) = held_with(&pipeline, &[("spool.segment.after", "delay:50")]);
    let mut sql = pipeline.sql();
    for round in 0..3 {
        write(&mut sql, round);
        sql.run(&format!(
            "INSERT INTO r SELECT i, 1, md5(i::text) FROM generate_series({0}, {0} + 9999) i",
            200_000 + 10_000 * round
        ));
        let files = spool_files(&pipeline).len();
        wait_until("a file", PATIENCE, || spool_files(&pipeline).len() > files);
        let walsender = slot(&mut sql, &pipeline, "active_pid");
        if !walsender.is_empty() {
            sql.run(&format!("SELECT pg_terminate_backend({walsender})"));
        }
    }
    wait_acknowledged(&pipeline, &mut running);
    assert!(running.stderr().contains("until the spool goes on"), "{}", running.stderr());
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
}

#[test]
fn at_its_limit_the_spool_stops_taking_and_the_slot_holds_the_rest() {
    let mut pipeline = rows("spool_limit");
    pipeline.config += "[limits]\nspool_bytes = \"1MiB\"\n";
    let (mut running, pause) = held(&pipeline);
    let mut sql = pipeline.sql();
    write(&mut sql, 0);
    wait_acknowledged(&pipeline, &mut running);
    for round in 0..5 {
        sql.run(&format!(
            "INSERT INTO r SELECT i, 1, md5(i::text) || md5((-i)::text) FROM generate_series({0}, {0} + 9999) i",
            200_000 + 10_000 * round
        ));
    }
    wait_until("the limit to be said", PATIENCE, || running.stderr().contains("no room left"));
    assert!(!running.has_ended());
    let confirmed = slot(&mut sql, &pipeline, "confirmed_flush_lsn");
    write(&mut sql, 1);
    assert_eq!(slot(&mut sql, &pipeline, "confirmed_flush_lsn"), confirmed);
    let bytes = spool_bytes(&pipeline);
    assert!(bytes > 0 && bytes <= MIB, "{bytes} bytes are spooled");
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
    assert_eq!(spool_files(&pipeline), Vec::<PathBuf>::new());
}

fn spool_on(major: u32) {
    let pipeline = with_rows(TestDb::new(server(major), &format!("spool_on_{major}")));
    pipeline.sql().run("CREATE SCHEMA other; CREATE TABLE other.t(v text)");
    let (mut running, pause) = held(&pipeline);
    let mut sql = pipeline.sql();
    for round in 0..4 {
        write(&mut sql, round);
        // Transactions without a row for us: 13 and 14 send them empty, 15 and later leave them out.
        sql.run("INSERT INTO other.t SELECT repeat('z', 100) FROM generate_series(1, 1000)");
    }
    wait_acknowledged(&pipeline, &mut running);
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
}

#[test]
fn it_spools_from_13_with_its_old_protocol() {
    spool_on(13);
}

#[test]
fn it_spools_from_18() {
    spool_on(18);
}

#[test]
fn the_spool_of_somebody_else_is_left_alone() {
    let pipeline = rows("spool_others");
    let other = pipeline.lake.path().join("_tidegate/spool/another-run");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("00000001-x.seg"), "not ours").unwrap();
    let (mut running, pause) = held(&pipeline);
    write(&mut pipeline.sql(), 0);
    wait_acknowledged(&pipeline, &mut running);
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
    assert_eq!(spool_files(&pipeline), [other.join("00000001-x.seg")]);
}

/// Ended by a crash between going live and draining: three steps lie in the spool.
fn undrained(name: &str, config: &str) -> Pipeline {
    let mut pipeline = rows(name);
    pipeline.config = config.to_owned();
    let (mut running, pause) = held_with(&pipeline, &[("handoff.live.after", "crash")]);
    for round in 0..3 {
        write(&mut pipeline.sql(), round);
        wait_acknowledged(&pipeline, &mut running);
    }
    pause.release();
    running.finish().expect_signal();
    assert!(spool_files(&pipeline).len() >= 3);
    pipeline
}

#[test]
fn a_damaged_cut_or_missing_file_stops_the_drain_in_words() {
    let pipeline = undrained("spool_damaged", SPOOL);
    let files = spool_files(&pipeline);
    let file = &files[files.len() - 1];
    let whole = std::fs::read(file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    let fence = pipeline.status()["fence"].clone();
    for (content, word) in [
        (Some(flipped), "its checksum is wrong"),
        (Some(whole[..whole.len() - 1].to_vec()), "it was cut off"),
        (Some(std::fs::read(&files[0]).unwrap()), "it is not the file that was recorded"),
        (None, "it is gone"),
    ] {
        match content {
            Some(content) => std::fs::write(file, content).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        let finished = pipeline.run().finish().expect_code(1);
        assert!(finished.stderr.contains(word), "{word:?} is not in {}", finished.stderr);
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(finished.stderr.contains(&name), "{}", finished.stderr);
    }
    assert_ne!(pipeline.status()["fence"], Value::Null);
    assert!(fence.is_string());
    std::fs::write(file, whole).unwrap();
    settled(&pipeline);
}

#[test]
fn spooled_as_text_and_followed_in_binary() {
    let text = SPOOL.replace("[stream]\n", "[stream]\nformat = \"text\"\n");
    let mut pipeline = undrained("spool_formats", &text);
    // And without a spool by now: what is in it counts all the same.
    pipeline.config = SPOOL
        .replace("[stream]\n", "[stream]\nformat = \"binary\"\n")
        .replace("retain = \"spool\"", "retain = \"slot\"");
    write(&mut pipeline.sql(), 3);
    settled(&pipeline);
    assert_eq!(spool_files(&pipeline), Vec::<PathBuf>::new());
}

#[test]
fn what_somebody_consumed_beyond_the_spool_is_refused() {
    let pipeline = undrained("spool_stolen", SPOOL);
    let mut sql = pipeline.sql();
    write(&mut sql, 3);
    sql.run(&format!(
        "SELECT pg_replication_slot_advance('{}', pg_current_wal_lsn())",
        pipeline.db.name()
    ));
    let finished = pipeline.run().finish().expect_code(5);
    assert!(finished.stderr.contains("consumed by somebody else"), "{}", finished.stderr);
}

#[test]
fn a_spool_that_acknowledges_what_it_only_received_is_caught() {
    let pipeline = rows("spool_wrong_ack");
    let pause = pipeline.pause("handoff.chunk.before").nth(1);
    let mut running = pipeline
        .command(&["run"])
        .pause(&pause)
        .failpoint("spool.segment.after", "delay:1000")
        .wrong("spool-acknowledges-received")
        .start();
    pause.reached(&mut running);
    let mut sql = pipeline.sql();
    let before = sql.one("SELECT pg_current_wal_lsn()");
    sql.run("INSERT INTO r SELECT i, 1, md5(i::text) FROM generate_series(100001, 200000) i");
    wait_until("an acknowledgement inside the transaction", PATIENCE, || {
        slot(&mut sql, &pipeline, &format!("confirmed_flush_lsn > '{before}'")) == "t"
            && spool_files(&pipeline).len() > 1
    });
    pause.release();
    let finished = running.finish().expect_code(5);
    assert!(finished.stderr.contains("the replication slot stands at"), "{}", finished.stderr);
}

#[test]
fn a_drain_that_leaves_the_spool_out_is_caught() {
    let pipeline = undrained("spool_wrong_read", SPOOL);
    let end = pipeline.db.wal_position();
    let run = pipeline.command(&["run", "--until-lsn", &end]).wrong("spool-is-not-read");
    if run.finish().code() == 0 {
        let (code, found) = pipeline.verify();
        assert_eq!(code, 6, "the wrong way went unnoticed: {found:#}");
    }
}

/// A pipeline without a spool on a server of its own, with these lines under `[handoff]`.
fn guarded(name: &str, major: u32, settings: &[(&str, &str)], lines: &str) -> Pipeline {
    let mut pipeline = with_rows(TestDb::new(alone(major, settings), name));
    pipeline.config = SPOOL.replace("retain = \"spool\"\n", lines);
    pipeline
}

/// About `mib` MiB of WAL.
fn fill(sql: &mut Sql, mib: u32) {
    sql.run("CREATE TABLE IF NOT EXISTS filler(v text)");
    for _ in 0..mib {
        sql.run("INSERT INTO filler SELECT repeat('z', 1000) FROM generate_series(1, 950)");
    }
}

#[test]
fn the_guard_warns_with_bytes_margin_and_goes_on() {
    let lines = "max_retained_wal = \"24MiB\"\n";
    let mut pipeline = guarded("guard_warn", USUAL, &[], lines);
    pipeline.tables = "public.r".to_owned();
    let (mut running, pause) = held(&pipeline);
    fill(&mut pipeline.sql(), 24);
    wait_until("the warning", PATIENCE, || {
        let said = running.stderr();
        said.contains("makes the source keep") && said.contains("left to the limit of 24.0 MiB")
    });
    assert!(!running.has_ended());
    let status = pipeline.status();
    assert_eq!(status["slot"]["limit_bytes"], 24 * MIB);
    assert!(status["slot"]["margin_bytes"].is_u64(), "{status:#}");
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
}

#[test]
fn the_guard_begins_to_spool_in_the_middle_of_a_copy() {
    let lines = "max_retained_wal = \"24MiB\"\non_wal_limit = \"spool\"\n";
    let mut pipeline = guarded("guard_spool", USUAL, &[], lines);
    pipeline.tables = "public.r".to_owned();
    let (mut running, pause) = held(&pipeline);
    let mut sql = pipeline.sql();
    write(&mut sql, 0);
    let confirmed = slot(&mut sql, &pipeline, "confirmed_flush_lsn");
    fill(&mut sql, 24);
    wait_until("the spool to begin", PATIENCE, || {
        running.stderr().contains("the changes go to the lake from now on")
    });
    for round in 1..4 {
        write(&mut sql, round);
        sql.run("CHECKPOINT");
        wait_acknowledged(&pipeline, &mut running);
    }
    assert_ne!(slot(&mut sql, &pipeline, "confirmed_flush_lsn"), confirmed);
    let kept = retained(&mut sql, &pipeline);
    assert!(kept < 16 * MIB, "{kept} bytes of WAL are still kept");
    pause.release();
    caught_up(&pipeline, running);
    settled(&pipeline);
    assert_eq!(spool_files(&pipeline), Vec::<PathBuf>::new());
}

#[test]
fn the_guard_stops_the_snapshot_and_frees_the_wal_while_the_copy_still_hangs() {
    for (i, retain) in ["", "retain = \"spool\"\n"].into_iter().enumerate() {
        let lines = format!("max_retained_wal = \"24MiB\"\non_wal_limit = \"stop\"\n{retain}");
        let mut pipeline = guarded(&format!("guard_stop_{i}"), USUAL, &[], &lines);
        pipeline.tables = "public.r".to_owned();
        // With a spool: one that can't keep up, as its lake does not answer.
        let slow = [("spool.segment.before", "delay:3000")];
        let (running, pause) = held_with(&pipeline, &slow[..i]);
        let mut sql = pipeline.sql();
        write(&mut sql, 0);
        wait_until("the slot to be dropped", PATIENCE, || {
            fill(&mut sql, 4);
            slot(&mut sql, &pipeline, "slot_name").is_empty()
        });
        pause.release();
        let finished = running.finish().expect_code(1);
        for words in
            ["the snapshot was stopped and its slot dropped", "chunks copied so far are lost"]
        {
            assert!(finished.stderr.contains(words), "{}", finished.stderr);
        }
        assert!(!pipeline.table("r").exists(), "something is visible");
        assert_eq!(spool_files(&pipeline), Vec::<PathBuf>::new());
        assert_eq!(pipeline.status()["phase"], "failed");
        pipeline.run().succeed();
        settled(&pipeline);
    }
}

/// Field report 21: the server removed WAL that the slot needs, while the snapshot was copied.
#[test]
fn a_slot_lost_during_the_copy_is_said_and_ends_with_5_and_nothing_visible() {
    let settings =
        [("max_slot_wal_keep_size", "32MB"), ("min_wal_size", "32MB"), ("max_wal_size", "64MB")];
    let mut pipeline = guarded("guard_lost", 17, &settings, "");
    pipeline.tables = "public.r".to_owned();
    let (mut running, pause) = held(&pipeline);
    let mut sql = pipeline.sql();
    write(&mut sql, 0);
    wait_until("the slot to be lost", PATIENCE, || {
        fill(&mut sql, 20);
        sql.run("SELECT pg_switch_wal(); CHECKPOINT");
        slot(&mut sql, &pipeline, "wal_status") == "lost"
    });
    wait_until("it to be said", PATIENCE, || running.stderr().contains("is lost"));
    assert!(!running.has_ended());
    pause.release();
    let finished = running.finish().expect_code(5);
    for words in [
        "was lost while the snapshot was copied",
        "nothing was published",
        "max_slot_wal_keep_size",
    ] {
        assert!(finished.stderr.contains(words), "{words:?} is not in {}", finished.stderr);
    }
    assert!(!pipeline.table("r").exists(), "something is visible");
    pipeline.run().succeed();
    settled(&pipeline);
}

#[test]
fn a_slot_dropped_by_somebody_during_the_copy_is_said_too() {
    let pipeline = rows("guard_gone");
    let (running, pause) = held(&pipeline);
    let mut sql = pipeline.sql();
    let name = pipeline.db.name().to_owned();
    wait_for("the slot to be dropped", PATIENCE, || {
        let pid = slot(&mut sql, &pipeline, "active_pid");
        if !pid.is_empty() {
            sql.run(&format!("SELECT pg_terminate_backend({pid})"));
        }
        sql.attempt(&format!("SELECT pg_drop_replication_slot('{name}')")).ok()
    });
    // A writer that nobody will ever hear of.
    write(&mut sql, 0);
    wait_until("it to be noticed", PATIENCE, || {
        running.stderr().contains("is lost") || running.stderr().contains("does not exist")
    });
    pause.release();
    let finished = running.finish().expect_code(5);
    assert!(finished.stderr.contains("it was dropped"), "{}", finished.stderr);
    assert!(!pipeline.table("r").exists(), "something is visible");
}

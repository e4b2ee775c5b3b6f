//! Two processes of one pipeline: the second is refused while the first lives; one that was
//! stopped, taken over and goes on finds itself fenced and has written nothing visible.

mod support;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use serde_json::Value;
use support::database::TestDb;
use support::deltalog;
use support::pause::Pause;
use support::pipeline::Pipeline;
use support::program::{Finished, Running, Tidegate};
use support::proxy::{Mode, Proxy};
use support::s3;
use support::servers::{client_program, usual};
use support::{PATIENCE, wait_until};

/// How long a process may be silent before it is taken over, in these tests.
const SILENT: Duration = Duration::from_secs(2);

fn pipeline(name: &str) -> Pipeline {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.config.push_str("[limits]\ntakeover_after = \"2s\"\n");
    pipeline.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, repeat('x', 500) FROM generate_series(1, 4000) i;
         CREATE TABLE s(id int PRIMARY KEY, t text);
         INSERT INTO s SELECT i, 'row ' || i FROM generate_series(1, 50) i;
         ANALYZE",
    );
    pipeline
}

fn change(pipeline: &Pipeline, round: usize) {
    pipeline.sql().run(&format!(
        "UPDATE r SET n = n + 1 WHERE id % 50 = {round}; DELETE FROM r WHERE id = 51 + {round} * 50;
         INSERT INTO r SELECT max(id) + 1, 0, 'new' FROM r;
         UPDATE s SET t = t || '!' WHERE id = {round}"
    ));
}

#[track_caller]
fn settled(pipeline: &Pipeline) {
    pipeline.assert_equal();
    deltalog::assert_sound(&deltalog::local(pipeline.lake.path()));
}

/// Every commit of every log: what a reader or another writer can see.
fn visible(lake: &Arc<dyn ObjectStore>) -> BTreeMap<String, Vec<(u64, Vec<Value>)>> {
    deltalog::tables(lake)
        .into_iter()
        .map(|folder| (folder.clone(), deltalog::commits(lake, &folder)))
        .collect()
}

fn active_slots(pipeline: &Pipeline) -> String {
    pipeline.sql().one(&format!(
        "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = '{}'",
        pipeline.db.name()
    ))
}

/// What the server does by itself once `wal_sender_timeout` is over.
fn cut_the_stream(pipeline: &Pipeline) {
    let mut sql = pipeline.sql();
    wait_until("the slot to be free", PATIENCE, || {
        sql.run(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
             WHERE active AND slot_name = '{}'",
            pipeline.db.name()
        ));
        active_slots(pipeline) == "0"
    });
}

/// Refused on the same host and from another one.
#[track_caller]
fn refused(pipeline: &Pipeline, words: &str) {
    refused_with(pipeline.run().finish(), words);
    refused_with(elsewhere(pipeline, &["run"]).finish(), words);
}

#[track_caller]
fn refused_with(finished: Finished, words: &str) {
    let finished = finished.expect_code(4);
    assert!(finished.stderr.contains(words), "{words:?} is not in: {}", finished.stderr);
    assert!(finished.stderr.contains("next:"), "{}", finished.stderr);
}

#[test]
fn a_second_process_is_refused_while_the_first_streams() {
    let pipeline = pipeline("second_streaming");
    pipeline.run().succeed();
    let mut first = pipeline.follow();
    streams(&pipeline, &mut first);
    let before = visible(&deltalog::local(pipeline.lake.path())).len();
    refused(&pipeline, "is alive: process");
    // Nor may it begin a new generation, or take the slot away.
    for arguments in [&["run", "--resnapshot"][..], &["teardown", "--yes"]] {
        let finished = pipeline.command(arguments).finish();
        assert!([1, 4].contains(&finished.code()), "{arguments:?}: {}", finished.output());
    }
    change(&pipeline, 1);
    wait_until("the first to go on", PATIENCE, || {
        assert!(!first.has_ended(), "{}", first.output());
        pipeline.versions("r").len() > 1
    });
    first.signal("TERM");
    first.finish().expect_code(0);
    assert_eq!(visible(&deltalog::local(pipeline.lake.path())).len(), before);
    pipeline.run_to_now();
    settled(&pipeline);
}

#[test]
fn a_second_process_is_refused_while_the_first_copies_and_the_slot_is_free() {
    let pipeline = pipeline("second_copying");
    for (number, point) in
        ["handoff.chunk.before", "handoff.announced", "handoff.boundary", "handoff.publish.before"]
            .iter()
            .enumerate()
    {
        if number > 0 {
            // A new generation, from its beginning.
            change(&pipeline, number);
        }
        let pause = pipeline.pause(point);
        let run = if number == 0 { pipeline.run() } else { pipeline.run().arg("--resnapshot") };
        let mut first = run.pause(&pause).start();
        pause.reached(&mut first);
        assert_eq!(active_slots(&pipeline), "0");
        refused(&pipeline, "is alive: process");
        pause.release();
        first.finish().expect_code(0);
    }
    pipeline.run_to_now();
    settled(&pipeline);
}

#[test]
fn a_second_process_is_refused_while_the_first_tries_to_come_back() {
    let pipeline = pipeline("second_between");
    pipeline.run().succeed();
    change(&pipeline, 1);
    let mut first = pipeline.run().failpoint("stream.commit.before", "error").start();
    wait_until("a failed attempt", PATIENCE, || {
        assert!(!first.has_ended(), "{}", first.output());
        first.stderr().matches("trying again").count() > 2
    });
    // Between two attempts or in one of them.
    pipeline.run().finish().expect_code(4);
    drop(first);
    pipeline.run_to_now();
    settled(&pipeline);
}

/// Waits until a process streams from the slot.
fn streams(pipeline: &Pipeline, running: &mut Running) {
    wait_until("the stream", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        active_slots(pipeline) == "1"
    });
}

/// The server hears nothing of a machine that lost its power, and holds the slot for it.
#[test]
fn a_slot_that_the_server_holds_for_a_dead_machine_is_waited_for() {
    let pipeline = pipeline("power_lost");
    pipeline
        .sql()
        .run(&format!("ALTER DATABASE {} SET wal_sender_timeout = '6s'", pipeline.db.name()));
    pipeline.run().succeed();
    let proxy = Proxy::to(pipeline.db.server().port());
    let far = proxy.url(pipeline.db.name());
    let mut first = pipeline.command(&["run"]).env("TIDEGATE_SOURCE", far).start();
    streams(&pipeline, &mut first);
    proxy.set(Mode::BlackHole);
    drop(first.kill9());
    assert_eq!(active_slots(&pipeline), "1", "the server knows that its client is gone");
    change(&pipeline, 1);
    let finished = pipeline.run().succeed();
    assert!(finished.stderr.contains("wal_sender_timeout"), "{}", finished.stderr);
    settled(&pipeline);
    // A stop does not wait with it.
    proxy.set(Mode::Pass);
    let far = proxy.url(pipeline.db.name());
    let mut first = pipeline.command(&["run"]).env("TIDEGATE_SOURCE", far).start();
    streams(&pipeline, &mut first);
    proxy.set(Mode::BlackHole);
    drop(first.kill9());
    let mut waiting = pipeline.follow();
    wait_until("the wait for the slot", PATIENCE, || {
        assert!(!waiting.has_ended(), "{}", waiting.output());
        waiting.stderr().contains("waiting for up to")
    });
    waiting.signal("TERM");
    waiting.finish().expect_code(0);
}

/// A client that is none of ours has no lease; what it confirms shows that it is alive.
#[test]
fn a_stranger_who_streams_from_the_slot_is_seen_to_be_alive() {
    let pipeline = pipeline("stranger_streams");
    pipeline.run().succeed();
    let name = pipeline.db.name();
    let mut stranger = Command::new(client_program(pipeline.db.server(), "pg_recvlogical"))
        .args(["--start", "--file", "/dev/null", "--status-interval", "1", "--slot", name])
        .args(["--option", "proto_version=1", "--option"])
        .arg(format!("publication_names={name}"))
        .args(["--dbname", &pipeline.db.url()])
        .spawn()
        .unwrap();
    wait_until("the stranger to stream", PATIENCE, || {
        assert!(stranger.try_wait().unwrap().is_none(), "pg_recvlogical ended");
        active_slots(&pipeline) == "1"
    });
    let before = visible(&deltalog::local(pipeline.lake.path()));
    let refused = pipeline.run().finish();
    let new_generation = pipeline.run().arg("--resnapshot").finish();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    for finished in [refused, new_generation] {
        refused_with(finished, "another process is streaming");
    }
    assert_eq!(visible(&deltalog::local(pipeline.lake.path())), before);
}

#[test]
fn of_two_started_at_once_one_is_refused() {
    let pipeline = pipeline("two_at_once");
    let both: Vec<Running> = (0..2).map(|_| pipeline.run().start()).collect();
    let mut codes: Vec<i32> = both.into_iter().map(|run| run.finish().code()).collect();
    codes.sort_unstable();
    // The later one may also come when the first one is done.
    assert!(codes == [0, 4] || codes == [0, 0], "{codes:?}");
    pipeline.run_to_now();
    settled(&pipeline);
}

#[test]
fn one_that_was_killed_does_not_keep_the_next_one_waiting() {
    let mut pipeline = pipeline("killed");
    pipeline.config = pipeline.config.replace("\"2s\"", "\"10m\"");
    for point in ["handoff.chunk.after", "handoff.publish.before", "stream.commit.before"] {
        change(&pipeline, 1);
        pipeline.run().failpoint(point, "1*crash").finish().expect_signal();
    }
    let began = Instant::now();
    pipeline.run().succeed();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    settled(&pipeline);
}

#[test]
fn one_that_died_on_another_host_is_taken_over_after_a_while_and_not_before() {
    let pipeline = pipeline("elsewhere");
    pipeline.run().failpoint("handoff.chunk.after", "1*crash").finish().expect_signal();
    // As from another host: its number means nothing here.
    let alive = pipeline.lake.path().join("_tidegate/alive");
    let [left] = std::fs::read_dir(&alive).unwrap().collect::<Vec<_>>().try_into().unwrap();
    let left = left.unwrap().path();
    let mut beat: Value = serde_json::from_slice(&std::fs::read(&left).unwrap()).unwrap();
    beat["process"] = Value::Null;
    beat["host"] = "elsewhere".into();
    std::fs::write(&left, beat.to_string()).unwrap();
    let began = Instant::now();
    let finished = pipeline.run().succeed();
    assert!(began.elapsed() >= SILENT, "{:?}", began.elapsed());
    assert!(finished.stderr.contains("on elsewhere"), "{}", finished.stderr);
    assert!(finished.stderr.contains("taking over"), "{}", finished.stderr);
    assert!(!left.exists(), "the sign of life of the dead is left");
    assert!(alive.read_dir().unwrap().next().is_none(), "one that ended left a sign of life");
    settled(&pipeline);
}

/// `run` as on another host: with a state folder of its own.
fn elsewhere(pipeline: &Pipeline, arguments: &[&str]) -> Tidegate {
    let state = pipeline.state.path().join("elsewhere");
    pipeline.command(arguments).env("TIDEGATE_STATE_DIR", state)
}

/// Stops a first process at a point, lets a second one take over and finish, and lets the first
/// one go on: it must end as fenced, and what can be seen must not have changed.
fn woken_up(pipeline: &Pipeline, lake: &Arc<dyn ObjectStore>, pause: &Pause, what: &str) {
    let mut first = pipeline.command(&["run"]).pause(pause).start();
    pause.reached(&mut first);
    first.signal("STOP");
    pause.release();
    if active_slots(pipeline) != "0" {
        cut_the_stream(pipeline);
    }
    let end = pipeline.db.wal_position();
    elsewhere(pipeline, &["run", "--until-lsn", &end]).succeed();
    let before = visible(lake);
    let slot = |pipeline: &Pipeline| {
        pipeline.sql().rows(&format!(
            "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots
             WHERE slot_name = '{}'",
            pipeline.db.name()
        ))
    };
    let slot_before = slot(pipeline);
    assert_eq!(slot_before.len(), 1, "{what}: the second one has no slot");
    first.signal("CONT");
    let finished = first.finish();
    assert_eq!(finished.code(), 4, "{what}: {}", finished.output());
    let after = visible(lake);
    for (folder, commits) in &after {
        let known = before.get(folder).map_or(0, Vec::len);
        assert_eq!(commits.len(), known, "{what}: {folder} was written: {:#?}", commits.last());
    }
    assert_eq!(before, after, "{what}");
    assert_eq!(slot(pipeline), slot_before, "{what}: the slot was touched");
    deltalog::assert_sound(lake);
}

fn woken_up_in_a_snapshot(name: &str, points: &[(&str, u64)]) {
    for (number, (point, nth)) in points.iter().enumerate() {
        let pipeline = pipeline(&format!("{name}_{number}"));
        let pause = pipeline.pause(point).nth(*nth);
        let lake = deltalog::local(pipeline.lake.path());
        woken_up(&pipeline, &lake, &pause, &format!("{point} {nth}"));
        change(&pipeline, 1);
        pipeline.run().succeed();
        settled(&pipeline);
    }
}

#[test]
fn one_that_was_stopped_on_this_host_is_not_taken_over_but_named() {
    let pipeline = pipeline("stopped_here");
    let pause = pipeline.pause("handoff.chunk.before");
    let mut first = pipeline.run().pause(&pause).start();
    pause.reached(&mut first);
    first.signal("STOP");
    let before = visible(&deltalog::local(pipeline.lake.path()));
    let name = format!("process {} of this host", first.pid());
    refused_with(pipeline.run().finish(), &name);
    assert_eq!(visible(&deltalog::local(pipeline.lake.path())), before);
    first.signal("CONT");
    pause.release();
    first.finish().expect_code(0);
    settled(&pipeline);
}

#[test]
fn woken_up_before_the_copy_it_is_fenced() {
    woken_up_in_a_snapshot(
        "zombie_early",
        &[
            ("handoff.claim.before", 1),
            ("handoff.announced", 1),
            ("handoff.publication", 1),
            ("handoff.boundary", 1),
            ("lake.ledger.before", 1),
            ("lake.ledger.after", 1),
            ("lake.ledger.before", 2),
            ("lake.ledger.after", 3),
        ],
    );
}

#[test]
fn woken_up_in_the_copy_it_is_fenced() {
    woken_up_in_a_snapshot(
        "zombie_copy",
        &[
            ("handoff.chunk.before", 1),
            ("handoff.chunk.read", 2),
            ("lake.file.written", 2),
            ("handoff.chunk.after", 2),
            ("handoff.chunk.recorded", 1),
            ("lake.ledger.before", 4),
            ("handoff.validated", 1),
        ],
    );
}

#[test]
fn woken_up_while_it_publishes_it_is_fenced() {
    woken_up_in_a_snapshot(
        "zombie_publish",
        &[
            ("handoff.recorded", 1),
            ("handoff.publish.before", 1),
            ("lake.commit.before", 1),
            ("lake.commit.after", 1),
            ("handoff.publish.after", 1),
            ("lake.commit.before", 2),
            ("handoff.live.before", 1),
            ("handoff.live.after", 1),
        ],
    );
}

#[test]
fn woken_up_while_it_cleans_up_it_removes_nothing_of_the_next_one() {
    let pipeline = pipeline("zombie_cleanup");
    let pause = pipeline.pause("handoff.cleanup");
    // What makes it clean up.
    let mut first = pipeline.command(&["run"]).pause(&pause).wrong("lose-a-row").start();
    pause.reached(&mut first);
    first.signal("STOP");
    pause.release();
    // The next one stands in the middle of its copy, with files that nothing names yet.
    let after = pipeline.pause("handoff.chunk.after").nth(2);
    let mut second = elsewhere(&pipeline, &["run", "--until-caught-up"]).pause(&after).start();
    after.reached(&mut second);
    let lake = deltalog::local(pipeline.lake.path());
    let copied = |file: &String| deltalog::list(&lake).contains_key(file);
    let files = deltalog::orphans(&lake);
    let slot = format!(
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{}'",
        pipeline.db.name()
    );
    let slot_before = pipeline.sql().one(&slot);
    first.signal("CONT");
    let code = first.finish().code();
    assert!([1, 4].contains(&code), "{code}");
    assert_eq!(pipeline.sql().one(&slot), slot_before, "the slot of the next one is gone");
    let mine = files.iter().filter(|file| copied(file)).count();
    assert!(mine >= 2, "files of the next one are gone: {files:?}");
    after.release();
    second.finish().expect_code(0);
    settled(&pipeline);
}

#[test]
fn woken_up_in_a_stream_it_is_fenced() {
    let pipeline = pipeline("zombie_stream");
    pipeline.run().succeed();
    // Both hosts have an index of the table.
    elsewhere(&pipeline, &["run", "--until-caught-up"]).succeed();
    let lake = deltalog::local(pipeline.lake.path());
    for (round, point) in [
        "stream.commit.before",
        "apply.file.written",
        "lake.commit.before",
        "lake.commit.after",
        "stream.fence.before",
        "stream.fence.after",
    ]
    .iter()
    .enumerate()
    {
        change(&pipeline, round + 1);
        let pause = pipeline.pause(point);
        woken_up(&pipeline, &lake, &pause, point);
    }
    // The ledger's points are passed when the pipeline is claimed, too.
    for nth in 1..6 {
        for point in ["lake.ledger.before", "lake.ledger.after"] {
            change(&pipeline, nth as usize + 6);
            let pause = pipeline.pause(point).nth(nth);
            woken_up(&pipeline, &lake, &pause, &format!("{point} {nth}"));
        }
    }
    settled(&pipeline);
}

#[test]
fn in_a_bucket_it_is_the_same() {
    let mut pipeline = pipeline("zombie_s3");
    let bucket = s3::server().bucket("zombie");
    pipeline.env = bucket.environment();
    let lake = bucket.store();
    // Alive, in the middle of the copy: refused.
    let pause = pipeline.pause("handoff.chunk.before");
    let mut first = pipeline.run().pause(&pause).start();
    pause.reached(&mut first);
    refused(&pipeline, "is alive: process");
    pause.release();
    first.finish().expect_code(0);
    // Stopped at a commit and at a fence, taken over, woken up: fenced.
    for (round, point) in
        ["lake.commit.before", "stream.fence.before", "apply.file.written"].iter().enumerate()
    {
        change(&pipeline, round + 1);
        let pause = pipeline.pause(point);
        woken_up(&pipeline, &lake, &pause, point);
    }
    pipeline.assert_equal();
    deltalog::assert_sound(&lake);
}

/// What was copied again belongs to a boundary that the next owner has left behind.
#[test]
fn one_that_wakes_up_while_tables_change_changes_nothing() {
    let points = [
        "again.boundary",
        "again.copied",
        "again.publish.before",
        "again.publish.after",
        "schema.commit.before",
        "schema.commit.after",
    ];
    for (number, point) in points.into_iter().enumerate() {
        let pipeline = pipeline(&format!("wakes_in_change_{number}"));
        pipeline.run().succeed();
        pipeline.sql().run(
            "ALTER TABLE r ADD c int DEFAULT 7; UPDATE r SET n = n + 1 WHERE id = 1;
             ALTER TABLE s ADD c int; INSERT INTO s VALUES (51, 'new', 1)",
        );
        let pause = pipeline.pause(point).nth(1);
        let lake = deltalog::local(pipeline.lake.path());
        woken_up(&pipeline, &lake, &pause, point);
        pipeline.sql().run("UPDATE r SET n = n + 1 WHERE id % 50 = 1; DELETE FROM s WHERE id = 7");
        pipeline.run().succeed();
        settled(&pipeline);
    }
}

//! The main job on a real S3 server: the same promise as on a local disk.

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use support::database::TestDb;
use support::http_proxy::{Proxy, Spoil};
use support::judge::{self, At, Engine};
use support::pipeline::Pipeline;
use support::s3::{self, Bucket};
use support::servers::usual;
use support::{PATIENCE, deltalog, wait_until};

fn pipeline(name: &str) -> (Pipeline, Bucket) {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), name));
    let bucket = s3::server().bucket(name);
    pipeline.env = bucket.environment();
    pipeline.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, repeat('x', 500) FROM generate_series(1, 6000) i;
         CREATE TABLE s(id int PRIMARY KEY, t text);
         INSERT INTO s SELECT i, 'row ' || i FROM generate_series(1, 50) i;
         ANALYZE",
    );
    (pipeline, bucket)
}

fn change(pipeline: &Pipeline, round: usize) {
    pipeline.sql().run(&format!(
        "UPDATE r SET n = n + 1 WHERE id % 50 = {round}; DELETE FROM r WHERE id = 51 + {round} * 50;
         INSERT INTO r SELECT max(id) + 1, 0, 'new' FROM r;
         UPDATE s SET t = t || '!' WHERE id = {round}"
    ));
}

#[track_caller]
fn settled(pipeline: &Pipeline, bucket: &Bucket) {
    pipeline.assert_equal();
    deltalog::assert_sound(&bucket.store());
    assert!(pipeline.lake.path().read_dir().unwrap().next().is_none(), "written to the local disk");
}

#[test]
fn the_lake_in_a_bucket_equals_the_source_and_every_version_reads_alike() {
    let (mut pipeline, bucket) = pipeline("s3_job");
    // More than one part: rows that do not compress, in one chunk.
    pipeline.config = pipeline.config.replace("1MiB", "256MiB");
    pipeline.sql().run(
        "CREATE TABLE big(id int PRIMARY KEY, pad text);
         ALTER TABLE big ALTER pad SET STORAGE EXTERNAL;
         INSERT INTO big SELECT i, (SELECT string_agg(md5((i * 1000 + j)::text), '')
                                    FROM generate_series(1, 256) j)
         FROM generate_series(1, 4000) i; ANALYZE big",
    );
    let log = pipeline.state.path().join("operations");
    pipeline
        .run()
        .env("TIDEGATE_STORE_FAULTS", "complete * 1+ slow:0")
        .env("TIDEGATE_STORE_FAULTS_LOG", &log)
        .succeed();
    let operations = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(operations.contains("/public/big/part-"), "no upload in parts: {operations}");
    for round in 1..4 {
        change(&pipeline, round);
        pipeline.run().succeed();
    }
    settled(&pipeline, &bucket);
    let url = format!("{}/public/r", bucket.url());
    let versions = pipeline.versions("r");
    assert!(versions.len() >= 4, "{versions:#?}");
    let mut rows = BTreeSet::new();
    for version in &versions {
        let version = version["version"].as_u64().unwrap();
        let [duckdb, deltalake] = [Engine::DuckDb, Engine::DeltaLake]
            .map(|engine| judge::rows_in_s3(engine, &url, version, &bucket.for_judges()));
        assert_eq!(judge::difference(&duckdb.rows, &deltalake.rows), None, "version {version}");
        rows.insert(duckdb.rows);
    }
    assert!(rows.len() >= 4, "the versions do not differ");
    let newest = judge::rows_in_s3(Engine::DuckDb, &url, At::Newest, &bucket.for_judges());
    assert_eq!(newest.rows.len().to_string(), pipeline.sql().one("SELECT count(*) FROM r"));
}

#[test]
fn a_bucket_that_creates_twice_would_be_refused_and_this_one_does_not() {
    let (pipeline, _bucket) = pipeline("s3_check");
    let checked = pipeline.command(&["check", "--json"]).finish();
    let found = checked.json();
    let findings = found["findings"].as_array().unwrap();
    assert!(findings.iter().all(|f| f["subject"] != "lake"), "{found:#}");
    // A wrong key is told at once: no waiting makes it right.
    let denied = pipeline.command(&["check"]).env("AWS_SECRET_ACCESS_KEY", "wrong").finish();
    assert!([1, 3].contains(&denied.code()), "{}", denied.output());
    for word in ["403", "next:"] {
        assert!(denied.output().contains(word), "{}", denied.output());
    }
    assert!(!denied.output().contains("trying again"), "{}", denied.output());
}

/// Runs through a proxy that spoils some requests.
fn through(
    name: &str,
    rule: impl FnMut(&str, &str) -> Option<Spoil> + Send + 'static,
    run: impl Fn(&Pipeline, &Proxy),
) {
    let (mut pipeline, bucket) = pipeline(name);
    let proxy = Proxy::of(&s3::server().address(), rule);
    pipeline.env = bucket.through(proxy.address()).environment();
    run(&pipeline, &proxy);
    assert!(proxy.spoiled() > 0, "nothing was spoiled");
    pipeline.env = bucket.environment();
    pipeline.run_to_now();
    settled(&pipeline, &bucket);
}

/// Every second commit is spoiled in this way.
fn commits(spoil: Spoil) -> impl FnMut(&str, &str) -> Option<Spoil> + Send {
    let mut seen = BTreeSet::new();
    move |method, path| {
        let commit = method == "PUT" && path.contains("/_delta_log/");
        // Each object once, or its retries would be spoiled for ever.
        (commit && seen.insert(path.to_owned()) && seen.len() % 2 == 0).then_some(spoil)
    }
}

fn a_few_batches(pipeline: &Pipeline, _: &Proxy) {
    pipeline.run().succeed();
    for round in 1..4 {
        change(pipeline, round);
        pipeline.run().succeed();
    }
}

#[test]
fn a_commit_that_was_stored_but_answered_500_is_recognised_as_ours() {
    // The client puts it again by itself, and hears that it exists.
    through("s3_lost", commits(Spoil::LostAnswer), a_few_batches);
}

#[test]
fn a_commit_whose_answer_was_cut_off_is_recognised_as_ours() {
    through("s3_cut", commits(Spoil::CutAnswer), a_few_batches);
}

#[test]
fn a_bucket_that_throttles_stops_nothing() {
    let mut count = 0;
    let every_fifth = move |_: &str, _: &str| {
        count += 1;
        (count % 5 == 0).then_some(Spoil::Throttled)
    };
    through("s3_throttle", every_fifth, a_few_batches);
}

#[test]
fn rights_lost_in_mid_run_stop_it_in_words_and_nothing_is_lost() {
    let mut denied = false;
    let rule = move |method: &str, path: &str| {
        denied |= method == "PUT" && path.contains("/public/r/_delta_log/00000000000000000001");
        denied.then_some(Spoil::Denied)
    };
    through("s3_denied", rule, |pipeline, _| {
        pipeline.run().succeed();
        change(pipeline, 1);
        let finished = pipeline.run().finish().expect_code(1);
        assert!(finished.stderr.contains("next:"), "{}", finished.stderr);
        assert!(finished.stderr.contains("public/r"), "{}", finished.stderr);
    });
}

#[test]
fn a_server_that_is_away_is_waited_for() {
    let first = |_: &str, path: &str| path.contains("nothing").then_some(Spoil::Denied);
    let (mut pipeline, bucket) = pipeline("s3_away");
    let proxy = Proxy::of(&s3::server().address(), first);
    pipeline.env = bucket.through(proxy.address()).environment();
    pipeline.run().succeed();
    let mut running = pipeline.follow();
    wait_until("the stream", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        pipeline.sql().one("SELECT count(*) FROM pg_replication_slots WHERE active") != "0"
    });
    proxy.set_away(true);
    change(&pipeline, 1);
    // The store's own client tries for a while before anybody says anything.
    wait_until("the store to be missed", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        running.stderr().contains("trying again")
    });
    proxy.set_away(false);
    let end = pipeline.db.wal_position();
    wait_until("the change to arrive", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        let versions = pipeline.versions("r");
        versions.len() > 1 && !end.is_empty()
    });
    running.signal("TERM");
    running.finish_within(Duration::from_secs(60)).expect_code(0);
    pipeline.run_to_now();
    settled(&pipeline, &bucket);
}

fn faults_log(pipeline: &Pipeline) -> PathBuf {
    pipeline.state.path().join("faults")
}

#[test]
fn uploads_that_fail_in_any_part_leave_no_trace() {
    for (number, rules) in [
        "upload * 1-2 error",
        "part * 1 error",
        "part * 2 lost",
        "complete * 1 error",
        "complete * 1 lost",
        "part * 1 timeout:50; complete * 1 throttle",
    ]
    .iter()
    .enumerate()
    {
        let (mut pipeline, bucket) = pipeline(&format!("s3_parts_{number}"));
        pipeline.config = pipeline.config.replace("1MiB", "256MiB");
        pipeline.sql().run(
            "CREATE TABLE big(id int PRIMARY KEY, pad text);
             ALTER TABLE big ALTER pad SET STORAGE EXTERNAL;
             INSERT INTO big SELECT i, (SELECT string_agg(md5((i * 1000 + j)::text), '')
                                        FROM generate_series(1, 256) j)
             FROM generate_series(1, 2500) i; ANALYZE big",
        );
        pipeline
            .run()
            .env("TIDEGATE_STORE_FAULTS", rules)
            .env("TIDEGATE_STORE_FAULTS_LOG", faults_log(&pipeline))
            .succeed();
        let met = std::fs::read_to_string(faults_log(&pipeline)).unwrap_or_default();
        assert!(!met.is_empty(), "{rules}: no fault came");
        settled(&pipeline, &bucket);
    }
}

#[test]
fn a_copy_that_is_killed_keeps_its_finished_chunks_in_the_bucket() {
    let (pipeline, bucket) = pipeline("s3_resume");
    for (nth, kept) in [(3, None), (2, Some("chunks=2"))] {
        let before = pipeline.pause("handoff.chunk.before").nth(nth);
        let mut running = pipeline.run().pause(&before).start();
        before.reached(&mut running);
        wait_until("the chunks to be recorded", PATIENCE, || {
            let status = pipeline.status();
            let tables = status["tables"].as_array().unwrap();
            let copied = tables.iter().map(|table| table["chunks_copied"].as_u64().unwrap());
            copied.sum::<u64>() == if kept.is_none() { 2 } else { 3 }
        });
        let killed = running.kill9();
        let said = |words: &str| killed.stderr.contains(words);
        assert!(kept.is_none_or(said), "{}", killed.stderr);
        change(&pipeline, nth as usize);
    }
    let run = pipeline.run().succeed();
    assert!(run.stderr.contains("chunks=3"), "{}", run.stderr);
    change(&pipeline, 9);
    pipeline.run_to_now();
    settled(&pipeline, &bucket);
}

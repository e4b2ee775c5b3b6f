//! A source that fails: restarted, killed, cut off, silent, impatient or full. What may pass is tried
//! again with a line in the log; nothing is lost and nothing is there twice.

mod support;

use std::time::{Duration, Instant};

use support::database::Sql;
use support::program::Running;
use support::proxy::{Mode, Proxy, Way};
use support::site::{DATABASE, Site};
use support::{PATIENCE, wait_until};
use tidegate::source::options::ConnectOptions;
use tidegate::source::wire::{SessionKind, Wire};

/// A table of five chunks: 10,000 rows of half a kilobyte.
fn site(major: u32, settings: &[(&str, &str)]) -> Site {
    let mut site = Site::new(major, settings);
    site.sql().run(
        "CREATE TABLE r(id int PRIMARY KEY, n int NOT NULL, pad text);
         INSERT INTO r SELECT i, 0, repeat('x', 500) FROM generate_series(1, 10000) i;
         ANALYZE r",
    );
    site.config += "[limits]\nsource_timeout = \"4s\"\nconnect_timeout = \"2s\"\n";
    site
}

#[track_caller]
fn settled(site: &mut Site) {
    // Judged over a way without faults.
    let source = site.source.take();
    site.run_to_now();
    site.assert_equal();
    site.source = source;
}

/// Waits until it said so.
#[track_caller]
fn says(running: &mut Running, words: &[&str]) {
    wait_until(&format!("{words:?} in the log"), PATIENCE, || {
        let said = running.stderr();
        let all = words.iter().all(|word| said.contains(word));
        assert!(all || !running.has_ended(), "ended without {words:?}: {}", running.output());
        all
    });
}

/// Every retry says what failed, where the pipeline stands, how long it waits and what to do.
const RETRY: &[&str] = &["trying again", "fence=", "chunks=", "wait_ms=", "next="];

#[derive(Clone, Copy, Debug)]
enum Stop {
    Fast,
    Immediate,
    Kill9,
}

fn restart(site: &mut Site, how: Stop) {
    match how {
        Stop::Fast => site.server.stop(),
        Stop::Immediate => site.server.stop_at_once(),
        Stop::Kill9 => site.server.kill9(),
    }
    .unwrap();
    site.server.restart().unwrap();
}

/// Does `fault` while the second chunk waits to be copied, and once more while the first batch of
/// the stream waits for its commit. The run must get over both.
fn over(site: &mut Site, retried: bool, mut fault: impl FnMut(&mut Site)) -> String {
    // Before 14 a table is one chunk.
    let chunk = if site.server.major() < 14 { 1 } else { 2 };
    let copying = site.pause("handoff.chunk.before").nth(chunk);
    let mut running = site.run().pause(&copying).start();
    copying.reached(&mut running);
    site.sql().run("UPDATE r SET n = 1 WHERE id % 3 = 0; DELETE FROM r WHERE id % 7 = 0");
    fault(site);
    copying.release();
    let mut said = running.finish().expect_code(0).output();
    let committing = site.pause("stream.commit.before").nth(1);
    site.sql().run("UPDATE r SET n = 2 WHERE id % 3 = 0; INSERT INTO r VALUES (20001, 1, 'new')");
    let end = site.sql().one("SELECT pg_current_wal_insert_lsn()");
    let mut running = site.command(&["run", "--until-lsn", &end]).pause(&committing).start();
    committing.reached(&mut running);
    site.sql().run("UPDATE r SET n = 3 WHERE id % 5 = 0");
    fault(site);
    committing.release();
    said += &running.finish().expect_code(0).output();
    if retried {
        for word in RETRY {
            assert!(said.contains(word), "{word:?} is not in: {said}");
        }
    }
    settled(site);
    said
}

#[test]
fn a_server_that_is_restarted_loses_nothing() {
    for (major, how) in [(13, Stop::Fast), (15, Stop::Immediate), (18, Stop::Kill9)] {
        let mut site = site(major, &[]);
        over(&mut site, true, |site| restart(site, how));
    }
}

#[test]
fn a_session_that_is_terminated_is_made_anew() {
    let mut site = site(17, &[]);
    over(&mut site, true, |site| {
        site.sql().run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'tidegate'",
        );
    });
}

#[test]
fn a_snapshot_outlives_the_connection_that_exported_it() {
    let mut site = site(16, &[]);
    site.config = site.config.replace("workers = 1", "workers = 2");
    let copying = site.pause("handoff.chunk.after").nth(1);
    let mut running = site.run().pause(&copying).start();
    copying.reached(&mut running);
    let mut sql = site.sql();
    sql.run("UPDATE r SET n = 1 WHERE id % 3 = 0");
    // The exporter is the only walsender; then one of the copying sessions, which comes back.
    let ended = sql.one(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE backend_type = 'walsender'",
    );
    assert_eq!(ended, "1");
    let ended = sql.one(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name = 'tidegate' AND query LIKE 'COPY%'",
    );
    assert_ne!(ended, "0");
    copying.release();
    let said = running.finish().expect_code(0).output();
    // The chunk alone is copied again, at the same position: the locks' session exported it too.
    assert!(!said.contains("wait_ms="), "the whole snapshot was taken again: {said}");
    assert_eq!(said.matches("snapshot exported").count(), 1, "{said}");
    settled(&mut site);
}

#[test]
fn a_connection_cut_in_the_middle_of_a_message_costs_nothing() {
    // A COPY and a stream send much to us; a status of ours is 39 bytes, so it is cut in it.
    for (major, way, bytes) in
        [(14, Way::ToClient, 100_001), (18, Way::ToClient, 9_999), (17, Way::ToServer, 20)]
    {
        let mut site = site(major, &[]);
        let proxy = Proxy::to(site.server.port());
        site.source = Some(proxy.url(DATABASE));
        over(&mut site, false, |_| proxy.set(Mode::CutAfter(way, bytes)));
        assert_eq!(proxy.cuts(), 2, "{way:?}: not cut where it should have been");
    }
}

/// The timers of the program's connections to the port, by `/proc/net/tcp`: whether it is the
/// keepalive's, and in how many seconds it fires. On our side, or on the server's.
fn keepalives(running: &Running, port: u16, ours: bool) -> Vec<(bool, u64)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let sockets: Vec<Vec<&str>> =
        table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let port_of = |address: &str| u16::from_str_radix(&address[9..], 16).unwrap();
    let fds = std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap();
    let inodes: Vec<String> = fds
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(link.to_owned())
        })
        .collect();
    let mine = sockets.iter().filter(|socket| {
        port_of(socket[2]) == port && inodes.iter().any(|inode| inode == socket[9])
    });
    let mut found = Vec::new();
    for socket in mine {
        let side = if ours {
            socket
        } else {
            let back = |other: &&&Vec<&str>| other[1] == socket[2] && other[2] == socket[1];
            sockets.iter().find(|other| back(&other)).unwrap()
        };
        let (kind, jiffies) = side[5].split_once(':').unwrap();
        found.push((kind == "02", u64::from_str_radix(jiffies, 16).unwrap() / 100));
    }
    found
}

/// A peer that is gone without a word is found by its system's silence, on both sides, also where
/// nothing is expected of it for hours.
#[test]
fn connections_that_wait_are_watched_by_keepalives_on_both_sides() {
    let site = site(16, &[]);
    let copying = site.pause("handoff.chunk.before").nth(2);
    let mut running = site.run().pause(&copying).start();
    copying.reached(&mut running);
    for ours in [true, false] {
        wait_until("keepalive timers on every connection", PATIENCE, || {
            let timers = keepalives(&running, site.server.port(), ours);
            timers.len() >= 3 && timers.iter().all(|(keepalive, in_s)| *keepalive && *in_s <= 30)
        });
    }
    copying.release();
    running.finish().expect_code(0);
}

#[test]
fn a_network_that_swallows_everything_is_noticed_in_the_copy() {
    let mut site = site(17, &[]);
    let proxy = Proxy::to(site.server.port());
    site.source = Some(proxy.url(DATABASE));
    let copying = site.pause("handoff.chunk.before").nth(2);
    let mut running = site.run().pause(&copying).start();
    copying.reached(&mut running);
    proxy.set(Mode::BlackHole);
    copying.release();
    says(&mut running, &["nothing was heard of the server for 4s", "look at the network"]);
    says(&mut running, RETRY);
    proxy.set(Mode::Pass);
    running.finish().expect_code(0);
    settled(&mut site);
}

#[test]
fn a_network_that_swallows_everything_is_noticed_in_the_stream() {
    // The server notices too, and lets go of the slot.
    let mut site = site(18, &[("wal_sender_timeout", "4s")]);
    let proxy = Proxy::to(site.server.port());
    site.source = Some(proxy.url(DATABASE));
    site.run().succeed();
    let mut running = site.follow();
    wait_until("the stream", PATIENCE, || site.status()["slot"]["active"] == true);
    proxy.set(Mode::BlackHole);
    site.sql().run("UPDATE r SET n = 1 WHERE id % 3 = 0");
    says(&mut running, &["nothing was heard of the server for 4s in the replication stream"]);
    says(&mut running, RETRY);
    proxy.set(Mode::Pass);
    follows_to_now(&site, &mut running);
    running.signal("TERM");
    running.finish().expect_code(0);
    settled(&mut site);
}

#[test]
fn a_network_that_swallows_everything_is_noticed_in_a_query_of_the_catalog() {
    let mut site = site(15, &[]);
    let proxy = Proxy::to(site.server.port());
    site.source = Some(proxy.url(DATABASE));
    let announced = site.pause("handoff.announced").nth(1);
    let mut running = site.run().pause(&announced).start();
    announced.reached(&mut running);
    proxy.set(Mode::BlackHole);
    announced.release();
    says(&mut running, &["looking at publication site failed", "trying again"]);
    // And in a connection that is being made.
    says(&mut running, &["no answer in time"]);
    proxy.set(Mode::Pass);
    running.finish().expect_code(0);
    settled(&mut site);
}

/// Waits until everything that has committed by now is in the lake.
fn follows_to_now(site: &Site, running: &mut Running) {
    use tidegate::position::Lsn;
    let mut sql = site.sql();
    sql.run("UPDATE r SET n = n + 1 WHERE id = 1");
    let end: Lsn = sql.one("SELECT pg_current_wal_insert_lsn()").parse().unwrap();
    sql.run("SELECT pg_logical_emit_message(true, 'test', '')");
    wait_until("the lake to follow", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        let status = site.command(&["status", "--json"]).env("TIDEGATE_SOURCE", "").succeed();
        status.json()["fence"].as_str().is_some_and(|text| text.parse::<Lsn>().unwrap() >= end)
    });
}

fn wire(url: &str) -> Wire {
    let mut options = ConnectOptions::from_url(url).unwrap();
    options.silence_limit = Duration::from_secs(1);
    Wire::connect(&options, SessionKind::Query).unwrap()
}

#[test]
fn a_long_statement_that_sends_nothing_is_waited_for() {
    let site = site(16, &[]);
    let mut wire = wire(&site.server.url(DATABASE));
    wire.simple_query("SELECT pg_sleep(4)").unwrap();
    let mut copy = wire.copy_out("COPY (SELECT pg_sleep(4)::text) TO STDOUT").unwrap();
    assert!(copy.next().unwrap().is_some());
    assert!(copy.next().unwrap().is_none());
    assert_eq!(wire.simple_query("SELECT 1").unwrap(), [[Some("1".to_owned())]]);
}

#[test]
fn an_answer_that_never_arrives_is_told_from_a_long_statement() {
    let site = site(13, &[]);
    let proxy = Proxy::to(site.server.port());
    // The connections from before never come back; new ones pass.
    let swallow = || {
        proxy.set(Mode::BlackHole);
        std::thread::sleep(Duration::from_millis(200));
        proxy.set(Mode::Pass);
    };
    let mut idle = wire(&proxy.url(DATABASE));
    let mut busy = wire(&proxy.url(DATABASE));
    let mut killed = wire(&proxy.url(DATABASE));
    let mut copy = busy
        .copy_out("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO STDOUT")
        .unwrap();
    assert!(copy.next().unwrap().is_some());
    let pid = killed.cancel_handle().process_id().unwrap();
    swallow();
    let error = idle.simple_query("SELECT 1").unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("nothing arrived"), "{error}");
    let error = loop {
        match copy.next() {
            Ok(row) => assert!(row.is_some()),
            Err(error) => break error,
        }
    };
    assert!(error.is_transient() && error.to_string().contains("it is sending"), "{error}");
    site.sql().run(&format!("SELECT pg_terminate_backend({pid})"));
    let error = killed.simple_query("SELECT 1").unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("process is gone"), "{error}");
}

#[test]
fn impatient_settings_of_role_and_server_do_not_reach_our_sessions() {
    for major in [13, 17] {
        let mut site = site(major, &[("wal_sender_timeout", "3s")]);
        let mut sql = site.sql();
        let mut settings = vec![
            ("statement_timeout", "'300ms'"),
            ("idle_in_transaction_session_timeout", "'300ms'"),
            ("lock_timeout", "'300ms'"),
            ("wal_sender_timeout", "'2s'"),
        ];
        if major >= 14 {
            settings.push(("idle_session_timeout", "'300ms'"));
        }
        if major >= 17 {
            settings.push(("transaction_timeout", "'2s'"));
        }
        for (name, value) in &settings {
            sql.run(&format!("ALTER DATABASE {DATABASE} SET {name} = {value}"));
        }
        // Slow chunks, and then a lake that stands still for longer than the server's patience:
        // the reader goes on answering.
        let finished = site
            .run()
            .failpoint("handoff.chunk.read", "delay:500")
            .failpoint("handoff.boundary", "delay:1000")
            .succeed();
        assert!(!finished.stderr.contains("again"), "{}", finished.stderr);
        let mut admin = Sql::connect(&site.server.url("postgres"));
        let held = site.pause("stream.commit.before").nth(1);
        let mut running = site.command(&["run"]).pause(&held).start();
        admin.run("SELECT 1");
        change(&site, 1);
        held.reached(&mut running);
        // More batches than the queue takes, so that the reader stands before a full one.
        for i in 2..12 {
            change(&site, i);
            std::thread::sleep(Duration::from_millis(150));
        }
        let walsender =
            "SELECT pid::text FROM pg_stat_replication WHERE application_name = 'tidegate'";
        let (pid, since) = (admin.one(walsender), admin.one("SELECT clock_timestamp()"));
        wait_until("three times the server's patience", PATIENCE, || {
            admin.one(&format!("SELECT clock_timestamp() > '{since}'::timestamptz + interval '7s'"))
                == "t"
        });
        assert_eq!(admin.one(walsender), pid, "the stream was cut: {}", running.output());
        held.release();
        wait_until("the lake to follow", PATIENCE, || {
            assert!(!running.has_ended(), "{}", running.output());
            site.versions("r").last().unwrap()["applied"] != site.versions("r")[0]["applied"]
        });
        running.signal("TERM");
        let finished = running.finish().expect_code(0);
        assert!(!finished.stderr.contains("trying again"), "{}", finished.stderr);
        for (name, _) in &settings {
            sql = Sql::connect(&site.server.url("postgres"));
            sql.run(&format!("ALTER DATABASE {DATABASE} RESET {name}"));
        }
        settled(&mut site);
    }
}

fn change(site: &Site, i: i32) {
    // A session of its own: the database's settings would end a longer one.
    site.sql().run(&format!("UPDATE r SET n = n + 1 WHERE id % 100 = {i}"));
}

#[test]
fn a_server_without_a_free_connection_is_waited_for() {
    let mut site = site(15, &[("max_connections", "12"), ("max_wal_senders", "4")]);
    let mut taken = Vec::new();
    while taken.len() < 12 {
        let url = site.server.url("postgres");
        match std::panic::catch_unwind(|| Sql::connect(&url)) {
            Ok(connection) => taken.push(connection),
            Err(_) => break,
        }
    }
    let mut running = site.run().start();
    says(&mut running, &["53300", "max_connections"]);
    says(&mut running, RETRY);
    drop(taken);
    running.finish().expect_code(0);
    settled(&mut site);
}

#[test]
fn a_server_that_stays_away_is_given_up_in_the_time_set() {
    let mut site = site(16, &[]);
    site.run().succeed();
    site.config = site.config.replace("[limits]\n", "[limits]\nretry_for = \"2s\"\n");
    site.server.stop().unwrap();
    let began = Instant::now();
    let finished = site.run().finish().expect_code(1);
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    for word in RETRY.iter().chain(&["nothing listens there", "retry_for"]) {
        assert!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
    site.server.restart().unwrap();
    settled(&mut site);
}

#[test]
fn a_pipeline_that_makes_progress_between_faults_is_never_given_up() {
    let mut site = site(17, &[]);
    site.run().succeed();
    site.config = site.config.replace("[limits]\n", "[limits]\nretry_for = \"8s\"\n");
    let mut running = site.follow();
    let began = Instant::now();
    let mut round = 0;
    while round < 4 || began.elapsed() < Duration::from_secs(20) {
        round += 1;
        follows_to_now(&site, &mut running);
        site.sql().run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'tidegate'",
        );
    }
    follows_to_now(&site, &mut running);
    running.signal("TERM");
    let finished = running.finish().expect_code(0);
    assert!(finished.stderr.matches("trying again").count() >= 3, "{}", finished.stderr);
    settled(&mut site);
}

#[test]
fn a_slow_network_is_not_taken_for_a_dead_one() {
    let mut site = site(14, &[]);
    let proxy = Proxy::to(site.server.port());
    site.source = Some(proxy.url(DATABASE));
    let copying = site.pause("handoff.chunk.before").nth(1);
    let mut running = site.run().pause(&copying).start();
    copying.reached(&mut running);
    proxy.set(Mode::Slow(150_000));
    copying.release();
    // Long enough to be taken for dead, if it were.
    let since = Instant::now();
    wait_until("the limit to pass", PATIENCE, || since.elapsed() > Duration::from_secs(9));
    assert!(!running.has_ended(), "it was not slow: {}", running.output());
    proxy.set(Mode::Pass);
    let finished = running.finish().expect_code(0);
    assert!(!finished.stderr.contains("again"), "{}", finished.stderr);
    settled(&mut site);
}

/// A server that shuts down waits until its walsenders' clients have confirmed all it sent.
#[test]
fn a_server_that_is_shut_down_does_not_wait_for_us() {
    let soon = Duration::from_secs(25);
    for major in [14, 18] {
        let mut site = site(major, &[]);
        site.run().succeed();
        // A batch that would end in ten minutes.
        let plain = site.config.clone();
        site.config = plain.replace("interval = \"100ms\"", "interval = \"10m\"");
        assert_ne!(site.config, plain);
        let mut running = site.command(&["run"]).start();
        wait_until("the stream", PATIENCE, || {
            assert!(!running.has_ended(), "{}", running.output());
            site.sql().one("SELECT bool_or(active) FROM pg_replication_slots") == "t"
        });
        site.sql().run("UPDATE r SET n = 1 WHERE id % 3 = 0");
        let began = Instant::now();
        site.server.stop().unwrap();
        assert!(began.elapsed() < soon, "{major}, a batch: {:?}", began.elapsed());
        site.server.restart().unwrap();
        running.signal("TERM");
        running.finish().expect_code(0);
        // A fence that waits for a table that is read again, which waits for the server.
        let copied = site.pause("again.copied");
        let mut running = site.command(&["run"]).pause(&copied).start();
        site.sql().run("ALTER TABLE r ADD c int DEFAULT 7");
        copied.reached(&mut running);
        site.sql().run("INSERT INTO r VALUES (30001, 1, 'new')");
        let began = Instant::now();
        site.server.stop().unwrap();
        assert!(began.elapsed() < soon, "{major}, a held fence: {:?}", began.elapsed());
        copied.release();
        site.server.restart().unwrap();
        says(&mut running, &["trying again"]);
        running.signal("TERM");
        running.finish().expect_code(0);
        site.config = plain;
        settled(&mut site);
    }
}

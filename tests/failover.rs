//! Two servers: a promoted standby is followed without a gap where the slot was kept in step
//! (PostgreSQL 17 and later), and refused where it was not; a standby is a source (16 and later).

mod support;

use std::fs;

use support::database::Sql;
use support::program::Running;
use support::servers::{copied_server, copy_data};
use support::site::{DATABASE, NAME, Site};
use support::{PATIENCE, folder, wait_until};
use tidegate::demo::server::{Options, PrivateServer};
use tidegate::position::Lsn;

/// A physical standby of the site's server, over a slot of its own.
fn standby_of(site: &mut Site, settings: &[(&str, &str)]) -> PrivateServer {
    let major = site.server.major();
    site.sql().run("SELECT pg_create_physical_replication_slot('standby', true)");
    site.server.stop().unwrap();
    let place = folder("standby");
    let data = place.path().join("data");
    copy_data(&site.server.data(), &data);
    site.server.restart().unwrap();
    // Slots are no part of a base backup.
    for slot in fs::read_dir(data.join("pg_replslot")).unwrap().map(Result::unwrap) {
        fs::remove_dir_all(slot.path()).unwrap();
    }
    let primary = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres application_name=standby",
        site.server.port()
    );
    let mut all = vec![
        ("primary_conninfo".to_owned(), primary),
        ("primary_slot_name".to_owned(), "standby".to_owned()),
        ("hot_standby_feedback".to_owned(), "on".to_owned()),
        ("wal_receiver_status_interval".to_owned(), "1s".to_owned()),
        ("wal_retrieve_retry_interval".to_owned(), "200ms".to_owned()),
    ];
    all.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let options = Options { settings: all, standby: true, ..Options::default() };
    let standby = copied_server(major, &data, options);
    let mut sql = site.sql();
    wait_until("the standby to stream", PATIENCE, || {
        sql.one("SELECT count(*) FROM pg_stat_replication WHERE application_name = 'standby'")
            == "1"
    });
    standby
}

/// Both servers, the one that takes writes wanted.
fn either(primary: &PrivateServer, standby: &PrivateServer) -> String {
    format!(
        "postgresql://postgres@127.0.0.1:{},127.0.0.1:{}/{DATABASE}?target_session_attrs=read-write",
        primary.port(),
        standby.port()
    )
}

fn promote(standby: &PrivateServer) {
    let mut sql = Sql::connect(&standby.url("postgres"));
    assert_eq!(sql.one("SELECT pg_promote(true, 60)"), "t");
    wait_until("the end of recovery", PATIENCE, || sql.one("SELECT pg_is_in_recovery()") == "f");
}

/// The fence, from the lake alone.
fn fence(site: &Site) -> Option<Lsn> {
    let status = site.command(&["status", "--json"]).env("TIDEGATE_SOURCE", "").finish();
    let status: serde_json::Value = serde_json::from_str(&status.stdout).ok()?;
    status["fence"].as_str()?.parse().ok()
}

/// Ends the process; the next one goes on from the promoted standby, in the same generation.
fn goes_on_there(site: &mut Site, running: Running, standby: PrivateServer) {
    running.signal("TERM");
    running.finish().expect_code(0);
    site.server = standby;
    site.run_to_now();
    site.assert_equal();
    assert_eq!(site.generation("t"), 1);
}

#[track_caller]
fn follows_to(site: &Site, running: &mut Running, end: &str) {
    let end: Lsn = end.parse().unwrap();
    wait_until("the lake to follow", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        fence(site).is_some_and(|fence| fence >= end)
    });
}

/// A change, and the end of the log after it.
fn change(sql: &mut Sql, what: &str) -> String {
    sql.run(&format!("INSERT INTO t SELECT max(id) + 1, '{what}' FROM t"));
    sql.run(&format!("UPDATE t SET v = '{what}' WHERE id % 10 = 3"));
    let end = sql.one("SELECT pg_current_wal_insert_lsn()");
    sql.run("SELECT pg_logical_emit_message(true, 'test', '')");
    end
}

#[test]
fn a_promoted_standby_is_followed_without_a_gap() {
    for major in [17, 18] {
        let mut site = Site::with_rows(major, &[]);
        let standby = standby_of(&mut site, &[("sync_replication_slots", "on")]);
        let mut sql = site.sql();
        // Nothing reaches the lake that the standby does not have.
        sql.run("ALTER SYSTEM SET synchronized_standby_slots = 'standby'");
        sql.run("SELECT pg_reload_conf()");
        site.source = Some(either(&site.server, &standby));
        let mut running = site.follow();
        wait_until("the handoff", PATIENCE, || {
            assert!(!running.has_ended(), "{}", running.output());
            fence(&site).is_some()
        });
        let end = change(&mut sql, "before");
        follows_to(&site, &mut running, &end);
        let slot = format!("FROM pg_replication_slots WHERE slot_name = '{NAME}'");
        assert_eq!(sql.one(&format!("SELECT failover {slot}")), "t");
        let mut there = Sql::connect(&standby.url(DATABASE));
        wait_until("the slot to be kept on the standby", PATIENCE, || {
            // The worker rests longer while nothing changes.
            sql.run("UPDATE t SET v = v WHERE id = 1");
            there.one(&format!("SELECT count(*) {slot} AND synced AND NOT temporary")) == "1"
        });
        change(&mut sql, "during");
        site.server.kill9().unwrap();
        promote(&standby);
        // Connections of a standby live on over its promotion.
        let end = change(&mut there, "after");
        follows_to(&site, &mut running, &end);
        assert!(running.stderr().contains("the source was promoted"), "{}", running.stderr());
        // The same command, and the same generation; the timeline moved on.
        goes_on_there(&mut site, running, standby);
        site.source = None;
        site.run().succeed();
        for (folder, domain) in
            [("_tidegate/ledger", "tidegate.pipeline"), ("public/t", "tidegate.checkpoint")]
        {
            assert_eq!(site.recorded(folder, domain)["source"]["timeline"], 2, "{domain}");
        }
    }
}

/// The spool keeps the slot moving, so that the standby can keep it in step during the copy; without
/// it the slot does not move before the handoff, and the copy starts again on the new server.
#[test]
fn a_standby_that_is_promoted_in_mid_copy_serves_the_rest_of_it() {
    for retain in ["spool", "slot"] {
        let mut site = Site::new(17, &[]);
        site.config = site.config.replace(
            "[handoff]\n",
            &format!("[handoff]\nretain = \"{retain}\"\nspool_interval = \"100ms\"\n"),
        );
        let mut sql = site.sql();
        sql.run(
            "CREATE TABLE t(id int PRIMARY KEY, v text);
             INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 10000) i; ANALYZE t",
        );
        let standby = standby_of(&mut site, &[("sync_replication_slots", "on")]);
        let mut sql = site.sql();
        sql.run("ALTER SYSTEM SET synchronized_standby_slots = 'standby'");
        sql.run("SELECT pg_reload_conf()");
        site.source = Some(either(&site.server, &standby));
        let copying = site.pause("handoff.chunk.before").nth(3);
        let mut running = site.run().pause(&copying).start();
        copying.reached(&mut running);
        let slot = format!("FROM pg_replication_slots WHERE slot_name = '{NAME}'");
        let mut there = Sql::connect(&standby.url(DATABASE));
        if retain == "spool" {
            wait_until("the slot to be kept on the standby", PATIENCE, || {
                change(&mut sql, "in the copy");
                there.one(&format!("SELECT count(*) {slot} AND synced AND NOT temporary")) == "1"
            });
        }
        change(&mut sql, "the last there");
        caught_up(&site, &standby);
        site.server.kill9().unwrap();
        promote(&standby);
        change(&mut there, "the first here");
        copying.release();
        let finished = running.finish().expect_code(0);
        let kept = finished.stderr.contains("going on with the interrupted snapshot");
        assert_eq!(kept, retain == "spool", "{}", finished.stderr);
        site.server = standby;
        site.run_to_now();
        site.assert_equal();
        assert_eq!(site.versions("t").iter().filter(|v| v["kind"] == "handoff").count(), 1);
    }
}

#[test]
fn a_promoted_standby_that_lacks_what_the_lake_holds_is_refused() {
    let mut site = Site::with_rows(17, &[]);
    let mut standby = standby_of(&mut site, &[("sync_replication_slots", "on")]);
    site.run().succeed();
    let mut sql = site.sql();
    let slot = format!("FROM pg_replication_slots WHERE slot_name = '{NAME}'");
    let mut there = Sql::connect(&standby.url(DATABASE));
    wait_until("the slot to be kept on the standby", PATIENCE, || {
        change(&mut sql, "synced");
        site.run().succeed();
        there.one(&format!("SELECT count(*) {slot} AND synced AND NOT temporary")) == "1"
    });
    // The standby is away while the lake goes on.
    standby.stop().unwrap();
    sql.run("INSERT INTO t VALUES (5000, 'never reached the standby'); SELECT pg_switch_wal()");
    site.run_to_now();
    site.server.kill9().unwrap();
    standby.restart().unwrap();
    promote(&standby);
    site.server = standby;
    let refused = site.run().finish().expect_code(5);
    for word in ["timeline 1", "timeline 2", "did not branch off after that", "--resnapshot"] {
        assert!(refused.stderr.contains(word), "{word:?} is not in: {}", refused.stderr);
    }
    assert_eq!(site.generation("t"), 1);
    site.command(&["run", "--until-caught-up", "--on-lost-history", "resnapshot"]).succeed();
    site.assert_equal();
}

#[test]
fn a_promoted_standby_without_the_slot_is_refused() {
    for (config, settings) in [
        // Not asked to be kept in step.
        ("failover = false\n", &[("sync_replication_slots", "on")][..]),
        // Nobody keeps it in step.
        ("failover = true\n", &[]),
    ] {
        let mut site = Site::with_rows(18, &[]);
        site.config = site.config.replace("[handoff]\n", &format!("[handoff]\n{config}"));
        let standby = standby_of(&mut site, settings);
        site.run().succeed();
        let mut sql = site.sql();
        let failover =
            sql.one("SELECT failover FROM pg_replication_slots WHERE slot_name = 'site'");
        assert_eq!(failover, if config.contains("true") { "t" } else { "f" });
        caught_up(&site, &standby);
        site.server.kill9().unwrap();
        promote(&standby);
        site.server = standby;
        let refused = site.run().finish().expect_code(5);
        assert!(refused.stderr.contains("the replication slot is gone"), "{}", refused.stderr);
        assert!(refused.stderr.contains("next: "), "{}", refused.stderr);
    }
}

/// Waits until the standby has replayed what the primary has written.
fn caught_up(site: &Site, standby: &PrivateServer) {
    let end = site.sql().one("SELECT pg_current_wal_flush_lsn()");
    let mut there = Sql::connect(&standby.url(DATABASE));
    wait_until("the standby to catch up", PATIENCE, || {
        there.one(&format!("SELECT pg_last_wal_replay_lsn() >= '{end}'")) == "t"
    });
}

#[test]
fn a_failover_slot_where_the_server_has_none_is_refused_in_words() {
    let mut site = Site::with_rows(16, &[]);
    site.config = site.config.replace("[handoff]\n", "[handoff]\nfailover = true\n");
    let refused = site.run().finish().expect_code(3);
    assert!(refused.stderr.contains("failover = true is not possible"), "{}", refused.stderr);
    assert!(refused.stderr.contains("17 or later"), "{}", refused.stderr);
}

#[test]
fn a_standby_is_a_source_from_16_on() {
    for major in [16, 18] {
        let mut site = Site::with_rows(major, &[]);
        let standby = standby_of(&mut site, &[]);
        let mut sql = site.sql();
        site.source = Some(standby.url(DATABASE));
        // A publication can't be made on a standby: said with the SQL.
        let refused = site.run().finish().expect_code(3);
        assert!(
            refused.stderr.contains("on the primary: CREATE PUBLICATION"),
            "{}",
            refused.stderr
        );
        sql.run(&format!(
            "CREATE PUBLICATION {NAME} FOR TABLE t WITH (publish_via_partition_root)"
        ));
        caught_up(&site, &standby);
        let mut running = site.run().start();
        wait_until("the slot to wait for the primary", PATIENCE, || {
            assert!(!running.has_ended(), "{}", running.output());
            running.stderr().contains("pg_log_standby_snapshot()")
        });
        wait_until("the slot and the run", PATIENCE, || {
            sql.run("SELECT pg_log_standby_snapshot()");
            running.has_ended()
        });
        running.finish().expect_code(0);
        sql.run("UPDATE t SET v = 'on the primary' WHERE id % 3 = 0; DELETE FROM t WHERE id = 7");
        caught_up(&site, &standby);
        site.run().succeed();
        let mut verifying = site.command(&["verify", "--json"]).start();
        wait_until("the comparison", PATIENCE, || {
            sql.run("SELECT pg_log_standby_snapshot()");
            verifying.has_ended()
        });
        assert_eq!(verifying.finish().expect_code(0).json()["equal"], true);
        // The primary removes catalog rows that the slot needs: lost, and said so.
        Sql::connect(&standby.url("postgres")).run("ALTER SYSTEM SET hot_standby_feedback = off");
        Sql::connect(&standby.url("postgres")).run("SELECT pg_reload_conf()");
        let mut there = Sql::connect(&standby.url("postgres"));
        wait_until("the slot to be invalidated", PATIENCE, || {
            sql.run("CREATE TABLE x(a int); DROP TABLE x");
            for catalog in ["pg_class", "pg_attribute", "pg_type", "pg_depend"] {
                sql.run(&format!("VACUUM pg_catalog.{catalog}"));
            }
            there.one("SELECT count(*) FROM pg_replication_slots WHERE conflicting") == "1"
        });
        let lost = site.run().finish().expect_code(5);
        assert!(lost.stderr.contains("invalidated the replication slot"), "{}", lost.stderr);
    }
}

#[test]
fn a_standby_that_is_promoted_under_the_stream_is_followed() {
    let mut site = Site::with_rows(17, &[]);
    let standby = standby_of(&mut site, &[]);
    let mut sql = site.sql();
    sql.run(&format!("CREATE PUBLICATION {NAME} FOR TABLE t WITH (publish_via_partition_root)"));
    caught_up(&site, &standby);
    site.source = Some(standby.url(DATABASE));
    let mut running = site.follow();
    wait_until("the slot and the stream", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        sql.run("SELECT pg_log_standby_snapshot()");
        fence(&site).is_some()
    });
    let end = change(&mut sql, "before");
    follows_to(&site, &mut running, &end);
    caught_up(&site, &standby);
    site.server.kill9().unwrap();
    promote(&standby);
    let mut there = Sql::connect(&standby.url(DATABASE));
    let end = change(&mut there, "after");
    follows_to(&site, &mut running, &end);
    assert!(running.stderr().contains("from timeline 1 to 2"), "{}", running.stderr());
    goes_on_there(&mut site, running, standby);
}

#[test]
fn a_standby_before_16_is_refused_in_words() {
    let mut site = Site::with_rows(15, &[]);
    let standby = standby_of(&mut site, &[]);
    site.source = Some(standby.url(DATABASE));
    let refused = site.run().finish().expect_code(3);
    for word in ["is a standby", "came with PostgreSQL 16", "connect to the primary"] {
        assert!(refused.stderr.contains(word), "{word:?} is not in: {}", refused.stderr);
    }
}

//! A source that does not continue what the lake holds is refused in words, with exit code 5, and
//! nothing is touched; or a new generation replaces the tables, where that is configured.
//!
//! Every case is played against real servers: each is refused first, by `run` and by `verify`, then
//! answered by `on_lost_history = "resnapshot"`.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use support::database::Sql;
use support::judge::{self, At, Engine};
use support::servers::{bin, copied_server, copy_data, own_server, with_settings};
use support::site::{NAME, Site};
use support::{PATIENCE, folder, wait_until};
use tidegate::demo::server::Options;
use tidegate::position::Lsn;

/// What a refusal must leave as it is.
#[derive(Debug, PartialEq)]
struct Untouched {
    slots: Vec<Vec<Option<String>>>,
    publications: Vec<Vec<Option<String>>>,
    /// Without the ledger, which notes who looked last.
    tables: BTreeMap<PathBuf, (u64, SystemTime)>,
    rows: Vec<Vec<Option<String>>>,
}

fn untouched(site: &Site, sql: &mut Sql) -> Untouched {
    Untouched {
        slots: sql.rows(
            "SELECT slot_name, plugin, database, active, restart_lsn, confirmed_flush_lsn
             FROM pg_replication_slots WHERE NOT temporary",
        ),
        publications: sql.rows("SELECT pubname, xmin FROM pg_publication"),
        tables: files(site.lake.path()),
        rows: lake_rows(site),
    }
}

fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut found = BTreeMap::new();
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    for entry in entries.filter(|entry| entry.file_name() != "_tidegate") {
        let (path, data) = (entry.path(), entry.metadata().unwrap());
        match data.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path, (data.len(), data.modified().unwrap()))),
        }
    }
    found
}

/// The rows of `t` as an independent reader sees them.
fn lake_rows(site: &Site) -> Vec<Vec<Option<String>>> {
    judge::rows(Engine::DuckDb, &site.table("t"), At::Newest, &["id", "v"]).rows
}

/// `run` and `verify` refuse with exit code 5, these words and a next step, and touch nothing.
#[track_caller]
fn refused(site: &Site, words: &[&str]) {
    let mut sql = site.sql();
    let before = untouched(site, &mut sql);
    for command in [&["run", "--until-caught-up"][..], &["run"], &["verify"]] {
        let finished = site.command(command).finish().expect_code(5);
        for word in words.iter().chain(&["next: ", "tidegate run --resnapshot"]) {
            assert!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
        }
    }
    // `check` says the same before anything is started.
    let checked = site.command(&["check"]).finish().expect_code(3);
    for word in words.iter().chain(&["[history]", "fix: ", "tidegate run --resnapshot"]) {
        assert!(checked.stdout.contains(word), "{word:?} is not in: {}", checked.stdout);
    }
    assert_eq!(untouched(site, &mut sql), before);
}

/// A new generation is taken without asking, and the old version is served until it is there.
#[track_caller]
fn replaced(site: &Site) {
    let (before, generation) = (lake_rows(site), site.generation("t"));
    let publishing = site.pause("handoff.publish.before").nth(1);
    let mut running = site
        .command(&["run", "--until-caught-up", "--on-lost-history", "resnapshot"])
        .pause(&publishing)
        .start();
    publishing.reached(&mut running);
    assert_eq!(lake_rows(site), before, "the old version is not served any more");
    publishing.release();
    let finished = running.finish().expect_code(0);
    assert!(finished.stderr.contains("beginning a new generation"), "{}", finished.stderr);
    assert_eq!(site.generation("t"), generation + 1);
    // No more than one, and it goes on.
    site.sql().run("UPDATE t SET v = 'after' WHERE id = 3");
    site.command(&["run", "--until-caught-up", "--on-lost-history", "resnapshot"]).succeed();
    site.run_to_now();
    assert_eq!(site.generation("t"), generation + 1);
    site.assert_equal();
    // The next case pauses there again.
    drop(publishing);
    fs::remove_file(site.state.path().join("pause-handoff-publish-before-1.reached")).unwrap();
    fs::remove_file(site.state.path().join("pause-handoff-publish-before-1.go")).unwrap();
}

/// The server's data directory, put aside while it is stopped.
fn backup(site: &mut Site) -> tempfile::TempDir {
    let place = folder("backup");
    site.server.stop().unwrap();
    copy_data(&site.server.data(), &place.path().join("data"));
    site.server.restart().unwrap();
    place
}

/// Puts a backup in the place of the server's data directory.
fn restore(site: &mut Site, backup: &Path) {
    site.server.stop().unwrap();
    fs::remove_dir_all(site.server.data()).unwrap();
    copy_data(&backup.join("data"), &site.server.data());
    site.server.restart().unwrap();
}

/// Writes log until the server stands beyond what the lake holds.
fn beyond_the_lake(site: &Site) {
    let fence: Lsn = site.status()["fence"].as_str().unwrap().parse().unwrap();
    let mut sql = site.sql();
    wait_until("the log to be longer than the lake", PATIENCE, || {
        sql.run("INSERT INTO t SELECT max(id) + 1, 'other' FROM t; SELECT pg_switch_wal()");
        sql.one("SELECT pg_current_wal_flush_lsn()").parse::<Lsn>().unwrap() > fence
    });
}

#[test]
fn another_server_is_not_followed_and_its_slot_is_not_dropped() {
    let mut site = Site::with_rows(14, &[]);
    site.run().succeed();
    // What a server looks like that a dump was restored into, or that pg_upgrade made of the old
    // one together with its slots (17 and later): all names are the same.
    let mut other = Site::with_rows(14, &[]);
    std::mem::swap(&mut site.server, &mut other.server);
    let mut sql = site.sql();
    sql.run("DELETE FROM t WHERE id = 1");
    refused(&site, &["database system", "pg_upgrade"]);
    sql.run(&format!("CREATE PUBLICATION {NAME} FOR TABLE t WITH (publish_via_partition_root)"));
    sql.run(&format!("SELECT pg_create_logical_replication_slot('{NAME}', 'pgoutput')"));
    refused(&site, &["database system"]);
    // It was never ours: neither a new generation nor the end of the pipeline drops it.
    let before = untouched(&site, &mut sql);
    for command in [
        &["run", "--until-caught-up", "--resnapshot"][..],
        &["run", "--until-caught-up", "--on-lost-history", "resnapshot"],
    ] {
        let finished = site.command(command).finish().expect_code(3);
        assert!(finished.stderr.contains("pg_drop_replication_slot"), "{}", finished.stderr);
    }
    let torn = site.command(&["teardown", "--yes"]).succeed();
    assert!(torn.stdout.contains("nothing to drop"), "{}", torn.stdout);
    assert_eq!(untouched(&site, &mut sql), before);
    sql.run(&format!("SELECT pg_drop_replication_slot('{NAME}')"));
    replaced(&site);
    // The publication is still the DBA's.
    site.command(&["teardown", "--yes"]).succeed();
    assert_eq!(sql.one("SELECT count(*) FROM pg_publication"), "1");
}

#[test]
fn another_database_of_the_same_server_is_not_followed() {
    let mut site = Site::with_rows(18, &[]);
    site.run().succeed();
    site.sql().run("CREATE DATABASE other");
    let other = site.server.url("other");
    Sql::connect(&other).run("CREATE TABLE t(id int PRIMARY KEY, v text)");
    site.source = Some(other);
    refused(&site, &["database \"shop\"", "this is \"other\""]);
    // A slot's name is the whole server's: the old database's own is in the way, and stays.
    let mut sql = site.sql();
    let before = untouched(&site, &mut sql);
    let finished = site
        .command(&["run", "--until-caught-up", "--on-lost-history", "resnapshot"])
        .finish()
        .expect_code(3);
    assert!(finished.stderr.contains("belongs to database shop"), "{}", finished.stderr);
    assert_eq!(untouched(&site, &mut sql), before);
    // Named rightly it goes on as if nothing had been.
    site.source = None;
    site.run().succeed();
    site.assert_equal();
    assert_eq!(site.generation("t"), 1);
}

#[test]
fn a_restored_backup_that_is_behind_the_lake_is_not_followed() {
    let mut site = Site::with_rows(16, &[]);
    site.run().succeed();
    let aside = backup(&mut site);
    site.sql().run("INSERT INTO t VALUES (101, 'lost with the disk'); SELECT pg_switch_wal()");
    site.sql().run("DELETE FROM t WHERE id = 7");
    site.run_to_now();
    restore(&mut site, aside.path());
    refused(&site, &["the server's log ends at"]);
    replaced(&site);
    let ids: Vec<_> = lake_rows(&site).into_iter().map(|row| row[0].clone().unwrap()).collect();
    assert!(ids.contains(&"7".to_owned()) && !ids.contains(&"101".to_owned()));
}

#[test]
fn a_restored_backup_that_wrote_more_than_the_lake_holds_is_not_spliced() {
    // A disk put back from its snapshot: same system, same timeline, the slot is there, and once
    // enough was written no position tells.
    for major in [13, 15, 18] {
        let mut site = Site::with_rows(major, &[]);
        site.run().succeed();
        let aside = backup(&mut site);
        site.sql()
            .run("INSERT INTO t VALUES (101, 'lost with the disk'); DELETE FROM t WHERE id = 8");
        site.run_to_now();
        restore(&mut site, aside.path());
        beyond_the_lake(&site);
        refused(&site, &["another history", "was restored"]);
        replaced(&site);
        let rows = lake_rows(&site);
        assert!(rows.iter().all(|row| row[1].as_deref() != Some("lost with the disk")));
        assert!(rows.iter().any(|row| row[0].as_deref() == Some("8")));
    }
}

/// Starts the server again from a copy of its data, on a new timeline.
fn promote(site: &mut Site, backup: &Path) {
    let major = site.server.major();
    let options = Options { standby: true, ..Options::default() };
    site.server = copied_server(major, &backup.join("data"), options);
    let mut sql = Sql::connect(&site.server.url("postgres"));
    assert_eq!(sql.one("SELECT pg_promote(true, 60)"), "t");
    wait_until("the end of recovery", PATIENCE, || sql.one("SELECT pg_is_in_recovery()") == "f");
}

#[test]
fn a_new_timeline_that_branched_off_before_the_lake_is_not_followed_even_once_it_is_longer() {
    for major in [17, 13] {
        let mut site = Site::with_rows(major, &[]);
        site.run().succeed();
        let aside = backup(&mut site);
        site.sql().run("INSERT INTO t VALUES (101, 'only on timeline 1'); SELECT pg_switch_wal()");
        site.run_to_now();
        promote(&mut site, aside.path());
        site.sql().run("DELETE FROM t WHERE id = 7");
        refused(&site, &["timeline 1", "timeline 2"]);
        beyond_the_lake(&site);
        refused(&site, &["timeline 1", "timeline 2"]);
        replaced(&site);
    }
}

#[test]
fn a_new_timeline_that_branched_off_after_the_lake_is_followed_and_recorded() {
    for major in [18, 14] {
        let mut site = Site::with_rows(major, &[]);
        site.run().succeed();
        site.sql().run("UPDATE t SET v = 'on timeline 1' WHERE id = 1");
        let aside = backup(&mut site);
        promote(&mut site, aside.path());
        site.sql().run("UPDATE t SET v = 'on timeline 2' WHERE id = 2; DELETE FROM t WHERE id = 5");
        // A crash between the record of the timeline and the first change of it, and after that.
        site.run().failpoint("stream.timeline", "crash").finish().expect_signal();
        site.run().failpoint("stream.fence.before", "1*crash").finish().expect_signal();
        site.run_to_now();
        site.assert_equal();
        assert_eq!(site.generation("t"), 1);
        assert_eq!(recorded_timelines(&site), [2, 2], "in the ledger and in the table");
        // The old server, should it come back, is refused.
        let new = copied_server(major, &aside.path().join("data"), Options::default());
        let old = std::mem::replace(&mut site.server, new);
        refused(&site, &["timeline 2", "timeline 1"]);
        site.server = old;
        site.sql().run("INSERT INTO t VALUES (200, 'goes on')");
        site.run_to_now();
        site.assert_equal();
    }
}

/// The timeline in the newest state of the ledger and in the newest checkpoint of the table.
fn recorded_timelines(site: &Site) -> [u64; 2] {
    [("_tidegate/ledger", "tidegate.pipeline"), ("public/t", "tidegate.checkpoint")].map(
        |(folder, domain)| {
            site.recorded(folder, domain)["source"]["timeline"].as_u64().expect("a timeline")
        },
    )
}

/// One case after the other on the same pipeline: what is done to it, and the words of the refusal.
fn one_after_the_other(major: u32, cases: &[(&str, &[&str])]) {
    let site = Site::with_rows(major, &[]);
    site.run().succeed();
    let mut sql = site.sql();
    for (number, (done, words)) in cases.iter().enumerate() {
        for statement in done.split(';') {
            sql.run(statement);
        }
        // A row that the history of would have told, and one that nobody else has.
        sql.run(&format!("DELETE FROM t WHERE id = {}", 10 + number));
        sql.run(&format!("INSERT INTO t VALUES ({}, 'new')", 1000 + number));
        refused(&site, words);
        replaced(&site);
        let found = lake_rows(&site);
        let gone = Some((10 + number).to_string());
        assert!(found.iter().all(|row| row[0] != gone), "a row that vanished in the gap is back");
    }
}

#[test]
fn a_slot_that_is_gone_made_anew_or_advanced_by_somebody_else_is_not_spliced() {
    for major in [13, 18] {
        one_after_the_other(
            major,
            &[
                ("SELECT pg_drop_replication_slot('site')", &["slot site", "is gone"]),
                (
                    // supabase/etl#935: the lake held a higher position, rows came in between.
                    "SELECT pg_drop_replication_slot('site');
                     INSERT INTO t VALUES (500, 'in between');
                     SELECT pg_create_logical_replication_slot('site', 'pgoutput')",
                    &["slot site", "stands at", "somebody else"],
                ),
                (
                    "INSERT INTO t VALUES (501, 'skipped');
                     SELECT pg_replication_slot_advance('site', pg_current_wal_lsn())",
                    &["slot site", "stands at", "somebody else"],
                ),
            ],
        );
    }
}

#[test]
fn a_publication_that_is_not_what_it_was_is_not_followed() {
    one_after_the_other(
        13,
        &[
            ("DROP PUBLICATION site", &["publication site", "is gone"]),
            (
                "DROP PUBLICATION site; UPDATE t SET v = 'unpublished' WHERE id = 4;
                 CREATE PUBLICATION site FOR TABLE t WITH (publish_via_partition_root)",
                &["publication site", "made again"],
            ),
            (
                "ALTER PUBLICATION site DROP TABLE t; UPDATE t SET v = 'unpublished' WHERE id = 5;
                 ALTER PUBLICATION site ADD TABLE t",
                &["publication site", "was altered", "one of its tables"],
            ),
            (
                "ALTER PUBLICATION site SET (publish = 'insert');
                 UPDATE t SET v = 'unpublished' WHERE id = 6;
                 ALTER PUBLICATION site SET (publish = 'insert, update, delete, truncate')",
                &["publication site", "was altered"],
            ),
        ],
    );
}

#[test]
fn a_publication_that_leaves_changes_out_is_not_followed_until_it_is_mended() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("DROP TABLE t", "ADD TABLE t", &["does not publish public.t"]),
        (
            "SET (publish = 'insert, update')",
            "SET (publish = 'insert, update, delete, truncate')",
            &["does not send DELETE, TRUNCATE"],
        ),
        ("SET TABLE t (id)", "SET TABLE t", &["public.t", "column list leaves out v"]),
    ];
    let site = Site::with_rows(18, &[]);
    let mut sql = site.sql();
    // Somebody else's: it is not for us to mend.
    sql.run(&format!("CREATE PUBLICATION {NAME} FOR TABLE t WITH (publish_via_partition_root)"));
    site.run().succeed();
    for (number, (change, back, words)) in cases.iter().enumerate() {
        sql.run(&format!("ALTER PUBLICATION {NAME} {change}"));
        sql.run(&format!("DELETE FROM t WHERE id = {}", 20 + number));
        refused(&site, words);
        // A new generation would be as blind: said with the SQL that mends it, nothing is dropped.
        let before = untouched(&site, &mut sql);
        let finished = site
            .command(&["run", "--until-caught-up", "--on-lost-history", "resnapshot"])
            .finish()
            .expect_code(3);
        assert!(finished.stderr.contains("ALTER PUBLICATION"), "{}", finished.stderr);
        assert_eq!(untouched(&site, &mut sql), before);
        sql.run(&format!("ALTER PUBLICATION {NAME} {back}"));
        refused(&site, &["was altered"]);
        replaced(&site);
    }
}

#[test]
fn a_publication_changed_under_a_running_stream_ends_it() {
    for major in [15, 18] {
        for change in ["DROP PUBLICATION site", "ALTER PUBLICATION site DROP TABLE t"] {
            let site = Site::with_rows(major, &[]);
            let mut running = site.follow();
            wait_until("the stream", PATIENCE, || {
                assert!(!running.has_ended(), "{}", running.output());
                site.lake.path().join("_tidegate").exists() && {
                    let status = site.command(&["status", "--json"]).finish();
                    status.code() == 0
                        && status.json()["slot"]["active"] == true
                        && status.json()["phase"] == "live"
                }
            });
            site.sql().run(change);
            site.sql().run("UPDATE t SET v = 'unpublished' WHERE id = 1");
            let finished = running.finish().expect_code(5);
            assert!(finished.stderr.contains("publication site"), "{}", finished.stderr);
            assert!(finished.stderr.contains("next: "), "{}", finished.stderr);
            replaced(&site);
        }
    }
}

/// Writes whole segments, so that the slot is lost with the next checkpoint.
fn lose_the_slot(site: &Site) {
    let mut sql = site.sql();
    wait_until("the slot to be lost", PATIENCE, || {
        for _ in 0..3 {
            sql.run("SELECT pg_logical_emit_message(true, 'x', 'x'); SELECT pg_switch_wal()");
        }
        sql.run("CHECKPOINT");
        sql.one("SELECT coalesce(max(wal_status), 'lost') FROM pg_replication_slots") == "lost"
    });
}

const SMALL_KEEP: &[(&str, &str)] = &[("max_slot_wal_keep_size", "32MB"), ("min_wal_size", "32MB")];

#[test]
fn a_slot_lost_while_nobody_looked_or_in_the_stream_is_not_spliced() {
    for major in [13, 17] {
        let site = Site::with_rows(major, SMALL_KEEP);
        site.run().succeed();
        lose_the_slot(&site);
        site.sql().run("DELETE FROM t WHERE id = 10");
        refused(&site, &["slot site", "invalidated", "are lost"]);
        replaced(&site);
        // In the stream: the lake is slow, the server runs out of patience.
        let held = site.pause("stream.commit.before").nth(1);
        let mut running = site.command(&["run"]).pause(&held).start();
        site.sql().run("UPDATE t SET v = 'x' WHERE id = 1");
        held.reached(&mut running);
        lose_the_slot(&site);
        site.sql().run("DELETE FROM t WHERE id = 11");
        held.release();
        let finished = running.finish().expect_code(5);
        assert!(finished.stderr.contains("invalidated"), "{}", finished.stderr);
        refused(&site, &["slot site", "invalidated"]);
        replaced(&site);
    }
}

#[test]
fn a_slot_lost_in_the_copy_ends_it_and_is_answered_once() {
    for major in [14, 18] {
        let site = Site::with_rows(major, SMALL_KEEP);
        let copying = site.pause("handoff.chunk.before").nth(1);
        let mut running = site.command(&["run", "--until-caught-up"]).pause(&copying).start();
        copying.reached(&mut running);
        lose_the_slot(&site);
        copying.release();
        let finished = running.finish().expect_code(5);
        for word in ["slot site", "lost", "max_slot_wal_keep_size", "next: "] {
            assert!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
        }
        assert!(!site.table("t").join("_delta_log").exists(), "published without a history");
        // Lost again in the copy that answers it: not a third time.
        let first = site.pause("handoff.chunk.after").nth(1);
        let second = site.pause("handoff.chunk.read").nth(2);
        let mut running = site
            .command(&["run", "--until-caught-up", "--on-lost-history", "resnapshot"])
            .pause(&first)
            .pause(&second)
            .start();
        for pause in [&first, &second] {
            pause.reached(&mut running);
            lose_the_slot(&site);
            pause.release();
        }
        let finished = running.finish().expect_code(5);
        assert!(finished.stderr.contains("would be lost like this one"), "{}", finished.stderr);
        site.run().succeed();
        site.run_to_now();
        site.assert_equal();
    }
}

#[test]
fn what_is_no_lost_history_takes_no_new_generation() {
    let site = Site::with_rows(17, &[]);
    site.run().succeed();
    let automatic = ["run", "--until-caught-up", "--on-lost-history", "resnapshot"];
    // Another process holds the slot.
    let mut running = site.follow();
    wait_until("the stream", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        site.status()["slot"]["active"] == true
    });
    site.command(&automatic).finish().expect_code(4);
    site.command(&["run", "--resnapshot"]).finish().expect_code(4);
    running.signal("TERM");
    running.finish().expect_code(0);
    // A column that came is followed.
    site.sql().run("ALTER TABLE t ADD COLUMN w int");
    site.command(&automatic).succeed();
    assert_eq!(site.generation("t"), 1);
    site.assert_equal();
}

#[test]
fn a_server_made_by_pg_upgrade_is_not_followed() {
    let mut site = Site::with_rows(15, &[]);
    site.run().succeed();
    site.sql().run("INSERT INTO t VALUES (200, 'not streamed before the upgrade')");
    site.server.stop().unwrap();
    let mut new = own_server(17, with_settings(&[]));
    new.stop().unwrap();
    let (old_bin, new_bin) = (bin(15), bin(17));
    let place = new.data().parent().unwrap().to_owned();
    let mut upgrade = Command::new(new_bin.program("pg_upgrade").expect("17 has pg_upgrade"));
    upgrade
        .arg("--old-bindir")
        .arg(&old_bin.path)
        .arg("--new-bindir")
        .arg(&new_bin.path)
        .arg("--old-datadir")
        .arg(site.server.data())
        .arg("--new-datadir")
        .arg(new.data())
        .args(["--username", "postgres", "--socketdir"])
        .arg(new.socket_folder());
    let done = as_the_servers_user(&place, upgrade);
    assert!(done.status.success(), "pg_upgrade: {}", String::from_utf8_lossy(&done.stdout));
    new.restart().unwrap();
    site.server = new;
    refused(&site, &["database system", "pg_upgrade"]);
    replaced(&site);
}

/// Runs a program as the owner of `folder`, in it: a server's programs do not run as root.
fn as_the_servers_user(folder: &Path, mut command: Command) -> std::process::Output {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    let owner = fs::metadata(folder).unwrap();
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(owner.uid()).gid(owner.gid());
    }
    command.current_dir(folder).output().unwrap()
}

#[test]
fn the_configuration_file_can_ask_for_a_new_generation_too() {
    let mut site = Site::with_rows(16, &[]);
    site.run().succeed();
    site.sql().run(&format!("SELECT pg_drop_replication_slot('{NAME}')"));
    site.config = format!("on_lost_history = \"resnapshot\"\n{}", site.config);
    // The flag wins.
    site.command(&["run", "--until-caught-up", "--on-lost-history", "refuse"])
        .finish()
        .expect_code(5);
    site.run().succeed();
    assert_eq!(site.generation("t"), 2);
    site.assert_equal();
}

//! Tables that change at the source while they are followed: what concerns one stops no other, the
//! effect stands between the right versions, and a crash at any step of it loses nothing.
//!
//! What becomes of the rows is in `tests/corpus`, a file per case.

mod support;

use std::time::{Duration, Instant};

use support::database::TestDb;
use support::judge::{self, Engine};
use support::pipeline::Pipeline;
use support::servers::{server, usual, versions};
use tidegate::demo::server::PrivateServer;

fn two_tables(name: &str, config: &str) -> Pipeline {
    two_tables_on(usual(), name, config)
}

fn two_tables_on(server: &'static PrivateServer, name: &str, config: &str) -> Pipeline {
    let mut p = Pipeline::new(TestDb::new(server, name));
    p.config = format!("{config}\n[stream]\ninterval = \"100ms\"\n");
    p.tables = "public.*".to_owned();
    p.sql().run(
        "CREATE TABLE a(id int PRIMARY KEY, v text);
         CREATE TABLE b(id int PRIMARY KEY, v text);
         INSERT INTO a SELECT i, 'a' || i FROM generate_series(1, 100) i;
         INSERT INTO b SELECT i, 'b' || i FROM generate_series(1, 100) i;",
    );
    p.run().succeed();
    p
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + support::PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn kinds(p: &Pipeline, table: &str) -> Vec<String> {
    let versions = p.versions(table);
    versions.iter().map(|v| v["kind"].as_str().unwrap_or_default().to_owned()).collect()
}

fn table_status(p: &Pipeline, table: &str) -> serde_json::Value {
    let status = p.status();
    let tables = status["tables"].as_array().cloned().unwrap_or_default();
    let found = tables.into_iter().find(|entry| entry["table"] == table);
    found.unwrap_or_else(|| panic!("{table} is not in {status}"))
}

fn count(p: &Pipeline, table: &str) -> usize {
    judge::rows(Engine::DuckDb, &p.table(table), judge::At::Newest, &["id"]).rows.len()
}

#[test]
fn the_others_go_on_while_a_table_is_read_again() {
    let p = two_tables("change_beside", "");
    let copied = p.pause("again.copied");
    let mut running = p.command(&["run"]).pause(&copied).start();
    p.sql().run("ALTER TABLE a ADD c int DEFAULT 7; INSERT INTO a VALUES (101, 'new', 8);");
    copied.reached(&mut running);
    p.sql().run("INSERT INTO b VALUES (101, 'meanwhile')");
    wait_for("the other table", || count(&p, "b") == 101);
    // What readers see of it is the table as it was.
    assert_eq!(count(&p, "a"), 100);
    p.sql().run("UPDATE a SET v = 'while it is copied' WHERE id = 5; DELETE FROM a WHERE id = 6");
    copied.release();
    wait_for("the table that was read again", || {
        kinds(&p, "public.a").iter().filter(|kind| *kind == "handoff").count() == 2
    });
    running.signal("TERM");
    running.finish().expect_code(0);
    p.run_to_now();
    p.assert_equal();
}

#[test]
fn a_column_comes_between_the_right_versions() {
    let p = two_tables("change_versions", "");
    p.sql().run("INSERT INTO a VALUES (101, 'before')");
    p.sql().run("ALTER TABLE a ADD c int");
    p.sql().run("INSERT INTO a VALUES (102, 'after', 5)");
    p.sql().run("INSERT INTO b VALUES (101, 'other')");
    p.run_to_now();
    assert_eq!(kinds(&p, "public.a"), ["handoff", "changes", "schema", "changes"]);
    let at = |version: u64, columns: &[&str]| {
        judge::attempt(Engine::DuckDb, &p.table("a"), judge::At::Version(version), columns)
    };
    assert_eq!(at(1, &["id", "v"]).unwrap().rows.len(), 101);
    assert!(at(1, &["c"]).is_err(), "the column shows before it came");
    assert_eq!(at(2, &["id", "c"]).unwrap().rows.len(), 101);
    assert_eq!(at(3, &["id", "c"]).unwrap().rows.len(), 102);
    let expected = p.sql().rows("SELECT id::text, c::text FROM a");
    judge::all_see(&p.table("a"), judge::At::Newest, &["id", "c"], expected);
    p.assert_equal();
}

/// Everything before the change is in the lake, the fence stands right at its transaction, and the
/// process dies before the table's columns follow.
#[test]
fn a_change_whose_transaction_begins_at_the_fence_is_followed() {
    let p = two_tables("change_at_fence", "");
    for column in ["c", "d"] {
        p.sql().run(&format!("ALTER TABLE a ADD {column} int; UPDATE a SET {column} = id"));
        let until = p.sql().one("SELECT pg_current_wal_insert_lsn()");
        let run = p.command(&["run", "--until-lsn", &until]);
        run.failpoint("schema.commit.before", "crash").finish().expect_signal();
        let fence = p.status()["fence"].clone();
        p.run_to_now();
        assert_ne!(p.status()["fence"], fence);
        p.assert_equal();
    }
}

#[test]
fn a_crash_at_any_step_of_a_change_loses_nothing() {
    let points = [
        "schema.commit.before",
        "schema.commit.after",
        "again.marked",
        "again.publication",
        "again.boundary",
        "again.copied",
        "again.publish.before",
        "again.publish.after",
        "again.recorded",
    ];
    std::thread::scope(|scope| {
        for lane in 0..3 {
            scope.spawn(move || {
                for (n, point) in points.iter().enumerate().filter(|(n, _)| n % 3 == lane) {
                    let p = two_tables(&format!("change_crash_{n}"), "");
                    p.sql().run(
                        "ALTER TABLE a ADD c int; INSERT INTO a VALUES (101, 'x', 1);
                         ALTER TABLE b ADD c int DEFAULT 7; INSERT INTO b VALUES (101, 'y', 8);
                         CREATE TABLE fresh(id int PRIMARY KEY); INSERT INTO fresh VALUES (1);",
                    );
                    for action in ["crash", "error"] {
                        let until = p.sql().one("SELECT pg_current_wal_insert_lsn()");
                        let run = p.command(&["run", "--until-lsn", &until]);
                        let finished = run.failpoint(point, &format!("1*{action}")).finish();
                        if action == "crash" {
                            assert_ne!(finished.code, Some(0), "{point} was not passed");
                        }
                        p.sql().run(
                            "INSERT INTO b SELECT max(id) + 1, 'more', 1 FROM b;
                             UPDATE a SET v = v || '!' WHERE id = 7; DELETE FROM fresh WHERE id = 9;",
                        );
                    }
                    p.run_to_now();
                    p.assert_equal();
                    assert_eq!(p.sql().one("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"), "1");
                }
            });
        }
    });
}

#[test]
fn a_table_that_is_stopped_stops_alone_and_can_be_taken_up() {
    let p = two_tables("change_stop", "on_schema_change = \"stop\"");
    p.sql().run("INSERT INTO a VALUES (101, 'before')");
    p.sql().run("ALTER TABLE a ALTER v TYPE int USING id; INSERT INTO a VALUES (102, 5)");
    p.sql().run("INSERT INTO b VALUES (101, 'other')");
    p.run_to_now();
    assert_eq!((count(&p, "a"), count(&p, "b")), (101, 101));
    let stopped = table_status(&p, "public.a");
    assert_eq!(stopped["phase"], "stopped", "{stopped}");
    let why = stopped["why"].as_str().unwrap_or_default();
    assert!(why.contains("type of column \"v\"") && why.contains("tidegate reseed"), "{why}");
    // A cut of now is one of the other table.
    let views = p.command(&["views", "duckdb"]).succeed().stdout;
    assert!(views.contains("/public/b") && !views.contains("/public/a"), "{views}");
    p.command(&["reseed", "public.a"]).succeed();
    p.run_to_now();
    assert_eq!(table_status(&p, "public.a")["phase"], "live");
    p.assert_equal();
}

#[test]
fn a_table_that_loses_its_key_stops_alone_until_it_has_one() {
    let p = two_tables("change_keyless", "");
    p.sql().run("ALTER TABLE a DROP CONSTRAINT a_pkey; INSERT INTO a VALUES (1, 'twice');");
    p.sql().run("INSERT INTO b VALUES (101, 'other')");
    p.run_to_now();
    let stopped = table_status(&p, "public.a");
    assert_eq!((stopped["phase"].as_str(), count(&p, "b")), (Some("stopped"), 101));
    assert!(stopped["why"].as_str().unwrap_or_default().contains("REPLICA IDENTITY"), "{stopped}");
    p.sql().run("ALTER TABLE a REPLICA IDENTITY FULL; DELETE FROM a WHERE v = 'twice'");
    p.run_to_now();
    assert_eq!(table_status(&p, "public.a")["phase"], "live");
    p.assert_equal();
}

#[test]
fn tables_that_can_not_be_replicated_stay_out_of_a_pattern_until_they_can() {
    let mut p = Pipeline::new(TestDb::new(usual(), "change_unfit"));
    p.config = "[stream]\ninterval = \"100ms\"\n".to_owned();
    p.tables = "public.*".to_owned();
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE bare(id int, v text);
         CREATE TABLE taken(id int PRIMARY KEY, \"_TG_LSN\" int);
         CREATE TABLE part(id int PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE UNLOGGED TABLE part_1 PARTITION OF part FOR VALUES FROM (1) TO (10);
         INSERT INTO a VALUES (1); INSERT INTO bare VALUES (1, 'x'); INSERT INTO taken VALUES (1);
         INSERT INTO part VALUES (1);",
    );
    let checked = p.command(&["check", "--json"]).succeed().json();
    let left_out: Vec<&str> =
        checked["left_out"].as_array().into_iter().flatten().filter_map(|t| t.as_str()).collect();
    assert_eq!(left_out, ["public.bare", "public.part", "public.taken"], "{checked}");
    let output = p.run().succeed().output();
    assert!(output.contains("public.bare: has no primary key"), "{output}");
    assert!(output.contains("column_prefix"), "{output}");
    // The application goes on as before with what is left out, and the others are followed.
    sql.run("UPDATE bare SET v = 'y'; INSERT INTO a VALUES (2)");
    p.run_to_now();
    assert_eq!(count(&p, "a"), 2);
    let why = table_status(&p, "public.bare")["why"].to_string();
    assert!(why.contains("REPLICA IDENTITY FULL"), "{why}");
    // One that is named is wanted: without it nothing begins.
    p.tables = "public.*,public.bare".to_owned();
    p.command(&["check"]).finish().expect_code(3);
    p.tables = "public.*".to_owned();
    let mut running = p.command(&["run"]).start();
    sql.run("ALTER TABLE bare ADD PRIMARY KEY (id); ALTER TABLE part_1 SET LOGGED");
    sql.run("ALTER TABLE taken RENAME \"_TG_LSN\" TO lsn");
    for table in ["bare", "part", "taken"] {
        wait_for("a mended table", || {
            assert!(!running.has_ended(), "{}", running.output());
            table_status(&p, &format!("public.{table}"))["phase"] == "live"
        });
    }
    running.signal("TERM");
    running.finish().expect_code(0);
    sql.run("DELETE FROM bare");
    p.run_to_now();
    p.assert_equal();
}

/// What is published is the snapshot of its time, with its partitions.
#[test]
fn a_partition_that_goes_before_its_table_is_published_takes_its_rows_along() {
    let p = Pipeline::new(TestDb::new(usual(), "change_published"));
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE a(id int PRIMARY KEY); INSERT INTO a VALUES (1);
         CREATE TABLE part(id int PRIMARY KEY) PARTITION BY LIST (id);
         CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
         CREATE TABLE part_2 PARTITION OF part FOR VALUES IN (2);
         INSERT INTO part VALUES (1), (2);",
    );
    p.run().failpoint("handoff.publish.before", "crash").finish().expect_signal();
    sql.run("DROP TABLE part_2; INSERT INTO a VALUES (2)");
    sql.run(
        "BEGIN; CREATE TABLE part_3 (LIKE part INCLUDING ALL); INSERT INTO part_3 VALUES (3);
         ALTER TABLE part ATTACH PARTITION part_3 FOR VALUES IN (3); COMMIT",
    );
    p.run().succeed();
    p.run_to_now();
    assert_eq!((count(&p, "a"), count(&p, "part")), (2, 2));
    p.assert_equal();
}

/// Between the look at the catalog and what is done with it.
#[test]
fn a_table_that_is_dropped_while_the_snapshot_is_made_is_looked_for_again() {
    for (n, point) in ["handoff.dropped", "handoff.publication"].into_iter().enumerate() {
        let mut p = Pipeline::new(TestDb::new(usual(), &format!("change_dropped_{n}")));
        p.config = "[stream]\ninterval = \"100ms\"\n".to_owned();
        p.sql().run(
            "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY);
             CREATE TABLE part(id int PRIMARY KEY) PARTITION BY LIST (id);
             CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
             CREATE TABLE part_2 PARTITION OF part FOR VALUES IN (2);
             INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO part VALUES (1), (2);",
        );
        let pause = p.pause(point);
        let mut running = p.run().pause(&pause).start();
        pause.reached(&mut running);
        p.sql().run("DROP TABLE b; DROP TABLE part_2; ALTER TABLE a RENAME TO c");
        pause.release();
        running.finish().expect_code(0);
        p.run_to_now();
        assert_eq!((count(&p, "c"), count(&p, "part")), (1, 1));
        p.assert_equal();
    }
}

#[test]
fn a_running_pipeline_reads_a_table_again_when_asked() {
    let p = two_tables("change_asked", "");
    let running = p.follow();
    p.command(&["reseed", "public.b"]).succeed();
    wait_for("the table to be read again", || {
        kinds(&p, "public.b").iter().filter(|kind| *kind == "handoff").count() == 2
    });
    p.sql().run("INSERT INTO b VALUES (101, 'after it')");
    wait_for("the stream to go on", || count(&p, "b") == 101);
    running.signal("TERM");
    running.finish().expect_code(0);
    assert_eq!(kinds(&p, "public.a"), ["handoff"]);
    p.assert_equal();
}

#[test]
fn a_long_transaction_holds_up_only_the_table_that_is_read_again() {
    let p = two_tables("change_long", "");
    let running = p.follow();
    // No snapshot can be made before it ends.
    let mut long = p.sql();
    long.run("BEGIN; INSERT INTO b VALUES (500, 'long')");
    p.sql().run("ALTER TABLE a ADD c int DEFAULT 7; INSERT INTO a VALUES (101, 'new', 8)");
    p.sql().run("INSERT INTO b VALUES (101, 'meanwhile')");
    wait_for("the other table", || count(&p, "b") == 101);
    wait_for("the table to be marked", || table_status(&p, "public.a")["phase"] == "again");
    running.signal("TERM");
    running.finish_within(Duration::from_secs(30)).expect_code(0);
    long.run("COMMIT");
    p.run_to_now();
    p.assert_equal();
}

#[test]
fn a_table_that_can_not_be_read_again_stops_alone_until_the_next_start() {
    let p = two_tables("change_failed", "");
    p.sql().run("ALTER TABLE a ADD c int DEFAULT 7; INSERT INTO b VALUES (101, 'other')");
    let end = p.db.wal_position();
    p.command(&["run", "--until-lsn", &end]).wrong("lose-a-row").succeed();
    let stopped = table_status(&p, "public.a");
    assert_eq!(stopped["phase"], "stopped", "{stopped}");
    assert!(stopped["why"].as_str().unwrap_or_default().contains("tidegate reseed"), "{stopped}");
    assert_eq!((count(&p, "a"), count(&p, "b")), (100, 101));
    p.run_to_now();
    assert_eq!(table_status(&p, "public.a")["phase"], "live");
    p.assert_equal();
}

#[test]
fn a_table_that_somebody_holds_alone_holds_up_no_other() {
    // From 16 on the view of what a publication has locks its tables.
    let newest = versions().last().copied().unwrap_or(support::servers::USUAL);
    holds_up_no_other(usual());
    holds_up_no_other(server(newest));
}

fn holds_up_no_other(server: &'static PrivateServer) {
    let p = two_tables_on(server, "change_held", "");
    let mut holder = p.sql();
    holder.run("BEGIN; LOCK TABLE a IN ACCESS EXCLUSIVE MODE");
    // A start looks at every table, and so does every change of one.
    let running = p.follow();
    p.sql().run("ALTER TABLE b ADD c int; INSERT INTO b VALUES (101, 'one', 1)");
    wait_for("the first row", || count(&p, "b") == 101);
    p.sql().run("CREATE TABLE fresh(id int PRIMARY KEY); INSERT INTO b VALUES (102, 'two', 2)");
    wait_for("the new table to be seen", || {
        let status = p.status();
        status["tables"].as_array().is_some_and(|tables| tables.len() == 3)
    });
    p.sql().run("INSERT INTO b VALUES (103, 'three', 3)");
    wait_for("the last row", || count(&p, "b") == 103);
    holder.run("COMMIT");
    running.signal("TERM");
    running.finish().expect_code(0);
    p.run_to_now();
    p.assert_equal();
}

#[test]
fn a_table_that_somebody_wrote_into_is_named_and_right_again_after_a_reseed() {
    let p = two_tables("change_foreign", "");
    if !judge::engines().contains(&Engine::Spark) {
        eprintln!("skipped: without Spark nobody else writes into the table");
        return;
    }
    let folder = p.table("a");
    judge::sql(Engine::Spark, &format!("DELETE FROM delta.`{}` WHERE id < 10", folder.display()));
    p.sql().run("INSERT INTO a VALUES (101, 'after it'); INSERT INTO b VALUES (101, 'too')");
    let refused = p.run().finish().expect_code(1);
    for word in ["public/a", "version 1", "another program", "tidegate reseed"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    assert_eq!(count(&p, "a"), 91);
    p.command(&["reseed", "public.a"]).succeed();
    p.run().succeed();
    p.assert_equal();
    assert_eq!(kinds(&p, "public.a"), ["handoff", "foreign", "handoff"]);
    assert!(!kinds(&p, "public.b")[1..].contains(&"handoff".to_owned()));
}

#[test]
fn a_table_that_changes_before_it_is_published_is_read_again_and_holds_up_no_other() {
    for change in [
        "ALTER TABLE b ADD c int DEFAULT 5; INSERT INTO b VALUES (101, 'new', 6)",
        "ALTER TABLE b DROP v; INSERT INTO b VALUES (101)",
        "DROP TABLE b; CREATE TABLE b(id int PRIMARY KEY, w int); INSERT INTO b VALUES (1, 1)",
        "DROP TABLE b",
    ] {
        let mut p = Pipeline::new(TestDb::new(usual(), "change_publish"));
        p.tables = "public.*".to_owned();
        p.sql().run(
            "CREATE TABLE a(id int PRIMARY KEY, v text);
             CREATE TABLE b(id int PRIMARY KEY, v text);
             CREATE TABLE c(id int PRIMARY KEY, v text);
             INSERT INTO a SELECT i, 'a' || i FROM generate_series(1, 100) i;
             INSERT INTO b SELECT i, 'b' || i FROM generate_series(1, 100) i;
             INSERT INTO c SELECT i, 'c' || i FROM generate_series(1, 100) i",
        );
        p.run().failpoint("handoff.publish.after", "1*crash").finish().expect_signal();
        let exists = |table: &str| p.table(table).join("_delta_log").exists();
        assert!(exists("a") && !exists("b") && !exists("c"));
        // Tables that are published may change as well.
        p.sql().run("ALTER TABLE a ADD d int; INSERT INTO a VALUES (101, 'new', 6)");
        p.sql().run("UPDATE c SET v = 'meanwhile' WHERE id = 7");
        p.sql().run(change);
        p.run_to_now().expect_code(0);
        assert_eq!(count(&p, "a"), 101);
        assert_eq!(count(&p, "c"), 100);
        if change.ends_with("DROP TABLE b") {
            assert!(!exists("b"));
            continue;
        }
        p.run().succeed();
        p.assert_equal();
    }
}

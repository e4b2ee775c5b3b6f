//! What is wrong is said in a sentence with what to do next, with the right exit code, and nothing
//! is left half made.

mod support;

use support::database::TestDb;
use support::pipeline::Pipeline;
use support::program::Finished;
use support::servers::{own_server, usual};

fn pipeline(name: &str) -> Pipeline {
    let pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.sql().run("CREATE TABLE t(id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')");
    pipeline
}

/// The message has every word and a next step; nothing is left on source or lake.
#[track_caller]
fn refused(pipeline: &Pipeline, finished: Finished, code: i32, words: &[&str]) {
    let finished = finished.expect_code(code);
    let text = &finished.stderr;
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(text.contains("next:"), "no next step in: {text}");
    let mut sql = pipeline.sql();
    let name = pipeline.db.name();
    assert_eq!(
        sql.one(&format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}'")),
        "0",
        "a slot is left"
    );
    assert_eq!(sql.one("SELECT count(*) FROM pg_publication"), "0", "a publication is left");
    assert!(!pipeline.table("t").exists(), "a table folder is left");
}

#[test]
fn a_host_that_does_not_answer() {
    let mut p = pipeline("bad_host");
    p.config.push_str("[limits]\nretry_for = \"1s\"\n");
    let run = p.run().env("TIDEGATE_SOURCE", "postgres://postgres@127.0.0.1:1/x");
    refused(&p, run.finish(), 1, &["127.0.0.1", "1"]);
}

#[test]
fn a_database_that_does_not_exist() {
    let p = pipeline("bad_db");
    let url = p.db.server().url("no_such_database");
    refused(&p, p.run().env("TIDEGATE_SOURCE", url).finish(), 3, &["no_such_database"]);
}

#[test]
fn a_wrong_password() {
    let server = own_server(
        support::servers::USUAL,
        tidegate::demo::server::Options {
            hba: vec!["host all locked 127.0.0.1/32 scram-sha-256".to_owned()],
            ..Default::default()
        },
    );
    let p = pipeline("bad_password");
    support::database::Sql::connect(&server.url("postgres"))
        .run("CREATE ROLE locked LOGIN PASSWORD 'right'");
    let url = format!("postgres://locked:wr0ng-secret@127.0.0.1:{}/postgres", server.port());
    let finished = p.run().env("TIDEGATE_SOURCE", url).finish();
    assert!(
        !finished.output().contains("wr0ng-secret"),
        "the password is shown: {}",
        finished.output()
    );
    refused(&p, finished, 3, &["locked", "password"]);
}

#[test]
fn missing_rights() {
    let p = pipeline("bad_rights");
    let role = format!("weak_{}", p.db.name());
    p.sql().run(&format!("CREATE ROLE {role} LOGIN"));
    let url = p.db.url().replace("postgres@", &format!("{role}@"));
    refused(&p, p.run().env("TIDEGATE_SOURCE", url).finish(), 3, &["REPLICATION"]);
    p.sql().run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_wal_level_that_is_too_low() {
    let server = own_server(
        support::servers::USUAL,
        tidegate::demo::server::Options {
            settings: vec![("wal_level".to_owned(), "replica".to_owned())],
            ..Default::default()
        },
    );
    support::database::Sql::connect(&server.url("postgres"))
        .run("CREATE TABLE t(id int PRIMARY KEY)");
    let p = pipeline("bad_wal_level");
    refused(
        &p,
        p.run().env("TIDEGATE_SOURCE", server.url("postgres")).finish(),
        3,
        &["wal_level", "logical"],
    );
}

#[test]
fn no_free_slot() {
    let server = own_server(
        support::servers::USUAL,
        tidegate::demo::server::Options {
            settings: vec![("max_replication_slots".to_owned(), "1".to_owned())],
            ..Default::default()
        },
    );
    let mut sql = support::database::Sql::connect(&server.url("postgres"));
    sql.run("CREATE TABLE t(id int PRIMARY KEY)");
    sql.run("SELECT pg_create_physical_replication_slot('taken')");
    let p = pipeline("bad_slots");
    refused(&p, p.run().env("TIDEGATE_SOURCE", server.url("postgres")).finish(), 3, &["slot"]);
}

#[test]
fn a_table_that_does_not_exist_is_answered_with_the_nearest_name() {
    let mut p = pipeline("bad_table");
    p.sql().run("CREATE TABLE orders(id int PRIMARY KEY)");
    p.tables = "public.ordres".to_owned();
    refused(&p, p.run().finish(), 3, &["ordres", "orders"]);
}

#[test]
fn a_view() {
    let mut p = pipeline("bad_view");
    p.sql().run("CREATE VIEW w AS SELECT * FROM t");
    p.tables = "public.w".to_owned();
    refused(&p, p.run().finish(), 3, &["public.w", "view"]);
}

#[test]
fn a_pattern_that_matches_nothing() {
    let mut p = pipeline("bad_pattern");
    p.tables = "sales.*".to_owned();
    refused(&p, p.run().finish(), 3, &["sales.*"]);
}

#[test]
fn an_unlogged_table() {
    let mut p = pipeline("bad_unlogged");
    p.sql().run("CREATE UNLOGGED TABLE u(id int PRIMARY KEY)");
    p.tables = "public.u".to_owned();
    refused(&p, p.run().finish(), 3, &["public.u", "nlogged"]);
}

#[test]
fn no_key_with_default_identity() {
    let mut p = pipeline("bad_identity");
    p.tables = "public.k".to_owned();
    p.sql().run("CREATE TABLE k(a int)");
    refused(&p, p.run().finish(), 3, &["public.k", "REPLICA IDENTITY"]);
}

#[test]
fn a_lake_that_can_not_be_written() {
    let p = pipeline("bad_lake");
    let file = p.state.path().join("file");
    std::fs::write(&file, "").unwrap();
    let finished = p.run().env("TIDEGATE_LAKE", file.join("lake")).finish();
    assert!(matches!(finished.code(), 1..=3), "{}", finished.output());
    refused(&p, finished, 3, &["file/lake"]);
}

#[test]
fn a_lake_of_another_pipeline_or_database() {
    let p = pipeline("bad_owner");
    p.run().succeed();
    let other = p.run().env("TIDEGATE_NAME", "somebody_else").finish().expect_code(3);
    assert!(other.stderr.contains(p.db.name()), "{}", other.stderr);
    let q = pipeline("bad_owner_db");
    let finished = p.run().env("TIDEGATE_SOURCE", q.db.url()).finish();
    refused(&q, finished, 5, &["database"]);
    p.run().succeed();
}

#[test]
fn foreign_data_where_a_table_should_go() {
    let p = pipeline("bad_folder");
    let folder = p.table("t");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("theirs.parquet"), "precious").unwrap();
    let finished = p.run().finish().expect_code(3);
    assert!(finished.stderr.contains("public.t"), "{}", finished.stderr);
    assert_eq!(std::fs::read_to_string(folder.join("theirs.parquet")).unwrap(), "precious");
    std::fs::remove_dir_all(&folder).unwrap();
    p.run().succeed();
}

#[test]
fn a_slot_in_use() {
    let p = pipeline("bad_in_use");
    p.run().succeed();
    let mut running = p.follow();
    let name = p.db.name();
    support::wait_until("the slot to be in use", support::PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        p.sql().one(&format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{name}'"))
            == "t"
    });
    let second = p.run().finish().expect_code(4);
    assert!(second.stderr.contains("is alive"), "{}", second.stderr);
    running.signal("TERM");
    running.finish().expect_code(0);
}

#[test]
fn a_slot_that_was_made_beforehand_has_no_snapshot() {
    let p = pipeline("bad_premade");
    let name = p.db.name();
    p.sql().run(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"));
    let finished = p.run().finish().expect_code(3);
    assert!(finished.stderr.contains("pg_drop_replication_slot"), "{}", finished.stderr);
    p.sql().run(&format!("SELECT pg_drop_replication_slot('{name}')"));
    p.run().succeed();
}

#[test]
fn a_publication_that_lacks_a_table_and_one_that_fits() {
    let p = pipeline("bad_publication");
    let name = p.db.name();
    p.sql().run(&format!(
        "CREATE TABLE other(id int PRIMARY KEY); CREATE PUBLICATION {name} FOR TABLE other"
    ));
    let finished = p.run().finish().expect_code(3);
    assert!(finished.stderr.contains("public.t"), "{}", finished.stderr);
    p.sql().run(&format!("ALTER PUBLICATION {name} ADD TABLE t"));
    p.run().succeed();
    p.assert_equal();
    p.command(&["teardown", "--yes"]).succeed();
    let mut sql = p.sql();
    assert_eq!(
        sql.one(&format!("SELECT count(*) FROM pg_publication WHERE pubname = '{name}'")),
        "1",
        "a DBA's publication was dropped"
    );
    assert_eq!(
        sql.one(&format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}'")),
        "0"
    );
}

#[test]
fn a_new_slot_under_an_old_name_is_not_spliced() {
    let p = pipeline("bad_new_slot");
    p.run().succeed();
    let name = p.db.name();
    let mut sql = p.sql();
    sql.run(&format!("SELECT pg_drop_replication_slot('{name}')"));
    sql.run("INSERT INTO t VALUES (2, 'in the gap')");
    sql.run(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"));
    let finished = p.run().finish().expect_code(5);
    assert!(finished.stderr.contains("next:"), "{}", finished.stderr);
    p.command(&["run", "--until-caught-up", "--resnapshot"]).succeed();
    p.assert_equal();
    let versions = p.versions("t");
    assert_eq!(versions.last().unwrap()["kind"], "handoff");
    assert_eq!(versions.last().unwrap()["generation"], 2);
}

/// A process that was paused while another took over finds itself fenced, and leaves no trace.
#[test]
fn a_zombie_that_wakes_up_is_fenced() {
    let server = own_server(
        support::servers::USUAL,
        tidegate::demo::server::Options {
            settings: vec![("wal_sender_timeout".to_owned(), "2s".to_owned())],
            ..Default::default()
        },
    );
    let p = pipeline("zombie");
    let url = server.url("postgres");
    let mut sql = support::database::Sql::connect(&url);
    sql.run("CREATE TABLE t(id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')");
    let slot = format!("FROM pg_replication_slots WHERE slot_name = '{}'", p.db.name());
    let mut first = p.command(&["run"]).env("TIDEGATE_SOURCE", &url).start();
    support::wait_until("the first to stream", support::PATIENCE, || {
        assert!(!first.has_ended(), "{}", first.output());
        sql.one(&format!("SELECT count(*) {slot} AND active")) == "1"
            && p.table("t").join("_delta_log").exists()
    });
    first.signal("STOP");
    support::wait_until("the server to give the first one up", support::PATIENCE, || {
        sql.one(&format!("SELECT count(*) {slot} AND active")) == "0"
    });
    sql.run("INSERT INTO t VALUES (2, 'b')");
    p.run()
        .env("TIDEGATE_SOURCE", &url)
        .env("TIDEGATE_STATE_DIR", p.state.path().join("second"))
        .succeed();
    let versions = p.versions("t").len();
    sql.run("INSERT INTO t VALUES (3, 'c')");
    first.signal("CONT");
    let first = first.finish().expect_code(4);
    // By its own look at the ledger, or by the compare-and-swap of its next commit.
    assert!(first.stderr.contains("another"), "{}", first.stderr);
    assert_eq!(p.versions("t").len(), versions, "the zombie committed");
    p.run().env("TIDEGATE_SOURCE", &url).succeed();
    let verified = p.command(&["verify", "--json"]).env("TIDEGATE_SOURCE", &url).succeed();
    assert_eq!(verified.json()["equal"], true);
}

//! Two-phase transactions: what was prepared is in the lake from its COMMIT PREPARED on, at that
//! position, whatever happens in between; what was rolled back never is.
//!
//! The slot is made without `two_phase`, so the server sends a prepared transaction once it commits.

mod support;

use support::database::TestDb;
use support::judge::{self, At, Engine};
use support::pipeline::Pipeline;
use support::servers::{server, versions};
use tidegate::position::Lsn;

fn rows(p: &Pipeline) -> Vec<(String, u64)> {
    let found = judge::rows(Engine::DuckDb, &p.table("t"), At::Newest, &["id", "v", "_tg_lsn"]);
    let row = |row: Vec<Option<String>>| {
        let text = |i: usize| row[i].clone().unwrap_or("NULL".into());
        (format!("{}|{}", text(0), text(1)), text(2).parse().expect("a position"))
    };
    let mut rows: Vec<(String, u64)> = found.rows.into_iter().map(row).collect();
    rows.sort();
    rows
}

fn texts(p: &Pipeline) -> Vec<String> {
    rows(p).into_iter().map(|(text, _)| text).collect()
}

/// One after the other: making a slot waits for the whole server's prepared transactions.
#[test]
fn prepared_rows_come_with_their_commit_and_not_before() {
    for major in versions() {
        before_the_snapshot(major);
        beside_the_stream(major);
    }
}

fn beside_the_stream(major: u32) {
    let p = Pipeline::new(TestDb::new(server(major), "prepared"));
    let mut sql = p.sql();
    sql.run("CREATE TABLE t(id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')");
    p.run().succeed();
    sql.run(
        "BEGIN; INSERT INTO t VALUES (3, 'prepared'); UPDATE t SET v = 'changed' WHERE id = 1;
         SAVEPOINT s; DELETE FROM t WHERE id = 2; ROLLBACK TO s; PREPARE TRANSACTION 'stays';",
    );
    sql.run("BEGIN; INSERT INTO t VALUES (4, 'never'); PREPARE TRANSACTION 'goes';");
    sql.run("INSERT INTO t VALUES (5, 'other')");
    p.run_to_now();
    // No `verify` yet: its slot, too, waits for what is prepared.
    assert_eq!(texts(&p), ["1|a", "2|b", "5|other"], "on {major}");
    // Over a start, and after what committed later.
    sql.run("ROLLBACK PREPARED 'goes'");
    sql.run("INSERT INTO t VALUES (6, 'later')");
    let before: Lsn = p.db.wal_position().parse().expect("an LSN");
    sql.run("COMMIT PREPARED 'stays'");
    p.run_to_now();
    let found = rows(&p);
    assert_eq!(texts(&p), ["1|changed", "2|b", "3|prepared", "5|other", "6|later"]);
    let of = |text: &str| found.iter().find(|(t, _)| t == text).map(|(_, lsn)| *lsn);
    assert!(of("3|prepared") >= Some(before.bytes()) && of("1|changed") == of("3|prepared"));
    p.assert_equal();
    // A change of the table's columns can be prepared, too.
    sql.run(
        "BEGIN; ALTER TABLE t ADD COLUMN w int; UPDATE t SET w = id; INSERT INTO t VALUES (7, 'w', 7);
         PREPARE TRANSACTION 'columns';",
    );
    p.run_to_now();
    sql.run("COMMIT PREPARED 'columns'");
    sql.run("DELETE FROM t WHERE id = 6");
    p.run_to_now();
    p.assert_equal();
}

/// What is prepared while the first snapshot is made is in it or in the stream, once.
fn before_the_snapshot(major: u32) {
    let p = Pipeline::new(TestDb::new(server(major), "prepared_before"));
    let mut sql = p.sql();
    sql.run("CREATE TABLE t(id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')");
    sql.run("BEGIN; INSERT INTO t VALUES (2, 'p'); PREPARE TRANSACTION 'early';");
    let mut running = p.run().start();
    // Making the slot waits for it.
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'";
    support::wait_until("the slot to be waited for", support::PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        sql.one(waits) != "0"
    });
    sql.run("COMMIT PREPARED 'early'");
    sql.run("INSERT INTO t VALUES (3, 'c')");
    running.finish().expect_code(0);
    p.run_to_now();
    assert_eq!(texts(&p), ["1|a", "2|p", "3|c"]);
    p.assert_equal();
}

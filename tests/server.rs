//! The private server: starts on every supported version, and is gone afterwards in any case.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::database::{Sql, TestDb};
use support::servers::{own_server, usual, versions};
use support::{folder, wait_until};
use tidegate::demo::server::{Options, PrivateServer, find_postgres};

fn is_alive(pid: u32) -> bool {
    let asked = Command::new("/bin/sh")
        .args(["-c", "kill -0 \"$0\" 2>/dev/null", &pid.to_string()])
        .status();
    asked.is_ok_and(|s| s.success())
}

#[test]
fn every_supported_version_starts_decodes_logically_and_stops_without_a_trace() {
    for major in versions() {
        let own = own_server(major, Options::default());
        let (pid, data) = (own.pid().expect("it runs"), own.data());
        for url in [own.url("postgres"), own.socket_url("postgres")] {
            let mut sql = Sql::connect(&url);
            let version: u32 = sql.one("SHOW server_version_num").parse().expect("a number");
            assert_eq!(version / 10_000, major);
            assert_eq!(sql.one("SHOW wal_level"), "logical");
            assert_eq!(
                sql.rows("SELECT pg_encoding_to_char(encoding), datcollate FROM pg_database")[0],
                [Some("UTF8".to_owned()), Some("C".to_owned())]
            );
            sql.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
            sql.run("SELECT pg_drop_replication_slot('s')");
        }
        drop(own);
        assert!(!is_alive(pid), "PostgreSQL {major} still runs");
        assert!(!data.exists(), "{} is still there", data.display());
    }
}

#[test]
fn a_killed_server_recovers_what_was_committed_on_the_same_port() {
    let mut own = own_server(usual().major(), Options::default());
    let port = own.port();
    let mut sql = Sql::connect(&own.url("postgres"));
    sql.run("CREATE TABLE t AS SELECT 7 AS v");
    own.kill9().expect("kill");
    // A backend outlives the postmaster until it notices.
    support::wait_until("the server to be gone", support::PATIENCE, || {
        sql.attempt("SELECT 1").is_err()
            && std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
    });
    own.restart().expect("restart");
    assert_eq!(own.port(), port);
    assert_eq!(Sql::connect(&own.url("postgres")).one("SELECT v FROM t"), "7");
}

#[test]
fn a_folder_too_long_for_a_socket_gets_one_elsewhere() {
    let place = folder("long");
    let long = place.path().join("x".repeat(120));
    let bin = usual().bin().clone();
    let own = PrivateServer::start(bin, &long, Options::default()).expect("start");
    assert_eq!(Sql::connect(&own.socket_url("postgres")).one("SELECT 1"), "1");
    let socket = own.socket_folder().to_owned();
    drop(own);
    assert!(!socket.exists() && !long.exists());
}

#[test]
fn a_folder_with_something_in_it_is_refused_and_left_alone() {
    let place = folder("occupied");
    std::fs::write(place.path().join("precious"), "").expect("write");
    let bin = usual().bin().clone();
    let refused = PrivateServer::start(bin, place.path(), Options::default()).expect_err("refused");
    assert!(refused.to_string().contains("not empty"), "{refused}");
    assert!(place.path().join("precious").exists());
}

#[test]
fn own_settings_and_access_rules_come_first() {
    let options = Options {
        settings: vec![("max_slot_wal_keep_size".into(), "64MB".into())],
        hba: vec!["host all locked_out 127.0.0.1/32 reject".into()],
        ..Options::default()
    };
    let own = own_server(usual().major(), options);
    let mut sql = Sql::connect(&own.url("postgres"));
    assert_eq!(sql.one("SHOW max_slot_wal_keep_size"), "64MB");
    sql.run("CREATE ROLE locked_out LOGIN");
    let url = own.url("postgres").replace("postgres@", "locked_out@");
    let refused = std::panic::catch_unwind(|| drop(Sql::connect(&url)));
    assert!(refused.is_err(), "the rule that rejects did not count");
}

#[test]
fn some_server_is_found_without_being_told() {
    let found = find_postgres().expect("a server");
    assert!(found.program("initdb").is_some() && found.major >= 13, "{found:?}");
}

#[test]
fn a_database_goes_with_its_slots() {
    let db = TestDb::new(usual(), "with a slot");
    let name = db.name().to_owned();
    db.sql().run(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"));
    drop(db);
    let mut sql = Sql::connect(&usual().url("postgres"));
    for (table, column) in [("pg_database", "datname"), ("pg_replication_slots", "slot_name")] {
        let left = format!("SELECT count(*) FROM {table} WHERE {column} = '{name}'");
        assert_eq!(sql.one(&left), "0", "{table}");
    }
}

#[test]
fn a_server_whose_owner_is_killed_does_not_stay() {
    let place = folder("orphan");
    let me = std::env::current_exe().expect("the test binary's path");
    let mut owner = Command::new(me)
        .args(["--exact", "owner_that_is_killed", "--ignored", "--nocapture"])
        .env("TIDEGATE_TEST_ORPHAN", place.path().join("server"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test binary runs");
    let pid: u32 = BufReader::new(owner.stdout.take().expect("its output"))
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("server runs as ")?.1.trim().parse().ok())
        .expect("the server's process");
    assert!(is_alive(pid));
    owner.kill().expect("SIGKILL");
    owner.wait().expect("its end");
    let limit = Duration::from_secs(30);
    wait_until("the orphaned server to end", limit, || !is_alive(pid));
    wait_until("its folder to go", limit, || !place.path().join("server").exists());
}

#[test]
#[ignore = "the victim of a_server_whose_owner_is_killed_does_not_stay"]
fn owner_that_is_killed() {
    let Some(place) = std::env::var_os("TIDEGATE_TEST_ORPHAN") else { return };
    let bin = usual().bin().clone();
    let server = PrivateServer::start(bin, Path::new(&place), Options::default()).expect("start");
    println!("\nserver runs as {}", server.pid().expect("a process"));
    // Until the parent kills us, or is gone itself.
    let _ = std::io::stdin().read_line(&mut String::new());
}

//! Columns that the lake gets otherwise than they are, or not at all: `[[columns]]`.

mod support;

use ring::hmac;
use support::database::TestDb;
use support::judge::{self, At, Engine};
use support::pipeline::Pipeline;
use support::servers::{server, usual, versions};

const KEY: &str = "a key that nobody guesses";

/// What the lake has for a hashed value.
fn hashed(text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes());
    hmac::sign(&key, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pipeline(db: TestDb, columns: &str) -> Pipeline {
    let mut p = Pipeline::new(db);
    p.config.push_str(columns);
    p.env.push(("TIDEGATE_HASH_KEY", KEY.to_owned()));
    p
}

const USERS: &str = "
    CREATE TABLE users(id int PRIMARY KEY, email text, password text, amount numeric, doc jsonb,
        day date, note text);
    ALTER TABLE users ALTER email SET STORAGE EXTERNAL, ALTER doc SET STORAGE EXTERNAL;
    INSERT INTO users VALUES
        (1, 'a@example.com', 'pw1', 1.5, '{\"a\": 1}', 'infinity', 'n'),
        (2, NULL, 'pw2', 123456789012345678901234567890.12345, NULL, NULL, NULL),
        (3, repeat('x', 5000), 'pw3', 'NaN', jsonb_build_object('k', repeat('y', 5000)), '2020-02-29', 'n');
    CREATE TABLE other(id int PRIMARY KEY, v text);
    INSERT INTO other VALUES (1, 'one');";

const TREATED: &str = "
    [[columns]]
    tables = 'public.users'
    leave_out = ['password']
    hash = ['email']
    text = ['doc', 'day']
    decimal = { amount = '20,4' }
";

/// What DuckDB reads of `users`.
fn users(p: &Pipeline) -> Vec<Vec<Option<String>>> {
    let columns = ["id", "email", "amount", "doc", "day", "note", "_tg_overflow"];
    judge::rows(Engine::DuckDb, &p.table("users"), At::Newest, &columns).rows
}

fn row(values: [Option<&str>; 7]) -> Vec<Option<String>> {
    values.map(|value| value.map(str::to_owned)).to_vec()
}

fn column_names(p: &Pipeline, table: &str) -> Vec<String> {
    judge::rows(Engine::DuckDb, &p.table(table), At::Newest, &[]).columns
}

fn handoffs(p: &Pipeline, table: &str) -> usize {
    p.versions(table).iter().filter(|version| version["kind"] == "handoff").count()
}

fn why(p: &Pipeline, table: &str) -> String {
    let status = p.status();
    let tables = status["tables"].as_array().unwrap();
    tables.iter().find(|entry| entry["table"] == table).unwrap().to_string()
}

#[test]
fn columns_arrive_as_they_are_configured_by_snapshot_and_stream() {
    for major in [versions()[0], support::servers::USUAL] {
        let p = pipeline(TestDb::new(server(major), "columns"), TREATED);
        p.sql().run(USERS);
        p.run().succeed();
        let long = hashed(&"x".repeat(5000));
        let doc = format!("{{\"k\": \"{}\"}}", "y".repeat(5000));
        let huge = "{\"amount\":\"123456789012345678901234567890.12345\"}";
        let first = hashed("a@example.com");
        let expected = [
            row([
                Some("1"),
                Some(&first),
                Some("1.5000"),
                Some("{\"a\": 1}"),
                Some("infinity"),
                Some("n"),
                None,
            ]),
            row([Some("2"), None, None, None, None, None, Some(huge)]),
            row([
                Some("3"),
                Some(&long),
                None,
                Some(&doc),
                Some("2020-02-29"),
                Some("n"),
                Some("{\"amount\":\"NaN\"}"),
            ]),
        ];
        assert_eq!(users(&p), expected, "copied from {major}");
        assert!(!column_names(&p, "users").contains(&"password".to_owned()));
        p.assert_equal();

        // The stream: other values, the same ones again, and large ones that the WAL leaves out.
        p.sql().run(
            "INSERT INTO users SELECT id + 10, email, password, amount, doc, day, note FROM users",
        );
        p.sql().run("UPDATE users SET note = 'changed' WHERE id = 3; UPDATE users SET password = 'new' WHERE id = 1; UPDATE users SET email = 'b@example.com', amount = 2 WHERE id = 2; DELETE FROM users WHERE id = 11");
        p.run().succeed();
        let second = hashed("b@example.com");
        let expected = [
            row([
                Some("1"),
                Some(&first),
                Some("1.5000"),
                Some("{\"a\": 1}"),
                Some("infinity"),
                Some("n"),
                None,
            ]),
            row([Some("12"), None, None, None, None, None, Some(huge)]),
            row([
                Some("13"),
                Some(&long),
                None,
                Some(&doc),
                Some("2020-02-29"),
                Some("n"),
                Some("{\"amount\":\"NaN\"}"),
            ]),
            row([Some("2"), Some(&second), Some("2.0000"), None, None, None, None]),
            row([
                Some("3"),
                Some(&long),
                None,
                Some(&doc),
                Some("2020-02-29"),
                Some("changed"),
                Some("{\"amount\":\"NaN\"}"),
            ]),
        ];
        assert_eq!(users(&p), expected, "streamed from {major}");
        p.assert_equal();
        assert_eq!(handoffs(&p, "public.users"), 1);
    }
}

#[test]
fn a_left_out_column_needs_neither_rights_nor_the_wire() {
    if support::servers::USUAL < 15 {
        return;
    }
    let mut p = pipeline(TestDb::new(usual(), "columns_rights"), TREATED);
    let mut sql = p.sql();
    sql.run(USERS);
    let name = p.name.clone();
    sql.run(&format!(
        "DROP ROLE IF EXISTS {name}_reader; CREATE ROLE {name}_reader LOGIN REPLICATION;
         GRANT SELECT (id, email, amount, doc, day, note) ON users TO {name}_reader;
         GRANT SELECT ON other TO {name}_reader;
         CREATE PUBLICATION {name} FOR TABLE users (id, email, amount, doc, day, note), other
         WITH (publish_via_partition_root = true)"
    ));
    let url = p.db.url().replacen("postgres@", &format!("{name}_reader@"), 1);
    assert_ne!(url, p.db.url());
    p.env.push(("TIDEGATE_SOURCE", url));
    p.run().succeed();
    sql.run("INSERT INTO users(id, email, password) VALUES (4, 'd@example.com', 'pw4'); UPDATE users SET password = 'other' WHERE id = 1");
    p.run().succeed();
    assert_eq!(users(&p).len(), 4);
    p.assert_equal();
    // What is not left out must be in the list.
    p.config = p.config.replace("leave_out = ['password']", "");
    let refused = p.command(&["check"]).finish().expect_code(3);
    assert!(refused.stdout.contains("leaves out password"), "{}", refused.output());
    drop(p);
    let mut sql = support::database::Sql::connect(&usual().url("postgres"));
    sql.run(&format!("DROP ROLE {name}_reader"));
}

#[test]
fn other_settings_read_the_table_again_and_no_other() {
    let mut p = pipeline(TestDb::new(usual(), "columns_change"), "");
    let plain = p.config.clone();
    p.sql().run(USERS);
    p.run().succeed();
    assert!(column_names(&p, "users").contains(&"password".to_owned()));
    p.config.push_str(TREATED);
    p.sql()
        .run("UPDATE users SET note = 'of the last run' WHERE id = 1; UPDATE other SET v = 'two'");
    p.run().succeed();
    assert!(!column_names(&p, "users").contains(&"password".to_owned()));
    assert_eq!(users(&p)[0][1].as_deref(), Some(&*hashed("a@example.com")));
    assert_eq!(users(&p)[0][5].as_deref(), Some("of the last run"));
    p.assert_equal();
    // A restart with the same settings reads nothing again; another key does.
    p.run().succeed();
    assert_eq!(handoffs(&p, "public.users"), 2);
    p.env.retain(|(name, _)| *name != "TIDEGATE_HASH_KEY");
    p.env.push(("TIDEGATE_HASH_KEY", "another key, just as long".to_owned()));
    let run = p.run().succeed();
    assert!(run.stderr.contains("hashes made with the key"), "{}", run.stderr);
    assert_ne!(users(&p)[0][1].as_deref(), Some(&*hashed("a@example.com")));
    p.assert_equal();
    p.config = plain;
    p.run().succeed();
    assert!(column_names(&p, "users").contains(&"password".to_owned()));
    p.assert_equal();
    assert_eq!(handoffs(&p, "public.users"), 4);
    assert_eq!(handoffs(&p, "public.other"), 1);
}

#[test]
fn a_table_without_key_is_the_multiset_of_what_is_left() {
    let p = pipeline(
        TestDb::new(usual(), "columns_full"),
        "[[columns]]\ntables = 'public.*'\nleave_out = ['secret']\nhash = ['h']\n",
    );
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE f(a int, secret text, h text); ALTER TABLE f REPLICA IDENTITY FULL;
         INSERT INTO f VALUES (1, 'x', 'h'), (1, 'y', 'h'), (1, 'z', 'h'), (2, 'x', NULL)",
    );
    p.run().succeed();
    sql.run("DELETE FROM f WHERE secret = 'y'; UPDATE f SET secret = 'q' WHERE a = 2; UPDATE f SET a = 3 WHERE secret = 'z'; INSERT INTO f VALUES (1, 'n', 'h')");
    p.run().succeed();
    let rows = judge::rows(Engine::DuckDb, &p.table("f"), At::Newest, &["a", "h"]).rows;
    let h = Some(hashed("h"));
    let expected: Vec<Vec<Option<String>>> =
        [("1", h.clone()), ("1", h.clone()), ("2", None), ("3", h)]
            .into_iter()
            .map(|(a, h)| vec![Some(a.to_owned()), h])
            .collect();
    assert_eq!(rows, expected);
    p.assert_equal();
}

#[test]
fn a_column_that_is_left_out_may_come_and_go() {
    let p = pipeline(
        TestDb::new(usual(), "columns_ddl"),
        "[[columns]]\ntables = 'public.*'\nleave_out = ['secret', 'later']\n",
    );
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE t(id int PRIMARY KEY, secret text, v text); INSERT INTO t VALUES (1, 's', 'v');
         CREATE TABLE u(id int PRIMARY KEY, later text); INSERT INTO u VALUES (1, 'l')",
    );
    p.run().succeed();
    sql.run("ALTER TABLE t ADD later text; INSERT INTO t VALUES (2, 's', 'v', 'l')");
    sql.run("ALTER TABLE t ADD w int; UPDATE t SET w = 7 WHERE id = 2");
    sql.run("ALTER TABLE t DROP secret; INSERT INTO t VALUES (3, 'v', 'l', 8)");
    p.run().succeed();
    let names = column_names(&p, "t");
    assert!(names.contains(&"w".to_owned()), "{names:?}");
    assert!(!names.contains(&"later".to_owned()) && !names.contains(&"secret".to_owned()));
    p.assert_equal();
    assert_eq!(handoffs(&p, "public.t"), 1);
}

#[test]
fn a_left_out_column_that_is_renamed_does_not_slip_in() {
    // Named, and chosen by a pattern with others that still have the name, and one that never had it.
    for section in ["tables = 'public.t'", "tables = 'public.*'"] {
        let mut p = pipeline(
            TestDb::new(usual(), "columns_rename"),
            &format!("[[columns]]\n{section}\nleave_out = ['secret']\n"),
        );
        let mut sql = p.sql();
        sql.run(
            "CREATE TABLE t(id int PRIMARY KEY, secret text); INSERT INTO t VALUES (1, 's');
             CREATE TABLE s(id int PRIMARY KEY, secret text); INSERT INTO s VALUES (1, 's');
             CREATE TABLE u(id int PRIMARY KEY); INSERT INTO u VALUES (1)",
        );
        p.run().succeed();
        sql.run("ALTER TABLE t RENAME secret TO open_secret; INSERT INTO t VALUES (2, 'x'); INSERT INTO u VALUES (2)");
        // Both are read again, side by side with the one that must not be.
        sql.run("ALTER TABLE u ADD c int DEFAULT 7; ALTER TABLE s ADD c int DEFAULT 7");
        let run = p.command(&["run", "--until-lsn", &p.db.wal_position()]).succeed();
        assert!(!column_names(&p, "t").contains(&"open_secret".to_owned()));
        let said = why(&p, "public.t");
        assert!(said.contains("is named \\\"open_secret\\\" now"), "{said}");
        for table in ["s", "u"] {
            let names = column_names(&p, table);
            assert!(names.contains(&"c".to_owned()), "{table} goes on: {}", run.stderr);
        }
        assert_eq!(handoffs(&p, "public.u"), 2);
        // Nor by a new generation.
        let again =
            p.command(&["run", "--resnapshot", "--until-caught-up"]).finish().expect_code(3);
        assert!(
            again.stderr.contains("open_secret") || again.stderr.contains("secret"),
            "{}",
            again.stderr
        );
        assert!(!column_names(&p, "t").contains(&"open_secret".to_owned()));
        p.config = p.config.replace("['secret']", "['secret', 'open_secret']");
        if section.contains('*') {
            p.run().succeed();
            assert_eq!(column_names(&p, "t").len(), 6, "{:?}", column_names(&p, "t"));
            p.assert_equal();
        }
    }
}

#[test]
fn what_can_not_be_meant_is_said() {
    let mut p = pipeline(TestDb::new(usual(), "columns_wrong"), "");
    let plain = p.config.clone();
    p.sql().run(USERS);
    let mut says = |columns: &str, code: i32, part: &str| {
        p.config = format!("{plain}\n{columns}");
        let finished = p.run().finish().expect_code(code);
        assert!(finished.output().contains(part), "{columns}: {}", finished.output());
        assert!(!p.table("users").exists(), "{columns}");
    };
    let section = |text: &str| format!("[[columns]]\ntables = 'public.users'\n{text}\n");
    says(&section("leave_out = ['Password']"), 3, "has no column \"Password\"");
    says(&section("leave_out = ['id']"), 3, "leaves out");
    says(&section("decimal = { note = '20,4' }"), 2, "no numeric");
    says(&section("decimal = { amount = '50,4' }"), 2, "\"50,4\" is no decimal");
    says(&section("text = ['note']\nhash = ['note']"), 2, "column \"note\" is named twice");
    says(&section("leave_uot = ['note']"), 2, "leave_uot");
    says(&section(""), 2, "it names no column");
    says("[columns]\ntables = 'x'\n", 2, "write [[columns]]");
    p.env.retain(|(name, _)| *name != "TIDEGATE_HASH_KEY");
    let mut says = |columns: &str, code: i32, part: &str| {
        p.config = format!("{plain}\n{columns}");
        let finished = p.run().finish().expect_code(code);
        assert!(finished.output().contains(part), "{columns}: {}", finished.output());
    };
    says(&section("hash = ['email']"), 2, "TIDEGATE_HASH_KEY");
}

/// Rows that a publication leaves out are not copied either, and one that an update brings in comes
/// whole, though the WAL has only what the update changed.
#[test]
fn a_row_filter_holds_for_snapshot_and_stream() {
    if support::servers::USUAL < 15 {
        return;
    }
    let p = pipeline(TestDb::new(usual(), "row_filter"), "");
    let mut sql = p.sql();
    sql.run(&format!(
        "CREATE TABLE t(id int PRIMARY KEY, v text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
         INSERT INTO t SELECT i, 'v' || i, repeat(md5(i::text), 100) FROM generate_series(1, 100) i;
         CREATE TABLE f(a int, v text); ALTER TABLE f REPLICA IDENTITY FULL;
         INSERT INTO f SELECT i % 10, 'f' || i % 3 FROM generate_series(1, 60) i;
         CREATE TABLE p(id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
         CREATE TABLE p_eu PARTITION OF p FOR VALUES IN ('eu'); CREATE TABLE p_us PARTITION OF p FOR VALUES IN ('us');
         INSERT INTO p SELECT i, CASE WHEN i % 2 = 0 THEN 'eu' ELSE 'us' END, 'v' FROM generate_series(1, 20) i;
         CREATE PUBLICATION {} FOR TABLE t WHERE (id > 50 OR id < 0), f WHERE (v = 'f1' AND a IS NOT NULL), p WHERE (id < 11)
         WITH (publish_via_partition_root = true)",
        p.name
    ));
    let agrees = |when: &str| {
        let mut sql = p.sql();
        for (table, columns, condition) in [
            ("t", "id, v, md5(big)", "id > 50 OR id < 0"),
            ("f", "a, v", "v = 'f1' AND a IS NOT NULL"),
            ("p", "id, region, v", "id < 11"),
        ] {
            let mut expected =
                sql.rows(&format!("SELECT {columns} FROM {table} WHERE {condition}"));
            expected.sort();
            let scan = format!("SELECT {columns} FROM delta_scan('{}')", p.table(table).display());
            let mut found = judge::sql(Engine::DuckDb, &scan).rows;
            found.sort();
            assert_eq!(judge::difference(&expected, &found), None, "{when}: {table}");
            assert!(!expected.is_empty());
        }
        p.assert_equal();
    };
    p.run().succeed();
    agrees("copied");
    sql.run("UPDATE t SET v = 'in' WHERE id % 5 = 0; DELETE FROM t WHERE id % 9 = 0; INSERT INTO t VALUES (101, 'new', 'b'), (-1, 'new', 'b'), (0, 'out', 'b')");
    sql.run("UPDATE f SET v = 'f1' WHERE v = 'f2' AND a = 3; UPDATE f SET v = 'f2' WHERE v = 'f1' AND a = 4; DELETE FROM f WHERE a = 5; INSERT INTO f VALUES (NULL, 'f1'), (77, 'f1')");
    sql.run("UPDATE p SET id = id + 100 WHERE id < 4; UPDATE p SET id = id - 20 WHERE id BETWEEN 15 AND 18; UPDATE p SET region = 'eu' WHERE id = 5");
    p.run().succeed();
    agrees("streamed");
    // Out of it, and into it with a large value that the WAL does not repeat.
    sql.run("UPDATE t SET id = id - 1000 WHERE id BETWEEN 60 AND 62; UPDATE t SET id = id + 1000 WHERE id BETWEEN 20 AND 22; UPDATE t SET id = -id WHERE id = 70");
    p.run().succeed();
    agrees("moved in and out");
    sql.run("TRUNCATE f; INSERT INTO f VALUES (1, 'f1'), (2, 'f2')");
    p.run().succeed();
    agrees("truncated");
    // Another filter is another set of rows: no stream goes from one to the other.
    sql.run(&format!("ALTER PUBLICATION {} SET TABLE t WHERE (id > 50 OR id < 0), f WHERE (v = 'f1' AND a IS NOT NULL), p WHERE (id < 9)", p.name));
    let refused = p.run().finish().expect_code(5);
    assert!(refused.stderr.contains("was altered"), "{}", refused.stderr);
    p.command(&["run", "--resnapshot", "--until-caught-up"]).succeed();
    let found = judge::rows(Engine::DuckDb, &p.table("p"), At::Newest, &["id"]).rows.len();
    assert_eq!(found.to_string(), p.sql().one("SELECT count(*) FROM p WHERE id < 9"));
    p.assert_equal();
}

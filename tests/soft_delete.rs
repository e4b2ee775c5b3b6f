//! `soft_delete`: deleted rows stay, with the values they had and the position of their deletion.

mod support;

use std::collections::BTreeMap;

use support::database::TestDb;
use support::judge::{self, At, Engine};
use support::pipeline::Pipeline;
use support::random::Random;
use support::servers::{server, usual, versions};

const COLUMNS: [&str; 5] = ["id", "v", "doc", "_tg_deleted", "_tg_op"];

fn pipeline(db: TestDb, tables: &str) -> Pipeline {
    let mut p = Pipeline::new(db);
    // Before the first section: it is a key of the top.
    p.config = format!("soft_delete = [{tables}]\n{}", p.config);
    p.tables = "public.*".to_owned();
    p
}

fn rows(p: &Pipeline, table: &str, columns: &[&str]) -> Vec<String> {
    let found = judge::rows(Engine::DuckDb, &p.table(table), At::Newest, columns);
    let text = |row: Vec<Option<String>>| {
        let values: Vec<String> = row.into_iter().map(|v| v.unwrap_or("NULL".into())).collect();
        values.join("|")
    };
    let mut rows: Vec<String> = found.rows.into_iter().map(text).collect();
    rows.sort();
    rows
}

/// Each way to delete, under each identity that names a row by its key.
#[test]
fn a_deleted_row_stays_with_its_last_values() {
    for major in [versions().first(), versions().last()].into_iter().flatten() {
        let p = pipeline(TestDb::new(server(*major), "soft"), "'public.*', '!public.plain'");
        let mut sql = p.sql();
        let big = |letter: char| letter.to_string().repeat(3000);
        for (table, identity) in [("d", "DEFAULT"), ("f", "FULL")] {
            sql.run(&format!(
                "CREATE TABLE {table}(id int PRIMARY KEY, v text, doc text);
                 ALTER TABLE {table} REPLICA IDENTITY {identity}, ALTER doc SET STORAGE EXTERNAL;
                 INSERT INTO {table} SELECT i, 'v' || i, repeat('a', 3000)
                 FROM generate_series(1, 9) i; UPDATE {table} SET doc = NULL WHERE id = 2;"
            ));
        }
        sql.run("CREATE TABLE plain(id int PRIMARY KEY); INSERT INTO plain VALUES (1), (2)");
        p.run().succeed();
        for table in ["d", "f"] {
            sql.run(&format!(
                "DELETE FROM {table} WHERE id IN (1, 2);
                 BEGIN; UPDATE {table} SET v = 'last' WHERE id = 3; DELETE FROM {table} WHERE id = 3; COMMIT;
                 BEGIN; INSERT INTO {table} VALUES (20, 'x', repeat('b', 3000));
                 UPDATE {table} SET v = 'y' WHERE id = 20; DELETE FROM {table} WHERE id = 20; COMMIT;
                 BEGIN; DELETE FROM {table} WHERE id = 4; INSERT INTO {table} VALUES (4, 'again', 'n'); COMMIT;
                 DELETE FROM {table} WHERE id = 5;
                 UPDATE {table} SET id = 60 WHERE id = 6;
                 DELETE FROM {table} WHERE id = 7; UPDATE {table} SET id = 7 WHERE id = 8;"
            ));
        }
        sql.run("DELETE FROM plain WHERE id = 1");
        p.run_to_now();
        // In a batch of its own: it replaces the deleted row.
        sql.run("INSERT INTO d VALUES (5, 'back', 'n'); INSERT INTO f VALUES (5, 'back', 'n');");
        p.run_to_now();
        let (a, b) = (big('a'), big('b'));
        let mut expected = vec![
            format!("1|v1|{a}|true|d"),
            "2|v2|NULL|true|d".to_owned(),
            format!("3|last|{a}|true|d"),
            format!("20|y|{b}|true|d"),
            "4|again|n|false|i".to_owned(),
            "5|back|n|false|i".to_owned(),
            format!("60|v6|{a}|false|u"),
            format!("7|v8|{a}|false|u"),
            format!("9|v9|{a}|false|s"),
        ];
        expected.sort();
        for table in ["d", "f"] {
            assert_eq!(rows(&p, table, &COLUMNS), expected, "{table} on {major}");
        }
        // The position of a deleted row is its deletion's: the fourth change of that transaction.
        let positions = rows(&p, "d", &["id", "_tg_lsn", "_tg_seq"]);
        let of = |id: &str| positions.iter().find(|row| row.starts_with(id)).cloned();
        assert!(of("3|").is_some_and(|row| row.ends_with("|4")), "{positions:?}");
        assert_eq!(rows(&p, "plain", &["id"]), ["2"]);
        p.assert_equal();
        // A reader that wants the table as it is leaves them out; others, too, read what is there.
        let there = judge::rows(Engine::DeltaLake, &p.table("d"), At::Newest, &COLUMNS).rows;
        assert_eq!(there.len(), 9);
        sql.run("TRUNCATE d; INSERT INTO d VALUES (1, 'one', 'n')");
        p.run_to_now();
        assert_eq!(rows(&p, "d", &COLUMNS), ["1|one|n|false|i"]);
        p.assert_equal();
    }
}

/// Against a table that simply does as it is told; with kills, compaction and a schema change.
#[test]
fn deleted_rows_stay_under_random_load() {
    let p = pipeline(TestDb::new(usual(), "soft_random"), "'t'");
    let mut sql = p.sql();
    sql.run("CREATE TABLE t(id int PRIMARY KEY, v text)");
    let (mut there, mut gone) = (BTreeMap::new(), BTreeMap::new());
    let mut random = Random::new(7);
    p.run().succeed();
    for round in 0..12u64 {
        for step in 0..40u64 {
            let id = random.below(30);
            let value = format!("{round}.{step}");
            let is_there = there.contains_key(&id);
            if is_there {
                if random.chance(50) {
                    sql.run(&format!("DELETE FROM t WHERE id = {id}"));
                    gone.insert(id, there.remove(&id).unwrap_or_default());
                } else {
                    sql.run(&format!("UPDATE t SET v = '{value}' WHERE id = {id}"));
                    there.insert(id, value);
                }
            } else {
                sql.run(&format!("INSERT INTO t VALUES ({id}, '{value}')"));
                gone.remove(&id);
                there.insert(id, value);
            }
        }
        match round % 4 {
            0 => drop(p.command(&["run"]).failpoint("lake.commit.after", "crash").finish()),
            1 => drop(p.command(&["run"]).failpoint("apply.file.written", "crash").finish()),
            _ => {}
        }
        if round == 6 {
            sql.run(&format!("ALTER TABLE t ADD COLUMN w{round} int"));
        }
        p.run_to_now();
        if round % 3 == 2 {
            p.command(&["maintain"]).succeed();
        }
        let mut expected: Vec<String> =
            there.iter().map(|(id, v): (&u64, &String)| format!("{id}|{v}|false")).collect();
        expected.extend(gone.iter().map(|(id, v): (&u64, &String)| format!("{id}|{v}|true")));
        expected.sort();
        assert_eq!(rows(&p, "t", &["id", "v", "_tg_deleted"]), expected, "round {round}");
        p.assert_equal();
    }
    assert!(gone.len() > 5, "{}", gone.len());
}

/// Another setting reads the table again, and a table without a key is refused.
#[test]
fn a_changed_setting_reads_the_table_again() {
    let mut p = pipeline(TestDb::new(usual(), "soft_setting"), "");
    let mut sql = p.sql();
    sql.run("CREATE TABLE t(id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)");
    p.run().succeed();
    let without = p.config.clone();
    p.config = without.replacen("[]", "['public.t']", 1);
    sql.run("DELETE FROM t WHERE id = 1");
    p.run_to_now();
    assert_eq!(rows(&p, "t", &["id", "_tg_deleted"]), ["2|false"]);
    sql.run("DELETE FROM t WHERE id = 2");
    p.run_to_now();
    assert_eq!(rows(&p, "t", &["id", "_tg_deleted"]), ["2|true"]);
    p.assert_equal();
    p.config = without.replacen("[]", "'public.*'", 1);
    sql.run("CREATE TABLE keyless(v int); ALTER TABLE keyless REPLICA IDENTITY FULL");
    let refused = p.command(&["check"]).finish().expect_code(3).output();
    assert!(refused.contains("soft-delete-key"), "{refused}");
    p.config = without;
    p.run_to_now();
    assert!(rows(&p, "t", &["id"]).is_empty());
    p.assert_equal();
}

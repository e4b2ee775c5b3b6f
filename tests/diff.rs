//! `tidegate diff`: what became of the rows between two versions, against full reads of both.

mod support;

use std::collections::BTreeMap;

use serde_json::Value;
use support::database::TestDb;
use support::judge::{self, Engine};
use support::pipeline::Pipeline;
use support::random::Random;
use support::servers::usual;

type Row = Vec<Option<String>>;

/// The rows of a version by their keys, as DuckDB reads them.
fn read(p: &Pipeline, table: &str, version: u64, columns: &[&str]) -> BTreeMap<String, Row> {
    let found = judge::rows(Engine::DuckDb, &p.table(table), version, columns);
    found.rows.into_iter().map(|row| (row[0].clone().unwrap(), row)).collect()
}

fn lines(p: &Pipeline, arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["diff"], arguments].concat();
    let text = p.command(&arguments).succeed().stdout;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A value of a JSON line as DuckDB prints it.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// What `diff` says must be what a comparison of two full reads says.
#[track_caller]
fn assert_exact(p: &Pipeline, table: &str, from: u64, to: u64, columns: &[&str]) -> [usize; 3] {
    let (before, after) = (read(p, table, from, columns), read(p, table, to, columns));
    let mut expected: Vec<(String, Row)> = Vec::new();
    let mut counts = [0; 3];
    for (key, row) in &after {
        match before.get(key) {
            None => {
                counts[0] += 1;
                expected.push(("insert".into(), row.clone()));
            }
            Some(old) if old != row => {
                counts[1] += 1;
                expected.push(("update_preimage".into(), old.clone()));
                expected.push(("update_postimage".into(), row.clone()));
            }
            Some(_) => {}
        }
    }
    for (key, row) in &before {
        if !after.contains_key(key) {
            counts[2] += 1;
            expected.push(("delete".into(), row.clone()));
        }
    }
    let name = format!("public.{table}");
    let range = [&*name, "--from", &from.to_string(), "--to", &to.to_string()];
    let mut found: Vec<(String, Row)> = lines(p, &range)
        .iter()
        .map(|line| {
            let row = columns.iter().map(|column| text(&line[*column])).collect();
            (line["_change_type"].as_str().unwrap().to_owned(), row)
        })
        .collect();
    // A row as it was is followed by what it became.
    for pair in found.windows(2).filter(|pair| pair[0].0 == "update_preimage") {
        assert_eq!((&*pair[1].0, &pair[1].1[0]), ("update_postimage", &pair[0].1[0]));
    }
    expected.sort();
    found.sort();
    assert_eq!(found, expected, "{table}, {from} to {to}");
    let summary = p.command(&[&["diff"], &range[..], &["--summary"]].concat()).succeed().json();
    for (key, count) in ["inserted", "updated", "deleted"].iter().zip(counts) {
        assert_eq!(summary[key], count, "{summary}");
    }
    counts
}

#[test]
fn a_diff_is_what_two_full_reads_say() {
    let mut p = Pipeline::new(TestDb::new(usual(), "diff_random"));
    p.config.push_str("[[columns]]\ntables = 'public.parted'\npartition_by = ['region']\n");
    let mut sql = p.sql();
    for table in ["t", "parted"] {
        sql.run(&format!(
            "CREATE TABLE {table}(id int PRIMARY KEY, region text, v int, doc text);
             ALTER TABLE {table} ALTER doc SET STORAGE EXTERNAL;
             INSERT INTO {table} SELECT n, 'r' || n % 3, n, repeat('d', 50) FROM generate_series(1, 30000) n"
        ));
    }
    p.run().succeed();
    let mut random = Random::new(5);
    for round in 0..6u64 {
        for _ in 0..25u64 {
            let (id, many) = (random.below(30_500), random.below(40));
            for table in ["t", "parted"] {
                sql.run(&match random.below(8) {
                    0 => format!("DELETE FROM {table} WHERE id BETWEEN {id} AND {id} + {many}"),
                    1 => format!("INSERT INTO {table} VALUES ({id}, 'r9', NULL, '') ON CONFLICT (id) DO NOTHING"),
                    2 => format!("UPDATE {table} SET region = 'r' || {round} WHERE id BETWEEN {id} AND {id} + {many}"),
                    3 => format!("UPDATE {table} SET v = v WHERE id BETWEEN {id} AND {id} + {many}"),
                    4 => format!("UPDATE {table} SET id = id + 100000 WHERE id = {id}"),
                    _ => format!("UPDATE {table} SET v = {round} WHERE id BETWEEN {id} AND {id} + {many}"),
                });
            }
        }
        p.run_to_now();
        if round == 3 {
            // Whoever reads a table again finds the same rows at other positions in other files.
            p.command(&["reseed", "public.t"]).succeed();
            p.run_to_now();
        }
        if round % 2 == 1 {
            p.command(&["maintain"]).succeed();
        }
    }
    let columns = ["id", "region", "v", "doc"];
    for table in ["t", "parted"] {
        let newest = p.versions(&format!("public.{table}")).last().unwrap()["version"].clone();
        let newest = newest.as_u64().unwrap();
        for (from, to) in [(0, newest), (newest, 0), (0, 1), (newest / 2, newest), (3, 3)] {
            let counts = assert_exact(&p, table, from, to, &columns);
            assert_eq!(from == to, counts == [0; 3], "{from} {to} {counts:?}");
        }
        for _ in 0..4 {
            let (from, to) = (random.below(newest + 1), random.below(newest + 1));
            assert_exact(&p, table, from, to, &columns);
        }
    }
}

#[test]
fn rows_without_a_key_schema_changes_and_odd_values() {
    let p = Pipeline::new(TestDb::new(usual(), "diff_odd"));
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE bag(v text, x float8); ALTER TABLE bag REPLICA IDENTITY FULL;
         INSERT INTO bag VALUES ('a', 1), ('a', 1), ('a', 1), ('b', 'NaN'), (NULL, NULL);
         CREATE TABLE k(id int PRIMARY KEY, gone text, n numeric, d numeric(38,2), l int[], day date);
         INSERT INTO k SELECT n, 'g', n, n, ARRAY[n], '2024-01-01' FROM generate_series(1, 5) n",
    );
    p.run().succeed();
    let version = |table: &str| {
        let name = format!("public.{table}");
        p.versions(&name).last().unwrap()["version"].as_u64().unwrap()
    };
    sql.run(
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 'a');
         UPDATE bag SET x = '-Infinity' WHERE v IS NULL; INSERT INTO bag VALUES ('b', 'NaN');
         UPDATE k SET day = 'infinity', d = 'NaN', l = NULL WHERE id = 1;
         UPDATE k SET d = 123456789012345678901234567890123456.78 WHERE id = 2",
    );
    p.run_to_now();
    let rows = lines(&p, &["public.bag", "--from", "0"]);
    let mut found: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", row["_change_type"], row["v"], row["x"]))
        .collect();
    found.sort();
    let expected = [
        r#""delete" "a" 1.0"#,
        r#""delete" null null"#,
        r#""insert" "b" "NaN""#,
        r#""insert" null "-Infinity""#,
    ];
    assert_eq!(found, expected);
    let rows = lines(&p, &["public.k", "--from", "0"]);
    assert_eq!(rows.len(), 4, "{rows:?}");
    let of = |id: i64, kind: &str| {
        rows.iter().find(|row| row["id"] == id && row["_change_type"] == kind).unwrap().clone()
    };
    assert_eq!(of(1, "update_preimage")["l"], serde_json::json!([1]));
    let after = of(1, "update_postimage");
    assert_eq!(after["day"], Value::Null);
    assert_eq!(after["_tg_overflow"], serde_json::json!({"day": "infinity", "d": "NaN"}));
    assert_eq!(of(2, "update_postimage")["d"], "123456789012345678901234567890123456.78");

    // Rows that only got or lost a column are the same; a value in it is another row.
    let before = version("k");
    sql.run("ALTER TABLE k ADD COLUMN fresh text, DROP COLUMN gone; UPDATE k SET fresh = 'f' WHERE id = 3");
    p.run_to_now();
    let rows = lines(&p, &["public.k", "--from", &before.to_string()]);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((&rows[0]["gone"], &rows[0]["fresh"]), (&"g".into(), &Value::Null));
    assert_eq!((&rows[1]["gone"], &rows[1]["fresh"]), (&Value::Null, &"f".into()));

    // Another type is compared by its text.
    let before = version("k");
    sql.run("ALTER TABLE k ALTER n TYPE bigint; UPDATE k SET n = 44 WHERE id = 4");
    p.run_to_now();
    let rows = lines(&p, &["public.k", "--from", &before.to_string()]);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((&rows[0]["n"], &rows[1]["n"]), (&"4".into(), &"44".into()));
}

#[test]
fn versions_are_named_in_many_ways_and_rows_written_in_three() {
    let p = Pipeline::new(TestDb::new(usual(), "diff_ways"));
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE t(id int PRIMARY KEY, v text, l int[]);
         INSERT INTO t SELECT n, 'v', ARRAY[n, NULL] FROM generate_series(1, 3) n",
    );
    p.run().succeed();
    p.command(&["pin", "friday"]).succeed();
    let first = p.versions("public.t")[0].clone();
    sql.run("UPDATE t SET v = NULL WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (4, '', NULL)");
    p.run_to_now();
    let lsn = first["applied"].as_str().unwrap();
    let by_version = lines(&p, &["t", "--from", "0"]);
    assert_eq!(by_version.len(), 4);
    for from in ["friday", lsn] {
        assert_eq!(lines(&p, &["public.t", "--from", from]), by_version, "{from}");
    }
    let folder = support::folder("diff");
    let csv = folder.path().join("rows.csv");
    let parquet = folder.path().join("rows.parquet");
    for (format, path) in [("csv", &csv), ("parquet", &parquet)] {
        let path = path.to_str().unwrap();
        p.command(&["diff", "public.t", "--from", "0", "--format", format, "--output", path])
            .succeed();
    }
    let text = std::fs::read_to_string(&csv).unwrap();
    assert!(text.starts_with("_change_type,id,v,l,_tg_lsn,"), "{text}");
    assert!(text.contains("delete,2,v,\"[2,null]\",") && text.contains("insert,4,,\\N,"), "{text}");
    assert!(text.contains("update_postimage,1,\\N,"), "{text}");
    let query = format!(
        "SELECT _change_type, id, v FROM read_parquet('{}') ORDER BY 1, 2",
        parquet.display()
    );
    let rows = judge::sql(Engine::DuckDb, &query).rows;
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0], [Some("delete".into()), Some("2".into()), Some("v".into())]);
    // Backwards: what was deleted comes.
    let back = lines(&p, &["t", "--from", "1", "--to", "friday"]);
    assert!(back.iter().any(|row| row["_change_type"] == "insert" && row["id"] == 2));
    for (arguments, code, words) in [
        (&["t", "--from", "99"][..], 1, "99"),
        (&["t", "--from", "monday"], 2, "names no"),
        (&["nowhere", "--from", "0"], 2, "no table"),
        (&["t", "--from", "0", "--format", "parquet"], 2, "--output"),
        (&["t", "--from", "0", "--summary", "--format", "csv"], 2, "--summary"),
    ] {
        let refused = p.command(&[&["diff"], arguments].concat()).finish().expect_code(code);
        assert!(refused.output().contains(words), "{arguments:?}: {}", refused.output());
    }
}

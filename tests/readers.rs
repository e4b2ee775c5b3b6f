//! The judges are judged: on a table that is not ours, with values readers trip over and a
//! deletion vector, all four must see what was written, and a wrong expectation must not pass.

mod support;

use std::path::{Path, PathBuf};

use support::folder;
use support::judge::{At, Engine, all_see, attempt, engines, rows, sql, write_sample};

/// The rows `tests/readers/sample.py` writes at first, as canonical texts, by hand.
fn first() -> Vec<Vec<Option<String>>> {
    let rows: [[&str; 16]; 5] = [
        [
            "1",
            "true",
            "-32768",
            "2147483647",
            "0.1",
            "0.1",
            "0.1000000000",
            "é 'quoted' \"twice\"\n",
            "00ff",
            "2013-01-31",
            "2013-01-31T10:00:00.000001Z",
            "2013-01-31T10:00:00.000001",
            "[1,null,3]",
            r#"["null",null,"a,b"]"#,
            r#"{"a":null,"b":"2"}"#,
            r#"(a:1,b:"x")"#,
        ],
        ["2", "~", "~", "~", "~", "~", "~", "~", "~", "~", "~", "~", "~", "~", "~", "~"],
        [
            "3",
            "false",
            "0",
            "0",
            "1e-45",
            "5e-324",
            "1234567890123456789012345678.0123456789",
            "",
            "",
            "0001-01-01",
            "0001-01-01T00:00:00.000000Z",
            "1582-10-10T12:00:00.000000",
            "[]",
            "[]",
            "{}",
            "(a:null,b:null)",
        ],
        [
            "4",
            "true",
            "1",
            "-1",
            "NaN",
            "Infinity",
            "-0.0000000001",
            "☃ 😀",
            "0001020304050607",
            "9999-12-31",
            "9999-12-31T23:59:59.999999Z",
            "9999-12-31T23:59:59.999999",
            "[0]",
            r#"[""]"#,
            r#"{"":""}"#,
            r#"(a:0,b:"")"#,
        ],
        [
            "5",
            "true",
            "2",
            "3",
            "3.4028235e+38",
            "-0.0",
            "0.0000000000",
            "goes",
            "67",
            "1969-12-31",
            "1969-12-31T23:59:59.999999Z",
            "1900-01-01T00:00:00.000000",
            "[9]",
            r#"["z"]"#,
            r#"{"k":"v"}"#,
            r#"(a:9,b:"z")"#,
        ],
    ];
    let cell = |v: &str| (v != "~").then(|| v.to_owned());
    rows.iter().map(|row| row.iter().map(|v| cell(v)).collect()).collect()
}

fn second() -> Vec<Vec<Option<String>>> {
    let mut all = first();
    let mut more = all[0].clone();
    more[0] = Some("6".to_owned());
    more[1] = Some("false".to_owned());
    all.push(more);
    all
}

fn sample(place: &Path) -> PathBuf {
    let table = place.join("sample");
    write_sample(&table);
    table
}

#[test]
fn all_judges_agree_on_odd_values_and_deletion_vectors_at_every_version() {
    let place = folder("judged");
    let table = sample(place.path());
    all_see(&table, 0, &[], first());
    all_see(&table, 1, &[], second());
    if engines().contains(&Engine::Spark) {
        sql(Engine::Spark, &format!("DELETE FROM delta.`{}` WHERE id = 5", table.display()));
        let mut left = second();
        left.retain(|row| row[0].as_deref() != Some("5"));
        let log = table.join("_delta_log/00000000000000000002.json");
        let log = std::fs::read_to_string(log).expect("Spark's commit");
        assert!(log.contains("\"deletionVector\":{"), "no deletion vector: {log}");
        all_see(&table, 2, &[], left.clone());
        all_see(&table, At::Newest, &[], left);
        all_see(&table, 1, &[], second());
    }
}

#[test]
fn a_wrong_expectation_is_red_for_every_judge() {
    let place = folder("red");
    let table = sample(place.path());
    let right = first();
    let seen: Vec<_> = engines().into_iter().map(|e| (e, rows(e, &table, 0, &[]))).collect();
    for (row, column) in [(0, 4), (0, 6), (2, 10), (3, 7), (0, 13), (4, 5), (1, 3)] {
        let mut wrong = right.clone();
        wrong[row][column] = match wrong[row][column].take() {
            Some(v) if v == "-0.0" => Some("0.0".to_owned()),
            Some(v) => Some(format!("{v}0")),
            None => Some(String::new()),
        };
        wrong.sort();
        for (engine, found) in &seen {
            assert_ne!(found.rows, wrong, "{engine:?} row {row} column {column}");
        }
    }
    // A row missing, a row twice.
    for wrong in [&right[1..], &[&right[..], &right[..1]].concat()] {
        let judged = std::panic::catch_unwind(|| all_see(&table, 0, &[], wrong.to_vec()));
        assert!(judged.is_err(), "{} rows were taken for {}", wrong.len(), right.len());
    }
}

#[test]
fn judges_read_some_columns_and_a_time_and_say_what_they_can_not_read() {
    let place = folder("columns");
    let table = sample(place.path());
    let later = At::Time("2100-01-01T00:00:00Z".to_owned());
    for engine in engines() {
        let found = rows(engine, &table, 0, &["text", "id"]);
        assert_eq!(found.columns, ["text", "id"], "{engine:?}");
        assert_eq!(found.rows[0], [None, Some("2".to_owned())], "{engine:?}");
        assert!(attempt(engine, &table, 9, &[]).is_err(), "{engine:?} invented version 9");
        // Spark refuses a time after the last commit; the others give the newest version.
        if engine != Engine::Spark {
            assert_eq!(rows(engine, &table, later.clone(), &["id"]).rows.len(), 6, "{engine:?}");
        }
    }
}

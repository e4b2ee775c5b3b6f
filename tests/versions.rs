//! Every version of a table, read by every judge, equals a model computed from the WAL itself.
//!
//! The model's history comes from a slot of its own, read by SQL from before the first row on; the
//! state at a position is what its changes make, one after the other, without any of the apply code.

mod support;

use std::collections::BTreeMap;

use support::database::TestDb;
use support::judge;
use support::pipeline::Pipeline;
use support::servers::usual;
use tidegate::position::Lsn;
use tidegate::source::pgoutput::{self, Datum, Message, OldTuple, Tuple};

type Row = Vec<Option<String>>;

struct Committed {
    lsn: Lsn,
    changes: Vec<(Option<Option<String>>, Option<Row>)>,
}

/// All transactions on table `m`, from its own slot. A change is (old key, new row); an old key of
/// `Some(None)` stands for all of them.
fn history(pipeline: &Pipeline) -> Vec<Committed> {
    let rows = pipeline.sql().rows(
        "SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('model_slot', NULL, NULL,
         'proto_version', '1', 'publication_names', 'model_pub')",
    );
    let mut all: Vec<Committed> = Vec::new();
    for row in rows {
        let hex = row[0].clone().unwrap();
        let data: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
            .collect();
        let (_, message) = pgoutput::decode(&data, false).unwrap();
        let key = |tuple: &Tuple<'_>| first(tuple);
        match message {
            Message::Begin { final_lsn, .. } => {
                all.push(Committed { lsn: final_lsn, changes: vec![] })
            }
            Message::Insert { new, .. } => last(&mut all).push((None, Some(values(&new, &[])))),
            Message::Update { old, new, .. } => {
                let before = match &old {
                    Some(OldTuple::Key(old) | OldTuple::Full(old)) => key(old),
                    None => first(&new),
                };
                let known = state(&all, Lsn::MAX).get(&before).cloned().unwrap_or_default();
                last(&mut all).push((Some(before), Some(values(&new, &known))));
            }
            Message::Delete { old: OldTuple::Key(old) | OldTuple::Full(old), .. } => {
                last(&mut all).push((Some(key(&old)), None));
            }
            Message::Truncate { .. } => last(&mut all).push((Some(None), None)),
            _ => {}
        }
    }
    all
}

fn last(all: &mut [Committed]) -> &mut Vec<(Option<Option<String>>, Option<Row>)> {
    &mut all.last_mut().unwrap().changes
}

/// The key: the first column, which is never left out.
fn first(tuple: &Tuple<'_>) -> Option<String> {
    match tuple.iter().next().unwrap().unwrap() {
        Datum::Text(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
        other => panic!("{other:?} is no key"),
    }
}

fn values(tuple: &Tuple<'_>, known: &[Option<String>]) -> Row {
    let text = |(i, datum): (usize, Datum<'_>)| match datum {
        Datum::Null => None,
        Datum::Text(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
        Datum::Unchanged => known[i].clone(),
        Datum::Binary(_) => panic!("binary was not asked for"),
    };
    tuple.iter().map(Result::unwrap).enumerate().map(text).collect()
}

/// What the transactions that committed before `end` make.
fn state(all: &[Committed], end: Lsn) -> BTreeMap<Option<String>, Row> {
    let mut rows = BTreeMap::new();
    for (old, new) in all.iter().filter(|t| t.lsn < end).flat_map(|t| &t.changes) {
        match old {
            Some(None) => rows.clear(),
            Some(key) => drop(rows.remove(key)),
            None => {}
        }
        if let Some(row) = new {
            rows.insert(row[0].clone(), row.clone());
        }
    }
    rows
}

#[test]
fn every_version_is_what_the_wal_says_in_every_reader() {
    let pipeline = Pipeline::new(TestDb::new(usual(), "versions"));
    let mut sql = pipeline.sql();
    sql.run("CREATE TABLE m(id int PRIMARY KEY, n int, t text, big text); ALTER TABLE m ALTER big SET STORAGE EXTERNAL");
    sql.run("CREATE PUBLICATION model_pub FOR TABLE m");
    sql.run("SELECT pg_create_logical_replication_slot('model_slot', 'pgoutput')");
    sql.run("INSERT INTO m SELECT i, 0, 'row ' || i, repeat(md5(i::text), 200) FROM generate_series(1, 60) i");
    pipeline.run().succeed();
    let batches = [
        "UPDATE m SET n = n + 1 WHERE id % 3 = 0",
        "BEGIN; UPDATE m SET n = 10 WHERE id = 1; UPDATE m SET n = 11 WHERE id = 1; COMMIT; DELETE FROM m WHERE id = 2",
        "UPDATE m SET id = id + 1000 WHERE id = 5; INSERT INTO m VALUES (5, 5, 'again', 'short')",
        "BEGIN; INSERT INTO m VALUES (70, 0, '', NULL); UPDATE m SET n = 1 WHERE id = 70; UPDATE m SET id = 71 WHERE id = 70; COMMIT",
        "BEGIN; DELETE FROM m WHERE id = 7; INSERT INTO m VALUES (7, 7, 'seven', repeat('y', 9000)); UPDATE m SET n = 8 WHERE id = 7; COMMIT",
        "UPDATE m SET n = n; UPDATE m SET t = NULL WHERE id % 10 = 1",
        "BEGIN; INSERT INTO m VALUES (80, 1, 'gone', NULL); TRUNCATE m; INSERT INTO m VALUES (81, 1, 'stays', NULL); COMMIT",
        "INSERT INTO m VALUES (82, 2, 'after', repeat('z', 9000)); UPDATE m SET n = 3 WHERE id = 82",
    ];
    for batch in batches {
        sql.run(batch);
        pipeline.run_to_now();
    }
    let history = history(&pipeline);
    sql.run("SELECT pg_drop_replication_slot('model_slot')");
    let versions = pipeline.versions("m");
    assert_eq!(versions.len(), batches.len() + 1, "{versions:#?}");
    for version in &versions {
        let applied: Lsn = version["applied"].as_str().unwrap().parse().unwrap();
        let expected = state(&history, applied).into_values().collect();
        let number = version["version"].as_u64().unwrap();
        judge::all_see(&pipeline.table("m"), number, &["id", "n", "t", "big"], expected);
    }
    pipeline.assert_positions_never_fall("m", "id");
    pipeline.assert_equal();
}

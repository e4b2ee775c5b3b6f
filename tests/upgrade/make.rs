//! Makes a fixture: three lakes of one source, as this very version of the program leaves them.
//!
//! `copying` ended in the middle of its snapshot, `publishing` between the publication of two
//! tables, `live` has followed changes for more than a hundred versions, so that its logs hold
//! Delta checkpoints. What readers and commands say of them stands beside them.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::database::TestDb;
use crate::support::judge::{self, Engine};
use crate::support::pipeline::Pipeline;
use crate::support::servers::usual;
use crate::support::{PATIENCE, wait_until};

/// Rows that end up in three chunks of `wide`, odd values in `odd`, a table without a key, one with
/// partitions. Types are built in: the numbers of others are not the same in a second database.
const INITIAL: &str = r#"CREATE TABLE odd("the key" bigint PRIMARY KEY, ä numeric(10,2), free numeric, at timestamptz, wall timestamp, day date, f float8, raw bytea, doc jsonb, id uuid, words text[], span interval, addr inet, r int4range, big text, g int GENERATED ALWAYS AS (1) STORED);
ALTER TABLE odd ALTER big SET STORAGE EXTERNAL;
INSERT INTO odd VALUES
 (1, 12345678.90, 20, '2024-02-29 12:34:56.789012+02', '1582-10-10 00:00:00', '2024-02-29', 'NaN', '\x00ff', '{"b": [1, null], "a": "ü"}', '00000000-0000-0000-0000-0000000000ff', ARRAY['a', NULL, '', 'NULL'], '1 year 2 mons -3 days 04:05:06.7', '10.0.0.0/8', '[1,5)', repeat('0123456789abcdef', 1000)),
 (2, -0.01, 1e40, 'infinity', '-infinity', 'infinity', '-Infinity', '', 'null', NULL, '{}', '0', '::1', 'empty', ''),
 (3, NULL, 'NaN', '4713-01-01 00:00:00+00 BC', '294276-12-31 23:59:59.999999', '4713-01-01 BC', -0.0, NULL, '{}', NULL, ARRAY['one'], '-178000000 years', NULL, '(,)', repeat('z', 9000)),
 (-9223372036854775808, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE parted(id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
INSERT INTO parted SELECT i, i % 2 + 1, 'v' || i FROM generate_series(1, 20) i;
CREATE TABLE notes(id int, t text);
ALTER TABLE notes REPLICA IDENTITY FULL;
INSERT INTO notes VALUES (1, 'same'), (1, 'same'), (2, NULL), (NULL, 'three');
CREATE TABLE ticks(id int PRIMARY KEY);
INSERT INTO ticks SELECT generate_series(1, 110);
CREATE TABLE wide(id int PRIMARY KEY, pad text);
ALTER TABLE wide ALTER pad SET STORAGE PLAIN;
INSERT INTO wide SELECT i, repeat('x', 3000) FROM generate_series(1, 700) i;
ANALYZE;
"#;

/// Each becomes a version of its table in the lake `live`, after the hundred of `ticks`.
const CHANGES: [&str; 6] = [
    r#"UPDATE odd SET ä = ä + 1 WHERE "the key" IN (1, 2);"#,
    r#"UPDATE odd SET "the key" = 4, doc = '[4]' WHERE "the key" = 3; INSERT INTO odd("the key", day) VALUES (3, '-infinity');"#,
    "UPDATE parted SET part = 3 - part WHERE id % 5 = 0; DELETE FROM parted WHERE id = 7;",
    "DELETE FROM notes WHERE ctid = (SELECT ctid FROM notes WHERE t = 'same' LIMIT 1); UPDATE notes SET t = 'two' WHERE id = 2;",
    "BEGIN; INSERT INTO notes VALUES (5, 'gone'); TRUNCATE notes; INSERT INTO notes VALUES (6, 'six'); COMMIT;",
    "UPDATE wide SET id = -id WHERE id % 100 = 0; DELETE FROM wide WHERE id % 7 = 1;",
];

/// One version of `ticks` each, beyond the hundred after which a log is checkpointed.
const TICKS: u32 = 102;

/// The tables, and which of their columns the expectations hold; none means all.
pub const TABLES: [(&str, &[&str]); 5] =
    [("odd", &[]), ("parted", &[]), ("notes", &[]), ("ticks", &["id"]), ("wide", &["id"])];

/// Writes the fixture into `folder`, which must not exist.
pub fn make(folder: &Path) {
    assert!(!folder.exists(), "{} exists; a fixture is never made again", folder.display());
    std::fs::create_dir_all(folder).unwrap();
    let ticks = format!("DELETE FROM ticks WHERE id <= {TICKS};");
    let after: Vec<&str> = std::iter::once(ticks.as_str()).chain(CHANGES).collect();
    std::fs::write(folder.join("source.sql"), INITIAL).unwrap();
    std::fs::write(folder.join("changes.sql"), after.join("\n") + "\n").unwrap();
    copying(folder);
    publishing(folder);
    live(folder);
}

fn source(name: &str) -> Pipeline {
    let mut pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.sql().run(INITIAL);
    pipeline.name = name.to_owned();
    pipeline
}

fn copying(folder: &Path) {
    let p = source("lake_copying");
    // The file of this chunk is written, its record is not.
    p.run().failpoint("handoff.chunk.after", "4*crash").finish().expect_signal();
    let status = p.status();
    let copied = |table: &Value| table["rows_copied"].as_u64().unwrap() > 0;
    assert!(status["tables"].as_array().unwrap().iter().any(copied), "{status:#}");
    keep(&p, folder, "copying", &[]);
}

fn publishing(folder: &Path) {
    let p = source("lake_publishing");
    p.run().failpoint("handoff.publish.after", "2*crash").finish().expect_signal();
    let published: Vec<_> =
        TABLES.into_iter().filter(|(t, _)| p.table(t).join("_delta_log").exists()).collect();
    assert_eq!(published.len(), 2);
    keep(&p, folder, "publishing", &published);
}

fn live(folder: &Path) {
    let p = source("lake_live");
    p.run().succeed();
    let mut running = p.follow();
    let mut sql = p.sql();
    for tick in 1..=TICKS {
        sql.run(&format!("DELETE FROM ticks WHERE id = {tick}"));
        let version = p.table("ticks").join(format!("_delta_log/{tick:020}.json"));
        wait_until("the version of a tick", PATIENCE, || {
            assert!(!running.has_ended(), "{}", running.output());
            version.exists()
        });
    }
    for log in ["public/ticks", "_tidegate/ledger"] {
        let hint = p.lake.path().join(log).join("_delta_log/_last_checkpoint");
        wait_until("the checkpoint of a log", PATIENCE, || hint.exists());
    }
    running.signal("TERM");
    running.finish().expect_code(0);
    for change in CHANGES {
        sql.run(change);
        p.run_to_now();
    }
    p.assert_equal();
    keep(&p, folder, "live", &TABLES);
}

/// Copies the lake, with what readers and commands say of it.
fn keep(p: &Pipeline, folder: &Path, name: &str, published: &[(&str, &[&str])]) {
    let to = folder.join(name);
    super::lake::copy_tree(p.lake.path(), &to.join("lake"));
    let mut status = p.status();
    status["slot"] = Value::Null;
    write_json(&to.join("status.json"), &status);
    for (table, columns) in published {
        let versions = p.versions(table);
        let rows: Vec<Value> = versions
            .iter()
            .map(|version| {
                let version = version["version"].as_u64().unwrap();
                let found = judge::rows(Engine::DuckDb, &p.table(table), version, columns);
                json!({"version": version, "columns": found.columns, "rows": found.rows})
            })
            .collect();
        write_json(&to.join(format!("{table}.versions.json")), &Value::Array(versions));
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        std::fs::write(to.join(format!("{table}.rows.jsonl")), lines.join("\n") + "\n").unwrap();
    }
}

fn write_json(path: &Path, value: &Value) {
    std::fs::write(path, serde_json::to_string_pretty(value).unwrap() + "\n").unwrap();
}

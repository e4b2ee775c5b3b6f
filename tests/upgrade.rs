//! A lake of an older version is read, told about and continued; one of a newer version is refused.
//!
//! The older lakes are kept in `tests/fixtures`, which says how they were made.

mod support;

#[path = "upgrade/lake.rs"]
mod lake;
#[path = "upgrade/make.rs"]
mod make;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::judge::{self, Engine, Rows};
use support::pipeline::Pipeline;
use support::top;
use tidegate::lake::{Lake, LakeTable, Ledger};

/// Not a test: makes the fixture of this version, in the folder named by `TIDEGATE_FIXTURE`.
#[test]
#[ignore = "makes a fixture, where TIDEGATE_FIXTURE says"]
fn a_kept_lake_is_made() {
    let folder = std::env::var("TIDEGATE_FIXTURE").expect("TIDEGATE_FIXTURE names a new folder");
    make::make(&top().join(folder));
}

/// The rows of each version, as they were read when the lake was made.
fn kept_rows(lake: &str, table: &str) -> Vec<(u64, Rows)> {
    let path = lake::folder(lake).join(format!("{table}.rows.jsonl"));
    let texts = |value: &Value| -> Vec<Option<String>> {
        value.as_array().unwrap().iter().map(|v| v.as_str().map(str::to_owned)).collect()
    };
    std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let columns = texts(&line["columns"]).into_iter().flatten().collect();
            let rows = line["rows"].as_array().unwrap().iter().map(texts).collect();
            (line["version"].as_u64().unwrap(), Rows { columns, rows })
        })
        .collect()
}

#[test]
fn every_version_of_an_older_lake_shows_the_rows_it_showed() {
    let mut versions = 0;
    for lake in ["publishing", "live"] {
        for table in lake::published(lake) {
            let folder = lake::folder(lake).join("lake/public").join(&table);
            for (version, kept) in kept_rows(lake, &table) {
                let columns: Vec<&str> = kept.columns.iter().map(String::as_str).collect();
                for engine in [Engine::DuckDb, Engine::DeltaLake] {
                    // A hundred versions of one table that are alike: the slower reader takes some.
                    if engine == Engine::DeltaLake && version > 2 && version % 9 != 1 {
                        continue;
                    }
                    let found = judge::rows(engine, &folder, version, &columns);
                    let differs = judge::difference(&kept.rows, &found.rows);
                    assert_eq!(differs, None, "{lake} {table} version {version} in {engine:?}");
                }
                versions += 1;
            }
        }
    }
    assert!(versions > 110, "only {versions} versions are kept");
}

/// Whether an answer still says everything that it said: keys may come, none may go or change.
#[track_caller]
fn says_at_least(kept: &Value, found: &Value, place: &str) {
    match (kept, found) {
        (Value::Object(kept), Value::Object(found)) => {
            for (key, kept) in kept {
                let found = found.get(key).unwrap_or_else(|| panic!("{place}.{key} is gone"));
                says_at_least(kept, found, &format!("{place}.{key}"));
            }
        }
        (Value::Array(kept), Value::Array(found)) => {
            assert_eq!(kept.len(), found.len(), "{place}");
            for (i, (kept, found)) in kept.iter().zip(found).enumerate() {
                says_at_least(kept, found, &format!("{place}[{i}]"));
            }
        }
        _ => assert_eq!(kept, found, "{place}"),
    }
}

#[test]
fn the_commands_say_of_an_older_lake_what_they_said() {
    for lake in ["copying", "publishing", "live"] {
        let p = lake::copied(lake, &format!("kept_{lake}"));
        let mut status = p.status();
        status["slot"] = Value::Null;
        says_at_least(&lake::expected(lake, "status.json"), &status, &format!("{lake} status"));
        for table in lake::published(lake) {
            let kept = lake::expected(lake, &format!("{table}.versions.json"));
            says_at_least(&kept, &Value::Array(p.versions(&table)), &format!("{lake} {table}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_lake_is_opened_by_the_library() {
    let copy = support::folder("kept");
    lake::copy_tree(&lake::folder("live").join("lake"), copy.path());
    let lake = Lake::open(copy.path().to_str().unwrap()).unwrap();
    let ledger = Ledger::open(&lake).await.unwrap().expect("a ledger");
    let status = lake::expected("live", "status.json");
    assert_eq!(json!(ledger.fence().unwrap().lsn), status["fence"]);
    assert_eq!(ledger.state().tables.len(), make::TABLES.len());
    let run = &ledger.state().run;
    assert!(!ledger.read_events(Some(run), Some("chunk")).await.unwrap().is_empty());
    for entry in &ledger.state().tables {
        let table = LakeTable::open(&lake, &entry.folder).await.unwrap().expect("a table");
        let (version, rows) = kept_rows("live", &entry.name).pop().unwrap();
        assert_eq!((table.version(), table.live_rows()), (version, rows.rows.len() as u64));
        assert_eq!(table.checkpoint().table.name, entry.name);
    }
}

/// Changes of every kind, on rows that the older version wrote.
const LATER: &str = r#"UPDATE odd SET ä = 7 WHERE "the key" < 3; UPDATE odd SET "the key" = 40 WHERE "the key" = 4;
    DELETE FROM odd WHERE "the key" = -9223372036854775808;
    INSERT INTO odd("the key", free) VALUES (100, 'Infinity');
    UPDATE parted SET part = 3 - part WHERE id % 3 = 0; DELETE FROM parted WHERE id = 1;
    INSERT INTO notes VALUES (6, 'six'), (7, NULL); DELETE FROM notes WHERE t = 'same';
    INSERT INTO ticks VALUES (1), (200) ON CONFLICT DO NOTHING; DELETE FROM ticks WHERE id BETWEEN 106 AND 110;
    UPDATE wide SET id = id + 10000 WHERE id % 50 = 3; DELETE FROM wide WHERE id = 500"#;

/// Each statement is a transaction.
fn change(p: &Pipeline) {
    let mut sql = p.sql();
    LATER.split(';').for_each(|statement| sql.run(statement));
}

#[track_caller]
fn positions_never_fell(p: &Pipeline) {
    for (table, key) in [("odd", "the key"), ("parted", "id"), ("ticks", "id"), ("wide", "id")] {
        p.assert_positions_never_fall(table, key);
    }
}

#[test]
fn an_older_lake_that_was_live_is_continued() {
    let p = lake::moved("live", "resume_live", &["source.sql", "changes.sql"]);
    p.assert_equal();
    let files = lake::contents(&p.lake.path().join("public"));
    change(&p);
    let before = lake::newest(&p.table("odd"));
    p.run_to_now();
    p.assert_equal();
    assert!(lake::newest(&p.table("odd")) > before, "nothing was followed");
    let status = p.status();
    assert_eq!((&status["phase"], &status["generation"]), (&json!("live"), &json!(1)));
    positions_never_fell(&p);
    unchanged(files);
}

/// What the older version wrote is never written again.
#[track_caller]
fn unchanged(files: Vec<(PathBuf, Vec<u8>)>) {
    for (file, content) in files {
        assert_eq!(std::fs::read(&file).ok(), Some(content), "{} was written", file.display());
    }
}

#[test]
fn an_older_snapshot_that_was_being_published_is_published() {
    let p = lake::moved("publishing", "resume_publishing", &["source.sql"]);
    let files = lake::contents(&p.lake.path().join("public"));
    change(&p);
    p.run_to_now();
    p.assert_equal();
    positions_never_fell(&p);
    unchanged(files);
    for (table, _) in make::TABLES {
        assert_eq!(p.versions(table)[0]["kind"], "handoff", "{table}");
    }
}

#[test]
fn an_older_snapshot_that_was_being_copied_is_made_right() {
    let p = lake::moved("copying", "resume_copying", &["source.sql"]);
    change(&p);
    p.run_to_now();
    p.assert_equal();
    positions_never_fell(&p);
    for (table, _) in make::TABLES {
        assert_eq!(p.versions(table)[0]["kind"], "handoff", "{table}");
    }
}

/// Every command that opens the lake refuses it in words, and leaves every file of `folder` as it is.
#[track_caller]
fn refused_untouched(p: &Pipeline, folder: &Path, commands: &[&[&str]]) {
    let before = lake::contents(folder);
    for command in commands {
        let finished = p.command(command).finish().expect_code(3);
        for words in ["next:", "use the version of tidegate that wrote it"] {
            assert!(finished.stderr.contains(words), "{command:?}: {}", finished.stderr);
        }
        assert!(lake::contents(folder) == before, "{command:?} changed the lake");
    }
}

const RUN: &[&str] = &["run", "--until-caught-up"];
const RESNAPSHOT: &[&str] = &["run", "--resnapshot", "--until-caught-up"];
const VERIFY: &[&str] = &["verify"];
const STATUS: &[&str] = &["status"];
const VERSIONS: &[&str] = &["versions", "odd"];

#[test]
fn a_newer_ledger_is_refused_and_left_as_it_is() {
    let p = lake::moved("live", "newer_ledger", &["source.sql", "changes.sql"]);
    let ledger = p.lake.path().join("_tidegate/ledger");
    let mut state = lake::state(&ledger);
    // As a newer version might write it: other words, other fields, none of which is known here.
    state["format"] = json!(3);
    state["phase"] = json!({"word": "paused"});
    state.as_object_mut().unwrap().remove("tables");
    lake::commit(&ledger, "newer", &[("tidegate.pipeline", state)]);
    refused_untouched(
        &p,
        p.lake.path(),
        &[RUN, RESNAPSHOT, VERIFY, STATUS, VERSIONS, &["views", "duckdb"]],
    );
    let slot = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}'", p.name);
    assert_eq!(p.sql().one(&slot), "1", "the slot is gone");
}

#[test]
fn a_newer_checkpoint_of_a_table_is_refused_and_left_as_it_is() {
    let p = lake::moved("live", "newer_table", &["source.sql", "changes.sql"]);
    let log = p.table("odd");
    let mut checkpoint = lake::checkpoint(&log);
    checkpoint["format"] = json!(2);
    checkpoint["applied"] = json!({"lsn": "0/1", "xid": 7});
    checkpoint.as_object_mut().unwrap().remove("base");
    lake::commit(&log, "newer", &[("tidegate.checkpoint", checkpoint)]);
    // The ledger notes who looked last; it is no newer than this program.
    refused_untouched(&p, &p.lake.path().join("public"), &[RUN, VERIFY, STATUS]);
}

#[test]
fn a_table_with_a_feature_of_a_newer_version_is_refused_and_left_as_it_is() {
    let p = lake::moved("live", "newer_feature", &["source.sql", "changes.sql"]);
    let log = p.table("odd");
    let mut checkpoint = lake::checkpoint(&log);
    checkpoint["commit"] = json!("newer");
    lake::commit(&log, "newer", &[("tidegate.checkpoint", checkpoint)]);
    let path = log.join(format!("_delta_log/{:020}.json", lake::newest(&log)));
    let protocol = json!({"protocol": {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors", "timestampNtz"],
        "writerFeatures":
            ["deletionVectors", "domainMetadata", "inCommitTimestamp", "rowTracking", "timestampNtz"],
    }});
    let commit = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{commit}{protocol}\n")).unwrap();
    // The ledger notes who looked last; it is no newer than this program.
    refused_untouched(&p, &p.lake.path().join("public"), &[RUN, VERIFY, STATUS]);
}

/// The index is a cache: one that a newer version left is made again from the lake.
#[test]
fn a_newer_location_index_is_made_again() {
    let p = lake::moved("live", "newer_index", &["source.sql", "changes.sql"]);
    // A run that finds nothing to read ends before it opens the tables.
    p.sql().run("SELECT pg_logical_emit_message(true, 'x', '')");
    p.run_to_now();
    let mut newer = 0;
    for (path, content) in lake::contents(p.state.path()) {
        if path.file_name().is_some_and(|name| name == "manifest") {
            newer += u32::from(make_newer(&path, &content));
        }
    }
    assert_eq!(newer, 5, "each table but none without rows to find has an index");
    change(&p);
    p.run_to_now();
    p.assert_equal();
}

/// Writes a manifest as of a newer format: its checksum, then JSON.
fn make_newer(path: &Path, content: &[u8]) -> bool {
    let mut manifest: Value = serde_json::from_slice(&content[17..]).unwrap();
    manifest["format"] = json!(manifest["format"].as_u64().unwrap() + 1);
    let body = manifest.to_string();
    let sum = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    std::fs::write(path, format!("{sum:016x}\n{body}")).unwrap();
    true
}

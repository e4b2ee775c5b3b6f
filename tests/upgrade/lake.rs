//! A kept lake, copied for one test and moved to a live server.
//!
//! A fixture's source is gone, and no other server has its identity. So the test brings the source
//! back from the SQL it was made of, in a new database, makes the slot there, and puts one commit
//! on top of each log of the copy. That commit says of the new source what the old one said of its
//! own: system, timeline, database, names of slot and pipeline, numbers of tables, and as position
//! the slot's consistent point, at which the new database holds what the old one held at the lake's. Everything else in
//! it, above all the form of state and checkpoint, is the text that the old version wrote; and all
//! other files stay as they are.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::database::TestDb;
use crate::support::pipeline::Pipeline;
use crate::support::servers::usual;
use crate::support::top;
use tidegate::position::Lsn;

/// A fixture's lake: `live`, `copying` or `publishing`.
pub fn folder(lake: &str) -> PathBuf {
    top().join("tests/fixtures/lake-1").join(lake)
}

/// The names of the tables that a kept lake publishes.
pub fn published(lake: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder(lake)).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter_map(|n| n.strip_suffix(".versions.json").map(str::to_owned)).collect();
    names.sort();
    names
}

/// A JSON file beside a kept lake.
pub fn expected(lake: &str, file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder(lake).join(file)).unwrap()).unwrap()
}

pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Every file below a folder with its content, to prove that nothing was touched.
pub fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// A copy of a kept lake without a source: for what needs none.
pub fn copied(lake: &str, db_name: &str) -> Pipeline {
    let mut p = Pipeline::new(TestDb::new(usual(), db_name));
    p.name = format!("lake_{lake}");
    copy_tree(&folder(lake).join("lake"), p.lake.path());
    p
}

/// A copy of a kept lake with its source in a new database. `sources` are the SQL files that lead
/// to what the lake holds.
pub fn moved(lake: &str, db_name: &str, sources: &[&str]) -> Pipeline {
    let mut p = copied(lake, db_name);
    // Slots are the whole server's, and tests run side by side.
    p.name = p.db.name().to_owned();
    let mut sql = p.sql();
    for file in sources {
        sql.run(&std::fs::read_to_string(folder(lake).parent().unwrap().join(file)).unwrap());
    }
    let logs: Vec<PathBuf> = published(lake).iter().map(|t| p.table(t)).collect();
    let ledger = p.lake.path().join("_tidegate/ledger");
    let highest = logs.iter().map(|log| applied(log)).max().unwrap_or_default();
    // The new server's log may be younger than the old one's: a row's position must never fall.
    while p.db.wal_position().parse::<Lsn>().unwrap() <= highest {
        sql.run("SELECT pg_logical_emit_message(false, 'x', ''), pg_switch_wal()");
    }
    let tables = "public.odd, public.parted, public.notes, public.ticks, public.wide";
    sql.run(&format!(
        "CREATE PUBLICATION {0} FOR TABLE {tables} WITH (publish_via_partition_root = true)",
        p.name
    ));
    let slot = format!("pg_create_logical_replication_slot('{}', 'pgoutput')", p.name);
    let point = sql.one(&format!("SELECT lsn FROM {slot}"));
    for log in &logs {
        move_table(log, &p, &point);
    }
    move_ledger(&ledger, &p, &point);
    p
}

/// The newest text of a domain in a log, from the JSON commits or, before those, the checkpoint.
fn domain(log: &Path, name: &str) -> Option<Value> {
    let is_ours = |line: &Value| line["domainMetadata"]["domain"] == name;
    for version in (0..=newest(log)).rev() {
        let commit = std::fs::read_to_string(commit_path(log, version)).unwrap();
        let mut lines = commit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        if let Some(found) = lines.find(is_ours) {
            let text = found["domainMetadata"]["configuration"].as_str().unwrap();
            return Some(serde_json::from_str(text).unwrap());
        }
    }
    None
}

/// The newest version in a log.
pub fn newest(log: &Path) -> u64 {
    (0..).take_while(|version| commit_path(log, *version).exists()).last().expect("a version")
}

fn commit_path(log: &Path, version: u64) -> PathBuf {
    log.join(format!("_delta_log/{version:020}.json"))
}

fn applied(log: &Path) -> Lsn {
    let checkpoint = domain(log, "tidegate.checkpoint").expect("a checkpoint");
    checkpoint["applied"].as_str().unwrap().parse().unwrap()
}

fn timestamp(log: &Path) -> u64 {
    let commit = std::fs::read_to_string(commit_path(log, newest(log))).unwrap();
    let info: Value = serde_json::from_str(commit.lines().next().unwrap()).unwrap();
    info["commitInfo"]["inCommitTimestamp"].as_u64().unwrap()
}

/// Puts a commit with these domains on top of a log. `operation` names it.
pub fn commit(log: &Path, operation: &str, domains: &[(&str, Value)]) {
    let at = timestamp(log) + 1;
    let info = json!({"commitInfo": {
        "timestamp": at, "inCommitTimestamp": at, "operation": "MERGE", "txnId": operation,
        "engineInfo": "tidegate/0", "operationParameters": {},
    }});
    let mut lines = vec![info.to_string()];
    for (domain, value) in domains {
        lines.push(
            json!({"domainMetadata": {
                "domain": domain, "configuration": value.to_string(), "removed": false,
            }})
            .to_string(),
        );
    }
    let path = commit_path(log, newest(log) + 1);
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}

/// What a table says of itself, newest.
pub fn checkpoint(log: &Path) -> Value {
    domain(log, "tidegate.checkpoint").expect("a checkpoint")
}

/// What the ledger says of the pipeline, newest.
pub fn state(ledger: &Path) -> Value {
    domain(ledger, "tidegate.pipeline").expect("a state")
}

fn move_source(source: &mut Value, p: &Pipeline) {
    let mut sql = p.sql();
    source["system_identifier"] =
        json!(sql.one("SELECT system_identifier FROM pg_control_system()"));
    source["timeline"] =
        json!(sql.one("SELECT timeline_id FROM pg_control_checkpoint()").parse::<u32>().unwrap());
    source["database"] = json!(p.db.name());
    source["slot"] = json!(p.name);
    source["publication"] = json!(p.name);
}

fn oid(p: &Pipeline, table: &str) -> u32 {
    p.sql().one(&format!("SELECT '{table}'::regclass::oid")).parse().unwrap()
}

fn move_table(log: &Path, p: &Pipeline, point: &str) {
    let mut checkpoint = checkpoint(log);
    move_source(&mut checkpoint["source"], p);
    checkpoint["pipeline"] = json!(p.name);
    let table = checkpoint["table"]["name"].as_str().unwrap().to_owned();
    checkpoint["table"]["oid"] = json!(oid(p, &table));
    if checkpoint["applied"] == checkpoint["base"] {
        checkpoint["base"] = json!(point);
    }
    checkpoint["applied"] = json!(point);
    checkpoint["commit"] = json!("moved");
    commit(log, "moved", &[("tidegate.checkpoint", checkpoint)]);
}

fn move_ledger(ledger: &Path, p: &Pipeline, point: &str) {
    let mut state = state(ledger);
    move_source(&mut state["source"], p);
    state["pipeline"] = json!(p.name);
    let live = state["phase"] == "live";
    if !live {
        state["base"] = json!(point);
    }
    for table in state["tables"].as_array_mut().unwrap() {
        table["oid"] = json!(oid(p, table["name"].as_str().unwrap()));
    }
    let mut domains = vec![("tidegate.pipeline", state)];
    if let Some(mut fence) = domain(ledger, "tidegate.fence") {
        assert!(live);
        fence["lsn"] = json!(point);
        domains.push(("tidegate.fence", fence));
    }
    commit(ledger, "moved", &domains);
}

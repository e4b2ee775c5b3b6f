//! What the commands answer about a real pipeline: the keys other programs rely on, differences that
//! `verify` finds, views that run in the engines, and the order of flags, environment and file.

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::database::TestDb;
use support::judge::{self, Engine, engines};
use support::pipeline::Pipeline;
use support::program::Tidegate;
use support::servers::usual;
use support::{PATIENCE, wait_until};
use tidegate::position::Lsn;

/// Two tables with 100 rows each.
fn pipeline(name: &str) -> Pipeline {
    let pipeline = Pipeline::new(TestDb::new(usual(), name));
    pipeline.sql().run(
        "CREATE TABLE a(id int PRIMARY KEY, n bigint NOT NULL, v text);
         CREATE TABLE b(id int PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO a SELECT i, 0, 'v' || i FROM generate_series(1, 100) i;
         INSERT INTO b SELECT i, 0 FROM generate_series(1, 100) i;
         ANALYZE",
    );
    pipeline
}

#[track_caller]
fn has_keys(value: &Value, keys: &[&str]) {
    let found: BTreeSet<&str> = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"))
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(found, keys.iter().copied().collect(), "in {value:#}");
}

fn lsn(value: &Value) -> Lsn {
    value.as_str().unwrap_or_else(|| panic!("no LSN: {value}")).parse().unwrap()
}

#[track_caller]
fn is_a_live_status(p: &Pipeline, status: &Value, active: bool) {
    let keys = [
        "pipeline",
        "generation",
        "phase",
        "run",
        "failure",
        "base",
        "boundary",
        "fence",
        "tables",
        "slot",
        "spool",
        "pins",
    ];
    has_keys(status, &keys);
    assert_eq!(status["spool"], Value::Null);
    assert_eq!((&status["pipeline"], &status["generation"]), (&json!(p.db.name()), &json!(1)));
    assert_eq!(status["phase"], "live");
    assert!(lsn(&status["base"]) <= lsn(&status["fence"]));
    let tables = status["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 2);
    for table in tables {
        let keys = [
            "table",
            "phase",
            "version",
            "why",
            "base",
            "applied",
            "rows_copied",
            "bytes_copied",
            "chunks_copied",
            "chunks",
            "rows_estimated",
            "storage",
        ];
        has_keys(table, &keys);
        assert_eq!((&table["phase"], &table["base"]), (&json!("live"), &status["base"]));
        assert!(lsn(&table["applied"]) >= lsn(&status["fence"]), "{status:#}");
        assert_eq!((&table["rows_copied"], &table["rows_estimated"]), (&json!(100), &json!(100)));
        assert!(table["version"].is_u64());
    }
    let slot = &status["slot"];
    let keys = [
        "name",
        "active",
        "confirmed",
        "retained_bytes",
        "wal_status",
        "safe_bytes",
        "limit_bytes",
        "margin_bytes",
    ];
    has_keys(slot, &keys);
    assert_eq!((&slot["name"], &slot["active"]), (&json!(p.db.name()), &json!(active)));
    assert!(lsn(&slot["confirmed"]) <= lsn(&status["fence"]), "acknowledged beyond the fence");
    assert!(slot["retained_bytes"].is_u64());
    assert_eq!(slot["wal_status"], "reserved");
    // No max_slot_wal_keep_size: no limit.
    assert_eq!(slot["safe_bytes"], Value::Null);
}

#[test]
fn status_answers_with_and_without_a_running_process() {
    let p = pipeline("status");
    let none = p.command(&["status", "--json"]).finish().expect_code(3);
    assert!(none.stderr.contains("tidegate run"), "{}", none.stderr);
    let boundary = p.pause("handoff.chunk.before").nth(1);
    let mut running = p.command(&["run"]).pause(&boundary).start();
    boundary.reached(&mut running);
    let copying = p.status();
    assert_eq!((&copying["phase"], &copying["fence"]), (&json!("snapshot"), &Value::Null));
    assert_eq!(copying["tables"][0]["version"], Value::Null);
    // Another process sees what is to be done, and since when the source keeps dead rows.
    assert_eq!(
        (&copying["tables"][0]["chunks_copied"], &copying["tables"][0]["chunks"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(
        (&copying["boundary"]["number"], &copying["boundary"]["base"]),
        (&json!(1), &copying["base"])
    );
    assert!(copying["boundary"]["age_seconds"].is_u64(), "{copying:#}");
    boundary.release();
    wait_until("the stream", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        let status = p.status();
        status["phase"] == "live" && status["slot"]["active"] == true
    });
    is_a_live_status(&p, &p.status(), true);
    p.sql().run("UPDATE a SET n = 1");
    let end: Lsn = p.db.wal_position().parse().unwrap();
    p.sql().run("SELECT pg_logical_emit_message(true, 'test', '')");
    wait_until("the change in the status", PATIENCE, || {
        p.status()["fence"].as_str().is_some_and(|text| text.parse::<Lsn>().unwrap() >= end)
    });
    running.signal("INT");
    running.finish().expect_code(0);
    let status = p.status();
    is_a_live_status(&p, &status, false);
    assert_eq!(status["tables"][0]["version"], 1);
    assert_eq!(status["tables"][1]["version"], 0);
    // Without a source the lake alone answers.
    let asked = p.command(&["status", "--json"]).env("TIDEGATE_SOURCE", "").succeed().json();
    assert_eq!((&asked["slot"], &asked["fence"]), (&Value::Null, &status["fence"]));
    let text = p.command(&["status"]).succeed().stdout;
    for word in [p.db.name(), "public.a", "public.b", "live"] {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn versions_name_their_kind_and_position() {
    let p = pipeline("versions");
    p.run().succeed();
    p.sql().run("UPDATE a SET n = 1 WHERE id <= 10; DELETE FROM a WHERE id = 100");
    let before: Lsn = p.db.wal_position().parse().unwrap();
    p.run().succeed();
    p.sql().run("TRUNCATE a");
    p.run().succeed();
    p.sql().run("INSERT INTO a SELECT i, 2, 'w' FROM generate_series(1, 30) i");
    p.run().succeed();
    p.sql().run("INSERT INTO a SELECT i, 3, 'w' FROM generate_series(31, 60) i");
    p.run().succeed();
    let spark = engines().contains(&Engine::Spark);
    if spark {
        judge::sql(Engine::Spark, &format!("OPTIMIZE delta.`{}`", p.table("a").display()));
    }
    p.sql().run("UPDATE a SET n = 4 WHERE id = 33");
    p.run().succeed();
    let listed = p.versions("public.a");
    let keys = [
        "version",
        "kind",
        "generation",
        "base",
        "applied",
        "source_time",
        "committed_at",
        "inserted",
        "deleted",
        "pins",
    ];
    for (number, version) in listed.iter().enumerate() {
        has_keys(version, &keys);
        assert_eq!(version["version"], number);
        assert!(version["committed_at"].as_str().is_some_and(|t| t.ends_with('Z')), "{version}");
    }
    let kinds: Vec<&str> = listed.iter().map(|v| v["kind"].as_str().unwrap()).collect();
    let mut expected = vec!["handoff", "changes", "truncate", "changes", "changes", "changes"];
    if spark {
        expected.insert(5, "foreign");
    }
    assert_eq!(kinds, expected, "{listed:#?}");
    let counts = |i: usize| (listed[i]["inserted"].as_u64(), listed[i]["deleted"].as_u64());
    assert_eq!(counts(0), (Some(100), Some(0)));
    assert_eq!(counts(1), (Some(10), Some(11)));
    assert_eq!(counts(2), (Some(0), Some(99)));
    assert_eq!(counts(3), (Some(30), Some(0)));
    assert_eq!(listed[0]["base"], listed[0]["applied"]);
    assert_eq!(listed[0]["source_time"], Value::Null);
    let ours: Vec<&Value> = listed.iter().filter(|v| v["kind"] != "foreign").collect();
    for pair in ours.windows(2) {
        assert!(lsn(&pair[0]["applied"]) < lsn(&pair[1]["applied"]));
        assert_eq!((&pair[0]["base"], &pair[1]["generation"]), (&pair[1]["base"], &json!(1)));
        assert!(pair[1]["source_time"].is_string());
    }
    assert!(lsn(&listed[1]["applied"]) >= before);
    if spark {
        for key in ["generation", "base", "applied", "source_time", "inserted", "deleted"] {
            assert_eq!(listed[5][key], Value::Null, "{key}");
        }
    }
    p.assert_equal();
    let text = p.command(&["versions", "a"]).succeed().stdout;
    assert!(text.contains("handoff") && text.contains("truncate"), "{text}");
    let unknown = p.command(&["versions", "public.none"]).finish().expect_code(2);
    assert!(unknown.stderr.contains("public.a, public.b"), "{}", unknown.stderr);
}

#[test]
fn verify_finds_rows_that_are_missing_extra_and_different() {
    let mut p = pipeline("verify");
    p.wrong.push("ignore-links");
    p.sql().run(
        "ALTER TABLE a RENAME TO a_all;
         CREATE TABLE a(LIKE a_all INCLUDING ALL) PARTITION BY RANGE (id);
         ALTER TABLE a ATTACH PARTITION a_all DEFAULT;
         ANALYZE",
    );
    p.run().succeed();
    let (code, equal) = p.verify();
    assert_eq!(code, 0);
    has_keys(&equal, &["equal", "at", "tables"]);
    let table_keys =
        ["table", "equal", "source_rows", "lake_rows", "missing", "extra", "different", "samples"];
    has_keys(&equal["tables"][0], &table_keys);
    // Behind the publication's back: a partition belongs to nothing published while it is detached,
    // and after the transaction everything is as it was.
    p.sql().run(
        "BEGIN; ALTER TABLE a DETACH PARTITION a_all;
         UPDATE a_all SET v = 'other' WHERE id = 5; DELETE FROM a_all WHERE id = 6;
         INSERT INTO a_all VALUES (700, 0, NULL);
         ALTER TABLE a ATTACH PARTITION a_all DEFAULT; COMMIT",
    );
    p.sql().run("UPDATE a SET n = 8 WHERE id = 9; UPDATE b SET n = 9");
    let (code, found) = p.verify();
    assert_eq!(code, 6, "{found:#}");
    assert_eq!(found["equal"], false);
    let table = |name: &str| {
        let tables = found["tables"].as_array().unwrap();
        tables.iter().find(|t| t["table"] == name).unwrap().clone()
    };
    assert_eq!(table("public.b")["equal"], true);
    let mut a = table("public.a");
    let mut samples = a["samples"].take().as_array().unwrap().clone();
    samples.sort_by_key(|sample| sample["key"].as_str().unwrap().len());
    assert_eq!(
        a,
        json!({"table": "public.a", "equal": false, "source_rows": 100, "lake_rows": 100,
               "missing": 1, "extra": 1, "different": 1, "samples": null})
    );
    samples.sort_by_key(|sample| sample["key"].to_string());
    assert_eq!(
        Value::from(samples),
        json!([
            {"key": "id=5", "kind": "different", "column": "v", "source": "other", "lake": "v5"},
            {"key": "id=6", "kind": "extra"},
            {"key": "id=700", "kind": "missing"},
        ])
    );
    // One table alone; and the words for people.
    let only = p.command(&["verify", "--json", "public.b"]).succeed().json();
    assert_eq!(only["tables"].as_array().unwrap().len(), 1);
    let text = p.command(&["verify"]).finish().expect_code(6);
    for word in ["public.a", "id=5", "other", "v5"] {
        assert!(text.stdout.contains(word), "{word:?} is not in: {}", text.stdout);
    }
    assert!(text.stderr.contains("public.a") && text.stderr.contains("next:"), "{}", text.stderr);
    let unknown = p.command(&["verify", "public.c"]).finish().expect_code(2);
    assert!(unknown.stderr.contains("public.a, public.b"), "{}", unknown.stderr);
}

/// `views` for an engine, without what fetches extensions.
fn views(p: &Pipeline, engine: &str) -> Vec<String> {
    let text = p.command(&["views", engine]).succeed().stdout;
    text.lines()
        .filter(|l| !l.starts_with("INSTALL") && !l.starts_with("LOAD") && !l.starts_with("--"))
        .map(str::to_owned)
        .collect()
}

/// Money moves between two tables in one transaction: the sum over both is the same at any fence.
/// A view of one fence shows it, after later changes too.
fn views_show_one_fence(name: &str, engine: Engine, word: &str, quote: char) {
    let p = pipeline(name);
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE \"Order Items\"(id int PRIMARY KEY, n bigint NOT NULL);
         CREATE TABLE \"A\"(id int PRIMARY KEY);
         INSERT INTO \"Order Items\" VALUES (1, 1000)",
    );
    p.run().succeed();
    let view = |name: &str| format!("{quote}public{quote}.{quote}{name}{quote}");
    let odd = if engine == Engine::Spark { "Order_Items" } else { "Order Items" };
    let seen = || {
        let query =
            format!(
            "SELECT (SELECT sum(n) FROM {}) + (SELECT sum(n) FROM {}) + (SELECT sum(n) FROM {}),
             (SELECT sum(n) FROM {0})",
            view("b"), view("a_view_of_a"), view(odd),
        );
        let query = query.replace("a_view_of_a", &lower_of(&p, engine));
        judge::sql(engine, &query).rows[0].iter().map(|v| v.clone().unwrap()).collect::<Vec<_>>()
    };
    let open = || {
        for statement in views(&p, word) {
            judge::sql(engine, &statement);
        }
    };
    for round in 1..=3 {
        sql.run(&format!(
            "BEGIN; UPDATE a SET n = n - {round}; UPDATE b SET n = n + {round}; COMMIT;
             BEGIN; UPDATE a SET n = n - 1 WHERE id = 1; UPDATE \"Order Items\" SET n = n + 1; COMMIT"
        ));
        p.run().succeed();
    }
    open();
    assert_eq!(seen(), ["1000", "600"]);
    sql.run(
        "BEGIN; UPDATE a SET n = n - 1; UPDATE b SET n = n + 1; COMMIT; UPDATE b SET n = n + 1",
    );
    p.run().succeed();
    assert_eq!(seen(), ["1000", "600"], "the view moved");
    open();
    assert_eq!(seen(), ["1100", "800"], "new views do not show the new fence");
}

/// The view's name of table `a`, as there is also a table `A`.
fn lower_of(p: &Pipeline, engine: Engine) -> String {
    let word = if engine == Engine::Spark { "spark" } else { "duckdb" };
    let folder = format!("{}", p.table("a").display());
    let statements = views(p, word);
    let line = statements
        .iter()
        .find(|l| l.contains(&format!("{folder}'")) || l.contains(&format!("{folder}`")))
        .unwrap_or_else(|| panic!("no view of {folder} in {statements:#?}"));
    let name = line.split(" AS SELECT").next().unwrap().rsplit('.').next().unwrap();
    name.trim_matches(['"', '`']).to_owned()
}

#[test]
fn views_for_duckdb_show_all_tables_at_one_fence() {
    views_show_one_fence("views_duckdb", Engine::DuckDb, "duckdb", '"');
}

#[test]
fn views_for_spark_show_all_tables_at_one_fence() {
    if engines().contains(&Engine::Spark) {
        views_show_one_fence("views_spark", Engine::Spark, "spark", '`');
    }
}

#[test]
fn teardown_asks_first_and_leaves_the_lake() {
    let p = pipeline("teardown");
    p.run().succeed();
    let name = p.db.name();
    let left = |p: &Pipeline| {
        let sql = format!(
            "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}'),
             (SELECT count(*) FROM pg_publication WHERE pubname = '{name}')"
        );
        let row = p.sql().rows(&sql).remove(0);
        row.into_iter().map(Option::unwrap).collect::<Vec<_>>()
    };
    let refused = p.command(&["teardown"]).finish().expect_code(2);
    assert!(refused.stderr.contains("--yes"), "{}", refused.stderr);
    assert_eq!(left(&p), ["1", "1"]);
    // Not from under a running pipeline.
    let mut running = p.follow();
    wait_until("the stream", PATIENCE, || {
        assert!(!running.has_ended(), "{}", running.output());
        p.status()["slot"]["active"] == true
    });
    let busy = p.command(&["teardown", "--yes"]).finish();
    assert_ne!(busy.code(), 0, "{}", busy.output());
    assert!(busy.stderr.contains("next:"), "{}", busy.stderr);
    assert_eq!(left(&p), ["1", "1"]);
    running.signal("TERM");
    running.finish().expect_code(0);
    let done = p.command(&["teardown", "--yes"]).succeed();
    assert!(done.stdout.contains(&format!("dropped the slot {name}")), "{}", done.stdout);
    assert!(done.stdout.contains("dropped the publication"), "{}", done.stdout);
    assert_eq!(left(&p), ["0", "0"]);
    let rows = judge::rows(Engine::DuckDb, &p.table("a"), 0, &["id"]);
    assert_eq!(rows.rows.len(), 100);
    assert_eq!(p.status()["slot"], Value::Null);
    p.command(&["teardown", "--yes"]).succeed();
    // Never continued over the gap; a new generation is.
    p.sql().run("DELETE FROM a WHERE id = 1");
    let gap = p.run().finish().expect_code(5);
    assert!(gap.stderr.contains("--resnapshot"), "{}", gap.stderr);
    p.command(&["run", "--until-caught-up", "--resnapshot"]).succeed();
    p.assert_equal();
    assert_eq!(p.versions("a").last().unwrap()["generation"], 2);
}

#[test]
fn teardown_leaves_a_publication_it_did_not_make() {
    let p = pipeline("teardown_dba");
    let name = p.db.name();
    p.sql().run(&format!(
        "CREATE PUBLICATION {name} FOR TABLE a, b WITH (publish_via_partition_root = true)"
    ));
    p.run().succeed();
    let done = p.command(&["teardown", "--yes"]).succeed();
    assert!(!done.stdout.contains("publication"), "{}", done.stdout);
    assert_eq!(p.sql().one("SELECT count(*) FROM pg_publication"), "1");
    let slots = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}'");
    assert_eq!(p.sql().one(&slots), "0");
}

/// Killed between the statement that makes the publication and the record that it did.
#[test]
fn teardown_knows_a_publication_whose_maker_died_before_it_was_told() {
    let p = pipeline("teardown_died");
    let publications = || p.sql().one("SELECT count(*) FROM pg_publication");
    let die = || {
        p.run().failpoint("publication.made", "1*crash").finish().expect_signal();
        assert_eq!(publications(), "1");
    };
    die();
    p.command(&["teardown", "--yes"]).succeed();
    assert_eq!(publications(), "0", "right after the death");
    die();
    p.run().succeed();
    p.assert_equal();
    p.command(&["teardown", "--yes"]).succeed();
    assert_eq!(publications(), "0", "after a run that went on with it");
}

#[test]
fn a_publication_that_no_longer_sends_everything_is_not_followed() {
    let p = pipeline("publication");
    p.run().succeed();
    let name = p.db.name();
    for (change, back, word) in [
        (
            "SET (publish = 'insert')",
            "SET (publish = 'insert, update, delete, truncate')",
            "DELETE",
        ),
        ("DROP TABLE a", "ADD TABLE a", "public.a"),
    ] {
        p.sql().run(&format!("ALTER PUBLICATION {name} {change}"));
        p.sql().run("DELETE FROM a WHERE id = 1");
        for command in [&["run", "--until-caught-up"][..], &["verify"]] {
            let refused = p.command(command).finish().expect_code(5);
            for expected in [word, name, "--resnapshot"] {
                assert!(refused.stderr.contains(expected), "{expected:?}: {}", refused.stderr);
            }
        }
        p.sql().run(&format!("ALTER PUBLICATION {name} {back}"));
    }
    p.sql().run(&format!("DROP PUBLICATION {name}"));
    let refused = p.run().finish().expect_code(5);
    assert!(refused.stderr.contains("gone"), "{}", refused.stderr);
    p.command(&["run", "--until-caught-up", "--resnapshot"]).succeed();
    p.assert_equal();
}

#[test]
fn check_lists_findings_whose_fixes_mend_them() {
    let mut p = pipeline("check");
    let ready = p.command(&["check", "--json"]).succeed().json();
    has_keys(&ready, &["server_version", "database", "tables", "findings"]);
    assert_eq!(ready["database"], p.db.name());
    assert_eq!(ready["tables"], json!(["public.a", "public.b"]));
    p.sql().run("CREATE TABLE \"No Key\"(a int, v text)");
    p.tables = "public.*,public.\"No Key\"".to_owned();
    let finished = p.command(&["check", "--json"]).finish().expect_code(3);
    let findings = finished.json()["findings"].as_array().unwrap().clone();
    for finding in &findings {
        for key in ["id", "severity", "subject", "what"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
        let severity = finding["severity"].as_str().unwrap();
        assert!(["error", "warning", "info"].contains(&severity), "{finding}");
    }
    let errors: Vec<&Value> = findings.iter().filter(|f| f["severity"] == "error").collect();
    assert_eq!(errors.len(), 1, "{findings:#?}");
    assert!(errors[0]["subject"].as_str().unwrap().contains("No Key"), "{}", errors[0]);
    let text = p.command(&["check"]).finish().expect_code(3);
    assert!(text.stdout.contains("No Key") && text.stdout.contains("fix:"), "{}", text.stdout);
    // The fix is SQL that can be run as it stands.
    let fix = errors[0]["fix"].as_str().unwrap();
    let sql = fix
        .lines()
        .find(|l| l.contains("REPLICA IDENTITY FULL"))
        .unwrap_or_else(|| panic!("{fix}"));
    let sql = &sql[sql.find("ALTER TABLE").unwrap()..];
    let sql = &sql[..=sql.find(';').unwrap_or(sql.len() - 1)];
    p.sql().run(sql);
    p.command(&["check", "--json"]).succeed();
    // It changed nothing.
    assert_eq!(p.sql().one("SELECT count(*) FROM pg_publication"), "0");
    assert!(!p.table("a").exists());
    p.run().succeed();
    p.command(&["check", "--json"]).succeed();
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let p = pipeline("precedence");
    let folder = p.state.path();
    let name = |end: &str| format!("{}_{end}", p.db.name());
    let file = format!(
        "name = \"{}\"\nlake = \"by-file\"\ntables = [\"public.a\"]\n[source]\nurl = \"${{DATABASE}}\"\n\
         [state]\ndir = \"index\"\n",
        name("file")
    );
    std::fs::write(folder.join("tidegate.toml"), &file).unwrap();
    let run = |arguments: &[&str]| {
        Tidegate::new([&["run", "--until-caught-up"], arguments].concat())
            .current_dir(folder)
            .env("DATABASE", p.db.url())
    };
    let made = |lake: &str, end: &str, tables: &[&str]| {
        let log = |table: &str| folder.join(lake).join("public").join(table).join("_delta_log");
        for table in ["a", "b"] {
            let there = log(table).exists();
            assert_eq!(there, tables.contains(&table), "{table} in {lake}");
        }
        let slot =
            format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}'", name(end));
        assert_eq!(p.sql().one(&slot), "1", "the slot {}", name(end));
    };
    // The file in the working folder; its relative paths start there.
    run(&[]).succeed();
    made("by-file", "file", &["a"]);
    assert!(folder.join("index").exists(), "the state folder is elsewhere");
    // The environment over the file; what it does not say is still the file's.
    let by_env = |program: Tidegate| {
        program
            .env("TIDEGATE_NAME", name("env"))
            .env("TIDEGATE_LAKE", folder.join("by-env"))
            .env("TIDEGATE_STATE_DIR", folder.join("index-env"))
    };
    by_env(run(&[])).succeed();
    made("by-env", "env", &["a"]);
    // Flags over both; `--config` over TIDEGATE_CONFIG; an empty variable is none.
    let elsewhere = folder.join("elsewhere.toml");
    std::fs::write(&elsewhere, &file).unwrap();
    let lake = folder.join("by-flag");
    let flags = [
        "--config",
        elsewhere.to_str().unwrap(),
        "--name",
        &name("flag"),
        "--lake",
        lake.to_str().unwrap(),
        "--tables",
        "public.b",
        "--state-dir",
        "index-flag",
    ];
    by_env(run(&flags)).env("TIDEGATE_CONFIG", "/nonexistent").env("TIDEGATE_TABLES", "").succeed();
    made("by-flag", "flag", &["b"]);
    assert!(folder.join("index-flag").exists());
    let lost = run(&[]).env("TIDEGATE_CONFIG", "/nonexistent").finish().expect_code(2);
    assert!(lost.stderr.contains("/nonexistent"), "{}", lost.stderr);
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest_known_one() {
    let mut p = pipeline("unknown_key");
    p.config = "[stream]\nintervall = \"1s\"\n".to_owned();
    for command in ["run", "check", "status", "verify", "views"] {
        let arguments: &[&str] = if command == "views" { &["views", "duckdb"] } else { &[command] };
        let refused = p.command(arguments).finish().expect_code(2);
        for word in ["tidegate.toml line 2", "`intervall` in [stream]", "`interval`", "next:"] {
            assert!(refused.stderr.contains(word), "{word:?} is not in: {}", refused.stderr);
        }
    }
    assert_eq!(p.sql().one("SELECT count(*) FROM pg_publication"), "0");
}

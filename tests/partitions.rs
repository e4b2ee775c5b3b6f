//! `partition_by`: the lake's files are partitioned by columns of the source.

mod support;

use support::database::TestDb;
use support::judge::{self, At, Engine};
use support::pipeline::Pipeline;
use support::random::Random;
use support::servers::{server, usual, versions};

fn pipeline(db: TestDb, columns: &str) -> Pipeline {
    let mut p = Pipeline::new(db);
    p.config.push_str(&format!("[[columns]]\n{columns}\n"));
    p
}

fn texts(p: &Pipeline, table: &str, columns: &[&str]) -> Vec<String> {
    let found = judge::rows(Engine::DuckDb, &p.table(table), At::Newest, columns);
    let text = |row: Vec<Option<String>>| {
        row.into_iter().map(|v| v.unwrap_or("NULL".into())).collect::<Vec<_>>().join("|")
    };
    let mut rows: Vec<String> = found.rows.into_iter().map(text).collect();
    rows.sort();
    rows
}

/// The values of the partition columns of the files that are live, as the log has them.
fn live_partitions(p: &Pipeline, table: &str) -> Vec<String> {
    let folder = p.table(table);
    let mut live = std::collections::BTreeMap::new();
    for commit in support::audit::commits(&folder).unwrap() {
        for action in commit {
            for (kind, comes) in [("add", true), ("remove", false)] {
                let Some(file) = action.get(kind) else { continue };
                let path = file["path"].as_str().unwrap().to_owned();
                let values = file["partitionValues"].to_string();
                if comes {
                    live.insert(path, values);
                } else if live.get(&path).is_some_and(|of_add| *of_add == values) {
                    live.remove(&path);
                } else {
                    panic!("{path} is removed with {values}: {live:?}");
                }
            }
        }
    }
    let mut values: Vec<String> = live.into_values().collect();
    values.sort();
    values
}

const KINDS: &str =
    "b bool, s smallint, i int, l bigint, d numeric(10,2), day date, t text, u uuid, e mood";
const KIND_NAMES: [&str; 9] = ["b", "s", "i", "l", "d", "day", "t", "u", "e"];

/// A partitioned table is what the same table without partitions is, to every reader, at every version.
#[test]
fn every_kind_of_partition_is_read_right_by_every_reader() {
    for major in [versions().first(), versions().last()].into_iter().flatten() {
        let names = KIND_NAMES.map(|name| format!("'{name}'")).join(", ");
        let db = TestDb::new(server(*major), "partition_kinds");
        let p = pipeline(db, &format!("tables = 'public.parted'\npartition_by = [{names}]"));
        let mut sql = p.sql();
        sql.run("CREATE TYPE mood AS ENUM ('sad', 'so so', 'it''s \"fine\"')");
        let mut both = |statement: &str| {
            for table in ["parted", "plain"] {
                sql.run(&statement.replace('@', table));
            }
        };
        both(&format!("CREATE TABLE @(id int PRIMARY KEY, {KINDS}, v text)"));
        both(
            "INSERT INTO @ VALUES
             (1, true, -32768, 0, 9223372036854775807, -0.50, '0001-01-01', 'eu', '00000000-0000-0000-0000-00000000000a', 'sad', 'a'),
             (2, false, 32767, -1, -9223372036854775808, 99999999.99, '9999-12-31', 'a/b=c%20 d?&#:''\"\\', NULL, 'it''s \"fine\"', 'b'),
             (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'c'),
             (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'd'),
             (5, true, 1, 2, 3, 1.00, '1970-01-01', ' ', NULL, 'so so', 'e'),
             (6, true, 1, 2, 3, 1.00, '2024-02-29', 'Üben 🦀 null', NULL, 'so so', 'f'),
             (7, true, 1, 2, 3, 1.00, '2024-02-29', E'tab\\t line\\n end', NULL, 'so so', 'g'),
             (8, true, 1, 2, 3, 1.00, '2024-02-29', '__HIVE_DEFAULT_PARTITION__', NULL, 'so so', 'h')",
        );
        p.run().succeed();
        both("UPDATE @ SET v = 'aa' WHERE id = 1");
        both("UPDATE @ SET t = 'eu', day = NULL WHERE id = 2");
        both("DELETE FROM @ WHERE id = 4");
        both(
            "INSERT INTO @ SELECT 100 + n, n % 2 = 0, n % 3, 0, 0, 0, '2020-01-01', 'x', NULL, 'sad', n::text FROM generate_series(1, 40) n",
        );
        p.run_to_now();
        both("UPDATE @ SET b = NOT b WHERE id % 5 = 0");
        p.run_to_now();
        p.command(&["maintain"]).succeed();
        let columns = [&["id"], KIND_NAMES.as_slice(), &["v"]].concat();
        let newest = p.versions("public.parted").len() as u64 - 1;
        for version in [0, newest] {
            let at = if version == 0 { At::Version(0) } else { At::Newest };
            let plain = judge::rows(Engine::DuckDb, &p.table("plain"), at.clone(), &columns);
            judge::all_see(&p.table("parted"), at, &columns, plain.rows);
        }
        p.assert_equal();
        assert!(live_partitions(&p, "parted").len() >= 10);
        // A reader that asks for one value is told by the log alone where it is.
        let found = texts(&p, "parted", &["t"]);
        assert_eq!(found.iter().filter(|t| *t == "x").count(), 40);
    }
}

/// What Delta's log can't have as a partition stands where other values stand that Delta can't have.
#[test]
fn a_value_that_is_no_partition_overflows() {
    let mut p = pipeline(
        TestDb::new(usual(), "partition_overflow"),
        "tables = 'public.*'\npartition_by = ['t', 'day', 'd']",
    );
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE o(id int, t text, day date, d numeric(6,2), v text, PRIMARY KEY (id, t));
         ALTER TABLE o ALTER v SET STORAGE EXTERNAL;
         INSERT INTO o VALUES (1, '', 'infinity', 'NaN', repeat('a', 5000)),
             (2, ' ', '10000-01-01', 1, repeat('b', 5000)), (3, '', '0044-03-15 BC', 2, 'c')",
    );
    p.run().succeed();
    // By its key, which has the empty text; the large value is left out of the stream.
    sql.run(
        "UPDATE o SET d = 3 WHERE id = 1 AND t = '';
         UPDATE o SET t = '' WHERE id = 2;
         INSERT INTO o VALUES (4, '', NULL, NULL, 'd'); DELETE FROM o WHERE id = 3 AND t = ''",
    );
    p.run_to_now();
    let expected = [
        "1|NULL|NULL|3.00|{\"day\":\"infinity\",\"t\":\"\"}",
        "2|NULL|NULL|1.00|{\"day\":\"10000-01-01\",\"t\":\"\"}",
        "4|NULL|NULL|NULL|{\"t\":\"\"}",
    ];
    let found = texts(&p, "o", &["id", "t", "day", "d", "_tg_overflow"]);
    assert_eq!(found, expected);
    p.assert_equal();
    sql.run("UPDATE o SET t = 'eu', day = '2024-01-01' WHERE id = 1");
    p.run_to_now();
    let found = texts(&p, "o", &["id", "t", "day", "v"]);
    assert_eq!(found[0], format!("1|eu|2024-01-01|{}", "a".repeat(5000)));
    p.assert_equal();
    // Without partitions an empty text is an empty text.
    p.config = p.config.replace("'t', 'day', 'd'", "'day'");
    p.run_to_now();
    assert_eq!(texts(&p, "o", &["id", "t"]), ["1|eu", "2|", "4|"]);
    p.assert_equal();
}

/// Rows that move between partitions, large values, crashes, compaction, and a schema change.
#[test]
fn a_partitioned_table_is_equal_under_random_load() {
    let p = pipeline(
        TestDb::new(usual(), "partition_random"),
        "tables = 'public.*'\npartition_by = ['region', 'day']",
    );
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE t(id int, region text, day date, doc text, PRIMARY KEY (region, id));
         CREATE TABLE f(id int, region text, day date, doc text);
         CREATE TABLE n(id int, region text, day date, doc text);
         ALTER TABLE f REPLICA IDENTITY FULL; ALTER TABLE n REPLICA IDENTITY NOTHING;
         ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;",
    );
    let mut random = Random::new(11);
    let insert = |random: &mut Random, table: &str, id: u64| {
        format!(
            "INSERT INTO {table} VALUES ({id}, {}, {}, repeat('{}', {}))",
            random.pick(&["'eu'", "'us'", "''", "'a b'"]),
            random.pick(&["NULL", "'2024-01-01'", "'2024-01-02'", "'infinity'"]),
            random.pick(&["x", "y"]),
            random.pick(&["3", "4000"]),
        )
    };
    for id in 0..50 {
        for table in ["t", "f", "n"] {
            sql.run(&insert(&mut random, table, id));
        }
    }
    p.run().succeed();
    for round in 0..10u64 {
        for step in 0..30u64 {
            let id = random.below(60);
            let table = *random.pick(&["t", "f"]);
            let statement = match random.below(10) {
                0 | 1 => format!("DELETE FROM {table} WHERE id = {id}"),
                2 | 3 => format!(
                    "UPDATE {table} SET day = '2024-01-0{}' WHERE id = {id}",
                    1 + random.below(4)
                ),
                4 => format!("UPDATE {table} SET region = region || 'x' WHERE id = {id}"),
                5 => insert(&mut random, "n", 1000 + round * 100 + step),
                _ => insert(&mut random, table, 1000 + round * 100 + step),
            };
            sql.run(&statement);
        }
        if round == 7 {
            sql.run("BEGIN; INSERT INTO t VALUES (1, 'gone', NULL, 'x'); TRUNCATE t; INSERT INTO t VALUES (1, 'kept', NULL, 'x'), (2, '', NULL, 'x'); COMMIT");
        }
        match round % 4 {
            0 => drop(p.command(&["run"]).failpoint("lake.commit.after", "crash").finish()),
            1 => drop(p.command(&["run"]).failpoint("apply.file.written", "crash").finish()),
            _ => {}
        }
        p.run_to_now();
        if round % 3 == 2 {
            p.command(&["maintain"]).succeed();
        }
        p.assert_equal();
    }
    // Nothing of the local index is needed: it comes back from the lake's files and log.
    std::fs::remove_dir_all(p.state.path().join("index")).unwrap();
    sql.run("UPDATE t SET doc = 'z'; UPDATE f SET doc = 'z' WHERE id % 2 = 0");
    p.run_to_now();
    p.assert_equal();
    sql.run("ALTER TABLE t DROP COLUMN day; INSERT INTO t VALUES (7, 'eu', 'after')");
    p.run_to_now();
    p.assert_equal();
    assert!(live_partitions(&p, "t").iter().all(|values| !values.contains("day")));
    assert!(live_partitions(&p, "f").iter().all(|values| values.contains("day")));
}

/// Spark leaves the partition columns out of the files it writes; the log still has them.
#[test]
fn another_programs_optimize_of_a_partitioned_table_is_followed() {
    if !judge::engines().contains(&Engine::Spark) {
        return;
    }
    let p = pipeline(
        TestDb::new(usual(), "partition_optimize"),
        "tables = 'public.*'\npartition_by = ['region', 'day']",
    );
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE t(id int, region text, day date, doc text, PRIMARY KEY (region, id));
         ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;
         INSERT INTO t SELECT n, 'r ' || n % 2, NULL, repeat('d', 3000) FROM generate_series(1, 40) n",
    );
    p.run().succeed();
    for round in 1..6 {
        sql.run(&format!("UPDATE t SET day = '2024-01-01' WHERE id % 8 = {round}"));
        p.run_to_now();
    }
    let before = live_partitions(&p, "t").len();
    judge::sql(Engine::Spark, &format!("OPTIMIZE delta.`{}`", p.table("t").display()));
    let after = live_partitions(&p, "t");
    assert!(after.len() < before, "{before} files, {after:?}");
    // By key, with large values that are read from those files, and into other partitions.
    sql.run(
        "UPDATE t SET day = '2025-01-01' WHERE id % 5 = 0; DELETE FROM t WHERE id % 7 = 0;
         UPDATE t SET region = 'moved' WHERE id % 11 = 0",
    );
    std::fs::remove_dir_all(p.state.path().join("index")).unwrap();
    p.run_to_now();
    p.assert_equal();
    p.command(&["maintain"]).succeed();
    p.assert_equal();
    // Also to Polars, which passes over the mask of a file whose path Spark had to encode.
    let columns = ["id", "region", "day"];
    let rows = sql.rows("SELECT id, region, day FROM t");
    judge::all_see(&p.table("t"), At::Newest, &columns, rows);
}

/// A chunk of several files is kept whole over a crash, and meets what changed meanwhile.
#[test]
fn chunks_of_several_files_are_resumed() {
    let p = pipeline(
        TestDb::new(usual(), "partition_resume"),
        "tables = 'public.*'\npartition_by = ['region']",
    );
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE t(id int PRIMARY KEY, region text, doc text);
         ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;
         INSERT INTO t SELECT n, 'r' || n % 7, repeat('p', 300) FROM generate_series(1, 20000) n;
         UPDATE t SET doc = repeat('q', 3000) WHERE id % 1000 = 0",
    );
    p.run().failpoint("handoff.chunk.recorded", "3*crash").finish().expect_signal();
    sql.run(
        "UPDATE t SET region = 'moved' WHERE id % 500 = 0;
         DELETE FROM t WHERE id % 900 = 1; INSERT INTO t SELECT n, 'new', 'n' FROM generate_series(20001, 20100) n",
    );
    p.run().failpoint("handoff.publish.before", "1*crash").finish().expect_signal();
    sql.run("UPDATE t SET region = 'again' WHERE id % 700 = 0");
    let last = p.run_to_now().output();
    p.assert_equal();
    assert!(!last.contains("copied again from its beginning"), "{last}");
    let values = live_partitions(&p, "t");
    for region in ["r0", "r6", "new", "moved", "again"] {
        assert!(values.iter().any(|v| v.contains(region)), "{region}: {values:?}");
    }
}

/// The setting can be changed; what can't be meant is refused in words.
#[test]
fn a_changed_setting_reads_again_and_a_wrong_one_is_refused() {
    let mut p = Pipeline::new(TestDb::new(usual(), "partition_setting"));
    let mut sql = p.sql();
    sql.run(
        "CREATE TABLE t(id int PRIMARY KEY, region text, at timestamptz, x float8, secret text);
         INSERT INTO t SELECT n, 'r' || n % 2, now(), n, 's' FROM generate_series(1, 20100) n",
    );
    let without = p.config.clone();
    p.run().succeed();
    let section = |line: &str| format!("{without}[[columns]]\ntables = 'public.t'\n{line}\n");
    p.config = section("partition_by = ['region']");
    sql.run("DELETE FROM t WHERE id = 1");
    p.run_to_now();
    let values = ["{\"region\":\"r0\"}", "{\"region\":\"r1\"}"];
    let mut found = live_partitions(&p, "t");
    found.dedup();
    assert_eq!(found, values);
    p.assert_equal();
    // Besides what else is said of the column.
    p.config = section("partition_by = ['region']\ntext = ['region']\nleave_out = ['secret']");
    p.run_to_now();
    p.assert_equal();
    p.config = without.clone();
    sql.run("DELETE FROM t WHERE id = 2");
    p.run_to_now();
    assert!(live_partitions(&p, "t").iter().all(|values| values == "{}"));
    p.assert_equal();
    for (line, code, words) in [
        ("partition_by = ['at']", 2, "can't be partitioned by a timestamp with time zone"),
        ("partition_by = ['x']", 2, "can't be partitioned by a double precision"),
        ("partition_by = ['region', 'region']", 2, "named twice"),
        ("partition_by = ['secret']\nleave_out = ['secret']", 2, "named twice"),
        ("partition_by = ['nowhere']", 3, "nowhere"),
    ] {
        p.config = section(line);
        let mut fresh = Pipeline::new(TestDb::new(usual(), "partition_refused"));
        fresh.sql().run("CREATE TABLE t(id int PRIMARY KEY, region text, at timestamptz, x float8, secret text)");
        fresh.config = p.config.clone();
        let refused = fresh.run().finish().expect_code(code).output();
        assert!(refused.contains(words), "{line}: {refused}");
    }
    // Refused for the table, with what to do; the lake stays as it was.
    p.config = section("partition_by = ['id']");
    sql.run("DELETE FROM t WHERE id = 3");
    let refused = p.run().finish().output();
    assert!(refused.contains("too many different values of id"), "{refused}");
    assert!(live_partitions(&p, "t").iter().all(|values| values == "{}"));
    p.config = without;
    p.run_to_now();
    p.assert_equal();
}

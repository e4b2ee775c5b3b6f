//! Schemas nobody thought of: a column of every type that the server's catalog has, and random
//! tables with random rows and changes. PostgreSQL's own text of each value must be what DuckDB and
//! Python deltalake read, as the snapshot brought it and as the stream did.
//!
//! `TIDEGATE_SCHEMAS=SEED` makes other random tables; a failure names its seed.

mod support;

#[path = "corpus/compare.rs"]
mod compare;
#[path = "any_schema/random_table.rs"]
mod random_table;
#[path = "zoo/types.rs"]
mod zoo;

use std::time::Duration;

use random_table::RandomTable;
use support::database::{Sql, TestDb};
use support::pipeline::Pipeline;
use support::random::Random;
use support::servers::{server, usual, versions};
use tidegate::demo::server::PrivateServer;
use zoo::{SCHEMA, TYPES, ZOO};

/// Columns of a table of all types.
const WIDTH: usize = 150;

/// Literals to try on a type of which nothing is known.
const LITERALS: &[&str] = &[
    "1",
    "a",
    "",
    "{}",
    "t",
    "2020-01-01",
    "12:00",
    "1 day",
    "()",
    "(1,2)",
    "(1,2),(3,4)",
    "[1,2)",
    "{1,2,3}",
    "((0,0),(1,1))",
    "<(0,0),1>",
    "[(0,0),(1,1)]",
    "{[1,2)}",
    "{[2020-01-01,2021-01-01)}",
    "[2020-01-01,2021-01-01)",
    "10.0.0.1",
    "08:00:2b:01:02:03",
    "0/0",
    "1:1:",
    "<a/>",
    "101",
    "postgres=r/postgres",
    "pg_class",
    "pg_catalog.pg_class",
    "int4",
    "now()",
    "abs(integer)",
    "+",
    "+(integer,integer)",
    "english",
    "simple",
    "a & b",
    "$.a",
    "00000000-0000-0000-0000-000000000000",
];

/// A type a column can have, and expressions of values of it.
struct AnyType {
    name: String,
    values: Vec<String>,
}

fn with_types(sql: &mut Sql) {
    sql.run(&format!("CREATE SCHEMA {SCHEMA}; {TYPES}"));
    for extension in ["hstore", "citext", "ltree", "cube", "intarray", "isn", "seg", "pg_trgm"] {
        // What the server does not have is not tried.
        let _ = sql.attempt(&format!("CREATE EXTENSION {extension} SCHEMA {SCHEMA}"));
    }
}

fn every_type(sql: &mut Sql) -> Vec<AnyType> {
    let rows = sql.rows(
        "SELECT format('%I.%I', n.nspname, t.typname), t.typtype, r.relkind,
             (SELECT format('%I.%I', m.nspname, e.typname) FROM pg_type e
              JOIN pg_namespace m ON m.oid = e.typnamespace
              WHERE e.oid = t.typelem AND t.typcategory = 'A'), t.typname
         FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
         LEFT JOIN pg_class r ON r.oid = t.typrelid
         WHERE t.typtype <> 'p' AND n.nspname !~ '^pg_(toast|temp)' ORDER BY t.oid",
    );
    let mut types = Vec::new();
    for row in rows {
        let [Some(name), Some(class), relation, element, Some(plain)] = &row[..] else { continue };
        // PostgreSQL itself says which can't be columns.
        sql.run("DROP TABLE IF EXISTS probe");
        if sql.attempt(&format!("CREATE TEMP TABLE probe(c {name})")).is_err() {
            continue;
        }
        let mut candidates: Vec<String> = Vec::new();
        let literal = |text: &str, of: &str| format!("'{}'::{of}", text.replace('\'', "''"));
        let known = |of: &str| {
            let known = ZOO.iter().find(|(zoo, _)| *zoo == of || format!("pg_catalog.{zoo}") == of);
            known.map_or(LITERALS, |(_, literals)| *literals)
        };
        if class == "c" && matches!(relation.as_deref(), Some("r" | "v")) {
            candidates.push(format!("(SELECT x FROM {name} x LIMIT 1)"));
        }
        match element {
            Some(element) if plain.starts_with('_') => {
                let inner = known(element).iter().map(|text| literal(text, element));
                candidates.extend(inner.map(|text| format!("ARRAY[{text}, NULL, {text}]")));
                candidates.push(literal("{}", name));
            }
            _ => candidates.extend(known(name).iter().map(|text| literal(text, name))),
        }
        let works =
            |value: &String| sql.attempt(&format!("INSERT INTO probe VALUES ({value})")).is_ok();
        let values: Vec<String> = candidates.into_iter().filter(works).take(8).collect();
        types.push(AnyType { name: name.clone(), values });
    }
    types
}

/// A column of every type: NULL, and its values, copied and streamed.
fn every_type_arrives(server: &'static PrivateServer, name: &str) {
    let mut p = Pipeline::new(TestDb::new(server, name));
    p.tables = "r_types.*".to_owned();
    let mut sql = p.sql();
    with_types(&mut sql);
    let types = every_type(&mut sql);
    let filled = types.iter().filter(|t| !t.values.is_empty()).count();
    println!("{} types, {filled} with values", types.len());
    assert!(types.len() > 400 && filled * 10 > types.len() * 8, "{} of {}", filled, types.len());
    sql.run("CREATE SCHEMA r_types");
    let rows = types.iter().map(|t| t.values.len()).max().unwrap_or(0);
    let mut insert = Vec::new();
    for (number, part) in types.chunks(WIDTH).enumerate() {
        let columns: Vec<String> =
            part.iter().enumerate().map(|(i, t)| format!("c{i} {}", t.name)).collect();
        sql.run(&format!(
            "CREATE TABLE r_types.t{number}(id int PRIMARY KEY, {})",
            columns.join(", ")
        ));
        for row in 0..=rows {
            let value = |t: &AnyType| t.values.get(row).cloned().unwrap_or("NULL".to_owned());
            let values: Vec<String> = part.iter().map(value).collect();
            insert.push((number, row, values.join(", ")));
        }
    }
    for (number, row, values) in &insert {
        sql.run(&format!("INSERT INTO r_types.t{number} VALUES ({row}, {values})"));
    }
    p.run().succeed();
    agrees(&p, &mut sql, "r_types", "as copied");
    // The same rows again, by the stream; and others in their place.
    for (number, row, values) in &insert {
        sql.run(&format!("INSERT INTO r_types.t{number} VALUES ({}, {values})", row + 1000));
    }
    for number in 0..types.len().div_ceil(WIDTH) {
        sql.run(&format!("UPDATE r_types.t{number} SET id = id + 100 WHERE id < 1000"));
    }
    p.run().succeed();
    agrees(&p, &mut sql, "r_types", "as streamed");
}

fn agrees(p: &Pipeline, sql: &mut Sql, schema: &str, when: &str) {
    let wrong = compare::differences(sql, schema, p.lake.path());
    assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
    p.assert_equal();
}

#[test]
fn a_column_of_every_type_of_the_catalog_arrives() {
    every_type_arrives(usual(), "every_type");
}

#[test]
fn a_column_of_every_type_arrives_from_every_server() {
    for major in versions().into_iter().filter(|major| *major != support::servers::USUAL) {
        every_type_arrives(server(major), &format!("every_type_{major}"));
    }
}

#[test]
fn random_schemas_arrive_by_snapshot_and_stream() {
    let asked = std::env::var("TIDEGATE_SCHEMAS").ok().and_then(|seed| seed.parse().ok());
    let seeds: Vec<u64> = asked.map_or(vec![1, 2], |seed| vec![seed]);
    for seed in seeds {
        println!("TIDEGATE_SCHEMAS={seed}");
        random_schemas(seed);
    }
}

fn random_schemas(seed: u64) {
    let random = Random::new(seed);
    let mut p = Pipeline::new(TestDb::new(usual(), &format!("random_{seed}")));
    p.tables = "r_random.*".to_owned();
    p.config = "[handoff]\nworkers = 2\nchunk_bytes = \"1MiB\"\n[stream]\ninterval = \"200ms\"\n\
                max_batch_rows = 50\n"
        .to_owned();
    let mut sql = p.sql();
    with_types(&mut sql);
    sql.run("CREATE SCHEMA r_random");
    let mut tables: Vec<RandomTable> =
        (0..24).map(|i| RandomTable::new(random.part(i), "r_random", i)).collect();
    for table in &mut tables {
        table.create(&mut sql);
        table.fill(&mut sql, 40);
        p.config.push_str(&table.section());
    }
    assert!(p.config.contains("partition_by"));
    // Before and after the first run: the same tables by both ways.
    let run = p.run().start();
    tables.iter_mut().for_each(|table| table.change(&mut sql, 10));
    run.finish_within(Duration::from_secs(120)).expect_code(0);
    p.run().succeed();
    agrees(&p, &mut sql, "r_random", "after the snapshot");
    for _ in 0..2 {
        tables.iter_mut().for_each(|table| table.change(&mut sql, 25));
        p.run().succeed();
        agrees(&p, &mut sql, "r_random", "after changes");
    }
}

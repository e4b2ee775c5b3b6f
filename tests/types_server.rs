//! A zoo of values through a real server: what PostgreSQL prints, what comes of its COPY BINARY and
//! what comes of its text must be one and the same.

mod support;

#[path = "zoo/types.rs"]
mod zoo;

use std::pin::pin;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use futures::StreamExt;
use tidegate::position::Lsn;
use tidegate::source::catalog::ColumnInfo;
use tidegate::source::types::{
    ColumnOptions, ColumnPlan, Kind, Op, RowsBuilder, TypeCatalog, plan, plan_columns, render,
};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use zoo::{SCHEMA, TYPES, ZOO};

/// The session settings under which the lake's texts are defined.
const SETTINGS: &str = "SET DateStyle = 'ISO, MDY'; SET IntervalStyle = postgres; SET TimeZone = 'UTC'; \
    SET extra_float_digits = 3; SET bytea_output = hex; SET lc_monetary = 'C'; SET search_path = ''; \
    SET client_encoding = 'UTF8'";

struct Server {
    client: Client,
    types: TypeCatalog,
}

impl Server {
    async fn connect() -> Option<Server> {
        let target = support::servers::usual().url("postgres");
        let (client, connection) = tokio_postgres::connect(&target, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(SETTINGS).await.unwrap();
        Some(Server { client, types: TypeCatalog::default() })
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let messages =
            self.client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect())
            }
            _ => None,
        });
        rows.collect()
    }

    async fn load_types(&mut self) {
        self.types = TypeCatalog::from_rows(self.rows(TypeCatalog::QUERY).await).unwrap();
    }

    async fn column(&self, table: &str) -> ColumnInfo {
        let sql = format!(
            "SELECT attnum, attname, atttypid, atttypmod, format_type(atttypid, atttypmod), attnotnull \
             FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attname = 'c'"
        );
        let row = self.rows(&sql).await.remove(0);
        let text = |i: usize| row[i].clone().unwrap();
        ColumnInfo {
            attnum: text(0).parse().unwrap(),
            name: text(1),
            type_oid: text(2).parse().unwrap(),
            typmod: text(3).parse().unwrap(),
            type_name: text(4),
            not_null: text(5) == "t",
            generated: '\0',
            missing_differs: false,
            options: ColumnOptions::default(),
            missing: None,
        }
    }

    /// The tuples of a COPY BINARY.
    async fn copy(&self, select: &str) -> Vec<Vec<u8>> {
        let sql = format!("COPY ({select}) TO STDOUT (FORMAT binary)");
        let stream =
            self.client.copy_out(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let mut stream = pin!(stream);
        let mut all = Vec::new();
        while let Some(piece) = stream.next().await {
            all.extend_from_slice(&piece.unwrap());
        }
        let mut left = &all[19..];
        let mut tuples = Vec::new();
        while left.len() > 2 {
            let columns = i16::from_be_bytes([left[0], left[1]]);
            let mut end = 2;
            for _ in 0..columns {
                let length = i32::from_be_bytes(left[end..end + 4].try_into().unwrap());
                end += 4 + usize::try_from(length).unwrap_or(0);
            }
            tuples.push(left[..end].to_vec());
            left = &left[end..];
        }
        assert_eq!(left, (-1_i16).to_be_bytes());
        tuples
    }

    /// Checks column `c` of a table in all ways; returns the kind and how many values overflowed.
    async fn check(&self, table: &str, options: &ColumnOptions) -> (Kind, usize) {
        let column = self.column(table).await;
        let planned = plan(&self.types, &column, options).unwrap();
        let plans = plan_columns(&self.types, [&column], |_| options.clone(), "_tg_").unwrap();
        let server = self.rows(&format!("SELECT c FROM {table} ORDER BY id")).await;
        let server: Vec<Option<String>> = server.into_iter().map(|mut row| row.remove(0)).collect();
        let select = format!("SELECT {} FROM {table} ORDER BY id", planned.select_expr());
        let tuples = self.copy(&select).await;
        assert_eq!(tuples.len(), server.len());

        let mut copied = RowsBuilder::new(Arc::clone(&plans), "_tg_", 16);
        let mut streamed = RowsBuilder::new(Arc::clone(&plans), "_tg_", 16);
        let mut binary = RowsBuilder::new(Arc::clone(&plans), "_tg_", 16);
        for (tuple, text) in tuples.iter().zip(&server) {
            copied.append_copy_row(tuple).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            match text {
                Some(text) => streamed.append_text(0, text.as_bytes()).unwrap(),
                None => streamed.append_null(0).unwrap(),
            }
            match text {
                Some(_) if planned.kind.has_binary() => {
                    binary.append_binary(0, &tuple[6..]).unwrap()
                }
                Some(text) => binary.append_text(0, text.as_bytes()).unwrap(),
                None => binary.append_null(0).unwrap(),
            }
            streamed.end_row(Lsn::ZERO, 0, Op::Snapshot, None);
            binary.end_row(Lsn::ZERO, 0, Op::Snapshot, None);
        }
        let copied = copied.finish_snapshot(Lsn::ZERO).unwrap();
        // Arrow compares NaN by its bits and zeros by their sign, which is what is wanted here.
        assert_eq!(copied, streamed.finish().unwrap(), "{}", column.type_name);
        assert_eq!(copied, binary.finish().unwrap(), "{}", column.type_name);
        for column in copied.columns() {
            column.to_data().validate_full().unwrap();
        }
        let overflowed = compare(&planned, &copied, &server);
        (planned.kind, overflowed)
    }
}

fn compare(planned: &ColumnPlan, batch: &RecordBatch, server: &[Option<String>]) -> usize {
    let (column, overflow) = (batch.column(0), batch.column(5).as_map());
    let mut overflowed = 0;
    for (row, expected) in server.iter().enumerate() {
        let text = if column.is_valid(row) {
            let mut text = String::new();
            render::render(&planned.kind, column, row, &mut text).unwrap();
            assert!(overflow.is_null(row));
            Some(text)
        } else if overflow.is_valid(row) {
            overflowed += 1;
            Some(overflow.value(row).column(1).as_string::<i32>().value(0).to_owned())
        } else {
            None
        };
        let same = match (&text, expected) {
            (Some(text), Some(expected)) => render::agrees(&planned.kind, text, expected),
            (None, None) => true,
            _ => false,
        };
        assert!(same, "{}: {text:?} is not {expected:?}", planned.type_name);
    }
    overflowed
}

#[tokio::test]
async fn every_type_reads_as_the_server_prints_it() {
    let Some(mut server) = Server::connect().await else { return };
    server
        .run(&format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; {TYPES}"))
        .await;
    let mut missing = Vec::new();
    for extension in ["hstore", "citext", "ltree", "cube", "vector", "postgis"] {
        let sql = format!("CREATE EXTENSION {extension} SCHEMA {SCHEMA}");
        if server.client.batch_execute(&sql).await.is_err() {
            missing.push(extension);
        }
    }
    server.load_types().await;
    for (index, (type_name, values)) in ZOO.iter().enumerate() {
        let absent = missing.iter().any(|extension| *type_name == format!("{SCHEMA}.{extension}"));
        if absent || *type_name == "int4multirange" && server.types.server_version < 140_000 {
            continue;
        }
        let table = format!("{SCHEMA}.zoo_{index}");
        server.run(&format!("CREATE TABLE {table} (id serial, c {type_name}); INSERT INTO {table}(c) VALUES (NULL)")).await;
        for value in *values {
            let value = value.replace('\'', "''");
            server.run(&format!("INSERT INTO {table}(c) VALUES ('{value}')")).await;
        }
        let (kind, overflowed) = server.check(&table, &ColumnOptions::default()).await;
        println!("{type_name}: {kind:?}, {} values, {overflowed} overflow", values.len());
        let as_text = ColumnOptions { as_text: true, ..Default::default() };
        assert_eq!(
            server.check(&table, &as_text).await.1,
            0,
            "a column held as text never overflows"
        );

        let arrays = format!("{SCHEMA}.zoo_{index}_array");
        // Arrays themselves: array_agg and array_fill see them so.
        if matches!(*type_name, "tidegate_types.ints" | "int2vector" | "oidvector") {
            continue;
        }
        server
            .run(&format!(
                "CREATE TABLE {arrays} (id serial, c {type_name}[]); \
                 INSERT INTO {arrays}(c) VALUES ('{{}}'), (NULL); \
                 INSERT INTO {arrays}(c) SELECT array_agg(c ORDER BY id) FROM {table}; \
                 INSERT INTO {arrays}(c) SELECT ARRAY[c, NULL, c] FROM {table}; \
                 INSERT INTO {arrays}(c) SELECT array_fill(c, ARRAY[2], ARRAY[0]) FROM {table}; \
                 INSERT INTO {arrays}(c) SELECT array_fill(c, ARRAY[2,1,2], ARRAY[-1,1,5]) FROM {table}; \
                 INSERT INTO {arrays}(c) SELECT array_fill(c, ARRAY[2,2]) FROM {table}"
            ))
            .await;
        let (kind, overflowed) = server.check(&arrays, &ColumnOptions::default()).await;
        println!("    array: {kind:?}, {overflowed} overflow");
        server.check(&arrays, &as_text).await;
    }
    let numeric = ColumnOptions { decimal: Some((20, 4)), ..Default::default() };
    let index = ZOO.iter().position(|(name, _)| *name == "numeric").unwrap();
    assert_eq!(server.check(&format!("{SCHEMA}.zoo_{index}"), &numeric).await.1, 6);
    server.run(&format!("DROP SCHEMA {SCHEMA} CASCADE")).await;
}

/// Expressions that give many different values of a type.
const RANDOM: &[(&str, &str)] = &[
    ("timestamp", "'4713-01-01 BC'::timestamp + random() * '20000 years'::interval"),
    ("timestamptz", "'0001-01-01'::timestamptz + random() * '10000 years'::interval"),
    ("date", "'4713-01-01 BC'::date + (random() * 5e6)::int"),
    ("time", "random() * '24:00'::interval"),
    (
        "interval",
        "make_interval(months => ((random() - 0.5) * 100)::int, days => ((random() - 0.5) * 10)::int, secs => round(((random() - 0.5) * 1e5)::numeric, (random() * 6)::int)::float8)",
    ),
    (
        "numeric",
        "round(((random() - 0.5)::numeric * power(10::numeric, (random() * 60)::int)), (random() * 40)::int)",
    ),
    ("numeric(30,8)", "(random() - 0.5)::numeric * power(10::numeric, (random() * 20)::int)"),
    ("money", "((random() - 0.5) * power(10, (random() * 16)::int))::numeric::money"),
    ("varbit", "((random() * 1e9)::int)::bit(30)::varbit"),
    ("int8", "((random() - 0.5) * power(2, (random() * 63)::int))::int8"),
];

#[tokio::test]
async fn random_values_read_as_the_server_prints_them() {
    let Some(mut server) = Server::connect().await else { return };
    server.load_types().await;
    for (index, (type_name, expression)) in RANDOM.iter().enumerate() {
        let table = format!("pg_temp.random_{index}");
        server
            .run(&format!(
                "CREATE TEMP TABLE random_{index} AS SELECT id, ({expression})::{type_name} AS c FROM generate_series(1, 5000) id"
            ))
            .await;
        let (_, overflowed) = server.check(&table, &ColumnOptions::default()).await;
        println!("{type_name}: {overflowed} of 5000 overflow");
    }
}

#[tokio::test]
async fn floats_are_printed_digit_for_digit_as_the_server_does() {
    let Some(mut server) = Server::connect().await else { return };
    server.load_types().await;
    // Reproducible bits, with the powers of 2 and 10 and their neighbours, where rounding is delicate.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut large: Vec<f64> = (0..20_000).map(|_| f64::from_bits(next())).collect();
    let mut small: Vec<f32> = (0..20_000).map(|_| f32::from_bits(next() as u32)).collect();
    // Integers and halves beyond 2^50 lie half-way between decimals.
    large.extend((0..20_000).map(|_| (next() >> 10) as f64 / 8.0));
    for power in 0..2046_u64 {
        let bits = power << 52;
        large.extend([bits.saturating_sub(1), bits, bits + 1, bits + 2].map(f64::from_bits));
    }
    small.extend((0..20_000).map(|_| (next() >> 38) as f32 / 8.0));
    for power in 0..254_u32 {
        let bits = power << 23;
        small.extend([bits.saturating_sub(1), bits, bits + 1, bits + 2].map(f32::from_bits));
    }
    for power in -320..309 {
        for head in 1..10 {
            let value: f64 = format!("{head}e{power}").parse().unwrap();
            large.extend([
                value,
                f64::from_bits(value.to_bits() + 1),
                f64::from_bits(value.to_bits().saturating_sub(1)),
            ]);
            let value = value as f32;
            small.extend([
                value,
                f32::from_bits(value.to_bits() + 1),
                f32::from_bits(value.to_bits().saturating_sub(1)),
            ]);
        }
    }
    let large = large
        .into_iter()
        .filter(|x| x.is_finite())
        .map(|x| format!("{x:.17e}"))
        .collect::<Vec<_>>();
    let small =
        small.into_iter().filter(|x| x.is_finite()).map(|x| format!("{x:.9e}")).collect::<Vec<_>>();
    for (type_name, values) in [("float8", large), ("float4", small)] {
        server
            .run(&format!("CREATE TEMP TABLE floats_{type_name} (id serial, c {type_name})"))
            .await;
        for part in values.chunks(5000) {
            let list =
                part.iter().map(|value| format!("('{value}')")).collect::<Vec<_>>().join(",");
            server.run(&format!("INSERT INTO floats_{type_name}(c) VALUES {list}")).await;
        }
        server.check(&format!("pg_temp.floats_{type_name}"), &ColumnOptions::default()).await;
    }
}

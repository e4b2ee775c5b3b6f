//! Compares a source schema with the lake, value by value: PostgreSQL's own text of each value with
//! what independent readers see. Nothing of the program takes part in it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::audit;
use crate::support::database::Sql;
use crate::support::judge::{self, At, Engine};

/// The settings under which the lake's texts are defined (`docs/types.md`).
const SETTINGS: &str = "SET DateStyle = 'ISO, MDY'; SET IntervalStyle = postgres; \
    SET TimeZone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = hex; \
    SET lc_monetary = 'C'; SET client_encoding = 'UTF8'; SET row_security = off";

const READERS: [Engine; 2] = [Engine::DuckDb, Engine::DeltaLake];

/// A replicated column: its name, and its type without domains.
struct Column {
    name: String,
    kind: String,
    element: Option<String>,
    precision: Option<(i32, i32)>,
    /// The lake's table is partitioned by it.
    partition: bool,
}

/// How the tables of `schema` differ from the lake; empty if they do not.
pub fn differences(sql: &mut Sql, schema: &str, lake: &Path) -> Vec<String> {
    sql.run(SETTINGS);
    let tables = sql.rows(&format!(
        "SELECT c.oid, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
         AND c.relpersistence = 'p' ORDER BY 2"
    ));
    let mut found = Vec::new();
    for table in tables {
        let (Some(Some(oid)), Some(Some(name))) = (table.first(), table.get(1)) else { continue };
        sql.run("SET search_path = ''");
        let differs = table_differences(sql, oid, schema, name, lake);
        sql.run(&format!("SET search_path = {schema}, public"));
        found.extend(differs.into_iter().map(|text| format!("{name}: {text}")));
    }
    found
}

fn table_differences(
    sql: &mut Sql,
    oid: &str,
    schema: &str,
    table: &str,
    lake: &Path,
) -> Vec<String> {
    let folder = lake.join(tidegate::lake::Lake::table_folder(schema, table));
    let mut columns = columns(sql, oid);
    let partitions = partitioned_by(&folder);
    for column in &mut columns {
        column.partition = partitions.contains(&column.name);
    }
    let list: Vec<String> =
        columns.iter().map(|c| format!("\"{}\"", c.name.replace('"', "\"\""))).collect();
    let only = sql.one(&format!("SELECT relkind = 'r' FROM pg_class WHERE oid = {oid}"));
    let only = if only == "t" { "ONLY " } else { "" };
    let select = format!(
        "SELECT {} FROM {only}{schema}.\"{}\"",
        if list.is_empty() { "1".to_owned() } else { list.join(", ") },
        table.replace('"', "\"\"")
    );
    let mut source: Vec<Vec<Option<String>>> = sql
        .rows(&select)
        .into_iter()
        .map(|row| columns.iter().zip(row).map(|(c, v)| v.map(|v| c.shown(&v))).collect())
        .collect();
    source.sort();
    let mut wanted: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
    wanted.push("_tg_overflow");
    let mut wrong = Vec::new();
    for reader in READERS {
        let read = match judge::attempt(reader, &folder, At::Newest, &wanted) {
            Ok(read) => read,
            Err(error) => {
                wrong.push(format!("{reader:?} can't read it: {error}"));
                continue;
            }
        };
        let mut rows: Vec<Vec<Option<String>>> =
            read.rows.into_iter().map(|row| merged(&columns, row)).collect();
        rows.sort();
        if let Some(difference) = judge::difference(&source, &rows) {
            let cells = cells(&columns, &source, &rows);
            wrong.push(format!("{reader:?}: {}", cells.unwrap_or(difference)));
        }
    }
    wrong
}

/// The columns that differ, where the rows are the same but for some values.
fn cells(
    columns: &[Column],
    source: &[Vec<Option<String>>],
    lake: &[Vec<Option<String>>],
) -> Option<String> {
    let mut found = BTreeMap::new();
    for (s, l) in source.iter().zip(lake) {
        let pairs = s.iter().zip(l).zip(columns).filter(|((s, l), _)| s != l);
        for ((s, l), column) in pairs {
            let text = format!("{} ({}): {s:?} is {l:?}", column.name, column.kind);
            found.entry(&column.name).or_insert(text);
        }
    }
    let few = source.len() == lake.len() && found.len() * 2 <= columns.len();
    few.then(|| found.into_values().collect::<Vec<_>>().join("\n"))
}

/// The partition columns of a lake table, by the newest metadata in its log.
fn partitioned_by(folder: &Path) -> Vec<String> {
    let commits = audit::commits(folder).unwrap_or_default();
    let metadata = commits.iter().rev().flatten().find_map(|action| action.get("metaData"));
    let names = metadata.and_then(|metadata| metadata["partitionColumns"].as_array());
    names.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

fn columns(sql: &mut Sql, oid: &str) -> Vec<Column> {
    let rows = sql.rows(&format!(
        "WITH RECURSIVE base AS (
             SELECT a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS mod
             FROM pg_attribute a WHERE a.attrelid = {oid} AND a.attnum > 0
             AND NOT a.attisdropped AND a.attgenerated = ''
             UNION ALL
             SELECT b.attnum, b.attname, t.typbasetype,
                    CASE WHEN b.mod = -1 THEN t.typtypmod ELSE b.mod END
             FROM base b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
         )
         SELECT b.attname, t.typname, CASE WHEN t.typcategory = 'A' THEN (
             WITH RECURSIVE element AS (
                 SELECT e.typname, e.typtype, e.typbasetype, b.mod AS mod, e.typtypmod
                 FROM pg_type e WHERE e.oid = t.typelem
                 UNION ALL
                 SELECT e.typname, e.typtype, e.typbasetype,
                     CASE WHEN element.mod = -1 THEN element.typtypmod ELSE element.mod END,
                     e.typtypmod
                 FROM element JOIN pg_type e ON e.oid = element.typbasetype
                 WHERE element.typtype = 'd'
             )
             SELECT typname || ' ' || mod FROM element WHERE typtype <> 'd') END, b.mod
         FROM base b JOIN pg_type t ON t.oid = b.type
         WHERE t.typtype <> 'd' ORDER BY b.attnum"
    ));
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    rows.iter()
        .map(|row| {
            let element = row[2].as_ref().and_then(|element| element.split_once(' '));
            let modifier = element.map_or_else(|| text(&row[3]), |(_, own)| own.to_owned());
            let modifier: i32 = modifier.parse().unwrap_or(-1);
            Column {
                name: text(&row[0]),
                kind: text(&row[1]),
                element: element.map(|(name, _)| name.to_owned()),
                precision: (modifier >= 4).then(|| {
                    let both = modifier - 4;
                    // The scale has eleven bits, with a sign since PostgreSQL 15.
                    (both >> 16 & 0xffff, ((both & 0x7ff) ^ 1024) - 1024)
                }),
                partition: false,
            }
        })
        .collect()
}

impl Column {
    /// The canonical text of what PostgreSQL printed; `!` and the text where the lake's type can't
    /// hold it, so that it must stand in the overflow map.
    fn shown(&self, text: &str) -> String {
        let held = match &self.element {
            Some(element) if self.kind != "int2vector" && self.kind != "oidvector" => {
                elements(text, if element == "box" { ';' } else { ',' }).and_then(|elements| {
                    let shown: Option<Vec<String>> = elements
                        .iter()
                        .map(|element_text| match element_text {
                            None => Some("null".to_owned()),
                            Some(text) => self.inside(element, text),
                        })
                        .collect();
                    Some(format!("[{}]", shown?.join(",")))
                })
            }
            _ => scalar(&self.kind, self.precision, text),
        };
        let held = held.filter(|_| !self.partition || self.can_partition(text));
        held.unwrap_or_else(|| format!("!{text}"))
    }

    /// Whether Delta's log can have the value.
    fn can_partition(&self, text: &str) -> bool {
        !text.is_empty() && (self.kind != "date" || text.find('-') == Some(4))
    }

    fn inside(&self, element: &str, text: &str) -> Option<String> {
        let shown = scalar(element, self.precision, text)?;
        let plain = matches!(
            element,
            "bool"
                | "int2"
                | "int4"
                | "int8"
                | "oid"
                | "float4"
                | "float8"
                | "money"
                | "date"
                | "timestamp"
                | "timestamptz"
                | "bytea"
                | "hstore"
        ) || element == "numeric" && decimal(self.precision);
        Some(if plain { shown } else { serde_json::Value::from(shown).to_string() })
    }
}

/// Whether a numeric of this precision and scale is a Delta decimal.
fn decimal(precision: Option<(i32, i32)>) -> bool {
    precision.is_some_and(|(p, s)| p <= 38 && (0..=p).contains(&s))
}

/// The canonical text of a value; none where the Delta type can't hold it.
fn scalar(kind: &str, precision: Option<(i32, i32)>, text: &str) -> Option<String> {
    match kind {
        "bool" => Some(if text == "t" { "true" } else { "false" }.to_owned()),
        "float4" | "float8" => Some(float(kind, text)),
        "money" => Some(text.replace(['$', ','], "")),
        "numeric" if decimal(precision) && text == "NaN" => None,
        "date" => in_years(text).then(|| text.to_owned()),
        "timestamp" | "timestamptz" => {
            if !in_years(text) {
                return None;
            }
            let (text, zone) = match text.strip_suffix("+00") {
                Some(text) => (text, "Z"),
                None => (text, ""),
            };
            let (date, time) = text.split_once(' ')?;
            let (time, micros) = time.split_once('.').unwrap_or((time, ""));
            Some(format!("{date}T{time}.{micros:0<6}{zone}"))
        }
        "bytea" => Some(text.strip_prefix("\\x")?.to_owned()),
        "hstore" => Some(format!("{{{}}}", hstore(text).join(","))),
        _ => Some(text.to_owned()),
    }
}

/// Whether a date or timestamp lies in the years 1 to 9999.
fn in_years(text: &str) -> bool {
    !text.ends_with("BC") && !text.contains("infinity") && text.find('-') == Some(4)
}

/// The pairs of an hstore's text as the judges show a map.
fn hstore(text: &str) -> Vec<String> {
    let mut pairs: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('"') {
        let (key, after) = quoted(&rest[start..]);
        let after = after.trim_start_matches("=>");
        let (value, after) = match after.strip_prefix("NULL") {
            Some(after) => ("null".to_owned(), after),
            None => {
                let (value, after) = quoted(after);
                (serde_json::Value::from(value).to_string(), after)
            }
        };
        pairs.push(format!("{}:{value}", serde_json::Value::from(key)));
        rest = after;
    }
    pairs.sort();
    pairs
}

/// A text in double quotes with backslashes, and what follows it.
fn quoted(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (out, &text[at + 1..]),
            '\\' => out.extend(chars.next().map(|(_, c)| c)),
            c => out.push(c),
        }
    }
    (out, "")
}

/// The elements of an array's text; none if it has bounds or dimensions that Delta can't hold.
fn elements(text: &str, delimiter: char) -> Option<Vec<Option<String>>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut found = Vec::new();
    let mut rest = inner;
    while !rest.is_empty() {
        let next = if rest.starts_with('"') {
            let (value, after) = quoted(rest);
            found.push(Some(value));
            after
        } else {
            let end = rest.find(delimiter).unwrap_or(rest.len());
            let word = &rest[..end];
            if word.starts_with('{') {
                return None;
            }
            found.push((word != "NULL").then(|| word.to_owned()));
            &rest[end..]
        };
        rest = next.strip_prefix(delimiter).unwrap_or(next);
    }
    Some(found)
}

/// A lake row with what overflowed put in its columns' places.
fn merged(columns: &[Column], mut row: Vec<Option<String>>) -> Vec<Option<String>> {
    let overflow: BTreeMap<String, String> = match row.pop().flatten() {
        Some(map) => serde_json::from_str(&map).unwrap_or_else(|e| panic!("{e}: {map}")),
        None => BTreeMap::new(),
    };
    for (column, value) in columns.iter().zip(&mut row) {
        if let Some(text) = overflow.get(&column.name) {
            // A value that stands in both places is wrong, whatever it is.
            *value = Some(match value.take() {
                None => format!("!{text}"),
                Some(held) => format!("both {held} and !{text}"),
            });
        } else if is_float(&column.kind) {
            *value = value.take().map(|text| float(&column.kind, &text));
        } else if column.element.as_deref().is_some_and(is_float) {
            *value = value.take().map(|text| {
                let inner = text.trim_start_matches('[').trim_end_matches(']');
                let kind = column.element.as_deref().unwrap_or_default();
                let all: Vec<String> = inner
                    .split(',')
                    .map(
                        |x| if x == "null" || x.is_empty() { x.to_owned() } else { float(kind, x) },
                    )
                    .collect();
                format!("[{}]", all.join(","))
            });
        }
    }
    row
}

fn is_float(kind: &str) -> bool {
    matches!(kind, "float4" | "float8")
}

/// A float by its value: two programs may choose other shortest digits for it.
fn float(kind: &str, text: &str) -> String {
    if kind == "float4" {
        format!("{:?}", text.parse::<f32>().ok())
    } else {
        format!("{:?}", text.parse::<f64>().ok())
    }
}

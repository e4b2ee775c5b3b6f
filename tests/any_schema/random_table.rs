//! A table of random columns, and random changes of its rows.

use crate::support::database::Sql;
use crate::support::random::Random;
use crate::zoo::ZOO;

/// How its rows are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Primary,
    Index,
    Full,
    AppendOnly,
}

struct Column {
    name: String,
    /// Index into the zoo.
    kind: usize,
    array: bool,
}

/// One table and its random numbers.
pub struct RandomTable {
    random: Random,
    name: String,
    key: Key,
    columns: Vec<Column>,
    next_id: u64,
}

const NAMES: &[&str] = &[
    "a b",
    "Üben",
    "\"quoted\"",
    "select",
    "UPPER",
    "x.y",
    "percent%",
    "semi;colon",
    "🦀",
    "tab\there",
    "back\\slash",
    "comma,",
    "eq=",
    "{brace}",
    "-- comment",
    "$1",
];

impl RandomTable {
    pub fn new(mut random: Random, schema: &str, number: u64) -> RandomTable {
        let key = *random.pick(&[
            Key::Primary,
            Key::Primary,
            Key::Primary,
            Key::Index,
            Key::Full,
            Key::AppendOnly,
        ]);
        let count = 1 + random.below(14);
        let columns = (0..count)
            .map(|i| {
                let name = match random.chance(30) {
                    true => format!("{}{i}", random.pick(NAMES)),
                    false => format!("c{i}"),
                };
                let kind = random.below(ZOO.len() as u64) as usize;
                let array = random.chance(20) && !is_array(ZOO[kind].0);
                Column { name, kind, array }
            })
            .collect();
        RandomTable { random, name: format!("{schema}.t{number}"), key, columns, next_id: 1 }
    }

    /// Makes it; columns of types that the server does not have are left away.
    pub fn create(&mut self, sql: &mut Sql) {
        self.columns
            .retain(|column| sql.attempt(&format!("SELECT NULL::{}", ZOO[column.kind].0)).is_ok());
        let mut columns: Vec<String> = self
            .columns
            .iter()
            .map(|c| {
                let array = if c.array { "[]" } else { "" };
                format!("{} {}{array}", quoted(&c.name), ZOO[c.kind].0)
            })
            .collect();
        // The key stands anywhere among the columns.
        let place = self.random.below(columns.len() as u64 + 1) as usize;
        let second = matches!(self.key, Key::Primary | Key::Index) && self.random.chance(40);
        columns.insert(place, "id int8 NOT NULL".to_owned());
        if second {
            columns.push("part text NOT NULL DEFAULT 'p'".to_owned());
        }
        let name = &self.name;
        let key = if second { "part, id" } else { "id" };
        let end = match self.key {
            Key::Primary => format!("ALTER TABLE {name} ADD PRIMARY KEY ({key})"),
            Key::Index => {
                let plain = name.replace('.', "_");
                format!(
                    "CREATE UNIQUE INDEX {plain}_key ON {name} ({key}); \
                     ALTER TABLE {name} REPLICA IDENTITY USING INDEX {plain}_key"
                )
            }
            Key::Full => format!("ALTER TABLE {name} REPLICA IDENTITY FULL"),
            Key::AppendOnly => format!("ALTER TABLE {name} REPLICA IDENTITY NOTHING"),
        };
        sql.run(&format!("CREATE TABLE {name}({}); {end}", columns.join(", ")));
    }

    /// A `[[columns]]` section that partitions some tables by columns of theirs.
    pub fn section(&mut self) -> String {
        let refused = ["float", "timestamp", "bytea", "int2vector", "oidvector"];
        let own = ["hstore", "vector", "ints"];
        let can = |column: &&Column| {
            let name = ZOO[column.kind].0;
            let refused = refused.iter().any(|start| name.starts_with(start));
            let last = name.rsplit('.').next().unwrap_or(name);
            !column.array && !refused && !own.iter().any(|start| last.starts_with(start))
        };
        let mut names: Vec<String> =
            self.columns.iter().filter(can).map(|column| column.name.clone()).collect();
        if self.random.chance(60) {
            return String::new();
        }
        names.truncate(1 + self.random.below(2) as usize);
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        if names.is_empty() {
            return String::new();
        }
        let name = &self.name;
        format!("[[columns]]\ntables = \"{name}\"\npartition_by = [{}]\n", names.join(", "))
    }

    /// Puts rows in, one by one.
    pub fn fill(&mut self, sql: &mut Sql, rows: u64) {
        for _ in 0..rows {
            let insert = self.insert();
            sql.run(&insert);
        }
    }

    /// Random transactions: rows put in, changed, given other keys, removed; some rolled back.
    pub fn change(&mut self, sql: &mut Sql, transactions: u64) {
        for _ in 0..transactions {
            let mut text = "BEGIN; ".to_owned();
            for _ in 0..1 + self.random.below(4) {
                let one = self.one_change();
                match self.random.below(10) {
                    0 => text.push_str(&format!("SAVEPOINT s; {one}; ROLLBACK TO s; ")),
                    1 => text.push_str(&format!("SAVEPOINT s; {one}; RELEASE s; ")),
                    _ => text.push_str(&format!("{one}; ")),
                }
            }
            text.push_str(if self.random.chance(90) { "COMMIT" } else { "ROLLBACK" });
            sql.run(&text);
        }
    }

    fn one_change(&mut self) -> String {
        if self.key == Key::AppendOnly {
            return self.insert();
        }
        let name = self.name.clone();
        let id = 1 + self.random.below(self.next_id);
        match self.random.below(10) {
            0..4 => self.insert(),
            4..7 if !self.columns.is_empty() => {
                let at = self.random.below(self.columns.len() as u64) as usize;
                let value = self.value(at);
                let column = quoted(&self.columns[at].name);
                format!("UPDATE {name} SET {column} = {value} WHERE id = {id}")
            }
            7 => {
                self.next_id += 1;
                format!("UPDATE {name} SET id = {} WHERE id = {id}", self.next_id)
            }
            8 => format!("UPDATE {name} SET id = id WHERE id % 7 = {}", id % 7),
            _ => format!("DELETE FROM {name} WHERE id = {id}"),
        }
    }

    fn insert(&mut self) -> String {
        self.next_id += 1;
        let (mut names, mut values) = (vec!["id".to_owned()], vec![self.next_id.to_string()]);
        for at in 0..self.columns.len() {
            names.push(quoted(&self.columns[at].name));
            values.push(self.value(at));
        }
        format!("INSERT INTO {}({}) VALUES ({})", self.name, names.join(", "), values.join(", "))
    }

    /// An expression of a value for a column.
    fn value(&mut self, at: usize) -> String {
        let (kind, array) = (self.columns[at].kind, self.columns[at].array);
        if self.random.chance(15) {
            return "NULL".to_owned();
        }
        let type_name = ZOO[kind].0;
        if !array {
            return format!("{}::{type_name}", self.literal(kind));
        }
        let elements: Vec<String> = (0..self.random.below(4))
            .map(|_| match self.random.chance(15) {
                true => "NULL".to_owned(),
                false => self.literal(kind),
            })
            .collect();
        format!("ARRAY[{}]::{type_name}[]", elements.join(", "))
    }

    /// A literal of a type: one of the zoo's, or a random one.
    fn literal(&mut self, kind: usize) -> String {
        let (type_name, literals) = ZOO[kind];
        let random = &mut self.random;
        if random.chance(40) {
            return text(literals[random.below(literals.len() as u64) as usize]);
        }
        let bits = random.next();
        text(&match type_name {
            "int2" => (bits as i16).to_string(),
            "int4" => (bits as i32).to_string(),
            "int8" => (bits as i64).to_string(),
            "oid" => (bits as u32).to_string(),
            "float4" => format!("{:e}", f32::from_bits(bits as u32)).replace("inf", "Infinity"),
            "float8" => format!("{:e}", f64::from_bits(bits)).replace("inf", "Infinity"),
            "numeric" | "numeric(1000,900)" => {
                format!("{}.{}e{}", bits as i64, random.next(), random.below(60) as i64 - 30)
            }
            "numeric(38,10)" => format!("{}.{}", bits as i64, random.next()),
            "numeric(5,2)" | "tidegate_types.price" => {
                format!("{}.{}", bits as i64 % 1000, random.below(99))
            }
            "money" => format!("{}.{:02}", (bits as i64) / 1000, random.below(100)),
            "text" | "tidegate_types.citext" => words(random),
            "json" | "jsonb" => {
                let key = serde_json::Value::from(words(random));
                format!("{{{key}: [{}, {}.5e10, null, {key}]}}", bits as i64, random.next())
            }
            "bytea" => format!("\\x{bits:016x}"),
            "uuid" => format!("{bits:016x}{:016x}", random.next()),
            "timestamp" => format!(
                "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}",
                1 + bits % 20_000,
                1 + random.below(12),
                1 + random.below(28),
                random.below(24),
                random.below(60),
                random.below(60),
                random.below(1_000_000)
            ),
            "varbit" => format!("{bits:b}"),
            "inet" => format!("{}.{}.{}.{}", bits as u8, 1, (bits >> 8) as u8, (bits >> 16) as u8),
            "int4range" => {
                format!("[{},{})", bits as i16, bits as i16 as i64 + 1 + random.below(9) as i64)
            }
            "pg_lsn" => format!("{:X}/{:X}", (bits >> 32) as u32, bits as u32),
            _ => literals[random.below(literals.len() as u64) as usize].to_owned(),
        })
    }
}

/// Some characters that have been trouble somewhere, and now and then too many for one page.
fn words(random: &mut Random) -> String {
    const PIECES: &[&str] = &[
        "a", "Z", " ", "\t", "\n", "\r", "\\", "\"", "'", "{", "}", ",", "NULL", "\\N", "é", "🦀",
        "\u{301}", "\u{feff}", "\u{200b}", "\u{7f}", "\u{1}", "%", "$", ";", "/*", "0",
    ];
    let long = random.chance(10);
    let count = random.below(if long { 4000 } else { 12 });
    (0..count).map(|_| *random.pick(PIECES)).collect()
}

fn is_array(type_name: &str) -> bool {
    matches!(type_name, "tidegate_types.ints" | "int2vector" | "oidvector")
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

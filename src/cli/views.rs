//! SQL that opens the lake's tables in another program, each at a chosen version.
//!
//! A pure function: the caller says which versions belong to one fence. Both programs ignore the
//! case of names, PostgreSQL does not, and `CREATE OR REPLACE` would silently keep the last of two
//! tables that differ in case only: such names get a number, and a comment says so.

use std::collections::HashSet;

use super::args::Engine;

/// One table to make a view of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableView {
    /// Schema on the source.
    pub schema: String,
    /// Name on the source.
    pub table: String,
    /// Where the Delta table is: an absolute path, or a URL.
    pub location: String,
    /// The version to show; the latest if none.
    pub version: Option<u64>,
}

/// The SQL or code for `engine`; `note` (the fence, for example) is written as a comment in front.
pub fn text(engine: Engine, note: &str, views: &[TableView]) -> String {
    match engine {
        Engine::Duckdb | Engine::Spark => sql(engine, note, views),
        Engine::Polars => polars(note, views),
    }
}

/// The statements that show one table at its version, to be pasted.
pub fn query(engine: Engine, view: &TableView) -> String {
    let from = from(engine, view);
    match engine {
        Engine::Duckdb => {
            format!("{}SELECT * FROM {from};", duckdb_set_up(std::slice::from_ref(view)))
        }
        Engine::Spark => format!("SELECT * FROM {from};"),
        Engine::Polars => format!("import polars as pl\n{from}.collect()"),
    }
}

/// A dictionary of lazy frames, by the names that the source has.
fn polars(note: &str, views: &[TableView]) -> String {
    let mut out = String::new();
    for line in note.lines() {
        out.push_str(&format!("# {line}\n"));
    }
    out.push_str("import polars as pl\n\ntables = {\n");
    for view in views {
        let name = python(&format!("{}.{}", view.schema, view.table));
        out.push_str(&format!("    {name}: {},\n", from(Engine::Polars, view)));
    }
    out.push_str("}\n");
    out
}

/// A text of Python, whatever is in it.
fn python(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// What stands behind FROM; for Polars, the lazy frame.
fn from(engine: Engine, view: &TableView) -> String {
    let at =
        |before: &str| view.version.map(|version| format!("{before}{version}")).unwrap_or_default();
    match engine {
        Engine::Duckdb => {
            format!("delta_scan({}{})", literal(&view.location), at(", version => "))
        }
        Engine::Spark => {
            let location = quote(engine, &spark_location(&view.location));
            format!("delta.{location}{}", at(" VERSION AS OF "))
        }
        Engine::Polars => {
            format!("pl.scan_delta({}{})", python(&view.location), at(", version="))
        }
    }
}

fn sql(engine: Engine, note: &str, views: &[TableView]) -> String {
    let mut out = String::new();
    for line in note.lines() {
        out.push_str(&format!("-- {line}\n"));
    }
    let mut names = Names::new(engine);
    match engine {
        Engine::Duckdb => out.push_str(&duckdb_set_up(views)),
        Engine::Spark | Engine::Polars => {}
    }
    let mut schemas = HashSet::new();
    for view in views {
        let (schema, table, changed) = names.of(view);
        if schemas.insert(schema.to_lowercase()) {
            out.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {};\n", quote(engine, &schema)));
        }
        if changed {
            out.push_str(&format!(
                "-- {}.{} in PostgreSQL\n",
                one_line(&view.schema),
                one_line(&view.table)
            ));
        }
        let name = format!("{}.{}", quote(engine, &schema), quote(engine, &table));
        let from = from(engine, view);
        out.push_str(&format!("CREATE OR REPLACE VIEW {name} AS SELECT * FROM {from};\n"));
    }
    out
}

/// The extensions for the kinds of stores in use, and credentials from where their tools keep them.
fn duckdb_set_up(views: &[TableView]) -> String {
    let mut out = "INSTALL delta;\nLOAD delta;\n".to_owned();
    let uses = |schemes: &[&str]| {
        views.iter().any(|view| {
            view.location.split_once("://").is_some_and(|(scheme, _)| schemes.contains(&scheme))
        })
    };
    if uses(&["s3", "s3a"]) {
        out.push_str("INSTALL httpfs;\nLOAD httpfs;\nINSTALL aws;\nLOAD aws;\n");
        out.push_str(
            "CREATE OR REPLACE SECRET tidegate_s3 (TYPE s3, PROVIDER credential_chain);\n",
        );
    }
    if uses(&["gs"]) {
        out.push_str("-- Google Cloud Storage: give the HMAC key first\n");
        out.push_str(
            "-- CREATE OR REPLACE SECRET tidegate_gs (TYPE gcs, KEY_ID '…', SECRET '…');\n",
        );
    }
    if uses(&["az", "abfs", "abfss"]) {
        out.push_str("INSTALL azure;\nLOAD azure;\n-- Azure: give the account first\n");
        out.push_str(
            "-- CREATE OR REPLACE SECRET tidegate_az (TYPE azure, PROVIDER credential_chain, ACCOUNT_NAME '…');\n",
        );
    }
    out
}

/// Spark names S3 `s3a`, and wants a URL for a folder.
fn spark_location(location: &str) -> String {
    match location.split_once("://") {
        Some(("s3", rest)) => format!("s3a://{rest}"),
        _ => location.to_owned(),
    }
}

fn quote(engine: Engine, name: &str) -> String {
    match engine {
        Engine::Duckdb | Engine::Polars => format!("\"{}\"", name.replace('"', "\"\"")),
        Engine::Spark => format!("`{}`", name.replace('`', "``")),
    }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A name in a comment must not end the comment.
fn one_line(name: &str) -> String {
    if name.chars().any(char::is_control) {
        name.escape_debug().to_string()
    } else {
        name.to_owned()
    }
}

/// Gives every table a name that the program accepts and that no other table has.
struct Names {
    engine: Engine,
    taken: HashSet<(String, String)>,
}

impl Names {
    fn new(engine: Engine) -> Self {
        Names { engine, taken: HashSet::new() }
    }

    /// Schema and name of the view, and whether they differ from the source's.
    fn of(&mut self, view: &TableView) -> (String, String, bool) {
        let schema = self.accepted(&view.schema);
        let wanted = self.accepted(&view.table);
        let mut table = wanted.clone();
        let mut number = 2;
        while !self.taken.insert((schema.to_lowercase(), table.to_lowercase())) {
            table = format!("{wanted}_{number}");
            number += 1;
        }
        let changed = schema != view.schema || table != view.table;
        (schema, table, changed)
    }

    /// Spark's catalog takes letters, digits and underscores of ASCII only.
    fn accepted(&self, name: &str) -> String {
        match self.engine {
            Engine::Duckdb | Engine::Polars => name.to_owned(),
            Engine::Spark => {
                name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(schema: &str, table: &str, location: &str, version: Option<u64>) -> TableView {
        TableView { schema: schema.into(), table: table.into(), location: location.into(), version }
    }

    #[test]
    fn duckdb_gets_one_view_per_table_at_its_version() {
        let views = [
            view("public", "orders", "/lake/public/orders", Some(3)),
            view("public", "we\"ird", "/la'ke/public/w", None),
            view("shop", "a", "/lake/shop/a", Some(0)),
        ];
        assert_eq!(
            sql(Engine::Duckdb, "fence 0/10", &views),
            "-- fence 0/10\n\
             INSTALL delta;\n\
             LOAD delta;\n\
             CREATE SCHEMA IF NOT EXISTS \"public\";\n\
             CREATE OR REPLACE VIEW \"public\".\"orders\" AS SELECT * FROM delta_scan('/lake/public/orders', version => 3);\n\
             CREATE OR REPLACE VIEW \"public\".\"we\"\"ird\" AS SELECT * FROM delta_scan('/la''ke/public/w');\n\
             CREATE SCHEMA IF NOT EXISTS \"shop\";\n\
             CREATE OR REPLACE VIEW \"shop\".\"a\" AS SELECT * FROM delta_scan('/lake/shop/a', version => 0);\n"
        );
    }

    #[test]
    fn spark_gets_names_and_locations_it_accepts() {
        let views = [
            view("public", "orders", "s3://b/lake/public/orders", Some(3)),
            view("public", "Töpfe x", "/la`ke/t", None),
        ];
        assert_eq!(
            sql(Engine::Spark, "", &views),
            "CREATE SCHEMA IF NOT EXISTS `public`;\n\
             CREATE OR REPLACE VIEW `public`.`orders` AS SELECT * FROM delta.`s3a://b/lake/public/orders` VERSION AS OF 3;\n\
             -- public.Töpfe x in PostgreSQL\n\
             CREATE OR REPLACE VIEW `public`.`T_pfe_x` AS SELECT * FROM delta.`/la``ke/t`;\n"
        );
    }

    #[test]
    fn tables_that_differ_in_case_only_do_not_replace_each_other() {
        for engine in [Engine::Duckdb, Engine::Spark] {
            let views = ["t", "T", "t_2"].map(|table| view("s", table, "/l", None));
            let text = sql(engine, "", &views);
            assert_eq!(text.matches("CREATE OR REPLACE VIEW").count(), 3);
            let names: HashSet<_> = text.lines().filter(|l| l.starts_with("CREATE OR")).collect();
            assert_eq!(names.len(), 3, "{text}");
            assert!(text.contains("-- s.T in PostgreSQL"), "{text}");
        }
    }

    #[test]
    fn a_name_can_not_leave_its_quotes_or_comment() {
        let text = sql(Engine::Duckdb, "", &[view("s", "a\";DROP TABLE x;--", "/l", None)]);
        assert!(text.contains("\"a\"\";DROP TABLE x;--\""), "{text}");
        let text = sql(Engine::Spark, "", &[view("s", "a\nDROP", "/l", None)]);
        assert!(text.contains("-- s.a\\nDROP in PostgreSQL"), "{text}");
    }

    #[test]
    fn polars_gets_texts_that_stay_texts() {
        let views = [view("s", "a\"b\\\n", "/l'a/s", Some(2)), view("s", "c", "s3://b/c", None)];
        assert_eq!(
            text(Engine::Polars, "fence 0/10", &views),
            "# fence 0/10\nimport polars as pl\n\ntables = {\n    \"s.a\\\"b\\\\\\U0000000a\": pl.scan_delta(\"/l'a/s\", version=2),\n    \"s.c\": pl.scan_delta(\"s3://b/c\"),\n}\n"
        );
    }

    #[test]
    fn one_table_is_opened_by_what_can_be_pasted() {
        let table = view("s", "t", "s3://b/la`k'e/t", Some(4));
        let duckdb = query(Engine::Duckdb, &table);
        assert!(duckdb.ends_with("SELECT * FROM delta_scan('s3://b/la`k''e/t', version => 4);"));
        assert!(duckdb.starts_with("INSTALL delta;"), "{duckdb}");
        assert_eq!(
            query(Engine::Spark, &table),
            "SELECT * FROM delta.`s3a://b/la``k'e/t` VERSION AS OF 4;"
        );
    }

    #[test]
    fn stores_bring_their_extension() {
        let text = sql(Engine::Duckdb, "", &[view("s", "t", "s3://b/t", None)]);
        assert!(text.contains("LOAD httpfs") && text.contains("credential_chain"), "{text}");
        assert!(
            sql(Engine::Duckdb, "", &[view("s", "t", "az://b/t", None)]).contains("LOAD azure")
        );
    }
}

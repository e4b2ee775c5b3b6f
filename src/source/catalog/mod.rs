//! What the source's tables are: columns, keys, replica identity, partitions, physical size.
//!
//! [`select_tables`] turns the user's patterns into [`TableInfo`]s with a handful of queries,
//! however many tables there are. A table that can't be replicated soundly is refused in words,
//! never left out in silence; that is the guarantee of this module.
//!
//! A partitioned table is one table here: its changes are published under its own name
//! (`publish_via_partition_root`), its rows lie in its [`Leaf`]s. Children by inheritance are
//! tables of their own.

mod pattern;
mod query;
mod resolve;
mod server;
mod treat;

pub use pattern::{for_table, quote_if_needed};
pub use server::{Role, ServerInfo, current_lsn, insert_lsn};
pub use treat::{NOWHERE, Rule, Treatments, UNKNOWN};

use std::collections::{BTreeSet, HashSet};

use crate::source::client::Client;
use tokio_postgres::types::FromSql;
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Kind, Result};
use crate::source::check::{Finding, as_error};
use crate::source::types::ColumnOptions;

/// One column that is not dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnInfo {
    /// `pg_attribute.attnum`, from 1; never used again after a drop.
    pub attnum: i16,
    /// The name.
    pub name: String,
    /// The type's oid.
    pub type_oid: u32,
    /// The type's modifier, -1 without one.
    pub typmod: i32,
    /// The type as `format_type` writes it.
    pub type_name: String,
    /// No row has NULL here. A NOT NULL that was never validated (PostgreSQL 18) does not count.
    pub not_null: bool,
    /// `s` stored, `v` virtual (PostgreSQL 18), `\0` not generated.
    pub generated: char,
    /// The value of rows older than the column (`attmissingval`), as text.
    pub missing: Option<String>,
    /// The partitions do not agree on the missing value, so `missing` is no answer.
    pub missing_differs: bool,
    /// What the configuration says of it.
    pub options: ColumnOptions,
}

impl ColumnInfo {
    /// Whether the lake has no such column.
    pub fn is_left_out(&self) -> bool {
        self.generated != '\0' || self.options.left_out
    }
}

/// What a table's WAL records tell about the old row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaIdentity {
    /// The primary key, or nothing without one.
    Default,
    /// The columns of a chosen unique index.
    Index,
    /// The whole row.
    Full,
    /// Nothing.
    Nothing,
}

impl ReplicaIdentity {
    /// From `pg_class.relreplident`.
    pub fn from_char(c: char) -> Self {
        match c {
            'i' => ReplicaIdentity::Index,
            'f' => ReplicaIdentity::Full,
            'n' => ReplicaIdentity::Nothing,
            _ => ReplicaIdentity::Default,
        }
    }

    /// `pg_class.relreplident`.
    pub fn as_char(self) -> char {
        match self {
            ReplicaIdentity::Default => 'd',
            ReplicaIdentity::Index => 'i',
            ReplicaIdentity::Full => 'f',
            ReplicaIdentity::Nothing => 'n',
        }
    }
}

/// Ordinary or partitioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableKind {
    /// Rows lie in the table itself.
    Plain,
    /// Rows lie in the leaf partitions.
    Partitioned,
}

/// A piece of storage: the table itself, or one of its leaf partitions at any depth.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// Oid of the table.
    pub oid: u32,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// The file of its rows; another one after a rewrite.
    pub relfilenode: u32,
    /// Blocks of the main fork now.
    pub pages: u64,
    /// Bytes with TOAST and maps.
    pub bytes: u64,
    /// Rows, as the planner would estimate them.
    pub rows_estimated: f64,
    /// Its own replica identity: a partition's rows are logged by its own, not by its root's.
    pub identity: ReplicaIdentity,
    /// Names of the key columns under that identity.
    pub key: Option<Vec<String>>,
    /// `heap`, or another access method.
    pub access_method: String,
    /// It became a partition after it was made, so it may have come with rows.
    pub attached: bool,
    /// Another number once it was detached and attached again; 0 for what is no partition.
    pub link: u64,
}

/// A table to replicate.
#[derive(Clone, Debug, PartialEq)]
pub struct TableInfo {
    /// Oid of the table.
    pub oid: u32,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Ordinary or partitioned.
    pub kind: TableKind,
    /// The replica identity as declared.
    pub identity: ReplicaIdentity,
    /// The columns by `attnum`.
    pub columns: Vec<ColumnInfo>,
    /// Digest of the versions (`xmin`) of the columns' catalog rows: another one after any ALTER of
    /// a column, such as one to the type it had, which may rewrite every value.
    pub columns_version: String,
    /// Indices into `columns`: the identity index's with USING INDEX, else the primary key's.
    /// `None` under NOTHING, without a primary key, or with a deferrable one.
    pub key: Option<Vec<usize>>,
    /// There is a primary key, but it is deferrable: it identifies no row in the WAL.
    pub key_deferrable: bool,
    /// Only rows that satisfy this SQL expression are replicated: the publication's row filter
    /// (PostgreSQL 15 and later).
    pub row_filter: Option<String>,
    /// Deleted rows are kept, marked as such (`soft_delete`).
    pub keeps_deleted: bool,
    /// Where the rows lie. Empty only for a partitioned table without partitions.
    pub leaves: Vec<Leaf>,
    /// Sum over the leaves.
    pub rows_estimated: f64,
    /// Sum over the leaves.
    pub bytes: u64,
}

impl TableInfo {
    /// `schema.table`, quoted where needed: for messages.
    pub fn display(&self) -> String {
        for_table(&self.schema, &self.name)
    }

    /// `"schema"."table"`: for SQL.
    pub fn sql_name(&self) -> String {
        sql_name(&self.schema, &self.name)
    }

    /// Names of the key columns.
    pub fn key_names(&self) -> Option<Vec<&str>> {
        let key = self.key.as_ref()?;
        key.iter().map(|i| self.columns.get(*i).map(|c| c.name.as_str())).collect()
    }

    /// Hex digest of what the rows' meaning depends on: name, identity, key, and each column's
    /// number, name, type, generation and options, and the row filter. Sizes, files and statistics
    /// are not in it.
    pub fn fingerprint(&self) -> String {
        let mut digest = Digest::default();
        digest.text(&self.schema).text(&self.name);
        digest.number(self.identity.as_char() as i64).number(self.columns.len() as i64);
        for c in &self.columns {
            digest.number(c.attnum.into()).text(&c.name);
            digest.number(c.type_oid.into()).number(c.typmod.into()).text(&c.type_name);
            digest.number(c.generated as i64);
            // Nothing for a column that is held as it is: lakes of before know no options.
            let options = c.options.name();
            if !options.is_empty() {
                digest.text(&options);
            }
        }
        match self.key_names() {
            None => digest.number(-1),
            Some(names) => {
                digest.number(names.len() as i64);
                names.iter().fold(&mut digest, |digest, name| digest.text(name))
            }
        };
        if let Some(filter) = &self.row_filter {
            digest.text(filter);
        }
        if self.keeps_deleted {
            digest.text("soft_delete");
        }
        digest.hex()
    }

    /// As [`TableInfo::fingerprint`], with what else may decide whether the table can be replicated:
    /// which partitions are logged, and how.
    pub fn shape(&self) -> String {
        if self.kind == TableKind::Plain {
            return self.fingerprint();
        }
        let mut digest = Digest::default();
        digest.text(&self.fingerprint());
        for leaf in &self.leaves {
            digest.number(leaf.oid.into()).number(leaf.identity.as_char() as i64);
            for name in leaf.key.iter().flatten() {
                digest.text(name);
            }
        }
        digest.hex()
    }
}

/// A digest of a list of facts; lengths go in, so that no two lists run into each other.
#[derive(Default)]
pub(crate) struct Digest(Xxh3);

impl Digest {
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
        self
    }

    pub(crate) fn number(&mut self, number: i64) -> &mut Self {
        self.0.update(&number.to_le_bytes());
        self
    }

    pub(crate) fn hex(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

/// What the patterns chose, and what was found on the way.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The tables by schema and name.
    pub tables: Vec<TableInfo>,
    /// Those of them that are named, not just matched by a glob: without these nothing begins.
    pub named: BTreeSet<u32>,
    /// Errors of the choice, and warnings such as tables left out by a glob.
    pub findings: Vec<Finding>,
}

/// The tables that `patterns` choose (see the module `pattern`), with everything that was found.
///
/// Reads catalogs only; takes a share lock on each table for the moment in which its size is read.
///
/// # Errors
/// The syntax of a pattern ([`Kind::Config`]) and failing queries. Tables that can't be replicated
/// are findings, not errors.
pub async fn select_tables(
    client: &Client,
    patterns: &[String],
    treatments: &Treatments,
    server_version: u32,
) -> Result<Selection> {
    let patterns = pattern::parse(patterns)?;
    let relations = query::relations(client).await?;
    let tree = query::partition_tree(client, server_version).await?;
    let mut resolved = resolve::resolve(&patterns, &relations, &tree);
    let mut tables = query::describe(client, server_version, &resolved.tables).await?;
    resolved.findings.extend(treatments.apply(&mut tables));
    query::row_filters(client, server_version, treatments.publication(), &mut tables).await?;
    for table in tables.iter().filter(|t| t.columns.is_empty()) {
        resolved.findings.push(Finding::error(
            "no-columns",
            table.display(),
            "has no columns, or was dropped while it was being read",
            "exclude it from the tables",
        ));
    }
    let literals: HashSet<_> =
        patterns.iter().filter(|p| !p.exclude).filter_map(pattern::Pattern::literal).collect();
    let is_named = |t: &&TableInfo| literals.contains(&(t.schema.clone(), t.name.clone()));
    let named = tables.iter().filter(is_named).map(|table| table.oid).collect();
    Ok(Selection { tables, named, findings: resolved.findings })
}

/// A text for each table that `patterns` choose, by oid, which is another one after whatever may
/// change what its rows are or where they lie. Cheap enough to be asked every few seconds.
///
/// # Errors
/// As [`select_tables`].
pub async fn signatures(
    client: &Client,
    patterns: &[String],
    server_version: u32,
) -> Result<Vec<(u32, String)>> {
    let patterns = pattern::parse(patterns)?;
    let relations = query::relations(client).await?;
    let tree = query::partition_tree(client, server_version).await?;
    let resolved = resolve::resolve(&patterns, &relations, &tree);
    query::signatures(client, &resolved.tables).await
}

/// As [`select_tables`], for callers that need every table to be sound.
///
/// # Errors
/// [`Kind::Check`] with every table that can't be replicated and what to do about it.
pub async fn load_tables(
    client: &Client,
    patterns: &[String],
    treatments: &Treatments,
    server_version: u32,
) -> Result<Vec<TableInfo>> {
    let selection = select_tables(client, patterns, treatments, server_version).await?;
    match as_error(&selection.findings) {
        Some(error) => Err(error),
        None => Ok(selection.tables),
    }
}

/// The name in double quotes, as SQL takes any name.
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The text as an SQL string; needs `standard_conforming_strings`, which is set.
pub fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// `"schema"."table"`.
pub fn sql_name(schema: &str, name: &str) -> String {
    format!("{}.{}", quote_ident(schema), quote_ident(name))
}

/// Turns a client error into ours: a cut connection or an overloaded server is transient.
pub(crate) fn sql_error(doing: &str, error: tokio_postgres::Error) -> Error {
    let code = error.code().map(|c| c.code().to_owned());
    let transient = match &code {
        Some(code) => {
            ["08", "53", "57P", "40"].iter().any(|class| code.starts_with(class)) || code == "55P03"
        }
        None => {
            let io = std::error::Error::source(&error).is_some_and(|e| e.is::<std::io::Error>());
            error.is_closed() || io
        }
    };
    let kind = if transient { Kind::Transient } else { Kind::Failed };
    let message = match code {
        Some(code) => format!("{doing} failed (SQLSTATE {code})"),
        None => format!("{doing} failed"),
    };
    Error::new(kind, message).because(error)
}

/// Column `i` of a row, by position.
pub(crate) fn field<'a, T: FromSql<'a>>(row: &'a tokio_postgres::Row, i: usize) -> Result<T> {
    row.try_get(i).map_err(|error| sql_error("reading a catalog row", error))
}

/// The first character of a text, `\0` of an empty one.
pub(crate) fn letter(text: &str) -> char {
    text.chars().next().unwrap_or('\0')
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn column(attnum: i16, name: &str, type_oid: u32) -> ColumnInfo {
        ColumnInfo {
            attnum,
            name: name.into(),
            type_oid,
            typmod: -1,
            type_name: "integer".into(),
            not_null: attnum == 1,
            generated: '\0',
            missing: None,
            missing_differs: false,
            options: ColumnOptions::default(),
        }
    }

    pub(crate) fn table(name: &str) -> TableInfo {
        TableInfo {
            oid: 16400,
            schema: "public".into(),
            name: name.into(),
            kind: TableKind::Plain,
            identity: ReplicaIdentity::Default,
            columns: vec![column(1, "id", 23), column(2, "v", 25)],
            columns_version: String::new(),
            key: Some(vec![0]),
            key_deferrable: false,
            row_filter: None,
            keeps_deleted: false,
            leaves: vec![Leaf {
                oid: 16400,
                schema: "public".into(),
                name: name.into(),
                relfilenode: 16400,
                pages: 1,
                bytes: 8192,
                rows_estimated: 10.0,
                identity: ReplicaIdentity::Default,
                key: Some(vec!["id".into()]),
                access_method: "heap".into(),
                attached: false,
                link: 0,
            }],
            rows_estimated: 10.0,
            bytes: 8192,
        }
    }

    #[test]
    fn the_fingerprint_stays_the_same_between_releases() {
        // A change here makes every running pipeline believe that its tables changed.
        assert_eq!(table("t").fingerprint(), table("t").fingerprint());
        assert_eq!(table("t").fingerprint(), "2ff729ce81b4427a09b93e6462b9cf0a");
    }

    #[test]
    fn a_rewrite_or_growth_is_no_schema_change() {
        let mut grown = table("t");
        grown.bytes = 1 << 30;
        grown.rows_estimated = 1e9;
        grown.leaves[0].relfilenode = 99;
        grown.leaves[0].pages = 1 << 20;
        grown.columns[1].missing = Some("x".into());
        assert_eq!(grown.fingerprint(), table("t").fingerprint());
    }

    #[test]
    fn every_schema_fact_shows_in_the_fingerprint() {
        type Change = fn(&mut TableInfo);
        let changes: [Change; 15] = [
            |t| t.name = "u".into(),
            |t| t.schema = "s".into(),
            |t| t.identity = ReplicaIdentity::Full,
            |t| t.key = None,
            |t| t.key = Some(vec![]),
            |t| t.key = Some(vec![0, 1]),
            |t| t.columns[1].attnum = 3,
            |t| t.columns[1].name = "w".into(),
            |t| t.columns[1].type_oid = 1043,
            |t| t.columns[1].typmod = 14,
            |t| t.columns[1].options.as_text = true,
            |t| t.columns[1].options.left_out = true,
            |t| t.row_filter = Some("(id > 1)".into()),
            |t| t.keeps_deleted = true,
            |t| drop(t.columns.pop()),
        ];
        let mut seen = std::collections::HashSet::from([table("t").fingerprint()]);
        for (i, change) in changes.iter().enumerate() {
            let mut changed = table("t");
            change(&mut changed);
            assert!(seen.insert(changed.fingerprint()), "change {i}");
        }
    }

    #[test]
    fn names_do_not_run_into_each_other() {
        let (mut a, mut b) = (table("t"), table("t"));
        (a.schema, a.name) = ("ab".into(), "c".into());
        (b.schema, b.name) = ("a".into(), "bc".into());
        assert_ne!(a.fingerprint(), b.fingerprint());
    }

    #[test]
    fn quotes_in_names_and_texts_are_doubled() {
        assert_eq!(quote_ident("a\"b"), "\"a\"\"b\"");
        assert_eq!(quote_literal("it's"), "'it''s'");
    }
}

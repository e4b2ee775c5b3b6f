//! The publication: which changes of which tables the server sends.
//!
//! It must exist before the slot does: a slot decodes with the catalog of each change's time, and
//! finds no publication in a past that had none. One that exists already is used as it is, after
//! [`problems`] has shown that it sends every change of every selected table; what it leaves out
//! by filters and column lists goes into a digest that binds each checkpoint.

use std::collections::HashMap;

use crate::source::client::Client;
use serde::Deserialize;

use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::source::catalog::{
    Digest, TableInfo, TableKind, field, quote_ident, quote_literal, sql_error,
};
use crate::source::check::{Finding, as_error};

/// What the comment of a publication begins with that a run made; the run follows.
const MADE_BY: &str = "made by Tidegate for its run ";

/// Which kinds of change are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// INSERT.
    pub insert: bool,
    /// UPDATE.
    pub update: bool,
    /// DELETE.
    pub delete: bool,
    /// TRUNCATE.
    pub truncate: bool,
}

/// A table as it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedTable {
    /// Its oid.
    pub oid: u32,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// The column list, by `attnum`; `None` is every column (PostgreSQL 15 and later).
    pub columns: Option<Vec<i16>>,
    /// The row filter as an SQL expression (PostgreSQL 15 and later).
    pub row_filter: Option<String>,
    /// Oid and version of the catalog rows by which it is published: others once it was taken out
    /// and put back. Empty under FOR ALL TABLES.
    pub membership: String,
}

/// A publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationInfo {
    /// The name.
    pub name: String,
    /// `pg_publication.oid`: another one once it was dropped and made again.
    pub oid: u32,
    /// Version (`xmin`) of its catalog row: another one once its options, owner or name changed.
    pub row_version: String,
    /// Made by this call of [`ensure_publication`], or by one whose answer its run did not live to
    /// see.
    pub created: bool,
    /// The run that made it, as its comment says.
    pub made_by: Option<String>,
    /// FOR ALL TABLES.
    pub all_tables: bool,
    /// Partitions' changes are sent under the name of their root.
    pub via_root: bool,
    /// Stored generated columns are sent (PostgreSQL 18 and later).
    pub generated_stored: bool,
    /// What is sent.
    pub actions: Actions,
    /// Every table published, by whatever way it came in.
    pub tables: Vec<PublishedTable>,
    /// As [`PublicationInfo::contract`] gives it; from
    /// [`ensure_publication`] alone, empty otherwise.
    pub contract_digest: String,
}

impl PublicationInfo {
    /// How `table` is published.
    pub fn table(&self, oid: u32) -> Option<&PublishedTable> {
        self.tables.iter().find(|t| t.oid == oid)
    }

    /// What binds the stream of every table to this publication, as `EFFECT.OID.VERSION`: a digest of
    /// what bends all that is sent (actions, roots, generated columns), the publication's oid, and
    /// the version of its catalog row. What binds a table by itself, with its filter and column list,
    /// is its [`membership`](PublishedTable::membership).
    ///
    /// The catalog keeps no history, but a row that was changed, or removed and added, has another
    /// version even when it says the same: so a publication that was altered and put back while
    /// nobody looked is told from one that was not touched. It can't be told what it left out, nor
    /// from which moment on; nor is an owner's change told from an option's.
    pub fn contract(&self) -> String {
        format!("{}.{}.{}", self.digest(), self.oid, self.row_version)
    }

    /// The membership of the table with this oid; empty where it has none of its own.
    pub fn membership(&self, oid: u32) -> &str {
        self.table(oid).map_or("", |table| &table.membership)
    }

    fn digest(&self) -> String {
        let mut digest = Digest::default();
        let a = self.actions;
        for fact in [a.insert, a.update, a.delete, a.truncate, self.via_root, self.generated_stored]
        {
            digest.number(fact.into());
        }
        digest.hex()
    }
}

/// What is wrong with `publication` for replicating `tables`, with the SQL that mends it.
pub fn problems(publication: &PublicationInfo, tables: &[TableInfo]) -> Vec<Finding> {
    let name = quote_ident(&publication.name);
    let subject = format!("publication {}", publication.name);
    let mut findings = Vec::new();
    let a = publication.actions;
    let silent: Vec<&str> = [
        (a.insert, "INSERT"),
        (a.update, "UPDATE"),
        (a.delete, "DELETE"),
        (a.truncate, "TRUNCATE"),
    ]
    .iter()
    .filter_map(|(sent, word)| (!sent).then_some(*word))
    .collect();
    if !silent.is_empty() {
        findings.push(Finding::error(
            "publication-actions",
            &subject,
            format!("does not send {}, which would be lost in silence", silent.join(", ")),
            format!("ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');"),
        ));
    }
    if !publication.via_root && tables.iter().any(|t| t.kind == TableKind::Partitioned) {
        findings.push(Finding::error(
            "publication-via-root",
            &subject,
            "sends partitions under their own names, but a partitioned table is selected",
            format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"),
        ));
    }
    let by_oid: HashMap<u32, &PublishedTable> =
        publication.tables.iter().map(|t| (t.oid, t)).collect();
    let mut uncovered = Vec::new();
    for table in tables {
        match by_oid.get(&table.oid) {
            Some(published) => findings.extend(bent(&name, published, table)),
            // Without via_root the leaves stand there in place of the root: said above already.
            None if !publication.via_root && table.kind == TableKind::Partitioned => {}
            None => uncovered.push(table),
        }
    }
    if !uncovered.is_empty() {
        let shown: Vec<String> = uncovered.iter().take(10).map(|t| t.display()).collect();
        let more = match uncovered.len() - shown.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        findings.push(Finding::error(
            "publication-coverage",
            &subject,
            format!("does not publish {}{more}", shown.join(", ")),
            format!("ALTER PUBLICATION {name} ADD TABLE {};", table_list(uncovered)),
        ));
    }
    findings
}

fn bent(publication: &str, published: &PublishedTable, table: &TableInfo) -> Vec<Finding> {
    let mut findings = Vec::new();
    let whole = format!(
        "ALTER PUBLICATION {publication} DROP TABLE {name}; ALTER PUBLICATION {publication} ADD \
         TABLE ONLY {name};",
        name = table.sql_name()
    );
    if let Some(list) = &published.columns {
        let key = table.key.iter().flatten().filter_map(|i| table.columns.get(*i));
        let lacking: Vec<&str> =
            key.filter(|c| !list.contains(&c.attnum)).map(|c| c.name.as_str()).collect();
        let unsent: Vec<&str> = table
            .columns
            .iter()
            .filter(|c| !c.is_left_out() && !list.contains(&c.attnum))
            .map(|c| c.name.as_str())
            .collect();
        if !lacking.is_empty() {
            findings.push(Finding::error(
                "publication-column-list",
                table.display(),
                format!("its column list lacks the key column {}", lacking.join(", ")),
                whole.clone(),
            ));
        } else if !unsent.is_empty() {
            // The copy would have values that the stream never changes.
            findings.push(Finding::error(
                "publication-column-list",
                table.display(),
                format!(
                    "its column list leaves out {}, and the snapshot would not",
                    unsent.join(", ")
                ),
                whole.clone(),
            ));
        }
    }
    if let Some(filter) = &published.row_filter {
        findings.push(Finding::info(
            "publication-row-filter",
            table.display(),
            format!("only rows that satisfy {filter} are published, and only those are copied"),
            whole.clone(),
        ));
    }
    if published.row_filter != table.row_filter {
        // The copy would have rows that the stream never changes, or lack some that it does.
        findings.push(Finding::error(
            "publication-changing",
            table.display(),
            "has another row filter than a moment ago",
            "run again; a table that is followed needs a new generation for another filter \
             (`tidegate run --resnapshot`)",
        ));
    }
    findings
}

fn table_list<'a>(tables: impl IntoIterator<Item = &'a TableInfo>) -> String {
    // ONLY, as children by inheritance are tables of their own; it means nothing for partitions.
    let names: Vec<String> = tables.into_iter().map(|t| format!("ONLY {}", t.sql_name())).collect();
    names.join(", ")
}

/// The statement that makes the publication.
pub fn create_sql(name: &str, tables: &[TableInfo]) -> String {
    format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert, update, delete, truncate', \
         publish_via_partition_root = true)",
        quote_ident(name),
        table_list(tables)
    )
}

#[derive(Deserialize)]
struct PublicationRow {
    oid: serde_json::Value,
    puballtables: bool,
    pubinsert: bool,
    pubupdate: bool,
    pubdelete: bool,
    pubtruncate: bool,
    pubviaroot: bool,
    /// `n` or `s`, from 18.
    pubgencols: Option<String>,
}

/// The tables of a publication that sends partitions under their root's name, as
/// `pg_publication_tables` has them, without a lock on any (but on those with a row filter).
const VIA_ROOT: &str = "
    WITH member AS (
        SELECT c.oid FROM pg_catalog.pg_class c, pg_catalog.pg_publication p
        WHERE p.oid = $2::oid AND p.puballtables
        UNION SELECT r.prrelid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = $2::oid
        UNION SELECT c.oid FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace
        WHERE s.pnpubid = $2::oid)
    SELECT c.oid, n.nspname::text, c.relname::text, r.prattrs::int2[],
        CASE WHEN r.prqual IS NOT NULL AND s.oid IS NULL AND NOT p.puballtables
            THEN pg_catalog.pg_get_expr(r.prqual, r.prrelid) END,
        pg_catalog.concat_ws(',', r.oid || ':' || r.xmin::text, s.oid || ':' || s.xmin::text)
    FROM pg_catalog.pg_publication p, member m
    JOIN pg_catalog.pg_class c ON c.oid = m.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = $2::oid AND r.prrelid = c.oid
    LEFT JOIN pg_catalog.pg_publication_namespace s
        ON s.pnpubid = $2::oid AND s.pnnspid = c.relnamespace
    WHERE p.oid = $2::oid AND p.pubname = $1::text::name
      AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
      AND NOT (c.relispartition AND EXISTS (
        SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) above
        WHERE above.relid <> c.oid AND above.relid IN (SELECT oid FROM member)))
    ORDER BY 2, 3";

/// The publication `name` of this database, or `None`.
///
/// # Errors
/// A failing query.
pub async fn publication_info(
    client: &Client,
    name: &str,
    server_version: u32,
) -> Result<Option<PublicationInfo>> {
    let failed = |e| sql_error(&format!("looking at publication {name}"), e);
    // As JSON, since the columns differ from 13 to 18.
    let sql = "SELECT pg_catalog.to_jsonb(p)::text, p.xmin::text,
            pg_catalog.obj_description(p.oid, 'pg_publication')
        FROM pg_catalog.pg_publication p WHERE p.pubname = $1::text::name";
    let Some(row) = client.query_opt(sql, &[&name]).await.map_err(failed)? else {
        return Ok(None);
    };
    let row_version: String = field(&row, 1)?;
    let comment: Option<String> = field(&row, 2)?;
    let row: PublicationRow = serde_json::from_str(field(&row, 0)?)
        .map_err(|e| Error::failed("pg_publication has an unknown shape").because(e))?;
    let oid = row.oid.to_string().replace('"', "");
    let oid: u32 =
        oid.parse().map_err(|e| Error::failed("a publication's oid is no number").because(e))?;
    // The view resolves FOR ALL TABLES, schemas and roots. Its filter is the one in force; its
    // column names are those of every column where there is no list, so the list itself is taken.
    let (list, filter, by_schema) = if server_version >= 150_000 {
        let by_schema = "(SELECT s.oid || ':' || s.xmin::text
            FROM pg_catalog.pg_publication_namespace s
            WHERE s.pnpubid = $2::oid AND s.pnnspid = n.oid)";
        ("r.prattrs::int2[]", "t.rowfilter", by_schema)
    } else {
        ("NULL::int2[]", "NULL::text", "NULL::text")
    };
    let view = format!(
        "SELECT c.oid, t.schemaname::text, t.tablename::text, {list}, {filter},
            pg_catalog.concat_ws(',', r.oid || ':' || r.xmin::text, {by_schema})
        FROM pg_catalog.pg_publication_tables t
        JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
        LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = $2::oid AND r.prrelid = c.oid
        WHERE t.pubname = $1::text::name ORDER BY 2, 3"
    );
    // From 16 on the view locks every table in it, and waits for whoever holds one alone. One that
    // sends partitions under their own names is refused, so what the view resolves for it may wait.
    let sql = if server_version >= 150_000 && row.pubviaroot { VIA_ROOT } else { &*view };
    let rows = client.query(sql, &[&name, &oid]).await.map_err(failed)?;
    let mut tables = Vec::with_capacity(rows.len());
    for row in &rows {
        tables.push(PublishedTable {
            oid: field(row, 0)?,
            schema: field(row, 1)?,
            name: field(row, 2)?,
            columns: field(row, 3)?,
            row_filter: field(row, 4)?,
            membership: field(row, 5)?,
        });
    }
    Ok(Some(PublicationInfo {
        name: name.to_owned(),
        oid,
        row_version,
        created: false,
        made_by: comment.and_then(|text| text.strip_prefix(MADE_BY).map(str::to_owned)),
        all_tables: row.puballtables,
        via_root: row.pubviaroot,
        generated_stored: row.pubgencols.as_deref() == Some("s"),
        actions: Actions {
            insert: row.pubinsert,
            update: row.pubupdate,
            delete: row.pubdelete,
            truncate: row.pubtruncate,
        },
        tables,
        contract_digest: String::new(),
    }))
}

/// The publication, made if it is not there, proven to send every change of `tables`.
///
/// `ours`: an earlier run made it, so tables selected since may be added to it. `run` stands in the
/// comment of one that is made, in the transaction that makes it: who dies before the answer leaves
/// no publication of which nobody knows whose it is.
///
/// # Errors
/// An existing publication that does not fit ([`Kind::Check`], with the SQL that mends it),
/// missing rights, a failing query.
pub async fn ensure_publication(
    client: &Client,
    name: &str,
    tables: &[TableInfo],
    ours: bool,
    run: &str,
    server_version: u32,
) -> Result<PublicationInfo> {
    let mut publication = publication_info(client, name, server_version).await?;
    let mut made = false;
    if publication.is_none() {
        let create = create_sql(name, tables);
        let comment = quote_literal(&format!("{MADE_BY}{run}"));
        let sql = format!("{create}; COMMENT ON PUBLICATION {} IS {comment}", quote_ident(name));
        match with_locks(client, &sql).await {
            Ok(()) => made = true,
            // Somebody else was faster: theirs is looked at like any other.
            Err(error) if error.code().is_some_and(|c| c.code() == "42710") => {}
            Err(error) => return Err(refused("creating", name, error)),
        }
        failpoint::at("publication.made")?;
        publication = publication_info(client, name, server_version).await?;
    }
    let gone = || Error::transient(format!("publication {name} was dropped a moment ago"));
    let mut publication = publication.ok_or_else(gone)?;
    let created = publication.made_by.as_deref() == Some(run);
    if (ours || created) && !made && !publication.all_tables {
        let new: Vec<TableInfo> =
            tables.iter().filter(|t| publication.table(t.oid).is_none()).cloned().collect();
        if !new.is_empty() && publication.via_root {
            add_tables(client, name, &new).await?;
            publication = publication_info(client, name, server_version).await?.ok_or_else(gone)?;
        }
    }
    publication.created = created;
    publication.contract_digest = publication.contract();
    match as_error(&problems(&publication, tables)) {
        Some(error) => Err(dropped(client, tables).await?.unwrap_or(error)),
        None => Ok(publication),
    }
}

/// The error that says so where one of the tables was dropped since they were looked at, be there
/// another one of its name or not.
async fn dropped(client: &Client, tables: &[TableInfo]) -> Result<Option<Error>> {
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let sql = "SELECT oid FROM pg_catalog.pg_class WHERE oid = ANY($1)";
    let rows = client.query(sql, &[&oids]).await;
    let rows = rows.map_err(|e| sql_error("looking at the tables of a publication", e))?;
    let there: Vec<u32> = rows.iter().map(|row| field(row, 0)).collect::<Result<_>>()?;
    let gone = tables.iter().find(|table| !there.contains(&table.oid));
    Ok(gone.map(|table| {
        Error::transient(format!("{}: was dropped a moment ago", table.display()))
            .next("the tables are looked at again by themselves")
    }))
}

/// Runs a statement that takes locks on tables. Who waits for one that somebody holds for long
/// makes others wait behind it, so it is given up after a while, by the server itself: a statement
/// of a connection that we gave up would still be carried out.
async fn with_locks(client: &Client, sql: &str) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&format!("SET LOCAL lock_timeout = '20s'; {sql}")).await
}

/// Adds tables to a publication. Changes made to them before this are not sent.
///
/// # Errors
/// Missing rights, a failing query.
pub async fn add_tables(client: &Client, name: &str, tables: &[TableInfo]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let sql = format!("ALTER PUBLICATION {} ADD TABLE {}", quote_ident(name), table_list(tables));
    with_locks(client, &sql).await.map_err(|error| refused("extending", name, error))
}

/// Drops the publication if it is there. Drop its slots first.
///
/// # Errors
/// Missing rights, a failing query.
pub async fn drop_publication(client: &Client, name: &str) -> Result<()> {
    let sql = format!("DROP PUBLICATION IF EXISTS {}", quote_ident(name));
    with_locks(client, &sql).await.map_err(|error| refused("dropping", name, error))
}

/// Whether the server refuses a statement because it names a table that is no more, or is none now.
pub fn is_gone(sqlstate: &str) -> bool {
    ["42P01", "3F000", "42809"].contains(&sqlstate)
}

fn refused(doing: &str, name: &str, error: tokio_postgres::Error) -> Error {
    match error.code().map(|c| c.code()) {
        Some(code) if is_gone(code) => {
            Error::transient(format!("{doing} publication {name}: a table was dropped or renamed"))
                .because(error)
                .next("the tables are looked at again by themselves")
        }
        Some("42501") => {
            Error::new(Kind::Check, format!("{doing} publication {name} is not allowed"))
                .because(error)
                .next(
                    "let the owner of the tables, who needs CREATE on the database, make the \
                 publication; `tidegate check` shows the SQL",
                )
        }
        Some("25006") => {
            Error::new(Kind::Check, format!("{doing} publication {name} is not possible"))
                .because(error)
                .next("make the publication on the primary; it reaches the standby by itself")
        }
        Some("55P03") => sql_error(&format!("{doing} publication {name}"), error).next(
            "it is tried again; another session holds a lock on one of the tables (pg_locks)",
        ),
        // A table, its schema or its membership is not as it was a moment ago.
        Some("42P01" | "3F000" | "42710") => {
            Error::transient(format!("{doing} publication {name}: a table changed meanwhile"))
                .because(error)
                .next("the tables are looked at again by themselves")
        }
        _ => sql_error(&format!("{doing} publication {name}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::catalog::tests::table;

    fn publication() -> PublicationInfo {
        let published = PublishedTable {
            oid: 16400,
            schema: "public".into(),
            name: "t".into(),
            columns: None,
            row_filter: None,
            membership: "16410:750".into(),
        };
        PublicationInfo {
            name: "p".into(),
            oid: 16409,
            row_version: "750".into(),
            created: false,
            made_by: None,
            all_tables: false,
            via_root: true,
            generated_stored: false,
            actions: Actions { insert: true, update: true, delete: true, truncate: true },
            tables: vec![published],
            contract_digest: String::new(),
        }
    }

    fn ids(publication: &PublicationInfo, tables: &[TableInfo]) -> Vec<String> {
        problems(publication, tables).into_iter().map(|f| f.id).collect()
    }

    #[test]
    fn changes_that_would_be_lost_in_silence_are_errors() {
        let tables = [table("t")];
        assert!(ids(&publication(), &tables).is_empty());
        let mut half = publication();
        half.actions.truncate = false;
        assert_eq!(ids(&half, &tables), ["publication-actions"]);
        let mut other = publication();
        other.tables.clear();
        assert_eq!(ids(&other, &tables), ["publication-coverage"]);
        let mut narrow = publication();
        narrow.tables[0].columns = Some(vec![2]);
        assert_eq!(problems(&narrow, &tables)[0].severity, crate::source::check::Severity::Error);
        narrow.tables[0].columns = Some(vec![1]);
        assert_eq!(problems(&narrow, &tables)[0].severity, crate::source::check::Severity::Error);
        let mut treated = tables;
        treated[0].columns[1].options.left_out = true;
        assert!(ids(&narrow, &treated).is_empty());
    }

    #[test]
    fn a_partitioned_table_needs_its_roots_name() {
        let mut events = table("events");
        events.kind = TableKind::Partitioned;
        let mut leaves = publication();
        leaves.via_root = false;
        leaves.tables.clear();
        assert_eq!(ids(&leaves, &[events]), ["publication-via-root"]);
    }

    #[test]
    fn a_publication_put_back_has_another_contract() {
        let before = publication().contract();
        let changed = |change: &dyn Fn(&mut PublicationInfo)| {
            let mut other = publication();
            change(&mut other);
            assert_ne!(other.contract(), before);
        };
        changed(&|p| p.oid = 1);
        changed(&|p| p.row_version = "751".into());
        changed(&|p| p.actions.truncate = false);
    }

    #[test]
    fn names_are_quoted_and_children_stay_out() {
        let sql = create_sql("p\"q", &[table("Odd.Name")]);
        assert!(sql.starts_with(
            "CREATE PUBLICATION \"p\"\"q\" FOR TABLE ONLY \"public\".\"Odd.Name\" WITH ("
        ));
    }
}

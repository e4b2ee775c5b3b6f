//! The catalog queries, for PostgreSQL 13 to 18: a fixed number of them, whatever the number of
//! tables.
//!
//! They do not share a snapshot, as the caller may be in a transaction of its own; what changes in
//! between shows as an error here, or by its fingerprint later.

use std::collections::HashMap;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use xxhash_rust::xxh3::xxh3_64;

use super::resolve::{Chosen, PartitionTree, Relation};
use super::{
    ColumnInfo, Digest, Leaf, ReplicaIdentity, TableInfo, TableKind, field, for_table, letter,
    sql_error,
};
use crate::error::{Error, Result};

async fn rows(client: &Client, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
    client.query(sql, values).await.map_err(|e| sql_error("reading the catalog", e))
}

/// Everything a pattern could mean: user tables, and what users take for one.
pub(super) async fn relations(client: &Client) -> Result<Vec<Relation>> {
    let sql = "SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text,
            c.relpersistence::text, c.relreplident::text, c.relispartition,
            coalesce(a.amname::text, 'heap')
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
          AND n.nspname <> 'information_schema'
          AND (n.nspname !~ '^pg_' OR c.relpersistence = 't')
        ORDER BY 2, 3";
    let relation = |row: &Row| {
        Ok(Relation {
            oid: field(row, 0)?,
            schema: field(row, 1)?,
            name: field(row, 2)?,
            kind: letter(field(row, 3)?),
            persistence: letter(field(row, 4)?),
            identity: ReplicaIdentity::from_char(letter(field(row, 5)?)),
            is_partition: field(row, 6)?,
            access_method: field(row, 7)?,
        })
    };
    rows(client, sql, &[]).await?.iter().map(relation).collect()
}

/// Each partition's parent.
pub(super) async fn partition_tree(client: &Client, version: u32) -> Result<PartitionTree> {
    // A partition being detached is no longer seen through its root.
    let detaching = if version >= 140_000 { "AND NOT i.inhdetachpending" } else { "" };
    let sql = format!(
        "SELECT i.inhrelid, i.inhparent FROM pg_catalog.pg_inherits i
        JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
        WHERE c.relispartition AND c.relkind IN ('r', 'p', 'f') {detaching}"
    );
    let pair = |row: &Row| Ok((field(row, 0)?, field(row, 1)?));
    rows(client, &sql, &[]).await?.iter().map(pair).collect()
}

/// Reads columns, keys and sizes of the chosen tables.
pub(super) async fn describe(
    client: &Client,
    version: u32,
    chosen: &[Chosen],
) -> Result<Vec<TableInfo>> {
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let roots: Vec<u32> = chosen.iter().map(|c| c.table.oid).collect();
    let leaves: Vec<u32> = chosen.iter().flat_map(|c| &c.leaves).map(|l| l.oid).collect();
    let with_leaves: Vec<u32> = roots.iter().chain(&leaves).copied().collect();
    let mut columns = columns(client, version, &roots).await?;
    let missing = missing_values(client, &leaves).await?;
    let indexes = identity_indexes(client, &with_leaves).await?;
    let storage = storage(client, &leaves).await?;

    let mut tables = Vec::with_capacity(chosen.len());
    for Chosen { table, kind, leaves } in chosen {
        let Columns { list: mut own_columns, version } =
            columns.remove(&table.oid).unwrap_or_default();
        fill_missing(&mut own_columns, leaves, &missing);
        let leaves = leaves
            .iter()
            .map(|leaf| describe_leaf(leaf, &indexes, &storage))
            .collect::<Result<Vec<_>>>()?;
        let key_names = indexes.key(table.oid, table.identity);
        let key = match &key_names {
            None => None,
            Some(names) => Some(key_positions(table, names, &own_columns)?),
        };
        tables.push(TableInfo {
            oid: table.oid,
            schema: table.schema.clone(),
            name: table.name.clone(),
            kind: *kind,
            identity: table.identity,
            columns: own_columns,
            columns_version: version.hex(),
            key,
            key_deferrable: indexes.deferrable_primary_key(table.oid),
            row_filter: None,
            keeps_deleted: false,
            rows_estimated: leaves.iter().map(|l| l.rows_estimated).sum(),
            bytes: leaves.iter().map(|l| l.bytes).sum(),
            leaves,
        });
    }
    debug_assert!(tables.iter().all(|t| t.kind == TableKind::Partitioned || t.leaves.len() == 1));
    Ok(tables)
}

fn changed_meanwhile(relation: &Relation, what: &str) -> Error {
    let name = for_table(&relation.schema, &relation.name);
    Error::transient(format!("{name}: {what} changed while the catalog was being read"))
        .next("run again")
}

fn key_positions(table: &Relation, names: &[String], columns: &[ColumnInfo]) -> Result<Vec<usize>> {
    names
        .iter()
        .map(|name| columns.iter().position(|c| c.name == *name))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| changed_meanwhile(table, "its key"))
}

fn describe_leaf(
    leaf: &Relation,
    indexes: &Indexes,
    storage: &HashMap<u32, Storage>,
) -> Result<Leaf> {
    let storage = storage.get(&leaf.oid).ok_or_else(|| changed_meanwhile(leaf, "its storage"))?;
    Ok(Leaf {
        oid: leaf.oid,
        schema: leaf.schema.clone(),
        name: leaf.name.clone(),
        relfilenode: storage.relfilenode,
        pages: storage.pages,
        bytes: storage.bytes,
        rows_estimated: storage.rows_estimated,
        identity: leaf.identity,
        key: indexes.key(leaf.oid, leaf.identity),
        access_method: leaf.access_method.clone(),
        attached: storage.attached,
        link: storage.link,
    })
}

#[derive(Default)]
struct Columns {
    list: Vec<ColumnInfo>,
    version: Digest,
}

async fn columns(client: &Client, version: u32, tables: &[u32]) -> Result<HashMap<u32, Columns>> {
    // From 18 a NOT NULL can be NOT VALID: old rows may hold NULL.
    let not_null = if version >= 180_000 {
        "a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k
            WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND NOT k.convalidated
              AND a.attnum = ANY (k.conkey))"
    } else {
        "a.attnotnull"
    };
    let sql = format!(
        "SELECT a.attrelid, a.attnum, a.attname::text, a.atttypid, a.atttypmod,
            pg_catalog.format_type(a.atttypid, a.atttypmod), {not_null}, a.attgenerated::text,
            a.xmin::text
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attrelid, a.attnum"
    );
    let mut columns: HashMap<u32, Columns> = HashMap::with_capacity(tables.len());
    for row in &rows(client, &sql, &[&tables]).await? {
        let column = ColumnInfo {
            attnum: field(row, 1)?,
            name: field(row, 2)?,
            type_oid: field(row, 3)?,
            typmod: field(row, 4)?,
            type_name: field(row, 5)?,
            not_null: field(row, 6)?,
            generated: letter(field(row, 7)?),
            missing: None,
            missing_differs: false,
            options: Default::default(),
        };
        let of_table = columns.entry(field(row, 0)?).or_default();
        of_table.version.number(column.attnum.into()).text(field(row, 8)?);
        of_table.list.push(column);
    }
    Ok(columns)
}

/// Gives the tables the row filters that a publication has for them, if it is there.
pub(super) async fn row_filters(
    client: &Client,
    server_version: u32,
    publication: &str,
    tables: &mut [TableInfo],
) -> Result<()> {
    if server_version < 150_000 {
        return Ok(());
    }
    // Not by the view pg_publication_tables, which from 16 on locks every table in it: it would
    // wait for whoever holds one of them alone. A publication of the schema has no filters.
    let sql = "SELECT r.prrelid, pg_catalog.pg_get_expr(r.prqual, r.prrelid)
        FROM pg_catalog.pg_publication p
        JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
        WHERE p.pubname = $1::text::name AND r.prqual IS NOT NULL AND NOT p.puballtables
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
            WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)";
    let mut filters: HashMap<u32, String> = HashMap::new();
    for row in &rows(client, sql, &[&publication]).await? {
        filters.insert(field(row, 0)?, field(row, 1)?);
    }
    for table in tables {
        table.row_filter = filters.remove(&table.oid);
    }
    Ok(())
}

type MissingValues = HashMap<u32, HashMap<String, String>>;

/// Values of rows older than their column, by leaf and column name: a partitioned root has none
/// of its own, and its partitions may number their columns differently.
async fn missing_values(client: &Client, leaves: &[u32]) -> Result<MissingValues> {
    // attmissingval is an array of one; this yields its element just as the type prints it.
    let sql = "SELECT a.attrelid, a.attname::text, pg_catalog.array_to_string(a.attmissingval, '')
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
          AND a.atthasmissing AND a.attmissingval IS NOT NULL";
    let mut missing = MissingValues::new();
    for row in &rows(client, sql, &[&leaves]).await? {
        missing.entry(field(row, 0)?).or_default().insert(field(row, 1)?, field(row, 2)?);
    }
    Ok(missing)
}

fn fill_missing(columns: &mut [ColumnInfo], leaves: &[Relation], missing: &MissingValues) {
    for column in columns {
        let mut values = leaves.iter().filter_map(|leaf| missing.get(&leaf.oid)?.get(&column.name));
        // A partition made after the column has no missing value: it has no older rows.
        let Some(first) = values.next() else { continue };
        column.missing_differs = values.any(|other| other != first);
        column.missing = if column.missing_differs { None } else { Some(first.clone()) };
    }
}

struct Index {
    primary: bool,
    identity: bool,
    immediate: bool,
    columns: Vec<String>,
}

struct Indexes(HashMap<u32, Vec<Index>>);

impl Indexes {
    fn of(&self, table: u32) -> &[Index] {
        self.0.get(&table).map_or(&[], Vec::as_slice)
    }

    fn key(&self, table: u32, identity: ReplicaIdentity) -> Option<Vec<String>> {
        let index = self.of(table).iter().find(|index| {
            index.immediate
                && match identity {
                    ReplicaIdentity::Index => index.identity,
                    ReplicaIdentity::Default | ReplicaIdentity::Full => index.primary,
                    ReplicaIdentity::Nothing => false,
                }
        })?;
        Some(index.columns.clone())
    }

    fn deferrable_primary_key(&self, table: u32) -> bool {
        self.of(table).iter().any(|index| index.primary && !index.immediate)
    }
}

/// Primary keys and replica identity indexes, columns in index order, without INCLUDE columns.
async fn identity_indexes(client: &Client, tables: &[u32]) -> Result<Indexes> {
    let sql = "SELECT i.indrelid, i.indisprimary, i.indisreplident, i.indimmediate,
            ARRAY(SELECT a.attname::text
                FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                JOIN pg_catalog.pg_attribute a
                  ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                WHERE k.place <= i.indnkeyatts ORDER BY k.place)
        FROM pg_catalog.pg_index i
        WHERE i.indrelid = ANY ($1::oid[]) AND i.indisvalid
          AND (i.indisprimary OR i.indisreplident)";
    let mut indexes: HashMap<u32, Vec<Index>> = HashMap::new();
    for row in &rows(client, sql, &[&tables]).await? {
        indexes.entry(field(row, 0)?).or_default().push(Index {
            primary: field(row, 1)?,
            identity: field(row, 2)?,
            immediate: field(row, 3)?,
            columns: field(row, 4)?,
        });
    }
    Ok(Indexes(indexes))
}

struct Storage {
    relfilenode: u32,
    pages: u64,
    bytes: u64,
    rows_estimated: f64,
    attached: bool,
    link: u64,
}

/// What a block of rows holds when nothing was ever counted.
const ROWS_PER_UNKNOWN_PAGE: f64 = 64.0;

/// A number for the links by which a partition hangs on its root, never 0.
fn link(links: &str) -> u64 {
    if links.is_empty() { 0 } else { xxh3_64(links.as_bytes()).max(1) }
}

async fn storage(client: &Client, leaves: &[u32]) -> Result<HashMap<u32, Storage>> {
    // Asking for a size waits for whoever holds the table alone. Of such a one it is told what is
    // known, and never that it is empty.
    let sql = "SELECT c.oid, coalesce(pg_catalog.pg_relation_filenode(c.oid), 0::oid),
            CASE WHEN c.oid = ANY (held.oids) THEN greatest(c.relpages, 1)::int8
            ELSE coalesce(pg_catalog.pg_relation_size(c.oid), 0)
                / pg_catalog.current_setting('block_size')::int8 END,
            CASE WHEN c.oid = ANY (held.oids) THEN greatest(c.relpages, 1)
                * pg_catalog.current_setting('block_size')::int8
            ELSE coalesce(pg_catalog.pg_table_size(c.oid), 0) END, c.reltuples, c.relpages,
            coalesce(way.attached, false), coalesce(way.links, '')
        FROM pg_catalog.pg_class c
            LEFT JOIN LATERAL (
                WITH RECURSIVE up AS (
                    SELECT i.inhrelid AS member, i.inhparent, i.xmin AS link, 1 AS level
                    FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid
                    UNION ALL SELECT i.inhrelid, i.inhparent, i.xmin, up.level + 1 FROM up
                    JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.inhparent)
                SELECT pg_catalog.bool_or(
                        pg_catalog.age(up.link) <= pg_catalog.age(made.xmin)
                        -- ATTACH PARTITION writes the catalog row of every column anew, also right
                        -- after the table was made; CREATE TABLE … PARTITION OF leaves some as
                        -- they were first written, in the same command as those of the system
                        -- columns, which nothing ever changes. (A row with an xmax has lost its
                        -- command.)
                        AND NOT EXISTS (
                            SELECT FROM pg_catalog.pg_attribute first
                            JOIN pg_catalog.pg_attribute kept USING (attrelid)
                            WHERE first.attrelid = up.member AND first.attnum = -1
                              AND kept.attnum > 0 AND kept.xmin = first.xmin
                              AND kept.cmin = first.cmin AND kept.xmax = 0 AND first.xmax = 0)
                    ) AS attached,
                    pg_catalog.string_agg(up.inhparent || ':' || up.link, ' ' ORDER BY up.level)
                        AS links
                FROM up, pg_catalog.pg_attribute made
                WHERE made.attrelid = c.oid AND made.attnum = -1
            ) way ON c.relispartition,
            (SELECT ARRAY(SELECT l.relation FROM pg_catalog.pg_locks l
                WHERE l.mode = 'AccessExclusiveLock' AND l.granted AND l.relation IS NOT NULL
            ) AS oids) held
        WHERE c.oid = ANY ($1::oid[])";
    let mut storage = HashMap::with_capacity(leaves.len());
    for row in &rows(client, sql, &[&leaves]).await? {
        let (pages, bytes): (i64, i64) = (field(row, 2)?, field(row, 3)?);
        let (tuples, counted_pages): (f32, i32) = (field(row, 4)?, field(row, 5)?);
        let per_page = if counted_pages > 0 && tuples >= 0.0 {
            f64::from(tuples) / f64::from(counted_pages)
        } else {
            ROWS_PER_UNKNOWN_PAGE
        };
        let found = Storage {
            relfilenode: field(row, 1)?,
            pages: pages.unsigned_abs(),
            bytes: bytes.unsigned_abs(),
            rows_estimated: per_page * pages as f64,
            attached: field(row, 6)?,
            link: link(field(row, 7)?),
        };
        storage.insert(field(row, 0)?, found);
    }
    Ok(storage)
}

/// A text for each chosen table that is another one after whatever may change what its rows are or
/// where they lie. Takes no locks, reads no sizes.
pub(super) async fn signatures(client: &Client, chosen: &[Chosen]) -> Result<Vec<(u32, String)>> {
    let roots: Vec<u32> = chosen.iter().map(|c| c.table.oid).collect();
    let parts: Vec<u32> = chosen.iter().flat_map(|c| &c.leaves).map(|l| l.oid).collect();
    let sql = "SELECT c.oid, pg_catalog.concat_ws(' ', c.relnamespace, c.relname, c.relreplident,
            c.relpersistence,
            (SELECT pg_catalog.string_agg(a.attnum || ':' || a.xmin, ',' ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
            (SELECT pg_catalog.string_agg(i.indexrelid || ':' || i.indkey::text || ':'
                    || i.indisreplident || i.indimmediate || i.indisvalid,
                    ',' ORDER BY i.indexrelid)
                FROM pg_catalog.pg_index i
                WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)))
        FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1::oid[])";
    let mut texts: HashMap<u32, String> = HashMap::with_capacity(roots.len());
    for row in &rows(client, sql, &[&roots]).await? {
        texts.insert(field(row, 0)?, field(row, 1)?);
    }
    let sql = "SELECT c.oid, pg_catalog.concat_ws('/', c.relfilenode,
            (SELECT i.xmin FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid))
        FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1::oid[])";
    let mut files: HashMap<u32, String> = HashMap::with_capacity(parts.len());
    for row in &rows(client, sql, &[&parts]).await? {
        files.insert(field(row, 0)?, field(row, 1)?);
    }
    let signature = |Chosen { table, kind, leaves }: &Chosen| {
        let mut text = texts.get(&table.oid).cloned().unwrap_or_default();
        // A plain table's file changes with every TRUNCATE, which the stream brings.
        if *kind == TableKind::Partitioned {
            for leaf in leaves {
                let file = files.get(&leaf.oid).map(String::as_str).unwrap_or_default();
                text.push_str(&format!(" {}/{file}", leaf.oid));
            }
        }
        (table.oid, text)
    };
    Ok(chosen.iter().map(signature).collect())
}

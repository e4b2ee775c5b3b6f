//! What `check` asks the server for.

use std::collections::HashMap;

use crate::source::client::Client;

use super::CheckRequest;
use crate::error::Result;
use crate::source::catalog::{Selection, ServerInfo, TableInfo, field, select_tables, sql_error};
use crate::source::slot::{PublicationInfo, SlotInfo, publication_info, slot_info};
use crate::source::types::TypeCatalog;

/// The role's rights on one table or partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRights {
    /// USAGE on the schema.
    pub usage: bool,
    /// SELECT on the whole table.
    pub select: bool,
    /// Columns without SELECT, where the table as a whole has none.
    pub unreadable: Vec<String>,
    /// Owns the table, or has the owner's rights.
    pub owner: bool,
    /// The owner's name.
    pub owner_name: String,
    /// Row level security applies to the role.
    pub row_security: bool,
}

/// A transaction that slot creation will have to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `pid 123 (user x, state)`, or a prepared transaction's name.
    pub who: String,
    /// Seconds since it began.
    pub age_s: i64,
    /// The SQL that ends it.
    pub fix: String,
}

/// Everything the rules look at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The server.
    pub server: ServerInfo,
    /// What the patterns choose.
    pub selection: Selection,
    /// The types of the database.
    pub types: TypeCatalog,
    /// The publication, if it is there.
    pub publication: Option<PublicationInfo>,
    /// The slot, if it is there.
    pub slot: Option<SlotInfo>,
    /// By table and leaf.
    pub rights: HashMap<u32, TableRights>,
    /// Long write transactions, oldest first.
    pub holders: Vec<Holder>,
}

impl Facts {
    pub(super) async fn gather(client: &Client, request: &CheckRequest<'_>) -> Result<Facts> {
        let server = match request.server {
            Some(server) => server.clone(),
            None => ServerInfo::load(client).await?,
        };
        let selection =
            select_tables(client, request.tables, request.treatments, server.version).await?;
        let types = TypeCatalog::load(client).await?;
        let publication = publication_info(client, request.publication, server.version).await?;
        let slot = slot_info(client, request.slot).await?;
        let rights = rights(client, &selection.tables).await?;
        let holders = if server.in_recovery { Vec::new() } else { holders(client).await? };
        Ok(Facts { server, selection, types, publication, slot, rights, holders })
    }
}

async fn rights(client: &Client, tables: &[TableInfo]) -> Result<HashMap<u32, TableRights>> {
    let mut oids: Vec<u32> =
        tables.iter().flat_map(|t| t.leaves.iter().map(|l| l.oid).chain([t.oid])).collect();
    oids.sort_unstable();
    oids.dedup();
    let sql = "SELECT c.oid, pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'),
            coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), false),
            CASE WHEN pg_catalog.has_table_privilege(c.oid, 'SELECT') THEN '{}'::text[]
                ELSE ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                      AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')
                    ORDER BY a.attnum) END,
            pg_catalog.pg_has_role(c.relowner, 'USAGE'),
            pg_catalog.pg_get_userbyid(c.relowner)::text,
            pg_catalog.row_security_active(c.oid)
        FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1::oid[])";
    let rows = client.query(sql, &[&oids]).await;
    let rows = rows.map_err(|e| sql_error("looking at the rights on the tables", e))?;
    rows.iter()
        .map(|row| {
            let rights = TableRights {
                usage: field(row, 1)?,
                select: field(row, 2)?,
                unreadable: field(row, 3)?,
                owner: field(row, 4)?,
                owner_name: field(row, 5)?,
                row_security: field(row, 6)?,
            };
            Ok((field(row, 0)?, rights))
        })
        .collect()
}

/// Transactions that wrote and are older than this hold up slot creation noticeably.
const LONG_SECONDS: i64 = 5;

async fn holders(client: &Client) -> Result<Vec<Holder>> {
    // Of any database: the slot waits for every transaction id that is open in the cluster.
    let sql = "SELECT 'pid ' || pid || ' (' || coalesce(usename::text, 'unknown') || ', '
                || coalesce(nullif(application_name, '') || ', ', '')
                || coalesce(state, 'unknown') || ')',
            extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::int8 AS age,
            'SELECT pg_terminate_backend(' || pid || ');'
        FROM pg_catalog.pg_stat_activity
        WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
          AND xact_start < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1)
        UNION ALL
        SELECT 'prepared transaction ' || pg_catalog.quote_literal(gid) || ' of ' || owner::text
                || ' in database ' || database::text,
            extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::int8,
            'COMMIT PREPARED ' || pg_catalog.quote_literal(gid) || '; or ROLLBACK PREPARED '
                || pg_catalog.quote_literal(gid) || ';'
        FROM pg_catalog.pg_prepared_xacts
        WHERE prepared < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1)
        ORDER BY age DESC LIMIT 20";
    let rows = client.query(sql, &[&(LONG_SECONDS as f64)]).await;
    let rows = rows.map_err(|e| sql_error("looking for long transactions", e))?;
    rows.iter()
        .map(|row| Ok(Holder { who: field(row, 0)?, age_s: field(row, 1)?, fix: field(row, 2)? }))
        .collect()
}

//! Who the server is and what it allows: identity, limits, the role's rights, its clock.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::source::client::Client;

use super::{field, sql_error};
use crate::error::{Error, Result};
use crate::position::Lsn;

/// The role of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// SUPERUSER.
    pub superuser: bool,
    /// May replicate: REPLICATION, SUPERUSER, or a managed service's role for it
    /// (`rds_replication`).
    pub replication: bool,
    /// BYPASSRLS or SUPERUSER.
    pub bypass_rls: bool,
    /// May create publications here: CREATE on the database.
    pub create_in_database: bool,
}

/// What a server says of itself over SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// As in `150018` for 15.18.
    pub version: u32,
    /// The version in words.
    pub version_text: String,
    /// `None` where the role may not ask: then IDENTIFY_SYSTEM on a replication connection tells.
    pub system_identifier: Option<u64>,
    /// `None` where the role may not ask.
    pub timeline: Option<u32>,
    /// The database of the connection.
    pub database: String,
    /// Its encoding.
    pub encoding: String,
    /// `minimal`, `replica` or `logical`.
    pub wal_level: String,
    /// A standby.
    pub in_recovery: bool,
    /// `max_replication_slots`.
    pub slots_max: i64,
    /// Slots there are.
    pub slots_used: i64,
    /// `max_wal_senders`.
    pub senders_max: i64,
    /// Senders at work.
    pub senders_used: i64,
    /// `max_slot_wal_keep_size` in bytes; `None` is no limit.
    pub slot_wal_keep_bytes: Option<u64>,
    /// The server's own `idle_in_transaction_session_timeout` in milliseconds; `None` when this
    /// session overrides it. 0 is none.
    pub idle_in_transaction_ms: Option<i64>,
    /// The role of the connection.
    pub role: Role,
    /// The server's clock minus ours, in microseconds, at the middle of a round trip.
    pub clock_ahead_us: i64,
    /// How far off `clock_ahead_us` can be: half the round trip.
    pub clock_doubt_us: i64,
}

impl ServerInfo {
    /// Asks the server.
    ///
    /// # Errors
    /// A failing query. What the role may not see is `None` instead.
    pub async fn load(client: &Client) -> Result<ServerInfo> {
        let sql = "SELECT pg_catalog.current_setting('server_version_num')::int4,
                pg_catalog.current_setting('server_version'),
                pg_catalog.current_database()::text,
                pg_catalog.pg_encoding_to_char(d.encoding)::text,
                pg_catalog.current_setting('wal_level'),
                pg_catalog.pg_is_in_recovery(),
                pg_catalog.current_setting('max_replication_slots')::int8,
                (SELECT count(*) FROM pg_catalog.pg_replication_slots),
                pg_catalog.current_setting('max_wal_senders')::int8,
                (SELECT count(*) FROM pg_catalog.pg_stat_replication),
                (SELECT setting::int8 FROM pg_catalog.pg_settings
                    WHERE name = 'max_slot_wal_keep_size'),
                (SELECT CASE WHEN source IN ('client', 'session') THEN NULL ELSE setting::int8 END
                    FROM pg_catalog.pg_settings
                    WHERE name = 'idle_in_transaction_session_timeout'),
                r.rolname::text, r.rolsuper,
                r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_catalog.pg_roles m
                    WHERE m.rolname = 'rds_replication'
                      AND pg_catalog.pg_has_role(r.oid, m.oid, 'member')),
                r.rolsuper OR r.rolbypassrls,
                pg_catalog.has_database_privilege(d.oid, 'CREATE')
            FROM pg_catalog.pg_database d, pg_catalog.pg_roles r
            WHERE d.datname = pg_catalog.current_database() AND r.rolname = current_user";
        let row =
            client.query_one(sql, &[]).await.map_err(|e| sql_error("asking the server", e))?;
        let version: i32 = field(&row, 0)?;
        let in_recovery: bool = field(&row, 5)?;
        let keep_mb: Option<i64> = field(&row, 10)?;
        let (clock_ahead_us, clock_doubt_us) = clock(client).await?;
        Ok(ServerInfo {
            version: version.unsigned_abs(),
            version_text: field(&row, 1)?,
            system_identifier: system_identifier(client).await?,
            timeline: timeline(client, in_recovery).await?,
            database: field(&row, 2)?,
            encoding: field(&row, 3)?,
            wal_level: field(&row, 4)?,
            in_recovery,
            slots_max: field(&row, 6)?,
            slots_used: field(&row, 7)?,
            senders_max: field(&row, 8)?,
            senders_used: field(&row, 9)?,
            slot_wal_keep_bytes: keep_mb.and_then(|mb| u64::try_from(mb).ok()).map(|mb| mb << 20),
            idle_in_transaction_ms: field(&row, 11)?,
            role: Role {
                name: field(&row, 12)?,
                superuser: field(&row, 13)?,
                replication: field(&row, 14)?,
                bypass_rls: field(&row, 15)?,
                create_in_database: field(&row, 16)?,
            },
            clock_ahead_us,
            clock_doubt_us,
        })
    }
}

fn our_clock_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

async fn clock(client: &Client) -> Result<(i64, i64)> {
    let sql = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8";
    // Prepared first, so that the time between is one round trip.
    let failed = |e| sql_error("asking for the server's clock", e);
    let statement = client.prepare(sql).await.map_err(failed)?;
    let before = our_clock_us();
    let row = client.query_one(&statement, &[]).await.map_err(failed)?;
    let after = our_clock_us();
    let theirs: i64 = field(&row, 0)?;
    Ok((theirs - (before + (after - before) / 2), (after - before).abs() / 2))
}

/// A text the role may lack the right to read, or `None`.
async fn permitted(client: &Client, sql: &str) -> Result<Option<String>> {
    match client.query_one(sql, &[]).await {
        Ok(row) => field(&row, 0),
        // A right that is missing or a function a service took away: the caller has another way.
        Err(error) if error.as_db_error().is_some() => Ok(None),
        Err(error) => Err(sql_error("asking the server", error)),
    }
}

async fn system_identifier(client: &Client) -> Result<Option<u64>> {
    let sql = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()";
    let text = permitted(client, sql).await?;
    // The catalog shows an unsigned number as a signed one.
    Ok(text.and_then(|t| t.parse::<i64>().ok()).map(|signed| signed as u64))
}

async fn timeline(client: &Client, in_recovery: bool) -> Result<Option<u32>> {
    // The control file's timeline is that of the last checkpoint, too old just after a promotion;
    // a primary names the timeline it writes in its WAL file names.
    if in_recovery {
        let sql = "SELECT timeline_id::text FROM pg_catalog.pg_control_checkpoint()";
        return Ok(permitted(client, sql).await?.and_then(|t| t.parse().ok()));
    }
    let sql = "SELECT substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)";
    let hex = permitted(client, sql).await?;
    Ok(hex.and_then(|t| u32::from_str_radix(&t, 16).ok()))
}

async fn lsn(client: &Client, sql: &str) -> Result<Lsn> {
    let failed = |e| sql_error("asking for the WAL position", e);
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let text: Option<String> = field(&row, 0)?;
    let text = text.ok_or_else(|| {
        Error::transient("the server has no WAL position yet").next("wait until it has started")
    })?;
    text.parse().map_err(|e| Error::failed("the server's WAL position is odd").because(e))
}

/// The position up to which the WAL is safely on the server's disk; on a standby, replayed.
///
/// # Errors
/// A failing query; a standby that has replayed nothing yet (transient).
pub async fn current_lsn(client: &Client, in_recovery: bool) -> Result<Lsn> {
    let sql = if in_recovery {
        "SELECT pg_catalog.pg_last_wal_replay_lsn()::text"
    } else {
        "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"
    };
    lsn(client, sql).await
}

/// The end of all WAL written so far, on disk or not: every transaction that is committed by now
/// lies below, those with `synchronous_commit = off` too. On a standby as [`current_lsn`].
///
/// # Errors
/// As [`current_lsn`].
pub async fn insert_lsn(client: &Client, in_recovery: bool) -> Result<Lsn> {
    if in_recovery {
        return current_lsn(client, true).await;
    }
    lsn(client, "SELECT pg_catalog.pg_current_wal_insert_lsn()::text").await
}

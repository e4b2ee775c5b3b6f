//! The replication slot: the server's promise to keep what we have not confirmed.
//!
//! A [`Boundary`] is made here and nowhere else, by [`create_slot`]: the snapshot and the position
//! it shows come from the database in one answer, so no other code can pair a snapshot with a
//! position that is not its own.

mod publication;

pub use publication::{
    Actions, PublicationInfo, PublishedTable, add_tables, create_sql, drop_publication,
    ensure_publication, is_gone, problems, publication_info,
};

use std::time::Duration;

use crate::source::client::Client;
use serde::Deserialize;

use crate::error::{Error, Kind, Result};
use crate::position::Lsn;
use crate::source::catalog::{field, quote_ident, quote_literal, sql_error};
use crate::source::check::Finding;
use crate::source::wire::Wire;

/// What is needed of a replication connection to create a slot.
pub trait ReplicationCommand {
    /// Runs one command; the rows of its answer as text.
    ///
    /// # Errors
    /// What the server answers, or a cut connection.
    fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>>;

    /// As in `150018` for 15.18.
    fn server_version(&self) -> u32;
}

impl ReplicationCommand for Wire {
    fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        Wire::simple_query(self, sql)
    }

    fn server_version(&self) -> u32 {
        Wire::server_version(self)
    }
}

/// Name of a snapshot that a session exported and keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotId(String);

impl SnapshotId {
    fn parse(text: &str) -> Result<Self> {
        let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        if fits {
            Ok(SnapshotId(text.to_owned()))
        } else {
            Err(Error::failed(format!("the server named its snapshot {text:?}, which is odd")))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The statement that makes a transaction see this snapshot. It must be the first one of a
    /// REPEATABLE READ transaction in the same database.
    pub fn import_sql(&self) -> String {
        format!("SET TRANSACTION SNAPSHOT {}", quote_literal(&self.0))
    }
}

/// A snapshot and the position it shows, made by the database in one act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    base: Lsn,
    snapshot: SnapshotId,
}

impl Boundary {
    /// Everything committed before this position is in the snapshot, nothing after it is.
    pub fn base(&self) -> Lsn {
        self.base
    }

    /// The snapshot.
    pub fn snapshot(&self) -> &SnapshotId {
        &self.snapshot
    }

    /// Exports the same snapshot again from a session that holds it, so that losing the first
    /// exporter does not lose the boundary. The session must have imported this very boundary's
    /// snapshot in a transaction that is still open, and must stay in it.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn export_again(&self, holder: &mut impl ReplicationCommand) -> Result<Boundary> {
        let rows = holder.simple_query("SELECT pg_catalog.pg_export_snapshot()")?;
        let name = rows.first().and_then(|row| row.first()).and_then(Option::as_deref);
        let name = name.ok_or_else(|| Error::failed("the server exported no snapshot"))?;
        Ok(Boundary { base: self.base, snapshot: SnapshotId::parse(name)? })
    }
}

/// How a slot is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotOptions {
    /// Gone with its connection.
    pub temporary: bool,
    /// Kept in step on standbys, from PostgreSQL 17; left out before.
    pub failover: bool,
}

/// Creates a logical slot for `pgoutput` and exports its snapshot.
///
/// The snapshot lives until the connection's next command: keep it idle, with
/// `idle_in_transaction_session_timeout` 0. The publication must exist already. The command waits
/// for every write transaction that is open; see `check` for who holds it up.
///
/// # Errors
/// A bad name (config), the server's refusal, a cut connection.
pub fn create_slot(
    connection: &mut impl ReplicationCommand,
    name: &str,
    options: SlotOptions,
) -> Result<Boundary> {
    check_slot_name(name)?;
    let sql = create_slot_sql(connection.server_version(), name, options);
    let rows = connection.simple_query(&sql).map_err(|error| {
        let text = error.to_string();
        let error = error.at(format!("slot {name} could not be created"));
        if text.contains("42710") || text.contains("already exists") {
            error
                .next(format!("drop it: SELECT pg_drop_replication_slot({});", quote_literal(name)))
        } else if text.contains("53400") || text.contains("all replication slots are in use") {
            error.next("drop a slot that nobody needs, or raise max_replication_slots and restart")
        } else {
            error
        }
    })?;
    boundary_from_answer(name, &rows)
}

fn create_slot_sql(version: u32, name: &str, options: SlotOptions) -> String {
    let temporary = if options.temporary { " TEMPORARY" } else { "" };
    let head = format!("CREATE_REPLICATION_SLOT {}{temporary} LOGICAL pgoutput", quote_ident(name));
    if version < 150_000 {
        format!("{head} EXPORT_SNAPSHOT")
    } else if version >= 170_000 && options.failover && !options.temporary {
        format!("{head} (SNAPSHOT 'export', FAILOVER true)")
    } else {
        format!("{head} (SNAPSHOT 'export')")
    }
}

fn boundary_from_answer(name: &str, rows: &[Vec<Option<String>>]) -> Result<Boundary> {
    let odd = |what: &str| Error::failed(format!("slot {name}: the server's answer {what}"));
    let [row] = rows else { return Err(odd("is not one row")) };
    let [Some(slot), Some(point), Some(snapshot), Some(plugin)] = row.as_slice() else {
        return Err(odd("lacks the slot, the consistent point, the snapshot or the plugin"));
    };
    if slot != name || plugin != "pgoutput" {
        return Err(odd(&format!("is about slot {slot} with plugin {plugin}")));
    }
    let base: Lsn = point.parse().map_err(|e| odd("has no position").because(e))?;
    if base == Lsn::ZERO {
        return Err(odd("has position 0/0"));
    }
    Ok(Boundary { base, snapshot: SnapshotId::parse(snapshot)? })
}

/// Whether PostgreSQL takes `name` for a slot: 1 to 63 of lower case letters, digits and `_`.
///
/// # Errors
/// [`Kind::Config`] if not.
pub fn check_slot_name(name: &str) -> Result<()> {
    let fits = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if fits {
        return Ok(());
    }
    Err(Error::config(format!("{name:?} can't be the name of a replication slot"))
        .next("use 1 to 63 lower case letters, digits and underscores"))
}

/// A row of `pg_replication_slots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// The name.
    pub name: String,
    /// `None` for a physical slot.
    pub plugin: Option<String>,
    /// `None` for a physical slot.
    pub database: Option<String>,
    /// Somebody streams from it, or holds it.
    pub active: bool,
    /// Who.
    pub active_pid: Option<i32>,
    /// `confirmed_flush_lsn`; [`Lsn::ZERO`] if it has none.
    pub confirmed: Lsn,
    /// `restart_lsn`; [`Lsn::ZERO`] if it has none, as when its WAL is gone.
    pub restart: Lsn,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` if nothing was ever reserved.
    pub wal_status: Option<String>,
    /// Bytes of WAL that can still be written before the slot may be lost; `None` is no limit.
    pub safe_bytes: Option<i64>,
    /// Bytes of WAL it keeps: the current position minus `restart`.
    pub retained_bytes: i64,
    /// Gone with its connection.
    pub temporary: bool,
    /// Why it was invalidated (PostgreSQL 16 and later).
    pub invalidation: Option<String>,
    /// Since when nobody uses it (PostgreSQL 17 and later).
    pub inactive_since: Option<String>,
    /// Kept in step on standbys (PostgreSQL 17 and later).
    pub failover: bool,
    /// Decodes prepared transactions (PostgreSQL 14 and later).
    pub two_phase: bool,
}

impl SlotInfo {
    /// Its database and its plugin; empty for a physical slot.
    pub fn names(&self) -> (String, String) {
        (self.database.clone().unwrap_or_default(), self.plugin.clone().unwrap_or_default())
    }

    /// Why the slot can't be streamed from any more, if so.
    pub fn lost(&self) -> Option<String> {
        if let Some(reason) = &self.invalidation {
            return Some(format!("it was invalidated ({reason})"));
        }
        if self.wal_status.as_deref() == Some("lost") {
            return Some("WAL it needs was removed (max_slot_wal_keep_size)".to_owned());
        }
        (self.restart == Lsn::ZERO && !self.active).then(|| "it reserves no WAL".to_owned())
    }
}

#[derive(Deserialize)]
struct SlotRow {
    slot_name: String,
    plugin: Option<String>,
    database: Option<String>,
    active: bool,
    active_pid: Option<i32>,
    restart_lsn: Option<Lsn>,
    confirmed_flush_lsn: Option<Lsn>,
    wal_status: Option<String>,
    safe_wal_size: Option<i64>,
    temporary: bool,
    invalidation_reason: Option<String>,
    conflicting: Option<bool>,
    inactive_since: Option<String>,
    failover: Option<bool>,
    two_phase: Option<bool>,
}

impl SlotRow {
    fn info(self, retained_bytes: Option<i64>) -> SlotInfo {
        let conflict =
            || self.conflicting.unwrap_or(false).then(|| "conflict with recovery".to_owned());
        SlotInfo {
            invalidation: self.invalidation_reason.clone().or_else(conflict),
            name: self.slot_name,
            plugin: self.plugin,
            database: self.database,
            active: self.active,
            active_pid: self.active_pid,
            confirmed: self.confirmed_flush_lsn.unwrap_or(Lsn::ZERO),
            restart: self.restart_lsn.unwrap_or(Lsn::ZERO),
            wal_status: self.wal_status,
            safe_bytes: self.safe_wal_size,
            retained_bytes: retained_bytes.unwrap_or(0),
            temporary: self.temporary,
            inactive_since: self.inactive_since,
            failover: self.failover.unwrap_or(false),
            two_phase: self.two_phase.unwrap_or(false),
        }
    }
}

// As JSON, since the view's columns differ from 13 to 18.
fn slots_sql(condition: &str) -> String {
    format!(
        "SELECT pg_catalog.to_jsonb(s)::text,
            pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
                THEN pg_catalog.pg_last_wal_replay_lsn()
                ELSE pg_catalog.pg_current_wal_lsn() END, s.restart_lsn)::int8
        FROM pg_catalog.pg_replication_slots s WHERE {condition} ORDER BY s.slot_name"
    )
}

fn slot_row(json: &str) -> Result<SlotRow> {
    serde_json::from_str(json)
        .map_err(|e| Error::failed("pg_replication_slots has an unknown shape").because(e))
}

async fn slots(client: &Client, condition: &str, value: &str) -> Result<Vec<SlotInfo>> {
    let rows = client.query(&slots_sql(condition), &[&value]).await;
    let rows = rows.map_err(|e| sql_error("looking at the replication slots", e))?;
    rows.iter().map(|row| Ok(slot_row(field(row, 0)?)?.info(field(row, 1)?))).collect()
}

/// As [`slot_info`], over a connection of which it is known to which server it leads. Blocking.
///
/// # Errors
/// A failing query.
pub fn slot_info_over(wire: &mut Wire, name: &str) -> Result<Option<SlotInfo>> {
    let rows = wire.simple_query(&slots_sql(&format!("s.slot_name = {}", quote_literal(name))))?;
    let Some([Some(json), retained]) = rows.first().map(Vec::as_slice) else { return Ok(None) };
    let retained = retained.as_deref().and_then(|bytes| bytes.parse().ok());
    Ok(Some(slot_row(json)?.info(retained)))
}

/// The slot `name`, of any database, or `None`.
///
/// # Errors
/// A failing query.
pub async fn slot_info(client: &Client, name: &str) -> Result<Option<SlotInfo>> {
    Ok(slots(client, "s.slot_name = $1", name).await?.pop())
}

/// What the server shows of whoever holds a slot. It stays as it is once the client is gone and the
/// server has not noticed yet; a client that is well makes it change every few seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The server's process, if it says which.
    pub pid: Option<i32>,
    /// How far the client has confirmed.
    pub confirmed: Lsn,
    /// When it was heard of last, where our role may see that (`pg_read_all_stats`).
    pub heard: Option<String>,
}

/// Who holds the slot `name` for changes of this database; `None` if nobody does.
///
/// # Errors
/// A failing query.
pub async fn holder(client: &Client, name: &str) -> Result<Option<Holder>> {
    let sql = "SELECT s.active_pid, s.confirmed_flush_lsn::text, r.reply_time::text
        FROM pg_catalog.pg_replication_slots s
        LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
        WHERE s.slot_name = $1 AND s.active AND s.database = current_database()";
    let rows = client.query(sql, &[&name]).await;
    let rows = rows.map_err(|e| sql_error("looking at who holds the slot", e))?;
    let Some(row) = rows.first() else { return Ok(None) };
    let confirmed: Option<String> = field(row, 1)?;
    let confirmed = confirmed.map(|text| text.parse()).transpose();
    Ok(Some(Holder {
        pid: field(row, 0)?,
        confirmed: confirmed
            .map_err(|e| Error::failed("the slot has an unknown position").because(e))?
            .unwrap_or(Lsn::ZERO),
        heard: field(row, 2)?,
    }))
}

/// After how long without a word the server ends a stream to us; `None` is never.
///
/// # Errors
/// A failing query.
pub async fn sender_timeout(client: &Client) -> Result<Option<Duration>> {
    let sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'";
    let row = client.query_one(sql, &[]).await;
    let row = row.map_err(|e| sql_error("reading wal_sender_timeout", e))?;
    let ms = field::<&str>(&row, 0)?.parse().ok().filter(|ms| *ms > 0);
    Ok(ms.map(Duration::from_millis))
}

/// The slots of this database whose names begin with `prefix`.
///
/// # Errors
/// A failing query.
pub async fn list_own_slots(client: &Client, prefix: &str) -> Result<Vec<SlotInfo>> {
    let condition = "starts_with(s.slot_name::text, $1) AND s.database = current_database()";
    slots(client, condition, prefix).await
}

/// Drops the slot; `false` if there was none.
///
/// # Errors
/// Somebody uses it ([`Kind::Failed`], with the pid), missing rights, a failing query.
pub async fn drop_slot(client: &Client, name: &str) -> Result<bool> {
    let Some(slot) = slot_info(client, name).await? else { return Ok(false) };
    if slot.active {
        return Err(in_use(&slot));
    }
    let sql = "SELECT pg_catalog.pg_drop_replication_slot($1::text::name)";
    match client.execute(sql, &[&name]).await {
        Ok(_) => Ok(true),
        Err(error) => match error.code().map(|c| c.code()) {
            Some("42704") => Ok(false),
            Some("55006") => Err(in_use(&slot_info(client, name).await?.unwrap_or(slot))),
            _ => Err(sql_error(&format!("dropping slot {name}"), error)),
        },
    }
}

/// Drops the slot if it stands at `end` or before; `false` if there is none, or one that was made
/// later under its name. One statement, so that nobody can put another one there in between.
///
/// # Errors
/// Somebody uses it, missing rights, a failing query.
pub async fn drop_slot_before(client: &Client, name: &str, end: Lsn) -> Result<bool> {
    let sql = "SELECT pg_catalog.pg_drop_replication_slot(s.slot_name) \
               FROM pg_catalog.pg_replication_slots s \
               WHERE s.slot_name = $1::text::name AND s.confirmed_flush_lsn <= $2::text::pg_lsn";
    match client.execute(sql, &[&name, &end.to_string()]).await {
        Ok(dropped) => Ok(dropped > 0),
        Err(error) => match error.code().map(|c| c.code()) {
            Some("42704") => Ok(false),
            _ => Err(sql_error(&format!("dropping slot {name}"), error)),
        },
    }
}

fn in_use(slot: &SlotInfo) -> Error {
    let (name, by) = match slot.active_pid {
        Some(pid) => (&slot.name, format!("pid {pid}")),
        None => (&slot.name, "another session".to_owned()),
    };
    let stop = match slot.active_pid {
        Some(pid) => {
            format!("stop the pipeline that uses it, or SELECT pg_terminate_backend({pid});")
        }
        None => "stop the pipeline that uses it".to_owned(),
    };
    Error::new(Kind::Failed, format!("slot {name} is in use by {by}")).next(stop)
}

/// What to say of a slot that exists although this pipeline never published anything from it: its
/// snapshot was not kept, and no later one shows its position.
pub fn unusable_slot(slot: &SlotInfo) -> Finding {
    let drop = format!("SELECT pg_drop_replication_slot({});", quote_literal(&slot.name));
    let fix = if slot.active {
        "choose another slot name, or stop who uses it and drop it".to_owned()
    } else {
        format!("{drop} and let tidegate create it, or choose another slot name")
    };
    Finding::error(
        "slot-without-snapshot",
        format!("slot {}", slot.name),
        "exists already but has no exported snapshot, so no copy of the tables can be joined to it",
        fix,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Server(u32, Vec<Vec<Option<String>>>, Vec<String>);

    impl ReplicationCommand for Server {
        fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
            self.2.push(sql.to_owned());
            Ok(self.1.clone())
        }
        fn server_version(&self) -> u32 {
            self.0
        }
    }

    fn answer(fields: [&str; 4]) -> Vec<Vec<Option<String>>> {
        vec![fields.iter().map(|f| (!f.is_empty()).then(|| f.to_string())).collect()]
    }

    #[test]
    fn each_version_is_asked_in_its_own_syntax() {
        let plain = SlotOptions::default();
        let both = SlotOptions { temporary: false, failover: true };
        let temporary = SlotOptions { temporary: true, failover: true };
        for (version, options, sql) in [
            (130_023, both, "CREATE_REPLICATION_SLOT \"x\" LOGICAL pgoutput EXPORT_SNAPSHOT"),
            (150_018, plain, "CREATE_REPLICATION_SLOT \"x\" LOGICAL pgoutput (SNAPSHOT 'export')"),
            (
                170_010,
                both,
                "CREATE_REPLICATION_SLOT \"x\" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)",
            ),
            (
                180_004,
                temporary,
                "CREATE_REPLICATION_SLOT \"x\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')",
            ),
        ] {
            assert_eq!(create_slot_sql(version, "x", options), sql);
        }
    }

    #[test]
    fn a_boundary_needs_a_whole_answer() {
        let good = answer(["x", "0/16B3748", "00000003-0000001B-1", "pgoutput"]);
        let mut server = Server(150_018, good, vec![]);
        let boundary = create_slot(&mut server, "x", SlotOptions::default()).unwrap();
        assert_eq!(boundary.base(), Lsn::new(0x16B_3748));
        let import = boundary.snapshot().import_sql();
        assert_eq!(import, "SET TRANSACTION SNAPSHOT '00000003-0000001B-1'");
        for bad in [
            answer(["x", "0/16B3748", "", "pgoutput"]),
            answer(["x", "", "00000003-0000001B-1", "pgoutput"]),
            answer(["x", "0/0", "00000003-0000001B-1", "pgoutput"]),
            answer(["x", "0/16B3748", "a'; DROP", "pgoutput"]),
            answer(["y", "0/16B3748", "00000003-0000001B-1", "pgoutput"]),
            answer(["x", "0/16B3748", "00000003-0000001B-1", "test_decoding"]),
            vec![],
        ] {
            assert!(boundary_from_answer("x", &bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_bad_slot_name_never_reaches_the_server() {
        for name in ["", "A", "a-b", "a\"b", &"a".repeat(64)] {
            let mut server = Server(150_018, vec![], vec![]);
            let error = create_slot(&mut server, name, SlotOptions::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(server.2.is_empty());
        }
    }

    #[test]
    fn a_slot_of_13_and_of_18_are_both_read() {
        let old = r#"{"slot_name":"s","plugin":"pgoutput","slot_type":"logical","datoid":5,
            "database":"d","temporary":false,"active":false,"active_pid":null,"xmin":null,
            "catalog_xmin":"7","restart_lsn":null,"confirmed_flush_lsn":"0/10",
            "wal_status":"lost","safe_wal_size":null}"#;
        let slot: SlotRow = serde_json::from_str(old).unwrap();
        assert!(slot.info(None).lost().unwrap().contains("removed"));
        let new = r#"{"slot_name":"s","plugin":"pgoutput","database":"d","temporary":false,
            "active":true,"active_pid":3,"restart_lsn":"0/5","confirmed_flush_lsn":"0/10",
            "wal_status":"reserved","safe_wal_size":9,"two_phase":false,"two_phase_at":null,
            "inactive_since":null,"conflicting":false,"invalidation_reason":null,"failover":true,
            "synced":false}"#;
        let slot: SlotRow = serde_json::from_str(new).unwrap();
        let slot = slot.info(Some(11));
        assert_eq!((slot.lost(), slot.failover, slot.retained_bytes), (None, true, 11));
    }
}

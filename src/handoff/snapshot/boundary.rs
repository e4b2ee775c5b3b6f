//! Boundaries: a snapshot and the position it shows, and the locks that keep its tables as found.
//!
//! The first boundary of a run makes the pipeline's slot, which keeps everything from its position
//! on for the whole run. Later ones are made by temporary slots: nothing is ever read from these,
//! they only name a position together with a snapshot.
//!
//! The exported snapshot can't protect the tables' files: TRUNCATE and a rewrite show an empty or
//! rewritten table to older snapshots. So every leaf is locked in share mode inside the snapshot
//! for the time of the copy, as pg_dump does, and compared with what was found before.

use std::sync::Arc;
use std::time::Instant;

use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::copy::inside;
use crate::handoff::session::{Session, blocking};
use crate::handoff::tables as lake_tables;
use crate::lake::BoundaryEntry;
use crate::position::Lsn;
use crate::source::catalog::{TableInfo, sql_name};
use crate::source::client::query_error;
use crate::source::options::ConnectOptions;
use crate::source::slot::{self, Boundary, SlotOptions};
use crate::source::wire::{LOCK_TIMEOUT, SessionKind, Wire, sqlstate};

/// A snapshot, exported once more by the connection that holds the locks, so that losing the first
/// exporter does not lose the boundary.
pub struct Again {
    /// Its other name.
    pub name: String,
    /// Which transactions it shows, as `pg_current_snapshot()` prints it.
    pub shows: String,
}

/// An exported snapshot and the connections that keep it.
pub struct Exported {
    /// The position it shows.
    pub base: Lsn,
    /// Its name.
    pub snapshot: String,
    /// Once the tables are locked.
    pub again: Option<Again>,
    /// When it was made.
    pub made: Instant,
    _keepers: Vec<Wire>,
}

impl Exported {
    fn of(boundary: &Boundary, keeper: Wire) -> Exported {
        Exported {
            base: boundary.base(),
            snapshot: boundary.snapshot().as_str().to_owned(),
            again: None,
            made: Instant::now(),
            _keepers: vec![keeper],
        }
    }

    /// What the ledger says of it.
    pub fn entry(&self, number: u32) -> BoundaryEntry {
        BoundaryEntry {
            number,
            base: self.base,
            snapshot: self.snapshot.clone(),
            at: chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            held: true,
        }
    }
}

/// Makes the pipeline's slot and its snapshot in one act.
///
/// # Errors
/// The server's refusal.
pub async fn first(session: &Session) -> Result<Exported> {
    let (source, name) = (session.source.clone(), session.config.name.clone());
    let options = session.slot_options()?;
    let exported = blocking(move || {
        if failpoint::wrong("position-before-snapshot")
            || failpoint::wrong("position-after-snapshot")
        {
            return export_apart(&source, &name);
        }
        let mut wire = Wire::connect(&source, SessionKind::Replication)?;
        let boundary = slot::create_slot(&mut wire, &name, options)?;
        Ok(Exported::of(&boundary, wire))
    })
    .await?;
    failpoint::at("handoff.boundary")?;
    Ok(exported)
}

/// Makes a later boundary, with a slot that goes with its connection.
///
/// # Errors
/// The server's refusal. That all slots are in use passes.
pub async fn next(session: &Session) -> Result<Exported> {
    let source = session.source.clone();
    let unique = uuid::Uuid::new_v4().as_fields().0;
    let name = format!("{}_copy_{unique:08x}", session.config.name);
    let exported = blocking(move || {
        let mut wire = Wire::connect(&source, SessionKind::Replication)?;
        let options = SlotOptions { temporary: true, ..SlotOptions::default() };
        let boundary = slot::create_slot(&mut wire, &name, options)?;
        Ok(Exported::of(&boundary, wire))
    })
    .await?;
    failpoint::at("handoff.boundary.next")?;
    Ok(exported)
}

/// The wrong way, for the tests to catch: position and snapshot in two acts, with a pause between.
fn export_apart(source: &ConnectOptions, name: &str) -> Result<Exported> {
    let mut wire = Wire::connect(source, SessionKind::Replication)?;
    let mut keeper = Wire::connect(source, SessionKind::Query)?;
    let snapshot = |keeper: &mut Wire| -> Result<String> {
        let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_catalog.pg_export_snapshot()";
        let rows = keeper.simple_query(sql)?;
        let name = rows.into_iter().flatten().flatten().next();
        name.ok_or_else(|| Error::failed("no snapshot"))
    };
    let (base, snapshot) = if failpoint::wrong("position-before-snapshot") {
        let base = slot::create_slot(&mut wire, name, SlotOptions::default())?.base();
        failpoint::at("handoff.apart")?;
        (base, snapshot(&mut keeper)?)
    } else {
        let snapshot = snapshot(&mut keeper)?;
        failpoint::at("handoff.apart")?;
        (slot::create_slot(&mut wire, name, SlotOptions::default())?.base(), snapshot)
    };
    let (made, keepers) = (Instant::now(), vec![wire, keeper]);
    Ok(Exported { base, snapshot, again: None, made, _keepers: keepers })
}

/// A table or partition that was dropped or renamed since it was looked at.
fn gone(error: Error) -> Error {
    if sqlstate(&error).is_some_and(slot::is_gone) {
        return Error::transient("a table was dropped or renamed while the snapshot was made")
            .because(error)
            .next("the tables are looked at again by themselves");
    }
    error
}

/// Locks every leaf in share mode inside the snapshot, and looks whether the tables are still as
/// they were found before it was made. Gives the connection, which is to be kept, and the snapshot
/// that it exports again.
///
/// # Errors
/// Transient: a table changed in that moment.
pub async fn lock<'t>(
    session: &Session,
    snapshot: &str,
    tables: impl IntoIterator<Item = (&'t TableInfo, &'t Arc<TablePlan>)>,
) -> Result<(Wire, Again)> {
    let tables: Vec<_> = tables.into_iter().collect();
    let leaves: Vec<String> = tables
        .iter()
        .flat_map(|(table, _)| &table.leaves)
        .map(|leaf| sql_name(&leaf.schema, &leaf.name))
        .collect();
    let (source, snapshot) = (session.source.clone(), snapshot.to_owned());
    let anchor = session.anchor.clone();
    let (wire, again) = blocking(move || {
        let mut wire = inside(&source, &snapshot)?;
        wire.must_know(&anchor)?;
        let rows = wire.simple_query(
            "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text",
        )?;
        let mut row = rows.into_iter().flatten().flatten();
        let (Some(name), Some(shows)) = (row.next(), row.next()) else {
            return Err(Error::transient("the server exported no snapshot")
                .next("it is tried again by itself"));
        };
        let again = Again { name, shows };
        // As LOCK TABLE … IN ACCESS SHARE MODE does, which wants a right to the whole table: a role
        // may have one to some columns alone.
        for leaves in leaves.chunks(100) {
            let locks: String =
                leaves.iter().map(|leaf| format!("SELECT FROM ONLY {leaf} LIMIT 0;")).collect();
            wire.simple_query(&locks).map_err(gone)?;
        }
        Ok((wire, again))
    })
    .await?;
    // Asking for sizes takes a lock for a moment: it must not queue for ever behind a TRUNCATE that
    // queues behind ours.
    let (name, value) = LOCK_TIMEOUT;
    let limited = session.client.batch_execute(&format!("SET {name} = '{value}'")).await;
    limited.map_err(|e| query_error("limiting waits for locks", e))?;
    // What is wrong with other tables does not matter here.
    let now = lake_tables::look(session).await?.infos;
    for (table, plan) in tables {
        let same = now.iter().find(|t| t.oid == table.oid).is_some_and(|t| {
            t.fingerprint() == plan.fingerprint
                && t.leaves.len() == table.leaves.len()
                && t.leaves
                    .iter()
                    .zip(&table.leaves)
                    .all(|(a, b)| (a.oid, a.relfilenode) == (b.oid, b.relfilenode))
        });
        if !same {
            return Err(Error::transient(format!(
                "{plan}: changed, truncated or rewritten while the snapshot was made"
            ))
            .next(
                "the snapshot starts again by itself; keep schema changes out of its first second",
            ));
        }
    }
    Ok((wire, again))
}

//! Hands a run's [`Metrics`] to what has something to count, and translates: the figures know
//! neither ledger nor tables.

use std::sync::Arc;

use crate::apply::table::TableApplier;
use crate::handoff::session::Session;
use crate::lake::ledger::{AGAIN, STOPPED};
use crate::lake::{LakeTable, Ledger, LiveFile};
use crate::observe::metrics::{LedgerFigures, Metrics, TableFigures};

/// From now on the session counts in `metrics`.
pub fn observe(session: &mut Session, metrics: &Arc<Metrics>) {
    session.metrics = metrics.clone();
    session.lake.patience().count_into(metrics.store.clone());
    observe_ledger(session);
}

/// The session's ledger, once there is one, tells what it says.
pub fn observe_ledger(session: &mut Session) {
    let metrics = session.metrics.clone();
    if let Some(ledger) = &mut session.ledger {
        ledger.listen(Arc::new(move |ledger| metrics.set_ledger(ledger_figures(ledger))));
    }
}

/// What the ledger says, in figures.
pub fn ledger_figures(ledger: &Ledger) -> LedgerFigures {
    let state = ledger.state();
    let time = |text: &str| Some(chrono::DateTime::parse_from_rfc3339(text).ok()?.to_utc());
    let fence = ledger.fence().filter(|fence| fence.generation == state.generation);
    let in_phase = |phase| state.tables.iter().filter(|table| table.phase == phase).count() as u64;
    let held = state.boundary.as_ref().filter(|boundary| boundary.held);
    LedgerFigures {
        generation: state.generation,
        phase: state.phase.as_str(),
        run: state.run.clone(),
        base: state.base,
        fence: fence.map(|fence| fence.lsn),
        fence_at: fence.and_then(|fence| time(&fence.at)),
        snapshot_since: held.and_then(|boundary| time(&boundary.at)),
        spool_bytes: ledger.spool().map_or(0, |spool| spool.bytes),
        tables_again: in_phase(AGAIN),
        tables_stopped: in_phase(STOPPED),
    }
}

/// Notes what the tables are by now. Looks into those alone whose version is another one.
pub fn note_tables(metrics: &Metrics, appliers: &[TableApplier]) {
    for applier in appliers {
        let (plan, table) = (applier.plan(), applier.table());
        let name = format!("{}.{}", plan.schema, plan.name);
        if metrics.table(&name).is_none_or(|known| known.version != table.version()) {
            metrics.set_table(&name, table_figures(table));
        }
    }
}

/// What a table is, in figures.
pub fn table_figures(table: &LakeTable) -> TableFigures {
    let (files, checkpoint) = (table.files(), table.checkpoint());
    TableFigures {
        version: table.version(),
        base: checkpoint.base,
        applied: checkpoint.applied,
        files: files.len() as u64,
        bytes: files.values().map(|file| file.size).sum(),
        rows: files.values().map(LiveFile::live_rows).sum(),
        masked: files.values().map(|file| file.mask.len()).sum(),
    }
}

//! What was gathered from source and lake, and what is said of it together with the figures.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

use super::advice::advice;
use crate::cli::output::{SlotStatus, StatusOutput};
use crate::lake::ledger::{AGAIN, LIVE, STOPPED};
use crate::observe::metrics::Metrics;
use crate::position::Lsn;

/// A version that publishes a snapshot, with the statements that open it.
#[derive(Clone, Debug, Serialize)]
pub struct HandoffVersion {
    /// `schema.table`.
    pub table: String,
    /// The Delta version.
    pub version: u64,
    /// The generation it began.
    pub generation: Option<u64>,
    /// The position it shows.
    pub applied: Option<Lsn>,
    /// When it was committed (RFC 3339).
    pub committed_at: Option<String>,
    /// Names of the pins that keep it.
    pub pins: Vec<String>,
    /// For DuckDB.
    pub duckdb: String,
    /// For Spark.
    pub spark: String,
}

/// The newest of it.
#[derive(Debug, Default)]
pub struct Board {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    status: Option<StatusOutput>,
    slot: Option<SlotStatus>,
    handoffs: Vec<HandoffVersion>,
    source_error: Option<String>,
}

impl Board {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the lake says.
    pub fn set_status(&self, status: StatusOutput) {
        self.kept().status = Some(status);
    }

    /// What the source says of the slot, or why it says nothing.
    pub fn set_slot(&self, slot: Result<Option<SlotStatus>, String>) {
        let mut kept = self.kept();
        match slot {
            Ok(slot) => (kept.slot, kept.source_error) = (slot, None),
            Err(error) => kept.source_error = Some(error),
        }
    }

    /// The handoff versions of all tables.
    pub fn set_handoffs(&self, handoffs: Vec<HandoffVersion>) {
        self.kept().handoffs = handoffs;
    }

    /// As `status --json` would say now: what the lake said last, with what the run knows since.
    pub fn status(&self, metrics: &Metrics) -> Option<StatusOutput> {
        let kept = self.kept();
        let mut status = kept.status.clone()?;
        status.slot = kept.slot.clone();
        drop(kept);
        let ledger = metrics.ledger();
        if ledger.generation < status.generation || ledger.phase.is_empty() {
            return Some(status);
        }
        status.generation = ledger.generation;
        status.phase = ledger.phase.to_owned();
        status.run = ledger.run;
        (status.base, status.fence) = (ledger.base, ledger.fence);
        for table in &mut status.tables {
            let Some(known) = metrics.table(&table.table) else { continue };
            if table.version.is_some_and(|version| version > known.version) {
                continue;
            }
            table.version = Some(known.version);
            if table.phase != AGAIN && table.phase != STOPPED {
                table.phase = LIVE.to_owned();
            }
            table.base = Some(known.base);
            table.applied = Some(known.applied.max(ledger.fence.unwrap_or_default()));
            if let Some(storage) = &mut table.storage {
                storage.files = known.files;
                storage.bytes = known.bytes;
                storage.rows = known.rows;
                storage.masked_rows = known.masked;
            }
        }
        Some(status)
    }

    /// What the status page shows beside it.
    pub fn history(&self, metrics: &Metrics) -> Value {
        let source = metrics.source();
        let lag = metrics.lag();
        let kept = self.kept();
        json!({
            "now": chrono::Utc::now().timestamp_millis(),
            "version": env!("CARGO_PKG_VERSION"),
            "started": metrics.started().timestamp_millis(),
            "ready": metrics.is_ready(),
            "streaming": metrics.is_streaming(),
            "lag": lag.map(|lag| json!({
                "bytes": lag.bytes, "seconds": lag.seconds, "age": lag.age,
            })),
            "wal": source.filter(|look| look.slot).map(|look| json!({
                "retained": look.retained, "limit": look.limit, "margin": look.margin,
                "seconds_to_limit": look.time_to_limit.map(|time| time.as_secs()),
                "active": look.slot_active, "lost": look.slot_lost, "xmin_age": look.xmin_age,
            })),
            "advice": advice(metrics, kept.source_error.as_deref()),
            "troubles": metrics.troubles(),
            "handoffs": kept.handoffs,
            "points": metrics.history(),
        })
    }
}

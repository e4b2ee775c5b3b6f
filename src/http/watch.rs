//! Looks at source and lake by the clock, for whoever asks over HTTP.
//!
//! The source has a connection of its own for it, so that something is said also while the pipeline
//! waits for it in vain. Of the lake only what the run does not know itself is read, and seldom.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::board::{Board, HandoffVersion};
use crate::cli::args::Engine;
use crate::cli::output::StorageStatus;
use crate::cli::status::{self, Known};
use crate::cli::views::{TableView, query};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::handoff::session::connect_options;
use crate::handoff::{figures, guard, rules};
use crate::lake::pins::Pins;
use crate::lake::retention::LogFolder;
use crate::lake::{self, Lake, Ledger, TableEntry};
use crate::observe::metrics::{Metrics, SourceLook, Verified};
use crate::source::client::Client;
use crate::source::{catalog, client, slot};
use crate::verify::VERIFIED_EVENT;

/// For one look at the source.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at the ledger, before the tables are published and after.
const COPYING_EVERY: Duration = Duration::from_secs(3);
const LIVE_EVERY: Duration = Duration::from_secs(60);
/// Between two looks at the tables' logs.
const LOGS_EVERY: Duration = Duration::from_secs(600);
/// How soon it is seen that the pipeline went on to another phase.
const NOTICE: Duration = Duration::from_secs(1);
/// Handoff versions listed.
const MOST_HANDOFFS: usize = 500;

/// Looks at the source until the task is aborted.
pub async fn source(config: Config, metrics: Arc<Metrics>, board: Arc<Board>) {
    let mut looker = SourceLooker { config, client: None, samples: VecDeque::new() };
    let mut tick = tokio::time::interval(guard::EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let look = tokio::time::timeout(PATIENCE, looker.look()).await;
        match look.unwrap_or_else(|_| Err(Error::transient("no answer in time"))) {
            Ok((look, slot)) => {
                board.set_slot(Ok(slot.map(|slot| status::of_slot(&looker.config, slot))));
                metrics.set_source(Some(look));
            }
            Err(error) => {
                looker.client = None;
                board.set_slot(Err(error.what()));
                metrics.set_source(None);
            }
        }
    }
}

struct SourceLooker {
    config: Config,
    client: Option<Client>,
    samples: VecDeque<(Instant, u64)>,
}

impl SourceLooker {
    async fn look(&mut self) -> Result<(SourceLook, Option<slot::SlotInfo>)> {
        // Taken out, so that one whose answer was given up is not asked again.
        let client = match self.client.take() {
            Some(client) => client,
            None => client::connect(&connect_options(&self.config)?).await?,
        };
        let failed = |e| client::query_error("looking at the source", e);
        let row = client.query_one(XMIN_AND_END, &[&self.config.name]).await.map_err(failed)?;
        let xmin: Option<i64> = catalog::field(&row, 0)?;
        let end: Option<String> = catalog::field(&row, 1)?;
        let info = slot::slot_info(&client, &self.config.name).await?;
        self.client = Some(client);
        let now = guard::retained(info.as_ref());
        let growth = guard::growth(&mut self.samples, now.bytes);
        let outlook = rules::outlook(now, guard::bounds(&self.config), growth);
        let look = SourceLook {
            end: end.and_then(|end| end.parse().ok()).unwrap_or_default(),
            slot: info.is_some(),
            slot_active: info.as_ref().is_some_and(|info| info.active),
            slot_lost: info.as_ref().is_some_and(|info| info.lost().is_some()),
            retained: outlook.retained,
            limit: outlook.limit,
            margin: outlook.margin,
            time_to_limit: outlook.time_to_limit,
            xmin_age: xmin.and_then(|age| u64::try_from(age).ok()),
        };
        Ok((look, info))
    }
}

/// The oldest transaction that the slot or a session of ours keeps dead rows for, and the end of the
/// log up to which everything that has committed is there.
const XMIN_AND_END: &str = "SELECT greatest(
        (SELECT max(greatest(pg_catalog.age(s.xmin), pg_catalog.age(s.catalog_xmin)))
            FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::text::name),
        (SELECT max(pg_catalog.age(a.backend_xmin)) FROM pg_catalog.pg_stat_activity a
            WHERE a.datname = current_database() AND a.usename = current_user
              AND a.application_name = pg_catalog.current_setting('application_name')
              AND a.pid <> pg_catalog.pg_backend_pid()))::int8,
    (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
        ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text";

/// Looks at the lake until the task is aborted.
pub async fn lake(config: Config, metrics: Arc<Metrics>, board: Arc<Board>) {
    let mut looker = LakeLooker { config, metrics, board, lake: None, logs: None };
    loop {
        let seen = looker.stands();
        let begun = Instant::now();
        if let Err(error) = looker.look().await {
            tracing::debug!("the lake can't be looked at for the status page: {error}");
        }
        loop {
            tokio::time::sleep(NOTICE).await;
            let every = if looker.metrics.is_ready() { LIVE_EVERY } else { COPYING_EVERY };
            if begun.elapsed() >= every || looker.stands() != seen {
                break;
            }
        }
    }
}

struct LakeLooker {
    config: Config,
    metrics: Arc<Metrics>,
    board: Arc<Board>,
    lake: Option<Lake>,
    logs: Option<Logs>,
}

/// What the tables' logs are, by folder: versions, and their bytes.
struct Logs {
    at: Instant,
    stands: (u64, &'static str),
    found: BTreeMap<String, (u64, u64)>,
}

impl LakeLooker {
    /// Where the run says the pipeline is; another answer is a reason to look.
    fn stands(&self) -> (u64, &'static str) {
        let ledger = self.metrics.ledger();
        (ledger.generation, ledger.phase)
    }

    async fn look(&mut self) -> Result<()> {
        let lake = match &self.lake {
            Some(lake) => lake.clone(),
            None => match Lake::open_existing(self.config.lake()?)? {
                Some(lake) => self.lake.insert(lake).clone(),
                None => return Ok(()),
            },
        };
        let Some(ledger) = Ledger::open(&lake).await? else { return Ok(()) };
        if self.metrics.ledger().phase.is_empty() {
            // The run has not come so far; it says more once it has.
            self.board.set_status(status::of_lake(&lake, &ledger, |_| None).await?);
            return Ok(());
        }
        let names: BTreeSet<String> =
            ledger.state().tables.iter().map(|t| format!("{}.{}", t.schema, t.name)).collect();
        self.metrics.keep_tables(|table| names.contains(table));
        self.look_at_logs(&lake, &ledger).await?;
        self.metrics.set_verified(verified(&ledger).await?);
        let gathered = status::of_lake(&lake, &ledger, |entry| self.known(entry)).await?;
        self.board.set_status(gathered);
        Ok(())
    }

    /// What the run and an earlier look know of a table.
    fn known(&self, entry: &TableEntry) -> Option<Known> {
        let figures = self.metrics.table(&format!("{}.{}", entry.schema, entry.name))?;
        let (versions, log_bytes) = *self.logs.as_ref()?.found.get(&entry.folder)?;
        Some(Known {
            version: figures.version,
            base: figures.base,
            applied: figures.applied,
            storage: StorageStatus {
                files: figures.files,
                bytes: figures.bytes,
                rows: figures.rows,
                masked_rows: figures.masked,
                versions,
                log_bytes,
            },
        })
    }

    /// Lists the tables' logs, and seeks the handoff versions in them.
    async fn look_at_logs(&mut self, lake: &Lake, ledger: &Ledger) -> Result<()> {
        let stands = self.stands();
        let fresh = |logs: &Logs| logs.stands == stands && logs.at.elapsed() < LOGS_EVERY;
        if self.logs.as_ref().is_some_and(fresh) {
            return Ok(());
        }
        let pins = Pins::read(ledger).await?;
        let mut found = BTreeMap::new();
        let mut handoffs = Vec::new();
        for entry in &ledger.state().tables {
            let log = LogFolder::list(lake, &entry.folder).await?;
            found.insert(entry.folder.clone(), (log.commits.len() as u64, log.bytes));
            if handoffs.len() < MOST_HANDOFFS {
                let of_table = lake::handoffs(lake, &entry.folder, &log).await?;
                handoffs.extend(of_table.into_iter().map(|info| handoff(lake, entry, &pins, info)));
            }
        }
        handoffs.truncate(MOST_HANDOFFS);
        self.board.set_handoffs(handoffs);
        self.logs = Some(Logs { at: Instant::now(), stands, found });
        Ok(())
    }
}

fn handoff(
    lake: &Lake,
    entry: &TableEntry,
    pins: &Pins,
    info: lake::VersionInfo,
) -> HandoffVersion {
    let view = TableView {
        schema: entry.schema.clone(),
        table: entry.name.clone(),
        location: lake.location(&entry.folder),
        version: Some(info.version),
    };
    HandoffVersion {
        table: format!("{}.{}", entry.schema, entry.name),
        version: info.version,
        generation: info.generation,
        applied: info.applied,
        pins: pins.names(&entry.folder, info.version),
        committed_at: info.committed_at,
        duckdb: query(Engine::Duckdb, &view),
        spark: query(Engine::Spark, &view),
    }
}

/// The last comparison of the generation that the ledger has.
async fn verified(ledger: &Ledger) -> Result<Option<Verified>> {
    let events = ledger.read_events(None, Some(VERIFIED_EVENT)).await?;
    let generation = figures::ledger_figures(ledger).generation;
    let of_generation = events
        .iter()
        .rev()
        .find(|event| event.detail.get("generation").and_then(|g| g.as_u64()) == Some(generation));
    Ok(of_generation.and_then(|event| {
        Some(Verified {
            at: chrono::DateTime::from_timestamp_micros(event.at_us)?,
            lsn: event.detail.get("at")?.as_str()?.parse().ok()?,
            equal: event.detail.get("equal")?.as_bool()?,
        })
    }))
}

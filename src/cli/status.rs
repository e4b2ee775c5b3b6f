//! What `status` answers with, for the command and for whoever asks a running pipeline.

use super::maintain;
use super::output::{
    BoundaryStatus, PinOutput, SlotStatus, SpoolStatus, StatusOutput, StorageStatus, TableStatus,
};
use crate::config::Config;
use crate::error::Result;
use crate::handoff::snapshot::of_table;
use crate::handoff::{guard, rules, spool};
use crate::lake::pins::Pins;
use crate::lake::{self, Lake, LakeTable, Ledger};
use crate::position::Lsn;
use crate::source::slot::SlotInfo;

/// What a running pipeline knows of a table without asking the lake.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its newest version.
    pub version: u64,
    /// The position of its snapshot.
    pub base: Lsn,
    /// The position it shows.
    pub applied: Lsn,
    /// What it is made of.
    pub storage: StorageStatus,
}

/// How far the pipeline is, as the lake has it; of tables that are `known`, by their folder, it is
/// not asked. The slot is left out.
///
/// # Errors
/// The lake or a table can't be read.
pub async fn of_lake(
    lake: &Lake,
    ledger: &Ledger,
    known: impl Fn(&lake::TableEntry) -> Option<Known>,
) -> Result<StatusOutput> {
    let state = ledger.state();
    let events = ledger.read_events(Some(&state.run), None).await?;
    let fence = ledger.fence().map(|fence| fence.lsn);
    let mut tables = Vec::with_capacity(state.tables.len());
    for recorded in &state.tables {
        let found = match known(recorded) {
            Some(known) => Some(known),
            None => look(lake, &recorded.folder).await?,
        };
        let copied = of_table(&events, recorded)?.chunks;
        tables.push(TableStatus {
            table: format!("{}.{}", recorded.schema, recorded.name),
            phase: match found {
                _ if !recorded.is_followed() => recorded.phase.clone(),
                Some(_) => "live".to_owned(),
                None => state.phase.as_str().to_owned(),
            },
            why: recorded.why.clone(),
            version: found.map(|table| table.version),
            base: found.map(|table| table.base),
            applied: found.map(|t| match (fence, recorded.followed_to) {
                (Some(fence), None) => t.applied.max(fence),
                (_, Some(followed_to)) => t.applied.max(followed_to),
                (None, None) => t.applied,
            }),
            rows_copied: copied.iter().map(|chunk| chunk.rows).sum(),
            bytes_copied: copied.iter().map(|chunk| chunk.bytes).sum(),
            chunks_copied: copied.len() as u64,
            chunks: recorded.chunks,
            rows_estimated: recorded.rows_estimated,
            storage: found.map(|table| table.storage),
        });
    }
    Ok(StatusOutput {
        pipeline: state.pipeline.clone(),
        generation: state.generation,
        phase: state.phase.as_str().to_owned(),
        run: state.run.clone(),
        failure: state.failure.clone(),
        base: state.base,
        boundary: boundary(state),
        fence,
        tables,
        pins: Pins::read(ledger).await?.pins.into_values().map(PinOutput::from).collect(),
        slot: None,
        spool: spool::recorded(ledger).map(|spool| SpoolStatus {
            from: spool.from,
            to: spool.to,
            files: spool.files,
            bytes: spool.bytes,
        }),
    })
}

async fn look(lake: &Lake, folder: &str) -> Result<Option<Known>> {
    let Some(table) = LakeTable::open(lake, folder).await? else { return Ok(None) };
    let (base, applied) = (table.checkpoint().base, table.checkpoint().applied);
    let storage = maintain::storage(lake, &table).await?;
    Ok(Some(Known { version: table.version(), base, applied, storage }))
}

/// The slot, with what is left to the limit.
pub fn of_slot(config: &Config, slot: SlotInfo) -> SlotStatus {
    let outlook = rules::outlook(guard::retained(Some(&slot)), guard::bounds(config), None);
    SlotStatus {
        name: slot.name,
        active: slot.active,
        confirmed: (slot.confirmed > Lsn::ZERO).then_some(slot.confirmed),
        retained_bytes: slot.retained_bytes.max(0) as u64,
        wal_status: slot.wal_status,
        safe_bytes: slot.safe_bytes,
        limit_bytes: outlook.limit,
        margin_bytes: outlook.margin,
    }
}

/// The latest snapshot of a run that has not published.
fn boundary(state: &lake::PipelineState) -> Option<BoundaryStatus> {
    let boundary = state.boundary.as_ref().filter(|_| state.phase != lake::Phase::Live)?;
    let made = chrono::DateTime::parse_from_rfc3339(&boundary.at).ok();
    let age = made.map(|made| (chrono::Utc::now() - made.to_utc()).num_seconds().max(0) as u64);
    Some(BoundaryStatus {
        number: boundary.number,
        base: boundary.base,
        snapshot: boundary.snapshot.clone(),
        made_at: boundary.at.clone(),
        age_seconds: age.filter(|_| boundary.held),
    })
}

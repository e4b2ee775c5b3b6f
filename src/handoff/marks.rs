//! Which tables are followed, to be read again, or left: the marks in the ledger, and who asks for them.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::failpoint;
use crate::handoff::session::Session;
use crate::handoff::tables::{Found, Verdict};
use crate::lake::ledger::{AGAIN, STOPPED};
use crate::lake::{Event, Lake, Ledger, TableEntry};

/// Kind of the event by which somebody asks that a table is read again.
pub const REQUEST_EVENT: &str = "reseed";
/// Kind of the event by which such a request is known to be taken up.
const TAKEN_EVENT: &str = "reseed_taken";

/// Marks tables in the ledger: to be read again, or no longer followed.
///
/// # Errors
/// The ledger failing.
pub async fn mark(session: &mut Session, found: &Found, marks: &[(String, Verdict)]) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    let fence = session.ledger_mut()?.fence().map(|fence| fence.lsn);
    for (folder, verdict) in marks {
        let Some(known) = state.tables.iter_mut().find(|table| table.folder == *folder) else {
            continue;
        };
        match verdict {
            Verdict::Again(why) => {
                tracing::warn!(table = known.display(), "is read again: {why}");
                known.set_apart(AGAIN, why, fence);
            }
            Verdict::Stop(why) => {
                tracing::error!(
                    table = known.display(),
                    "is not followed, the others go on: {why}"
                );
                known.set_apart(STOPPED, why, fence);
                // As another one it is tried again.
                let now = found.named(&known.schema, &known.name);
                (known.oid, known.fingerprint) =
                    now.map_or_else(Default::default, |info| (info.oid, info.shape()));
            }
            Verdict::Follow(_) => {}
        }
    }
    session.ledger_mut()?.set_state(state, &[]).await?;
    failpoint::at("again.marked")
}

/// The event that asks for a table to be read again.
pub fn request(entry: &TableEntry) -> Event {
    let id = uuid::Uuid::now_v7().to_string();
    let detail = serde_json::json!({ "folder": entry.folder, "id": id });
    Event::now("", REQUEST_EVENT, &entry.display(), detail)
}

/// How many requests the ledger knows of, taken up or not.
///
/// # Errors
/// The ledger can't be read.
pub async fn requests(ledger: &Ledger) -> Result<usize> {
    Ok(ledger.read_events(None, Some(REQUEST_EVENT)).await?.len())
}

/// A request that nobody took up yet.
pub struct Request {
    id: String,
    table: String,
    /// Folder of the table.
    pub folder: String,
}

/// The requests that nobody took up yet.
///
/// # Errors
/// The ledger can't be read.
pub async fn pending(ledger: &Ledger) -> Result<Vec<Request>> {
    let text = |event: &Event, key: &str| {
        event.detail.get(key).and_then(|text| text.as_str()).unwrap_or_default().to_owned()
    };
    let taken: BTreeSet<String> = ledger
        .read_events(None, Some(TAKEN_EVENT))
        .await?
        .iter()
        .map(|event| text(event, "id"))
        .collect();
    let requests = ledger.read_events(None, Some(REQUEST_EVENT)).await?;
    let request = |event: Event| Request {
        id: text(&event, "id"),
        folder: text(&event, "folder"),
        table: event.table,
    };
    Ok(requests.into_iter().map(request).filter(|request| !taken.contains(&request.id)).collect())
}

/// Marks the tables that somebody asked for.
///
/// # Errors
/// The ledger failing.
pub async fn take_up(session: &mut Session, requests: &[Request]) -> Result<()> {
    if requests.is_empty() {
        return Ok(());
    }
    let ledger = session.ledger_mut()?;
    let mut state = ledger.state().clone();
    let fence = ledger.fence().map(|fence| fence.lsn);
    let mut events = Vec::with_capacity(requests.len());
    for Request { id, table, folder } in requests {
        events.push(Event::now("", TAKEN_EVENT, table, serde_json::json!({ "id": id })));
        if let Some(known) = state.tables.iter_mut().find(|table| table.folder == *folder) {
            tracing::info!(table = known.display(), "is read again, as asked for");
            known.set_apart(AGAIN, "asked for", fence);
        }
    }
    ledger.set_state(state, &events).await?;
    failpoint::at("again.marked")
}

/// Stopped tables that can be tried again, as they are others now, and tables that are new: both
/// are marked to be read. Those that `failed` in this process wait for the next one.
///
/// # Errors
/// The ledger failing.
pub async fn take_in(
    session: &mut Session,
    found: &Found,
    failed: &BTreeSet<String>,
) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    let mut any = false;
    let stopped =
        |table: &&mut TableEntry| table.phase == STOPPED && !failed.contains(&table.folder);
    for known in state.tables.iter_mut().filter(stopped) {
        let Some(info) = found.named(&known.schema, &known.name) else { continue };
        if (known.oid, &known.fingerprint) != (info.oid, &info.shape()) {
            tracing::info!(table = known.display(), "is another one now, and is read anew");
            known.set_apart(AGAIN, "it is another one than the one that was left", None);
            any = true;
        }
    }
    for info in &found.infos {
        let folder = Lake::table_folder(&info.schema, &info.name);
        if state.tables.iter().any(|table| table.folder == folder) {
            continue;
        }
        tracing::info!(table = info.display(), "is new, and is read");
        state.tables.push(TableEntry::unread(&info.schema, &info.name, folder));
        any = true;
    }
    if any {
        session.ledger_mut()?.set_state(state, &[]).await?;
        failpoint::at("again.marked")?;
    }
    Ok(())
}

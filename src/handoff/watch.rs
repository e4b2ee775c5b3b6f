//! What the stream itself does not tell: that the publication stopped sending, or why a slot failed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::handoff::published::{self, Published};
use crate::handoff::rules::{self, Resume};
use crate::handoff::run::refuse;
use crate::handoff::session::Session;
use crate::lake::{Ledger, Phase};
use crate::observe::stop::StopSignal;
use crate::source::client;
use crate::source::wire::sqlstate;

/// How often it is looked whether the publication still sends every change.
const WATCH_EVERY: Duration = Duration::from_secs(5);

/// What the server says in the middle of the stream when slot or publication are gone is a failure
/// like any other; looked at from outside it is a lost history.
pub(super) async fn explained(session: &Session, error: Error) -> Error {
    if error.is_transient() || sqlstate(&error).is_none() {
        return error;
    }
    match lost_history(&session.config).await {
        Ok(Some(lost)) => lost,
        _ => error,
    }
}

/// Whether the source, as it is now, does not continue what the lake holds: why, and what to do.
///
/// # Errors
/// Source or lake can't be asked.
pub async fn lost_history(config: &Config) -> Result<Option<Error>> {
    let session = Session::open(config).await?;
    let Some(ledger) = &session.ledger else { return Ok(None) };
    let fence = ledger.fence().map(|f| f.lsn);
    if let Resume::Refuse(refusal) = session.resume(fence.unwrap_or_default()).await? {
        let error = refuse(refusal, &session);
        return Ok(rules::is_lost_history(&error).then_some(error));
    }
    if ledger.state().phase != Phase::Live {
        return Ok(None);
    }
    let published = Published::recorded(ledger.state(), session.server.version);
    let tables = published::tables(&session, &session.client).await?;
    match published.still(&session.client, &tables).await {
        Err(error) if rules::is_lost_history(&error) => Ok(Some(error)),
        other => other.map(|()| None),
    }
}

/// Looks, while the stream flows, whether the publication still sends every change.
pub(super) struct Watch {
    /// Set when the stream must end: as asked from outside, or because it does not.
    pub stop: StopSignal,
    lost: Arc<Mutex<Option<Error>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Watch {
    pub async fn start(session: &Session, stop: &StopSignal) -> Result<Watch> {
        let tables = published::tables(session, &session.client).await?;
        let ledger = session.ledger.as_ref();
        let state = ledger.map(Ledger::state).ok_or_else(|| Error::failed("no ledger"))?;
        let published = Published::recorded(state, session.server.version);
        let (source, asked) = (session.source.clone(), stop.clone());
        let stop = StopSignal::manual();
        let lost = Arc::new(Mutex::new(None));
        let forward = {
            let stop = stop.clone();
            tokio::spawn(async move {
                asked.requested().await;
                stop.request();
            })
        };
        let look = {
            let (stop, lost) = (stop.clone(), Arc::clone(&lost));
            tokio::spawn(async move {
                let mut connection = None;
                loop {
                    tokio::time::sleep(WATCH_EVERY).await;
                    if connection.is_none() {
                        connection = client::connect(&source).await.ok();
                    }
                    let Some(client) = &connection else { continue };
                    match published.still(client, &tables).await {
                        Ok(()) => {}
                        Err(error) if rules::is_lost_history(&error) => {
                            *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                            stop.request();
                            return;
                        }
                        Err(error) => {
                            tracing::debug!("the publication can't be looked at: {error}");
                            connection = None;
                        }
                    }
                }
            })
        };
        Ok(Watch { stop, lost, tasks: vec![forward, look] })
    }

    /// What was found.
    pub fn end(self) -> Option<Error> {
        for task in self.tasks {
            task.abort();
        }
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

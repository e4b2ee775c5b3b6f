//! What the stream itself does not tell: that the publication stopped sending, or why a slot failed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::handoff::published::{self, Published};
use crate::handoff::rules::{self, Resume};
use crate::handoff::run::refuse;
use crate::handoff::session::Session;
use crate::handoff::tables;
use crate::lake::Phase;
use crate::observe::stop::StopSignal;
use crate::source::catalog::{self, TableInfo};
use crate::source::client::{self, Client};
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

/// Looks, while the stream flows, whether the publication still sends every change, and whether the
/// tables are still as they were.
pub(super) struct Watch {
    /// Set when the stream must end: as asked from outside, or because of what was seen.
    pub stop: StopSignal,
    seen: Arc<Mutex<Saw>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// What the server answers to a new connection while it shuts down, and to none while it streams
/// otherwise (`cannot_connect_now`).
const SHUTTING_DOWN: &str = "57P03";

/// What a watch saw.
#[derive(Default)]
pub(super) struct Saw {
    /// The history is lost, or the server shuts down.
    pub lost: Option<Error>,
    /// A table changed, came or went.
    pub changed: bool,
}

impl Watch {
    pub async fn start(session: &Session, stop: &StopSignal) -> Result<Watch> {
        let state = session.ledger()?.state();
        let followed = published::tables(session, &session.client).await?;
        let look = Look {
            published: Published::recorded(state, session.server.version),
            followed,
            patterns: tables::patterns(session)?,
            version: session.server.version,
        };
        let before = catalog::signatures(&session.client, &look.patterns, look.version).await?;
        let (source, asked) = (session.source.clone(), stop.clone());
        let stop = StopSignal::manual();
        let seen = Arc::new(Mutex::new(Saw::default()));
        let forward = {
            let stop = stop.clone();
            tokio::spawn(async move {
                asked.requested().await;
                stop.request();
            })
        };
        let look = {
            let (stop, seen) = (stop.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                let mut connection = None;
                loop {
                    tokio::time::sleep(WATCH_EVERY).await;
                    let looked = async {
                        let client = match connection.take() {
                            Some(client) => client,
                            None => client::connect(&source).await?,
                        };
                        let saw = look.once(&client, &before).await?;
                        connection = Some(client);
                        Ok(saw)
                    };
                    let saw = match looked.await {
                        Ok(None) => continue,
                        Ok(Some(saw)) => saw,
                        // A server that shuts down waits until what it sent is confirmed, and lets
                        // nobody in meanwhile: where the fence waits for a table that is read again,
                        // both would wait for ever.
                        Err(error) if sqlstate(&error) == Some(SHUTTING_DOWN) => {
                            Saw { lost: Some(error), changed: false }
                        }
                        Err(error) => {
                            tracing::debug!("the source can't be looked at: {error}");
                            continue;
                        }
                    };
                    *seen.lock().unwrap_or_else(PoisonError::into_inner) = saw;
                    stop.request();
                    return;
                }
            })
        };
        Ok(Watch { stop, seen, tasks: vec![forward, look] })
    }

    /// What was seen.
    pub fn end(self) -> Saw {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Look {
    published: Published,
    followed: Vec<TableInfo>,
    patterns: Vec<String>,
    version: u32,
}

impl Look {
    async fn once(&self, client: &Client, before: &[(u32, String)]) -> Result<Option<Saw>> {
        let published = self.published.still(client, &self.followed).await;
        // After that: of a table that was dropped in between the publication is no judge.
        if catalog::signatures(client, &self.patterns, self.version).await? != *before {
            return Ok(Some(Saw { lost: None, changed: true }));
        }
        match published {
            Ok(()) => Ok(None),
            Err(error) if rules::is_lost_history(&error) => {
                Ok(Some(Saw { lost: Some(error), changed: false }))
            }
            Err(error) => Err(error),
        }
    }
}

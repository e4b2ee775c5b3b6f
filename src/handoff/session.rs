//! What a command works with: the source, the lake and the pipeline's ledger, opened and compared.

use std::path::PathBuf;
use std::sync::Arc;

use crate::source::client::Client;

use crate::apply::plan::TablePlan;
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::handoff::follow::OpenTable;
use crate::handoff::guard::Guard;
use crate::handoff::rules::{self, Recorded, Resume};
use crate::handoff::spool;
use crate::lake::{Lake, Ledger, Phase, PipelineState, SourceIdentity};
use crate::observe::metrics::Metrics;
use crate::source::catalog::{ServerInfo, TableInfo};
use crate::source::client::{self, query_error};
use crate::source::options::{ConnectOptions, History, Secret};
use crate::source::slot::{self, SlotInfo, SlotOptions};
use crate::source::types::TypeCatalog;
use crate::source::wire::{ServerSession, SessionKind, SystemId, Wire};

/// The first version with slots that standbys keep in step.
const FAILOVER_VERSION: u32 = 170_000;

/// What of the source's objects this pipeline made, and may drop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadeHere {
    /// The slot.
    pub slot: bool,
    /// The publication.
    pub publication: bool,
}

/// Source, lake and ledger of a pipeline.
pub struct Session {
    /// The configuration.
    pub config: Config,
    /// How to reach the source.
    pub source: ConnectOptions,
    /// The catalog connection, to the server of [`ConnectOptions::history`].
    pub client: Client,
    /// It, as other connections to the same server see it.
    pub anchor: ServerSession,
    /// The server.
    pub server: ServerInfo,
    /// Its identity, from `IDENTIFY_SYSTEM`.
    pub system: SystemId,
    /// The lake.
    pub lake: Lake,
    /// The ledger, if the lake has one.
    pub ledger: Option<Ledger>,
    /// The watch over retained WAL, once there is a slot to watch.
    pub guard: Option<Guard>,
    /// The tables as the stream left them, for when it goes on.
    pub kept: Vec<OpenTable>,
    /// Chunks recorded by this session: what progress is measured by before there is a fence.
    pub chunks_recorded: u64,
    /// What the run counts; nobody's, for a command that does not run.
    pub metrics: Arc<Metrics>,
}

/// The source's connection options, from the configuration.
pub fn connect_options(config: &Config) -> Result<ConnectOptions> {
    let source = config.source()?;
    let mut options = ConnectOptions::from_url(&source.url)?;
    if !source.url.contains("connect_timeout") {
        options.connect_timeout = config.limits.connect_timeout;
    }
    options.silence_limit = config.limits.source_timeout;
    if let Some(password) = source.password()? {
        options.password = Some(Secret::new(password));
    }
    Ok(options)
}

impl Session {
    /// Connects to source and lake, and reads the ledger.
    ///
    /// # Errors
    /// Anything that is not reachable, and a lake of another pipeline.
    pub async fn open(config: &Config) -> Result<Session> {
        let mut source = connect_options(config)?;
        let client = client::connect(&source).await?;
        let server = ServerInfo::load(&client).await?;
        let anchor = own_session(&client).await?;
        let system = look_at(&source, anchor.clone()).await?;
        source.history = Some(History {
            system_identifier: system.system_identifier,
            timeline: system.timeline,
        });
        let lake = Lake::open_patiently(config.lake()?, config.limits.retry_for)?;
        let ledger = Ledger::open(&lake).await?;
        if let Some(ledger) = &ledger {
            belongs_to(ledger.state(), config)?;
        }
        Ok(Session {
            config: config.clone(),
            source,
            client,
            anchor,
            server,
            system,
            lake,
            ledger,
            guard: None,
            kept: Vec::new(),
            chunks_recorded: 0,
            metrics: Arc::default(),
        })
    }

    /// The identity of the source as checkpoints record it.
    pub fn identity(&self, contract: &str) -> SourceIdentity {
        SourceIdentity {
            system_identifier: self.system.system_identifier.to_string(),
            timeline: self.system.timeline,
            database: self.server.database.clone(),
            slot: self.config.name.clone(),
            publication: self.config.name.clone(),
            contract: contract.to_owned(),
        }
    }

    /// Whether slot and publication of the pipeline's name are ours to drop: a run of this pipeline
    /// made them, here. On another server or in another database they are somebody else's, and so
    /// is a publication that was made anew under our publication's name.
    ///
    /// # Errors
    /// A failing query.
    pub async fn made_here(&self) -> Result<MadeHere> {
        let Some(state) = self.ledger.as_ref().map(Ledger::state) else {
            return Ok(MadeHere::default());
        };
        let here = state.source.system_identifier == self.system.system_identifier.to_string()
            && state.source.database == self.server.database;
        if !here {
            return Ok(MadeHere::default());
        }
        let name = &self.config.name;
        let found = slot::publication_info(&self.client, name, self.server.version).await?;
        let recorded = state.source.contract.split('.').nth(1);
        let publication = found.is_some_and(|found| {
            let same = recorded.is_none_or(|oid| oid == found.oid.to_string());
            state.created_publication && same || found.made_by.as_ref() == Some(&state.run)
        });
        Ok(MadeHere { slot: state.created_slot, publication })
    }

    /// How the pipeline's slot is made on this server.
    ///
    /// # Errors
    /// `failover = true` where the server can't.
    pub fn slot_options(&self) -> Result<SlotOptions> {
        if self.server.in_recovery {
            tracing::info!(
                "the source is a standby: the slot waits until its primary logs its running \
                 transactions; where that is idle, run SELECT pg_log_standby_snapshot() there"
            );
        }
        let can = self.server.version >= FAILOVER_VERSION && !self.server.in_recovery;
        match self.config.handoff.failover {
            Some(true) if !can => Err(Error::new(
                Kind::Check,
                "[handoff] failover = true is not possible: the server is a standby or older than \
                 PostgreSQL 17",
            )
            .next("remove the key, or connect to a primary of 17 or later")),
            wanted => Ok(SlotOptions { temporary: false, failover: wanted.unwrap_or(can) }),
        }
    }

    /// The pipeline's slot, if it exists.
    pub async fn slot(&self) -> Result<Option<SlotInfo>> {
        slot::slot_info(&self.client, &self.config.name).await
    }

    /// What of the run's changes is in the lake's spool.
    pub fn spooled(&self) -> Option<rules::Spooled> {
        self.ledger.as_ref().and_then(spool::recorded).map(spool::range)
    }

    /// Whether the slot still sends everything that commits at or after `from`.
    ///
    /// # Errors
    /// The refusal; a failing query.
    pub async fn slot_still_sends(&self, from: crate::position::Lsn) -> Result<()> {
        let slot = self.slot().await?;
        let names = slot.as_ref().map(SlotInfo::names).unwrap_or_default();
        let slot = slot.as_ref().map(|slot| as_ruled(slot, &names));
        rules::may_stream(from, slot.as_ref()).map_err(|refusal| {
            let subject = refusal.subject(&self.config.name);
            Error::from(refusal).at(subject)
        })
    }

    /// What a start does with what it finds.
    pub async fn resume(&self, reached: crate::position::Lsn) -> Result<Resume> {
        let slot = self.slot().await?;
        // Asked anew: the server's log has grown since the session began.
        let found = identify(&self.source).await?;
        let system = found.system_identifier.to_string();
        let identity = rules::Identity {
            system_identifier: &system,
            timeline: found.timeline,
            database: &self.server.database,
        };
        let state = self.ledger.as_ref().map(Ledger::state);
        let fence =
            self.ledger.as_ref().and_then(Ledger::fence).map_or_else(Default::default, |f| f.lsn);
        let left_timeline_at = match state {
            Some(state) if state.source.timeline < found.timeline => {
                self.left_timeline(state.source.timeline, found.timeline).await?
            }
            _ => None,
        };
        let server = rules::Server { identity, position: found.xlogpos, left_timeline_at };
        let recorded = state.map(|state| Recorded {
            identity: rules::Identity {
                system_identifier: &state.source.system_identifier,
                timeline: state.source.timeline,
                database: &state.source.database,
            },
            phase: phase(state.phase),
            base: match state.phase {
                Phase::Failed => Default::default(),
                _ => state.base.unwrap_or_default(),
            },
            fence,
            reached: reached.max(fence).max(copied_to(state)),
            spool: self.spooled(),
        });
        let names = slot.as_ref().map(SlotInfo::names).unwrap_or_default();
        let slot = slot.as_ref().map(|slot| as_ruled(slot, &names));
        let resume = rules::resume(recorded.as_ref(), &server, slot.as_ref());
        match resume {
            Resume::Stream { .. } => match self.same_history().await? {
                Some(refusal) => Ok(Resume::Refuse(refusal)),
                None => Ok(resume),
            },
            _ => Ok(resume),
        }
    }

    /// Looks whether the server's log still has the last transaction we applied: positions and
    /// timeline of a server restored from a copy of its disk prove nothing once it has written
    /// enough. Where that log is gone, as when the tables have been idle for long, or the server
    /// does not let us read it, there is no such proof.
    async fn same_history(&self) -> Result<Option<rules::Refusal>> {
        let fence = self.ledger.as_ref().and_then(Ledger::fence);
        let (Some(last), Some(ledger)) = (fence.and_then(|fence| fence.last), &self.ledger) else {
            return Ok(None);
        };
        let (source, timeline) = (self.source.clone(), ledger.state().source.timeline);
        let end = fence.map(|fence| fence.lsn).unwrap_or_default();
        let found = blocking(move || {
            Wire::connect(&source, SessionKind::Replication)?.commit_record(last.lsn, end, timeline)
        })
        .await;
        match found {
            Ok(Some(found))
                if found.committed_at_us == last.committed_at_us
                    && found.xid.is_none_or(|xid| xid == last.xid) =>
            {
                Ok(None)
            }
            Ok(_) => Ok(Some(rules::Refusal::OtherHistory { at: last.lsn })),
            Err(error) if error.is_transient() => Err(error),
            Err(error) => {
                tracing::debug!("the log at {} can't be looked at: {error}", last.lsn);
                Ok(None)
            }
        }
    }

    async fn left_timeline(
        &self,
        recorded: u32,
        current: u32,
    ) -> Result<Option<crate::position::Lsn>> {
        let source = self.source.clone();
        blocking(move || {
            let mut wire = Wire::connect(&source, SessionKind::Replication)?;
            let history = wire.timeline_history(current)?;
            Ok(history.iter().find(|entry| entry.timeline == recorded).map(|entry| entry.switch))
        })
        .await
    }

    /// The plans of tables.
    ///
    /// # Errors
    /// A table that can't be replicated.
    pub fn plans(&self, tables: &[TableInfo], types: &TypeCatalog) -> Result<Vec<Arc<TablePlan>>> {
        tables
            .iter()
            .map(|table| {
                let folder = Lake::table_folder(&table.schema, &table.name);
                TablePlan::new(table, types, folder, &self.config.column_prefix).map(Arc::new)
            })
            .collect()
    }

    /// The ledger, which must be there.
    pub fn ledger(&self) -> Result<&Ledger> {
        self.ledger.as_ref().ok_or_else(no_ledger)
    }

    /// The ledger, which must be there.
    pub fn ledger_mut(&mut self) -> Result<&mut Ledger> {
        self.ledger.as_mut().ok_or_else(no_ledger)
    }

    /// The ledger, for somebody else to write.
    pub fn take_ledger(&mut self) -> Result<Ledger> {
        self.ledger.take().ok_or_else(no_ledger)
    }

    /// Folder for what this host keeps of the pipeline.
    pub fn state_folder(&self) -> PathBuf {
        let lake = xxhash_rust::xxh3::xxh3_64(self.lake.url().as_str().as_bytes());
        self.config.state_dir.join(format!("{lake:016x}"))
    }

    /// Folder of the location index of a table.
    pub fn index_folder(&self, plan: &TablePlan) -> PathBuf {
        self.state_folder().join(&plan.folder)
    }
}

fn no_ledger() -> Error {
    Error::failed("the lake has no ledger").next("start a pipeline with `tidegate run`")
}

/// The highest position that chunks of an unpublished run may show.
fn copied_to(state: &PipelineState) -> crate::position::Lsn {
    match state.phase {
        Phase::Live | Phase::Failed => Default::default(),
        Phase::Snapshot | Phase::Drain | Phase::Publish => {
            state.boundary.as_ref().map(|boundary| boundary.base).unwrap_or_default()
        }
    }
}

/// The slot as the rules see it; `names` are its own.
fn as_ruled<'a>(slot: &SlotInfo, names: &'a (String, String)) -> rules::Slot<'a> {
    rules::Slot {
        database: &names.0,
        plugin: &names.1,
        active: slot.active,
        confirmed: slot.confirmed,
        lost: slot.lost().is_some(),
    }
}

/// The system that `session` is on.
async fn look_at(source: &ConnectOptions, session: ServerSession) -> Result<SystemId> {
    let source = source.clone();
    blocking(move || {
        let mut wire = Wire::connect(&source, SessionKind::Replication)?;
        wire.must_know(&session)?;
        wire.identify_system()
    })
    .await
}

async fn own_session(client: &Client) -> Result<ServerSession> {
    let failed = |e| query_error("looking at our own session", e);
    let rows = client.simple_query(ServerSession::QUERY).await.map_err(failed)?;
    let row = rows.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => {
            ServerSession::of((0..row.len()).map(|i| row.get(i).map(str::to_owned)))
        }
        _ => None,
    });
    row.ok_or_else(|| Error::failed("the server does not know our session").next("report this"))
}

/// The server's identity and the end of its log.
async fn identify(source: &ConnectOptions) -> Result<SystemId> {
    let source = source.clone();
    blocking(move || Wire::connect(&source, SessionKind::Replication)?.identify_system()).await
}

/// Refuses a lake that another pipeline keeps.
pub fn belongs_to(state: &PipelineState, config: &Config) -> Result<()> {
    if state.pipeline == config.name {
        return Ok(());
    }
    Err(Error::new(
        Kind::Check,
        format!("the lake belongs to the pipeline {:?}, not to {:?}", state.pipeline, config.name),
    )
    .next(format!("give this pipeline another --lake, or run it with --name {}", state.pipeline)))
}

fn phase(phase: Phase) -> rules::Phase {
    match phase {
        Phase::Snapshot | Phase::Drain | Phase::Failed => rules::Phase::Copying,
        Phase::Publish => rules::Phase::Publishing,
        Phase::Live => rules::Phase::Streaming,
    }
}

/// Runs blocking work on a thread that may wait.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::failed("a worker thread died").because(e).next("report this"))?
}

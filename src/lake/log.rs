//! One Delta log: read once, then kept by the commits we make.
//!
//! A commit is one create-only put of version `N+1`. Whatever is answered, the commit that lies
//! there decides (see [`judge`](super::judge)); nothing is ever retried blindly. The cost does not
//! grow with the table: no listing, no scan of the log.

use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::Utc;
use deltalake::DeltaTableError;
use deltalake::kernel::EagerSnapshot;
use deltalake::kernel::transaction::TransactionError;
use deltalake::logstore::{CommitOrBytes, LogStoreRef};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::actions::{Action, Commit, CommitInfo, ENGINE, Metadata, Protocol, to_bytes};
use super::judge::{Expected, Verdict, judge};
use super::patience;
use super::store::{Lake, WHEN_THE_STORE_WORKS, store_error};
use crate::error::{Error, Kind, Result};
use crate::failpoint;

/// A writer that did not look at the log for so long may have slept through a clean-up of it. Half
/// of the least retention (`[maintenance] retain_versions_for`).
const SLEPT: Duration = Duration::from_secs(60);

/// A Delta log and the state it is in.
#[derive(Clone)]
pub(super) struct TableLog {
    pub lake: Lake,
    pub folder: String,
    pub store: LogStoreRef,
    pub version: u64,
    /// In-commit timestamp of `version`.
    pub timestamp: i64,
    pub metadata: Metadata,
    pub protocol: Protocol,
    /// A put may still be stored although its failure was reported: read the log again first.
    pub uncertain: bool,
    /// When `version` was known to be in the log.
    pub seen: Instant,
}

/// What came of a commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is stored, at this version.
    Done(u64),
    /// It is not stored: others moved rows to other files. Load again and redo.
    Rewritten,
}

/// Names of the failure points and rules of one kind of log.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub domains: &'static [&'static str],
    pub shared: bool,
    pub before: &'static str,
    pub after: &'static str,
}

/// A commit to make.
pub(super) struct Draft {
    /// Unique name of the operation.
    pub operation: String,
    pub info: CommitInfo,
    pub actions: Vec<Action>,
}

impl Draft {
    fn bytes(&self, timestamp: i64, read: Option<u64>) -> Result<Bytes> {
        let info = CommitInfo {
            timestamp: Some(timestamp),
            in_commit_timestamp: Some(timestamp),
            read_version: read.map(|v| v as i64),
            isolation_level: Some("Serializable".into()),
            is_blind_append: Some(false),
            engine_info: Some(ENGINE.into()),
            txn_id: Some(self.operation.clone()),
            ..self.info.clone()
        };
        // In-commit timestamps demand that commitInfo comes first.
        let mut out = to_bytes(&[Action::CommitInfo(Box::new(info))])?;
        out.extend(to_bytes(&self.actions)?);
        Ok(out.into())
    }
}

impl TableLog {
    /// Creates a table with version 0.
    ///
    /// # Errors
    /// There is a table already ([`Kind::Fenced`] if Tidegate made it); the store fails.
    pub async fn create(
        lake: &Lake,
        folder: &str,
        metadata: Metadata,
        protocol: Protocol,
        draft: &Draft,
        rules: Rules,
    ) -> Result<TableLog> {
        let store = lake.log_store(folder)?;
        let timestamp = Utc::now().timestamp_millis();
        let mut log = TableLog {
            lake: lake.clone(),
            folder: folder.to_owned(),
            store,
            version: 0,
            timestamp,
            metadata,
            protocol,
            uncertain: false,
            seen: Instant::now(),
        };
        let bytes = draft.bytes(timestamp, None)?;
        let mut waits = lake.patience().waits();
        loop {
            failpoint::at(rules.before)?;
            let Err(error) = log.write(0, bytes.clone(), rules).await else { break };
            match log.read(0).await {
                Ok(Some(found))
                    if found.info().and_then(|i| i.txn_id.as_deref())
                        == Some(draft.operation.as_str()) =>
                {
                    log.make_durable(0).await?;
                    break;
                }
                Ok(Some(found)) => {
                    let engine = found
                        .info()
                        .and_then(|i| i.engine_info.clone())
                        .unwrap_or_else(|| "an unknown program".into());
                    let kind =
                        if engine.starts_with("tidegate/") { Kind::Fenced } else { Kind::Failed };
                    return Err(Error::new(
                        kind,
                        format!("{folder}: a table was created here by {engine} in the meantime"),
                    )
                    .next(
                        "see which writer is right; then run again, or move the other table away",
                    ));
                }
                Ok(None) if !error.is_transient() => return Err(error),
                Err(look) if !look.is_transient() => return Err(look),
                Ok(None) | Err(_) => {}
            }
            let Some(wait) = waits.next() else { return Err(log.gave_up(0, error)) };
            tracing::warn!(wait_ms = wait.as_millis() as u64, "{error}; trying again");
            waits.pause(wait).await;
        }
        log.timestamp = log.timestamp_of(0).await?.unwrap_or(timestamp);
        Ok(log)
    }

    /// Reads the newest version; `None` if there is no table.
    ///
    /// # Errors
    /// The log can't be read.
    pub async fn load(lake: &Lake, folder: &str) -> Result<Option<(TableLog, EagerSnapshot)>> {
        Self::load_at(lake, folder, None).await
    }

    /// Reads a version, the newest if none is named; `None` if there is no table.
    ///
    /// # Errors
    /// The log can't be read, or does not have the version.
    pub async fn load_at(
        lake: &Lake,
        folder: &str,
        version: Option<u64>,
    ) -> Result<Option<(TableLog, EagerSnapshot)>> {
        let store = lake.log_store(folder)?;
        let wrong = |e| delta_error(format!("reading the log of {folder}"), e);
        if !store.is_delta_table_location().await.map_err(wrong)? {
            return Ok(None);
        }
        // A commit whose writer died in the act shows before its name is durable. What builds on
        // it must not outlive it.
        lake.sync_folder(&format!("{folder}/_delta_log")).await?;
        let snapshot = EagerSnapshot::try_new(store.as_ref(), version).await.map_err(wrong)?;
        let mut log = TableLog {
            lake: lake.clone(),
            folder: folder.to_owned(),
            store,
            version: snapshot.version(),
            timestamp: 0,
            metadata: convert(snapshot.metadata())?,
            protocol: convert(snapshot.protocol())?,
            uncertain: false,
            seen: Instant::now(),
        };
        log.timestamp =
            log.timestamp_of(log.version).await?.unwrap_or_else(|| Utc::now().timestamp_millis());
        Ok(Some((log, snapshot)))
    }

    /// Commits a draft above the version we know.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if another writer of the pipeline committed; failed if others changed the
    /// table; transient if the store failed — then the table must be opened again.
    pub async fn put(&mut self, draft: &Draft, rules: Rules) -> Result<Put> {
        if self.uncertain {
            return Err(Error::transient(format!(
                "{}: the last commit's outcome is unknown",
                self.folder
            ))
            .next("open the table again"));
        }
        failpoint::at(rules.before)?;
        let began = Instant::now();
        if self.seen.elapsed() > SLEPT {
            self.still_there(self.version).await?;
        }
        let answer = self.put_and_look(draft, rules).await?;
        if let (Put::Done(version), true) = (&answer, began.elapsed() > SLEPT)
            && let Err(error) = self.still_there(version.saturating_sub(1)).await
        {
            self.uncertain = true;
            return Err(error);
        }
        self.seen = Instant::now();
        Ok(answer)
    }

    /// The log may have been cut above `version` while this process slept: then the next version
    /// is free, and a put of it would meet no other writer.
    async fn still_there(&self, version: u64) -> Result<()> {
        match self.read(version).await? {
            Some(_) => Ok(()),
            None => Err(Error::transient(format!(
                "{}: its log was cleaned up beyond version {version} meanwhile",
                self.folder
            ))
            .next("nothing; it is read again")),
        }
    }

    async fn put_and_look(&mut self, draft: &Draft, rules: Rules) -> Result<Put> {
        // Until it is known whether the commit is in the log.
        self.uncertain = true;
        let lake = self.lake.clone();
        let mut waits = lake.patience().waits();
        loop {
            let next = self.version + 1;
            let timestamp = Utc::now().timestamp_millis().max(self.timestamp + 1);
            let bytes = draft.bytes(timestamp, Some(self.version))?;
            let Err(error) = self.write(next, bytes, rules).await else {
                self.uncertain = false;
                self.settle(next, timestamp, &draft.actions);
                return Ok(Put::Done(next));
            };
            match self.look_above(&draft.operation, rules).await {
                Ok(Above::Ours { timestamp }) => {
                    let found = self.version + 1;
                    self.make_durable(found).await?;
                    self.uncertain = false;
                    self.settle(found, timestamp, &draft.actions);
                    return Ok(Put::Done(found));
                }
                Ok(Above::Rewritten) => {
                    self.uncertain = false;
                    lake.patience().count_conflict();
                    return Ok(Put::Rewritten);
                }
                Ok(Above::Harmless) => {
                    lake.patience().count_conflict();
                    continue;
                }
                Ok(Above::Nothing) if !error.is_transient() => return Err(error),
                Err(look) if !look.is_transient() => return Err(look),
                Ok(Above::Nothing) | Err(_) => {}
            }
            let Some(wait) = waits.next() else { return Err(self.gave_up(next, error)) };
            tracing::warn!(wait_ms = wait.as_millis() as u64, "{error}; trying again");
            waits.pause(wait).await;
        }
    }

    /// What was found in the log may not be durable yet: its writer died, or did not get so far.
    async fn make_durable(&self, version: u64) -> Result<()> {
        self.lake.sync(&format!("{}/_delta_log/{version:020}.json", self.folder)).await
    }

    fn gave_up(&self, version: u64, error: Error) -> Error {
        let why = self.lake.patience().gave_up(error);
        let kind = patience::kind_of(&why).unwrap_or(Kind::Failed);
        Error::new(kind, format!("committing version {version} of {}", self.folder))
            .because(why)
            .next(WHEN_THE_STORE_WORKS)
    }

    async fn write(&self, version: u64, bytes: Bytes, rules: Rules) -> Result<()> {
        let written = self
            .store
            .write_commit_entry(version, CommitOrBytes::LogBytes(bytes), Uuid::new_v4())
            .await;
        written.map_err(|e| {
            let doing = format!("committing version {version} of {}", self.folder);
            match e {
                TransactionError::VersionAlreadyExists(_) => {
                    Error::transient(format!("{doing}: the version exists"))
                }
                TransactionError::ObjectStore { source } => store_error(doing, source),
                other => Error::transient(doing).because(other),
            }
        })?;
        failpoint::at(rules.after)
    }

    fn settle(&mut self, version: u64, timestamp: i64, actions: &[Action]) {
        self.version = version;
        self.timestamp = timestamp;
        for action in actions {
            match action {
                Action::MetaData(metadata) => self.metadata = metadata.as_ref().clone(),
                Action::Protocol(protocol) => self.protocol = protocol.clone(),
                _ => {}
            }
        }
    }

    /// Looks at what lies above the version we know, and adopts what is harmless.
    async fn look_above(&mut self, operation: &str, rules: Rules) -> Result<Above> {
        let mut seen = Above::Nothing;
        loop {
            let version = self.version + 1;
            let Some(commit) = self.read(version).await? else { return Ok(seen) };
            match self.judge(version, &commit, operation, rules)? {
                Judged::Ours => {
                    let timestamp = commit
                        .info()
                        .and_then(|i| i.in_commit_timestamp)
                        .unwrap_or(self.timestamp + 1);
                    return Ok(Above::Ours { timestamp });
                }
                Judged::Rewrite => return Ok(Above::Rewritten),
                Judged::Harmless => {
                    let timestamp = commit.info().and_then(|i| i.in_commit_timestamp);
                    self.settle(version, timestamp.unwrap_or(self.timestamp + 1), &commit.actions);
                    seen = Above::Harmless;
                }
            }
        }
    }

    /// Judges a commit above ours, and says in words what can't be followed.
    fn judge(
        &self,
        version: u64,
        commit: &Commit,
        operation: &str,
        rules: Rules,
    ) -> Result<Judged> {
        let expected = Expected {
            operation,
            domains: rules.domains,
            metadata: &self.metadata,
            protocol: &self.protocol,
            shared: rules.shared,
        };
        match judge(commit, &expected) {
            Verdict::Ours => Ok(Judged::Ours),
            Verdict::Harmless => Ok(Judged::Harmless),
            Verdict::Rewrite => Ok(Judged::Rewrite),
            Verdict::Fenced => Err(Error::new(
                Kind::Fenced,
                format!("{}: version {version} was committed by another writer of the pipeline", self.folder),
            )
            .next("let only one tidegate run write the pipeline; this one ends")),
            Verdict::Stop { operation, why } => Err(Error::failed(format!(
                "{}: version {version} ({operation}) was committed by another program and can't be followed: {why}",
                self.folder
            ))
            .next("read the table again with `tidegate reseed`, and keep other writers away")),
        }
    }

    /// Judges every commit above `version`, which was the last of ours.
    ///
    /// # Errors
    /// As [`TableLog::put`]; [`Kind::HistoryLost`] if a commit is gone.
    pub async fn judge_since(&self, version: u64, rules: Rules) -> Result<bool> {
        let mut rewritten = false;
        for version in version + 1..=self.version {
            let commit = self.read(version).await?.ok_or_else(|| self.gone(version))?;
            rewritten |= self.judge(version, &commit, "", rules)? == Judged::Rewrite;
        }
        Ok(rewritten)
    }

    /// Error: a commit that should be in the log is not.
    pub fn gone(&self, version: u64) -> Error {
        Error::new(
            Kind::HistoryLost,
            format!(
                "{}: version {version} is gone from the log, so what others did can't be known",
                self.folder
            ),
        )
        .next("read the table again with `tidegate reseed`")
    }

    /// Reads a commit; `None` if it is not there.
    ///
    /// # Errors
    /// The store fails, or the commit is not one of Delta.
    pub async fn read(&self, version: u64) -> Result<Option<Commit>> {
        let doing = || format!("reading version {version} of {}", self.folder);
        let Some(bytes) =
            self.store.read_commit_entry(version).await.map_err(|e| delta_error(doing(), e))?
        else {
            return Ok(None);
        };
        Commit::parse(&bytes)
            .map(Some)
            .map_err(|e| Error::failed(format!("{}: it is no Delta commit", doing())).because(e))
    }

    async fn timestamp_of(&self, version: u64) -> Result<Option<i64>> {
        let commit = self.read(version).await?;
        Ok(commit.and_then(|c| c.info().and_then(|i| i.in_commit_timestamp.or(i.timestamp))))
    }

    /// The text of a domain in a snapshot of this log.
    ///
    /// # Errors
    /// The log can't be read.
    pub async fn domain(&self, snapshot: &EagerSnapshot, name: &str) -> Result<Option<String>> {
        let found = snapshot.domain_metadata(self.store.as_ref(), name).await;
        found.map_err(|e| delta_error(format!("reading the domain {name} of {}", self.folder), e))
    }
}

enum Above {
    Nothing,
    Harmless,
    Ours { timestamp: i64 },
    Rewritten,
}

#[derive(PartialEq, Eq)]
enum Judged {
    Ours,
    Harmless,
    Rewrite,
}

/// An error of deltalake. Transient if the store may recover.
pub(super) fn delta_error(doing: String, error: DeltaTableError) -> Error {
    let kind = match (patience::kind_of(&error), &error) {
        (Some(kind), _) => kind,
        // The kernel gives its cause as a text only. What the store was tried for in vain is in it.
        (None, DeltaTableError::KernelError(kernel)) => {
            let text = kernel.to_string();
            let store = text.contains("object store") && !text.contains("did not recover");
            if store { Kind::Transient } else { Kind::Failed }
        }
        (None, _) => Kind::Failed,
    };
    let wrong = Error::new(kind, doing).because(error);
    if kind == Kind::Transient { wrong } else { wrong.next(WHEN_THE_STORE_WORKS) }
}

/// A value of the Delta kernel as ours, by way of the JSON both have from the protocol.
pub(super) fn convert<T: DeserializeOwned>(value: &impl Serialize) -> Result<T> {
    serde_json::to_value(value)
        .and_then(serde_json::from_value)
        .map_err(|e| Error::failed("the table's metadata can't be read").because(e))
}

//! Reads tables of a live pipeline again, beside the stream, and puts them in their place.
//!
//! Which tables is in the ledger (phase `again`), so a start goes on with it. Nothing of a table is
//! followed meanwhile and its last version stays; the others go on, with the fence held. What is
//! copied when the process dies is lost and copied again.

use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::rules;
use crate::handoff::session::Session;
use crate::handoff::snapshot::{self, Apart, Wanted};
use crate::handoff::tables;
use crate::lake::ledger::{AGAIN, LIVE, STOPPED};
use crate::lake::{Event, FileNo, LakeTable, PipelineState, TableEntry};
use crate::observe::stop::StopSignal;
use crate::source::catalog;
use crate::source::check;
use crate::source::slot;

/// Kind of the event by which it is recorded that versions of a table do not show the cuts between
/// two fences: it was not followed from `after` on, and read again at `until`.
pub const GAP_EVENT: &str = "gap";

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const GIVE_UP_WITHIN: Duration = Duration::from_secs(5);

/// What came of one table, or of several that were copied together.
pub enum Read {
    /// Copied and validated; to be published.
    Copied(Box<Apart>, Vec<Entry>),
    /// It can't be replicated as it is now: folder, the columns it has, and why.
    Refused(Entry, String),
    /// It could not be read, for good: folder, and why.
    Failed(String, String),
}

/// What the ledger will say of a table.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    folder: String,
    oid: u32,
    fingerprint: String,
    /// As which it is tried again where it is refused ([`catalog::TableInfo::shape`]).
    shape: String,
    membership: String,
}

/// The reading, on tasks of its own.
pub struct Reading {
    task: tokio::task::JoinHandle<Vec<Read>>,
    stop: StopSignal,
    /// Requested once the task has ended.
    pub done: StopSignal,
}

impl Reading {
    /// Begins. The fence must be held from before this until [`publish`].
    pub fn start(config: &Config, state: &PipelineState) -> Option<Reading> {
        let folders: Vec<String> = state
            .tables
            .iter()
            .filter(|table| table.phase == AGAIN)
            .map(|table| table.folder.clone())
            .collect();
        if folders.is_empty() {
            return None;
        }
        let (stop, done) = (StopSignal::manual(), StopSignal::manual());
        let task = {
            let (config, stop, done) = (config.clone(), stop.clone(), done.clone());
            tokio::spawn(async move {
                // However it ends, somebody waits for it.
                let _ended = Ended(done);
                all(&config, folders, &stop).await
            })
        };
        Some(Reading { task, stop, done })
    }

    /// What came of it; what was not finished when it was asked to stop is not among it.
    ///
    /// # Errors
    /// The task died.
    pub async fn end(self) -> Result<Vec<Read>> {
        self.task.await.map_err(|e| {
            Error::failed("reading tables again died").because(e).next("report this, and run again")
        })
    }

    /// Ends it without a result. A boundary that waits for the source's running transactions is not
    /// waited for: what comes of it goes with its connection.
    pub async fn give_up(mut self) {
        self.stop.request();
        match tokio::time::timeout(GIVE_UP_WITHIN, &mut self.task).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!("reading tables again died: {error}"),
            Err(_) => self.task.abort(),
        }
    }
}

/// Requests the signal when it is dropped.
struct Ended(StopSignal);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.request();
    }
}

/// All of them at one boundary; where that is refused, one by one, so that none holds up another.
async fn all(config: &Config, folders: Vec<String>, stop: &StopSignal) -> Vec<Read> {
    match patiently(config, &folders, stop).await {
        Ok(read) => read,
        Err(_) if folders.len() > 1 => {
            let mut read = Vec::with_capacity(folders.len());
            for folder in folders {
                let one = [folder];
                match patiently(config, &one, stop).await {
                    Ok(one) => read.extend(one),
                    Err(error) => read.extend(failed(&one, &error)),
                }
            }
            read
        }
        Err(error) => failed(&folders, &error).into_iter().collect(),
    }
}

fn failed(folders: &[String], error: &Error) -> Option<Read> {
    let why =
        format!("{}; the next start tries again, and `tidegate reseed` does", error.in_a_line());
    Some(Read::Failed(folders.first()?.clone(), why))
}

/// Tries until it is done, stopped, or refused for good: the stream of the others does not wait.
async fn patiently(config: &Config, folders: &[String], stop: &StopSignal) -> Result<Vec<Read>> {
    let mut wait = FIRST_WAIT;
    loop {
        let error = match once(config, folders, stop).await {
            Err(error) if error.is_transient() && !stop.is_set() => error,
            Err(_) if stop.is_set() => return Ok(Vec::new()),
            other => return other,
        };
        tracing::warn!(tables = folders.len(), "reading tables again: {error}; trying again");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.requested() => return Ok(Vec::new()),
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn once(config: &Config, folders: &[String], stop: &StopSignal) -> Result<Vec<Read>> {
    let session = Session::open(config).await?;
    let mut state = session.ledger()?.state().clone();
    let entries: Vec<TableEntry> =
        state.tables.iter().filter(|table| folders.contains(&table.folder)).cloned().collect();
    let mut read = Vec::new();
    let mut wanted = Vec::new();
    let mut infos = Vec::new();
    let found = tables::look(&session).await?;
    let findings = findings(&session, &entries).await?;
    for entry in &entries {
        let Some(info) = found.named(&entry.schema, &entry.name) else {
            read.push(Read::Refused(Entry::gone(entry), found.why_not(entry)));
            continue;
        };
        let (subject, now) = (info.display(), Entry::of(entry, info));
        let place = place(&session, &entry.folder).await;
        let existing = place.as_ref().ok().and_then(|(existing, _)| existing.as_ref());
        let same = existing.is_some_and(|table| table.checkpoint().table.oid == info.oid);
        // Of the same table it is known under which name a column went.
        let counts = |finding: &&check::Finding| {
            finding.subject == subject && !(same && finding.id == catalog::UNKNOWN)
        };
        let why = match findings.iter().find(counts) {
            Some(finding) => Some(format!("{} (fix: {})", finding.what, finding.fix)),
            None => existing.and_then(|t| tables::renamed_away(t, info, &config.treatments)),
        };
        if let Some(why) = why {
            read.push(Read::Refused(now, why));
            continue;
        }
        match (found.plan(info, &config.column_prefix), place) {
            (Ok(plan), Ok((existing, next_file_no))) => {
                infos.push(info.clone());
                wanted.push((now, Wanted { info: info.clone(), plan, existing, next_file_no }));
            }
            (_, Err(error)) if error.is_transient() => return Err(error),
            (Err(error), _) | (_, Err(error)) => {
                read.push(Read::Refused(now, error.in_a_line()));
            }
        }
    }
    if wanted.is_empty() {
        return Ok(read);
    }
    let (client, name) = (&session.client, &config.name);
    let (ours, run, version) = (state.created_publication, &state.run, session.server.version);
    let publication = slot::ensure_publication(client, name, &infos, ours, run, version).await?;
    failpoint::at("again.publication")?;
    state.run = uuid::Uuid::now_v7().to_string();
    let (mut now, wanted): (Vec<Entry>, Vec<Wanted>) = wanted.into_iter().unzip();
    for entry in &mut now {
        entry.membership = publication.membership(entry.oid).to_owned();
    }
    tracing::info!(tables = wanted.len(), "reading tables again");
    if let Some(apart) = snapshot::copy_apart(&session, &state, wanted, stop).await? {
        read.push(Read::Copied(Box::new(apart), now));
    }
    Ok(read)
}

/// The lake table in the folder, and the first number that new files there may have.
///
/// # Errors
/// The folder holds what is not ours.
async fn place(session: &Session, folder: &str) -> Result<(Option<LakeTable>, FileNo)> {
    let lake = &session.lake;
    let unused = lake.unused_file_no(folder).await?;
    let not_ours = match LakeTable::open_to_replace(lake, folder).await? {
        Some(table) if table.checkpoint().pipeline == session.config.name => {
            let next = unused.max(table.next_file_no());
            return Ok((Some(table), next));
        }
        Some(_) => Some(folder.to_owned()),
        None if lake.unpublished(folder).await?.is_empty() => lake.first_file(folder).await?,
        None => None,
    };
    match not_ours {
        None => Ok((None, unused)),
        Some(found) => Err(Error::failed(format!(
            "its folder in the lake holds data that is not this pipeline's ({found})"
        ))
        .next("move that folder away, then `tidegate reseed` the table")),
    }
}

impl Entry {
    fn of(entry: &TableEntry, info: &catalog::TableInfo) -> Entry {
        Entry {
            folder: entry.folder.clone(),
            oid: info.oid,
            fingerprint: info.fingerprint(),
            shape: info.shape(),
            membership: String::new(),
        }
    }

    /// A table that comes back under the name is another one, whatever it looks like.
    fn gone(entry: &TableEntry) -> Entry {
        Entry { folder: entry.folder.clone(), ..Entry::default() }
    }
}

/// What the check says against replicating these tables.
async fn findings(session: &Session, entries: &[TableEntry]) -> Result<Vec<check::Finding>> {
    let request = check::CheckRequest {
        tables: &entries
            .iter()
            .map(|entry| catalog::for_table(&entry.schema, &entry.name))
            .collect::<Vec<_>>(),
        treatments: &session.config.treatments,
        column_prefix: &session.config.column_prefix,
        slot: &session.config.name,
        publication: &session.config.name,
        started: true,
        publication_ours: session.made_here().await?.publication,
        server: Some(&session.server),
    };
    let report = check::check(&session.client, &request).await?;
    let errors = report.findings.into_iter();
    // These are not all tables of a section.
    let counts = |finding: &check::Finding| {
        finding.severity == check::Severity::Error && finding.id != catalog::NOWHERE
    };
    Ok(errors.filter(counts).collect())
}

/// Publishes what was read; records what was refused. The fence must still be held. Gives the
/// folders of tables that could not be read: nothing of them changes while this process runs.
///
/// # Errors
/// Ledger or lake failing; a table that another process wrote.
pub async fn publish(session: &mut Session, read: Vec<Read>) -> Result<Vec<String>> {
    // A process that was taken over while it copied ends here.
    session.ledger_mut()?.claim().await?;
    let mut failed = Vec::new();
    for read in read {
        match read {
            Read::Refused(entry, why) => stop(session, &entry, &why).await?,
            Read::Failed(folder, why) => {
                // Recorded as one that is gone, so that another process takes it up again.
                let entry = Entry { folder, ..Entry::default() };
                stop(session, &entry, &why).await?;
                failed.push(entry.folder);
            }
            Read::Copied(apart, entries) => {
                let base = apart.base;
                let fence = session.ledger_mut()?.fence().map(|fence| fence.lsn);
                if !rules::may_join(base, fence.unwrap_or_default()) {
                    return Err(Error::failed(format!(
                        "tables were read again at {base}, which is below the fence"
                    ))
                    .next("report this; they are read again at the next start"));
                }
                let mut now = session.ledger_mut()?.state().clone();
                let state = PipelineState { run: apart.run.clone(), ..now.clone() };
                snapshot::publish_apart(session, &state, *apart).await?;
                let mut events = Vec::with_capacity(entries.len());
                for entry in entries {
                    let Some(known) = now.tables.iter_mut().find(|t| t.folder == entry.folder)
                    else {
                        continue;
                    };
                    let after = known.followed_to.take();
                    known.phase = LIVE.to_owned();
                    known.why = None;
                    known.oid = entry.oid;
                    known.fingerprint = entry.fingerprint.clone();
                    known.membership = entry.membership.clone();
                    let detail = serde_json::json!({
                        "folder": entry.folder, "after": after, "until": base
                    });
                    events.push(Event::now(&state.run, GAP_EVENT, &known.display(), detail));
                }
                session.ledger_mut()?.set_state(now, &events).await?;
                failpoint::at("again.recorded")?;
            }
        }
    }
    Ok(failed)
}

async fn stop(session: &mut Session, entry: &Entry, why: &str) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    let fence = session.ledger_mut()?.fence().map(|fence| fence.lsn);
    if let Some(known) = state.tables.iter_mut().find(|table| table.folder == entry.folder) {
        tracing::error!(table = known.display(), "is not followed, the others go on: {why}");
        known.set_apart(STOPPED, why, fence);
        known.oid = entry.oid;
        known.fingerprint = entry.shape.clone();
    }
    session.ledger_mut()?.set_state(state, &[]).await
}

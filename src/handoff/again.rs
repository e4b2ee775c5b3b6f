//! Reads tables of a live pipeline again, beside the stream, and puts them in their place.
//!
//! Which tables is in the ledger (phase `again`), so a start goes on with it. Nothing of a table is
//! followed meanwhile and its last version stays; the others go on, with the fence held. What is
//! copied when the process dies is lost and copied again.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::rules;
use crate::handoff::session::Session;
use crate::handoff::snapshot::{self, Apart, Wanted};
use crate::handoff::tables;
use crate::lake::ledger::{AGAIN, LIVE, STOPPED};
use crate::lake::{Event, FileNo, Lake, LakeTable, Ledger, PipelineState, TableEntry};
use crate::observe::stop::StopSignal;
use crate::source::check;
use crate::source::slot;

/// Kind of the event by which it is recorded that versions of a table do not show the cuts between
/// two fences: it was not followed from `after` on, and read again at `until`.
pub const GAP_EVENT: &str = "gap";

/// Kind of the event by which somebody asks that a table is read again.
pub const REQUEST_EVENT: &str = "reseed";
/// Kind of the event by which such a request is known to be taken up.
const TAKEN_EVENT: &str = "reseed_taken";

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
#[derive(Clone, Debug)]
pub struct Entry {
    folder: String,
    oid: u32,
    fingerprint: String,
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
        self.task.await.map_err(|e| Error::failed("reading tables again died").because(e))
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
    let why = format!("{}; `tidegate reseed` tries again", in_a_line(error));
    Some(Read::Failed(folders.first()?.clone(), why))
}

fn in_a_line(error: &Error) -> String {
    error.to_string().replace("\n  ", "; ")
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
    let mut state = match &session.ledger {
        Some(ledger) => ledger.state().clone(),
        None => return Err(Error::failed("the lake has no ledger")),
    };
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
        let (subject, now) = (info.display(), Entry::of(entry, info.oid, info.fingerprint()));
        if let Some(finding) = findings.iter().find(|finding| finding.subject == subject) {
            read.push(Read::Refused(now, format!("{} (fix: {})", finding.what, finding.fix)));
            continue;
        }
        let place = place(&session, &entry.folder).await;
        match (found.plan(info, &config.column_prefix), place) {
            (Ok(plan), Ok(next_file_no)) => {
                infos.push(info.clone());
                wanted.push((now, Wanted { info: info.clone(), plan, next_file_no }));
            }
            (_, Err(error)) if error.is_transient() => return Err(error),
            (Err(error), _) | (_, Err(error)) => read.push(Read::Refused(now, in_a_line(&error))),
        }
    }
    if wanted.is_empty() {
        return Ok(read);
    }
    let (client, name) = (&session.client, &config.name);
    let ours = state.created_publication;
    let publication =
        slot::ensure_publication(client, name, &infos, ours, session.server.version).await?;
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

/// The first number that new files in the folder may have.
///
/// # Errors
/// The folder holds what is not ours.
async fn place(session: &Session, folder: &str) -> Result<FileNo> {
    let lake = &session.lake;
    let unused = lake.unused_file_no(folder).await?;
    let not_ours = match LakeTable::open(lake, folder).await? {
        Some(table) if table.checkpoint().pipeline == session.config.name => {
            return Ok(unused.max(table.next_file_no()));
        }
        Some(_) => Some(folder.to_owned()),
        None if lake.unpublished(folder).await?.is_empty() => lake.first_file(folder).await?,
        None => None,
    };
    match not_ours {
        None => Ok(unused),
        Some(found) => Err(Error::failed(format!(
            "its folder in the lake holds data that is not this pipeline's ({found})"
        ))
        .next("move that folder away, then `tidegate reseed` the table")),
    }
}

impl Entry {
    fn of(entry: &TableEntry, oid: u32, fingerprint: String) -> Entry {
        Entry { folder: entry.folder.clone(), oid, fingerprint, membership: String::new() }
    }

    /// A table that comes back under the name is another one, whatever it looks like.
    fn gone(entry: &TableEntry) -> Entry {
        Entry::of(entry, 0, String::new())
    }
}

/// What the check says against replicating these tables.
async fn findings(session: &Session, entries: &[TableEntry]) -> Result<Vec<check::Finding>> {
    let request = check::CheckRequest {
        tables: &entries
            .iter()
            .map(|entry| crate::source::catalog::for_table(&entry.schema, &entry.name))
            .collect::<Vec<_>>(),
        slot: &session.config.name,
        publication: &session.config.name,
        started: true,
        publication_ours: session.made_here().await?.publication,
        server: Some(&session.server),
    };
    let report = check::check(&session.client, &request).await?;
    let errors = report.findings.into_iter();
    Ok(errors.filter(|finding| finding.severity == check::Severity::Error).collect())
}

/// Publishes what was read; records what was refused. The fence must still be held, and the ledger
/// ours.
///
/// # Errors
/// Ledger or lake failing; a table that another process wrote.
pub async fn publish(session: &mut Session, read: Vec<Read>) -> Result<()> {
    for read in read {
        match read {
            Read::Refused(entry, why) => {
                stop_table(session, &entry, &why).await?;
            }
            Read::Failed(folder, why) => {
                let found = tables::look(session).await?;
                mark(session, &found, &[(folder, tables::Verdict::Stop(why))]).await?;
            }
            Read::Copied(apart, entries) => {
                let Apart { base, run, tables } = *apart;
                let fence = session.ledger_mut()?.fence().map(|fence| fence.lsn);
                if !rules::may_join(base, fence.unwrap_or_default()) {
                    return Err(Error::failed(format!(
                        "tables were read again at {base}, which is below the fence"
                    ))
                    .next("report this; they are read again at the next start"));
                }
                let state = PipelineState { run, ..session.ledger_mut()?.state().clone() };
                for (table, entry) in tables.into_iter().zip(entries) {
                    snapshot::publish_apart(session, &state, table, base).await?;
                    let mut now = session.ledger_mut()?.state().clone();
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
                    let event = Event::now(&state.run, GAP_EVENT, &known.display(), detail);
                    session.ledger_mut()?.set_state(now, &[event]).await?;
                    failpoint::at("again.recorded")?;
                }
            }
        }
    }
    Ok(())
}

async fn stop_table(session: &mut Session, entry: &Entry, why: &str) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    let fence = session.ledger_mut()?.fence().map(|fence| fence.lsn);
    if let Some(known) = state.tables.iter_mut().find(|table| table.folder == entry.folder) {
        tracing::error!(table = known.display(), "is no longer followed, the others go on: {why}");
        known.phase = STOPPED.to_owned();
        known.why = Some(why.to_owned());
        known.followed_to = known.followed_to.or(fence);
        known.oid = entry.oid;
        known.fingerprint = entry.fingerprint.clone();
    }
    session.ledger_mut()?.set_state(state, &[]).await
}

/// Marks tables in the ledger: to be read again, or no longer followed.
///
/// # Errors
/// The ledger failing.
pub async fn mark(
    session: &mut Session,
    found: &tables::Found,
    marks: &[(String, tables::Verdict)],
) -> Result<()> {
    let mut state = session.ledger_mut()?.state().clone();
    let fence = session.ledger_mut()?.fence().map(|fence| fence.lsn);
    for (folder, verdict) in marks {
        let Some(known) = state.tables.iter_mut().find(|table| table.folder == *folder) else {
            continue;
        };
        match verdict {
            tables::Verdict::Again(why) => {
                tracing::warn!(table = known.display(), "is read again: {why}");
                known.phase = AGAIN.to_owned();
                known.why = Some(why.clone());
            }
            tables::Verdict::Stop(why) => {
                tracing::error!(
                    table = known.display(),
                    "is no longer followed, the others go on: {why}"
                );
                known.phase = STOPPED.to_owned();
                known.why = Some(why.clone());
                // As another one it is tried again.
                let now = found.named(&known.schema, &known.name);
                (known.oid, known.fingerprint) =
                    now.map_or_else(Default::default, |info| (info.oid, info.fingerprint()));
            }
            tables::Verdict::Follow(_) => continue,
        }
        known.followed_to = known.followed_to.or(fence);
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

/// Marks the tables that somebody asked for.
///
/// # Errors
/// The ledger failing.
pub async fn take_requests(session: &mut Session) -> Result<()> {
    let ledger = session.ledger_mut()?;
    let text = |event: &Event, key: &str| {
        event.detail.get(key).and_then(|text| text.as_str()).unwrap_or_default().to_owned()
    };
    let taken: BTreeSet<String> = ledger
        .read_events(None, Some(TAKEN_EVENT))
        .await?
        .iter()
        .map(|event| text(event, "id"))
        .collect();
    let mut state = ledger.state().clone();
    let fence = ledger.fence().map(|fence| fence.lsn);
    let mut events = Vec::new();
    for request in ledger.read_events(None, Some(REQUEST_EVENT)).await? {
        let (folder, id) = (text(&request, "folder"), text(&request, "id"));
        if taken.contains(&id) {
            continue;
        }
        let detail = serde_json::json!({ "id": id });
        events.push(Event::now("", TAKEN_EVENT, &request.table, detail));
        if let Some(known) = state.tables.iter_mut().find(|table| table.folder == folder) {
            tracing::info!(table = known.display(), "is read again, as asked for");
            known.phase = AGAIN.to_owned();
            known.why = Some("asked for".to_owned());
            known.followed_to = known.followed_to.or(fence);
        }
    }
    if events.is_empty() {
        return Ok(());
    }
    ledger.set_state(state, &events).await?;
    failpoint::at("again.marked")
}

/// Stopped tables that can be tried again, as they are others now, and tables that are new: both
/// are marked to be read.
///
/// # Errors
/// The ledger failing.
pub async fn take_in(session: &mut Session, found: &tables::Found) -> Result<bool> {
    let mut state = session.ledger_mut()?.state().clone();
    let mut any = false;
    for known in state.tables.iter_mut().filter(|table| table.phase == STOPPED) {
        let Some(info) = found.named(&known.schema, &known.name) else { continue };
        if (known.oid, &known.fingerprint) != (info.oid, &info.fingerprint()) {
            tracing::info!(table = known.display(), "is another one now, and is read anew");
            known.phase = AGAIN.to_owned();
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
    Ok(any)
}

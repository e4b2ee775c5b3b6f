//! Follows a live pipeline whose tables change at the source.
//!
//! ```text
//!   look at the catalog ─► open the tables as the lake has them ─► follow ─────────────╮
//!        ▲                                                           │                 │
//!        │          the stream names a table otherwise ◄─────────────┤                 ▼
//!        │   bring all before it, then that table's schema           │              target
//!        │                                                           │
//!        ├── the catalog has another table: bring all before now, then judge ◄─────────┤
//!        ╰── tables were read again: publish them ◄────────────────────────────────────╯
//! ```
//!
//! What concerns one table stops no other: it is followed in place, or read again while the others
//! go on, or no longer followed and said so.

use std::collections::{BTreeMap, BTreeSet};

use crate::apply::collect::Changed;
use crate::apply::known::KnownTable;
use crate::config::OnSchemaChange;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::again::{self, Reading};
use crate::handoff::follow::{Followed, OpenTable, Target, Unfit, follow, reached};
use crate::handoff::guard::Guard;
use crate::handoff::marks;
use crate::handoff::published::{self, Published};
use crate::handoff::rules::Resume;
use crate::handoff::run::{follow_timeline, nudge, refuse};
use crate::handoff::session::Session;
use crate::handoff::tables::{self, Found, Verdict};
use crate::handoff::watch::{Watch, explained};
use crate::lake::{Change, CommitOutcome, LakeTable, Tag, VersionKind};
use crate::observe::stop::StopSignal;
use crate::position::Lsn;
use crate::source::catalog;

/// Follows until the target, or until told to stop. Gives the fence reached.
///
/// # Errors
/// Transient ones may be tried again from the durable fence; definite ones stop the pipeline.
pub async fn stream(
    session: &mut Session,
    target: Target,
    newcomers: Newcomers,
    stop: &StopSignal,
) -> Result<Lsn> {
    let mut live = Live {
        session,
        target,
        newcomers,
        stop,
        settle_at: None,
        passed: Lsn::ZERO,
        last: None,
        unfit: BTreeMap::new(),
        failed: BTreeSet::new(),
    };
    let mut reading = None;
    let result = live.until_done(&mut reading).await;
    if let Some(reading) = reading.take() {
        reading.give_up().await;
    }
    result
}

/// Whether tables that the patterns choose and the pipeline does not have yet join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newcomers {
    /// They do.
    Join,
    /// They don't.
    Wait,
}

struct Live<'a> {
    session: &'a mut Session,
    target: Target,
    newcomers: Newcomers,
    stop: &'a StopSignal,
    /// Where what the catalog says is judged: everything that had committed when it was found comes
    /// first, as it may show a change at its right place.
    settle_at: Option<Lsn>,
    /// Everything before this is in the tables.
    passed: Lsn,
    /// The change that was met last: table and position.
    last: Option<(u32, Lsn)>,
    /// How often a change did not fit a table, by its folder.
    unfit: BTreeMap<String, u32>,
    /// Folders of tables that could not be read again.
    failed: BTreeSet<String>,
}

/// A table that is unfit so often is not read again.
const UNFIT: u32 = 3;

/// What comes next.
enum Next {
    /// Look again.
    Again,
    Done(Lsn),
}

impl Live<'_> {
    async fn until_done(&mut self, reading: &mut Option<Reading>) -> Result<Lsn> {
        loop {
            if let Next::Done(fence) = self.round(reading).await? {
                return Ok(fence);
            }
        }
    }

    async fn round(&mut self, reading: &mut Option<Reading>) -> Result<Next> {
        // Before the look, so that what changes after it is seen.
        let watch = Watch::start(self.session, self.stop).await?;
        let found = tables::look(self.session).await?;
        // Of what is to be read again it does not matter what others did to it.
        let requests = marks::pending(self.session.ledger()?).await?;
        let apart = requests.iter().map(|request| request.folder.as_str()).collect();
        let mut opened = tables::open(self.session, &found, &apart).await?;
        self.proven(&opened.tables).await?;
        self.settle(&found, Vec::new(), opened.apart).await?;
        marks::take_up(self.session, &requests).await?;
        if self.newcomers == Newcomers::Join {
            marks::take_in(self.session, &found, &self.failed).await?;
        }
        let state = self.session.ledger_mut()?.state();
        let follows = |folder: &str| {
            state.tables.iter().any(|entry| entry.folder == folder && entry.is_followed())
        };
        opened.tables.retain(|open| follows(&open.plan.folder));
        let mut differences = tables::differences(self.session, &found, &opened.tables);
        // What is read again needs nothing of the stream before that.
        let again = |(_, verdict): &mut (String, Verdict)| matches!(verdict, Verdict::Again(_));
        let again: Vec<_> = differences.extract_if(.., again).collect();
        if !again.is_empty() && !self.stops() {
            self.settle(&found, opened.tables, again).await?;
            return Ok(Next::Again);
        }
        differences.extend(again);
        match self.settle_at {
            _ if differences.is_empty() => self.settle_at = None,
            Some(at) if self.passed >= at => {
                self.settle_at = None;
                self.settle(&found, opened.tables, differences).await?;
                return Ok(Next::Again);
            }
            Some(_) => {}
            None => {
                let in_recovery = self.session.server.in_recovery;
                let now = catalog::insert_lsn(&self.session.client, in_recovery).await?;
                self.settle_at = Some(now);
            }
        }
        if reading.is_none() {
            let state = self.session.ledger_mut()?.state().clone();
            *reading = Reading::start(&self.session.config, &state);
        }
        let holds_fence = reading.is_some();
        let read = reading.as_ref().map(|reading| {
            let (done, stop) = (reading.done.clone(), watch.stop.clone());
            tokio::spawn(async move {
                done.requested().await;
                stop.request();
            })
        });
        // Beyond the target, if need be: whether a change came before it only the stream can tell.
        let until = self.settle_at.map_or(self.target, Target::Lsn);
        tracing::debug!(?until, holds_fence, ?differences, passed = %self.passed, "following");
        let nudge = nudge(self.session, until);
        let followed = follow(self.session, opened.tables, until, holds_fence, &watch.stop).await;
        nudge.abort();
        if let Some(read) = read {
            read.abort();
        }
        let saw = watch.end();
        if let Some(lost) = saw.lost {
            return Err(lost);
        }
        match followed {
            Err(error) => return Err(explained(self.session, error).await),
            Ok(Followed::To(at)) => self.passed = self.passed.max(at),
            Ok(Followed::Unfit(unfit)) => {
                self.unfit(&found, unfit).await?;
                return Ok(Next::Again);
            }
            Ok(Followed::Changed(changed)) => {
                self.follow_change(&found, *changed, holds_fence).await?;
                return Ok(Next::Again);
            }
        }
        self.after(reading, saw.changed).await
    }

    /// The stream ended at a target or because somebody asked it to.
    async fn after(&mut self, reading: &mut Option<Reading>, changed: bool) -> Result<Next> {
        let fence = self.session.ledger_mut()?.fence().map(|fence| fence.lsn).unwrap_or_default();
        if self.stop.is_set() {
            return Ok(Next::Done(fence));
        }
        let at_target = matches!(self.target, Target::Lsn(until) if self.passed >= until);
        if let Some(at_work) = reading.take() {
            let waits = at_target && self.settle_at.is_none() && !changed;
            if !waits && !at_work.done.is_set() {
                *reading = Some(at_work);
                return Ok(Next::Again);
            }
            // The others have come to the target and wait for it.
            tokio::select! {
                () = at_work.done.requested() => {}
                () = self.stop.requested() => {
                    *reading = Some(at_work);
                    return Ok(Next::Done(fence));
                }
            }
            let read = at_work.end().await?;
            self.failed.extend(again::publish(self.session, read).await?);
            // Now all of them go from the fence.
            self.passed = Lsn::ZERO;
            return Ok(Next::Again);
        }
        Ok(match self.settle_at {
            None if at_target && !changed => Next::Done(fence),
            _ => Next::Again,
        })
    }

    /// What was looked at once is looked at again with the tables open.
    async fn proven(&mut self, tables: &[OpenTable]) -> Result<()> {
        if let Resume::Refuse(refusal) = self.session.resume(reached(tables)).await? {
            return Err(refuse(refusal, self.session));
        }
        let session = &mut *self.session;
        let version = session.server.version;
        let published = Published::recorded(session.ledger_mut()?.state(), version);
        let followed = published::tables(session, &session.client).await?;
        published.still(&session.client, &followed).await?;
        follow_timeline(session).await?;
        if session.ledger_mut()?.epoch().is_none() {
            session.ledger_mut()?.claim().await?;
        }
        if self.session.guard.is_none() {
            self.session.guard = Some(Guard::start(self.session));
        }
        Ok(())
    }

    /// A table that the stream names otherwise: everything before that transaction first.
    async fn follow_change(
        &mut self,
        found: &Found,
        changed: Changed,
        holds_fence: bool,
    ) -> Result<()> {
        let opened = tables::open(self.session, found, &BTreeSet::new()).await?;
        // A table that is beyond already can't be at that position with the others.
        let torn = reached(&opened.tables) > changed.at;
        let watch = Watch::start(self.session, self.stop).await?;
        let target = Target::Lsn(changed.at);
        let followed =
            follow(self.session, opened.tables, target, holds_fence || torn, &watch.stop).await;
        let saw = watch.end();
        if let Some(lost) = saw.lost {
            return Err(lost);
        }
        match followed {
            Err(error) => return Err(explained(self.session, error).await),
            Ok(Followed::To(at)) if at >= changed.at => self.passed = self.passed.max(at),
            // Asked to stop: it is met again.
            Ok(Followed::To(_)) => return Ok(()),
            Ok(Followed::Unfit(unfit)) => return self.unfit(found, unfit).await,
            Ok(Followed::Changed(before)) => {
                return Err(Error::failed(format!(
                    "the stream names the table {} otherwise at {}, and did not a moment ago",
                    before.relation.name, before.at
                ))
                .next("run again; report this if it happens again"));
            }
        }
        // The catalog may have gone on; what it says now is what counts.
        let found = tables::look(self.session).await?;
        let here = |open: &OpenTable| open.plan.oid == changed.relation.oid;
        let place = self.session.kept.iter().position(here).ok_or_else(|| {
            Error::failed(format!("the table {} changed, and is not open", changed.relation.name))
                .next("run again; report this if it happens again")
        })?;
        let open = self.session.kept.swap_remove(place);
        let info = found.named(&open.plan.schema, &open.plan.name);
        let prefix = self.session.config.column_prefix.clone();
        let met = (changed.relation.oid, changed.at);
        let verdict = if self.last.replace(met) == Some(met) {
            // It was followed and does not fit all the same.
            Verdict::Again(changed.what.clone())
        } else {
            tables::against_stream(&open.plan, &changed, info, &found, &prefix)
        };
        tracing::info!(table = %open.plan, at = %changed.at, "changed: {}", changed.what);
        let folder = open.plan.folder.clone();
        self.settle(&found, vec![open], vec![(folder, verdict)]).await
    }

    fn stops(&self) -> bool {
        self.session.config.on_schema_change == OnSchemaChange::Stop
    }

    /// A table to which a change does not fit is not guessed at.
    async fn unfit(&mut self, found: &Found, unfit: Unfit) -> Result<()> {
        let times = self.unfit.entry(unfit.folder.clone()).or_default();
        *times += 1;
        let verdict = if *times > UNFIT {
            Verdict::Stop(format!(
                "{} (it was read again {UNFIT} times; report this, and `tidegate reseed` it)",
                unfit.why
            ))
        } else {
            Verdict::Again(unfit.why)
        };
        self.settle(found, Vec::new(), vec![(unfit.folder, verdict)]).await
    }

    /// Does what was judged.
    async fn settle(
        &mut self,
        found: &Found,
        mut tables: Vec<OpenTable>,
        verdicts: Vec<(String, Verdict)>,
    ) -> Result<()> {
        if verdicts.is_empty() {
            return Ok(());
        }
        // The tables were opened before this: one that another process took over since has a version
        // above the one that is known, so that no commit of ours comes to stand there.
        self.session.ledger_mut()?.claim().await?;
        let stops = self.stops();
        let judged: BTreeSet<String> = verdicts.iter().map(|(folder, _)| folder.clone()).collect();
        let mut marks = Vec::new();
        for (folder, verdict) in verdicts {
            let open = tables.iter_mut().find(|open| open.plan.folder == folder);
            match (verdict, open) {
                (Verdict::Follow(plan), Some(open)) => {
                    follow_schema(&mut open.table, &plan).await?;
                    tracing::info!(table = %plan, "its columns are followed");
                }
                (Verdict::Again(why), _) if stops => marks.push((
                    folder,
                    Verdict::Stop(format!(
                        "{why} (on_schema_change = \"stop\"); `tidegate reseed` reads it again"
                    )),
                )),
                (verdict, _) => marks.push((folder, verdict)),
            }
        }
        // What was judged is opened anew.
        tables.retain(|open| !judged.contains(&open.plan.folder));
        self.session.kept.append(&mut tables);
        if marks.is_empty() {
            return Ok(());
        }
        marks::mark(self.session, found, &marks).await
    }
}

/// One commit gives the table the columns it has from here on; its rows stay.
async fn follow_schema(table: &mut LakeTable, to: &crate::apply::plan::TablePlan) -> Result<()> {
    let known: &KnownTable = &to.known;
    let mut checkpoint = table.checkpoint().clone();
    checkpoint.table.fingerprint = to.fingerprint.clone();
    let tag = Tag::of(VersionKind::Schema, &checkpoint);
    let mut change = Change::new(checkpoint, tag);
    change.columns = Some(to.table_columns());
    change.properties = known.properties()?;
    failpoint::at("schema.commit.before")?;
    while let CommitOutcome::ForeignRewrite { .. } =
        table.commit(&change).await.map_err(|e: Error| e.at(to))?
    {}
    failpoint::at("schema.commit.after")
}

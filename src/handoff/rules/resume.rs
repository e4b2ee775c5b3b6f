//! What a start may do with what the last one left: continuity is proven or refused.

use super::spool::{Spooled, needed_from_slot};
use crate::error::{Error, Kind};
use crate::position::Lsn;

/// Where positions come from. Positions of two different identities can't be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity<'a> {
    /// `system_identifier` of `IDENTIFY_SYSTEM`: one per initdb, the same on all its standbys.
    pub system_identifier: &'a str,
    /// `timeline` of `IDENTIFY_SYSTEM`: goes up at every promotion.
    pub timeline: u32,
    /// The database the slot belongs to.
    pub database: &'a str,
}

/// How far a run has come, as the ledger has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The run was announced; slot, snapshot and chunks follow. No table exists.
    ///
    /// It is recorded *before* the slot is made: a slot without a record would be a stranger's.
    Copying,
    /// Every chunk is recorded and validated; tables are being published, some may exist.
    ///
    /// It is recorded by compare-and-swap *before* the first table is published: so a start that
    /// takes a run in [`Phase::Copying`] over knows that nobody can publish it any more.
    Publishing,
    /// Every table is published, the fence is at or after the base.
    Streaming,
}

/// What ledger and tables say about the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Recorded<'a> {
    /// The source at the time of the record.
    pub identity: Identity<'a>,
    /// How far it had come.
    pub phase: Phase,
    /// The position the first snapshot of the run shows, from which its slot keeps everything.
    /// Zero while there is none, and for a run that was given up.
    pub base: Lsn,
    /// The durable fence. Without meaning before [`Phase::Streaming`].
    pub fence: Lsn,
    /// The highest position of anything the lake holds: applied positions, bases of chunks. Not
    /// below `fence`.
    pub reached: Lsn,
    /// What of the run's changes is in the lake's spool.
    pub spool: Option<Spooled>,
}

/// What the server says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Server<'a> {
    /// The source now.
    pub identity: Identity<'a>,
    /// `xlogpos` of `IDENTIFY_SYSTEM`: the end of its log.
    pub position: Lsn,
    /// Where its history left the recorded timeline (`TIMELINE_HISTORY`), if it ever was on it.
    pub left_timeline_at: Option<Lsn>,
}

/// What `pg_replication_slots` says about the slot of our name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot<'a> {
    /// The database of the slot. Names are unique per server, so it may be another one.
    pub database: &'a str,
    /// The output plugin.
    pub plugin: &'a str,
    /// Somebody streams from it.
    pub active: bool,
    /// `confirmed_flush_lsn`: nothing that committed before it is sent again.
    pub confirmed: Lsn,
    /// `wal_status` is `lost`, or the slot was invalidated.
    pub lost: bool,
}

/// The output plugin that Tidegate's slots use.
pub const PLUGIN: &str = "pgoutput";

/// What a start does.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Resume {
    /// Nothing is recorded and no slot is there: announce a run, make the slot, copy.
    FreshSnapshot,
    /// A run ended before it published and can't be continued: take the ledger over, drop its slot,
    /// drop its files, copy again.
    RestartSnapshot,
    /// A run ended before it published, and its slot still sends everything from its first base:
    /// take the ledger over, keep the finished chunks that [`keep_chunks`](super::keep_chunks)
    /// grants, copy the rest at a new boundary.
    ResumeSnapshot,
    /// All chunks are recorded and validated, some tables are not published yet: publish these,
    /// then stream from the base.
    ContinuePublish,
    /// Stream from here. Each table skips what is below [`resume_table`](super::resume_table).
    Stream {
        /// The durable fence.
        from: Lsn,
    },
    /// Do nothing; say why.
    Refuse(Refusal),
}

impl Resume {
    /// Whether it goes on with the recorded history, so that positions of before and after are
    /// compared.
    pub fn goes_on(&self) -> bool {
        matches!(self, Resume::ResumeSnapshot | Resume::ContinuePublish | Resume::Stream { .. })
    }
}

/// Why a start, or the stream, does not go on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// The lake's positions are of another system.
    #[error("the lake follows the database system {recorded}, this server is {found}")]
    OtherSystem {
        /// As recorded.
        recorded: String,
        /// As the server says.
        found: String,
    },
    /// The lake's positions are of another database.
    #[error("the lake follows the database {recorded:?}, this is {found:?}")]
    OtherDatabase {
        /// As recorded.
        recorded: String,
        /// As connected.
        found: String,
    },
    /// The server's history is not a continuation of ours.
    #[error(
        "the lake holds timeline {recorded} up to {reached}, and the server's timeline {found} did not branch off after that"
    )]
    OtherTimeline {
        /// As recorded.
        recorded: u32,
        /// As the server says.
        found: u32,
        /// The highest position in the lake.
        reached: Lsn,
    },
    /// The server's log ends before what we have: it was restored, or lost its end.
    #[error("the lake holds changes up to {reached}, the server's log ends at {position}")]
    ServerBehind {
        /// The highest position in the lake.
        reached: Lsn,
        /// The end of the server's log.
        position: Lsn,
    },
    /// The server's log has something else where the last transaction we applied committed.
    #[error(
        "the server's log has another history: at {at} it does not have the transaction that the lake applied last, so it was restored, or its log was reset"
    )]
    OtherHistory {
        /// Where its commit record started.
        at: Lsn,
    },
    /// No slot, and so no history.
    #[error("the replication slot is gone, and with it the changes after {needed}")]
    SlotMissing {
        /// What we have up to.
        needed: Lsn,
    },
    /// The server removed log that the slot needed, or invalidated the slot.
    #[error("the server has invalidated the replication slot; changes after {needed} are lost")]
    SlotLost {
        /// What we have up to.
        needed: Lsn,
    },
    /// Somebody else moved the slot, or made a new one under its name.
    #[error(
        "the replication slot stands at {confirmed}, the lake at {needed}: changes between them were consumed by somebody else"
    )]
    SlotAdvanced {
        /// Where the slot stands.
        confirmed: Lsn,
        /// What we have up to.
        needed: Lsn,
    },
    /// The publication is gone: what was not sent meanwhile is in no stream.
    #[error("the publication is gone, and what was not published meanwhile is in no stream")]
    PublicationGone,
    /// There is one of that name, and it is another one.
    #[error(
        "the publication was dropped and made again since the snapshot; what changed in between was not published, and is in no stream"
    )]
    PublicationRemade,
    /// It is the same, and looks the same, but it was altered meanwhile, or one of its tables was
    /// taken out and put back: nobody knows what it left out.
    #[error(
        "the publication was altered since the snapshot (its options, owner, name or one of its tables), and put back or not: what it did not send meanwhile is in no stream"
    )]
    PublicationAltered,
    /// It does not send every change of the tables.
    #[error(
        "the publication was changed since the snapshot, and changes are missing from the stream: {what}"
    )]
    PublicationUnfit {
        /// What it leaves out.
        what: String,
    },
    /// A newer process has taken the ledger over.
    #[error(
        "another process has taken over the pipeline: the ledger is at version {head}, ours was {ours}"
    )]
    Overtaken {
        /// The version of our latest commit to the ledger.
        ours: u64,
        /// The ledger's latest version.
        head: u64,
    },
    /// Somebody streams from the slot.
    #[error("another process is streaming from the replication slot")]
    SlotInUse,
    /// The slot of our name belongs to another database or plugin.
    #[error("the replication slot belongs to database {database:?} and plugin {plugin:?}")]
    SlotOfAnother {
        /// The slot's database.
        database: String,
        /// The slot's plugin.
        plugin: String,
    },
    /// A slot is there, the lake knows no run.
    #[error("the replication slot exists already, and its snapshot can't be had any more")]
    SlotWithoutRun,
}

impl Refusal {
    /// The kind of error it is, and so the exit code.
    pub fn kind(&self) -> Kind {
        match self {
            Refusal::OtherSystem { .. }
            | Refusal::OtherDatabase { .. }
            | Refusal::OtherTimeline { .. }
            | Refusal::ServerBehind { .. }
            | Refusal::OtherHistory { .. }
            | Refusal::SlotMissing { .. }
            | Refusal::SlotLost { .. }
            | Refusal::SlotAdvanced { .. }
            | Refusal::PublicationGone
            | Refusal::PublicationRemade
            | Refusal::PublicationAltered
            | Refusal::PublicationUnfit { .. } => Kind::HistoryLost,
            Refusal::Overtaken { .. } | Refusal::SlotInUse => Kind::Fenced,
            Refusal::SlotOfAnother { .. } | Refusal::SlotWithoutRun => Kind::Check,
        }
    }

    /// What it is about: `slot x`, `publication x` or the server.
    pub fn subject(&self, name: &str) -> String {
        match self {
            Refusal::OtherSystem { .. }
            | Refusal::OtherDatabase { .. }
            | Refusal::OtherTimeline { .. }
            | Refusal::ServerBehind { .. }
            | Refusal::OtherHistory { .. } => "the source".to_owned(),
            Refusal::PublicationGone
            | Refusal::PublicationRemade
            | Refusal::PublicationAltered
            | Refusal::PublicationUnfit { .. } => format!("publication {name}"),
            Refusal::Overtaken { .. } => format!("pipeline {name}"),
            _ => format!("slot {name}"),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Refusal::OtherSystem { .. } | Refusal::OtherDatabase { .. } => {
                "connect to the database the lake was made from, or give this one another --lake; if it replaces that one (pg_upgrade, a restored dump, a new name), start a new generation with `tidegate run --resnapshot`"
            }
            Refusal::OtherTimeline { .. }
            | Refusal::ServerBehind { .. }
            | Refusal::OtherHistory { .. } => {
                "connect to the server that continues the history, or start a new generation with `tidegate run --resnapshot`"
            }
            Refusal::SlotLost { .. } => {
                "the tables stay as they are and readable; let the server keep its log for longer (max_slot_wal_keep_size), and start a new generation with `tidegate run --resnapshot`"
            }
            Refusal::SlotMissing { .. } | Refusal::SlotAdvanced { .. } => {
                "the tables stay as they are and readable; start a new generation with `tidegate run --resnapshot`"
            }
            Refusal::PublicationGone | Refusal::PublicationRemade | Refusal::PublicationAltered => {
                "the tables stay as they are and readable; start a new generation with `tidegate run --resnapshot`"
            }
            Refusal::PublicationUnfit { .. } => {
                "the tables stay as they are and readable; mend or drop the publication, and start a new generation with `tidegate run --resnapshot`"
            }
            Refusal::Overtaken { .. } => {
                "leave the pipeline to the other process, or stop it and run again"
            }
            Refusal::SlotInUse => "stop the other process, or give this pipeline another --name",
            Refusal::SlotOfAnother { .. } => "give this pipeline another --name",
            Refusal::SlotWithoutRun => {
                "drop the slot (SELECT pg_drop_replication_slot('…')) so that it is made together with the snapshot, or give another --name"
            }
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let (kind, next) = (refusal.kind(), refusal.next_step());
        // The refusal stays inside, for those who answer a lost history by a new generation.
        Error::new(kind, refusal.to_string()).next(next).because(refusal)
    }
}

/// Whether `error` says that the source does not continue what the lake holds. An error of the same
/// kind may come from the lake (a commit that is gone): no new snapshot answers that.
pub fn is_lost_history(error: &Error) -> bool {
    let refusal = error.cause().and_then(|cause| cause.downcast_ref::<Refusal>());
    refusal.is_some_and(|refusal| refusal.kind() == Kind::HistoryLost)
}

/// A generation, as the ledger has it, whose history was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LostGeneration {
    /// Its number, from 1.
    pub number: u64,
    /// The fence went beyond its base at least once.
    pub moved_on: bool,
    /// This process began it, in answer to another loss.
    pub begun_here: bool,
}

/// Whether a new generation may be begun without asking, where that is configured.
///
/// One that replaced another and was lost before it moved on is not replaced again: what took its
/// history (a limit on the log that a copy outlasts, somebody who advances the slot) would take the
/// next one too, each time after a whole copy.
pub fn may_start_over(lost: LostGeneration) -> bool {
    lost.moved_on || (lost.number <= 1 && !lost.begun_here)
}

/// Compares how the publication stood when the snapshot was taken with how it stands now: each is
/// what `PublicationInfo::contract` gives, `EFFECT.OID.VERSION`.
///
/// The effect (actions, roots, generated columns) must be the same, the oid
/// tells whether it is the same publication, and the version of its catalog row whether it was
/// touched since: something that was altered and put back left changes out in between. A record of
/// before there was an oid is a digest over all tables of the publication, which nothing found now
/// compares with.
pub fn same_publication(recorded: &str, found: &str) -> Result<(), Refusal> {
    let part = |text: &str, index: usize| text.split('.').nth(index).map(str::to_owned);
    if recorded.is_empty() || recorded == found {
        return Ok(());
    }
    if part(recorded, 1).is_none() {
        return Ok(());
    }
    match part(recorded, 1) == part(found, 1) {
        true => Err(Refusal::PublicationAltered),
        false => Err(Refusal::PublicationRemade),
    }
}

/// The same for one table: the versions of the catalog rows by which it is published. Empty is
/// none of its own (FOR ALL TABLES), or a record of before there was one.
pub fn same_membership(recorded: &str, found: &str) -> Result<(), Refusal> {
    match recorded.is_empty() || recorded == found {
        true => Ok(()),
        false => Err(Refusal::PublicationAltered),
    }
}

/// What a start does with what it finds: `recorded` in ledger and tables, the server, the slot.
///
/// Continuity is proven or refused, never assumed. Same system, same database, a timeline that
/// continues ours, a server whose log reaches ours, and a slot that is not lost and whose
/// confirmed position is not beyond ours: then the slot still sends everything from our fence, and
/// it does so even if it was made anew under its name.
///
/// While a run copies, nothing is visible and nothing can be lost: it goes on where its history is
/// whole, and starts again where it is not. Once it publishes, tables may exist, and another
/// process may be publishing this very moment: from then on a missing history is said, not
/// repaired.
///
/// The caller acts on it only after it took the ledger over by compare-and-swap from the version
/// it decided on, and asks [`may_stream`] again when it holds the slot: between looking and acting
/// another process may have done anything.
///
/// Wrong ways: to accept a slot because it exists (its confirmed position may be a new slot's); to
/// start above the server's position (it is accepted, and nothing ever comes).
pub fn resume(
    recorded: Option<&Recorded<'_>>,
    server: &Server<'_>,
    slot: Option<&Slot<'_>>,
) -> Resume {
    match judge(recorded, server, slot) {
        Ok(resume) => resume,
        Err(refusal) => Resume::Refuse(refusal),
    }
}

fn judge(
    recorded: Option<&Recorded<'_>>,
    server: &Server<'_>,
    slot: Option<&Slot<'_>>,
) -> Result<Resume, Refusal> {
    let Some(recorded) = recorded else {
        return match slot {
            None => Ok(Resume::FreshSnapshot),
            Some(_) => Err(Refusal::SlotWithoutRun),
        };
    };
    same_database(&recorded.identity, &server.identity)?;
    if let Some(slot) = slot {
        ours_and_free(slot, &server.identity)?;
    }
    match recorded.phase {
        Phase::Copying => {
            let needed = needed_from_slot(recorded.base, recorded.spool);
            let whole = recorded.base > Lsn::ZERO
                && continues(recorded, server, needed).is_ok()
                && may_stream(needed, slot).is_ok();
            Ok(if whole { Resume::ResumeSnapshot } else { Resume::RestartSnapshot })
        }
        Phase::Publishing => {
            let needed = needed_from_slot(recorded.base, recorded.spool);
            continues(recorded, server, needed)?;
            may_stream(needed, slot)?;
            Ok(Resume::ContinuePublish)
        }
        Phase::Streaming => {
            let needed = needed_from_slot(recorded.fence, recorded.spool);
            continues(recorded, server, needed)?;
            may_stream(needed, slot)?;
            Ok(Resume::Stream { from: recorded.fence })
        }
    }
}

/// Whether the slot still sends everything that commits at or after `from`.
///
/// To be asked again after `START_REPLICATION`, over another connection, before the first change
/// is applied: only while we hold the slot nobody else can advance or replace it. It is also to be
/// asked by a process that made the slot itself, at the beginning of its stream: another process
/// may have dropped it and made its own while chunks were copied.
///
/// Wrong way: to rely on the server. A start below the confirmed position is accepted, and moved
/// up to it without a word.
pub fn may_stream(from: Lsn, slot: Option<&Slot<'_>>) -> Result<(), Refusal> {
    match slot {
        None => Err(Refusal::SlotMissing { needed: from }),
        Some(slot) if slot.lost => Err(Refusal::SlotLost { needed: from }),
        Some(slot) if slot.confirmed > from => {
            Err(Refusal::SlotAdvanced { confirmed: slot.confirmed, needed: from })
        }
        Some(_) => Ok(()),
    }
}

/// Whether the ledger is still as we left it: `ours` is the version of our latest commit to it,
/// `head` its latest version.
///
/// To be asked once when the slot is held *and* every table has been loaded, before the first
/// batch. A newer process commits to a table only after it took the ledger over; if the ledger is
/// still ours now, whatever a newer process does to a table comes after what we loaded, and our
/// next commit to that table fails its compare-and-swap.
///
/// Wrong way: to load the tables long after the ledger was taken over and trust the versions found
/// there. They may be a newer process's, and ours would be accepted on top of them.
pub fn still_ours(ours: u64, head: u64) -> Result<(), Refusal> {
    if ours == head { Ok(()) } else { Err(Refusal::Overtaken { ours, head }) }
}

fn same_database(recorded: &Identity<'_>, found: &Identity<'_>) -> Result<(), Refusal> {
    if recorded.system_identifier != found.system_identifier {
        return Err(Refusal::OtherSystem {
            recorded: recorded.system_identifier.to_owned(),
            found: found.system_identifier.to_owned(),
        });
    }
    if recorded.database != found.database {
        return Err(Refusal::OtherDatabase {
            recorded: recorded.database.to_owned(),
            found: found.database.to_owned(),
        });
    }
    Ok(())
}

fn ours_and_free(slot: &Slot<'_>, found: &Identity<'_>) -> Result<(), Refusal> {
    if slot.database != found.database || slot.plugin != PLUGIN {
        return Err(Refusal::SlotOfAnother {
            database: slot.database.to_owned(),
            plugin: slot.plugin.to_owned(),
        });
    }
    if slot.active {
        return Err(Refusal::SlotInUse);
    }
    Ok(())
}

/// The server's log contains ours: same timeline, or one that left it not before what we hold.
fn continues(recorded: &Recorded<'_>, server: &Server<'_>, from: Lsn) -> Result<(), Refusal> {
    let reached = recorded.reached.max(from);
    let (ours, theirs) = (recorded.identity.timeline, server.identity.timeline);
    let continued = match server.left_timeline_at {
        _ if ours == theirs => true,
        Some(left_at) => theirs > ours && left_at >= reached,
        None => false,
    };
    if !continued {
        return Err(Refusal::OtherTimeline { recorded: ours, found: theirs, reached });
    }
    if server.position < reached {
        return Err(Refusal::ServerBehind { reached, position: server.position });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Identity<'static> =
        Identity { system_identifier: "7001", timeline: 1, database: "shop" };

    fn lsn(bytes: u64) -> Lsn {
        Lsn::new(bytes)
    }

    fn recorded(phase: Phase) -> Recorded<'static> {
        Recorded {
            identity: HERE,
            phase,
            base: lsn(100),
            fence: lsn(200),
            reached: lsn(210),
            spool: None,
        }
    }

    fn server() -> Server<'static> {
        Server { identity: HERE, position: lsn(1000), left_timeline_at: None }
    }

    fn slot(confirmed: u64) -> Slot<'static> {
        Slot {
            database: "shop",
            plugin: PLUGIN,
            active: false,
            confirmed: lsn(confirmed),
            lost: false,
        }
    }

    fn kind(resume: &Resume) -> Option<Kind> {
        match resume {
            Resume::Refuse(refusal) => Some(refusal.kind()),
            _ => None,
        }
    }

    #[test]
    fn a_slot_that_somebody_advanced_or_made_anew_is_refused() {
        for phase in [Phase::Publishing, Phase::Streaming] {
            let got = resume(Some(&recorded(phase)), &server(), Some(&slot(201)));
            assert!(
                matches!(got, Resume::Refuse(Refusal::SlotAdvanced { .. })),
                "{phase:?} {got:?}"
            );
            assert_eq!(kind(&got), Some(Kind::HistoryLost));
        }
        let got = resume(Some(&recorded(Phase::Publishing)), &server(), Some(&slot(101)));
        assert_eq!(kind(&got), Some(Kind::HistoryLost));
        let got = resume(Some(&recorded(Phase::Streaming)), &server(), Some(&slot(200)));
        assert_eq!(got, Resume::Stream { from: lsn(200) });
    }

    #[test]
    fn a_missing_or_lost_slot_is_refused_once_tables_may_exist() {
        let lost = Slot { lost: true, ..slot(100) };
        for phase in [Phase::Publishing, Phase::Streaming] {
            for slot in [None, Some(&lost)] {
                assert_eq!(
                    kind(&resume(Some(&recorded(phase)), &server(), slot)),
                    Some(Kind::HistoryLost)
                );
            }
        }
        for slot in [None, Some(&lost), Some(&slot(900))] {
            assert_eq!(
                resume(Some(&recorded(Phase::Copying)), &server(), slot),
                Resume::RestartSnapshot
            );
        }
    }

    #[test]
    fn what_the_slot_was_acknowledged_for_is_in_the_spool_or_it_is_refused() {
        let spool = |from, to| Some(Spooled { from: lsn(from), to: lsn(to) });
        let go = |phase, spool, confirmed| {
            let state = Recorded { spool, ..recorded(phase) };
            resume(Some(&state), &server(), Some(&slot(confirmed)))
        };
        assert_eq!(go(Phase::Publishing, spool(100, 400), 400), Resume::ContinuePublish);
        let streamed = go(Phase::Streaming, spool(100, 400), 400);
        assert_eq!(streamed, Resume::Stream { from: lsn(200) });
        for phase in [Phase::Publishing, Phase::Streaming] {
            // Consumed by somebody else, beyond the spool.
            assert_eq!(kind(&go(phase, spool(100, 400), 401)), Some(Kind::HistoryLost));
            // A spool that begins above what is needed proves nothing.
            assert_eq!(kind(&go(phase, spool(201, 400), 400)), Some(Kind::HistoryLost));
            // The server was restored to a state before the spool's end.
            assert_eq!(kind(&go(phase, spool(100, 1001), 150)), Some(Kind::HistoryLost));
        }
    }

    #[test]
    fn an_interrupted_copy_goes_on_only_where_its_history_is_whole() {
        let state = recorded(Phase::Copying);
        let go = |state: &Recorded<'_>, server: &Server<'_>, confirmed: u64| {
            resume(Some(state), server, Some(&slot(confirmed)))
        };
        assert_eq!(go(&state, &server(), 100), Resume::ResumeSnapshot);
        let unmade = Recorded { base: Lsn::ZERO, ..state };
        assert_eq!(go(&unmade, &server(), 100), Resume::RestartSnapshot);
        let behind = Server { position: lsn(209), ..server() };
        assert_eq!(go(&state, &behind, 100), Resume::RestartSnapshot);
        let promoted = |left_timeline_at| Server {
            identity: Identity { timeline: 2, ..HERE },
            left_timeline_at: Some(lsn(left_timeline_at)),
            ..server()
        };
        assert_eq!(go(&state, &promoted(209), 100), Resume::RestartSnapshot);
        assert_eq!(go(&state, &promoted(210), 100), Resume::ResumeSnapshot);
    }

    #[test]
    fn a_slot_of_somebody_else_is_neither_used_nor_dropped() {
        for phase in [Phase::Copying, Phase::Publishing, Phase::Streaming] {
            let other = Slot { database: "stock", ..slot(100) };
            let got = resume(Some(&recorded(phase)), &server(), Some(&other));
            assert_eq!(kind(&got), Some(Kind::Check), "{got:?}");
            let busy = Slot { active: true, ..slot(100) };
            let got = resume(Some(&recorded(phase)), &server(), Some(&busy));
            assert_eq!(got, Resume::Refuse(Refusal::SlotInUse));
        }
        assert_eq!(
            resume(None, &server(), Some(&slot(100))),
            Resume::Refuse(Refusal::SlotWithoutRun)
        );
        assert_eq!(resume(None, &server(), None), Resume::FreshSnapshot);
    }

    #[test]
    fn another_system_or_database_is_refused_even_before_publishing() {
        for phase in [Phase::Copying, Phase::Publishing, Phase::Streaming] {
            for identity in [
                Identity { system_identifier: "7002", ..HERE },
                Identity { database: "stock", ..HERE },
            ] {
                let got = resume(
                    Some(&recorded(phase)),
                    &Server { identity, ..server() },
                    Some(&slot(100)),
                );
                assert_eq!(kind(&got), Some(Kind::HistoryLost), "{got:?}");
            }
        }
    }

    #[test]
    fn a_promoted_standby_continues_only_if_it_branched_off_after_what_we_hold() {
        let promoted = |left_timeline_at| Server {
            identity: Identity { timeline: 2, ..HERE },
            left_timeline_at,
            ..server()
        };
        let state = recorded(Phase::Streaming);
        let go = |server: Server<'_>| resume(Some(&state), &server, Some(&slot(150)));
        assert_eq!(go(promoted(Some(lsn(210)))), Resume::Stream { from: lsn(200) });
        assert_eq!(kind(&go(promoted(Some(lsn(209))))), Some(Kind::HistoryLost));
        assert_eq!(kind(&go(promoted(None))), Some(Kind::HistoryLost));
    }

    #[test]
    fn a_server_whose_log_ends_before_ours_is_refused() {
        let behind = Server { position: lsn(209), ..server() };
        let got = resume(Some(&recorded(Phase::Streaming)), &behind, Some(&slot(150)));
        assert!(matches!(got, Resume::Refuse(Refusal::ServerBehind { .. })), "{got:?}");
    }

    #[test]
    fn a_refusal_becomes_an_error_with_a_next_step() {
        let error = Error::from(Refusal::SlotMissing { needed: lsn(0x1234) });
        assert_eq!(error.kind().exit_code(), 5);
        assert!(error.to_string().contains("0/1234"));
        assert!(error.next_step().is_some());
    }

    #[test]
    fn a_refusal_is_known_again_behind_the_error_it_became() {
        let lost = Error::from(Refusal::PublicationGone).at("publication p");
        assert!(is_lost_history(&lost));
        assert_eq!(lost.to_string().matches("is gone").count(), 1, "{lost}");
        assert!(!is_lost_history(&Error::from(Refusal::SlotInUse)));
        assert!(!is_lost_history(&Error::new(Kind::HistoryLost, "a commit of the lake is gone")));
    }

    #[test]
    fn a_generation_that_was_lost_before_it_moved_on_is_replaced_once_at_most() {
        let lost = |number, moved_on, begun_here| LostGeneration { number, moved_on, begun_here };
        assert!(may_start_over(lost(1, false, false)));
        assert!(!may_start_over(lost(1, false, true)));
        assert!(!may_start_over(lost(2, false, false)));
        assert!(may_start_over(lost(2, true, false)));
        assert!(may_start_over(lost(2, true, true)));
    }

    #[test]
    fn a_publication_put_back_as_it_was_is_not_the_same() {
        assert_eq!(same_publication("e1.7.v1", "e1.7.v1"), Ok(()));
        assert_eq!(same_publication("e1.7.v1", "e1.8.v1"), Err(Refusal::PublicationRemade));
        assert_eq!(same_publication("e1.7.v1", "e1.7.v2"), Err(Refusal::PublicationAltered));
        assert_eq!(same_publication("e1.7.v1", "e2.7.v1"), Err(Refusal::PublicationAltered));
        // Records of before there was an oid, and of before there was anything.
        assert_eq!(same_publication("e1", "e1.7.v1"), Ok(()));
        assert_eq!(same_publication("", "e1.7.v1"), Ok(()));
        assert_eq!(same_membership("", "8:750"), Ok(()));
        assert_eq!(same_membership("8:750", "8:750"), Ok(()));
        assert_eq!(same_membership("8:750", "9:751"), Err(Refusal::PublicationAltered));
        assert_eq!(same_membership("8:750", ""), Err(Refusal::PublicationAltered));
    }

    proptest! {
        #[test]
        fn whatever_is_streamed_from_is_covered_by_slot_and_server(
            base in 0..50u64, behind in 0..50u64, ahead in 0..50u64, confirmed in 0..100u64,
            position in 0..200u64, phase in 0..3u8, with_slot: bool, lost: bool, active: bool,
        ) {
            let fence = base + behind;
            let phase = [Phase::Copying, Phase::Publishing, Phase::Streaming][usize::from(phase)];
            let state = Recorded {
                identity: HERE, phase, base: lsn(base), fence: lsn(fence), reached: lsn(fence + ahead), spool: None,
            };
            let slot = Slot { lost, active, ..slot(confirmed) };
            let slot = with_slot.then_some(&slot);
            let server = Server { position: lsn(position), ..server() };
            match resume(Some(&state), &server, slot) {
                Resume::Stream { from } => {
                    prop_assert_eq!(phase, Phase::Streaming);
                    prop_assert_eq!(from, lsn(fence));
                    prop_assert!(with_slot && !lost && !active && confirmed <= fence);
                    prop_assert!(position >= fence + ahead);
                }
                Resume::ContinuePublish => {
                    prop_assert_eq!(phase, Phase::Publishing);
                    prop_assert!(with_slot && !lost && !active && confirmed <= base);
                }
                Resume::RestartSnapshot => prop_assert_eq!(phase, Phase::Copying),
                Resume::ResumeSnapshot => {
                    prop_assert_eq!(phase, Phase::Copying);
                    prop_assert!(base > 0 && with_slot && !lost && !active && confirmed <= base);
                    prop_assert!(position >= fence + ahead);
                }
                Resume::FreshSnapshot => prop_assert!(false, "a run is recorded"),
                Resume::Refuse(_) => {}
            }
        }
    }
}

//! Where the changes wait while a snapshot is copied: in the slot, or in the spool.
//!
//! ```text
//!   boundary ── copy, chunk by chunk ──────────────── end ── publish ── drain
//!      │   guard: how much WAL does the slot hold?     │
//!      ╰── spool (from the start, or once the guard ───╯
//!                 says so): slot ─► lake ─► acknowledge
//! ```
//!
//! The copy's loop waits for [`Retention::event`] beside its chunks and gives it to
//! [`Retention::act`]: the ledger has one owner, so the spool's steps are recorded there. An error
//! of `act` means that the copy has to be given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::apply::plan::TablePlan;
use crate::config::{OnWalLimit, Retain};
use crate::error::{Error, Kind, Result};
use crate::handoff::follow::stream_options;
use crate::handoff::guard::{self, Guard};
use crate::handoff::rules::{self, Action, Configured, Outlook};
use crate::handoff::session::Session;
use crate::handoff::spool::write::{End, Note, Settings, Spooler};
use crate::handoff::spool::{self};
use crate::lake::Phase;
use crate::observe::human;
use crate::observe::progress::Progress;
use crate::position::Lsn;
use crate::source::slot;

/// How long the server may take to notice that a stream has ended.
const FREE_WITHIN: Duration = Duration::from_secs(30);

/// Holds the changes for as long as chunks are copied.
pub struct Retention {
    guard: Guard,
    spooler: Option<Spooler>,
    /// Spooling was begun, whether or not it goes on.
    spooling: bool,
    base: Lsn,
    options: Vec<(String, String)>,
}

/// Something to be done by the owner of the ledger.
pub enum RetentionEvent {
    /// The spool has something to say.
    Spool(Note),
    /// The slot was looked at.
    Look(Outlook),
}

impl Retention {
    /// Begins at the boundary, or goes on after a restart. The ledger must be owned, the slot
    /// free; `base` is the run's lowest base.
    ///
    /// # Errors
    /// The ledger's records of an earlier spool are unreadable; ledger or lake fail.
    pub async fn begin(
        session: &mut Session,
        base: Lsn,
        plans: &[Arc<TablePlan>],
    ) -> Result<Retention> {
        let guard = session.guard.take().unwrap_or_else(|| Guard::start(session));
        let options = stream_options(&session.config, session.server.version, plans)?;
        let mut retention = Retention { guard, spooler: None, spooling: false, base, options };
        if session.config.handoff.retain == Retain::Spool {
            retention.spool(session).await?;
        }
        Ok(retention)
    }

    /// Begins to spool, from the base or from where the run's spool ends.
    async fn spool(&mut self, session: &mut Session) -> Result<()> {
        self.spooling = true;
        let lake = session.lake.clone();
        let ledger = session.ledger_mut()?;
        let state = spool::announce(ledger, self.base).await?;
        let steps = spool::steps(ledger, &state).await?;
        spool::remove_orphans(&lake, ledger, &state, &steps).await?;
        let config = &session.config;
        let settings = Settings {
            source: session.source.clone(),
            anchor: session.anchor.clone(),
            slot: config.name.clone(),
            options: self.options.clone(),
            lake,
            segment_bytes: config.handoff.spool_segment_bytes,
            interval: config.handoff.spool_interval,
            limit_bytes: config.limits.spool_bytes,
        };
        tracing::info!(from = %state.to, "spooling the changes into the lake");
        self.spooler = Some(Spooler::start(settings, &state));
        Ok(())
    }

    /// Waits for something to be done. May be cancelled.
    pub async fn event(&mut self) -> RetentionEvent {
        let Retention { guard, spooler, .. } = self;
        let note = async {
            match spooler {
                Some(spooler) => match spooler.note().await {
                    Some(note) => note,
                    None => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            note = note => RetentionEvent::Spool(note),
            outlook = guard.look() => RetentionEvent::Look(outlook),
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// The copy is of no use any more (history lost), is to be given up (`on_wal_limit = "stop"`;
    /// the slot is dropped then), or the ledger fails.
    pub async fn act(
        &mut self,
        session: &mut Session,
        progress: &Progress,
        event: RetentionEvent,
    ) -> Result<()> {
        match event {
            RetentionEvent::Spool(Note::Step(step, answer)) => {
                spool::record(session.ledger_mut()?, &step).await?;
                // Nobody there: the spool ended meanwhile, what is recorded is recorded.
                let _ = answer.send(());
                Ok(())
            }
            RetentionEvent::Spool(Note::Ended(end)) => {
                self.spooler = None;
                self.ended(session, end).await
            }
            RetentionEvent::Look(outlook) => {
                progress.set_retained(outlook.retained);
                progress.set_wal_limit(outlook.limit, outlook.time_to_limit);
                self.looked(session, &outlook).await
            }
        }
    }

    async fn ended(&self, session: &Session, end: End) -> Result<()> {
        match end {
            End::Stopped => Ok(()),
            End::Full => {
                tracing::warn!(
                    limit_bytes = session.config.limits.spool_bytes,
                    "the spool has no room left ([limits] spool_bytes = {}): from now on the slot \
                     holds the changes in the source's WAL again",
                    human::bytes(session.config.limits.spool_bytes)
                );
                Ok(())
            }
            End::Failed(error) => {
                self.history(session).await?;
                Err(error.at("the spool"))
            }
        }
    }

    async fn looked(&mut self, session: &mut Session, outlook: &Outlook) -> Result<()> {
        let configured = match session.config.handoff.on_wal_limit {
            OnWalLimit::Warn => Configured::Warn,
            OnWalLimit::Spool => Configured::Spool,
            OnWalLimit::Stop => Configured::Stop,
        };
        match rules::action(outlook.level, configured, self.spooling) {
            Action::GoOn => Ok(()),
            Action::Spool => {
                tracing::warn!(
                    "{}; the changes go to the lake from now on (on_wal_limit = \"spool\")",
                    guard::words(&session.config.name, outlook)
                );
                self.spool(session).await
            }
            Action::Stop => Err(self.give_up(session, outlook).await?),
            Action::GiveUp => self.history(session).await,
        }
    }

    /// An error if the slot no longer has what the run needs, as it is now.
    async fn history(&self, session: &Session) -> Result<()> {
        let found = match session.slot().await {
            Ok(found) => found,
            // The next look tells.
            Err(e) if e.is_transient() => return Ok(()),
            Err(e) => return Err(e),
        };
        let needed = rules::needed_from_slot(self.base, session.spooled());
        let (why, refusal) = match &found {
            None => ("it was dropped".to_owned(), rules::Refusal::SlotMissing { needed }),
            Some(slot) => match slot.lost() {
                Some(why) => (why, rules::Refusal::SlotLost { needed }),
                None => return Ok(()),
            },
        };
        Err(Error::new(
            Kind::HistoryLost,
            format!(
                "the replication slot {} was lost while the snapshot was copied ({why}): the \
                 changes after {needed} are gone, so what was copied can't be brought forward; \
                 nothing was published",
                session.config.name
            ),
        )
        .next(
            "raise max_slot_wal_keep_size on the source, or set `retain = \"spool\"` under \
             [handoff], and run again: the snapshot starts from the beginning",
        )
        .because(refusal))
    }

    /// Gives the run up and frees the source's WAL at once: the slot goes before the workers end.
    async fn give_up(&mut self, session: &mut Session, outlook: &Outlook) -> Result<Error> {
        let name = session.config.name.clone();
        let error = Error::failed(format!(
            "{}; the snapshot was stopped and its slot dropped so that the source can free that \
             WAL (on_wal_limit = \"stop\"): the chunks copied so far are lost, nothing was \
             published",
            guard::words(&name, outlook)
        ))
        .next(
            "give the source more room, or set `retain = \"spool\"` or `on_wal_limit = \"spool\"` \
             under [handoff], and run again: the snapshot starts from the beginning",
        );
        // Where the log ends, then by compare-and-swap: whoever takes the pipeline over after it
        // has a slot of the same name further on.
        let in_recovery = session.server.in_recovery;
        let end = crate::source::catalog::insert_lsn(&session.client, in_recovery).await?;
        let ledger = session.ledger_mut()?;
        let mut state = ledger.state().clone();
        state.phase = Phase::Failed;
        state.failure = Some(error.to_string());
        ledger.set_state(state, &[]).await?;
        if let Some(spooler) = self.spooler.take() {
            spooler.abandon().await;
            wait_free(session).await?;
        }
        slot::drop_slot_before(&session.client, &name, end).await?;
        Ok(error)
    }

    /// The copy has ended. After a success the spool's last step is recorded, after an error
    /// nothing more is; the slot is free then, to be streamed from or to be dropped.
    ///
    /// # Errors
    /// The copy's own; the last step can't be recorded; the server does not let go of the slot.
    pub async fn end<T>(mut self, session: &mut Session, copied: Result<T>) -> Result<T> {
        let mut result = copied;
        if let Some(mut spooler) = self.spooler.take() {
            if result.is_ok() {
                spooler.stop();
                if let Err(error) = self.last_steps(session, &mut spooler).await {
                    result = Err(error);
                }
            }
            spooler.abandon().await;
        }
        if result.is_ok()
            && let Err(lost) = self.history(session).await
        {
            // What would be published could not be followed.
            result = Err(lost);
        }
        // A stream that broke may have ended for us only.
        let free = if self.spooling { wait_free(session).await } else { Ok(()) };
        let copied = result?;
        free?;
        session.guard = Some(self.guard);
        Ok(copied)
    }

    async fn last_steps(&self, session: &mut Session, spooler: &mut Spooler) -> Result<()> {
        while let Some(note) = spooler.note().await {
            match note {
                Note::Step(step, answer) => {
                    spool::record(session.ledger_mut()?, &step).await?;
                    let _ = answer.send(());
                }
                Note::Ended(end) => return self.ended(session, end).await,
            }
        }
        Ok(())
    }
}

/// Waits until the server has noticed that our stream has ended.
async fn wait_free(session: &Session) -> Result<()> {
    let deadline = Instant::now() + FREE_WITHIN;
    loop {
        match session.slot().await? {
            Some(slot) if slot.active => {}
            _ => return Ok(()),
        }
        if Instant::now() > deadline {
            return Err(Error::transient("the server still holds the slot for the spool's stream"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

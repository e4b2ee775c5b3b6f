//! Where a drain's messages come from: the spool first, then the slot from the spool's end on.
//!
//! The reader of the stream does not know the difference. The slot is held from the beginning, so
//! that nobody else moves it while the spool is read.

use std::time::Duration;

use super::read::SpoolReader;
use crate::error::Result;
use crate::failpoint;
use crate::handoff::rules;
use crate::handoff::session::{Session, blocking};
use crate::lake::Ledger;
use crate::position::Lsn;
use crate::source::wire::{Frame, Replication, SessionKind, Wire};

/// Messages in the order of their commits, without a gap between spool and slot.
pub struct Source {
    spool: Option<SpoolReader>,
    slot: Replication,
    from_slot: Lsn,
    durable: Lsn,
}

impl Source {
    /// Takes the slot, proves that it and the run's spool have everything that commits at or after
    /// `needed` (the fence, or the lowest base before there is one), and gives that.
    ///
    /// The slot may have been dropped and made anew before we held it, and the server moves a
    /// start below its confirmed position up without a word.
    ///
    /// # Errors
    /// History is missing, the slot is in use, the source or the ledger fails.
    pub async fn open(
        session: &Session,
        ledger: &Ledger,
        needed: Lsn,
        options: &[(String, String)],
    ) -> Result<Source> {
        Source::open_from(session, ledger, needed, needed, options).await
    }

    /// As [`Source::open`], but gives only what commits at or after `from`, which is not below
    /// `needed`: everything after `needed` may have to be read again.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub async fn open_from(
        session: &Session,
        ledger: &Ledger,
        needed: Lsn,
        from: Lsn,
        options: &[(String, String)],
    ) -> Result<Source> {
        let recorded = super::recorded(ledger);
        let durable = rules::needed_from_slot(needed, recorded.map(super::range));
        let spool = recorded.filter(|spool| rules::spool_counts(from, super::range(spool)));
        let from_slot = rules::needed_from_slot(from, spool.map(super::range));
        let (source, name, options) =
            (session.source.clone(), session.config.name.clone(), options.to_vec());
        let slot = blocking(move || {
            let wire = Wire::connect(&source, SessionKind::Replication)?;
            wire.start_replication(&name, from_slot, &options)
        })
        .await?;
        session.slot_still_sends(durable).await?;
        let spool = match spool {
            Some(_) if failpoint::wrong("spool-is-not-read") => None,
            Some(spool) => {
                tracing::info!(%from, to = %spool.to, files = spool.files, "reading the spool");
                Some(SpoolReader::open(&session.lake, ledger, spool, from).await?)
            }
            None => None,
        };
        Ok(Source { spool, slot, from_slot, durable })
    }

    /// The next frame; `None` if nothing whole came within `wait`.
    ///
    /// # Errors
    /// As [`Replication::next`] and [`SpoolReader::next_frame`].
    pub fn next(&mut self, wait: Duration) -> Result<Option<Frame<'_>>> {
        if self.spool.as_ref().is_some_and(SpoolReader::is_at_end) {
            tracing::debug!(from = %self.from_slot, "the spool is read, going on with the slot");
            self.spool = None;
        }
        match &mut self.spool {
            Some(spool) => spool.next_frame(),
            None => self.slot.next(wait),
        }
    }

    /// Whether another message is already here.
    pub fn buffered(&self) -> bool {
        self.spool.is_some() || self.slot.buffered()
    }

    /// How often the server must hear of us.
    pub fn status_every(&self) -> Duration {
        self.slot.status_every()
    }

    /// Everything before this may be forgotten by the server, whatever the fence is.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Reports progress to the server. `flushed` must not be below [`Source::durable`].
    ///
    /// # Errors
    /// Transient: the connection is cut.
    pub fn send_status(&mut self, written: Lsn, flushed: Lsn) -> Result<()> {
        self.slot.send_status(written, flushed, flushed, false)
    }

    /// Ends the stream and waits until the server has let go of the slot.
    ///
    /// # Errors
    /// As [`Replication::finish`].
    pub fn finish(self) -> Result<()> {
        self.slot.finish()
    }
}

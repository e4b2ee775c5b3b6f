//! Telling a server that works long from one that is not there any more.
//!
//! A count of a large table sends nothing for minutes, and neither does a network that swallows
//! every packet. A time-out alone would end the first or wait for ever for the second. So after
//! `silence_limit` without a byte a second connection, to the same server, looks at the process
//! behind the first one: while it is at work for us the wait goes on. It is over when the process
//! is gone, when it believes to have answered, when it waits for us to read what does not arrive,
//! or when the server can't be reached either.
//!
//! The stream of a slot has no such question: there the server itself answers when it is asked
//! (`Replication::next`).

use std::time::Duration;

use super::{State, Wire, startup};
use crate::error::{Error, Result};
use crate::source::wire::sqlstate;

/// A second look, since an answer may have begun while the first one was taken.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// What the server does about a statement of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Working,
    Gone,
    Answered,
    Sending,
}

impl Wire {
    /// Whether silence is looked behind: only with a statement under way, and without a time-out
    /// that the caller set.
    pub(super) fn may_be_silent(&self) -> bool {
        self.state == State::Busy && self.read_timeout.is_none() && !self.silence.is_zero()
    }

    /// Nothing came for `silence`.
    ///
    /// # Errors
    /// Transient: there is nobody who would answer.
    #[cold]
    pub(super) fn look_behind_silence(&mut self) -> Result<()> {
        let why = match self.behind() {
            Ok(Behind::Working) => {
                tracing::debug!(pid = self.cancel.process_id(), "the server is still at work");
                return Ok(());
            }
            Ok(Behind::Gone) => "its process is gone".to_owned(),
            Ok(Behind::Answered) => "it has answered, and nothing arrived".to_owned(),
            Ok(Behind::Sending) => "it is sending, and nothing arrives".to_owned(),
            // It is there, and full: nothing is known of our process.
            Err(e) if sqlstate(&e) == Some("53300") => return Ok(()),
            Err(e) => {
                format!("it can't be reached anew ({})", e.to_string().replace("\n  next:", ";"))
            }
        };
        if self.heard_within(LAST_CHANCE) {
            return Ok(());
        }
        let silence = self.silence;
        Err(self.lost(
            Error::transient(format!("nothing was heard of the server for {silence:?}, and {why}"))
                .next("it is tried again; look at the network between here and the server"),
        ))
    }

    fn behind(&self) -> Result<Behind> {
        let Some(pid) = self.cancel.process_id() else { return Ok(Behind::Working) };
        let mut wire = startup::beside(&self.cancel)?;
        let rows = wire.simple_query(&format!(
            "SELECT state, wait_event FROM pg_catalog.pg_stat_activity WHERE pid = {pid}"
        ))?;
        let Some(row) = rows.first() else { return Ok(Behind::Gone) };
        let column = |index: usize| row.get(index).and_then(|value| value.as_deref());
        Ok(match (column(0), column(1)) {
            (Some("active"), Some("ClientWrite")) => Behind::Sending,
            (Some(state), _) if state.starts_with("idle") => Behind::Answered,
            _ => Behind::Working,
        })
    }

    fn heard_within(&mut self, wait: Duration) -> bool {
        let heard = self.stream.set_read_timeout(Some(wait)).is_ok() && self.fill().is_ok();
        // The timeout of before; one that can't be set shows at the next read.
        let _ = self.stream.set_read_timeout(Some(self.silence));
        heard
    }
}

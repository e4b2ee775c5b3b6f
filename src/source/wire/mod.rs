//! A blocking connection to PostgreSQL that can also speak replication, which no driver at hand
//! does for 13 to 18.
//!
//! ```text
//! startup ──► Wire ──► simple_query            rows as text
//!                 ├──► copy_out ──► CopyOut    payloads borrowed from the read buffer
//!                 └──► start_replication ──► Replication   frames borrowed likewise
//! ```
//!
//! What it guarantees: bytes are never lost at a time-out, a message is never skipped unread, and
//! every error of the server keeps its SQLSTATE ([`sqlstate`]) and is sorted into transient and
//! definite. It knows nothing of what the messages mean.
//!
//! Source of the protocol: PostgreSQL manual, "Frontend/Backend Protocol" (version 3.0) and
//! "Streaming Replication Protocol".

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use crate::error::{Error, Result};
use crate::source::options::ConnectOptions;

mod auth;
mod buffer;
mod cancel;
mod copy;
pub(crate) mod error;
mod replication;
mod session;
mod silence;
mod startup;
mod stream;
pub(crate) mod tls;
mod witness;

use buffer::{RawMessage, ReadBuffer};
pub use cancel::CancelHandle;
pub use copy::CopyOut;
pub use error::{DbError, sqlstate};
use error::{broken, protocol};
pub use replication::{
    Frame, Replication, ServerSession, SystemId, TimelineSwitch, is_other_server,
};
pub use session::{LOCK_TIMEOUT, SESSION_SETTINGS};
pub(crate) use session::{later_settings, version_number};
pub(crate) use startup::{all_failed, no_tls, unreachable, wrong_target};
use stream::Stream;
pub(crate) use stream::keepalive_times;
pub use witness::CommitRecord;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// SQL and COPY.
    Query,
    /// Replication commands of one database (`replication=database`), and SQL.
    Replication,
}

/// An open session.
pub struct Wire {
    stream: Stream,
    buffer: ReadBuffer,
    out: BytesMut,
    parameters: HashMap<String, String>,
    cancel: CancelHandle,
    read_timeout: Option<Duration>,
    /// After so long without a byte of an answer it is looked what the server does; zero is never.
    silence: Duration,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The server waits for a command.
    Ready,
    /// An answer is being read.
    Busy,
    /// Nothing can be sent or read any more.
    Dead,
}

impl Wire {
    /// Connects and logs in, trying the hosts in turn, and applies [`SESSION_SETTINGS`].
    ///
    /// # Errors
    /// Transient when no server answers (refused, timed out, starting up, full), or another one than
    /// [`ConnectOptions::history`] says ([`is_other_server`]); [`Kind::Check`](crate::error::Kind::Check) when it refuses the login or the database is
    /// missing; [`Kind::Config`](crate::error::Kind::Config) for unusable certificate files.
    pub fn connect(o: &ConnectOptions, kind: SessionKind) -> Result<Wire> {
        let mut wire = startup::connect(&Arc::new(o.clone()), kind)?;
        if let (SessionKind::Replication, Some(expected)) = (kind, o.history) {
            wire.must_have(expected)?;
        }
        Ok(wire)
    }

    /// 15.18 is 150018; 0 if the server's text was not understood.
    pub fn server_version(&self) -> u32 {
        self.parameter("server_version").map_or(0, version_number)
    }

    /// A value the server reported (`ParameterStatus`), such as `server_encoding`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// How long a read may wait before the connection is given up; `None` as long as the server is
    /// at work for us (default): after each `silence_limit` without a byte a second connection
    /// asks. For a COPY or a query, not for [`Replication::next`], which has its own.
    ///
    /// # Errors
    /// Transient: the socket refuses it.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<()> {
        // The socket knows no zero; the shortest it knows stands for it.
        self.read_timeout = timeout.map(|t| t.max(Duration::from_micros(1)));
        let limit = self.read_timeout.or((!self.silence.is_zero()).then_some(self.silence));
        self.stream.set_read_timeout(limit).map_err(|e| broken("setting a time-out", e))
    }

    /// A handle by which another thread can cancel what runs on this connection.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Runs one or several statements (in one implicit transaction) and returns the rows of the
    /// last one that returns rows, as text.
    ///
    /// # Errors
    /// The server's, with its SQLSTATE; the connection stays usable if the server keeps it.
    pub fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        self.send_query(sql)?;
        let mut rows = Vec::new();
        let mut failure: Option<Error> = None;
        loop {
            let message = self.read_or(&mut failure)?;
            let body = self.buffer.slice(message.payload.clone());
            match message.tag {
                b'T' => rows.clear(),
                b'D' if failure.is_none() => match data_row(body) {
                    Some(row) => rows.push(row),
                    None => return Err(self.lost(protocol("a row is malformed"))),
                },
                b'C' | b'I' | b'D' => {}
                b'E' => failure = Some(DbError::parse(body).into_error().at(shorten(sql))),
                b'Z' => {
                    self.state = State::Ready;
                    return failure.map_or(Ok(rows), Err);
                }
                // COPY has its own call; let the statement end and say so.
                b'G' => {
                    self.out.clear();
                    let _ = frontend::copy_fail("not expected here", &mut self.out);
                    self.flush("answering COPY")?;
                }
                b'H' => {
                    failure = Some(Error::failed(format!("{}: a COPY is no query", shorten(sql))));
                }
                b'd' | b'c' => {}
                _ => self.aside(&message)?,
            }
        }
    }

    /// Starts `COPY … TO STDOUT`.
    ///
    /// # Errors
    /// As for [`Wire::simple_query`].
    pub fn copy_out<'a>(&'a mut self, sql: &str) -> Result<CopyOut<'a>> {
        copy::start(self, sql)
    }

    /// Sends a simple query; the answer is to be read until ReadyForQuery.
    fn send_query(&mut self, sql: &str) -> Result<()> {
        match self.state {
            State::Ready => {}
            State::Busy => {
                return Err(Error::transient(
                    "the connection is in the middle of an answer that was given up",
                )
                .next("open another one"));
            }
            State::Dead => {
                return Err(Error::transient("the connection is closed").next("open another one"));
            }
        }
        self.out.clear();
        frontend::query(sql, &mut self.out).map_err(|e| {
            Error::failed(format!("{}: the SQL can't be sent", shorten(sql))).because(e)
        })?;
        self.state = State::Busy;
        self.flush("sending a query")
    }

    /// Sends what stands in `out`. If the server hung up, its last words are looked for: they say
    /// why, where the socket only says that it broke.
    fn flush(&mut self, doing: &str) -> Result<()> {
        match self.stream.write_all(&self.out) {
            Ok(()) => Ok(()),
            Err(e) => {
                let last_words = self.last_words();
                self.state = State::Dead;
                Err(last_words.unwrap_or_else(|| broken(doing, e)))
            }
        }
    }

    fn last_words(&mut self) -> Option<Error> {
        self.stream.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
        for _ in 0..1000 {
            while let Ok(Some(message)) = self.buffer.take() {
                if message.tag == b'E' {
                    return Some(DbError::parse(self.buffer.slice(message.payload)).into_error());
                }
            }
            self.buffer.fill(|room| self.stream.read(room)).ok()?;
        }
        None
    }

    /// The next message, waiting as long as the read timeout allows.
    #[inline]
    fn read(&mut self) -> Result<RawMessage> {
        loop {
            match self.buffer.take() {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(e) => return Err(self.lost(e)),
            }
            match self.fill() {
                Ok(_) => {}
                Err(e) if timed_out(&e) && self.may_be_silent() => self.look_behind_silence()?,
                Err(e) => return Err(self.lost(broken("in the middle of an answer", e))),
            }
        }
    }

    /// As [`Wire::read`]; but if the connection ends after the server said why, that is the error.
    fn read_or(&mut self, failure: &mut Option<Error>) -> Result<RawMessage> {
        self.read().map_err(|e| failure.take().unwrap_or(e))
    }

    #[inline]
    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.fill(|room| self.stream.read(room))
    }

    /// Gives the connection up because of `error`.
    #[cold]
    fn lost(&mut self, error: Error) -> Error {
        self.state = State::Dead;
        error
    }

    /// Messages that may come at any time.
    ///
    /// # Errors
    /// Any other message is out of place.
    #[cold]
    fn aside(&mut self, message: &RawMessage) -> Result<()> {
        let body = self.buffer.slice(message.payload.clone());
        match message.tag {
            b'N' => tracing::debug!(notice = %DbError::parse(body), "the server notes"),
            b'S' => {
                let mut texts = body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
                if let (Some(name), Some(value)) = (texts.next(), texts.next()) {
                    self.parameters.insert(name.into_owned(), value.into_owned());
                }
            }
            // NOTIFY, and NegotiateProtocolVersion.
            b'A' | b'v' => {}
            tag => {
                let error =
                    protocol(format_args!("message '{}' is out of place", tag.escape_ascii()));
                return Err(self.lost(error));
            }
        }
        Ok(())
    }

    /// Reads the rest of an answer up to ReadyForQuery.
    fn finish_answer(&mut self, mut failure: Option<Error>, subject: &str) -> Result<()> {
        loop {
            let message = self.read_or(&mut failure)?;
            match message.tag {
                b'C' | b'd' | b'c' | b'T' | b'D' | b'I' => {}
                b'E' => {
                    let error = DbError::parse(self.buffer.slice(message.payload));
                    failure.get_or_insert(error.into_error().at(subject));
                }
                b'Z' => {
                    self.state = State::Ready;
                    return failure.map_or(Ok(()), Err);
                }
                _ => self.aside(&message)?,
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.state != State::Dead {
            self.out.clear();
            frontend::terminate(&mut self.out);
            let _ = self.stream.set_nonblocking(true);
            let _ = self.stream.write_all(&self.out);
            self.stream.close();
        }
    }
}

fn timed_out(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The values of a DataRow; `None` if it is malformed.
fn data_row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        match i32::from_be_bytes(*length) {
            -1 => {
                row.push(None);
                rest = after;
            }
            length => {
                let (value, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
                row.push(Some(std::str::from_utf8(value).ok()?.to_owned()));
                rest = after;
            }
        }
    }
    rest.is_empty().then_some(row)
}

/// The start of a statement, for messages.
fn shorten(sql: &str) -> String {
    let mut words = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = words.char_indices().nth(120) {
        words.truncate(cut);
        words.push('…');
    }
    format!("`{words}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_whole_or_not_at_all() {
        let row = b"\0\x03\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0";
        assert_eq!(data_row(row), Some(vec![Some("ab".into()), None, Some(String::new())]));
        for cut in 0..row.len() {
            assert_eq!(data_row(&row[..cut]), None, "cut at {cut}");
        }
        assert_eq!(data_row(b"\0\x01\xff\xff\xff\xfe"), None);
        assert_eq!(data_row(b"\0\x01\0\0\0\x01\xff"), None);
        assert_eq!(data_row(b"\0\0x"), None);
    }

    #[test]
    fn a_long_statement_is_shortened_at_a_character() {
        assert_eq!(shorten("SELECT\n   1"), "`SELECT 1`");
        assert_eq!(shorten(&"é".repeat(500)).chars().count(), 123);
    }
}

//! The streaming replication protocol: who the server is, and the stream of a logical slot.
//!
//! It only frames. What a position means, when one is acknowledged and whether the server is the
//! right one is decided above it.
//!
//! Source: PostgreSQL manual, "Streaming Replication Protocol".

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::error::{broken, protocol};
use super::{DbError, RawMessage, State, Wire, timed_out};
use crate::error::{Error, Result};
use crate::position::Lsn;
use crate::source::catalog::quote_literal;
use crate::source::options::History;

/// While lagging, this pause before a read lets many messages come with it: the server sends one
/// packet a message, and reading each by itself doubles the client's CPU.
const GATHER: Duration = Duration::from_micros(500);
/// Reads closer together than this, and smaller than [`FULL_READ_BYTES`], mean lagging.
const CLOSE_READS: Duration = Duration::from_millis(1);
/// A read this large is no waste; the server is not slowed down by a pause.
const FULL_READ_BYTES: usize = 64 * 1024;
/// The server hears of us at least this often; its `wal_sender_timeout` is 60 s by default.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// How long the end of a stream may take.
const FINISH: Duration = Duration::from_secs(10);
/// 2000-01-01 in microseconds from 1970-01-01.
const PG_EPOCH_UNIX_US: i64 = 946_684_800_000_000;

/// What IDENTIFY_SYSTEM says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemId {
    /// Unique to a cluster and its physical copies.
    pub system_identifier: u64,
    /// Its timeline now.
    pub timeline: u32,
    /// Flushed (on a standby: replayed) up to here.
    pub xlogpos: Lsn,
    /// The database connected to.
    pub database: Option<String>,
}

/// A session on a server, told from every other one there ever is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSession {
    pid: i32,
    /// Seconds since 1970, as text.
    began: String,
}

impl ServerSession {
    /// Asks for the session that it runs in; [`ServerSession::of`] reads the row.
    pub const QUERY: &'static str = "SELECT pid::text, \
         pg_catalog.date_part('epoch', backend_start)::text \
         FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()";

    /// From the row; `None` if it is not understood.
    pub fn of(mut row: impl Iterator<Item = Option<String>>) -> Option<ServerSession> {
        Some(ServerSession { pid: row.next()??.parse().ok()?, began: row.next()?? })
    }
}

/// Another server answered than the one that was looked at.
#[derive(Debug, thiserror::Error)]
#[error("{expected:?} was expected, {found:?} was found")]
struct OtherServer {
    expected: History,
    found: History,
}

fn other_server(cause: OtherServer) -> Error {
    let name = |history: &History| {
        format!("system {} on timeline {}", history.system_identifier, history.timeline)
    };
    Error::transient(format!(
        "the source is another server than a moment ago: {}, not {}",
        name(&cause.found),
        name(&cause.expected)
    ))
    .next("it is looked whether this one continues the history, and begun anew from there")
    .because(cause)
}

/// Whether another server answered than the one that was looked at. Its history must be judged
/// before anything of it is taken.
pub fn is_other_server(error: &Error) -> bool {
    error.cause().is_some_and(|cause| cause.is::<OtherServer>())
}

/// Where a timeline ended and the next one began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// The timeline that ended.
    pub timeline: u32,
    /// The position at which it was left.
    pub switch: Lsn,
}

impl Wire {
    /// IDENTIFY_SYSTEM, on a replication connection.
    ///
    /// # Errors
    /// The server's; or its answer is not understood.
    pub fn identify_system(&mut self) -> Result<SystemId> {
        let rows = self.simple_query("IDENTIFY_SYSTEM")?;
        let read = || {
            let [system, timeline, position, rest @ ..] = rows.first()?.as_slice() else {
                return None;
            };
            Some(SystemId {
                system_identifier: system.as_deref()?.parse().ok()?,
                timeline: timeline.as_deref()?.parse().ok()?,
                xlogpos: position.as_deref()?.parse().ok()?,
                database: rest.first().cloned().flatten(),
            })
        };
        read().ok_or_else(|| protocol("the answer to IDENTIFY_SYSTEM is not understood"))
    }

    /// The server must be of this history.
    pub(super) fn must_have(&mut self, expected: History) -> Result<()> {
        let SystemId { system_identifier, timeline, .. } = self.identify_system()?;
        let found = History { system_identifier, timeline };
        if found == expected { Ok(()) } else { Err(other_server(OtherServer { expected, found })) }
    }

    /// This connection must lead to the server that `session` is on.
    ///
    /// # Errors
    /// Transient: it does not, or the session is gone.
    pub fn must_know(&mut self, session: &ServerSession) -> Result<()> {
        let rows = self.simple_query(&format!(
            "SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE pid = {} \
             AND pg_catalog.date_part('epoch', backend_start)::text = {}",
            session.pid,
            quote_literal(&session.began)
        ))?;
        let count = rows.into_iter().flatten().flatten().next();
        match count.as_deref() {
            Some("1") => Ok(()),
            _ => Err(Error::transient("the connections to the source reach different servers")
                .next("it is tried again; if it goes on, name one server in the URL")),
        }
    }

    /// The switches that led to `timeline`, oldest first. Timeline 1 has none, and no history.
    ///
    /// # Errors
    /// The server's (58P01 where it has no such history); or the file is not understood.
    pub fn timeline_history(&mut self, timeline: u32) -> Result<Vec<TimelineSwitch>> {
        let rows = self.simple_query(&format!("TIMELINE_HISTORY {timeline}"))?;
        let content = rows.first().and_then(|row| row.get(1)).and_then(Option::as_deref);
        content.and_then(switches).ok_or_else(|| {
            protocol(format_args!("the history of timeline {timeline} is not understood"))
        })
    }

    /// START_REPLICATION of a logical slot from `start`, with the plugin's options.
    ///
    /// # Errors
    /// The server's: 42704 there is no such slot, 55006 it is in use, 55000 it is lost.
    pub fn start_replication(
        mut self,
        slot: &str,
        start: Lsn,
        options: &[(String, String)],
    ) -> Result<Replication> {
        let status_every = self.status_every()?;
        self.send_query(&start_command(slot, start, options))?;
        loop {
            let message = self.read()?;
            match message.tag {
                b'W' => {
                    return Ok(Replication {
                        wire: self,
                        timeout: None,
                        last_read: None,
                        last_bytes: 0,
                        status_every,
                        last_status: (start, Lsn::ZERO, Lsn::ZERO),
                        heard: Instant::now(),
                        asked: None,
                    });
                }
                b'E' => {
                    let error = DbError::parse(self.buffer.slice(message.payload)).into_error();
                    return Err(error.at(format_args!("replication slot {slot:?}")));
                }
                _ => self.aside(&message)?,
            }
        }
    }
}

impl Wire {
    /// A third of the server's patience with this session, whatever role, database or server set:
    /// it cuts a connection that it has not heard of for `wal_sender_timeout`.
    fn status_every(&mut self) -> Result<Duration> {
        let rows = self.simple_query(
            "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'",
        )?;
        let ms = rows.first().and_then(|row| row.first()?.as_deref()?.parse::<u64>().ok());
        Ok(match ms {
            None | Some(0) => STATUS_EVERY,
            Some(ms) => (Duration::from_millis(ms) / 3).min(STATUS_EVERY),
        })
    }
}

/// The lines `timeline <tab> position <tab> reason` of a history file; `#` starts a comment.
fn switches(content: &str) -> Option<Vec<TimelineSwitch>> {
    let lines =
        content.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.split_whitespace();
            Some(TimelineSwitch {
                timeline: fields.next()?.parse().ok()?,
                switch: fields.next()?.parse().ok()?,
            })
        })
        .collect()
}

fn start_command(slot: &str, start: Lsn, options: &[(String, String)]) -> String {
    let ident = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let mut command = format!("START_REPLICATION SLOT {} LOGICAL {start}", ident(slot));
    let options: Vec<_> = options
        .iter()
        .map(|(name, value)| format!("{} '{}'", ident(name), value.replace('\'', "''")))
        .collect();
    if !options.is_empty() {
        command.push_str(&format!(" ({})", options.join(", ")));
    }
    command
}

/// One message of the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message of the output plugin.
    XLogData {
        /// Its position in the log; 0 for RELATION and TYPE messages.
        start: Lsn,
        /// As `start` in a logical stream.
        end: Lsn,
        /// The server's clock when it sent this, microseconds since 2000-01-01.
        clock_us: i64,
        /// The plugin's message.
        data: &'a [u8],
    },
    /// The server is alive.
    Keepalive {
        /// The server has decoded and sent everything up to here.
        end: Lsn,
        /// The server's clock, microseconds since 2000-01-01.
        clock_us: i64,
        /// It wants a status at once, or will cut the connection.
        reply: bool,
    },
}

#[inline]
pub(super) fn frame(payload: &[u8]) -> Option<Frame<'_>> {
    let (tag, rest) = payload.split_first()?;
    match tag {
        b'w' => {
            let (start, rest) = rest.split_first_chunk()?;
            let (end, rest) = rest.split_first_chunk()?;
            let (clock, data) = rest.split_first_chunk()?;
            Some(Frame::XLogData {
                start: Lsn::new(u64::from_be_bytes(*start)),
                end: Lsn::new(u64::from_be_bytes(*end)),
                clock_us: i64::from_be_bytes(*clock),
                data,
            })
        }
        b'k' => {
            let (end, rest) = rest.split_first_chunk()?;
            let (clock, rest) = rest.split_first_chunk()?;
            let [reply @ 0..=1] = rest else { return None };
            Some(Frame::Keepalive {
                end: Lsn::new(u64::from_be_bytes(*end)),
                clock_us: i64::from_be_bytes(*clock),
                reply: *reply == 1,
            })
        }
        _ => None,
    }
}

/// The stream of a slot.
pub struct Replication {
    wire: Wire,
    /// The read timeout the socket has now.
    timeout: Option<Duration>,
    last_read: Option<Instant>,
    last_bytes: usize,
    status_every: Duration,
    last_status: (Lsn, Lsn, Lsn),
    /// When the last byte came, and since when we wait for the answer to a question.
    heard: Instant,
    asked: Option<Instant>,
}

impl Replication {
    /// How often the server must hear of us ([`Replication::send_status`]), also while nobody calls
    /// [`Replication::next`].
    pub fn status_every(&self) -> Duration {
        self.status_every
    }

    /// Nothing came. After half of the limit the server is asked for a sign of life; without one it
    /// is given up after the other half. What came while nobody read counts: it is read first.
    fn silent(&mut self) -> Result<()> {
        let limit = self.wire.silence;
        if limit.is_zero() || self.heard.elapsed() < limit / 2 {
            return Ok(());
        }
        match self.asked {
            None => {
                let (written, flushed, applied) = self.last_status;
                self.send_status(written, flushed, applied, true)?;
                self.asked = Some(Instant::now());
                Ok(())
            }
            Some(asked) if asked.elapsed() < limit / 2 => Ok(()),
            Some(_) => Err(self.wire.lost(
                Error::transient(format!(
                    "nothing was heard of the server for {limit:?} in the replication stream"
                ))
                .next("it is tried again; look at the network between here and the server"),
            )),
        }
    }

    /// The next frame, valid until the next call; `None` if nothing whole came within `wait`
    /// (what came in part is kept). A `wait` of zero only looks.
    ///
    /// # Errors
    /// Transient when the connection is cut or the server ends the stream (shutdown); otherwise
    /// the server's, with its SQLSTATE.
    #[inline]
    pub fn next(&mut self, wait: Duration) -> Result<Option<Frame<'_>>> {
        let mut began = None;
        let payload = loop {
            match self.wire.buffer.take() {
                Ok(Some(message)) if message.tag == b'd' => break message.payload,
                Ok(Some(message)) => self.other(&message)?,
                Ok(None) => {
                    if !self.more(wait, &mut began)? {
                        return Ok(None);
                    }
                }
                Err(e) => return Err(self.wire.lost(e)),
            }
        };
        match frame(self.wire.buffer.slice(payload)) {
            Some(frame) => Ok(Some(frame)),
            None => Err(protocol("a message of the replication stream is malformed")),
        }
    }

    /// Whether another whole message is already here.
    #[inline]
    pub fn buffered(&self) -> bool {
        self.wire.buffer.has_message()
    }

    /// Reports progress (Standby status update). `flushed` is what the slot may forget.
    ///
    /// # Errors
    /// Transient: the connection is cut.
    pub fn send_status(
        &mut self,
        written: Lsn,
        flushed: Lsn,
        applied: Lsn,
        reply_requested: bool,
    ) -> Result<()> {
        self.last_status = (written, flushed, applied);
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let clock = i64::try_from(clock).unwrap_or(i64::MAX).saturating_sub(PG_EPOCH_UNIX_US);
        let out = &mut self.wire.out;
        out.clear();
        out.extend_from_slice(b"d\0\0\0\x26r");
        for lsn in [written, flushed, applied] {
            out.extend_from_slice(&lsn.bytes().to_be_bytes());
        }
        out.extend_from_slice(&clock.to_be_bytes());
        out.extend_from_slice(&[u8::from(reply_requested)]);
        self.wire.flush("reporting progress")
    }

    /// A value the server reported, see [`Wire::parameter`].
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.wire.parameter(name)
    }

    /// Ends the stream and waits until the server has let go of the slot.
    ///
    /// # Errors
    /// Transient: the server did not end within 10 seconds, as in the middle of a large
    /// transaction; the slot is free once it notices that the connection is gone.
    pub fn finish(mut self) -> Result<()> {
        self.wire.out.clear();
        postgres_protocol::message::frontend::copy_done(&mut self.wire.out);
        self.wire.flush("ending the stream")?;
        let deadline = Instant::now() + FINISH;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.wire.lost(
                    Error::transient("the server did not end the replication stream in time")
                        .next("the slot is free again once the server notices; it is tried again"),
                ));
            }
            match self.wire.buffer.take()? {
                Some(message) => match message.tag {
                    // Data that was under way, even behind the server's own CopyDone.
                    b'd' | b'c' | b'C' => {}
                    b'Z' => {
                        self.wire.state = State::Ready;
                        return Ok(());
                    }
                    _ => self.other(&message)?,
                },
                None => {
                    self.set_timeout(left).map_err(|e| broken("ending the stream", e))?;
                    match self.wire.fill() {
                        Err(e) if !timed_out(&e) => {
                            return Err(self.wire.lost(broken("ending the stream", e)));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Reads once. False if `wait` is over.
    fn more(&mut self, wait: Duration, began: &mut Option<Instant>) -> Result<bool> {
        let result = if wait.is_zero() { self.look() } else { self.wait(wait, began) };
        match result {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.last_bytes = count;
                (self.heard, self.asked) = (Instant::now(), None);
                Ok(true)
            }
            Err(e) if timed_out(&e) => {
                // Quiet: a buffer grown for a large row is not needed.
                self.wire.buffer.shrink();
                self.silent()?;
                Ok(false)
            }
            Err(e) => Err(self.wire.lost(broken("in the replication stream", e))),
        }
    }

    fn look(&mut self) -> std::io::Result<usize> {
        self.wire.stream.set_nonblocking(true)?;
        let result = self.wire.fill();
        self.wire.stream.set_nonblocking(false)?;
        result
    }

    /// 0 once `wait` is over.
    fn wait(&mut self, wait: Duration, began: &mut Option<Instant>) -> std::io::Result<usize> {
        let now = Instant::now();
        let left = wait.saturating_sub(now.duration_since(*began.get_or_insert(now)));
        if left.is_zero() {
            return Ok(0);
        }
        let close = self.last_read.is_some_and(|last| now.duration_since(last) < CLOSE_READS);
        if close && self.last_bytes < FULL_READ_BYTES && left > GATHER {
            std::thread::sleep(GATHER);
        }
        self.set_timeout(left)?;
        let result = self.wire.fill();
        self.last_read = Some(Instant::now());
        result
    }

    fn set_timeout(&mut self, timeout: Duration) -> std::io::Result<()> {
        if self.timeout != Some(timeout) {
            self.wire.stream.set_read_timeout(Some(timeout.max(Duration::from_micros(1))))?;
            self.timeout = Some(timeout);
        }
        Ok(())
    }

    /// What is no data.
    #[cold]
    fn other(&mut self, message: &RawMessage) -> Result<()> {
        let error = match message.tag {
            b'E' => DbError::parse(self.wire.buffer.slice(message.payload.clone())).into_error(),
            b'c' | b'C' => Error::transient("the server ended the replication stream")
                .next("it is tried again; the server shuts down or was told to end the session"),
            _ => return self.wire.aside(message),
        };
        Err(self.wire.lost(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_options_are_quoted() {
        let options =
            [("proto_version".into(), "1".into()), ("publication_names".into(), "\"it's\"".into())];
        assert_eq!(
            start_command("a\"b", Lsn::new(0x1_0000_00ff), &options),
            "START_REPLICATION SLOT \"a\"\"b\" LOGICAL 1/FF (\"proto_version\" '1', \"publication_names\" '\"it''s\"')"
        );
        assert_eq!(start_command("s", Lsn::ZERO, &[]), "START_REPLICATION SLOT \"s\" LOGICAL 0/0");
    }

    #[test]
    fn frames_are_read_whole_or_not_at_all() {
        let mut bytes = b"w".to_vec();
        bytes.extend(5u64.to_be_bytes());
        bytes.extend(6u64.to_be_bytes());
        bytes.extend(7i64.to_be_bytes());
        for cut in 0..bytes.len() {
            assert_eq!(frame(&bytes[..cut]), None);
        }
        bytes.extend(b"data");
        let (start, end) = (Lsn::new(5), Lsn::new(6));
        assert_eq!(frame(&bytes), Some(Frame::XLogData { start, end, clock_us: 7, data: b"data" }));
        let keepalive = b"k\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x07\x01";
        assert_eq!(frame(keepalive), Some(Frame::Keepalive { end, clock_us: 7, reply: true }));
        assert_eq!(frame(&keepalive[..17]), None);
        assert_eq!(frame(b"x"), None);
    }

    #[test]
    fn a_history_file_gives_its_switches() {
        let found =
            switches("1\t0/3000148\tno recovery target\n\n# c\n2\t0/40\tafter LSN 0/40\n").unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], TimelineSwitch { timeline: 2, switch: Lsn::new(0x40) });
        assert_eq!(switches("x\t0/1\t"), None);
        assert_eq!(switches(""), Some(vec![]));
    }
}

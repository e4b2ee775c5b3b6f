//! Decodes the messages of PostgreSQL's output plugin `pgoutput`, protocol versions 1 to 4.
//!
//! Strict: an unknown tag, a message out of place, a byte too few or too many, or a name that is
//! not UTF-8 is an error, never a row that is silently left out. Nothing is copied for a row:
//! tuples borrow the message and can be kept as raw bytes.
//!
//! Source of the layout: PostgreSQL manual, "Logical Replication Message Formats"; the fields of
//! `Stream Abort` for parallel apply, and that an `Origin` carries no xid, as the server's
//! `proto.c` writes them.

use crate::error::{Error, Result};
use crate::position::Lsn;

mod cursor;
mod tuple;

use cursor::Cursor;
pub use tuple::{Datum, Tuple, TupleIter};

/// One message. Times are microseconds since 2000-01-01 UTC, see [`pg_epoch_to_unix_us`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the manual.
pub enum Message<'a> {
    /// A transaction begins; it is sent whole, after its commit.
    Begin { final_lsn: Lsn, commit_time_us: i64, xid: u32 },
    /// It ends. `commit_lsn` is its commit record, `end_lsn` the byte after it.
    Commit { commit_lsn: Lsn, end_lsn: Lsn, commit_time_us: i64 },
    /// The transaction came from another server.
    Origin { commit_lsn: Lsn, name: &'a str },
    /// The columns of a table, before its first row and after every change of them.
    Relation(Relation),
    /// Names a type that is not built in.
    Type { oid: u32, namespace: &'a str, name: &'a str },
    /// A new row.
    Insert { rel: u32, new: Tuple<'a> },
    /// A row changed; `old` is there when the key changed, or under replica identity FULL.
    Update { rel: u32, old: Option<OldTuple<'a>>, new: Tuple<'a> },
    /// A row is gone.
    Delete { rel: u32, old: OldTuple<'a> },
    /// Tables emptied by one command.
    Truncate { rels: Vec<u32>, cascade: bool, restart_identity: bool },
    /// `pg_logical_emit_message`.
    Logical { transactional: bool, lsn: Lsn, prefix: &'a str, content: &'a [u8] },
    /// A piece of a transaction still in progress follows.
    StreamStart { xid: u32, first_segment: bool },
    /// The piece ends.
    StreamStop,
    /// A streamed transaction committed.
    StreamCommit { xid: u32, commit_lsn: Lsn, end_lsn: Lsn, commit_time_us: i64 },
    /// A streamed transaction (`subxid == xid`) or one of its subtransactions rolled back.
    StreamAbort { xid: u32, subxid: u32, abort: Option<(Lsn, i64)> },
    /// A two-phase transaction begins; it is sent at its PREPARE.
    BeginPrepare { prepare_lsn: Lsn, end_lsn: Lsn, prepare_time_us: i64, xid: u32, gid: &'a str },
    /// It is prepared.
    Prepare { prepare_lsn: Lsn, end_lsn: Lsn, prepare_time_us: i64, xid: u32, gid: &'a str },
    /// COMMIT PREPARED.
    CommitPrepared { commit_lsn: Lsn, end_lsn: Lsn, commit_time_us: i64, xid: u32, gid: &'a str },
    /// ROLLBACK PREPARED.
    RollbackPrepared {
        prepare_end_lsn: Lsn,
        rollback_end_lsn: Lsn,
        prepare_time_us: i64,
        rollback_time_us: i64,
        xid: u32,
        gid: &'a str,
    },
    /// A streamed transaction is prepared.
    StreamPrepare { prepare_lsn: Lsn, end_lsn: Lsn, prepare_time_us: i64, xid: u32, gid: &'a str },
}

/// What is known of a row before its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// The columns of the replica identity; the others are NULL.
    Key(Tuple<'a>),
    /// All columns (replica identity FULL).
    Full(Tuple<'a>),
}

impl<'a> OldTuple<'a> {
    /// The tuple, whichever it is.
    pub fn tuple(&self) -> Tuple<'a> {
        match self {
            OldTuple::Key(tuple) | OldTuple::Full(tuple) => *tuple,
        }
    }
}

/// The shape of a table as the following rows of it have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// `pg_class.oid`.
    pub oid: u32,
    /// Schema; `pg_catalog` where the server sends the empty string.
    pub namespace: String,
    /// Table.
    pub name: String,
    /// Replica identity: `d`efault, `n`othing, `f`ull, `i`ndex.
    pub identity: u8,
    /// The published columns, in order.
    pub columns: Vec<RelationColumn>,
}

/// One column of a [`Relation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn {
    /// Part of the replica identity.
    pub key: bool,
    /// Name.
    pub name: String,
    /// `pg_type.oid`.
    pub type_oid: u32,
    /// `atttypmod`, -1 for none.
    pub typmod: i32,
}

/// Microseconds from PostgreSQL's epoch (2000-01-01) to microseconds from 1970-01-01. Saturates.
pub fn pg_epoch_to_unix_us(pg_us: i64) -> i64 {
    const SHIFT_US: i64 = 946_684_800_000_000;
    pg_us.saturating_add(SHIFT_US)
}

/// Decodes one message; `in_stream` between a `StreamStart` and its `StreamStop`, where messages
/// carry the xid of their (sub)transaction, which is returned.
///
/// # Errors
/// [`Kind::Failed`](crate::error::Kind::Failed): the message is not what the protocol says.
#[inline]
pub fn decode<'a>(data: &'a [u8], in_stream: bool) -> Result<(Option<u32>, Message<'a>)> {
    let mut cursor = Cursor::new(data);
    match message(&mut cursor, in_stream) {
        Ok(decoded) if cursor.is_empty() => Ok(decoded),
        Ok(_) => Err(wrong(data, "has bytes after its end")),
        Err(cursor::Malformed(what)) => Err(wrong(data, what)),
    }
}

#[cold]
fn wrong(data: &[u8], what: &str) -> Error {
    let tag = match data.first() {
        Some(tag) => format!("'{}'", tag.escape_ascii()),
        None => "(empty)".to_owned(),
    };
    Error::failed(format!("a pgoutput message {tag} of {} bytes {what}", data.len())).next(
        "report it with the server's version; nothing was skipped, the stream stops before it",
    )
}

type Decoded<T> = std::result::Result<T, cursor::Malformed>;

#[inline]
fn message<'a>(c: &mut Cursor<'a>, in_stream: bool) -> Decoded<(Option<u32>, Message<'a>)> {
    let tag = c.u8()?;
    let xid = match tag {
        b'I' | b'U' | b'D' | b'R' | b'Y' | b'T' | b'M' if in_stream => Some(c.u32()?),
        b'I' | b'U' | b'D' | b'R' | b'Y' | b'T' | b'M' | b'O' => None,
        b'E' if in_stream => None,
        b'E' => return Err(cursor::Malformed("stands outside a streamed block")),
        _ if in_stream => return Err(cursor::Malformed("stands inside a streamed block")),
        _ => None,
    };
    let message = match tag {
        b'I' => {
            let rel = c.u32()?;
            c.expect(b'N', "has no new row")?;
            Message::Insert { rel, new: c.tuple()? }
        }
        b'U' => {
            let rel = c.u32()?;
            let (old, kind) = match c.u8()? {
                b'K' => (Some(OldTuple::Key(c.tuple()?)), c.u8()?),
                b'O' => (Some(OldTuple::Full(c.tuple()?)), c.u8()?),
                kind => (None, kind),
            };
            if kind != b'N' {
                return Err(cursor::Malformed("has no new row"));
            }
            Message::Update { rel, old, new: c.tuple()? }
        }
        b'D' => {
            let rel = c.u32()?;
            let old = match c.u8()? {
                b'K' => OldTuple::Key(c.tuple()?),
                b'O' => OldTuple::Full(c.tuple()?),
                _ => return Err(cursor::Malformed("has no old row")),
            };
            Message::Delete { rel, old }
        }
        b'B' => Message::Begin { final_lsn: c.lsn()?, commit_time_us: c.i64()?, xid: c.u32()? },
        b'C' => {
            c.expect(0, "has unknown flags")?;
            Message::Commit { commit_lsn: c.lsn()?, end_lsn: c.lsn()?, commit_time_us: c.i64()? }
        }
        b'R' => Message::Relation(relation(c)?),
        b'Y' => Message::Type { oid: c.u32()?, namespace: c.namespace()?, name: c.text()? },
        b'T' => truncate(c)?,
        b'M' => logical(c)?,
        b'O' => Message::Origin { commit_lsn: c.lsn()?, name: c.text()? },
        b'S' => Message::StreamStart { xid: c.u32()?, first_segment: c.flag()? },
        b'E' => Message::StreamStop,
        b'c' => {
            let xid = c.u32()?;
            c.expect(0, "has unknown flags")?;
            Message::StreamCommit {
                xid,
                commit_lsn: c.lsn()?,
                end_lsn: c.lsn()?,
                commit_time_us: c.i64()?,
            }
        }
        b'A' => {
            let (xid, subxid) = (c.u32()?, c.u32()?);
            // Sent with streaming = parallel only; nothing but the length tells.
            let abort = if c.is_empty() { None } else { Some((c.lsn()?, c.i64()?)) };
            Message::StreamAbort { xid, subxid, abort }
        }
        _ => two_phase(tag, c)?,
    };
    Ok((xid, message))
}

fn two_phase<'a>(tag: u8, c: &mut Cursor<'a>) -> Decoded<Message<'a>> {
    if !matches!(tag, b'b' | b'P' | b'K' | b'r' | b'p') {
        return Err(cursor::Malformed("is of an unknown kind"));
    }
    if tag != b'b' {
        c.expect(0, "has unknown flags")?;
    }
    let (first, second, time) = (c.lsn()?, c.lsn()?, c.i64()?);
    let rollback_time_us = if tag == b'r' { c.i64()? } else { 0 };
    let (xid, gid) = (c.u32()?, c.text()?);
    let (prepare_lsn, end_lsn, prepare_time_us) = (first, second, time);
    Ok(match tag {
        b'b' => Message::BeginPrepare { prepare_lsn, end_lsn, prepare_time_us, xid, gid },
        b'P' => Message::Prepare { prepare_lsn, end_lsn, prepare_time_us, xid, gid },
        b'K' => {
            Message::CommitPrepared { commit_lsn: first, end_lsn, commit_time_us: time, xid, gid }
        }
        b'r' => Message::RollbackPrepared {
            prepare_end_lsn: first,
            rollback_end_lsn: second,
            prepare_time_us,
            rollback_time_us,
            xid,
            gid,
        },
        _ => Message::StreamPrepare { prepare_lsn, end_lsn, prepare_time_us, xid, gid },
    })
}

fn relation(c: &mut Cursor<'_>) -> Decoded<Relation> {
    let oid = c.u32()?;
    let namespace = c.namespace()?.to_owned();
    let name = c.text()?.to_owned();
    let identity = c.u8()?;
    if !matches!(identity, b'd' | b'n' | b'f' | b'i') {
        return Err(cursor::Malformed("has an unknown replica identity"));
    }
    let count = c.u16()?;
    // A column takes 10 bytes at least, so a false count reserves no memory.
    let mut columns = Vec::with_capacity(usize::from(count).min(c.remaining() / 10 + 1));
    for _ in 0..count {
        columns.push(RelationColumn {
            key: match c.u8()? {
                0 => false,
                1 => true,
                _ => return Err(cursor::Malformed("has unknown column flags")),
            },
            name: c.text()?.to_owned(),
            type_oid: c.u32()?,
            typmod: c.i32()?,
        });
    }
    Ok(Relation { oid, namespace, name, identity, columns })
}

fn truncate<'a>(c: &mut Cursor<'a>) -> Decoded<Message<'a>> {
    let count = c.u32()? as usize;
    let options = c.u8()?;
    if options & !3 != 0 {
        return Err(cursor::Malformed("has unknown options"));
    }
    if c.remaining() / 4 < count {
        return Err(cursor::Malformed("ends too early"));
    }
    let rels = (0..count).map(|_| c.u32()).collect::<Decoded<Vec<_>>>()?;
    Ok(Message::Truncate { rels, cascade: options & 1 != 0, restart_identity: options & 2 != 0 })
}

fn logical<'a>(c: &mut Cursor<'a>) -> Decoded<Message<'a>> {
    let transactional = c.flag()?;
    let (lsn, prefix) = (c.lsn()?, c.text()?);
    let length = c.u32()? as usize;
    Ok(Message::Logical { transactional, lsn, prefix, content: c.bytes(length)? })
}

#[cfg(test)]
mod tests;

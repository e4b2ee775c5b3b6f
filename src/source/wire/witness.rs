//! Reads one commit record of the server's log, to prove that its history is still ours.
//!
//! A position says nothing by itself: a server that was restored from a copy of its disk goes on
//! writing on the same timeline, and once it has written enough it stands beyond every position we
//! know, with other transactions behind them. Its slot was restored too. But the commit record of
//! the last transaction we applied is in the log at one position, with one xid and one commit time
//! in microseconds; a log of another history has something else there.
//!
//! The log is asked for as a physical standby does, over the connection that may ask: nothing is
//! reserved and nothing is moved. It may be gone where the slot does not need it any more.
//!
//! Source of the layout: `access/xlogrecord.h`, `access/xlog_internal.h` and `access/xact.h`, the
//! same from 13 to 18.

use std::time::{Duration, Instant};

use super::replication::{Frame, frame};
use super::{DbError, Wire};
use crate::error::{Error, Result};
use crate::position::Lsn;

/// How long the server may take to send a few bytes of its log.
const PATIENCE: Duration = Duration::from_secs(10);
const PAGE_BYTES: u64 = 8192;
const PAGE_HEADER_BYTES: usize = 24;
const LONG_PAGE_HEADER_BYTES: usize = 40;
const LONG_HEADER: u16 = 0x0002;
/// Enough of a record to find its time: the header, optional parts, and the first field.
const WANTED_BYTES: usize = 64;
const RECORD_HEADER_BYTES: usize = 24;
const TRANSACTION_MANAGER: u8 = 1;
const COMMIT: u8 = 0x00;
const COMMIT_PREPARED: u8 = 0x30;

/// A commit record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRecord {
    /// The transaction; none where the record has it elsewhere (COMMIT PREPARED).
    pub xid: Option<u32>,
    /// When it committed, microseconds since 2000-01-01.
    pub committed_at_us: i64,
}

impl Wire {
    /// The commit record that starts at `at` on `timeline` and ends at `end` at the latest; `None`
    /// if something else stands there. The server's log must reach to `end`: nothing after it is
    /// waited for. On a replication connection, which is used up by it.
    ///
    /// # Errors
    /// The server's: 58P01 where that log is gone; the connection.
    pub fn commit_record(
        mut self,
        at: Lsn,
        end: Lsn,
        timeline: u32,
    ) -> Result<Option<CommitRecord>> {
        self.send_query(&format!("START_REPLICATION PHYSICAL {at} TIMELINE {timeline}"))?;
        let deadline = Instant::now() + PATIENCE;
        let mut log = Vec::new();
        self.set_read_timeout(Some(PATIENCE))?;
        loop {
            let message = self.read()?;
            let body = self.buffer.slice(message.payload.clone());
            match message.tag {
                b'E' => return Err(DbError::parse(body).into_error()),
                b'd' => {
                    if let Some(Frame::XLogData { data, .. }) = frame(body) {
                        log.extend_from_slice(data);
                    }
                    match look(at, &log) {
                        Some(found) => return Ok(found),
                        None if log.len() as u64 >= end.bytes_since(at) => return Ok(None),
                        None => {}
                    }
                }
                b'W' => {}
                // It has nothing after the position, so no record is there.
                b'c' | b'C' => return Ok(None),
                _ => self.aside(&message)?,
            }
            if Instant::now() > deadline {
                return Err(Error::transient("the server does not send its log"));
            }
        }
    }
}

/// What stands at `at`, where `log` begins; `None` while more of it is needed to tell.
fn look(at: Lsn, log: &[u8]) -> Option<Option<CommitRecord>> {
    let length = strip_pages(at, log, 4)?;
    let length = u32::from_le_bytes(*length.first_chunk()?) as usize;
    if length < RECORD_HEADER_BYTES {
        return Some(None);
    }
    Some(parse(&strip_pages(at, log, length.min(WANTED_BYTES))?))
}

/// So many bytes from `at` on, without the headers of pages; `None` while there are too few.
fn strip_pages(at: Lsn, log: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let mut record = Vec::with_capacity(bytes);
    let (mut position, mut rest) = (at.bytes(), log);
    while record.len() < bytes {
        if position.is_multiple_of(PAGE_BYTES) {
            let info = u16::from_le_bytes([*rest.get(2)?, *rest.get(3)?]);
            let header = match info & LONG_HEADER {
                0 => PAGE_HEADER_BYTES,
                _ => LONG_PAGE_HEADER_BYTES,
            };
            rest = rest.get(header..)?;
            position += header as u64;
        }
        let in_page = (PAGE_BYTES - position % PAGE_BYTES) as usize;
        let wanted = in_page.min(bytes - record.len());
        record.extend_from_slice(rest.get(..wanted)?);
        rest = rest.get(wanted..)?;
        position += wanted as u64;
    }
    Some(record)
}

fn parse(record: &[u8]) -> Option<CommitRecord> {
    let xid = u32::from_le_bytes(*record.get(4..)?.first_chunk()?);
    let (info, manager) = (*record.get(16)? & 0x70, *record.get(17)?);
    if manager != TRANSACTION_MANAGER || (info != COMMIT && info != COMMIT_PREPARED) {
        return None;
    }
    let mut rest = record.get(RECORD_HEADER_BYTES..)?;
    loop {
        let (id, after) = rest.split_first()?;
        rest = match id {
            // Main data, short and long.
            255 => break Some(after.get(1..)?),
            254 => break Some(after.get(4..)?),
            // Replication origin, top-level transaction.
            253 => after.get(2..)?,
            252 => after.get(4..)?,
            _ => return None,
        };
    }
    .and_then(|data| {
        Some(CommitRecord {
            xid: (info == COMMIT).then_some(xid),
            committed_at_us: i64::from_le_bytes(*data.first_chunk()?),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Vec<u8> {
        let mut record = vec![0; 24];
        record[0..4].copy_from_slice(&37u32.to_le_bytes());
        record[4..8].copy_from_slice(&777u32.to_le_bytes());
        record[17] = TRANSACTION_MANAGER;
        record.extend([253, 1, 0, 255, 30]);
        record.extend(123_456_789i64.to_le_bytes());
        record
    }

    #[test]
    fn a_commit_is_read_and_nothing_else_is_taken_for_one() {
        let found = CommitRecord { xid: Some(777), committed_at_us: 123_456_789 };
        assert_eq!(parse(&record()), Some(found));
        let mut prepared = record();
        prepared[16] = COMMIT_PREPARED | 0x80;
        assert_eq!(parse(&prepared), Some(CommitRecord { xid: None, ..found }));
        let mut abort = record();
        abort[16] = 0x20;
        assert_eq!(parse(&abort), None);
        let mut heap = record();
        heap[17] = 10;
        assert_eq!(parse(&heap), None);
        assert_eq!(look(Lsn::new(PAGE_BYTES + 24), &[0; 100]), Some(None), "no record at all");
        for cut in 0..37 {
            assert_eq!(parse(&record()[..cut]), None);
        }
    }

    #[test]
    fn a_record_that_goes_over_a_page_is_put_together() {
        for (info, header) in [(0u16, PAGE_HEADER_BYTES), (LONG_HEADER, LONG_PAGE_HEADER_BYTES)] {
            let at = Lsn::new(5 * PAGE_BYTES - 16);
            let mut log = record()[..16].to_vec();
            let mut page = vec![0; header];
            page[2..4].copy_from_slice(&info.to_le_bytes());
            log.extend(page);
            log.extend(&record()[16..]);
            assert_eq!(look(at, &log), Some(parse(&record())));
            for cut in 0..log.len() {
                assert_eq!(look(at, &log[..cut]), None, "decided on {cut} bytes");
            }
        }
    }
}

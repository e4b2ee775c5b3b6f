//! `COPY … TO STDOUT`: payloads are slices of the read buffer.

use super::error::protocol;
use super::{DbError, State, Wire, shorten};
use crate::error::{Error, Result};

/// A COPY under way. Dropped before its end it leaves the connection unusable; to end one early,
/// cancel it ([`Wire::cancel_handle`]) and read on until the error comes.
pub struct CopyOut<'a> {
    wire: &'a mut Wire,
    subject: String,
    done: bool,
    /// The formats the server announced: 0 text, 1 binary.
    binary: bool,
}

pub(super) fn start<'a>(wire: &'a mut Wire, sql: &str) -> Result<CopyOut<'a>> {
    let subject = shorten(sql);
    wire.send_query(sql)?;
    loop {
        let message = wire.read()?;
        let body = wire.buffer.slice(message.payload.clone());
        match message.tag {
            b'H' => {
                let binary = body.first() == Some(&1);
                return Ok(CopyOut { wire, subject, done: false, binary });
            }
            b'E' => {
                let failure = DbError::parse(body).into_error().at(&subject);
                wire.finish_answer(Some(failure), &subject)?;
            }
            // Whatever it was, it was no COPY TO STDOUT: read to its end and say so.
            b'T' | b'C' | b'I' | b'D' => {
                let failure = Error::failed("is not COPY … TO STDOUT").at(&subject);
                wire.finish_answer(Some(failure), &subject)?;
            }
            b'G' => return Err(wire.lost(Error::failed("is COPY … FROM STDIN").at(&subject))),
            b'Z' => {
                wire.state = State::Ready;
                return Err(Error::failed("is not COPY … TO STDOUT").at(&subject));
            }
            _ => wire.aside(&message)?,
        }
    }
}

impl CopyOut<'_> {
    /// The payload of the next CopyData, valid until the next call; `None` once the COPY and its
    /// statement have ended well and the connection is free again.
    ///
    /// # Errors
    /// The server's, with its SQLSTATE, after which the connection is free; or transient when the
    /// connection breaks.
    #[inline]
    // What it gives borrows from the connection: no Iterator can do that.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.done {
            return Ok(None);
        }
        let payload = loop {
            let message = self.wire.read()?;
            if message.tag == b'd' {
                break message.payload;
            }
            if self.other(&message)? {
                return Ok(None);
            }
        };
        Ok(Some(self.wire.buffer.slice(payload)))
    }

    /// Whether the server sends the binary format.
    pub fn is_binary(&self) -> bool {
        self.binary
    }

    /// True at the end.
    #[cold]
    fn other(&mut self, message: &super::RawMessage) -> Result<bool> {
        let failure = match message.tag {
            b'c' => None,
            b'E' => {
                let body = self.wire.buffer.slice(message.payload.clone());
                Some(DbError::parse(body).into_error().at(&self.subject))
            }
            b'C' | b'Z' => Some(protocol("a COPY ended without CopyDone")),
            _ => {
                self.wire.aside(message)?;
                return Ok(false);
            }
        };
        self.done = true;
        self.wire.finish_answer(failure, &self.subject)?;
        Ok(true)
    }
}

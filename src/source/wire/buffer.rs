//! Cuts the byte stream into messages without copying them.
//!
//! One buffer of 256 kB is filled by reads as large as there is room, and messages are ranges of
//! it. A message that does not fit makes the buffer grow as its bytes arrive, never by what a
//! header merely claims; after a while without such messages it shrinks back.

use std::io;
use std::ops::Range;

use super::error::protocol;
use crate::error::Result;

/// What the buffer holds normally.
pub(super) const USUAL_BYTES: usize = 256 * 1024;
/// PostgreSQL builds a message in at most 1 GiB of memory; a length beyond it (with some room for
/// headers) means that the stream is out of step.
pub(super) const MAX_MESSAGE_BYTES: usize = (1 << 30) + (1 << 16);
/// With less room than this behind the data, an incomplete message is moved to the front.
const MIN_ROOM_BYTES: usize = 64 * 1024;
/// Reads without a large message after which the buffer shrinks.
const SHRINK_AFTER: u32 = 256;
/// Tag and length.
const HEADER_BYTES: usize = 5;

/// A whole message: its tag, and where its payload stands in the buffer until the next read.
pub(super) struct RawMessage {
    pub tag: u8,
    pub payload: Range<usize>,
}

pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    small_reads: u32,
}

impl ReadBuffer {
    pub fn new() -> Self {
        ReadBuffer { bytes: vec![0; USUAL_BYTES], start: 0, end: 0, small_reads: 0 }
    }

    /// The bytes of a message given by [`ReadBuffer::take`] since the last read.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// The next message's tag and total length, if its header is there.
    #[inline]
    fn header(&self) -> Result<Option<(u8, usize)>> {
        let Some([tag, a, b, c, d]) =
            self.bytes.get(self.start..self.end).and_then(|b| b.first_chunk())
        else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if !(4..=MAX_MESSAGE_BYTES).contains(&length) {
            return Err(protocol(format_args!(
                "message '{}' claims a length of {length} bytes",
                tag.escape_ascii()
            )));
        }
        Ok(Some((*tag, length + 1)))
    }

    /// Whether a whole message is in the buffer.
    #[inline]
    pub fn has_message(&self) -> bool {
        matches!(self.header(), Ok(Some((_, total))) if self.end - self.start >= total)
    }

    /// Takes the next message if it is wholly in the buffer.
    #[inline]
    pub fn take(&mut self) -> Result<Option<RawMessage>> {
        match self.header()? {
            Some((tag, total)) if self.end - self.start >= total => {
                let payload = self.start + HEADER_BYTES..self.start + total;
                self.start += total;
                Ok(Some(RawMessage { tag, payload }))
            }
            _ => Ok(None),
        }
    }

    /// Reads once with `read`, which gets all the room there is. Messages taken before are gone.
    ///
    /// # Errors
    /// What `read` returns, with nothing lost; end of the stream is `UnexpectedEof`.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        self.make_room();
        let count = read(self.bytes.get_mut(self.end..).unwrap_or_default())?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.end = self.bytes.len().min(self.end + count);
        Ok(count)
    }

    fn make_room(&mut self) {
        // A bad length was or will be reported by `take`.
        let needed = self.header().ok().flatten().map_or(HEADER_BYTES, |(_, total)| total);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let (len, held) = (self.bytes.len(), self.end - self.start);
        if self.start > 0 && (len - self.end < MIN_ROOM_BYTES || self.start + needed > len) {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
        }
        if self.start == 0 && needed > len && self.end == len {
            self.bytes.resize(needed.min(len * 2), 0);
        }
        self.small_reads =
            if needed > USUAL_BYTES { 0 } else { self.small_reads.saturating_add(1) };
        if self.small_reads >= SHRINK_AFTER {
            self.shrink();
        }
    }

    /// Gives memory back if the usual buffer is enough for what is held.
    pub fn shrink(&mut self) {
        if self.bytes.len() > USUAL_BYTES && self.start == self.end {
            self.bytes = vec![0; USUAL_BYTES];
            (self.start, self.end) = (0, 0);
        }
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(tag: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend((payload.len() as u32 + 4).to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    /// All messages of `stream`, read in pieces of at most the given sizes.
    fn read_all(
        buffer: &mut ReadBuffer,
        mut stream: &[u8],
        pieces: &[usize],
    ) -> Vec<(u8, Vec<u8>)> {
        let mut pieces = pieces.iter().cycle();
        let mut found = Vec::new();
        loop {
            while let Some(m) = buffer.take().unwrap() {
                found.push((m.tag, buffer.slice(m.payload).to_vec()));
            }
            let result = buffer.fill(|room| {
                assert!(!room.is_empty());
                let n = stream.len().min(room.len()).min(*pieces.next().unwrap());
                room[..n].copy_from_slice(&stream[..n]);
                stream = &stream[n..];
                Ok(n)
            });
            if result.is_err() {
                return found;
            }
        }
    }

    #[test]
    fn a_message_larger_than_the_buffer_grows_it_and_it_shrinks_back() {
        let mut buffer = ReadBuffer::new();
        let large: Vec<u8> = (0..5_000_000u32).map(|i| i as u8).collect();
        let mut stream = message(b'd', b"before");
        stream.extend(message(b'd', &large));
        stream.extend(message(b'c', b""));
        let found = read_all(&mut buffer, &stream, &[usize::MAX]);
        assert_eq!(found.len(), 3);
        assert!(found[1].1 == large);
        assert!(buffer.capacity() > 5_000_000 && buffer.capacity() < 10_000_000);
        buffer.shrink();
        assert_eq!(buffer.capacity(), USUAL_BYTES);
    }

    #[test]
    fn a_large_buffer_shrinks_after_many_small_reads() {
        let mut buffer = ReadBuffer::new();
        let mut stream = message(b'd', &vec![7; 1_000_000]);
        for _ in 0..1000 {
            stream.extend(message(b'd', &[1; 100]));
        }
        assert_eq!(read_all(&mut buffer, &stream, &[105]).len(), 1001);
        assert_eq!(buffer.capacity(), USUAL_BYTES);
    }

    #[test]
    fn an_impossible_length_is_an_error_and_reserves_nothing() {
        for header in [b"d\0\0\0\x03", b"d\x7f\xff\xff\xff", b"d\xff\xff\xff\xff"] {
            let mut buffer = ReadBuffer::new();
            buffer
                .fill(|room| {
                    room[..5].copy_from_slice(header);
                    Ok(5)
                })
                .unwrap();
            assert!(buffer.take().is_err());
            assert_eq!(buffer.capacity(), USUAL_BYTES);
        }
        // The largest that is allowed is only believed as its bytes arrive.
        let mut buffer = ReadBuffer::new();
        buffer
            .fill(|room| {
                room[..5].copy_from_slice(b"d\x40\0\0\0");
                Ok(5)
            })
            .unwrap();
        assert!(buffer.take().unwrap().is_none());
        buffer.fill(|_| Ok(1)).unwrap();
        assert_eq!(buffer.capacity(), USUAL_BYTES);
    }

    #[test]
    fn a_failed_read_loses_nothing() {
        let mut buffer = ReadBuffer::new();
        let whole = message(b'd', b"abcdef");
        for byte in &whole {
            assert!(buffer.fill(|_| Err(io::ErrorKind::WouldBlock.into())).is_err());
            assert!(buffer.take().unwrap().is_none());
            buffer
                .fill(|room| {
                    room[0] = *byte;
                    Ok(1)
                })
                .unwrap();
        }
        assert!(buffer.has_message());
        let m = buffer.take().unwrap().unwrap();
        assert_eq!(buffer.slice(m.payload), b"abcdef");
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in(
            sizes in prop::collection::vec(prop_oneof![4 => 0..200usize, 1 => 0..400_000usize], 1..20),
            pieces in prop::collection::vec(1..300_000usize, 1..6),
        ) {
            let mut stream = Vec::new();
            for (i, size) in sizes.iter().enumerate() {
                stream.extend(message(b'a' + i as u8, &vec![i as u8; *size]));
            }
            let found = read_all(&mut ReadBuffer::new(), &stream, &pieces);
            prop_assert_eq!(found.len(), sizes.len());
            for (i, (tag, payload)) in found.iter().enumerate() {
                prop_assert_eq!(*tag, b'a' + i as u8);
                prop_assert!(payload.len() == sizes[i] && payload.iter().all(|b| *b == i as u8));
            }
        }
    }
}

//! The file format of the spool: messages of the stream as they came, whole or not at all.
//!
//! ```text
//!   "TGSPOOL" version:u8                             begin
//!   length:u32  header (JSON)                        which run, which session, which options
//!   zstd( kind:u8 length:u32 start:u64 end:u64 bytes … )
//!   records:u64  raw bytes:u64                       end, of fixed length
//!   xxh3-128 of everything before    "TGSP-END"
//! ```
//!
//! Numbers are big-endian. A file that was cut, torn, changed in a bit or put there by somebody else
//! is an error, never a shorter stream. The messages are kept as the server sent them, so the one
//! decoder reads them from here as from the connection.

use std::io::{BufReader, Cursor, Read, Write};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, Result};
use crate::position::Lsn;

const BEGIN: &[u8; 7] = b"TGSPOOL";
const VERSION: u8 = 1;
const END: &[u8; 8] = b"TGSP-END";
/// Counts, checksum, end.
const FOOTER: usize = 8 + 8 + 16 + 8;
/// Kind, length, start, end.
const RECORD: usize = 1 + 4 + 8 + 8;
/// The one kind of record: a message of the output plugin.
const MESSAGE: u8 = b'w';
/// The server sends values one by one: zstd's own default is fast enough for that.
const LEVEL: i32 = 3;

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The run.
    pub run: String,
    /// The connection over which its messages came: another one names its tables again.
    pub session: String,
    /// The number of the file in the run.
    pub number: u64,
    /// The options of START_REPLICATION, which decide what the messages look like.
    pub options: Vec<(String, String)>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The file's content.
    pub bytes: Bytes,
    /// Messages in it.
    pub records: u64,
    /// xxh3-128 of the whole file, in hexadecimal digits.
    pub checksum: String,
}

/// Writes one file in memory.
pub struct SegmentWriter {
    out: zstd::Encoder<'static, Vec<u8>>,
    records: u64,
    raw: u64,
}

fn odd(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::failed("a file of the spool can't be made").because(what)
}

impl SegmentWriter {
    /// A file with this header.
    ///
    /// # Errors
    /// The compressor can't be set up.
    pub fn new(header: &Header) -> Result<Self> {
        let json = serde_json::to_vec(header).map_err(odd)?;
        let length = u32::try_from(json.len()).map_err(odd)?;
        let mut out = Vec::with_capacity(1 << 16);
        out.extend_from_slice(BEGIN);
        out.push(VERSION);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&json);
        let out = zstd::Encoder::new(out, LEVEL).map_err(odd)?;
        Ok(SegmentWriter { out, records: 0, raw: 0 })
    }

    /// Adds a message.
    ///
    /// # Errors
    /// The compressor fails; a message of 4 GiB, which the server can't send.
    pub fn push(&mut self, start: Lsn, end: Lsn, message: &[u8]) -> Result<()> {
        let length = u32::try_from(message.len()).map_err(odd)?;
        let mut head = [0; RECORD];
        head[0] = MESSAGE;
        head[1..5].copy_from_slice(&length.to_be_bytes());
        head[5..13].copy_from_slice(&start.bytes().to_be_bytes());
        head[13..21].copy_from_slice(&end.bytes().to_be_bytes());
        self.out.write_all(&head).map_err(odd)?;
        self.out.write_all(message).map_err(odd)?;
        self.records += 1;
        self.raw += (RECORD + message.len()) as u64;
        Ok(())
    }

    /// Bytes the file has so far, less what the compressor still holds back.
    pub fn size(&self) -> u64 {
        self.out.get_ref().len() as u64
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The compressor fails.
    pub fn seal(self) -> Result<Sealed> {
        let mut out = self.out.finish().map_err(odd)?;
        out.extend_from_slice(&self.records.to_be_bytes());
        out.extend_from_slice(&self.raw.to_be_bytes());
        let sum = xxh3_128(&out);
        out.extend_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(END);
        let checksum = format!("{:032x}", xxh3_128(&out));
        Ok(Sealed { bytes: out.into(), records: self.records, checksum })
    }
}

/// One message of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it stood in the log; 0 for RELATION and TYPE.
    pub start: Lsn,
    /// As `start`, in a logical stream.
    pub end: Lsn,
    /// The message.
    pub message: &'a [u8],
}

/// Reads one file, which was proven whole before its first message is given.
pub struct SegmentReader {
    header: Header,
    checksum: String,
    body: BufReader<zstd::Decoder<'static, BufReader<Cursor<Bytes>>>>,
    records: u64,
    left: u64,
    raw_left: u64,
    message: Vec<u8>,
}

/// Why bytes are no file of a spool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It does not begin as one.
    #[error("it is no file of a spool")]
    Foreign,
    /// A later version made it.
    #[error("its format is version {0}, this program knows 1")]
    Newer(u8),
    /// It ends too early, or bytes follow its end.
    #[error("it was cut off, or bytes follow its end")]
    Cut,
    /// Bytes differ from those that were written.
    #[error("its checksum is wrong")]
    Changed,
    /// The checksum holds, the content does not: it was not made by this code.
    #[error("its content is odd: {0}")]
    Odd(String),
}

impl SegmentReader {
    /// Proves that `bytes` are a whole file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(bytes: Bytes) -> Result<Self, Damage> {
        let Some((begin, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(if BEGIN.starts_with(&bytes) { Damage::Cut } else { Damage::Foreign });
        };
        let (begin, version) = begin.split_at(BEGIN.len());
        if begin != BEGIN {
            return Err(Damage::Foreign);
        }
        if version != [VERSION] {
            return Err(Damage::Newer(version.first().copied().unwrap_or(0)));
        }
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(Damage::Cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        let ends = bytes.len().checked_sub(FOOTER).ok_or(Damage::Cut)?;
        let footer = bytes.get(ends..).ok_or(Damage::Cut)?;
        let (records, footer) = footer.split_first_chunk::<8>().ok_or(Damage::Cut)?;
        let (raw, footer) = footer.split_first_chunk::<8>().ok_or(Damage::Cut)?;
        let (sum, end) = footer.split_first_chunk::<16>().ok_or(Damage::Cut)?;
        if end != END {
            return Err(Damage::Cut);
        }
        let summed = bytes.get(..ends + 16).ok_or(Damage::Cut)?;
        if xxh3_128(summed) != u128::from_be_bytes(*sum) {
            return Err(Damage::Changed);
        }
        let header = rest.get(..length).filter(|_| 12 + length <= ends);
        let header = header.ok_or_else(|| Damage::Odd("its header is too long".to_owned()))?;
        let header =
            serde_json::from_slice(header).map_err(|e| Damage::Odd(format!("its header: {e}")))?;
        let (records, raw) = (u64::from_be_bytes(*records), u64::from_be_bytes(*raw));
        let checksum = format!("{:032x}", xxh3_128(&bytes));
        let body = Cursor::new(bytes.slice(12 + length..ends));
        let body = zstd::Decoder::new(body).map_err(|e| Damage::Odd(e.to_string()))?;
        Ok(SegmentReader {
            header,
            checksum,
            body: BufReader::with_capacity(1 << 16, body),
            records,
            left: records,
            raw_left: raw,
            message: Vec::new(),
        })
    }

    /// What the file says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// xxh3-128 of the whole file, in hexadecimal digits.
    pub fn checksum(&self) -> &str {
        &self.checksum
    }

    /// Messages that [`SegmentReader::next_record`] still gives.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Messages in the whole file.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The next message, valid until the next call.
    ///
    /// # Errors
    /// The content is not what the counts say.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, Damage> {
        let odd = |e: std::io::Error| Damage::Odd(e.to_string());
        if self.left == 0 {
            let mut more = [0];
            return match self.body.read(&mut more).map_err(odd)? {
                0 if self.raw_left == 0 => Ok(None),
                _ => Err(Damage::Odd("it has more bytes than it counts".to_owned())),
            };
        }
        let mut head = [0; RECORD];
        self.body.read_exact(&mut head).map_err(odd)?;
        let [kind, a, b, c, d, rest @ ..] = head;
        if kind != MESSAGE {
            return Err(Damage::Odd(format!("a record of the kind {:?}", char::from(kind))));
        }
        let length = u32::from_be_bytes([a, b, c, d]);
        let bytes = RECORD as u64 + u64::from(length);
        self.raw_left = self
            .raw_left
            .checked_sub(bytes)
            .ok_or_else(|| Damage::Odd("a record is longer than all of it".to_owned()))?;
        self.left -= 1;
        self.message.resize(length as usize, 0);
        self.body.read_exact(&mut self.message).map_err(odd)?;
        let (start, end) = rest.split_at(8);
        let lsn = |bytes: &[u8]| {
            Lsn::new(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        Ok(Some(Record { start: lsn(start), end: lsn(end), message: &self.message }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Message = (u64, u64, Vec<u8>);

    fn header() -> Header {
        Header {
            run: "run".into(),
            session: "session".into(),
            number: 7,
            options: vec![("proto_version".into(), "1".into())],
        }
    }

    fn write(messages: &[Message]) -> Sealed {
        let mut writer = SegmentWriter::new(&header()).unwrap();
        for (start, end, message) in messages {
            writer.push(Lsn::new(*start), Lsn::new(*end), message).unwrap();
        }
        writer.seal().unwrap()
    }

    fn read(bytes: Bytes) -> Result<(Header, Vec<Message>), Damage> {
        let mut reader = SegmentReader::new(bytes)?;
        let mut messages = Vec::new();
        while let Some(record) = reader.next_record()? {
            messages.push((record.start.bytes(), record.end.bytes(), record.message.to_vec()));
        }
        assert_eq!(reader.records(), messages.len() as u64);
        Ok((reader.header().clone(), messages))
    }

    fn some() -> Vec<Message> {
        (0..20u8).map(|i| (u64::from(i), 1 << 40, vec![i; usize::from(i)])).collect()
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let sealed = write(&some());
        for at in 0..sealed.bytes.len() {
            for bit in 0..8 {
                let mut bytes = sealed.bytes.to_vec();
                bytes[at] ^= 1 << bit;
                assert!(read(bytes.into()).is_err(), "bit {bit} of byte {at} was not missed");
            }
        }
    }

    #[test]
    fn every_truncation_is_noticed_and_so_is_every_byte_too_many() {
        let sealed = write(&some());
        for length in 0..sealed.bytes.len() {
            assert!(read(sealed.bytes.slice(..length)).is_err(), "cut to {length} bytes");
        }
        for more in [&b"x"[..], &sealed.bytes] {
            assert!(read([&sealed.bytes, more].concat().into()).is_err());
        }
    }

    #[test]
    fn what_is_not_ours_is_said_to_be_foreign_and_what_is_newer_to_be_newer() {
        assert_eq!(
            SegmentReader::new(Bytes::from_static(b"PAR1 and more")).err(),
            Some(Damage::Foreign)
        );
        assert_eq!(SegmentReader::new(Bytes::new()).err(), Some(Damage::Cut));
        let mut bytes = write(&some()).bytes.to_vec();
        bytes[7] = 2;
        assert_eq!(SegmentReader::new(bytes.into()).err(), Some(Damage::Newer(2)));
    }

    #[test]
    fn a_right_checksum_over_wrong_counts_is_no_excuse() {
        let sealed = write(&some());
        for (place, value) in [(0, 19u64), (0, 21), (8, 0), (8, 1 << 60)] {
            let mut bytes = sealed.bytes.to_vec();
            let ends = bytes.len() - FOOTER;
            bytes[ends + place..ends + place + 8].copy_from_slice(&value.to_be_bytes());
            let sum = xxh3_128(&bytes[..ends + 16]);
            bytes[ends + 16..ends + 32].copy_from_slice(&sum.to_be_bytes());
            assert!(matches!(read(bytes.into()), Err(Damage::Odd(_))), "{value} at {place}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            messages in prop::collection::vec(
                (any::<u64>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..300)), 0..50),
        ) {
            let sealed = write(&messages);
            prop_assert_eq!(sealed.records, messages.len() as u64);
            prop_assert_eq!(read(sealed.bytes), Ok((header(), messages)));
        }
    }
}

//! What a session of the spool has received and not recorded. Pure: no clock but for the wait, no
//! connection.
//!
//! The server names a table (RELATION, TYPE) once in a session, before its first row. Here every
//! step names the tables of its rows again, so that a drain may begin with any step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::segment::{Header, SegmentWriter};
use crate::error::{Error, Result};
use crate::handoff::rules;
use crate::position::Lsn;
use crate::source::pgoutput::{self, Message};

/// Messages on their way into a segment, and how far they go.
pub(super) struct Intake {
    pub header: Header,
    /// The highest position received.
    pub received: Lsn,
    /// Everything that committed before this was received.
    pub reached: Lsn,
    /// A transaction is open: nothing may end here.
    pub open: bool,
    /// When the step began: at its first message, or at the end of the last one.
    pub since: Instant,
    /// Messages of the step.
    pub records: u64,
    pub segment: Option<SegmentWriter>,
    relations: HashMap<u32, Vec<u8>>,
    types: BTreeMap<u32, Vec<u8>>,
    /// Relations and types that the step has named.
    named: HashSet<(u8, u32)>,
}

impl Intake {
    /// Of a session that begins at `from`; `header` is the one of its next file, but for the number.
    pub fn new(header: Header, from: Lsn) -> Intake {
        Intake {
            header,
            received: from,
            reached: from,
            open: false,
            since: Instant::now(),
            records: 0,
            segment: None,
            relations: HashMap::new(),
            types: BTreeMap::new(),
            named: HashSet::new(),
        }
    }

    /// Bytes of the segment in the making.
    pub fn size(&self) -> u64 {
        self.segment.as_ref().map_or(0, SegmentWriter::size)
    }

    /// The step is recorded; the next one names its tables again.
    pub fn next_step(&mut self) {
        self.records = 0;
        self.since = Instant::now();
        self.named.clear();
    }

    /// The server has sent everything that committed before `end`, unless a transaction is open.
    pub fn keepalive(&mut self, end: Lsn) {
        self.received = self.received.max(end);
        self.reached = rules::applied_after(self.reached, None, Some(end), self.open);
    }

    /// Takes one message.
    ///
    /// # Errors
    /// It is out of place or malformed.
    pub fn message(&mut self, start: Lsn, end: Lsn, data: &[u8]) -> Result<()> {
        self.received = self.received.max(end);
        match data.first() {
            Some(tag @ (b'R' | b'Y')) => {
                let oid = oid(data)?;
                let names = if *tag == b'R' {
                    self.relations.entry(oid).or_default()
                } else {
                    self.types.entry(oid).or_default()
                };
                names.clear();
                names.extend_from_slice(data);
                self.named.insert((*tag, oid));
            }
            Some(b'I' | b'U' | b'D') => self.name(oid(data)?)?,
            Some(b'B' | b'C' | b'T') => match pgoutput::decode(data, false)?.1 {
                Message::Begin { .. } if self.open => return Err(out_of_place("BEGIN")),
                Message::Begin { .. } => self.open = true,
                Message::Commit { .. } if !self.open => return Err(out_of_place("COMMIT")),
                Message::Commit { end_lsn, .. } => {
                    self.open = false;
                    self.reached = rules::applied_after(self.reached, Some(end_lsn), None, false);
                }
                Message::Truncate { rels, .. } => {
                    for oid in rels {
                        self.name(oid)?;
                    }
                }
                _ => {}
            },
            // Others go through as they are: the drain's decoder judges them.
            _ => {}
        }
        self.push(start, end, data)
    }

    /// Names the table again, if the step has not yet.
    fn name(&mut self, oid: u32) -> Result<()> {
        if self.named.contains(&(b'R', oid)) {
            return Ok(());
        }
        let relation = self.relations.get(&oid).cloned();
        let relation = relation.ok_or_else(|| out_of_place("a row before its table's columns"))?;
        let types: Vec<(u32, Vec<u8>)> = self
            .types
            .iter()
            .filter(|(oid, _)| !self.named.contains(&(b'Y', **oid)))
            .map(|(oid, data)| (*oid, data.clone()))
            .collect();
        for (oid, data) in types {
            self.named.insert((b'Y', oid));
            self.push(Lsn::ZERO, Lsn::ZERO, &data)?;
        }
        self.named.insert((b'R', oid));
        self.push(Lsn::ZERO, Lsn::ZERO, &relation)
    }

    fn push(&mut self, start: Lsn, end: Lsn, data: &[u8]) -> Result<()> {
        if self.records == 0 {
            self.since = Instant::now();
        }
        let writer = match &mut self.segment {
            Some(writer) => writer,
            None => {
                self.header.number += 1;
                self.segment.insert(SegmentWriter::new(&self.header)?)
            }
        };
        writer.push(start, end, data)?;
        self.records += 1;
        Ok(())
    }
}

fn oid(data: &[u8]) -> Result<u32> {
    let bytes = data.get(1..5).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_be_bytes).ok_or_else(|| out_of_place("a message without its table"))
}

#[cold]
fn out_of_place(what: &str) -> Error {
    Error::failed(format!("the replication stream sent {what} out of place"))
        .next("report this with the server's version; it was not recorded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::spool::segment::SegmentReader;

    fn begin(commit: u64) -> Vec<u8> {
        [&b"B"[..], &commit.to_be_bytes(), &[0; 12]].concat()
    }

    fn commit(commit: u64, end: u64) -> Vec<u8> {
        [&b"C\0"[..], &commit.to_be_bytes(), &end.to_be_bytes(), &[0; 8]].concat()
    }

    fn insert(oid: u32) -> Vec<u8> {
        [&b"I"[..], &oid.to_be_bytes(), b"N\0\0"].concat()
    }

    fn relation(oid: u32, name: &str) -> Vec<u8> {
        [&b"R"[..], &oid.to_be_bytes(), b"public\0", name.as_bytes(), b"\0d\0\0"].concat()
    }

    fn truncate(oid: u32) -> Vec<u8> {
        [&b"T\0\0\0\x01\0"[..], &oid.to_be_bytes()].concat()
    }

    fn intake() -> Intake {
        let header =
            Header { run: "r".into(), session: "s".into(), number: 0, options: Vec::new() };
        Intake::new(header, Lsn::new(10))
    }

    fn give(intake: &mut Intake, messages: &[Vec<u8>]) {
        for message in messages {
            intake.message(Lsn::new(1), Lsn::new(1), message).unwrap();
        }
    }

    /// Ends the step; gives its messages.
    fn step(intake: &mut Intake) -> Vec<Vec<u8>> {
        let sealed = intake.segment.take().unwrap().seal().unwrap();
        intake.next_step();
        let mut reader = SegmentReader::new(sealed.bytes).unwrap();
        let mut messages = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            messages.push(record.message.to_vec());
        }
        messages
    }

    #[test]
    fn each_step_names_its_tables_again_as_they_are_by_then() {
        let mut intake = intake();
        let kind = [&b"Y"[..], &9u32.to_be_bytes(), b"public\0mood\0"].concat();
        let first = [
            begin(20),
            kind.clone(),
            relation(1, "a"),
            insert(1),
            relation(2, "b"),
            insert(2),
            relation(1, "c"),
            insert(1),
            commit(20, 30),
        ];
        give(&mut intake, &first);
        assert_eq!(step(&mut intake), first);
        give(&mut intake, &[begin(40), insert(1), insert(1), commit(40, 50)]);
        let named =
            [begin(40), kind.clone(), relation(1, "c"), insert(1), insert(1), commit(40, 50)];
        assert_eq!(step(&mut intake), named);
        give(&mut intake, &[begin(60), truncate(2), commit(60, 70)]);
        assert_eq!(
            step(&mut intake),
            [begin(60), kind, relation(2, "b"), truncate(2), commit(60, 70)]
        );
    }

    #[test]
    fn a_step_reaches_no_further_than_its_last_complete_transaction() {
        let mut intake = intake();
        give(&mut intake, &[begin(20), relation(1, "a"), insert(1)]);
        intake.keepalive(Lsn::new(90));
        assert_eq!(
            (intake.open, intake.reached, intake.received),
            (true, Lsn::new(10), Lsn::new(90))
        );
        give(&mut intake, &[commit(20, 30)]);
        assert_eq!((intake.open, intake.reached), (false, Lsn::new(30)));
        intake.keepalive(Lsn::new(90));
        assert_eq!(intake.reached, Lsn::new(90));
    }

    #[test]
    fn what_is_out_of_place_is_an_error_and_not_spooled() {
        for messages in [
            vec![commit(1, 2)],
            vec![begin(1), begin(2)],
            vec![begin(1), insert(7)],
            vec![begin(1), truncate(7)],
            vec![begin(1), b"I\0".to_vec()],
        ] {
            let mut intake = intake();
            let (last, before) = messages.split_last().unwrap();
            give(&mut intake, before);
            assert!(intake.message(Lsn::new(1), Lsn::new(1), last).is_err(), "{last:?}");
        }
    }
}

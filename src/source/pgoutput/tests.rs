use super::*;
use proptest::prelude::*;

/// A message as the server would write it.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }
    fn u32(&mut self, v: u32) -> &mut Self {
        self.0.extend(v.to_be_bytes());
        self
    }
    fn i64(&mut self, v: i64) -> &mut Self {
        self.0.extend(v.to_be_bytes());
        self
    }
    fn lsn(&mut self, v: Lsn) -> &mut Self {
        self.i64(v.as_i64())
    }
    fn text(&mut self, v: &str) -> &mut Self {
        self.0.extend(v.as_bytes());
        self.u8(0)
    }
    fn schema(&mut self, v: &str) -> &mut Self {
        self.text(if v == "pg_catalog" { "" } else { v })
    }
}

fn encode(xid: Option<u32>, message: &Message<'_>) -> Vec<u8> {
    let mut e = Encoder::default();
    let tagged = |e: &mut Encoder, tag: u8| {
        e.u8(tag);
        if let Some(xid) = xid {
            e.u32(xid);
        }
    };
    match message {
        Message::Begin { final_lsn, commit_time_us, xid } => {
            e.u8(b'B').lsn(*final_lsn).i64(*commit_time_us).u32(*xid);
        }
        Message::Commit { commit_lsn, end_lsn, commit_time_us } => {
            e.u8(b'C').u8(0).lsn(*commit_lsn).lsn(*end_lsn).i64(*commit_time_us);
        }
        Message::Origin { commit_lsn, name } => {
            e.u8(b'O').lsn(*commit_lsn).text(name);
        }
        Message::Relation(r) => {
            tagged(&mut e, b'R');
            e.u32(r.oid).schema(&r.namespace).text(&r.name).u8(r.identity);
            e.0.extend((r.columns.len() as u16).to_be_bytes());
            for c in &r.columns {
                e.u8(c.key.into()).text(&c.name).u32(c.type_oid).u32(c.typmod as u32);
            }
        }
        Message::Type { oid, namespace, name } => {
            tagged(&mut e, b'Y');
            e.u32(*oid).schema(namespace).text(name);
        }
        Message::Insert { rel, new } => {
            tagged(&mut e, b'I');
            e.u32(*rel).u8(b'N').0.extend(new.raw());
        }
        Message::Update { rel, old, new } => {
            tagged(&mut e, b'U');
            e.u32(*rel);
            if let Some(old) = old {
                old_tuple(&mut e, old);
            }
            e.u8(b'N').0.extend(new.raw());
        }
        Message::Delete { rel, old } => {
            tagged(&mut e, b'D');
            old_tuple(e.u32(*rel), old);
        }
        Message::Truncate { rels, cascade, restart_identity } => {
            tagged(&mut e, b'T');
            e.u32(rels.len() as u32).u8(u8::from(*cascade) | u8::from(*restart_identity) << 1);
            for rel in rels {
                e.u32(*rel);
            }
        }
        Message::Logical { transactional, lsn, prefix, content } => {
            tagged(&mut e, b'M');
            e.u8((*transactional).into()).lsn(*lsn).text(prefix).u32(content.len() as u32);
            e.0.extend(*content);
        }
        Message::StreamStart { xid, first_segment } => {
            e.u8(b'S').u32(*xid).u8((*first_segment).into());
        }
        Message::StreamStop => {
            e.u8(b'E');
        }
        Message::StreamCommit { xid, commit_lsn, end_lsn, commit_time_us } => {
            e.u8(b'c').u32(*xid).u8(0).lsn(*commit_lsn).lsn(*end_lsn).i64(*commit_time_us);
        }
        Message::StreamAbort { xid, subxid, abort } => {
            e.u8(b'A').u32(*xid).u32(*subxid);
            if let Some((lsn, time)) = abort {
                e.lsn(*lsn).i64(*time);
            }
        }
        Message::BeginPrepare { prepare_lsn, end_lsn, prepare_time_us, xid, gid } => {
            e.u8(b'b').lsn(*prepare_lsn).lsn(*end_lsn).i64(*prepare_time_us).u32(*xid).text(gid);
        }
        Message::Prepare { prepare_lsn: a, end_lsn: b, prepare_time_us: t, xid, gid } => {
            e.u8(b'P').u8(0).lsn(*a).lsn(*b).i64(*t).u32(*xid).text(gid);
        }
        Message::CommitPrepared { commit_lsn: a, end_lsn: b, commit_time_us: t, xid, gid } => {
            e.u8(b'K').u8(0).lsn(*a).lsn(*b).i64(*t).u32(*xid).text(gid);
        }
        Message::StreamPrepare { prepare_lsn: a, end_lsn: b, prepare_time_us: t, xid, gid } => {
            e.u8(b'p').u8(0).lsn(*a).lsn(*b).i64(*t).u32(*xid).text(gid);
        }
        Message::RollbackPrepared {
            prepare_end_lsn,
            rollback_end_lsn,
            prepare_time_us,
            rollback_time_us,
            xid,
            gid,
        } => {
            e.u8(b'r').u8(0).lsn(*prepare_end_lsn).lsn(*rollback_end_lsn);
            e.i64(*prepare_time_us).i64(*rollback_time_us).u32(*xid).text(gid);
        }
    }
    e.0
}

fn old_tuple(e: &mut Encoder, old: &OldTuple<'_>) {
    e.u8(if matches!(old, OldTuple::Key(_)) { b'K' } else { b'O' }).0.extend(old.tuple().raw());
}

fn raw_tuple() -> impl Strategy<Value = &'static [u8]> {
    let datum = prop_oneof![
        Just(vec![b'n']),
        Just(vec![b'u']),
        (prop_oneof![Just(b't'), Just(b'b')], prop::collection::vec(any::<u8>(), 0..12)).prop_map(
            |(kind, bytes)| {
                let mut raw = vec![kind];
                raw.extend((bytes.len() as u32).to_be_bytes());
                raw.extend(bytes);
                raw
            }
        ),
    ];
    prop::collection::vec(datum, 0..5).prop_map(|columns| {
        let mut raw = (columns.len() as u16).to_be_bytes().to_vec();
        raw.extend(columns.concat());
        &*raw.leak()
    })
}

fn tuple() -> impl Strategy<Value = Tuple<'static>> {
    raw_tuple().prop_map(|raw| Tuple::parse(raw).unwrap())
}

fn lsn() -> impl Strategy<Value = Lsn> {
    (0..i64::MAX as u64).prop_map(Lsn::new)
}

fn name() -> impl Strategy<Value = &'static str> {
    "[a-zé\u{4e00}]{1,6}".prop_map(|s| &*s.leak())
}

fn old() -> impl Strategy<Value = OldTuple<'static>> {
    (any::<bool>(), tuple())
        .prop_map(|(key, t)| if key { OldTuple::Key(t) } else { OldTuple::Full(t) })
}

fn relation() -> impl Strategy<Value = Relation> {
    let column = (any::<bool>(), name(), any::<u32>(), any::<i32>()).prop_map(
        |(key, name, type_oid, typmod)| RelationColumn { key, name: name.into(), type_oid, typmod },
    );
    let identity = prop_oneof![Just(b'd'), Just(b'n'), Just(b'f'), Just(b'i')];
    let schema = prop_oneof![Just("pg_catalog"), name()];
    (any::<u32>(), schema, name(), identity, prop::collection::vec(column, 0..4)).prop_map(
        |(oid, namespace, name, identity, columns)| Relation {
            oid,
            namespace: namespace.into(),
            name: name.into(),
            identity,
            columns,
        },
    )
}

/// Messages that carry an xid in a streamed block.
fn row_message() -> impl Strategy<Value = Message<'static>> {
    prop_oneof![
        relation().prop_map(Message::Relation),
        (any::<u32>(), name(), name()).prop_map(|(oid, namespace, name)| Message::Type {
            oid,
            namespace,
            name
        }),
        (any::<u32>(), tuple()).prop_map(|(rel, new)| Message::Insert { rel, new }),
        (any::<u32>(), prop::option::of(old()), tuple())
            .prop_map(|(rel, old, new)| Message::Update { rel, old, new }),
        (any::<u32>(), old()).prop_map(|(rel, old)| Message::Delete { rel, old }),
        (prop::collection::vec(any::<u32>(), 0..4), any::<bool>(), any::<bool>()).prop_map(
            |(rels, cascade, restart_identity)| Message::Truncate {
                rels,
                cascade,
                restart_identity
            }
        ),
        (any::<bool>(), lsn(), name(), prop::collection::vec(any::<u8>(), 0..9)).prop_map(
            |(transactional, lsn, prefix, content)| Message::Logical {
                transactional,
                lsn,
                prefix,
                content: content.leak()
            }
        ),
    ]
}

/// Messages that stand outside streamed blocks.
fn outer_message() -> impl Strategy<Value = Message<'static>> {
    let common = || (lsn(), lsn(), any::<i64>(), any::<u32>(), name());
    prop_oneof![
        (lsn(), any::<i64>(), any::<u32>()).prop_map(|(final_lsn, commit_time_us, xid)| {
            Message::Begin { final_lsn, commit_time_us, xid }
        }),
        (lsn(), lsn(), any::<i64>()).prop_map(|(commit_lsn, end_lsn, commit_time_us)| {
            Message::Commit { commit_lsn, end_lsn, commit_time_us }
        }),
        (any::<u32>(), any::<bool>())
            .prop_map(|(xid, first_segment)| Message::StreamStart { xid, first_segment }),
        (any::<u32>(), lsn(), lsn(), any::<i64>()).prop_map(
            |(xid, commit_lsn, end_lsn, commit_time_us)| Message::StreamCommit {
                xid,
                commit_lsn,
                end_lsn,
                commit_time_us
            }
        ),
        (any::<u32>(), any::<u32>(), prop::option::of((lsn(), any::<i64>())))
            .prop_map(|(xid, subxid, abort)| Message::StreamAbort { xid, subxid, abort }),
        common().prop_map(|(prepare_lsn, end_lsn, prepare_time_us, xid, gid)| {
            Message::BeginPrepare { prepare_lsn, end_lsn, prepare_time_us, xid, gid }
        }),
        common().prop_map(|(prepare_lsn, end_lsn, prepare_time_us, xid, gid)| {
            Message::Prepare { prepare_lsn, end_lsn, prepare_time_us, xid, gid }
        }),
        common().prop_map(|(commit_lsn, end_lsn, commit_time_us, xid, gid)| {
            Message::CommitPrepared { commit_lsn, end_lsn, commit_time_us, xid, gid }
        }),
        common().prop_map(|(prepare_lsn, end_lsn, prepare_time_us, xid, gid)| {
            Message::StreamPrepare { prepare_lsn, end_lsn, prepare_time_us, xid, gid }
        }),
        (common(), any::<i64>()).prop_map(|((a, b, t, xid, gid), rollback_time_us)| {
            Message::RollbackPrepared {
                prepare_end_lsn: a,
                rollback_end_lsn: b,
                prepare_time_us: t,
                rollback_time_us,
                xid,
                gid,
            }
        }),
    ]
}

/// Any message where it may stand.
fn placed() -> impl Strategy<Value = (Option<u32>, Message<'static>, bool)> {
    prop_oneof![
        row_message().prop_map(|m| (None, m, false)),
        (any::<u32>(), row_message()).prop_map(|(xid, m)| (Some(xid), m, true)),
        outer_message().prop_map(|m| (None, m, false)),
        (lsn(), name(), any::<bool>()).prop_map(|(commit_lsn, name, s)| (
            None,
            Message::Origin { commit_lsn, name },
            s
        )),
        Just((None, Message::StreamStop, true)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_message_round_trips_and_none_is_read_when_cut_or_longer(
        (xid, message, in_stream) in placed()
    ) {
        let mut bytes = encode(xid, &message);
        let (read_xid, read) = decode(&bytes, in_stream).unwrap();
        prop_assert_eq!((read_xid, &read), (xid, &message));
        // The only message whose end is known by its length alone.
        let optional = |cut: usize| matches!(message, Message::StreamAbort { abort: Some(_), .. }) && cut == 9;
        for cut in 0..bytes.len() {
            prop_assert_eq!(decode(&bytes[..cut], in_stream).is_ok(), optional(cut), "cut at {}", cut);
        }
        bytes.push(0);
        prop_assert!(decode(&bytes, in_stream).is_err());
    }

    #[test]
    fn random_bytes_never_panic(
        tag in prop::sample::select(b"BCORYIUDTMSEcAbPKrpXZ".as_slice()),
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        small in any::<bool>(),
        in_stream in any::<bool>(),
    ) {
        if small {
            // Small numbers reach deeper than random ones.
            bytes.iter_mut().for_each(|b| *b %= 4);
        }
        bytes.insert(0, tag);
        let _ = decode(&bytes, in_stream);
        let _ = Tuple::parse(&bytes);
        let _ = decode(&bytes[1..], in_stream);
    }

    #[test]
    fn a_kept_tuple_reads_the_same_again(raw in raw_tuple()) {
        let tuple = Tuple::parse(raw).unwrap();
        prop_assert_eq!(tuple.raw(), raw);
        let columns: Vec<_> = tuple.iter().collect::<Result<_>>().unwrap();
        prop_assert_eq!(columns.len(), tuple.len());
        let again: Vec<_> = Tuple::parse(tuple.raw()).unwrap().iter().collect::<Result<_>>().unwrap();
        prop_assert_eq!(columns, again);
    }
}

#[test]
fn messages_out_of_place_are_refused() {
    let begin = encode(None, &Message::Begin { final_lsn: Lsn::ZERO, commit_time_us: 0, xid: 1 });
    assert!(decode(&begin, false).is_ok());
    assert!(decode(&begin, true).unwrap_err().to_string().contains("inside a streamed block"));
    assert!(decode(b"E", false).is_err());
    assert!(decode(b"", false).unwrap_err().to_string().contains("empty"));
    assert!(decode(b"Z", false).unwrap_err().to_string().contains("'Z'"));
}

#[test]
fn an_insert_as_the_server_sends_it_is_read() {
    let bytes = b"I\0\0\x40\x01N\0\x03t\0\0\0\x0242nu";
    let (None, Message::Insert { rel: 0x4001, new }) = decode(bytes, false).unwrap() else {
        panic!()
    };
    let columns: Vec<_> = new.iter().collect::<Result<_>>().unwrap();
    assert_eq!(columns, [Datum::Text(b"42"), Datum::Null, Datum::Unchanged]);
}

#[test]
fn names_must_be_utf8_and_lengths_must_fit() {
    assert!(decode(b"O\0\0\0\0\0\0\0\x01\xff\0", false).is_err());
    assert!(decode(b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xff", false).is_err());
    assert!(decode(b"T\xff\xff\xff\xff\0", false).is_err());
    assert!(decode(b"C\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", false).is_err());
}

#[test]
fn the_epochs_differ_by_thirty_years() {
    assert_eq!(pg_epoch_to_unix_us(0), 946_684_800_000_000);
    assert_eq!(pg_epoch_to_unix_us(i64::MAX), i64::MAX);
}

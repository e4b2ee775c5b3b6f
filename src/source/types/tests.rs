//! Binary and text forms of the same value must end in equal arrays and in the same text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use chrono::{Duration, NaiveDate};
use proptest::prelude::*;

use super::*;
use crate::position::Lsn;
use crate::source::catalog::ColumnInfo;

/// A value in send form, the text PostgreSQL prints, and whether the Delta type holds it.
type Case = (Vec<u8>, String, bool);

fn render_one(kind: &Kind, array: &ArrayRef) -> String {
    let mut text = String::new();
    render::render(kind, array, 0, &mut text).unwrap();
    text
}

/// One value through both forms; the text where it overflowed.
fn through(kind: &Kind, binary: &[u8], text: &str) -> (ArrayRef, Option<String>) {
    let (mut from_binary, mut from_text) =
        (ColumnBuilder::new(kind, 1), ColumnBuilder::new(kind, 1));
    let overflow = from_binary.append_binary(binary).unwrap();
    assert_eq!(from_text.append_text(text.as_bytes()).unwrap(), overflow, "{kind:?} {text}");
    let (a, b) = (from_binary.finish().unwrap(), from_text.finish().unwrap());
    assert_eq!(&a, &b, "{kind:?} {text}");
    assert_eq!(a.data_type(), &kind.arrow_type());
    (a, overflow)
}

fn check(kind: &Kind, (binary, text, held): &Case) {
    let (array, overflow) = through(kind, binary, text);
    if *held {
        assert_eq!(overflow, None, "{kind:?} {text}");
        assert_eq!(&render_one(kind, &array), text, "{kind:?}");
        let mut copy = ColumnBuilder::new(kind, 1);
        copy.append_lake(&array, 0).unwrap();
        assert_eq!(&copy.finish().unwrap(), &array);
    } else {
        assert_eq!(overflow.as_ref(), Some(text), "{kind:?}");
        assert!(array.is_null(0));
    }
}

/// The send form of a number's text.
fn numeric_sent(text: &str) -> Vec<u8> {
    let special = |sign: u16| [0_u16, 0, sign, 0].iter().flat_map(|w| w.to_be_bytes()).collect();
    match text {
        "NaN" => return special(0xC000),
        "Infinity" => return special(0xD000),
        "-Infinity" => return special(0xF000),
        _ => {}
    }
    let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let dscale = fraction.len() as u16;
    let whole = format!("{}{whole}", "0".repeat((4 - whole.len() % 4) % 4));
    let fraction = format!("{fraction}{}", "0".repeat((4 - fraction.len() % 4) % 4));
    let mut weight = whole.len() as i16 / 4 - 1;
    let all = format!("{whole}{fraction}");
    let mut digits: Vec<u16> =
        (0..all.len()).step_by(4).map(|at| all[at..at + 4].parse().unwrap()).collect();
    while digits.first() == Some(&0) {
        digits.remove(0);
        weight -= 1;
    }
    while digits.last() == Some(&0) {
        digits.pop();
    }
    if digits.is_empty() {
        weight = 0;
    }
    let sign = if negative && !digits.is_empty() { 0x4000 } else { 0 };
    let mut sent: Vec<u8> =
        [digits.len() as u16, weight as u16, sign, dscale].map(u16::to_be_bytes).concat();
    sent.extend(digits.iter().flat_map(|digit| digit.to_be_bytes()));
    sent
}

fn array_sent(dimensions: &[(i32, i32)], elements: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut sent = [dimensions.len() as i32, 1, 25].map(i32::to_be_bytes).concat();
    for (size, lower) in dimensions {
        sent.extend([size.to_be_bytes(), lower.to_be_bytes()].concat());
    }
    for element in elements {
        match element {
            None => sent.extend((-1_i32).to_be_bytes()),
            Some(value) => {
                sent.extend((value.len() as i32).to_be_bytes());
                sent.extend(value);
            }
        }
    }
    sent
}

fn digits(most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(0..10_u8, 0..=most)
        .prop_map(|digits| digits.iter().map(|d| (b'0' + d) as char).collect())
}

/// A number as `numeric_out` prints it, with at most so many digits before and exactly `scale` behind the point.
fn number(before: usize, scale: usize) -> impl Strategy<Value = String> {
    (any::<bool>(), digits(before), digits(scale)).prop_map(move |(negative, whole, fraction)| {
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() { "0" } else { whole };
        let point = if scale > 0 { format!(".{fraction:0<scale$}") } else { String::new() };
        let unsigned = format!("{whole}{point}");
        let zero = unsigned.bytes().all(|b| matches!(b, b'0' | b'.'));
        if negative && !zero { format!("-{unsigned}") } else { unsigned }
    })
}

proptest! {
    #[test]
    fn integers_agree(a in any::<i16>(), b in any::<i32>(), c in any::<i64>(), d in any::<u32>(), e in any::<bool>()) {
        check(&Kind::Int2, &(a.to_be_bytes().to_vec(), a.to_string(), true));
        check(&Kind::Int4, &(b.to_be_bytes().to_vec(), b.to_string(), true));
        check(&Kind::Int8, &(c.to_be_bytes().to_vec(), c.to_string(), true));
        check(&Kind::Oid, &(d.to_be_bytes().to_vec(), d.to_string(), true));
        check(&Kind::Bool, &(vec![e.into()], if e { "t" } else { "f" }.to_owned(), true));
    }

    #[test]
    fn floats_read_back_as_the_same_bits(a in any::<u32>(), b in any::<u64>()) {
        let (small, large) = (f32::from_bits(a), f64::from_bits(b));
        for (kind, sent, text) in [
            (Kind::Float4, small.to_be_bytes().to_vec(), { let mut t = String::new(); float::write_f32(small, &mut t); t }),
            (Kind::Float8, large.to_be_bytes().to_vec(), { let mut t = String::new(); float::write_f64(large, &mut t); t }),
        ] {
            check(&kind, &(sent, text, true));
        }
    }

    #[test]
    fn decimals_agree(text in number(28, 10)) {
        check(&Kind::Decimal { precision: 38, scale: 10 }, &(numeric_sent(&text), text.clone(), true));
        check(&Kind::Numeric, &(numeric_sent(&text), text, true));
    }

    #[test]
    fn a_decimal_of_one_digit_too_many_overflows(text in number(8, 3), more in "[1-9]") {
        let kind = Kind::Decimal { precision: 9, scale: 3 };
        let digits = text.trim_start_matches('-').split('.').next().unwrap().len();
        check(&kind, &(numeric_sent(&text), text.clone(), digits <= 6));
        let finer = format!("{text}{more}");
        check(&kind, &(numeric_sent(&finer), finer, false));
    }

    #[test]
    fn numerics_keep_their_text(text in (0..60_usize).prop_flat_map(|scale| number(60, scale))) {
        check(&Kind::Numeric, &(numeric_sent(&text), text, true));
    }

    #[test]
    fn dates_and_timestamps_agree(us in -63_082_281_600_000_000_i64..=252_455_615_999_999_999, whole in any::<bool>()) {
        let us = if whole { us - us.rem_euclid(1_000_000) } else { us };
        let epoch = NaiveDate::from_ymd_opt(2000, 1, 1).unwrap();
        let at = epoch.and_hms_opt(0, 0, 0).unwrap() + Duration::microseconds(us);
        let days = us.div_euclid(86_400_000_000) as i32;
        check(&Kind::Date, &(days.to_be_bytes().to_vec(), at.format("%Y-%m-%d").to_string(), true));
        let mut text = at.format("%Y-%m-%d %H:%M:%S").to_string();
        let fraction = us.rem_euclid(1_000_000);
        if fraction > 0 {
            text += format!(".{fraction:06}").trim_end_matches('0');
        }
        check(&Kind::Timestamp, &(us.to_be_bytes().to_vec(), text.clone(), true));
        check(&Kind::Timestamptz, &(us.to_be_bytes().to_vec(), text + "+00", true));
    }

    #[test]
    fn money_agrees(cents in any::<i64>()) {
        let mut text = Vec::new();
        numeric::write_money(cents, &mut text);
        check(&Kind::Money, &(cents.to_be_bytes().to_vec(), String::from_utf8(text).unwrap(), true));
    }

    #[test]
    fn bytes_agree(value in proptest::collection::vec(any::<u8>(), 0..40)) {
        let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
        check(&Kind::Bytea, &(value, format!("\\x{hex}"), true));
    }

    #[test]
    fn text_arrays_quote_as_array_out_does(values in proptest::collection::vec(proptest::option::of("[a-cNULnul{},\" \\\\é\u{b}]{0,5}"), 0..6)) {
        let sent: Vec<_> = values.iter().map(|v| v.as_ref().map(|v| v.clone().into_bytes())).collect();
        let dimensions: &[(i32, i32)] = if values.is_empty() { &[] } else { &[(values.len() as i32, 1)] };
        let kind = Kind::array_of(Kind::Text);
        let mut text = Vec::new();
        let sent = array_sent(dimensions, &sent);
        wire_text::write(&kind, &sent, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        check(&kind, &(sent, text, true));
    }

    #[test]
    fn odd_bytes_are_refused_and_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), text in "\\PC{0,20}") {
        for kind in all_kinds() {
            for input in [&bytes[..], text.as_bytes()] {
                let mut builder = ColumnBuilder::new(&kind, 1);
                builder.append_null();
                let before = builder.len();
                for outcome in [builder.append_text(input), builder.append_copy_binary(input)] {
                    // An error leaves the column as it was.
                    if let Err(error) = outcome {
                        prop_assert!(error.next_step().is_some());
                    }
                }
                prop_assert!(builder.len() >= before);
                if let Ok(array) = builder.finish() {
                    prop_assert!(array.is_null(0));
                    array.to_data().validate_full().unwrap();
                }
            }
        }
    }
}

fn all_kinds() -> Vec<Kind> {
    use Kind::*;
    let mut kinds = vec![
        Bool,
        Int2,
        Int4,
        Int8,
        Oid,
        Float4,
        Float8,
        Numeric,
        Text,
        Jsonb,
        Bytea,
        Uuid,
        Date,
        Timestamp,
        Timestamptz,
        Time,
        Timetz,
        Money,
        Bit,
        Server,
        Hstore,
        Vector,
        Ewkb,
    ];
    kinds.push(Decimal { precision: 20, scale: 4 });
    kinds.push(Interval { infinite: true });
    let arrays: Vec<_> = kinds.iter().cloned().map(Kind::array_of).collect();
    kinds.extend(arrays);
    kinds
}

#[test]
fn what_delta_cannot_hold_overflows_with_postgres_text() {
    let us = |us: i64| us.to_be_bytes().to_vec();
    let days = |days: i32| days.to_be_bytes().to_vec();
    let ints = Kind::array_of(Kind::Int4);
    let four: Vec<_> = (1..=4_i32).map(|n| Some(n.to_be_bytes().to_vec())).collect();
    let cases = [
        (Kind::Date, days(i32::MAX), "infinity"),
        (Kind::Date, days(i32::MIN), "-infinity"),
        (Kind::Date, days(2_921_940), "10000-01-01"),
        (Kind::Date, days(-730_120), "0001-12-31 BC"),
        (Kind::Date, days(-730_427), "0001-02-28 BC"),
        (Kind::Date, days(-730_426), "0001-02-29 BC"),
        (Kind::Date, days(-2_451_545), "4714-11-24 BC"),
        (Kind::Timestamp, us(i64::MAX), "infinity"),
        (Kind::Timestamptz, us(i64::MIN), "-infinity"),
        (Kind::Timestamp, us(-63_082_281_600_000_001), "0001-12-31 23:59:59.999999 BC"),
        (Kind::Timestamptz, us(-63_082_281_600_000_001), "0001-12-31 23:59:59.999999+00 BC"),
        (Kind::Timestamp, us(252_455_616_000_000_000), "10000-01-01 00:00:00"),
        (Kind::Decimal { precision: 10, scale: 2 }, numeric_sent("NaN"), "NaN"),
        (Kind::Decimal { precision: 10, scale: 2 }, numeric_sent("-Infinity"), "-Infinity"),
        (ints.clone(), array_sent(&[(2, 1), (2, 1)], &four), "{{1,2},{3,4}}"),
        (ints.clone(), array_sent(&[(4, 0)], &four), "[0:3]={1,2,3,4}"),
        (ints, array_sent(&[(2, -1), (2, 1)], &four), "[-1:0][1:2]={{1,2},{3,4}}"),
        (
            Kind::array_of(Kind::Timestamp),
            array_sent(&[(3, 1)], &[Some(us(0)), None, Some(us(i64::MAX))]),
            "{\"2000-01-01 00:00:00\",NULL,infinity}",
        ),
    ];
    for (kind, sent, text) in cases {
        check(&kind, &(sent, text.to_owned(), false));
    }
}

#[test]
fn an_array_that_overflows_at_its_end_leaves_no_elements_behind() {
    let kind = Kind::array_of(Kind::Date);
    let mut builder = ColumnBuilder::new(&kind, 3);
    builder.append_text(b"{2024-02-29}").unwrap();
    assert_eq!(
        builder.append_text(b"{2024-03-01,infinity}").unwrap().as_deref(),
        Some("{2024-03-01,infinity}")
    );
    builder.append_text(b"{NULL}").unwrap();
    let array = builder.finish().unwrap();
    assert_eq!(array.as_list::<i32>().values().len(), 2);
    assert_eq!(render_one(&kind, &array.slice(2, 1)), "{NULL}");
}

#[test]
fn texts_of_other_kinds_agree() {
    let sent = |us: i64, days: i32, months: i32| {
        [us.to_be_bytes().to_vec(), days.to_be_bytes().to_vec(), months.to_be_bytes().to_vec()]
            .concat()
    };
    let zoned =
        |us: i64, west: i32| [us.to_be_bytes().to_vec(), west.to_be_bytes().to_vec()].concat();
    let interval = Kind::Interval { infinite: true };
    let cases = [
        (Kind::Time, 86_400_000_000_i64.to_be_bytes().to_vec(), "24:00:00"),
        (Kind::Time, 1_i64.to_be_bytes().to_vec(), "00:00:00.000001"),
        (Kind::Timetz, zoned(3_600_000_000, -19_800), "01:00:00+05:30"),
        (Kind::Timetz, zoned(3_600_100_000, 36_001), "01:00:00.1-10:00:01"),
        (interval.clone(), sent(0, 0, 0), "00:00:00"),
        (interval.clone(), sent(-1, 3, -13), "-1 years -1 mons +3 days -00:00:00.000001"),
        (interval.clone(), sent(3_661_000_000, -1, 1), "1 mon -1 days +01:01:01"),
        (interval.clone(), sent(i64::MAX, i32::MAX, i32::MAX), "infinity"),
        (interval, sent(i64::MIN, 0, 0), "-2562047788:00:54.775808"),
        (Kind::Bit, vec![0, 0, 0, 10, 0b1010_0000, 0b0100_0000], "1010000001"),
        (Kind::Uuid, (0..16).collect(), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (Kind::Jsonb, b"\x01{\"a\": 1}".to_vec(), "{\"a\": 1}"),
    ];
    for (kind, sent, text) in cases {
        check(&kind, &(sent, text.to_owned(), true));
    }
}

#[test]
fn floats_are_printed_as_postgres_prints_them() {
    for (value, text) in [
        (1e23, "9.999999999999999e+22"),
        (5e-324, "5e-324"),
        (1e15, "1e+15"),
        (999_999_999_999_999.0, "999999999999999"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-0.0, "-0"),
        (123_456.789, "123456.789"),
        (f64::NEG_INFINITY, "-Infinity"),
    ] {
        let mut out = String::new();
        float::write_f64(value, &mut out);
        assert_eq!(out, text);
    }
    for (value, text) in
        [(1e6, "1e+06"), (999_999.0, "999999"), (16_777_216.0, "1.6777216e+07"), (0.1, "0.1")]
    {
        let mut out = String::new();
        float::write_f32(value, &mut out);
        assert_eq!(out, text);
    }
}

#[test]
fn extension_texts_are_read_and_rendered_back() {
    let cases = [
        (Kind::Hstore, r#""a"=>"1", "b"=>NULL, "x y"=>"q\"z\\""#),
        (Kind::Hstore, ""),
        (Kind::Vector, "[1,-2.5,1e-10]"),
        (Kind::Ewkb, "0101000020E6100000000000000000F03F0000000000000040"),
        (Kind::array_of(Kind::Hstore), r#"{"\"a\"=>\"x\\\\\\\"\"",NULL}"#),
        (Kind::array_of(Kind::Bit), "{101,NULL}"),
        (
            Kind::Array(Box::new(Element { kind: Kind::Server, delimiter: b';' })),
            "{(1,1),(0,0);(2,2),(1,1)}",
        ),
    ];
    for (kind, text) in cases {
        let mut builder = ColumnBuilder::new(&kind, 1);
        assert_eq!(builder.append_text(text.as_bytes()).unwrap(), None);
        let array = builder.finish().unwrap();
        assert_eq!(render_one(&kind, &array), text);
        let mut copy = ColumnBuilder::new(&kind, 1);
        copy.append_lake(&array, 0).unwrap();
        assert_eq!(&copy.finish().unwrap(), &array);
    }
}

#[test]
fn malformed_text_is_refused() {
    for (kind, texts) in [
        (Kind::Bool, &["", "true", "T"][..]),
        (Kind::Int4, &["", "-", "+1", "2147483648", " 1", "1.0"]),
        (Kind::Int8, &["9223372036854775808", "99999999999999999999"]),
        (Kind::Oid, &["-1", "4294967296"]),
        (Kind::Float8, &["", "inf", "nan", "1e999", "+1"]),
        (Kind::Numeric, &[]),
        (Kind::Decimal { precision: 5, scale: 2 }, &["", "1.", ".5", "1e2", "--1"]),
        (
            Kind::Date,
            &["2023-02-29", "2024-13-01", "24-01-01", "0000-01-01", "1900-02-29", "01/02/2024"],
        ),
        (
            Kind::Timestamp,
            &[
                "2024-01-01",
                "2024-01-01 24:00:00",
                "2024-01-01 00:00:00+00",
                "2024-01-01 00:00:00.",
            ],
        ),
        (
            Kind::Timestamptz,
            &["2024-01-01 00:00:00", "2024-01-01 00:00:00+02", "2024-01-01 00:00:00+00 AD"],
        ),
        (Kind::Money, &["1", "$1", "$1,23.00", "€1.00", "$.00", "$1234.00"]),
        (Kind::Bytea, &["abc", "\\xa", "\\xgg"]),
        (
            Kind::array_of(Kind::Int4),
            &["", "{", "1", "{1", "{1,}", "{,1}", "{\"1}", "{1;2}", "{1}}"],
        ),
        (Kind::Hstore, &["a=>1", "\"a\"", "\"a\"=>1", "\"a\"=>\"1\",", "\"a\"=>\"1\", "]),
        (Kind::Vector, &["1,2", "[1,]", "[]"]),
    ] {
        for text in texts {
            let mut builder = ColumnBuilder::new(&kind, 1);
            assert!(builder.append_text(text.as_bytes()).is_err(), "{kind:?} {text:?}");
            assert!(builder.is_empty());
        }
    }
}

fn type_info(oid: u32, name: &str, kind: char) -> TypeInfo {
    TypeInfo {
        oid,
        schema: "pg_catalog".to_owned(),
        name: name.to_owned(),
        kind,
        category: 'X',
        elem: 0,
        base: 0,
        typmod: -1,
        output: ("pg_catalog".to_owned(), format!("{name}_out")),
        output_arg: oid,
        is_array: false,
        delimiter: b',',
    }
}

fn catalog() -> TypeCatalog {
    let numeric = type_info(1700, "numeric", 'b');
    let inner =
        TypeInfo { base: 1700, typmod: (10 << 16 | 2) + 4, ..type_info(9001, "price", 'd') };
    let outer = TypeInfo { base: 9001, ..type_info(9002, "net_price", 'd') };
    let prices = TypeInfo { elem: 9002, is_array: true, ..type_info(9003, "_net_price", 'b') };
    let mut odd = type_info(9004, "secret", 'b');
    odd.output = ("hidden".to_owned(), "secret_out".to_owned());
    let types = [
        numeric,
        inner,
        outer,
        prices,
        odd,
        type_info(23, "int4", 'b'),
        type_info(869, "inet", 'b'),
    ];
    TypeCatalog {
        by_oid: types.into_iter().map(|info| (info.oid, info)).collect(),
        server_version: 150_018,
    }
}

fn column(name: &str, type_oid: u32) -> ColumnInfo {
    ColumnInfo {
        attnum: 1,
        name: name.to_owned(),
        type_oid,
        typmod: -1,
        type_name: "t".to_owned(),
        not_null: false,
        generated: '\0',
        missing_differs: false,
        options: ColumnOptions::default(),
        missing: None,
    }
}

#[test]
fn domains_take_the_modifier_of_the_innermost_domain_that_has_one() {
    let kind = |oid| plan(&catalog(), &column("c", oid), &ColumnOptions::default()).unwrap().kind;
    let price = Kind::Decimal { precision: 10, scale: 2 };
    assert_eq!(kind(9002), price);
    assert_eq!(kind(9003), Kind::array_of(price));
}

#[test]
fn selections_are_quoted_and_need_no_search_path() {
    let select = |oid, options: &ColumnOptions| {
        plan(&catalog(), &column("a\"b", oid), options).unwrap().select_expr()
    };
    let plain = ColumnOptions::default();
    let text = ColumnOptions { as_text: true, ..plain.clone() };
    assert_eq!(select(23, &plain), r#""a""b""#);
    assert_eq!(select(869, &plain), r#"pg_catalog.textin("pg_catalog"."inet_out"("a""b"))"#);
    assert_eq!(select(23, &text), r#"pg_catalog.textin("pg_catalog"."int4_out"("a""b"))"#);
    let hidden =
        r#"CASE WHEN "a""b" IS DISTINCT FROM NULL THEN pg_catalog.format('%s', "a""b") END"#;
    assert_eq!(select(9004, &plain), hidden);
}

#[test]
fn names_that_delta_cannot_tell_apart_are_refused() {
    let names = |names: &[&str]| {
        let columns: Vec<_> = names.iter().map(|name| column(name, 23)).collect();
        plan_columns(&catalog(), &columns, |_| ColumnOptions::default(), "_tg_").map(|_| ())
    };
    names(&["a", "b"]).unwrap();
    for (clash, mends) in [
        (&["a", "A"][..], "leave_out"),
        (&["_TG_LSN"], "column_prefix"),
        (&["_tg_overflow"], "column_prefix"),
        (&["_tg_deleted"], "column_prefix"),
    ] {
        assert!(names(clash).unwrap_err().next_step().unwrap().contains(mends));
    }
}

#[test]
fn a_batch_carries_positions_and_overflow() {
    let types = catalog();
    let plans = [column("n", 9002), column("i", 23)];
    let plans = plan_columns(&types, &plans, |_| ColumnOptions::default(), "_tg_").unwrap();
    let mut rows = RowsBuilder::new(plans, "_tg_", 4);
    let tuple = |n: &str, i: i32| {
        let n = numeric_sent(n);
        [
            &2_i16.to_be_bytes()[..],
            &(n.len() as i32).to_be_bytes(),
            &n,
            &4_i32.to_be_bytes(),
            &i.to_be_bytes(),
        ]
        .concat()
    };
    for (n, i) in [("1.50", 1), ("NaN", 2)] {
        rows.append_copy_row(&tuple(n, i)).unwrap();
    }
    let batch = rows.finish_snapshot(Lsn::new(7)).unwrap();
    assert_eq!((batch.num_rows(), batch.num_columns()), (2, 7));
    assert_eq!(batch.column(2).as_primitive::<Int64Type>().values(), &[7, 7]);
    let overflow = batch.column(6).as_map();
    assert!(overflow.is_null(0));
    let entry = overflow.value(1);
    assert_eq!(
        (entry.column(0).as_string::<i32>().value(0), entry.column(1).as_string::<i32>().value(0)),
        ("n", "NaN")
    );

    rows.append_copy_row(&tuple("2.00", 3)).unwrap();
    assert_eq!(rows.finish_snapshot(Lsn::new(7)).unwrap().num_rows(), 1);

    rows.append_text(0, b"-0.25").unwrap();
    rows.append_null(1).unwrap();
    rows.end_row(Lsn::new(9), 3, Op::Update, Some(1));
    let batch = rows.finish().unwrap();
    assert_eq!(batch.column(4).as_string::<i32>().value(0), "u");
    assert_eq!(batch.schema().field(5).data_type(), &Kind::Timestamptz.arrow_type());
    assert!(matches!(batch.schema().field(6).data_type(), DataType::Map(..)));

    assert!(rows.append_copy_row(&tuple("1.00", 1)[..9]).is_err());
    let error = rows.append_text(1, b"x").unwrap_err().to_string();
    assert!(error.contains("column \"i\"") && error.contains("\"x\""), "{error}");
    let rows = &mut RowsBuilder::new(Arc::clone(rows.plans()), "_tg_", 1);
    rows.append_null(0).unwrap();
    rows.end_row(Lsn::ZERO, 1, Op::Insert, None);
    assert!(rows.finish().is_err());
}

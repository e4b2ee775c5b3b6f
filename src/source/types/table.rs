//! The one table: which PostgreSQL type becomes which kind. `docs/types.md` is printed from it.

use arrow::datatypes::DataType;

use super::catalog::TypeInfo;
use super::kind::Kind;

/// How a row of the table knows its types.
enum Match {
    /// By name, in `pg_catalog`.
    Builtin(&'static [&'static str]),
    /// By name and output function, wherever the extension was installed.
    Extension(&'static str, &'static str),
    /// By `typtype`.
    Enum,
}

/// What the type becomes.
enum Becomes {
    Kind(Kind),
    /// Depends on precision and scale.
    Numeric,
    /// Text whose meaning depends on the server's version.
    Interval,
}

struct Row {
    types: Match,
    becomes: Becomes,
    /// What a reader of the lake should know.
    note: &'static str,
}

const fn builtin(names: &'static [&'static str], kind: Kind, note: &'static str) -> Row {
    Row { types: Match::Builtin(names), becomes: Becomes::Kind(kind), note }
}

const fn extension(
    name: &'static str,
    output: &'static str,
    kind: Kind,
    note: &'static str,
) -> Row {
    Row { types: Match::Extension(name, output), becomes: Becomes::Kind(kind), note }
}

const OTHER_NUMERIC: &str = "PostgreSQL's digits, trailing zeros kept; or the decimal that is configured, where what does not fit exactly overflows";
const INFINITE: &str = "infinity, BC and years above 9999 overflow";

static TABLE: &[Row] = &[
    builtin(&["bool"], Kind::Bool, ""),
    builtin(&["int2"], Kind::Int2, ""),
    builtin(&["int4"], Kind::Int4, ""),
    builtin(&["int8"], Kind::Int8, ""),
    builtin(&["oid"], Kind::Oid, ""),
    builtin(&["float4"], Kind::Float4, "NaN and infinities are held"),
    builtin(&["float8"], Kind::Float8, "NaN and infinities are held"),
    Row { types: Match::Builtin(&["numeric"]), becomes: Becomes::Numeric, note: "" },
    builtin(&["money"], Kind::Money, "hundredths, as lc_monetary C has them"),
    builtin(&["text", "varchar", "name", "json"], Kind::Text, "as it is"),
    builtin(&["bpchar"], Kind::Text, "char(n): the padding is kept"),
    extension("citext", "citextout", Kind::Text, "as it is"),
    Row { types: Match::Enum, becomes: Becomes::Kind(Kind::Text), note: "the label" },
    builtin(&["jsonb"], Kind::Jsonb, "PostgreSQL's text"),
    builtin(&["uuid"], Kind::Uuid, "lower case, with hyphens"),
    builtin(&["bytea"], Kind::Bytea, ""),
    builtin(&["date"], Kind::Date, INFINITE),
    builtin(&["timestamp"], Kind::Timestamp, INFINITE),
    builtin(&["timestamptz"], Kind::Timestamptz, INFINITE),
    builtin(&["time"], Kind::Time, "`HH:MM:SS[.ffffff]`, 24:00:00 included"),
    builtin(&["timetz"], Kind::Timetz, "`HH:MM:SS[.ffffff]+HH[:MM[:SS]]`"),
    Row {
        types: Match::Builtin(&["interval"]),
        becomes: Becomes::Interval,
        note: "IntervalStyle postgres",
    },
    builtin(&["bit", "varbit"], Kind::Bit, "zeros and ones"),
    extension("hstore", "hstore_out", Kind::Hstore, "keys in PostgreSQL's order"),
    extension("vector", "vector_out", Kind::Vector, "pgvector"),
    extension("geometry", "geometry_out", Kind::Ewkb, "PostGIS: EWKB"),
    extension("geography", "geography_out", Kind::Ewkb, "PostGIS: EWKB"),
];

/// The kind of a type that is neither a domain nor an array; [`Kind::Server`] for all the table does not name.
pub(super) fn kind_of(info: &TypeInfo, typmod: i32, server_version: u32) -> Kind {
    let row = TABLE.iter().find(|row| match row.types {
        Match::Builtin(names) => info.schema == "pg_catalog" && names.contains(&info.name.as_str()),
        Match::Extension(name, output) => {
            info.kind == 'b' && info.name == name && info.output.1 == output
        }
        Match::Enum => info.kind == 'e',
    });
    match row.map(|row| &row.becomes) {
        Some(Becomes::Kind(kind)) => kind.clone(),
        Some(Becomes::Numeric) => numeric_kind(typmod),
        Some(Becomes::Interval) => Kind::Interval { infinite: server_version >= 170_000 },
        None => Kind::Server,
    }
}

/// Precision and scale from a type modifier (`numeric_typmod_precision`, `_scale`); the scale is
/// signed in 11 bits since PostgreSQL 15.
fn numeric_kind(typmod: i32) -> Kind {
    if typmod < 4 {
        return Kind::Numeric;
    }
    let packed = typmod - 4;
    let (precision, scale) = (packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024);
    match (u8::try_from(precision), i8::try_from(scale)) {
        (Ok(precision @ 1..=38), Ok(scale)) if (0..=precision as i8).contains(&scale) => {
            Kind::Decimal { precision, scale }
        }
        _ => Kind::Numeric,
    }
}

/// The table in Markdown: PostgreSQL type, Delta type, whether values can overflow, notes.
pub fn type_table() -> String {
    let mut out = String::from(
        "# How PostgreSQL's types stand in Delta\n\n\
         A value is held exactly or not at all: one that the Delta type can't hold leaves the column NULL and \
         stands, as PostgreSQL prints it, in the map column `_tg_overflow` under the column's name. Text is always \
         what the type's output function prints under DateStyle ISO, TimeZone UTC, IntervalStyle postgres, \
         lc_monetary C, bytea_output hex and an empty search_path.\n\n\
         *Binary* says that a snapshot copies the type in binary, and that a stream may; a stream is binary only if \
         all columns of all tables are.\n\n\
         | PostgreSQL | Delta | can overflow | binary | note |\n|---|---|---|---|---|\n",
    );
    let mut line = |types: &str, kind: &Kind, note: &str| {
        let yes = |yes| if yes { "yes" } else { "" };
        out.push_str(&format!(
            "| {types} | {} | {} | {} | {note} |\n",
            delta_name(&kind.arrow_type()),
            yes(kind.can_overflow()),
            yes(kind.has_binary()),
        ));
    };
    for row in TABLE {
        let types = match row.types {
            Match::Builtin(names) => {
                names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            }
            Match::Extension(name, _) => format!("`{name}`"),
            Match::Enum => "enums".to_owned(),
        };
        match &row.becomes {
            Becomes::Kind(kind) => line(&types, kind, row.note),
            Becomes::Interval => line(&types, &Kind::Interval { infinite: true }, row.note),
            Becomes::Numeric => {
                let decimal = Kind::Decimal { precision: 38, scale: 10 };
                line(
                    "`numeric(p,s)`, such as `numeric(38,10)`: p ≤ 38, 0 ≤ s ≤ p",
                    &decimal,
                    "NaN overflows",
                );
                line("other `numeric`", &Kind::Numeric, OTHER_NUMERIC);
            }
        }
    }
    line(
        "every other type",
        &Kind::Server,
        "PostgreSQL's text: inet, cidr, macaddr, ranges, composites, xml, tsvector, geometric types, pg_lsn, xid, \"char\", reg*, ltree and all that is unknown",
    );
    out.push_str(
        "| domains | as their base type | | | the domain's length or precision counts |\n\
         | arrays of the above | array&lt;the element's type&gt; | yes | as the element | more than one dimension, a lower bound other than 1, or an element that overflows: the whole array overflows |\n",
    );
    out
}

fn delta_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "boolean".to_owned(),
        DataType::Int16 => "short".to_owned(),
        DataType::Int32 => "integer".to_owned(),
        DataType::Int64 => "long".to_owned(),
        DataType::Float32 => "float".to_owned(),
        DataType::Float64 => "double".to_owned(),
        DataType::Decimal128(precision, scale) => format!("decimal({precision},{scale})"),
        DataType::Date32 => "date".to_owned(),
        DataType::Timestamp(_, None) => "timestamp_ntz".to_owned(),
        DataType::Timestamp(_, Some(_)) => "timestamp".to_owned(),
        DataType::Binary => "binary".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::List(item) => format!("array&lt;{}&gt;", delta_name(item.data_type())),
        DataType::Map(..) => "map&lt;string,string&gt;".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_types_is_current() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/types.md"))
            .unwrap_or_default();
        if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
            std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap();
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/types.md"), type_table())
                .unwrap();
            return;
        }
        assert_eq!(
            page,
            type_table(),
            "run the test with TIDEGATE_WRITE_DOCS=1 to write docs/types.md"
        );
    }

    #[test]
    fn a_negative_or_excessive_scale_stays_text() {
        let typmod = |precision: i32, scale: i32| (precision << 16 | scale & 0x7FF) + 4;
        assert_eq!(numeric_kind(typmod(10, 2)), Kind::Decimal { precision: 10, scale: 2 });
        assert_eq!(numeric_kind(typmod(38, 38)), Kind::Decimal { precision: 38, scale: 38 });
        for (precision, scale) in [(39, 2), (5, -2), (3, 5), (1000, 1000)] {
            assert_eq!(
                numeric_kind(typmod(precision, scale)),
                Kind::Numeric,
                "{precision},{scale}"
            );
        }
        assert_eq!(numeric_kind(-1), Kind::Numeric);
    }
}

//! The kinds of column the lake knows, and what follows from a kind alone.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};

use super::hash::HashKey;

/// How values of a PostgreSQL type stand in the lake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Bool,
    Int2,
    Int4,
    Int8,
    /// Unsigned 32 bits, in a long.
    Oid,
    Float4,
    Float8,
    /// `numeric(precision, scale)` of at most 38 digits, or as configured.
    Decimal {
        precision: u8,
        scale: i8,
    },
    /// Any other `numeric`: PostgreSQL's text, trailing zeros kept.
    Numeric,
    /// Text, the padding of `char(n)` kept; labels of enums.
    Text,
    Jsonb,
    Bytea,
    /// In its text form.
    Uuid,
    Date,
    Timestamp,
    Timestamptz,
    /// `HH:MM:SS[.ffffff]`; 24:00:00 exists.
    Time,
    Timetz,
    /// In IntervalStyle postgres.
    Interval {
        /// From PostgreSQL 17 the extreme values mean infinity.
        infinite: bool,
    },
    /// decimal(19,2), cents as lc_monetary C has them.
    Money,
    /// Zeros and ones.
    Bit,
    /// The text of the type's own output function, whatever the type.
    Server,
    /// The keyed hash of the text of the type's own output function, whatever the type.
    Hashed(HashKey),
    /// map<string,string>.
    Hstore,
    /// pgvector: array<float>.
    Vector,
    /// PostGIS: EWKB.
    Ewkb,
    /// Arrays; those of one dimension that starts at 1 are lists.
    Array(Box<Element>),
}

/// The element of an array, and the character between elements in text (`;` for box).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    pub kind: Kind,
    pub delimiter: u8,
}

impl Kind {
    /// A comma-separated array of `kind`.
    pub fn array_of(kind: Kind) -> Kind {
        Kind::Array(Box::new(Element { kind, delimiter: b',' }))
    }

    /// The Arrow type, which is also the Delta type.
    pub fn arrow_type(&self) -> DataType {
        match self {
            Kind::Bool => DataType::Boolean,
            Kind::Int2 => DataType::Int16,
            Kind::Int4 => DataType::Int32,
            Kind::Int8 | Kind::Oid => DataType::Int64,
            Kind::Float4 => DataType::Float32,
            Kind::Float8 => DataType::Float64,
            Kind::Decimal { precision, scale } => DataType::Decimal128(*precision, *scale),
            Kind::Money => DataType::Decimal128(19, 2),
            Kind::Date => DataType::Date32,
            Kind::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Kind::Timestamptz => DataType::Timestamp(TimeUnit::Microsecond, Some(utc())),
            Kind::Bytea | Kind::Ewkb => DataType::Binary,
            Kind::Numeric
            | Kind::Text
            | Kind::Jsonb
            | Kind::Uuid
            | Kind::Time
            | Kind::Timetz
            | Kind::Interval { .. }
            | Kind::Bit
            | Kind::Server
            | Kind::Hashed(_) => DataType::Utf8,
            Kind::Hstore => DataType::Map(map_entries(), false),
            Kind::Vector => DataType::List(list_item(DataType::Float32)),
            Kind::Array(element) => DataType::List(list_item(element.kind.arrow_type())),
        }
    }

    /// Whether PostgreSQL has values of this kind that the Delta type can't hold.
    pub fn can_overflow(&self) -> bool {
        matches!(
            self,
            Kind::Decimal { .. }
                | Kind::Date
                | Kind::Timestamp
                | Kind::Timestamptz
                | Kind::Array(_)
        )
    }

    /// Whether every value can be decoded exactly from its send function's form. Only then does a
    /// snapshot copy the plain column, and only then may a stream ask for binary.
    pub fn has_binary(&self) -> bool {
        match self {
            Kind::Server | Kind::Hashed(_) | Kind::Hstore | Kind::Vector | Kind::Ewkb => false,
            Kind::Array(element) => element.kind.has_binary(),
            _ => true,
        }
    }

    /// Whether the lake holds PostgreSQL's text as it is.
    pub(super) fn is_text(&self) -> bool {
        self.arrow_type() == DataType::Utf8
    }
}

pub(super) fn utc() -> Arc<str> {
    Arc::from("UTC")
}

/// The item field of a list; Delta calls it `element`.
pub(super) fn list_item(item: DataType) -> FieldRef {
    Arc::new(Field::new("element", item, true))
}

/// The entries of a map<string,string>, named as Parquet's MAP type has them.
pub(super) fn map_entries() -> FieldRef {
    let fields =
        vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)];
    Arc::new(Field::new("key_value", DataType::Struct(fields.into()), false))
}

//! From a column of the catalog to what is selected, decoded and written for it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::Field;

use super::catalog::{TypeCatalog, TypeInfo};
use super::hash::HashKey;
use super::kind::{Element, Kind};
use super::rows::{DELETED_COLUMN, EXTRA_COLUMNS};
use super::table::kind_of;
use crate::error::{Error, Result};
use crate::source::catalog::ColumnInfo;

/// What the configuration says of a column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnOptions {
    /// For `numeric` (and arrays of it): hold it as this decimal; what does not fit exactly overflows.
    pub decimal: Option<(u8, i8)>,
    /// Hold PostgreSQL's text, whatever the type.
    pub as_text: bool,
    /// Hold a hash of PostgreSQL's text, made with this key.
    pub hash: Option<HashKey>,
    /// The lake does not have the column.
    pub left_out: bool,
    /// The lake's files are partitioned by it.
    pub partition: bool,
}

/// The [name](ColumnOptions::name) of a column that the lake does not have.
pub const LEFT_OUT: &str = "left out";

/// What follows the name of how a column is held that the files are partitioned by.
const PARTITION: &str = "partition";

impl ColumnOptions {
    /// These after what was said `before`: the later counts, and that it partitions is said besides.
    pub fn over(&self, before: &ColumnOptions) -> ColumnOptions {
        let partition = self.partition || before.partition;
        let alone = ColumnOptions { partition: true, ..ColumnOptions::default() };
        let counts = if *self == alone { before } else { self };
        ColumnOptions { partition: partition && !counts.left_out, ..counts.clone() }
    }

    /// In a word, as a lake table remembers it; empty for a column that is held as it is.
    pub fn name(&self) -> String {
        let held = self.held();
        match (self.partition, held.is_empty()) {
            (false, _) => held,
            (true, true) => PARTITION.to_owned(),
            (true, false) => format!("{held} {PARTITION}"),
        }
    }

    fn held(&self) -> String {
        match self {
            ColumnOptions { left_out: true, .. } => LEFT_OUT.to_owned(),
            ColumnOptions { hash: Some(key), .. } => format!("hash {}", key.id()),
            ColumnOptions { as_text: true, .. } => "text".to_owned(),
            ColumnOptions { decimal: Some((precision, scale)), .. } => {
                format!("decimal {precision} {scale}")
            }
            _ => String::new(),
        }
    }

    /// Reads what [`ColumnOptions::name`] wrote; the hash's key is taken from `key` if it is that one.
    ///
    /// # Errors
    /// A newer program wrote it.
    pub fn parse(name: &str, key: Option<&HashKey>) -> Result<ColumnOptions> {
        let none = ColumnOptions::default();
        let mut words: Vec<&str> = name.split(' ').collect();
        let partition = words.pop_if(|word| *word == PARTITION).is_some();
        let numbers =
            |precision: &str, scale: &str| Some((precision.parse().ok()?, scale.parse().ok()?));
        let parsed = match words.as_slice() {
            [] | [""] => Some(none),
            _ if name == LEFT_OUT => Some(ColumnOptions { left_out: true, ..none }),
            ["hash", id] => {
                let key = key.filter(|key| key.id() == *id);
                let hash = Some(key.cloned().unwrap_or_else(|| HashKey::named(id)));
                Some(ColumnOptions { hash, ..none })
            }
            ["text"] => Some(ColumnOptions { as_text: true, ..none }),
            ["decimal", precision, scale] => numbers(precision, scale)
                .map(|decimal| ColumnOptions { decimal: Some(decimal), ..none }),
            _ => None,
        };
        let parsed = parsed.map(|options| ColumnOptions { partition, ..options });
        parsed.ok_or_else(|| {
            Error::failed(format!("a column of the lake is held as {name:?}, which is unknown"))
                .next("a newer tidegate wrote it; use that")
        })
    }
}

/// How a snapshot selects the column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// The column itself, in its send form.
    Plain,
    /// The text of the type's output function.
    ServerText {
        /// Schema and name of an output function that can be called with the column; None goes by `format`,
        /// which calls it whatever its declared argument and without a right to its schema.
        function: Option<(String, String)>,
    },
}

/// One column of a table on its way to the lake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnPlan {
    pub attnum: i16,
    pub name: String,
    pub kind: Kind,
    pub type_oid: u32,
    pub typmod: i32,
    /// As `format_type` writes it.
    pub type_name: String,
    pub not_null: bool,
    pub select: Select,
    /// The lake's files are partitioned by it.
    pub partition: bool,
}

impl ColumnPlan {
    /// Whether PostgreSQL has values of the column that the lake's can't hold. The values of a partition
    /// column stand in Delta's log, which has no empty text.
    pub fn can_overflow(&self) -> bool {
        self.kind.can_overflow() || (self.partition && self.kind.is_text())
    }

    /// The expression for `COPY (SELECT …)`, quoted. Works with an empty search_path.
    pub fn select_expr(&self) -> String {
        let column = quoted(&self.name);
        match &self.select {
            Select::Plain => column,
            Select::ServerText { function: Some((schema, name)) } => {
                format!("pg_catalog.textin({}.{}({column}))", quoted(schema), quoted(name))
            }
            // IS NULL would also be true for a row of NULLs.
            Select::ServerText { function: None } => {
                format!(
                    "CASE WHEN {column} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {column}) END"
                )
            }
        }
    }

    /// The column of the lake. Every source column is nullable there: an overflow leaves NULL, and a
    /// dropped NOT NULL then changes nothing.
    pub fn arrow_field(&self) -> Field {
        Field::new(&self.name, self.kind.arrow_type(), true)
    }

    /// For messages.
    pub(super) fn place(&self) -> String {
        format!("column {} ({})", quoted(&self.name), self.type_name)
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// What becomes of a column.
///
/// # Errors
/// The type is not in the catalog, or an option does not suit it.
pub fn plan(
    types: &TypeCatalog,
    column: &ColumnInfo,
    options: &ColumnOptions,
) -> Result<ColumnPlan> {
    let kind = kind_with(types, column.type_oid, column.typmod, options)
        .map_err(|error| error.at(format!("column {}", quoted(&column.name))))?;
    let select = if kind.has_binary() {
        Select::Plain
    } else {
        Select::ServerText { function: callable_output(types.get(column.type_oid)?) }
    };
    Ok(ColumnPlan {
        attnum: column.attnum,
        name: column.name.clone(),
        kind,
        type_oid: column.type_oid,
        typmod: column.typmod,
        type_name: column.type_name.clone(),
        not_null: column.not_null,
        select,
        partition: options.partition,
    })
}

/// The kind of a column of a type.
///
/// # Errors
/// The type is not in the catalog, or an option does not suit it.
pub fn kind_with(
    types: &TypeCatalog,
    oid: u32,
    typmod: i32,
    options: &ColumnOptions,
) -> Result<Kind> {
    let natural = natural_kind(types, oid, typmod)?;
    if let Some(key) = &options.hash {
        if !key.is_known() {
            return Err(Error::config(format!(
                "the lake has hashes made with the key {}, which is not the one configured",
                key.id()
            ))
            .next("give the key of before as TIDEGATE_HASH_KEY or `hash_key_file`, or let the table be read again"));
        }
        return Ok(Kind::Hashed(key.clone()));
    }
    if options.as_text {
        return Ok(match natural {
            Kind::Numeric | Kind::Decimal { .. } => Kind::Numeric,
            text if text.is_text() => text,
            _ => Kind::Server,
        });
    }
    let Some((precision, scale)) = options.decimal else { return Ok(natural) };
    if !(1..=38).contains(&precision) || scale < 0 || scale as u8 > precision {
        return Err(Error::config(format!("decimal({precision},{scale}) is not a Delta type"))
            .next("choose a precision of 1 to 38 and a scale of 0 to the precision"));
    }
    let decimal = Kind::Decimal { precision, scale };
    let numeric = |kind: &Kind| matches!(kind, Kind::Numeric | Kind::Decimal { .. });
    match natural {
        Kind::Array(element) if numeric(&element.kind) => Ok(Kind::array_of(decimal)),
        kind if numeric(&kind) => Ok(decimal),
        _ => Err(Error::config("a decimal is configured for a column that is no numeric")
            .next("remove the setting: it is for numeric columns")),
    }
}

/// The kind of a type without options.
fn natural_kind(types: &TypeCatalog, oid: u32, typmod: i32) -> Result<Kind> {
    let (info, typmod) = types.base_of(oid, typmod)?;
    if !info.is_array {
        return Ok(kind_of(info, typmod, types.server_version));
    }
    // An array's modifier is that of its elements.
    let (element, typmod) = types.base_of(info.elem, typmod)?;
    let kind = if element.is_array {
        Kind::Server
    } else {
        kind_of(element, typmod, types.server_version)
    };
    Ok(Kind::Array(Box::new(Element { kind, delimiter: types.get(info.elem)?.delimiter })))
}

/// The output function, if an explicit call of it finds it: it is built in, and is declared for the
/// type itself or for a pseudo-type. (`refcursor` is printed by `textout(text)`, and a domain does
/// not match a pseudo-type everywhere.)
fn callable_output(info: &TypeInfo) -> Option<(String, String)> {
    const ANYARRAY: u32 = 2277;
    const RECORD: u32 = 2249;
    const ANYRANGE: u32 = 3831;
    const ANYMULTIRANGE: u32 = 4537;
    let suits = info.output_arg == info.oid
        || info.kind != 'd'
            && matches!(info.output_arg, ANYARRAY | RECORD | ANYRANGE | ANYMULTIRANGE);
    (info.output.0 == "pg_catalog" && suits).then(|| info.output.clone())
}

/// Plans all columns of a table; `options` gives the configuration of a column by its name.
///
/// # Errors
/// As [`plan`] and [`check_names`].
pub fn plan_columns<'a>(
    types: &TypeCatalog,
    columns: impl IntoIterator<Item = &'a ColumnInfo>,
    options: impl Fn(&str) -> ColumnOptions,
    prefix: &str,
) -> Result<Arc<[ColumnPlan]>> {
    let plans: Vec<_> = columns
        .into_iter()
        .map(|column| plan(types, column, &options(&column.name)))
        .collect::<Result<_>>()?;
    check_names(&plans, prefix)?;
    Ok(plans.into())
}

/// Whether all column names of the lake differ; Delta does not tell upper from lower case.
///
/// # Errors
/// Two columns, or a column and one that Tidegate adds, have the same name.
pub fn check_names(plans: &[ColumnPlan], prefix: &str) -> Result<()> {
    let mut seen: HashMap<String, String> = EXTRA_COLUMNS
        .iter()
        .chain([&DELETED_COLUMN])
        .map(|name| format!("{prefix}{name}"))
        .map(|name| (name.to_lowercase(), name))
        .collect();
    let added: Vec<String> = seen.values().cloned().collect();
    for plan in plans {
        let Some(other) = seen.insert(plan.name.to_lowercase(), plan.name.clone()) else {
            continue;
        };
        let name = quoted(&plan.name);
        return Err(if added.contains(&other) {
            Error::config(format!(
                "column {name} has the name of the column {other} that Tidegate adds"
            ))
            .next("choose another prefix for the added columns with the setting `column_prefix`")
        } else {
            Error::config(format!(
                "columns {} and {name} differ in case only, which Delta does not tell apart",
                quoted(&other)
            ))
            .next("leave one of them out with `leave_out` under [[columns]], or rename it")
        });
    }
    Ok(())
}

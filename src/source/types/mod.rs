//! PostgreSQL's types in the lake: one table, from which everything else follows.
//!
//! ```text
//!   pg_type row ──► table ──► Kind ──┬─► select_expr   what a snapshot's COPY selects
//!                                    ├─► append_binary / append_text   wire value ─► Arrow
//!                                    ├─► arrow_type    the Delta column
//!                                    └─► render        lake value ─► PostgreSQL's text
//! ```
//!
//! Guarantee: a value is held exactly or refused. What the Delta type can't hold (NaN in a decimal,
//! infinity, BC, a second dimension) leaves the typed column NULL and stands, as PostgreSQL prints
//! it, in the column `_tg_overflow`. Snapshot (COPY BINARY) and stream (text or binary) end in equal
//! arrays, and [`render::render`] gives PostgreSQL's text back. It is written apart from the
//! decoders, so that `verify` does not repeat a decoder's mistake.
//!
//! All texts are those of a session with the settings of the connection: DateStyle ISO, TimeZone
//! UTC, IntervalStyle postgres, lc_monetary C, bytea_output hex, an empty search_path and
//! extra_float_digits of at least 1.

mod array;
mod bytes;
mod catalog;
mod column;
mod cursor;
mod datetime;
mod extension;
mod float;
mod hash;
mod kind;
mod numeric;
mod plan;
pub mod render;
mod rows;
mod scalar;
mod table;
mod values;
mod wire_text;

#[cfg(test)]
mod tests;

pub use catalog::{TypeCatalog, TypeInfo};
pub use column::ColumnBuilder;
pub use hash::HashKey;
pub use kind::{Element, Kind};
pub use plan::{
    ColumnOptions, ColumnPlan, LEFT_OUT, Select, check_names, kind_with, plan, plan_columns,
};
pub use rows::{DELETED_COLUMN, Op, RowsBuilder};
pub use table::type_table;

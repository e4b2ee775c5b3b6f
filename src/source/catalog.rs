//! What the source's catalog says of tables and columns.

/// One column of a source table, as `pg_attribute` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnInfo {
    pub attnum: i16,
    pub name: String,
    pub type_oid: u32,
    pub typmod: i32,
    pub type_name: String,
    pub not_null: bool,
    pub generated: Option<char>,
    pub missing: Option<String>,
}

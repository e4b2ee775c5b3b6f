//! What a lake table was made from: the source's columns and key at the position it shows.
//!
//! The stream is behind the catalog, so after a restart rows may still come with columns that the
//! catalog has no more. They are decoded by what stands here, in the property [`PROPERTY`] of the
//! Delta table: it changes in the same commit as the schema, and costs nothing in any other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::source::catalog::{ColumnInfo, Leaf, ReplicaIdentity, TableInfo, TableKind};
use crate::source::types::{ColumnOptions, HashKey, LEFT_OUT};

/// The property of the Delta table.
pub const PROPERTY: &str = "tidegate.source";

/// The format of a table all of whose rows and columns are held as they are.
const PLAIN: u32 = 1;
/// The newest format this program knows: columns have options.
const FORMAT: u32 = 2;

/// The source table as a lake table has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownTable {
    format: u32,
    /// The columns, by `attnum`.
    pub columns: Vec<KnownColumn>,
    /// As [`TableInfo::columns_version`].
    pub columns_version: String,
    /// Indices into `columns`.
    pub key: Option<Vec<usize>>,
    /// `pg_class.relreplident`.
    pub identity: char,
    /// Rows that do not satisfy this SQL expression are not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_filter: Option<String>,
    /// Deleted rows are here, marked as such.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_deleted: bool,
    /// Where the rows lie: oid and file of the table or of each leaf partition.
    pub leaves: Vec<(u32, u32)>,
    /// [`Leaf::link`] of each partition, by oid; none where it was not looked at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<u32, u64>,
    /// Names that data files still have and the schema has no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
    partitioned: bool,
}

/// One of its columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownColumn {
    /// `pg_attribute.attnum`.
    pub attnum: i16,
    /// The name.
    pub name: String,
    /// The type's oid and modifier.
    pub pg_type: (u32, i32),
    /// The type as `format_type` writes it.
    pub type_name: String,
    /// No row has NULL here.
    pub not_null: bool,
    /// `s` stored, `v` virtual; none for an ordinary column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<char>,
    /// How it is held, as [`ColumnOptions::name`] writes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub options: String,
}

impl KnownColumn {
    /// Whether the lake has no such column.
    pub fn is_left_out(&self) -> bool {
        self.generated.is_some() || self.options == LEFT_OUT
    }

    /// Whether the lake's files are partitioned by it.
    pub fn is_partition(&self) -> bool {
        ColumnOptions::parse(&self.options, None).is_ok_and(|options| options.partition)
    }
}

impl KnownTable {
    /// As the catalog has it.
    pub fn of(table: &TableInfo) -> KnownTable {
        let column = |column: &ColumnInfo| KnownColumn {
            attnum: column.attnum,
            name: column.name.clone(),
            pg_type: (column.type_oid, column.typmod),
            type_name: column.type_name.clone(),
            not_null: column.not_null,
            generated: (column.generated != '\0').then_some(column.generated),
            options: column.options.name(),
        };
        KnownTable {
            format: PLAIN,
            columns: table.columns.iter().map(column).collect(),
            columns_version: table.columns_version.clone(),
            key: table.key.clone(),
            identity: table.identity.as_char(),
            row_filter: table.row_filter.clone(),
            keeps_deleted: table.keeps_deleted,
            leaves: leaves(table),
            links: links(table),
            hidden: Vec::new(),
            partitioned: table.kind == TableKind::Partitioned,
        }
    }

    /// From the property of a lake table.
    ///
    /// # Errors
    /// It can't be read, or a newer program wrote it.
    pub fn parse(text: &str) -> Result<KnownTable> {
        let wrong = || {
            Error::failed(format!("the table property {PROPERTY} can't be read"))
                .next("another program changed it: start a new generation with `tidegate run --resnapshot`")
        };
        let known: KnownTable = serde_json::from_str(text).map_err(|e| wrong().because(e))?;
        if known.format > FORMAT {
            return Err(wrong().next("a newer tidegate wrote it; use that"));
        }
        // What it is written in follows from what it holds.
        Ok(KnownTable { format: PLAIN, ..known })
    }

    /// The properties to set in the commit that makes the lake table so.
    ///
    /// # Errors
    /// None in practice.
    pub fn properties(&self) -> Result<BTreeMap<String, String>> {
        let plain = self.row_filter.is_none()
            && !self.keeps_deleted
            && self.columns.iter().all(|c| c.options.is_empty());
        // An older program takes every column as it is: it must not read what says otherwise.
        let format = if plain { PLAIN } else { FORMAT };
        let text = serde_json::to_string(&KnownTable { format, ..self.clone() })
            .map_err(|e| Error::failed("a table property can't be written").because(e))?;
        Ok(BTreeMap::from([(PROPERTY.to_owned(), text)]))
    }

    /// As a catalog entry of that time, without what the catalog alone knows (sizes, values of rows
    /// older than a column). `hash_key` is the one configured now.
    ///
    /// # Errors
    /// A newer program wrote it.
    pub fn as_info(
        &self,
        oid: u32,
        schema: &str,
        name: &str,
        hash_key: Option<&HashKey>,
    ) -> Result<TableInfo> {
        let column = |column: &KnownColumn| -> Result<ColumnInfo> {
            let options = ColumnOptions::parse(&column.options, hash_key)?;
            Ok(ColumnInfo {
                options,
                attnum: column.attnum,
                name: column.name.clone(),
                type_oid: column.pg_type.0,
                typmod: column.pg_type.1,
                type_name: column.type_name.clone(),
                not_null: column.not_null,
                generated: column.generated.unwrap_or('\0'),
                missing: None,
                missing_differs: false,
            })
        };
        Ok(TableInfo {
            oid,
            schema: schema.to_owned(),
            name: name.to_owned(),
            kind: if self.partitioned { TableKind::Partitioned } else { TableKind::Plain },
            identity: ReplicaIdentity::from_char(self.identity),
            columns: self.columns.iter().map(column).collect::<Result<_>>()?,
            columns_version: self.columns_version.clone(),
            key: self.key.clone(),
            key_deferrable: false,
            row_filter: self.row_filter.clone(),
            keeps_deleted: self.keeps_deleted,
            leaves: Vec::new(),
            rows_estimated: 0.0,
            bytes: 0,
        })
    }
}

/// The link of each partition.
fn links(table: &TableInfo) -> BTreeMap<u32, u64> {
    let linked = table.leaves.iter().filter(|leaf| leaf.link != 0);
    linked.map(|leaf| (leaf.oid, leaf.link)).collect()
}

/// Oid and file of each leaf, by oid.
fn leaves(table: &TableInfo) -> Vec<(u32, u32)> {
    let mut leaves: Vec<(u32, u32)> =
        table.leaves.iter().map(|leaf: &Leaf| (leaf.oid, leaf.relfilenode)).collect();
    leaves.sort_unstable();
    leaves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::catalog::tests::table;

    #[test]
    fn what_is_read_back_makes_the_same_table() {
        let plain = table("t");
        let mut treated = table("t");
        treated.row_filter = Some("(id > 1)".into());
        treated.keeps_deleted = true;
        treated.columns[1].options.hash = Some(HashKey::new(b"k"));
        for info in [plain, treated] {
            let known = KnownTable::of(&info);
            let text = &known.properties().unwrap()[PROPERTY];
            let again = KnownTable::parse(text).unwrap();
            assert_eq!(again, known);
            // Also once it changed after it was made.
            let treated = known.columns.iter().any(|column| !column.options.is_empty());
            assert_eq!(text.contains("\"format\":2"), treated);
            let mut later = KnownTable::of(&table("t"));
            later.columns.clone_from(&known.columns);
            let later = &later.properties().unwrap()[PROPERTY];
            assert_eq!(later.contains("\"format\":2"), treated);
            let key = HashKey::new(b"k");
            let found = again.as_info(info.oid, &info.schema, &info.name, Some(&key)).unwrap();
            assert_eq!(found.columns, info.columns);
            assert_eq!(found.fingerprint(), info.fingerprint());
            assert_eq!(known.leaves, [(16400, 16400)]);
        }
    }

    #[test]
    fn a_newer_format_is_refused_in_words() {
        let text = KnownTable::of(&table("t")).properties().unwrap()[PROPERTY].clone();
        let newer = text.replacen("\"format\":1", "\"format\":3", 1);
        assert!(KnownTable::parse(&newer).unwrap_err().next_step().unwrap().contains("newer"));
        assert!(KnownTable::parse("{}").is_err());
    }
}

//! What is known of one replicated table: its columns, how its rows are told apart, where it lies.
//!
//! Made from the catalog before the snapshot and kept for the life of a generation, so that
//! snapshot, stream, index and `verify` agree on every column.

use std::fmt;
use std::sync::Arc;

use crate::apply::known::KnownTable;
use crate::error::{Error, Kind, Result};
use crate::lake::{TableColumns, can_partition};
use crate::source::catalog::{ReplicaIdentity, TableInfo};
use crate::source::types::{self, ColumnPlan, TypeCatalog};

/// How a change names the row it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowIdentity {
    /// By these columns (indices into [`TablePlan::columns`]): a unique key without nulls.
    Key(Vec<usize>),
    /// By the whole old row (replica identity FULL, no key): the table is a multiset.
    WholeRow,
    /// Not at all (replica identity NOTHING, no key): rows are only ever added.
    AppendOnly,
}

/// One replicated table.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// OID of the table, the root's where it is partitioned.
    pub oid: u32,
    /// Schema name, unquoted.
    pub schema: String,
    /// Table name, unquoted.
    pub name: String,
    /// Folder under the lake.
    pub folder: String,
    /// The replicated columns in the table's order. Generated columns are not among them (the
    /// stream does not carry them before PostgreSQL 18), nor those that are left out.
    pub columns: Arc<[ColumnPlan]>,
    /// Only rows that satisfy this SQL expression are replicated.
    pub row_filter: Option<String>,
    /// Deleted rows stay, marked as such.
    pub keeps_deleted: bool,
    /// Columns that are not replicated, should the stream carry them.
    pub left_out: Vec<String>,
    /// How rows are told apart.
    pub identity: RowIdentity,
    /// The replica identity this follows from.
    pub replica_identity: ReplicaIdentity,
    /// What the plan was made from.
    pub known: Arc<KnownTable>,
    /// Digest of the schema this plan was made from.
    pub fingerprint: String,
    /// Prefix of the added columns, `_tg_` by default.
    pub prefix: String,
}

impl TablePlan {
    /// Makes the plan of `table`.
    ///
    /// # Errors
    /// A type or name that can't be replicated, or a table whose changes name no row.
    pub fn new(
        table: &TableInfo,
        types: &TypeCatalog,
        folder: String,
        prefix: &str,
    ) -> Result<Self> {
        let subject = format!("{}.{}", table.schema, table.name);
        let mut columns = Vec::with_capacity(table.columns.len());
        let mut left_out = Vec::new();
        let mut place = vec![None; table.columns.len()];
        for (index, column) in table.columns.iter().enumerate() {
            if column.is_left_out() {
                left_out.push(column.name.clone());
                continue;
            }
            if let Some(slot) = place.get_mut(index) {
                *slot = Some(columns.len());
            }
            let plan = types::plan(types, column, &column.options).and_then(suits_partitions);
            columns.push(plan.map_err(|e| e.at(&subject))?);
        }
        let key = match &table.key {
            None => None,
            Some(key) => {
                let places: Option<Vec<usize>> =
                    key.iter().map(|&i| place.get(i).copied().flatten()).collect();
                Some(places.ok_or_else(|| {
                    let what = "its key has a column that is generated or left out";
                    Error::new(Kind::Check, format!("{subject}: {what}")).next(
                        "give the table a replica identity index over other columns, or take the \
                         column out of `leave_out` (`hash` keeps rows apart, too)",
                    )
                })?)
            }
        };
        let identity = match (key, table.identity) {
            (Some(key), _) => RowIdentity::Key(key),
            (None, ReplicaIdentity::Full) => RowIdentity::WholeRow,
            (None, ReplicaIdentity::Nothing) => RowIdentity::AppendOnly,
            (None, _) => {
                return Err(Error::new(
                    Kind::Check,
                    format!("{subject}: no primary key and default replica identity, so an UPDATE or DELETE would name no row"),
                )
                .next(format!(
                    "ALTER TABLE {} REPLICA IDENTITY FULL (or NOTHING for a table that only grows)",
                    crate::source::catalog::sql_name(&table.schema, &table.name)
                )));
            }
        };
        if table.keeps_deleted && identity == RowIdentity::WholeRow {
            let what = "has no key, and a deleted row can only be kept under its key";
            return Err(Error::new(Kind::Check, format!("{subject}: {what}"))
                .next("give it a primary key, or take it out of `soft_delete`"));
        }
        types::check_names(&columns, prefix).map_err(|e| e.at(&subject))?;
        Ok(TablePlan {
            oid: table.oid,
            schema: table.schema.clone(),
            name: table.name.clone(),
            folder,
            columns: columns.into(),
            row_filter: table.row_filter.clone(),
            keeps_deleted: table.keeps_deleted,
            left_out,
            identity,
            replica_identity: table.identity,
            known: Arc::new(KnownTable::of(table)),
            fingerprint: table.fingerprint(),
            prefix: prefix.to_owned(),
        })
    }

    /// The schema of its lake table.
    pub fn lake_schema(&self) -> arrow::datatypes::SchemaRef {
        self.rows_builder(0).schema()
    }

    /// The columns of its lake table, and by which of them its files are partitioned.
    pub fn table_columns(&self) -> TableColumns {
        let partitions = self.columns.iter().filter(|column| column.partition);
        TableColumns {
            schema: self.lake_schema(),
            partitioned_by: partitions.map(|column| column.name.clone()).collect(),
        }
    }

    /// Builds its rows, with room for `capacity` of them.
    pub fn rows_builder(&self, capacity: usize) -> types::RowsBuilder {
        let builder = types::RowsBuilder::new(self.columns.clone(), &self.prefix, capacity);
        if self.keeps_deleted { builder.keeping_deleted(&self.prefix) } else { builder }
    }

    /// The name of the column that tells deleted rows from the others.
    pub fn deleted_column(&self) -> String {
        format!("{}{}", self.prefix, types::DELETED_COLUMN)
    }

    /// Whether changes and deletions look rows up, so that an index is needed.
    pub fn needs_index(&self) -> bool {
        self.identity != RowIdentity::AppendOnly
    }

    /// Whether the stream tells rows apart by the key's columns alone.
    pub fn names_rows_by_key(&self) -> bool {
        matches!(self.identity, RowIdentity::Key(_))
            && self.replica_identity != ReplicaIdentity::Full
    }

    /// Whether the column at this place is part of the key.
    pub fn is_key(&self, place: usize) -> bool {
        matches!(&self.identity, RowIdentity::Key(key) if key.contains(&place))
    }

    /// Whether every column can be decoded exactly from PostgreSQL's binary form.
    pub fn has_binary(&self) -> bool {
        self.columns.iter().all(|column| column.kind.has_binary())
    }
}

/// The column, if the lake can be partitioned by it or is not to be.
fn suits_partitions(column: ColumnPlan) -> Result<ColumnPlan> {
    if !column.partition || can_partition(&column.kind.arrow_type()) {
        return Ok(column);
    }
    Err(Error::config(format!("a lake can't be partitioned by a {}", column.type_name))
        .at(format!("column {:?}", column.name))
        .next("take it out of `partition_by`, or choose a column of booleans, whole numbers, decimals, dates or texts"))
}

impl fmt::Display for TablePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

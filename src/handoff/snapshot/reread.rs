//! Reads keys again whose rows are in no chunk: they moved between two boundaries, and the stream
//! left out their large values.
//!
//! It is one more boundary. Its rows are a chunk like any other, of a base above all others, and
//! the drain goes on to that base. A key that is not found was deleted or changed by then, which
//! the stream will say.

use crate::apply::plan::{RowIdentity, TablePlan};
use crate::apply::table::file_options;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::copy::{MAX_BATCH_BYTES, ROWS_PER_BATCH, columns, copy_rows, inside};
use crate::handoff::session::{Session, blocking};
use crate::lake::locations::Location;
use crate::lake::{FileNumbers, Lake, RowsWriter};
use crate::position::Lsn;
use crate::source::catalog::{TableInfo, TableKind, quote_ident, quote_literal};
use crate::source::types::{ColumnPlan, RowsBuilder};
use crate::source::wire::Wire;

use super::boundary::Exported;
use super::drafts::Drafted;
use super::drain::settle;
use super::records::ChunkRecord;

/// Keys asked for in one statement that an index answers.
const KEYS_A_STATEMENT: usize = 256;
/// Keys asked for in one statement that reads the whole table.
const KEYS_A_SCAN: usize = 50_000;
/// Oids below this are PostgreSQL's own: their operators are found without a search path.
const FIRST_OWN_OID: u32 = 16_384;

/// Reads the unresolved keys of all tables at `boundary`, into their drafts. Gives what is to be
/// recorded, by index of the table.
///
/// # Errors
/// Source, lake or local disk failing.
pub async fn reread(
    session: &Session,
    mut tables: Vec<Drafted>,
    boundary: &Exported,
) -> Result<(Vec<Drafted>, Vec<(usize, ChunkRecord)>)> {
    failpoint::at("handoff.reread.before")?;
    let (source, snapshot, base) =
        (session.source.clone(), boundary.snapshot.clone(), boundary.base);
    let (lake, runtime) = (session.lake.clone(), tokio::runtime::Handle::current());
    let read = blocking(move || {
        let mut wire = inside(&source, &snapshot)?;
        let mut records = Vec::new();
        for (index, table) in tables.iter_mut().enumerate() {
            let keys: Vec<Vec<String>> = match table.applier.join() {
                Some(join) => join.unresolved().map(<[String]>::to_vec).collect(),
                None => continue,
            };
            if keys.is_empty() {
                continue;
            }
            let plan = table.applier.plan().clone();
            let read = Read { lake: &lake, runtime: &runtime, base, keys: &keys };
            let record = read.table(&mut wire, table).map_err(|e| e.at(&*plan))?;
            let rows = record.as_ref().map_or(0, |record| record.rows);
            tracing::info!(table = %plan, keys = keys.len(), rows, %base, "moved rows read again");
            records.extend(record.map(|record| (index, record)));
        }
        Ok((tables, records))
    })
    .await?;
    failpoint::at("handoff.reread.after")?;
    Ok(read)
}

struct Read<'a> {
    lake: &'a Lake,
    runtime: &'a tokio::runtime::Handle,
    base: Lsn,
    keys: &'a [Vec<String>],
}

impl Read<'_> {
    fn table(&self, wire: &mut Wire, table: &mut Drafted) -> Result<Option<ChunkRecord>> {
        let plan = table.applier.plan().clone();
        let mut sink = Sink {
            base: self.base,
            overflow: format!("{}overflow", plan.prefix),
            rows: plan.rows_builder(0),
            bytes: 0,
            writer: RowsWriter::new(
                self.lake,
                self.runtime,
                &plan.folder,
                &plan.table_columns(),
                file_options(&plan),
            ),
            entries: Vec::new(),
        };
        let mut numbers = FileNumbers::from(table.applier.table().next_file_no());
        let at_once = if has_own_types(&plan) { KEYS_A_STATEMENT } else { KEYS_A_SCAN };
        for keys in self.keys.chunks(at_once) {
            let sql = statement(&plan, &table.info, keys);
            let encoder = table.applier.key_encoder();
            let encoder = encoder.ok_or_else(|| Error::failed("a table without keys"))?;
            copy_rows(wire, &sql, &mut |row| {
                sink.rows.append_copy_row(row)?;
                sink.bytes += row.len();
                if sink.rows.rows() == ROWS_PER_BATCH || sink.bytes >= MAX_BATCH_BYTES {
                    sink.flush(encoder, &mut numbers)?;
                }
                Ok(())
            })?;
            sink.flush(encoder, &mut numbers)?;
        }
        let Sink { writer, entries, .. } = sink;
        let files = writer.finish()?;
        let Some((number, _)) = files.first() else { return Ok(None) };
        let record = ChunkRecord {
            number: *number,
            leaf: 0,
            pages: (0, None),
            base: self.base,
            rows: files.iter().map(|(_, file)| file.rows).sum(),
            bytes: files.iter().map(|(_, file)| file.size).sum(),
            files: files.iter().map(|(_, file)| file.clone()).collect(),
            keys_at_hand: false,
        };
        table.applier.take_in(files, self.base, entries)?;
        settle(&mut table.applier, self.runtime)?;
        Ok(Some(record))
    }
}

struct Sink {
    base: Lsn,
    /// The name of the overflow column.
    overflow: String,
    rows: RowsBuilder,
    bytes: usize,
    writer: RowsWriter,
    entries: Vec<(Vec<u8>, Location)>,
}

impl Sink {
    fn flush(
        &mut self,
        encoder: &crate::apply::keys::KeyEncoder,
        numbers: &mut FileNumbers,
    ) -> Result<()> {
        if self.rows.rows() == 0 {
            return Ok(());
        }
        let batch = self.rows.finish_snapshot(self.base)?;
        self.bytes = 0;
        let places = self.writer.write(&batch, &mut || numbers.take())?;
        let keys = encoder.encode_batch(&batch, &self.overflow)?;
        for index in 0..keys.len() {
            let place = places.get(index).ok_or_else(|| Error::failed("a row without place"))?;
            self.entries.push((keys.get(index).to_vec(), place));
        }
        Ok(())
    }
}

/// Whether the key's columns are all of PostgreSQL's own types. Such keys are compared as they are,
/// which an index answers. Others are compared as text: their operators may lie in any schema, and
/// what a name in a search path stands for is not to be trusted.
fn has_own_types(plan: &TablePlan) -> bool {
    key_columns(plan).all(|column| column.type_oid < FIRST_OWN_OID)
}

fn key_columns(plan: &TablePlan) -> impl Iterator<Item = &ColumnPlan> {
    let key = match &plan.identity {
        RowIdentity::Key(key) => key.as_slice(),
        RowIdentity::WholeRow | RowIdentity::AppendOnly => &[],
    };
    key.iter().filter_map(|place| plan.columns.get(*place))
}

fn statement(plan: &TablePlan, info: &TableInfo, keys: &[Vec<String>]) -> String {
    // ONLY a partitioned table has no rows of its own.
    let only = if info.kind == TableKind::Partitioned { "" } else { "ONLY " };
    let names: Vec<String> = key_columns(plan).map(|column| quote_ident(&column.name)).collect();
    let tuple = |values: Vec<String>| format!("({})", values.join(", "));
    let literals =
        |values: &Vec<String>| values.iter().map(|value| quote_literal(value)).collect::<Vec<_>>();
    let condition = if !has_own_types(plan) {
        let texts = names.iter().map(|name| format!("pg_catalog.format('%s', {name})")).collect();
        let rows: Vec<String> = keys.iter().map(|values| tuple(literals(values))).collect();
        format!("{} IN (VALUES {})", tuple(texts), rows.join(", "))
    } else if let [name] = names.as_slice() {
        let values: Vec<String> = keys.iter().flat_map(literals).collect();
        format!("{name} IN ({})", values.join(", "))
    } else {
        let rows: Vec<String> = keys.iter().map(|values| tuple(literals(values))).collect();
        format!("{} IN ({})", tuple(names), rows.join(", "))
    };
    let condition = match &plan.row_filter {
        Some(filter) => format!("({condition}) AND ({filter})"),
        None => condition,
    };
    format!(
        "COPY (SELECT {} FROM {only}{} WHERE {condition}) TO STDOUT (FORMAT binary)",
        columns(plan),
        info.sql_name(),
    )
}

//! Opens a table's location index, or makes it from the lake.
//!
//! The index is a cache. It says up to which data file number it knows the table; the keys of live
//! rows in later files are read from the lake, in the order of their numbers, so that of a key that
//! moved the latest location counts. Without a usable index that is all files.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Fields, Schema};
use tokio::runtime::Handle;

use crate::apply::keys::KeyEncoder;
use crate::apply::plan::{RowIdentity, TablePlan};
use crate::error::{Error, Result};
use crate::lake::locations::{Identity, Location, Locations, Options, RunBuilder};
use crate::lake::{Lake, LakeTable, file_no_of, scan_file};

/// Goes up when keys or file numbers are made in another way: older indexes are made again then.
const FORMAT: u32 = 1;

/// Identity and options of the index of a table whose files are all ours.
///
/// File numbers are a snapshot run's for ever, so they identify it together with the folder. Files
/// that another program wrote (OPTIMIZE) are numbered when they are first seen: see [`open`].
pub fn settings(plan: &TablePlan, run: &str, memory_bytes: usize) -> (Identity, Options) {
    let key = match &plan.identity {
        RowIdentity::Key(key) => key
            .iter()
            .filter_map(|place| plan.columns.get(*place))
            .map(|column| format!("{} {}", column.name, column.type_name))
            .collect::<Vec<_>>()
            .join(", "),
        RowIdentity::WholeRow => format!("whole row of {}", plan.fingerprint),
        RowIdentity::AppendOnly => String::new(),
    };
    let multi = plan.identity == RowIdentity::WholeRow;
    (
        Identity { table_id: format!("{} {run}", plan.folder), key, format: FORMAT },
        Options { memory_bytes, multi },
    )
}

/// The index of `table`, brought up to its version. Blocking.
///
/// # Errors
/// The state folder or the lake failing.
pub fn open(
    plan: &Arc<TablePlan>,
    lake: &Lake,
    runtime: &Handle,
    table: &LakeTable,
    folder: &Path,
    memory_bytes: usize,
) -> Result<Option<Locations>> {
    let Some(encoder) = KeyEncoder::new(plan)? else { return Ok(None) };
    let (mut identity, options) = settings(plan, &table.checkpoint().run, memory_bytes);
    for file in table.files().values().filter(|file| file_no_of(&file.path).is_none()) {
        identity.table_id.push_str(&format!(" {}={}", file.number, file.path));
    }
    // Not the checkpoint's: files that others wrote since then have numbers above it.
    let end = u64::from(table.next_file_no());
    // One that is ahead is let go here: it would lock the one that is made instead of it out.
    let open = Locations::open(folder, &identity, options)?.filter(|index| index.version() <= end);
    let newer = |from: u64| -> Vec<u32> {
        let mut files: Vec<u32> =
            table.files().keys().copied().filter(|no| u64::from(*no) >= from).collect();
        files.sort_unstable();
        files
    };
    let reader = KeyReader { plan, lake, runtime, table, encoder: &encoder };
    match open {
        Some(mut index) => {
            let files = newer(index.version());
            for no in &files {
                let mut entries: Vec<(Vec<u8>, Location)> = Vec::new();
                reader.each(*no, &mut |key, location| {
                    entries.push((key.to_vec(), location));
                    Ok(())
                })?;
                entries.sort_unstable();
                index.stage(entries.iter().map(|(key, location)| (key.as_slice(), *location)))?;
            }
            if !files.is_empty() {
                tracing::info!(table = %plan, files = files.len(), "index brought up to date from the lake");
            }
            index.commit_staged(end)?;
            Ok(Some(index))
        }
        None => {
            let mut index = Locations::create(folder, &identity, options)?;
            let files = newer(0);
            let mut builder = index.run_builder();
            for no in &files {
                reader.each(*no, &mut |key, location| builder.push(key, location))?;
            }
            let entries = index.load(builder.finish()?, end, |_, a, b| {
                Err(Error::failed(format!(
                    "{plan}: the lake has two live rows with the same key (row {} of file {}, row {} of file {})",
                    a.row, a.file, b.row, b.file
                ))
                .next("somebody else wrote to the table; run `tidegate verify`, then start a new generation"))
            })?;
            tracing::info!(table = %plan, entries, "index made from the lake");
            Ok(Some(index))
        }
    }
}

/// Reads the keys of live rows in these files of `table` into `builder`. Blocking.
///
/// # Errors
/// The lake or the local disk failing.
pub fn read_keys(
    plan: &TablePlan,
    lake: &Lake,
    runtime: &Handle,
    table: &LakeTable,
    files: &[u32],
    builder: &mut RunBuilder,
) -> Result<()> {
    let Some(encoder) = KeyEncoder::new(plan)? else { return Ok(()) };
    let reader = KeyReader { plan, lake, runtime, table, encoder: &encoder };
    for no in files {
        reader.each(*no, &mut |key, location| builder.push(key, location))?;
    }
    Ok(())
}

/// Reads keys of live rows.
struct KeyReader<'a> {
    plan: &'a TablePlan,
    lake: &'a Lake,
    runtime: &'a Handle,
    table: &'a LakeTable,
    encoder: &'a KeyEncoder,
}

impl KeyReader<'_> {
    fn each(&self, no: u32, with: &mut dyn FnMut(&[u8], Location) -> Result<()>) -> Result<()> {
        let overflow_name = format!("{}overflow", self.plan.prefix);
        let schema = self.plan.lake_schema();
        let fields: Fields = schema
            .fields()
            .iter()
            .filter(|f| {
                self.encoder.names().contains(f.name())
                    || (self.encoder.needs_overflow() && *f.name() == overflow_name)
            })
            .cloned()
            .collect();
        let columns = Arc::new(Schema::new(fields));
        let file = self
            .table
            .file(no)
            .ok_or_else(|| Error::failed(format!("{}: data file {no} is not known", self.plan)))?;
        let (folder, mask) = (&self.plan.folder, Some(&file.mask));
        for piece in scan_file(self.lake, self.runtime, folder, file, &columns, mask)? {
            let piece = piece?;
            let keys = self.encoder.encode_batch(&piece.batch, &overflow_name)?;
            for index in 0..keys.len() {
                if piece.is_live(index) {
                    let row = piece.first_row + index as u32;
                    with(keys.get(index), Location { file: no, row })?;
                }
            }
        }
        Ok(())
    }
}

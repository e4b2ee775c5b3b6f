//! A table as one of its versions shows it, for reading alone.
//!
//! [`LakeTable`](super::LakeTable) is the newest version, proven to be continued; this is any
//! version whose files are still there, with the masks of that version, and proves nothing more.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use tokio::runtime::Handle;

use super::log::TableLog;
use super::read::{read_rows, scan_file};
use super::schema;
use super::store::Lake;
use super::table::{LiveFile, live_files};
use crate::error::{Error, Result};

/// One version of a table.
pub struct PastTable {
    lake: Lake,
    folder: String,
    version: u64,
    schema: SchemaRef,
    properties: BTreeMap<String, String>,
    files: Vec<LiveFile>,
}

impl PastTable {
    /// Opens `version` of a table, or the newest; `None` if there is no table.
    ///
    /// # Errors
    /// The log does not have the version, or it or a deletion vector can't be read.
    pub async fn open(
        lake: &Lake,
        folder: &str,
        version: Option<u64>,
    ) -> Result<Option<PastTable>> {
        let Some((log, snapshot)) = TableLog::load_at(lake, folder, version).await? else {
            return Ok(None);
        };
        // Numbers only tell files apart here; those of other programs' files may be any.
        let files = live_files(&log, &snapshot, &BTreeMap::new(), &mut 0).await?;
        let schema = schema::from_delta(&log.metadata.schema_string).map_err(|e| e.at(folder))?;
        Ok(Some(PastTable {
            lake: lake.clone(),
            folder: folder.to_owned(),
            version: log.version,
            schema,
            properties: log.metadata.configuration.clone(),
            files: files.into_values().collect(),
        }))
    }

    /// The version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// A property of the table.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }

    /// Its files.
    pub fn files(&self) -> &[LiveFile] {
        &self.files
    }

    /// Its rows.
    pub fn live_rows(&self) -> u64 {
        self.files.iter().map(LiveFile::live_rows).sum()
    }

    /// Reads these rows of one of its files: sorted, distinct numbers. Blocking.
    ///
    /// # Errors
    /// The file can't be read, or does not have such rows.
    pub fn read(
        &self,
        runtime: &Handle,
        file: &LiveFile,
        columns: &SchemaRef,
        rows: &[u32],
    ) -> Result<RecordBatch> {
        runtime.block_on(read_rows(&self.lake, &self.folder, file, columns, Some(rows)))
    }

    /// Gives all rows of one of its files, masked ones too, each batch with the number of its first
    /// row. Blocking.
    ///
    /// # Errors
    /// The file can't be read, or `with` fails.
    pub fn scan_one(
        &self,
        runtime: &Handle,
        file: &LiveFile,
        columns: &SchemaRef,
        mut with: impl FnMut(u32, &RecordBatch) -> Result<()>,
    ) -> Result<()> {
        for piece in scan_file(&self.lake, runtime, &self.folder, file, columns, None)? {
            let piece = piece?;
            with(piece.first_row, &piece.batch)?;
        }
        Ok(())
    }

    /// Gives every row once, in batches of the columns named, in that order. Blocking.
    ///
    /// # Errors
    /// There is no such column, a file can't be read, or `with` fails.
    pub fn scan(
        &self,
        runtime: &Handle,
        columns: &[&str],
        mut with: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let fields = columns.iter().map(|name| {
            self.schema.field_with_name(name).cloned().map_err(|e| {
                Error::failed(format!("{} has no column {name}", self.folder)).because(e)
            })
        });
        let columns: SchemaRef = Arc::new(Schema::new(fields.collect::<Result<Vec<_>>>()?));
        for file in &self.files {
            let pieces =
                scan_file(&self.lake, runtime, &self.folder, file, &columns, Some(&file.mask))?;
            for piece in pieces {
                with(&piece?.live_rows()?)?;
            }
        }
        Ok(())
    }
}

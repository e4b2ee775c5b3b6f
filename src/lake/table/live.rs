//! The live files of a version: what the log says of each, and the rows that its vector masks.

use std::collections::{BTreeMap, HashMap};

use arrow::array::AsArray;
use deltalake::kernel::{EagerSnapshot, Snapshot};
use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;

use crate::error::{Error, Kind, Result};
use crate::lake::actions::{Action, Add, Remove};
use crate::lake::dv::{self, Descriptor};
use crate::lake::files::{FileNo, NewFile, file_no_of};
use crate::lake::log::{TableLog, convert, delta_error};
use crate::lake::partition::PartitionValues;
use crate::lake::read::count_rows;
use crate::lake::stats;

/// Vector files read at a time when a table is opened.
const VECTORS_AT_A_TIME: usize = 8;

/// A data file of the current version.
#[derive(Clone, Debug)]
pub struct LiveFile {
    /// Its number in the table.
    pub number: FileNo,
    /// Path below the table's folder.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Rows in it, masked ones too.
    pub rows: u64,
    /// The masked rows.
    pub mask: RoaringBitmap,
    /// The values of the partition columns.
    pub partition: PartitionValues,
    pub(in crate::lake) stats: String,
    /// The path as the log has it, where that is another: percent-encoded, by another program.
    pub(super) logged: Option<String>,
    pub(super) vector: Option<Descriptor>,
    pub(super) modified: i64,
}

impl LiveFile {
    /// A file that no version names yet.
    pub(in crate::lake) fn unpublished(
        number: FileNo,
        file: NewFile,
        mask: RoaringBitmap,
    ) -> LiveFile {
        LiveFile {
            number,
            path: file.path,
            size: file.size,
            rows: file.rows,
            mask,
            partition: file.partition,
            stats: file.stats,
            logged: None,
            vector: None,
            modified: 0,
        }
    }

    /// Whether readers must decode its path. Polars takes no notice of the mask of such a file.
    pub fn is_encoded(&self) -> bool {
        self.logged.is_some()
    }

    fn logged(&self) -> String {
        self.logged.as_ref().unwrap_or(&self.path).clone()
    }

    /// Rows that are not masked.
    pub fn live_rows(&self) -> u64 {
        self.rows.saturating_sub(self.mask.len())
    }

    /// The file of its vector, below the table's folder.
    pub(in crate::lake) fn vector_path(&self) -> Result<Option<String>> {
        self.vector.as_ref().map(Descriptor::path).transpose()
    }

    pub(super) fn remove(&self, now: i64, data_change: bool) -> Action {
        Action::Remove(Box::new(Remove {
            path: self.logged(),
            deletion_timestamp: Some(now),
            data_change,
            extended_file_metadata: Some(true),
            partition_values: Some(self.partition.clone()),
            size: Some(self.size as i64),
            deletion_vector: self.vector.clone(),
        }))
    }

    pub(super) fn add(&self, data_change: bool) -> Action {
        let stats = if self.vector.is_some() {
            stats::with_mask(&self.stats, self.rows)
        } else {
            self.stats.clone()
        };
        Action::Add(Box::new(Add {
            path: self.logged(),
            partition_values: self.partition.clone(),
            size: self.size as i64,
            modification_time: self.modified,
            data_change,
            stats: Some(stats),
            deletion_vector: self.vector.clone(),
        }))
    }
}

/// The live files of a snapshot, numbered, with their masks.
pub(in crate::lake) async fn live_files(
    log: &TableLog,
    snapshot: &EagerSnapshot,
    known: &BTreeMap<String, FileNo>,
    next: &mut FileNo,
) -> Result<BTreeMap<FileNo, LiveFile>> {
    let folder = &log.folder;
    let views = snapshot.file_views(log.store.as_ref(), None);
    let views: Vec<_> = views
        .try_collect()
        .await
        .map_err(|e| delta_error(format!("reading the files of {folder}"), e))?;
    // The views have decoded paths, and a remove must have the very text that the add has. Of our own
    // files both are the same.
    let ours = |path: &str| !path.contains('/') && file_no_of(path).is_some();
    let logged = if views.iter().all(|view| ours(&view.path())) {
        HashMap::new()
    } else {
        logged_paths(log).await?
    };
    let mut found = Vec::with_capacity(views.len());
    for view in &views {
        let path = view.path().into_owned();
        if path.contains("://") || path.starts_with('/') {
            return Err(Error::failed(format!(
                "{folder}: the data file {path:?} of another program lies outside of the table"
            ))
            .next("move the folder away, and `tidegate reseed` the table"));
        }
        let vector: Option<Descriptor> =
            view.deletion_vector_descriptor().map(|d| convert(&d)).transpose()?;
        let stats = view.stats().unwrap_or_default();
        let rows = match stats::num_records(&stats) {
            Some(rows) => rows,
            None => count_rows(&log.lake, folder, &path).await?,
        };
        found.push(LiveFile {
            number: 0,
            size: view.size().max(0) as u64,
            modified: view.modification_time(),
            rows,
            mask: RoaringBitmap::new(),
            partition: view.partition_values_map().into_iter().collect(),
            stats,
            logged: logged.get(&path).filter(|logged| **logged != path).cloned(),
            vector,
            path,
        });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    let number_of = |path: &str| file_no_of(path).or_else(|| known.get(path).copied());
    *next = found
        .iter()
        .filter_map(|f| number_of(&f.path))
        .fold(*next, |n, number| n.max(number.saturating_add(1)));
    for file in &mut found {
        file.number = number_of(&file.path).unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
    }
    read_masks(log, &mut found).await?;
    let count = found.len();
    let files: BTreeMap<FileNo, LiveFile> = found.into_iter().map(|f| (f.number, f)).collect();
    if files.len() != count {
        return Err(Error::new(
            Kind::Failed,
            format!("{folder}: two data files have the same number"),
        )
        .next("read the table again with `tidegate reseed`"));
    }
    Ok(files)
}

/// The paths of the live files as the log has them, by what they are decoded.
async fn logged_paths(log: &TableLog) -> Result<HashMap<String, String>> {
    let wrong = |e| delta_error(format!("reading the files of {}", log.folder), e);
    let snapshot = Snapshot::try_new(log.store.as_ref(), Some(log.version)).await.map_err(wrong)?;
    let mut batches = snapshot.files(log.store.as_ref(), None);
    let mut found = HashMap::new();
    while let Some(batch) = batches.try_next().await.map_err(wrong)? {
        let paths = batch.column_by_name("path").and_then(|column| column.as_string_opt::<i32>());
        let paths = paths.ok_or_else(|| {
            Error::failed(format!("{}: its files have no paths", log.folder)).next("report this")
        })?;
        for logged in paths.iter().flatten() {
            let path = percent_encoding::percent_decode_str(logged).decode_utf8_lossy();
            found.insert(path.into_owned(), logged.to_owned());
        }
    }
    Ok(found)
}

/// Reads each vector file once.
async fn read_masks(log: &TableLog, files: &mut [LiveFile]) -> Result<()> {
    let mut wanted: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, file) in files.iter().enumerate() {
        if let Some(vector) = &file.vector {
            wanted.entry(vector.path().map_err(|e| e.at(&log.folder))?).or_default().push(i);
        }
    }
    let reads = wanted.into_iter().map(|(path, users)| async move {
        let path = format!("{}/{path}", log.folder);
        let bytes = log.lake.get(&path).await?;
        bytes.map(|bytes| (bytes, users)).ok_or_else(|| {
            Error::failed(format!("the deletion vectors {path} are gone"))
                .next("another program's clean-up deleted them; restore the file or start a new generation")
        })
    });
    let mut reads = stream::iter(reads).buffer_unordered(VECTORS_AT_A_TIME);
    while let Some((bytes, users)) = reads.try_next().await? {
        for i in users {
            if let Some(file) = files.get_mut(i)
                && let Some(vector) = &file.vector
            {
                file.mask = dv::unpack(&bytes, vector).map_err(|e| e.at(&log.folder))?;
            }
        }
    }
    Ok(())
}

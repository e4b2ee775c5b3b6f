//! A table that no version names yet: its files and masks are in memory alone.
//!
//! What was copied at several boundaries is no state the source ever had. It is brought to one
//! position before anybody sees it, by the same code that brings a published table forward; so a
//! draft takes commits like a table, and [`LakeTable::publish`] makes one version of all that came
//! of them. A crash loses the draft and nothing else: its files are recorded elsewhere, or orphans.

use std::collections::BTreeMap;

use roaring::RoaringBitmap;

use super::checkpoint::{Checkpoint, Tag};
use super::files::{FileNo, NewFile, file_no_of};
use super::partition::TableColumns;
use super::store::Lake;
use super::table::{Change, CommitOutcome, LakeTable, LiveFile, Place};
use crate::error::{Error, Result};

impl LakeTable {
    /// A draft of the table in `folder`, of files that are durable already, each with the rows of
    /// it that don't count. Data files it takes later have numbers from `next_file_no` on.
    ///
    /// # Errors
    /// A file that is not named as a data file, or two with one number.
    pub fn draft(
        folder: &str,
        columns: TableColumns,
        files: Vec<(NewFile, RoaringBitmap)>,
        checkpoint: Checkpoint,
        next_file_no: FileNo,
    ) -> Result<LakeTable> {
        let place = Place::Draft { folder: folder.to_owned() };
        let mut draft =
            LakeTable::standing(place, BTreeMap::new(), columns, checkpoint, next_file_no);
        for (file, mask) in files {
            draft.take_in(file, mask)?;
        }
        Ok(draft)
    }

    /// Masks more rows of a draft's files.
    ///
    /// # Errors
    /// A file that the draft does not have.
    pub fn mask(&mut self, masks: &BTreeMap<FileNo, RoaringBitmap>) -> Result<()> {
        for (number, mask) in masks {
            let Some(file) = self.files.get_mut(number) else {
                return Err(Error::failed(format!(
                    "{}: file {number} is not live, so no row of it can be masked",
                    self.folder()
                ))
                .next("this is a defect; report it"));
            };
            file.mask |= mask;
            if file.live_rows() == 0 {
                self.files.remove(number);
            }
        }
        Ok(())
    }

    /// A commit to a draft.
    pub(super) fn apply(&mut self, change: &Change) -> Result<()> {
        if change.remove_all {
            self.files.clear();
        } else {
            self.mask(&change.masks)?;
        }
        self.files.retain(|number, _| !change.removes.contains(number));
        for (file, mask) in &change.adds {
            self.take_in(file.clone(), mask.clone())?;
        }
        if let Some(columns) = &change.columns {
            self.columns = columns.clone();
        }
        self.checkpoint = change.checkpoint.clone();
        Ok(())
    }

    fn take_in(&mut self, file: NewFile, mask: RoaringBitmap) -> Result<()> {
        let wrong = |what: &str| {
            Error::failed(format!("{}: the file {} {what}", self.folder(), file.path))
                .next("this is a defect; report it")
        };
        let number = file_no_of(&file.path).ok_or_else(|| wrong("is not named as a data file"))?;
        if self.files.contains_key(&number) {
            return Err(wrong("has a number that is taken"));
        }
        self.next_file_no = self.next_file_no.max(number.saturating_add(1));
        if mask.len() < file.rows {
            self.files.insert(number, LiveFile::unpublished(number, file, mask));
        }
        Ok(())
    }

    /// Publishes a draft: one commit makes the table exist, or replaces all of `existing`, which an
    /// earlier generation left.
    ///
    /// # Errors
    /// There is a table already that is not `existing`; the store fails.
    pub async fn publish(
        self,
        lake: &Lake,
        existing: Option<LakeTable>,
        checkpoint: Checkpoint,
        tag: Tag,
        properties: &BTreeMap<String, String>,
    ) -> Result<LakeTable> {
        let folder = self.folder().to_owned();
        let checkpoint = Checkpoint { next_file_no: self.next_file_no, ..checkpoint };
        let files: Vec<(NewFile, RoaringBitmap)> = self
            .files
            .into_values()
            .map(|file| {
                let LiveFile { path, size, rows, stats, partition, mask, .. } = file;
                (NewFile { path, size, rows, stats, partition }, mask)
            })
            .collect();
        let Some(mut table) = existing else {
            return Self::create(lake, &folder, self.columns, files, checkpoint, tag, properties)
                .await;
        };
        let mut change = Change::new(checkpoint, tag);
        change.adds = files;
        change.remove_all = true;
        change.columns = Some(self.columns);
        change.properties = properties.clone();
        // All old files go, so it does not matter where another program moved their rows.
        while let CommitOutcome::ForeignRewrite { .. } = table.commit(&change).await? {}
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint::tests::{checkpoint, tag};
    use super::*;
    use crate::lake::VersionKind;
    use crate::lake::files::data_file_name;

    fn file(number: FileNo, rows: u64) -> NewFile {
        let path = data_file_name(number);
        NewFile { path, size: 9, rows, stats: "{}".into(), partition: BTreeMap::new() }
    }

    fn draft(files: Vec<NewFile>) -> LakeTable {
        let schema = std::sync::Arc::new(arrow::datatypes::Schema::empty());
        let files = files.into_iter().map(|file| (file, RoaringBitmap::new())).collect();
        LakeTable::draft("a/b", schema.into(), files, checkpoint(100), 5).unwrap()
    }

    #[test]
    fn commits_to_a_draft_change_what_it_will_publish_and_nothing_else() {
        let mut table = draft(vec![file(0, 4), file(3, 2)]);
        assert_eq!((table.live_rows(), table.take_file_no(), table.version()), (6, 5, 0));
        let mut change = Change::new(checkpoint(120), tag(VersionKind::Changes, 120));
        change.masks = BTreeMap::from([(0, [0, 2].into()), (3, [0, 1].into())]);
        change.adds = vec![(file(5, 3), [1].into())];
        table.apply(&change).unwrap();
        assert_eq!(table.live_rows(), 4);
        assert!(table.is_masked(0, 2) && !table.is_masked(0, 1) && table.is_masked(3, 0));
        assert!(table.is_masked(5, 1) && table.file(3).is_none());
        assert_eq!((table.next_file_no(), table.checkpoint().applied.bytes()), (6, 120));
    }

    #[test]
    fn a_number_used_twice_or_a_mask_of_no_file_is_refused() {
        let mut table = draft(vec![file(0, 4)]);
        let mut change = Change::new(checkpoint(120), tag(VersionKind::Changes, 120));
        change.adds = vec![(file(0, 3), RoaringBitmap::new())];
        assert!(table.apply(&change).is_err());
        assert!(table.mask(&BTreeMap::from([(7, [0].into())])).is_err());
    }
}

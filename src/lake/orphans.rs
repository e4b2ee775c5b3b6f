//! Data files that nothing names: what a crash, or work that was given up, left in a table's folder.

use futures::TryStreamExt;
use object_store::path::Path;

use super::files::{FileNo, file_no_of};
use super::store::{Lake, store_error};
use crate::error::Result;

impl Lake {
    /// The data files of ours in a table's folder that `keep` does not grant, by path below the
    /// folder and number. To be removed once it is proven that the pipeline is still ours (see
    /// [`Lake::remove`]).
    ///
    /// # Errors
    /// Transient where trying again can help.
    pub async fn orphans(
        &self,
        folder: &str,
        keep: impl Fn(&str, FileNo) -> bool,
    ) -> Result<Vec<String>> {
        let mut files = self.data_files(folder).await?;
        files.retain(|(path, number)| !keep(path, *number));
        Ok(files.into_iter().map(|(path, _)| format!("{folder}/{path}")).collect())
    }

    /// No data file of ours in a table's folder has this number or a higher one.
    ///
    /// # Errors
    /// As [`Lake::orphans`].
    pub async fn unused_file_no(&self, folder: &str) -> Result<FileNo> {
        let files = self.data_files(folder).await?;
        Ok(files.into_iter().map(|(_, number)| number.saturating_add(1)).max().unwrap_or(0))
    }

    async fn data_files(&self, folder: &str) -> Result<Vec<(String, FileNo)>> {
        let place = Path::from(folder);
        let listed: Vec<_> = self
            .store()
            .list(Some(&place))
            .try_collect()
            .await
            .map_err(|e| store_error(format!("listing {folder}"), e))?;
        let ours = listed.into_iter().filter_map(|object| {
            let mut below = object.location.prefix_match(&place)?;
            let name = below.next()?;
            let number = below.next().is_none().then(|| file_no_of(name.as_ref()))??;
            Some((name.as_ref().to_owned(), number))
        });
        Ok(ours.collect())
    }
}

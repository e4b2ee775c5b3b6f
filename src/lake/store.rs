//! The lake: a folder or bucket, how tables are named in it, and what an answered write promises.
//!
//! Every store must refuse to create an object that exists: commits are compare-and-swap by that.
//! [`Lake::check_writable`] proves it before anything depends on it.

use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use deltalake::logstore::{LogStoreRef, StorageConfig, default_logstore};
use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use url::Url;
use uuid::Uuid;

use super::durable::{self, DurableFileSystem};
use super::patience::{self, Patience, Patient};
use crate::error::{Error, Kind, Result};

/// Parquet footers kept, with their page indexes: looking up rows reads the same files again.
const FOOTERS_KEPT: usize = 64;
/// How long a failing store is waited for where nobody says otherwise.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// The store's own client tries a request again for so long, at most; we go on from there.
const CLIENT_RETRIES_FOR: Duration = Duration::from_secs(60);
/// What to do about a store that fails for too long.
pub(super) const WHEN_THE_STORE_WORKS: &str = "mend the store (its connection, rights or free space) and run again: everything committed is kept";

/// A lake: an object store and the place in it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lake {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: Url,
    root: Arc<dyn ObjectStore>,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    local: Option<PathBuf>,
    footers: Mutex<Vec<(String, ArrowReaderMetadata)>>,
    patience: Patience,
}

impl Lake {
    /// Opens a lake at a folder or at a URL: `file:`, `s3:`, `gs:`, `az:`, `abfs(s):`.
    ///
    /// A local folder is created. Credentials of cloud stores come from the environment as their
    /// own tools read them (`AWS_*`, `GOOGLE_*`, `AZURE_*`). No connection is made.
    ///
    /// # Errors
    /// Unknown scheme, a folder that can't be created, incomplete credentials.
    pub fn open(location: &str) -> Result<Lake> {
        Self::open_patiently(location, RETRY_FOR)
    }

    /// As [`Lake::open`]; an operation that fails is tried again for `retry_for`.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub fn open_patiently(location: &str, retry_for: Duration) -> Result<Lake> {
        let patience = Patience::new(retry_for);
        let location = location.trim();
        if location.is_empty() {
            return Err(Error::config("the lake's location is empty")
                .next("give a folder or a URL such as s3://bucket/lake"));
        }
        // One letter before the colon would be a drive; no scheme of ours is that short.
        match location.split_once("://") {
            None => Self::open_folder(FsPath::new(location), patience),
            Some(_) => {
                let url = Url::parse(location)
                    .map_err(|e| Error::config(format!("{location:?} is not a URL")).because(e))?;
                match url.scheme() {
                    "file" => {
                        let path = url.to_file_path().map_err(|()| {
                            Error::config(format!("{location:?} names no local folder"))
                        })?;
                        Self::open_folder(&path, patience)
                    }
                    scheme => Self::open_cloud(scheme, &url, patience),
                }
            }
        }
    }

    fn open_folder(path: &FsPath, patience: Patience) -> Result<Lake> {
        let wrong = |e: std::io::Error| {
            Error::new(Kind::Check, format!("the lake's folder {} can't be used", path.display()))
                .because(e)
                .next("create it, or give the user that runs tidegate the right to")
        };
        let absolute = std::path::absolute(path).map_err(wrong)?;
        durable::create_folder(&absolute).map_err(wrong)?;
        let absolute = absolute.canonicalize().map_err(wrong)?;
        let url = Url::from_directory_path(&absolute).map_err(|()| {
            Error::config(format!("the lake's folder {} has no URL", absolute.display()))
        })?;
        Self::with_patience(&url, Arc::new(DurableFileSystem::new()), patience)
    }

    fn open_cloud(scheme: &str, url: &Url, patience: Patience) -> Result<Lake> {
        let retry = RetryConfig {
            retry_timeout: patience.retry_for().min(CLIENT_RETRIES_FOR),
            ..RetryConfig::default()
        };
        let wrong = |e: StoreError| {
            Error::config(format!("the lake {url} can't be opened"))
                .because(e)
                .next("set the store's credentials in the environment")
        };
        let root: Arc<dyn ObjectStore> = match scheme {
            "s3" | "s3a" => Arc::new(
                AmazonS3Builder::from_env()
                    .with_retry(retry)
                    .with_url(url.as_str())
                    .build()
                    .map_err(wrong)?,
            ),
            "gs" => Arc::new(
                GoogleCloudStorageBuilder::from_env()
                    .with_retry(retry)
                    .with_url(url.as_str())
                    .build()
                    .map_err(wrong)?,
            ),
            "az" | "azure" | "abfs" | "abfss" | "adl" => Arc::new(
                MicrosoftAzureBuilder::from_env()
                    .with_retry(retry)
                    .with_url(url.as_str())
                    .build()
                    .map_err(wrong)?,
            ),
            other => {
                return Err(Error::config(format!("a lake can't be at {other}://"))
                    .next("use a folder, file://, s3://, gs:// or az://"));
            }
        };
        Self::with_patience(url, root, patience)
    }

    /// Opens a lake that should be there: a local folder is not created.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub fn open_existing(location: &str) -> Result<Option<Lake>> {
        let folder = match location.trim().split_once("://") {
            None => Some(std::path::PathBuf::from(location.trim())),
            Some(("file", _)) => {
                Url::parse(location.trim()).ok().and_then(|u| u.to_file_path().ok())
            }
            Some(_) => None,
        };
        match folder {
            Some(folder) if !folder.is_dir() => Ok(None),
            _ => Self::open(location).map(Some),
        }
    }

    /// Where a table is, for other programs: an absolute path, or a URL.
    pub fn location(&self, folder: &str) -> String {
        match &self.inner.local {
            Some(local) => local.join(folder).display().to_string(),
            None => format!("{}{folder}", self.inner.url),
        }
    }

    /// The first object found under a table's folder, if there is any.
    ///
    /// # Errors
    /// Transient where trying again can help.
    pub async fn first_file(&self, folder: &str) -> Result<Option<String>> {
        self.first_file_beside(folder, &[]).await
    }

    /// The first file found below a folder that is none of `known`.
    ///
    /// # Errors
    /// Transient where trying again can help.
    pub async fn first_file_beside(
        &self,
        folder: &str,
        known: &[String],
    ) -> Result<Option<String>> {
        let mut listed = self.inner.store.list(Some(&Path::from(folder)));
        while let Some(object) =
            listed.try_next().await.map_err(|e| store_error(format!("listing {folder}"), e))?
        {
            let path = object.location.to_string();
            if !known.contains(&path) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// The data files of a snapshot that was never published. Of a folder with a Delta log none:
    /// what it does not name is an orphan, not ours to judge here.
    ///
    /// # Errors
    /// Transient where trying again can help.
    pub async fn unpublished(&self, folder: &str) -> Result<Vec<String>> {
        if self.first_file(&format!("{folder}/_delta_log")).await?.is_some() {
            return Ok(Vec::new());
        }
        let mut listed = self.inner.store.list(Some(&Path::from(folder)));
        let mut found = Vec::new();
        while let Some(object) =
            listed.try_next().await.map_err(|e| store_error(format!("listing {folder}"), e))?
        {
            if object.location.filename().and_then(super::files::file_no_of).is_some() {
                found.push(object.location.to_string());
            }
        }
        Ok(found)
    }

    /// Removes files, and the local folders that are empty then. What is gone already is no error.
    ///
    /// Whose files they are must be proven between finding and removing them: another process may
    /// have taken the pipeline over, and its files look alike.
    ///
    /// # Errors
    /// Transient where trying again can help.
    pub async fn remove(&self, paths: &[String]) -> Result<()> {
        for path in paths {
            match self.inner.store.delete(&Path::from(path.as_str())).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(e) => return Err(store_error(format!("removing {path}"), e)),
            }
        }
        if let Some(local) = &self.inner.local {
            for folder in paths.iter().filter_map(|path| path.rsplit_once('/')) {
                // The folder was empty before the snapshot; only an empty one goes.
                let _ = std::fs::remove_dir(local.join(folder.0));
            }
        }
        Ok(())
    }

    /// A lake at `url` over a store of yours, rooted at the bucket or at `/`. For decorated stores.
    ///
    /// # Errors
    /// The URL's path is not one of the store.
    pub fn with_store(url: &Url, root: Arc<dyn ObjectStore>) -> Result<Lake> {
        Self::with_patience(url, root, Patience::new(RETRY_FOR))
    }

    pub(super) fn with_patience(
        url: &Url,
        root: Arc<dyn ObjectStore>,
        patience: Patience,
    ) -> Result<Lake> {
        #[cfg(feature = "failpoints")]
        let root = super::faults::Faulty::around(root);
        let root: Arc<dyn ObjectStore> = Arc::new(Patient::new(root, patience.clone()));
        let mut url = url.clone();
        url.set_query(None);
        url.set_fragment(None);
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        let prefix = Path::from_url_path(url.path()).map_err(|e| {
            Error::config(format!("{url} is not a place in an object store")).because(e)
        })?;
        let local = if url.scheme() == "file" { url.to_file_path().ok() } else { None };
        let store = Arc::new(PrefixStore::new(root.clone(), prefix.clone()));
        Ok(Lake {
            inner: Arc::new(Inner {
                url,
                root,
                store,
                prefix,
                local,
                footers: Mutex::default(),
                patience,
            }),
        })
    }

    /// The lake's URL, with a slash at its end.
    pub fn url(&self) -> &Url {
        &self.inner.url
    }

    /// The lake's folder, if it is on a local disk.
    pub fn local_path(&self) -> Option<&FsPath> {
        self.inner.local.as_deref()
    }

    /// How long a failing operation is tried again.
    pub fn patience(&self) -> &Patience {
        &self.inner.patience
    }

    /// The object store, rooted at the lake.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        self.inner.store.clone()
    }

    /// The URL of a table's folder.
    ///
    /// # Errors
    /// The folder is no relative path.
    pub fn table_url(&self, folder: &str) -> Result<Url> {
        self.inner
            .url
            .join(&format!("{folder}/"))
            .map_err(|e| Error::failed(format!("{folder:?} is no folder of the lake")).because(e))
    }

    /// The Delta log of a table: deltalake's, over this lake's store.
    pub(super) fn log_store(&self, folder: &str) -> Result<LogStoreRef> {
        let url = self.table_url(folder)?;
        let table: Path = self.inner.prefix.parts().chain(Path::from(folder).parts()).collect();
        let prefixed = Arc::new(PrefixStore::new(self.inner.root.clone(), table));
        Ok(default_logstore(prefixed, self.inner.root.clone(), &url, &StorageConfig::default()))
    }

    /// Stores an object; when it returns the object is durable.
    ///
    /// # Errors
    /// Transient where trying again can help.
    pub async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        let at = Path::from(path);
        self.inner
            .store
            .put(&at, bytes.into())
            .await
            .map_err(|e| store_error(format!("writing {path}"), e))?;
        Ok(())
    }

    /// Reads an object; `None` if there is none.
    ///
    /// # Errors
    /// Transient where trying again can help.
    pub async fn get(&self, path: &str) -> Result<Option<Bytes>> {
        let reading = |e| store_error(format!("reading {path}"), e);
        match self.inner.store.get(&Path::from(path)).await {
            Ok(found) => Ok(Some(found.bytes().await.map_err(reading)?)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(reading(e)),
        }
    }

    /// Makes a local file and its name durable, when others wrote it. Nothing to do elsewhere.
    ///
    /// # Errors
    /// The disk refuses.
    pub async fn sync(&self, path: &str) -> Result<()> {
        self.on_disk(path, durable::sync_file).await
    }

    /// Makes the names in a local folder durable, whoever gave them. Nothing to do elsewhere.
    ///
    /// # Errors
    /// The disk refuses.
    pub async fn sync_folder(&self, folder: &str) -> Result<()> {
        self.on_disk(folder, super::disk::sync_folder).await
    }

    async fn on_disk(
        &self,
        path: &str,
        act: impl FnOnce(&FsPath) -> std::io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(place) = self.inner.local.as_ref().map(|folder| folder.join(path)) else {
            return Ok(());
        };
        let answer = tokio::task::spawn_blocking(move || act(&place)).await;
        answer.map_err(|e| Error::failed("a write was cancelled").because(e))?.map_err(|e| {
            let kind = patience::kind_of(&e).unwrap_or(Kind::Failed);
            Error::new(kind, format!("{path} can't be made durable")).because(e)
        })
    }

    /// Proves that the lake can be written, read and deleted, and that creating an object twice is
    /// refused: without that two writers could both commit the same version.
    ///
    /// # Errors
    /// [`Kind::Check`], with what failed.
    pub async fn check_writable(&self) -> Result<()> {
        let name = format!("_tidegate/check-{}", Uuid::new_v4());
        let at = Path::from(name.as_str());
        let store = &self.inner.store;
        let create = || PutOptions { mode: PutMode::Create, ..Default::default() };
        let wrong = |what: &str, e: StoreError| {
            let kind = match patience::kind_of(&e) {
                Some(Kind::Transient) => Kind::Transient,
                _ => Kind::Check,
            };
            Error::new(kind, format!("the lake {} can't be {what}", self.inner.url))
                .because(e)
                .next("check the address, the credentials and their rights")
        };
        store.put_opts(&at, "1".into(), create()).await.map_err(|e| wrong("written", e))?;
        let second = store.put_opts(&at, "2".into(), create()).await;
        let read = async { store.get(&at).await?.bytes().await }.await;
        let deleted = store.delete(&at).await;
        match second {
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {}
            Ok(_) => {
                return Err(Error::new(
                    Kind::Check,
                    format!(
                        "the lake {} creates an object that exists instead of refusing",
                        self.inner.url
                    ),
                )
                .next("use a store with conditional writes (If-None-Match: *)"));
            }
            Err(e) => return Err(wrong("written create-only", e)),
        }
        if read.map_err(|e| wrong("read", e))? != "1" {
            return Err(Error::new(
                Kind::Check,
                format!("the lake {} does not give back what was stored", self.inner.url),
            )
            .next("use a store with consistent reads"));
        }
        deleted.map_err(|e| wrong("cleaned: deleting", e))
    }

    pub(super) fn footer(&self, path: &str) -> Option<ArrowReaderMetadata> {
        let mut footers = self.inner.footers.lock().ok()?;
        let at = footers.iter().position(|(p, _)| p == path)?;
        let found = footers.remove(at);
        let footer = found.1.clone();
        footers.push(found);
        Some(footer)
    }

    pub(super) fn keep_footer(&self, path: String, footer: ArrowReaderMetadata) {
        if let Ok(mut footers) = self.inner.footers.lock() {
            if footers.len() >= FOOTERS_KEPT {
                footers.remove(0);
            }
            footers.push((path, footer));
        }
    }
}

/// An error of the store, transient unless it is known to stay.
pub(crate) fn store_error(doing: impl Into<String>, error: StoreError) -> Error {
    let kind = patience::kind_of(&error).unwrap_or(Kind::Transient);
    let wrong = Error::new(kind, doing).because(error);
    if kind == Kind::Transient { wrong } else { wrong.next(WHEN_THE_STORE_WORKS) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[test]
    fn unknown_places_are_refused_in_words() {
        for (place, word) in
            [("ftp://host/lake", "ftp://"), ("", "empty"), ("s3:// bad", "s3:// bad")]
        {
            let error = Lake::open(place).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[tokio::test]
    async fn a_lake_whose_path_needs_escaping_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a lake é%20#");
        let lake = Lake::open(place.to_str().unwrap()).unwrap();
        lake.check_writable().await.unwrap();
        lake.put("x/y", Bytes::from_static(b"z")).await.unwrap();
        assert_eq!(std::fs::read(place.join("x/y")).unwrap(), b"z");
        assert_eq!(lake.get("x/y").await.unwrap().unwrap(), "z");
        assert!(lake.get("x/none").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_lake_in_memory_can_be_written() {
        let lake =
            Lake::with_store(&Url::parse("memory:///lake").unwrap(), Arc::new(InMemory::new()))
                .unwrap();
        lake.check_writable().await.unwrap();
        assert!(lake.local_path().is_none());
    }
}

//! Writes to a local disk that outlive a power cut.
//!
//! object_store's local file system renames and links files that may still be in memory only.
//! This decorator writes a file, makes it durable, gives it its name create-only where asked, and
//! makes the name durable, before it answers. So what holds for object stores holds here: an
//! answered put is stored, whole, and nobody sees half of it.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result, UploadPart,
};
use uuid::Uuid;

use super::disk;

/// A local file system whose puts are durable.
#[derive(Clone, Debug)]
pub struct DurableFileSystem {
    inner: Arc<LocalFileSystem>,
}

impl DurableFileSystem {
    /// The whole local file system.
    pub fn new() -> Self {
        DurableFileSystem { inner: Arc::new(LocalFileSystem::new()) }
    }
}

impl Default for DurableFileSystem {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for DurableFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DurableFileSystem")
    }
}

/// Makes a file's content and its name durable.
pub fn sync_file(path: &FsPath) -> io::Result<()> {
    disk::sync(&File::open(path)?, path)?;
    sync_folder_of(path)
}

/// Makes a file's name durable.
pub fn sync_folder_of(path: &FsPath) -> io::Result<()> {
    path.parent().map_or(Ok(()), disk::sync_folder)
}

/// Folders whose names are known to be durable.
static DURABLE: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);

/// Creates a folder and those above it, each with a durable name.
///
/// A folder that is there may have been created by a process that died before it could make the
/// name durable; so the first time in a process the name of each is made durable once more.
pub fn create_folder(folder: &FsPath) -> io::Result<()> {
    let known = || DURABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let there = folder.is_dir();
    if there && known().contains(folder) {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        create_folder(above)?;
    }
    if !there {
        match disk::make_folder(folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    match sync_folder_of(folder) {
        // A folder far above that was there before us and that we may not even read.
        Err(e) if there && e.kind() == io::ErrorKind::PermissionDenied => {}
        other => other?,
    }
    known().insert(folder.to_owned());
    Ok(())
}

fn store(target: &FsPath, parts: &[PutPayload], mode: &PutMode) -> io::Result<()> {
    let folder = target.parent().ok_or_else(|| io::Error::other("no file name"))?;
    create_folder(folder)?;
    // The `#` makes object_store's listing skip it, as it does its own staging files.
    let mut name = target.as_os_str().to_owned();
    name.push(format!("#{}", Uuid::new_v4().as_u64_pair().0));
    let staging = PathBuf::from(name);
    let written = write_staged(&staging, parts).and_then(|()| match mode {
        PutMode::Create => {
            disk::link(&staging, target)?;
            disk::remove(&staging)
        }
        _ => disk::rename(&staging, target),
    });
    if let Err(error) = written {
        let _ = disk::remove(&staging);
        return Err(error);
    }
    disk::sync_folder(folder)
}

fn write_staged(staging: &FsPath, parts: &[PutPayload]) -> io::Result<()> {
    let file = disk::create(staging)?;
    let mut offset = 0;
    for chunk in parts.iter().flatten() {
        disk::write_at(&file, staging, chunk, offset)?;
        offset += chunk.len() as u64;
    }
    disk::sync(&file, staging)
}

async fn store_async(
    inner: Arc<LocalFileSystem>,
    location: Path,
    parts: Vec<PutPayload>,
    mode: PutMode,
) -> Result<PutResult> {
    let target = inner.path_to_filesystem(&location)?;
    let answer = tokio::task::spawn_blocking(move || store(&target, &parts, &mode)).await?;
    match answer {
        Ok(()) => Ok(PutResult { e_tag: None, version: None }),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            Err(Error::AlreadyExists { path: location.to_string(), source: e.into() })
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::PermissionDenied { path: location.to_string(), source: e.into() })
        }
        Err(e) => Err(Error::Generic { store: "local disk", source: e.into() }),
    }
}

/// Collects the parts and stores them at once: only log checkpoints come this way on a local disk.
#[derive(Debug)]
struct Collected {
    inner: Arc<LocalFileSystem>,
    location: Path,
    parts: Vec<PutPayload>,
}

impl MultipartUpload for Collected {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.push(data);
        Box::pin(async { Ok(()) })
    }

    fn complete<'a, 'b>(&'a mut self) -> BoxFuture<'b, Result<PutResult>>
    where
        'a: 'b,
        Self: 'b,
    {
        let parts = std::mem::take(&mut self.parts);
        Box::pin(store_async(self.inner.clone(), self.location.clone(), parts, PutMode::Overwrite))
    }

    fn abort<'a, 'b>(&'a mut self) -> BoxFuture<'b, Result<()>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.parts.clear();
        Box::pin(async { Ok(()) })
    }
}

// Written out as the trait's macro would: only the puts differ from the store inside.
impl ObjectStore for DurableFileSystem {
    fn put_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> BoxFuture<'c, Result<PutResult>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            if let PutMode::Update(_) = opts.mode {
                return self.inner.put_opts(location, payload, opts).await;
            }
            store_async(self.inner.clone(), location.clone(), vec![payload], opts.mode).await
        })
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        _: PutMultipartOptions,
    ) -> BoxFuture<'c, Result<Box<dyn MultipartUpload>>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        let upload =
            Collected { inner: self.inner.clone(), location: location.clone(), parts: Vec::new() };
        Box::pin(async move { Ok(Box::new(upload) as Box<dyn MultipartUpload>) })
    }

    fn get_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        options: GetOptions,
    ) -> BoxFuture<'c, Result<GetResult>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.inner.get_opts(location, options)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    fn list_with_delimiter<'a, 'b, 'c>(
        &'a self,
        prefix: Option<&'b Path>,
    ) -> BoxFuture<'c, Result<ListResult>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.inner.list_with_delimiter(prefix)
    }

    fn copy_opts<'a, 'b, 'd, 'c>(
        &'a self,
        from: &'b Path,
        to: &'d Path,
        options: CopyOptions,
    ) -> BoxFuture<'c, Result<()>>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
        Self: 'c,
    {
        self.inner.copy_opts(from, to, options)
    }

    fn rename_opts<'a, 'b, 'd, 'c>(
        &'a self,
        from: &'b Path,
        to: &'d Path,
        options: RenameOptions,
    ) -> BoxFuture<'c, Result<()>>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
        Self: 'c,
    {
        self.inner.rename_opts(from, to, options)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use futures::TryStreamExt;
    use object_store::ObjectStoreExt;

    #[tokio::test]
    async fn a_second_create_is_refused_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let store = DurableFileSystem::new();
        let at = Path::from_absolute_path(dir.path().join("a/b/0.json")).unwrap();
        let create = || PutOptions { mode: PutMode::Create, ..Default::default() };
        store.put_opts(&at, "one".into(), create()).await.unwrap();
        let again = store.put_opts(&at, "two".into(), create()).await.unwrap_err();
        assert!(matches!(again, Error::AlreadyExists { .. }), "{again}");
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), "one");
        store.put(&at, "three".into()).await.unwrap();
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), "three");
        let below = Path::from_absolute_path(dir.path()).unwrap();
        let all: Vec<_> = store.list(Some(&below)).try_collect().await.unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn parts_are_stored_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let store = DurableFileSystem::new();
        let at = Path::from_absolute_path(dir.path().join("x.bin")).unwrap();
        let mut upload = store.put_multipart(&at).await.unwrap();
        upload.put_part("ab".into()).await.unwrap();
        upload.put_part("cd".into()).await.unwrap();
        assert!(store.head(&at).await.is_err());
        upload.complete().await.unwrap();
        assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), "abcd");
    }
}

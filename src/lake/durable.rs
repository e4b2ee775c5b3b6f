//! Writes to a local disk that outlive a power cut.
//!
//! object_store's local file system renames and links files that may still be in memory only.
//! This decorator writes a file, makes it durable, gives it its name create-only where asked, and
//! makes the name durable, before it answers. So what holds for object stores holds here: an
//! answered put is stored, whole, and nobody sees half of it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

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

/// Makes a file's content and its name durable. `top` is a folder known to be durable itself.
pub fn sync_file(path: &FsPath) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_folder_of(path)
}

/// Makes a file's name durable.
pub fn sync_folder_of(path: &FsPath) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates a folder and those above it, each with a durable name.
pub fn create_folder(folder: &FsPath) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        create_folder(above)?;
    }
    match fs::create_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    sync_folder_of(folder)
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
            fs::hard_link(&staging, target)?;
            fs::remove_file(&staging)
        }
        _ => fs::rename(&staging, target),
    });
    if let Err(error) = written {
        let _ = fs::remove_file(&staging);
        return Err(error);
    }
    sync_folder_of(target)
}

fn write_staged(staging: &FsPath, parts: &[PutPayload]) -> io::Result<()> {
    let mut file = File::create_new(staging)?;
    for chunk in parts.iter().flatten() {
        file.write_all(chunk)?;
    }
    file.sync_all()
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

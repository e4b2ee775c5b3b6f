//! How long a store that fails is waited for, and which failures may pass.
//!
//! Every operation on the lake is tried again, with growing and jittered waits, until it succeeds,
//! fails in a way that stays, or has failed for `[limits] retry_for`. Then the error says so and is
//! definite: whoever gets it need not try again, so the time is spent once and not once a layer.
//!
//! One operation is never tried again here: creating an object. Its failure may hide that it was
//! stored, and only the one who knows its content can tell (see [`log`](super::log)).

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};
use tokio::sync::Notify;

use crate::config::units::duration_text;
use crate::error::Kind;
use crate::observe::metrics::StoreCounts;

/// The first wait; each one is twice as long as the one before, less up to half of it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// Objects deleted at a time.
const DELETES_AT_A_TIME: usize = 8;

/// The time that a failing operation is given. Clones share the answer to "give up now".
#[derive(Clone, Debug)]
pub struct Patience {
    retry_for: Duration,
    ended: Arc<Ended>,
    counts: Arc<OnceLock<Arc<StoreCounts>>>,
}

#[derive(Debug, Default)]
struct Ended {
    flag: AtomicBool,
    bell: Notify,
}

impl Patience {
    /// Operations are tried again for so long.
    pub fn new(retry_for: Duration) -> Self {
        Patience { retry_for, ended: Arc::default(), counts: Arc::default() }
    }

    /// Counts what it has patience with in `counts`, from now on; only the first call counts.
    pub fn count_into(&self, counts: Arc<StoreCounts>) {
        let _ = self.counts.set(counts);
    }

    fn count_retry(&self) {
        if let Some(counts) = self.counts.get() {
            counts.retries.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A commit found the version of somebody else in its place.
    pub(super) fn count_conflict(&self) {
        if let Some(counts) = self.counts.get() {
            counts.conflicts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From now on nothing is waited for.
    pub fn end(&self) {
        self.ended.flag.store(true, Ordering::Release);
        self.ended.bell.notify_waiters();
    }

    /// The time.
    pub fn retry_for(&self) -> Duration {
        self.retry_for
    }

    /// The waits of one operation.
    pub(super) fn waits(&self) -> Waits<'_> {
        Waits { patience: self, since: Instant::now(), next: FIRST_WAIT }
    }

    /// The error of an operation that was tried for long enough.
    pub(super) fn gave_up(&self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> GaveUp {
        let stopping = self.ended.flag.load(Ordering::Acquire);
        GaveUp { after: self.retry_for, stopping, cause: cause.into() }
    }
}

/// The waits between the tries of one operation.
pub(super) struct Waits<'a> {
    patience: &'a Patience,
    since: Instant,
    next: Duration,
}

impl Waits<'_> {
    /// The next wait; none if there was enough of it. The last one ends with the time that is left.
    pub fn next(&mut self) -> Option<Duration> {
        if self.patience.ended.flag.load(Ordering::Acquire) {
            return None;
        }
        let left = self.patience.retry_for.checked_sub(self.since.elapsed())?;
        self.patience.count_retry();
        let full = self.next;
        self.next = (full * 2).min(LONGEST_WAIT);
        Some(jittered(full).min(left.max(Duration::from_millis(1))))
    }

    /// Waits, unless the patience is ended meanwhile.
    pub async fn pause(&self, wait: Duration) {
        let ended = &self.patience.ended;
        let bell = ended.bell.notified();
        if ended.flag.load(Ordering::Acquire) {
            return;
        }
        let _ = tokio::time::timeout(wait, bell).await;
    }

    /// Waits on a thread of its own.
    pub fn pause_blocking(&self, wait: Duration) {
        let until = Instant::now() + wait;
        while !self.patience.ended.flag.load(Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// From half of it to all of it, so that many that failed at once do not come back at once.
fn jittered(full: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u64_pair().1 as u32;
    full / 2 + full.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// A store did not recover in the time it was given, or until the program was to end.
#[derive(Debug)]
pub(super) struct GaveUp {
    after: Duration,
    stopping: bool,
    cause: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stopping {
            return write!(f, "the store failed, and was not tried again: {}", self.cause);
        }
        write!(
            f,
            "the store did not recover within {} ([limits] retry_for): {}",
            duration_text(self.after),
            self.cause
        )
    }
}

impl StdError for GaveUp {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.cause.as_ref())
    }
}

/// The kind of an error that the store or the disk is at the bottom of; `None` if neither is.
pub(super) fn kind_of(error: &(dyn StdError + 'static)) -> Option<Kind> {
    if let Some(gave_up) = error.downcast_ref::<GaveUp>() {
        return Some(if gave_up.stopping { Kind::Transient } else { Kind::Failed });
    }
    if let Some(store) = error.downcast_ref::<StoreError>() {
        return Some(kind_of_store(store));
    }
    if let Some(io) = error.downcast_ref::<io::Error>() {
        return Some(match io.get_ref().and_then(|inner| kind_of(inner)) {
            Some(kind) => kind,
            None => kind_of_io(io),
        });
    }
    if let Some(ours) = error.downcast_ref::<crate::error::Error>() {
        return Some(ours.kind());
    }
    error.source().and_then(kind_of)
}

fn kind_of_store(error: &StoreError) -> Kind {
    match error {
        StoreError::Generic { source, .. } => kind_of(source.as_ref())
            .unwrap_or_else(|| kind_of_status(&source.to_string()).unwrap_or(Kind::Transient)),
        StoreError::JoinError { .. }
        | StoreError::Precondition { .. }
        | StoreError::NotModified { .. } => Kind::Transient,
        _ => Kind::Failed,
    }
}

/// A listing that a store refuses has the status in its text only.
fn kind_of_status(text: &str) -> Option<Kind> {
    let status: u16 = text.split_once("status code: ")?.1.get(..3)?.parse().ok()?;
    // Too early, too much and too late may pass.
    let lasting = (400..500).contains(&status) && ![408, 409, 425, 429].contains(&status);
    Some(if lasting { Kind::Failed } else { Kind::Transient })
}

fn kind_of_io(error: &io::Error) -> Kind {
    use io::ErrorKind as E;
    match error.kind() {
        E::PermissionDenied
        | E::ReadOnlyFilesystem
        | E::NotFound
        | E::AlreadyExists
        | E::NotADirectory
        | E::IsADirectory
        | E::InvalidInput
        | E::InvalidFilename
        | E::FileTooLarge
        | E::Unsupported => Kind::Failed,
        _ => Kind::Transient,
    }
}

/// Whether the disk may take the same bytes at the same place a little later.
pub(super) fn disk_may_recover(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    matches!(
        error.kind(),
        E::StorageFull | E::QuotaExceeded | E::Interrupted | E::WouldBlock | E::TimedOut
    )
}

/// A store whose operations are tried again.
#[derive(Debug)]
pub struct Patient {
    inner: Arc<dyn ObjectStore>,
    patience: Patience,
}

impl Patient {
    /// `inner` with this patience.
    pub fn new(inner: Arc<dyn ObjectStore>, patience: Patience) -> Self {
        Patient { inner, patience }
    }
}

impl fmt::Display for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

async fn patiently<'a, T>(
    patience: &Patience,
    doing: &str,
    at: &Path,
    operation: impl Fn(u32) -> BoxFuture<'a, Result<T>> + Send,
) -> Result<T> {
    let mut tries = 0;
    let mut waits = patience.waits();
    loop {
        tries += 1;
        let error = match operation(tries).await {
            Ok(done) => return Ok(done),
            Err(error) if kind_of_store(&error) != Kind::Transient => return Err(error),
            Err(error) => error,
        };
        // An optimistic read that met a change is its caller's to repeat.
        if matches!(error, StoreError::Precondition { .. } | StoreError::NotModified { .. }) {
            return Err(error);
        }
        let Some(wait) = waits.next() else {
            let source = patience.gave_up(error).into();
            return Err(StoreError::Generic { store: "lake", source });
        };
        tracing::warn!(wait_ms = wait.as_millis() as u64, "{doing} {at}: {error}; trying again");
        waits.pause(wait).await;
    }
}

/// A listing that fails before it gave anything is begun again.
fn patient_listing(
    patience: Patience,
    at: Path,
    list: impl Fn() -> BoxStream<'static, Result<ObjectMeta>> + Send + Sync + 'static,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let begun = async move {
        let first = patiently(&patience, "listing", &at, |_| {
            let mut listed = list();
            async move { Ok((listed.next().await.transpose()?, listed)) }.boxed()
        });
        match first.await {
            Ok((first, rest)) => stream::iter(first.map(Ok)).chain(rest).boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    };
    stream::once(begun).flatten().boxed()
}

// Written out as the trait's macro would: the macro's crate is not a dependency.
impl ObjectStore for Patient {
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
        if opts.mode != PutMode::Overwrite {
            return self.inner.put_opts(location, payload, opts);
        }
        Box::pin(async move {
            patiently(&self.patience, "writing", location, |_| {
                self.inner.put_opts(location, payload.clone(), opts.clone())
            })
            .await
        })
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        opts: PutMultipartOptions,
    ) -> BoxFuture<'c, Result<Box<dyn MultipartUpload>>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            patiently(&self.patience, "writing", location, |_| {
                self.inner.put_multipart_opts(location, opts.clone())
            })
            .await
        })
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
        Box::pin(async move {
            patiently(&self.patience, "reading", location, |_| {
                self.inner.get_opts(location, options.clone())
            })
            .await
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inner, patience) = (self.inner.clone(), self.patience.clone());
        let delete = move |location: Result<Path>| {
            let (inner, patience) = (inner.clone(), patience.clone());
            async move {
                let at = location?;
                let done = patiently(&patience, "deleting", &at, |tries| {
                    let (inner, at) = (inner.clone(), at.clone());
                    async move {
                        match inner.delete(&at).await {
                            // The answer of the try before was lost.
                            Err(StoreError::NotFound { .. }) if tries > 1 => Ok(()),
                            other => other,
                        }
                    }
                    .boxed()
                });
                done.await?;
                Ok(at)
            }
        };
        locations.map(delete).buffered(DELETES_AT_A_TIME).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (inner, prefix) = (self.inner.clone(), prefix.cloned());
        let at = prefix.clone().unwrap_or_default();
        patient_listing(self.patience.clone(), at, move || inner.list(prefix.as_ref()))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (inner, prefix, offset) = (self.inner.clone(), prefix.cloned(), offset.clone());
        let at = prefix.clone().unwrap_or_default();
        patient_listing(self.patience.clone(), at, move || {
            inner.list_with_offset(prefix.as_ref(), &offset)
        })
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
        Box::pin(async move {
            let at = prefix.cloned().unwrap_or_default();
            patiently(&self.patience, "listing", &at, |_| self.inner.list_with_delimiter(prefix))
                .await
        })
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

    #[test]
    fn what_may_pass_is_told_from_what_stays_however_it_is_wrapped() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let generic =
            |source: Box<dyn StdError + Send + Sync>| StoreError::Generic { store: "x", source };
        assert_eq!(kind_of(&generic(full().into())), Some(Kind::Transient));
        assert_eq!(kind_of(&generic(denied().into())), Some(Kind::Failed));
        let listed =
            |status: &str| format!("Error performing list request: … status code: {status}");
        for (status, kind) in [
            ("403 Forbidden: <?xml", Kind::Failed),
            ("404 Not Found", Kind::Failed),
            ("429 Too Many Requests", Kind::Transient),
            ("503 Slow Down", Kind::Transient),
        ] {
            assert_eq!(kind_of(&generic(listed(status).into())), Some(kind), "{status}");
        }
        // As a Parquet writer or reader wraps them.
        let wrapped = io::Error::other(generic(denied().into()));
        assert_eq!(kind_of(&wrapped), Some(Kind::Failed));
        let parquet = parquet::errors::ParquetError::External(Box::new(generic(full().into())));
        assert_eq!(kind_of(&parquet), Some(Kind::Transient));
        let patience = Patience::new(Duration::from_secs(1));
        let after = io::Error::other(generic(patience.gave_up(generic(full().into())).into()));
        assert_eq!(kind_of(&after), Some(Kind::Failed));
        assert_eq!(kind_of(&fmt::Error), None);
    }

    #[test]
    fn waits_grow_differ_and_end_with_the_time() {
        let patience = Patience::new(Duration::from_secs(600));
        let mut waits = patience.waits();
        let first: Vec<Duration> = (0..12).filter_map(|_| waits.next()).collect();
        assert!(first[0] >= FIRST_WAIT / 2 && first[0] <= FIRST_WAIT, "{first:?}");
        assert!(first[11] >= LONGEST_WAIT / 2 && first[11] <= LONGEST_WAIT, "{first:?}");
        let again: Vec<Duration> = {
            let mut waits = patience.waits();
            (0..12).filter_map(|_| waits.next()).collect()
        };
        assert_ne!(first, again, "no jitter");
        patience.end();
        assert_eq!(patience.waits().next(), None);
        assert_eq!(Patience::new(Duration::ZERO).waits().next().map(|w| w.is_zero()), None);
    }
}

//! Faults that a test switches on: the store and the local disk fail in the ways they do in the
//! field. Only with the feature `failpoints`; a decorator around the real store, so that all else
//! is real.
//!
//! `TIDEGATE_STORE_FAULTS="OPERATION GLOB WHEN FAULT; …"`, four words a rule:
//!
//! - OPERATION: `put`, `create` (a put that must not replace), `get`, `list`, `delete`, `upload`
//!   (begins one in parts), `part`, `complete`, or a step on the local disk: `disk-create`,
//!   `disk-write`, `disk-half` (a write of which half is done first), `disk-sync`,
//!   `disk-sync-folder`, `disk-link`, `disk-rename`, `disk-remove`, `disk-folder`. `any` is every
//!   one of the store, `disk` every one on the disk.
//! - GLOB: of the path, `*` stands for anything.
//! - WHEN: `3` the third match, `2-4`, `5+`, or `p0.1@7`: with probability 0.1, from the seed 7.
//! - FAULT: `error` (not done), `lost` (done, answered with an error), `timeout:MS` and
//!   `lost-timeout:MS` (the same after a time), `slow:MS`, `throttle`, `denied`, `full`, `away:MS`
//!   (from the match on, the rule refuses everything of its kind for that time), `crash` (before)
//!   and `lost-crash` (after).
//!
//! `TIDEGATE_STORE_FAULTS_LOG=FILE` notes each fault that happened.
//!
//! `TIDEGATE_DISK_RECORD=FILE` records every step on the local disk.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path as FsPath;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use futures::{FutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, Result, UploadPart,
};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Error,
    Lost,
    Timeout(Duration),
    LostTimeout(Duration),
    Slow(Duration),
    Throttle,
    Denied,
    Full,
    Away(Duration),
    Crash,
    LostCrash,
}

/// Which of the matching operations.
#[derive(Clone, Debug, PartialEq)]
enum When {
    Between(u64, u64),
    Chance(f64, u64),
}

#[derive(Clone, Debug)]
struct Rule {
    operation: String,
    glob: String,
    when: When,
    fault: Fault,
    matches: u64,
    fired: u64,
    away_since: Option<Instant>,
}

/// Rules and how often each has matched. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<Mutex<Vec<Rule>>>);

/// The rules of the environment.
static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let text = std::env::var("TIDEGATE_STORE_FAULTS").unwrap_or_default();
    Rules::parse(&text).unwrap_or_else(|wrong| {
        // A test that means to inject a fault must not pass because of a slip.
        eprintln!("TIDEGATE_STORE_FAULTS: {wrong}");
        std::process::exit(99)
    })
});

impl Rules {
    /// Reads rules.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Rules, String> {
        Ok(Rules(Arc::new(Mutex::new(parse(text)?))))
    }

    /// Puts other rules in the place of these.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn replace(&self, text: &str) -> Result<(), String> {
        let rules = parse(text)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }

    /// How often any of them made something fail.
    pub fn fired(&self) -> u64 {
        let rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.iter().map(|rule| rule.fired).sum()
    }

    fn fires(&self, operation: &str, path: &str) -> Option<Fault> {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = rules.iter_mut().find_map(|rule| {
            let fault = rule.fires(operation, path)?;
            rule.fired += 1;
            Some(fault)
        })?;
        drop(rules);
        // Tests count what really happened; the program's own words are not proof of it.
        if let Ok(place) = std::env::var("TIDEGATE_STORE_FAULTS_LOG") {
            let line = format!("{operation} {path} {fault:?}\n");
            let file = OpenOptions::new().create(true).append(true).open(place);
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
        Some(fault)
    }
}

fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let rule = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [operation, glob, when, fault] = words.as_slice() else {
            return Err(format!("not four words: {text:?}"));
        };
        Ok(Rule {
            operation: (*operation).to_owned(),
            glob: (*glob).to_owned(),
            when: parse_when(when).ok_or_else(|| format!("no such moment: {when:?}"))?,
            fault: parse_fault(fault).ok_or_else(|| format!("no such fault: {fault:?}"))?,
            matches: 0,
            fired: 0,
            away_since: None,
        })
    };
    text.split(';').map(str::trim).filter(|text| !text.is_empty()).map(rule).collect()
}

fn parse_when(text: &str) -> Option<When> {
    if let Some(chance) = text.strip_prefix('p') {
        let (chance, seed) = chance.split_once('@')?;
        return Some(When::Chance(chance.parse().ok()?, seed.parse().ok()?));
    }
    if let Some(from) = text.strip_suffix('+') {
        return Some(When::Between(from.parse().ok()?, u64::MAX));
    }
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some(When::Between(from.parse().ok()?, to.parse().ok()?))
}

fn parse_fault(text: &str) -> Option<Fault> {
    let (name, argument) = text.split_once(':').unwrap_or((text, ""));
    let time = || Some(Duration::from_millis(argument.parse().ok()?));
    Some(match name {
        "error" => Fault::Error,
        "lost" => Fault::Lost,
        "timeout" => Fault::Timeout(time()?),
        "lost-timeout" => Fault::LostTimeout(time()?),
        "slow" => Fault::Slow(time()?),
        "throttle" => Fault::Throttle,
        "denied" => Fault::Denied,
        "full" => Fault::Full,
        "away" => Fault::Away(time()?),
        "crash" => Fault::Crash,
        "lost-crash" => Fault::LostCrash,
        _ => return None,
    })
}

/// Whether a pattern with `*` covers the whole text.
fn covers(glob: &str, text: &str) -> bool {
    match glob.split_once('*') {
        None => glob == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            (0..=text.len()).any(|i| text.get(i..).is_some_and(|text| covers(rest, text)))
        }),
    }
}

/// A number from 0 to 1 that a seed and a count decide.
fn chance(seed: u64, count: u64) -> f64 {
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(&count.to_le_bytes(), seed);
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

impl Rule {
    fn fires(&mut self, operation: &str, path: &str) -> Option<Fault> {
        let kind = match self.operation.as_str() {
            "any" => !operation.starts_with("disk"),
            "disk" => operation.starts_with("disk"),
            one => one == operation,
        };
        if !kind || !covers(&self.glob, path) {
            return None;
        }
        if let (Fault::Away(time), Some(since)) = (self.fault, self.away_since) {
            return (since.elapsed() < time).then_some(Fault::Error);
        }
        self.matches += 1;
        let now = match self.when {
            When::Between(from, to) => (from..=to).contains(&self.matches),
            When::Chance(p, seed) => chance(seed, self.matches) < p,
        };
        if !now {
            return None;
        }
        if let Fault::Away(_) = self.fault {
            self.away_since = Some(Instant::now());
            return Some(Fault::Error);
        }
        Some(self.fault)
    }
}

fn store_error(fault: Fault, path: &Path) -> Error {
    let generic = |source: Box<dyn std::error::Error + Send + Sync>| Error::Generic {
        store: "faulty",
        source,
    };
    match fault {
        Fault::Denied => {
            Error::PermissionDenied { path: path.to_string(), source: "403 Forbidden".into() }
        }
        Fault::Throttle => generic("503 Slow Down".into()),
        Fault::Timeout(_) | Fault::LostTimeout(_) => {
            generic(io::Error::from(io::ErrorKind::TimedOut).into())
        }
        Fault::Full => generic(io::Error::from(io::ErrorKind::StorageFull).into()),
        _ => generic("500 Internal Server Error".into()),
    }
}

/// Does an operation of the store, with the fault that is due.
async fn meet<T>(
    rules: &Rules,
    operation: &str,
    path: &Path,
    act: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    let Some(fault) = rules.fires(operation, path.as_ref()) else { return act.await };
    match fault {
        Fault::Slow(time) => {
            tokio::time::sleep(time).await;
            act.await
        }
        Fault::Lost => {
            act.await?;
            Err(store_error(fault, path))
        }
        Fault::LostTimeout(time) => {
            act.await?;
            tokio::time::sleep(time).await;
            Err(store_error(fault, path))
        }
        Fault::LostCrash => {
            let _ = act.await;
            std::process::abort()
        }
        Fault::Crash => std::process::abort(),
        Fault::Timeout(time) => {
            tokio::time::sleep(time).await;
            Err(store_error(fault, path))
        }
        _ => Err(store_error(fault, path)),
    }
}

/// What a step on the disk works with.
pub(super) enum Detail<'a> {
    None,
    Bytes(u64, &'a [u8]),
    From(&'a FsPath),
}

fn disk_error(fault: Fault) -> io::Error {
    match fault {
        Fault::Denied => io::ErrorKind::PermissionDenied.into(),
        Fault::Full => io::ErrorKind::StorageFull.into(),
        Fault::Timeout(_) | Fault::LostTimeout(_) => io::ErrorKind::TimedOut.into(),
        // EIO
        _ => io::Error::from_raw_os_error(5),
    }
}

/// Does a step on the local disk, with the fault that is due, and records it.
pub(super) fn disk<T>(
    operation: &str,
    path: &FsPath,
    detail: Detail<'_>,
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let act = || {
        let done = act()?;
        record(operation, path, &detail)?;
        Ok(done)
    };
    let Some(fault) = RULES.fires(operation, &path.to_string_lossy()) else { return act() };
    match fault {
        Fault::Slow(time) => {
            std::thread::sleep(time);
            act()
        }
        Fault::Lost | Fault::LostTimeout(_) => {
            act()?;
            Err(disk_error(fault))
        }
        Fault::LostCrash => {
            let _ = act();
            std::process::abort()
        }
        Fault::Crash => std::process::abort(),
        _ => Err(disk_error(fault)),
    }
}

/// Writes only half of the bytes where a fault says so. Rules for it name `disk-half`.
pub(super) fn tear(
    path: &FsPath,
    bytes: &[u8],
    write: impl FnOnce(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let Some(fault) = RULES.fires("disk-half", &path.to_string_lossy()) else { return Ok(()) };
    write(bytes.get(..bytes.len() / 2).unwrap_or_default())?;
    match fault {
        Fault::Crash | Fault::LostCrash => std::process::abort(),
        fault => Err(disk_error(fault)),
    }
}

/// Appends a step to the record: a line of JSON, then the bytes that were written.
fn record(operation: &str, path: &FsPath, detail: &Detail<'_>) -> io::Result<()> {
    static RECORD: LazyLock<Option<Mutex<std::fs::File>>> = LazyLock::new(|| {
        let place = std::env::var_os("TIDEGATE_DISK_RECORD")?;
        OpenOptions::new().create(true).append(true).open(place).ok().map(Mutex::new)
    });
    let Some(file) = &*RECORD else { return Ok(()) };
    let mut step = serde_json::json!({"step": operation, "path": path});
    let mut bytes: &[u8] = &[];
    match detail {
        Detail::None => {}
        Detail::Bytes(offset, written) => {
            step["offset"] = (*offset).into();
            step["bytes"] = written.len().into();
            bytes = written;
        }
        Detail::From(from) => step["from"] = from.to_string_lossy().into(),
    }
    let mut entry = step.to_string().into_bytes();
    entry.push(b'\n');
    entry.extend_from_slice(bytes);
    file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&entry)
}

/// A store that fails as the rules say.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    rules: Rules,
}

impl Faulty {
    /// `inner`, with the faults of the environment.
    pub fn around(inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(Faulty { inner, rules: RULES.clone() })
    }

    fn listing(
        &self,
        at: Path,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let rules = self.rules.clone();
        let begun = async move { meet(&rules, "list", &at, async { Ok(listed) }).await };
        stream::once(begun).try_flatten().boxed()
    }

    /// `inner`, with faults of its own.
    pub fn with(inner: Arc<dyn ObjectStore>, rules: Rules) -> Self {
        Faulty { inner, rules }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.inner)
    }
}

/// An upload in parts whose parts and end can fail.
#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    at: Path,
    rules: Rules,
}

impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.inner.put_part(data);
        let (rules, at) = (self.rules.clone(), self.at.clone());
        async move { meet(&rules, "part", &at, part).await }.boxed()
    }

    fn complete<'a, 'b>(&'a mut self) -> BoxFuture<'b, Result<PutResult>>
    where
        'a: 'b,
        Self: 'b,
    {
        async move { meet(&self.rules, "complete", &self.at, self.inner.complete()).await }.boxed()
    }

    fn abort<'a, 'b>(&'a mut self) -> BoxFuture<'b, Result<()>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.inner.abort()
    }
}

impl ObjectStore for Faulty {
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
        let operation = if opts.mode == PutMode::Create { "create" } else { "put" };
        meet(&self.rules, operation, location, self.inner.put_opts(location, payload, opts)).boxed()
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
        async move {
            let begun = self.inner.put_multipart_opts(location, opts);
            let inner = meet(&self.rules, "upload", location, begun).await?;
            let upload = FaultyUpload { inner, at: location.clone(), rules: self.rules.clone() };
            Ok(Box::new(upload) as Box<dyn MultipartUpload>)
        }
        .boxed()
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
        meet(&self.rules, "get", location, self.inner.get_opts(location, options)).boxed()
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inner, rules) = (self.inner.clone(), self.rules.clone());
        locations
            .then(move |location| {
                let (inner, rules) = (inner.clone(), rules.clone());
                async move {
                    let at = location?;
                    meet(&rules, "delete", &at, async { inner.delete(&at).await }).await?;
                    Ok(at)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let at = prefix.cloned().unwrap_or_default();
        let listed = self.inner.list(prefix);
        self.listing(at, listed)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let at = prefix.cloned().unwrap_or_default();
        let listed = self.inner.list_with_offset(prefix, offset);
        self.listing(at, listed)
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
        async move {
            let at = prefix.cloned().unwrap_or_default();
            meet(&self.rules, "list", &at, self.inner.list_with_delimiter(prefix)).await
        }
        .boxed()
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
    fn rules_are_read_and_a_slip_is_an_error() {
        let rules = parse("create */_delta_log/*.json 2-3 lost; get * p0.5@7 slow:10").unwrap();
        assert_eq!((rules.len(), rules[0].fault), (2, Fault::Lost));
        assert_eq!(rules[0].when, When::Between(2, 3));
        for wrong in ["put *", "put * x lost", "put * 1 vanish", "put * 1 slow"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rule_fires_at_its_match_only() {
        let mut rule = parse("create */_delta_log/*.json 2 lost").unwrap().remove(0);
        assert_eq!(rule.fires("create", "a/x.parquet"), None);
        assert_eq!(rule.fires("put", "a/_delta_log/0.json"), None);
        assert_eq!(rule.fires("create", "a/_delta_log/0.json"), None);
        assert_eq!(rule.fires("create", "a/_delta_log/1.json"), Some(Fault::Lost));
        assert_eq!(rule.fires("create", "a/_delta_log/2.json"), None);
        let mut away = parse("any * 1 away:60000").unwrap().remove(0);
        assert_eq!(away.fires("get", "x"), Some(Fault::Error));
        assert_eq!(away.fires("put", "y"), Some(Fault::Error));
        assert_eq!(away.fires("disk-write", "y"), None);
    }
}

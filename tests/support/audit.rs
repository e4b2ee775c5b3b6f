//! What must hold in a lake on disk whatever happened: read from the log's JSON and the data files,
//! with none of the program's own code.
//!
//! - Versions follow each other without a gap; no commit stands twice.
//! - A data file comes once: one that went is never back, and a mask never shrinks.
//! - Every version's rows are those of the one before, plus and minus what its tag says, and as many
//!   as its checkpoint says. Tag, checkpoint and `txn` name one position.
//! - Within a generation positions never fall; a version holds changes of its own span only; no
//!   change stands in two rows; per key a later version never brings an earlier position.
//! - Every file that a version names is there, and can be read to its end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use roaring::RoaringTreemap;
use serde_json::Value;

use super::deltalog::vector_path;
use tidegate::position::Lsn;

/// What was found in a table that holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Audited {
    pub versions: u64,
    pub rows: u64,
    /// Rows that all versions together wrote.
    pub written: u64,
    /// Data files in the folder that no version names.
    pub orphans: u64,
}

/// The commits of a log, oldest first.
///
/// # Errors
/// A version is missing, or a commit is no JSON.
pub fn commits(folder: &Path) -> Result<Vec<Vec<Value>>, String> {
    let log = folder.join("_delta_log");
    let mut numbers: Vec<u64> = fs::read_dir(&log)
        .map_err(|e| format!("{}: {e}", log.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".json")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut commits = Vec::new();
    for (expected, number) in numbers.into_iter().enumerate() {
        if number != expected as u64 {
            return Err(format!("{}: version {expected} is missing", folder.display()));
        }
        let path = log.join(format!("{number:020}.json"));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let lines = text.lines().map(serde_json::from_str);
        let lines: Result<Vec<Value>, _> = lines.collect();
        commits.push(lines.map_err(|e| format!("{} is no commit: {e}", path.display()))?);
    }
    Ok(commits)
}

/// The newest text of a domain in a log.
pub fn domain(commits: &[Vec<Value>], name: &str) -> Option<Value> {
    commits.iter().rev().find_map(|commit| domain_of(commit, name))
}

fn domain_of(commit: &[Value], name: &str) -> Option<Value> {
    let found = commit.iter().find(|line| line["domainMetadata"]["domain"] == name)?;
    serde_json::from_str(found["domainMetadata"]["configuration"].as_str()?).ok()
}

/// The fence that a ledger names, zero before there is one.
pub fn fence(lake: &Path) -> Lsn {
    // While the program writes, the newest file may be there and not be whole yet: then the one
    // before counts.
    let Ok(commits) = commits(&lake.join("_tidegate/ledger")) else { return Lsn::ZERO };
    let fence = domain(&commits, "tidegate.fence");
    fence.and_then(|fence| fence["lsn"].as_str()?.parse().ok()).unwrap_or(Lsn::ZERO)
}

/// Looks at every version of a table; `key` names its key columns, none for a table without.
///
/// # Errors
/// What does not hold, in which version.
pub fn table(folder: &Path, key: &[&str]) -> Result<Audited, String> {
    let mut state = State::default();
    let commits = commits(folder)?;
    for (version, commit) in commits.iter().enumerate() {
        state
            .commit(folder, commit, key)
            .map_err(|e| format!("{} version {version}: {e}", folder.display()))?;
    }
    let orphans = data_files(folder)?.difference(&state.seen).count() as u64;
    let (rows, written) = (state.rows, state.written);
    Ok(Audited { versions: commits.len() as u64, rows, written, orphans })
}

/// The ledger: no gap, nothing twice, and the fence never falls within a generation.
///
/// # Errors
/// What does not hold.
pub fn ledger(lake: &Path) -> Result<(), String> {
    let folder = lake.join("_tidegate/ledger");
    let (mut last, mut operations) = ((0, Lsn::ZERO), HashSet::new());
    for (version, commit) in commits(&folder)?.iter().enumerate() {
        once(&mut operations, commit).map_err(|e| format!("ledger version {version}: {e}"))?;
        let Some(fence) = domain_of(commit, "tidegate.fence") else { continue };
        let now = (number(&fence, "generation")?, lsn(&fence, "lsn")?);
        if now < last {
            return Err(format!(
                "ledger version {version}: the fence fell from {last:?} to {now:?}"
            ));
        }
        last = now;
    }
    Ok(())
}

/// Every data file in a folder. What no version names may be anything: a killed writer's half file.
fn data_files(folder: &Path) -> Result<BTreeSet<String>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.ends_with(".parquet")).collect())
}

struct File {
    rows: u64,
    masked: u64,
}

/// A file to be read.
struct Read<'a> {
    path: &'a Path,
    /// Numbers of rows that are not there for a reader.
    masked: &'a RoaringTreemap,
    key: &'a [&'a str],
}

#[derive(Default)]
struct State {
    live: BTreeMap<String, File>,
    seen: BTreeSet<String>,
    rows: u64,
    written: u64,
    generation: u64,
    applied: Lsn,
    operations: HashSet<String>,
    changes: HashSet<(i64, i64)>,
    newest: HashMap<String, (i64, i64)>,
}

impl State {
    fn commit(&mut self, folder: &Path, commit: &[Value], key: &[&str]) -> Result<(), String> {
        once(&mut self.operations, commit)?;
        let tag = tag_of(commit)?;
        let (kind, applied) = (text(&tag, "kind")?, lsn(&tag, "applied")?);
        let checkpoint = domain_of(commit, "tidegate.checkpoint").ok_or("no checkpoint")?;
        let transaction = commit.iter().find_map(|line| line["txn"]["version"].as_i64());
        if lsn(&checkpoint, "applied")? != applied || transaction != Some(applied.as_i64()) {
            return Err(format!("tag {applied}, checkpoint and txn {transaction:?} differ"));
        }
        let generation = number(&tag, "generation")?;
        if (generation, applied) < (self.generation, self.applied) || applied < self.applied {
            return Err(format!("went back from {} to {applied}", self.applied));
        }
        // A table that was read again by itself keeps the pipeline's generation.
        if generation > self.generation && kind != "handoff" {
            return Err(format!("{kind}, generation {generation} after {}", self.generation));
        }
        if kind == "handoff" && lsn(&tag, "base")? < self.applied {
            return Err(format!("read again below {}: {tag}", self.applied));
        }
        let before = if generation == self.generation { self.applied } else { Lsn::ZERO };
        let new = self.files(folder, commit)?;
        let rows: u64 = self.live.values().map(|f| f.rows - f.masked).sum();
        self.written += number(&tag, "rows_in")?;
        let said = self.rows + number(&tag, "rows_in")?;
        let said = said.checked_sub(number(&tag, "rows_out")?);
        if said != Some(rows) || checkpoint["live_rows"].as_u64() != Some(rows) {
            return Err(format!(
                "{rows} rows after {}; tag {tag}, checkpoint {}",
                self.rows, checkpoint["live_rows"]
            ));
        }
        (self.rows, self.generation, self.applied) = (rows, generation, applied);
        let span = (kind == "changes").then_some((before.as_i64(), applied.as_i64()));
        let mut brought: HashMap<String, (i64, i64)> = HashMap::new();
        for (path, masked) in &new {
            let read = Read { path: &folder.join(path), masked, key };
            self.rows_of(&read, span, kind != "compaction", &mut brought)
                .map_err(|e| format!("{path}: {e}"))?;
        }
        for (key, position) in brought {
            if let Some(last) = self.newest.get(&key)
                && position < *last
            {
                return Err(format!("key {key} fell from {last:?} to {position:?}"));
            }
            self.newest.insert(key, position);
        }
        Ok(())
    }

    /// Takes removes and adds in; gives the files that are new, with the rows masked in them: what
    /// was superseded while files were merged.
    fn files(
        &mut self,
        folder: &Path,
        commit: &[Value],
    ) -> Result<Vec<(String, RoaringTreemap)>, String> {
        let mut removed: BTreeMap<String, File> = BTreeMap::new();
        for remove in commit.iter().map(|line| &line["remove"]).filter(|r| r.is_object()) {
            let path = text(remove, "path")?.to_owned();
            let file = self.live.remove(&path).ok_or(format!("{path} is removed, not live"))?;
            removed.insert(path, file);
        }
        let mut new = Vec::new();
        for add in commit.iter().map(|line| &line["add"]).filter(|a| a.is_object()) {
            let path = text(add, "path")?.to_owned();
            let stats: Value =
                serde_json::from_str(text(add, "stats")?).map_err(|e| e.to_string())?;
            let masked = add["deletionVector"]["cardinality"].as_u64().unwrap_or(0);
            let file = File { rows: number(&stats, "numRecords")?, masked };
            match removed.get(&path) {
                Some(before) if before.masked >= file.masked || before.rows != file.rows => {
                    return Err(format!("the mask of {path} shrinks, or its rows change"));
                }
                Some(_) => {}
                None if !self.seen.insert(path.clone()) => {
                    return Err(format!("{path} comes a second time"));
                }
                None => new.push((path.clone(), mask(folder, &add["deletionVector"])?)),
            }
            if !folder.join(&path).exists() {
                return Err(format!("{path} is named and not there"));
            }
            if self.live.insert(path.clone(), file).is_some() {
                return Err(format!("{path} is added twice"));
            }
        }
        Ok(new)
    }

    /// Reads keys and positions of a new file's live rows.
    fn rows_of(
        &mut self,
        Read { path, masked, key }: &Read<'_>,
        span: Option<(i64, i64)>,
        fresh: bool,
        brought: &mut HashMap<String, (i64, i64)>,
    ) -> Result<(), String> {
        let file = fs::File::open(path).map_err(|e| e.to_string())?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| e.to_string())?;
        let columns = key.iter().copied().chain(["_tg_lsn", "_tg_seq", "_tg_op"]);
        let mask = ProjectionMask::columns(reader.parquet_schema(), columns);
        let batches = reader.with_projection(mask).build().map_err(|e| e.to_string())?;
        let mut first = 0;
        for batch in batches {
            let batch = batch.map_err(|e| e.to_string())?;
            let column = |name: &str| batch.column_by_name(name).ok_or(format!("no {name}"));
            let lsns = column("_tg_lsn")?.as_primitive::<Int64Type>();
            let seqs = column("_tg_seq")?.as_primitive::<Int64Type>();
            let ops = column("_tg_op")?.as_string::<i32>();
            let options = FormatOptions::default().with_null("NULL");
            let mut keys = Vec::new();
            for name in *key {
                let formatter = ArrayFormatter::try_new(column(name)?.as_ref(), &options);
                keys.push(formatter.map_err(|e| e.to_string())?);
            }
            let at = first;
            first += batch.num_rows() as u64;
            for row in (0..batch.num_rows()).filter(|row| !masked.contains(at + *row as u64)) {
                let position = (lsns.value(row), seqs.value(row));
                let copied = ops.value(row) == "s";
                if copied != (position.1 == 0) {
                    return Err(format!("{} at {position:?}", ops.value(row)));
                }
                if let Some((from, to)) = span
                    && !(from..to).contains(&position.0)
                {
                    return Err(format!("{position:?} is not in the version's {from}..{to}"));
                }
                if !copied && fresh && !self.changes.insert(position) {
                    return Err(format!("the change {position:?} stands twice"));
                }
                if !key.is_empty() {
                    let texts: Vec<String> =
                        keys.iter().map(|key| key.value(row).to_string()).collect();
                    let newest = brought.entry(texts.join("\u{1f}")).or_insert(position);
                    *newest = (*newest).max(position);
                }
            }
        }
        Ok(())
    }
}

/// The rows that a deletion vector masks; none without one.
fn mask(folder: &Path, vector: &Value) -> Result<RoaringTreemap, String> {
    if vector.is_null() {
        return Ok(RoaringTreemap::new());
    }
    let path = folder.join(vector_path(text(vector, "pathOrInlineDv")?));
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    // At the offset its size, then a magic number, then the bitmaps.
    let from = number(vector, "offset")? as usize + 8;
    let bitmaps = bytes.get(from..).ok_or("a deletion vector is cut short")?;
    let mask = RoaringTreemap::deserialize_from(bitmaps).map_err(|e| e.to_string())?;
    if mask.len() != number(vector, "cardinality")? {
        return Err(format!("{}: {} rows in {vector}", path.display(), mask.len()));
    }
    Ok(mask)
}

fn once(operations: &mut HashSet<String>, commit: &[Value]) -> Result<(), String> {
    let id = commit.iter().find_map(|line| line["commitInfo"]["txnId"].as_str());
    let id = id.ok_or("a commit without an operation's name")?;
    if operations.insert(id.to_owned()) { Ok(()) } else { Err(format!("{id} stands twice")) }
}

fn tag_of(commit: &[Value]) -> Result<Value, String> {
    let found = commit.iter().find_map(|line| line["commitInfo"]["userMetadata"].as_str());
    serde_json::from_str(found.ok_or("no tag")?).map_err(|e| format!("no tag: {e}"))
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, String> {
    value[name].as_str().ok_or_else(|| format!("no {name} in {value}"))
}

fn number(value: &Value, name: &str) -> Result<u64, String> {
    value[name].as_u64().ok_or_else(|| format!("no {name} in {value}"))
}

fn lsn(value: &Value, name: &str) -> Result<Lsn, String> {
    text(value, name)?.parse().map_err(|e| format!("{e}"))
}

//! Copies the chunks of one snapshot: COPY BINARY straight into Arrow, Parquet and the index.
//!
//! Workers are threads with a blocking connection each, all inside the same snapshot. Nothing they
//! write is visible: no version names it. Every chunk is validated before it counts as done: what
//! was decoded equals what is read back from the finished file, and its keys are not null.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arrow::array::{Array, AsArray, RecordBatch};

use crate::apply::keys::{KeyEncoder, overflow_text};
use crate::apply::plan::TablePlan;
use crate::apply::table::file_options;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::plan::Chunk;
use crate::handoff::queue::{Queue, Task};
use crate::lake::locations::{Locations, PendingRun, RunBuilder};
use crate::lake::{FileNo, Lake, NewFile, RowDigest, RowsWriter, digest_file};
use crate::observe::progress::Progress;
use crate::position::Lsn;
use crate::source::catalog::quote_literal;
use crate::source::options::ConnectOptions;
use crate::source::types::RowsBuilder;
use crate::source::wire::{SessionKind, Wire, sqlstate};

/// Rows decoded at a time.
pub const ROWS_PER_BATCH: usize = 16_384;
/// How often a chunk is copied again after a connection was cut.
const ATTEMPTS: u32 = 4;

/// What all workers of a run share.
pub struct CopyRun {
    /// How to reach the source.
    pub source: ConnectOptions,
    /// Names of the snapshot, each exported by another connection: one is enough.
    pub snapshots: Vec<String>,
    /// The transactions it shows, as `pg_current_snapshot()` prints it: a name may be another
    /// snapshot's on another server.
    pub shows: Option<String>,
    /// The position it shows.
    pub base: Lsn,
    /// The tables, by their index in the pipeline.
    pub plans: Vec<Arc<TablePlan>>,
    /// Where data files go.
    pub lake: Lake,
    /// Runs uploads.
    pub runtime: tokio::runtime::Handle,
    /// New, empty indexes by table; none for a table whose rows are never looked up.
    pub indexes: Vec<Option<Locations>>,
    /// By table the next number of a file besides the first of each chunk, which has the chunk's.
    pub next_file_nos: Vec<AtomicU32>,
    /// Rows and bytes done.
    pub progress: Progress,
    /// Set to end all workers early.
    pub stop: Arc<AtomicBool>,
}

/// A piece of work done.
pub enum Done {
    /// A chunk was copied and validated.
    Copied(Box<CopiedChunk>),
    /// A leaf of this table has so many rows in the snapshot.
    Counted(usize, u64),
}

/// A copied and validated chunk. Only [`run_workers`] makes one.
pub struct CopiedChunk {
    /// What was copied.
    pub chunk: Chunk,
    /// Rows copied.
    pub rows: u64,
    /// Order-independent digest of the rows, equal for source and file.
    pub digest: RowDigest,
    /// The data files: none for an empty chunk, several for one of a partitioned lake table.
    pub files: Vec<NewFile>,
    /// Its keys, sorted.
    pub runs: Vec<PendingRun>,
}

/// Works off what `queue` gives out with `workers` threads; hands each result to `done`. Blocking.
///
/// # Errors
/// The first worker's error; the others stop, and what they have in hand is lost.
pub fn run_workers(
    run: &CopyRun,
    queue: &Queue,
    workers: usize,
    done: &(dyn Fn(Done) -> Result<()> + Sync),
) -> Result<()> {
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|_| {
                scope.spawn(|| {
                    let result = work(run, queue, &failed, done);
                    if result.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        let mut first = Ok(());
        for thread in threads {
            let result = thread
                .join()
                .unwrap_or_else(|_| Err(Error::failed("a copy worker died").next("report this")));
            if first.is_ok() {
                first = result;
            }
        }
        first
    })
}

fn work(
    run: &CopyRun,
    queue: &Queue,
    failed: &AtomicBool,
    done: &(dyn Fn(Done) -> Result<()> + Sync),
) -> Result<()> {
    let mut wire: Option<Wire> = None;
    while let Some(task) = queue.take() {
        let mut attempt = 1;
        let result = loop {
            if failed.load(Ordering::Relaxed) || run.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            match attempt_task(run, &mut wire, &task) {
                Ok(result) => break result,
                // Somebody waits to change the table until we let it go: no time for another try.
                Err(e) if sqlstate(&e) == Some("55P03") => return Err(e),
                Err(e) if e.is_transient() && attempt < ATTEMPTS => {
                    tracing::warn!(attempt, "{e}; copying the chunk again over a new connection");
                    wire = None;
                    std::thread::sleep(Duration::from_millis(200) * 2u32.pow(attempt));
                    attempt += 1;
                }
                Err(e) => return Err(e),
            }
        };
        done(result)?;
    }
    Ok(())
}

fn attempt_task(run: &CopyRun, wire: &mut Option<Wire>, task: &Task) -> Result<Done> {
    if wire.is_none() {
        *wire = Some(import(run)?);
    }
    let Some(wire) = wire else { return Err(Error::transient("no connection")) };
    match task {
        Task::Copy(chunk) => {
            let plan = run.plans.get(chunk.table).ok_or_else(|| Error::failed("no such table"))?;
            copy_chunk(run, wire, plan, chunk)
                .map(|copied| Done::Copied(Box::new(copied)))
                .map_err(|e| e.at(format!("{plan}, chunk {}", chunk.number)))
        }
        Task::Count(table, (schema, name)) => {
            let leaf = crate::source::catalog::sql_name(schema, name);
            let plan = run.plans.get(*table).ok_or_else(|| Error::failed("no such table"))?;
            let condition = plan.row_filter.as_ref().map(|filter| format!(" WHERE {filter}"));
            let rows = wire.simple_query(&format!(
                "SELECT pg_catalog.count(*) FROM ONLY {leaf}{}",
                condition.unwrap_or_default()
            ))?;
            let count = rows
                .first()
                .and_then(|row| row.first())
                .and_then(|value| value.as_deref()?.parse().ok())
                .ok_or_else(|| {
                    Error::failed(format!("{leaf}: the server did not say its count"))
                })?;
            Ok(Done::Counted(*table, count))
        }
    }
}

/// A connection inside the exported snapshot. It can be imported as long as one of the connections
/// that exported it lives.
fn import(run: &CopyRun) -> Result<Wire> {
    let mut gone = Error::transient("no snapshot was exported");
    for name in &run.snapshots {
        match inside(&run.source, name) {
            Err(e) if is_gone(&e) => gone = e,
            Err(e) => return Err(e),
            Ok(mut wire) => {
                let found = wire.simple_query("SELECT pg_catalog.pg_current_snapshot()::text")?;
                let found = found.into_iter().flatten().flatten().next();
                if run.shows.is_none() || found == run.shows {
                    return Ok(wire);
                }
                gone = Error::transient(format!("the snapshot {name} is another one now"))
                    .next("the copy goes on at a new one by itself");
            }
        }
    }
    Err(gone)
}

/// The snapshot's name is not known (22023, from 16 on 42704), or its exporter is gone (55000).
fn is_gone(error: &Error) -> bool {
    matches!(sqlstate(error), Some("22023" | "42704" | "55000"))
}

/// A new connection in a transaction that sees the exported snapshot `name`. Blocking.
///
/// # Errors
/// Transient, too, when the snapshot is gone: another boundary can be made.
pub fn inside(source: &ConnectOptions, name: &str) -> Result<Wire> {
    let mut wire = Wire::connect(source, SessionKind::Query)?;
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
        quote_literal(name)
    );
    match wire.simple_query(&sql) {
        Ok(_) => Ok(wire),
        Err(e) if is_gone(&e) => {
            Err(Error::transient(format!("the exported snapshot {name} is gone"))
                .because(e)
                .next("the copy goes on at a new one by itself"))
        }
        Err(e) => Err(e),
    }
}

fn copy_chunk(
    run: &CopyRun,
    wire: &mut Wire,
    plan: &TablePlan,
    chunk: &Chunk,
) -> Result<CopiedChunk> {
    failpoint::at("handoff.chunk.before")?;
    let mut sink = ChunkSink::new(run, plan, chunk)?;
    let mut bytes = 0;
    copy_rows(wire, &chunk.copy_sql(&columns(plan), plan.row_filter.as_deref()), &mut |row| {
        sink.rows.append_copy_row(row)?;
        // What the server sent stands for the memory of the batch: a sum over the builder's
        // columns would cost about as much as the row itself.
        bytes += row.len();
        if sink.rows.rows() == ROWS_PER_BATCH || bytes >= MAX_BATCH_BYTES {
            if run.stop.load(Ordering::Relaxed) {
                return Err(Error::failed("stopped"));
            }
            sink.flush()?;
            bytes = 0;
        }
        Ok(())
    })?;
    failpoint::at("handoff.chunk.read")?;
    let copied = sink.finish(chunk)?;
    failpoint::at("handoff.chunk.after")?;
    Ok(copied)
}

/// What a COPY of the plan's rows selects.
pub fn columns(plan: &TablePlan) -> String {
    let columns: Vec<String> = plan.columns.iter().map(|column| column.select_expr()).collect();
    columns.join(", ")
}

/// Hands every row of a `COPY … TO STDOUT (FORMAT binary)` to `with`.
///
/// # Errors
/// The server's, a torn stream, or that of `with`.
pub fn copy_rows(
    wire: &mut Wire,
    sql: &str,
    with: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut copy = wire.copy_out(sql)?;
    let mut begun = false;
    while let Some(mut message) = copy.next()? {
        if !begun {
            message = after_header(message)?;
            begun = true;
        }
        if !message.is_empty() && message != TRAILER {
            with(message)?;
        }
    }
    Ok(())
}

/// A batch of wide rows ends early, in bytes that the server sent.
pub const MAX_BATCH_BYTES: usize = 16 << 20;
const TRAILER: &[u8] = &[0xff, 0xff];
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";

/// What follows the header of COPY's binary format (signature, flags, extension).
fn after_header(message: &[u8]) -> Result<&[u8]> {
    let wrong = || Error::failed("COPY did not begin with its binary header");
    let rest = message.strip_prefix(SIGNATURE).ok_or_else(wrong)?;
    let (_, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
    rest.get(u32::from_be_bytes(*length) as usize..).ok_or_else(wrong)
}

/// Numbers of a chunk's files.
struct ChunkFiles<'a> {
    first: Option<FileNo>,
    next: Option<&'a AtomicU32>,
}

impl ChunkFiles<'_> {
    fn next(&mut self) -> Result<FileNo> {
        if let Some(number) = self.first.take() {
            return Ok(number);
        }
        let number = self.next.map(|next| next.fetch_add(1, Ordering::Relaxed));
        number.filter(|number| *number < FileNo::MAX).ok_or_else(crate::lake::used_up)
    }
}

/// Where the rows of a chunk go.
struct ChunkSink<'a> {
    run: &'a CopyRun,
    plan: &'a TablePlan,
    rows: RowsBuilder,
    writer: RowsWriter,
    numbers: ChunkFiles<'a>,
    keys: Option<(KeyEncoder, RunBuilder)>,
    digest: RowDigest,
    written: u64,
    bytes: u64,
}

impl<'a> ChunkSink<'a> {
    fn new(run: &'a CopyRun, plan: &'a TablePlan, chunk: &Chunk) -> Result<Self> {
        let index = run.indexes.get(chunk.table).and_then(Option::as_ref);
        let keys = KeyEncoder::new(plan)?.zip(index.map(Locations::run_builder));
        Ok(ChunkSink {
            run,
            plan,
            rows: plan.rows_builder(ROWS_PER_BATCH),
            writer: RowsWriter::new(
                &run.lake,
                &run.runtime,
                &plan.folder,
                &plan.table_columns(),
                file_options(plan),
            ),
            numbers: ChunkFiles {
                first: Some(chunk.number),
                next: run.next_file_nos.get(chunk.table),
            },
            keys,
            digest: RowDigest::default(),
            written: 0,
            bytes: 0,
        })
    }

    fn flush(&mut self) -> Result<()> {
        let batch = self.rows.finish_snapshot(self.run.base)?;
        if failpoint::wrong("lose-a-row") && batch.num_rows() > 1 {
            self.keep(&batch.slice(1, batch.num_rows() - 1))?;
        } else if failpoint::wrong("double-a-row") {
            self.keep(&batch)?;
            self.keep(&batch.slice(0, 1))?;
        } else {
            self.keep(&batch)?;
        }
        Ok(())
    }

    /// Digests, indexes and writes a batch.
    fn keep(&mut self, batch: &RecordBatch) -> Result<()> {
        self.digest.update(batch)?;
        if failpoint::wrong("write-another-row") {
            self.digest.rows += 1;
        }
        let numbers = &mut self.numbers;
        let places = self.writer.write(batch, &mut || numbers.next())?;
        if let Some((encoder, runs)) = &mut self.keys {
            let overflow_name = format!("{}overflow", self.plan.prefix);
            if !encoder.whole_row() {
                keys_not_null(batch, encoder.names(), &overflow_name)?;
            }
            let keys = encoder.encode_batch(batch, &overflow_name)?;
            for index in 0..keys.len() {
                let place =
                    places.get(index).ok_or_else(|| Error::failed("a row without place"))?;
                runs.push(keys.get(index), place)?;
            }
        }
        self.written += batch.num_rows() as u64;
        let bytes = self.writer.bytes_written();
        self.run.progress.add(batch.num_rows() as u64, bytes.saturating_sub(self.bytes));
        self.bytes = bytes;
        Ok(())
    }

    /// Closes the files, reads them back and compares.
    fn finish(mut self, chunk: &Chunk) -> Result<CopiedChunk> {
        if self.rows.rows() > 0 {
            self.flush()?;
        }
        let files: Vec<NewFile> = self.writer.finish()?.into_iter().map(|(_, file)| file).collect();
        let schema = self.rows.schema();
        let (lake, folder) = (&self.run.lake, &self.plan.folder);
        let mut read = RowDigest::default();
        for file in &files {
            read.merge(digest_file(lake, &self.run.runtime, folder, file, &schema)?);
        }
        if read != self.digest {
            return Err(Error::failed(format!(
                "what is read back differs from what was copied ({} rows against {})",
                read.rows, self.digest.rows
            ))
            .next("check the disk or object store; nothing was published"));
        }
        let runs = match self.keys.take() {
            Some((_, runs)) => runs.finish()?,
            None => Vec::new(),
        };
        Ok(CopiedChunk {
            chunk: chunk.clone(),
            rows: self.written,
            digest: self.digest,
            files,
            runs,
        })
    }
}

/// A key value is never null; one that overflows stands in the overflow map instead.
fn keys_not_null(batch: &RecordBatch, names: &[String], overflow_name: &str) -> Result<()> {
    for name in names {
        let Some(column) = batch.column_by_name(name) else { continue };
        if column.null_count() == 0 {
            continue;
        }
        let map = batch.column_by_name(overflow_name).and_then(|map| map.as_map_opt());
        let texts = overflow_text(map, name, batch.num_rows());
        if (0..batch.num_rows()).any(|row| column.is_null(row) && texts.is_null(row)) {
            return Err(Error::failed(format!("a row has no value in the key column {name:?}"))
                .next("the table's constraint does not hold: ALTER TABLE … ALTER COLUMN … SET NOT NULL tells which rows"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_may_share_a_message_with_the_first_row() {
        let mut message = SIGNATURE.to_vec();
        message.extend([0, 0, 0, 0, 0, 0, 0, 2, 9, 9]);
        message.extend([0, 1, 0, 0]);
        assert_eq!(after_header(&message).unwrap(), [0, 1, 0, 0]);
        assert!(after_header(b"PGCOPY").is_err());
        assert!(after_header(&message[..16]).is_err());
    }
}

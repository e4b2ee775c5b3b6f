//! Applications that write while the pipeline works, and count what they committed.
//!
//! Three of them, each with a transaction every few milliseconds. Together they do what a replica
//! must get right: inserts, updates, deletes, keys that change, wide values, updates that leave a
//! wide value as it was (which the stream then does not carry), rows written several times in one
//! transaction, and a table without a key. Two of them write flights: one those with even ids, one
//! those with odd ids, so that they don't wait for each other.

use std::ops::AddAssign;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::Transaction;

use super::connect;
use crate::error::{Error, Result};
use crate::observe::stop::StopSignal;
use crate::source::client::query_error;
use crate::source::options::ConnectOptions;

/// Between two transactions of one writer.
const PAUSE: Duration = Duration::from_millis(4);

/// What was committed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Transactions.
    pub transactions: u64,
    /// Rows inserted.
    pub inserted: u64,
    /// Rows updated, the two below among them.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Rows whose key changed.
    pub keys: u64,
    /// Rows that got a wide value.
    pub wide: u64,
}

impl AddAssign for Written {
    fn add_assign(&mut self, other: Written) {
        self.transactions += other.transactions;
        self.inserted += other.inserted;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.keys += other.keys;
        self.wide += other.wide;
    }
}

/// The running writers. Dropping stops them too.
pub struct Writers {
    stop: StopSignal,
    total: Arc<Mutex<Written>>,
    tasks: Vec<JoinHandle<Result<()>>>,
}

#[derive(Clone, Copy)]
enum Job {
    Operations,
    Remarks,
    Weather,
}

impl Writers {
    /// Starts them. `flights` is the number of flights there are.
    ///
    /// # Errors
    /// The server can't be reached.
    pub async fn start(source: &ConnectOptions, flights: u64) -> Result<Writers> {
        let mut writers =
            Writers { stop: StopSignal::manual(), total: Arc::default(), tasks: Vec::new() };
        let jobs = [(Job::Operations, 1), (Job::Remarks, 2), (Job::Weather, 3)];
        for (job, seed) in jobs {
            let mut client = connect(source).await?;
            let (stop, total) = (writers.stop.clone(), writers.total.clone());
            let mut random = Random(seed);
            writers.tasks.push(tokio::spawn(async move {
                let failed = |e| query_error("a writer of the demo", e);
                let mut turn = 0;
                while !stop.is_set() {
                    let transaction = client.transaction().await.map_err(failed)?;
                    let id = random.below(flights).cast_signed();
                    let written = job.write(&transaction, id, turn).await.map_err(failed)?;
                    transaction.commit().await.map_err(failed)?;
                    *total.lock().unwrap_or_else(PoisonError::into_inner) += written;
                    turn += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(())
            }));
        }
        Ok(writers)
    }

    /// What they committed so far.
    pub fn written(&self) -> Written {
        *self.total.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of them still write.
    pub fn are_writing(&self) -> bool {
        self.tasks.iter().all(|task| !task.is_finished())
    }

    /// Lets each finish its transaction, and gives what they committed.
    ///
    /// # Errors
    /// One had failed.
    pub async fn stop(mut self) -> Result<Written> {
        self.stop.request();
        for task in std::mem::take(&mut self.tasks) {
            task.await.map_err(|e| Error::failed("a writer of the demo died").because(e))??;
        }
        Ok(self.written())
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.request();
    }
}

type Did = Result<Written, tokio_postgres::Error>;

impl Job {
    async fn write(self, t: &Transaction<'_>, id: i64, turn: u64) -> Did {
        let mut written = match self {
            Job::Operations => operations(t, id, turn).await?,
            Job::Remarks => remarks(t, id, turn).await?,
            Job::Weather => weather(t, turn).await?,
        };
        written.transactions = 1;
        Ok(written)
    }
}

/// Delays grow, a flight is added and corrected at once, now and then some are cancelled.
async fn operations(t: &Transaction<'_>, id: i64, turn: u64) -> Did {
    const DELAY: &str = "UPDATE flights SET dep_delay = coalesce(dep_delay, 0) + 15 \
        WHERE id BETWEEN $1::bigint AND $1 + 39 AND id % 2 = 0";
    const ADD: &str = "INSERT INTO flights (year, month, day, dep_delay, carrier, flight, tailnum, \
        origin, dest, distance, time_hour) SELECT year, month, day, 0, carrier, flight, tailnum, \
        origin, dest, distance, time_hour FROM flights WHERE id BETWEEN $1::bigint AND $1 + 4";
    // In a subquery: for the volatile function itself there would be no index scan.
    const CORRECT: &str = "UPDATE flights SET dep_delay = dep_delay + 7 \
        WHERE id = (SELECT currval(pg_get_serial_sequence('public.flights', 'id')))";
    const CANCEL: &str =
        "DELETE FROM flights WHERE id BETWEEN $1::bigint + 40 AND $1 + 45 AND id % 2 = 0";
    let mut written = Written { updated: t.execute(DELAY, &[&id]).await?, ..Written::default() };
    if turn.is_multiple_of(2) {
        written.inserted = t.execute(ADD, &[&id]).await?;
        if written.inserted > 0 {
            written.updated += t.execute(CORRECT, &[]).await?;
        }
    }
    if turn.is_multiple_of(5) {
        written.deleted = t.execute(CANCEL, &[&id]).await?;
    }
    Ok(written)
}

/// Wide remarks, updates of rows that have them, and flights that get a new key.
async fn remarks(t: &Transaction<'_>, id: i64, turn: u64) -> Did {
    const WIDE: &str = "UPDATE flights SET remarks = repeat(md5($1::bigint::text), 180) \
        WHERE id BETWEEN $1::bigint AND $1 + 3 AND id % 2 = 1";
    // The remarks written at the start stand at every 500th flight.
    const UNCHANGED: &str = "UPDATE flights SET arr_delay = coalesce(arr_delay, 0) + 1 \
        WHERE id BETWEEN $1::bigint AND $1 + 999 AND id % 2 = 1 AND remarks IS NOT NULL";
    const KEY: &str = "UPDATE flights SET id = DEFAULT \
        WHERE id BETWEEN $1::bigint + 10 AND $1 + 11 AND id % 2 = 1";
    let mut written = Written { wide: t.execute(WIDE, &[&id]).await?, ..Written::default() };
    written.updated = written.wide + t.execute(UNCHANGED, &[&id]).await?;
    if turn.is_multiple_of(3) {
        written.keys = t.execute(KEY, &[&id]).await?;
        written.updated += written.keys;
    }
    Ok(written)
}

/// The table without a key; and the small ones.
async fn weather(t: &Transaction<'_>, turn: u64) -> Did {
    let mut written = Written::default();
    match turn % 8 {
        0 => {
            const CORRECT: &str = "UPDATE weather SET temp = temp + 0.5, precip = precip + 0.01 \
                WHERE origin = 'JFK' AND month = 1 + $1::int % 12 AND day = 1 + $1 % 28";
            const FORGET: &str = "DELETE FROM weather WHERE ctid IN \
                (SELECT ctid FROM weather WHERE hour = $1::int % 24 LIMIT 1)";
            let turn = (turn / 8) as i32;
            written.updated = t.execute(CORRECT, &[&turn]).await?;
            written.deleted = t.execute(FORGET, &[&turn]).await?;
        }
        1 => {
            const MORE: &str = "INSERT INTO weather (origin, year, month, day, hour, temp, \
                time_hour) SELECT 'EWR', 2014, 1, 1, n, 30 + n, now() FROM generate_series(0, 2) n";
            written.inserted = t.execute(MORE, &[]).await?;
        }
        2 => {
            const NAME: &str = "UPDATE airlines SET name = split_part(name, ' (', 1) || ' (' || \
                $1::bigint || ')' WHERE carrier = (SELECT min(carrier) FROM airlines)";
            written.updated = t.execute(NAME, &[&turn.cast_signed()]).await?;
        }
        _ => {
            const PLANE: &str = "INSERT INTO planes (tailnum, year, model) VALUES ('T' || \
                $1::bigint, 2014, 'new')";
            const RETIRE: &str =
                "DELETE FROM planes WHERE tailnum = 'T' || ($1::bigint - 20) || 'X'";
            const REPAINT: &str = "UPDATE planes SET tailnum = tailnum || 'X' \
                WHERE tailnum = 'T' || ($1::bigint - 10)";
            let turn = turn.cast_signed();
            written.inserted = t.execute(PLANE, &[&turn]).await?;
            written.deleted = t.execute(RETIRE, &[&turn]).await?;
            written.keys = t.execute(REPAINT, &[&turn]).await?;
            written.updated = written.keys;
        }
    }
    Ok(written)
}

/// Numbers that are the same in every demo (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

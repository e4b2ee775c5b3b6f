//! The load: what the writers do, as a function of the seed alone.
//!
//! One writer repeats the seven races on a few keys, as a fixed schedule: insert, update twice,
//! delete, delete and make again, change a key, swap two keys, update beside a value out of line.
//! Two do random transactions on tables of every shape, and one changes the tables themselves. All of
//! them stop between two transactions while somebody holds the gate: then the log's end is a position
//! without open ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::database::Sql;
use crate::support::random::Random;

/// The tables, with their key (none: compared as a multiset) and the columns that are compared, as
/// SQL that PostgreSQL and DuckDB understand and print alike; `*` for those that the source has.
pub const TABLES: [Table; 10] = [
    Table { name: "races", key: &["id"], columns: "id, n, md5(v)" },
    Table { name: "accounts", key: &["id"], columns: "id, n, v, md5(pad)" },
    Table { name: "lines", key: &["ord", "line"], columns: "ord, line, qty, note" },
    Table { name: "logs", key: &[], columns: "id, t" },
    Table { name: "events", key: &[], columns: "id, kind" },
    Table { name: "docs", key: &["id"], columns: "id, n, md5(blob)" },
    Table { name: "docs_full", key: &["id"], columns: "id, n, md5(blob)" },
    Table { name: "parted", key: &["id", "region"], columns: "id, region, v" },
    Table { name: "changing", key: &["id"], columns: "*" },
    Table { name: "growing", key: &["id", "part"], columns: "*" },
];

pub struct Table {
    pub name: &'static str,
    pub key: &'static [&'static str],
    pub columns: &'static str,
}

/// Made once per server.
pub const SETUP: &str = "
    CREATE TABLE races(id int PRIMARY KEY, n int, v text);
    ALTER TABLE races ALTER v SET STORAGE EXTERNAL;
    CREATE TABLE accounts(id int PRIMARY KEY, n int NOT NULL, v text, pad text);
    ALTER TABLE accounts ALTER pad SET STORAGE PLAIN;
    INSERT INTO accounts SELECT i, 0, 'v' || i,
        (SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 40) j)
        FROM generate_series(1, 3000) i;
    CREATE TABLE lines(ord int, line int, qty numeric(10,2), note text, PRIMARY KEY (ord, line));
    INSERT INTO lines SELECT i / 5, i % 5, i / 3.0, 'n' FROM generate_series(1, 2000) i;
    CREATE TABLE logs(id int, t text);
    ALTER TABLE logs REPLICA IDENTITY FULL;
    INSERT INTO logs SELECT i % 200, 'same' FROM generate_series(1, 1000) i;
    CREATE TABLE events(id int, kind text);
    ALTER TABLE events REPLICA IDENTITY NOTHING;
    INSERT INTO events SELECT i, 'first' FROM generate_series(1, 1000) i;
    CREATE TABLE docs(id int PRIMARY KEY, n int NOT NULL, blob text);
    ALTER TABLE docs ALTER blob SET STORAGE EXTERNAL;
    CREATE TABLE docs_full(id int PRIMARY KEY, n int NOT NULL, blob text);
    ALTER TABLE docs_full ALTER blob SET STORAGE EXTERNAL;
    ALTER TABLE docs_full REPLICA IDENTITY FULL;
    INSERT INTO docs SELECT i, 0, repeat(md5(i::text), 500) FROM generate_series(1, 60) i;
    INSERT INTO docs_full SELECT * FROM docs;
    CREATE TABLE parted(id int, region int, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE parted_0 PARTITION OF parted FOR VALUES IN (0);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
    CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
    INSERT INTO parted SELECT i, i % 3, 'v' FROM generate_series(1, 900) i;
    CREATE TABLE changing(id int PRIMARY KEY, n int, v text);
    INSERT INTO changing SELECT i, 0, 'v' || i FROM generate_series(1, 400) i;
    CREATE TABLE growing(id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
    CREATE TABLE growing_0 PARTITION OF growing FOR VALUES IN (0);
    INSERT INTO growing SELECT i, 0, 'v' FROM generate_series(1, 200) i;
    ANALYZE";

/// What the writers did.
#[derive(Default)]
pub struct Done {
    pub committed: AtomicU64,
    /// Refused by the server: two writers wanted the same key, or it was down.
    pub refused: AtomicU64,
}

/// The writers, until dropped.
pub struct Load {
    gate: Arc<RwLock<()>>,
    stop: Arc<AtomicBool>,
    calm: Arc<AtomicBool>,
    pub done: Arc<Done>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the writers.
    pub fn start(url: &str, seed: u64) -> Load {
        let mut load = Load {
            gate: Arc::default(),
            stop: Arc::default(),
            calm: Arc::default(),
            done: Arc::default(),
            writers: Vec::new(),
        };
        load.writer(url, Box::new(Races::default()));
        for number in 1..=2 {
            load.writer(url, Box::new(Mixed::new(Random::new(seed).part(number), number)));
        }
        load.writer(url, Box::new(Changes::new(Random::new(seed).part(3), load.calm.clone())));
        load
    }

    /// Runs `with` while no transaction is open.
    pub fn held<T>(&self, with: impl FnOnce() -> T) -> T {
        let _gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        with()
    }

    /// Runs `with` while rows change and tables do not.
    pub fn calm<T>(&self, with: impl FnOnce() -> T) -> T {
        self.calm.store(true, Ordering::Relaxed);
        let done = with();
        self.calm.store(false, Ordering::Relaxed);
        done
    }

    fn writer(&mut self, url: &str, mut transactions: Box<dyn Transactions>) {
        let (gate, stop, done) = (self.gate.clone(), self.stop.clone(), self.done.clone());
        let url = url.to_owned();
        self.writers.push(std::thread::spawn(move || {
            let mut sql: Option<Sql> = None;
            while !stop.load(Ordering::Relaxed) {
                let transaction = transactions.next();
                let took = {
                    let _gate = gate.read().unwrap_or_else(PoisonError::into_inner);
                    let began = Instant::now();
                    let answer = match &mut sql {
                        Some(sql) => sql.attempt(&transaction),
                        None => Err("not connected".to_owned()),
                    };
                    let count = match &answer {
                        Ok(_) => &done.committed,
                        Err(_) => &done.refused,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    if answer.is_err() {
                        // An error leaves the block open; a server that is down, the connection.
                        let alive = sql.as_mut().is_some_and(|sql| sql.attempt("ROLLBACK").is_ok());
                        if !alive {
                            sql = Sql::attempt_connect(&url).ok();
                            if let Some(sql) = &mut sql {
                                let _ = sql.attempt("SET statement_timeout = '60s'");
                            }
                        }
                    }
                    began.elapsed()
                };
                // The load has a rate, which a busy machine lowers.
                let pause = Duration::from_millis(transactions.pause());
                std::thread::sleep(pause.max(took * 3));
            }
        }));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            let _ = writer.join();
        }
    }
}

trait Transactions: Send {
    fn next(&mut self) -> String;
    /// Milliseconds before the next one.
    fn pause(&mut self) -> u64;
}

/// The fixed schedule.
#[derive(Default)]
struct Races {
    step: u64,
}

impl Transactions for Races {
    fn next(&mut self) -> String {
        let round = self.step / 9;
        let (a, b) = (round % 25 * 2 + 1, round % 25 * 2 + 2);
        let step = self.step % 9;
        self.step += 1;
        match step {
            0 => format!(
                "INSERT INTO races VALUES ({a}, 0, repeat('a', 4000)), ({b}, 0, repeat('b', 4000)) \
                 ON CONFLICT DO NOTHING"
            ),
            1 => format!(
                "BEGIN; UPDATE races SET n = -1 WHERE id = {a}; UPDATE races SET n = {round} WHERE id = {a}; COMMIT"
            ),
            2 => format!(
                "UPDATE races SET n = n + 1 WHERE id = {b}; UPDATE races SET n = n + 1 WHERE id = {b}"
            ),
            3 => format!(
                "BEGIN; DELETE FROM races WHERE id = {a}; \
                 INSERT INTO races VALUES ({a}, {round}, repeat('c', 4000)); COMMIT"
            ),
            4 => format!(
                "DELETE FROM races WHERE id = {b} + 1000; UPDATE races SET id = id + 1000 WHERE id = {b}"
            ),
            5 => format!(
                "INSERT INTO races VALUES ({b}, {round}, repeat('d', 4000)) ON CONFLICT DO NOTHING"
            ),
            6 => format!(
                "BEGIN; UPDATE races SET id = -1 WHERE id = {a}; UPDATE races SET id = {a} WHERE id = {b}; \
                 UPDATE races SET id = {b} WHERE id = -1; COMMIT"
            ),
            7 => format!(
                "BEGIN; INSERT INTO races VALUES ({b} + 2000, 1, repeat('e', 4000)) ON CONFLICT DO NOTHING; \
                 UPDATE races SET n = n + 1 WHERE id IN ({a}, {b} + 2000); COMMIT"
            ),
            _ => format!("DELETE FROM races WHERE id IN ({a} + 1000, {b} + 2000)"),
        }
    }

    fn pause(&mut self) -> u64 {
        12
    }
}

/// Random transactions.
struct Mixed {
    random: Random,
    /// Keys of its own, so that not everything collides with the other writer.
    next_id: u64,
    since_truncate: u32,
}

impl Mixed {
    fn new(random: Random, number: u64) -> Mixed {
        Mixed { random, next_id: 10_000_000 * number, since_truncate: 0 }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// One statement or a few, without BEGIN and COMMIT.
    fn statements(&mut self) -> String {
        let r = &mut self.random;
        let (k, m) = (r.below(3000) + 1, r.below(97));
        match r.below(22) {
            0 => format!("UPDATE accounts SET n = n + 1 WHERE id % 97 = {m}"),
            1 => format!(
                "UPDATE accounts SET v = 'w' || n, n = n + 1 WHERE id BETWEEN {k} AND {k} + 20"
            ),
            2 => {
                let id = self.id();
                format!("INSERT INTO accounts VALUES ({id}, 0, 'new', repeat('q', 1000))")
            }
            3 => format!(
                "DELETE FROM accounts WHERE id = {k} OR (id > 10000 AND id % 7 = {})",
                m % 7
            ),
            4 => format!(
                "DELETE FROM accounts WHERE id = {k}; INSERT INTO accounts VALUES ({k}, {m}, 'again', repeat('r', 1500))"
            ),
            5 => format!("UPDATE accounts SET id = -id WHERE id = {k}"),
            6 => format!(
                "UPDATE accounts SET id = -9999 WHERE id = {k}; UPDATE accounts SET id = {k} WHERE id = {k} + 1; \
                 UPDATE accounts SET id = {k} + 1 WHERE id = -9999"
            ),
            7 => {
                let ord = self.id();
                format!(
                    "INSERT INTO lines SELECT {ord}, i, i / 7.0, NULL FROM generate_series(1, {}) i",
                    m % 9 + 1
                )
            }
            8 => format!("UPDATE lines SET qty = qty + 0.01, note = 'u' WHERE ord % 97 = {m}"),
            9 => format!("DELETE FROM lines WHERE ord > 10000 AND ord % 5 = {}", m % 5),
            10 => format!("UPDATE lines SET line = line + 100 WHERE ord = {} AND line < 3", k / 8),
            11 => format!("INSERT INTO logs VALUES ({m}, 'same'), ({m}, 'same'), (NULL, 't{m}')"),
            12 => format!(
                "DELETE FROM logs WHERE ctid = (SELECT min(ctid) FROM logs WHERE id = {m}); \
                           DELETE FROM logs WHERE id IS NULL AND t = 't{m}'"
            ),
            13 => format!("UPDATE logs SET t = 't' || {m} WHERE id = {m}"),
            14 => format!(
                "INSERT INTO events SELECT {k}, 'k{m}' FROM generate_series(1, {})",
                m % 20 + 1
            ),
            15 => format!(
                "UPDATE docs SET n = n + 1 WHERE id % 10 = {0}; UPDATE docs_full SET n = n + 1 WHERE id % 10 = {0}",
                m % 10
            ),
            16 => {
                let id = self.id();
                format!(
                    "INSERT INTO docs VALUES ({id}, 0, repeat('{m}', 5000)); UPDATE docs SET n = 1 WHERE id = {id}; \
                     INSERT INTO docs_full VALUES ({id}, 0, repeat('{m}', 5000)); UPDATE docs_full SET n = 1 WHERE id = {id}"
                )
            }
            17 => format!(
                "UPDATE docs SET blob = repeat('n{m}', 3000) WHERE id = {0}; DELETE FROM docs_full WHERE id = {0} OR id > 1000 AND id % 3 = 0; \
                 DELETE FROM docs WHERE id > 1000 AND id % 3 = 0",
                m % 60 + 1
            ),
            18 => format!("UPDATE parted SET region = (region + 1) % 3 WHERE id % 50 = {}", m % 50),
            19 => {
                let id = self.id();
                format!(
                    "INSERT INTO parted VALUES ({id}, {}, 'new'); DELETE FROM parted WHERE id = {k} OR id > 10000 AND id % 4 = {}",
                    m % 3,
                    m % 4
                )
            }
            20 => format!("UPDATE parted SET v = 'v{m}' WHERE id % 40 = {}", m % 40),
            _ => format!("UPDATE accounts SET pad = repeat('s', {}) WHERE id % 301 = {m}", m + 400),
        }
    }

    /// Thousands of rows at once.
    fn large(&mut self) -> String {
        let id = self.id();
        self.next_id += 4000;
        let rows = 1000 + self.random.below(2500);
        format!(
            "BEGIN; INSERT INTO accounts SELECT {id} + i, i, 'large', NULL FROM generate_series(1, {rows}) i; \
             UPDATE accounts SET n = n + 1 WHERE id > {id} AND id % 2 = 0; \
             INSERT INTO lines SELECT {id} + i, 1, 0, 'large' FROM generate_series(1, {rows}) i; COMMIT; \
             BEGIN; DELETE FROM accounts WHERE id > 10000 AND n % 3 > 0; DELETE FROM lines WHERE ord > 10000 AND ord % 3 > 0; COMMIT"
        )
    }

    fn truncate(&mut self) -> String {
        let id = self.id();
        match self.random.below(4) {
            0 => format!("BEGIN; INSERT INTO logs VALUES ({id}, 'gone'); TRUNCATE logs; INSERT INTO logs SELECT i % 50, 'same' FROM generate_series(1, 300) i; COMMIT"),
            1 => format!("BEGIN; INSERT INTO events VALUES ({id}, 'gone'); TRUNCATE events; INSERT INTO events VALUES ({id}, 'stays'); COMMIT"),
            2 => format!("BEGIN; TRUNCATE docs, docs_full; INSERT INTO docs SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(1, 60) i; \
                          INSERT INTO docs_full SELECT * FROM docs WHERE id <> {}; COMMIT", id % 60),
            _ => "BEGIN; TRUNCATE parted; INSERT INTO parted SELECT i, i % 3, 'v' FROM generate_series(1, 900) i; COMMIT".to_owned(),
        }
    }
}

impl Transactions for Mixed {
    fn next(&mut self) -> String {
        self.since_truncate += 1;
        let kind = self.random.below(100);
        if self.since_truncate > 400 {
            self.since_truncate = 0;
            return self.truncate();
        }
        let one = self.statements();
        match kind {
            0..=1 => self.large(),
            2..=9 => format!(
                "BEGIN; {one}; SAVEPOINT a; {}; SAVEPOINT b; {}; ROLLBACK TO a; {}; COMMIT",
                self.statements(),
                self.statements(),
                self.statements()
            ),
            10..=16 => format!(
                "BEGIN; SAVEPOINT a; {one}; RELEASE a; SAVEPOINT b; {}; RELEASE b; {}; COMMIT",
                self.statements(),
                self.statements()
            ),
            17..=20 => format!("BEGIN; {one}; {}; ROLLBACK", self.statements()),
            21..=40 => {
                format!("BEGIN; {one}; {}; {}; COMMIT", self.statements(), self.statements())
            }
            _ => one,
        }
    }

    fn pause(&mut self) -> u64 {
        5 + self.random.below(25)
    }
}

/// Writes into two tables and changes what they are: columns that come, go, are renamed or get
/// another type, other keys and identities, rewrites, the table made anew; partitions that come with
/// rows in them and go. Now and then within a transaction that also writes.
struct Changes {
    random: Random,
    step: u64,
    calm: Arc<AtomicBool>,
}

/// Between two changes, so that the stream has versions between them.
const WRITES_PER_CHANGE: u64 = 12;

impl Changes {
    fn new(random: Random, calm: Arc<AtomicBool>) -> Changes {
        Changes { random, step: 0, calm }
    }

    fn write(&mut self) -> String {
        let r = &mut self.random;
        let (k, m, s) = (r.below(400) + 1, r.below(23), self.step);
        match r.below(7) {
            0 => format!("UPDATE changing SET n = {s} WHERE id % 23 = {m}"),
            1 => format!(
                "INSERT INTO changing(id, n, v) VALUES ({k}, {s}, 'i') ON CONFLICT (id) DO UPDATE SET v = 'c{m}'"
            ),
            2 => format!("DELETE FROM changing WHERE id IN ({k}, {k} + 1)"),
            3 => format!(
                "UPDATE changing SET id = id + 1000 WHERE id = {k} AND NOT EXISTS (SELECT FROM changing WHERE id = {k} + 1000)"
            ),
            4 => format!("DELETE FROM changing WHERE id > 1000 AND id % 3 = {}", m % 3),
            5 => format!("UPDATE growing SET v = 'u{s}' WHERE id % 23 = {m}"),
            _ => format!(
                "INSERT INTO growing VALUES ({k}, 0, 'i{s}') ON CONFLICT DO NOTHING; DELETE FROM growing WHERE id % 50 = {m}"
            ),
        }
    }

    fn change(&mut self) -> String {
        let r = &mut self.random;
        let (x, y, p) = (r.below(4), r.below(4), r.below(5) + 1);
        let write = self.write();
        match self.random.below(20) {
            0 | 1 => format!("ALTER TABLE changing ADD COLUMN IF NOT EXISTS x{x} int"),
            2 => format!("ALTER TABLE changing ADD COLUMN IF NOT EXISTS x{x} text DEFAULT 'd{y}'"),
            3 | 4 => format!("ALTER TABLE changing DROP COLUMN IF EXISTS x{x}"),
            5 => format!(
                "ALTER TABLE changing DROP COLUMN IF EXISTS x{x}, ADD COLUMN x{x} text; UPDATE changing SET x{x} = 't' WHERE id < 20"
            ),
            6 => format!("ALTER TABLE changing RENAME COLUMN x{x} TO x{y}"),
            7 => "ALTER TABLE changing ALTER COLUMN n TYPE bigint".to_owned(),
            8 => "ALTER TABLE changing ALTER COLUMN n TYPE int".to_owned(),
            9 => "VACUUM FULL changing".to_owned(),
            10 => "TRUNCATE changing; INSERT INTO changing(id, n, v) SELECT i, 1, 't' FROM generate_series(1, 300) i".to_owned(),
            11 => "BEGIN; DROP TABLE changing; CREATE TABLE changing(id int PRIMARY KEY, n int, v text, x0 text); \
                   INSERT INTO changing SELECT i, 2, 'made anew', 'x' FROM generate_series(1, 350) i; COMMIT"
                .to_owned(),
            12 => "ALTER TABLE changing REPLICA IDENTITY FULL".to_owned(),
            13 => "ALTER TABLE changing REPLICA IDENTITY DEFAULT".to_owned(),
            14 => format!(
                "BEGIN; {write}; ALTER TABLE changing ADD COLUMN IF NOT EXISTS x{x} int; \
                 UPDATE changing SET x{x} = 1 WHERE id < 30; COMMIT"
            ),
            15 => format!("BEGIN; {write}; ALTER TABLE changing DROP COLUMN IF EXISTS x{x}; ROLLBACK"),
            16 => format!(
                "BEGIN; CREATE TABLE IF NOT EXISTS growing_{p} (LIKE growing INCLUDING ALL); \
                 INSERT INTO growing_{p} SELECT i, {p}, 'attached' FROM generate_series(1, 100) i; \
                 ALTER TABLE growing ATTACH PARTITION growing_{p} FOR VALUES IN ({p}); COMMIT"
            ),
            17 => format!("CREATE TABLE growing_{p} PARTITION OF growing FOR VALUES IN ({p})"),
            18 => format!("DROP TABLE IF EXISTS growing_{p}"),
            _ => "ALTER TABLE changing DROP CONSTRAINT changing_pkey, ADD PRIMARY KEY (id)".to_owned(),
        }
    }
}

impl Transactions for Changes {
    fn next(&mut self) -> String {
        self.step += 1;
        let calm = self.calm.load(Ordering::Relaxed);
        if !calm && self.step.is_multiple_of(WRITES_PER_CHANGE) {
            self.change()
        } else {
            self.write()
        }
    }

    fn pause(&mut self) -> u64 {
        40 + self.random.below(80)
    }
}

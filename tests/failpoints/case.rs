//! One case: a phase, a point in it, and what happens there; then a clean run, and the judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::support::audit::{self, Audited};
use crate::support::database::{Sql, TestDb};
use crate::support::judge::{self, Engine};
use crate::support::pipeline::Pipeline;
use crate::support::program::{Finished, Running, Tidegate};
use crate::support::servers::usual;
use crate::support::{PATIENCE, wait_until};
use tidegate::position::Lsn;

/// What the program is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// From the start to the record that everything is copied.
    Snapshot,
    /// From there to the first fence.
    Publish,
    /// The stream after that, in the same process.
    Drain,
    /// A process that finds a live pipeline.
    Live,
    /// A process that finds a snapshot recorded and half published.
    Continue,
    /// A new generation of a live pipeline, up to its fence.
    Again,
    /// From the start into the stream, with the changes spooled while the tables are copied.
    Spool,
    /// A process that finds a snapshot half copied, and rows with values out of line that moved
    /// since from a range that is not copied into one that is.
    Resume,
}

pub const PHASES: [Phase; 8] = [
    Phase::Snapshot,
    Phase::Publish,
    Phase::Drain,
    Phase::Live,
    Phase::Continue,
    Phase::Again,
    Phase::Spool,
    Phase::Resume,
];

impl Phase {
    /// The point after which its passages are counted, where it is not the process's first.
    fn begins_after(self) -> Option<&'static str> {
        match self {
            Phase::Publish => Some("handoff.recorded"),
            Phase::Drain => Some("handoff.live.after"),
            _ => None,
        }
    }

    /// The last point of it.
    fn ends_with(self) -> Option<&'static str> {
        match self {
            Phase::Snapshot => Some("handoff.recorded"),
            Phase::Publish | Phase::Again => Some("handoff.live.after"),
            _ => None,
        }
    }

    /// The part of a run's points that is of this phase.
    pub fn part_of(self, trace: &[String]) -> Vec<String> {
        let place = |point: &str| trace.iter().position(|name| name == point).map(|i| i + 1);
        let from = self.begins_after().map_or(Some(0), place).unwrap_or(trace.len());
        let to = self.ends_with().and_then(place).unwrap_or(trace.len());
        trace.get(from..to.max(from)).unwrap_or_default().to_vec()
    }
}

/// What happens at the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The process is gone.
    Crash,
    /// It fails once.
    Error,
    /// It fails whenever it is passed.
    ErrorForever,
    /// It takes long.
    Delay,
}

pub const ACTIONS: [Action; 4] =
    [Action::Crash, Action::Error, Action::ErrorForever, Action::Delay];

impl Action {
    /// The action that `Debug` prints so.
    pub fn named(name: &str) -> Option<Action> {
        ACTIONS.into_iter().find(|action| format!("{action:?}") == name)
    }
}

/// A case. `passage` counts from 1, in the phase.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub phase: Phase,
    pub point: String,
    pub passage: u32,
    pub action: Action,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {} {:?}", self.phase, self.point, self.passage, self.action)
    }
}

impl Case {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Case> {
        let mut words = text.split_whitespace();
        let (phase, point) = (words.next()?, words.next()?);
        let (passage, action) = (words.next()?.parse().ok()?, words.next()?);
        Some(Case {
            phase: PHASES.into_iter().find(|p| format!("{p:?}") == phase)?,
            point: point.to_owned(),
            passage,
            action: Action::named(action)?,
        })
    }

    fn failpoint(&self) -> String {
        let after = self.phase.begins_after().map_or(String::new(), |point| format!("{point}>"));
        let passage = self.passage;
        match self.action {
            Action::Crash => format!("{after}{passage}*crash"),
            Action::Error => format!("{after}{passage}*error"),
            Action::ErrorForever => format!("{after}error"),
            Action::Delay => format!("{after}{passage}*delay:300"),
        }
    }
}

/// The database that every case starts from: a table in two chunks, one with values out of line,
/// one without a key, an empty one with a key of two columns, and one in two chunks with values out
/// of line and with room in its first pages only.
pub const TEMPLATE: &str = "
    CREATE TABLE k(id int PRIMARY KEY, n int NOT NULL, pad text);
    ALTER TABLE k ALTER pad SET STORAGE PLAIN;
    INSERT INTO k SELECT i, 0, repeat('x', 7000) FROM generate_series(1, 150) i;
    CREATE TABLE d(id int PRIMARY KEY, n int NOT NULL, blob text);
    ALTER TABLE d ALTER blob SET STORAGE EXTERNAL;
    INSERT INTO d SELECT i, 0, repeat(md5(i::text), 100) FROM generate_series(1, 30) i;
    CREATE TABLE f(id int, t text);
    ALTER TABLE f REPLICA IDENTITY FULL;
    INSERT INTO f SELECT i / 2, 'same' FROM generate_series(1, 20) i;
    CREATE TABLE e(a int, b int, v text, PRIMARY KEY (a, b));
    CREATE TABLE t(id int PRIMARY KEY, n int NOT NULL, blob text, pad text);
    ALTER TABLE t ALTER blob SET STORAGE EXTERNAL, ALTER pad SET STORAGE PLAIN;
    INSERT INTO t SELECT i, 0, repeat(md5(i::text), 100), repeat('x', 3700) FROM generate_series(1, 320) i;
    DELETE FROM t WHERE id <= 40;
    ANALYZE";

/// What can't be done in the transaction above.
pub const VACUUM: &str = "VACUUM (INDEX_CLEANUP ON) t";

/// Rows of the last pages of `t`, which an update moves into the first ones.
const MOVE: &str = "UPDATE t SET n = 7 WHERE id IN (316, 318, 320)";

/// The tables, their keys, and what is compared of them.
const TABLES: [(&str, &[&str], &str); 5] = [
    ("k", &["id"], "id, n, md5(pad)"),
    ("d", &["id"], "id, n, md5(blob)"),
    ("f", &[], "id, t"),
    ("e", &["a", "b"], "a, b, v"),
    ("t", &["id"], "id, n, md5(blob), md5(pad)"),
];

/// The `i`-th transaction of the load. A TRUNCATE makes a snapshot that is being copied begin again;
/// once a second is more than one survives.
fn transaction(i: u32, truncates: bool) -> String {
    let id = i % 150 + 1;
    match i % 12 {
        0 => format!("INSERT INTO k VALUES ({}, 0, 'new')", 1000 + i),
        1 => format!("UPDATE k SET n = n + 1 WHERE id % 10 = {}", i % 10),
        2 => format!(
            "BEGIN; UPDATE k SET n = -1 WHERE id = {id}; UPDATE k SET n = {i} WHERE id = {id}; COMMIT"
        ),
        3 => format!("DELETE FROM k WHERE id = {id}"),
        4 => format!(
            "BEGIN; DELETE FROM k WHERE id = {id}; INSERT INTO k VALUES ({id}, {i}, 'again'); COMMIT"
        ),
        5 => format!("UPDATE k SET id = id + {} WHERE id = {id}", 2000 + i),
        6 => "BEGIN; UPDATE k SET id = -1 WHERE id = 7; UPDATE k SET id = 7 WHERE id = 140; \
              UPDATE k SET id = 140 WHERE id = -1; COMMIT"
            .to_owned(),
        7 => format!("UPDATE d SET n = n + 1 WHERE id % 3 = {}", i % 3),
        8 => format!("UPDATE f SET t = 't{i}' WHERE ctid = (SELECT min(ctid) FROM f)"),
        9 => format!("DELETE FROM f WHERE id = {}; INSERT INTO f VALUES ({i}, NULL)", i % 9),
        10 => format!(
            "INSERT INTO e SELECT {i}, b, 'v' FROM generate_series(1, 5) b; \
             BEGIN; INSERT INTO d VALUES ({}, 0, repeat('y', 2500)); SAVEPOINT s; \
             DELETE FROM d; ROLLBACK TO s; UPDATE d SET n = 5 WHERE id = {}; COMMIT",
            1000 + i,
            1000 + i
        ),
        _ if truncates => format!(
            "BEGIN; INSERT INTO e VALUES ({i}, 0, 'gone'); TRUNCATE e; \
             INSERT INTO e VALUES ({i}, 1, 'stays'); COMMIT"
        ),
        _ => format!("UPDATE e SET b = b + 100 WHERE b < 3; DELETE FROM e WHERE b = 4 AND a < {i}"),
    }
}

/// A pipeline with its load.
pub struct Bench {
    p: Pipeline,
    next: Arc<AtomicU32>,
    /// No snapshot is being copied.
    streams: Arc<AtomicBool>,
}

impl Bench {
    pub fn new(template: &TestDb, name: &str, phase: Phase) -> Bench {
        let mut p = Pipeline::new(TestDb::from_template(usual(), name, template));
        let retain = match phase {
            Phase::Spool => "retain = \"spool\"\nspool_interval = \"100ms\"",
            _ => "",
        };
        p.config = format!(
            "[handoff]\nworkers = 1\nchunk_bytes = \"1MiB\"\n{retain}\n\
             [stream]\ninterval = \"100ms\"\n[limits]\nretry_for = \"2s\"\n"
        );
        Bench { p, next: Arc::default(), streams: Arc::default() }
    }

    /// The next `count` transactions.
    fn change(&self, count: u32) {
        let mut sql = self.p.sql();
        for _ in 0..count {
            sql.run(&transaction(self.next.fetch_add(1, Ordering::Relaxed), true));
        }
    }

    /// Writes in the background until told to stop.
    fn write(&self) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let (url, next, told) = (self.p.db.url(), self.next.clone(), stop.clone());
        let streams = self.streams.clone();
        let thread = std::thread::spawn(move || {
            let mut sql = Sql::connect(&url);
            sql.run("SET statement_timeout = '60s'");
            while !told.load(Ordering::Relaxed) {
                let truncates = streams.load(Ordering::Relaxed);
                sql.run(&transaction(next.fetch_add(1, Ordering::Relaxed), truncates));
                // The load has a rate; nothing waits for anything here.
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        Writer { stop, thread: Some(thread) }
    }

    fn fence(&self) -> Lsn {
        audit::fence(self.p.lake.path())
    }

    fn now(&self) -> Lsn {
        self.p.db.wal_position().parse().unwrap()
    }

    /// Brings the pipeline to where a phase begins.
    fn prepare(&self, phase: Phase) {
        match phase {
            Phase::Snapshot | Phase::Publish | Phase::Drain | Phase::Spool => self.change(5),
            Phase::Live | Phase::Again => {
                if self.fence() == Lsn::ZERO {
                    self.p.run().succeed();
                    // The ledger's hundredth version is near: then its log is checkpointed.
                    pad(&self.p.lake.path().join("_tidegate/ledger"), 97);
                }
                self.change(12);
            }
            Phase::Resume => {
                self.kill_half_copied();
                self.p.sql().run(MOVE);
                self.change(5);
            }
            Phase::Continue => {
                let crash = self.p.run().failpoint("handoff.publish.after", "2*crash");
                crash.finish().expect_signal();
                self.change(12);
            }
        }
    }

    /// A snapshot whose first three chunks are recorded: the first ones of `k` and `t` are among
    /// them, as the largest go first. The file of the fourth is written, and nobody names it.
    fn kill_half_copied(&self) {
        let pause = self.p.pause("handoff.chunk.after").nth(4);
        let mut running = self.p.run().pause(&pause).start();
        pause.reached(&mut running);
        wait_until("three chunks to be recorded", PATIENCE, || {
            let status = self.p.status();
            let copied = |t: &serde_json::Value| t["chunks_copied"].as_u64().unwrap_or(0);
            status["tables"].as_array().is_some_and(|all| all.iter().map(copied).sum::<u64>() == 3)
        });
        running.kill9();
    }

    /// The run of a phase.
    fn run(&self, phase: Phase) -> Tidegate {
        match phase {
            Phase::Snapshot | Phase::Publish => self.p.run(),
            Phase::Drain | Phase::Live | Phase::Continue | Phase::Spool | Phase::Resume => {
                self.p.command(&["run"])
            }
            Phase::Again => self.p.command(&["run", "--resnapshot", "--until-caught-up"]),
        }
    }

    /// Runs a phase to its end under load: until it ends by itself, or until everything is there.
    fn drive(&self, phase: Phase, run: Tidegate) -> Finished {
        let streams = matches!(phase, Phase::Live | Phase::Continue);
        self.streams.store(streams, Ordering::Relaxed);
        let mut running = run.start();
        let mut writer = self.write();
        if streams || matches!(phase, Phase::Drain | Phase::Spool | Phase::Resume) {
            wait_until("the first fence, or an end", PATIENCE, || {
                running.has_ended() || self.fence() > Lsn::ZERO
            });
            self.streams.store(true, Ordering::Relaxed);
            // Long enough that several batches end under load.
            std::thread::sleep(Duration::from_millis(350));
            writer.stop();
            self.change(2);
            self.follow_to(&mut running, self.now());
            if !running.has_ended() {
                running.signal("TERM");
            }
        }
        let finished = running.finish();
        writer.stop();
        finished
    }

    fn follow_to(&self, running: &mut Running, target: Lsn) {
        let mut sql = self.p.sql();
        wait_until("the stream to catch up, or an end", PATIENCE, || {
            // On an idle server nothing would ever stand beyond the target.
            sql.run("SELECT pg_logical_emit_message(true, 'x', '')");
            running.has_ended() || self.fence() >= target
        });
    }

    /// The points that the run of a phase passes, in order.
    pub fn trace(&self, phase: Phase) -> Vec<String> {
        self.prepare(phase);
        let path = self.p.state.path().join(format!("trace-{phase:?}"));
        let run = self.run(phase).env("TIDEGATE_FAILPOINTS_TRACE", &path);
        self.drive(phase, run).expect_code(0);
        self.p.assert_equal();
        self.judge();
        let trace = std::fs::read_to_string(path).unwrap();
        trace.lines().map(str::to_owned).collect()
    }

    /// Does a case. Whether its point was reached.
    ///
    /// # Panics
    /// Anything is not as it must be.
    pub fn cross(&self, case: &Case) -> bool {
        self.prepare(case.phase);
        let run = self.run(case.phase).failpoint(&case.point, &case.failpoint());
        let path = self.p.state.path().join("trace");
        let _ = std::fs::remove_file(&path);
        let finished = self.drive(case.phase, run.env("TIDEGATE_FAILPOINTS_TRACE", &path));
        let trace: Vec<String> =
            std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect();
        let passages =
            case.phase.part_of(&trace).into_iter().filter(|name| *name == case.point).count();
        let reached = passages >= case.passage as usize;
        if !reached {
            println!("{case} was not reached; passed were {trace:?}\n{}", finished.stderr);
        }
        ended_as_it_must(case, &finished, reached);
        self.nothing_half_made(case.phase);
        self.change(3);
        self.clean_run();
        self.judge();
        reached
    }

    /// A run without faults, as a supervisor would start it at once.
    fn clean_run(&self) {
        let end = self.now().to_string();
        self.p.command(&["run", "--until-lsn", &end]).succeed();
    }

    /// Before the handoff no reader sees anything; a generation that failed has replaced nothing.
    fn nothing_half_made(&self, phase: Phase) {
        for (table, key, _) in TABLES {
            let folder = self.p.table(table);
            if folder.join("_delta_log").exists() {
                audit::table(&folder, key).unwrap_or_else(|e| panic!("after the fault: {e}"));
            } else {
                assert!(!matches!(phase, Phase::Live | Phase::Again), "{table} is gone");
            }
        }
    }

    /// Source and lake are equal by a reader that is not ours, and every version holds.
    fn judge(&self) {
        audit::ledger(self.p.lake.path()).unwrap_or_else(|e| panic!("{e}"));
        let mut sql = self.p.sql();
        for (table, key, columns) in TABLES {
            let folder = self.p.table(table);
            let Audited { rows, .. } = audit::table(&folder, key).unwrap_or_else(|e| panic!("{e}"));
            let mut expected = sql.rows(&format!("SELECT {columns} FROM {table}"));
            expected.sort();
            assert_eq!(rows, expected.len() as u64, "rows that the log of {table} counts");
            let scan = format!("SELECT {columns} FROM delta_scan('{}')", folder.display());
            let mut found = judge::sql(Engine::DuckDb, &scan).rows;
            found.sort();
            assert_eq!(judge::difference(&expected, &found), None, "{table}");
        }
        let slots = format!(
            "SELECT string_agg(slot_name, ' ') FROM pg_replication_slots WHERE database = '{}'",
            self.p.db.name()
        );
        assert_eq!(sql.one(&slots), self.p.name, "other slots than the pipeline's");
    }
}

/// Points at which an error is an answer that got lost: the log is looked at, and the commit is there.
const ABSORBED: [&str; 2] = ["lake.commit.after", "lake.ledger.after"];

fn ended_as_it_must(case: &Case, finished: &Finished, reached: bool) {
    let fail = |what: &str| -> ! {
        panic!(
            "{what}: code {:?}, signal {:?}\n{}",
            finished.code,
            finished.signal,
            finished.output()
        )
    };
    match case.action {
        Action::Crash if reached && finished.signal.is_none() => fail("no crash"),
        Action::Crash if reached => {}
        Action::ErrorForever if reached && !absorbs(&case.point) => {
            let said = finished.stderr.find(&format!("failpoint {}", case.point));
            let stop = finished.stderr.find("stopping after the current step");
            // Met by the last step only, after the stop was asked for; or behind in the end.
            let may_end_well = is_left_behind(&case.point) || stop.is_some() && stop < said;
            let ended = finished.code == Some(1) || finished.code == Some(0) && may_end_well;
            if !ended || said.is_none() {
                fail("a lasting error must end the run with words");
            }
        }
        // A new generation is asked for once, and is not tried again by itself.
        Action::Error if reached && case.phase == Phase::Again && finished.code == Some(1) => {
            let said = format!("failpoint {}", case.point);
            if !finished.stderr.contains(&said) {
                fail("an error must end the run with words");
            }
        }
        _ if finished.code != Some(0) => fail("the run must recover and end well"),
        _ => {}
    }
}

/// Whether each attempt may come further than the one before, though the point fails every time:
/// what a snapshot has done before it stays done, so a few attempts may bring it to its end. Likewise
/// what comes after a fence: the next attempt begins at that fence.
fn is_left_behind(point: &str) -> bool {
    ["handoff.", "publication.", "spool.", "stream.fence.after", "stream.acknowledged"]
        .iter()
        .any(|steps| point.starts_with(steps))
}

/// Whether a lasting error at the point costs nothing.
fn absorbs(point: &str) -> bool {
    ABSORBED.contains(&point) || BESIDE.contains(&point)
}

/// Points of work beside the stream: its failure is a warning.
const BESIDE: [&str; 2] = ["lake.checkpoint.before", "lake.checkpoint.after"];

/// Adds commits without content until a log has this version.
fn pad(log: &std::path::Path, to: u64) {
    let commits = audit::commits(log).unwrap();
    let last = commits.last().unwrap();
    let at = last[0]["commitInfo"]["inCommitTimestamp"].as_i64().unwrap();
    for (i, version) in (commits.len() as u64..=to).enumerate() {
        let at = at + 1 + i as i64;
        let info = serde_json::json!({"commitInfo": {
            "timestamp": at, "inCommitTimestamp": at, "operation": "WRITE", "operationParameters": {},
            "txnId": format!("pad {version}"),
        }});
        let path: PathBuf = log.join(format!("_delta_log/{version:020}.json"));
        std::fs::write(path, format!("{info}\n")).unwrap();
    }
}

struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// All cases of what the phases passed.
pub fn all(traces: &BTreeMap<Phase, Vec<String>>) -> Vec<Case> {
    let mut cases = BTreeSet::new();
    for (phase, trace) in traces {
        let mut passages: BTreeMap<&str, u32> = BTreeMap::new();
        for name in trace {
            let passage = passages.entry(name).or_default();
            *passage += 1;
            for action in ACTIONS {
                // A lasting error is the same whichever passage it is counted from.
                let passage = if action == Action::ErrorForever { 1 } else { *passage };
                cases.insert(Case { phase: *phase, point: name.clone(), passage, action });
            }
        }
    }
    cases.into_iter().collect()
}

//! The run itself: pipelines begun again and again, processes started and ended by force.
//!
//! An episode begins a snapshot, of a new pipeline or as a new generation of the last one, and
//! kills its way through it and into the stream; at its end, and now and then before, the writers
//! stop, the lake is brought to the log's end and compared. What a process may do by itself is
//! strict: end as it was told, or be refused or fenced where two were started. Anything else ends
//! the run.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::compare::{audit, compare};
use super::figures::Figures;
use super::load::{Load, SETUP};
use super::pipeline::Pipeline;
use super::settings::{Plan, config, store_faults};
use crate::scan;
use crate::support::database::Sql;
use crate::support::program::{Finished, Running};
use crate::support::random::Random;
use crate::support::servers::{own_server, versions};
use crate::support::{PATIENCE, wait_until};
use tidegate::demo::server::{Options, PrivateServer};
use tidegate::lake::{Lake, Ledger};
use tidegate::position::Lsn;

/// The longest a stream is left alone before it is killed.
const STREAM: u64 = 2500;

/// The longest a recovery may take on a machine that is busy with other things.
const LONGEST: Duration = Duration::from_secs(300);

/// Does what `plan` says and gives its figures.
///
/// # Panics
/// Something was lost, doubled or torn, or a process did what it may not. The message says how to
/// have the run again.
pub fn run(plan: &Plan) -> Value {
    let began = Instant::now();
    let mut chaos = Chaos::new(plan.clone());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while !chaos.is_over() {
            chaos.episode();
        }
        chaos.end_pipeline();
    }));
    let all = chaos.figures.json(json!({
        "seed": plan.seed, "lake": plan.lake, "postgresql": chaos.server.major(),
        "seconds": began.elapsed().as_secs_f64(),
        "source_transactions": chaos.load.done.committed.load(std::sync::atomic::Ordering::Relaxed),
        "source_transactions_refused":
            chaos.load.done.refused.load(std::sync::atomic::Ordering::Relaxed),
    }));
    println!("{}", Figures::table(&all));
    println!("{all}");
    if let Err(panic) = outcome {
        println!("\nthe last steps:\n{}", chaos.steps.join("\n"));
        if let Some(pipeline) = &mut chaos.pipeline {
            let kept = pipeline.keep();
            println!("{}\n{kept}", pipeline.config);
        }
        println!("again: {}", plan.again());
        std::panic::resume_unwind(panic);
    }
    all
}

/// What is done to a process, or beside it.
#[derive(Clone, Debug)]
enum Fault {
    /// It is killed at a random instant.
    Kill,
    /// It dies at a point.
    Crash(String),
    /// It is asked to end.
    Stop,
    /// Its connections are cut.
    Cut,
    /// The server dies, and comes back.
    ServerKilled,
    /// The server is stopped, and comes back.
    ServerStopped,
    /// It is frozen, a second one is started, it wakes up.
    Zombie,
}

struct Chaos {
    plan: Plan,
    began: Instant,
    random: Random,
    server: PrivateServer,
    load: Load,
    figures: Figures,
    pipeline: Option<Pipeline>,
    points: Vec<String>,
    number: u32,
    /// A new generation was asked for, and is not in the ledger yet.
    resnapshot: bool,
    /// The generation that it is to replace.
    generation_before: u64,
    /// Milliseconds that a snapshot takes, as far as known.
    snapshot: u64,
    steps: Vec<String>,
}

impl Chaos {
    fn new(plan: Plan) -> Chaos {
        let mut random = Random::new(plan.seed);
        let major = *random.pick(&versions());
        let settings = [("wal_sender_timeout", "5s"), ("max_wal_size", "256MB")];
        let settings = settings.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
        let server = own_server(major, Options { settings, ..Options::default() });
        let url = server.url("postgres");
        Sql::connect(&url).run(SETUP);
        Chaos {
            load: Load::start(&url, plan.seed),
            plan,
            began: Instant::now(),
            random,
            server,
            figures: Figures::default(),
            pipeline: None,
            points: scan::points().into_iter().collect(),
            number: 0,
            resnapshot: false,
            generation_before: 0,
            snapshot: 1500,
            steps: Vec::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.figures.killed() >= self.plan.kills
            || self.began.elapsed().as_secs() >= self.plan.seconds
    }

    fn url(&self) -> String {
        self.server.url("postgres")
    }

    fn sql(&self) -> Sql {
        Sql::connect(&self.url())
    }

    fn step(&mut self, what: String) {
        self.steps.push(what);
        if self.steps.len() > 40 {
            self.steps.remove(0);
        }
    }

    fn p(&mut self) -> &mut Pipeline {
        self.pipeline.as_mut().expect("a pipeline")
    }

    fn episode(&mut self) {
        self.begin();
        let kills = 1 + self.random.below(4);
        for _ in 0..kills {
            if self.is_over() || self.p().look().is_live() && !self.resnapshot {
                break;
            }
            let fault = self.fault();
            self.suffer(&fault, false);
        }
        self.become_live();
        for _ in 0..1 + self.random.below(4) {
            if self.is_over() {
                break;
            }
            let fault = self.fault();
            self.suffer(&fault, true);
            if self.random.chance(20) {
                self.judge();
            }
        }
        self.judge();
    }

    /// A new pipeline in an empty lake, or a new generation.
    fn begin(&mut self) {
        self.figures.snapshots += 1;
        if self.pipeline.is_some() && self.random.chance(45) {
            self.resnapshot = true;
            self.generation_before = self.p().look().generation;
            self.step("== a new generation".to_owned());
            return;
        }
        self.end_pipeline();
        self.number += 1;
        let settings = (config(&mut self.random), store_faults(&mut self.random));
        let name = format!("chaos_{}", self.number);
        self.step(format!(
            "== pipeline {name}: {} {:?}",
            settings.0.replace('\n', " "),
            settings.1
        ));
        let pipeline = Pipeline::new(&self.url(), name, settings, &self.plan.lake);
        self.pipeline = Some(pipeline);
        self.resnapshot = false;
    }

    /// Counts what a pipeline did, and takes it from the source.
    fn end_pipeline(&mut self) {
        let Some(pipeline) = self.pipeline.take() else { return };
        let (versions, rows) = audit(&pipeline.place.files()).unwrap_or_else(|e| panic!("{e}"));
        self.figures.table_versions += versions;
        self.figures.rows_written += rows;
        let (copied, again) = copied_bytes(&pipeline);
        self.figures.bytes_copied += copied;
        self.figures.bytes_again += again;
        pipeline.command(&["teardown", "--yes"]).succeed();
        let left = self.sql().one("SELECT count(*) FROM pg_replication_slots WHERE NOT temporary");
        assert_eq!(left, "0", "a slot is left after the teardown");
        let left = self.sql().one("SELECT count(*) FROM pg_publication");
        assert_eq!(left, "0", "a publication is left after the teardown");
    }

    fn fault(&mut self) -> Fault {
        match self.random.below(100) {
            0..45 => Fault::Kill,
            45..71 => Fault::Crash(self.random.pick(&self.points).clone()),
            71..77 => Fault::Stop,
            77..84 => Fault::Cut,
            84..89 => Fault::ServerKilled,
            89..93 => Fault::ServerStopped,
            _ => Fault::Zombie,
        }
    }

    fn start(&mut self, fault: &Fault) -> Running {
        self.figures.starts += 1;
        let arguments: &[&str] = if self.resnapshot { &["run", "--resnapshot"] } else { &["run"] };
        let mut run = self.p().command(arguments);
        if let Fault::Crash(point) = fault {
            let passage = 1 + self.random.below(4);
            self.step(format!("   {point} {passage}"));
            run = run.failpoint(point, &format!("{passage}*crash"));
        }
        run.start()
    }

    /// One process from its start to its end by force.
    fn suffer(&mut self, fault: &Fault, live: bool) {
        self.step(format!("{fault:?} while {}", if live { "live" } else { "snapshot" }));
        let generation = self.p().look().generation;
        let mut running = self.start(fault);
        let wait = if live { STREAM } else { self.snapshot * 5 / 4 };
        let wait = Duration::from_millis(self.random.below(wait));
        match fault {
            Fault::Kill => {
                self.let_run(&mut running, wait);
                self.kill(running, "at random");
            }
            Fault::Crash(_) => {
                self.let_run(&mut running, Duration::from_millis(3000));
                if running.has_ended() {
                    let phase = self.phase();
                    let finished = running.finish();
                    if finished.signal.is_some() {
                        self.figures.kill(&phase, "at a point");
                    } else {
                        self.may_end(&finished);
                    }
                } else {
                    self.kill(running, "at random");
                }
            }
            Fault::Stop => {
                self.let_run(&mut running, wait);
                self.figures.fault("asked to stop");
                if !running.has_ended() {
                    running.signal("TERM");
                }
                let finished = running.finish();
                let stopped = finished.stderr.contains("stopped");
                if !(finished.code == Some(0) || finished.code == Some(1) && stopped) {
                    // A signal before the handler is there.
                    if finished.signal.is_none() {
                        self.may_end(&finished);
                    }
                }
            }
            Fault::Cut => {
                self.let_run(&mut running, wait);
                self.figures.fault("connections cut");
                self.sql().run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE application_name LIKE 'tidegate%'",
                );
                self.go_on_and_kill(running);
            }
            Fault::ServerKilled | Fault::ServerStopped => {
                self.let_run(&mut running, wait);
                if matches!(fault, Fault::ServerKilled) {
                    self.figures.fault("server killed");
                    self.server.kill9().unwrap_or_else(|e| panic!("{e}"));
                } else {
                    self.figures.fault("server stopped");
                    self.server.stop().unwrap_or_else(|e| panic!("{e}"));
                }
                self.server.restart().unwrap_or_else(|e| panic!("{e}"));
                self.go_on_and_kill(running);
            }
            Fault::Zombie => self.zombie(running, wait),
        }
        if self.p().look().generation > generation {
            self.resnapshot = false;
        }
    }

    /// Gives a process time; ends early if it ends.
    fn let_run(&mut self, running: &mut Running, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !running.has_ended() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn phase(&mut self) -> String {
        let resnapshot = self.resnapshot;
        if resnapshot { "again".to_owned() } else { self.p().look().phase.clone() }
    }

    fn kill(&mut self, mut running: Running, how: &'static str) {
        let phase = self.phase();
        if running.has_ended() {
            let finished = running.finish();
            self.may_end(&finished);
            return;
        }
        running.kill9();
        self.figures.kill(&phase, how);
    }

    /// After a fault from outside the process recovers by itself; then it is killed after all.
    fn go_on_and_kill(&mut self, mut running: Running) {
        let more = Duration::from_millis(self.random.below(3000));
        self.let_run(&mut running, more);
        self.kill(running, "after another fault");
    }

    /// A process ended by itself, neither asked to nor killed.
    fn may_end(&mut self, finished: &Finished) {
        self.step(format!("   ended by itself, {:?}", finished.code));
        let words = &finished.stderr;
        let allowed = match finished.code {
            // A new generation is asked for once; it is not tried again by itself.
            Some(1) => self.resnapshot,
            _ => false,
        };
        assert!(
            allowed && words.contains("error: "),
            "a process ended by itself with {:?}, signal {:?}:\n{words}",
            finished.code,
            finished.signal
        );
    }

    /// Freezes a process, lets another take over, wakes the first: it must find itself fenced.
    fn zombie(&mut self, mut first: Running, wait: Duration) {
        self.let_run(&mut first, wait);
        if first.has_ended() {
            let finished = first.finish();
            self.may_end(&finished);
            return;
        }
        first.signal("STOP");
        self.figures.fault("frozen beside a second");
        self.p().move_to_new_machine();
        let mut second = self.second();
        let more = Duration::from_millis(500 + self.random.below(2000));
        self.let_run(&mut second, more);
        first.signal("CONT");
        self.let_run(&mut first, Duration::from_secs(1));
        let second_ended = second.has_ended();
        if second_ended {
            let finished = second.finish();
            self.may_end(&finished);
        } else {
            self.kill(second, "beside a zombie");
        }
        // The second is gone; if it never took over, the first may go on by right.
        self.let_run(&mut first, Duration::from_secs(2));
        if !first.has_ended() {
            self.kill(first, "after its freeze");
            return;
        }
        let finished = first.finish();
        let fenced = finished.code == Some(4);
        if fenced {
            self.figures.fault("fenced after a freeze");
        } else {
            self.may_end(&finished);
        }
    }

    /// Starts a second process, which finds the first one silent and takes the pipeline over.
    fn second(&mut self) -> Running {
        let deadline = Instant::now() + PATIENCE;
        let owner = self.p().look().owner.clone();
        loop {
            let mut second = self.start(&Fault::Kill);
            wait_until("a second process to take over, or an end", PATIENCE, || {
                second.has_ended() || self.p().look().owner != owner
            });
            if !second.has_ended() {
                return second;
            }
            let finished = second.finish();
            if finished.code == Some(4) {
                self.figures.refused += 1;
                assert!(finished.stderr.contains("next:"), "{}", finished.stderr);
            } else {
                self.may_end(&finished);
            }
            assert!(Instant::now() < deadline, "never let in: {}", finished.stderr);
        }
    }

    /// Lets the pipeline publish.
    fn become_live(&mut self) {
        let began = Instant::now();
        while !self.p().look().is_live() || self.resnapshot {
            let generation = self.generation_before;
            let mut running = self.start(&Fault::Kill);
            let pipeline = self.pipeline.as_mut().expect("a pipeline");
            let resnapshot = self.resnapshot;
            let deadline = Instant::now() + PATIENCE;
            loop {
                let watch = pipeline.look();
                let new = !resnapshot || watch.generation > generation;
                if running.has_ended() || watch.is_live() && new {
                    break;
                }
                // What it said is all there is to know of it afterwards.
                let late = Instant::now() > deadline;
                assert!(!late, "no first fence within {PATIENCE:?}: {}", running.output());
                std::thread::sleep(Duration::from_millis(10));
            }
            if running.has_ended() {
                let finished = running.finish();
                self.may_end(&finished);
            } else {
                self.snapshot = began.elapsed().as_millis() as u64;
                self.resnapshot = false;
                self.kill(running, "at the first fence");
            }
            assert!(began.elapsed() < PATIENCE * 2, "the snapshot never ends");
        }
    }

    /// Stops the writers, recovers, and compares.
    fn judge(&mut self) {
        self.step("compare".to_owned());
        // The gate is the load's: taken out for the while, as the comparison needs all of us.
        let began = Instant::now();
        let mut sql = self.sql();
        let (load, pipeline) = (&self.load, self.pipeline.as_mut().expect("a pipeline"));
        let (finished, compared) = load.held(|| {
            let end = sql.one("SELECT pg_current_wal_insert_lsn()");
            let run = pipeline.command(&["run", "--until-lsn", &end]);
            let finished = run.start().finish_within(LONGEST);
            let took = began.elapsed();
            if finished.code != Some(0) {
                return ((finished, took), None);
            }
            let end: Lsn = end.parse().expect("an LSN");
            assert!(pipeline.look().fence >= end, "ended before its target");
            ((finished, took), Some(compare(&mut sql, &pipeline.place.files())))
        });
        let ((finished, took), compared) = (finished, compared);
        self.figures.starts += 1;
        let Some(compared) = compared else {
            self.may_end(&finished);
            self.become_live();
            return self.judge();
        };
        self.figures.recoveries.push(took);
        self.figures.comparisons += 1;
        self.figures.rows_compared += compared.rows;
        self.figures.differences += compared.differences.len() as u64;
        assert!(compared.differences.is_empty(), "DIFFERENT:\n{}", compared.differences.join("\n"));
        if self.random.chance(25) {
            self.verify();
        }
    }

    /// The program's own comparison, while the writers write.
    fn verify(&mut self) {
        self.step("verify".to_owned());
        let run = self.p().command(&["verify", "--json"]);
        let finished = self.load.calm(|| run.start().finish_within(LONGEST));
        // What was altered just before may still come in between.
        if finished.code == Some(1) && finished.stderr.contains("comparing again") {
            return;
        }
        assert_eq!(finished.code, Some(0), "verify: {}", finished.output());
        self.figures.verifications += 1;
    }
}

/// Bytes of the chunks that were copied, and of those that no version published.
fn copied_bytes(pipeline: &Pipeline) -> (u64, u64) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let files = pipeline.place.files();
    let events = runtime.block_on(async {
        let lake = Lake::open(&files.display().to_string())?;
        match Ledger::open(&lake).await? {
            Some(ledger) => ledger.read_events(None, Some("chunk")).await,
            None => Ok(Vec::new()),
        }
    });
    let mut published = BTreeSet::new();
    for table in &super::load::TABLES {
        let log = files.join("public").join(table.name);
        for commit in crate::support::audit::commits(&log).unwrap_or_default() {
            let paths = commit.iter().filter_map(|line| line["add"]["path"].as_str());
            published.extend(paths.map(str::to_owned));
        }
    }
    let (mut copied, mut again) = (0, 0);
    for event in events.unwrap_or_else(|e| panic!("{e}")) {
        let bytes = event.bytes.unwrap_or(0) as u64;
        copied += bytes;
        let path = event.detail["file"]["path"].as_str().unwrap_or_default();
        if !published.contains(path) {
            again += bytes;
        }
    }
    (copied, again)
}

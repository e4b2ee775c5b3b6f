//! The corpus: a file per case under `tests/corpus/`, with its SQL steps, what must be in the table
//! at the end, and why. A new case is a file, no code.
//!
//! All cases of a server run side by side in one pipeline, each in a schema of its own, in four
//! ways: the snapshot before the steps with a restart after each; the snapshot before and all steps
//! in one batch; the snapshot in the midst of the steps; the snapshot after them. At the end the
//! source's own text of every value is compared with what DuckDB and Python deltalake read, and
//! `verify` compares once more.
//!
//! ```text
//! -- Why the case is there: what goes wrong, and to whom it did.
//! -- servers: 15-             (only these versions)
//! -- step                     the first is the set-up: tables and rows before the snapshot
//! SQL                         one query, thus one transaction unless it says BEGIN and COMMIT
//! -- then
//! SQL                         another query of the same step
//! -- rows t: id, v            what a plain SELECT prints at the end, sorted
//! 1|a
//! 2|\N
//! ```

mod support;

#[path = "corpus/case.rs"]
mod case;
#[path = "corpus/compare.rs"]
mod compare;

use std::time::{Duration, Instant};

use case::Case;
use support::database::{Sql, TestDb};
use support::pipeline::Pipeline;
use support::servers::{server, usual, versions};
use tidegate::demo::server::PrivateServer;

/// When the snapshot is taken, and how the steps are cut into runs.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// After the set-up; a restart after each step.
    Restarts,
    /// After the set-up; then all steps, then one run with one batch.
    OneBatch,
    /// The steps come while the chunks are copied.
    Midst,
    /// After all steps.
    After,
}

/// The cases of a server, each in its schema, and the pipeline over them.
struct Corpus {
    cases: Vec<Case>,
    pipeline: Pipeline,
}

impl Corpus {
    fn new(server: &'static PrivateServer, major: u32, name: &str) -> Corpus {
        let mut pipeline = Pipeline::new(TestDb::new(server, name));
        // A batch ends where the run does.
        pipeline.config = "[handoff]\nworkers = 1\n[stream]\ninterval = \"10m\"\n".to_owned();
        pipeline.tables = "c_*.*".to_owned();
        let cases: Vec<Case> = case::all().into_iter().filter(|case| case.runs_on(major)).collect();
        let mut sql = pipeline.sql();
        for case in &cases {
            let schema = &case.schema;
            sql.run(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}, public"));
            case.step(0).iter().for_each(|query| case.run(&mut sql, query));
        }
        Corpus { cases, pipeline }
    }

    /// A connection for one case's steps.
    fn session(&self, case: &Case) -> Sql {
        let mut sql = self.pipeline.sql();
        sql.run(&format!(
            "SET application_name = corpus; SET search_path = {}, public",
            case.schema
        ));
        sql
    }

    fn steps(&self) -> usize {
        self.cases.iter().map(|case| case.steps.len()).max().unwrap_or(0)
    }

    /// Step `n` of every case that has it.
    fn step(&self, n: usize) {
        for case in self.cases.iter().filter(|case| n < case.steps.len()) {
            let mut sql = self.session(case);
            case.step(n).iter().for_each(|query| case.run(&mut sql, query));
        }
    }

    fn run(&self, way: Way) {
        match way {
            Way::Restarts => {
                self.pipeline.run().succeed();
                for n in 1..self.steps() {
                    self.step(n);
                    self.run_to_now();
                }
            }
            Way::OneBatch => {
                self.pipeline.run().succeed();
                (1..self.steps()).for_each(|n| self.step(n));
                self.run_to_now();
            }
            Way::Midst => self.in_the_midst(),
            Way::After => {
                (1..self.steps()).for_each(|n| self.step(n));
                self.pipeline.run().succeed();
            }
        }
        self.judge(way);
    }

    /// With many tables that change, a run takes its time.
    fn run_to_now(&self) {
        let end = self.pipeline.db.wal_position();
        let run = self.pipeline.command(&["run", "--until-lsn", &end]).start();
        run.finish_within(Duration::from_secs(600)).expect_code(0);
    }

    /// The copy stands before one of its chunks while the steps run. A step that needs a lock the
    /// copy holds (TRUNCATE, ALTER) waits until the copy is done, as it does in life.
    fn in_the_midst(&self) {
        let before = self.pipeline.pause("handoff.chunk.before").nth(1);
        let mut running = self.pipeline.run().pause(&before).start();
        before.reached(&mut running);
        std::thread::scope(|scope| {
            let steps = scope.spawn(|| {
                // Each case on its own: one that waits for the copy holds no other up.
                std::thread::scope(|scope| {
                    for case in &self.cases {
                        scope.spawn(|| {
                            let mut sql = self.session(case);
                            for n in 1..case.steps.len() {
                                case.step(n).iter().for_each(|query| case.run(&mut sql, query));
                            }
                        });
                    }
                });
            });
            let mut watcher = self.pipeline.sql();
            let deadline = Instant::now() + support::PATIENCE;
            while !steps.is_finished() && !steps_wait(&mut watcher) && Instant::now() < deadline {}
            before.release();
        });
        running.finish().expect_code(0);
        self.run_to_now();
    }

    fn judge(&self, way: Way) {
        let mut wrong = Vec::new();
        for case in &self.cases {
            let mut sql = self.session(case);
            for expected in &case.expected {
                let found = expected.printed(&mut sql);
                assert_eq!(
                    found, expected.rows,
                    "{}: the source itself does not have what the case says of {}",
                    case.name, expected.table
                );
            }
            let lake = self.pipeline.lake.path();
            for difference in compare::differences(&mut sql, &case.schema, lake) {
                wrong.push(format!("{} ({way:?}): {difference}", case.name));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        self.pipeline.assert_equal();
    }
}

/// Every session of a case waits for a lock of the copy, as two looks a moment apart see it: nobody
/// is between two queries. Only makes sure that the steps meet the copy; nothing depends on it.
fn steps_wait(watcher: &mut Sql) -> bool {
    let mut look = || {
        watcher.one(
            "SELECT string_agg(pid || ' ' || (wait_event_type IS NOT DISTINCT FROM 'Lock'), ',' ORDER BY pid)
             FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
             AND application_name = 'corpus'",
        )
    };
    let first = look();
    std::thread::sleep(Duration::from_millis(50));
    first == look() && !first.contains("false")
}

fn on_usual(way: Way, name: &str) {
    let major = support::servers::USUAL;
    let major = if versions().contains(&major) { major } else { versions()[0] };
    Corpus::new(usual(), major, name).run(way);
}

#[test]
fn every_case_with_a_restart_between_its_steps() {
    on_usual(Way::Restarts, "corpus_restarts");
}

#[test]
fn every_case_in_one_batch() {
    on_usual(Way::OneBatch, "corpus_batch");
}

#[test]
fn every_case_with_the_snapshot_in_the_midst() {
    on_usual(Way::Midst, "corpus_midst");
}

#[test]
fn every_case_before_the_snapshot() {
    on_usual(Way::After, "corpus_after");
}

/// The other servers take turns with the ways, so that each way runs on an old and a new one.
#[test]
fn every_case_on_every_server() {
    let ways = [Way::OneBatch, Way::Midst, Way::Restarts, Way::OneBatch, Way::Midst, Way::Restarts];
    for (major, way) in versions().into_iter().zip(ways) {
        if major != support::servers::USUAL {
            Corpus::new(server(major), major, &format!("corpus_{major}")).run(way);
        }
    }
}

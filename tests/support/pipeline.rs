//! A pipeline for a test: a database of its own, a lake and a state folder that go with it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use super::database::{Sql, TestDb};
use super::judge::{self, Engine};
use super::pause::Pause;
use super::program::{Finished, Running, Tidegate};

/// Database, lake and state folder of one pipeline.
pub struct Pipeline {
    pub db: TestDb,
    pub lake: TempDir,
    pub state: TempDir,
    /// Name of the pipeline, its slot and its publication: the database's, unless a test has others.
    pub name: String,
    /// Patterns given to `run`.
    pub tables: String,
    /// Content of `tidegate.toml`.
    pub config: String,
    /// Rules that every command of it breaks.
    pub wrong: Vec<&'static str>,
    /// More variables of the environment: a lake elsewhere, its credentials.
    pub env: Vec<(&'static str, String)>,
}

impl Pipeline {
    /// A pipeline over all tables of schema public, with chunks of 1 MiB copied one by one, so that
    /// a test can stand between two of them, and commits every 100 ms.
    pub fn new(db: TestDb) -> Pipeline {
        Pipeline {
            name: db.name().to_owned(),
            db,
            lake: super::folder("lake"),
            state: super::folder("state"),
            tables: "public.*".to_owned(),
            config:
                "[handoff]\nworkers = 1\nchunk_bytes = \"1MiB\"\n[stream]\ninterval = \"100ms\"\n"
                    .to_owned(),
            wrong: Vec::new(),
            env: Vec::new(),
        }
    }

    pub fn sql(&self) -> Sql {
        self.db.sql()
    }

    /// Folder of a table of schema public.
    pub fn table(&self, name: &str) -> PathBuf {
        self.lake.path().join("public").join(name)
    }

    /// A folder for pauses.
    pub fn pause(&self, name: &str) -> Pause {
        Pause::new(self.state.path(), name)
    }

    /// The program with a command and this pipeline's settings.
    pub fn command(&self, arguments: &[&str]) -> Tidegate {
        let config = self.state.path().join("tidegate.toml");
        std::fs::write(&config, &self.config).unwrap();
        let program = Tidegate::new(arguments);
        let program = self.wrong.iter().fold(program, |program, rule| program.wrong(rule));
        let program = program
            .env("TIDEGATE_CONFIG", config)
            .env("TIDEGATE_SOURCE", self.db.url())
            .env("TIDEGATE_LAKE", self.lake.path())
            .env("TIDEGATE_TABLES", &self.tables)
            .env("TIDEGATE_NAME", &self.name)
            .env("TIDEGATE_STATE_DIR", self.state.path().join("index"));
        self.env.iter().fold(program, |program, (name, value)| program.env(name, value))
    }

    /// `run` up to everything that has committed when it starts.
    pub fn run(&self) -> Tidegate {
        self.command(&["run", "--until-caught-up"])
    }

    /// `run` up to the end of the log as it is now.
    pub fn run_to_now(&self) -> Finished {
        let end = self.db.wal_position();
        self.command(&["run", "--until-lsn", &end]).succeed()
    }

    /// `run` until it is stopped.
    pub fn follow(&self) -> Running {
        self.command(&["run"]).start()
    }

    /// `verify --json`, whatever it finds.
    pub fn verify(&self) -> (i32, Value) {
        let finished = self.command(&["verify", "--json"]).finish();
        let code = finished.code();
        assert!(code == 0 || code == 6, "verify failed:\n{}", finished.output());
        (code, finished.json())
    }

    /// Source and lake must be equal, by `verify` and by a reader.
    #[track_caller]
    pub fn assert_equal(&self) {
        let (code, found) = self.verify();
        assert_eq!(code, 0, "verify found differences: {found:#}");
        assert_eq!(found["equal"], true);
    }

    /// Versions of a table as `versions --json` lists them.
    pub fn versions(&self, table: &str) -> Vec<Value> {
        let listed = self.command(&["versions", "--json", table]).succeed().json();
        listed.as_array().expect("a list of versions").clone()
    }

    /// `status --json`.
    pub fn status(&self) -> Value {
        self.command(&["status", "--json"]).succeed().json()
    }

    /// Per key, `(_tg_lsn, _tg_seq)` never falls from one version to the next.
    #[track_caller]
    pub fn assert_positions_never_fall(&self, table: &str, key: &str) {
        let mut last: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for version in self.versions(table) {
            let version = version["version"].as_u64().unwrap();
            let columns = [key, "_tg_lsn", "_tg_seq"];
            let found = judge::rows(Engine::DuckDb, &self.table(table), version, &columns);
            for row in found.rows {
                let value = |i: usize| row[i].clone().unwrap();
                let position = (value(1).parse().unwrap(), value(2).parse().unwrap());
                let before = last.insert(value(0), position).unwrap_or_default();
                assert!(
                    before <= position,
                    "key {} fell from {before:?} to {position:?}",
                    value(0)
                );
            }
        }
    }
}

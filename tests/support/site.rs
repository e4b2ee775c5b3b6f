//! A pipeline over a server of its own, which the test may kill, restore, promote or replace.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;
use tidegate::demo::server::PrivateServer;

use super::database::Sql;
use super::pause::Pause;
use super::program::{Finished, Running, Tidegate};
use super::servers::{own_server, with_settings};

/// The database, and the pipeline's name.
pub const DATABASE: &str = "shop";
pub const NAME: &str = "site";

/// Server, lake and state folder of one pipeline.
pub struct Site {
    /// Dropped before the folders go.
    pub server: PrivateServer,
    pub lake: TempDir,
    pub state: TempDir,
    /// Content of `tidegate.toml`.
    pub config: String,
    /// How the program reaches the source, if not directly.
    pub source: Option<String>,
}

impl Site {
    /// A server with an empty database; chunks of 1 MiB copied one by one, commits every 100 ms.
    pub fn new(major: u32, settings: &[(&str, &str)]) -> Site {
        let server = own_server(major, with_settings(settings));
        Sql::connect(&server.url("postgres")).run(&format!("CREATE DATABASE {DATABASE}"));
        Site {
            server,
            lake: super::folder("lake"),
            state: super::folder("state"),
            config:
                "[handoff]\nworkers = 1\nchunk_bytes = \"1MiB\"\n[stream]\ninterval = \"100ms\"\n"
                    .to_owned(),
            source: None,
        }
    }

    /// With a table `t` of 100 rows.
    pub fn with_rows(major: u32, settings: &[(&str, &str)]) -> Site {
        let site = Site::new(major, settings);
        site.sql().run(
            "CREATE TABLE t(id int PRIMARY KEY, v text);
             INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 100) i",
        );
        site
    }

    pub fn sql(&self) -> Sql {
        Sql::connect(&self.server.url(DATABASE))
    }

    /// Folder of a table of schema public.
    pub fn table(&self, name: &str) -> PathBuf {
        self.lake.path().join("public").join(name)
    }

    pub fn pause(&self, name: &str) -> Pause {
        Pause::new(self.state.path(), name)
    }

    /// The program with a command and this pipeline's settings.
    pub fn command(&self, arguments: &[&str]) -> Tidegate {
        let config = self.state.path().join("tidegate.toml");
        std::fs::write(&config, &self.config).unwrap();
        let direct = || self.server.url(DATABASE);
        Tidegate::new(arguments)
            .env("TIDEGATE_CONFIG", config)
            .env("TIDEGATE_SOURCE", self.source.clone().unwrap_or_else(direct))
            .env("TIDEGATE_LAKE", self.lake.path())
            .env("TIDEGATE_TABLES", "public.*")
            .env("TIDEGATE_NAME", NAME)
            .env("TIDEGATE_STATE_DIR", self.state.path().join("index"))
    }

    /// `run` up to everything that has committed when it starts.
    pub fn run(&self) -> Tidegate {
        self.command(&["run", "--until-caught-up"])
    }

    /// `run` until it is stopped.
    pub fn follow(&self) -> Running {
        self.command(&["run"]).start()
    }

    /// `run` up to the end of the log as it is now.
    pub fn run_to_now(&self) -> Finished {
        let end = self.sql().one("SELECT pg_current_wal_insert_lsn()");
        self.command(&["run", "--until-lsn", &end]).succeed()
    }

    /// Source and lake must be equal.
    #[track_caller]
    pub fn assert_equal(&self) {
        let finished = self.command(&["verify", "--json"]).finish();
        let code = finished.code();
        assert_eq!(code, 0, "verify ended with {code}:\n{}", finished.output());
        assert_eq!(finished.json()["equal"], true);
    }

    pub fn status(&self) -> Value {
        self.command(&["status", "--json"]).succeed().json()
    }

    /// Versions of a table as `versions --json` lists them.
    pub fn versions(&self, table: &str) -> Vec<Value> {
        let listed = self.command(&["versions", "--json", table]).succeed().json();
        listed.as_array().expect("a list of versions").clone()
    }

    /// The generation of a table's newest version.
    pub fn generation(&self, table: &str) -> u64 {
        self.versions(table).last().and_then(|v| v["generation"].as_u64()).expect("a generation")
    }

    /// The newest value of a Delta domain of the table in this folder of the lake.
    pub fn recorded(&self, folder: &str, domain: &str) -> Value {
        let log = self.lake.path().join(folder).join("_delta_log");
        let mut commits: Vec<PathBuf> = std::fs::read_dir(log)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .collect();
        commits.sort();
        let found = commits.iter().rev().find_map(|path| {
            std::fs::read_to_string(path).unwrap().lines().find_map(|line| {
                let action: Value = serde_json::from_str(line).unwrap();
                let of = &action["domainMetadata"];
                let text = (of["domain"] == domain).then(|| of["configuration"].as_str())??;
                serde_json::from_str(text).ok()
            })
        });
        found.unwrap_or_else(|| panic!("no domain {domain} in {folder}"))
    }
}

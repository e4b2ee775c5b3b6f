//! One pipeline of a chaos run: its lake, its settings, and the processes that serve it.

use std::path::PathBuf;

use tempfile::TempDir;

use super::place::{Place, Watch};
use crate::support::folder;
use crate::support::program::Tidegate;

/// Lake and settings.
pub struct Pipeline {
    pub name: String,
    pub config: String,
    pub place: Place,
    watch: Watch,
    /// Of the store, for processes that follow.
    pub faults: Option<String>,
    source: String,
    state: TempDir,
    /// The state folder in use: a second process has another one, as on another machine.
    machine: u32,
    machines: u32,
}

impl Pipeline {
    pub fn new(
        source: &str,
        name: String,
        (config, faults): (String, Option<String>),
        lake: &str,
    ) -> Pipeline {
        let place = Place::new(lake);
        Pipeline {
            watch: Watch::new(),
            name,
            config,
            faults,
            place,
            source: source.to_owned(),
            state: folder("chaos-state"),
            machine: 0,
            machines: 1,
        }
    }

    /// From now on processes run where nobody has an index yet.
    pub fn move_to_new_machine(&mut self) {
        self.machine = self.machines;
        self.machines += 1;
    }

    /// The program with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Tidegate {
        let config = self.state.path().join("tidegate.toml");
        std::fs::write(&config, &self.config)
            .unwrap_or_else(|e| panic!("{}: {e}", config.display()));
        let command = match &self.faults {
            Some(faults) if arguments.contains(&"run") => {
                Tidegate::new(arguments).env("TIDEGATE_STORE_FAULTS", faults)
            }
            _ => Tidegate::new(arguments),
        };
        let command = command
            .env("TIDEGATE_CONFIG", config)
            .env("TIDEGATE_SOURCE", &self.source)
            .env("TIDEGATE_TABLES", "public.*")
            .env("TIDEGATE_NAME", &self.name)
            .env("TIDEGATE_STATE_DIR", self.machine());
        let environment = self.place.environment();
        environment.iter().fold(command, |command, (name, value)| command.env(name, value))
    }

    /// What the ledger says now.
    pub fn look(&mut self) -> &Watch {
        self.watch.look(&self.place);
        &self.watch
    }

    fn machine(&self) -> PathBuf {
        self.state.path().join(format!("machine-{}", self.machine))
    }

    /// Leaves lake and state where they are, and says where.
    pub fn keep(&mut self) -> String {
        self.state.disable_cleanup(true);
        format!("lake {}, state {}", self.place.keep(), self.state.path().display())
    }
}

//! Where a pipeline's lake is, how the program reaches it, and how the run looks into it.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{audit, folder};
use tidegate::position::Lsn;

/// A lake of one pipeline.
pub struct Place {
    folder: TempDir,
}

impl Place {
    /// A new, empty one; `kind` is `local` or `s3`.
    pub fn new(kind: &str) -> Place {
        assert_eq!(kind, "local", "there is no lake of the kind {kind:?} here");
        Place { folder: folder("chaos-lake") }
    }

    /// What the program finds in its environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![("TIDEGATE_LAKE", self.folder.path().display().to_string())]
    }

    /// A local folder with everything that is in the lake now.
    pub fn files(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// One object of it as text, if it is there.
    pub fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.path().join(path)).ok()
    }

    /// Leaves it where it is, to be looked at, and says where.
    pub fn keep(&mut self) -> String {
        self.folder.disable_cleanup(true);
        self.folder.path().display().to_string()
    }
}

/// Follows a ledger's log, reading each commit once.
pub struct Watch {
    next: u64,
    pub phase: String,
    /// The epoch of the process that owns the pipeline.
    pub owner: String,
    pub generation: u64,
    pub fence: Lsn,
    /// The generation the fence is of.
    pub fenced: u64,
}

impl Watch {
    pub fn new() -> Watch {
        Watch {
            next: 0,
            phase: "start".to_owned(),
            owner: String::new(),
            generation: 0,
            fence: Lsn::ZERO,
            fenced: 0,
        }
    }

    /// Takes in what has come.
    pub fn look(&mut self, place: &Place) {
        let path = |version| format!("_tidegate/ledger/_delta_log/{version:020}.json");
        while let Some(text) = place.read(&path(self.next)) {
            let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
            let Ok(lines) = lines else { return };
            self.next += 1;
            let commit = [lines];
            if let Some(state) = audit::domain(&commit, "tidegate.pipeline") {
                self.phase = state["phase"].as_str().unwrap_or_default().to_owned();
                self.generation = state["generation"].as_u64().unwrap_or_default();
            }
            if let Some(writer) = audit::domain(&commit, "tidegate.writer") {
                self.owner = writer["epoch"].as_str().unwrap_or_default().to_owned();
            }
            if let Some(fence) = audit::domain(&commit, "tidegate.fence") {
                self.fence = fence["lsn"].as_str().and_then(|l| l.parse().ok()).unwrap_or_default();
                self.fenced = fence["generation"].as_u64().unwrap_or_default();
            }
        }
    }

    /// Whether the newest generation has its fence, and follows.
    pub fn is_live(&self) -> bool {
        self.phase == "live" && self.fenced == self.generation
    }
}

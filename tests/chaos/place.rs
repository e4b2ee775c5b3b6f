//! Where a pipeline's lake is, how the program reaches it, and how the run looks into it.

use std::path::{Path, PathBuf};

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

    /// What the program is told.
    pub fn location(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// A local folder with everything that is in the lake now.
    pub fn files(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Leaves it where it is, to be looked at.
    pub fn keep(&mut self) {
        self.folder.disable_cleanup(true);
    }
}

/// Follows a ledger's log, reading each commit once.
pub struct Watch {
    log: PathBuf,
    next: u64,
    pub phase: String,
    pub generation: u64,
    pub fence: Lsn,
    /// The generation the fence is of.
    pub fenced: u64,
}

impl Watch {
    pub fn new(lake: &Path) -> Watch {
        Watch {
            log: lake.join("_tidegate/ledger/_delta_log"),
            next: 0,
            phase: "start".to_owned(),
            generation: 0,
            fence: Lsn::ZERO,
            fenced: 0,
        }
    }

    /// Takes in what has come.
    pub fn look(&mut self) {
        while let Ok(text) =
            std::fs::read_to_string(self.log.join(format!("{:020}.json", self.next)))
        {
            let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
            let Ok(lines) = lines else { return };
            self.next += 1;
            let commit = [lines];
            if let Some(state) = audit::domain(&commit, "tidegate.pipeline") {
                self.phase = state["phase"].as_str().unwrap_or_default().to_owned();
                self.generation = state["generation"].as_u64().unwrap_or_default();
            }
            if let Some(fence) = audit::domain(&commit, "tidegate.fence") {
                self.fence = fence["lsn"].as_str().and_then(|l| l.parse().ok()).unwrap_or_default();
                self.fenced = fence["generation"].as_u64().unwrap_or_default();
            }
        }
    }

    /// Whether the newest generation has its fence, and follows.
    pub fn is_live(&mut self) -> bool {
        self.look();
        self.phase == "live" && self.fenced == self.generation
    }
}

//! Where a pipeline's lake is, how the program reaches it, and how the run looks into it.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{audit, deltalog, folder, s3};
use tidegate::position::Lsn;

/// A lake of one pipeline.
pub struct Place {
    /// The lake, or a copy of what is in the bucket.
    folder: TempDir,
    bucket: Option<(s3::Bucket, Arc<dyn ObjectStore>)>,
}

impl Place {
    /// A new, empty one; `kind` is `local` or `s3`.
    pub fn new(kind: &str) -> Place {
        let bucket = match kind {
            "local" => None,
            "s3" => Some(s3::server().bucket("chaos")),
            _ => panic!("LAKE is local or s3, not {kind:?}"),
        };
        let bucket = bucket.map(|bucket| {
            let store = bucket.store();
            (bucket, store)
        });
        Place { folder: folder("chaos-lake"), bucket }
    }

    /// What the program finds in its environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        match &self.bucket {
            Some((bucket, _)) => bucket.environment(),
            None => vec![("TIDEGATE_LAKE", self.folder.path().display().to_string())],
        }
    }

    /// A local folder with everything that is in the lake now.
    pub fn files(&self) -> PathBuf {
        let here = self.folder.path();
        if let Some((_, store)) = &self.bucket {
            let (there, copied) = (deltalog::list(store), deltalog::list(&deltalog::local(here)));
            for gone in copied.keys().filter(|path| !there.contains_key(*path)) {
                std::fs::remove_file(here.join(gone)).expect("a copied file");
            }
            // What has a version or a unique name in its own never changes.
            let changes = |path: &str| path.ends_with("_last_checkpoint");
            for path in there.keys().filter(|path| !copied.contains_key(*path) || changes(path)) {
                let Some(bytes) = get(store, path) else { continue };
                let to = here.join(path);
                std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
                std::fs::write(to, bytes).expect("a copy");
            }
        }
        here.to_owned()
    }

    /// One object of it as text, if it is there.
    pub fn read(&self, path: &str) -> Option<String> {
        match &self.bucket {
            Some((_, store)) => String::from_utf8(get(store, path)?).ok(),
            None => std::fs::read_to_string(self.folder.path().join(path)).ok(),
        }
    }

    /// Leaves it where it is, to be looked at, and says where.
    pub fn keep(&mut self) -> String {
        self.folder.disable_cleanup(true);
        self.folder.path().display().to_string()
    }
}

/// An object's bytes, if it is there.
fn get(store: &Arc<dyn ObjectStore>, path: &str) -> Option<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match store.get(&path.into()).await {
            Ok(found) => Some(found.bytes().await.expect("a whole object").to_vec()),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(e) => panic!("{path}: {e}"),
        }
    })
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

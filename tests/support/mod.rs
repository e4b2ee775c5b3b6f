//! What the integration tests stand on: real servers, a database per test, the program as a user
//! runs it, pauses at named points, and readers as judges.
//!
//! Nothing here sleeps where it can wait for a fact, and nothing waits without a limit.

// Each test binary includes all of it and uses what it needs.
#![allow(dead_code)]

pub mod audit;
pub mod database;
pub mod deltalog;
pub mod disk;
pub mod http_proxy;
pub mod judge;
pub mod pause;
pub mod pipeline;
pub mod program;
pub mod proxy;
pub mod random;
pub mod s3;
pub mod servers;
pub mod site;

use std::path::Path;
use std::time::{Duration, Instant};

/// How long a test waits for something that should take a moment. A busy machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `fact` gives something, and returns it.
///
/// # Panics
/// It gave nothing within `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut fact: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = fact() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `fact` is true.
///
/// # Panics
/// It was not within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut fact: impl FnMut() -> bool) {
    wait_for(what, limit, || fact().then_some(()));
}

/// A new folder that goes with the value: a lake, a state folder, a place for pauses.
pub fn folder(name: &str) -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix(&format!("tidegate-{name}-"))
        .tempdir()
        .unwrap_or_else(|e| panic!("no temporary folder for {name}: {e}"))
}

/// The repository's top folder.
pub fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether a test may go on without a server version or reader that is not here. Never in CI.
pub fn may_miss() -> bool {
    std::env::var_os("TIDEGATE_TEST_ALLOW_MISSING").is_some_and(|v| v == "1")
}

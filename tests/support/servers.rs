//! One server per test binary and version, started at its first use and shared by its tests.
//!
//! A static is never dropped: the server's guardian stops it when this process ends.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tidegate::demo::server::{BinDir, Options, PrivateServer, SUPPORTED, find_major};

use super::{folder, may_miss};

/// The version for tests that run on one only: it has everything but failover slots, and a
/// distribution's build has TLS and all client programs.
pub const USUAL: u32 = 15;

/// The versions to run tests on that run on all: 13 to 18, or `TIDEGATE_TEST_PG_VERSIONS`
/// (such as `13,18`).
///
/// # Panics
/// One is not on this machine, unless `TIDEGATE_TEST_ALLOW_MISSING=1`; a test that silently ran
/// on fewer versions would prove less than its name says.
pub fn versions() -> Vec<u32> {
    let wanted: Vec<u32> = match std::env::var("TIDEGATE_TEST_PG_VERSIONS") {
        Ok(list) if !list.trim().is_empty() => list
            .split(',')
            .map(|v| v.trim().parse().unwrap_or_else(|_| panic!("{v:?} is no major version")))
            .collect(),
        _ => SUPPORTED.collect(),
    };
    let (here, missing): (Vec<u32>, Vec<u32>) =
        wanted.into_iter().partition(|v| find_major(*v).is_some());
    assert!(
        missing.is_empty() || may_miss(),
        "there is no PostgreSQL {missing:?} here; run `make setup` (or, to go without, set \
         TIDEGATE_TEST_ALLOW_MISSING=1 or TIDEGATE_TEST_PG_VERSIONS)"
    );
    assert!(!here.is_empty(), "there is no PostgreSQL server to test with; run `make setup`");
    here
}

/// The programs of a version.
pub fn bin(major: u32) -> BinDir {
    find_major(major).unwrap_or_else(|| panic!("there is no PostgreSQL {major}; run `make setup`"))
}

/// The shared server of a version.
pub fn server(major: u32) -> &'static PrivateServer {
    static SERVERS: [OnceLock<PrivateServer>; 32] = [const { OnceLock::new() }; 32];
    SERVERS[major as usize].get_or_init(|| own_server(major, Options::default()))
}

/// The shared server of the usual version; of the newest that is here, if some may be missing.
pub fn usual() -> &'static PrivateServer {
    let versions = versions();
    let newest = versions.last().copied().unwrap_or(USUAL);
    server(if versions.contains(&USUAL) { USUAL } else { newest })
}

/// A server for one test alone, which may kill it, fill it or set it up in its own way.
pub fn own_server(major: u32, options: Options) -> PrivateServer {
    // The server removes the folder itself.
    let place = folder(&format!("pg{major}")).keep();
    PrivateServer::start(bin(major), &place, options)
        .unwrap_or_else(|e| panic!("PostgreSQL {major} did not start: {e}"))
}

/// A server from a copy of the data directory of one that is stopped.
pub fn copied_server(major: u32, data: &Path, options: Options) -> PrivateServer {
    let place = folder(&format!("pg{major}")).keep();
    PrivateServer::start_from(data, bin(major), &place, options)
        .unwrap_or_else(|e| panic!("a copy of PostgreSQL {major} did not start: {e}"))
}

/// Copies a data directory of a server that is stopped; `to` must not exist.
pub fn copy_data(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(done.is_ok_and(|s| s.success()), "{} can't be copied", from.display());
}

/// `settings` as the options of a server.
pub fn with_settings(settings: &[(&str, &str)]) -> Options {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Options { settings: settings.iter().map(own).collect(), ..Options::default() }
}

/// A client program such as `pgbench` or `psql`: the server's own, else of any version here
/// (packaged servers lack them).
pub fn client_program(server: &PrivateServer, name: &str) -> PathBuf {
    server
        .bin()
        .program(name)
        .or_else(|| SUPPORTED.rev().find_map(|v| find_major(v)?.program(name)))
        .unwrap_or_else(|| panic!("no PostgreSQL here has the program {name}; run `make setup`"))
}

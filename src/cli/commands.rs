//! One function per command: here the command line meets the protocol.

use std::path::Path;

use super::args::{Engine, Until};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::observe::stop::StopSignal;

/// Takes the snapshot if there is none, then follows the changes.
pub async fn run(_config: Config, _until: Until, _stop: StopSignal) -> Result<()> {
    Err(not_built())
}

/// Says what stands in the way of `run`.
pub async fn check(_config: Config, _json: bool) -> Result<()> {
    Err(not_built())
}

/// Says how far the pipeline is. The source is optional: without it the slot is not asked about.
pub async fn status(_config: Config, _json: bool) -> Result<()> {
    Err(not_built())
}

/// Lists the versions of `table` (`schema.table`).
pub async fn versions(_config: Config, _table: &str, _json: bool) -> Result<()> {
    Err(not_built())
}

/// Compares source and lake; no `tables` means all of the pipeline's.
pub async fn verify(
    _config: Config,
    _tables: &[String],
    _json: bool,
    _stop: StopSignal,
) -> Result<()> {
    Err(not_built())
}

/// Prints SQL that opens the tables in `engine`.
pub async fn views(_config: Config, _engine: Engine) -> Result<()> {
    Err(not_built())
}

/// Drops slot and publication.
pub async fn teardown(_config: Config, _yes: bool) -> Result<()> {
    Err(not_built())
}

/// Shows the whole job in `dir`.
pub async fn demo(_dir: &Path, _stop: StopSignal) -> Result<()> {
    Err(not_built())
}

fn not_built() -> Error {
    Error::failed("not built yet")
}

//! The demo: a private server, real data, writers that go on writing, and the lake they end in.

pub mod server;

use std::path::Path;

use crate::error::{Error, Result};
use crate::observe::stop::StopSignal;

/// Shows the whole job in `dir`.
pub async fn run(_dir: &Path, _data: Option<&Path>, _stop: &StopSignal) -> Result<()> {
    Err(Error::failed("to come"))
}

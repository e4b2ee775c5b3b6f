//! The program's edge: reads the command line, sets up logs and runtime, hands over to a command,
//! and turns its error into a message and an exit code.
//!
//! What a command answers goes to standard output; logs, progress and errors go to standard error.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::config::{Config, Flags, Need};
use crate::error::{Error, Result};
use crate::observe::log::{self, LogFormat};
use crate::observe::stop::StopSignal;
use args::{Cli, Command};

pub mod args;
pub mod commands;
pub mod confirm;
pub mod cuts;
pub mod diff;
mod help;
pub mod maintain;
pub mod output;
pub mod schemas;
pub mod status;
pub mod table;
pub mod text;
pub mod views;

/// Runs the program with `args` (the first is its name) and says how it ended.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with 0, everything else to stderr with 2. A reader that
            // has gone away changes neither.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match log::init(cli.logs.log.as_deref(), cli.logs.log_format).and_then(|()| start(cli.command))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn report(error: &Error) {
    match log::format() {
        LogFormat::Text => eprintln!("error: {error}"),
        LogFormat::Json => {
            tracing::error!(kind = ?error.kind(), next = error.next_step(), "{}", error.what());
        }
    }
}

/// How long the end of the process waits for threads that wait for the network.
const LAST_WAIT: Duration = Duration::from_secs(2);

fn start(command: Command) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("tidegate")
        .build()
        .map_err(|error| {
            Error::failed("the asynchronous runtime can't be started").because(error)
        })?;
    let result = runtime.block_on(dispatch(command));
    // A thread may still wait for the server, for a result that nobody wants any more.
    runtime.shutdown_timeout(LAST_WAIT);
    result
}

async fn dispatch(command: Command) -> Result<()> {
    use Need::{Lake, Source, Tables};
    match command {
        Command::Run(args) => {
            let config = load(&args.flags(), &[Source, Lake, Tables])?;
            commands::run(config, args.until(), args.resnapshot, StopSignal::install()?).await
        }
        Command::Check(args) => {
            commands::check(load(&args.flags(), &[Source, Lake, Tables])?, args.json).await
        }
        Command::Status(args) => commands::status(load(&args.flags(), &[Lake])?, args.json).await,
        Command::Versions(args) => {
            let config = load(&args.flags(), &[Lake])?;
            let (table, at) = (args.table.as_deref(), args.at.as_deref());
            commands::versions(config, table, at, &args.filter(), args.json).await
        }
        Command::Verify(args) => {
            let config = load(&args.flags(), &[Source, Lake])?;
            commands::verify(config, &args.tables, args.json, StopSignal::install()?).await
        }
        Command::Views(args) => {
            let config = load(&args.flags(), &[Lake])?;
            commands::views(config, args.engine, args.at.as_deref()).await
        }
        Command::Diff(args) => diff::diff(load(&args.flags(), &[Lake])?, args.request()).await,
        Command::Maintain(args) => {
            let config = load(&args.flags(), &[Lake])?;
            let stop = StopSignal::install()?;
            maintain::maintain(config, &args.tables, args.dry_run, args.json, stop).await
        }
        Command::Pin(args) => {
            maintain::pin(load(&args.flags(), &[Lake])?, &args.pin, args.at.as_deref(), args.json)
                .await
        }
        Command::Unpin(args) => maintain::unpin(load(&args.flags(), &[Lake])?, &args.pin).await,
        Command::Teardown(args) => {
            commands::teardown(load(&args.flags(), &[Source, Lake])?, args.yes).await
        }
        Command::Reseed(args) => {
            commands::reseed(load(&args.flags(), &[Lake])?, &args.tables).await
        }
        Command::Demo(args) => {
            commands::demo(&args.dir, args.data.as_deref(), StopSignal::install()?).await
        }
        Command::DevSchemas { dir } => schemas::write(&dir),
    }
}

fn load(flags: &Flags, needs: &[Need]) -> Result<Config> {
    let config = Config::load(flags)?;
    config.require(needs)?;
    tracing::debug!("configuration: {}", config.redacted());
    Ok(config)
}

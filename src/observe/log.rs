//! Logs: events to stderr, as text for people or as one JSON object a line for collectors.
//!
//! Standard output is never written to: it belongs to what a command answers. A progress bar on
//! the same terminal is moved out of the way for each line.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use indicatif::ProgressBar;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::error::{Error, Result};

/// How an event is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

static FORMAT: OnceLock<LogFormat> = OnceLock::new();
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Starts logging for the whole process. Only the first call counts.
///
/// `filter` is a level (`debug`: for Tidegate, others at `warn`) or directives such as
/// `tidegate=debug,object_store=info`. The default is `info` for Tidegate and `warn` for others.
///
/// # Errors
/// [`crate::error::Kind::Config`]: a filter that can't be read.
pub fn init(filter: Option<&str>, format: LogFormat) -> Result<()> {
    let filter = directives(filter);
    let filter = EnvFilter::builder().parse(&filter).map_err(|error| {
        Error::config(format!("the log filter {filter:?} can't be read"))
            .because(error)
            .next("give --log or TIDEGATE_LOG a level (error, warn, info, debug, trace) or directives such as tidegate=debug")
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(BehindBar)
        .with_ansi(colour(&io::stderr()));
    // A second subscriber is refused; the first one, of the same program, then goes on.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    let _ = FORMAT.set(format);
    Ok(())
}

fn directives(filter: Option<&str>) -> String {
    // It warns of statistics of files that a change of a column's type left behind.
    const QUIET: &str = "buoyant_kernel=error";
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    match filter.map(str::trim).filter(|text| !text.is_empty()) {
        None => format!("warn,{QUIET},tidegate=info"),
        Some("off") => "off".to_owned(),
        Some(level) if LEVELS.contains(&level.to_ascii_lowercase().as_str()) => {
            let others = if level.eq_ignore_ascii_case("error") { "error" } else { "warn" };
            format!("{others},tidegate={level}")
        }
        Some(directives) => directives.to_owned(),
    }
}

/// The format of the process's logs.
pub fn format() -> LogFormat {
    FORMAT.get().copied().unwrap_or_default()
}

/// Whether colour may be used on `stream`: a terminal, and NO_COLOR not set (no-color.org).
pub fn colour(stream: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && capable(stream)
}

/// Whether `stream` is a terminal that can move its cursor.
fn capable(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether a progress bar may be drawn: logs as text on a capable terminal.
pub fn bars_allowed() -> bool {
    format() == LogFormat::Text && capable(&io::stderr())
}

/// Makes `bar` the one that lines are written around; `None` when it is gone.
pub(super) fn set_bar(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Writes to stderr, with the progress bar out of the way.
struct BehindBar;

impl MakeWriter<'_> for BehindBar {
    type Writer = BehindBar;

    fn make_writer(&self) -> BehindBar {
        BehindBar
    }
}

impl Write for BehindBar {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line)?;
        Ok(line.len())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match bar {
            Some(bar) => bar.suspend(|| io::stderr().write_all(line)),
            None => io::stderr().write_all(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_level_does_not_open_the_flood_of_dependencies() {
        assert_eq!(directives(None), "warn,buoyant_kernel=error,tidegate=info");
        assert_eq!(directives(Some(" ")), directives(None));
        assert_eq!(directives(Some("debug")), "warn,tidegate=debug");
        assert_eq!(directives(Some("error")), "error,tidegate=error");
        assert_eq!(directives(Some("off")), "off");
        assert_eq!(directives(Some("info,hyper=debug")), "info,hyper=debug");
    }

    #[test]
    fn a_filter_that_can_not_be_read_is_a_usage_error() {
        let error = init(Some("tidegate=loud"), LogFormat::Text).unwrap_err();
        assert_eq!(error.kind(), crate::error::Kind::Config);
    }
}

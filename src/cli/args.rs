//! The command line: what can be asked for, and help that teaches.
//!
//! Only reads; what is missing or out of range is judged once flags, environment and file have been
//! laid over each other (`crate::config`). Wrong usage exits 2, as clap does.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use super::cuts::{Bound, Filter};
use super::diff::Request;
use super::help::{
    CHECK_HELP, DEMO_HELP, DIFF_HELP, MAIN_HELP, MAINTAIN_HELP, PIN_HELP, RUN_HELP, STATUS_HELP,
    TEARDOWN_HELP, VERIFY_HELP, VERSIONS_HELP, VIEWS_HELP,
};
use crate::config::{Flags, OnLostHistory, units};
use crate::diff::output::Format;
use crate::lake::VersionKind;
use crate::observe::log::LogFormat;
use crate::position::Lsn;

/// Replicates PostgreSQL tables into Delta Lake: a validated snapshot, then every committed change.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, after_help = MAIN_HELP, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub logs: Logs,
}

/// How to log, for every command. Logs go to standard error.
#[derive(Debug, Args)]
pub struct Logs {
    /// What to log: a level (error, warn, info, debug, trace) or directives such as
    /// tidegate=debug,object_store=info
    #[arg(
        long,
        value_name = "FILTER",
        env = "TIDEGATE_LOG",
        hide_env_values = true,
        global = true,
        help_heading = "Logs"
    )]
    pub log: Option<String>,
    /// How to log: lines for people, or one JSON object a line
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TIDEGATE_LOG_FORMAT",
        hide_env_values = true,
        default_value = "text",
        global = true,
        help_heading = "Logs"
    )]
    pub log_format: LogFormat,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take the snapshot if there is none, then follow every committed change
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Say what stands in the way of `run`, and the SQL that mends it
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Say how far the pipeline is, table by table
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),
    /// List a table's versions with the positions they show, or name those of one cut
    #[command(after_help = VERSIONS_HELP)]
    Versions(VersionsArgs),
    /// Compare source and lake exactly, row by row
    #[command(after_help = VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Print SQL or code that opens the tables in another program, all at one fence
    #[command(after_help = VIEWS_HELP)]
    Views(ViewsArgs),
    /// Say what became of a table's rows between two of its versions
    #[command(after_help = DIFF_HELP)]
    Diff(DiffArgs),
    /// Merge files and remove old versions, by hand
    #[command(after_help = MAINTAIN_HELP)]
    Maintain(MaintainArgs),
    /// Name a cut of all tables that no clean-up removes
    #[command(after_help = PIN_HELP)]
    Pin(PinArgs),
    /// Let a named cut go
    Unpin(UnpinArgs),
    /// Drop the slot and the publication on the source; the lake stays
    #[command(after_help = TEARDOWN_HELP)]
    Teardown(TeardownArgs),
    /// Read tables again from the source, beside the stream of the others
    Reseed(ReseedArgs),
    /// Show the whole job on a private PostgreSQL, in under a minute
    #[command(after_help = DEMO_HELP)]
    Demo(DemoArgs),
    /// Write the JSON Schemas of configuration and outputs
    #[command(hide = true)]
    DevSchemas {
        /// Folder to write to
        #[arg(value_name = "DIR", default_value = "schemas")]
        dir: PathBuf,
    },
}

/// Which pipeline.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pipeline")]
pub struct PipelineArgs {
    /// Where the Delta tables are: a folder, or file://, s3://, gs://, az:// [env: TIDEGATE_LAKE]
    #[arg(long, value_name = "FOLDER|URL", value_hint = ValueHint::AnyPath)]
    pub lake: Option<String>,
    /// Name of pipeline, slot and publication [env: TIDEGATE_NAME] [default: tidegate]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Configuration file [env: TIDEGATE_CONFIG] [default: tidegate.toml, if it exists]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

/// Which database.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pipeline")]
pub struct SourceArgs {
    /// PostgreSQL to read from: postgres://user@host/database, or key=value as libpq takes it
    /// [env: TIDEGATE_SOURCE]
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub source: Option<String>,
}

/// Which tables.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pipeline")]
pub struct TablesArgs {
    /// Tables, separated by commas: 'public.*,shop.orders' [env: TIDEGATE_TABLES]
    #[arg(long, value_name = "PATTERNS")]
    pub tables: Option<String>,
}

/// Where local files go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pipeline")]
pub struct StateArgs {
    /// Folder for local files that can be made again from the lake [env: TIDEGATE_STATE_DIR]
    /// [default: the user's cache folder]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
}

/// `tidegate run`
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    state: StateArgs,
    /// End once everything that had committed at the start is in the lake
    #[arg(long, help_heading = "End")]
    until_caught_up: bool,
    /// End once everything that committed before this position is in the lake
    #[arg(long, value_name = "X/Y", conflicts_with = "until_caught_up", help_heading = "End")]
    until_lsn: Option<Lsn>,
    /// Give the recorded history up: take a new snapshot as a new generation. The tables stay as
    /// they are, and readable, until the new snapshot replaces them
    #[arg(long, help_heading = "History")]
    pub resnapshot: bool,
    /// What to do when the source does not continue what the lake holds: stop with exit code 5, or
    /// take a new generation as --resnapshot does
    #[arg(long, value_name = "WHAT", value_enum, help_heading = "History")]
    on_lost_history: Option<OnLostHistory>,
    /// Longest wait of a committed change for its commit in the lake, such as 10s or 250ms
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration, help_heading = "Speed")]
    interval: Option<Duration>,
    /// Connections that copy the snapshot at the same time
    #[arg(long, value_name = "NUMBER", help_heading = "Speed")]
    workers: Option<usize>,
}

/// When `run` ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Not before it is stopped.
    Stopped,
    /// Once everything that had committed at the start is visible.
    CaughtUp,
    /// Once everything that committed before the position is visible.
    Lsn(Lsn),
}

impl RunArgs {
    /// When to end.
    pub fn until(&self) -> Until {
        match self.until_lsn {
            Some(lsn) => Until::Lsn(lsn),
            None if self.until_caught_up => Until::CaughtUp,
            None => Until::Stopped,
        }
    }

    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            source: self.source.source.clone(),
            tables: self.tables.tables.clone(),
            state_dir: self.state.state_dir.clone(),
            interval: self.interval,
            workers: self.workers,
            on_lost_history: self.on_lost_history,
            ..self.pipeline.flags()
        }
    }
}

impl PipelineArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            lake: self.lake.clone(),
            name: self.name.clone(),
            ..Flags::default()
        }
    }
}

/// `tidegate check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    tables: TablesArgs,
    /// Answer in JSON (schemas/check.schema.json)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl CheckArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            source: self.source.source.clone(),
            tables: self.tables.tables.clone(),
            ..self.pipeline.flags()
        }
    }
}

/// `tidegate status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Answer in JSON (schemas/status.schema.json)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl StatusArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        Flags { source: self.source.source.clone(), ..self.pipeline.flags() }
    }
}

/// `tidegate versions`
#[derive(Debug, Args)]
pub struct VersionsArgs {
    /// The table, as schema.table
    #[arg(value_name = "TABLE", required_unless_present = "at")]
    pub table: Option<String>,
    /// Only what shows one cut of all tables: a position (16/B374D848), a time (RFC 3339), or a
    /// version of a table (schema.table@12). Without TABLE, the version of every table
    #[arg(long, value_name = "LSN|TIME|VERSION")]
    pub at: Option<String>,
    /// Only versions of these kinds, separated by commas: handoff, changes, reseed, schema,
    /// truncate, compaction, takeover, foreign
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        value_parser = kind,
        requires = "table",
        help_heading = "Filters"
    )]
    kind: Vec<VersionKind>,
    /// Only versions that show this position or a later one, or were committed at this time or later
    #[arg(long, value_name = "LSN|TIME", value_parser = Bound::parse, requires = "table", help_heading = "Filters")]
    since: Option<Bound>,
    /// Only versions that show this position or an earlier one, or were committed at this time or
    /// earlier
    #[arg(long, value_name = "LSN|TIME", value_parser = Bound::parse, requires = "table", help_heading = "Filters")]
    until: Option<Bound>,
    /// Only the newest so many of them
    #[arg(long, value_name = "NUMBER", requires = "table", help_heading = "Filters")]
    last: Option<usize>,
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Answer in JSON (schemas/versions.schema.json; schemas/cut.schema.json without TABLE)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl VersionsArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        self.pipeline.flags()
    }

    /// Which versions are listed.
    pub fn filter(&self) -> Filter {
        Filter { kinds: self.kind.clone(), since: self.since, until: self.until, last: self.last }
    }
}

/// `tidegate verify`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The tables, each as schema.table; all of the pipeline's if none is given
    #[arg(value_name = "TABLE")]
    pub tables: Vec<String>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Answer in JSON (schemas/verify.schema.json)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl VerifyArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            source: self.source.source.clone(),
            state_dir: self.state.state_dir.clone(),
            ..self.pipeline.flags()
        }
    }
}

fn kind(text: &str) -> Result<VersionKind, String> {
    use VersionKind::{Changes, Compaction, Foreign, Handoff, Reseed, Schema, Takeover, Truncate};
    let kinds = [Handoff, Changes, Reseed, Schema, Truncate, Compaction, Takeover, Foreign];
    let names = || kinds.map(VersionKind::as_str).join(", ");
    let found = kinds.into_iter().find(|kind| kind.as_str() == text);
    found.ok_or_else(|| format!("no such kind; give {}", names()))
}

/// The programs `views` writes SQL or code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// DuckDB with its extension `delta`
    Duckdb,
    /// Spark SQL with Delta Lake
    Spark,
    /// Polars, in Python
    Polars,
}

/// `tidegate views`
#[derive(Debug, Args)]
pub struct ViewsArgs {
    /// The program that will read the SQL or run the code
    #[arg(value_name = "ENGINE")]
    pub engine: Engine,
    /// The cut: a position (16/B374D848), a time (RFC 3339), or a version of a table
    /// (schema.table@12; 12 alone if there is one table). The newest if it is left out
    #[arg(long, value_name = "LSN|TIME|VERSION")]
    pub at: Option<String>,
    #[command(flatten)]
    pipeline: PipelineArgs,
}

impl ViewsArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        self.pipeline.flags()
    }
}

/// `tidegate diff`
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The table, as schema.table
    #[arg(value_name = "TABLE")]
    table: String,
    /// The one version: its number, the name of a pin, a position (16/B374D848), or a time (RFC 3339)
    #[arg(long, value_name = "VERSION|PIN|LSN|TIME")]
    from: String,
    /// The other. The newest if it is left out
    #[arg(long, value_name = "VERSION|PIN|LSN|TIME")]
    to: Option<String>,
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// How the rows are written
    #[arg(long, value_name = "FORMAT", default_value = "json", help_heading = "Output")]
    format: Format,
    /// Write them to this file, which appears when it is whole; to standard output if it is left out
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    output: Option<PathBuf>,
    /// Only say how many rows changed (schemas/diff.schema.json)
    #[arg(long, conflicts_with_all = ["format", "output"], help_heading = "Output")]
    summary: bool,
}

impl DiffArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        self.pipeline.flags()
    }

    /// What is asked for.
    pub fn request(self) -> Request {
        let DiffArgs { table, from, to, format, output, summary, .. } = self;
        Request { table, from, to, summary, format, output }
    }
}

/// `tidegate maintain`
#[derive(Debug, Args)]
pub struct MaintainArgs {
    /// The tables, each as schema.table; all of the pipeline's if none is given
    #[arg(value_name = "TABLE")]
    pub tables: Vec<String>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Say what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Answer in JSON (schemas/maintain.schema.json)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl MaintainArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            source: self.source.source.clone(),
            state_dir: self.state.state_dir.clone(),
            ..self.pipeline.flags()
        }
    }
}

/// `tidegate pin`
#[derive(Debug, Args)]
pub struct PinArgs {
    /// Name of the pin
    #[arg(value_name = "NAME")]
    pub pin: String,
    /// The cut: a position (16/B374D848), a time (RFC 3339), or a version of a table
    /// (schema.table@12; 12 alone if there is one table). The newest if it is left out
    #[arg(long, value_name = "LSN|TIME|VERSION")]
    pub at: Option<String>,
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Answer in JSON (schemas/pin.schema.json)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl PinArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        self.pipeline.flags()
    }
}

/// `tidegate unpin`
#[derive(Debug, Args)]
pub struct UnpinArgs {
    /// Name of the pin
    #[arg(value_name = "NAME")]
    pub pin: String,
    #[command(flatten)]
    pipeline: PipelineArgs,
}

impl UnpinArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        self.pipeline.flags()
    }
}

/// `tidegate reseed`
#[derive(Debug, Args)]
pub struct ReseedArgs {
    /// The tables, each as schema.table
    #[arg(value_name = "TABLE", required_unless_present = "all", conflicts_with = "all")]
    pub tables: Vec<String>,
    /// All tables of the pipeline
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pipeline: PipelineArgs,
}

impl ReseedArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        self.pipeline.flags()
    }
}

/// `tidegate teardown`
#[derive(Debug, Args)]
pub struct TeardownArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Don't ask
    #[arg(long, short)]
    pub yes: bool,
}

impl TeardownArgs {
    /// What goes into the configuration.
    pub fn flags(&self) -> Flags {
        Flags { source: self.source.source.clone(), ..self.pipeline.flags() }
    }
}

/// `tidegate demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Where lake and server go; emptied first if it is from an earlier demo
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "tidegate-demo")]
    pub dir: PathBuf,
    /// Folder with flights.csv, airlines.csv, airports.csv, planes.csv and weather.csv; without it
    /// the demo makes rows of its own
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_ends_as_it_was_told() {
        let until = |args: &[&str]| match Cli::try_parse_from([&["tidegate", "run"], args].concat())
        {
            Ok(Cli { command: Command::Run(run), .. }) => Ok(run.until()),
            Ok(_) => unreachable!(),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(until(&[]), Ok(Until::Stopped));
        assert_eq!(until(&["--until-caught-up"]), Ok(Until::CaughtUp));
        assert_eq!(until(&["--until-lsn", "0/1f"]), Ok(Until::Lsn(Lsn::new(31))));
        assert!(until(&["--until-lsn", "31"]).unwrap_err().contains("16/B374D848"));
        assert!(
            until(&["--until-lsn", "0/1f", "--until-caught-up"])
                .unwrap_err()
                .contains("cannot be used with")
        );
        assert!(until(&["--interval", "5"]).unwrap_err().contains("its unit"));
    }
}

//! What a pipeline is told to do: flags over environment over `tidegate.toml`.
//!
//! Carries the guarantee that nothing given is silently ignored, nothing missing is guessed, and no
//! secret is shown: an unknown key is an error, a value out of range is an error, and what may hold
//! a password has no `Debug` or `Display` that prints it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::failpoint;
use crate::source::catalog::Treatments;

mod columns;
mod file;
mod http;
mod secret;
pub mod units;

pub use file::{
    File, Format, Handoff, Http, Limits, Maintenance, OnLostHistory, OnSchemaChange, OnWalLimit,
    Patterns, Retain, Stream,
};
pub use http::Token;
pub use secret::{redact, redact_location};

/// The file that is read from the working folder when no other is named.
pub const DEFAULT_FILE: &str = "tidegate.toml";
/// The name of a pipeline that was given none.
pub const DEFAULT_NAME: &str = "tidegate";

/// What the command line says. `None` leaves it to the environment and the file.
#[derive(Clone, Default)]
pub struct Flags {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--source`
    pub source: Option<String>,
    /// `--lake`
    pub lake: Option<String>,
    /// `--name`
    pub name: Option<String>,
    /// `--tables`, patterns separated by commas
    pub tables: Option<String>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--interval`
    pub interval: Option<Duration>,
    /// `--workers`
    pub workers: Option<usize>,
    /// `--on-lost-history`
    pub on_lost_history: Option<OnLostHistory>,
}

/// Where the rows come from.
#[derive(Clone)]
pub struct Source {
    /// URL or `key=value` string; may hold a password.
    pub url: String,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
}

impl Source {
    /// The password from the password file, read now; `None` where no file is configured.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`]: the file can't be read or is empty.
    pub fn password(&self) -> Result<Option<String>> {
        let Some(path) = &self.password_file else { return Ok(None) };
        secret::first_line(path, "password_file").map(Some)
    }

    /// The URL without its password, for messages.
    pub fn redacted(&self) -> String {
        redact(&self.url)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("url", &self.redacted())
            .field("password_file", &self.password_file)
            .finish()
    }
}

/// The configuration a command works with: complete but for what that command does not need.
#[derive(Clone)]
pub struct Config {
    /// Pipeline, slot and publication; matches `[a-z0-9_]{1,40}`.
    pub name: String,
    /// What the added columns begin with.
    pub column_prefix: String,
    /// What to do when the source does not continue what the lake holds.
    pub on_lost_history: OnLostHistory,
    /// What to do with a table whose change its rows can't follow in place.
    pub on_schema_change: OnSchemaChange,
    /// The first snapshot.
    pub handoff: Handoff,
    /// Following the changes.
    pub stream: Stream,
    /// What may grow, and how far.
    pub limits: Limits,
    /// Keeping the lake small and quick to read.
    pub maintenance: Maintenance,
    /// Metrics, health and the status page.
    pub http: Http,
    /// What is said of columns.
    pub treatments: Treatments,
    /// Folder for what can be made again from the lake; not created yet.
    pub state_dir: PathBuf,
    source: Option<Source>,
    lake: Option<String>,
    tables: Vec<String>,
}

/// What a command can't do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The database.
    Source,
    /// The folder or bucket.
    Lake,
    /// The table patterns.
    Tables,
}

impl Need {
    fn how(self) -> &'static str {
        match self {
            Need::Source => {
                "the source database (--source URL, TIDEGATE_SOURCE, or `url` under [source])"
            }
            Need::Lake => "the lake (--lake FOLDER_OR_URL, TIDEGATE_LAKE, or `lake`)",
            Need::Tables => {
                "the tables (--tables 'public.*,shop.orders', TIDEGATE_TABLES, or `tables`)"
            }
        }
    }
}

impl Config {
    /// Reads the process's environment and the file that the flags, TIDEGATE_CONFIG or the working
    /// folder name.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`]: a named file that can't be read, or as [`Config::resolve`].
    pub fn load(flags: &Flags) -> Result<Config> {
        let env =
            |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let named =
            flags.config.clone().or_else(|| set(&env, "TIDEGATE_CONFIG").map(PathBuf::from));
        let explicit = named.is_some();
        let path = named.unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !explicit => None,
            Err(error) => {
                return Err(Error::config(format!(
                    "the configuration {} can't be read",
                    path.display()
                ))
                .because(error)
                .next("correct --config or TIDEGATE_CONFIG, or make the file readable"));
            }
        };
        Config::resolve(flags, &env, text.as_deref().map(|text| (path.as_path(), text)))
    }

    /// Lays flags over environment over file. An environment variable that is set but empty counts
    /// as not set. Relative paths in the file are relative to the file's folder.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`], naming the flag, variable or key that is wrong.
    pub fn resolve(
        flags: &Flags,
        env: &dyn Fn(&str) -> Option<String>,
        file: Option<(&Path, &str)>,
    ) -> Result<Config> {
        let (path, mut file) = match file {
            Some((path, text)) => (path, file::parse(path, text)?),
            None => (Path::new(DEFAULT_FILE), File::default()),
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let fill = |key: &str, text: Option<String>| match text {
            Some(text) => secret::interpolate(&text, env)
                .map(Some)
                .map_err(|wrong| Error::config(wrong).at(format!("{} `{key}`", path.display()))),
            None => Ok(None),
        };
        let fill_path = |key: &str, text: Option<PathBuf>| -> Result<Option<PathBuf>> {
            Ok(fill(key, text.map(|p| p.to_string_lossy().into_owned()))?
                .map(|text| folder.join(text)))
        };

        let url = match flags.source.clone().or_else(|| set(env, "TIDEGATE_SOURCE")) {
            Some(url) => Some(url),
            None => fill("source.url", file.source.url.take())?,
        };
        let password_file = fill_path("source.password_file", file.source.password_file.take())?;
        file.http.token_file = fill_path("http.token_file", file.http.token_file.take())?;
        let lake = match flags.lake.clone().or_else(|| set(env, "TIDEGATE_LAKE")) {
            Some(lake) => Some(lake),
            None => fill("lake", file.lake.take())?.map(|lake| match lake.contains("://") {
                true => lake,
                false => folder.join(lake).to_string_lossy().into_owned(),
            }),
        };
        let name = flags
            .name
            .clone()
            .or_else(|| set(env, "TIDEGATE_NAME"))
            .or(file.name.take())
            .unwrap_or_else(|| DEFAULT_NAME.to_owned());
        check_name(&name)?;
        let tables = match (
            flags.tables.clone().or_else(|| set(env, "TIDEGATE_TABLES")),
            file.tables.take(),
        ) {
            (Some(text), _) | (None, Some(Patterns::Text(text))) => split_patterns(&text)?,
            (None, Some(Patterns::List(list))) => split_patterns(&list.join(","))?,
            (None, None) => Vec::new(),
        };
        let key_file = fill_path("hash_key_file", file.hash_key_file.take())?;
        let treatments = columns::treatments(&name, &file.columns, key_file.as_deref(), env)?
            .keeping_deleted(&file.soft_delete.as_ref().map(Patterns::list).unwrap_or_default())
            .map_err(|error| error.at("`soft_delete`"))?;
        let state_dir = match flags
            .state_dir
            .clone()
            .or_else(|| set(env, "TIDEGATE_STATE_DIR").map(PathBuf::from))
        {
            Some(dir) => dir,
            None => fill_path("state.dir", file.state.dir.take())?
                .unwrap_or_else(|| default_state_dir(env, &name)),
        };
        let column_prefix = file.column_prefix.take().unwrap_or_else(|| "_tg_".to_owned());
        check_prefix(&column_prefix)?;
        let mut config = Config {
            name,
            column_prefix,
            on_lost_history: flags.on_lost_history.or(file.on_lost_history).unwrap_or_default(),
            on_schema_change: file.on_schema_change.unwrap_or_default(),
            handoff: file.handoff,
            stream: file.stream,
            limits: file.limits,
            maintenance: file.maintenance,
            http: file.http,
            treatments,
            state_dir,
            source: url
                .filter(|url| !url.trim().is_empty())
                .map(|url| Source { url, password_file }),
            lake: lake.filter(|lake| !lake.trim().is_empty()),
            tables,
        };
        config.stream.interval = flags.interval.unwrap_or(config.stream.interval);
        config.handoff.workers = flags.workers.or(config.handoff.workers);
        config.check_ranges()?;
        Ok(config)
    }

    /// Says everything at once that a command needs and nobody gave.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`], with flag, variable and key of each.
    pub fn require(&self, needs: &[Need]) -> Result<()> {
        let missing: Vec<&str> = needs
            .iter()
            .filter(|need| match need {
                Need::Source => self.source.is_none(),
                Need::Lake => self.lake.is_none(),
                Need::Tables => self.tables.is_empty(),
            })
            .map(|need| need.how())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let next = match missing.len() {
            1 => "give it as a flag, as an environment variable or in tidegate.toml",
            _ => "give each as a flag, as an environment variable or in tidegate.toml",
        };
        Err(Error::config(format!("not given: {}", missing.join("; "))).next(next))
    }

    /// The database.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn source(&self) -> Result<&Source> {
        self.source.as_ref().ok_or_else(|| self.missing(Need::Source))
    }

    /// The lake's folder or URL.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn lake(&self) -> Result<&str> {
        self.lake.as_deref().ok_or_else(|| self.missing(Need::Lake))
    }

    /// The table patterns, at least one.
    ///
    /// # Errors
    /// As [`Config::require`].
    pub fn tables(&self) -> Result<&[String]> {
        if self.tables.is_empty() { Err(self.missing(Need::Tables)) } else { Ok(&self.tables) }
    }

    fn missing(&self, need: Need) -> Error {
        self.require(&[need]).err().unwrap_or_else(|| Error::config(need.how()))
    }

    /// One line for logs and messages, without secrets.
    pub fn redacted(&self) -> String {
        format!(
            "name={} source={} lake={} tables={} workers={} interval={} state={}",
            self.name,
            self.source.as_ref().map_or_else(|| "-".to_owned(), Source::redacted),
            self.lake.as_deref().map_or_else(|| "-".to_owned(), redact_location),
            if self.tables.is_empty() { "-".to_owned() } else { self.tables.join(",") },
            self.handoff.worker_count(),
            units::duration_text(self.stream.interval),
            self.state_dir.display(),
        )
    }

    fn check_ranges(&self) -> Result<()> {
        let second = Duration::from_secs(1);
        duration_in(
            "[stream] interval (--interval)",
            self.stream.interval,
            second / 10,
            second * 3600,
        )?;
        duration_in("[limits] connect_timeout", self.limits.connect_timeout, second, second * 600)?;
        duration_in(
            "[limits] source_timeout",
            self.limits.source_timeout,
            second * 2,
            second * 3600,
        )?;
        duration_in("[limits] takeover_after", self.limits.takeover_after, second, second * 600)?;
        size_from("[handoff] chunk_bytes", self.handoff.chunk_bytes, 1 << 20)?;
        size_from("[stream] max_batch_bytes", self.stream.max_batch_bytes, 1 << 20)?;
        size_from("[limits] memory_bytes", self.limits.memory_bytes, 64 << 20)?;
        size_from("[limits] index_memory_bytes", self.limits.index_memory_bytes, 16 << 20)?;
        size_from("[handoff] spool_segment_bytes", self.handoff.spool_segment_bytes, 64 << 10)?;
        size_from("[limits] spool_bytes", self.limits.spool_bytes, 1 << 20)?;
        duration_in(
            "[handoff] spool_interval",
            self.handoff.spool_interval,
            second / 10,
            second * 600,
        )?;
        if let Some(bytes) = self.handoff.max_retained_wal {
            size_from("[handoff] max_retained_wal", bytes, 1 << 20)?;
        }
        if !(0.1..=1.0).contains(&self.handoff.wal_guard_share) {
            return Err(out_of_range("[handoff] wal_guard_share", "0.1 to 1"));
        }
        size_from("[limits] reread_bytes", self.limits.reread_bytes, 1 << 20)?;
        let age = self.handoff.max_snapshot_age;
        if !age.is_zero() && age < second {
            return Err(out_of_range(
                "[handoff] max_snapshot_age",
                "1s or more, or 0s for no limit",
            ));
        }
        let maintenance = &self.maintenance;
        size_from("[maintenance] target_file_bytes", maintenance.target_file_bytes, 64 << 10)?;
        if !(1..=90).contains(&maintenance.max_masked_percent) {
            return Err(out_of_range("[maintenance] max_masked_percent", "1 to 90"));
        }
        let years = second * 3600 * 24 * 36500;
        duration_in("[maintenance] clean_every", maintenance.clean_every, second, years)?;
        // A writer that slept through the clean-up finds out only if it could not sleep longer.
        let least = if failpoint::wrong("short-retention") { Duration::ZERO } else { second * 120 };
        duration_in(
            "[maintenance] retain_versions_for",
            maintenance.retain_versions_for,
            least,
            years,
        )?;
        if self.handoff.workers.is_some_and(|workers| !(1..=64).contains(&workers)) {
            return Err(out_of_range("[handoff] workers (--workers)", "1 to 64"));
        }
        self.http.check()?;
        if self.stream.max_batch_rows == 0 {
            return Err(out_of_range("[stream] max_batch_rows", "1 or more"));
        }
        Ok(())
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({})", self.redacted())
    }
}

fn set(env: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    env(name).filter(|value| !value.is_empty())
}

fn out_of_range(key: &str, range: &str) -> Error {
    Error::config(format!("{key} is out of range")).next(format!("give {range}"))
}

fn duration_in(key: &str, value: Duration, low: Duration, high: Duration) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(out_of_range(
        key,
        &format!("{} to {}", units::duration_text(low), units::duration_text(high)),
    ))
}

fn size_from(key: &str, value: u64, low: u64) -> Result<()> {
    if value >= low {
        Ok(())
    } else {
        Err(out_of_range(key, &format!("at least {}", units::bytes_text(low))))
    }
}

/// The name becomes part of names in PostgreSQL: a slot takes only these characters.
fn check_name(name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if (1..=40).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(Error::config(format!(
        "{name:?} can't name a pipeline: it also names a replication slot and a publication"
    ))
    .next("use 1 to 40 of a-z, 0-9 and _ in --name, TIDEGATE_NAME or `name`"))
}

fn check_prefix(prefix: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let starts = prefix.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if starts && prefix.len() <= 20 && prefix.bytes().all(plain) {
        return Ok(());
    }
    Err(Error::config(format!("`column_prefix` {prefix:?} can't begin a column's name"))
        .next("use 1 to 20 of a-z, 0-9 and _, the first not a digit"))
}

/// Splits at commas that stand outside double quotes.
fn split_patterns(text: &str) -> Result<Vec<String>> {
    let mut quoted = false;
    let parts = text.split(|c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    let parts: Vec<String> =
        parts.map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if quoted {
        return Err(Error::config(format!(
            "the table patterns {text:?} have a double quote without its partner"
        ))
        .next("quote as PostgreSQL does: \"My Schema\".\"My Table\""));
    }
    Ok(parts)
}

fn default_state_dir(env: &dyn Fn(&str) -> Option<String>, name: &str) -> PathBuf {
    let absolute = |path: &PathBuf| path.is_absolute() && path.parent().is_some();
    let cache = set(env, "XDG_CACHE_HOME").map(PathBuf::from).filter(absolute);
    let home =
        || set(env, "HOME").map(PathBuf::from).filter(absolute).map(|home| home.join(".cache"));
    cache.or_else(home).unwrap_or_else(|| PathBuf::from("/var/cache")).join("tidegate").join(name)
}

#[cfg(test)]
mod tests;

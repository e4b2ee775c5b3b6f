//! `tidegate.toml`: what may stand in it, and messages that name the line and the nearest key.
//!
//! The structs here are the one list of keys: the JSON Schema in `schemas/` and the check for
//! unknown keys both come from them, and their doc comments are what an editor shows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use super::columns::ColumnsFile;
use super::units;
use crate::error::{Error, Result};

/// The configuration of one Tidegate pipeline.
///
/// Flags win over environment variables, and those over this file. Every key has a default or is
/// named by the error that misses it. In `source.url`, `lake`, `state.dir` and the
/// names of files, `${VAR}` is the value of an environment variable. Relative paths start at this
/// file's folder.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "tidegate.toml")]
pub struct File {
    /// Name of the pipeline, of its replication slot and of its publication: 1 to 40 of a-z, 0-9
    /// and `_`. Default: `tidegate`. Environment: TIDEGATE_NAME.
    #[schemars(regex(pattern = r"^[a-z0-9_]{1,40}$"))]
    pub name: Option<String>,
    /// Where the Delta tables go: a folder, or a URL `file://`, `s3://`, `gs://`, `az://`.
    /// Required. Environment: TIDEGATE_LAKE.
    pub lake: Option<String>,
    /// The tables to replicate, as a list or separated by commas: `shop.orders`, `public.*`,
    /// `"Quoted"."Name"`. Required. Environment: TIDEGATE_TABLES.
    pub tables: Option<Patterns>,
    /// What the columns that Tidegate adds begin with (`_tg_lsn`, `_tg_seq`, `_tg_op`, …).
    /// Default: `_tg_`. It can't be changed once a table exists.
    #[schemars(regex(pattern = r"^[a-z_][a-z0-9_]{0,19}$"))]
    pub column_prefix: Option<String>,
    /// What to do when the source can't be proven to continue what the lake holds: another server
    /// or timeline, a restored backup, a slot that is gone, lost or advanced, a publication that was
    /// changed. `refuse` stops with exit code 5; `resnapshot` takes a new generation, once, and
    /// keeps the old version readable until the new snapshot replaces it. Default: refuse.
    pub on_lost_history: Option<OnLostHistory>,
    /// What to do with a table that changed at the source in a way its rows in the lake can't follow
    /// in place (another type, a default for old rows, another key, a partition attached with rows):
    /// `reseed` or `stop`. Columns that are added without a default, or dropped, are followed in
    /// place. Default: reseed.
    pub on_schema_change: Option<OnSchemaChange>,
    /// Tables whose deleted rows stay, with true in the added column `_tg_deleted`: patterns, as under
    /// `tables`. Each needs a key. TRUNCATE, and reading a table again, leave none.
    pub soft_delete: Option<Patterns>,
    /// A file whose first line is the secret for the hashes of columns (`hash` under
    /// `[[columns]]`). Another secret makes other hashes, so a table that has some is read again.
    /// Default: none. Environment: TIDEGATE_HASH_KEY (the secret itself).
    pub hash_key_file: Option<PathBuf>,
    /// Columns that the lake gets otherwise than they are, or not at all.
    pub columns: Vec<ColumnsFile>,
    /// The PostgreSQL database to read from.
    pub source: SourceFile,
    /// The first snapshot.
    pub handoff: Handoff,
    /// Following the changes.
    pub stream: Stream,
    /// What may grow, and how far.
    pub limits: Limits,
    /// Keeping the lake small and quick to read.
    pub maintenance: Maintenance,
    /// Metrics, health and the status page over HTTP, while `run` runs.
    pub http: Http,
    /// Files on the local disk.
    pub state: StateFile,
}

/// The PostgreSQL database to read from.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Source")]
pub struct SourceFile {
    /// `postgres://user:password@host:port/database`, or a `key=value` string as libpq takes it.
    /// Keep the password out of the file: `${VAR}` (written as it is, no percent-encoding needed),
    /// `password_file`, `.pgpass` or PGPASSWORD. Required. Environment: TIDEGATE_SOURCE.
    pub url: Option<String>,
    /// A file whose first line is the password, such as a mounted secret. Read at each connect, so
    /// a rotated password is picked up. Default: none.
    pub password_file: Option<PathBuf>,
}

/// What to do when the source's history does not continue the lake's.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum OnLostHistory {
    /// Stop, and leave the tables as they are.
    #[default]
    Refuse,
    /// Take a new generation.
    Resnapshot,
}

/// What to do with a table whose change at the source its rows in the lake can't follow in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnSchemaChange {
    /// Read the table again, beside the stream of the others, and put it in place in one commit.
    #[default]
    Reseed,
    /// Stop following the table; the others go on. `tidegate reseed TABLE` takes it up again.
    Stop,
}

/// The first snapshot and its validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Handoff {
    /// Connections that copy at the same time, 1 to 64. Each is a session on the source.
    /// Default: as many as the machine has cores, at most 4.
    #[schemars(range(min = 1, max = 64))]
    pub workers: Option<usize>,
    /// How much of a table, in bytes of the source's heap, one worker copies in one piece.
    /// At least 1 MiB. Default: 256 MiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub chunk_bytes: u64,
    /// Compare the rows copied with a count of the table in the same snapshot before publishing.
    /// Costs a second read of the table on the source. Default: true.
    pub validate_count: bool,
    /// How long one snapshot is held while tables are copied. The source can't clear away rows that
    /// died since it was made, so after this time the chunks in hand are ended, the snapshot is let
    /// go, and copying goes on at a new one; what changed in between is read from the WAL that the
    /// slot keeps. Tables without a key can't be split: once begun they are copied to their end.
    /// 1 s or more; 0 is no limit. Default: 4h.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub max_snapshot_age: Duration,
    /// Where the changes wait while a snapshot is copied: `slot`, in the source's WAL, or `spool`,
    /// in files in the lake, so that the WAL kept on the source stays small however long the copy
    /// takes. Default: slot.
    pub retain: Retain,
    /// How much WAL the slot may make the source keep, beside the source's own
    /// `max_slot_wal_keep_size`: PostgreSQL can't say how much room its disk has. Default: no bound
    /// of your own.
    #[serde(with = "units::optional_bytes", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<units::BytesText>")]
    pub max_retained_wal: Option<u64>,
    /// The share of the smaller of the two bounds at which `on_wal_limit` is done, 0.1 to 1. From
    /// half of it on there are warnings. Default: 0.8.
    #[schemars(range(min = 0.1, max = 1.0))]
    pub wal_guard_share: f64,
    /// What to do at that share while a snapshot is copied: `warn`, `spool` (go on as with
    /// `retain = "spool"`), or `stop` (give the snapshot up and drop its slot, so that the source
    /// frees the WAL). Once the tables are published it always warns: dropping the slot would lose
    /// history. Default: warn.
    pub on_wal_limit: OnWalLimit,
    /// Size of one file of the spool, compressed. At least 64 KiB. Default: 32 MiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub spool_segment_bytes: u64,
    /// The longest time a committed change waits until it is in the spool and the source may forget
    /// it, 100 ms to 10 min; a copy that takes hours makes it longer by itself. Default: 5s.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub spool_interval: Duration,
    /// Make the slot one that standbys keep in step (PostgreSQL 17 and later), so that a promoted
    /// standby is followed without a gap. Default: true where the server is 17 or later and a
    /// primary; `true` is an error elsewhere.
    pub failover: Option<bool>,
}

/// Where changes wait while a snapshot is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Retain {
    /// In the source's WAL, held by the slot.
    #[default]
    Slot,
    /// In files in the lake; the source forgets what is there.
    Spool,
}

/// What is done when the slot holds back too much WAL while a snapshot is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnWalLimit {
    /// Warn, and go on.
    #[default]
    Warn,
    /// Move the changes to the spool from now on.
    Spool,
    /// Give the snapshot up and free the WAL.
    Stop,
}

impl Default for Handoff {
    fn default() -> Self {
        Handoff {
            workers: None,
            chunk_bytes: 256 << 20,
            validate_count: true,
            retain: Retain::Slot,
            max_retained_wal: None,
            wal_guard_share: 0.8,
            on_wal_limit: OnWalLimit::Warn,
            spool_segment_bytes: 32 << 20,
            spool_interval: Duration::from_secs(5),
            max_snapshot_age: Duration::from_secs(4 * 3600),
            failover: None,
        }
    }
}

impl Handoff {
    /// Connections that copy at the same time.
    pub fn worker_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.unwrap_or_else(|| cores().min(4)).max(1)
    }
}

/// In which form the source sends the values of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Binary where the server has it (14 and later) and every column can be read from it exactly.
    #[default]
    Auto,
    /// Always text.
    Text,
    /// Binary, or an error where it can't be.
    Binary,
}

/// Following the changes: when a batch ends and becomes one commit per table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Stream {
    /// The longest time a committed change waits for its commit in the lake, 100 ms to 1 h. Each
    /// commit writes the deletion vectors of the files it touches again: shorter is fresher and
    /// dearer. Default: 10s.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub interval: Duration,
    /// Changes after which a batch ends at the next transaction's end. Default: 1000000.
    #[schemars(range(min = 1))]
    pub max_batch_rows: u64,
    /// Bytes of changes after which a batch ends at the next transaction's end. At least 1 MiB.
    /// Default: 256 MiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub max_batch_bytes: u64,
    /// In which form the source sends values. Default: auto.
    pub format: Format,
}

impl Default for Stream {
    fn default() -> Self {
        Stream {
            interval: Duration::from_secs(10),
            max_batch_rows: 1_000_000,
            max_batch_bytes: 256 << 20,
            format: Format::Auto,
        }
    }
}

/// What may grow, and how far. At a limit Tidegate slows down, spools or stops with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory for rows on their way from source to lake. At least 64 MiB. Default: 1 GiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub memory_bytes: u64,
    /// Memory for the index that finds a key's current row. At least 16 MiB. Default: 256 MiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub index_memory_bytes: u64,
    /// Room in the lake for the spool of changes (`[handoff] retain = "spool"`). At the limit the
    /// source's WAL holds them again. At least 1 MiB. Default: 256 GiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub spool_bytes: u64,
    /// Memory for keys of rows that moved between two snapshots of one copy, and whose large values
    /// the WAL left out: they are read again before the table is published. Beyond it the table is
    /// copied again at one snapshot. At least 1 MiB. Default: 64 MiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub reread_bytes: u64,
    /// How long to wait for a connection to the source, 1 s to 10 min. Default: 10s.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub connect_timeout: Duration,
    /// How long the source may be silent before its connection is given up and made anew, 2 s to
    /// 1 h. In the stream the server is asked for a sign of life after half of it; a long query or
    /// copy is looked for over a second connection. Default: 60s.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub source_timeout: Duration,
    /// How long to go on trying after a cut connection or a store that fails, without progress,
    /// before giving up with an error. Default: 10m.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub retry_for: Duration,
    /// How long a process of the pipeline may give no sign of life before another one may take
    /// over, 1 s to 10 min. A process that is known to have ended is not waited for. Default: 30s.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub takeover_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 1 << 30,
            index_memory_bytes: 256 << 20,
            spool_bytes: 256 << 30,
            reread_bytes: 64 << 20,
            connect_timeout: Duration::from_secs(10),
            source_timeout: Duration::from_secs(60),
            retry_for: Duration::from_secs(600),
            takeover_after: Duration::from_secs(30),
        }
    }
}

/// Keeping the lake small and quick to read while changes come in: files are merged, masked rows
/// dropped, and what only old versions need is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Maintenance {
    /// Merge small files, and write files with many masked rows again, beside the stream.
    /// Default: true.
    pub compact: bool,
    /// Bytes of a data file that is large enough: smaller ones are merged up to about this size.
    /// At least 64 KiB. Default: 128 MiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::BytesText")]
    pub target_file_bytes: u64,
    /// Share of masked rows of a file, in percent, above which it is written again without them,
    /// 1 to 90. Default: 30.
    #[schemars(range(min = 1, max = 90))]
    pub max_masked_percent: u8,
    /// Remove old versions, and the files and log entries that only they need. Default: true.
    pub clean: bool,
    /// How often, 1 s or more. Default: 1h.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub clean_every: Duration,
    /// How long a version stays readable after a newer one has replaced it, 2 min or more. Under
    /// random updates each version costs up to a bit for each row of the table: shorten it where
    /// that is too much. Pinned versions and handoff versions stay longer. Default: 7d.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::DurationText")]
    pub retain_versions_for: Duration,
    /// The newest handoff versions of each table that stay readable whatever their age; 0 keeps
    /// none by itself. Default: 10.
    pub keep_handoffs: u32,
}

impl Default for Maintenance {
    fn default() -> Self {
        Maintenance {
            compact: true,
            target_file_bytes: 128 << 20,
            max_masked_percent: 30,
            clean: true,
            clean_every: Duration::from_secs(3600),
            retain_versions_for: Duration::from_secs(7 * 24 * 3600),
            keep_handoffs: 10,
        }
    }
}

/// Metrics, health and the status page over HTTP, while `run` runs: `/metrics`, `/live`, `/ready`,
/// `/status`, and `/` for people. Off unless `listen` is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Address and port to listen on, such as `127.0.0.1:9187` or `[::1]:9187`; port 0 takes a free
    /// one and says which. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// A file whose first line is the token that `Authorization: Bearer …` must bring for all but
    /// `/live`, `/ready` and the empty status page. Read when `run` begins. Default: none.
    pub token_file: Option<PathBuf>,
    /// The environment variable that holds the token, instead of a file. Default: none.
    #[schemars(regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub token_env: Option<String>,
    /// Listen on an address that other machines reach without asking for a token: names of tables
    /// and errors are then everybody's to read. Default: false.
    pub allow_without_token: bool,
}

/// Files on the local disk. All of them can be made again from the lake.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "State")]
pub struct StateFile {
    /// Folder for the index that finds a key's current row. Default: `tidegate/<name>` in
    /// $XDG_CACHE_HOME or ~/.cache, for a user without a home `/var/cache/tidegate/<name>`.
    /// Environment: TIDEGATE_STATE_DIR.
    pub dir: Option<PathBuf>,
}

/// Table patterns: a list, or one text with commas.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected table patterns: text such as \"public.*, shop.orders\", or a list of such"
)]
pub enum Patterns {
    /// `tables = "public.*, shop.orders"`
    Text(String),
    /// `tables = ["public.*", "shop.orders"]`
    List(Vec<String>),
}

impl Patterns {
    /// The texts.
    pub(super) fn list(&self) -> Vec<String> {
        match self {
            Patterns::Text(text) => vec![text.clone()],
            Patterns::List(list) => list.clone(),
        }
    }
}

// A URL may hold a password: no derived Debug.
impl std::fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceFile")
            .field("url", &self.url.as_deref().map(super::secret::redact))
            .field("password_file", &self.password_file)
            .finish()
    }
}

/// The JSON Schema of `tidegate.toml`, with everything in place instead of by reference.
fn inline_schema() -> schemars::Schema {
    SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<File>()
}

/// Reads the text of `path`.
///
/// # Errors
/// [`crate::error::Kind::Config`]: not TOML, an unknown key, a value of the wrong type; with line.
pub fn parse(path: &Path, text: &str) -> Result<File> {
    let wrong = |error: toml::de::Error| {
        let line = error.span().map(|span| span.start);
        at(path, text, line, error.message())
            .next("correct the file; schemas/config.schema.json lists every key")
    };
    let table = DeTable::parse(text).map_err(wrong)?;
    check_keys(path, text, table.get_ref(), inline_schema().as_value(), "")?;
    toml::from_str(text).map_err(wrong)
}

fn at(path: &Path, text: &str, offset: Option<usize>, message: &str) -> Error {
    let line =
        offset.and_then(|offset| text.get(..offset)).map(|before| before.matches('\n').count() + 1);
    let place = match line {
        Some(line) => format!("{} line {line}", path.display()),
        None => path.display().to_string(),
    };
    Error::config(message.trim_end().replace('\n', " ")).at(place)
}

/// Every key must be one of the schema's; `place` is the dotted name of the table.
fn check_keys(
    path: &Path,
    text: &str,
    table: &DeTable<'_>,
    schema: &serde_json::Value,
    place: &str,
) -> Result<()> {
    let Some(known) = schema.get("properties").and_then(|p| p.as_object()) else { return Ok(()) };
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let Some(inner) = known.get(name) else {
            let message = unknown(name, place, known.keys().map(String::as_str));
            return Err(at(path, text, Some(key.span().start), &message)
                .next("correct or remove the key; schemas/config.schema.json lists every key"));
        };
        let section = inner.get("properties").is_some();
        let list = inner.get("type").and_then(|t| t.as_str()) == Some("array");
        match value.get_ref() {
            DeValue::Table(_) if list => {
                let message = format!("`{name}` may stand several times: write [[{name}]]");
                return Err(at(path, text, Some(key.span().start), &message)
                    .next(format!("write [[{name}]], with two brackets, before each")));
            }
            DeValue::Table(table) => {
                let place =
                    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
                check_keys(path, text, table, inner, &place)?;
            }
            _ if section => {
                let message = format!("`{name}` is a section: write its keys under [{name}]");
                let example = inner
                    .get("properties")
                    .and_then(|p| p.as_object())
                    .and_then(|p| p.keys().next());
                let next = match (name, example) {
                    ("source", _) => {
                        "write [source] and under it url = \"postgres://…\"".to_owned()
                    }
                    (_, Some(key)) => {
                        format!("write [{name}] and under it, for example, {key} = …")
                    }
                    (_, None) => format!("write [{name}]"),
                };
                return Err(at(path, text, Some(key.span().start), &message).next(next));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The sentence for an unknown key: its table, and the nearest known name or all of them.
fn unknown<'a>(name: &str, place: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let place = if place.is_empty() { String::new() } else { format!(" in [{place}]") };
    let nearest = known
        .clone()
        .map(|candidate| (strsim::jaro_winkler(&name.to_lowercase(), candidate), candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.75);
    match nearest {
        Some((_, nearest)) => format!("unknown key `{name}`{place}; did you mean `{nearest}`?"),
        None => {
            let known: Vec<String> = known.map(|key| format!("`{key}`")).collect();
            format!("unknown key `{name}`{place}; known are {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        parse(Path::new("tidegate.toml"), text).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_names_its_line_section_and_nearest_neighbour() {
        let text = "lake = \"/l\"\n\n[stream]\ninterval_ms = 5\n";
        let message_ = message(text);
        assert!(
            message_.starts_with("tidegate.toml line 4: unknown key `interval_ms` in [stream]; did you mean `interval`?"),
            "{message_}"
        );
        assert!(message("tabels = 1").contains("did you mean `tables`?"));
        assert!(
            message("[sream]\ninterval = \"1s\"")
                .contains("unknown key `sream`; did you mean `stream`?")
        );
        assert!(
            message("stream.intervall = \"1s\"").contains("in [stream]; did you mean `interval`?")
        );
    }

    #[test]
    fn a_key_like_no_other_lists_what_is_known() {
        let message = message("[state]\nxyzzy = 1");
        assert!(
            message.contains("line 2: unknown key `xyzzy` in [state]; known are `dir`"),
            "{message}"
        );
    }

    #[test]
    fn a_key_of_another_section_is_not_ignored() {
        assert!(
            message("[handoff]\ninterval = \"1s\"").contains("unknown key `interval` in [handoff]")
        );
        assert!(
            message("[[table]]\nmatch = \"a\"")
                .contains("unknown key `table`; did you mean `tables`?")
        );
    }

    #[test]
    fn wrong_types_name_line_and_expectation() {
        for (text, part) in [
            ("name = 1", "line 1: "),
            (
                "\nsource = \"postgres://u@h/d\"",
                "line 2: `source` is a section: write its keys under [source]",
            ),
            ("[stream]\ninterval = 10", "line 2: \"10\" is not a duration"),
            (
                "[stream]\nformat = \"fast\"",
                "unknown variant `fast`, expected one of `auto`, `text`, `binary`",
            ),
            ("[handoff]\nchunk_bytes = \"many\"", "line 2: \"many\" is not a size"),
            ("tables = 7", "expected table patterns"),
            ("name = \"a\"\nname = \"b\"", "line 2: duplicate key"),
            ("name = ", "line 1: "),
        ] {
            let message = message(text);
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }

    #[test]
    fn an_empty_file_is_all_defaults() {
        let file = parse(Path::new("t.toml"), "").unwrap();
        assert_eq!(file.stream, Stream::default());
        assert_eq!(file.limits, Limits::default());
        assert!(file.handoff.worker_count() >= 1);
    }
}

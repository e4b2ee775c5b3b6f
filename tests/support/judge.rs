//! Readers as judges: DuckDB, Python deltalake, Polars and Spark, behind one program each
//! (`tests/readers/judge.py`), started at their first use and kept for the test binary.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::{folder, may_miss, top};

/// How long a reader may take. Spark's first table takes 20 s on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);

/// An independent reader of Delta tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    DuckDb,
    DeltaLake,
    Polars,
    Spark,
}

impl Engine {
    const ALL: [Engine; 4] = [Engine::DuckDb, Engine::DeltaLake, Engine::Polars, Engine::Spark];

    fn name(self) -> &'static str {
        match self {
            Engine::DuckDb => "duckdb",
            Engine::DeltaLake => "deltalake",
            Engine::Polars => "polars",
            Engine::Spark => "spark",
        }
    }
}

/// The judges of this machine: all four; without Spark only where that is allowed.
///
/// # Panics
/// The set-up failed.
pub fn engines() -> Vec<Engine> {
    let has_spark = setup().get("jars").is_some();
    assert!(has_spark || may_miss(), "Spark was not set up; run `make setup`");
    Engine::ALL.into_iter().filter(|e| *e != Engine::Spark || has_spark).collect()
}

/// Which version of a table to read.
#[derive(Clone, Debug)]
pub enum At {
    Newest,
    Version(u64),
    /// ISO 8601 with a zone.
    Time(String),
}

impl From<u64> for At {
    fn from(version: u64) -> At {
        At::Version(version)
    }
}

/// What a reader found: canonical texts (see `tests/readers/canonical.py`), rows sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Option<String>>>,
}

/// The rows of a table as one reader sees them; `columns` empty for all of them.
#[track_caller]
pub fn rows(engine: Engine, table: &Path, at: impl Into<At>, columns: &[&str]) -> Rows {
    attempt(engine, table, at, columns)
        .unwrap_or_else(|e| panic!("{engine:?} can't read {}: {e}", table.display()))
}

/// As [`rows`], with the reader's error.
pub fn attempt(
    engine: Engine,
    table: &Path,
    at: impl Into<At>,
    columns: &[&str],
) -> Result<Rows, String> {
    let mut request = json!({"path": table});
    match at.into() {
        At::Newest => {}
        At::Version(v) => request["version"] = v.into(),
        At::Time(t) => request["timestamp"] = t.into(),
    }
    if !columns.is_empty() {
        request["columns"] = json!(columns);
    }
    ask(engine, request)
}

/// As [`rows`], of a table in an S3 bucket that `s3` tells how to reach.
#[track_caller]
pub fn rows_in_s3(engine: Engine, table: &str, at: impl Into<At>, s3: &Value) -> Rows {
    let mut request = json!({"path": table, "s3": s3});
    if let At::Version(v) = at.into() {
        request["version"] = v.into();
    }
    ask(engine, request).unwrap_or_else(|e| panic!("{engine:?} can't read {table}: {e}"))
}

/// Runs a statement in DuckDB or Spark: also what other engines do to our tables.
#[track_caller]
pub fn sql(engine: Engine, statement: &str) -> Rows {
    ask(engine, json!({"sql": statement}))
        .unwrap_or_else(|e| panic!("{engine:?}: {e}\nin: {statement}"))
}

/// All judges must see exactly these rows (sorted here) in these columns.
///
/// # Panics
/// One of them does not; the message names it and shows the first differences.
#[track_caller]
pub fn all_see(
    table: &Path,
    at: impl Into<At>,
    columns: &[&str],
    mut expected: Vec<Vec<Option<String>>>,
) {
    let at = at.into();
    expected.sort();
    for engine in engines() {
        let found = rows(engine, table, at.clone(), columns);
        if let Some(difference) = difference(&expected, &found.rows) {
            panic!("{engine:?} sees another {} at {at:?}: {difference}", table.display());
        }
    }
}

/// How two sorted lists of rows differ, in a few lines.
pub fn difference(
    expected: &[Vec<Option<String>>],
    found: &[Vec<Option<String>>],
) -> Option<String> {
    if expected == found {
        return None;
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = vec![format!("{} rows expected, {} found", expected.len(), found.len())];
    while lines.len() < 9 && (i < expected.len() || j < found.len()) {
        match (expected.get(i), found.get(j)) {
            (Some(e), Some(f)) if e == f => (i, j) = (i + 1, j + 1),
            (Some(e), f) if f.is_none_or(|f| e < f) => {
                lines.push(format!("missing {e:?}"));
                i += 1;
            }
            (_, Some(f)) => {
                lines.push(format!("extra   {f:?}"));
                j += 1;
            }
            _ => break,
        }
    }
    Some(lines.join("\n"))
}

/// Writes the table that proves the judges (`tests/readers/sample.py`).
pub fn write_sample(table: &Path) {
    ask(Engine::DeltaLake, json!({"sample": table})).unwrap_or_else(|e| panic!("sample: {e}"));
}

fn ask(engine: Engine, mut request: Value) -> Result<Rows, String> {
    static JUDGES: [Mutex<Option<Judge>>; 4] = [const { Mutex::new(None) }; 4];
    request["engine"] = engine.name().into();
    let mut slot = JUDGES[engine as usize].lock().unwrap_or_else(PoisonError::into_inner);
    // Out of its place while it works: one that hangs or dies is not asked again.
    let mut judge = slot.take().unwrap_or_else(Judge::start);
    let answer = judge.ask(&request);
    *slot = Some(judge);
    if let Some(error) = answer.get("error").and_then(Value::as_str) {
        return Err(error.to_owned());
    }
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let text = |v: &Value| v.as_str().map(str::to_owned);
    Ok(Rows {
        columns: list(&answer["columns"]).iter().filter_map(text).collect(),
        rows: list(&answer["rows"]).iter().map(|r| list(r).iter().map(text).collect()).collect(),
    })
}

/// One running program. It ends when its input is closed, thus when this process ends.
struct Judge {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    place: PathBuf,
}

impl Judge {
    fn start() -> Judge {
        let setup = setup();
        let path: Vec<&str> =
            setup["path"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // The program removes the folder when it ends: a static is never dropped.
        let place = folder("judge").keep();
        let report = std::fs::File::create(place.join("stderr"))
            .unwrap_or_else(|e| panic!("no file for the judge's report: {e}"));
        let mut child = Command::new(setup["python"].as_str().unwrap_or("python3"))
            .arg(top().join("tests/readers/judge.py"))
            .env("PYTHONPATH", path.join(":"))
            .env("TIDEGATE_READERS", setup.to_string())
            .env("TZ", "UTC")
            .env("TIDEGATE_JUDGE_FOLDER", &place)
            .current_dir(&place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(report)
            .spawn()
            .unwrap_or_else(|e| panic!("can't start the judge: {e}"));
        let input = child.stdin.take().unwrap_or_else(|| panic!("the judge has no input"));
        let output = child.stdout.take().unwrap_or_else(|| panic!("the judge has no output"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Judge { child, input, answers, place }
    }

    fn ask(&mut self, request: &Value) -> Value {
        let sent = writeln!(self.input, "{request}").and_then(|()| self.input.flush());
        let answer = self.answers.recv_timeout(LIMIT).unwrap_or_else(|e| {
            let report = std::fs::read(self.place.join("stderr")).unwrap_or_default();
            panic!(
                "the judge gave no answer to {request} ({e}, {sent:?}):\n{}",
                String::from_utf8_lossy(&report)
            );
        });
        serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e} in the answer {answer}"))
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program in Python prints, with the readers at hand.
///
/// # Panics
/// It fails.
pub fn python(program: &str) -> String {
    let setup = setup();
    let path: Vec<&str> =
        setup["path"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let ran = Command::new(setup["python"].as_str().unwrap_or("python3"))
        .args(["-c", program])
        .env("PYTHONPATH", path.join(":"))
        .output()
        .unwrap_or_else(|e| panic!("python3 can't be run: {e}"));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\nin:\n{program}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// What `scripts/setup-python` found and brought; it brings nothing if all is there.
fn setup() -> &'static Value {
    static SETUP: OnceLock<Value> = OnceLock::new();
    SETUP.get_or_init(|| {
        let done = Command::new("python3")
            .arg(top().join("scripts/setup-python"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap_or_else(|e| panic!("python3 can't be run: {e}"));
        assert!(done.status.success(), "scripts/setup-python failed; its report is above");
        serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("scripts/setup-python: {e}"))
    })
}

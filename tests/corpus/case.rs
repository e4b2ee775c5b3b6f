//! A case file, read.

use std::path::Path;

use crate::support::database::Sql;
use crate::support::top;

/// One case.
pub struct Case {
    /// Name of its file.
    pub name: String,
    /// Its schema; the same name with a prefix.
    pub schema: String,
    /// Queries by step; the first step is the set-up.
    pub steps: Vec<Vec<String>>,
    pub expected: Vec<Expected>,
    servers: (u32, u32),
}

/// What a table must hold at the end.
pub struct Expected {
    pub table: String,
    columns: String,
    pub rows: Vec<String>,
}

impl Case {
    fn parse(name: &str, text: &str) -> Case {
        let mut case = Case {
            name: name.to_owned(),
            schema: format!("c_{name}"),
            steps: Vec::new(),
            expected: Vec::new(),
            servers: (0, u32::MAX),
        };
        let mut reason = false;
        for line in text.lines() {
            if line == "-- step" {
                case.steps.push(vec![String::new()]);
            } else if line == "-- then" {
                let step = case.steps.last_mut();
                step.unwrap_or_else(|| panic!("{name}: `then` before a step")).push(String::new());
            } else if let Some(what) = line.strip_prefix("-- rows ") {
                let (table, columns) =
                    what.split_once(": ").unwrap_or_else(|| panic!("{name}: {line}"));
                case.expected.push(Expected {
                    table: table.to_owned(),
                    columns: columns.to_owned(),
                    rows: Vec::new(),
                });
            } else if let Some(expected) = case.expected.last_mut() {
                if !line.is_empty() {
                    expected.rows.push(line.to_owned());
                }
            } else if let Some(query) = case.steps.last_mut().and_then(|step| step.last_mut()) {
                query.push_str(line);
                query.push('\n');
            } else if let Some(range) = line.strip_prefix("-- servers: ") {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let number = |text: &str, open: u32| match text.trim() {
                    "" => open,
                    text => text.parse().unwrap_or_else(|_| panic!("{name}: {line}")),
                };
                case.servers = (number(from, 0), number(to, u32::MAX));
            } else {
                reason |= line.starts_with("-- ");
            }
        }
        assert!(reason, "{name}: the case does not say why it is there");
        assert!(!case.steps.is_empty(), "{name}: no step");
        for expected in &mut case.expected {
            expected.rows.sort();
        }
        case
    }

    pub fn runs_on(&self, major: u32) -> bool {
        (self.servers.0..=self.servers.1).contains(&major)
    }

    pub fn step(&self, n: usize) -> &[String] {
        self.steps.get(n).map_or(&[], Vec::as_slice)
    }

    pub fn run(&self, sql: &mut Sql, query: &str) {
        if let Err(error) = sql.attempt(query) {
            panic!("{}: {error}\nin: {query}", self.name);
        }
    }
}

impl Expected {
    /// The rows as the server prints them, sorted.
    pub fn printed(&self, sql: &mut Sql) -> Vec<String> {
        let rows = sql.rows(&format!("SELECT {} FROM {}", self.columns, self.table));
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "\\N".to_owned());
        let mut rows: Vec<String> =
            rows.iter().map(|row| row.iter().map(text).collect::<Vec<_>>().join("|")).collect();
        rows.sort();
        rows
    }
}

/// All cases, by name.
pub fn all() -> Vec<Case> {
    let folder = top().join("tests/corpus");
    let only = std::env::var("TIDEGATE_CORPUS").unwrap_or_default();
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap_or_else(|e| panic!("{e}")).path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    files.sort();
    let cases: Vec<Case> = files
        .iter()
        .map(|path| Case::parse(stem(path), &read(path)))
        .filter(|case| case.name.contains(&only))
        .collect();
    assert!(!cases.is_empty(), "no case in {} is named {only:?}", folder.display());
    cases
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_else(|| panic!("{path:?}"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

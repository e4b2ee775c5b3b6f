//! The points there are, read from the source code: a new one is crossed without being listed.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::top;

/// Every name that is passed to `failpoint::at`, and the two names of each kind of log's rules.
///
/// # Panics
/// A call names its point in a way that this scan can't follow.
pub fn points() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    scan(&top().join("src"), &mut found);
    assert!(found.len() > 20, "the scan finds too little: {found:?}");
    found
}

fn scan(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            scan(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("failpoint.rs") {
            scan_file(&path, found);
        }
    }
}

fn scan_file(path: &Path, found: &mut BTreeSet<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    for (at, call) in text.match_indices("failpoint::at(") {
        let argument = text[at + call.len()..].trim_start();
        match argument.strip_prefix('"') {
            Some(name) => found.extend(name.split('"').next().map(str::to_owned)),
            // The rules of a log: their names stand where the rules are made, see below.
            None => assert!(
                argument.starts_with("rules.before)") || argument.starts_with("rules.after)"),
                "{}: the point's name is no text: {}",
                path.display(),
                argument.lines().next().unwrap_or_default()
            ),
        }
    }
    for line in text.lines().map(str::trim) {
        for field in ["before: \"", "after: \""] {
            let Some(rest) = line.strip_prefix(field) else { continue };
            found.extend(rest.split('"').next().map(str::to_owned));
        }
    }
}

//! The files in `schemas/` say what the types say.

use std::collections::BTreeSet;
use std::path::Path;

use tidegate::cli::schemas;

const REGENERATE: &str = "write them again: cargo run -- dev-schemas schemas";

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas")
}

#[test]
fn every_schema_file_is_current() {
    for (name, schema) in schemas::schemas() {
        let path = folder().join(name);
        let file = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; {REGENERATE}", path.display()));
        assert!(
            file == schemas::text(&schema).unwrap(),
            "{} is not current; {REGENERATE}",
            path.display()
        );
    }
}

#[test]
fn no_schema_file_is_left_over() {
    let known: BTreeSet<String> =
        schemas::schemas().into_iter().map(|(name, _)| name.to_owned()).collect();
    let found: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, known, "{REGENERATE}, and remove what is no longer made");
}

#[test]
fn every_key_of_the_configuration_is_explained() {
    let (_, schema) = schemas::schemas().remove(0);
    let mut unexplained = Vec::new();
    collect_unexplained("", schema.as_value(), &mut unexplained);
    assert!(unexplained.is_empty(), "no description: {unexplained:?}");
}

fn collect_unexplained(place: &str, value: &serde_json::Value, found: &mut Vec<String>) {
    let Some(object) = value.as_object() else { return };
    for (key, property) in
        object.get("properties").and_then(|p| p.as_object()).into_iter().flatten()
    {
        if property.get("description").is_none() {
            found.push(format!("{place}/{key}"));
        }
    }
    for (key, inner) in object {
        collect_unexplained(&format!("{place}/{key}"), inner, found);
    }
}

/// The first literal after each of `openings` in `text`, if it follows at once.
fn literals_after<'t>(text: &'t str, openings: &[&str]) -> BTreeSet<&'t str> {
    let mut found = BTreeSet::new();
    for opening in openings {
        for (at, _) in text.match_indices(opening) {
            let rest = text[at + opening.len()..].trim_start();
            if let Some((id, _)) = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
                found.insert(id);
            }
        }
    }
    found
}

#[test]
fn the_page_of_findings_lists_what_the_code_finds() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(top.join("docs/checks.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let listed: BTreeSet<&str> = rows.map(|(id, _)| id).collect();
    let mut code = String::new();
    for file in [
        "src/source/catalog/mod.rs",
        "src/source/catalog/resolve.rs",
        "src/source/catalog/treat.rs",
        "src/source/check/rules.rs",
        "src/source/check/table_rules.rs",
        "src/source/slot/mod.rs",
        "src/source/slot/publication.rs",
        "src/cli/commands.rs",
    ] {
        let text = std::fs::read_to_string(top.join(file)).unwrap();
        code += text.split("#[cfg(test)]").next().unwrap();
    }
    let openings = [
        "Finding::error(",
        "pub const UNKNOWN: &str =",
        "pub const NOWHERE: &str =",
        "Finding::warning(",
        "Finding::info(",
        "self.error(",
        "scene.error(",
        "return Some((",
        " Some((",
        "=> (",
    ];
    let found = literals_after(&code, &openings);
    assert!(found.len() > 40, "{found:?}");
    assert_eq!(listed, found, "docs/checks.md is not what the code finds");
}

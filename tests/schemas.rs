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

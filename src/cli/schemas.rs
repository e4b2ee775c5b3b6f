//! The JSON Schemas in `schemas/`: generated from the types that are read and written, so that they
//! can't say anything else. `tests/schemas.rs` proves that the files are current.

use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::output::{
    CutOutput, DiffOutput, MaintainOutput, PinOutput, StatusOutput, VerifyOutput, VersionOutput,
};
use crate::config::File;
use crate::error::{Error, Result};
use crate::lake::{Checkpoint, Fence, PipelineState, SpoolState, Tag};
use crate::source::check::CheckReport;

/// Every schema with the name of its file.
pub fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        ("config.schema.json", read::<File>()),
        ("status.schema.json", written::<StatusOutput>()),
        ("versions.schema.json", written::<Vec<VersionOutput>>()),
        ("cut.schema.json", written::<CutOutput>()),
        ("diff.schema.json", written::<DiffOutput>()),
        ("verify.schema.json", written::<VerifyOutput>()),
        ("maintain.schema.json", written::<MaintainOutput>()),
        ("pin.schema.json", written::<PinOutput>()),
        ("check.schema.json", written::<CheckReport>()),
        // What stands in the lake; keys that are left out when empty may be absent.
        ("checkpoint.schema.json", stored::<Checkpoint>()),
        ("tag.schema.json", stored::<Tag>()),
        ("pipeline.schema.json", stored::<PipelineState>()),
        ("fence.schema.json", stored::<Fence>()),
        ("spool.schema.json", stored::<SpoolState>()),
    ]
}

/// The schema of what Tidegate reads: keys with a default may be left out.
pub fn read<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<T>()
}

/// The schema of what Tidegate writes: every key is there.
pub fn written<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}

/// The schema of what Tidegate keeps in the lake: what it reads back, which is what any version of
/// it has written.
pub fn stored<T: JsonSchema>() -> Schema {
    read::<T>()
}

/// The text of a schema's file.
///
/// # Errors
/// None in practice: a schema is plain JSON.
pub fn text(schema: &Schema) -> Result<String> {
    let json = serde_json::to_string_pretty(schema.as_value());
    json.map(|json| json + "\n")
        .map_err(|error| Error::failed("a schema can't be written as JSON").because(error))
}

/// Writes every schema into the folder `dir`.
///
/// # Errors
/// [`crate::error::Kind::Failed`]: the folder or a file can't be written.
pub fn write(dir: &Path) -> Result<()> {
    let failed = |path: &Path, error| {
        Error::failed(format!("{} can't be written", path.display())).because(error)
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    for (name, schema) in schemas() {
        let path = dir.join(name);
        std::fs::write(&path, text(&schema)?).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

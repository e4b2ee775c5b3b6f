//! The actions of a Delta commit, as we write them and as we need to read those of others.
//!
//! Source: Delta protocol, "Actions". Fields we don't know are kept out of what we write and
//! ignored in what we read; actions we don't know make a commit of others one we can't judge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::dv::Descriptor;
use super::partition::PartitionValues;
use crate::error::{Error, Result};

/// How we name ourselves in `commitInfo.engineInfo`.
pub const ENGINE: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

/// One action of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Who committed what, when. The first action of each of our commits.
    CommitInfo(Box<CommitInfo>),
    /// What a reader and a writer must understand.
    Protocol(Protocol),
    /// Schema and properties.
    MetaData(Box<Metadata>),
    /// Progress of an application.
    Txn(Txn),
    /// A named text of ours.
    DomainMetadata(Domain),
    /// A data file comes, or comes with another vector.
    Add(Box<Add>),
    /// A data file goes, or goes with its old vector.
    Remove(Box<Remove>),
    /// A file of explicit row changes.
    Cdc(Value),
}

/// Who committed what, when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitInfo {
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
    /// Milliseconds since 1970, strictly increasing from version to version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_commit_timestamp: Option<i64>,
    /// Name of the operation.
    #[serde(default)]
    pub operation: String,
    /// What the operation was asked for.
    #[serde(default)]
    pub operation_parameters: Map<String, Value>,
    /// What it did.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub operation_metrics: Map<String, Value>,
    /// Version the operation read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_version: Option<i64>,
    /// Isolation level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation_level: Option<String>,
    /// Whether the operation only added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_blind_append: Option<bool>,
    /// The program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_info: Option<String>,
    /// Unique name of the commit attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
    /// Our tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<String>,
}

/// What a reader and a writer must understand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Protocol {
    /// Reader version; 3 means features.
    pub min_reader_version: i32,
    /// Writer version; 7 means features.
    pub min_writer_version: i32,
    /// Features a reader must know.
    #[serde(default)]
    pub reader_features: Vec<String>,
    /// Features a writer must know.
    #[serde(default)]
    pub writer_features: Vec<String>,
}

impl Protocol {
    /// The protocol of our tables.
    pub fn ours(with_ntz: bool) -> Self {
        let features = |names: &[&str]| {
            let ntz = with_ntz.then_some("timestampNtz");
            names.iter().copied().chain(ntz).map(str::to_owned).collect()
        };
        Protocol {
            min_reader_version: 3,
            min_writer_version: 7,
            reader_features: features(&["deletionVectors"]),
            writer_features: features(&["deletionVectors", "domainMetadata", "inCommitTimestamp"]),
        }
    }
}

/// Schema and properties.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Identity of the table.
    pub id: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Always Parquet.
    pub format: Format,
    /// The schema, as JSON in a text.
    pub schema_string: String,
    /// Columns whose values stand in the log, one for each data file.
    #[serde(default)]
    pub partition_columns: Vec<String>,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_time: Option<i64>,
    /// Table properties.
    #[serde(default)]
    pub configuration: BTreeMap<String, String>,
}

/// Format of the data files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Format {
    /// `parquet`.
    pub provider: String,
    /// Empty.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

impl Default for Format {
    fn default() -> Self {
        Format { provider: "parquet".into(), options: BTreeMap::new() }
    }
}

/// Progress of an application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Txn {
    /// The application.
    pub app_id: String,
    /// Its progress; for us the applied LSN.
    pub version: i64,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<i64>,
}

/// A named text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Domain {
    /// Its name.
    pub domain: String,
    /// The text.
    #[serde(default)]
    pub configuration: String,
    /// Whether the domain goes.
    #[serde(default)]
    pub removed: bool,
}

/// A data file comes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Add {
    /// Path below the table.
    pub path: String,
    /// The values of the partition columns.
    #[serde(default)]
    pub partition_values: PartitionValues,
    /// Bytes.
    pub size: i64,
    /// Milliseconds since 1970.
    #[serde(default)]
    pub modification_time: i64,
    /// False if the rows are the same as before.
    pub data_change: bool,
    /// Statistics, as JSON in a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<String>,
    /// The masked rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_vector: Option<Descriptor>,
}

/// A data file goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remove {
    /// Path below the table.
    pub path: String,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<i64>,
    /// False if the rows stay.
    pub data_change: bool,
    /// Whether partition values and size are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_file_metadata: Option<bool>,
    /// The values of the partition columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_values: Option<PartitionValues>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// The vector it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_vector: Option<Descriptor>,
}

/// The bytes of a commit: one action a line.
///
/// # Errors
/// Never for actions built here.
pub fn to_bytes(actions: &[Action]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(actions.len() * 512);
    for action in actions {
        serde_json::to_writer(&mut out, action)
            .map_err(|e| Error::failed("a commit can't be written as JSON").because(e))?;
        out.push(b'\n');
    }
    Ok(out)
}

/// A commit that was read: the actions we know, and the names of those we don't.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    /// Known actions, in order.
    pub actions: Vec<Action>,
    /// Names of unknown actions.
    pub unknown: Vec<String>,
}

impl Commit {
    /// Reads the bytes of a commit.
    ///
    /// # Errors
    /// It is not JSON, or a known action lacks what it must have.
    pub fn parse(bytes: &[u8]) -> Result<Commit, serde_json::Error> {
        let mut commit = Commit::default();
        for line in bytes.split(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            let object: Map<String, Value> = serde_json::from_slice(line)?;
            for (name, value) in object {
                if value.is_null() {
                    continue;
                }
                match name.as_str() {
                    "commitInfo" | "protocol" | "metaData" | "txn" | "domainMetadata" | "add"
                    | "remove" | "cdc" => {
                        let action = Value::Object(Map::from_iter([(name, value)]));
                        commit.actions.push(serde_json::from_value(action)?);
                    }
                    _ => commit.unknown.push(name),
                }
            }
        }
        Ok(commit)
    }

    /// The commit's `commitInfo`.
    pub fn info(&self) -> Option<&CommitInfo> {
        self.actions
            .iter()
            .find_map(|a| if let Action::CommitInfo(info) = a { Some(info.as_ref()) } else { None })
    }

    /// The text of a domain, where the commit sets or removes it.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.actions.iter().find_map(|a| match a {
            Action::DomainMetadata(domain) if domain.domain == name => Some(domain),
            _ => None,
        })
    }
}

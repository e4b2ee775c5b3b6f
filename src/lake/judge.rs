//! What a commit that we did not expect means for us. Pure: from the commit alone.
//!
//! A commit is a compare-and-swap on the version. When our version is taken, or an answer got
//! lost, the commit that is there decides:
//!
//! ```text
//! same operation id                      -> ours: it was stored, the answer got lost
//! our domain, another operation id       -> fenced: another writer of the pipeline
//! RESTORE, REPLACE, CLONE, other id,
//!   schema, protocol, rows changed       -> stop: the table is no longer what we know
//! removes and adds, dataChange = false   -> rewrite: same rows in other files; look again, redo
//! nothing of the above                   -> harmless: go on above it
//! ```
//!
//! Others keep our domain and `txn` when they restore or replace a table, so a stored position
//! alone proves nothing.

use std::collections::BTreeMap;

use super::actions::{Action, Commit, ENGINE, Metadata, Protocol};

/// What is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Operation id of the commit we tried to make; empty if we tried none.
    pub operation: &'a str,
    /// Domains that only the owner of the table writes.
    pub domains: &'a [&'a str],
    /// The table's metadata as we know it.
    pub metadata: &'a Metadata,
    /// The table's protocol as we know it.
    pub protocol: &'a Protocol,
    /// Whether Tidegate programs other than the owner may add rows (the ledger's notes).
    pub shared: bool,
}

/// What a commit means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the commit we tried to make.
    Ours,
    /// Nothing that concerns us.
    Harmless,
    /// The same rows in other files, or more notes in the ledger.
    Rewrite,
    /// Another writer owns the table now.
    Fenced,
    /// The table is no longer what we know.
    Stop {
        /// The operation as the log names it.
        operation: String,
        /// What it did that we can't follow.
        why: String,
    },
}

/// Writer features others may switch on: they demand nothing of our commits.
const TOLERATED_FEATURES: &[&str] = &[
    "appendOnly",
    "invariants",
    "changeDataFeed",
    "deletionVectors",
    "domainMetadata",
    "inCommitTimestamp",
    "timestampNtz",
];

/// Properties we depend on, with the value they must keep.
const NEEDED: &[(&str, &str)] =
    &[("delta.enableDeletionVectors", "true"), ("delta.enableInCommitTimestamps", "true")];

/// Judges one commit above our last one.
pub fn judge(commit: &Commit, expected: &Expected<'_>) -> Verdict {
    let info = commit.info();
    let operation = info.map_or_else(|| "unknown".to_owned(), |i| i.operation.clone());
    let stop = |why: String| Verdict::Stop { operation: operation.clone(), why };
    if !expected.operation.is_empty()
        && info.and_then(|i| i.txn_id.as_deref()) == Some(expected.operation)
    {
        return Verdict::Ours;
    }
    let by_tidegate = info.and_then(|i| i.engine_info.as_deref()).is_some_and(is_tidegate);
    let touches = expected.domains.iter().find(|name| commit.domain(name).is_some());
    if let Some(domain) = touches {
        return if by_tidegate {
            Verdict::Fenced
        } else {
            stop(format!("it changed the domain {domain}"))
        };
    }
    if let Some(name) = commit.unknown.first() {
        return stop(format!("it has an action {name:?} that is not known here"));
    }
    let upper = operation.to_uppercase();
    if ["RESTORE", "REPLACE", "CLONE", "CREATE", "CONVERT"].iter().any(|word| upper.contains(word))
    {
        return stop("it put other data in the table's place".into());
    }
    let (mut rewrites, mut changes) = (false, None);
    for action in &commit.actions {
        match action {
            Action::MetaData(metadata) => {
                if let Some(why) = metadata_conflict(expected.metadata, metadata) {
                    return stop(why);
                }
            }
            Action::Protocol(protocol) => {
                if let Some(why) = protocol_conflict(expected.protocol, protocol) {
                    return stop(why);
                }
            }
            Action::Add(add) if add.data_change => changes = Some("it added rows"),
            Action::Remove(remove) if remove.data_change => {
                changes = Some("it removed or changed rows")
            }
            Action::Add(_) | Action::Remove(_) => rewrites = true,
            Action::Cdc(_) => changes = Some("it changed rows"),
            Action::CommitInfo(_) | Action::Txn(_) | Action::DomainMetadata(_) => {}
        }
    }
    match changes {
        Some(_) if expected.shared && by_tidegate => Verdict::Rewrite,
        Some(why) => stop(why.into()),
        None if rewrites => Verdict::Rewrite,
        None => Verdict::Harmless,
    }
}

fn is_tidegate(engine: &str) -> bool {
    let name = ENGINE.split('/').next().unwrap_or(ENGINE);
    engine.split('/').next() == Some(name)
}

/// Why a change of metadata can't be followed; `None` if it can.
fn metadata_conflict(old: &Metadata, new: &Metadata) -> Option<String> {
    if old.id != new.id {
        return Some("the table was replaced by another one (metaData.id changed)".into());
    }
    if !same_json(&old.schema_string, &new.schema_string) {
        return Some("it changed the schema".into());
    }
    if old.partition_columns != new.partition_columns {
        return Some("it changed the partitioning".into());
    }
    for (key, value) in NEEDED {
        if !new.configuration.get(*key).is_some_and(|v| v.eq_ignore_ascii_case(value)) {
            return Some(format!("it changed the property {key}, which must be {value}"));
        }
    }
    let changed = changed_keys(&old.configuration, &new.configuration);
    let forbids = |key: &str| {
        key.starts_with("delta.constraints.")
            || key.starts_with("delta.columnMapping.")
            || (key == "delta.appendOnly"
                && new.configuration.get(key).is_some_and(|v| v.eq_ignore_ascii_case("true")))
    };
    changed.into_iter().find(|key| forbids(key)).map(|key| format!("it changed the property {key}"))
}

fn changed_keys<'a>(
    old: &'a BTreeMap<String, String>,
    new: &'a BTreeMap<String, String>,
) -> Vec<&'a str> {
    old.keys()
        .chain(new.keys())
        .filter(|k| old.get(*k) != new.get(*k))
        .map(String::as_str)
        .collect()
}

fn same_json(a: &str, b: &str) -> bool {
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    a == b || parse(a).zip(parse(b)).is_some_and(|(a, b)| a == b)
}

fn protocol_conflict(old: &Protocol, new: &Protocol) -> Option<String> {
    if (new.min_reader_version, new.min_writer_version)
        != (old.min_reader_version, old.min_writer_version)
    {
        return Some("it changed the protocol version".into());
    }
    let lost = |old: &[String], new: &[String]| old.iter().find(|f| !new.contains(f)).cloned();
    if let Some(feature) = lost(&old.reader_features, &new.reader_features)
        .or_else(|| lost(&old.writer_features, &new.writer_features))
    {
        return Some(format!("it dropped the table feature {feature}"));
    }
    let strange = |f: &&String| !TOLERATED_FEATURES.contains(&f.as_str());
    let added = new.reader_features.iter().chain(&new.writer_features);
    let added =
        added.filter(|f| !old.reader_features.contains(f) && !old.writer_features.contains(f));
    added
        .filter(|f| strange(f))
        .map(|f| format!("it switched on the table feature {f}, which is not written here"))
        .next()
}

#[cfg(test)]
mod tests {
    use super::super::actions::{Add, CommitInfo, Domain, Format, Remove};
    use super::*;

    const DOMAINS: &[&str] = &["tidegate.checkpoint"];

    fn metadata() -> Metadata {
        Metadata {
            id: "t1".into(),
            name: None,
            description: None,
            format: Format::default(),
            schema_string: r#"{"type":"struct","fields":[]}"#.into(),
            partition_columns: vec![],
            created_time: None,
            configuration: NEEDED.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        }
    }

    fn info(engine: &str, id: &str, operation: &str) -> Action {
        Action::CommitInfo(Box::new(CommitInfo {
            engine_info: Some(engine.into()),
            txn_id: Some(id.into()),
            operation: operation.into(),
            ..Default::default()
        }))
    }

    fn add(data_change: bool) -> Action {
        Action::Add(Box::new(Add {
            path: "x".into(),
            partition_values: BTreeMap::new(),
            size: 1,
            modification_time: 0,
            data_change,
            stats: None,
            deletion_vector: None,
        }))
    }

    fn remove(data_change: bool) -> Action {
        Action::Remove(Box::new(Remove {
            path: "y".into(),
            deletion_timestamp: None,
            data_change,
            extended_file_metadata: None,
            partition_values: None,
            size: None,
            deletion_vector: None,
        }))
    }

    fn domain() -> Action {
        Action::DomainMetadata(Domain {
            domain: DOMAINS[0].into(),
            configuration: "{}".into(),
            removed: false,
        })
    }

    fn verdict_of(actions: Vec<Action>, shared: bool) -> Verdict {
        let (metadata, protocol) = (metadata(), Protocol::ours(false));
        let expected = Expected {
            operation: "mine",
            domains: DOMAINS,
            metadata: &metadata,
            protocol: &protocol,
            shared,
        };
        judge(&Commit { actions, unknown: vec![] }, &expected)
    }

    fn verdict(actions: Vec<Action>) -> Verdict {
        verdict_of(actions, false)
    }

    fn why(verdict: Verdict) -> String {
        match verdict {
            Verdict::Stop { operation, why } => format!("{operation}: {why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lost_answer_is_recognised_by_the_operation_id() {
        assert_eq!(
            verdict(vec![info(ENGINE, "mine", "MERGE"), domain(), add(true)]),
            Verdict::Ours
        );
        assert_eq!(
            verdict(vec![info(ENGINE, "other", "MERGE"), domain(), add(true)]),
            Verdict::Fenced
        );
        assert_eq!(
            verdict(vec![info("tidegate/99.0", "other", "MERGE"), domain()]),
            Verdict::Fenced
        );
    }

    #[test]
    fn restore_and_replace_are_not_taken_for_rewrites() {
        for operation in ["RESTORE", "CREATE OR REPLACE TABLE AS SELECT", "REPLACE TABLE", "CLONE"]
        {
            let commit =
                vec![info("Apache-Spark/4.2.0", "x", operation), add(false), remove(false)];
            assert!(why(verdict(commit)).contains("other data"), "{operation}");
        }
    }

    #[test]
    fn an_optimize_is_a_rewrite_and_a_vacuum_is_harmless() {
        let spark = "Apache-Spark/4.2.0 Delta-Lake/4.4.0";
        assert_eq!(
            verdict(vec![info(spark, "x", "OPTIMIZE"), remove(false), add(false)]),
            Verdict::Rewrite
        );
        assert_eq!(verdict(vec![info(spark, "x", "VACUUM END")]), Verdict::Harmless);
        assert_eq!(
            verdict(vec![info(ENGINE, "x", "OPTIMIZE"), remove(false), add(false)]),
            Verdict::Rewrite
        );
    }

    #[test]
    fn rows_changed_by_others_stop_us() {
        assert_eq!(why(verdict(vec![info("e", "x", "WRITE"), add(true)])), "WRITE: it added rows");
        assert!(
            why(verdict(vec![info("e", "x", "DELETE"), remove(true), add(true)])).contains("rows")
        );
        assert!(
            why(verdict(vec![info("e", "x", "MERGE"), Action::Cdc(serde_json::json!({}))]))
                .contains("rows")
        );
        assert!(
            why(verdict(vec![info("e", "x", "OPTIMIZE"), add(false), remove(true)]))
                .contains("rows")
        );
        assert!(why(verdict(vec![info(ENGINE, "x", "MERGE"), add(true)])).contains("rows"));
        assert_eq!(verdict_of(vec![info(ENGINE, "x", "WRITE"), add(true)], true), Verdict::Rewrite);
        assert!(why(verdict_of(vec![info("e", "x", "WRITE"), add(true)], true)).contains("rows"));
    }

    #[test]
    fn a_domain_changed_by_another_program_stops_us() {
        assert!(why(verdict(vec![info("e", "x", "UPDATE"), domain()])).contains("domain"));
    }

    #[test]
    fn metadata_may_change_only_where_we_do_not_depend_on_it() {
        let of = |change: &dyn Fn(&mut Metadata)| {
            let mut new = metadata();
            change(&mut new);
            verdict(vec![info("e", "x", "SET TBLPROPERTIES"), Action::MetaData(Box::new(new))])
        };
        assert_eq!(
            of(&|m| m.schema_string = r#"{"fields":[],"type":"struct"}"#.into()),
            Verdict::Harmless
        );
        assert_eq!(
            of(&|m| drop(m.configuration.insert("delta.logRetentionDuration".into(), "x".into()))),
            Verdict::Harmless
        );
        assert_eq!(
            of(&|m| drop(
                m.configuration.insert("delta.enableChangeDataFeed".into(), "true".into())
            )),
            Verdict::Harmless
        );
        assert!(why(of(&|m| m.id = "t2".into())).contains("replaced"));
        assert!(why(of(&|m| m.schema_string = "{}".into())).contains("schema"));
        assert!(
            why(of(&|m| drop(m.configuration.remove("delta.enableDeletionVectors"))))
                .contains("enableDeletionVectors")
        );
        assert!(
            why(of(&|m| drop(m.configuration.insert("delta.appendOnly".into(), "true".into()))))
                .contains("appendOnly")
        );
        assert!(
            why(of(&|m| drop(
                m.configuration.insert("delta.constraints.c".into(), "x > 0".into())
            )))
            .contains("constraints")
        );
    }

    #[test]
    fn features_may_come_only_if_they_demand_nothing() {
        let of = |change: &dyn Fn(&mut Protocol)| {
            let mut new = Protocol::ours(false);
            change(&mut new);
            verdict(vec![info("e", "x", "SET TBLPROPERTIES"), Action::Protocol(new)])
        };
        assert_eq!(of(&|p| p.writer_features.push("changeDataFeed".into())), Verdict::Harmless);
        assert!(why(of(&|p| p.writer_features.push("rowTracking".into()))).contains("rowTracking"));
        assert!(
            why(of(&|p| p.reader_features.push("columnMapping".into()))).contains("columnMapping")
        );
        assert!(
            why(of(&|p| p.writer_features.retain(|f| f != "domainMetadata"))).contains("dropped")
        );
    }

    #[test]
    fn an_unknown_action_stops_us() {
        let (metadata, protocol) = (metadata(), Protocol::ours(false));
        let expected = Expected {
            operation: "mine",
            domains: DOMAINS,
            metadata: &metadata,
            protocol: &protocol,
            shared: false,
        };
        let commit =
            Commit::parse(b"{\"commitInfo\":{\"operation\":\"X\"}}\n{\"sidecar\":{}}\n").unwrap();
        assert!(why(judge(&commit, &expected)).contains("sidecar"));
    }
}

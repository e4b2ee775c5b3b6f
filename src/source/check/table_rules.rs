//! Rules about each table: its key and replica identity, its partitions, the role's rights on it.

use super::{CheckRequest, Facts, Finding, TableRights};
use crate::source::catalog::{
    Leaf, ReplicaIdentity, TableInfo, TableKind, for_table, quote_ident, sql_name,
};
use crate::source::types;

/// Findings that say of one table that it is not such as can be replicated. Rights are not among them:
/// those are the role's, and easily forgotten for many tables at once.
const OF_ONE_TABLE: &[&str] = &[
    "no-replica-identity",
    "deferrable-key",
    "generated-key",
    "partition-identity",
    "partition-not-logged",
    "no-columns",
    "column-name",
];

/// Whether a finding stands in the way of its table alone.
pub(super) fn is_of_its_own(id: &str) -> bool {
    OF_ONE_TABLE.contains(&id)
}

pub(super) fn findings(facts: &Facts, request: &CheckRequest<'_>) -> Vec<Finding> {
    let sends_generated = facts.publication.as_ref().is_some_and(|p| p.generated_stored);
    let mut findings = Vec::new();
    for table in &facts.selection.tables {
        identity(table, &mut findings);
        partitions(table, &mut findings);
        generated(table, sends_generated, &mut findings);
        columns(table, facts, request.column_prefix, &mut findings);
        storage(table, &mut findings);
        rights(table, facts, &mut findings);
    }
    findings
}

fn identity(table: &TableInfo, findings: &mut Vec<Finding>) {
    let (name, sql) = (table.display(), table.sql_name());
    let full = everywhere(table, "REPLICA IDENTITY FULL");
    let key = format!("ALTER TABLE {sql} ADD PRIMARY KEY (…);\nor {full}");
    match (table.identity, &table.key) {
        (ReplicaIdentity::Nothing, _) => findings.push(Finding::warning(
            "replica-identity-nothing",
            name,
            "has REPLICA IDENTITY NOTHING: it is replicated as append-only, and PostgreSQL refuses \
             UPDATE and DELETE on it while it is published",
            format!("if it is ever updated: {}", everywhere(table, "REPLICA IDENTITY DEFAULT")),
        )),
        (_, Some(_)) => {}
        (ReplicaIdentity::Full, None) => findings.push(Finding::info(
            "no-key",
            name,
            "has no key and REPLICA IDENTITY FULL: rows are matched by all their values, which is \
             slower",
            format!("ALTER TABLE {sql} ADD PRIMARY KEY (…);"),
        )),
        (ReplicaIdentity::Index, None) => findings.push(Finding::error(
            "no-replica-identity",
            name,
            "its replica identity index was dropped: PostgreSQL would refuse UPDATE and DELETE on \
             it once it is published",
            format!("ALTER TABLE {sql} REPLICA IDENTITY USING INDEX …;\nor {full}"),
        )),
        (ReplicaIdentity::Default, None) if table.key_deferrable => findings.push(Finding::error(
            "deferrable-key",
            name,
            "its primary key is deferrable, which identifies no row: PostgreSQL would refuse \
             UPDATE and DELETE on it once it is published",
            format!("make the key NOT DEFERRABLE\nor {full}"),
        )),
        (ReplicaIdentity::Default, None) => findings.push(Finding::error(
            "no-replica-identity",
            name,
            "has no primary key: PostgreSQL would refuse UPDATE and DELETE on it once it is \
             published",
            key,
        )),
    }
}

/// The statement for a table and, as it does not reach them by itself, for its partitions.
fn everywhere(table: &TableInfo, action: &str) -> String {
    let mut sql = format!("ALTER TABLE {} {action};", table.sql_name());
    if table.kind == TableKind::Partitioned && !table.leaves.is_empty() {
        for leaf in table.leaves.iter().take(3) {
            sql.push_str(&format!(
                "\nALTER TABLE {} {action};",
                sql_name(&leaf.schema, &leaf.name)
            ));
        }
        if table.leaves.len() > 3 {
            sql.push_str(&format!("\nand so on for {} more partitions", table.leaves.len() - 3));
        }
    }
    sql
}

/// What an old row is identified by. Partitions log by their own identity, while the stream
/// announces the root's: they must agree.
#[derive(PartialEq, Eq)]
enum Identified<'a> {
    Full,
    Nothing,
    Key(Vec<&'a str>),
}

fn by<'a>(identity: ReplicaIdentity, key: Option<Vec<&'a str>>) -> Identified<'a> {
    match (identity, key) {
        (ReplicaIdentity::Full, _) => Identified::Full,
        (ReplicaIdentity::Nothing, _) | (_, None) => Identified::Nothing,
        (_, Some(mut names)) => {
            names.sort_unstable();
            Identified::Key(names)
        }
    }
}

fn partitions(table: &TableInfo, findings: &mut Vec<Finding>) {
    if table.kind != TableKind::Partitioned {
        return;
    }
    let want = by(table.identity, table.key_names());
    let odd: Vec<&Leaf> = table
        .leaves
        .iter()
        .filter(|leaf| {
            let key = leaf.key.as_ref().map(|names| names.iter().map(String::as_str).collect());
            by(leaf.identity, key) != want
        })
        .collect();
    let Some(first) = odd.first() else { return };
    let action = match table.identity {
        ReplicaIdentity::Default => "REPLICA IDENTITY DEFAULT".to_owned(),
        ReplicaIdentity::Full => "REPLICA IDENTITY FULL".to_owned(),
        ReplicaIdentity::Nothing => "REPLICA IDENTITY NOTHING".to_owned(),
        ReplicaIdentity::Index => "REPLICA IDENTITY USING INDEX …".to_owned(),
    };
    let mut shown: Vec<String> = odd
        .iter()
        .take(3)
        .map(|l| format!("ALTER TABLE {} {action};", sql_name(&l.schema, &l.name)))
        .collect();
    if odd.len() > 3 {
        shown.push(format!("and so on for {} more partitions", odd.len() - 3));
    }
    let what = format!(
        "its partition {} has another replica identity, and its rows are logged by that",
        for_table(&first.schema, &first.name)
    );
    findings.push(Finding::error("partition-identity", table.display(), what, shown.join("\n")));
}

fn generated(table: &TableInfo, sent: bool, findings: &mut Vec<Finding>) {
    let generated: Vec<&str> = table
        .columns
        .iter()
        .filter(|c| c.generated == 'v' || (c.generated == 's' && !sent))
        .map(|c| c.name.as_str())
        .collect();
    let in_key: Vec<&str> = table
        .key_names()
        .unwrap_or_default()
        .into_iter()
        .filter(|name| generated.contains(name))
        .collect();
    if !in_key.is_empty() {
        findings.push(Finding::error(
            "generated-key",
            table.display(),
            format!("its key holds the generated column {}, which is not sent", in_key.join(", ")),
            everywhere(table, "REPLICA IDENTITY FULL"),
        ));
    } else if !generated.is_empty() {
        findings.push(Finding::info(
            "generated-columns",
            table.display(),
            format!("the server does not send the generated {}", generated.join(", ")),
            "",
        ));
    }
}

/// Names that no lake table can have, and a key that is no key without a left out column.
fn columns(table: &TableInfo, facts: &Facts, prefix: &str, findings: &mut Vec<Finding>) {
    let mut plans = Vec::with_capacity(table.columns.len());
    for column in table.columns.iter().filter(|column| !column.is_left_out()) {
        // An option that does not suit its column is a mistake in the configuration, told as one when
        // the table is planned.
        let Ok(plan) = types::plan(&facts.types, column, &column.options) else { return };
        plans.push(plan);
    }
    if let Err(error) = types::check_names(&plans, prefix) {
        let fix = error.next_step().unwrap_or("rename the column");
        findings.push(Finding::error("column-name", table.display(), error.what(), fix));
    }
    if table.keeps_deleted && table.key.is_none() && table.identity == ReplicaIdentity::Full {
        findings.push(Finding::error(
            "soft-delete-key",
            table.display(),
            "has no key, and a deleted row can only be kept under its key",
            format!(
                "ALTER TABLE {} ADD PRIMARY KEY (…);\nor exclude it under `soft_delete`",
                table.sql_name()
            ),
        ));
    }
    let in_key = |place: &usize| table.columns.get(*place).filter(|c| c.options.left_out);
    if let Some(column) = table.key.iter().flatten().find_map(in_key) {
        findings.push(Finding::error(
            "left-out-key",
            table.display(),
            format!("its key has the column {:?}, which [[columns]] leaves out", column.name),
            "take it out of `leave_out` (`hash` keeps rows apart, too)",
        ));
    }
}

fn storage(table: &TableInfo, findings: &mut Vec<Finding>) {
    if let Some(leaf) = table.leaves.iter().find(|leaf| leaf.access_method != "heap") {
        findings.push(Finding::warning(
            "access-method",
            table.display(),
            format!(
                "{} is stored by {}, of which it is not known whether its changes can be decoded",
                for_table(&leaf.schema, &leaf.name),
                leaf.access_method
            ),
            format!("ALTER TABLE {} SET ACCESS METHOD heap;", sql_name(&leaf.schema, &leaf.name)),
        ));
    }
}

fn rights(table: &TableInfo, facts: &Facts, findings: &mut Vec<Finding>) {
    let role = quote_ident(&facts.server.role.name);
    let leaves = table.leaves.iter().filter(|leaf| leaf.oid != table.oid);
    let places = std::iter::once((table.oid, table.schema.as_str(), table.name.as_str()))
        .chain(leaves.map(|l| (l.oid, l.schema.as_str(), l.name.as_str())));
    let (mut lacking, mut grants): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut filtered: Option<(String, &TableRights)> = None;
    for (oid, schema, name) in places {
        let Some(rights) = facts.rights.get(&oid) else { continue };
        let shown = for_table(schema, name);
        if !rights.usage {
            lacking.push(format!("USAGE on schema {schema}"));
            grants.push(format!("GRANT USAGE ON SCHEMA {} TO {role};", quote_ident(schema)));
        }
        let left_out = |name: &String| {
            table.columns.iter().any(|column| column.name == *name && column.options.left_out)
        };
        let unreadable: Vec<&str> =
            rights.unreadable.iter().filter(|name| !left_out(name)).map(String::as_str).collect();
        if !rights.select && !unreadable.is_empty() {
            lacking.push(format!("SELECT on {shown} ({})", unreadable.join(", ")));
            grants.push(format!("GRANT SELECT ON {} TO {role};", sql_name(schema, name)));
        }
        if rights.row_security && filtered.is_none() {
            filtered = Some((shown, rights));
        }
    }
    grants.dedup();
    lacking.dedup();
    let shorten = |list: &mut Vec<String>| {
        if list.len() > 4 {
            let more = list.len() - 3;
            list.truncate(3);
            list.push(format!("and {more} more"));
        }
    };
    shorten(&mut lacking);
    shorten(&mut grants);
    if !lacking.is_empty() {
        let what = format!("role {} lacks {}", facts.server.role.name, lacking.join(", "));
        findings.push(Finding::error("table-rights", table.display(), what, grants.join("\n")));
    }
    if let Some((shown, rights)) = filtered {
        let what = format!(
            "row level security of {shown} applies to role {}: it would not see every row, so the \
             server refuses the copy",
            facts.server.role.name
        );
        let fix = if rights.owner {
            format!(
                "ALTER TABLE {} NO FORCE ROW LEVEL SECURITY;\nor as a superuser: ALTER ROLE {role} BYPASSRLS;",
                table.sql_name()
            )
        } else {
            format!("as a superuser: ALTER ROLE {role} BYPASSRLS;")
        };
        findings.push(Finding::error("row-security", table.display(), what, fix));
    }
}

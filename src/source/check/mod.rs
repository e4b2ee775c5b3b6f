//! Everything that must be right before a snapshot is taken, each fault with the SQL that mends it.
//!
//! [`check`] asks the server ([`Facts`]), then decides by pure rules. It changes nothing.
//! Its promise: what would fail in the middle of a copy, or break the application on the source,
//! is found here first.

mod facts;
mod finding;
mod rules;
mod table_rules;

pub use facts::{Facts, Holder, TableRights};
pub use finding::{Finding, Severity, as_error};

use std::collections::BTreeSet;

use crate::source::client::Client;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::source::catalog::{ServerInfo, Treatments};

/// What is to be replicated, and how.
#[derive(Clone, Debug)]
pub struct CheckRequest<'a> {
    /// The user's table patterns.
    pub tables: &'a [String],
    /// What the user says of columns.
    pub treatments: &'a Treatments,
    /// The slot's name.
    pub slot: &'a str,
    /// The publication's name.
    pub publication: &'a str,
    /// Prefix of the columns that are added to each table.
    pub column_prefix: &'a str,
    /// The pipeline has published tables from this slot before, so it must be there.
    pub started: bool,
    /// An earlier run made the publication, so newly selected tables will be added to it.
    pub publication_ours: bool,
    /// What is known of the server already; asked for if `None`.
    pub server: Option<&'a ServerInfo>,
}

/// The answer of [`check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// The server's version in words.
    pub server_version: String,
    /// The database.
    pub database: String,
    /// The tables selected, as `schema.table`.
    pub tables: Vec<String>,
    /// Tables that a pattern matches and that can't be replicated as they are: the others are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The findings, errors first.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Whether anything must be mended first: exit code 3.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|f| f.severity == Severity::Error)
    }

    /// For people: each finding with the line that mends it.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "PostgreSQL {}, database {}: {}\n",
            self.server_version,
            self.database,
            counted(self.tables.len(), "table")
        );
        for finding in &self.findings {
            let Finding { id, severity, subject, what, fix } = finding;
            text.push_str(&format!("\n{:<8} {subject}: {what} [{id}]\n", severity.word()));
            for line in fix.lines() {
                text.push_str(&format!("         fix: {line}\n"));
            }
        }
        let of = |severity| self.findings.iter().filter(|f| f.severity == severity).count();
        let summary = match (of(Severity::Error), of(Severity::Warning)) {
            (0, 0) => "ready".to_owned(),
            (0, warnings) => format!("ready, with {}", counted(warnings, "warning")),
            (errors, 0) => format!("not ready: {}", counted(errors, "error")),
            (errors, warnings) => {
                format!("not ready: {}, {}", counted(errors, "error"), counted(warnings, "warning"))
            }
        };
        text.push_str(&format!("\n{summary}\n"));
        text
    }
}

fn counted(n: usize, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {thing}{plural}")
}

/// Checks the source for what `request` wants. Reads only.
///
/// # Errors
/// A mistake in the patterns' syntax or the slot's name (config), and failing queries. Everything
/// else is a finding.
pub async fn check(client: &Client, request: &CheckRequest<'_>) -> Result<CheckReport> {
    Ok(check_tables(client, request).await?.0)
}

/// As [`check`], with what it looked at: the facts have the tables that can be replicated.
///
/// # Errors
/// As [`check`].
pub async fn check_tables(
    client: &Client,
    request: &CheckRequest<'_>,
) -> Result<(CheckReport, Facts)> {
    crate::source::slot::check_slot_name(request.slot)?;
    let mut facts = Facts::gather(client, request).await?;
    let report = report(&mut facts, request);
    Ok((report, facts))
}

/// The pure half of [`check`]. Takes out of the facts what is left out.
///
/// A table that can't be replicated as it is stops the others only where it is named. One that a
/// glob matches is left out: a schema that grew for years has such tables, and a new one must not
/// stop a pipeline either.
pub fn report(facts: &mut Facts, request: &CheckRequest<'_>) -> CheckReport {
    let mut findings = std::mem::take(&mut facts.selection.findings);
    let of_tables = findings.len();
    findings.extend(table_rules::findings(facts, request));
    let left_out = leave_out(facts, &mut findings);
    let of_tables = findings.split_off(of_tables);
    findings.extend(rules::findings(facts, request));
    findings.extend(of_tables);
    // Stable, so that findings of one severity keep the order of the rules.
    findings.sort_by_key(|f| f.severity);
    CheckReport {
        server_version: facts.server.version_text.clone(),
        database: facts.server.database.clone(),
        tables: facts.selection.tables.iter().map(|t| t.display()).collect(),
        left_out,
        findings,
    }
}

fn leave_out(facts: &mut Facts, findings: &mut Vec<Finding>) -> Vec<String> {
    let selection = &mut facts.selection;
    let mut unfit = BTreeSet::new();
    for finding in findings.iter_mut() {
        let of_one = finding.severity == Severity::Error && table_rules::is_of_its_own(&finding.id);
        let mut tables = selection.tables.iter();
        let table = tables.find(|table| of_one && table.display() == finding.subject);
        let Some(table) = table.filter(|table| !selection.named.contains(&table.oid)) else {
            continue;
        };
        finding.severity = Severity::Warning;
        finding.what.push_str("; left out, the others are replicated");
        finding.fix.push_str(&format!("\nor exclude it: \"!{}\" under tables", finding.subject));
        unfit.insert(table.oid);
    }
    let (left_out, tables): (Vec<_>, Vec<_>) =
        std::mem::take(&mut selection.tables).into_iter().partition(|t| unfit.contains(&t.oid));
    selection.tables = tables;
    if selection.tables.is_empty() && !left_out.is_empty() {
        findings.push(Finding::error(
            "nothing-selected",
            "tables",
            "none of the tables that match can be replicated as it is",
            "mend one of the findings below",
        ));
    }
    left_out.iter().map(|table| table.display()).collect()
}

#[cfg(test)]
mod tests;

//! What a check found, in words, with the SQL or setting that mends it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};

/// How bad a finding is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Replication can't start, or would be wrong.
    Error,
    /// It works, and will hurt one day.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    /// The word used in reports.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable name in kebab-case, for scripts.
    pub id: String,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: `server`, `role x`, a table, `slot x`, `publication x`.
    pub subject: String,
    /// What is the case.
    pub what: String,
    /// What mends it: SQL to run, or a setting. Empty when there is nothing to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

impl Finding {
    /// A finding of the given severity.
    pub fn new(
        severity: Severity,
        id: &str,
        subject: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (subject, what, fix) = (subject.into(), what.into(), fix.into());
        Finding { id: id.to_owned(), severity, subject, what, fix }
    }

    /// Something that must be mended first.
    pub fn error(
        id: &str,
        subject: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Finding::new(Severity::Error, id, subject, what, fix)
    }

    /// Something that will hurt one day.
    pub fn warning(
        id: &str,
        subject: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Finding::new(Severity::Warning, id, subject, what, fix)
    }

    /// Something worth knowing.
    pub fn info(
        id: &str,
        subject: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Finding::new(Severity::Info, id, subject, what, fix)
    }
}

/// The errors among `findings` as one [`Error`] of kind [`Kind::Check`]: all of them in the
/// message, the fixes as the next step. `None` when there is no error.
pub fn as_error(findings: &[Finding]) -> Option<Error> {
    let errors: Vec<&Finding> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
    let shown = errors.iter().take(10);
    let mut message =
        shown.clone().map(|f| format!("{}: {}", f.subject, f.what)).collect::<Vec<_>>().join("\n");
    if errors.is_empty() {
        return None;
    }
    if errors.len() > 10 {
        message.push_str(&format!("\nand {} more; `tidegate check` lists all", errors.len() - 10));
    }
    let mut fixes: Vec<&str> = Vec::new();
    for finding in shown {
        if !finding.fix.is_empty() && !fixes.contains(&finding.fix.as_str()) {
            fixes.push(&finding.fix);
        }
    }
    let error = Error::new(Kind::Check, message);
    Some(if fixes.is_empty() { error } else { error.next(fixes.join("\n        ")) })
}

//! What is to become of the tables that were chosen: what the configuration says of their columns
//! (`[[columns]]`), and which publication says which of their rows are sent.
//!
//! A name that finds no column is a finding and never passed over: who leaves a column out has a
//! reason to.

use std::collections::{BTreeMap, BTreeSet};

use super::TableInfo;
use super::pattern::{self, Pattern};
use crate::error::Result;
use crate::source::check::Finding;
use crate::source::types::{ColumnOptions, HashKey};

/// Finding: a table that is named, and so is a column that it does not have.
pub const UNKNOWN: &str = "column-unknown";
/// Finding: a column that no table has of those that a pattern chose. Says nothing where only some of
/// them are looked at.
pub const NOWHERE: &str = "column-nowhere";

/// What is said of some columns of some tables.
#[derive(Clone, Debug)]
pub struct Rule {
    tables: Vec<Pattern>,
    columns: BTreeMap<String, ColumnOptions>,
}

impl Rule {
    /// `columns` by their names, of the tables that `patterns` choose.
    ///
    /// # Errors
    /// The syntax of a pattern.
    pub fn new(patterns: &[String], columns: BTreeMap<String, ColumnOptions>) -> Result<Rule> {
        Ok(Rule { tables: pattern::parse(patterns)?, columns })
    }

    fn is_for(&self, table: &TableInfo) -> bool {
        chosen(&self.tables, table)
    }

    /// Whether it names this very table.
    fn names(&self, table: &TableInfo) -> bool {
        let name = (table.schema.clone(), table.name.clone());
        self.tables.iter().any(|pattern| pattern.literal().as_ref() == Some(&name))
    }
}

/// All rules, the key of the hashes, and the publication.
#[derive(Clone, Debug, Default)]
pub struct Treatments {
    rules: Vec<Rule>,
    /// Tables whose deleted rows are kept.
    soft_delete: Vec<Pattern>,
    hash_key: Option<HashKey>,
    publication: String,
}

impl Treatments {
    /// Columns are held as they are, and no publication filters rows.
    pub const fn none() -> Treatments {
        Treatments {
            rules: Vec::new(),
            soft_delete: Vec::new(),
            hash_key: None,
            publication: String::new(),
        }
    }

    /// Of two rules for one column the later one counts.
    pub fn new(rules: Vec<Rule>, hash_key: Option<HashKey>, publication: &str) -> Treatments {
        Treatments { rules, soft_delete: Vec::new(), hash_key, publication: publication.to_owned() }
    }

    /// Keeps the deleted rows of the tables that `patterns` choose.
    ///
    /// # Errors
    /// The syntax of a pattern.
    pub fn keeping_deleted(self, patterns: &[String]) -> Result<Treatments> {
        if patterns.is_empty() {
            return Ok(self);
        }
        Ok(Treatments { soft_delete: pattern::parse(patterns)?, ..self })
    }

    /// The publication whose row filters count.
    pub fn publication(&self) -> &str {
        &self.publication
    }

    /// Whether a rule for this table names the column.
    pub fn name_column(&self, table: &TableInfo, column: &str) -> bool {
        self.rules.iter().any(|rule| rule.is_for(table) && rule.columns.contains_key(column))
    }

    /// The key of the hashes.
    pub fn hash_key(&self) -> Option<&HashKey> {
        self.hash_key.as_ref()
    }

    /// Gives each column its options, and says which names found none.
    pub fn apply(&self, tables: &mut [TableInfo]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for table in tables.iter_mut() {
            table.keeps_deleted = chosen(&self.soft_delete, table);
        }
        for rule in &self.rules {
            let mut unfound: BTreeSet<&str> = rule.columns.keys().map(String::as_str).collect();
            let mut first = None;
            for table in tables.iter_mut().filter(|table| rule.is_for(table)) {
                first.get_or_insert_with(|| table.display());
                for (name, options) in &rule.columns {
                    let column = table.columns.iter_mut().find(|column| column.name == *name);
                    if let Some(column) = column {
                        column.options = options.over(&column.options);
                    } else if rule.names(table) {
                        findings.push(unknown(table, name));
                    } else {
                        continue;
                    }
                    unfound.remove(&**name);
                }
            }
            // A rule for tables that are not there (yet) has nothing to find.
            if let Some(first) = first {
                findings.extend(unfound.iter().map(|name| nowhere(&first, name)));
            }
        }
        findings
    }
}

/// Whether a pattern chooses the table, and none excludes it.
fn chosen(patterns: &[Pattern], table: &TableInfo) -> bool {
    let fits = |exclude: bool| {
        let mut of_sort = patterns.iter().filter(|pattern| pattern.exclude == exclude);
        of_sort.any(|pattern| pattern.matches(&table.schema, &table.name))
    };
    fits(false) && !fits(true)
}

fn unknown(table: &TableInfo, name: &str) -> Finding {
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    Finding::error(
        UNKNOWN,
        table.display(),
        format!("has no column {name:?}, which [[columns]] names"),
        format!("correct the name under [[columns]]; its columns are {}", columns.join(", ")),
    )
}

fn nowhere(first: &str, name: &str) -> Finding {
    Finding::error(
        NOWHERE,
        first,
        format!("and the other tables of its [[columns]] section have no column {name:?}"),
        "correct the name under [[columns]]; names are case-sensitive, as the catalog has them",
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;

    fn rule(patterns: &str, columns: &[(&str, ColumnOptions)]) -> Rule {
        let columns = columns.iter().map(|(name, o)| ((*name).to_owned(), o.clone())).collect();
        Rule::new(&[patterns.to_owned()], columns).unwrap()
    }

    fn left_out() -> ColumnOptions {
        ColumnOptions { left_out: true, ..Default::default() }
    }

    fn text() -> ColumnOptions {
        ColumnOptions { as_text: true, ..Default::default() }
    }

    #[test]
    fn a_later_rule_counts_and_an_excluded_table_has_none() {
        let rules =
            vec![rule("public.*, !public.u", &[("v", text())]), rule("w", &[("v", left_out())])];
        let mut tables = [table("t"), table("u"), table("w")];
        assert!(Treatments::new(rules, None, "").apply(&mut tables).is_empty());
        let options: Vec<String> = tables.iter().map(|t| t.columns[1].options.name()).collect();
        assert_eq!(options, ["text", "", "left out"]);
    }

    #[test]
    fn a_name_that_finds_no_column_is_never_passed_over() {
        let apply = |rule: Rule, tables: &mut [TableInfo]| {
            Treatments::new(vec![rule], None, "").apply(tables)
        };
        let found = apply(rule("t", &[("V", left_out())]), &mut [table("t")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("has no column \"V\""), "{}", found[0].what);
        assert!(found[0].fix.contains("id, v"), "{}", found[0].fix);
        // Of many tables one is enough to have it.
        let mut other = table("u");
        other.columns[1].name = "w".into();
        assert!(apply(rule("*", &[("w", left_out())]), &mut [table("t"), other]).is_empty());
        assert_eq!(apply(rule("*", &[("x", left_out())]), &mut [table("t")]).len(), 1);
        assert!(apply(rule("later", &[("x", left_out())]), &mut [table("t")]).is_empty());
    }

    #[test]
    fn what_a_lake_table_remembers_is_read_back() {
        let key = HashKey::new(b"k");
        let hash = ColumnOptions { hash: Some(key.clone()), ..Default::default() };
        let decimal = ColumnOptions { decimal: Some((20, 4)), ..Default::default() };
        for options in [ColumnOptions::default(), left_out(), text(), hash.clone(), decimal] {
            assert_eq!(ColumnOptions::parse(&options.name(), Some(&key)).unwrap(), options);
        }
        let forgotten = ColumnOptions::parse(&hash.name(), None).unwrap();
        assert!(!forgotten.hash.unwrap().is_known());
        assert!(ColumnOptions::parse("masked", None).is_err());
    }
}

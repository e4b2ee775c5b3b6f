//! Which tables the patterns choose: a pure function over the list of relations.
//!
//! A table named without globs must exist and be fit for replication, or it is an error. A glob
//! takes what is fit and says what it left out.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::pattern::{Pattern, for_table};
use super::{ReplicaIdentity, TableKind, sql_name};
use crate::source::check::{Finding, Severity};

/// A row of `pg_class`.
#[derive(Clone, Debug)]
pub(super) struct Relation {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    /// `r`, `p`, `v`, `m`, `f` or `S`.
    pub kind: char,
    /// `p`, `u` or `t`.
    pub persistence: char,
    pub identity: ReplicaIdentity,
    pub is_partition: bool,
    pub access_method: String,
}

impl Relation {
    fn display(&self) -> String {
        for_table(&self.schema, &self.name)
    }

    fn is_table(&self) -> bool {
        matches!(self.kind, 'r' | 'p')
    }
}

/// Partition to parent.
pub(super) type PartitionTree = HashMap<u32, u32>;

/// A table that was chosen, with its leaves.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub table: Relation,
    pub kind: TableKind,
    pub leaves: Vec<Relation>,
}

#[derive(Debug, Default)]
pub(super) struct Resolved {
    pub tables: Vec<Chosen>,
    pub findings: Vec<Finding>,
}

/// Schemas that no glob enters and no table is replicated from.
fn is_system(schema: &str) -> bool {
    schema.starts_with("pg_") || schema == "information_schema"
}

pub(super) fn resolve(
    patterns: &[Pattern],
    relations: &[Relation],
    tree: &PartitionTree,
) -> Resolved {
    let by_name: HashMap<(&str, &str), &Relation> =
        relations.iter().map(|r| ((r.schema.as_str(), r.name.as_str()), r)).collect();
    let by_oid: HashMap<u32, &Relation> = relations.iter().map(|r| (r.oid, r)).collect();
    let mut scene = Scene { relations, by_name, by_oid, tree, findings: Vec::new() };

    let (excluding, including): (Vec<_>, Vec<_>) = patterns.iter().partition(|p| p.exclude);
    let excluded = |r: &Relation| excluding.iter().any(|p| p.matches(&r.schema, &r.name));
    let mut chosen: BTreeMap<(&str, &str), &Relation> = BTreeMap::new();
    for pattern in including {
        for relation in scene.matched(pattern, &excluded) {
            chosen.insert((&relation.schema, &relation.name), relation);
        }
    }
    scene.look_at_exclusions(&excluding);

    let mut children: HashMap<u32, Vec<&Relation>> = HashMap::new();
    for (child, parent) in tree {
        if let Some(relation) = scene.by_oid.get(child) {
            children.entry(*parent).or_default().push(relation);
        }
    }
    let mut tables = Vec::with_capacity(chosen.len());
    for table in chosen.into_values() {
        let (kind, leaves) = match table.kind {
            'p' => (TableKind::Partitioned, scene.leaves(table, &children)),
            _ => (TableKind::Plain, vec![table.clone()]),
        };
        tables.push(Chosen { table: table.clone(), kind, leaves });
    }
    let said_why = scene.findings.iter().any(|f| f.severity == Severity::Error);
    if tables.is_empty() && !said_why {
        let what = "every table that is named is excluded as well".to_owned();
        scene.error("nothing-selected", "tables", what, "take an exclusion away");
    }
    Resolved { tables, findings: scene.findings }
}

struct Scene<'a> {
    relations: &'a [Relation],
    by_name: HashMap<(&'a str, &'a str), &'a Relation>,
    by_oid: HashMap<u32, &'a Relation>,
    tree: &'a PartitionTree,
    findings: Vec<Finding>,
}

impl<'a> Scene<'a> {
    fn error(&mut self, id: &str, subject: &str, what: String, fix: impl Into<String>) {
        self.findings.push(Finding::error(id, subject, what, fix));
    }

    fn matched(
        &mut self,
        pattern: &Pattern,
        excluded: &dyn Fn(&Relation) -> bool,
    ) -> Vec<&'a Relation> {
        match pattern.literal() {
            Some((schema, table)) => self.named(&schema, &table, excluded).into_iter().collect(),
            None => self.globbed(pattern, excluded),
        }
    }

    fn named(
        &mut self,
        schema: &str,
        table: &str,
        excluded: &dyn Fn(&Relation) -> bool,
    ) -> Option<&'a Relation> {
        let shown = for_table(schema, table);
        let temporary = self.relations.iter().any(|r| r.persistence == 't' && r.name == table);
        let Some(relation) = self.by_name.get(&(schema, table)).copied() else {
            if is_system(schema) && !(temporary && schema.starts_with("pg_temp")) {
                let what = "is in a system schema, which logical decoding leaves out";
                self.error("system-table", &shown, what.into(), "name tables of your own schemas");
            } else if temporary {
                self.error("temporary-table", &shown, TEMPORARY.into(), MAKE_PERMANENT);
            } else {
                let (what, fix) = self.missing(schema, table);
                self.error("table-missing", &shown, what, fix);
            }
            return None;
        };
        if relation.persistence == 't' {
            self.error("temporary-table", &shown, TEMPORARY.into(), MAKE_PERMANENT);
            return None;
        }
        if let Some((id, what, fix)) = not_a_table(relation) {
            self.error(id, &shown, what, fix);
            return None;
        }
        if relation.persistence == 'u' {
            let fix = format!("ALTER TABLE {} SET LOGGED;", sql_name(schema, table));
            self.error("unlogged-table", &shown, UNLOGGED.into(), fix);
            return None;
        }
        if let Some(root) = self.root_of(relation) {
            let what = format!(
                "is a partition of {root}; a partitioned table is replicated as a whole, under \
                 its own name"
            );
            self.error("partition-named", &shown, what, format!("name {root} instead"));
            return None;
        }
        if excluded(relation) {
            let what = "is named and excluded at once; it stays excluded";
            self.findings.push(Finding::warning("named-and-excluded", shown, what, ""));
            return None;
        }
        Some(relation)
    }

    fn globbed(
        &mut self,
        pattern: &Pattern,
        excluded: &dyn Fn(&Relation) -> bool,
    ) -> Vec<&'a Relation> {
        let (mut taken, mut roots, mut others) = (Vec::new(), Vec::new(), 0);
        let (mut unlogged, mut left_out) = (Vec::new(), 0);
        let matching = self
            .relations
            .iter()
            .filter(|r| !is_system(&r.schema) && r.persistence != 't')
            .filter(|r| pattern.matches(&r.schema, &r.name));
        for relation in matching {
            if !relation.is_table() {
                others += 1;
            } else if let Some(root) = self.root_of(relation) {
                roots.push(root);
            } else if excluded(relation) {
                left_out += 1;
            } else if relation.persistence == 'u' {
                unlogged.push(relation);
            } else {
                taken.push(relation);
            }
        }
        roots.sort();
        roots.dedup();
        if taken.is_empty() {
            let (what, fix) = if left_out > 0 {
                ("every table that it matches is excluded".to_owned(), String::new())
            } else if let Some(root) = roots.first() {
                let what = format!("matches only partitions of {}", roots.join(", "));
                (what, format!("name the partitioned table: {root}"))
            } else if !unlogged.is_empty() {
                let what = "matches only unlogged tables, whose changes are not in the WAL";
                (what.to_owned(), "ALTER TABLE … SET LOGGED;".to_owned())
            } else if others > 0 {
                let what = "matches no table, only views, sequences or foreign tables";
                (what.to_owned(), "name the tables they read from".to_owned())
            } else {
                let fix = "SELECT schemaname, tablename FROM pg_tables; lists what is there";
                ("matches no table".to_owned(), fix.to_owned())
            };
            self.error("pattern-matches-nothing", &format!("pattern {}", pattern.text), what, fix);
        }
        for relation in unlogged {
            let fix =
                format!("ALTER TABLE {} SET LOGGED;", sql_name(&relation.schema, &relation.name));
            self.findings.push(Finding::warning(
                "unlogged-table",
                relation.display(),
                format!("{UNLOGGED}; left out"),
                fix,
            ));
        }
        taken
    }

    /// An exclusion that excludes nothing may be a slip of the pen that publishes a secret.
    fn look_at_exclusions(&mut self, excluding: &[&Pattern]) {
        for pattern in excluding {
            let subject = format!("pattern {}", pattern.text);
            let hit = self.relations.iter().find(|r| pattern.matches(&r.schema, &r.name));
            match (hit, pattern.literal()) {
                (None, _) => self.findings.push(Finding::warning(
                    "exclusion-matches-nothing",
                    subject,
                    "excludes nothing, as no table fits",
                    "check its spelling",
                )),
                (Some(relation), Some(_)) => {
                    if let Some(root) = self.root_of(relation) {
                        let what = format!("is a partition of {root} and can't be left out alone");
                        self.error("partition-named", &subject, what, format!("exclude {root}"));
                    }
                }
                _ => {}
            }
        }
    }

    /// The topmost partitioned table above a partition.
    fn root_of(&self, relation: &Relation) -> Option<String> {
        if !relation.is_partition {
            return None;
        }
        let (mut oid, mut seen) = (relation.oid, HashSet::new());
        while let Some(parent) = self.tree.get(&oid) {
            if !seen.insert(oid) {
                break;
            }
            oid = *parent;
        }
        // A partition that is being detached has no parent any more and is left out as well.
        let root = if oid == relation.oid { None } else { self.by_oid.get(&oid) };
        Some(root.map_or_else(|| "a partitioned table".to_owned(), |r| r.display()))
    }

    fn leaves(
        &mut self,
        root: &Relation,
        children: &HashMap<u32, Vec<&'a Relation>>,
    ) -> Vec<Relation> {
        let (mut leaves, mut open) = (Vec::new(), vec![root.oid]);
        let mut seen = HashSet::new();
        while let Some(oid) = open.pop() {
            if !seen.insert(oid) {
                continue;
            }
            for child in children.get(&oid).into_iter().flatten() {
                match (child.kind, child.persistence) {
                    ('p', _) => open.push(child.oid),
                    ('r', 'p') => leaves.push((*child).clone()),
                    (kind, _) => {
                        let why = if kind == 'f' { "a foreign table" } else { "unlogged" };
                        let what = format!(
                            "its partition {} is {why}: changes there are not in the WAL",
                            child.display()
                        );
                        let detach = format!(
                            "ALTER TABLE {} DETACH PARTITION {};",
                            sql_name(&root.schema, &root.name),
                            sql_name(&child.schema, &child.name)
                        );
                        let fix = if kind == 'f' {
                            detach
                        } else {
                            format!(
                                "ALTER TABLE {} SET LOGGED;",
                                sql_name(&child.schema, &child.name)
                            )
                        };
                        self.error("partition-not-logged", &root.display(), what, fix);
                    }
                }
            }
        }
        leaves.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
        leaves
    }

    fn missing(&self, schema: &str, table: &str) -> (String, String) {
        let wanted = format!("{schema}.{table}");
        let near = self
            .relations
            .iter()
            .filter(|r| r.is_table() && r.persistence == 'p' && !r.is_partition)
            .map(|r| {
                let have = format!("{}.{}", r.schema, r.name);
                let closeness = strsim::normalized_damerau_levenshtein(
                    &wanted.to_lowercase(),
                    &have.to_lowercase(),
                );
                // The right name in another schema is the commonest slip.
                let same_name = r.name.eq_ignore_ascii_case(table);
                (if same_name { closeness.max(0.9) } else { closeness }, r)
            })
            .filter(|(closeness, _)| *closeness >= 0.6)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        match near {
            Some((_, relation)) => {
                ("does not exist".to_owned(), format!("did you mean {}?", relation.display()))
            }
            None => {
                let fix = "SELECT schemaname, tablename FROM pg_tables; lists what is there";
                ("does not exist".to_owned(), fix.to_owned())
            }
        }
    }
}

const UNLOGGED: &str = "is unlogged: its changes are not in the WAL";
const TEMPORARY: &str = "is a temporary table of one session: its changes are not in the WAL";
const MAKE_PERMANENT: &str = "make it an ordinary table";

fn not_a_table(relation: &Relation) -> Option<(&'static str, String, &'static str)> {
    let (id, what, fix) = match relation.kind {
        'v' => ("view-named", "is a view", "name the tables it reads from"),
        'm' => (
            "view-named",
            "is a materialized view",
            "name the tables it reads from, or keep its rows in a table",
        ),
        'f' => (
            "foreign-table-named",
            "is a foreign table: its changes are in another server's WAL",
            "replicate it from the server that holds it",
        ),
        'S' => ("sequence-named", "is a sequence, and has no rows", "name the table that uses it"),
        _ => return None,
    };
    Some((id, what.to_owned(), fix))
}

#[cfg(test)]
mod tests {
    use super::super::pattern::parse;
    use super::*;

    fn relation(oid: u32, name: &str, kind: char) -> Relation {
        let (schema, name) = name.split_once('.').unwrap_or(("public", name));
        Relation {
            oid,
            schema: schema.into(),
            name: name.into(),
            kind,
            persistence: 'p',
            identity: ReplicaIdentity::Default,
            is_partition: false,
            access_method: "heap".into(),
        }
    }

    /// events (p) -> events_a (r), events_sub (p) -> events_b (r)
    fn world() -> (Vec<Relation>, PartitionTree) {
        let mut all = vec![
            relation(1, "orders", 'r'),
            relation(2, "Orders Old", 'r'),
            relation(3, "sales.items", 'r'),
            relation(4, "sales.fast", 'r'),
            relation(5, "totals", 'v'),
            relation(6, "events", 'p'),
            relation(7, "events_a", 'r'),
            relation(8, "events_sub", 'p'),
            relation(9, "events_b", 'r'),
            relation(10, "pg_temp_3.scratch", 'r'),
        ];
        all[3].persistence = 'u';
        all[9].persistence = 't';
        for i in [6, 7, 8] {
            all[i].is_partition = true;
        }
        (all, HashMap::from([(7, 6), (8, 6), (9, 8)]))
    }

    fn run(text: &str) -> (Vec<String>, Vec<(String, String)>) {
        let (relations, tree) = world();
        let resolved = resolve(&parse(&[text.to_owned()]).unwrap(), &relations, &tree);
        let names = resolved.tables.iter().map(|c| c.table.display()).collect();
        let findings = resolved.findings.iter();
        let said = |f: &Finding| (f.id.clone(), format!("{}: {} ({})", f.subject, f.what, f.fix));
        (names, findings.map(said).collect())
    }

    fn refused(text: &str, id: &str, word: &str) {
        let (names, findings) = run(text);
        assert!(names.is_empty(), "{text}: {names:?}");
        let [(found, said)] = findings.as_slice() else { panic!("{text}: {findings:?}") };
        assert_eq!(found, id, "{text}");
        assert!(said.contains(word), "{text}: {said}");
    }

    #[test]
    fn each_bad_name_is_refused_in_its_own_words() {
        refused("ordes", "table-missing", "did you mean public.orders?");
        refused("items", "table-missing", "sales.items");
        refused("\"Orders old\"", "table-missing", "public.\"Orders Old\"");
        refused("zzzzzzzzz", "table-missing", "pg_tables");
        refused("totals", "view-named", "reads from");
        refused("sales.fast", "unlogged-table", "SET LOGGED");
        refused("scratch", "temporary-table", "temporary");
        refused("pg_temp_3.scratch", "temporary-table", "temporary");
        refused("pg_catalog.pg_class", "system-table", "system");
        refused("events_b", "partition-named", "public.events");
        refused("events_?", "pattern-matches-nothing", "only partitions of public.events");
        refused("tot*", "pattern-matches-nothing", "only views");
        refused("nothing*", "pattern-matches-nothing", "matches no table");
        refused("pg_catalog.*", "pattern-matches-nothing", "matches no table");
        refused("orders*,!*", "pattern-matches-nothing", "excluded");
    }

    #[test]
    fn a_partition_is_taken_once_through_its_root_with_leaves_of_every_depth() {
        let (relations, tree) = world();
        let resolved = resolve(&parse(&["events*".into()]).unwrap(), &relations, &tree);
        let [events] = resolved.tables.as_slice() else { panic!("{resolved:?}") };
        assert_eq!(events.kind, TableKind::Partitioned);
        assert_eq!(events.leaves.iter().map(|l| l.oid).collect::<Vec<_>>(), [7, 9]);
        assert!(resolved.findings.is_empty());
    }

    #[test]
    fn an_unlogged_partition_is_an_error_of_its_root() {
        let (mut relations, tree) = world();
        relations[8].persistence = 'u';
        let resolved = resolve(&parse(&["events".into()]).unwrap(), &relations, &tree);
        assert_eq!(resolved.findings[0].id, "partition-not-logged");
    }

    #[test]
    fn a_glob_leaves_out_unlogged_tables_aloud_and_temporary_ones_in_silence() {
        let (names, findings) = run("*.*");
        assert_eq!(
            names,
            ["public.\"Orders Old\"", "public.events", "public.orders", "sales.items"]
        );
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].0, "unlogged-table");
    }

    #[test]
    fn exclusions_win_and_a_useless_one_is_said() {
        let (names, findings) = run("*,!ord*,!secret");
        assert_eq!(names, ["public.\"Orders Old\"", "public.events"]);
        assert_eq!(findings[0].0, "exclusion-matches-nothing");
        let (names, findings) = run("*,!events_a");
        assert!(names.contains(&"public.events".to_owned()));
        assert_eq!(findings[0].0, "partition-named");
    }

    #[test]
    fn naming_and_excluding_the_same_table_selects_nothing_aloud() {
        let (names, findings) = run("orders,!orders");
        assert!(names.is_empty());
        assert_eq!(findings[1].0, "nothing-selected");
    }

    #[test]
    fn a_table_matched_twice_is_taken_once() {
        assert_eq!(run("orders,ord*,public.orders").0, ["public.orders"]);
    }
}

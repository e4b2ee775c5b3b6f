//! The tables of a live pipeline: what the lake has of each, and what the source has now.
//!
//! A table is opened with the columns that the lake has, not with those of the catalog: the stream
//! is behind the catalog, and brings rows of before a change first. What is different is judged by
//! [`rules::evolve`], for the place in the stream at which it shows, or, where no row ever shows it,
//! once everything that had committed when it was found is applied.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use crate::apply::collect::Changed;
use crate::apply::known::{KnownColumn, KnownTable, PROPERTY};
use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::failpoint;
use crate::handoff::follow::OpenTable;
use crate::handoff::rules::{self, Evolution, InCatalog, Known, Sent};
use crate::handoff::session::Session;
use crate::lake::{Lake, LakeTable, TableEntry};
use crate::source::catalog::{self, TableInfo, TableKind, Treatments};
use crate::source::check::{Finding, Severity};
use crate::source::types::{self, ColumnOptions, HashKey, TypeCatalog};

/// Tables that are opened, or looked at, at a time: a lake that is far away answers slowly, and a schema
/// has a thousand of them.
pub(super) const TABLES_AT_A_TIME: usize = 16;

/// The source's tables now.
pub struct Found {
    /// Those of the pipeline, and those that its patterns choose besides.
    pub infos: Vec<TableInfo>,
    /// The types of the database.
    pub types: TypeCatalog,
    findings: Vec<Finding>,
    /// The key of hashed columns.
    hash_key: Option<HashKey>,
}

/// What is to become of a table that is not as the lake has it.
#[derive(Clone)]
pub enum Verdict {
    /// The lake's schema follows, the rows stay.
    Follow(Arc<TablePlan>),
    /// Its rows are to be read again.
    Again(String),
    /// It is followed no longer.
    Stop(String),
}

impl std::fmt::Debug for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Follow(_) => f.write_str("follow"),
            Verdict::Again(why) => write!(f, "again: {why}"),
            Verdict::Stop(why) => write!(f, "stop: {why}"),
        }
    }
}

/// Looks at the source.
///
/// # Errors
/// A failing query. A table that can't be replicated is no error here.
pub async fn look(session: &Session) -> Result<Found> {
    let patterns = patterns(session)?;
    let (treatments, version) = (&session.config.treatments, session.server.version);
    let found = catalog::select_tables(&session.client, &patterns, treatments, version).await?;
    let named = |finding: &&Finding| [catalog::UNKNOWN, catalog::NOWHERE].contains(&&*finding.id);
    for unknown in found.findings.iter().filter(named) {
        tracing::warn!("{} {}; {}", unknown.subject, unknown.what, unknown.fix);
    }
    let types = TypeCatalog::load(&session.client).await?;
    let hash_key = treatments.hash_key().cloned();
    Ok(Found { infos: found.tables, types, findings: found.findings, hash_key })
}

/// The pipeline's tables by name, then what the configuration chooses.
pub fn patterns(session: &Session) -> Result<Vec<String>> {
    let ledger = session.ledger()?;
    let tables = ledger.state().tables.iter();
    let mut patterns: Vec<String> =
        tables.map(|table| catalog::for_table(&table.schema, &table.name)).collect();
    if let Ok(chosen) = session.config.tables() {
        patterns.extend(chosen.iter().cloned());
    }
    Ok(patterns)
}

impl Found {
    /// The table of this name.
    pub fn named(&self, schema: &str, name: &str) -> Option<&TableInfo> {
        self.infos.iter().find(|info| info.schema == schema && info.name == name)
    }

    /// Why a table is not among those that can be replicated.
    pub fn why_not(&self, entry: &TableEntry) -> String {
        let display = catalog::for_table(&entry.schema, &entry.name);
        let finding = self
            .findings
            .iter()
            .find(|f| f.subject == display && f.severity == Severity::Error)
            .filter(|finding| finding.id != "table-missing");
        match finding {
            Some(finding) => format!("{} (fix: {})", finding.what, finding.fix),
            None => "it was dropped, renamed or moved to another schema at the source; the lake \
                     keeps its last version. If a table of this name comes back, it is read anew"
                .to_owned(),
        }
    }

    /// The plan of a table as the catalog has it.
    ///
    /// # Errors
    /// A type or key that can't be replicated.
    pub fn plan(&self, info: &TableInfo, prefix: &str) -> Result<Arc<TablePlan>> {
        let folder = Lake::table_folder(&info.schema, &info.name);
        TablePlan::new(info, &self.types, folder, prefix).map(Arc::new)
    }
}

/// What was opened, and of what can't be opened, why it is to be read again.
pub struct Opened {
    /// The tables that are followed.
    pub tables: Vec<OpenTable>,
    /// Folders of those that can't be.
    pub apart: Vec<(String, Verdict)>,
}

/// Opens the tables that are followed, without those `apart`, as the lake has them; those that the
/// stream left open are as they were.
///
/// # Errors
/// A table that is gone from the lake, or was changed there by others.
pub async fn open(session: &mut Session, found: &Found, apart: &BTreeSet<&str>) -> Result<Opened> {
    let kept = std::mem::take(&mut session.kept);
    let mut kept: HashMap<String, OpenTable> =
        kept.into_iter().map(|open| (open.plan.folder.clone(), open)).collect();
    let ledger = session.ledger()?;
    let prefix = &session.config.column_prefix;
    let mut opened = Opened { tables: Vec::new(), apart: Vec::new() };
    let followed = |entry: &&TableEntry| entry.is_followed() && !apart.contains(&*entry.folder);
    let entries: Vec<&TableEntry> = ledger.state().tables.iter().filter(followed).collect();
    let mut unopened = Vec::new();
    for entry in entries {
        match kept.remove(&entry.folder) {
            Some(open) => opened.tables.push(open),
            None => unopened.push(entry),
        }
    }
    let loads = unopened.into_iter().map(|entry| {
        let lake = session.lake.clone();
        async move { LakeTable::open(&lake, &entry.folder).await.map(|table| (entry, table)) }
    });
    let mut loads = stream::iter(loads).buffered(TABLES_AT_A_TIME);
    while let Some((entry, table)) = loads.try_next().await? {
        let table = table.ok_or_else(|| {
            Error::failed(format!("{}: its folder in the lake is gone", entry.display()))
                .next("restore it, or start a new generation with `tidegate run --resnapshot`")
        })?;
        let checkpoint = table.checkpoint();
        let plan = match table.property(PROPERTY) {
            Some(text) => {
                let known = KnownTable::parse(text).map_err(|e| e.at(&entry.folder))?;
                let (oid, key) = (checkpoint.table.oid, found.hash_key.as_ref());
                let plan = known.as_info(oid, &entry.schema, &entry.name, key).and_then(|info| {
                    TablePlan::new(&info, &found.types, entry.folder.clone(), prefix)
                });
                plan.map(|plan| Arc::new(TablePlan { known: Arc::new(known), ..plan }))
                    .map_err(|error| error.what())
            }
            // Written before the property was: its columns are known only as long as they stay.
            None => match found.named(&entry.schema, &entry.name) {
                Some(info)
                    if info.oid == checkpoint.table.oid
                        && info.fingerprint() == checkpoint.table.fingerprint =>
                {
                    found.plan(info, prefix).map_err(|error| error.to_string())
                }
                _ => Err("its columns, key or identity changed since its snapshot".to_owned()),
            },
        };
        match plan {
            Ok(plan) => opened.tables.push(OpenTable { plan, table, index: None }),
            Err(why) => {
                let verdict = match found.named(&entry.schema, &entry.name) {
                    Some(_) => Verdict::Again(why),
                    None => Verdict::Stop(found.why_not(entry)),
                };
                opened.apart.push((entry.folder.clone(), verdict));
            }
        }
    }
    Ok(opened)
}

/// The tables that are not as the catalog has them, by folder.
pub fn differences(
    session: &Session,
    found: &Found,
    tables: &[OpenTable],
) -> Vec<(String, Verdict)> {
    let Some(ledger) = &session.ledger else { return Vec::new() };
    let entry = |plan: &TablePlan| ledger.state().tables.iter().find(|e| e.folder == plan.folder);
    let mut differences = Vec::new();
    for OpenTable { plan, table, .. } in tables {
        let Some(entry) = entry(plan) else { continue };
        if table.property(PROPERTY).is_none() {
            continue;
        }
        let verdict = match found.named(&plan.schema, &plan.name) {
            None => Some(Verdict::Stop(found.why_not(entry))),
            Some(info) => against_catalog(plan, info, found, &session.config.column_prefix),
        };
        differences.extend(verdict.map(|verdict| (plan.folder.clone(), verdict)));
    }
    differences
}

/// A table as the catalog has it by now, none if there is nothing to do.
fn against_catalog(
    plan: &TablePlan,
    info: &TableInfo,
    found: &Found,
    prefix: &str,
) -> Option<Verdict> {
    let again = |why: &str| Some(Verdict::Again(why.to_owned()));
    if info.oid != plan.oid {
        return again("it was dropped and made again");
    }
    let (before, now) = (plan.known.as_ref(), KnownTable::of(info));
    if before.row_filter != now.row_filter {
        return again("the publication has another row filter for it");
    }
    if before.keeps_deleted != now.keeps_deleted {
        return again("`soft_delete` has it otherwise now");
    }
    if let Some(name) = treated_otherwise(before, &now) {
        return Some(Verdict::Again(format!("[[columns]] has column {name:?} otherwise now")));
    }
    if info.kind == TableKind::Partitioned
        && let Some(why) = leaves_changed(before, info)
    {
        return Some(Verdict::Again(why));
    }
    if before.columns_version == now.columns_version
        && before.key == now.key
        && before.identity == now.identity
        && (info.kind == TableKind::Plain
            || (before.leaves == now.leaves && before.links == now.links))
    {
        return None;
    }
    if before.identity != now.identity {
        return again("its replica identity changed");
    }
    let sent: Vec<Sent<'_>> = info
        .columns
        .iter()
        .enumerate()
        .filter(|(_, column)| !column.is_left_out())
        .map(|(place, column)| Sent {
            name: &column.name,
            pg_type: (column.type_oid, column.typmod),
            key: info.key.as_ref().is_some_and(|key| key.contains(&place)),
            catalog: Some(InCatalog {
                attnum: column.attnum,
                has_missing: column.missing.is_some() || column.missing_differs,
            }),
            same_kind: same_kind(plan, found, &column.name, column.type_oid, column.typmod),
        })
        .collect();
    let rewritten = rewritten(before, &now);
    match judge(before, &sent, rewritten) {
        Evolution::ReadAgain(doubt) => Some(Verdict::Again(doubt.to_string())),
        _ if rewritten => again("its rows were written anew by an ALTER TABLE"),
        Evolution::Same => follow(plan, now, found, prefix, &[]),
        Evolution::InPlace { dropped, .. } => follow(plan, now, found, prefix, &dropped),
    }
}

/// A table as the stream names it, at the transaction from which on it does.
///
/// The catalog may be further on: what it no longer has is in doubt.
pub fn against_stream(
    plan: &TablePlan,
    changed: &Changed,
    info: Option<&TableInfo>,
    found: &Found,
    prefix: &str,
) -> Verdict {
    let Some(info) = info.filter(|info| info.oid == plan.oid) else {
        return Verdict::Again(changed.what.clone());
    };
    let before = plan.known.as_ref();
    if char::from(changed.relation.identity) != before.identity {
        return Verdict::Again("its replica identity changed".to_owned());
    }
    let in_catalog = |name: &str, pg_type: (u32, i32)| {
        info.columns.iter().find(|c| c.name == name && (c.type_oid, c.typmod) == pg_type)
    };
    let full = changed.relation.identity == b'f';
    let left_out = |name: &String| {
        plan.left_out.contains(name)
            || info.columns.iter().any(|column| column.name == *name && column.is_left_out())
    };
    let sent: Vec<Sent<'_>> = changed
        .relation
        .columns
        .iter()
        .filter(|column| !left_out(&column.name))
        .map(|column| {
            let pg_type = (column.type_oid, column.typmod);
            let known = before.columns.iter().position(|known| known.name == column.name);
            Sent {
                name: &column.name,
                pg_type,
                // Under FULL every column is named as part of the identity.
                key: if full {
                    known.is_some_and(|place| is_key(before, place))
                } else {
                    column.key
                },
                catalog: in_catalog(&column.name, pg_type).map(|c| InCatalog {
                    attnum: c.attnum,
                    has_missing: c.missing.is_some() || c.missing_differs,
                }),
                same_kind: same_kind(plan, found, &column.name, column.type_oid, column.typmod),
            }
        })
        .collect();
    let now = KnownTable::of(info);
    let dropped = match judge(before, &sent, rewritten(before, &now)) {
        Evolution::ReadAgain(doubt) => return Verdict::Again(doubt.to_string()),
        Evolution::Same => Vec::new(),
        Evolution::InPlace { dropped, .. } => dropped,
    };
    // The columns of that moment; what the catalog has besides came later and is found later.
    let mut columns: Vec<KnownColumn> = Vec::with_capacity(sent.len());
    for column in &changed.relation.columns {
        let pg_type = (column.type_oid, column.typmod);
        let of_now = now.columns.iter().find(|c| c.name == column.name && c.pg_type == pg_type);
        let of_before =
            before.columns.iter().find(|c| c.name == column.name && c.pg_type == pg_type);
        match of_now.or(of_before) {
            Some(known) => columns.push(known.clone()),
            None => return Verdict::Again(changed.what.clone()),
        }
    }
    let stays = |column: &&KnownColumn| {
        column.is_left_out() && columns.iter().all(|c| c.name != column.name)
    };
    let unsent: Vec<KnownColumn> = before.columns.iter().filter(stays).cloned().collect();
    columns.extend(unsent);
    columns.sort_by_key(|column| column.attnum);
    let key = before.key.as_ref().map(|key| {
        let names = key.iter().filter_map(|i| before.columns.get(*i));
        names.filter_map(|k| columns.iter().position(|c| c.name == k.name)).collect()
    });
    // The version of what is not the catalog's is nobody's: the next look compares everything.
    let whole = columns == now.columns;
    let columns_version = if whole { now.columns_version.clone() } else { String::new() };
    let mut then = before.clone();
    (then.columns, then.columns_version) = (columns, columns_version);
    then.key = key;
    // Which partitions came and went meanwhile the stream does not say: the next look does.
    if whole && info.kind == TableKind::Plain {
        then.leaves = now.leaves.clone();
    }
    follow(plan, then, found, prefix, &dropped)
        .unwrap_or_else(|| Verdict::Again(changed.what.clone()))
}

fn judge(before: &KnownTable, sent: &[Sent<'_>], rewritten: bool) -> Evolution {
    let known: Vec<Known<'_>> = before
        .columns
        .iter()
        .enumerate()
        .map(|(place, column)| Known {
            attnum: column.attnum,
            name: &column.name,
            pg_type: column.pg_type,
            key: is_key(before, place),
            left_out: column.is_left_out(),
            partition: column.is_partition(),
        })
        .collect();
    let table = rules::Table { same_files: !rewritten, hidden: &before.hidden };
    rules::evolve(&known, sent, table)
}

fn is_key(known: &KnownTable, place: usize) -> bool {
    known.key.as_ref().is_some_and(|key| key.contains(&place))
}

/// Whether an ALTER wrote rows anew. VACUUM FULL, CLUSTER and TRUNCATE change files and no column.
fn rewritten(before: &KnownTable, now: &KnownTable) -> bool {
    let other_file = |(oid, file): &(u32, u32)| {
        now.leaves.iter().any(|(leaf, of_now)| leaf == oid && of_now != file)
    };
    before.columns_version != now.columns_version && before.leaves.iter().any(other_file)
}

/// Why the rows of a partitioned table are no longer what the stream said.
fn leaves_changed(before: &KnownTable, info: &TableInfo) -> Option<String> {
    let known: BTreeSet<u32> = before.leaves.iter().map(|(oid, _)| *oid).collect();
    for (oid, file) in &before.leaves {
        match info.leaves.iter().find(|leaf| leaf.oid == *oid) {
            None => return Some("a partition was detached or dropped".to_owned()),
            Some(leaf) if leaf.relfilenode != *file => {
                let name = catalog::for_table(&leaf.schema, &leaf.name);
                return Some(format!("its partition {name} was truncated or written anew"));
            }
            Some(leaf)
                if before.links.get(oid).is_some_and(|link| *link != leaf.link)
                    && !failpoint::wrong("ignore-links") =>
            {
                let name = catalog::for_table(&leaf.schema, &leaf.name);
                return Some(format!("its partition {name} was detached and attached again"));
            }
            Some(_) => {}
        }
    }
    let came = info
        .leaves
        .iter()
        .find(|leaf| !known.contains(&leaf.oid) && leaf.attached && leaf.pages > 0);
    came.map(|leaf| {
        let name = catalog::for_table(&leaf.schema, &leaf.name);
        format!("the partition {name} was attached with rows in it")
    })
}

/// Whether the lake's type for a column stays what it is.
fn same_kind(plan: &TablePlan, found: &Found, name: &str, type_oid: u32, typmod: i32) -> bool {
    let Some(column) = plan.columns.iter().find(|column| column.name == name) else {
        return false;
    };
    let known = plan.known.columns.iter().find(|known| known.name == name);
    let options = known.map_or("", |known| &known.options);
    let kind = ColumnOptions::parse(options, found.hash_key.as_ref())
        .and_then(|options| types::kind_with(&found.types, type_oid, typmod, &options));
    kind.is_ok_and(|kind| kind == column.kind)
}

/// A column that the configuration wants otherwise than the lake has it.
fn treated_otherwise<'a>(before: &'a KnownTable, now: &KnownTable) -> Option<&'a str> {
    let differs = |column: &&KnownColumn| {
        now.columns.iter().any(|c| c.attnum == column.attnum && c.options != column.options)
    };
    before.columns.iter().find(differs).map(|column| &*column.name)
}

/// Why a table can't be read as the configuration has it: a column of which it speaks has another
/// name now, so that it would come as it is.
pub fn renamed_away(
    table: &LakeTable,
    info: &TableInfo,
    treatments: &Treatments,
) -> Option<String> {
    let known = KnownTable::parse(table.property(PROPERTY)?).ok()?;
    // The numbers are those of one table.
    if table.checkpoint().table.oid != info.oid {
        return None;
    }
    known.columns.iter().filter(|column| !column.options.is_empty()).find_map(|column| {
        let now = info.columns.iter().find(|now| now.attnum == column.attnum)?;
        let lost = now.name != column.name
            && now.options.name() != column.options
            && treatments.name_column(info, &column.name);
        lost.then(|| {
            format!(
                "its column {:?}, of which [[columns]] speaks, is named {:?} now (fix: name it so \
                 under [[columns]], or take the old name away)",
                column.name, now.name
            )
        })
    })
}

/// The verdict to follow to `now`; to read again where the new schema has no plan.
fn follow(
    plan: &TablePlan,
    now: KnownTable,
    found: &Found,
    prefix: &str,
    dropped: &[String],
) -> Option<Verdict> {
    let mut hidden = plan.known.hidden.clone();
    hidden.extend(dropped.iter().cloned());
    hidden.sort_unstable();
    hidden.dedup();
    let mut known = now;
    known.hidden = hidden;
    let info = known.as_info(plan.oid, &plan.schema, &plan.name, found.hash_key.as_ref());
    let new =
        info.and_then(|info| TablePlan::new(&info, &found.types, plan.folder.clone(), prefix));
    Some(match new {
        Ok(new) => Verdict::Follow(Arc::new(TablePlan { known: Arc::new(known), ..new })),
        // Said again, and for good, when it is read.
        Err(error) => Verdict::Again(error.to_string()),
    })
}

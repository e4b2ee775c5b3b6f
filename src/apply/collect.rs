//! Turns the stream's messages into batches. Pure: no clock, no connection.
//!
//! What must hold: a batch ends only between transactions; a change is taken if and only if its
//! commit is not below what its table already shows; a change of a table that is not replicated
//! costs nothing; after a batch that ends at `applied`, every commit below `applied` was seen.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::apply::part::{BatchEnd, Change, Layout, Old, Op, Part, TablePart, Transaction};
use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::handoff::rules;
use crate::lake::LastCommit;
use crate::position::Lsn;
use crate::source::pgoutput::{Message, OldTuple, Relation, pg_epoch_to_unix_us};

/// When a batch or a part of one is cut.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A part is handed on once it holds so many bytes, also inside a transaction.
    pub part_bytes: usize,
    /// A batch ends at the next transaction end once it holds so many bytes.
    pub batch_bytes: usize,
    /// A batch ends at the next transaction end once it holds so many changes.
    pub batch_changes: usize,
    /// Stop before the first transaction that committed at or above this LSN.
    pub until: Option<Lsn>,
    /// No batch ends below this: some table is there already, so a cut below shows it torn.
    pub not_before: Lsn,
}

/// A table as the collector sees it.
struct Known {
    table: usize,
    plan: Arc<TablePlan>,
    skip_below: Lsn,
}

/// What is known of a relation's columns in the stream.
enum Seen {
    /// It is not replicated.
    Other,
    /// They are the plan's.
    Fits { layout: Arc<Layout>, table: usize, skip_below: Lsn },
    /// They are not: no change that counts can be taken.
    Changed { what: String, relation: Box<Relation>, table: usize, skip_below: Lsn },
}

struct Open {
    transaction: Transaction,
    last: LastCommit,
    seq: u64,
    /// Index of the transaction in the current part, once it has a change there.
    in_part: Option<u32>,
}

/// What the caller does after a message.
#[derive(Debug)]
pub enum Step {
    /// Read on.
    Continue,
    /// A transaction ended here: the batch may be ended.
    TransactionEnd,
    /// The part is full in mid-transaction: hand it on, then read on.
    PartFull,
    /// The target is reached: end the batch at this LSN and stop.
    Reached(Lsn),
    /// The transaction whose commit record starts here changes a table whose columns, key or replica
    /// identity are no longer the plan's. Nothing of the batch may be committed.
    Changed(Box<Changed>),
}

/// A table that the stream names otherwise than its plan does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Where the commit record of the first transaction with it starts.
    pub at: Lsn,
    /// As the stream names it.
    pub relation: Relation,
    /// What is different.
    pub what: String,
}

/// Collects changes until the caller cuts the batch.
pub struct Collector {
    tables: HashMap<u32, Known>,
    layouts: HashMap<u32, Seen>,
    places: HashMap<usize, usize>,
    part: Part,
    open: Option<Open>,
    limits: Limits,
    batch_changes: usize,
    /// Bytes of the parts of this batch that were handed on.
    cut_bytes: usize,
    applied: Lsn,
    source_time_us: Option<i64>,
    /// No part holds changes from both sides of one of these.
    cuts: Vec<Lsn>,
    /// Tables whose columns changed, if that is not the end of all.
    given_up: Option<BTreeMap<usize, String>>,
    last: Option<LastCommit>,
}

impl Collector {
    /// A collector for `tables`, each with the LSN its lake table has been brought to.
    pub fn new(tables: &[(Arc<TablePlan>, Lsn)], from: Lsn, limits: Limits) -> Self {
        let tables = tables
            .iter()
            .enumerate()
            .map(|(table, (plan, skip_below))| {
                (plan.oid, Known { table, plan: plan.clone(), skip_below: *skip_below })
            })
            .collect();
        Collector {
            tables,
            layouts: HashMap::new(),
            places: HashMap::new(),
            part: Part::default(),
            open: None,
            limits,
            batch_changes: 0,
            cut_bytes: 0,
            applied: from,
            source_time_us: None,
            cuts: Vec::new(),
            given_up: None,
            last: None,
        }
    }

    /// For tables that nobody sees yet: no part holds changes from both sides of one of `cuts`, and
    /// a table whose columns changed is given up, the others go on.
    pub fn unpublished(mut self, cuts: Vec<Lsn>) -> Self {
        self.cuts = cuts;
        self.given_up = Some(BTreeMap::new());
        self
    }

    /// The tables that were given up, and why.
    pub fn given_up(self) -> BTreeMap<usize, String> {
        self.given_up.unwrap_or_default()
    }

    /// Takes one message of the stream.
    ///
    /// # Errors
    /// A message out of place.
    pub fn message(&mut self, message: Message<'_>) -> Result<Step> {
        match message {
            Message::Begin { final_lsn, commit_time_us, xid } => {
                if self.open.is_some() {
                    return Err(out_of_place("BEGIN inside a transaction"));
                }
                if let Some(until) = self.limits.until
                    && final_lsn >= until
                {
                    return Ok(Step::Reached(until));
                }
                self.open = Some(Open {
                    transaction: Transaction {
                        commit_lsn: final_lsn,
                        committed_at_us: pg_epoch_to_unix_us(commit_time_us),
                    },
                    last: LastCommit { lsn: final_lsn, xid, committed_at_us: commit_time_us },
                    seq: 0,
                    in_part: None,
                });
                let last = self.part.transactions.last().map(|last| last.commit_lsn);
                let crosses = |last| self.cuts.iter().any(|cut| last < *cut && final_lsn >= *cut);
                Ok(if last.is_some_and(crosses) { Step::PartFull } else { Step::Continue })
            }
            Message::Commit { commit_lsn, end_lsn, .. } => {
                let open = self.open.take().ok_or_else(|| out_of_place("COMMIT without BEGIN"))?;
                if commit_lsn != open.transaction.commit_lsn {
                    return Err(out_of_place("COMMIT of another transaction than BEGIN named"));
                }
                self.applied = rules::applied_after(self.applied, Some(end_lsn), None, false);
                self.last = Some(open.last);
                if open.seq > 0 {
                    self.source_time_us = Some(open.transaction.committed_at_us);
                }
                Ok(Step::TransactionEnd)
            }
            Message::Relation(relation) => self.relation(&relation),
            Message::Insert { rel, new } => self.change(rel, Op::Insert, None, Some(new.raw())),
            Message::Update { rel, old, new } => self.change(rel, Op::Update, old, Some(new.raw())),
            Message::Delete { rel, old } => self.change(rel, Op::Delete, Some(old), None),
            Message::Truncate { rels, .. } => {
                let mut step = Step::Continue;
                for rel in rels {
                    match self.change(rel, Op::Truncate, None, None)? {
                        Step::Continue => {}
                        changed @ Step::Changed(_) => return Ok(changed),
                        other => step = other,
                    }
                }
                Ok(step)
            }
            Message::Origin { .. } | Message::Type { .. } | Message::Logical { .. } => {
                Ok(Step::Continue)
            }
            _ => Err(out_of_place("a message that was not asked for")),
        }
    }

    /// The server has sent everything that committed before `end`; true if the target is reached.
    pub fn keepalive(&mut self, end: Lsn) -> Step {
        if self.open.is_some() {
            return Step::Continue;
        }
        match self.limits.until {
            Some(until) if end >= until => Step::Reached(until),
            _ => {
                self.applied = rules::applied_after(self.applied, None, Some(end), false);
                Step::Continue
            }
        }
    }

    /// Whether a transaction is open.
    pub fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// Changes collected since the batch began.
    pub fn batch_changes(&self) -> usize {
        self.batch_changes
    }

    /// Whether a batch may end here at all.
    pub fn may_end(&self) -> bool {
        self.open.is_none() && self.applied >= self.limits.not_before
    }

    /// Whether the batch is so large that it ends at this transaction end.
    pub fn batch_full(&self) -> bool {
        self.batch_changes >= self.limits.batch_changes
            || self.cut_bytes + self.part.bytes() >= self.limits.batch_bytes
    }

    /// Everything that committed before this was seen.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// Takes what was collected, in mid-transaction.
    pub fn cut_part(&mut self) -> Part {
        self.places.clear();
        self.cut_bytes += self.part.bytes();
        if let Some(open) = &mut self.open {
            open.in_part = None;
        }
        std::mem::take(&mut self.part)
    }

    /// Ends the batch; only between transactions. `at` is the target when it was reached.
    pub fn end_batch(&mut self, at: Option<Lsn>) -> Result<Part> {
        if self.open.is_some() {
            return Err(out_of_place("a batch would have ended inside a transaction"));
        }
        let mut part = self.cut_part();
        if let Some(at) = at {
            self.applied = rules::applied_after(self.applied, None, Some(at), false);
        }
        part.end = Some(BatchEnd {
            applied: self.applied,
            source_time_us: self.source_time_us.take(),
            last: self.last.take(),
        });
        self.batch_changes = 0;
        self.cut_bytes = 0;
        Ok(part)
    }

    fn relation(&mut self, relation: &Relation) -> Result<Step> {
        let Some(known) = self.tables.get(&relation.oid) else {
            self.layouts.insert(relation.oid, Seen::Other);
            return Ok(Step::Continue);
        };
        let (table, skip_below) = (known.table, known.skip_below);
        let seen = match layout(&known.plan, relation) {
            Ok(layout) => Seen::Fits { layout: Arc::new(layout), table, skip_below },
            // An error only once a change of it counts: what is below the base is skipped.
            Err(what) => {
                Seen::Changed { what, relation: Box::new(relation.clone()), table, skip_below }
            }
        };
        if let (Some(Seen::Fits { layout: old, .. }), Seen::Fits { layout, .. }) =
            (self.layouts.get(&relation.oid), &seen)
            && old == layout
        {
            return Ok(Step::Continue);
        }
        self.layouts.insert(relation.oid, seen);
        // Tuples kept so far have the columns of the old layout: the next one opens a part of its own.
        self.places.remove(&table);
        Ok(Step::Continue)
    }

    /// A change of a table whose columns are no longer the plan's.
    fn changed(&mut self, rel: u32, table: usize, what: String, relation: Relation) -> Step {
        if let Some(given_up) = &mut self.given_up {
            given_up.entry(table).or_insert(what);
            self.layouts.insert(rel, Seen::Other);
            return Step::Continue;
        }
        let at = self.open.as_ref().map(|open| open.transaction.commit_lsn).unwrap_or_default();
        Step::Changed(Box::new(Changed { at, relation, what }))
    }

    fn change(
        &mut self,
        rel: u32,
        op: Op,
        old: Option<OldTuple<'_>>,
        new: Option<&[u8]>,
    ) -> Result<Step> {
        let open =
            self.open.as_mut().ok_or_else(|| out_of_place("a change outside a transaction"))?;
        open.seq += 1;
        let (layout, table) = match self.layouts.get(&rel) {
            Some(Seen::Other) => return Ok(Step::Continue),
            Some(Seen::Fits { skip_below, .. } | Seen::Changed { skip_below, .. })
                if !rules::applies(*skip_below, *skip_below, open.transaction.commit_lsn) =>
            {
                return Ok(Step::Continue);
            }
            Some(Seen::Fits { layout, table, .. }) => (layout, *table),
            Some(Seen::Changed { what, relation, table, .. }) => {
                let (what, table, relation) = (what.clone(), *table, relation.as_ref().clone());
                return Ok(self.changed(rel, table, what, relation));
            }
            None if !self.tables.contains_key(&rel) => return Ok(Step::Continue),
            None => return Err(out_of_place("a change of a table before its columns were named")),
        };
        let transaction = *open.in_part.get_or_insert_with(|| {
            self.part.transactions.push(open.transaction);
            (self.part.transactions.len() - 1) as u32
        });
        let place = *self.places.entry(table).or_insert_with(|| {
            self.part.tables.push(TablePart::new(table, layout.clone()));
            self.part.tables.len() - 1
        });
        let Some(kept) = self.part.tables.get_mut(place) else {
            return Err(out_of_place("a table without a place in its part"));
        };
        let too_large = || {
            Error::failed("one transaction part holds more than 4 GiB of one table")
                .next("lower [stream] max_batch_bytes")
        };
        let old = match old {
            None => Old::None,
            Some(OldTuple::Key(tuple)) => Old::Key(kept.keep(tuple.raw()).ok_or_else(too_large)?),
            Some(OldTuple::Full(tuple)) => Old::Full(kept.keep(tuple.raw()).ok_or_else(too_large)?),
        };
        let new = match new {
            Some(tuple) => Some(kept.keep(tuple).ok_or_else(too_large)?),
            None => None,
        };
        kept.changes.push(Change { transaction, seq: open.seq, op, old, new });
        self.batch_changes += 1;
        let look = self.batch_changes.is_multiple_of(64) || new.is_some_and(|span| span.is_large());
        if look && self.part.bytes() >= self.limits.part_bytes {
            return Ok(Step::PartFull);
        }
        Ok(Step::Continue)
    }
}

/// Maps the stream's columns to the plan's, or says what changed.
fn layout(plan: &TablePlan, relation: &Relation) -> Result<Layout, String> {
    if char::from(relation.identity) != plan.replica_identity.as_char() {
        return Err("its replica identity is another".to_owned());
    }
    let mut seen = vec![false; plan.columns.len()];
    let mut columns = Vec::with_capacity(relation.columns.len());
    for column in &relation.columns {
        if plan.left_out.contains(&column.name) {
            columns.push(None);
            continue;
        }
        let Some(place) = plan.columns.iter().position(|known| known.name == column.name) else {
            return Err(format!("column {:?} is new", column.name));
        };
        let Some(known) = plan.columns.get(place) else { continue };
        if known.type_oid != column.type_oid || known.typmod != column.typmod {
            return Err(format!(
                "the type of column {:?} is no longer {}",
                column.name, known.type_name
            ));
        }
        if plan.names_rows_by_key() && column.key != plan.is_key(place) {
            return Err(format!("column {:?} came into or left its key", column.name));
        }
        if let Some(seen) = seen.get_mut(place) {
            *seen = true;
        }
        columns.push(Some(place));
    }
    if let Some((gone, _)) = plan.columns.iter().zip(&seen).find(|(_, seen)| !**seen) {
        return Err(format!("column {:?} is gone or no longer published", gone.name));
    }
    Ok(Layout { columns })
}

fn out_of_place(what: &str) -> Error {
    Error::failed(format!("the replication stream sent {what}"))
        .next("report this with the server's version; nothing was written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::known::KnownTable;
    use crate::apply::plan::RowIdentity;
    use crate::source::catalog::{ColumnInfo, ReplicaIdentity};
    use crate::source::pgoutput::{RelationColumn, Tuple};
    use crate::source::types::{ColumnOptions, TypeCatalog, TypeInfo, plan as plan_column};

    const TABLE: u32 = 100;
    const OTHER: u32 = 200;

    fn table() -> Arc<TablePlan> {
        let int4 = TypeInfo {
            oid: 23,
            schema: "pg_catalog".into(),
            name: "int4".into(),
            kind: 'b',
            category: 'N',
            elem: 0,
            base: 0,
            typmod: -1,
            output: ("pg_catalog".into(), "int4out".into()),
            output_arg: 23,
            is_array: false,
            delimiter: b',',
        };
        let types = TypeCatalog { by_oid: HashMap::from([(23, int4)]), ..TypeCatalog::default() };
        let column = ColumnInfo {
            attnum: 1,
            name: "id".into(),
            type_oid: 23,
            typmod: -1,
            type_name: "integer".into(),
            not_null: true,
            generated: '\0',
            missing: None,
            missing_differs: false,
            options: ColumnOptions::default(),
        };
        let column = plan_column(&types, &column, &ColumnOptions::default()).unwrap();
        Arc::new(TablePlan {
            oid: TABLE,
            schema: "public".into(),
            name: "t".into(),
            folder: "public/t".into(),
            columns: Arc::new([column]),
            row_filter: None,
            keeps_deleted: false,
            left_out: vec!["twice".into()],
            identity: RowIdentity::Key(vec![0]),
            replica_identity: ReplicaIdentity::Default,
            known: Arc::new(KnownTable::of(&crate::source::catalog::tests::table("t"))),
            fingerprint: String::new(),
            prefix: "_tg_".into(),
        })
    }

    fn relation(oid: u32, columns: &[(&str, u32)]) -> Message<'static> {
        let columns = columns.iter().map(|(name, type_oid)| RelationColumn {
            key: *name == "id",
            name: (*name).to_owned(),
            type_oid: *type_oid,
            typmod: -1,
        });
        Message::Relation(Relation {
            oid,
            namespace: "public".into(),
            name: "t".into(),
            identity: b'd',
            columns: columns.collect(),
        })
    }

    fn begin(lsn: u64) -> Message<'static> {
        Message::Begin { final_lsn: Lsn::new(lsn), commit_time_us: 0, xid: 1 }
    }

    fn commit(lsn: u64) -> Message<'static> {
        let (commit_lsn, end_lsn) = (Lsn::new(lsn), Lsn::new(lsn + 8));
        Message::Commit { commit_lsn, end_lsn, commit_time_us: 0 }
    }

    fn insert(rel: u32) -> Message<'static> {
        Message::Insert { rel, new: Tuple::parse(b"\0\x01t\0\0\0\x017").unwrap() }
    }

    fn collector(until: Option<u64>) -> Collector {
        let limits = Limits {
            part_bytes: 1 << 20,
            batch_bytes: 1 << 24,
            batch_changes: 1000,
            until: until.map(Lsn::new),
            not_before: Lsn::new(120),
        };
        let mut collector = Collector::new(&[(table(), Lsn::new(150))], Lsn::new(100), limits);
        collector.message(relation(TABLE, &[("id", 23), ("twice", 23)])).unwrap();
        collector
    }

    #[test]
    fn what_the_table_shows_already_is_skipped_and_the_rest_is_taken() {
        let mut collector = collector(None);
        for lsn in [100, 149, 150, 200] {
            collector.message(begin(lsn)).unwrap();
            collector.message(insert(TABLE)).unwrap();
            collector.message(commit(lsn)).unwrap();
        }
        let part = collector.end_batch(None).unwrap();
        let lsns: Vec<u64> = part.transactions.iter().map(|t| t.commit_lsn.bytes()).collect();
        assert_eq!(lsns, [150, 200]);
        assert_eq!(part.end.unwrap().applied, Lsn::new(208));
        assert_eq!(part.tables[0].changes.iter().map(|c| c.seq).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn a_batch_does_not_end_inside_a_transaction_nor_below_a_table_that_is_ahead() {
        let mut collector = collector(None);
        assert!(!collector.may_end());
        collector.message(begin(130)).unwrap();
        assert!(!collector.may_end() && collector.end_batch(None).is_err());
        collector.keepalive(Lsn::new(500));
        assert_eq!(collector.applied(), Lsn::new(100));
        collector.message(commit(130)).unwrap();
        assert!(collector.may_end());
    }

    #[test]
    fn a_transaction_at_or_above_the_target_is_not_begun() {
        let mut collector = collector(Some(200));
        collector.message(begin(199)).unwrap();
        collector.message(commit(199)).unwrap();
        let step = collector.message(begin(200)).unwrap();
        assert!(matches!(step, Step::Reached(at) if at == Lsn::new(200)));
        assert!(!collector.in_transaction());
        assert!(matches!(collector.keepalive(Lsn::new(200)), Step::Reached(_)));
    }

    #[test]
    fn tables_that_are_not_replicated_cost_nothing() {
        let mut collector = collector(None);
        collector.message(relation(OTHER, &[("x", 25)])).unwrap();
        collector.message(begin(300)).unwrap();
        for _ in 0..10_000 {
            assert!(matches!(collector.message(insert(OTHER)).unwrap(), Step::Continue));
        }
        collector.message(insert(TABLE)).unwrap();
        collector.message(commit(300)).unwrap();
        let part = collector.end_batch(None).unwrap();
        assert_eq!((part.changes(), part.tables[0].changes[0].seq), (1, 10_001));
    }

    const CHANGED: [&[(&str, u32)]; 4] =
        [&[("id", 20)], &[("id", 23), ("new", 23)], &[("other", 23)], &[]];

    #[test]
    fn a_change_of_a_table_with_other_columns_is_not_taken() {
        let (mut full, mut unkeyed) =
            (relation(TABLE, &[("id", 23)]), relation(TABLE, &[("id", 23)]));
        if let (Message::Relation(full), Message::Relation(unkeyed)) = (&mut full, &mut unkeyed) {
            full.identity = b'f';
            unkeyed.columns[0].key = false;
        }
        let others = CHANGED.map(|columns| relation(TABLE, columns));
        for message in others.into_iter().chain([full, unkeyed]) {
            let mut collector = collector(None);
            collector.message(message).unwrap();
            collector.message(begin(150)).unwrap();
            let step = collector.message(insert(TABLE)).unwrap();
            assert!(matches!(&step, Step::Changed(c) if c.at == Lsn::new(150)));
        }
    }

    #[test]
    fn columns_that_changed_below_the_base_and_back_again_are_no_error() {
        let mut collector = collector(None);
        collector.message(relation(TABLE, CHANGED[1])).unwrap();
        collector.message(begin(149)).unwrap();
        collector.message(insert(TABLE)).unwrap();
        collector.message(commit(149)).unwrap();
        collector.message(relation(TABLE, &[("id", 23)])).unwrap();
        collector.message(begin(150)).unwrap();
        collector.message(insert(TABLE)).unwrap();
        collector.message(commit(150)).unwrap();
        assert_eq!(collector.end_batch(None).unwrap().changes(), 1);
    }

    #[test]
    fn an_unpublished_table_with_changed_columns_is_given_up_alone() {
        let mut collector = collector(None).unpublished(Vec::new());
        collector.message(relation(TABLE, CHANGED[1])).unwrap();
        collector.message(begin(150)).unwrap();
        collector.message(insert(TABLE)).unwrap();
        collector.message(insert(TABLE)).unwrap();
        collector.message(commit(150)).unwrap();
        assert_eq!(collector.end_batch(None).unwrap().changes(), 0);
        assert!(collector.given_up()[&0].contains("new"));
    }

    #[test]
    fn no_part_has_changes_from_both_sides_of_a_base() {
        let cuts = vec![Lsn::new(160), Lsn::new(170)];
        let mut collector = collector(None).unpublished(cuts);
        let (mut parts, mut full) = (Vec::new(), false);
        for lsn in [155, 159, 160, 169, 180, 190] {
            if let Step::PartFull = collector.message(begin(lsn)).unwrap() {
                parts.push(collector.cut_part());
                full = true;
            }
            collector.message(insert(TABLE)).unwrap();
            collector.message(commit(lsn)).unwrap();
        }
        parts.push(collector.end_batch(None).unwrap());
        let lsns = |part: &Part| -> Vec<u64> {
            part.transactions.iter().map(|t| t.commit_lsn.bytes()).collect()
        };
        assert!(full);
        assert_eq!(
            parts.iter().map(lsns).collect::<Vec<_>>(),
            [vec![155, 159], vec![160, 169], vec![180, 190]]
        );
    }
}

//! Turns the stream's messages into batches. Pure: no clock, no connection.
//!
//! What must hold: a batch ends only between transactions; a change is taken if and only if its
//! commit is not below what its table already shows; a change of a table that is not replicated
//! costs nothing; after a batch that ends at `applied`, every commit below `applied` was seen.

use std::collections::HashMap;
use std::sync::Arc;

use crate::apply::part::{BatchEnd, Change, Layout, Old, Op, Part, TablePart, Transaction};
use crate::apply::plan::TablePlan;
use crate::error::{Error, Result};
use crate::handoff::rules;
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

struct Open {
    transaction: Transaction,
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
}

/// Collects changes until the caller cuts the batch.
pub struct Collector {
    tables: HashMap<u32, Known>,
    layouts: HashMap<u32, Option<(Arc<Layout>, usize, Lsn)>>,
    places: HashMap<usize, usize>,
    part: Part,
    open: Option<Open>,
    limits: Limits,
    batch_changes: usize,
    /// Bytes of the parts of this batch that were handed on.
    cut_bytes: usize,
    applied: Lsn,
    source_time_us: Option<i64>,
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
        }
    }

    /// Takes one message of the stream.
    ///
    /// # Errors
    /// A message out of place, or a table whose columns are no longer those of the plan.
    pub fn message(&mut self, message: Message<'_>) -> Result<Step> {
        match message {
            Message::Begin { final_lsn, commit_time_us, .. } => {
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
                    seq: 0,
                    in_part: None,
                });
                Ok(Step::Continue)
            }
            Message::Commit { commit_lsn, end_lsn, .. } => {
                let open = self.open.take().ok_or_else(|| out_of_place("COMMIT without BEGIN"))?;
                if commit_lsn != open.transaction.commit_lsn {
                    return Err(out_of_place("COMMIT of another transaction than BEGIN named"));
                }
                self.applied = rules::applied_after(self.applied, Some(end_lsn), None, false);
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
                    if let Step::PartFull = self.change(rel, Op::Truncate, None, None)? {
                        step = Step::PartFull;
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
        part.end =
            Some(BatchEnd { applied: self.applied, source_time_us: self.source_time_us.take() });
        self.batch_changes = 0;
        self.cut_bytes = 0;
        Ok(part)
    }

    fn relation(&mut self, relation: &Relation) -> Result<Step> {
        let Some(known) = self.tables.get(&relation.oid) else {
            self.layouts.insert(relation.oid, None);
            return Ok(Step::Continue);
        };
        let layout = Arc::new(layout(&known.plan, relation)?);
        let unchanged = self
            .layouts
            .get(&relation.oid)
            .and_then(Option::as_ref)
            .is_some_and(|(old, _, _)| *old == layout);
        if unchanged {
            return Ok(Step::Continue);
        }
        self.layouts.insert(relation.oid, Some((layout, known.table, known.skip_below)));
        // Tuples kept so far have the columns of the old layout: the next one opens a part of its own.
        self.places.remove(&known.table);
        Ok(Step::Continue)
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
            Some(None) => return Ok(Step::Continue),
            Some(Some((layout, table, skip_below))) => {
                if !rules::applies(*skip_below, *skip_below, open.transaction.commit_lsn) {
                    return Ok(Step::Continue);
                }
                (layout, *table)
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
        if self.batch_changes % 64 == 0 || new.is_some_and(|span| span.is_large()) {
            if self.part.bytes() >= self.limits.part_bytes {
                return Ok(Step::PartFull);
            }
        }
        Ok(Step::Continue)
    }
}

/// Maps the stream's columns to the plan's, or says what changed.
fn layout(plan: &TablePlan, relation: &Relation) -> Result<Layout> {
    let changed = |what: String| {
        Error::failed(format!("{plan}: its columns changed at the source: {what}")).next(
            "what was committed before the change is in the lake; following a schema change is not \
             built yet: start a new generation with `tidegate run --resnapshot`",
        )
    };
    let mut seen = vec![false; plan.columns.len()];
    let mut columns = Vec::with_capacity(relation.columns.len());
    for column in &relation.columns {
        if plan.left_out.contains(&column.name) {
            columns.push(None);
            continue;
        }
        let Some(place) = plan.columns.iter().position(|known| known.name == column.name) else {
            return Err(changed(format!("column {:?} is new", column.name)));
        };
        let Some(known) = plan.columns.get(place) else { continue };
        if known.type_oid != column.type_oid || known.typmod != column.typmod {
            return Err(changed(format!(
                "the type of column {:?} is no longer {}",
                column.name, known.type_name
            )));
        }
        if let Some(seen) = seen.get_mut(place) {
            *seen = true;
        }
        columns.push(Some(place));
    }
    if let Some((gone, _)) = plan.columns.iter().zip(&seen).find(|(_, seen)| !**seen) {
        return Err(changed(format!("column {:?} is gone or no longer published", gone.name)));
    }
    Ok(Layout { columns })
}

fn out_of_place(what: &str) -> Error {
    Error::failed(format!("the replication stream sent {what}"))
        .next("report this with the server's version; nothing was written")
}

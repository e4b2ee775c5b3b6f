//! What was copied of a table, made into a draft that can be brought forward and published.

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::apply::join::Join;
use crate::apply::plan::{RowIdentity, TablePlan};
use crate::apply::table::TableApplier;
use crate::error::{Error, Result};
use crate::handoff::index::read_keys;
use crate::handoff::rules;
use crate::handoff::session::{Session, blocking};
use crate::lake::locations::{Locations, PendingRun};
use crate::lake::{Checkpoint, FileNo, Lake, LakeTable, PipelineState, SourceTable, TableEntry};
use crate::position::Lsn;
use crate::source::catalog::TableInfo;

use super::copying::new_index;
use super::records::Counted;
use super::tables::RunTable;

/// A table on its way from what was copied to one position.
pub struct Drafted {
    /// The catalog's entry.
    pub info: TableInfo,
    /// Its entry in the ledger's state.
    pub entry: TableEntry,
    /// What the stream must bring it from.
    pub lowest: Lsn,
    /// The source's count to compare with, where it stands at that position.
    pub counted: Option<Counted>,
    /// The draft with its index.
    pub applier: TableApplier,
}

/// The checkpoint of a table of this run.
pub fn checkpoint(plan: &TablePlan, state: &PipelineState, base: Lsn) -> Checkpoint {
    Checkpoint {
        pipeline: state.pipeline.clone(),
        format: 1,
        source: state.source.clone(),
        table: SourceTable {
            oid: plan.oid,
            schema: plan.schema.clone(),
            name: plan.name.clone(),
            fingerprint: plan.fingerprint.clone(),
        },
        generation: state.generation,
        base,
        applied: base,
        phase: "live".to_owned(),
        run: state.run.clone(),
        table_id: String::new(),
        commit: String::new(),
        next_file_no: 0,
        foreign_files: BTreeMap::new(),
        live_rows: None,
    }
}

/// Makes the draft of the run `state` names. With `with_index` its index too, which proves that its key is unique: of a key
/// that stands in chunks of two bases the row of the higher one counts.
///
/// # Errors
/// A key that stands twice at one base; source, lake or local disk failing.
pub async fn draft(
    session: &Session,
    state: &PipelineState,
    table: RunTable,
    handoff: Lsn,
    memory: usize,
    with_index: bool,
) -> Result<Drafted> {
    let RunTable { info, plan, held } = table;
    let lowest = held.lowest().unwrap_or(handoff);
    let bases = held.file_bases();
    let mixed = held.highest().is_some_and(|highest| highest > lowest);
    let all = || held.chunks.iter().chain(&held.rereads);
    let files = all().flat_map(|chunk| chunk.files.iter().cloned());
    let files = files.map(|file| (file, RoaringBitmap::new())).collect();
    let to_read: Vec<FileNo> =
        all().filter(|chunk| !chunk.keys_at_hand).flat_map(|chunk| chunk.file_numbers()).collect();
    let checkpoint = checkpoint(&plan, state, lowest);
    let next = held.entry.next_file_no;
    let mut draft = LakeTable::draft(&plan.folder, plan.table_columns(), files, checkpoint, next)?;
    let mut index = None;
    if with_index && plan.needs_index() {
        let empty = match held.index {
            Some(index) => index,
            None => new_index(session, &plan, &state.run, memory)?,
        };
        let fill = Fill {
            plan: plan.clone(),
            lake: session.lake.clone(),
            bases: bases.clone(),
            runs: held.runs,
            to_read,
        };
        let runtime = tokio::runtime::Handle::current();
        let (filled, drafted) = blocking(move || {
            let index = fill.fill(empty, &runtime, &mut draft)?;
            Ok((index, draft))
        })
        .await?;
        (index, draft) = (Some(filled), drafted);
    }
    let runtime = tokio::runtime::Handle::current();

    let mut applier = TableApplier::new(plan.clone(), session.lake.clone(), runtime, draft, index)?;
    if mixed && matches!(plan.identity, RowIdentity::Key(_)) {
        let limit = session.config.limits.reread_bytes as usize;
        applier = applier.joined(Join::new(bases, limit));
    }
    Ok(Drafted { info, entry: held.entry, lowest, counted: held.counted, applier })
}

/// What it takes to fill the index of a draft.
struct Fill {
    plan: Arc<TablePlan>,
    lake: Lake,
    bases: BTreeMap<FileNo, Lsn>,
    runs: Vec<PendingRun>,
    to_read: Vec<FileNo>,
}

impl Fill {
    /// Merges the sorted keys of all chunks; masks the rows that a later base has again.
    fn fill(
        self,
        mut index: Locations,
        runtime: &tokio::runtime::Handle,
        draft: &mut LakeTable,
    ) -> Result<Locations> {
        let Fill { plan, lake, bases, mut runs, to_read } = self;
        if !to_read.is_empty() {
            let mut builder = index.run_builder();
            read_keys(&plan, &lake, runtime, draft, &to_read, &mut builder)?;
            runs.extend(builder.finish()?);
        }
        let base_of = |file: FileNo| bases.get(&file).copied().unwrap_or_default();
        let mut masks: BTreeMap<FileNo, RoaringBitmap> = BTreeMap::new();
        index.load(runs, u64::from(draft.next_file_no()), |_, a, b| {
            if rules::later_counts(base_of(a.file), base_of(b.file)) {
                masks.entry(a.file).or_default().insert(a.row);
                return Ok(());
            }
            Err(Error::failed(format!(
                "{plan}: its key is not unique: row {} of file {} and row {} of file {} have the same",
                a.row, a.file, b.row, b.file
            ))
            .next("REINDEX the key at the source, mend the rows, and run again; nothing was published"))
        })?;
        draft.mask(&masks)?;
        Ok(index)
    }
}

//! Cuts a table into chunks: ctid ranges that one snapshot shows, copied in parallel.
//!
//! A row that the snapshot shows lies in one range and stays there for that snapshot, whatever
//! updates move meanwhile. The last range has no upper end: the table may grow, and what grows
//! there is not in the snapshot.

use crate::source::catalog::{Leaf, sql_name};

/// PostgreSQL's page size in bytes, as it is built everywhere but in experiments.
pub const PAGE_BYTES: u64 = 8192;

/// A piece of a table that one worker copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index of the table in the pipeline.
    pub table: usize,
    /// Number of its first data file; chunks of a table are numbered one after the other.
    pub number: u32,
    /// Oid of the table or leaf partition.
    pub leaf_oid: u32,
    /// The file of its rows.
    pub relfilenode: u32,
    /// Its schema and name.
    pub leaf: (String, String),
    /// First page.
    pub from_page: u64,
    /// Page after the last one; none for the open end.
    pub to_page: Option<u64>,
    /// Pages, as far as known.
    pub pages: u64,
}

impl Chunk {
    /// The statement that copies it, selecting `columns` of the rows that satisfy `row_filter`.
    pub fn copy_sql(&self, columns: &str, row_filter: Option<&str>) -> String {
        let conditions: Vec<String> = self
            .range()
            .into_iter()
            .chain(row_filter.map(|filter| format!("({filter})")))
            .collect();
        let condition = match conditions.as_slice() {
            [] => String::new(),
            all => format!(" WHERE {}", all.join(" AND ")),
        };
        format!(
            "COPY (SELECT {columns} FROM ONLY {}{condition}) TO STDOUT (FORMAT binary)",
            self.leaf(),
        )
    }

    /// The leaf, quoted.
    pub fn leaf(&self) -> String {
        sql_name(&self.leaf.0, &self.leaf.1)
    }

    fn range(&self) -> Option<String> {
        match (self.from_page, self.to_page) {
            (0, None) => None,
            (from, None) => Some(format!("ctid >= '({from},0)'::pg_catalog.tid")),
            (from, Some(to)) => Some(format!(
                "ctid >= '({from},0)'::pg_catalog.tid AND ctid < '({to},0)'::pg_catalog.tid"
            )),
        }
    }
}

/// What limits the size of chunks.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLimits {
    /// Chunks copied at the same time.
    pub workers: usize,
    /// No chunk is larger than about this, in bytes of the table's heap.
    pub max_bytes: u64,
    /// No table is cut into chunks smaller than this.
    pub min_bytes: u64,
    /// PostgreSQL 14 and later scan a range of ctids without reading the rest of the table; 13
    /// would read the whole table for each chunk.
    pub ranges: bool,
}

/// Pages from one up to, not with, another; to the open end without it.
pub type Pages = (u64, Option<u64>);

/// The pages that are in none of `copied`, which do not overlap.
pub fn gaps(copied: &[Pages]) -> Vec<Pages> {
    let mut copied = copied.to_vec();
    copied.sort_unstable_by_key(|(from, _)| *from);
    let mut gaps = Vec::new();
    let mut next = 0;
    for (from, to) in copied {
        if from > next {
            gaps.push((next, Some(from)));
        }
        match to {
            Some(to) => next = next.max(to),
            None => return gaps,
        }
    }
    gaps.push((next, None));
    gaps
}

/// Cuts these pages of leaves of a table into chunks, numbered from `first`.
pub fn chunks(
    pieces: &[(&Leaf, Pages)],
    index: usize,
    first: u32,
    limits: ChunkLimits,
) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (leaf, (start, end)) in pieces {
        let step = if limits.ranges { step(leaf, limits) } else { u64::MAX };
        let mut from = *start;
        loop {
            let next = from.saturating_add(step);
            let last = next >= end.unwrap_or(leaf.pages);
            let pages = end.unwrap_or(leaf.pages).min(next).saturating_sub(from);
            chunks.push(Chunk {
                table: index,
                number: first.saturating_add(chunks.len() as u32),
                leaf_oid: leaf.oid,
                relfilenode: leaf.relfilenode,
                leaf: (leaf.schema.clone(), leaf.name.clone()),
                from_page: from,
                to_page: if last { *end } else { Some(next) },
                pages,
            });
            if last {
                break;
            }
            from = next;
        }
    }
    chunks
}

/// Pages of a chunk: enough chunks that all workers are busy to the end, but none tiny or huge.
fn step(leaf: &Leaf, limits: ChunkLimits) -> u64 {
    const CHUNKS_A_WORKER: u64 = 8;
    let even = leaf.pages.div_ceil(limits.workers.max(1) as u64 * CHUNKS_A_WORKER);
    let (min, max) = (limits.min_bytes / PAGE_BYTES, limits.max_bytes / PAGE_BYTES);
    even.max(min).min(max.max(1)).max(1)
}

/// The largest first, so that no worker is left with a large one at the end.
pub fn largest_first(chunks: &mut [Chunk]) {
    chunks.sort_by(|a, b| {
        b.pages.cmp(&a.pages).then(a.table.cmp(&b.table)).then(a.number.cmp(&b.number))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaf(pages: u64) -> Leaf {
        Leaf {
            oid: 1,
            schema: "public".into(),
            name: "a\"b".into(),
            relfilenode: 1,
            pages,
            bytes: pages * PAGE_BYTES,
            rows_estimated: 0.0,
            identity: crate::source::catalog::ReplicaIdentity::Default,
            key: None,
            access_method: "heap".into(),
            attached: false,
            link: 0,
        }
    }

    proptest! {
        #[test]
        fn every_page_is_in_exactly_one_chunk_and_the_end_is_open(
            pages in 0u64..5_000_000, grown in 0u64..1_000_000, workers in 1usize..9,
            max in 1u64..(1 << 34), ranges: bool, kept: Vec<bool>,
        ) {
            let limits = ChunkLimits { workers, max_bytes: max, min_bytes: 1 << 20, ranges };
            let step = if ranges { step(&leaf(pages), limits) } else { u64::MAX };
            prop_assume!(pages / step < 10_000 && (pages + grown) / step < 10_000);
            let cut = |leaf: &Leaf, pages: &[Pages], first| {
                let pieces: Vec<_> = pages.iter().map(|pages| (leaf, *pages)).collect();
                chunks(&pieces, 3, first, limits)
            };
            let first = cut(&leaf(pages), &gaps(&[]), 7);
            prop_assert!(ranges || first.len() == 1);
            prop_assert!(first.iter().enumerate().all(|(i, chunk)| chunk.number as usize == 7 + i));
            // Some of them are kept, the table grows, and what is missing is cut again.
            let of = |chunk: &Chunk| (chunk.from_page, chunk.to_page);
            let kept = kept.iter().chain(std::iter::repeat(&false));
            let mut all: Vec<Pages> =
                first.iter().zip(kept).filter(|(_, kept)| **kept).map(|(c, _)| of(c)).collect();
            all.extend(cut(&leaf(pages + grown), &gaps(&all), 99).iter().map(of));
            all.sort_unstable();
            let mut next = Some(0);
            for (from, to) in all {
                prop_assert_eq!(Some(from), next);
                next = to;
            }
            prop_assert_eq!(next, None);
        }
    }

    #[test]
    fn what_is_missing_is_found_between_and_behind_what_is_copied() {
        assert_eq!(gaps(&[]), [(0, None)]);
        assert_eq!(gaps(&[(0, None)]), []);
        assert_eq!(gaps(&[(30, None), (10, Some(20))]), [(0, Some(10)), (20, Some(30))]);
        assert_eq!(gaps(&[(0, Some(10)), (10, Some(12))]), [(12, None)]);
    }

    #[test]
    fn a_quoted_name_stays_quoted_in_the_copy() {
        let limits =
            ChunkLimits { workers: 2, max_bytes: 1 << 28, min_bytes: 1 << 24, ranges: true };
        let chunks = chunks(&[(&leaf(0), (0, None))], 0, 0, limits);
        assert_eq!(
            chunks[0].copy_sql("\"x\"", None),
            "COPY (SELECT \"x\" FROM ONLY \"public\".\"a\"\"b\") TO STDOUT (FORMAT binary)"
        );
    }
}

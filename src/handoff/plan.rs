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
    /// Number of its data file; chunks of a table are numbered one after the other.
    pub number: u32,
    /// Schema and name of the table or leaf partition.
    pub leaf: (String, String),
    /// First page.
    pub from_page: u64,
    /// Page after the last one; none for the open end.
    pub to_page: Option<u64>,
    /// Pages, as far as known.
    pub pages: u64,
}

impl Chunk {
    /// The statement that copies it, selecting `columns`.
    pub fn copy_sql(&self, columns: &str) -> String {
        format!(
            "COPY (SELECT {columns} FROM ONLY {}{}) TO STDOUT (FORMAT binary)",
            self.leaf(),
            self.range()
        )
    }

    /// The leaf, quoted.
    pub fn leaf(&self) -> String {
        sql_name(&self.leaf.0, &self.leaf.1)
    }

    fn range(&self) -> String {
        match (self.from_page, self.to_page) {
            (0, None) => String::new(),
            (from, None) => format!(" WHERE ctid >= '({from},0)'::pg_catalog.tid"),
            (from, Some(to)) => format!(
                " WHERE ctid >= '({from},0)'::pg_catalog.tid AND ctid < '({to},0)'::pg_catalog.tid"
            ),
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

/// Cuts the table with these leaves into chunks, numbered from `first`.
pub fn chunks(leaves: &[Leaf], index: usize, first: u32, limits: ChunkLimits) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for leaf in leaves {
        let step = if limits.ranges { step(leaf, limits) } else { u64::MAX };
        let mut from = 0u64;
        loop {
            let next = from.saturating_add(step);
            let last = next >= leaf.pages;
            chunks.push(Chunk {
                table: index,
                number: first + chunks.len() as u32,
                leaf: (leaf.schema.clone(), leaf.name.clone()),
                from_page: from,
                to_page: (!last).then_some(next),
                pages: leaf.pages.min(next).saturating_sub(from),
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
        }
    }

    proptest! {
        #[test]
        fn every_page_is_in_exactly_one_chunk_and_the_end_is_open(
            pages in 0u64..5_000_000, workers in 1usize..9, max in 1u64..(1 << 34), ranges: bool,
        ) {
            let limits = ChunkLimits { workers, max_bytes: max, min_bytes: 1 << 20, ranges };
            let step = if ranges { step(&leaf(pages), limits) } else { u64::MAX };
            prop_assume!(pages / step < 100_000);
            let chunks = chunks(&[leaf(pages)], 3, 7, limits);
            prop_assert!(ranges || chunks.len() == 1);
            let mut next = 0;
            for (number, chunk) in chunks.iter().enumerate() {
                prop_assert_eq!(chunk.number as usize, 7 + number);
                prop_assert_eq!(chunk.from_page, next);
                prop_assert_eq!(chunk.to_page.is_none(), number + 1 == chunks.len());
                next = chunk.to_page.unwrap_or(u64::MAX);
            }
        }
    }

    #[test]
    fn a_quoted_name_stays_quoted_in_the_copy() {
        let limits =
            ChunkLimits { workers: 2, max_bytes: 1 << 28, min_bytes: 1 << 24, ranges: true };
        let chunks = chunks(&[leaf(0)], 0, 0, limits);
        assert_eq!(
            chunks[0].copy_sql("\"x\""),
            "COPY (SELECT \"x\" FROM ONLY \"public\".\"a\"\"b\") TO STDOUT (FORMAT binary)"
        );
    }
}

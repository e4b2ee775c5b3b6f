//! The net effect of the stream on the lake's tables.
//!
//! ```text
//!   messages ── collect ──► Part ── keys, net ──► rows to write, rows to mask ── table ──► commit
//! ```
//!
//! Data goes one way. `collect` and `net` are pure; `table` stages a batch and commits it whole.

pub mod collect;
pub mod join;
pub mod keys;
pub mod known;
pub mod net;
pub mod part;
pub mod plan;
pub mod rows;
pub mod table;

//! Speaks PostgreSQL: connection, catalog, checks, slot, copy, replication stream, types.
//!
//! Knows nothing of the lake.

pub mod catalog;
pub mod check;
pub mod client;
pub mod options;
pub mod pgoutput;
pub mod slot;
pub mod types;
pub mod wire;

//! Speaks Delta: commits, files, deletion vectors, locations, ledger.
//!
//! Knows nothing of PostgreSQL's protocol.

pub mod locations;

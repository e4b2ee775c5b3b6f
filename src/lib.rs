//! Tidegate replicates PostgreSQL tables into Delta Lake tables.
//!
//! # The promise
//!
//! ```text
//! table at version v  =  snapshot(base)  +  all changes with base <= commit_lsn < applied(v)
//! ```
//!
//! A table's first version is a complete, validated snapshot that names the exact WAL position it
//! shows. Every later version is that snapshot plus every committed change up to another exact
//! position, merged with deletion vectors. Progress is part of the same Delta commit as the data,
//! so the two can't disagree.
//!
//! # The way the data goes
//!
//! ```text
//!   source ──────────────► handoff / apply ──────────────► lake
//!   speaks PostgreSQL       the protocol, pure decisions     speaks Delta
//! ```
//!
//! `source` and `lake` do not know each other.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod apply;
pub mod cli;
pub mod config;
pub mod demo;
pub mod diff;
pub mod error;
pub mod failpoint;
pub mod handoff;
pub mod http;
pub mod lake;
pub mod observe;
pub mod position;
pub mod source;
pub mod verify;

//! The spool: changes that wait in the lake while a snapshot is copied, so that the server may
//! forget them.
//!
//! One table, and a log of transactions of several messages each. A process spools them step by
//! step, publishes the table at some moment, drains the spool and then the slot. It may crash at
//! any moment, a second one may start beside it, somebody may move the slot. The table must show
//! every message of a transaction once, up to its applied position.
//!
//! `world.rs` is what outlives a process, `search.rs` the processes and the moves, `promise.rs` the
//! promise, `rules.rs` the rules and the wrong ones.

pub mod promise;
pub mod rules;
pub mod search;
pub mod world;

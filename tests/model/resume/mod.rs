//! A snapshot that is interrupted and goes on: chunks of several boundaries, drained into one.
//!
//! One table whose rows move between ctid ranges while these are copied, now at one boundary, now
//! at a later one. Sessions make any change to any row, into any range; the process may crash at
//! any moment, and take a new boundary at any moment of the copy. What is published in the end must
//! be the source at the highest base, value by value.
//!
//! `source.rs` is the heap, its log and what a snapshot shows; `drain.rs` what is recorded of a run
//! and what the drain makes of it; `search.rs` the moves; `promise.rs` the promise; `rules.rs` the
//! rules and the wrong ones.

pub mod drain;
pub mod promise;
pub mod rules;
pub mod search;
pub mod source;

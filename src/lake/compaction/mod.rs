//! Compaction: small files become larger ones, masked rows go; the table's rows stay the same.
//!
//! It runs beside the stream and must lose neither. So it is three steps, of which only the last
//! one stands in the way of a batch, for the time of one commit:
//!
//! ```text
//! pick       pure: which live files become one                     between two batches
//! rewrite    live rows as of then ──► one new data file            a thread of its own
//! reconcile  rows masked since then are masked in the new file,    between two batches
//!            the commit takes the old files out and the new one in
//! ```
//!
//! Rows keep their order: by the number of their file, then by their place in it. So where a row
//! went follows from the masks alone ([`Moved::places`]), and nothing is kept per row.
//!
//! The number of the new file is taken before it is written. Whatever the stream writes meanwhile
//! has a higher number, so "of a key's places the one in the file with the higher number is the
//! newer" stays true.
//!
//! Until the commit the new file is an orphan, whatever crashes.

mod pick;
mod rewrite;

pub use pick::{Bounds, Candidate, pick};
pub use rewrite::{Moved, Pace, Rewrite, Rewritten};

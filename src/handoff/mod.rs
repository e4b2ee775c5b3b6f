//! The protocol: snapshot, validation, publication, then the stream, without a gap or an overlap.
//!
//! `rules` decides, purely; `snapshot` and `follow` do; `run` chooses between them at every start.

pub mod again;
pub mod clean;
pub mod copy;
pub mod cut;
pub mod figures;
pub mod follow;
pub mod guard;
pub mod housekeeping;
pub mod index;
pub mod live;
pub mod marks;
pub mod ownership;
pub mod plan;
pub mod published;
pub mod queue;
pub mod retain;
pub mod rules;
pub mod run;
pub mod session;
pub mod snapshot;
pub mod spool;
pub mod stream;
pub mod tables;
pub mod watch;

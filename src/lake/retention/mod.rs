//! What of a table must stay, and the removal of the rest.
//!
//! A version is kept while it is the newest, or was replaced less than the retention ago, or is
//! pinned, or is one of the newest handoff versions. What a kept version needs:
//!
//! ```text
//!   the log   _last_checkpoint ─────────────────────────────────────┐
//!     v: 12            40                                  200      ▼                      263
//!        checkpoint    checkpoint                          checkpoint                      newest
//!        + JSON        + JSON          (nothing)           + JSON   + JSON … without a gap
//!        └ handoff     └ pinned                            └ oldest within the retention
//!   the data  files and vectors that are live at 12, 40 or 200, and all that came after 200
//! ```
//!
//! So after a clean-up the log names exactly the versions that can be read, and a reader that asks
//! for another gets an error. A commit without the checkpoint beneath it would be read as if it were
//! the first one, with wrong rows: so that no moment shows such a log, whatever crashes,
//!
//! 1. the checkpoints that kept versions will need are written and read back,
//! 2. data files and vectors go, while the log still says which they are,
//! 3. the commits go, those that begin an unbroken row of commits last,
//! 4. their checkpoints go.
//!
//! Each step can be done again. Of the log one listing is made; nothing else is listed. It needs no
//! ownership of the pipeline: it removes only what the newest version, too, does not need.
//!
//! The log is never cut above the newest commit of ours: what others did since then must stay
//! provable.

mod clean;
mod folder;
mod plan;

pub use clean::{Cleaned, Cleanup, plan_cleanup};
pub use folder::LogFolder;
pub use plan::{Kept, Policy};

//! The handoff, explored exhaustively in a small world, with the very rules the program follows.
//!
//! Two tables with three keys, a chunk each; two sessions that write while the snapshot is taken,
//! the chunks are copied, the stream is applied. At any moment a process may crash, a put may lose
//! its answer or come late, a second process may start beside a first that does not know that it
//! was cut off, and somebody may drop or move the slot. In every state that can be reached the
//! promise of the crate's first page holds. And each wrong way of doing it is shown to break it:
//! so the model would see it.
//!
//! `model/world.rs` is what outlives a process, `model/process.rs` one process, `model/handoff.rs`
//! the moves, `model/invariants.rs` the promise, `model/rules.rs` the rules and the wrong ones.

#[path = "model/handoff.rs"]
mod handoff;
#[path = "model/harness.rs"]
mod harness;
#[path = "model/invariants.rs"]
mod invariants;
#[path = "model/process.rs"]
mod process;
#[path = "model/resume/mod.rs"]
mod resume;
#[path = "model/resume_worlds.rs"]
mod resume_worlds;
#[path = "model/rules.rs"]
mod rules;
#[path = "model/spool/mod.rs"]
mod spool;
#[path = "model/spool_worlds.rs"]
mod spool_worlds;
#[path = "model/world.rs"]
mod world;

use std::borrow::Cow;

use handoff::Handoff;
use harness::{breaks, holds};
use invariants::*;
use rules::{Rules, Wrong};
use world::{Op::*, SESSIONS, Script, Template};

/// How large a world may be: small enough to be explored exhaustively.
mod size {
    pub mod handoff {
        pub const KEYS: usize = 3;
        pub const SESSIONS: usize = 2;
        pub const TRANSACTIONS: usize = 4;
        /// In one transaction.
        pub const CHANGES: usize = 3;
        /// Of a table or the ledger.
        pub const VERSIONS: u8 = 40;
        /// A set of positions.
        pub type Positions = u32;
    }

    pub mod resume {
        pub const KEYS: usize = 3;
        pub const RANGES: usize = 3;
        pub const TRANSACTIONS: usize = 4;
        /// In one transaction.
        pub const CHANGES: usize = 2;
    }

    pub mod spool {
        pub const TRANSACTIONS: usize = 3;
        pub const STEPS: usize = 4;
        pub const FILES: usize = 5;
    }
}

const fn quick(ops: &'static [world::Op]) -> Template {
    Template { ops: Cow::Borrowed(ops), slow: false }
}

const fn slow(ops: &'static [world::Op]) -> Template {
    Template { ops: Cow::Borrowed(ops), slow: true }
}

/// Inserted; updated twice in one transaction; deleted and created again.
const RACES: &[Template] = &[
    quick(&[Put(1, 3)]),
    quick(&[Put(0, 4), Put(0, 5), Put(2, 6)]),
    quick(&[Delete(1), Put(1, 7)]),
];
/// Open over whatever the pipeline does meanwhile.
const SPANNING: &[Template] = &[slow(&[Put(2, 8)])];
const KEY_CHANGE: &[Template] = &[slow(&[Rekey(0, 1, 3)]), quick(&[Delete(1)])];
const WAITING: &[Template] = &[quick(&[Put(2, 4)]), slow(&[Put(0, 5), Delete(2)])];
/// Both tables, then one of them.
const TWO_TABLES: &[Template] = &[quick(&[Put(0, 3), Put(2, 4)]), quick(&[Put(0, 5)])];

fn scripts(one: &'static [Template], other: &'static [Template]) -> [Script; SESSIONS] {
    [Cow::Borrowed(one), Cow::Borrowed(other)]
}

/// Rows of both tables change, one goes.
const VANISHING: &[Template] = &[quick(&[Put(0, 3), Put(2, 4)]), quick(&[Delete(0)])];

/// One process, no fault: the races between writers, snapshot, chunks and stream.
fn races() -> Handoff {
    Handoff {
        rules: Rules::default(),
        initial: [1, 0, 2],
        scripts: scripts(RACES, SPANNING),
        starts: 1,
        zombies: false,
        lost_answers: 0,
        meddling: 0,
        resnapshot: false,
        examples: true,
    }
}

/// Key changes and deletes, with locks that make sessions wait for each other.
fn keys() -> Handoff {
    Handoff { scripts: scripts(KEY_CHANGE, WAITING), ..races() }
}

/// One crash, at any moment of every race.
fn crash() -> Handoff {
    Handoff { starts: 2, ..races() }
}

/// Two crashes.
fn crashes() -> Handoff {
    Handoff { scripts: scripts(TWO_TABLES, SPANNING), starts: 3, ..races() }
}

/// The smallest writers, for worlds with more faults.
fn small() -> Handoff {
    Handoff { scripts: scripts(TWO_TABLES, &[]), starts: 2, ..races() }
}

/// An answer is lost, or a put comes late, and processes crash.
fn lost_answer() -> Handoff {
    Handoff { lost_answers: 1, starts: 3, ..small() }
}

/// A second process beside a first that may not know that it was cut off.
fn zombie() -> Handoff {
    Handoff { zombies: true, ..small() }
}

/// Three processes.
fn zombies() -> Handoff {
    Handoff { starts: 3, ..zombie() }
}

/// A second process, and a transaction that spans whatever both do.
fn zombie_and_spanning_transaction() -> Handoff {
    Handoff { scripts: scripts(TWO_TABLES, SPANNING), ..zombie() }
}

/// A second process, and a put of either that comes late.
fn zombie_and_late_put() -> Handoff {
    Handoff { lost_answers: 1, ..zombie() }
}

/// Somebody drops the slot, moves it, makes it anew.
fn meddler() -> Handoff {
    Handoff { scripts: scripts(RACES, &[]), meddling: 1, ..small() }
}

/// And a second process at that.
fn meddler_and_zombie() -> Handoff {
    Handoff { meddling: 1, ..zombie() }
}

/// A lost history is answered with a new generation.
fn generations() -> Handoff {
    Handoff { resnapshot: true, scripts: scripts(VANISHING, &[]), ..meddler() }
}

/// And a process of the old generation does not know it.
fn generations_and_zombie() -> Handoff {
    Handoff { zombies: true, ..generations() }
}

macro_rules! worlds {
    ($($test:ident: $world:ident;)*) => {$(
        #[test]
        fn $test() {
            holds(stringify!($test), $world());
        }
    )*};
}

worlds! {
    every_race_between_writers_snapshot_and_stream: races;
    key_changes_and_deletes_that_wait_for_locks: keys;
    a_crash_at_any_moment: crash;
    two_crashes_at_any_moments: crashes;
    a_lost_answer_or_a_late_put_and_crashes: lost_answer;
    a_second_and_a_third_process_beside_zombies: zombies;
    a_zombie_over_a_spanning_transaction: zombie_and_spanning_transaction;
    a_zombie_and_a_late_put: zombie_and_late_put;
    somebody_else_at_the_slot: meddler;
    somebody_else_at_the_slot_and_a_zombie: meddler_and_zombie;
    a_new_generation_after_a_lost_history: generations;
    a_zombie_of_the_old_generation: generations_and_zombie;
}

/// Each wrong way, the world that shows it, and which promises are seen broken.
macro_rules! wrong_ways {
    ($($test:ident: $wrong:ident in $world:ident breaks $($property:ident),+;)*) => {$(
        #[test]
        fn $test() {
            let rules = Rules { wrong: Some(Wrong::$wrong) };
            let model = Handoff { rules, examples: false, ..$world() };
            breaks(&format!("{:?}", Wrong::$wrong), model, &[$($property),+]);
        }
    )*};
}

wrong_ways! {
    position_before_the_snapshot: PositionBeforeSnapshot in races breaks CONTENT;
    position_after_the_snapshot: PositionAfterSnapshot in races breaks CONTENT, WHOLE, GOES_ON;
    changes_only_above_the_base: AboveBase in races breaks CONTENT, WHOLE, FENCE, CUT;
    changes_at_applied_skipped: SkipAtApplied in races breaks CONTENT, WHOLE, FENCE, CUT;
    position_of_the_change_instead_of_its_commit: PositionOfTheChange in keys breaks CONTENT, FENCE, CUT;
    applied_is_where_the_commit_starts: AppliedIsCommitStart in races breaks CONTENT;
    acknowledged_before_the_fence: AcknowledgeBeforeFence in small breaks CONFIRMED, CONTINUITY, GOES_ON;
    acknowledged_what_was_received: AcknowledgeReceived in small breaks CONFIRMED, CONTINUITY, GOES_ON;
    published_before_the_last_chunk: PublishEarly in races breaks CONTENT, WHOLE, HANDOFF;
    checkpoint_apart_from_the_data: CheckpointApart in small breaks CONTENT, MONOTONE;
    chunks_kept_over_a_restart: KeepChunks in small breaks CONTENT;
    retried_blindly_after_a_lost_answer: RetryBlindly in lost_answer breaks CONTENT, WHOLE;
    table_commit_without_compare_and_swap: TableWithoutCas in zombie breaks CONTENT, WHOLE, MONOTONE, FENCED;
    ledger_commit_without_compare_and_swap: LedgerWithoutCas in zombie breaks FENCED, HANDOFF, CONFIRMED;
    ledger_looked_at_once: LookAtLedgerOnce in zombies breaks FENCED;
    batch_cut_inside_a_transaction: CutTransaction in races breaks CONTENT, WHOLE;
    new_slot_with_old_progress: TrustAnySlot in meddler breaks CONTENT, FENCE, CUT;
    slot_looked_at_once: LookAtSlotOnce in meddler breaks CONTENT, FENCE, CUT;
    a_generation_numbered_by_the_tables_alone: NumberByTables in generations_and_zombie breaks HANDOFF;
    rows_that_vanished_kept_by_a_new_generation: KeepVanished in generations breaks CONTENT;
    tables_emptied_before_the_new_handoff: EmptyFirst in generations breaks CONTENT;
    a_new_generation_handed_off_blindly: HandoffWithoutCas in generations_and_zombie breaks CONTENT;
    a_zombie_of_the_old_generation_commits: TableWithoutCas in generations_and_zombie breaks CONTENT, FENCED;
    fence_at_which_a_table_has_no_version: FenceIgnoresTableAhead in small breaks CUT;
}

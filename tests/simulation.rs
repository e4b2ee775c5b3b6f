//! The models of `model.rs`, walked at random through worlds far too large to be explored.
//!
//! The very same moves and rules, with more keys, transactions, processes, lost answers and hands at
//! the slot than an exhaustive search could take. A seed makes a world (its writers, its number of
//! faults) and a walk through it: which move comes next. Every promise is looked at in every state.
//! Nothing here waits, sleeps or asks for the time to decide anything, so a seed gives the same walk
//! each time.
//!
//! ```text
//! TIDEGATE_SIM_STEPS=100000000 cargo test --test simulation -- --nocapture    walk for longer
//! TIDEGATE_SIM_SEED=4711 cargo test --test simulation handoff                 walk this one only
//! ```
//!
//! A walk that breaks a promise is printed with its seed, and the shortest row of its moves that was
//! found to break the same one. Each test walks from seed 1 on, until its steps are used up; the
//! steps are per test.
//!
//! The wrong ways of `model.rs` are walked too. LookAtLedgerOnce is left out: its schedule is too
//! rare for a walk, and the search finds it.

#[path = "model/handoff.rs"]
mod handoff;
#[path = "model/invariants.rs"]
mod invariants;
#[path = "model/process.rs"]
mod process;
#[path = "model/resume/mod.rs"]
mod resume;
#[path = "model/rules.rs"]
mod rules;
#[path = "model/spool/mod.rs"]
mod spool;
#[path = "simulation/walk.rs"]
mod walk;
#[path = "model/world.rs"]
mod world;
#[path = "simulation/worlds.rs"]
mod worlds;

use handoff::Handoff;
use resume::search::Resumed;
use spool::search::Spool;
use walk::{catches, holds};
use worlds::{Generations, Strict};

/// How large a world may be.
mod size {
    pub mod handoff {
        pub const KEYS: usize = 8;
        pub const SESSIONS: usize = 4;
        pub const TRANSACTIONS: usize = 40;
        /// In one transaction.
        pub const CHANGES: usize = 4;
        /// Of a table or the ledger.
        pub const VERSIONS: u8 = 240;
        /// A set of positions.
        pub type Positions = u128;
    }

    pub mod resume {
        pub const KEYS: usize = 8;
        pub const RANGES: usize = 6;
        pub const TRANSACTIONS: usize = 60;
        /// In one transaction.
        pub const CHANGES: usize = 3;
    }

    pub mod spool {
        pub const TRANSACTIONS: usize = 30;
        pub const STEPS: usize = 24;
        pub const FILES: usize = 32;
    }
}

#[test]
fn handoff_under_every_fault_at_once() {
    holds::<Handoff>("handoff", 700_000);
}

#[test]
fn handoff_with_writers_faults_and_nobody_at_the_slot() {
    holds::<Strict>("handoff, undisturbed slot", 400_000);
}

#[test]
fn new_generations_beside_processes_of_the_old() {
    holds::<Generations>("generations", 400_000);
}

#[test]
fn resumed_snapshots_with_many_bases() {
    holds::<Resumed>("resumed snapshot", 700_000);
}

#[test]
fn spools_of_many_processes() {
    holds::<Spool>("spool", 700_000);
}

/// What a walk is expected to see of each wrong way, within so many steps.
macro_rules! seen {
    ($($test:ident: $world:ty, $wrong:path, $steps:literal, [$($variant:ident)+];)*) => {$(
        #[test]
        fn $test() {
            use $wrong as Wrong;
            let all = [$(Wrong::$variant),+];
            let missed: Vec<_> = all
                .into_iter()
                .filter(|wrong| !catches::<$world, _>(*wrong, $steps))
                .collect();
            assert!(missed.is_empty(), "no walk of {} steps sees {missed:?}", $steps);
        }
    )*};
}

seen! {
    wrong_handoffs_are_seen: Handoff, rules::Wrong, 400_000, [
        PositionBeforeSnapshot PositionAfterSnapshot AboveBase SkipAtApplied PositionOfTheChange
        AppliedIsCommitStart PublishEarly CheckpointApart KeepChunks RetryBlindly TableWithoutCas
        LedgerWithoutCas CutTransaction TrustAnySlot LookAtSlotOnce
        FenceIgnoresTableAhead
    ];
    wrong_acknowledgements_are_seen: Strict, rules::Wrong, 400_000, [
        AcknowledgeBeforeFence AcknowledgeReceived
    ];
    wrong_generations_are_seen: Generations, rules::Wrong, 400_000, [
        NumberByTables KeepVanished EmptyFirst HandoffWithoutCas
    ];
    wrong_resumptions_are_seen: Resumed, resume::rules::Wrong, 400_000, [
        IgnoreRowBase AboveRowBase FirstChunkWins BothChunksCount PublishBeforeMax KeepAfterRewrite
        FileInSnapshot LookOnlyAfter LookOnce RereadUnlooked JoinUnkeyed DrainFromRunsBase GuessNull
        GuessMasked DropUnresolved RereadNow RereadOld RereadOnce ForgetEmptyReread AcknowledgeEarly
        DeleteBelowBase TruncateBelowBase KeyChangeAsOne
    ];
    wrong_spools_are_seen: Spool, spool::rules::Wrong, 400_000, [
        AcknowledgeReceived AcknowledgeStored RecordBeforeFile UseOrphans PartialTail EndIsApplied
        TrustAnySlot ForgetSpool LookThenList RemoveBeforeFence RecordWithoutCas
    ];
    // Two processes must store the same step one after the other, and the older one last.
    files_of_the_same_name_are_seen: Spool, spool::rules::Wrong, 2_000_000, [SameNames];
}

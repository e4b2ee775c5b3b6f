//! The worlds of the spool, and the wrong way each of them shows.

use crate::harness::{breaks, holds};
use crate::spool::promise::*;
use crate::spool::rules::{Rules, Wrong};
use crate::spool::search::Spool;

/// Two crashes, at any moments.
fn crashes() -> Spool {
    Spool {
        rules: Rules::default(),
        transactions: 3,
        starts: 3,
        zombies: false,
        meddling: 0,
        examples: true,
    }
}

/// A second process beside a first that may not know that it was cut off.
fn zombie() -> Spool {
    Spool { zombies: true, starts: 2, ..crashes() }
}

/// Somebody moves the slot.
fn meddler() -> Spool {
    Spool { meddling: 1, starts: 2, ..crashes() }
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
    crashes_while_it_spools_and_drains: crashes;
    two_processes_that_spool: zombie;
    somebody_moves_the_slot_of_a_spool: meddler;
}

macro_rules! wrong_ways {
    ($($test:ident: $wrong:ident in $world:ident breaks $($property:ident),+;)*) => {$(
        #[test]
        fn $test() {
            let rules = Rules { wrong: Some(Wrong::$wrong) };
            let model = Spool { rules, examples: false, ..$world() };
            breaks(&format!("{:?}", Wrong::$wrong), model, &[$($property),+]);
        }
    )*};
}

wrong_ways! {
    received_is_acknowledged: AcknowledgeReceived in crashes breaks CONFIRMED, CONTINUITY;
    a_step_acknowledged_before_its_record: AcknowledgeStored in crashes breaks CONFIRMED, CONTINUITY;
    a_step_recorded_before_its_file: RecordBeforeFile in crashes breaks CONFIRMED, WHOLE;
    a_file_without_a_record_used: UseOrphans in crashes breaks CONTENT;
    a_part_of_a_transaction_replayed: PartialTail in crashes breaks CONTENT;
    the_spools_end_taken_as_applied: EndIsApplied in crashes breaks CONTENT;
    a_slot_beyond_the_spool_accepted: TrustAnySlot in meddler breaks CONTENT;
    the_spool_forgotten_at_a_start: ForgetSpool in crashes breaks CONTINUITY;
    the_spool_removed_before_the_fence: RemoveBeforeFence in crashes breaks CONFIRMED, CONTINUITY;
    a_step_recorded_without_compare_and_swap: RecordWithoutCas in zombie breaks WHOLE;
    a_newer_processs_files_removed_as_orphans: LookThenList in zombie breaks CONTENT, CONFIRMED, WHOLE;
    two_processes_with_the_same_file_names: SameNames in zombie breaks CONFIRMED;
}

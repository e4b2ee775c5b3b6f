//! The worlds of the resumed snapshot, and the wrong way each of them shows.

use crate::harness::{breaks, holds};
use crate::resume::promise::*;
use crate::resume::rules::{Rules, Wrong};
use crate::resume::search::Resumed;

/// Rows move between two ranges, copied at two boundaries.
fn moves() -> Resumed {
    Resumed {
        rules: Rules::default(),
        keyed: true,
        ranges: 2,
        keys: 2,
        rows: 2,
        changes: 3,
        rekeys: true,
        truncates: 0,
        rewrites: 0,
        crashes: 1,
        boundaries: 0,
        another_table: false,
        late_changes: true,
        examples: true,
    }
}

/// The process lives, and takes a new boundary in mid-copy.
fn in_mid_copy() -> Resumed {
    Resumed { crashes: 0, boundaries: 1, ..moves() }
}

/// Keys change into each other.
fn keys() -> Resumed {
    Resumed { keys: 3, ..moves() }
}

/// Three ranges, each of a base of its own.
fn three_bases() -> Resumed {
    Resumed { ranges: 3, changes: 2, boundaries: 1, ..moves() }
}

/// What was read again changes, and the process crashes meanwhile.
fn read_again() -> Resumed {
    Resumed { crashes: 2, rows: 1, ..moves() }
}

/// The rows move without a word in the stream, or all of them go.
fn rewritten() -> Resumed {
    Resumed { rewrites: 1, truncates: 1, changes: 2, rekeys: false, boundaries: 1, ..moves() }
}

/// A truncate between the bases of a table that is complete already.
fn truncated() -> Resumed {
    Resumed { truncates: 1, rekeys: false, ..moves() }
}

/// Another table needs more boundaries.
fn another_table() -> Resumed {
    Resumed { another_table: true, boundaries: 1, changes: 2, truncates: 1, ..moves() }
}

fn unkeyed() -> Resumed {
    Resumed {
        keyed: false,
        rekeys: false,
        another_table: true,
        boundaries: 1,
        changes: 2,
        ..moves()
    }
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
    rows_move_between_ranges_of_two_bases: moves;
    a_new_boundary_in_mid_copy: in_mid_copy;
    keys_change_between_two_bases: keys;
    ranges_of_three_bases: three_bases;
    crashes_while_keys_are_read_again: read_again;
    a_rewrite_or_a_truncate_between_bases: rewritten;
    a_truncate_below_a_row_that_was_read_again: truncated;
    another_tables_boundary_is_the_last: another_table;
    a_table_without_a_key_starts_again: unkeyed;
}

macro_rules! wrong_ways {
    ($($test:ident: $wrong:ident in $world:ident breaks $($property:ident),+;)*) => {$(
        #[test]
        fn $test() {
            let rules = Rules { wrong: Some(Wrong::$wrong) };
            let model = Resumed { rules, examples: false, ..$world() };
            breaks(&format!("{:?}", Wrong::$wrong), model, &[$($property),+]);
        }
    )*};
}

wrong_ways! {
    a_change_below_a_rows_base_applied: IgnoreRowBase in moves breaks CONTENT;
    a_change_at_a_rows_base_skipped: AboveRowBase in moves breaks CONTENT;
    the_first_chunk_of_a_key_counts: FirstChunkWins in moves breaks CONTENT;
    both_rows_of_a_key_in_two_chunks_count: BothChunksCount in moves breaks CONTENT, COUNT;
    published_before_the_highest_base: PublishBeforeMax in moves breaks CONTENT;
    chunks_kept_after_a_rewrite: KeepAfterRewrite in rewritten breaks CONTENT, COUNT;
    the_file_as_the_snapshot_shows_it: FileInSnapshot in rewritten breaks CONTENT, COUNT;
    the_file_looked_at_after_the_boundary_only: LookOnlyAfter in rewritten breaks CONTENT, COUNT;
    the_file_not_looked_at_for_every_chunk: LookOnce in rewritten breaks CONTENT, COUNT;
    the_file_not_looked_at_when_keys_are_read_again: RereadUnlooked in truncated breaks GOES_ON;
    chunks_of_a_table_without_a_key_joined: JoinUnkeyed in unkeyed breaks CONTENT, COUNT;
    a_table_that_started_again_drained_from_the_runs_base: DrainFromRunsBase in unkeyed breaks CONTENT, COUNT;
    a_value_that_is_nowhere_guessed_null: GuessNull in moves breaks CONTENT;
    a_value_that_is_nowhere_taken_from_a_masked_row: GuessMasked in keys breaks CONTENT;
    keys_without_a_value_left_out: DropUnresolved in moves breaks CONTENT, COUNT;
    keys_read_again_without_a_boundary: RereadNow in moves breaks CONTENT;
    keys_read_again_in_the_old_snapshot: RereadOld in in_mid_copy breaks CONTENT;
    keys_read_again_once_only: RereadOnce in read_again breaks CONTENT, COUNT;
    a_reread_that_found_nothing_forgotten: ForgetEmptyReread in moves breaks GOES_ON;
    acknowledged_before_it_was_published: AcknowledgeEarly in three_bases breaks CONTINUITY;
    a_delete_below_a_rows_base_applied: DeleteBelowBase in moves breaks CONTENT;
    a_truncate_below_a_rows_base_applied: TruncateBelowBase in truncated breaks CONTENT;
    a_change_of_key_seen_as_one_key: KeyChangeAsOne in keys breaks CONTENT;
}

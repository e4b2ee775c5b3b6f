//! What a world is like that a seed makes: its writers, its faults, and how often each move comes.

use std::borrow::Cow;

use crate::handoff::{self, Handoff};
use crate::resume::{self, search::Resumed};
use crate::rules::{Rules, Wrong};
use crate::spool::{self, search::Spool};
use crate::walk::{Dice, World};
use crate::world::{CHANGES, KEYS, Op, SESSIONS, Script, TRANSACTIONS, Template};

fn writers(dice: &mut Dice) -> [Script; SESSIONS] {
    let each = TRANSACTIONS / SESSIONS;
    std::array::from_fn(|_| {
        let transactions = (0..dice.between(0, each as u8)).map(|_| {
            let mut ops = Vec::new();
            // A key change is two changes.
            while ops.len() < CHANGES / 2 && (ops.is_empty() || !dice.once_in(2)) {
                let (key, value) = (dice.below(KEYS) as u8, dice.between(1, 200));
                ops.push(match dice.below(4) {
                    0 => Op::Delete(key),
                    1 => Op::Rekey(key, neighbour(dice, key), value),
                    _ => Op::Put(key, value),
                });
            }
            Template { ops: Cow::Owned(ops), slow: dice.once_in(3) }
        });
        Cow::Owned(transactions.collect())
    })
}

/// Another key of the same table.
fn neighbour(dice: &mut Dice, key: u8) -> u8 {
    let table = |key: u8| crate::world::table_of(key);
    let others: Vec<u8> =
        (0..KEYS as u8).filter(|k| *k != key && table(*k) == table(key)).collect();
    others[dice.below(others.len())]
}

fn handoff(dice: &mut Dice, wrong: Option<Wrong>) -> Handoff {
    Handoff {
        rules: Rules { wrong },
        initial: std::array::from_fn(|_| dice.between(0, 3)),
        scripts: writers(dice),
        starts: dice.between(1, 8),
        zombies: dice.once_in(2),
        lost_answers: dice.between(0, 4),
        meddling: dice.between(0, 2),
        resnapshot: false,
        examples: wrong.is_none(),
    }
}

fn handoff_weight(action: &handoff::Action) -> usize {
    use handoff::Action::*;
    match action {
        DropSlot | AdvanceSlot => 1,
        Crash(_) | Cut(_) => 2,
        PutUnanswered(..) => 4,
        Session(_) => 12,
        _ => 20,
    }
}

/// Anything may happen to the handoff.
impl World for Handoff {
    type Model = Handoff;
    type Wrong = Wrong;

    fn make(dice: &mut Dice, wrong: Option<Wrong>) -> Handoff {
        handoff(dice, wrong)
    }

    fn weight(action: &handoff::Action) -> usize {
        handoff_weight(action)
    }
}

/// Nobody else is at the slot: then nothing may be lost at all, not even said to be.
pub struct Strict;

impl World for Strict {
    type Model = Handoff;
    type Wrong = Wrong;

    fn make(dice: &mut Dice, wrong: Option<Wrong>) -> Handoff {
        Handoff { meddling: 0, zombies: false, ..handoff(dice, wrong) }
    }

    fn weight(action: &handoff::Action) -> usize {
        handoff_weight(action)
    }
}

/// A lost history is answered with a new generation.
pub struct Generations;

impl World for Generations {
    type Model = Handoff;
    type Wrong = Wrong;

    fn make(dice: &mut Dice, wrong: Option<Wrong>) -> Handoff {
        let meddling = dice.between(1, 3);
        Handoff { meddling, resnapshot: true, zombies: true, ..handoff(dice, wrong) }
    }

    fn weight(action: &handoff::Action) -> usize {
        use handoff::Action::*;
        match action {
            DropSlot | AdvanceSlot => 3,
            action => handoff_weight(action),
        }
    }
}

impl World for Resumed {
    type Model = Resumed;
    type Wrong = resume::rules::Wrong;

    fn make(dice: &mut Dice, wrong: Option<resume::rules::Wrong>) -> Resumed {
        let keyed = !dice.once_in(5);
        let keys = dice.between(2, crate::size::resume::KEYS as u8);
        Resumed {
            rules: resume::rules::Rules { wrong },
            keyed,
            ranges: dice.between(2, crate::size::resume::RANGES as u8),
            keys,
            rows: dice.between(0, keys),
            changes: dice.between(2, 60),
            rekeys: keyed,
            truncates: dice.between(0, 2),
            rewrites: dice.between(0, 2),
            crashes: dice.between(1, 5),
            boundaries: dice.between(1, 5),
            another_table: dice.once_in(2),
            late_changes: false,
            examples: wrong.is_none(),
        }
    }

    fn weight(action: &resume::search::Action) -> usize {
        use resume::search::Action::*;
        match action {
            Crash => 2,
            NewBoundary | CopyAnother => 3,
            Acknowledge => 5,
            Change(_) => 30,
            Commit => 40,
            _ => 20,
        }
    }
}

impl World for Spool {
    type Model = Spool;
    type Wrong = spool::rules::Wrong;

    fn make(dice: &mut Dice, wrong: Option<spool::rules::Wrong>) -> Spool {
        Spool {
            rules: spool::rules::Rules { wrong },
            transactions: dice.between(1, crate::size::spool::TRANSACTIONS as u8),
            starts: dice.between(1, 8),
            zombies: dice.once_in(2),
            meddling: dice.between(0, 1),
            examples: wrong.is_none(),
        }
    }

    fn weight(action: &spool::search::Action) -> usize {
        use spool::search::Action::*;
        match action {
            Meddle => 1,
            Publish(_) => 2,
            Crash(_) | Cut(_) => 2,
            _ => 20,
        }
    }
}

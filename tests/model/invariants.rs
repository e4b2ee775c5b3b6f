//! The promise, as properties of every reachable state.

use stateright::{Model, Property};

use crate::handoff::{Action, Handoff, State};
use crate::process::{Step, Why};
use crate::world::*;

pub const CONTENT: &str = "a table is its snapshot plus every change up to applied";
pub const WHOLE: &str = "no transaction is half visible in a table";
pub const MONOTONE: &str = "the position of a key never falls";
pub const HANDOFF: &str = "nothing is visible before the handoff version";
pub const CONFIRMED: &str = "the slot is not confirmed beyond the durable fence";
pub const FENCE: &str = "the fence is not beyond any table";
pub const CUT: &str = "every table has a version that shows the fence";
pub const FENCED: &str = "no commit of an older process follows one of a newer";
pub const CONTINUITY: &str = "history is lost only by somebody else's hand";
pub const GOES_ON: &str = "without faults to come it ends caught up";

pub const CAUGHT_UP: &str = "live and caught up after every fault";

pub fn properties(model: &Handoff) -> Vec<Property<Handoff>> {
    let mut all = vec![
        Property::always(CONTENT, |_, s: &State| tables(s).all(|(i, t)| is_content(s, i, t))),
        Property::always(WHOLE, |_, s: &State| tables(s).all(|(i, t)| is_whole(s, i, t))),
        Property::always(MONOTONE, |_, s: &State| !s.fell),
        Property::always(HANDOFF, |_, s: &State| tables(s).all(|(_, t)| is_handed_off(s, t))),
        Property::always(CONFIRMED, |_, s: &State| s.meddled > 0 || is_confirmed_durable(s)),
        Property::always(FENCE, |_, s: &State| s.ledger.stage != Stage::Streaming || is_reached(s)),
        Property::always(CUT, |_, s: &State| s.ledger.stage != Stage::Streaming || is_cut(s)),
        Property::always(FENCED, |_, s: &State| !s.overtaken),
        Property::always(CONTINUITY, |model: &Handoff, s: &State| {
            s.meddled > 0 || model.zombies || !stopped(s, Why::HistoryLost)
        }),
        Property::always(GOES_ON, goes_on),
    ];
    if !model.examples {
        return all;
    }
    all.extend([
        Property::sometimes(CAUGHT_UP, |model: &Handoff, s: &State| {
            let faults = s.started >= model.starts && s.lost_answers == model.lost_answers;
            faults && is_caught_up(model, s)
        }),
        Property::sometimes("a transaction commits right at the base", |_, s: &State| {
            s.source.log().iter().any(|t| t.commit == s.tables[0].base)
        }),
    ]);
    if model.scripts.iter().any(|script| script.iter().any(|t| t.slow)) {
        all.push(Property::sometimes("a transaction spans the base", |_, s: &State| {
            let base = s.tables[0].base;
            let spans = |t: &Transaction| {
                t.commit >= base && t.changes().first().is_some_and(|c| c.lsn < base)
            };
            base > 0 && s.source.log().iter().any(spans)
        }));
    }
    if model.starts > 1 {
        all.extend([
            Property::sometimes("a crash in the last chunk", |_, s: &State| {
                let done = s.ledger.chunks.iter().filter(|c| c.done).count();
                s.living().count() == 0 && s.ledger.stage == Stage::Copying && done == KEYS - 1
            }),
            Property::sometimes("a crash between two tables' handoff versions", |_, s: &State| {
                s.living().count() == 0 && tables(s).count() == 1
            }),
            Property::sometimes("a crash while draining, between two tables", |_, s: &State| {
                let ahead = |t: &Table| t.applied > s.ledger.fence;
                let streaming = s.ledger.stage == Stage::Streaming;
                let some = s.tables.iter().any(ahead) && !s.tables.iter().all(ahead);
                streaming && some && s.living().count() == 0
            }),
            Property::sometimes("the fence is held back by a table ahead", |_, s: &State| {
                s.living().any(|p| p.step == Step::Follow && p.finished > p.ledger.fence)
            }),
        ]);
    }
    if model.lost_answers > 0 {
        all.extend([
            Property::sometimes("stored, but the answer is lost", |_, s: &State| {
                s.flying.is_none() && s.living().any(|p| p.unsure.is_some())
            }),
            Property::sometimes(
                "not stored yet when the process looks and puts again",
                |_, s: &State| s.flying.is_some() && s.living().any(|p| p.unsure.is_none()),
            ),
        ]);
    }
    if model.zombies {
        all.extend([
            Property::sometimes("a zombie is fenced", |_, s: &State| {
                let newer = s.living().map(|p| p.id).max().unwrap_or(0);
                let fenced = |p: &&crate::process::Process| p.step == Step::Stopped(Why::Fenced);
                s.processes.iter().flatten().filter(fenced).any(|p| p.id < newer)
            }),
            Property::sometimes("a second process is refused while one streams", |_, s: &State| {
                stopped(s, Why::SlotInUse)
            }),
            Property::sometimes(
                "a zombie's commit comes while the new one streams",
                |_, s: &State| {
                    let newer = s.living().map(|p| p.id).max().unwrap_or(0);
                    s.living().any(|p| {
                        let stale = |t: usize| p.views[t].version < s.tables[t].version;
                        p.id == newer && s.streams(p) && (0..TABLES).any(stale)
                    })
                },
            ),
        ]);
    }
    if model.resnapshot {
        all.extend([
            Property::sometimes("a new generation is handed off", |model: &Handoff, s: &State| {
                s.tables.iter().all(|t| t.generation == 2) && is_caught_up(model, s)
            }),
            Property::sometimes(
                "one table of the old generation, one of the new",
                |_, s: &State| s.tables[0].generation == 1 && s.tables[1].generation == 2,
            ),
            Property::sometimes("a key vanished while nobody looked", |_, s: &State| {
                let gone = |t: &Table| t.seen[0] != (0, 0) && t.rows.iter().all(|r| r.key != 0);
                s.tables[0].generation == 2 && gone(&s.tables[0])
            }),
        ]);
    } else if model.meddling > 0 {
        all.push(Property::sometimes("lost history is said", |_, s: &State| {
            stopped(s, Why::HistoryLost)
        }));
    }
    all
}

fn tables(state: &State) -> impl Iterator<Item = (usize, &Table)> {
    state.tables.iter().enumerate().filter(|(_, table)| table.version > 0)
}

fn stopped(state: &State, why: Why) -> bool {
    state.processes.iter().flatten().any(|p| p.step == Step::Stopped(why))
}

fn is_content(state: &State, table: usize, t: &Table) -> bool {
    t.rows == state.source.truth(table, t.base, t.applied)
}

/// What the rows say, apart from positions, was once the committed state of the source.
fn is_whole(state: &State, table: usize, t: &Table) -> bool {
    let moments = state.source.log().iter().map(Transaction::end).chain([0]);
    moments.into_iter().any(|moment| {
        let truth = state.source.values(moment);
        let truth =
            (0u8..).zip(truth).filter(|(key, value)| *value != 0 && table_of(*key) == table);
        t.rows.values().eq(truth)
    })
}

fn is_handed_off(state: &State, t: &Table) -> bool {
    let ledger = &state.ledger;
    let replaced = t.generation < ledger.generation;
    replaced
        || ledger.stage >= Stage::Publishing
            && ledger.run == t.run
            && ledger.base == t.base
            && ledger.chunks.iter().all(|chunk| chunk.done)
}

/// Wherever the slot was moved to since it was made.
fn is_confirmed_durable(state: &State) -> bool {
    let streaming = state.ledger.stage == Stage::Streaming;
    state.slot.is_none_or(|slot| {
        slot.confirmed == slot.made_at || streaming && slot.confirmed <= state.ledger.fence
    })
}

fn is_reached(state: &State) -> bool {
    tables(state).count() == TABLES
        && tables(state).all(|(i, t)| is_same(state, i, t.applied, state.ledger.fence))
}

/// The table is the same at both positions: nothing of it was committed between them, or what was
/// left nothing behind, as a row that was inserted and deleted again does.
fn is_same(state: &State, table: usize, from: u8, to: u8) -> bool {
    let within = |t: &&Transaction| t.commit >= from && t.commit < to;
    let ours = |t: &Transaction| t.changes().iter().any(|c| table_of(c.key) == table);
    let truth = |position| state.source.truth(table, state.tables[table].base, position);
    !state.source.log().iter().filter(within).any(ours) || truth(from) == truth(to)
}

fn is_cut(state: &State) -> bool {
    tables(state).all(|(i, t)| {
        let fence = state.ledger.fence;
        let version =
            (0..=fence).rev().find(|applied| t.history & Positions::from(1u8) << applied != 0);
        version.is_some_and(|applied| is_same(state, i, applied, fence))
    })
}

pub fn is_caught_up(model: &Handoff, state: &State) -> bool {
    let end = state.source.end;
    state.source.finished(&model.scripts)
        && state.ledger.stage == Stage::Streaming
        && state.ledger.fence == end
        && state.slot.is_some_and(|slot| slot.confirmed == end)
        && state.living().any(|p| p.step == Step::Follow && state.streams(p))
        && tables(state).all(|(i, t)| {
            is_same(state, i, t.applied, end) && t.rows == state.source.truth(i, t.base, end)
        })
}

/// With nothing left to happen, the pipeline is where it should be; what stopped as fenced is
/// started again, and what lost its history if that is configured. Else a meddler, or a zombie that replaced the slot, may have ended history.
fn goes_on(model: &Handoff, state: &State) -> bool {
    let ended = state.meddled > 0 || model.zombies && stopped(state, Why::HistoryLost);
    if ended && !model.resnapshot {
        return true;
    }
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    actions.retain(|action| *action != Action::Land);
    !actions.is_empty() || is_caught_up(model, state)
}

//! The promise of the spool, as properties of every reachable state.

use stateright::{Model, Property};

use crate::spool::search::{At, Process, Spool, State, Why};
use crate::spool::world::messages_of;

pub const CONTENT: &str = "a table shows every message up to applied once, and nothing else";
pub const CONFIRMED: &str = "what the slot has forgotten is in the table or in the spool";
pub const WHOLE: &str = "the recorded spool can be read";
pub const CONTINUITY: &str = "history is lost only by somebody else's hand";
pub const GOES_ON: &str = "without faults to come it ends caught up, and the spool is gone";

pub fn properties(model: &Spool) -> Vec<Property<Spool>> {
    let mut all = vec![
        Property::always(CONTENT, |_, s: &State| {
            s.table.version == 0 || s.table.rows == s.log.truth(s.ledger.base, s.table.applied)
        }),
        Property::always(CONFIRMED, |_, s: &State| s.meddled > 0 || is_kept(s)),
        Property::always(WHOLE, |_, s: &State| {
            !s.broken && (s.ledger.spooled().is_some() || s.ledger.steps().next().is_none())
        }),
        Property::always(CONTINUITY, |_, s: &State| s.meddled > 0 || !is_lost(s)),
        Property::always(GOES_ON, goes_on),
    ];
    if !model.examples {
        return all;
    }
    all.extend([
        Property::sometimes("caught up after every fault", |model: &Spool, s: &State| {
            s.started >= model.starts && is_caught_up(model, s)
        }),
        Property::sometimes(
            "the slot stands beyond the base before the handoff",
            |_, s: &State| {
                !s.ledger.streaming && s.slot.confirmed > s.ledger.base && s.meddled == 0
            },
        ),
        Property::sometimes("a drain reads the spool, then the slot", |_, s: &State| {
            let end = s.ledger.spool_end();
            s.living().any(|p| p.at == At::Fence && p.table.applied > end) && end > s.ledger.base
        }),
        Property::sometimes("a transaction is open when a step could end", |_, s: &State| {
            let waits = |p: &Process| p.open > 0 && p.received > p.ledger.spool_end();
            s.living().any(|p| p.at == At::Spool && waits(p))
        }),
    ]);
    if model.starts > 1 {
        all.extend([
            Property::sometimes("a crash between a file and its record", |_, s: &State| {
                let recorded = s.ledger.steps().count();
                s.living().count() == 0 && s.files.iter().flatten().count() > recorded
            }),
            Property::sometimes("a crash between two batches of a drain", |_, s: &State| {
                let (fence, end) = (s.ledger.fence, s.ledger.spool_end());
                s.living().count() == 0 && fence > s.ledger.base && fence < end
            }),
            Property::sometimes("a crash between a table and the fence", |_, s: &State| {
                s.living().count() == 0 && s.ledger.streaming && s.table.applied > s.ledger.fence
            }),
        ]);
    }
    if model.zombies {
        all.push(Property::sometimes(
            "a zombie's step comes while a new one spools",
            |_, s: &State| {
                let stale = |p: &Process| p.ledger.version < s.ledger.version;
                s.living().any(|p| p.at == At::Record && stale(p)) && s.living().count() == 2
            },
        ));
    }
    if model.meddling > 0 {
        all.push(Property::sometimes("lost history is said", |_, s: &State| {
            s.stopped(Why::HistoryLost)
        }));
    }
    all
}

/// The newest process found that it can't go on. An older one may think so of what a newer one did.
fn is_lost(state: &State) -> bool {
    let newest = state.processes.iter().flatten().find(|p| p.id == state.started);
    newest.is_some_and(|p| p.at == At::Stopped(Why::HistoryLost))
}

/// Every message before the slot's position that the table, at the fence, does not have.
fn is_kept(state: &State) -> bool {
    let ledger = &state.ledger;
    state.log.between(ledger.needed(), state.slot.confirmed).all(|(i, commit)| {
        let step = ledger.steps().find(|step| step.from <= commit && commit < step.to);
        let file = step.and_then(|step| state.files[usize::from(step.file)]);
        file.is_some_and(|file| file[i] == messages_of(i))
    })
}

fn is_caught_up(model: &Spool, state: &State) -> bool {
    let end = state.log.end;
    state.log.committed == model.transactions
        && state.ledger.streaming
        && state.ledger.fence == end
        && state.slot.confirmed == end
        && state.ledger.steps().next().is_none()
        && state.living().any(|p| p.at == At::Follow && state.slot.active == p.id)
}

fn goes_on(model: &Spool, state: &State) -> bool {
    if state.meddled > 0 {
        return true;
    }
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    !actions.is_empty() || is_caught_up(model, state)
}

//! The promise of a resumed snapshot, as properties of every reachable state.

use stateright::{Model, Property};

use crate::resume::drain::Rows;
use crate::resume::search::{Resumed, State, Step};

pub const CONTENT: &str = "what is published is the source at the highest base";
pub const COUNT: &str = "the count at the highest base is what was drained";
pub const CONTINUITY: &str = "what the run needs stays in its slot";
pub const GOES_ON: &str = "it ends published";

pub fn properties(model: &Resumed) -> Vec<Property<Resumed>> {
    let mut all = vec![
        Property::always(CONTENT, is_content),
        Property::always(COUNT, |_, s: &State| !s.miscounted),
        Property::always(CONTINUITY, |_, s: &State| !s.lost),
        Property::always(GOES_ON, |model: &Resumed, s: &State| {
            let mut actions = Vec::new();
            model.actions(s, &mut actions);
            !s.in_vain && (!actions.is_empty() || s.published.is_some())
        }),
    ];
    if model.examples {
        examples(model, &mut all);
    }
    all
}

fn is_content(model: &Resumed, state: &State) -> bool {
    state.published.is_none_or(|published| {
        published.rows == Rows::truth(&state.source, published.at, model.keyed)
    })
}

fn examples(model: &Resumed, all: &mut Vec<Property<Resumed>>) {
    all.push(Property::sometimes("a transaction commits right at a base", |_, s: &State| {
        let at = |base: u8| s.source.log().any(|t| t.commit == base);
        s.published.is_some() && s.run.chunks.iter().flatten().any(|c| at(c.base))
    }));
    if model.keyed && model.crashes + model.boundaries > 0 {
        all.extend([
            Property::sometimes("published from chunks of several bases", |_, s: &State| {
                s.published.is_some() && bases(s) > 1
            }),
            Property::sometimes("a key stands in two chunks", |_, s: &State| {
                (0..s.source.heap.len()).any(|key| {
                    s.run.chunks.iter().flatten().filter(|c| c.rows[key].is_some()).count() > 1
                })
            }),
            Property::sometimes("a value is nowhere, and is read again", |_, s: &State| {
                s.published.is_some() && s.run.rereads > 0
            }),
        ]);
    }
    if model.keyed && model.rekeys && model.changes > 2 {
        all.push(Property::sometimes(
            "a key changes while it is read again, and another is",
            |_, s: &State| s.published.is_some() && s.run.rereads > 1,
        ));
    }
    if model.crashes + model.boundaries > 1 && model.ranges > 2 {
        all.push(Property::sometimes("published from chunks of three bases", |_, s: &State| {
            s.published.is_some() && bases(s) > 2
        }));
    }
    if model.rewrites > 0 || !model.keyed {
        all.push(Property::sometimes("a table starts again", |_, s: &State| {
            s.published.is_some() && s.started_again
        }));
    }
    if model.rewrites > 0 {
        all.push(Property::sometimes("a rewrite right after a boundary", |_, s: &State| {
            let step = s.process.map(|p| p.step);
            matches!(step, Some(Step::Look { file }) if file != s.source.file)
        }));
    }
}

fn bases(state: &State) -> usize {
    let mut bases: Vec<u8> = state.run.chunks.iter().flatten().map(|chunk| chunk.base).collect();
    bases.sort_unstable();
    bases.dedup();
    bases.len()
}

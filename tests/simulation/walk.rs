//! Walks: from a seed to a world, from state to state, with a look at every promise.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::mem::{Discriminant, discriminant};
use std::time::Instant;

use stateright::{Expectation, Model, Property};

/// Moves of one walk, at most.
const LONGEST: usize = 1_500;

/// A generator of numbers (SplitMix64): small, and the same everywhere.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u8, high: u8) -> u8 {
        low + self.below(usize::from(high - low) + 1) as u8
    }

    /// Once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A world that can be made from a seed, and walked through.
pub trait World: Sized {
    type Model: Model<State: Clone + Debug, Action: Clone + Debug + PartialEq>;
    type Wrong: Copy + Debug;

    fn make(dice: &mut Dice, wrong: Option<Self::Wrong>) -> Self::Model;

    /// How often a kind of move is made, against the others.
    fn weight(action: &<Self::Model as Model>::Action) -> usize;
}

type ActionOf<W> = <<W as World>::Model as Model>::Action;

struct Broken<W: World> {
    seed: u64,
    promise: &'static str,
    moves: Vec<ActionOf<W>>,
}

/// What walks have seen.
#[derive(Default)]
struct Tally {
    steps: u64,
    walks: u64,
    /// Situations the models look for, and in how many walks they came.
    seen: BTreeMap<&'static str, u64>,
}

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

/// Walks from seed 1 on, until `steps` are made or the environment says otherwise; every promise
/// holds.
pub fn holds<W: World>(name: &str, steps: u64) {
    let steps = from_env("TIDEGATE_SIM_STEPS").unwrap_or(steps);
    let only = from_env("TIDEGATE_SIM_SEED");
    let begun = Instant::now();
    let mut tally = Tally::default();
    let mut seed = only.unwrap_or(1);
    while tally.steps < steps {
        if let Some(broken) = walk::<W>(seed, None, &mut tally) {
            let moves = shortest::<W>(&broken);
            panic!(
                "{name}: seed {seed} breaks {:?} after {} moves (TIDEGATE_SIM_SEED={seed} walks it \
                 again); these {} are enough: {moves:#?}",
                broken.promise,
                broken.moves.len(),
                moves.len()
            );
        }
        if only.is_some() {
            break;
        }
        seed += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let a_minute = tally.steps as f64 / seconds * 60.0 / 1e6;
    println!(
        "{name}: seeds 1 to {seed}, {} steps, {seconds:.1} s, {a_minute:.1} million steps a minute",
        tally.steps
    );
    for (situation, walks) in &tally.seen {
        println!("  {walks} of {} walks: {situation}", tally.walks);
    }
    let never: Vec<_> = tally.seen.iter().filter(|seen| *seen.1 == 0).map(|seen| seen.0).collect();
    assert!(only.is_some() || never.is_empty(), "{name}: no walk came to {never:?}");
}

/// Whether a walk sees that something is wrong, within `steps`.
pub fn catches<W: World<Wrong = R>, R: Copy + Debug>(wrong: R, steps: u64) -> bool {
    let mut tally = Tally::default();
    for seed in 1.. {
        if let Some(broken) = walk::<W>(seed, Some(wrong), &mut tally) {
            println!("{wrong:?}: seed {seed}, {} steps: {:?}", tally.steps, broken.promise);
            return true;
        }
        if tally.steps >= steps {
            break;
        }
    }
    println!("{wrong:?}: not seen in {} steps", tally.steps);
    false
}

fn first_broken<M: Model>(
    model: &M,
    promises: &[Property<M>],
    state: &M::State,
) -> Option<&'static str> {
    let broken =
        |p: &&Property<M>| p.expectation == Expectation::Always && !(p.condition)(model, state);
    promises.iter().find(broken).map(|p| p.name)
}

fn walk<W: World>(seed: u64, wrong: Option<W::Wrong>, tally: &mut Tally) -> Option<Broken<W>> {
    let mut dice = Dice::new(seed);
    let model = W::make(&mut dice, wrong);
    let promises = model.properties();
    let mut situations: Vec<&Property<W::Model>> =
        promises.iter().filter(|p| p.expectation == Expectation::Sometimes).collect();
    for situation in &situations {
        tally.seen.entry(situation.name).or_default();
    }
    let mut state = model.init_states().into_iter().next()?;
    let (mut moves, mut actions) = (Vec::new(), Vec::new());
    tally.walks += 1;
    while moves.len() < LONGEST && model.within_boundary(&state) {
        actions.clear();
        model.actions(&state, &mut actions);
        let Some(action) = choose::<W>(&mut dice, &mut actions) else { break };
        let Some(next) = model.next_state(&state, action.clone()) else { continue };
        state = next;
        moves.push(action);
        tally.steps += 1;
        if let Some(promise) = first_broken(&model, &promises, &state) {
            return Some(Broken { seed, promise, moves });
        }
        situations.retain(|situation| {
            let seen = (situation.condition)(&model, &state);
            if seen {
                *tally.seen.entry(situation.name).or_default() += 1;
            }
            !seen
        });
    }
    None
}

/// One kind of move by its weight, then one of that kind.
fn choose<W: World>(dice: &mut Dice, actions: &mut Vec<ActionOf<W>>) -> Option<ActionOf<W>> {
    let mut kinds: Vec<(Discriminant<ActionOf<W>>, usize, usize)> = Vec::with_capacity(16);
    for action in actions.iter() {
        let kind = discriminant(action);
        match kinds.iter_mut().find(|k| k.0 == kind) {
            Some(known) => known.2 += 1,
            None => kinds.push((kind, W::weight(action), 1)),
        }
    }
    let mut at = dice.below(kinds.iter().map(|k| k.1).sum::<usize>().max(1));
    let (kind, _, count) = *kinds.iter().find(|k| {
        let here = at < k.1;
        at = at.saturating_sub(if here { 0 } else { k.1 });
        here
    })?;
    let nth = dice.below(count);
    let place = actions.iter().enumerate().filter(|(_, a)| discriminant(*a) == kind).nth(nth)?.0;
    Some(actions.swap_remove(place))
}

/// Leaves moves out as long as the same promise is broken.
fn shortest<W: World>(broken: &Broken<W>) -> Vec<ActionOf<W>> {
    let model = W::make(&mut Dice::new(broken.seed), None);
    let promises = model.properties();
    let breaks = |moves: &[ActionOf<W>]| -> Option<usize> {
        let mut state = model.init_states().into_iter().next()?;
        let mut actions = Vec::new();
        for (count, action) in (1..).zip(moves) {
            actions.clear();
            model.actions(&state, &mut actions);
            if !actions.contains(action) {
                return None;
            }
            state = model.next_state(&state, action.clone())?;
            if first_broken(&model, &promises, &state) == Some(broken.promise) {
                return Some(count);
            }
        }
        None
    };
    let mut moves = broken.moves.clone();
    let mut length = moves.len().div_ceil(2);
    while length > 0 {
        let mut from = 0;
        while from < moves.len() {
            let mut fewer = moves.clone();
            fewer.drain(from..(from + length).min(moves.len()));
            match breaks(&fewer) {
                Some(count) => {
                    fewer.truncate(count);
                    moves = fewer;
                }
                None => from += length,
            }
        }
        length /= 2;
    }
    moves
}

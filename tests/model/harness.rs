//! Runs a search: everything holds, or what is wrong is seen.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// Searches everything; every property holds, every example is found.
pub fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let begun = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    let seconds = begun.elapsed().as_secs_f32();
    let states = checker.unique_state_count();
    println!("{name}: {states} states, depth {}, {seconds:.1} s", checker.max_depth());
    checker.assert_properties();
}

/// Searches until every one of `properties` is seen broken.
pub fn breaks<M>(wrong: &str, model: M, properties: &[&'static str])
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let expected = HasDiscoveries::AllOf(properties.iter().copied().collect());
    let begun = Instant::now();
    let checker = model.checker().threads(2).finish_when(expected).spawn_bfs().join();
    let (seconds, states) = (begun.elapsed().as_secs_f32(), checker.unique_state_count());
    let found = checker.discoveries();
    println!("{wrong}: {states} states, {seconds:.1} s: {:?}", found.keys());
    for name in properties {
        assert!(found.contains_key(name), "the model does not see that {wrong} breaks {name:?}");
    }
}

//! Every named point of the program is crossed with a crash, an error that passes, one that stays,
//! and a delay, in every phase in which it is reached. After each, a clean run must bring the lake
//! to equality with the source, with every version of every table and of the ledger in order.
//!
//! The points are read from the code, the passages from traces of good runs. `make test` crosses a
//! sample that is the same every time and has every point with a crash; `TIDEGATE_CROSSING=full`
//! crosses all at their first passage, `TIDEGATE_CROSSING=all` at every one (for hours),
//! `TIDEGATE_CROSSING=ErrorForever` all at their first passage with that action,
//! `TIDEGATE_CROSSING=SEED` another sample, and `TIDEGATE_CROSSING='Live lake.commit.after 2 Crash'`
//! one case.

mod support;

#[path = "failpoints/case.rs"]
mod case;
#[path = "failpoints/scan.rs"]
mod scan;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use case::{Action, Bench, Case, PHASES, Phase, TEMPLATE, VACUUM};
use support::database::TestDb;
use support::servers::usual;

/// Points that no run here passes, and why.
const ELSEWHERE: [(&str, &str); 23] = [
    ("schema.commit.before", CHANGES),
    ("schema.commit.after", CHANGES),
    ("again.marked", CHANGES),
    ("again.publication", CHANGES),
    ("again.boundary", CHANGES),
    ("again.copied", CHANGES),
    ("again.publish.before", CHANGES),
    ("again.publish.after", CHANGES),
    ("again.recorded", CHANGES),
    ("handoff.apart", "in the deliberately wrong snapshot only; tests/handoff.rs"),
    ("stream.timeline", "when a standby was promoted; tests/identity.rs"),
    ("compaction.written", COMPACTION),
    ("compaction.done", COMPACTION),
    ("compaction.commit.before", COMPACTION),
    ("compaction.commit.after", COMPACTION),
    ("compaction.index.after", COMPACTION),
    ("retention.checkpoint.written", RETENTION),
    ("retention.said", RETENTION),
    ("retention.files.before", RETENTION),
    ("retention.files.after", RETENTION),
    ("retention.commits.after", RETENTION),
    ("retention.firsts.after", RETENTION),
    ("retention.checkpoints.after", RETENTION),
];
const CHANGES: &str = "when a table changes at the source; tests/schema_changes.rs";
const COMPACTION: &str = "with files so small that they are compacted; tests/compaction.rs";
const RETENTION: &str = "with a retention so short that something is removed; tests/retention.rs";

/// Cases in the sample, besides the crash at every point.
const SAMPLE: usize = 16;
/// Cases at a time: they wait more than they work.
const SIDE_BY_SIDE: usize = 5;

/// The points each phase passes in a good run.
fn traces(template: &TestDb) -> BTreeMap<Phase, Vec<String>> {
    let found = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for runs in [
            &[Phase::Drain][..],
            &[Phase::Live, Phase::Again],
            &[Phase::Continue],
            &[Phase::Spool],
            &[Phase::Resume],
        ] {
            let found = &found;
            scope.spawn(move || {
                let bench = Bench::new(template, &format!("trace_{:?}", runs[0]), runs[0]);
                for run in runs {
                    let trace = bench.trace(*run);
                    // One run has the first three phases.
                    let phases = if *run == Phase::Drain { &PHASES[..3] } else { &[*run] };
                    let mut found = found.lock().unwrap();
                    found.extend(phases.iter().map(|phase| (*phase, phase.part_of(&trace))));
                }
            });
        }
    });
    found.into_inner().unwrap()
}

#[test]
fn nothing_is_lost_whatever_happens_at_any_point() {
    let started = Instant::now();
    let template = TestDb::new(usual(), "crossing_template");
    template.sql().run(TEMPLATE);
    template.sql().run(VACUUM);
    let asked = std::env::var("TIDEGATE_CROSSING").unwrap_or_default();
    let one = Case::parse(&asked);
    let cases = match &one {
        Some(case) => vec![case.clone()],
        None => {
            let all = case::all(&traces(&template));
            every_point_is_reached(&all);
            match &*asked {
                "all" => all,
                "full" => all.into_iter().filter(|case| case.passage == 1).collect(),
                action if Action::named(action).is_some() => {
                    let wanted = |case: &Case| Some(case.action) == Action::named(action);
                    all.into_iter().filter(|case| case.passage == 1 && wanted(case)).collect()
                }
                seed => sample(all, seed.parse().unwrap_or(5)),
            }
        }
    };
    let prepared = started.elapsed();
    println!("{} cases", cases.len());
    let (queue, failures) = (Mutex::new(cases.iter().rev()), Mutex::new(Vec::new()));
    let reached: Mutex<HashSet<(Phase, &str)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let Some(case) = queue.lock().unwrap().next() else { return };
                    let name: String = format!("x_{}", case.point).chars().take(30).collect();
                    let crossed = catch_unwind(AssertUnwindSafe(|| {
                        Bench::new(&template, &name, case.phase).cross(case)
                    }));
                    match crossed {
                        Ok(true) => drop(reached.lock().unwrap().insert((case.phase, &case.point))),
                        Ok(false) => {}
                        Err(panic) => failures.lock().unwrap().push((case, said(&*panic))),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let reached = reached.into_inner().unwrap();
    println!(
        "{} cases, {} points and phases reached, in {:.1?} after {prepared:.1?} of preparation",
        cases.len(),
        reached.len(),
        started.elapsed() - prepared
    );
    for (case, said) in &failures {
        println!("\n== TIDEGATE_CROSSING='{case}'\n{said}");
    }
    assert!(failures.is_empty(), "{} of {} cases failed", failures.len(), cases.len());
    let missed: Vec<String> = cases
        .iter()
        .filter(|case| !reached.contains(&(case.phase, &case.point)))
        .map(|case| case.to_string())
        .collect();
    assert!(missed.is_empty(), "never reached, so nothing is proven: {missed:#?}");
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

fn every_point_is_reached(cases: &[Case]) {
    let reached: BTreeSet<&str> = cases.iter().map(|case| case.point.as_str()).collect();
    for point in scan::points() {
        let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == point);
        match (reached.contains(point.as_str()), elsewhere) {
            (true, None) | (false, Some(_)) => {}
            (false, None) => panic!(
                "no run reaches the point {point}: let one do so, or say in ELSEWHERE why not"
            ),
            (true, Some((_, why))) => panic!("{point} is reached after all, though: {why}"),
        }
    }
}

/// A crash at every point, in one of its phases, and some of everything else.
fn sample(all: Vec<Case>, seed: u64) -> Vec<Case> {
    let mut random = support::random::Random::new(seed);
    let mut by_point: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in all.iter().filter(|case| case.action == Action::Crash) {
        by_point.entry(&case.point).or_default().push(case);
    }
    let mut chosen: BTreeSet<Case> = BTreeSet::new();
    for crashes in by_point.values() {
        // Its first passage in each phase is there in every run.
        let firsts: Vec<_> = crashes.iter().filter(|case| case.passage == 1).collect();
        chosen.insert((**firsts[random.below(firsts.len() as u64) as usize]).clone());
    }
    let more = chosen.len() + SAMPLE;
    let firsts: Vec<&Case> = all.iter().filter(|case| case.passage == 1).collect();
    while chosen.len() < more.min(firsts.len()) {
        chosen.insert(firsts[random.below(firsts.len() as u64) as usize].clone());
    }
    chosen.into_iter().collect()
}

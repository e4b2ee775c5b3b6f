//! Chaos: a real server, a mixed load, and processes that are killed at random instants, frozen
//! beside a second one, cut off, and left alone by their server; pipelines begun again and again, so
//! that kills hit the snapshot as often as the stream. After recovery the lake must be the source,
//! row by row, and every version of every table in order.
//!
//! `make test` runs a short one; `make chaos` a full one: `make chaos SEED=3 KILLS=200 MINUTES=20
//! LAKE=local`. Load, settings and faults are functions of the seed; only the machine's timing is
//! not, so a seed that failed is run again as it is printed, and fails again soon if not at once.

mod support;

#[path = "chaos/compare.rs"]
mod compare;
#[path = "chaos/figures.rs"]
mod figures;
#[path = "chaos/load.rs"]
mod load;
#[path = "chaos/pipeline.rs"]
mod pipeline;
#[path = "chaos/place.rs"]
mod place;
#[path = "chaos/run.rs"]
mod run;
#[path = "failpoints/scan.rs"]
mod scan;
#[path = "chaos/settings.rs"]
mod settings;

use settings::Plan;

#[test]
fn a_short_chaos_loses_nothing() {
    let figures = run::run(&Plan::from_environment(15, 35));
    assert!(figures["kills"].as_u64() > Some(0), "nothing was killed: {figures}");
    assert!(figures["comparisons"].as_u64() > Some(0));
}

#[test]
#[ignore = "takes a quarter of an hour: make chaos"]
fn a_full_chaos_loses_nothing() {
    let plan = Plan::from_environment(200, 1800);
    let figures = run::run(&plan);
    assert!(figures["kills"].as_u64() >= Some(plan.kills), "the time was up: {figures}");
    assert_eq!(figures["differences"], 0);
}

//! Why the pipeline is not where it should be, and what to do, from the figures alone.

use std::time::Duration;

use serde::Serialize;

use crate::observe::human;
use crate::observe::metrics::freshness::Lag;
use crate::observe::metrics::{Metrics, SourceLook};

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What is so.
    pub what: String,
    /// What to do.
    pub next: String,
}

/// The limit is near below this share, or within this time.
const SHARE: f64 = 0.2;
const SOON: Duration = Duration::from_secs(3_600);
/// A lag beyond this is one.
const LATE: f64 = 120.0;

/// What is to be said; nothing, if all is well. The worst first.
pub fn advice(metrics: &Metrics, source_error: Option<&str>) -> Vec<Advice> {
    let mut found = Vec::new();
    let mut say = |what: String, next: &str| found.push(Advice { what, next: next.to_owned() });
    let (ready, streaming) = (metrics.is_ready(), metrics.is_streaming());
    match metrics.source() {
        None => {
            if let Some(error) = source_error {
                say(
                    format!("The source does not answer: {error}"),
                    "see that the server runs and that it can be reached from here; `tidegate check` says more",
                );
            }
        }
        Some(look) => slot(&look, ready, &mut say),
    }
    if ready && !streaming && source_error.is_none() {
        say(
            "The slot is not read at the moment.".to_owned(),
            "nothing, if it has just begun or tries again: the last errors are below",
        );
    }
    let late = |lag: &Lag| streaming && lag.seconds.is_some_and(|seconds| seconds > LATE);
    if let Some(lag) = metrics.lag().filter(late) {
        say(
            format!(
                "The tables are {} behind the source: {} of log.",
                human::duration(Duration::from_secs_f64(lag.age)),
                human::bytes(lag.bytes.unwrap_or_default())
            ),
            "compare tidegate_stage_seconds in /metrics: where commits take most of the time, a longer [stream] interval or a nearer store helps; where staging does, more [limits] index_memory_bytes; where neither does, the source or the network is slow",
        );
    }
    found
}

fn slot(look: &SourceLook, ready: bool, say: &mut impl FnMut(String, &str)) {
    if look.slot_lost || (ready && !look.slot) {
        say(
            "The replication slot is lost: the history can't be continued.".to_owned(),
            "raise max_slot_wal_keep_size on the source, then `tidegate run --resnapshot`",
        );
        return;
    }
    let near = look.limit.zip(look.margin).filter(|(limit, margin)| {
        (*margin as f64) < *limit as f64 * SHARE || look.time_to_limit.is_some_and(|t| t < SOON)
    });
    if let Some((limit, margin)) = near {
        let mut what = format!(
            "The slot makes the source keep {} of WAL; {} are left to the limit of {}.",
            human::bytes(look.retained),
            human::bytes(margin),
            human::bytes(limit)
        );
        if let Some(time) = look.time_to_limit {
            what += &format!(" It is reached in {} at this rate.", human::duration(time));
        }
        say(
            what,
            "raise max_slot_wal_keep_size (and [handoff] max_retained_wal), or find what holds the pipeline up; while a snapshot is copied, [handoff] retain = \"spool\" frees the WAL",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::LedgerFigures;
    use crate::position::Lsn;

    fn live() -> Metrics {
        let metrics = Metrics::new("p");
        metrics.set_ledger(LedgerFigures {
            generation: 1,
            phase: "live",
            fence: Some(Lsn::new(100)),
            ..LedgerFigures::default()
        });
        metrics
    }

    fn with(look: SourceLook) -> Vec<Advice> {
        let metrics = live();
        let _reading = metrics.reading();
        metrics.set_source(Some(look));
        advice(&metrics, None)
    }

    #[test]
    fn a_calm_pipeline_says_nothing() {
        let look =
            SourceLook { slot: true, limit: Some(100), margin: Some(90), ..Default::default() };
        assert_eq!(with(look), []);
        assert_eq!(advice(&Metrics::new("p"), None), []);
    }

    #[test]
    fn a_slot_that_is_gone_or_nearly_full_says_what_to_do() {
        assert!(with(SourceLook::default())[0].next.contains("--resnapshot"));
        let near = SourceLook {
            slot: true,
            limit: Some(100 << 20),
            margin: Some(10 << 20),
            retained: 90 << 20,
            time_to_limit: Some(Duration::from_secs(90)),
            ..Default::default()
        };
        let said = with(near);
        assert!(said[0].what.contains("10.0 MiB are left") && said[0].what.contains("1m30s"));
        let soon = SourceLook { margin: Some(90 << 20), ..near };
        assert_eq!(with(soon).len(), 1);
    }

    #[test]
    fn a_source_that_does_not_answer_is_named() {
        let metrics = live();
        metrics.set_source(None);
        let said = advice(&metrics, Some("connection refused"));
        assert!(said[0].what.contains("connection refused"), "{said:?}");
    }
}

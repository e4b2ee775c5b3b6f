//! The one list of metrics: name, kind, unit, what it says, and where it is read from.
//! `docs/operate.md` is printed from it.

use super::text::Samples;
use super::{Metrics, SourceLook, TableFigures, lock, read, resident_bytes};

/// The kinds of OpenMetrics in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up while the process lives. Its sample ends in `_total`.
    Counter,
    /// Counts in buckets.
    Histogram,
    /// Text in labels. Its sample ends in `_info`.
    Info,
    /// One of several states is 1.
    StateSet,
}

impl Kind {
    /// The word in `# TYPE`.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
            Kind::StateSet => "stateset",
        }
    }
}

/// One metric.
pub struct Family {
    /// Its name, without the suffix of its kind.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit, with which its name ends; empty for a number of nothing.
    pub unit: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Gives its samples; none while nothing is known.
    pub read: fn(&Metrics, &mut Samples<'_>),
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&Metrics, &mut Samples<'_>),
) -> Family {
    Family { name, kind: Kind::Gauge, unit, help, read }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&Metrics, &mut Samples<'_>),
) -> Family {
    Family { name, kind: Kind::Counter, unit, help, read }
}

const fn histogram(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&Metrics, &mut Samples<'_>),
) -> Family {
    Family { name, kind: Kind::Histogram, unit, help, read }
}

/// The phases a pipeline can be in; `starting` before the ledger was read.
const PHASES: [&str; 6] = ["starting", "snapshot", "drain", "publish", "live", "failed"];

/// Every metric, in the order of `/metrics`.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "tidegate_build",
        kind: Kind::Info,
        unit: "",
        help: "The version of the program.",
        read: |_, out| out.with(&[("version", env!("CARGO_PKG_VERSION"))], true),
    },
    gauge(
        "tidegate_start_time_seconds",
        "seconds",
        "When the process began, since 1970.",
        |m, out| {
            out.one(m.started.timestamp() as f64);
        },
    ),
    gauge(
        "tidegate_resident_memory_bytes",
        "bytes",
        "Memory of the process that is in use.",
        |_, out| {
            out.maybe(resident_bytes());
        },
    ),
    Family {
        name: "tidegate_phase",
        kind: Kind::StateSet,
        unit: "",
        help: "What the pipeline is doing: the phase that is 1.",
        read: |m, out| {
            let ledger = m.ledger();
            let now = if ledger.phase.is_empty() { "starting" } else { ledger.phase };
            for phase in PHASES {
                out.with(&[("tidegate_phase", phase)], phase == now);
            }
        },
    },
    gauge(
        "tidegate_ready",
        "",
        "1 once the ledger holds a fence of the current generation.",
        |m, out| {
            out.one(m.is_ready());
        },
    ),
    gauge(
        "tidegate_generation",
        "",
        "Goes up whenever a new snapshot replaces the old one.",
        |m, out| {
            out.maybe(Some(m.ledger().generation).filter(|generation| *generation > 0));
        },
    ),
    gauge(
        "tidegate_streaming",
        "",
        "1 while the slot is read and its changes are applied.",
        |m, out| {
            out.one(m.is_streaming());
        },
    ),
    // The snapshot.
    gauge("tidegate_snapshot_rows", "rows", "Rows of the run that are copied.", |m, out| {
        out.maybe(copied(m).map(|copied| copied.0));
    }),
    gauge(
        "tidegate_snapshot_expected_rows",
        "rows",
        "Rows the run is expected to copy, as PostgreSQL estimates them.",
        |m, out| out.maybe(lock(&m.copying).as_ref().map(|c| c.plan.expected_rows)),
    ),
    gauge(
        "tidegate_snapshot_bytes",
        "bytes",
        "Bytes of the data files of the rows that are copied.",
        |m, out| {
            out.maybe(copied(m).map(|copied| copied.1));
        },
    ),
    gauge(
        "tidegate_snapshot_source_bytes",
        "bytes",
        "Bytes of the run's tables at the source, with TOAST; Parquet takes less.",
        |m, out| out.maybe(lock(&m.copying).as_ref().map(|c| c.plan.source_bytes)),
    ),
    gauge(
        "tidegate_snapshot_chunks",
        "chunks",
        "Chunks of the run that are copied and recorded.",
        |m, out| {
            out.maybe(lock(&m.copying).as_ref().map(|_| read(&m.chunks)));
        },
    ),
    gauge("tidegate_snapshot_expected_chunks", "chunks", "All chunks of the run.", |m, out| {
        out.maybe(lock(&m.copying).as_ref().map(|c| c.plan.expected_chunks));
    }),
    gauge(
        "tidegate_snapshot_age_seconds",
        "seconds",
        "For how long a snapshot is held on the source, which keeps dead rows for it.",
        |m, out| {
            let held = m.ledger().snapshot_since;
            let age = |since: chrono::DateTime<chrono::Utc>| {
                (chrono::Utc::now() - since).num_milliseconds().max(0) as f64 / 1e3
            };
            out.maybe(held.map(age));
        },
    ),
    counter(
        "tidegate_copied_rows",
        "rows",
        "Rows copied by snapshots: its rate is their throughput.",
        |m, out| {
            out.one(read(&m.copied.rows));
        },
    ),
    counter(
        "tidegate_copied_bytes",
        "bytes",
        "Bytes of data files written by snapshots.",
        |m, out| {
            out.one(read(&m.copied.bytes));
        },
    ),
    // The source.
    gauge(
        "tidegate_source_up",
        "",
        "1 if the source answered when it was looked at last.",
        |m, out| {
            out.one(m.source().is_some());
        },
    ),
    gauge("tidegate_slot_active", "", "1 if somebody streams from the slot.", |m, out| {
        out.maybe(m.source().filter(|look| look.slot).map(|look| look.slot_active));
    }),
    gauge(
        "tidegate_slot_lost",
        "",
        "1 if the slot is gone, or WAL that it needs: the history can't be continued.",
        |m, out| {
            // Before the snapshot there is none yet.
            let expected = m.is_ready();
            out.maybe(m.source().map(|look| look.slot_lost || (expected && !look.slot)));
        },
    ),
    gauge(
        "tidegate_wal_retained_bytes",
        "bytes",
        "WAL that the source keeps for the slot.",
        |m, out| {
            out.maybe(slot(m).map(|look| look.retained));
        },
    ),
    gauge(
        "tidegate_wal_limit_bytes",
        "bytes",
        "The most it may keep: the smaller of max_slot_wal_keep_size, as the server counts it, and [handoff] max_retained_wal. Absent without a limit.",
        |m, out| out.maybe(slot(m).and_then(|look| look.limit)),
    ),
    gauge("tidegate_wal_margin_bytes", "bytes", "What is left to that limit.", |m, out| {
        out.maybe(slot(m).and_then(|look| look.margin));
    }),
    gauge(
        "tidegate_wal_time_to_limit_seconds",
        "seconds",
        "When the limit is reached if it goes on as in the last minute. Absent while the WAL kept does not grow.",
        |m, out| {
            out.maybe(slot(m).and_then(|look| look.time_to_limit).map(|time| time.as_secs_f64()));
        },
    ),
    gauge(
        "tidegate_xmin_age_transactions",
        "transactions",
        "Transactions since the oldest one whose dead rows the source keeps for this pipeline: of the slot's catalog, or of a snapshot that is held.",
        |m, out| out.maybe(m.source().and_then(|look| look.xmin_age)),
    ),
    // The stream.
    gauge(
        "tidegate_lag_bytes",
        "bytes",
        "Bytes of the source's log that the tables do not show yet.",
        |m, out| {
            out.maybe(m.lag().and_then(|lag| lag.bytes));
        },
    ),
    gauge(
        "tidegate_lag_seconds",
        "seconds",
        "For how long the oldest of that has been there; 0 if the tables showed everything when the source was looked at last. Absent if that is not known.",
        |m, out| out.maybe(m.lag().and_then(|lag| lag.seconds)),
    ),
    gauge(
        "tidegate_visible_age_seconds",
        "seconds",
        "The age of what a reader of the lake sees: since the newest moment of which the tables show everything.",
        |m, out| out.maybe(m.lag().map(|lag| lag.age)),
    ),
    gauge(
        "tidegate_fence_position",
        "",
        "The last fence, as a number of bytes of log.",
        |m, out| {
            out.maybe(m.ledger().fence.map(crate::position::Lsn::bytes));
        },
    ),
    gauge(
        "tidegate_fence_timestamp_seconds",
        "seconds",
        "When the last fence was recorded, since 1970.",
        |m, out| {
            out.maybe(m.ledger().fence_at.map(|at| at.timestamp_millis() as f64 / 1e3));
        },
    ),
    counter("tidegate_changes", "changes", "Changes of rows taken from the stream.", |m, out| {
        out.one(read(&m.changes));
    }),
    counter("tidegate_change_bytes", "bytes", "Their bytes, as the source sent them.", |m, out| {
        out.one(read(&m.change_bytes));
    }),
    histogram(
        "tidegate_batch_changes",
        "changes",
        "Changes in a batch; its count is the number of batches.",
        |m, out| {
            out.histogram(&m.batch_changes.read());
        },
    ),
    counter(
        "tidegate_stage_seconds",
        "seconds",
        "Time spent on batches, by stage: read (from the first change to the end of the batch, which waits for [stream] interval), stage (files written), commit.",
        |m, out| {
            let seconds = |micros: u64| micros as f64 / 1e6;
            out.with(&[("stage", "read")], seconds(read(&m.read_micros)));
            out.with(&[("stage", "stage")], seconds(read(&m.stage_micros)));
            out.with(&[("stage", "commit")], m.commit.read().sum);
        },
    ),
    histogram(
        "tidegate_commit_seconds",
        "seconds",
        "How long the commits of a batch took, of all its tables and the fence.",
        |m, out| out.histogram(&m.commit.read()),
    ),
    histogram(
        "tidegate_delay_seconds",
        "seconds",
        "From the commit of a batch's last transaction on the source, by its clock, until it could be read in the lake.",
        |m, out| out.histogram(&m.delay.read()),
    ),
    counter(
        "tidegate_commits",
        "commits",
        "Versions committed to tables by the stream.",
        |m, out| {
            out.one(read(&m.commits));
        },
    ),
    counter(
        "tidegate_conflicts",
        "conflicts",
        "Commits that found another program's version in their place, and were made above it or again.",
        |m, out| out.one(read(&m.store.conflicts)),
    ),
    counter(
        "tidegate_retries",
        "retries",
        "What failed in a way that may pass and was tried again, by kind: pipeline (source and lake are opened anew), store (one operation on the lake).",
        |m, out| {
            out.with(&[("kind", "pipeline")], read(&m.attempts));
            out.with(&[("kind", "store")], read(&m.store.retries));
        },
    ),
    gauge("tidegate_spool_bytes", "bytes", "Bytes of changes that wait in the lake.", |m, out| {
        out.one(m.ledger().spool_bytes);
    }),
    // The tables.
    gauge("tidegate_tables", "tables", "Published tables whose figures are known.", |m, out| {
        out.one(lock(&m.tables).len() as u64);
    }),
    gauge(
        "tidegate_unfollowed_tables",
        "tables",
        "Tables that no longer get the changes of the stream, by state: again (read again because they changed at the source, or as asked for), stopped (until somebody mends them: `tidegate status` says what).",
        |m, out| {
            let ledger = m.ledger();
            out.with(&[("state", "again")], ledger.tables_again);
            out.with(&[("state", "stopped")], ledger.tables_stopped);
        },
    ),
    gauge("tidegate_table_version", "", "The newest Delta version, by table.", |m, out| {
        each(m, out, |t| t.version as f64);
    }),
    gauge(
        "tidegate_table_applied_position",
        "",
        "What the table shows, as a number of bytes of log.",
        |m, out| {
            let fence = m.ledger().fence.unwrap_or_default();
            for (table, figures) in lock(&m.tables).iter() {
                out.with(&[("table", table)], figures.applied.max(fence).bytes());
            }
        },
    ),
    gauge("tidegate_table_rows", "rows", "Rows of the table.", |m, out| {
        each(m, out, |t| t.rows as f64);
    }),
    gauge("tidegate_table_files", "files", "Its live data files.", |m, out| {
        each(m, out, |t| t.files as f64);
    }),
    gauge("tidegate_table_bytes", "bytes", "Bytes of them.", |m, out| {
        each(m, out, |t| t.bytes as f64);
    }),
    gauge(
        "tidegate_table_masked_ratio",
        "ratio",
        "The share of rows in its files that are superseded or deleted.",
        |m, out| {
            each(m, out, |t| t.masked as f64 / (t.rows + t.masked).max(1) as f64);
        },
    ),
    // The comparison.
    gauge(
        "tidegate_verified_timestamp_seconds",
        "seconds",
        "When `verify` compared the whole pipeline last, since 1970. Absent if it never did.",
        |m, out| out.maybe(lock(&m.verified).map(|v| v.at.timestamp_millis() as f64 / 1e3)),
    ),
    gauge("tidegate_verified_position", "", "The fence at which it did.", |m, out| {
        out.maybe(lock(&m.verified).map(|v| v.lsn.bytes()));
    }),
    gauge(
        "tidegate_verified_equal",
        "",
        "1 if source and lake were equal there, 0 if not.",
        |m, out| {
            out.maybe(lock(&m.verified).map(|v| v.equal));
        },
    ),
];

fn slot(metrics: &Metrics) -> Option<SourceLook> {
    metrics.source().filter(|look| look.slot)
}

/// Rows and bytes of the run that are copied.
fn copied(metrics: &Metrics) -> Option<(u64, u64)> {
    let copying = lock(&metrics.copying);
    let copying = copying.as_ref()?;
    let rows = read(&metrics.copied.rows).saturating_sub(copying.rows_then);
    let bytes = read(&metrics.copied.bytes).saturating_sub(copying.bytes_then);
    Some((copying.plan.rows + rows, copying.plan.bytes + bytes))
}

fn each(metrics: &Metrics, out: &mut Samples<'_>, value: fn(&TableFigures) -> f64) {
    for (table, figures) in lock(&metrics.tables).iter() {
        out.with(&[("table", table)], Value(value(figures)));
    }
}

/// Whole numbers are written as such.
struct Value(f64);

impl super::text::Number for Value {
    fn text(&self) -> String {
        if self.0.fract() == 0.0 && self.0 < 9e15 {
            format!("{}", self.0 as u64)
        } else {
            super::text::Number::text(&self.0)
        }
    }
}

/// The reference of `docs/operate.md`.
pub fn reference() -> String {
    let mut out = String::from("| metric | kind | what it says |\n|---|---|---|\n");
    for family in FAMILIES {
        let labels = match family.name {
            "tidegate_stage_seconds" => " by `stage`",
            "tidegate_retries" => " by `kind`",
            "tidegate_unfollowed_tables" => " by `state`",
            name if name.starts_with("tidegate_table_") => " by `table`",
            _ => "",
        };
        let suffix = match family.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            _ => "",
        };
        let (name, kind) = (family.name, family.kind.word());
        out.push_str(&format!("| `{name}{suffix}` | {kind}{labels} | {} |\n", family.help));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_what_the_code_exports() {
        const BEGIN: &str = "<!-- metrics: generated -->\n";
        const END: &str = "<!-- end of metrics -->\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operate.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (found, after) = rest.split_once(END).unwrap();
        if found != reference() && std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", reference())).unwrap();
            return;
        }
        assert!(found == reference(), "run the test with TIDEGATE_WRITE_DOCS=1 to write {path}");
    }
}

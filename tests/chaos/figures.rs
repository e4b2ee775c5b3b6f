//! What a run has shown, for people and for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

/// Counted while the run goes.
#[derive(Default)]
pub struct Figures {
    /// Kills of the program by the phase it was in, and how.
    pub kills: BTreeMap<(String, &'static str), u64>,
    /// Faults of other things: the server, connections, zombies.
    pub faults: BTreeMap<&'static str, u64>,
    /// Processes started.
    pub starts: u64,
    /// Second processes that were refused while the first held the pipeline.
    pub refused: u64,
    /// Pipelines and generations begun.
    pub snapshots: u64,
    pub table_versions: u64,
    pub rows_written: u64,
    pub bytes_copied: u64,
    /// Of those, bytes of chunks that no published version has.
    pub bytes_again: u64,
    pub recoveries: Vec<Duration>,
    /// Comparisons of all tables at one position.
    pub comparisons: u64,
    pub rows_compared: u64,
    /// Runs of `verify` while the writers wrote.
    pub verifications: u64,
    pub differences: u64,
}

impl Figures {
    pub fn killed(&self) -> u64 {
        self.kills.values().sum()
    }

    pub fn kill(&mut self, phase: &str, how: &'static str) {
        *self.kills.entry((phase.to_owned(), how)).or_default() += 1;
    }

    pub fn fault(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    fn by_phase(&self) -> BTreeMap<&str, u64> {
        let mut phases = BTreeMap::new();
        for ((phase, _), count) in &self.kills {
            *phases.entry(phase.as_str()).or_default() += count;
        }
        phases
    }

    fn recovery(&self) -> (f64, f64) {
        let mut all: Vec<f64> = self.recoveries.iter().map(Duration::as_secs_f64).collect();
        all.sort_by(f64::total_cmp);
        let median = all.get(all.len() / 2).copied().unwrap_or(0.0);
        (median, all.last().copied().unwrap_or(0.0))
    }

    /// Everything, as JSON; `more` is what the run knows beside.
    pub fn json(&self, more: Value) -> Value {
        let (median, longest) = self.recovery();
        let kills: BTreeMap<String, u64> =
            self.kills.iter().map(|((phase, how), n)| (format!("{phase}, {how}"), *n)).collect();
        let mut all = json!({
            "kills": self.killed(), "kills_by_phase": self.by_phase(), "kills_by_phase_and_way": kills,
            "other_faults": self.faults, "starts": self.starts, "refused": self.refused,
            "snapshots": self.snapshots, "table_versions": self.table_versions,
            "rows_written": self.rows_written, "bytes_copied": self.bytes_copied,
            "bytes_copied_again": self.bytes_again, "recovery_median_s": median,
            "recovery_longest_s": longest, "comparisons": self.comparisons,
            "rows_compared": self.rows_compared, "verifications": self.verifications, "differences": self.differences,
        });
        if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
            all.extend(more);
        }
        all
    }

    /// The table for people.
    pub fn table(all: &Value) -> String {
        let mut lines = Vec::new();
        for (name, value) in all.as_object().into_iter().flatten() {
            match value {
                Value::Object(inner) => {
                    lines.push(format!("{}:", name.replace('_', " ")));
                    lines.extend(inner.iter().map(|(k, v)| format!("  {k:<42} {v}")));
                }
                Value::Number(n) if n.is_f64() => {
                    let n = n.as_f64().unwrap_or_default();
                    lines.push(format!("{:<44} {n:.2}", name.replace('_', " ")));
                }
                Value::String(text) => lines.push(format!("{:<44} {text}", name.replace('_', " "))),
                other => lines.push(format!("{:<44} {other}", name.replace('_', " "))),
            }
        }
        lines.join("\n")
    }
}

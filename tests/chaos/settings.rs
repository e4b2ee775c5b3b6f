//! What a run is asked to do, and the settings of each pipeline in it, from the seed.

use crate::support::random::Random;
use crate::support::top;

/// A chaos run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// It ends after so many kills of the program,
    pub kills: u64,
    /// or after so many seconds, whichever comes first.
    pub seconds: u64,
    /// `local` or `s3`.
    pub lake: String,
}

impl Plan {
    /// From the environment, as `make chaos` sets it.
    pub fn from_environment(kills: u64, seconds: u64) -> Plan {
        let number = |name: &str, default: u64| {
            let text = std::env::var(name).unwrap_or_default();
            if text.is_empty() {
                default
            } else {
                text.parse().unwrap_or_else(|e| panic!("{name}: {e}"))
            }
        };
        let lake = std::env::var("CHAOS_LAKE").unwrap_or_default();
        Plan {
            seed: number("CHAOS_SEED", 1),
            kills: number("CHAOS_KILLS", kills),
            seconds: match number("CHAOS_MINUTES", 0) {
                0 => seconds,
                minutes => minutes * 60,
            },
            lake: if lake.is_empty() { "local".to_owned() } else { lake },
        }
    }

    /// How to have it again.
    pub fn again(&self) -> String {
        format!("make chaos SEED={} KILLS={} LAKE={}", self.seed, self.kills, self.lake)
    }
}

/// Faults of the store under a pipeline (`src/lake/faults.rs`), or none: now and then an operation
/// fails, fails although it was done, or is slow.
pub fn store_faults(random: &mut Random) -> Option<String> {
    if random.chance(60) {
        return None;
    }
    let seed = random.below(1 << 30);
    Some(format!(
        "any * p0.02@{seed} error; create * p0.05@{} lost; put * p0.03@{} lost; any * p0.02@{} slow:150",
        seed + 1,
        seed + 2,
        seed + 3
    ))
}

/// `tidegate.toml` of a pipeline. Settings that this version does not have yet are left out.
pub fn config(random: &mut Random) -> String {
    let known =
        std::fs::read_to_string(top().join("schemas/config.schema.json")).unwrap_or_default();
    let has = |key: &str| known.contains(&format!("\"{key}\""));
    let mut handoff = vec![
        format!("workers = {}", 1 + random.below(3)),
        format!("chunk_bytes = \"{}MiB\"", 1 + random.below(3)),
        format!("validate_count = {}", random.chance(70)),
    ];
    let (retain, age) = (random.chance(50), random.chance(50));
    if has("retain") && retain {
        handoff.push("retain = \"spool\"\nspool_interval = \"100ms\"".to_owned());
        if random.chance(50) {
            handoff.push("spool_segment_bytes = \"64KiB\"".to_owned());
        }
    }
    if has("max_snapshot_age") && age {
        handoff.push("max_snapshot_age = \"1s\"".to_owned());
    }
    let mut stream = vec![format!("interval = \"{}ms\"", random.pick(&[100, 100, 300, 1000]))];
    if random.chance(40) {
        stream.push(format!("max_batch_rows = {}", random.pick(&[300, 1000, 5000])));
    }
    if random.chance(30) {
        stream.push("max_batch_bytes = \"1MiB\"".to_owned());
    }
    stream.push(format!("format = \"{}\"", random.pick(&["auto", "text"])));
    let memory = random.pick(&["64MiB", "1GiB"]);
    let index = random.pick(&["16MiB", "256MiB"]);
    let mut columns = String::new();
    for (table, column) in [("lines", "line"), ("parted", "region"), ("growing", "part")] {
        if random.chance(40) {
            columns.push_str(&format!(
                "[[columns]]\ntables = \"public.{table}\"\npartition_by = [\"{column}\"]\n"
            ));
        }
    }
    format!(
        "[handoff]\n{}\n[stream]\n{}\n[limits]\nmemory_bytes = \"{memory}\"\nindex_memory_bytes = \"{index}\"\n\
         takeover_after = \"2s\"\n{columns}",
        handoff.join("\n"),
        stream.join("\n")
    )
}

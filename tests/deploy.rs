//! What deploys the program must agree with it: the units with its exit codes, signals and command
//! line, the configurations that are shipped or written by Terraform with what it reads.
//!
//! The rest of what deploys is judged by `scripts/check-deploy` and `tests/deploy/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use tidegate::cli::args::{Cli, Command as Asked, Until};
use tidegate::config::{Config, Flags, Need};
use tidegate::error::Kind;
use tidegate::observe::stop::EXIT_INTERRUPTED;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every kind of error. The match has no wildcard: a new kind does not compile until somebody has
/// thought about restarts.
fn kinds() -> Vec<Kind> {
    use Kind::{Check, Config, Different, Failed, Fenced, HistoryLost, Transient, Unfit};
    let all = vec![Transient, Failed, Unfit, Config, Check, Fenced, HistoryLost, Different];
    for kind in &all {
        match kind {
            Transient | Failed | Unfit | Config | Check | Fenced | HistoryLost | Different => {}
        }
    }
    all
}

/// Whether an end of this kind may pass by itself, so that starting again can help.
fn may_pass(kind: Kind) -> bool {
    match kind {
        Kind::Transient | Kind::Failed | Kind::Unfit => true,
        Kind::Config | Kind::Check | Kind::Fenced | Kind::HistoryLost | Kind::Different => false,
    }
}

/// The settings of a unit, as `Section.Key` and value, in order; an empty value empties the list.
struct Unit(Vec<(String, String)>);

impl Unit {
    fn parse(text: &str) -> Unit {
        let mut section = "";
        let mut settings = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if let Some((key, value)) = line.split_once('=')
                && !line.starts_with('#')
            {
                settings.push((format!("{section}.{key}"), value.to_owned()));
            }
        }
        Unit(settings)
    }

    fn open(name: &str) -> Unit {
        Unit::parse(&read(&format!("ops/{name}")))
    }

    fn get(&self, key: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let last = found.next();
        assert_eq!(found.next(), None, "{key} stands twice");
        last
    }

    fn codes(&self, key: &str) -> BTreeSet<u8> {
        self.get(key).unwrap_or("").split_whitespace().map(|c| c.parse().unwrap()).collect()
    }

    /// What is wrong with how systemd would start the service again.
    fn restart_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.get("Service.Restart") != Some("on-failure") {
            faults.push(format!("Restart={:?}", self.get("Service.Restart")));
        }
        for key in ["Service.RestartForceExitStatus", "Service.SuccessExitStatus"] {
            if let Some(value) = self.get(key) {
                faults.push(format!("{key}={value} stands beside the list"));
            }
        }
        let prevented = self.codes("Service.RestartPreventExitStatus");
        for kind in kinds() {
            if prevented.contains(&kind.exit_code()) == may_pass(kind) {
                faults.push(format!("{kind:?} ({}) is restarted wrongly", kind.exit_code()));
            }
        }
        let known: BTreeSet<u8> = kinds().into_iter().map(Kind::exit_code).collect();
        faults.extend(prevented.difference(&known).map(|c| format!("{c} is no exit code of ours")));
        faults
    }
}

#[test]
fn only_what_may_pass_is_started_again() {
    let text = read("ops/tidegate.service");
    assert_eq!(Unit::parse(&text).restart_faults(), Vec::<String>::new());
    // A second signal ends the program at once: not an end to keep away from.
    let prevented = Unit::parse(&text).codes("Service.RestartPreventExitStatus");
    assert!(!prevented.contains(&u8::try_from(EXIT_INTERRUPTED).unwrap()));
    for (old, new, fault) in [
        ("=2 3 4 5 6", "=2 3 5 6", "Fenced (4) is restarted wrongly"),
        ("=2 3 4 5 6", "=2 3 4 6", "HistoryLost (5) is restarted wrongly"),
        ("=2 3 4 5 6", "=1 2 3 4 5 6", "Failed (1) is restarted wrongly"),
        ("=2 3 4 5 6", "=2 3 4 5 6 7", "7 is no exit code of ours"),
        ("Restart=on-failure", "Restart=always", "Restart=Some(\"always\")"),
        (
            "Restart=on-failure",
            "Restart=on-failure\nRestartForceExitStatus=4",
            "Service.RestartForceExitStatus=4 stands beside the list",
        ),
    ] {
        assert!(text.contains(old));
        let faults = Unit::parse(&text.replace(old, new)).restart_faults();
        assert!(faults.iter().any(|f| f == fault), "{new}: {faults:?}");
    }
}

#[test]
fn a_pipeline_that_is_down_for_long_is_still_started_again() {
    let unit = Unit::open("tidegate.service");
    assert_eq!(unit.get("Unit.StartLimitIntervalSec"), Some("0"));
    assert_eq!(unit.get("Service.RestartSec"), Some("60s"));
    // The timer is what starts the batch again.
    assert_eq!(Unit::open("tidegate-batch.service").get("Service.Restart"), Some("no"));
}

#[test]
fn another_writer_or_lost_history_keeps_every_later_start_away() {
    let hold = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops/hold");
    let ends = kinds().into_iter().map(|k| (k.exit_code().to_string(), Some(k)));
    for (status, kind) in ends.chain(["0", "130", "TERM", "KILL", ""].map(|s| (s.into(), None))) {
        let state = tempfile::tempdir().unwrap();
        let done = Command::new(&hold)
            .env("EXIT_STATUS", &status)
            .env("STATE_DIRECTORY", state.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{status}: {done:?}");
        let held = std::fs::read_to_string(state.path().join("held")).ok();
        let wanted = matches!(kind, Some(Kind::Fenced | Kind::HistoryLost));
        assert_eq!(held.is_some(), wanted, "{status}: {held:?}");
        if let Some(held) = held {
            assert!(held.starts_with(&format!("exit code {status}: ")), "{held}");
            assert!(String::from_utf8_lossy(&done.stderr).contains("until"), "{done:?}");
        }
    }
    for name in ["tidegate.service", "tidegate-batch.service"] {
        let unit = Unit::open(name);
        assert_eq!(unit.get("Unit.AssertPathExists"), Some("!/var/lib/tidegate/held"), "{name}");
        assert_eq!(unit.get("Service.StateDirectory"), Some("tidegate"), "{name}");
        assert_eq!(unit.get("Service.ExecStopPost"), Some("/usr/lib/tidegate/hold"), "{name}");
    }
}

#[test]
fn a_stop_is_asked_for_once_and_waited_for() {
    for name in ["tidegate.service", "tidegate-batch.service"] {
        let unit = Unit::open(name);
        // `StopSignal::install` handles SIGTERM and SIGINT; a second one ends the program at once.
        assert_eq!(unit.get("Service.KillSignal"), Some("SIGTERM"), "{name}");
        assert_eq!(unit.get("Service.KillMode"), Some("mixed"), "{name}");
        assert_eq!(unit.get("Service.TimeoutStopSec"), Some("5min"), "{name}");
        assert_eq!(unit.get("Service.SendSIGKILL"), None, "{name}");
        assert_eq!(unit.get("Service.ExecStop"), None, "{name}");
    }
}

#[test]
fn both_services_are_closed_alike() {
    let closed = |name: &str| {
        let unit = Unit::open(name);
        let kept: BTreeSet<_> = unit
            .0
            .into_iter()
            .filter(|(key, _)| {
                // How they start and end is their own.
                ![
                    "Unit.Description",
                    "Unit.StartLimitIntervalSec",
                    "Service.Type",
                    "Service.ExecStart",
                    "Service.ExecReload",
                    "Service.Restart",
                    "Service.RestartSec",
                    "Service.RestartPreventExitStatus",
                    "Service.TimeoutStartSec",
                    "Install.WantedBy",
                ]
                .contains(&key.as_str())
            })
            .collect();
        kept
    };
    assert_eq!(closed("tidegate.service"), closed("tidegate-batch.service"));
    assert!(closed("tidegate.service").len() > 30);
}

#[test]
fn the_units_call_the_program_as_it_is_called() {
    for (name, until) in
        [("tidegate.service", Until::Stopped), ("tidegate-batch.service", Until::CaughtUp)]
    {
        let unit = Unit::open(name);
        let words: Vec<_> = unit.get("Service.ExecStart").unwrap().split(' ').collect();
        assert_eq!(words[0], "/usr/bin/tidegate");
        match Cli::try_parse_from(&words).unwrap_or_else(|e| panic!("{name}: {e}")).command {
            Asked::Run(run) => {
                assert_eq!(run.until(), until, "{name}");
                assert!(!run.resnapshot, "{name}: a unit may not give history up");
                let config = run.flags().config;
                assert_eq!(config, Some(PathBuf::from("/etc/tidegate/tidegate.toml")));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn configuration(text: &str) -> Config {
    let place = Path::new("/etc/tidegate/tidegate.toml");
    Config::resolve(&Flags::default(), &|_| None, Some((place, text)))
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn the_configuration_of_the_package_is_read_with_and_without_its_examples() {
    let text = read("ops/tidegate.toml");
    assert_eq!(configuration(&text).state_dir, Path::new("/var/lib/tidegate/state"));
    let mut chosen = String::new();
    for line in text.lines() {
        let example = line.strip_prefix("# ").filter(|l| l.contains(" = ") || l.starts_with('['));
        chosen += example.unwrap_or(line);
        chosen.push('\n');
    }
    let config = configuration(&chosen);
    config.require(&[Need::Source, Need::Lake, Need::Tables]).unwrap();
    let source = config.source().unwrap();
    assert_eq!(source.password_file.as_deref(), Some(Path::new("/run/tidegate/password")));
}

#[test]
fn the_configuration_that_terraform_writes_is_read_as_it_was_meant() {
    let mut seen = 0;
    for file in
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/rendered"))
            .unwrap()
    {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let (_, rest) = text.split_once("- path: /etc/tidegate/tidegate.toml\n").unwrap();
        let content = rest.lines().find_map(|l| l.trim().strip_prefix("content: ")).unwrap();
        let toml: String = serde_json::from_str(content).unwrap();
        let config = configuration(&toml);
        config.require(&[Need::Source, Need::Lake, Need::Tables]).unwrap();
        assert_eq!(config.tables().unwrap(), ["public.*", "!public.\"Audit\""]);
        assert_eq!(config.state_dir, Path::new("/var/lib/tidegate/state"));
        let source = config.source().unwrap();
        assert!(source.url.starts_with("postgres://replicator@"), "{toml}");
        assert_eq!(source.password_file.as_deref(), Some(Path::new("/run/tidegate/password")));
        if path.ends_with("gcp-batch.yaml") {
            assert_eq!(config.stream.interval.as_secs(), 30);
            assert_eq!(config.limits.memory_bytes, 2 << 30);
            assert_eq!(config.lake().unwrap(), "gs://example-lake/shop");
        }
        seen += 1;
    }
    assert_eq!(seen, 3);
}

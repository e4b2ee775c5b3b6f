//! The program as a shell sees it: exit codes, and messages that say what to do.

use std::path::Path;
use std::process::{Command, Output};

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the program in `folder` with nothing of the caller's environment that configures it.
fn tidegate_in(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .env_clear()
        .env("HOME", folder)
        .envs(env.iter().copied())
        .current_dir(folder)
        .output()
        .unwrap();
    Ran {
        code: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

fn tidegate(args: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    tidegate_in(folder.path(), args, &[])
}

/// Wrong usage: exit code 2, nothing on standard output, every part in the message.
fn is_refused(ran: &Ran, parts: &[&str]) {
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    for part in parts {
        assert!(ran.stderr.contains(part), "{part:?} is not in:\n{}", ran.stderr);
    }
}

const SOURCE: &str = "postgres://me:hunter2@127.0.0.1:1/none";

#[test]
fn every_command_teaches_itself() {
    let all = tidegate(&["--help"]);
    assert_eq!(all.code, Some(0));
    for command in ["run", "check", "status", "versions", "verify", "views", "teardown", "demo"] {
        assert!(
            all.stdout.contains(&format!("  {command} ")),
            "{command} is not in:\n{}",
            all.stdout
        );
        let help = tidegate(&[command, "--help"]);
        assert_eq!(help.code, Some(0), "{command}: {}", help.stderr);
        assert!(help.stdout.contains("Example"), "{command} has no example:\n{}", help.stdout);
        assert!(help.stdout.contains(&format!("tidegate {command}")), "{command}");
    }
    assert!(!all.stdout.contains("dev-schemas"));
    assert!(all.stdout.contains("Exit codes"));
    assert!(tidegate(&["--version"]).stdout.starts_with("tidegate "));
}

#[test]
fn help_never_shows_a_secret_of_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let help = tidegate_in(folder.path(), &["run", "--help"], &[("TIDEGATE_SOURCE", SOURCE)]);
    assert!(help.stdout.contains("TIDEGATE_SOURCE") && !help.stdout.contains("hunter2"));
}

#[test]
fn wrong_usage_exits_2() {
    is_refused(&tidegate(&["runn"]), &["unrecognized subcommand", "run"]);
    is_refused(
        &tidegate(&["run", "--until-caught-upp"]),
        &["unexpected argument", "--until-caught-up"],
    );
    is_refused(
        &tidegate(&["run", "--until-lsn", "12345"]),
        &["--until-lsn", "two hexadecimal numbers"],
    );
    is_refused(
        &tidegate(&["run", "--until-lsn", "0/1", "--until-caught-up"]),
        &["cannot be used with"],
    );
    is_refused(&tidegate(&["run", "--interval", "5"]), &["--interval", "unit"]);
    is_refused(&tidegate(&["run", "--workers", "many"]), &["--workers"]);
    is_refused(&tidegate(&["versions"]), &["TABLE"]);
    is_refused(&tidegate(&["views", "trino"]), &["duckdb", "spark"]);
    is_refused(&tidegate(&["status", "--log", "tidegate=loud"]), &["log filter"]);
    is_refused(&tidegate(&[]), &["Usage"]);
}

#[test]
fn what_is_missing_is_said_at_once_with_flag_variable_and_key() {
    is_refused(
        &tidegate(&["run"]),
        &[
            "error: not given",
            "--source",
            "TIDEGATE_SOURCE",
            "`url` under [source]",
            "--lake",
            "--tables",
            "next:",
        ],
    );
    let ran = tidegate(&["run", "--lake", "/nowhere", "--tables", "a.*"]);
    is_refused(&ran, &["TIDEGATE_SOURCE"]);
    assert!(!ran.stderr.contains("--lake"), "{}", ran.stderr);
    is_refused(&tidegate(&["versions", "a.b"]), &["--lake"]);
}

#[test]
fn a_name_that_no_slot_can_have_exits_2() {
    let ran = tidegate(&[
        "run", "--source", SOURCE, "--lake", "l", "--tables", "a.*", "--name", "My-Shop",
    ]);
    is_refused(&ran, &["\"My-Shop\"", "a-z, 0-9 and _"]);
}

#[test]
fn the_environment_stands_in_for_flags() {
    let folder = tempfile::tempdir().unwrap();
    let env = [
        ("TIDEGATE_SOURCE", SOURCE),
        ("TIDEGATE_LAKE", "l"),
        ("TIDEGATE_TABLES", "a.*"),
        ("TIDEGATE_NAME", "No!"),
    ];
    is_refused(&tidegate_in(folder.path(), &["run"], &env), &["\"No!\""]);
    let env = [("TIDEGATE_CONFIG", "elsewhere.toml")];
    is_refused(&tidegate_in(folder.path(), &["run"], &env), &["elsewhere.toml can't be read"]);
}

#[test]
fn an_unknown_key_is_an_error_with_its_line_and_the_nearest_known_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("tidegate.toml"),
        "lake = \"l\"\n[stream]\nintervall = \"1s\"\n",
    )
    .unwrap();
    let ran = tidegate_in(folder.path(), &["status"], &[]);
    is_refused(
        &ran,
        &[
            "tidegate.toml line 3: unknown key `intervall` in [stream]; did you mean `interval`?",
            "next:",
        ],
    );
    std::fs::write(folder.path().join("other.toml"), "lake = l\n").unwrap();
    is_refused(
        &tidegate_in(folder.path(), &["status", "--config", "other.toml"], &[]),
        &["other.toml line 1: "],
    );
}

#[test]
fn an_error_in_json_logs_is_one_object_a_line() {
    let ran = tidegate(&["run", "--log-format", "json"]);
    assert_eq!(ran.code, Some(2));
    for line in ran.stderr.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["level"], "ERROR");
        assert_eq!(event["kind"], "Config");
        assert!(event["message"].as_str().unwrap().contains("--source"), "{event}");
        assert!(event["next"].is_string(), "{event}");
    }
}

#[test]
fn schemas_are_written_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let ran = tidegate_in(folder.path(), &["dev-schemas", "out"], &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(folder.path().join("out/config.schema.json").exists());
}

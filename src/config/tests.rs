use std::path::Path;

use super::*;

fn resolve(flags: &Flags, env: &[(&str, &str)], file: &str) -> Result<Config> {
    let lookup =
        |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Config::resolve(flags, &lookup, Some((Path::new("/etc/tg/tidegate.toml"), file)))
}

const FILE: &str = r#"
name = "from_file"
lake = "lake"
tables = ["public.*", '"A,b".c']
[source]
url = "postgres://u:${PW}@file/x"
password_file = "secret"
[stream]
interval = "1s"
"#;

#[test]
fn flags_win_over_environment_over_file() {
    let env =
        [("TIDEGATE_SOURCE", "postgres://env/x"), ("TIDEGATE_LAKE", "s3://env"), ("PW", "p@w")];
    let config = resolve(&Flags::default(), &env[2..], FILE).unwrap();
    assert_eq!(config.source().unwrap().url, "postgres://u:p%40w@file/x");
    assert_eq!(config.name, "from_file");
    assert_eq!(config.stream.interval, Duration::from_secs(1));

    let config = resolve(&Flags::default(), &env, FILE).unwrap();
    assert_eq!(config.source().unwrap().url, "postgres://env/x");
    assert_eq!(config.lake().unwrap(), "s3://env");

    let flags = Flags {
        source: Some("postgres://flag/x".into()),
        lake: Some("gs://flag".into()),
        name: Some("flag".into()),
        tables: Some("a.b, c".into()),
        interval: Some(Duration::from_secs(2)),
        workers: Some(7),
        ..Flags::default()
    };
    let config = resolve(&flags, &env, FILE).unwrap();
    assert_eq!(config.source().unwrap().url, "postgres://flag/x");
    assert_eq!(config.lake().unwrap(), "gs://flag");
    assert_eq!(config.name, "flag");
    assert_eq!(config.tables().unwrap(), ["a.b", "c"]);
    assert_eq!(config.stream.interval, Duration::from_secs(2));
    assert_eq!(config.handoff.worker_count(), 7);
}

#[test]
fn relative_paths_of_the_file_start_at_the_file() {
    let config = resolve(&Flags::default(), &[("PW", "x")], FILE).unwrap();
    assert_eq!(config.lake().unwrap(), "/etc/tg/lake");
    assert_eq!(
        config.source().unwrap().password_file.as_deref(),
        Some(Path::new("/etc/tg/secret"))
    );
    let flags = Flags { lake: Some("lake".into()), ..Flags::default() };
    assert_eq!(resolve(&flags, &[("PW", "x")], FILE).unwrap().lake().unwrap(), "lake");
}

#[test]
fn a_comma_in_a_quoted_name_does_not_split_it() {
    let config = resolve(&Flags::default(), &[("PW", "x")], FILE).unwrap();
    assert_eq!(config.tables().unwrap(), ["public.*", "\"A,b\".c"]);
    assert!(resolve(&Flags { tables: Some("\"a".into()), ..Flags::default() }, &[], "").is_err());
}

#[test]
fn everything_missing_is_said_at_once_with_flag_variable_and_key() {
    let config = resolve(&Flags::default(), &[("TIDEGATE_SOURCE", "")], "").unwrap();
    let error = config.require(&[Need::Source, Need::Lake, Need::Tables]).unwrap_err();
    assert_eq!(error.kind(), crate::error::Kind::Config);
    let text = error.to_string();
    for part in [
        "--source",
        "TIDEGATE_SOURCE",
        "[source]",
        "--lake",
        "TIDEGATE_LAKE",
        "--tables",
        "TIDEGATE_TABLES",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(config.source().unwrap_err().to_string().contains("TIDEGATE_SOURCE"));
    assert!(config.tables().is_err() && config.lake().is_err());
}

#[test]
fn a_name_that_no_slot_can_have_is_refused() {
    for name in ["", "Shop", "my-shop", "shop ", "käse", &"x".repeat(41)] {
        let flags = Flags { name: Some(name.into()), ..Flags::default() };
        let error = resolve(&flags, &[], "").unwrap_err();
        assert!(error.to_string().contains("--name"), "{error}");
    }
    assert!(resolve(&Flags { name: Some("x".repeat(40)), ..Flags::default() }, &[], "").is_ok());
}

#[test]
fn values_out_of_range_are_refused_with_their_range() {
    for (text, part) in [
        ("[stream]\ninterval = \"1ms\"", "100ms to 1h"),
        ("[stream]\nmax_batch_rows = 0", "max_batch_rows"),
        ("[handoff]\nworkers = 0", "1 to 64"),
        ("[handoff]\nchunk_bytes = 7", "at least 1MiB"),
        ("[handoff]\nwal_guard_share = 0.05", "0.1 to 1"),
        ("[handoff]\nwal_guard_share = nan", "0.1 to 1"),
        ("[handoff]\nmax_retained_wal = 7", "at least 1MiB"),
        ("[handoff]\nmax_retained_wal = \"much\"", "is not a size"),
        ("[handoff]\non_wal_limit = \"panic\"", "`warn`, `spool`, `stop`"),
        ("[handoff]\nretain = \"disk\"", "expected `slot` or `spool`"),
        ("[handoff]\nspool_segment_bytes = 1", "at least 64KiB"),
        ("[handoff]\nspool_interval = \"1ms\"", "100ms to 10m"),
        ("[limits]\nspool_bytes = 1", "at least 1MiB"),
        ("[limits]\nmemory_bytes = \"1MB\"", "at least 64MiB"),
        ("[maintenance]\ntarget_file_bytes = 7", "at least 64KiB"),
        ("[maintenance]\nmax_masked_percent = 0", "1 to 90"),
        ("[maintenance]\nclean_every = \"10ms\"", "1s to "),
        ("[maintenance]\nretain_versions_for = \"1m\"", "2m to "),
        ("column_prefix = \"Ä\"", "column_prefix"),
        ("column_prefix = \"\"", "column_prefix"),
        ("lake = \"${NOPE}\"", "`lake`: the environment variable NOPE is not set"),
    ] {
        let error = resolve(&Flags::default(), &[], text).unwrap_err();
        assert_eq!(error.kind(), crate::error::Kind::Config);
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

#[test]
fn no_secret_is_in_the_line_for_logs() {
    let config = resolve(&Flags::default(), &[("PW", "hunter2")], FILE).unwrap();
    for text in
        [config.redacted(), format!("{config:?}"), format!("{:?}", config.source().unwrap())]
    {
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("u:***@file"), "{text}");
    }
}

#[test]
fn the_state_folder_follows_the_environment_and_the_name() {
    let dir = |env: &[(&str, &str)]| {
        resolve(&Flags::default(), env, "name = \"shop\"").unwrap().state_dir
    };
    assert_eq!(dir(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), Path::new("/c/tidegate/shop"));
    assert_eq!(
        dir(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]),
        Path::new("/h/.cache/tidegate/shop")
    );
    assert_eq!(dir(&[("HOME", "/")]), Path::new("/var/cache/tidegate/shop"));
    assert_eq!(dir(&[("TIDEGATE_STATE_DIR", "/s")]), Path::new("/s"));
}

#[test]
fn a_password_file_is_read_to_its_first_line_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pw");
    let source = Source { url: String::new(), password_file: Some(path.clone()) };
    assert!(source.password().unwrap_err().to_string().contains("pw"));
    std::fs::write(&path, "\n").unwrap();
    assert!(source.password().is_err());
    std::fs::write(&path, "se cret \r\nmore").unwrap();
    assert_eq!(source.password().unwrap().as_deref(), Some("se cret "));
}

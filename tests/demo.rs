//! The demo, run as a newcomer runs it: twice in the same folder, and nothing left running.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::program::{Running, Tidegate};
use support::{PATIENCE, folder, wait_for};
use tidegate::demo::server::find_postgres;

/// A debug build on a busy machine; a release build takes well under a minute.
const LIMIT: Duration = Duration::from_secs(300);

fn demo(dir: &Path) -> Tidegate {
    let postgres = find_postgres().unwrap_or_else(|e| panic!("{e}"));
    Tidegate::new(["demo", "--dir"]).arg(dir).env("TIDEGATE_PG_BIN", postgres.path)
}

/// The private server's folder, from the demo's own words.
fn server_folder(stdout: &str) -> Option<PathBuf> {
    let line = stdout.lines().find(|l| l.contains(" on 127.0.0.1:"))?;
    line.split(" in ").last().map(PathBuf::from)
}

/// Nothing of the server is left: neither its folder nor a process that works in it.
fn assert_gone(server: &Path) {
    assert!(!server.exists(), "{} is still there", server.display());
    let place = server.to_string_lossy();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        assert!(!command.contains(&*place), "still running: {command}");
    }
}

fn succeeds(running: Running) -> String {
    let ran = running.finish_within(LIMIT).expect_code(0);
    for part in ["equal at ", "handoff", "VERSION AS OF 0", "delta_scan(", "keys changed"] {
        assert!(ran.stdout.contains(part), "{part:?} is not in:\n{}", ran.stdout);
    }
    assert!(!ran.stdout.contains("NOT EQUAL"), "{}", ran.stdout);
    assert_gone(&server_folder(&ran.stdout).expect("the server's folder"));
    ran.stdout
}

#[test]
fn it_ends_equal_twice_in_one_folder_and_leaves_no_server() {
    let place = folder("demo");
    let dir = place.path().join("demo");
    // Open to the server's user: the server runs inside.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let stdout = succeeds(demo(&dir).start());
    assert!(server_folder(&stdout).unwrap().starts_with(dir.canonicalize().unwrap()), "{stdout}");
    // Closed to it, as root's own folders are: if we are root, the server goes elsewhere.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    succeeds(demo(&dir).start());
}

#[test]
fn a_folder_that_is_not_its_own_is_left_alone() {
    let dir = folder("foreign");
    fs::write(dir.path().join("thesis.txt"), "years").unwrap();
    let ran = demo(dir.path()).finish().expect_code(2);
    assert!(ran.stderr.contains("not empty"), "{}", ran.stderr);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1);
}

#[test]
fn data_that_is_not_there_is_said_and_the_server_goes() {
    let (dir, data) = (folder("demo"), folder("nothing"));
    let ran = demo(dir.path()).arg("--data").arg(data.path()).finish().expect_code(2);
    assert!(ran.stderr.contains("airlines.csv"), "{}", ran.stderr);
    assert_gone(&server_folder(&ran.stdout).expect("the server's folder"));
}

#[test]
fn stopped_halfway_it_takes_its_server_along() {
    let dir = folder("demo");
    let running = demo(dir.path()).start();
    wait_for("the writers", PATIENCE, || running.stdout().contains("2. ").then_some(()));
    running.signal("INT");
    let ran = running.finish().expect_code(1);
    assert!(ran.stderr.contains("stopped before its end"), "{}", ran.stderr);
    assert_gone(&server_folder(&ran.stdout).expect("the server's folder"));
}

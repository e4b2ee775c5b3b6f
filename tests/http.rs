//! A running pipeline asked over HTTP: true figures, health that means something, names of any kind,
//! and clients that must not hurt it. The alert rules and the dashboard name what is really there.

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use support::database::TestDb;
use support::pipeline::Pipeline;
use support::program::Running;
use support::servers::usual;
use support::{PATIENCE, top, wait_for, wait_until};

const ODD: &str = "a\"<script>alert(1)</script>'é";

/// A pipeline that serves on a free port. Two tables, one with an odd name, 1,000 rows each.
fn pipeline(name: &str) -> Pipeline {
    let mut p = Pipeline::new(TestDb::new(usual(), name));
    p.config += "[http]\nlisten = \"127.0.0.1:0\"\n";
    let odd = ODD.replace('"', "\"\"");
    p.sql().run(&format!(
        "CREATE TABLE t(id int PRIMARY KEY, v text);
         INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 1000) i;
         CREATE TABLE \"{odd}\" (LIKE t INCLUDING ALL);
         INSERT INTO \"{odd}\" SELECT * FROM t; ANALYZE"
    ));
    p
}

/// Where the program says that it serves.
fn address(program: &mut Running) -> SocketAddr {
    wait_for("the address", PATIENCE, || {
        assert!(!program.has_ended(), "{}", program.output());
        let text = program.stderr();
        text.split_once("http://").and_then(|(_, rest)| rest.split('/').next()?.parse().ok())
    })
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn ask(at: SocketAddr, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

fn json(at: SocketAddr, path: &str) -> Value {
    serde_json::from_str(&ask(at, path, "").body).unwrap()
}

/// A scrape.
struct Scrape(String);

impl Scrape {
    fn of(at: SocketAddr) -> Scrape {
        let answer = ask(at, "/metrics", "");
        assert_eq!(answer.status, 200);
        assert!(answer.head.contains("application/openmetrics-text; version=1.0.0"));
        let scrape = Scrape(answer.body);
        scrape.assert_well_formed();
        scrape
    }

    /// Each sample stands under its family, with the suffix of the family's type.
    fn assert_well_formed(&self) {
        assert!(self.0.ends_with("# EOF\n"), "{}", self.0);
        let (mut family, mut kind) = ("", "");
        let mut seen = BTreeSet::new();
        for line in self.0.lines().take_while(|line| *line != "# EOF") {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                (family, kind) = declared.split_once(' ').unwrap();
                assert!(seen.insert(family), "{family} stands twice");
            } else if let Some(about) =
                line.strip_prefix("# UNIT ").or(line.strip_prefix("# HELP "))
            {
                assert_eq!(about.split(' ').next(), Some(family));
            } else {
                let name = line.split('{').next().unwrap();
                let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{line}"));
                let fits: &[&str] = match kind {
                    "counter" => &["_total"],
                    "info" => &["_info"],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    _ => &[""],
                };
                assert!(fits.contains(&suffix), "{line} is no {kind}");
                line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
            }
        }
    }

    /// The sample of a name, with a text in its labels.
    fn find(&self, name: &str, label: &str) -> Option<f64> {
        let begins = format!("{name}{{");
        let line = self.0.lines().find(|line| line.starts_with(&begins) && line.contains(label))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    #[track_caller]
    fn value(&self, name: &str) -> f64 {
        self.find(name, "").unwrap_or_else(|| panic!("{name} is not in\n{}", self.0))
    }

    fn names(&self) -> BTreeSet<String> {
        let samples = self.0.lines().filter(|line| !line.starts_with('#'));
        samples.filter_map(|line| Some(line.split_once('{')?.0.to_owned())).collect()
    }
}

/// Every word of an expression that is a metric of ours.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("tidegate_")).map(str::to_owned).collect()
}

/// What the shipped rules and the dashboard ask for.
fn metrics_asked_for() -> BTreeSet<String> {
    let read = |path: &str| std::fs::read_to_string(top().join(path)).unwrap();
    let rules = read("ops/prometheus/tidegate.rules.yaml");
    // Labels and names of rules have other words.
    let mut asked: BTreeSet<String> = BTreeSet::new();
    for line in rules.lines().filter(|line| !line.trim_start().starts_with('#')) {
        asked.extend(metrics_in(line));
    }
    let dashboard: Value = serde_json::from_str(&read("ops/grafana/tidegate.json")).unwrap();
    fn expressions(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, inner) in object {
                    match inner.as_str() {
                        Some(text) if key == "expr" || key == "query" || key == "definition" => {
                            found.push(text.to_owned());
                        }
                        _ => expressions(inner, found),
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|inner| expressions(inner, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    assert!(found.len() >= 15, "the dashboard has {} expressions", found.len());
    asked.extend(found.iter().flat_map(|text| metrics_in(text)));
    asked
}

#[test]
fn figures_are_true_in_a_snapshot_in_the_stream_and_after_verify() {
    let mut p = pipeline("http_figures");
    p.config = p.config.replace("[handoff]\n", "[handoff]\nmax_retained_wal = \"4GiB\"\n");
    let chunk = p.pause("handoff.chunk.recorded").nth(1);
    let mut program = p.command(&["run"]).pause(&chunk).start();
    let at = address(&mut program);
    chunk.reached(&mut program);
    let mut names = BTreeSet::new();

    // In the snapshot, with changes that wait in the source's WAL.
    let mut sql = p.sql();
    let scrape = wait_for("the time to the limit", PATIENCE, || {
        sql.run("INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(2000, 4000) i; DELETE FROM t WHERE id >= 2000");
        let scrape = Scrape::of(at);
        scrape.find("tidegate_wal_time_to_limit_seconds", "").is_some().then_some(scrape)
    });
    assert_eq!(scrape.find("tidegate_phase", "tidegate_phase=\"snapshot\""), Some(1.0));
    assert_eq!(scrape.find("tidegate_phase", "tidegate_phase=\"live\""), Some(0.0));
    for (name, value) in [
        ("tidegate_ready", 0.0),
        ("tidegate_snapshot_expected_rows", 2000.0),
        ("tidegate_snapshot_expected_chunks", 2.0),
        ("tidegate_source_up", 1.0),
        ("tidegate_wal_limit_bytes", (4u64 << 30) as f64),
    ] {
        assert_eq!(scrape.value(name), value, "{name}");
    }
    let chunks = scrape.value("tidegate_snapshot_chunks");
    assert!((1.0..=2.0).contains(&chunks), "{chunks}");
    assert!((1000.0..=2000.0).contains(&scrape.value("tidegate_snapshot_rows")));
    assert!(scrape.value("tidegate_snapshot_bytes") > 0.0);
    assert!(scrape.value("tidegate_snapshot_age_seconds") > 0.0);
    let (kept, left) =
        (scrape.value("tidegate_wal_retained_bytes"), scrape.value("tidegate_wal_margin_bytes"));
    assert!(kept > 1e5 && kept + left == (4u64 << 30) as f64, "{kept} {left}");
    assert!(scrape.find("tidegate_lag_seconds", "").is_none(), "nothing is published");
    wait_until("the status of the snapshot", PATIENCE, || {
        json(at, "/status")["tables"][0]["chunks"] == 1
    });
    assert_eq!(ask(at, "/ready", "").status, 503);
    names.extend(scrape.names());
    chunk.release();

    // In the stream.
    wait_until("the fence", PATIENCE, || ask(at, "/ready", "").status == 200);
    let odd = ODD.replace('"', "\"\"");
    sql.run(&format!(
        "DELETE FROM t WHERE id <= 300; INSERT INTO \"{odd}\" VALUES (5000, 'new'), (5001, 'newer')"
    ));
    let scrape = wait_for("all of it in the tables", PATIENCE, || {
        let scrape = Scrape::of(at);
        let rows = scrape.find("tidegate_table_rows", "table=\"public.t\"");
        let caught_up = scrape.find("tidegate_lag_seconds", "") == Some(0.0)
            && scrape.find("tidegate_lag_bytes", "") == Some(0.0);
        let held = scrape.find("tidegate_slot_active", "") == Some(1.0);
        (rows == Some(700.0) && caught_up && held).then_some(scrape)
    });
    assert_eq!(scrape.find("tidegate_phase", "tidegate_phase=\"live\""), Some(1.0));
    assert_eq!(scrape.value("tidegate_streaming"), 1.0);
    assert_eq!(scrape.value("tidegate_copied_rows_total"), 2000.0);
    let escaped = ODD.replace('"', "\\\"");
    assert_eq!(
        scrape.find("tidegate_table_rows", &format!("table=\"public.{escaped}\"")),
        Some(1002.0)
    );
    // What was inserted and deleted while the snapshot was held came through the stream too.
    assert!(scrape.value("tidegate_changes_total") >= 302.0);
    assert!(scrape.value("tidegate_commits_total") >= 2.0);
    assert!(scrape.value("tidegate_commit_seconds_count") >= 1.0);
    assert!(scrape.value("tidegate_commit_seconds_sum") > 0.0);
    assert!(scrape.value("tidegate_delay_seconds_count") >= 1.0);
    assert!(scrape.value("tidegate_resident_memory_bytes") > 1e6);
    assert!(scrape.value("tidegate_visible_age_seconds") < PATIENCE.as_secs_f64());
    assert!(scrape.value("tidegate_xmin_age_transactions") >= 0.0);
    assert_eq!(scrape.value("tidegate_wal_limit_bytes"), (4u64 << 30) as f64);
    names.extend(scrape.names());

    // The status is what `status --json` says.
    wait_until("storage in the status", PATIENCE, || {
        json(at, "/status")["tables"][0]["storage"]["rows"].is_u64()
    });
    let (served, said) = (json(at, "/status"), p.status());
    assert_eq!(served["pipeline"], said["pipeline"]);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&served), keys(&said));
    for (served, said) in
        served["tables"].as_array().unwrap().iter().zip(said["tables"].as_array().unwrap())
    {
        for key in ["table", "phase", "version", "base", "rows_copied", "chunks_copied"] {
            assert_eq!(served[key], said[key], "{key}");
        }
        for key in ["files", "bytes", "rows", "masked_rows"] {
            assert_eq!(served["storage"][key], said["storage"][key], "{key}");
        }
    }
    let history = wait_for("the handoff versions", PATIENCE, || {
        let history = json(at, "/history");
        (history["handoffs"].as_array()?.len() == 2).then_some(history)
    });
    let name = format!("public.{ODD}");
    let of_odd =
        history["handoffs"].as_array().unwrap().iter().find(|h| h["table"] == name.as_str());
    let query = of_odd.unwrap()["duckdb"].as_str().unwrap();
    let query = query.lines().find(|line| line.starts_with("SELECT")).unwrap();
    let count = query.replace("SELECT *", "SELECT count(*)").trim_end_matches(';').to_owned();
    let found = support::judge::sql(support::judge::Engine::DuckDb, &count);
    assert_eq!(found.rows[0][0].as_deref(), Some("1000"), "{query}");
    program.signal("TERM");
    program.finish().expect_code(0);

    // After a comparison.
    let (code, _) = p.verify();
    assert_eq!(code, 0);
    let mut program = p.follow();
    let at = address(&mut program);
    let scrape = wait_for("the comparison", PATIENCE, || {
        let scrape = Scrape::of(at);
        scrape.find("tidegate_verified_equal", "").is_some().then_some(scrape)
    });
    assert_eq!(scrape.value("tidegate_verified_equal"), 1.0);
    assert!(
        scrape.value("tidegate_verified_timestamp_seconds")
            >= scrape.value("tidegate_start_time_seconds") - 600.0
    );
    names.extend(scrape.names());
    program.signal("TERM");
    program.finish().expect_code(0);

    let asked = metrics_asked_for();
    let missing: Vec<_> = asked.difference(&names).collect();
    assert!(missing.is_empty(), "rules or dashboard ask for what nobody exports: {missing:?}");
    assert!(asked.len() >= 25, "{asked:?}");
}

#[test]
fn it_is_ready_only_once_the_ledger_holds_the_fence() {
    let p = pipeline("http_ready");
    let before = p.pause("handoff.live.before");
    let after = p.pause("handoff.live.after");
    let mut program = p.command(&["run"]).pause(&before).pause(&after).start();
    let at = address(&mut program);
    before.reached(&mut program);
    assert_eq!((ask(at, "/ready", "").status, ask(at, "/live", "").status), (503, 200));
    assert!(p.table("t").join("_delta_log/00000000000000000000.json").exists(), "published");
    before.release();
    after.reached(&mut program);
    assert_eq!(ask(at, "/ready", "").status, 200);
    after.release();
    program.signal("TERM");
    program.finish().expect_code(0);
}

#[test]
fn without_the_token_nothing_is_told_and_it_is_in_no_log() {
    const TOKEN: &str = "tok-0123456789-secret";
    let mut p = pipeline("http_token");
    std::fs::write(p.state.path().join("token"), format!("{TOKEN}\n")).unwrap();
    p.config += "token_file = \"token\"\n";
    let mut program = p.command(&["run", "--log", "debug"]).start();
    let at = address(&mut program);
    wait_until("the fence", PATIENCE, || ask(at, "/ready", "").status == 200);
    for path in ["/metrics", "/status", "/history"] {
        for headers in ["", "Authorization: Bearer wrong-0123456789-secret\r\n"] {
            let refused = ask(at, path, headers);
            assert_eq!(refused.status, 401, "{path}");
            assert!(!refused.body.contains("public"), "{}", refused.body);
        }
        let told = ask(at, path, &format!("Authorization: Bearer {TOKEN}\r\n"));
        assert!(told.status != 401, "{path}");
    }
    let page = ask(at, "/", "");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    program.signal("TERM");
    let ended = program.finish().expect_code(0);
    assert!(!ended.output().contains(TOKEN));

    p.config = p.config.replace("token_file = \"token\"\n", "").replace("127.0.0.1", "0.0.0.0");
    let refused = p.command(&["run"]).finish().expect_code(2);
    for word in ["other machines", "token_file", "allow_without_token"] {
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    }
}

#[test]
fn clients_that_say_nothing_stop_neither_the_stream_nor_the_next_client_for_long() {
    let p = pipeline("http_silent");
    let mut program = p.follow();
    let at = address(&mut program);
    wait_until("the fence", PATIENCE, || ask(at, "/ready", "").status == 200);
    // More than there is room for; some begin a request and stop.
    let silent: Vec<TcpStream> = (0..40)
        .map(|number| {
            let mut stream = TcpStream::connect(at).unwrap();
            if number % 2 == 0 {
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Long: ");
            }
            stream
        })
        .collect();
    p.sql().run("INSERT INTO t SELECT i, 'more' FROM generate_series(1001, 1500) i");
    wait_until("the rows in the lake", PATIENCE, || {
        let versions = p.versions("t");
        versions.iter().map(|v| v["inserted"].as_u64().unwrap_or(0)).sum::<u64>() == 1500
    });
    let scrape = wait_for("room", Duration::from_secs(60), || {
        let mut stream = TcpStream::connect(at).ok()?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {at}\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.starts_with("HTTP/1.1 200").then_some(text)
    });
    assert!(scrape.contains("# EOF"));
    drop(silent);
    program.signal("TERM");
    program.finish().expect_code(0);
}

#[test]
fn a_port_that_is_taken_is_said_before_anything_is_done() {
    let mut p = pipeline("http_taken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    p.config = p.config.replace("127.0.0.1:0", &address);
    let refused = p.command(&["run"]).finish().expect_code(2);
    for word in [address.as_str(), "[http] listen", "next: ", "another port"] {
        assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    assert_eq!(p.sql().one("SELECT count(*) FROM pg_publication"), "0");
    assert!(!p.lake.path().join("_tidegate").exists());
    // Off is the default.
    p.config = p.config.replace(&format!("listen = \"{address}\""), "");
    p.run().succeed();
}

#[test]
fn versions_and_views_name_one_cut_of_all_tables_at_any_time() {
    let p = pipeline("http_cuts");
    p.run().succeed();
    let mut sql = p.sql();
    sql.run("INSERT INTO t VALUES (5000, 'a')");
    p.run_to_now();
    let then = p.versions("t").last().unwrap().clone();
    sql.run("DELETE FROM t; DELETE FROM t WHERE id = 1");
    p.run_to_now();
    let time = then["committed_at"].as_str().unwrap();
    let lsn = then["applied"].as_str().unwrap();
    let cut = |at: &str| p.command(&["versions", "--at", at, "--json"]).succeed().json();
    for at in [time, lsn, "public.t@1"] {
        let cut = cut(at);
        assert_eq!((&cut["lsn"], &cut["tables"]["public.t"]), (&then["applied"], &Value::from(1)));
        assert_eq!(cut["tables"][format!("public.{ODD}")], 0);
        let one = p.command(&["versions", "t", "--at", at, "--json"]).succeed().json();
        assert_eq!((one.as_array().unwrap().len(), &one[0]["version"]), (1, &Value::from(1)));
        let views = p.command(&["views", "duckdb", "--at", at]).succeed().stdout;
        assert!(views.contains("/t', version => 1)") && views.contains(lsn), "{views}");
    }
    let number = |arguments: &[&str]| {
        let all = [&["versions", "public.t", "--json"], arguments].concat();
        p.command(&all).succeed().json().as_array().unwrap().len()
    };
    assert_eq!((number(&[]), number(&["--last", "1"])), (3, 1));
    assert_eq!((number(&["--kind", "handoff"]), number(&["--kind", "handoff,changes"])), (1, 3));
    assert_eq!((number(&["--since", lsn]), number(&["--until", time])), (2, 2));
    p.command(&["versions"]).finish().expect_code(2);
    p.command(&["versions", "t", "--kind", "handof"]).finish().expect_code(2);
    p.command(&["versions", "--at", "2001-01-01T00:00:00Z"]).finish().expect_code(1);

    // The code for Polars runs, and shows the cut.
    let code = p.command(&["views", "polars", "--at", time]).succeed().stdout;
    let name = format!("tables[\"public.{}\"]", ODD.replace('"', "\\\""));
    let script =
        format!("{code}\nprint(tables[\"public.t\"].collect().height, {name}.collect().height)\n");
    let found = support::judge::python(&script);
    assert_eq!(found.trim(), "1001 1000");

    // The page lists the snapshots of both generations, wherever they stand in the log.
    p.command(&["run", "--resnapshot", "--until-caught-up"]).succeed();
    sql.run("INSERT INTO t VALUES (1, 'b')");
    p.run_to_now();
    let listed = p.command(&["versions", "t", "--kind", "handoff", "--json"]).succeed().json();
    let number = |version: &Value| (version["version"].as_u64(), version["generation"].as_u64());
    let listed: Vec<_> = listed.as_array().unwrap().iter().map(number).collect();
    assert_eq!(listed, [(Some(0), Some(1)), (Some(3), Some(2))]);
    let mut program = p.follow();
    let at = address(&mut program);
    let served = wait_for("the handoff versions", PATIENCE, || {
        let history = json(at, "/history");
        let all = history["handoffs"].as_array()?;
        let of_t: Vec<_> = all.iter().filter(|h| h["table"] == "public.t").map(number).collect();
        (!of_t.is_empty()).then_some(of_t)
    });
    assert_eq!(served, listed);
    program.signal("TERM");
    program.finish().expect_code(0);
}

/// A browser, where there is one: none is brought for the tests.
fn browser() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        std::process::Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success())
    })
}

#[test]
fn the_page_shows_names_as_text_in_a_browser_of_any_width() {
    let Some(browser) = browser() else {
        eprintln!("there is no Chromium here: the status page was not opened");
        return;
    };
    let p = pipeline("http_page");
    let mut program = p.follow();
    let at = address(&mut program);
    wait_until("the handoff versions", PATIENCE, || {
        ask(at, "/ready", "").status == 200
            && json(at, "/history")["handoffs"].as_array().is_some_and(|list| list.len() == 2)
            && json(at, "/history")["streaming"] == true
    });
    let open = |arguments: &[&str]| {
        let ran = std::process::Command::new(browser)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=6000"])
            .arg(format!("--user-data-dir={}", p.state.path().join("browser").display()))
            .args(arguments)
            .arg(format!("http://{at}/"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let shown = open(&["--dump-dom"]);
    let name =
        format!("<td class=\"name\">public.{}</td>", ODD.replace('<', "&lt;").replace('>', "&gt;"));
    assert_eq!(shown.matches(&name).count(), 2, "{shown}");
    assert!(!shown.contains("<script>alert"), "{shown}");
    assert!(shown.contains(">ready, streaming<") && shown.contains("<li class=\"now\">live</li>"));
    assert_eq!(
        (shown.matches(">DuckDB</button>").count(), shown.matches(">Spark</button>").count()),
        (2, 2)
    );
    assert!(shown.contains("none since the process began"));
    for width in [390, 1200] {
        let picture = p.state.path().join(format!("{width}.png"));
        open(&[
            &format!("--window-size={width},1400"),
            &format!("--screenshot={}", picture.display()),
        ]);
        let png = std::fs::read(&picture).unwrap();
        let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
        assert_eq!((&png[1..4], side(16)), (b"PNG".as_slice(), width));
        assert!(png.len() > 20_000, "an empty page has {} bytes", png.len());
    }
    program.signal("TERM");
    program.finish().expect_code(0);
}

#[test]
fn tables_that_are_not_followed_are_counted() {
    let mut p = pipeline("http_apart");
    p.config = format!("on_schema_change = \"stop\"\n{}", p.config);
    let mut running = p.follow();
    let at = address(&mut running);
    let count = |state| Scrape::of(at).find("tidegate_unfollowed_tables", state);
    wait_until("the fence", PATIENCE, || ask(at, "/ready", "").status == 200);
    assert_eq!((count("stopped"), count("again")), (Some(0.0), Some(0.0)));
    p.sql().run("ALTER TABLE t ALTER v TYPE int USING id; UPDATE t SET v = 1 WHERE id = 1");
    wait_until("the stopped table to be counted", PATIENCE, || count("stopped") == Some(1.0));
    running.signal("TERM");
    running.finish().expect_code(0);
}

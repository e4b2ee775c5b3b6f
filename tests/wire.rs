//! Logins and transports against a real server: TCP, unix socket and TLS; SCRAM, md5, cleartext and
//! certificates; passwords from wherever libpq takes them; and connections that break in mid-work.
//!
//! The blocking connection of COPY and stream and the asynchronous one of the catalog must agree on
//! every one of them.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use support::PATIENCE;
use support::database::{Sql, TestDb};
use support::pipeline::Pipeline;
use support::servers::{USUAL, own_server};
use tidegate::demo::server::{Options, PrivateServer};
use tidegate::error::{Error, Kind, Result};
use tidegate::position::Lsn;
use tidegate::source::client;
use tidegate::source::options::{ConnectOptions, Host};
use tidegate::source::pgoutput::{Datum, Message, decode};
use tidegate::source::wire::{Frame, LOCK_TIMEOUT, SESSION_SETTINGS, SessionKind, Wire, sqlstate};

/// A password that needs quoting in a URL and, by SASLprep, is not plain ASCII.
const PASSWORD: &str = "pä ss";
const IN_URL: &str = "p%C3%A4%20ss";

/// A server with a certificate for `localhost`, and one role per way to log in.
struct Guarded {
    server: PrivateServer,
}

fn guarded() -> &'static Guarded {
    static SERVER: OnceLock<Guarded> = OnceLock::new();
    SERVER.get_or_init(|| {
        let hba = [
            "local all scram scram-sha-256",
            "host all scram 127.0.0.1/32 scram-sha-256",
            "host all md5er 127.0.0.1/32 md5",
            "host all clear 127.0.0.1/32 password",
            "hostssl all tlsonly 127.0.0.1/32 scram-sha-256",
            "host all tlsonly 127.0.0.1/32 reject",
            "hostnossl all plainonly 127.0.0.1/32 trust",
            "host all plainonly 127.0.0.1/32 reject",
            "hostssl all certified 127.0.0.1/32 cert",
            "host all certified 127.0.0.1/32 reject",
        ];
        let options = Options { hba: hba.map(str::to_owned).into(), ..Options::default() };
        let server = own_server(USUAL, options);
        let folder = server.data();
        make_certificates(&folder);
        let mut sql = Sql::connect(&server.url("postgres"));
        sql.run(&format!(
            "CREATE ROLE scram LOGIN SUPERUSER PASSWORD '{PASSWORD}';
             CREATE ROLE tlsonly LOGIN SUPERUSER PASSWORD '{PASSWORD}';
             CREATE ROLE clear LOGIN SUPERUSER PASSWORD 'c';
             CREATE ROLE plainonly LOGIN SUPERUSER;
             CREATE ROLE certified LOGIN SUPERUSER;
             CREATE ROLE weak LOGIN;
             SET password_encryption = md5;
             CREATE ROLE md5er LOGIN SUPERUSER PASSWORD 'm'"
        ));
        sql.run("ALTER SYSTEM SET ssl_ca_file = 'ca.crt'");
        sql.run("ALTER SYSTEM SET ssl = on");
        sql.run("SELECT pg_reload_conf()");
        let guarded = Guarded { server };
        support::wait_until("the server to speak TLS", PATIENCE, || {
            connect(&guarded.url("tlsonly", "?sslmode=require")).is_ok()
        });
        guarded
    })
}

impl Guarded {
    /// A URL with the role's password in it.
    fn url(&self, role: &str, parameters: &str) -> String {
        let password = match role {
            "md5er" => ":m",
            "clear" => ":c",
            "scram" | "tlsonly" => &format!(":{IN_URL}"),
            _ => "",
        };
        format!(
            "postgresql://{role}{password}@127.0.0.1:{}/postgres{parameters}",
            self.server.port()
        )
    }

    fn socket(&self, parameters: &str) -> String {
        format!("{}{parameters}", self.server.socket_url("postgres"))
    }

    fn file(&self, name: &str) -> String {
        self.server.data().join(name).to_string_lossy().into_owned()
    }
}

/// An authority, a server's certificate for `localhost` alone, a client's, and an authority that
/// signed nothing.
fn make_certificates(folder: &Path) {
    let openssl = |arguments: &[&str]| {
        let done = Command::new("openssl")
            .args(arguments)
            .current_dir(folder)
            .output()
            .unwrap_or_else(|e| panic!("openssl can't be run: {e}"));
        assert!(done.status.success(), "openssl: {}", String::from_utf8_lossy(&done.stderr));
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    for (name, subject) in [("ca", "/CN=authority"), ("other", "/CN=somebody else")] {
        let (key_file, file) = (format!("{name}.key"), format!("{name}.crt"));
        let mut arguments = vec!["req", "-x509", "-days", "2", "-subj", subject];
        arguments.extend(key);
        arguments.extend(["-keyout", &key_file, "-out", &file]);
        openssl(&arguments);
    }
    fs::write(folder.join("server.ext"), "subjectAltName=DNS:localhost\n").unwrap();
    fs::write(folder.join("client.ext"), "extendedKeyUsage=clientAuth\n").unwrap();
    for (name, subject) in [("server", "/CN=localhost"), ("client", "/CN=certified")] {
        let [key_file, request, extension, file] =
            ["key", "csr", "ext", "crt"].map(|ending| format!("{name}.{ending}"));
        let mut arguments = vec!["req", "-subj", subject];
        arguments.extend(key);
        arguments.extend(["-keyout", &key_file, "-out", &request]);
        openssl(&arguments);
        openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            &extension,
            "-out",
            &file,
        ]);
    }
    let owner = fs::metadata(folder).unwrap();
    for name in ["ca.crt", "server.crt", "server.key", "client.key"] {
        let file = folder.join(name);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        if name != "client.key" {
            chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
    }
}

fn options(url: &str) -> ConnectOptions {
    ConnectOptions::from_url(url).unwrap_or_else(|e| panic!("{url}: {e}"))
}

fn connect(url: &str) -> Result<Wire> {
    Wire::connect(&ConnectOptions::from_url(url)?, SessionKind::Query)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Both connections get in, with or without TLS, and with the session settings that values rely on.
#[track_caller]
fn gets_in(url: &str, tls: bool) {
    let asked = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let expected = if tls { "t" } else { "f" };
    let socket = matches!(options(url).host, Host::Unix { .. });
    for kind in [SessionKind::Query, SessionKind::Replication] {
        let mut wire = Wire::connect(&options(url), kind).unwrap_or_else(|e| panic!("{url}: {e}"));
        assert_eq!(wire.simple_query(asked).unwrap()[0][0].as_deref(), Some(expected), "{url}");
        assert_eq!(wire.server_version() / 10000, USUAL);
        for (name, value) in SESSION_SETTINGS {
            // A unix socket has no keepalives, and shows 0.
            let value = match *name {
                name if socket && name.starts_with("tcp_") => "0",
                // A replication session waits for no table's lock.
                name if name == LOCK_TIMEOUT.0 && kind == SessionKind::Query => LOCK_TIMEOUT.1,
                _ => *value,
            };
            let found = wire.simple_query(&format!("SELECT current_setting('{name}')")).unwrap();
            let found = found[0][0].clone().unwrap().replace(", ", ",");
            assert_eq!(found, value, "{name}");
        }
    }
    runtime().block_on(async {
        let client = client::connect(&options(url)).await.unwrap_or_else(|e| panic!("{url}: {e}"));
        let row = client.query_one(asked, &[]).await.unwrap();
        assert_eq!(row.get::<_, bool>(0), tls, "{url}");
        let row = client.query_one("SELECT current_setting('DateStyle')", &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), "ISO, MDY");
    });
}

/// Both connections are refused alike, with a next step and without the password.
#[track_caller]
fn is_refused(url: &str, kind: Kind, words: &[&str]) -> Error {
    let error = connect(url).err().unwrap_or_else(|| panic!("{url} got in"));
    let options = options(url);
    let other = runtime()
        .block_on(client::connect(&options))
        .err()
        .unwrap_or_else(|| panic!("{url} got in"));
    for error in [&error, &other] {
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.next_step().is_some(), "{url}: no next step in {error}");
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{url}: {word:?} is not in: {text}");
        }
        assert!(!text.contains(PASSWORD) && !text.contains("wr0ng"), "{url}: {text}");
    }
    error
}

#[test]
fn a_login_over_tcp_or_socket_works_with_every_kind_of_password() {
    let g = guarded();
    gets_in(&g.socket(""), false);
    gets_in(&g.socket("?sslmode=require"), false);
    let folder = g.server.socket_folder().display();
    let port = g.server.port();
    gets_in(
        &format!("host={folder} port={port} user=scram password='{PASSWORD}' dbname=postgres"),
        false,
    );
    gets_in(&g.url("scram", "?sslmode=disable"), false);
    gets_in(&g.url("md5er", "?sslmode=disable"), false);
    gets_in(&g.url("clear", "?sslmode=disable"), false);
    gets_in(&g.url("md5er", ""), true);
    gets_in(&g.url("clear", "?sslmode=require"), true);
    gets_in(
        &format!(
            "postgresql://postgres@/postgres?host=/nonexistent,{folder}&port={port}&target_session_attrs=primary"
        ),
        false,
    );
}

#[test]
fn tls_is_used_and_checked_as_far_as_the_mode_says() {
    let g = guarded();
    let ca = g.file("ca.crt");
    gets_in(&g.url("scram", ""), true);
    gets_in(&g.url("tlsonly", ""), true);
    gets_in(&g.url("plainonly", ""), false);
    gets_in(&g.url("scram", "?sslmode=require"), true);
    // The certificate names localhost, not the address.
    gets_in(&g.url("scram", &format!("?sslmode=verify-ca&sslrootcert={ca}")), true);
    let by_name = |parameters: &str| {
        g.url("scram", &format!("?hostaddr=127.0.0.1&{parameters}"))
            .replace("@127.0.0.1", "@localhost")
    };
    gets_in(&by_name(&format!("sslmode=verify-full&sslrootcert={ca}")), true);
    // A server's own certificate as the root, as people do with self-signed ones.
    gets_in(&by_name(&format!("sslmode=verify-full&sslrootcert={}", g.file("server.crt"))), true);

    let other = g.file("other.crt");
    is_refused(
        &g.url("scram", &format!("?sslmode=verify-full&sslrootcert={ca}")),
        Kind::Check,
        &["127.0.0.1"],
    );
    for mode in ["verify-ca", "verify-full", "require"] {
        is_refused(
            &by_name(&format!("sslmode={mode}&sslrootcert={other}")),
            Kind::Check,
            &["certificate"],
        );
    }
    is_refused(&g.url("tlsonly", "?sslmode=disable"), Kind::Check, &["tlsonly"]);
    is_refused(&g.url("plainonly", "?sslmode=require"), Kind::Check, &["plainonly"]);
}

#[test]
fn a_client_certificate_is_a_login() {
    let g = guarded();
    let (certificate, key) = (g.file("client.crt"), g.file("client.key"));
    gets_in(&g.url("certified", &format!("?sslcert={certificate}&sslkey={key}")), true);
    is_refused(&g.url("certified", ""), Kind::Check, &["certificate"]);
}

#[test]
fn a_login_is_bound_to_the_tls_channel_where_that_is_asked_for() {
    let g = guarded();
    for binding in ["require", "prefer", "disable"] {
        gets_in(&g.url("scram", &format!("?channel_binding={binding}")), true);
    }
    gets_in(&g.url("scram", "?sslmode=disable&channel_binding=prefer"), false);
    for (role, mode) in [("scram", "disable"), ("md5er", "require"), ("clear", "require")] {
        let url = g.url(role, &format!("?sslmode={mode}&channel_binding=require"));
        is_refused(&url, Kind::Check, &["channel"]);
    }
}

#[test]
fn a_refused_login_says_why_and_what_to_do() {
    let g = guarded();
    let port = g.server.port();
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = mute.local_addr().unwrap().port();
    let at =
        |user: &str, port: u16, rest: &str| format!("postgresql://{user}@127.0.0.1:{port}/{rest}");
    for (url, kind, words) in [
        (at("scram:wr0ng", port, "postgres"), Kind::Check, vec!["password", "scram"]),
        (at("md5er:wr0ng", port, "postgres"), Kind::Check, vec!["password", "md5er"]),
        (at("clear:wr0ng", port, "postgres"), Kind::Check, vec!["password", "clear"]),
        (at("scram", port, "postgres?passfile=/nonexistent"), Kind::Check, vec!["password"]),
        (at(&format!("scram:{IN_URL}"), port, "nodb"), Kind::Check, vec!["nodb"]),
        (at("nobodyhere", port, "postgres"), Kind::Check, vec!["nobodyhere"]),
        (at("postgres", port, "postgres?target_session_attrs=standby"), Kind::Transient, vec![]),
        (at("postgres", 1, "postgres"), Kind::Transient, vec!["127.0.0.1:1"]),
        (at("postgres", silent, "postgres?connect_timeout=2"), Kind::Transient, vec![]),
        ("postgresql:///d?host=/nonexistent".to_owned(), Kind::Transient, vec!["/nonexistent"]),
    ] {
        is_refused(&url, kind, &words);
    }
    drop(mute);
    let weak = options(&g.url("weak", ""));
    let error = Wire::connect(&weak, SessionKind::Replication).err().expect("weak got in");
    assert_eq!(error.kind(), Kind::Check, "{error}");
    assert!(error.to_string().contains("REPLICATION"), "{error}");
}

/// One connection per transport.
fn transports() -> Vec<String> {
    let g = guarded();
    vec![g.socket(""), g.url("scram", "?sslmode=disable"), g.url("scram", "?sslmode=require")]
}

#[test]
fn a_value_of_20_mb_comes_whole_by_copy() {
    for url in transports() {
        let mut wire = connect(&url).unwrap();
        let sql = "COPY (SELECT repeat('x', 20000000), 7) TO STDOUT (FORMAT binary)";
        let mut copy = wire.copy_out(sql).unwrap();
        assert!(copy.is_binary());
        let mut bytes = 0;
        while let Some(piece) = copy.next().unwrap() {
            bytes += piece.len();
        }
        // Header 19, count 2, lengths 4 each, int 4, trailer 2.
        assert_eq!(bytes, 20_000_000 + 19 + 2 + 4 + 4 + 4 + 2, "{url}");
        assert_eq!(wire.simple_query("SELECT 3").unwrap()[0][0].as_deref(), Some("3"));
    }
}

#[test]
fn an_error_or_a_cancelled_query_leaves_the_connection_usable() {
    for url in transports() {
        let mut wire = connect(&url).unwrap();
        let failed = wire.simple_query("SELECT 1/0").unwrap_err();
        assert_eq!(sqlstate(&failed), Some("22012"));
        assert_eq!(sqlstate(&wire.copy_out("COPY nope TO STDOUT").err().unwrap()), Some("42P01"));
        assert!(wire.copy_out("SELECT 1").is_err());
        let sql = "COPY (SELECT 1/(10-g) FROM generate_series(1,20) g) TO STDOUT";
        let mut copy = wire.copy_out(sql).unwrap();
        let failed = loop {
            match copy.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the COPY ended without its error"),
                Err(e) => break e,
            }
        };
        assert_eq!(sqlstate(&failed), Some("22012"));
        let handle = wire.cancel_handle();
        let process = handle.process_id().unwrap();
        let canceller = std::thread::spawn(move || {
            let mut sql = Sql::connect(&guarded().server.url("postgres"));
            support::wait_until("the query to run", PATIENCE, || {
                sql.one(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process} AND query ~ 'pg_sleep'")) == "1"
            });
            handle.cancel().unwrap();
        });
        let began = Instant::now();
        let cancelled = wire.simple_query("SELECT pg_sleep(100)").unwrap_err();
        assert_eq!(sqlstate(&cancelled), Some("57014"));
        assert!(began.elapsed() < Duration::from_secs(90));
        canceller.join().unwrap();
        assert_eq!(
            wire.simple_query("SELECT 1; SELECT 2, NULL").unwrap(),
            [[Some("2".to_owned()), None]]
        );
    }
}

#[test]
fn a_dead_or_silent_connection_is_a_transient_error() {
    for url in transports() {
        let mut wire = connect(&url).unwrap();
        let mut killed = connect(&url).unwrap();
        let process = killed.cancel_handle().process_id().unwrap();
        wire.simple_query(&format!("SELECT pg_terminate_backend({process}, 60000)")).unwrap();
        let error = killed.simple_query("SELECT 1").unwrap_err();
        assert!(error.is_transient(), "{error}");
        wire.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let error = wire.simple_query("SELECT pg_sleep(5)").unwrap_err();
        assert!(error.is_transient(), "{error}");
        // An answer may still be on its way: nothing more is asked on this connection.
        assert!(wire.simple_query("SELECT 1").is_err());
    }
}

#[test]
fn the_stream_brings_20_mb_values_and_takes_acknowledgements_on_every_transport() {
    let g = guarded();
    let mut sql = Sql::connect(&g.server.url("postgres"));
    sql.run("CREATE TABLE st(id int PRIMARY KEY, v text); CREATE PUBLICATION st FOR TABLE st");
    for (number, url) in transports().into_iter().enumerate() {
        let slot = format!("wire_{number}");
        let mut wire = Wire::connect(&options(&url), SessionKind::Replication).unwrap();
        assert_eq!(wire.identify_system().unwrap().timeline, 1);
        let made = wire
            .simple_query(&format!(
                "CREATE_REPLICATION_SLOT \"{slot}\" LOGICAL pgoutput (SNAPSHOT 'nothing')"
            ))
            .unwrap();
        let start: Lsn = made[0][1].as_ref().unwrap().parse().unwrap();
        let settings = [("proto_version", "1"), ("publication_names", "st"), ("messages", "on")];
        let settings: Vec<_> =
            settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut stream = wire.start_replication(&slot, start, &settings).unwrap();
        assert!(stream.next(Duration::ZERO).is_ok());
        let busy = Wire::connect(&options(&url), SessionKind::Replication)
            .unwrap()
            .start_replication(&slot, start, &settings)
            .err()
            .expect("two at one slot");
        assert_eq!(sqlstate(&busy), Some("55006"), "{busy}");

        sql.run("TRUNCATE st");
        sql.run("INSERT INTO st SELECT 1, string_agg(md5(g::text), '') FROM generate_series(1, 650000) g");
        sql.run("INSERT INTO st SELECT g, 'v' FROM generate_series(2, 100) g");
        let (mut commits, mut inserts, mut biggest, mut end) = (0, 0, 0, start);
        while commits < 3 {
            let Some(Frame::XLogData { data, .. }) = stream.next(Duration::from_secs(60)).unwrap()
            else {
                continue;
            };
            match decode(data, false).unwrap().1 {
                Message::Commit { end_lsn, .. } => (commits, end) = (commits + 1, end_lsn),
                Message::Insert { new, .. } => {
                    inserts += 1;
                    for datum in new {
                        if let Datum::Text(text) = datum.unwrap() {
                            biggest = biggest.max(text.len());
                        }
                    }
                }
                _ => {}
            }
        }
        assert_eq!((inserts, biggest), (100, 20_800_000), "{url}");
        stream.send_status(end, end, end, true).unwrap();
        let asked = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        support::wait_until("the acknowledgement", PATIENCE, || {
            let _ = stream.next(Duration::from_millis(50)).unwrap();
            sql.one(&asked).parse::<Lsn>().unwrap() >= end
        });
        if number == 0 {
            stream.finish().unwrap();
        } else {
            sql.run(&format!("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"));
            let error = loop {
                if let Err(e) = stream.next(Duration::from_secs(60)) {
                    break e;
                }
            };
            assert!(error.is_transient(), "{error}");
        }
        support::wait_until("the slot to be free", PATIENCE, || {
            sql.attempt(&format!("SELECT pg_drop_replication_slot('{slot}')")).is_ok()
        });
    }
}

/// A pipeline over a database of the guarded server, and the URL of a role for it.
fn guarded_pipeline(name: &str) -> Pipeline {
    Pipeline::new(TestDb::new(&guarded().server, name))
}

#[test]
fn the_main_job_runs_over_tls_with_scram() {
    let g = guarded();
    let p = guarded_pipeline("tls_run");
    p.sql().run(
        "CREATE TABLE t(id int PRIMARY KEY, v text);
         INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 5000) i;
         INSERT INTO t SELECT 0, string_agg(md5(g::text), '') FROM generate_series(1, 650000) g",
    );
    let parameters = format!(
        "?sslmode=verify-full&sslrootcert={}&channel_binding=require&hostaddr=127.0.0.1",
        g.file("ca.crt")
    );
    let url = g
        .url("tlsonly", &parameters)
        .replace("@127.0.0.1", "@localhost")
        .replace("/postgres?", &format!("/{}?", p.db.name()));
    let with = |arguments: &[&str]| p.command(arguments).env("TIDEGATE_SOURCE", &url);
    let report = with(&["check", "--json"]).succeed().json();
    assert_eq!(report["database"], p.db.name());
    assert_eq!(report["tables"], serde_json::json!(["public.t"]));
    let finished = with(&["run", "--until-caught-up"]).succeed();
    assert!(!finished.output().contains(IN_URL) && !finished.output().contains(PASSWORD));
    p.sql().run(
        "INSERT INTO t SELECT -1, string_agg(md5(g::text), '') FROM generate_series(650001, 1300000) g;
         UPDATE t SET v = v || '!' WHERE id > 4000; DELETE FROM t WHERE id = 7",
    );
    with(&["run", "--until-caught-up"]).succeed();
    let found = with(&["verify", "--json"]).succeed().json();
    assert_eq!((&found["equal"], &found["tables"][0]["lake_rows"]), (&true.into(), &5001.into()));
    let status = with(&["status", "--json"]).succeed().json();
    assert_eq!(status["phase"], "live");
    for entry in walk(p.lake.path()) {
        let bytes = fs::read(&entry).unwrap();
        let holds = |word: &str| bytes.windows(word.len()).any(|w| w == word.as_bytes());
        assert!(!holds(IN_URL) && !holds(PASSWORD), "a password stands in {}", entry.display());
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn a_password_is_found_wherever_it_is_kept() {
    let g = guarded();
    let mut p = guarded_pipeline("passwords");
    p.sql().run("CREATE TABLE t(id int PRIMARY KEY); INSERT INTO t VALUES (0)");
    let base = format!("127.0.0.1:{}/{}", g.server.port(), p.db.name());
    let bare = format!("postgresql://scram@{base}");
    let home = support::folder("home");
    let passfile = |path: &Path, mode: u32| {
        let database = p.db.name();
        let text = format!(
            "# ours\n*:1:*:*:wr0ng\n127.0.0.1:{}:{database}:scram:{PASSWORD}\n*:*:*:*:wr0ng\n",
            g.server.port()
        );
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let elsewhere = home.path().join("elsewhere");
    passfile(&elsewhere, 0o600);
    passfile(&home.path().join(".pgpass"), 0o600);
    let empty_home = support::folder("empty-home");
    let secret = home.path().join("secret");
    fs::write(&secret, format!("{PASSWORD}\nnot this line\n")).unwrap();

    let bare_run = |p: &Pipeline, url: &str| {
        p.run().env("TIDEGATE_SOURCE", url).env("HOME", empty_home.path())
    };
    let change = |p: &Pipeline| p.sql().run("INSERT INTO t SELECT max(id) + 1 FROM t");
    // None at all: refused before anything is made.
    let refused = bare_run(&p, &bare).finish().expect_code(3);
    assert!(refused.stderr.contains("password"), "{}", refused.stderr);
    // URL, environment, the file of the environment, of the URL, of the user, of the configuration.
    bare_run(&p, &format!("postgresql://scram:{IN_URL}@{base}")).succeed();
    change(&p);
    bare_run(&p, &bare).env("PGPASSWORD", PASSWORD).succeed();
    change(&p);
    bare_run(&p, &bare).env("PGPASSFILE", &elsewhere).succeed();
    change(&p);
    bare_run(&p, &format!("{bare}?passfile={}", elsewhere.display())).succeed();
    change(&p);
    bare_run(&p, &bare).env("HOME", home.path()).succeed();
    change(&p);
    p.config.push_str(&format!("[source]\npassword_file = \"{}\"\n", secret.display()));
    bare_run(&p, &bare).succeed();
    // The nearer one wins, as for psql; the configuration names the file for this pipeline.
    bare_run(&p, &bare).env("PGPASSWORD", "wr0ng").succeed();
    p.assert_equal();
    // As libpq: a password file that others may read is not used, and it says so.
    passfile(&elsewhere, 0o644);
    p.config = p.config.replace("[source]", "[state]").replace("password_file", "# ");
    let refused = bare_run(&p, &bare).env("PGPASSFILE", &elsewhere).finish().expect_code(3);
    assert!(refused.stderr.contains("elsewhere"), "{}", refused.stderr);
}

#[test]
fn a_connection_cut_in_mid_copy_is_taken_up_again() {
    let mut p = Pipeline::new(TestDb::new(support::servers::usual(), "cut_copy"));
    p.config = "[handoff]\nworkers = 1\n[stream]\ninterval = \"100ms\"\n".to_owned();
    p.sql().run(
        "CREATE TABLE t(id int PRIMARY KEY, n int, pad text);
         INSERT INTO t SELECT i, 0, repeat('x', 1500) FROM generate_series(1, 60000) i;
         CREATE TABLE u(id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 10)",
    );
    let mut running = p.follow();
    let mut sql = p.sql();
    let copying = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                   AND query LIKE 'COPY (SELECT%'";
    // The COPY alone, then the connection that keeps the snapshot while a COPY runs.
    support::wait_until("a COPY to cut", PATIENCE, || {
        sql.one(&format!("SELECT count(pg_terminate_backend(pid)) {copying}")) == "1"
    });
    sql.run("UPDATE t SET n = 1 WHERE id % 100 = 0; DELETE FROM t WHERE id % 1000 = 1");
    let keeper = format!(
        "FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'walsender' \
         AND EXISTS (SELECT {copying})"
    );
    support::wait_until("the snapshot's keeper to cut", PATIENCE, || {
        sql.one(&format!("SELECT count(pg_terminate_backend(pid)) {keeper}")) != "0"
    });
    sql.run("UPDATE t SET n = 2 WHERE id % 100 = 0; INSERT INTO u VALUES (11)");
    support::wait_until("the handoff", PATIENCE, || {
        assert!(!running.has_ended(), "it gave up:\n{}", running.output());
        p.table("t").join("_delta_log").exists() && p.table("u").join("_delta_log").exists()
    });
    sql.run("UPDATE u SET id = -id");
    running.signal("TERM");
    let finished = running.finish().expect_code(0);
    assert!(finished.stderr.contains("again"), "{}", finished.stderr);
    p.run_to_now();
    p.assert_equal();
    p.assert_positions_never_fall("u", "id");
}

#[test]
fn a_connection_cut_in_mid_stream_is_taken_up_again() {
    let p = Pipeline::new(TestDb::new(support::servers::usual(), "cut_stream"));
    let mut sql = p.sql();
    sql.run("CREATE TABLE t(id int PRIMARY KEY, n int, pad text)");
    sql.run("INSERT INTO t SELECT i, 0, repeat('x', 100) FROM generate_series(1, 20000) i");
    p.run().succeed();
    let mut running = p.follow();
    let name = p.db.name();
    for round in 1..=4 {
        // One large transaction and several small ones, cut anywhere in between.
        sql.run(&format!("UPDATE t SET n = {round} WHERE id <= 20000"));
        for i in 0..20 {
            sql.run(&format!(
                "UPDATE t SET n = n + 1 WHERE id = {i}; INSERT INTO t VALUES ({}, 0, NULL)",
                100_000 * round + i
            ));
        }
        support::wait_until("a stream to cut", PATIENCE, || {
            assert!(!running.has_ended(), "it gave up:\n{}", running.output());
            let cut = format!(
                "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
            );
            sql.one(&cut) == "1"
        });
        sql.run(&format!("DELETE FROM t WHERE id % 5000 = {round}"));
        // The catalog's connection too, whichever it is just then.
        sql.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'");
    }
    let end: Lsn = p.db.wal_position().parse().unwrap();
    support::wait_until("the stream to catch up", PATIENCE, || {
        assert!(!running.has_ended(), "it gave up:\n{}", running.output());
        sql.run("SELECT pg_logical_emit_message(true, 'test', '')");
        let fence = p.status()["fence"].as_str().and_then(|text| text.parse::<Lsn>().ok());
        fence.is_some_and(|fence| fence >= end)
    });
    running.signal("TERM");
    let finished = running.finish().expect_code(0);
    assert!(finished.stderr.contains("again"), "{}", finished.stderr);
    p.run_to_now();
    p.assert_equal();
    p.assert_positions_never_fall("t", "id");
}

use super::super::parse::parse;
use super::*;
use crate::error::Kind;
use proptest::prelude::*;

fn around(env: &'static [(&'static str, &'static str)]) -> Surroundings {
    Surroundings {
        env: Box::new(move |name| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        }),
        os_user: Some("login".into()),
        home: None,
    }
}

fn read_with(text: &str, env: &'static [(&'static str, &'static str)]) -> Result<ConnectOptions> {
    build(parse(text)?, &around(env))
}

fn read(text: &str) -> ConnectOptions {
    read_with(text, &[]).unwrap()
}

fn tcp(host: &str, port: u16) -> Host {
    Host::Tcp { host: host.into(), port }
}

#[test]
fn a_url_is_read_as_libpq_reads_it() {
    let o = read(
        "postgresql://me%40x:p%40ss%3A%2F@db.example:6432/shop%20two?sslmode=require&connect_timeout=1",
    );
    assert_eq!(o.user, "me@x");
    assert_eq!(o.password.as_ref().unwrap().reveal(), "p@ss:/");
    assert_eq!(o.host, tcp("db.example", 6432));
    assert_eq!(o.database, "shop two");
    assert_eq!(o.tls, TlsMode::Require);
    assert_eq!(o.connect_timeout, Duration::from_secs(2));
    assert_eq!(read("postgres://u@[::1]:1/d").host, tcp("::1", 1));
    assert_eq!(read("postgres://u@[fe80::1]/d").host, tcp("fe80::1", 5432));
    assert_eq!(read("postgres://h/d?user=q").user, "q");
    assert_eq!(read("postgres://h?dbname=x&host=other").host, tcp("other", 5432));
}

#[test]
fn a_socket_folder_may_stand_in_the_query_or_be_percent_encoded() {
    let unix = |port| Host::Unix { dir: "/var/run/pg".into(), port };
    assert_eq!(read("postgresql:///d?host=/var/run/pg&port=7").host, unix(7));
    assert_eq!(read("postgresql://%2Fvar%2Frun%2Fpg:8/d").host, unix(8));
    assert_eq!(read("host=/var/run/pg").host, unix(5432));
}

#[test]
fn several_hosts_keep_their_order_and_ports() {
    let o = read("postgresql://a:1,b,[::2]:3/d?target_session_attrs=read-write");
    assert_eq!(o.host, tcp("a", 1));
    assert_eq!(o.hosts_more, [tcp("b", 5432), tcp("::2", 3)]);
    assert_eq!(o.target, SessionTarget::ReadWrite);
    assert_eq!(read("host=a,b port=9").hosts_more, [tcp("b", 9)]);
    let o = read("host=name hostaddr=10.0.0.1");
    assert_eq!(o.targets().next().unwrap().address, Some("10.0.0.1".parse().unwrap()));
    assert!(read_with("host=a,b port=1,2,3", &[]).is_err());
}

#[test]
fn quoted_values_keep_blanks_and_escapes() {
    let o = read(r"host = h  password='it\'s a \\ word' dbname= d\ b user=''");
    assert_eq!(o.password.as_ref().unwrap().reveal(), r"it's a \ word");
    assert_eq!(o.database, "d b");
    assert_eq!(o.user, "login");
    assert!(read_with("host='h", &[]).is_err());
    assert!(read_with("host", &[]).is_err());
}

#[test]
fn the_environment_fills_only_gaps() {
    let env = &[
        ("PGHOST", "envhost"),
        ("PGPORT", "99"),
        ("PGUSER", "envuser"),
        ("PGDATABASE", "envdb"),
        ("PGPASSWORD", "envword"),
        ("PGSSLMODE", "disable"),
    ];
    let o = read_with("postgresql://me@/d", env).unwrap();
    assert_eq!((o.host, o.user.as_str(), o.database.as_str()), (tcp("envhost", 99), "me", "d"));
    assert_eq!(o.password.unwrap().reveal(), "envword");
    assert_eq!(o.tls, TlsMode::Disable);
    let o = read_with("", env).unwrap();
    assert_eq!((o.user.as_str(), o.database.as_str()), ("envuser", "envdb"));
    assert_eq!(read("host=h").database, "login");
}

#[test]
fn the_password_file_is_asked_per_host() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a:5432:d:u:one\nb:*:*:*:two\nlocalhost:*:*:*:sock\n").unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!("host=a,b,c,/tmp user=u dbname=d passfile={}", file.path().display());
    let o = read(&text);
    let found: Vec<_> = o.targets().map(|t| t.password.map(|p| p.reveal().to_owned())).collect();
    assert_eq!(found, [Some("one".into()), Some("two".into()), None, Some("sock".into())]);
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let o = read(&text);
    assert!(o.targets().all(|t| t.password.is_none()));
    assert!(o.password_missing().to_string().contains("chmod 0600"));
}

#[test]
fn a_root_raises_require_to_verify_ca() {
    assert_eq!(read("sslmode=require sslrootcert=/r.crt").tls, TlsMode::VerifyCa);
    assert_eq!(read("sslmode=prefer sslrootcert=/r.crt").tls, TlsMode::Prefer);
    assert_eq!(read("sslrootcert=system").tls, TlsMode::VerifyFull);
    assert_eq!(read("sslmode=allow").tls, TlsMode::Prefer);
    for wrong in [
        "sslmode=require sslrootcert=system",
        "sslmode=verify-full",
        "sslmode=on",
        "sslcert=/c",
        "sslnegotiation=direct",
    ] {
        assert_eq!(read_with(wrong, &[]).unwrap_err().kind(), Kind::Config, "{wrong}");
    }
}

#[test]
fn an_unknown_parameter_names_the_nearest_known_one() {
    let error = read_with("postgresql://h/d?sslmod=require", &[]).unwrap_err();
    assert_eq!(error.next_step(), Some("did you mean \"sslmode\"?"));
    let error = read_with("postgresql://h/d?service=x", &[]).unwrap_err();
    assert!(error.to_string().contains("not supported"), "{error}");
    assert!(read_with("mysql://h/d", &[]).is_err());
}

#[test]
fn a_password_is_never_printed() {
    let o = read("postgresql://me:hunter2@h/d");
    let all = format!("{o:?} {} {:?} {}", o.redacted(), o.password, o.password.as_ref().unwrap());
    assert!(!all.contains("hunter2"), "{all}");
    assert_eq!(o.redacted(), "postgresql://me@h:5432/d?sslmode=prefer");
    // A password with unencoded special characters must not come back in the message.
    for url in [
        "postgresql://me:hun@ter2@h/d",
        "postgresql://me:hunter2%@h/d",
        "postgresql://me:hun:ter2@h:x:y/d",
        "postgresql://me:hun/ter2@h/d",
        "postgresql://me:h?hunter2@h/d",
    ] {
        let error = read_with(url, &[]).unwrap_err().to_string();
        assert!(!error.contains("ter2"), "{error}");
    }
}

#[test]
fn blanks_in_settings_are_escaped_and_ours_come_last() {
    let o = read("host=h options='-c a=b'");
    assert_eq!(o.startup_options(&[("x", "1 2"), ("y", "\\")]), "-c a=b -c x=1\\ 2 -c y=\\\\");
}

proptest! {
    #[test]
    fn any_password_survives_percent_encoding(word in "[^\0]{1,20}") {
        let encoded = percent_encoding::utf8_percent_encode(&word, percent_encoding::NON_ALPHANUMERIC);
        let o = read(&format!("postgresql://u:{encoded}@h/d"));
        prop_assert_eq!(o.password.as_ref().unwrap().reveal(), word);
    }

    #[test]
    fn odd_text_never_panics(text in ".{0,60}") {
        let _ = read_with(&text, &[]);
        let _ = read_with(&format!("postgresql://{text}"), &[]);
    }
}

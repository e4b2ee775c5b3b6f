//! Names and values into [`ConnectOptions`]: defaults, environment, password file, and the rules
//! by which libpq reads one parameter in the light of another.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::parse::Given;
use super::{ChannelBinding, ConnectOptions, Host, Secret, SessionTarget, TlsMode};
use super::{passfile, socket_file};
use crate::error::{Error, Result};

/// Where Debian's and the source's own libpq look for sockets.
const SOCKET_DIRS: [&str; 2] = ["/var/run/postgresql", "/tmp"];
const DEFAULT_SILENCE_LIMIT: Duration = Duration::from_secs(60);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The environment variable of each parameter that has one.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("dbname", "PGDATABASE"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("application_name", "PGAPPNAME"),
    ("options", "PGOPTIONS"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
];

/// Looks up a variable of the environment.
type Environment = Box<dyn Fn(&str) -> Option<String>>;

/// What fills the gaps of a connection string.
pub(super) struct Surroundings {
    pub env: Environment,
    pub os_user: Option<String>,
    pub home: Option<PathBuf>,
}

impl Surroundings {
    pub fn of_this_process() -> Self {
        Surroundings {
            env: Box::new(|name| std::env::var(name).ok()),
            os_user: os_user(),
            home: std::env::var_os("HOME").map(PathBuf::from),
        }
    }
}

/// The name of the process's effective user.
fn os_user() -> Option<String> {
    let named = || {
        let uid = std::fs::metadata("/proc/self").ok()?.uid().to_string();
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == uid).then(|| name.to_owned())
        })
    };
    named().or_else(|| std::env::var("USER").ok()).or_else(|| std::env::var("LOGNAME").ok())
}

struct Values<'a> {
    given: &'a Given,
    around: &'a Surroundings,
}

impl Values<'_> {
    /// The last value given, or that of the environment; an empty one is none.
    fn get(&self, name: &str) -> Option<String> {
        let given = self.given.iter().rev().find(|(key, _)| key == name).map(|(_, v)| v.clone());
        let value = given.or_else(|| {
            let (_, variable) = ENVIRONMENT.iter().find(|(key, _)| *key == name)?;
            (self.around.env)(variable)
        });
        value.filter(|value| !value.is_empty())
    }

    fn list(&self, name: &str) -> Vec<String> {
        self.get(name)
            .map(|v| v.split(',').map(|s| s.trim().to_owned()).collect())
            .unwrap_or_default()
    }

    /// One of the words of `choices`, or `default`.
    fn choice<T: Copy>(&self, name: &str, default: T, choices: &[(&str, T)]) -> Result<T> {
        let Some(value) = self.get(name) else { return Ok(default) };
        match choices.iter().find(|(word, _)| *word == value) {
            Some((_, choice)) => Ok(*choice),
            None => {
                let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
                Err(Error::config(format!("{value:?} is no value of {name}"))
                    .next(format!("use one of {}", words.join(", "))))
            }
        }
    }
}

pub(super) fn build(given: Given, around: &Surroundings) -> Result<ConnectOptions> {
    let values = Values { given: &given, around };
    let (mut hosts, addresses) = hosts(&values)?;
    let user = values.get("user").or_else(|| around.os_user.clone()).ok_or_else(|| {
        Error::config("no role to log in as").next("name one in the URL or in PGUSER")
    })?;
    let database = values.get("dbname").unwrap_or_else(|| user.clone());
    let password = values.get("password").map(Secret::new);
    let (mut filed, mut passfile_note) = (Vec::new(), None);
    if password.is_none() {
        let path = values.get("passfile").map(PathBuf::from);
        if let Some(path) = path.or_else(|| around.home.as_ref().map(|home| home.join(".pgpass"))) {
            match passfile::read(&path) {
                Ok(lines) => {
                    filed = hosts.iter().map(|h| filed_for(&lines, h, &database, &user)).collect()
                }
                Err(note) => passfile_note = note,
            }
        }
        if let Some(note) = &passfile_note {
            tracing::warn!("{note}");
        }
    }
    let tls = tls(&values)?;
    if let Some(encoding) = values.get("client_encoding")
        && !["utf8", "utf-8", "unicode", "auto"].contains(&encoding.to_lowercase().as_str())
    {
        return Err(Error::config(format!("client_encoding {encoding:?} is not possible"))
            .next("remove it: text is always exchanged as UTF8"));
    }
    values.choice("gssencmode", (), &[("disable", ()), ("prefer", ())])?;
    values.choice("load_balance_hosts", (), &[("disable", ())])?;
    let first = if hosts.is_empty() { default_host(5432) } else { hosts.remove(0) };
    Ok(ConnectOptions {
        host: first,
        hosts_more: hosts,
        user,
        password,
        database,
        tls: tls.mode,
        tls_root: tls.root,
        tls_client: tls.client,
        tls_direct: tls.direct,
        channel_binding: values.choice(
            "channel_binding",
            ChannelBinding::Prefer,
            &[
                ("disable", ChannelBinding::Disable),
                ("prefer", ChannelBinding::Prefer),
                ("require", ChannelBinding::Require),
            ],
        )?,
        connect_timeout: connect_timeout(&values)?,
        keepalives: values.choice("keepalives", true, &[("1", true), ("0", false)])?,
        silence_limit: DEFAULT_SILENCE_LIMIT,
        application_name: values
            .get("application_name")
            .or_else(|| values.get("fallback_application_name"))
            .unwrap_or_else(|| "tidegate".to_owned()),
        extra_options: values.get("options"),
        target: values.choice(
            "target_session_attrs",
            SessionTarget::Any,
            &[
                ("any", SessionTarget::Any),
                ("read-write", SessionTarget::ReadWrite),
                ("read-only", SessionTarget::ReadOnly),
                ("primary", SessionTarget::Primary),
                ("standby", SessionTarget::Standby),
            ],
        )?,
        history: None,
        addresses,
        filed,
        passfile_note,
    })
}

/// libpq looks a socket in the default folder up as `localhost`.
fn filed_for(lines: &str, host: &Host, database: &str, user: &str) -> Option<Secret> {
    match host {
        Host::Tcp { host, port } => passfile::find(lines, host, *port, database, user),
        Host::Unix { dir, port } => {
            let default = SOCKET_DIRS.iter().any(|known| Path::new(known) == dir.as_path());
            let name = if default { "localhost".to_owned() } else { dir.display().to_string() };
            passfile::find(lines, &name, *port, database, user)
        }
    }
}

fn connect_timeout(values: &Values<'_>) -> Result<Duration> {
    let Some(text) = values.get("connect_timeout") else { return Ok(DEFAULT_CONNECT_TIMEOUT) };
    let seconds: i64 = text.trim().parse().map_err(|_| {
        Error::config(format!("connect_timeout {text:?} is no number"))
            .next("give whole seconds; 0 waits for ever")
    })?;
    Ok(match seconds {
        ..=0 => Duration::ZERO,
        // As libpq, whose clock counts whole seconds.
        1 => Duration::from_secs(2),
        n => Duration::from_secs(n.unsigned_abs()),
    })
}

fn default_host(port: u16) -> Host {
    for dir in SOCKET_DIRS {
        if socket_file(Path::new(dir), port).exists() {
            return Host::Unix { dir: dir.into(), port };
        }
    }
    Host::Tcp { host: "localhost".into(), port }
}

fn hosts(values: &Values<'_>) -> Result<(Vec<Host>, Vec<Option<IpAddr>>)> {
    let names = values.list("host");
    let addresses = values.list("hostaddr");
    let ports = values.list("port");
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        return Err(Error::config(format!(
            "{} hosts and {} addresses (hostaddr) are given",
            names.len(),
            addresses.len()
        ))
        .next("give one address for each host"));
    }
    let count = names.len().max(addresses.len()).max(1);
    if ports.len() > 1 && ports.len() != count {
        return Err(Error::config(format!("{count} hosts and {} ports are given", ports.len()))
            .next("give one port for all hosts, or one for each"));
    }
    let (mut hosts, mut fixed) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for i in 0..count {
        let port = match ports.get(i).or(ports.first()).map(String::as_str) {
            None | Some("") => 5432,
            Some(text) => text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                Error::config(format!("{text:?} is no port")).next("give a number from 1 to 65535")
            })?,
        };
        let address = match addresses.get(i).map(String::as_str) {
            None | Some("") => None,
            Some(text) => Some(text.parse::<IpAddr>().map_err(|_| {
                Error::config(format!("hostaddr {text:?} is no IP address"))
                    .next("put a name into host instead")
            })?),
        };
        hosts.push(match names.get(i).map(String::as_str) {
            None | Some("") => match address {
                Some(address) => Host::Tcp { host: address.to_string(), port },
                None => default_host(port),
            },
            Some(dir) if dir.starts_with('/') => Host::Unix { dir: dir.into(), port },
            Some(name) if name.starts_with('@') => {
                return Err(Error::config(format!("{name:?} names an abstract unix socket"))
                    .next("name the folder of a socket, or a host"));
            }
            Some(name) => Host::Tcp { host: name.to_owned(), port },
        });
        fixed.push(address);
    }
    Ok((hosts, fixed))
}

struct Tls {
    mode: TlsMode,
    root: Option<PathBuf>,
    client: Option<(PathBuf, PathBuf)>,
    direct: bool,
}

fn tls(values: &Values<'_>) -> Result<Tls> {
    let home = values.around.home.as_ref().map(|home| home.join(".postgresql"));
    let in_home = |name: &str| home.as_ref().map(|dir| dir.join(name)).filter(|path| path.exists());
    let root = values.get("sslrootcert").map(PathBuf::from).or_else(|| in_home("root.crt"));
    let system = root.as_deref() == Some(Path::new("system"));
    let default = if system { TlsMode::VerifyFull } else { TlsMode::Prefer };
    let mut mode = values.choice(
        "sslmode",
        default,
        &[
            ("disable", TlsMode::Disable),
            ("allow", TlsMode::Prefer),
            ("prefer", TlsMode::Prefer),
            ("require", TlsMode::Require),
            ("verify-ca", TlsMode::VerifyCa),
            ("verify-full", TlsMode::VerifyFull),
        ],
    )?;
    if system && mode != TlsMode::VerifyFull {
        return Err(Error::config(
            "sslrootcert=system with a weaker mode than sslmode=verify-full",
        )
        .next("set sslmode=verify-full: anybody can have a certificate of a public root"));
    }
    if mode == TlsMode::Require && root.is_some() {
        mode = TlsMode::VerifyCa;
    }
    if mode >= TlsMode::VerifyCa && root.is_none() {
        return Err(Error::config("sslmode verify-ca or verify-full without a root certificate")
            .next(
                "name the root's file in sslrootcert (PGSSLROOTCERT), put it at \
             ~/.postgresql/root.crt, or set sslrootcert=system",
            ));
    }
    let cert = values.get("sslcert").map(PathBuf::from).or_else(|| in_home("postgresql.crt"));
    let key = values.get("sslkey").map(PathBuf::from).or_else(|| in_home("postgresql.key"));
    let client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (Some(_), None) => {
            return Err(Error::config("a client certificate (sslcert) without its key")
                .next("name the key's file in sslkey"));
        }
        (None, _) => None,
    };
    let direct =
        values.choice("sslnegotiation", false, &[("postgres", false), ("direct", true)])?;
    if direct && mode < TlsMode::Require {
        return Err(
            Error::config("sslnegotiation=direct needs TLS").next("set sslmode=require or more")
        );
    }
    Ok(Tls { mode, root, client, direct })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

//! Where the source is and how to log in: what libpq understands, without libpq.
//!
//! A URL or a `key=value` string is the start; the `PG…` environment and the password file fill
//! the gaps, as for psql. What libpq knows and Tidegate does not do is refused by name: a
//! parameter that is silently ignored could weaken TLS or lead to another server.
//!
//! Source of the rules: PostgreSQL manual, "Database Connection Control Functions" and "The
//! Password File".

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

mod build;
mod parse;
mod passfile;

/// A word that must not appear in logs, messages or the lake: it prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` from being printed.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The word itself, for the server alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One place where a server may listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name or address, and a port.
    Tcp {
        /// Host name, IPv4 or IPv6 address (without brackets).
        host: String,
        /// TCP port.
        port: u16,
    },
    /// The folder of a unix socket; the port is part of the socket's name.
    Unix {
        /// The folder that holds `.s.PGSQL.<port>`.
        dir: PathBuf,
        /// Port number in the socket's name.
        port: u16,
    },
}

impl Host {
    /// Host and port as a URL writes them; a socket as the path of its file.
    pub fn label(&self) -> String {
        match self {
            Host::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Host::Tcp { host, port } => format!("{host}:{port}"),
            Host::Unix { dir, port } => socket_file(dir, *port).display().to_string(),
        }
    }
}

/// The file of a unix socket.
pub(crate) fn socket_file(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!(".s.PGSQL.{port}"))
}

/// How much TLS is asked for (`sslmode`). libpq's `allow` is taken as `prefer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS where the server has it; nobody proves who the server is.
    Prefer,
    /// TLS or nothing; nobody proves who the server is.
    Require,
    /// The server's certificate must come from a trusted root.
    VerifyCa,
    /// And it must name the host.
    VerifyFull,
}

/// Whether a SCRAM login must be bound to the TLS channel (`channel_binding`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server offers it.
    Prefer,
    /// Or no login at all.
    Require,
}

/// Which of several hosts will do (`target_session_attrs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionTarget {
    /// The first that answers.
    Any,
    /// One that accepts writes.
    ReadWrite,
    /// One that refuses writes.
    ReadOnly,
    /// One that is not in recovery.
    Primary,
    /// One that is in recovery.
    Standby,
}

impl SessionTarget {
    /// A query whose only value is `t` on a session that will do; `None` where any will.
    pub(crate) fn query(self) -> Option<&'static str> {
        Some(match self {
            SessionTarget::Any => return None,
            SessionTarget::ReadWrite => {
                "SELECT pg_catalog.current_setting('transaction_read_only') = 'off' \
                 AND NOT pg_catalog.pg_is_in_recovery()"
            }
            SessionTarget::ReadOnly => {
                "SELECT pg_catalog.current_setting('transaction_read_only') = 'on' \
                 OR pg_catalog.pg_is_in_recovery()"
            }
            SessionTarget::Primary => "SELECT NOT pg_catalog.pg_is_in_recovery()",
            SessionTarget::Standby => "SELECT pg_catalog.pg_is_in_recovery()",
        })
    }
}

/// One history of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// `system_identifier`: made by initdb, kept by standbys and restored copies.
    pub system_identifier: u64,
    /// Another one after each promotion.
    pub timeline: u32,
}

/// Everything needed to reach one database as one role.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The first server to try.
    pub host: Host,
    /// Others, tried in turn.
    pub hosts_more: Vec<Host>,
    /// Role.
    pub user: String,
    /// Password given in the URL or `PGPASSWORD`; those of the password file are kept per host.
    pub password: Option<Secret>,
    /// Database.
    pub database: String,
    /// TLS wanted. `Require` with a root given is already raised to `VerifyCa`, as libpq does.
    pub tls: TlsMode,
    /// File of trusted roots (PEM), or the word `system` for those of the operating system.
    pub tls_root: Option<PathBuf>,
    /// Certificate and key files of the client.
    pub tls_client: Option<(PathBuf, PathBuf)>,
    /// Start with TLS at once, as PostgreSQL 17 and later accept (`sslnegotiation=direct`).
    pub tls_direct: bool,
    /// Binding of the login to the TLS channel.
    pub channel_binding: ChannelBinding,
    /// For one address, up to the end of the login; zero waits for ever.
    pub connect_timeout: Duration,
    /// TCP keepalives on.
    pub keepalives: bool,
    /// For how long a server that owes an answer may be silent before the connection is given up;
    /// zero for ever.
    pub silence_limit: Duration,
    /// Shown in `pg_stat_activity`.
    pub application_name: String,
    /// The user's own `options`; those of Tidegate come after them and win.
    pub extra_options: Option<String>,
    /// Which of the hosts will do.
    pub target: SessionTarget,
    /// What a replication connection must find, once it is known: where there are several hosts, or
    /// a name that moves, another server may answer at any time.
    pub history: Option<History>,
    /// `hostaddr`, one for each host or none.
    addresses: Vec<Option<IpAddr>>,
    /// Passwords of the password file, one for each host.
    filed: Vec<Option<Secret>>,
    /// What was odd about the password file, for the error that says a password is missing.
    passfile_note: Option<String>,
}

/// One server to try, with what belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct Target<'a> {
    pub host: &'a Host,
    /// Connect here instead of asking the name service.
    pub address: Option<IpAddr>,
    pub password: Option<&'a Secret>,
}

impl ConnectOptions {
    /// Reads a `postgres://` or `postgresql://` URL or a `key=value` string; the environment
    /// (`PGHOST`, `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE`, …) and the password
    /// file fill the gaps.
    ///
    /// # Errors
    /// [`Kind::Config`](crate::error::Kind::Config): the text is malformed, a parameter is unknown
    /// (the message names the nearest known one) or asks for what Tidegate does not do.
    pub fn from_url(url: &str) -> Result<Self> {
        let given = parse::parse(url)?;
        build::build(given, &build::Surroundings::of_this_process())
    }

    /// Role, hosts, database and TLS mode for messages; never the password.
    pub fn redacted(&self) -> String {
        let hosts: Vec<_> = self.targets().map(|t| t.host.label()).collect();
        let mode = match self.tls {
            TlsMode::Disable => "disable",
            TlsMode::Prefer => "prefer",
            TlsMode::Require => "require",
            TlsMode::VerifyCa => "verify-ca",
            TlsMode::VerifyFull => "verify-full",
        };
        format!("postgresql://{}@{}/{}?sslmode={mode}", self.user, hosts.join(","), self.database)
    }

    /// The servers to try, in order.
    pub(crate) fn targets(&self) -> impl Iterator<Item = Target<'_>> {
        std::iter::once(&self.host).chain(&self.hosts_more).enumerate().map(|(i, host)| Target {
            host,
            address: self.addresses.get(i).copied().flatten(),
            password: self
                .password
                .as_ref()
                .or_else(|| self.filed.get(i).and_then(|secret| secret.as_ref())),
        })
    }

    /// The startup packet's `options`: the user's own, then `settings`, which win.
    pub(crate) fn startup_options(&self, settings: &[(&str, &str)]) -> String {
        let mut text = self.extra_options.clone().unwrap_or_default();
        for (name, value) in settings {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str("-c ");
            text.push_str(name);
            text.push('=');
            for c in value.chars() {
                if c.is_whitespace() || c == '\\' {
                    text.push('\\');
                }
                text.push(c);
            }
        }
        text
    }

    /// The error for a server that asks for a password nobody gave.
    pub(crate) fn password_missing(&self) -> Error {
        let mut next = format!(
            "set PGPASSWORD, or add the line HOST:PORT:{}:{}:PASSWORD to the password file \
             (~/.pgpass, mode 0600)",
            self.database, self.user
        );
        if let Some(note) = &self.passfile_note {
            next = format!("{note}; {next}");
        }
        Error::new(
            crate::error::Kind::Check,
            format!("the server asks for the password of role {:?} and none is given", self.user),
        )
        .next(next)
    }
}

//! tokio-postgres over the same options as the blocking connection: the same hosts in turn, the
//! same TLS, login and session settings. For the catalog and for whatever else asks with
//! parameters.

use std::io;
use std::time::Duration;

use tokio_postgres::config::{ChannelBinding as PgBinding, SslMode, SslNegotiation};
use tokio_postgres::{Config, SimpleQueryMessage};

use super::options::{ChannelBinding, ConnectOptions, Host, Target, TlsMode};
use super::wire::error::{Login, broken};
use super::wire::{
    DbError, SESSION_SETTINGS, all_failed, keepalive_times, later_settings, no_tls, sqlstate,
    unreachable, version_number, wrong_target,
};
use crate::error::{Error, Kind, Result};

mod bounded;
mod tls;

pub use bounded::Client;

/// Connects and logs in; the connection's task is spawned on the current runtime and ends with
/// the client.
///
/// # Errors
/// As [`Wire::connect`](super::wire::Wire::connect).
pub async fn connect(o: &ConnectOptions) -> Result<Client> {
    let mut failures = Vec::new();
    for target in o.targets() {
        match one_host(o, &target).await {
            Ok(Some(client)) => return Ok(client),
            Ok(None) => failures.push(wrong_target().at(target.host.label())),
            Err(e) if e.is_transient() => failures.push(e.at(target.host.label())),
            Err(e) => return Err(e.at(target.host.label())),
        }
    }
    Err(all_failed(failures))
}

/// The error of a query: the server's with its SQLSTATE and kind, or a broken connection, which
/// is transient. `doing` says what was asked.
pub fn query_error(doing: impl std::fmt::Display, error: tokio_postgres::Error) -> Error {
    let e = match error.as_db_error() {
        Some(db) => ours(db).into_error(),
        None if error.is_closed() || find::<io::Error>(&error).is_some() => {
            Error::transient("the connection to the server broke").because(error)
        }
        None => Error::failed("the query can't be run or its answer not be read").because(error),
    };
    e.at(doing)
}

fn ours(db: &tokio_postgres::error::DbError) -> DbError {
    DbError {
        code: db.code().code().to_owned(),
        severity: db.severity().to_owned(),
        message: db.message().to_owned(),
        detail: db.detail().map(str::to_owned),
        hint: db.hint().map(str::to_owned),
    }
}

/// The first cause of type `T`.
fn find<T: std::error::Error + 'static>(error: &tokio_postgres::Error) -> Option<&T> {
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        if let Some(found) = e.downcast_ref::<T>() {
            return Some(found);
        }
        cause = e.source();
    }
    None
}

async fn one_host(o: &ConnectOptions, target: &Target<'_>) -> Result<Option<Client>> {
    let mode = match (o.tls, target.host) {
        // As libpq: a socket is not encrypted, whatever the mode.
        (TlsMode::Disable, _) | (_, Host::Unix { .. }) => SslMode::Disable,
        (TlsMode::Prefer, _) => SslMode::Prefer,
        _ => SslMode::Require,
    };
    let client = match attempt(o, target, mode).await {
        Err(e) if mode == SslMode::Prefer && plain_may_work(&e) => {
            match attempt(o, target, SslMode::Disable).await {
                Err(plain) if plain_may_work(&plain) => return Err(e),
                result => result?,
            }
        }
        result => result?,
    };
    let later = simple(&client, "SHOW server_version").await?;
    let later = later_settings(later.map_or(0, |text| version_number(&text)));
    if !later.is_empty() {
        simple(&client, later).await?;
    }
    if let Some(sql) = o.target.query()
        && simple(&client, sql).await?.as_deref() != Some("t")
    {
        return Ok(None);
    }
    Ok(Some(client))
}

fn plain_may_work(e: &Error) -> bool {
    e.kind() == Kind::Check && matches!(sqlstate(e), None | Some("28000"))
}

/// The first value a query returns.
async fn simple(client: &Client, sql: &str) -> Result<Option<String>> {
    let answer = client.simple_query(sql).await.map_err(|e| query_error(sql, e))?;
    Ok(answer.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

async fn attempt(o: &ConnectOptions, target: &Target<'_>, mode: SslMode) -> Result<Client> {
    let mut config = Config::new();
    config
        .user(&o.user)
        .dbname(&o.database)
        .application_name(&o.application_name)
        .options(o.startup_options(SESSION_SETTINGS))
        .keepalives(o.keepalives)
        .keepalives_idle(Duration::from_secs(30))
        .ssl_mode(mode)
        .channel_binding(match o.channel_binding {
            ChannelBinding::Disable => PgBinding::Disable,
            ChannelBinding::Prefer => PgBinding::Prefer,
            ChannelBinding::Require => PgBinding::Require,
        });
    if !o.silence_limit.is_zero() {
        let (idle, between, probes) = keepalive_times(o.silence_limit);
        config
            .keepalives_idle(idle)
            .keepalives_interval(between)
            .keepalives_retries(probes)
            .tcp_user_timeout(o.silence_limit);
    }
    if o.tls_direct && mode == SslMode::Require {
        config.ssl_negotiation(SslNegotiation::Direct);
    }
    if let Some(password) = target.password {
        config.password(password.reveal());
    }
    match target.host {
        Host::Tcp { host, port } => config.host(host).port(*port),
        Host::Unix { dir, port } => config.host_path(dir).port(*port),
    };
    if let Some(address) = target.address {
        config.hostaddr(address);
    }
    let connecting = config.connect(tls::MakeTls(o.clone()));
    let connected = if o.connect_timeout.is_zero() {
        connecting.await
    } else {
        match tokio::time::timeout(o.connect_timeout, connecting).await {
            Ok(result) => result,
            Err(_) => return Err(unreachable(io::ErrorKind::TimedOut.into())),
        }
    };
    let (client, connection) = connected.map_err(|e| login_error(o, target, e))?;
    let task = tokio::spawn(async move {
        if let Err(e) = connection.await {
            tracing::debug!(error = %e, "a connection to the server ended");
        }
    });
    Ok(Client::new(client, task.abort_handle(), o.silence_limit))
}

fn login_error(o: &ConnectOptions, target: &Target<'_>, error: tokio_postgres::Error) -> Error {
    if let Some(db) = error.as_db_error() {
        let password_from_file = o.password.is_none() && target.password.is_some();
        let login = Login { user: &o.user, database: &o.database, password_from_file };
        return ours(db).into_login_error(login);
    }
    if let Some(e) = find::<io::Error>(&error) {
        return unreachable(io::Error::new(e.kind(), e.to_string()));
    }
    if error.is_closed() {
        return broken("while logging in", io::ErrorKind::UnexpectedEof.into());
    }
    let text = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    if text.contains("password missing") {
        return o.password_missing();
    }
    if text.contains("does not support TLS") {
        return no_tls();
    }
    // The TLS layer's own error comes back as it was made.
    let cause = match error.into_source().map(|source| source.downcast::<Error>()) {
        Some(Ok(ours)) => return *ours,
        Some(Err(cause)) => cause,
        None => "no reason given".into(),
    };
    Error::new(Kind::Check, "the login failed")
        .because(cause)
        .next("check user, password, sslmode and channel_binding, and see the server's log")
}

//! From options to a session: hosts and addresses in turn, TLS or not, login, settings.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::buffer::ReadBuffer;
use super::cancel::CancelHandle;
use super::error::{broken, protocol};
use super::stream::{Address, Stream};
use super::{LOCK_TIMEOUT, SESSION_SETTINGS, SessionKind, State, Wire, later_settings, tls};
use crate::error::{Error, Kind, Result};
use crate::source::options::{ConnectOptions, Host, Target, TlsMode, socket_file};

pub(super) fn connect(o: &Arc<ConnectOptions>, kind: SessionKind) -> Result<Wire> {
    let mut failures: Vec<Error> = Vec::new();
    for target in o.targets() {
        match one_host(o, &target, kind) {
            Ok(Some(wire)) => return Ok(wire),
            Ok(None) => failures.push(wrong_target().at(target.host.label())),
            // The next host may be up; it will not have another password.
            Err(e) if e.is_transient() => failures.push(e.at(target.host.label())),
            Err(e) => return Err(e.at(target.host.label())),
        }
    }
    Err(all_failed(failures))
}

/// The error for a server of another kind than asked for. Transient: a failover may be under way.
pub(crate) fn wrong_target() -> Error {
    Error::transient("not a server that target_session_attrs asks for")
        .next("name such a server among the hosts, or change target_session_attrs")
}

/// One error for the hosts that were tried.
pub(crate) fn all_failed(mut failures: Vec<Error>) -> Error {
    let Some(last) = failures.pop() else { return Error::config("no host to connect to") };
    if failures.is_empty() {
        return last;
    }
    // One that may pass makes the whole worth another try.
    let transient = last.is_transient() || failures.iter().any(Error::is_transient);
    failures.push(last);
    let all: Vec<_> =
        failures.iter().map(|e| e.to_string().replace("\n  next:", "; next:")).collect();
    let kind = if transient { Kind::Transient } else { Kind::Check };
    Error::new(kind, format!("none of {} hosts can be used: {}", all.len(), all.join(" | ")))
}

/// `None`: the server is there and is not of the kind asked for.
fn one_host(
    o: &Arc<ConnectOptions>,
    target: &Target<'_>,
    kind: SessionKind,
) -> Result<Option<Wire>> {
    let mut last = Error::transient("the name has no address").next("check the host name");
    for address in addresses(target)? {
        match one_address(o, target, &address, kind) {
            Ok(mut wire) => {
                let wanted = o.target.query();
                if let Some(sql) = wanted
                    && wire.simple_query(sql)? != [[Some("t".to_owned())]]
                {
                    return Ok(None);
                }
                return Ok(Some(wire));
            }
            Err(e) if e.is_transient() => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

fn addresses(target: &Target<'_>) -> Result<Vec<Address>> {
    match (target.host, target.address) {
        (Host::Unix { dir, port }, _) => Ok(vec![Address::Unix(socket_file(dir, *port))]),
        (Host::Tcp { port, .. }, Some(ip)) => Ok(vec![Address::Tcp(SocketAddr::new(ip, *port))]),
        (Host::Tcp { host, port }, None) => match (host.as_str(), *port).to_socket_addrs() {
            Ok(found) => Ok(found.map(Address::Tcp).collect()),
            // Transient: the name service fails now and then, and at a failover.
            Err(e) => Err(Error::transient(format!("the host name {host:?} has no address"))
                .because(e)
                .next("check the host name and the name service")),
        },
    }
}

/// With `sslmode=prefer` a failed handshake, or a line of pg_hba.conf that wants no TLS, is
/// answered by another try without.
fn one_address(
    o: &Arc<ConnectOptions>,
    target: &Target<'_>,
    address: &Address,
    kind: SessionKind,
) -> Result<Wire> {
    let with_tls = o.tls > TlsMode::Disable && matches!(address, Address::Tcp(_));
    match attempt(o, target, address, kind, with_tls) {
        Err(e) if with_tls && o.tls == TlsMode::Prefer && plain_may_work(&e) => {
            attempt(o, target, address, kind, false).map_err(|plain| match plain_may_work(&plain) {
                true => e,
                false => plain,
            })
        }
        result => result,
    }
}

/// A second connection to the very server that `other` is connected to.
pub(super) fn beside(other: &CancelHandle) -> Result<Wire> {
    let (o, host, address, with_tls) = other.way();
    let target = o.targets().find(|target| target.host == host);
    let target = target.ok_or_else(|| Error::failed("the host is none of those given"))?;
    let mut wire = attempt(o, &target, address, SessionKind::Query, with_tls)?;
    wire.silence = std::time::Duration::ZERO;
    wire.set_read_timeout((!o.connect_timeout.is_zero()).then_some(o.connect_timeout))?;
    Ok(wire)
}

fn plain_may_work(e: &Error) -> bool {
    e.kind() == Kind::Check && matches!(super::sqlstate(e), None | Some("28000"))
}

fn attempt(
    o: &Arc<ConnectOptions>,
    target: &Target<'_>,
    address: &Address,
    kind: SessionKind,
    with_tls: bool,
) -> Result<Wire> {
    let stream = dial(o, target.host, address, with_tls)?;
    let mut wire = Wire {
        cancel: CancelHandle::none(o, target.host, address, matches!(stream, Stream::Tls(_))),
        stream,
        buffer: ReadBuffer::new(),
        out: BytesMut::with_capacity(1024),
        parameters: Default::default(),
        read_timeout: None,
        silence: o.silence_limit,
        // Until the login is done there is nobody to say good-bye to.
        state: State::Dead,
    };
    let mut settings = SESSION_SETTINGS.to_vec();
    if kind == SessionKind::Query {
        // Not where slots are made: that waits for all open transactions, however long they are.
        settings.push(LOCK_TIMEOUT);
    }
    let options = o.startup_options(&settings);
    let mut parameters = vec![
        ("user", o.user.as_str()),
        ("database", &o.database),
        ("client_encoding", "UTF8"),
        ("application_name", &o.application_name),
        ("options", &options),
    ];
    if kind == SessionKind::Replication {
        parameters.push(("replication", "database"));
    }
    frontend::startup_message(parameters, &mut wire.out)
        .map_err(|e| Error::config("role or database name can't be sent").because(e))?;
    wire.flush("sending the startup packet")?;
    super::auth::log_in(&mut wire, o, target)?;
    wire.state = State::Ready;
    let later = later_settings(wire.server_version());
    if !later.is_empty() {
        wire.simple_query(later)?;
    }
    wire.set_read_timeout(None)?;
    Ok(wire)
}

/// A connected stream, encrypted if `with_tls` and the server agrees (or TLS is required).
pub(super) fn dial(
    o: &ConnectOptions,
    host: &Host,
    address: &Address,
    with_tls: bool,
) -> Result<Stream> {
    let mut stream = Stream::dial(address, o.connect_timeout, o.keepalives, o.silence_limit)
        .map_err(unreachable)?;
    let Host::Tcp { host, .. } = host else { return Ok(stream) };
    if !with_tls {
        return Ok(stream);
    }
    if !o.tls_direct {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        stream.write_all(&request).map_err(|e| broken("asking for TLS", e))?;
        // One byte and no more: what follows must be the handshake, not words slipped in before it.
        let mut answer = [0];
        match stream.read(&mut answer).map_err(|e| broken("asking for TLS", e))? {
            0 => return Err(broken("asking for TLS", std::io::ErrorKind::UnexpectedEof.into())),
            _ => match answer {
                [b'S'] => {}
                [b'N'] if o.tls == TlsMode::Prefer => return Ok(stream),
                [b'N'] => return Err(no_tls()),
                // A server that can't even fork answers with an error before TLS; it proves nothing.
                [b'E'] => {
                    return Err(Error::transient("the server refused the connection before TLS")
                        .next("see the server's log"));
                }
                _ => return Err(protocol("the answer to the TLS request is unknown")),
            },
        }
    }
    let name = tls::server_name(o, host)?;
    let connection = rustls::ClientConnection::new(tls::client_config(o)?, name)
        .map_err(|e| Error::failed("TLS can't be set up").because(e))?;
    stream.into_tls(connection).map_err(tls::handshake_error)
}

pub(crate) fn no_tls() -> Error {
    Error::new(Kind::Check, "the server does not speak TLS")
        .next("switch ssl on in postgresql.conf, or set sslmode=disable if the network is trusted")
}

/// The error for a server that can't be reached: transient, as it may be starting.
pub(crate) fn unreachable(e: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let (what, next) = match e.kind() {
        Io::ConnectionRefused => {
            ("nothing listens there", "start the server, or check host, port and listen_addresses")
        }
        Io::NotFound => {
            ("there is no socket", "start the server, or check the folder and port of its socket")
        }
        Io::TimedOut | Io::WouldBlock => {
            ("no answer in time", "check host, port and firewall, or raise connect_timeout")
        }
        Io::PermissionDenied => {
            ("the socket may not be opened", "check the rights on the socket's folder")
        }
        _ => ("the server can't be reached", "check host, port and network"),
    };
    Error::transient(what).because(e).next(next)
}

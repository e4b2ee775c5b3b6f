//! The two spellings of a connection string, into names and values. Nothing is interpreted here.

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};

/// Names and values in the order given; a later one wins.
pub(super) type Given = Vec<(String, String)>;

/// Parameters Tidegate understands.
pub(super) const KNOWN: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "passfile",
    "connect_timeout",
    "application_name",
    "fallback_application_name",
    "client_encoding",
    "options",
    "keepalives",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "target_session_attrs",
    "load_balance_hosts",
    "gssencmode",
];

/// Parameters of libpq Tidegate does not do, and why or what instead.
const REFUSED: &[(&str, &str)] = &[
    ("service", "name host, port, user and dbname instead of a service"),
    ("servicefile", "name host, port, user and dbname instead of a service"),
    ("replication", "remove it: replication connections are opened where they are needed"),
    ("sslpassword", "store the client key without a passphrase (openssl pkey)"),
    ("sslcrl", "remove it: revocation lists are not read"),
    ("sslcrldir", "remove it: revocation lists are not read"),
    ("sslcertmode", "remove it: a client certificate is sent when one is configured"),
    ("sslsni", "remove it: the host name is always sent"),
    ("sslcompression", "remove it: TLS compression is not used"),
    ("sslkeylogfile", "remove it"),
    ("ssl_min_protocol_version", "remove it: TLS 1.2 and 1.3 are used"),
    ("ssl_max_protocol_version", "remove it: TLS 1.2 and 1.3 are used"),
    ("require_auth", "use channel_binding=require or sslmode=verify-full"),
    ("requirepeer", "remove it: the owner of a socket is not checked"),
    ("krbsrvname", "use a password or a client certificate: GSSAPI is not spoken"),
    ("gsslib", "use a password or a client certificate: GSSAPI is not spoken"),
    ("gssdelegation", "use a password or a client certificate: GSSAPI is not spoken"),
    ("keepalives_idle", "remove it: keepalives are timed by Tidegate"),
    ("keepalives_interval", "remove it: keepalives are timed by Tidegate"),
    ("keepalives_count", "remove it: keepalives are timed by Tidegate"),
    ("tcp_user_timeout", "remove it: set net.ipv4.tcp_retries2 on the machine"),
    ("min_protocol_version", "remove it: protocol 3.0 is spoken"),
    ("max_protocol_version", "remove it: protocol 3.0 is spoken"),
];

/// Names and values of a URL or a `key=value` string, names checked.
pub(super) fn parse(text: &str) -> Result<Given> {
    let text = text.trim();
    let rest = text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://"));
    let given = match rest {
        Some(rest) => url(rest)?,
        None if text.contains("://") => {
            let scheme = text.split("://").next().unwrap_or_default();
            return Err(Error::config(format!("{scheme:?} is no scheme of a PostgreSQL URL"))
                .next("start the URL with postgresql://"));
        }
        None => key_values(text)?,
    };
    for (name, _) in &given {
        check_name(name)?;
    }
    Ok(given)
}

fn check_name(name: &str) -> Result<()> {
    if KNOWN.contains(&name) {
        return Ok(());
    }
    if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Err(Error::config(format!("the connection parameter {name:?} is not supported"))
            .next(*instead));
    }
    let nearest = KNOWN
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, name), *known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 3);
    let error = Error::config(format!("unknown connection parameter {name:?}"));
    Err(match nearest {
        Some((_, known)) => error.next(format!("did you mean {known:?}?")),
        None => error.next(format!("known are {}", KNOWN.join(", "))),
    })
}

/// What follows the scheme: `[user[:password]@][host[:port],…][/dbname][?name=value&…]`.
fn url(rest: &str) -> Result<Given> {
    let mut given = Given::new();
    let (front, query) = match rest.split_once('?') {
        Some((front, query)) => (front, Some(query)),
        None => (rest, None),
    };
    let (authority, database) = match front.split_once('/') {
        Some((authority, database)) => (authority, Some(database)),
        None => (front, None),
    };
    let hosts = match authority.split_once('@') {
        Some((login, hosts)) => {
            let (user, password) = match login.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (login, None),
            };
            push_if_any(&mut given, "user", decode(user)?);
            if let Some(password) = password {
                push_if_any(&mut given, "password", decode(password)?);
            }
            hosts
        }
        None => authority,
    };
    if !hosts.is_empty() {
        let (mut names, mut ports) = (Vec::new(), Vec::new());
        for part in hosts.split(',') {
            let (name, port) = host_and_port(part)?;
            names.push(decode(name)?);
            ports.push(port.to_owned());
        }
        push_if_any(&mut given, "host", names.join(","));
        if ports.iter().any(|port| !port.is_empty()) {
            given.push(("port".into(), ports.join(",")));
        }
    }
    if let Some(database) = database {
        push_if_any(&mut given, "dbname", decode(database)?);
    }
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            if pair.contains('@') {
                return Err(malformed());
            }
            return Err(Error::config(format!("the URL parameter {pair:?} has no value"))
                .next("write it as name=value"));
        };
        let (name, value) = (decode(name)?, decode(value)?);
        // As libpq: JDBC's spelling.
        if name == "ssl" && value == "true" {
            given.push(("sslmode".into(), "require".into()));
        } else {
            given.push((name, value));
        }
    }
    Ok(given)
}

fn push_if_any(given: &mut Given, name: &str, value: String) {
    if !value.is_empty() {
        given.push((name.into(), value));
    }
}

/// The text is not shown: with a misplaced '@', '/' or '?' it may hold a piece of the password.
fn malformed() -> Error {
    Error::config("the host part of the URL is malformed").next(
        "write host:port, put an IPv6 address in brackets, and percent-encode '@', ':', '/', '?' \
         and '%' in user and password",
    )
}

fn host_and_port(part: &str) -> Result<(&str, &str)> {
    if let Some(inside) = part.strip_prefix('[') {
        let (address, after) = inside.split_once(']').ok_or_else(malformed)?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((address, port)),
            None if after.is_empty() => Ok((address, "")),
            None => Err(malformed()),
        };
    }
    match part.split_once(':') {
        Some((_, port)) if port.bytes().any(|b| !b.is_ascii_digit()) => Err(malformed()),
        Some(pair) => Ok(pair),
        None if part.contains('@') => Err(malformed()),
        None => Ok((part, "")),
    }
}

fn decode(text: &str) -> Result<String> {
    let odd = |what: &str| {
        Error::config(format!("the connection URL has {what}"))
            .next("percent-encode special characters: % as %25, @ as %40, : as %3A, / as %2F")
    };
    let bytes = text.as_bytes();
    for (i, byte) in bytes.iter().enumerate() {
        let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
        if *byte == b'%' && !(hex(i + 1) && hex(i + 2)) {
            return Err(odd("a '%' that is not followed by two hexadecimal digits"));
        }
    }
    let decoded =
        percent_decode_str(text).decode_utf8().map_err(|_| odd("text that is not UTF-8"))?;
    if decoded.contains('\0') {
        return Err(odd("a zero byte"));
    }
    Ok(decoded.into_owned())
}

/// `name = value …`; a value in single quotes may hold blanks, a backslash takes the next
/// character as it is.
fn key_values(text: &str) -> Result<Given> {
    let mut given = Given::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(given);
        }
        let mut name = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
            name.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next() != Some('=') || name.is_empty() {
            return Err(Error::config(
                "the connection string is neither a URL nor key=value pairs",
            )
            .next("write postgresql://user@host:5432/dbname, or host=… user=… dbname=…"));
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = chars.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match chars.next() {
                Some('\\') => value.extend(chars.next()),
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_whitespace() => break,
                Some(c) => value.push(c),
                None if quoted => {
                    return Err(Error::config(format!("the value of {name:?} has no end"))
                        .next("close it with a single quote"));
                }
                None => break,
            }
        }
        if value.contains('\0') {
            return Err(Error::config(format!("the value of {name:?} holds a zero byte")));
        }
        given.push((name, value));
    }
}

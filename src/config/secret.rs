//! Secrets in the configuration: taken from the environment by `${VAR}`, never shown.
//!
//! A reference is replaced by the variable's value *as it is*. In the user and password part of a
//! URL the value is percent-encoded on the way, in a `key=value` string it is escaped, so that a
//! password with `@`, `/` or a blank in it needs no care. A text that is one reference and nothing
//! else is replaced whole: it is then the variable that holds the URL.

use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::{Error, Result};

const USERINFO: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const SHOWN: &str = "***";

/// The first line of the file that `key` names.
///
/// # Errors
/// [`crate::error::Kind::Config`]: the file can't be read or its first line is empty.
pub(super) fn first_line(path: &Path, key: &str) -> Result<String> {
    let what = key.replace('_', " ");
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::config(format!("the {what} {} can't be read", path.display()))
            .because(error)
            .next(format!("make it readable for this user, or correct `{key}`"))
    })?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => {
            Err(Error::config(format!("the first line of the {what} {} is empty", path.display()))
                .next("write the secret on its first line"))
        }
    }
}

/// How a value is written where its reference stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    Plain,
    Percent,
    Backslash,
}

/// Replaces each `${VAR}` by the variable's value. `$${` stands for a plain `${`.
///
/// # Errors
/// A sentence without subject: a variable that is not set, or a reference without its end.
pub fn interpolate(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> std::result::Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find("${")) {
        let start = at + found;
        let before = text.get(at..start).unwrap_or_default();
        let after = text.get(start + 2..).unwrap_or_default();
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            at = start + 2;
            continue;
        }
        out.push_str(before);
        let Some(length) = after.find('}') else {
            return Err("`${` has no closing `}`; write `$${` for a plain `${`".to_owned());
        };
        let name = after.get(..length).unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("`${{{name}}}` does not name an environment variable"));
        }
        let Some(value) = env(name) else {
            return Err(format!("the environment variable {name} is not set"));
        };
        let end = start + 2 + length + 1;
        match quote_at(text, start, end) {
            Quote::Plain => out.push_str(&value),
            Quote::Percent => out.extend(utf8_percent_encode(&value, USERINFO)),
            Quote::Backslash => {
                for c in value.chars() {
                    if c.is_whitespace() || c == '\\' || c == '\'' {
                        out.push('\\');
                    }
                    out.push(c);
                }
            }
        }
        at = end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    Ok(out)
}

/// What the text around a reference says about how its value must be written.
fn quote_at(text: &str, start: usize, end: usize) -> Quote {
    let Some((scheme, _)) = split_scheme(text) else {
        // A key=value string: `host=db password=${PW}`.
        return if text.get(..start).unwrap_or_default().contains('=') {
            Quote::Backslash
        } else {
            Quote::Plain
        };
    };
    let rest = text.get(end..).unwrap_or_default();
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let in_userinfo =
        start > scheme.len() && rest.get(..authority_end).unwrap_or_default().contains('@');
    if in_userinfo { Quote::Percent } else { Quote::Plain }
}

/// The URL or `key=value` string with every password replaced by `***`, for messages and logs.
///
/// What can't be read as either is hidden whole: it may be a password in the wrong place.
pub fn redact(text: &str) -> String {
    match split_scheme(text) {
        Some((scheme, rest)) => redact_url(scheme, rest),
        None if text.contains('=') => redact_pairs(text),
        None if text.starts_with(['/', '.']) => text.to_owned(),
        None => SHOWN.to_owned(),
    }
}

/// A lake's location for messages: a path as it is, a URL without password and query.
pub fn redact_location(text: &str) -> String {
    match split_scheme(text) {
        Some((scheme, rest)) => redact_url(scheme, rest),
        None => text.to_owned(),
    }
}

/// The scheme of a URL and what follows `://`; `None` for anything else, such as a `key=value` string
/// with `://` in a password.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    text.split_once("://").filter(|(scheme, _)| !scheme.is_empty() && scheme.chars().all(plain))
}

fn redact_url(scheme: &str, rest: &str) -> String {
    // The last `@`: a password that should have been percent-encoded may hold others, slashes and
    // question marks. An `@` in the query alone is taken for one of those too.
    let before_query = rest.split_once('?').map_or(rest, |(before, _)| before);
    let (userinfo, rest) = match before_query.rfind('@').or_else(|| rest.rfind('@')) {
        Some(at) => (rest.get(..at), rest.get(at + 1..).unwrap_or_default()),
        None => (None, rest),
    };
    let (host, query) = match rest.split_once('?') {
        Some((host, query)) => (host, Some(query)),
        None => (rest, None),
    };
    let mut out = format!("{scheme}://");
    if let Some(userinfo) = userinfo {
        match userinfo.split_once(':') {
            Some((user, _)) => out.extend([user, ":", SHOWN]),
            None => out.push_str(userinfo),
        }
        out.push('@');
    }
    out.push_str(host);
    for (i, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        out.push(if i == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((key, value)) if is_harmless(key) => out.extend([key, "=", value]),
            Some((key, _)) => out.extend([shown_key(key), "=", SHOWN]),
            None => out.push_str(SHOWN),
        }
    }
    out
}

fn redact_pairs(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let Some((key, value)) = rest.split_once('=') else {
            out.push_str(SHOWN);
            break;
        };
        let value = value.trim_start();
        let (value, after) = value.split_at(pair_value_length(value));
        let key = key.trim();
        let shown = if is_harmless(key) { value } else { SHOWN };
        out.extend([shown_key(key), "=", shown]);
        rest = after.trim_start();
        if !rest.is_empty() {
            out.push(' ');
        }
    }
    out
}

/// Bytes of the value at the head of a `key=value` string: quoted, or up to a blank.
fn pair_value_length(text: &str) -> usize {
    let quoted = text.starts_with('\'');
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' if quoted && at > 0 => return at + 1,
            _ if !quoted && c.is_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}

/// Settings whose value may be shown. Everything else is hidden: a new secret must not leak because
/// nobody listed it.
fn is_harmless(key: &str) -> bool {
    const HARMLESS: &[&str] = &[
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "connect_timeout",
        "application_name",
        "target_session_attrs",
        "passfile",
        "options",
        "region",
    ];
    HARMLESS.contains(&key.to_ascii_lowercase().as_str())
}

/// A key that is no setting we know may be a piece of a password.
fn shown_key(key: &str) -> &str {
    let known = is_harmless(key) || ["password", "sslpassword", "token", "sig"].contains(&key);
    if known { key } else { SHOWN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(text: &str, value: &str) -> std::result::Result<String, String> {
        interpolate(text, &|name| (name == "PW").then(|| value.to_owned()))
    }

    #[test]
    fn a_password_with_reserved_characters_stays_a_password() {
        assert_eq!(
            with("postgres://u:${PW}@db/shop", "a@b/c:d").unwrap(),
            "postgres://u:a%40b%2Fc%3Ad@db/shop"
        );
        assert_eq!(
            with("host=db password=${PW} user=u", r"a b\'c").unwrap(),
            r"host=db password=a\ b\\\'c user=u"
        );
    }

    #[test]
    fn a_variable_with_the_whole_url_or_host_is_taken_as_it_is() {
        assert_eq!(with("${PW}", "postgres://u:p%40@db/x").unwrap(), "postgres://u:p%40@db/x");
        assert_eq!(with("postgres://u@${PW}/x", "db:5433").unwrap(), "postgres://u@db:5433/x");
        assert_eq!(with("s3://bucket/${PW}", "a/b").unwrap(), "s3://bucket/a/b");
    }

    #[test]
    fn a_variable_that_is_not_set_is_an_error_not_an_empty_password() {
        assert!(with("postgres://u:${OTHER}@db/x", "p").unwrap_err().contains("OTHER"));
        assert!(with("a${PW", "p").is_err());
        assert!(with("a${}b", "p").is_err());
        assert_eq!(with("a$${PW}b$", "p").unwrap(), "a${PW}b$");
    }

    #[test]
    fn no_password_is_shown() {
        assert_eq!(redact("postgres://u:secret@db:5432/x"), "postgres://u:***@db:5432/x");
        assert_eq!(redact("postgres://u:se/cr@et@db/x"), "postgres://u:***@db/x");
        assert_eq!(
            redact("postgres://db/x?sslmode=require&password=secret"),
            "postgres://db/x?sslmode=require&password=***"
        );
        assert_eq!(redact("host=db password='se cr\\'et' user=u"), "host=db password=*** user=u");
        assert_eq!(redact("password = secret"), "password=***");
        assert_eq!(redact("password=se://cret host=db"), "password=*** host=db");
        assert_eq!(redact("hunter2"), "***");
        assert_eq!(
            redact_location("s3://key:secret@bucket/p?token=secret"),
            "s3://key:***@bucket/p?token=***"
        );
        assert_eq!(redact_location("/data/lake"), "/data/lake");
    }

    proptest! {
        #[test]
        fn a_password_never_comes_through(secret in "[a-z@:/?=&' \\\\]{0,4}ZZZ[a-z@:/=&' \\\\]{0,4}") {
            let url = with("postgres://u:${PW}@db/x", &secret).unwrap();
            prop_assert!(!redact(&url).contains("ZZZ"), "{}", url);
            let pairs = with("host=db password=${PW} user=u", &secret).unwrap();
            prop_assert_eq!(redact(&pairs), "host=db password=*** user=u");
        }
    }
}

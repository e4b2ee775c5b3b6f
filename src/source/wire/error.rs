//! The server's own errors, sorted into those that may pass and those that will not, each with
//! the next step where it is known.
//!
//! Source of the codes: PostgreSQL manual, "PostgreSQL Error Codes".

use std::error::Error as StdError;
use std::fmt;

use crate::error::{Error, Kind};

/// What the server said in an ErrorResponse or NoticeResponse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DbError {
    /// SQLSTATE, five characters.
    pub code: String,
    /// ERROR, FATAL, PANIC, NOTICE, …
    pub severity: String,
    /// The message, in the server's language.
    pub message: String,
    /// More of it.
    pub detail: Option<String>,
    /// What the server proposes.
    pub hint: Option<String>,
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (SQLSTATE {})", self.severity, self.message, self.code)?;
        if let Some(detail) = &self.detail {
            write!(f, "; {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl StdError for DbError {}

impl DbError {
    /// Reads the fields of an ErrorResponse or NoticeResponse. Before the login the text may be
    /// in any encoding, so it is read loosely.
    pub(crate) fn parse(mut body: &[u8]) -> DbError {
        let mut error = DbError::default();
        while let Some((&field, rest)) = body.split_first() {
            if field == 0 {
                break;
            }
            let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
            let text = String::from_utf8_lossy(rest.get(..end).unwrap_or_default()).into_owned();
            match field {
                b'S' if error.severity.is_empty() => error.severity = text,
                // The severity that is not translated.
                b'V' => error.severity = text,
                b'C' => error.code = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                _ => {}
            }
            body = rest.get(end + 1..).unwrap_or_default();
        }
        error
    }

    /// This error in the middle of a session.
    pub(crate) fn into_error(self) -> Error {
        let (kind, next) = judge(&self.code);
        let mut error = Error::new(kind, self.to_string());
        if let Some(next) = next {
            error = error.next(next);
        }
        error.because(self)
    }

    /// This error as the answer to a login.
    pub(crate) fn into_login_error(self, login: Login<'_>) -> Error {
        let Login { user, database, .. } = login;
        let role_missing = self.code == "28000" && self.message.contains("does not exist");
        let next = match self.code.as_str() {
            "28P01" => {
                let from =
                    if login.password_from_file { " (it came from the password file)" } else { "" };
                format!(
                    "check the password of role {user:?}{from}: PGPASSWORD, the URL or ~/.pgpass"
                )
            }
            "28000" if role_missing => format!("create the role {user:?} or name another one"),
            "28000" if self.message.contains("certificate") => {
                "name the client's certificate in sslcert (PGSSLCERT) and its key in sslkey (PGSSLKEY)".to_owned()
            }
            "28000" => format!(
                "let role {user:?} into database {database:?} from this address in pg_hba.conf \
                 (logical replication needs no line of its own), reload, and see that sslmode fits the line"
            ),
            "3D000" => format!("name an existing database instead of {database:?}"),
            "42501" => format!(
                "grant it: ALTER ROLE {user} REPLICATION (on managed servers, the role that stands for it), \
                 and GRANT CONNECT ON DATABASE {database} TO {user}"
            ),
            "08P01" | "42704" | "22023" | "55P02" | "0A000" => {
                "connect to PostgreSQL itself, not through a pooler, and check the `options` given"
                    .to_owned()
            }
            _ => return self.into_error(),
        };
        Error::new(Kind::Check, self.to_string()).next(next).because(self)
    }
}

/// Who tried to log in, for the message.
#[derive(Clone, Copy)]
pub(crate) struct Login<'a> {
    pub user: &'a str,
    pub database: &'a str,
    pub password_from_file: bool,
}

/// Whether an error of the code may pass, and what to do about it.
fn judge(code: &str) -> (Kind, Option<&'static str>) {
    match code {
        "53300" => (
            Kind::Transient,
            Some("free connections, or raise max_connections and max_wal_senders on the server"),
        ),
        "53100" => (Kind::Transient, Some("make room on the server's disk")),
        "57P01" | "57P02" | "57P03" | "57P05" => {
            (Kind::Transient, Some("it is tried again; see that the server is up and meant to be"))
        }
        "55006" => (
            Kind::Transient,
            Some("end the other session that uses it (pg_stat_activity), or wait until it is gone"),
        ),
        // Serialization, deadlock, lock not to be had, sessions ended by a time-out.
        "40001" | "40P01" | "55P03" | "25P03" | "25P04" => (Kind::Transient, None),
        // A protocol violation will be one again.
        "08P01" => (Kind::Failed, None),
        _ if code.starts_with("08") || code.starts_with("53") => (Kind::Transient, None),
        "42501" => (
            Kind::Check,
            Some("grant the right to Tidegate's role; `tidegate check` prints the SQL"),
        ),
        _ => (Kind::Failed, None),
    }
}

/// The SQLSTATE behind an error, if the server gave one.
pub fn sqlstate(error: &Error) -> Option<&str> {
    let mut cause: Option<&(dyn StdError + 'static)> = error.cause().map(|c| c as _);
    while let Some(error) = cause {
        if let Some(db) = error.downcast_ref::<DbError>() {
            return Some(&db.code);
        }
        if let Some(e) = error.downcast_ref::<tokio_postgres::Error>() {
            return e.code().map(|code| code.code());
        }
        if let Some(inner) = error.downcast_ref::<Error>() {
            return sqlstate(inner);
        }
        cause = error.source();
    }
    None
}

/// The connection broke while `doing` something.
pub(crate) fn broken(doing: &str, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let what = match error.kind() {
        Io::UnexpectedEof => format!("the server closed the connection {doing}"),
        Io::WouldBlock | Io::TimedOut => format!("the server did not answer in time {doing}"),
        _ => format!("the connection to the server broke {doing}"),
    };
    Error::transient(what)
        .because(error)
        .next("it is tried again; if it goes on, look into the server's log")
}

/// What the server sent is not the protocol.
#[cold]
pub(crate) fn protocol(what: impl fmt::Display) -> Error {
    Error::failed(format!("the server does not speak PostgreSQL's protocol as known: {what}"))
        .next("check that host and port are PostgreSQL's own, without a proxy in between")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] =
        b"SFEHLER\0VERROR\0C55006\0Mslot \"s\" is active\0Ddetail\0Hhint\0Fslot.c\0L1\0\0";

    #[test]
    fn the_sqlstate_survives_wrapping() {
        let error = DbError::parse(BODY).into_error().at("slot s");
        assert!(error.is_transient());
        assert_eq!(
            error.to_string().lines().next(),
            Some("slot s: ERROR: slot \"s\" is active (SQLSTATE 55006); detail; hint: hint")
        );
        assert_eq!(sqlstate(&error), Some("55006"));
        assert_eq!(sqlstate(&Error::failed("outer").because(error)), Some("55006"));
        assert_eq!(sqlstate(&Error::failed("no server involved")), None);
    }

    #[test]
    fn a_cut_error_response_never_panics() {
        for cut in 0..BODY.len() {
            let _ = DbError::parse(&BODY[..cut]);
        }
    }

    #[test]
    fn what_may_pass_is_transient_and_what_will_not_is_definite() {
        let kind =
            |code: &str| DbError { code: code.into(), ..DbError::default() }.into_error().kind();
        for code in ["57P01", "57P02", "57P03", "08006", "08001", "53300", "53200", "40001"] {
            assert_eq!(kind(code), Kind::Transient, "{code}");
        }
        for code in ["08P01", "42P01", "55000", "42704", "57014"] {
            assert_eq!(kind(code), Kind::Failed, "{code}");
        }
        let login = |code: &str| {
            let login = Login { user: "u", database: "d", password_from_file: false };
            DbError { code: code.into(), ..DbError::default() }.into_login_error(login)
        };
        for code in ["28P01", "28000", "3D000", "42501", "08P01"] {
            assert_eq!(login(code).kind(), Kind::Check, "{code}");
            assert!(login(code).next_step().is_some(), "{code}");
        }
        assert_eq!(login("57P03").kind(), Kind::Transient);
    }
}

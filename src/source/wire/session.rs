//! The settings every session of Tidegate runs under, so that the server renders every value the
//! same way whatever `postgresql.conf`, the role or the database say.

/// Sent in the startup packet, after the user's own `options`.
///
/// `row_security=off` turns a policy that would hide rows into an error. The time-outs would end
/// an idle snapshot; those only newer servers know are in [`later_settings`].
pub const SESSION_SETTINGS: &[(&str, &str)] = &[
    ("DateStyle", "ISO,MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("search_path", ""),
    ("statement_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("lock_timeout", "0"),
    ("row_security", "off"),
    ("standard_conforming_strings", "on"),
    // The server notices when we are gone without a word, and frees what we held.
    ("tcp_keepalives_idle", "30"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "60000"),
    ("quote_all_identifiers", "off"),
];

/// How long a session that reads tables waits for a lock.
///
/// While tables are copied one session of ours holds them in share mode. Somebody's TRUNCATE or
/// ALTER queues behind that lock, and whatever another session of ours then asks of the table
/// queues behind the TRUNCATE. The server sees no deadlock in that, as the first session is idle:
/// it would last for ever, with everybody else who wants the table in the queue. So the wait ends,
/// the snapshot lets its locks go, and begins again after the change.
pub const LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "5s");

/// What `version` (150018 is 15.18) knows beyond [`SESSION_SETTINGS`], as SQL; empty before 14.
pub(crate) fn later_settings(version: u32) -> &'static str {
    match version / 10_000 {
        ..=13 => "",
        14..=16 => "SET idle_session_timeout = 0",
        _ => "SET idle_session_timeout = 0; SET transaction_timeout = 0",
    }
}

/// `15.18 (Debian 15.18-1)` as 150018; `17beta1` as 170000; 0 where it is not understood.
pub(crate) fn version_number(text: &str) -> u32 {
    let number = |part: &str| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..digits).and_then(|d| d.parse::<u32>().ok()).filter(|n| *n < 10_000).unwrap_or(0)
    };
    let mut parts = text.split('.');
    let major = number(parts.next().unwrap_or_default());
    major * 10_000 + parts.next().map(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        for (text, number) in [
            ("15.18 (Debian 15.18-1)", 150_018),
            ("17beta1", 170_000),
            ("18.4", 180_004),
            ("18devel", 180_000),
            ("x", 0),
        ] {
            assert_eq!(version_number(text), number, "{text}");
        }
    }
}

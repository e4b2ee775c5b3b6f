//! The password file: `host:port:database:user:password`, first line that fits.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Secret;

/// The lines of a password file that may be used, or why it may not.
pub(super) fn read(path: &Path) -> Result<String, Option<String>> {
    let Ok(meta) = std::fs::metadata(path) else { return Err(None) };
    if !meta.is_file() {
        return Err(Some(format!("the password file {} is not a plain file", path.display())));
    }
    // As libpq: what others could read is no secret, and is not used.
    if meta.mode() & 0o077 != 0 {
        return Err(Some(format!(
            "the password file {0} is ignored because others may read it: chmod 0600 {0}",
            path.display()
        )));
    }
    std::fs::read_to_string(path)
        .map_err(|e| Some(format!("the password file {} is not readable: {e}", path.display())))
}

/// The password of the first line that fits. A field is `*`, or equal; `\` takes the next
/// character as it is.
pub(super) fn find(
    lines: &str,
    host: &str,
    port: u16,
    database: &str,
    user: &str,
) -> Option<Secret> {
    let port = port.to_string();
    lines.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line;
        for wanted in [host, &port, database, user] {
            rest = field(rest, wanted)?;
        }
        let mut password = String::new();
        let mut chars = rest.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => password.extend(chars.next()),
                c => password.push(c),
            }
        }
        (!password.is_empty()).then(|| Secret::new(password))
    })
}

/// What follows the first field of `line` if that field fits `wanted`.
fn field<'a>(line: &'a str, wanted: &str) -> Option<&'a str> {
    if let Some(rest) = line.strip_prefix("*:") {
        return Some(rest);
    }
    let mut wanted = wanted.chars();
    let mut chars = line.char_indices();
    while let Some((i, c)) = chars.next() {
        let c = match c {
            ':' => return wanted.next().is_none().then(|| line.get(i + 1..)).flatten(),
            '\\' => chars.next()?.1,
            c => c,
        };
        if wanted.next() != Some(c) {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn found(lines: &str, host: &str, database: &str) -> Option<String> {
        find(lines, host, 5432, database, "me").map(|s| s.reveal().to_owned())
    }

    #[test]
    fn the_first_line_that_fits_wins_and_escapes_are_undone() {
        let lines = "# h:5432:d:me:comment\n\nh:5433:d:me:port\nh:5432:d:you:user\n\
                     h:5432:d:me:p\\:w\\\\:x\nh:*:*:me:later\n\\:\\:1:5432:*:me:six\r\n";
        assert_eq!(found(lines, "h", "d").as_deref(), Some("p:w\\:x"));
        assert_eq!(found(lines, "h", "other").as_deref(), Some("later"));
        assert_eq!(found(lines, "::1", "d").as_deref(), Some("six"));
        assert_eq!(found(lines, "hh", "d"), None);
        assert_eq!(found("h:5432:d:me", "h", "d"), None);
        assert_eq!(found("h*:5432:d:me:x", "h", "d"), None);
    }

    #[test]
    fn a_file_that_others_may_read_is_not_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
        let note = read(file.path()).unwrap_err().unwrap();
        assert!(note.contains("chmod 0600"), "{note}");
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(file.path()), Ok(String::new()));
        assert_eq!(read(Path::new("/nonexistent/pgpass")), Err(None));
    }
}

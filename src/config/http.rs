//! Who may look at a running pipeline over HTTP.
//!
//! Carries the guarantee that nothing is shown to other machines by an oversight: an address they
//! reach needs a token, or a key that says it is meant.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use super::file::Http;
use crate::error::{Error, Result};

/// Shorter ones are guessed.
const SHORTEST: usize = 16;

/// The token a client must bring. Never shown.
#[derive(Clone)]
pub struct Token(blake3::Hash);

impl Token {
    /// Whether `given` is the token. How long it takes tells nothing of it.
    pub fn is(&self, given: &[u8]) -> bool {
        // Hashes are compared in constant time.
        blake3::hash(given) == self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

impl Http {
    /// Whether what is configured may be: what only `run` needs is not looked at.
    pub(super) fn check(&self) -> Result<()> {
        if self.token_file.is_some() && self.token_env.is_some() {
            return Err(Error::config("[http] token_file and token_env are both given")
                .next("keep one of them"));
        }
        let has_token = self.token_file.is_some() || self.token_env.is_some();
        if let Some(listen) = self.listen
            && !listen.ip().is_loopback()
            && !has_token
            && !self.allow_without_token
        {
            return Err(Error::config(format!(
                "[http] listen = \"{listen}\" can be reached from other machines, and no token is asked for"
            ))
            .next("give token_file or token_env, listen on 127.0.0.1, or say allow_without_token = true"));
        }
        Ok(())
    }

    /// The address to listen on, and the token to ask for; none if it is off.
    ///
    /// # Errors
    /// [`crate::error::Kind::Config`]: the token can't be read, or is none.
    pub fn open(
        &self,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<(SocketAddr, Option<Token>)>> {
        let Some(listen) = self.listen else { return Ok(None) };
        let token = match (&self.token_file, &self.token_env) {
            (Some(path), _) => Some(from_file(path)?),
            (None, Some(name)) => Some(from_env(name, env)?),
            (None, None) => None,
        };
        Ok(Some((listen, token)))
    }
}

fn from_file(path: &Path) -> Result<Token> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::config(format!("the file {} of [http] token_file can't be read", path.display()))
            .because(error)
            .next("make it readable for this user, or correct the key")
    })?;
    token(text.lines().next().unwrap_or_default(), &path.display().to_string())
}

fn from_env(name: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Token> {
    let text = env(name).ok_or_else(|| {
        Error::config(format!("the environment variable {name} of [http] token_env is not set"))
            .next("set it, or remove the key")
    })?;
    token(&text, name)
}

fn token(text: &str, place: &str) -> Result<Token> {
    let text = text.trim();
    let sent = text.bytes().all(|b| b.is_ascii_graphic());
    if text.len() >= SHORTEST && sent {
        return Ok(Token(blake3::hash(text.as_bytes())));
    }
    Err(Error::config(format!(
        "the token in {place} is no token: {SHORTEST} or more visible characters of ASCII are needed"
    ))
    .next("make one: openssl rand -hex 32"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(listen: &str) -> Http {
        Http { listen: Some(listen.parse().unwrap()), ..Http::default() }
    }

    #[test]
    fn other_machines_see_nothing_unless_it_is_meant() {
        for own in ["127.0.0.1:9187", "[::1]:9187", "127.3.2.1:0"] {
            http(own).check().unwrap();
        }
        for open in ["0.0.0.0:9187", "[::]:9187", "10.0.0.1:80"] {
            let error = http(open).check().unwrap_err().to_string();
            assert!(error.contains(open) && error.contains("token_file"), "{error}");
            Http { token_env: Some("T".into()), ..http(open) }.check().unwrap();
            Http { allow_without_token: true, ..http(open) }.check().unwrap();
        }
    }

    #[test]
    fn a_token_that_is_missing_empty_or_short_is_an_error_and_never_shown() {
        let with = |value: Option<&'static str>| {
            Http { token_env: Some("TOKEN".into()), ..http("127.0.0.1:1") }
                .open(&|name| value.filter(|_| name == "TOKEN").map(str::to_owned))
        };
        for odd in [None, Some(""), Some("short"), Some("a token with blanks in it")] {
            let error = with(odd).unwrap_err().to_string();
            assert!(!odd.is_some_and(|odd| !odd.is_empty() && error.contains(odd)), "{error}");
        }
        let (_, token) = with(Some(" 0123456789abcdef\n")).unwrap().unwrap();
        let token = token.unwrap();
        assert!(token.is(b"0123456789abcdef") && !token.is(b"0123456789abcdeg") && !token.is(b""));
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn the_file_s_first_line_is_the_token() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\nanother line\n").unwrap();
        let http = Http { token_file: Some(file.path().into()), ..http("127.0.0.1:1") };
        let (_, token) = http.open(&|_| None).unwrap().unwrap();
        assert!(token.unwrap().is(b"0123456789abcdef"));
        assert!(Http::default().open(&|_| None).unwrap().is_none());
    }
}

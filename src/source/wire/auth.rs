//! The login: password in clear, md5, SCRAM-SHA-256 with and without channel binding.
//!
//! Source: PostgreSQL manual, "SASL Authentication" and "Start-up".

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as Binding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::frontend;

use super::error::{Login, protocol};
use super::stream::Stream;
use super::{DbError, Wire, tls};
use crate::error::{Error, Kind, Result};
use crate::source::options::{ChannelBinding, ConnectOptions, Secret, Target};

/// Answers the server's questions until it is ready for a query.
pub(super) fn log_in(wire: &mut Wire, o: &ConnectOptions, target: &Target<'_>) -> Result<()> {
    let login = Login {
        user: &o.user,
        database: &o.database,
        password_from_file: o.password.is_none() && target.password.is_some(),
    };
    let mut exchange = Exchange { o, password: target.password, scram: Scram::None, bound: false };
    let mut accepted = false;
    loop {
        let message = wire.read()?;
        let body = wire.buffer.slice(message.payload.clone());
        match message.tag {
            b'R' => {
                let (code, rest) =
                    body.split_first_chunk::<4>().ok_or_else(|| protocol("a short question"))?;
                let code = u32::from_be_bytes(*code);
                wire.out.clear();
                if code == 0 {
                    exchange.accepted()?;
                    accepted = true;
                } else if exchange.answer(code, rest, &wire.stream, &mut wire.out)? {
                    wire.flush("logging in")?;
                }
            }
            b'E' => return Err(DbError::parse(body).into_login_error(login)),
            b'K' => wire.cancel.set_key(body),
            b'Z' if accepted => return Ok(()),
            _ => wire.aside(&message)?,
        }
    }
}

enum Scram {
    None,
    Running(Box<ScramSha256>),
    Done,
}

struct Exchange<'a> {
    o: &'a ConnectOptions,
    password: Option<&'a Secret>,
    scram: Scram,
    bound: bool,
}

impl Exchange<'_> {
    /// The server says that we are in. A SCRAM exchange it started it must also have finished:
    /// that is how it proves that it knows the password.
    fn accepted(&self) -> Result<()> {
        if matches!(self.scram, Scram::Running(_)) {
            return Err(protocol("the server broke off the SCRAM exchange that proves who it is"));
        }
        if !self.bound {
            self.no_binding("let us in without it")?;
        }
        Ok(())
    }

    fn no_binding(&self, what: &str) -> Result<()> {
        if self.o.channel_binding != ChannelBinding::Require {
            return Ok(());
        }
        Err(Error::new(Kind::Check, format!("channel_binding=require, and the server {what}"))
            .next("use TLS and password_encryption = 'scram-sha-256', or drop channel_binding=require"))
    }

    fn password(&self) -> Result<&str> {
        self.password.map(Secret::reveal).ok_or_else(|| self.o.password_missing())
    }

    /// Writes the answer to question `code`; false where none is due.
    fn answer(
        &mut self,
        code: u32,
        body: &[u8],
        stream: &Stream,
        out: &mut BytesMut,
    ) -> Result<bool> {
        let bad = |e: std::io::Error| {
            Error::new(Kind::Check, "the login failed").because(e).next("check the password")
        };
        match code {
            3 => {
                self.no_binding("asks for the password in clear")?;
                frontend::password_message(self.password()?.as_bytes(), out).map_err(bad)?;
            }
            5 => {
                self.no_binding("asks for an md5 hash")?;
                let salt = body.try_into().map_err(|_| protocol("a salt of a wrong size"))?;
                let hash = md5_hash(self.o.user.as_bytes(), self.password()?.as_bytes(), salt);
                frontend::password_message(hash.as_bytes(), out).map_err(bad)?;
            }
            10 => self.start_scram(body, stream, out)?,
            11 => {
                let Scram::Running(scram) = &mut self.scram else {
                    return Err(protocol("a SASL message out of turn"));
                };
                scram.update(body).map_err(bad)?;
                frontend::sasl_response(scram.message(), out).map_err(bad)?;
            }
            12 => {
                let Scram::Running(scram) = &mut self.scram else {
                    return Err(protocol("a SASL message out of turn"));
                };
                scram.finish(body).map_err(|e| {
                    Error::new(Kind::Check, "the server could not prove that it knows the password")
                        .because(e)
                        .next("make sure that this is the server you mean")
                })?;
                self.scram = Scram::Done;
                return Ok(false);
            }
            2 | 6..=9 => {
                return Err(Error::new(
                    Kind::Check,
                    "the server asks for Kerberos, GSSAPI or SSPI",
                )
                .next("give this role a line with scram-sha-256 or cert in pg_hba.conf"));
            }
            code => return Err(protocol(format_args!("authentication method {code} is unknown"))),
        }
        Ok(true)
    }

    fn start_scram(&mut self, body: &[u8], stream: &Stream, out: &mut BytesMut) -> Result<()> {
        let offered =
            |name: &str| body.split(|byte| *byte == 0).any(|word| word == name.as_bytes());
        let end_point = match stream {
            Stream::Tls(tls) if self.o.channel_binding != ChannelBinding::Disable => tls
                .connection
                .peer_certificates()
                .and_then(|chain| chain.first())
                .and_then(tls::end_point),
            _ => None,
        };
        let (mechanism, binding) = match end_point {
            Some(hash) if offered(SCRAM_SHA_256_PLUS) => {
                self.bound = true;
                (SCRAM_SHA_256_PLUS, Binding::tls_server_end_point(hash))
            }
            _ if !offered(SCRAM_SHA_256) => {
                return Err(Error::new(Kind::Check, "the server offers no SASL method known here")
                    .next("give this role a line with scram-sha-256 in pg_hba.conf"));
            }
            // "I could, you did not offer": the server notices if somebody removed its offer.
            Some(_) => (SCRAM_SHA_256, Binding::unrequested()),
            None => (SCRAM_SHA_256, Binding::unsupported()),
        };
        if !self.bound {
            self.no_binding("does not offer it")?;
        }
        let scram = ScramSha256::new(self.password()?.as_bytes(), binding);
        frontend::sasl_initial_response(mechanism, scram.message(), out)
            .map_err(|e| Error::failed("the login can't be sent").because(e))?;
        self.scram = Scram::Running(Box::new(scram));
        Ok(())
    }
}

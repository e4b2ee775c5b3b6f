//! rustls under tokio-postgres, with channel binding.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use crate::error::{Error, Result};
use crate::source::options::ConnectOptions;
use crate::source::wire::tls;

/// Makes one handshake for each host.
pub(super) struct MakeTls(pub ConnectOptions);

impl<S> MakeTlsConnect<S> for MakeTls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake> {
        // Called for a connection without TLS too, where no file may be missed.
        let o = self.0.clone();
        Ok(Handshake { host: host.to_owned(), options: o })
    }
}

/// One handshake to come.
pub(super) struct Handshake {
    host: String,
    options: ConnectOptions,
}

impl Handshake {
    fn prepare(&self) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
        Ok((tls::client_config(&self.options)?, tls::server_name(&self.options, &self.host)?))
    }
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let (config, name) = self.prepare()?;
            let connector = tokio_rustls::TlsConnector::from(config);
            let stream = connector.connect(name, stream).await.map_err(tls::handshake_error)?;
            Ok(Encrypted(Box::new(stream)))
        })
    }
}

/// The encrypted stream.
pub(super) struct Encrypted<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, connection) = self.0.get_ref();
        connection
            .peer_certificates()
            .and_then(|chain| chain.first())
            .and_then(tls::end_point)
            .map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

//! The transport under a connection: TCP, a unix socket, or TLS over TCP. Blocking, with a read
//! timeout after which nothing that arrived is lost.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustls::ClientConnection;
use socket2::{SockRef, TcpKeepalive};

/// rustls reads 4 kB at a time; this buffer turns that into large reads of the socket.
const TLS_BUFFER_BYTES: usize = 64 * 1024;

/// Where a server listens, names resolved.
#[derive(Clone, Debug)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Tls>),
}

pub(super) struct Tls {
    pub connection: ClientConnection,
    socket: BufReader<TcpStream>,
}

impl Stream {
    /// Connects; `timeout` zero waits as long as the operating system does. A peer that does not
    /// take what is sent for `silence`, or does not answer keepalives, is given up.
    pub fn dial(
        address: &Address,
        timeout: Duration,
        keepalives: bool,
        silence: Duration,
    ) -> io::Result<Stream> {
        let stream = match address {
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let socket = if timeout.is_zero() {
                    TcpStream::connect(address)?
                } else {
                    TcpStream::connect_timeout(address, timeout)?
                };
                socket.set_nodelay(true)?;
                if keepalives {
                    keep_alive(&socket, silence)?;
                }
                Stream::Tcp(socket)
            }
        };
        stream.set_read_timeout((!timeout.is_zero()).then_some(timeout))?;
        let writing = (!silence.is_zero()).then_some(silence);
        match &stream {
            Stream::Unix(socket) => socket.set_write_timeout(writing)?,
            _ => stream.tcp(|socket| socket.set_write_timeout(writing))?,
        }
        Ok(stream)
    }

    /// Runs the handshake over a TCP stream.
    pub fn into_tls(self, mut connection: ClientConnection) -> io::Result<Stream> {
        let Stream::Tcp(mut socket) = self else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "TLS is for TCP alone"));
        };
        while connection.is_handshaking() || connection.wants_write() {
            let (read, written) = connection.complete_io(&mut socket)?;
            if read == 0 && written == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let socket = BufReader::with_capacity(TLS_BUFFER_BYTES, socket);
        Ok(Stream::Tls(Box::new(Tls { connection, socket })))
    }

    fn tcp<T>(&self, f: impl FnOnce(&TcpStream) -> io::Result<T>) -> io::Result<T> {
        match self {
            Stream::Tcp(socket) => f(socket),
            Stream::Tls(tls) => f(tls.socket.get_ref()),
            Stream::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// `None` waits for ever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(socket) => socket.set_read_timeout(timeout),
            _ => self.tcp(|socket| socket.set_read_timeout(timeout)),
        }
    }

    /// In this mode a read returns `WouldBlock` at once where it would wait.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Unix(socket) => socket.set_nonblocking(on),
            _ => self.tcp(|socket| socket.set_nonblocking(on)),
        }
    }

    /// Reads what is there, waiting for the first byte; 0 is the end.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Stream::Tcp(socket) => socket.read(room),
                Stream::Unix(socket) => socket.read(room),
                Stream::Tls(tls) => tls.read(room),
            };
            match result {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Sends everything.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(socket) => socket.write_all(bytes),
            Stream::Unix(socket) => socket.write_all(bytes),
            Stream::Tls(tls) => tls.write_all(bytes),
        }
    }

    /// Says good-bye on the TLS layer; the socket closes when dropped.
    pub fn close(&mut self) {
        if let Stream::Tls(tls) = self {
            tls.connection.send_close_notify();
            let _ = tls.flush();
        }
    }
}

impl Tls {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            // All plaintext at hand, then all ciphertext at hand, and only then the socket.
            match self.connection.reader().read(room.get_mut(filled..).unwrap_or_default()) {
                Ok(0) => return Ok(filled),
                Ok(count) => {
                    filled += count;
                    if filled == room.len() {
                        return Ok(filled);
                    }
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The peer closed without saying so; an ErrorResponse may have come before.
                Err(_) if filled > 0 => return Ok(filled),
                Err(e) => return Err(e),
            }
            if filled > 0 && self.socket.buffer().is_empty() {
                return Ok(filled);
            }
            match self.step() {
                Ok(()) => {}
                // rustls keeps a fatal error and returns it again next time.
                Err(_) if filled > 0 => return Ok(filled),
                Err(e) => return Err(e),
            }
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if self.socket.buffer().is_empty() {
            self.socket.fill_buf()?;
        }
        self.connection.read_tls(&mut self.socket)?;
        let state = self.connection.process_new_packets();
        // Alerts and key updates.
        let flushed = self.flush();
        state.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        flushed
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.connection.writer().write(bytes)?;
            bytes = bytes.get(count..).unwrap_or_default();
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(self.socket.get_mut())? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// Keepalives that find a dead peer within `silence` while we wait, and a limit for what we sent and
/// nobody acknowledged. Without a limit the operating system's own times hold.
fn keep_alive(socket: &TcpStream, silence: Duration) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new();
    if silence.is_zero() {
        return socket.set_tcp_keepalive(&keepalive);
    }
    let (idle, between, probes) = keepalive_times(silence);
    socket.set_tcp_keepalive(
        &keepalive.with_time(idle).with_interval(between).with_retries(probes),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(silence))?;
    Ok(())
}

/// Idle time before the first probe, time between probes, and their number, so that a dead peer is
/// found within about `silence`.
pub(crate) fn keepalive_times(silence: Duration) -> (Duration, Duration, u32) {
    let second = Duration::from_secs(1);
    ((silence / 2).max(second), (silence / 6).max(second), 3)
}

//! A TCP proxy on loopback that does to connections what networks do: cuts them in the middle of a
//! message, swallows everything without a word, is slow.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// What the proxy does from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Ends the first connection that carries more than so many bytes this way, in the middle of
    /// whatever it carries; then passes.
    CutAfter(Way, u64),
    /// Forwards nothing, ends nothing: neither side hears of it. Connections that were open then
    /// never come back.
    BlackHole,
    /// So many bytes a second each way of each connection.
    Slow(u64),
}

struct Shared {
    server: u16,
    mode: Mutex<Mode>,
    /// Goes up with each change of mode: byte counts begin anew.
    era: AtomicU64,
    cuts: AtomicU64,
    closed: AtomicBool,
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for one of those who ask.
    fn may_cut(&self, way: Way, carried: u64) -> Option<u64> {
        let mut mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        match *mode {
            Mode::CutAfter(wanted, bytes) if wanted == way && carried > bytes => {
                *mode = Mode::Pass;
                self.cuts.fetch_add(1, Ordering::SeqCst);
                Some(bytes)
            }
            _ => None,
        }
    }
}

/// A running proxy; its connections end with it.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

impl Proxy {
    /// To a server on 127.0.0.1.
    pub fn to(server: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            server,
            mode: Mutex::new(Mode::Pass),
            era: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let at = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if at.closed.load(Ordering::SeqCst) {
                    return;
                }
                connect(&at, client);
            }
        });
        Proxy { shared, port }
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port)
    }

    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.shared.era.fetch_add(1, Ordering::SeqCst);
    }

    /// How many connections were cut by [`Mode::CutAfter`].
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn connect(shared: &Arc<Shared>, client: TcpStream) {
    let swallowed = Arc::new(AtomicBool::new(shared.mode() == Mode::BlackHole));
    // A server that is down looks as it does without us: the connection ends.
    let Ok(server) = TcpStream::connect(("127.0.0.1", shared.server)) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    for (way, from, to) in [(Way::ToServer, &client, &server), (Way::ToClient, &server, &client)] {
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
        let (shared, swallowed) = (shared.clone(), swallowed.clone());
        std::thread::spawn(move || pump(&shared, way, from, to, &swallowed));
    }
}

fn pump(shared: &Shared, way: Way, mut from: TcpStream, mut to: TcpStream, swallowed: &AtomicBool) {
    let _ = from.set_read_timeout(Some(Duration::from_millis(20)));
    let mut buffer = vec![0; 16 * 1024];
    let (mut era, mut carried) = (shared.era.load(Ordering::SeqCst), 0);
    loop {
        if shared.closed.load(Ordering::SeqCst) {
            break;
        }
        let mode = shared.mode();
        if mode == Mode::BlackHole {
            swallowed.store(true, Ordering::SeqCst);
        }
        if swallowed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let room = match mode {
            Mode::Slow(rate) => {
                std::thread::sleep(Duration::from_millis(50));
                (rate / 20).clamp(1, 16 * 1024) as usize
            }
            _ => buffer.len(),
        };
        let read = from.read(&mut buffer[..room]);
        // What was read before the mode changed is in the hole too, and so is an end.
        if shared.mode() == Mode::BlackHole {
            continue;
        }
        let read = match read {
            Ok(0) => break,
            Ok(read) => read,
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) =>
            {
                continue;
            }
            Err(_) => break,
        };
        let now = shared.era.load(Ordering::SeqCst);
        if now != era {
            (era, carried) = (now, 0);
        }
        let before = carried;
        carried += read as u64;
        if let Some(limit) = shared.may_cut(way, carried) {
            let rest = (limit.saturating_sub(before) as usize).min(read - 1);
            let _ = to.write_all(&buffer[..rest]);
            break;
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

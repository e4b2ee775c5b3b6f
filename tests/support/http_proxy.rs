//! A proxy in front of an HTTP server that spoils answers: what a network or a busy store does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// The server does it, and its answer is replaced by 500.
    LostAnswer,
    /// The server does it, and the connection is cut instead of an answer.
    CutAnswer,
    /// 503, and the server never hears of it.
    Throttled,
    /// 403, and the server never hears of it.
    Denied,
}

type Rule = Box<dyn FnMut(&str, &str) -> Option<Spoil> + Send>;

/// The proxy; it ends with the value.
pub struct Proxy {
    address: String,
    state: Arc<State>,
}

struct State {
    target: String,
    rule: Mutex<Rule>,
    spoiled: AtomicU64,
    away: AtomicBool,
    ended: AtomicBool,
}

impl Proxy {
    /// A proxy of `target`; `rule` is asked with method and path of each request.
    pub fn of(
        target: &str,
        rule: impl FnMut(&str, &str) -> Option<Spoil> + Send + 'static,
    ) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            target: target.to_owned(),
            rule: Mutex::new(Box::new(rule)),
            spoiled: AtomicU64::new(0),
            away: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.ended.load(Ordering::Acquire) {
                    return;
                }
                let shared = shared.clone();
                std::thread::spawn(move || client.map(|client| serve(client, &shared)));
            }
        });
        Proxy { address, state }
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Requests spoiled so far.
    pub fn spoiled(&self) -> u64 {
        self.state.spoiled.load(Ordering::Acquire)
    }

    /// From now on every connection is cut at once, or none is.
    pub fn set_away(&self, away: bool) {
        self.state.away.store(away, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Release);
        let _ = TcpStream::connect(&self.address);
    }
}

/// One request after the other, each over a connection of its own to the server.
fn serve(client: TcpStream, state: &State) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut client = client;
    loop {
        let (head, length) = head(&mut reader)?;
        let mut body = vec![0; length?];
        reader.read_exact(&mut body).ok()?;
        if state.away.load(Ordering::Acquire) {
            return None;
        }
        let mut words = head.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        let spoil = (state.rule.lock().unwrap_or_else(PoisonError::into_inner))(method, path);
        if spoil.is_some() {
            state.spoiled.fetch_add(1, Ordering::AcqRel);
        }
        let answer = match spoil {
            Some(Spoil::Throttled) => {
                Vec::from("HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n")
            }
            Some(Spoil::Denied) => Vec::from("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"),
            _ => {
                let answer = forward(&state.target, &head, &body)?;
                match spoil {
                    Some(Spoil::LostAnswer) => {
                        Vec::from("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")
                    }
                    Some(Spoil::CutAnswer) => return None,
                    _ => answer,
                }
            }
        };
        let kept = spoil.is_some();
        client.write_all(&answer).ok()?;
        // A passed-on answer ends with its connection.
        if !kept {
            return None;
        }
    }
}

/// The lines of a request up to the empty one, and the length of what follows; chunked bodies are
/// not sent by the clients tested here.
fn head(reader: &mut BufReader<TcpStream>) -> Option<(String, Option<usize>)> {
    let (mut head, mut length) = (String::new(), Some(0));
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
        let connection = lower.starts_with("connection:");
        if line == "\r\n" {
            head.push_str("connection: close\r\n\r\n");
            return Some((head, length));
        }
        if !connection {
            head.push_str(&line);
        }
    }
}

fn forward(target: &str, head: &str, body: &[u8]) -> Option<Vec<u8>> {
    let mut server = TcpStream::connect(target).ok()?;
    server.write_all(head.as_bytes()).ok()?;
    server.write_all(body).ok()?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).ok()?;
    Some(answer)
}

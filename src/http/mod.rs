//! A running pipeline over HTTP: metrics, health, status, and a page for people.
//!
//! ```text
//!   source ◄─ every 2 s ─┐                       ┌─► /metrics /live /ready
//!   lake   ◄─ at times ──┴ watch ─► memory ──────┴─► /status /history /
//!   run, reader, applier ───────────► (Metrics, Board)
//! ```
//!
//! Carries the guarantee that whoever asks, how often and how slowly, costs the stream nothing: an
//! answer is made of what is in memory, connections are few, short and in tasks of their own, and
//! what is asked of source and lake is asked by the clock alone. Nothing here is written to.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::observe::metrics::Metrics;

mod advice;
mod board;
mod routes;
mod server;
mod watch;

pub use board::{Board, HandoffVersion};
pub use routes::Desk;

/// What is served while this lives.
pub struct Served {
    metrics: Arc<Metrics>,
    tasks: Vec<JoinHandle<()>>,
}

impl Served {
    /// Where the run counts.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Listens where `[http]` says; nowhere, by default.
///
/// # Errors
/// [`crate::error::Kind::Config`]: the token can't be read, or the address can't be listened on.
pub async fn serve(config: &Config) -> Result<Served> {
    let metrics = Arc::new(Metrics::new(&config.name));
    let open = config.http.open(&|name| std::env::var(name).ok())?;
    let Some((listen, token)) = open else { return Ok(Served { metrics, tasks: Vec::new() }) };
    let cannot = |error: std::io::Error| {
        Error::config(format!("[http] listen = \"{listen}\": the address can't be listened on"))
            .because(error)
            .next("stop the program that listens there, or choose another port; port 0 takes a free one")
    };
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    tracing::info!(token = token.is_some(), "metrics and status at http://{bound}/");
    let board = Arc::new(Board::default());
    let desk = Desk {
        metrics: metrics.clone(),
        board: board.clone(),
        any_host: token.is_some() || config.http.allow_without_token,
        token,
    };
    let tasks = vec![
        tokio::spawn(server::accept(listener, Arc::new(desk))),
        tokio::spawn(watch::source(config.clone(), metrics.clone(), board.clone())),
        tokio::spawn(watch::lake(config.clone(), metrics.clone(), board)),
    ];
    Ok(Served { metrics, tasks })
}

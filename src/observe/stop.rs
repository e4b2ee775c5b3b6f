//! Stopping gracefully: the first SIGINT or SIGTERM asks, the second one ends the process at once.
//!
//! Asking sets a flag that the work looks at between steps: it finishes or drops its batch, never
//! half of it. Ending at once is safe too, as every durable step is (the promise does not depend on
//! a graceful stop), it only leaves work to be done again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::{Error, Result};

/// Exit code after a second signal: 128 + SIGINT, as a shell would show it.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Whether the program was asked to stop. Clones share the answer; cheap to ask from any thread.
#[derive(Clone, Debug)]
pub struct StopSignal {
    sender: Arc<watch::Sender<bool>>,
    flag: Arc<AtomicBool>,
}

impl StopSignal {
    /// A signal that only [`StopSignal::request`] sets.
    pub fn manual() -> Self {
        StopSignal { sender: Arc::new(watch::Sender::new(false)), flag: Arc::default() }
    }

    /// Listens to SIGINT and SIGTERM from now on. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`crate::error::Kind::Failed`]: the operating system refuses the handlers.
    pub fn install() -> Result<Self> {
        let refused = |error| {
            Error::failed("the handlers for SIGINT and SIGTERM can't be set").because(error)
        };
        let mut interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(refused)?;
        let stop = StopSignal::manual();
        let asked = stop.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if asked.is_set() {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                tracing::info!("stopping after the current step; a second signal ends it at once");
                asked.request();
            }
        });
        Ok(stop)
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.flag.store(true, Ordering::Release);
        self.sender.send_replace(true);
    }

    /// Whether somebody asked.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Returns once somebody asked; at once if that was before.
    pub async fn requested(&self) {
        // The sender lives in `self`: waiting can't fail.
        let _ = self.sender.subscribe().wait_for(|asked| *asked).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_before_the_wait_is_not_missed() {
        let stop = StopSignal::manual();
        assert!(!stop.is_set());
        stop.clone().request();
        assert!(stop.is_set());
        stop.requested().await;
    }

    #[tokio::test]
    async fn a_stop_during_the_wait_wakes_every_clone() {
        let stop = StopSignal::manual();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                tokio::spawn(async move { stop.requested().await })
            })
            .collect();
        tokio::task::yield_now().await;
        stop.request();
        for waiter in waiters {
            waiter.await.unwrap();
        }
    }
}

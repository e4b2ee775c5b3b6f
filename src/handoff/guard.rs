//! Watches how much WAL the slot makes the source keep, from the boundary on and while following.
//!
//! It has a connection of its own, so that it sees what happens whatever the pipeline waits for. It
//! only looks, warns and says; what follows from it while a snapshot is copied is done by
//! [`retain`](super::retain). PostgreSQL can't say how much room its disk has: beside the server's
//! own limit there is the operator's, `[handoff] max_retained_wal`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::source::client::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::handoff::rules::{self, Hold, Level, Outlook, Retained, WalBounds};
use crate::handoff::session::Session;
use crate::observe::human;
use crate::source::options::ConnectOptions;
use crate::source::{client, slot};

/// Between two looks.
pub const EVERY: Duration = Duration::from_secs(2);
/// A server that does not answer is asked anew over another connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// The growth is that of the last time.
const GROWTH_OVER: Duration = Duration::from_secs(60);
/// The same is not said again before.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The watch; it ends when this is dropped.
pub struct Guard {
    seen: watch::Receiver<Option<Outlook>>,
    task: JoinHandle<()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The operator's bounds.
pub fn bounds(config: &Config) -> WalBounds {
    WalBounds { own: config.handoff.max_retained_wal, share: config.handoff.wal_guard_share }
}

/// What the server says of a slot, as the rules take it.
pub fn retained(slot: Option<&slot::SlotInfo>) -> Retained {
    let Some(slot) = slot else { return Retained { bytes: 0, safe: None, hold: Hold::Gone } };
    let hold = match slot.wal_status.as_deref() {
        _ if slot.lost().is_some() => Hold::Lost,
        Some("unreserved") => Hold::Unreserved,
        _ => Hold::Reserved,
    };
    let bytes = |bytes: i64| bytes.max(0) as u64;
    Retained { bytes: bytes(slot.retained_bytes), safe: slot.safe_bytes.map(bytes), hold }
}

impl Guard {
    /// Begins to watch the pipeline's slot, which must be there.
    pub fn start(session: &Session) -> Guard {
        let (sender, seen) = watch::channel(None);
        let mut looker = Looker {
            source: session.source.clone(),
            slot: session.config.name.clone(),
            bounds: bounds(&session.config),
            client: None,
            samples: VecDeque::new(),
            warned: None,
        };
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(EVERY);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let look = tokio::time::timeout(PATIENCE, looker.look()).await;
                match look.unwrap_or_else(|_| Err(Error::transient("no answer in time"))) {
                    Ok(outlook) => {
                        let _ = sender.send(Some(outlook));
                    }
                    // Whoever needs the source more says what is wrong with it.
                    Err(e) => {
                        tracing::debug!("the slot could not be looked at: {e}");
                        looker.client = None;
                    }
                }
            }
        });
        Guard { seen, task }
    }

    /// The next look. May be cancelled.
    pub async fn look(&mut self) -> Outlook {
        loop {
            if self.seen.changed().await.is_err() {
                return std::future::pending().await;
            }
            if let Some(outlook) = *self.seen.borrow_and_update() {
                return outlook;
            }
        }
    }
}

struct Looker {
    source: ConnectOptions,
    slot: String,
    bounds: WalBounds,
    client: Option<Client>,
    samples: VecDeque<(Instant, u64)>,
    warned: Option<(Level, Instant)>,
}

impl Looker {
    async fn look(&mut self) -> Result<Outlook> {
        let client = match self.client.take() {
            Some(client) => self.client.insert(client),
            None => self.client.insert(client::connect(&self.source).await?),
        };
        let info = slot::slot_info(client, &self.slot).await?;
        let now = retained(info.as_ref());
        let outlook = rules::outlook(now, self.bounds, growth(&mut self.samples, now.bytes));
        if outlook.level > Level::Calm && may_warn(&mut self.warned, outlook.level, Instant::now())
        {
            tracing::warn!(
                slot = self.slot,
                retained_bytes = outlook.retained,
                limit_bytes = outlook.limit,
                margin_bytes = outlook.margin,
                seconds_to_limit = outlook.time_to_limit.map(|time| time.as_secs()),
                "{}",
                words(&self.slot, &outlook)
            );
        }
        Ok(outlook)
    }
}

/// Bytes per second since the oldest sample that is not too old.
pub fn growth(samples: &mut VecDeque<(Instant, u64)>, bytes: u64) -> Option<f64> {
    let now = Instant::now();
    samples.push_back((now, bytes));
    while samples.front().is_some_and(|(at, _)| now.duration_since(*at) > GROWTH_OVER) {
        samples.pop_front();
    }
    let (at, before) = samples.front()?;
    let seconds = now.duration_since(*at).as_secs_f64();
    (seconds > 0.5).then(|| (bytes as f64 - *before as f64) / seconds)
}

/// Whether it is said now: when it gets worse, and else once a minute.
fn may_warn(warned: &mut Option<(Level, Instant)>, level: Level, now: Instant) -> bool {
    let due = warned.is_none_or(|(before, at)| {
        level > before || now.saturating_duration_since(at) >= WARN_EVERY
    });
    if due {
        *warned = Some((level, now));
    }
    due
}

/// The figures, for people.
pub fn words(slot: &str, outlook: &Outlook) -> String {
    let kept = human::bytes(outlook.retained);
    let mut text = match outlook.level {
        Level::Lost => {
            return format!(
                "the replication slot {slot} is lost: the server removed WAL that it needs, or the slot is gone"
            );
        }
        Level::Unreserved => format!(
            "the replication slot {slot} keeps {kept} of WAL, more than max_slot_wal_keep_size allows: the server may remove it at any checkpoint"
        ),
        _ => format!("the replication slot {slot} makes the source keep {kept} of WAL"),
    };
    if let (Some(limit), Some(margin)) = (outlook.limit, outlook.margin) {
        text +=
            &format!("; {} are left to the limit of {}", human::bytes(margin), human::bytes(limit));
    }
    if let (Some(rate), Some(time)) = (outlook.bytes_per_second, outlook.time_to_limit) {
        text += &format!(
            ", which is reached in {} at {}/s",
            human::duration(time),
            human::bytes(rate as u64)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(level: Level) -> Outlook {
        Outlook {
            retained: 80 << 20,
            limit: Some(100 << 20),
            margin: Some(20 << 20),
            bytes_per_second: Some((2 << 20) as f64),
            time_to_limit: Some(Duration::from_secs(10)),
            level,
        }
    }

    #[test]
    fn the_warning_has_bytes_margin_and_time() {
        assert_eq!(
            words("shop", &outlook(Level::Near)),
            "the replication slot shop makes the source keep 80.0 MiB of WAL; 20.0 MiB are left to the limit of 100.0 MiB, which is reached in 10s at 2.0 MiB/s"
        );
        let unlimited =
            Outlook { limit: None, margin: None, bytes_per_second: None, ..outlook(Level::Near) };
        assert_eq!(
            words("shop", &unlimited),
            "the replication slot shop makes the source keep 80.0 MiB of WAL"
        );
        assert!(words("shop", &outlook(Level::Unreserved)).contains("at any checkpoint"));
        assert!(words("shop", &outlook(Level::Lost)).contains("is lost"));
    }

    #[test]
    fn the_same_is_not_said_every_two_seconds_but_worse_is_said_at_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut warned = None;
        assert!(may_warn(&mut warned, Level::Near, at(0)));
        assert!(!may_warn(&mut warned, Level::Near, at(2)));
        assert!(may_warn(&mut warned, Level::Reached, at(4)));
        assert!(!may_warn(&mut warned, Level::Near, at(6)));
        assert!(!may_warn(&mut warned, Level::Reached, at(8)));
        assert!(may_warn(&mut warned, Level::Near, at(64)));
        assert!(may_warn(&mut warned, Level::Lost, at(65)));
    }

    #[test]
    fn growth_needs_two_looks_and_may_be_negative() {
        let mut samples = VecDeque::new();
        assert_eq!(growth(&mut samples, 5), None);
        if let Some(past) = Instant::now().checked_sub(Duration::from_secs(10)) {
            let mut samples = VecDeque::from([(past, 100)]);
            assert!(growth(&mut samples, 50).is_some_and(|rate| rate < -4.0));
        }
    }
}

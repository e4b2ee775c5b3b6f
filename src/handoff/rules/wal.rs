//! How much WAL the source keeps for us, how much more it can, and what follows from that.

use std::time::Duration;

/// What the server says about a slot's hold on its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// Within the bounds (`reserved`, `extended`).
    Reserved,
    /// Beyond `max_slot_wal_keep_size`: the next checkpoint may take it away (`unreserved`).
    Unreserved,
    /// Taken away (`lost`, or the slot was invalidated).
    Lost,
    /// There is no such slot.
    Gone,
}

/// One look at the slot.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Retained {
    /// From the slot's `restart_lsn` to the end of the log.
    pub bytes: u64,
    /// `safe_wal_size`: what can still be written before the slot may be lost; `None` is no limit.
    pub safe: Option<u64>,
    /// How it stands.
    pub hold: Hold,
}

/// The operator's bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WalBounds {
    /// `[handoff] max_retained_wal`.
    pub own: Option<u64>,
    /// `[handoff] wal_guard_share`: the share of the limit at which something is done.
    pub share: f64,
}

/// How near the limit is. Ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Nothing to say.
    Calm,
    /// Half of the share is used, or the limit is reached soon if it goes on like this.
    Near,
    /// The share is used: something is to be done.
    Reached,
    /// The server may remove what we need at any checkpoint.
    Unreserved,
    /// What we need is gone.
    Lost,
}

/// What a look at the slot says about the time to come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outlook {
    /// Bytes of WAL kept.
    pub retained: u64,
    /// The smaller of the server's limit and the operator's; `None` if neither has one.
    pub limit: Option<u64>,
    /// Bytes left to the limit.
    pub margin: Option<u64>,
    /// How fast the kept WAL grows; `None` if it does not, or is not known yet.
    pub bytes_per_second: Option<f64>,
    /// When the limit is reached if it goes on like this.
    pub time_to_limit: Option<Duration>,
    /// What it amounts to.
    pub level: Level,
}

/// The limit is near if it will be reached in this time.
const SOON: Duration = Duration::from_secs(600);
/// Beyond this an estimate says nothing.
const FAR: Duration = Duration::from_secs(365 * 86_400);

/// What a look at the slot amounts to. `growth` is how fast the kept WAL grew of late, in bytes per
/// second.
///
/// Wrong ways: `max_slot_wal_keep_size` for the limit (the server counts whole segments, and
/// `wal_keep_size` too: only `safe_wal_size` knows); to rely on `wal_status` alone (it is
/// `reserved` up to the end where the server has no limit, and the disk is full then).
pub fn outlook(now: Retained, bounds: WalBounds, growth: Option<f64>) -> Outlook {
    let server = now.safe.map(|safe| now.bytes.saturating_add(safe));
    let limit = [server, bounds.own].into_iter().flatten().min();
    let margin = limit.map(|limit| limit.saturating_sub(now.bytes));
    let rate = growth.filter(|rate| rate.is_finite() && *rate > 0.0);
    let time_to_limit = margin
        .zip(rate)
        .and_then(|(margin, rate)| Duration::try_from_secs_f64(margin as f64 / rate).ok())
        .filter(|time| *time < FAR);
    let used = limit.map_or(0.0, |limit| now.bytes as f64 / limit.max(1) as f64);
    let soon = used >= bounds.share / 8.0 && time_to_limit.is_some_and(|time| time <= SOON);
    let level = match now.hold {
        Hold::Lost | Hold::Gone => Level::Lost,
        Hold::Unreserved => Level::Unreserved,
        Hold::Reserved if limit.is_none() => Level::Calm,
        Hold::Reserved if used >= bounds.share => Level::Reached,
        Hold::Reserved if used >= bounds.share / 2.0 || soon => Level::Near,
        Hold::Reserved => Level::Calm,
    };
    Outlook { retained: now.bytes, limit, margin, bytes_per_second: rate, time_to_limit, level }
}

/// What `[handoff] on_wal_limit` says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Configured {
    /// Only warn.
    Warn,
    /// Take the changes into the lake.
    Spool,
    /// Give the snapshot up.
    Stop,
}

/// What is done while a snapshot is copied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Nothing beside the warnings.
    GoOn,
    /// Begin to spool.
    Spool,
    /// Give the snapshot up, drop the slot.
    Stop,
    /// The history is gone: the snapshot can't be brought forward any more.
    GiveUp,
}

/// What is done at `level` while a snapshot is copied and nothing is visible. `spooling`: the
/// changes go to the spool already, or filled it.
///
/// Wrong ways: to stop or to drop a slot once tables may be published (their history is in it, so
/// this is not asked then); not to stop because there is a spool, where it is full or can't keep up.
pub fn action(level: Level, configured: Configured, spooling: bool) -> Action {
    match (level, configured) {
        (Level::Lost, _) => Action::GiveUp,
        (Level::Reached | Level::Unreserved, Configured::Spool) if !spooling => Action::Spool,
        (Level::Reached | Level::Unreserved, Configured::Stop) => Action::Stop,
        _ => Action::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn look(bytes: u64, safe: Option<u64>) -> Retained {
        Retained { bytes: bytes * MIB, safe: safe.map(|safe| safe * MIB), hold: Hold::Reserved }
    }

    fn bounds(own: Option<u64>) -> WalBounds {
        WalBounds { own: own.map(|own| own * MIB), share: 0.8 }
    }

    #[test]
    fn the_smaller_of_the_two_limits_counts() {
        let seen = outlook(look(40, Some(60)), bounds(Some(50)), None);
        assert_eq!((seen.limit, seen.margin), (Some(50 * MIB), Some(10 * MIB)));
        assert_eq!(seen.level, Level::Reached);
        let seen = outlook(look(40, Some(60)), bounds(Some(500)), None);
        assert_eq!((seen.limit, seen.margin), (Some(100 * MIB), Some(60 * MIB)));
        assert_eq!(seen.level, Level::Near);
        let seen = outlook(look(40, None), bounds(None), Some(1e9));
        assert_eq!((seen.limit, seen.margin, seen.level), (None, None, Level::Calm));
    }

    #[test]
    fn the_share_itself_is_reached() {
        assert_eq!(outlook(look(79, Some(21)), bounds(None), None).level, Level::Near);
        assert_eq!(outlook(look(80, Some(20)), bounds(None), None).level, Level::Reached);
        assert_eq!(outlook(look(39, Some(61)), bounds(None), None).level, Level::Calm);
        assert_eq!(outlook(look(200, None), bounds(Some(100)), None).level, Level::Reached);
    }

    #[test]
    fn growth_that_reaches_the_limit_soon_is_said_before_half_of_it_is_used() {
        let mib = MIB as f64;
        let seen = outlook(look(20, Some(80)), bounds(None), Some(mib));
        assert_eq!(seen.time_to_limit, Some(Duration::from_secs(80)));
        assert_eq!(seen.level, Level::Near);
        assert_eq!(outlook(look(20, Some(80)), bounds(None), Some(mib / 60.0)).level, Level::Calm);
        // Next to nothing is used: a burst of the first second is no alarm.
        assert_eq!(outlook(look(1, Some(99)), bounds(None), Some(mib)).level, Level::Calm);
    }

    #[test]
    fn no_time_is_promised_that_the_growth_does_not_support() {
        for growth in [None, Some(0.0), Some(-5.0), Some(f64::NAN), Some(f64::INFINITY)] {
            let seen = outlook(look(20, Some(80)), bounds(None), growth);
            assert_eq!((seen.bytes_per_second, seen.time_to_limit), (None, None));
        }
        assert_eq!(outlook(look(20, Some(80)), bounds(None), Some(1e-3)).time_to_limit, None);
    }

    #[test]
    fn what_the_server_says_of_the_slot_is_said_whatever_the_figures_are() {
        for (hold, level) in [
            (Hold::Unreserved, Level::Unreserved),
            (Hold::Lost, Level::Lost),
            (Hold::Gone, Level::Lost),
        ] {
            for safe in [None, Some(0), Some(90)] {
                assert_eq!(
                    outlook(Retained { hold, ..look(1, safe) }, bounds(None), None).level,
                    level
                );
            }
        }
    }

    #[test]
    fn it_is_done_what_is_configured_and_a_lost_slot_is_never_gone_on_with() {
        use Configured::{Spool, Stop, Warn};
        for level in [Level::Reached, Level::Unreserved] {
            assert_eq!(action(level, Warn, false), Action::GoOn);
            assert_eq!(action(level, Spool, false), Action::Spool);
            assert_eq!(action(level, Stop, false), Action::Stop);
            assert_eq!(action(level, Warn, true), Action::GoOn);
            assert_eq!(action(level, Spool, true), Action::GoOn);
            assert_eq!(action(level, Stop, true), Action::Stop);
        }
        for configured in [Warn, Spool, Stop] {
            for spooling in [false, true] {
                assert_eq!(action(Level::Near, configured, spooling), Action::GoOn);
                assert_eq!(action(Level::Calm, configured, spooling), Action::GoOn);
                assert_eq!(action(Level::Lost, configured, spooling), Action::GiveUp);
            }
        }
    }
}

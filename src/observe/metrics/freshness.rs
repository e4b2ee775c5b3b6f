//! How old is what a reader of the lake sees? Pure.
//!
//! Every few seconds the end of the source's log is noted with the time. Once the tables show
//! everything before such a note, a reader sees all that had been written at that time. So an idle
//! source, a source with a backlog and a pipeline that stands still are told apart, and nothing is
//! taken from the source's clock.

use std::collections::VecDeque;

use crate::position::Lsn;

/// Notes kept; beyond it every second one goes, so that a pipeline that stood still for days costs
/// no more.
const MOST: usize = 2_048;

/// Notes of where the source's log ended, and when. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default)]
pub struct Freshness {
    notes: VecDeque<(i64, Lsn)>,
    seen: Option<i64>,
    /// The newest note.
    end: Option<Lsn>,
}

/// What is known of it at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lag {
    /// Bytes of log that the tables do not show; none while the source's log is not known.
    pub bytes: Option<u64>,
    /// For how long the oldest of what they do not show has been there; 0 if they showed everything
    /// at the last note, none if that note is not of now: much may have been written since.
    pub seconds: Option<f64>,
    /// How old the newest moment is of which they show everything.
    pub age: f64,
}

impl Freshness {
    /// Everything that had been written at `at` is shown: what is known from an earlier process.
    pub fn seen_at(&mut self, at: i64) {
        self.seen = Some(self.seen.map_or(at, |seen| seen.max(at)));
    }

    /// The source's log ended at `end`.
    pub fn note(&mut self, at: i64, end: Lsn) {
        self.end = Some(end);
        self.notes.push_back((at, end));
        if self.notes.len() > MOST {
            let mut keep = false;
            self.notes.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    /// The tables show everything before `visible`.
    pub fn shown(&mut self, visible: Lsn) {
        while let Some((at, end)) = self.notes.front() {
            if *end > visible {
                return;
            }
            self.seen = Some(self.seen.map_or(*at, |seen| seen.max(*at)));
            self.notes.pop_front();
        }
    }

    /// The lag at `now`; none before anything is known. `answers` says that the last note is of now.
    pub fn lag(&self, now: i64, visible: Lsn, answers: bool) -> Option<Lag> {
        let age = (now - self.seen?).max(0) as f64 / 1e3;
        let (bytes, seconds) = match self.end {
            Some(end) if !self.notes.is_empty() => (Some(end.bytes_since(visible)), Some(age)),
            Some(_) if answers => (Some(0), Some(0.0)),
            _ => (None, None),
        };
        Some(Lag { bytes, seconds, age })
    }

    /// Another history: nothing of it is known.
    pub fn forget(&mut self) {
        *self = Freshness::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lag(fresh: &Freshness, now: i64, visible: u64) -> (u64, f64, f64) {
        let lag = fresh.lag(now, Lsn::new(visible), true).unwrap();
        (lag.bytes.unwrap(), lag.seconds.unwrap(), lag.age)
    }

    #[test]
    fn the_lag_grows_while_nothing_is_shown_and_is_zero_once_everything_is() {
        let mut fresh = Freshness::default();
        assert_eq!(fresh.lag(0, Lsn::ZERO, true), None);
        fresh.note(1_000, Lsn::new(100));
        fresh.shown(Lsn::new(100));
        assert_eq!(lag(&fresh, 2_000, 100), (0, 0.0, 1.0));
        fresh.note(3_000, Lsn::new(150));
        fresh.note(5_000, Lsn::new(190));
        assert_eq!(lag(&fresh, 6_000, 100), (90, 5.0, 5.0));
        fresh.shown(Lsn::new(160));
        assert_eq!(lag(&fresh, 6_000, 160), (30, 3.0, 3.0));
        fresh.shown(Lsn::new(190));
        assert_eq!(lag(&fresh, 6_000, 190), (0, 0.0, 1.0));
    }

    #[test]
    fn a_restart_knows_how_old_the_last_fence_is() {
        let mut fresh = Freshness::default();
        fresh.seen_at(1_000);
        fresh.note(61_000, Lsn::new(200));
        assert_eq!(lag(&fresh, 61_000, 100), (100, 60.0, 60.0));
        // A clock that was set back makes no negative age.
        assert_eq!(lag(&fresh, 0, 100).2, 0.0);
    }

    #[test]
    fn a_source_that_is_not_asked_or_does_not_answer_is_not_said_to_be_caught_up_with() {
        let mut fresh = Freshness::default();
        fresh.seen_at(1_000);
        let unknown = Some(Lag { bytes: None, seconds: None, age: 1.0 });
        assert_eq!(fresh.lag(2_000, Lsn::new(100), true), unknown);
        fresh.note(2_000, Lsn::new(100));
        fresh.shown(Lsn::new(100));
        assert_eq!(lag(&fresh, 3_000, 100), (0, 0.0, 1.0));
        assert_eq!(fresh.lag(3_000, Lsn::new(100), false), unknown);
        // What was seen to be missing still is.
        fresh.note(3_000, Lsn::new(130));
        let missing = Some(Lag { bytes: Some(30), seconds: Some(2.0), age: 2.0 });
        assert_eq!(fresh.lag(4_000, Lsn::new(100), false), missing);
    }

    #[test]
    fn days_of_standstill_stay_small_and_keep_the_oldest_note() {
        let mut fresh = Freshness::default();
        fresh.seen_at(0);
        for second in 1..200_000i64 {
            fresh.note(second * 1_000, Lsn::new(second as u64));
        }
        assert!(fresh.notes.len() <= MOST);
        assert_eq!(fresh.notes.front().unwrap().0, 1_000);
        assert_eq!(lag(&fresh, 200_000_000, 0).1, 200_000.0);
    }
}

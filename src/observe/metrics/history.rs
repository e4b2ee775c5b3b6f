//! The last hour, kept in memory for the status page.

use std::collections::VecDeque;

use serde::Serialize;

/// Between two points, in milliseconds.
pub const EVERY_MS: i64 = 5_000;
/// An hour of them.
const MOST: usize = 720;

/// The figures of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// When, milliseconds since 1970.
    pub at: i64,
    /// Lag in seconds; none while nothing is known.
    pub lag_seconds: Option<f64>,
    /// Lag in bytes of the source's log.
    pub lag_bytes: Option<u64>,
    /// WAL that the source keeps for the slot, in bytes.
    pub retained_bytes: Option<u64>,
    /// Changes taken from the stream since the process began.
    pub changes: u64,
    /// Rows copied by snapshots since the process began.
    pub copied_rows: u64,
}

/// A ring of points.
#[derive(Clone, Debug, Default)]
pub struct History {
    points: VecDeque<Point>,
}

impl History {
    /// Whether a point is due.
    pub fn is_due(&self, now: i64) -> bool {
        self.points.back().is_none_or(|last| now - last.at >= EVERY_MS || now < last.at)
    }

    /// Adds a point; the oldest goes.
    pub fn push(&mut self, point: Point) {
        if self.points.len() == MOST {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Oldest first.
    pub fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut history = History::default();
        for number in 0..2_000 {
            let at = number * EVERY_MS;
            assert!(history.is_due(at));
            history.push(Point { at, ..Point::default() });
            assert!(!history.is_due(at + EVERY_MS - 1));
        }
        let points = history.points();
        assert_eq!(points.len(), MOST);
        assert_eq!(points.last().unwrap().at - points[0].at, 3_595_000);
    }
}

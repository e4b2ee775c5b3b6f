//! Durations and sizes counted into fixed buckets, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MOST: usize = 16;

/// A histogram whose buckets end at fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// What one whole unit is counted as, so that the sum needs no floating point.
    scale: f64,
    counts: [AtomicU64; MOST],
    sum: AtomicU64,
}

/// What a histogram held at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// Upper bound and how many were at or below it; without the infinite one.
    pub buckets: Vec<(f64, u64)>,
    /// All of them.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

impl Histogram {
    /// For durations, in seconds.
    pub const fn seconds() -> Self {
        const BOUNDS: &[f64] =
            &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
        Histogram::new(BOUNDS, 1e6)
    }

    /// For numbers of things.
    pub const fn numbers() -> Self {
        const BOUNDS: &[f64] = &[1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7];
        Histogram::new(BOUNDS, 1.0)
    }

    const fn new(bounds: &'static [f64], scale: f64) -> Self {
        Histogram {
            bounds,
            scale,
            counts: [const { AtomicU64::new(0) }; MOST],
            sum: AtomicU64::new(0),
        }
    }

    /// Counts a duration.
    pub fn time(&self, duration: Duration) {
        self.value(duration.as_secs_f64());
    }

    /// Counts a value; what is below zero counts as zero.
    pub fn value(&self, value: f64) {
        let value = value.max(0.0);
        let place = self.bounds.iter().position(|bound| value <= *bound);
        let place = place.unwrap_or(self.bounds.len()).min(MOST - 1);
        if let Some(count) = self.counts.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add((value * self.scale) as u64, Ordering::Relaxed);
    }

    /// What it holds. Buckets and count agree, whatever is counted meanwhile.
    pub fn read(&self) -> Counted {
        let mut count = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (bound, own) in self.bounds.iter().zip(&self.counts) {
            count += own.load(Ordering::Relaxed);
            buckets.push((*bound, count));
        }
        let beyond =
            self.counts.get(self.bounds.len()).map_or(0, |own| own.load(Ordering::Relaxed));
        let sum = self.sum.load(Ordering::Relaxed) as f64 / self.scale;
        Counted { buckets, count: count + beyond, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_the_bound_is_within_it_and_one_beyond_all_is_counted() {
        let histogram = Histogram::numbers();
        for value in [0.0, 1.0, 2.0, 1e9, -5.0] {
            histogram.value(value);
        }
        let counted = histogram.read();
        assert_eq!(counted.buckets.first(), Some(&(1.0, 3)));
        assert_eq!(counted.buckets.last(), Some(&(1e7, 4)));
        assert_eq!((counted.count, counted.sum), (5, 1e9 + 3.0));
    }

    #[test]
    fn there_is_room_for_the_bucket_beyond_the_last_bound() {
        for histogram in [Histogram::seconds(), Histogram::numbers()] {
            assert!(histogram.bounds.len() < MOST);
            assert!(histogram.bounds.is_sorted());
        }
        let histogram = Histogram::seconds();
        histogram.time(Duration::from_millis(1_500));
        assert_eq!(histogram.read().sum, 1.5);
    }
}

//! The figures of a progress display at one moment, and the line that shows them.
//!
//! Pure, so that odd estimates can be tried: PostgreSQL's are often too low and sometimes absent.

use std::time::Duration;

use super::human;

/// What the counters said at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Since the start.
    pub elapsed: Duration,
    /// Rows done.
    pub rows: u64,
    /// Estimate of all rows.
    pub rows_total: Option<u64>,
    /// Bytes done.
    pub bytes: u64,
    /// Estimate of all bytes.
    pub bytes_total: Option<u64>,
    /// Tables done, and all tables.
    pub tables: Option<(u64, u64)>,
    /// WAL held back, in bytes.
    pub retained: Option<u64>,
    /// How much of it may be, in bytes.
    pub retained_limit: Option<u64>,
    /// When that is reached at the present growth.
    pub time_to_limit: Option<Duration>,
    /// Rows per second of late.
    pub rows_per_second: f64,
    /// Bytes per second of late.
    pub bytes_per_second: f64,
    /// Nothing more will come.
    pub finished: bool,
}

impl Reading {
    /// The part that is done, 0 to 1, by rows where their number is known, else by bytes. Below 1
    /// until finished, however low the estimate was.
    pub fn fraction(&self) -> Option<f64> {
        if self.finished {
            return Some(1.0);
        }
        let (done, total) = self.measured()?;
        Some((done as f64 / total as f64).min(0.99))
    }

    /// Time left at the present rate; `None` where the estimate is used up or nothing moves.
    pub fn time_left(&self) -> Option<Duration> {
        let (done, total) = self.measured()?;
        let rate =
            if self.rows_total.is_some() { self.rows_per_second } else { self.bytes_per_second };
        if self.finished || done >= total || rate.is_nan() || rate <= 0.0 {
            return None;
        }
        // Beyond a year it is no estimate any more.
        Duration::try_from_secs_f64((total - done) as f64 / rate)
            .ok()
            .filter(|left| left.as_secs() < 31_536_000)
    }

    fn measured(&self) -> Option<(u64, u64)> {
        let by_rows = self.rows_total.map(|total| (self.rows, total));
        by_rows
            .or(self.bytes_total.map(|total| (self.bytes, total)))
            .filter(|(_, total)| *total > 0)
    }
}

/// The line for people, without the kind of work in front.
pub fn line(reading: &Reading) -> String {
    let mut parts: Vec<String> = Vec::with_capacity(8);
    if let Some((done, total)) = reading.tables {
        parts.push(format!("{done}/{total} tables"));
    }
    parts.push(format!("{} rows", human::count(reading.rows)));
    parts.push(human::bytes(reading.bytes));
    if reading.finished {
        let seconds = reading.elapsed.as_secs_f64();
        if seconds > 0.0 && reading.rows > 0 {
            parts.push(format!("{} rows/s", human::count((reading.rows as f64 / seconds) as u64)));
        }
        parts.push(format!("done in {}", human::duration(reading.elapsed)));
        return parts.join("  ");
    }
    if let Some(fraction) = reading.fraction() {
        parts.push(format!("{} %", (fraction * 100.0) as u64));
    }
    parts.push(format!("{} rows/s", human::count(reading.rows_per_second as u64)));
    if let Some(left) = reading.time_left() {
        parts.push(format!("{} left", human::duration(left)));
    }
    if let Some(retained) = reading.retained {
        let mut part = format!("WAL retained {}", human::bytes(retained));
        if let Some(limit) = reading.retained_limit {
            part += &format!(" of {}", human::bytes(limit));
        }
        if let Some(time) = reading.time_to_limit {
            part += &format!(", full in {}", human::duration(time));
        }
        parts.push(part);
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading() -> Reading {
        Reading {
            elapsed: Duration::from_secs(10),
            rows: 1_000_000,
            rows_total: Some(4_000_000),
            bytes: 3 << 29,
            bytes_total: Some(6 << 30),
            tables: Some((1, 4)),
            retained: Some(12 << 20),
            retained_limit: None,
            time_to_limit: None,
            rows_per_second: 100_000.0,
            bytes_per_second: 1e8,
            finished: false,
        }
    }

    #[test]
    fn the_line_says_all_there_is_to_say() {
        assert_eq!(
            line(&reading()),
            "1/4 tables  1,000,000 rows  1.5 GiB  25 %  100,000 rows/s  30s left  WAL retained 12.0 MiB"
        );
    }

    #[test]
    fn the_limit_of_retained_wal_is_shown_with_its_time() {
        let reading = Reading {
            retained_limit: Some(64 << 20),
            time_to_limit: Some(Duration::from_secs(90)),
            ..reading()
        };
        let line = line(&reading);
        assert!(line.ends_with("WAL retained 12.0 MiB of 64.0 MiB, full in 1m30s"), "{line}");
    }

    #[test]
    fn unknown_totals_promise_nothing() {
        let reading = Reading {
            rows_total: None,
            bytes_total: None,
            tables: None,
            retained: None,
            ..reading()
        };
        assert_eq!(line(&reading), "1,000,000 rows  1.5 GiB  100,000 rows/s");
    }

    #[test]
    fn without_an_estimate_of_rows_bytes_decide() {
        let reading = Reading { rows_total: None, bytes_per_second: (3 << 29) as f64, ..reading() };
        assert!(
            line(&reading).contains("25 %") && line(&reading).contains("3s left"),
            "{}",
            line(&reading)
        );
    }

    #[test]
    fn an_estimate_that_was_too_low_stays_below_100_percent() {
        let reading = Reading { rows: 9_000_000, ..reading() };
        assert!(line(&reading).contains("99 %"));
        assert!(!line(&reading).contains("left"));
    }

    #[test]
    fn a_standstill_promises_no_end() {
        let reading = Reading { rows_per_second: 0.0, ..reading() };
        assert_eq!(reading.time_left(), None);
    }

    #[test]
    fn the_closing_line_gives_the_average() {
        let reading = Reading { finished: true, ..reading() };
        assert_eq!(
            line(&reading),
            "1/4 tables  1,000,000 rows  1.5 GiB  100,000 rows/s  done in 10s"
        );
    }

    proptest! {
        #[test]
        fn no_figure_makes_a_nonsense_line(
            rows: u64, bytes: u64, rows_total: Option<u64>, bytes_total: Option<u64>, rate in -1.0f64..1e18, finished: bool,
        ) {
            let reading = Reading {
                rows, bytes, rows_total, bytes_total, rows_per_second: rate, bytes_per_second: rate, finished,
                ..Reading::default()
            };
            prop_assert!(reading.fraction().is_none_or(|f| (0.0..=1.0).contains(&f)));
            let line = line(&reading);
            prop_assert!(!line.contains('-') && !line.contains("NaN") && !line.contains("inf"), "{}", line);
        }
    }
}

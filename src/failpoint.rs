//! Named points at which a test can pause, crash or fail the program. Empty in a release build.
//!
//! `TIDEGATE_FAILPOINTS="name=action;name=action"` with the actions
//!
//! - `pause:PATH` — creates the file `PATH.reached`, waits until the file `PATH.go` exists;
//! - `crash` — ends the process at once, as `kill -9` would;
//! - `error` — returns a transient error from the point;
//! - `delay:MILLISECONDS`.
//!
//! An action can be preceded by `N*` to act at the N-th passage only (from 1), and that by `POINT>`
//! to count passages only from when `POINT` has been passed: a phase begins with a point.
//!
//! `TIDEGATE_FAILPOINTS_TRACE=PATH` writes the name of every point that is passed to a file, a line
//! each, so that a test knows which points a run has, and in which order.

/// Acts if the point `name` is configured. Does nothing without the feature `failpoints`.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn at(_name: &str) -> crate::error::Result<()> {
    Ok(())
}

/// Whether a test switched on the deliberately wrong rule `name` (`TIDEGATE_WRONG`).
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn wrong(_name: &str) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use active::{at, wrong};

#[cfg(feature = "failpoints")]
mod active {
    use std::fs::File;
    use std::io::Write;
    use std::path::Path;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use crate::error::{Error, Result};

    /// One configured action.
    struct Entry {
        point: String,
        /// Passages count once this point has been passed.
        after: Option<String>,
        armed: AtomicBool,
        /// The one passage to act at; all of them if there is none.
        nth: Option<u64>,
        passages: AtomicU64,
        action: String,
    }

    impl Entry {
        fn parse(entry: &str) -> Option<Entry> {
            let (point, action) = entry.split_once('=')?;
            let (after, action) = match action.split_once('>') {
                Some((after, action)) => (Some(after.trim().to_owned()), action),
                None => (None, action),
            };
            let (nth, action) = match action.split_once('*') {
                Some((n, action)) => (n.parse().ok(), action),
                None => (None, action),
            };
            Some(Entry {
                point: point.trim().to_owned(),
                armed: AtomicBool::new(after.is_none()),
                after,
                nth,
                passages: AtomicU64::new(0),
                action: action.to_owned(),
            })
        }

        fn pass(&self, name: &str) -> Result<()> {
            let armed = self.armed.load(Ordering::Acquire);
            if self.after.as_deref() == Some(name) {
                self.armed.store(true, Ordering::Release);
            }
            if !armed || self.point != name {
                return Ok(());
            }
            let passage = self.passages.fetch_add(1, Ordering::AcqRel) + 1;
            if self.nth.is_some_and(|nth| nth != passage) {
                return Ok(());
            }
            act(name, &self.action)
        }
    }

    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
        let configured = std::env::var("TIDEGATE_FAILPOINTS").unwrap_or_default();
        configured.split(';').filter_map(Entry::parse).collect()
    });

    static TRACE: LazyLock<Option<File>> = LazyLock::new(|| {
        let path = std::env::var_os("TIDEGATE_FAILPOINTS_TRACE")?;
        File::options().create(true).append(true).open(path).ok()
    });

    /// Acts if the point `name` is configured.
    pub fn at(name: &str) -> Result<()> {
        if let Some(mut trace) = TRACE.as_ref() {
            // One write a line: lines of several threads do not mix.
            let _ = trace.write_all(format!("{name}\n").as_bytes());
        }
        ENTRIES.iter().try_for_each(|entry| entry.pass(name))
    }

    fn act(name: &str, action: &str) -> Result<()> {
        let (verb, argument) = action.split_once(':').unwrap_or((action, ""));
        match verb {
            "pause" => {
                let go = format!("{argument}.go");
                let _ = std::fs::write(format!("{argument}.reached"), name);
                while !Path::new(&go).exists() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok(())
            }
            "crash" => std::process::abort(),
            "delay" => {
                std::thread::sleep(Duration::from_millis(argument.parse().unwrap_or(0)));
                Ok(())
            }
            "error" => Err(Error::transient(format!("failpoint {name}"))),
            _ => Ok(()),
        }
    }

    /// Whether a test switched on the deliberately wrong rule `name` (`TIDEGATE_WRONG`).
    pub fn wrong(name: &str) -> bool {
        std::env::var("TIDEGATE_WRONG").is_ok_and(|wrong| wrong.split(',').any(|w| w == name))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn an_entry_acts_at_its_passage_and_in_its_phase_only() {
            let entry = Entry::parse("lake.commit.before=handoff.live.after>2*error").unwrap();
            let passes = |name| entry.pass(name).is_ok();
            assert!(passes("lake.commit.before") && passes("lake.commit.before"));
            assert!(passes("handoff.live.after"));
            assert!(passes("lake.commit.before"), "the first passage of the phase");
            assert!(!passes("lake.commit.before"));
            assert!(passes("lake.commit.before"), "the passage after");
        }

        #[test]
        fn an_entry_that_names_its_own_point_begins_after_it() {
            let entry = Entry::parse("x=x>error").unwrap();
            assert!(entry.pass("x").is_ok());
            assert!(entry.pass("x").is_err());
        }

        #[test]
        fn a_pause_may_have_any_path() {
            let entry = Entry::parse("x=pause:/tmp/a b/p").unwrap();
            assert_eq!((entry.nth, entry.action.as_str()), (None, "pause:/tmp/a b/p"));
        }
    }
}

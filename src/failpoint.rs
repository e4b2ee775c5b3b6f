//! Named points at which a test can pause, crash or fail the program. Empty in a release build.
//!
//! `TIDEGATE_FAILPOINTS="name=action;name=action"` with the actions
//!
//! - `pause:PATH` — creates the file `PATH.reached`, waits until the file `PATH.go` exists;
//! - `crash` — ends the process at once, as `kill -9` would;
//! - `error` — returns a transient error from the point;
//! - `delay:MILLISECONDS`.
//!
//! An action can be preceded by `N*` to act at the N-th passage only (from 1).

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
    use std::collections::HashMap;
    use std::path::Path;
    use std::sync::{LazyLock, Mutex, PoisonError};
    use std::time::Duration;

    use crate::error::{Error, Result};

    static PASSAGES: LazyLock<Mutex<HashMap<String, u64>>> = LazyLock::new(Mutex::default);

    /// Acts if the point `name` is configured.
    pub fn at(name: &str) -> Result<()> {
        let Ok(points) = std::env::var("TIDEGATE_FAILPOINTS") else { return Ok(()) };
        for point in points.split(';') {
            let Some((point, action)) = point.split_once('=') else { continue };
            if point.trim() != name {
                continue;
            }
            let (at, action) = match action.split_once('*') {
                Some((n, action)) => (n.parse::<u64>().ok(), action),
                None => (None, action),
            };
            if let Some(at) = at {
                let mut passages = PASSAGES.lock().unwrap_or_else(PoisonError::into_inner);
                let passage = passages.entry(name.to_owned()).or_default();
                *passage += 1;
                if *passage != at {
                    continue;
                }
            }
            act(name, action)?;
        }
        Ok(())
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
}

//! What a person or a supervisor sees while Tidegate works: logs, progress, and the way to stop it.
//!
//! Knows nothing of source or lake; everything here takes plain numbers and text.

pub mod human;
pub mod log;
pub mod metrics;
pub mod progress;
pub mod reading;
pub mod stop;

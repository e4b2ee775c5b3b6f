//! To come.

pub mod rules;

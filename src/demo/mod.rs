//! The demo: a private server, real data, writers that go on writing, and the lake they end in.

pub mod server;

//! The calls of `calls/mod.rs`, and the store of `store/mod.rs`, with plugins in processes of their own: nobody sees a difference.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod calls;
mod contract;
mod store;
mod support;

use skillgate_plugin_host::Isolation;

/// Where the plugins of these tests are.
const ISOLATION: Isolation = Isolation::Process;

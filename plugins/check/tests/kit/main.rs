//! The kit, with plugins that keep to the contract and with plugins that do not.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod bundled;
mod hygiene;
mod instance;
mod later;
mod sabotage;
mod sanitizer;
mod support;
mod survival;
#[path = "../../../../tests/support/tools.rs"]
mod tools;

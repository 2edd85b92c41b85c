//! Write a skillgate plugin in Rust without a line of unsafe code. See `plugins/README.md`.
mod host;
pub mod model;
mod sandbox;
mod storage;

pub use host::{Host, Level};
pub use sandbox::{RunServices, Sandbox};
pub use skillgate_plugin_abi as abi;
pub use storage::Storage;

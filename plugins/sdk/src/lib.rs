//! Write a skillgate plugin in Rust without a line of unsafe code. See `plugins/README.md`.
#![allow(
    unsafe_code,
    reason = "the C side of the contract is spoken here, so that vendors need not"
)]
mod host;
pub mod model;
mod sandbox;
mod storage;
#[doc(hidden)]
pub mod wire;

pub use host::{Host, Level};
pub use sandbox::{RunServices, Sandbox};
pub use skillgate_plugin_abi as abi;
pub use storage::Storage;

//! Write a skillgate plugin in Rust without a line of unsafe code. See `plugins/README.md`.
#![allow(
    unsafe_code,
    reason = "the C side of the contract is spoken here, so that vendors need not"
)]
mod export;
#[doc(hidden)]
pub mod glue;
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

/// `build_info` of a plugin that is made with this SDK.
#[doc(hidden)]
pub const BUILD_INFO: &str = concat!("skillgate-plugin-sdk ", env!("CARGO_PKG_VERSION"));

#[cfg(panic = "abort")]
compile_error!(
    "a plugin must be built with panic = \"unwind\": with \"abort\", a panic would take the gateway along"
);

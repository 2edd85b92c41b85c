//! Write a skillgate plugin in Rust without a line of unsafe code: a type with [`Storage`] or [`Sandbox`], and
//! [`export_plugin!`] in a crate of type `cdylib`.
//!
//! The SDK reads the host's requests, completes each of its calls once, turns panics into errors (`E_PANIC`) that the
//! host logs, closes or hands over every descriptor, and drains: it counts what is in flight and ends new work. Calls may
//! block: the host makes them on threads of their own.
//! What each call promises is said at the traits; `skillgate_plugin.h` in [`abi`] is the authority.
//!
//! Rust 1.63, edition 2021: a vendor's compiler may be old. The feature `tracing` (`tracing_bridge`: events of the `tracing`
//! crate go to the host's log) needs as new a one as tracing-core does, which is 1.65 or later.
// The C side of the contract is spoken here, so that vendors need not.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod export;
#[doc(hidden)]
pub mod glue;
mod host;
pub mod model;
mod sandbox;
mod storage;
pub mod testing;
#[cfg(feature = "tracing")]
pub mod tracing_bridge;
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

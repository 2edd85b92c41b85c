//! Write a skillgate plugin in Rust without a line of unsafe code: a type with one of four traits, and [`export_plugin!`]
//! in a crate of type `cdylib`.
//!
//! | | what a call does | for what is |
//! |---|---|---|
//! | [`Storage`], [`Sandbox`] | returns at once, and is answered later through its [`Reply`] | elsewhere: one thread of the plugin's serves all calls |
//! | [`blocking::Storage`], [`blocking::Sandbox`] | returns the answer, and may wait for it on a thread of the host's | on this machine |
//!
//! The SDK reads the host's requests, completes each of its calls once, turns panics into errors (`E_PANIC`) that the
//! host logs, closes or hands over every descriptor, and drains: it counts what is in flight and ends new work.
//! What each call promises is said at the traits; `skillgate_plugin.h` in [`abi`] is the authority.
//!
//! Rust 1.63, edition 2021: a vendor's compiler may be old. The feature `tracing` (`tracing_bridge`: events of the `tracing`
//! crate go to the host's log) needs as new a one as tracing-core does, which is 1.65 or later.
// The C side of the contract is spoken here, so that vendors need not.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod blocking;
mod export;
#[doc(hidden)]
pub mod glue;
mod host;
pub mod model;
mod reply;
mod sandbox;
mod storage;
pub mod testing;
#[cfg(feature = "tracing")]
pub mod tracing_bridge;
#[doc(hidden)]
pub mod wire;

pub use host::{Host, Level};
pub use reply::Reply;
pub use sandbox::{RunServices, Sandbox, Secret};
pub use skillgate_plugin_abi as abi;
pub use storage::{BlobBuffer, BlobData, Storage};

/// `build_info` of a plugin that is made with this SDK.
#[doc(hidden)]
pub const BUILD_INFO: &str = concat!("skillgate-plugin-sdk ", env!("CARGO_PKG_VERSION"));

#[cfg(panic = "abort")]
compile_error!(
    "a plugin must be built with panic = \"unwind\": with \"abort\", a panic would take the gateway along"
);

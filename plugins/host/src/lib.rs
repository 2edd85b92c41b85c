//! Inspects, loads and calls skillgate plugins: the only door to them, and all of the gateway's unsafe code.
//!
//! ```text
//! file ── inspect ──▶ Inspection        reads bytes, executes nothing
//!      ── Plugin::load ──▶ Plugin       pin, verdicts, sealed copy, dlopen, entry table
//!                            ├ storage(config) ──▶ StorageInstance   skills and blobs
//!                            └ sandbox(config) ──▶ SandboxInstance   runs; RunHost is what a run may ask for
//! ```
//!
//! `Plugin::open` does the same here or in a process of the plugin's own (see `process.rs`); the instances do not differ.
//! Each call is a type (`ask.rs`) that both ways use.
//!
//! Every call is an *op*: a numbered entry in a table that the plugin completes once. The entry, not the caller's
//! future, owns the buffers that the plugin was given; a caller who leaves cancels the op, and the entry stays until
//! the plugin lets go. What a plugin says is copied and checked before anybody sees it: sizes, text encoding,
//! descriptors, and that the op is one that is waiting.
#![allow(
    unsafe_code,
    reason = "plugins are C: this crate is where the gateway's unsafe code lives"
)]

mod allocator;
mod answer;
mod ask;
mod blobs;
mod call;
mod counts;
mod current;
mod exits;
mod first;
mod hosttable;
mod inspect;
mod instance;
mod lane;
mod load;
mod logs;
mod ops;
mod plugin;
mod process;
mod request;
mod sandbox;
mod shares;
mod storage;
mod trust;
mod visible;
mod wire;
mod written;

#[doc(hidden)]
pub use answer::{check_blob_id, check_content, check_opened};
pub use ask::{SANDBOX_CALLS, STORAGE_CALLS};
pub use blobs::{BlobReader, BlobWriter};
pub use call::{Destroyed, Over};
pub use counts::{CallCounts, Counted, Slow};
pub use current::{Current, WeakCurrent};
pub use exits::ExitGuard;
pub use inspect::{Inspection, Note, inspect};
pub use instance::{STORE_CALLS_MAX, STORE_THREADS_MAX};
pub use load::{LoadError, Pin, Refusal};
pub use plugin::{Info, Isolation, Plugin};
pub use process::{ProcessSettings, serve_plugin, watched_fd};
pub use sandbox::{RunHost, SandboxInstance};
pub use skillgate_plugin_sdk::model;
pub use storage::{BlockingStorage, StorageInstance};
pub use visible::{on_one_line, visible_json};

//! The bundled sandbox: every run is a fresh Python process with namespaces, a read-only root, limits, a landlock
//! domain and a system call filter of its own.
//!
//! ```text
//! gateway (threads)                                 launcher (one thread, exec'ed)        run
//!   plugin ── run ──── limits, mounts ────────────▶ launcher ── clone ── isolate ──▶ init (1) ── interpreter (2)
//!                ◀──── started, ready, ended ─────┘   cgroup, root                                │  │
//!          ◀──────────── the listener of a run with network ──────────────────────────────────────┘  │
//!          ◀──────────── output pipe (1, 2) ──────────────────────────────────────────────────────┘  │
//!          ◀──────────── channel (3): job in, blobs, result ─────────────────────────────────────────┘
//! ```
//!
//! The launcher never sees a job; the run never sees the launcher. Reading order: what the gateway calls, what the two
//! processes say to each other, the launcher, what it does to a child, and the kernel's door at the end.

mod plugin;

mod config;
mod supervisor;

mod answer;
mod archive;
mod channel;
mod job;
mod mounts;
mod pool;
mod run;

mod wire;

mod entry;
mod launcher;
mod probe;
mod zygote;

mod isolate;

mod cgroup;
mod interpreter;
mod landlock;
mod root;
mod seccomp;

mod sys;

pub use plugin::{Parts, SandboxProcess, group_name};

skillgate_plugin_sdk::export_plugin! {
    id: "org.skillgate.sandbox-process",
    version: env!("CARGO_PKG_VERSION"),
    vendor: "skillgate",
    description: "a fresh Python in its own namespaces for every run",
    license: "Apache-2.0",
    config_schema: crate::config::SCHEMA,
    sandbox: crate::SandboxProcess,
}

//! The bundled sandbox: every run is a fresh Python process with namespaces, a read-only root, limits, a landlock
//! domain and a system call filter of its own.
//!
//! ```text
//! gateway (threads)                     launcher (one thread, exec'ed)        zygote (a warmed Python, exec'ed)
//!   plugin ── pool ── how many ──────────▶ launcher ── order ────────────────▶ tend ── clone ─┐
//!     │         ◀───── a child's sockets ──┘ ├ cgroup, lease                                  │
//!     │                                      └ mounts, from outside ─▶ ┌──────────────────────┘
//!     │                                                                ▼ build ─▶ seal ─▶ divide: keeper (1), interpreter (2)
//!     └── run ── for which run it is (orders), job (channel) ──────────▶ rehearsed, waits ─▶ serve
//!           ◀─── result, blobs (channel), output (pipe) ───────────────────────────────────────┘
//!
//!         run that is to be fresh, or for which there is no zygote:
//!   plugin ── run ──── limits, mounts ────────────▶ launcher ── clone ── isolate ──▶ init (1) ── interpreter (2, exec'ed)
//!                ◀──── started, ready, ended ─────┘   cgroup, root                                │  │
//!          ◀──────────── the listener of a run with network ──────────────────────────────────────┘  │
//!          ◀──────────── output pipe (1, 2) ──────────────────────────────────────────────────────┘  │
//!          ◀──────────── channel (3): job in, blobs, result ─────────────────────────────────────────┘
//! ```
//!
//! A child waits isolated, sealed and rehearsed: no right is left to it. At its run's time the plugin's thread speaks to it
//! with no process in between, unless the run has mounts or a network, which the launcher has the rights to give. What most
//! runs have mounted is there before it waits, in most of the children: those are for a run that has just that mounted. The
//! answer is given when the result is there; that the processes are gone is the launcher's to see.
//!
//! A warm zygote has a spare: a copy that waits, and makes children while there is none but it.
//!
//! While a run lasts, a process for each processor wakes there every millisecond (`launcher::pace`), so that the kernel looks
//! who is next: short runs do not wait for the ticks of its clock.
//!
//! A skill that is run again is compiled by a run of its own, whose code (`codes`) later runs are given beside their job.
//!
//! Neither the launcher nor a zygote ever sees a job; the run never sees either. Reading order: what the gateway calls,
//! where runs get their interpreters from, what the processes say to each other, the launcher, what it and the zygote do
//! to a child, and the kernel's door at the end.

mod plugin;

mod config;
mod supervisor;

mod answer;
mod archive;
mod channel;
mod codes;
mod job;
mod mounts;
mod pool;
mod run;
mod usage;

mod wire;

mod entry;
mod launcher;
mod probe;
mod zygote;

mod guard;
mod isolate;

mod cgroup;
mod interpreter;
mod landlock;
mod root;
mod seccomp;

mod sys;

#[cfg(test)]
#[path = "../../../tests/support/tools.rs"]
mod tools;

#[doc(hidden)]
pub use guard::Guard;
pub use plugin::{Parts, SandboxProcess, group_name};

skillgate_plugin_sdk::export_plugin! {
    id: "org.skillgate.sandbox-process",
    version: env!("CARGO_PKG_VERSION"),
    vendor: "skillgate",
    description: "a fresh Python in its own namespaces for every run",
    license: "Apache-2.0",
    config_schema: crate::config::SCHEMA,
    blocking sandbox: crate::SandboxProcess,
}

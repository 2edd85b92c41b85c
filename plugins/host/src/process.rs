//! A plugin in a process of its own.
//!
//! ```text
//!   gateway                                                     plugin-host (the same program)
//!   StorageInstance ─┐                                    ┌─ StorageInstance's other half: Instance<StorageTable>
//!   SandboxInstance ─┴ Remote ── Link ══ socket pair ══ serve ─┴─ the plugin's C table
//!     restarts, one life each     calls, answers, services of a run, logs; descriptors beside them
//! ```
//!
//! One process for each instance. It is started from the sealed copy that was checked, so a restart runs the same bytes
//! whatever has become of the file. Its environment is empty where a gateway starts it, and it shares no descriptor with the
//! gateway but the socket.
//! It ends when the socket does: nothing of it outlives the gateway, however that ends. (Not by `PR_SET_PDEATHSIG`, which
//! follows the *thread* that started it.)
//!
//! What the process says is not trusted: lengths are bounded, texts and descriptors checked, and a frame that makes no
//! sense ends the process. When it has ended, every call that it had is answered within milliseconds: with
//! `E_CRASHED`, or, when the plugin had not begun with it, as not executed. Until it is back, calls are refused.

mod backoff;
mod covers;
mod frame;
mod link;
mod remote;
mod serve;
mod services;
mod socket;
mod start;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use link::Asked;
pub(crate) use remote::Remote;
pub(crate) use start::{Fresh, Image, Kind};

pub use serve::serve_plugin;
pub use socket::watched_fd;

/// How a plugin's own process is started and what it may take.
#[derive(Debug, Clone)]
pub struct ProcessSettings {
    /// This program: with `args` it calls [`serve_plugin`].
    pub program: PathBuf,
    /// See `program`.
    pub args: Vec<OsString>,
    /// All of its environment. The gateway gives none; the conformance kit, what looks at a plugin's accesses.
    pub environment: Vec<(OsString, OsString)>,
    /// Programs that it starts gain no privileges (`PR_SET_NO_NEW_PRIVS`). Not for plugins that need setuid helpers.
    pub no_new_privs: bool,
    /// How long loading it and making an instance may take.
    pub start_timeout: Duration,
    /// How long after a cancellation a call may go on, unless it is one of a blocking store, which need not heed it, and how long the
    /// end of an instance may take. Then the process is killed.
    pub cancel_grace: Duration,
    /// Threads that call the plugin at the same time; calls beyond them wait.
    pub threads_max: u32,
}

impl ProcessSettings {
    /// This program itself, as it was when it was started: an update of its file changes nothing for it.
    #[must_use]
    pub fn this_program(args: &[&str]) -> Self {
        ProcessSettings {
            program: PathBuf::from("/proc/self/exe"),
            args: args.iter().map(OsString::from).collect(),
            environment: Vec::new(),
            no_new_privs: true,
            start_timeout: Duration::from_secs(30),
            cancel_grace: Duration::from_secs(10),
            threads_max: 128,
        }
    }
}

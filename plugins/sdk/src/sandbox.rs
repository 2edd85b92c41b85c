//! The sandbox plugin as a Rust trait.

use std::os::unix::io::OwnedFd;
use std::sync::Arc;

use crate::model::{CreateRequest, Health, Result, RunRequest, RunResult, SandboxCaps};
use crate::{wire, Host, Reply};

/// A sandbox plugin that never waits while it is called: the host calls it on its event loop, and is answered later, from
/// whichever thread has the answer. One thread of the plugin's own can so serve thousands of runs that are elsewhere.
///
/// Every call but `create` returns within a millisecond: it hands its request and its [`Reply`] to a thread of the plugin's
/// own, or to the runtime that it has there. [`crate::blocking::Sandbox`] is the kind whose calls may wait.
pub trait Sandbox: Send + Sync + Sized + 'static {
    /// Makes an instance, and removes what an earlier life of it has left behind (marked by `instance_id`). Refuses
    /// when the host lacks a layer that the configuration does not excuse: then `detail_json` of the error is the
    /// capability report. Called on a thread that may wait.
    ///
    /// The instance is dropped on such a thread too, when every call has been answered. Its threads have ended when the
    /// drop returns.
    fn create(host: Host, request: CreateRequest) -> Result<Self>;
    /// What it can do and enforce.
    fn caps(&self) -> SandboxCaps;
    /// How it is doing, with the capability report.
    fn health(&self, reply: Reply<Health>);
    /// One run: begin it. `services` are this run's and end with its answer. A language that it does not run is
    /// `E_UNIMPLEMENTED`, not executed; code and arguments that are more than it takes are `E_OUT_OF_RANGE`, not executed.
    /// [`Reply::on_cancel`] tells when nobody wants it any more: then end it soon, and answer with `E_CANCELLED` or its result.
    fn run(&self, request: RunRequest, services: Arc<dyn RunServices>, reply: Reply<RunResult>);
    /// The host lets go of this instance: end what works in the background, as far as runs do not need it. The SDK has ended
    /// new runs (`E_UNAVAILABLE`); those in flight go on, and the host is told when they, and this, have been answered.
    /// Called again when the host drains again.
    fn drain(&self, reply: Reply<()>) {
        reply.ok(());
    }
}

/// The plaintext of a secret, as bytes: overwritten when it is dropped, and never shown. What is copied out of it is neither.
pub struct Secret(Vec<u8>);

impl Secret {
    /// One of one's own: for tests, and for hosts of them.
    #[must_use]
    pub fn new(value: Vec<u8>) -> Self {
        Secret(value)
    }
}

impl std::ops::Deref for Secret {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        wire::wipe(&mut self.0);
        #[cfg(test)]
        tests::WIPED.with(|wiped| *wiped.borrow_mut() = self.0.clone());
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What the host does for one run, until its answer: then every call of it is refused (`E_STALE`; `output` says `false`,
/// `cancelled` says `true`), whoever still has it. All of it may wait; the blobs' calls are refused at once
/// (`E_WOULD_DEADLOCK`) while the host is calling a plugin that is not blocking. Call it from threads of your own.
pub trait RunServices: Send + Sync {
    /// Bytes of `STDOUT`, `STDERR` or `RUNLOG`. `false`: the host has enough, keep draining and send no more.
    fn output(&self, stream: u32, data: &[u8]) -> bool;
    /// The plaintext of a secret that the request named.
    fn secret(&self, name: &str) -> Result<Secret>;
    /// A descriptor of an input blob, or of one that this run has created, or `E_UNIMPLEMENTED`.
    fn blob_fd(&self, id: &str) -> Result<OwnedFd>;
    /// A range of an input blob, or of one that this run has created.
    fn blob_read(&self, id: &str, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// A writer for a new blob.
    fn blob_create(&self, kind: &str) -> Result<i64>;
    /// Appends.
    fn blob_write(&self, writer: i64, data: &[u8]) -> Result<()>;
    /// Commits and gives the id, or throws it away and gives nothing.
    fn blob_finish(&self, writer: i64, commit: bool) -> Result<Option<String>>;
    /// From now until the run ends the host accepts on this listening socket and is the run's gate there.
    fn gate_serve(&self, listener: OwnedFd) -> Result<()>;
    /// The caller no longer wants this run.
    fn cancelled(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    thread_local! {
        /// What the last one has left behind.
        pub(super) static WIPED: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_secret_is_not_shown_and_leaves_nothing() {
        let run = testing::Run::new().with_secret("KEY", "hunter22");
        let secret = run.secret("KEY").unwrap();
        assert_eq!(&*secret, b"hunter22");
        assert_eq!(format!("{:?}", Some(&secret)), "Some(Secret(..))");
        assert_eq!(format!("{run:?}").find("hunter22"), None);
        assert_eq!(format!("{run:?}").find("104, 117"), None);
        drop(secret);
        WIPED.with(|wiped| assert_eq!(*wiped.borrow(), [0; 8]));
    }
}

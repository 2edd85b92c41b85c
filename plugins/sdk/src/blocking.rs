//! The kind of plugin whose calls may wait (`SKG_F_BLOCKING`): the host makes each on a thread that it keeps for such calls,
//! and the answer is what the call returns, or comes before it returns ([`Sandbox::run_and_clear`]). The simplest to write, and
//! right for what works on this machine: files, child processes. A call that only waits for something far away costs that
//! thread all the while: [`crate::Storage`] and [`crate::Sandbox`] are for that.

mod sandbox;
mod storage;

pub use sandbox::Sandbox;
pub use storage::Storage;

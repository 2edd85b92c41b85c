//! One process uses a store at a time.

use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, flock, ftruncate};
use rustix::io::{Errno, retry_on_intr};

use crate::beneath;
use crate::fault::{Fault, Result};

pub(super) const LOCK_FILE: &str = "lock";
/// What is in it: the number of the process that has it, with spaces and an end of line behind it.
const HOLDER_BYTES: usize = 32;

/// The right to use the store; ends with this.
#[derive(Debug)]
pub(super) struct Lock(pub(super) OwnedFd);

impl Drop for Lock {
    /// To close it is not enough: a child that this process is just making has the same open file until it executes its
    /// program (flock(2)), and the next one to open the store would find it in use.
    fn drop(&mut self) {
        // An error would be that of a descriptor that is not open.
        let _ = retry_on_intr(|| flock(&self.0, FlockOperation::Unlock));
    }
}

pub(super) fn take_lock(root: &OwnedFd, shown: &str) -> Result<Lock> {
    let lock = match beneath::open_or_create_file(root, LOCK_FILE) {
        Err(Fault::Os {
            errno: Errno::NOSYS | Errno::PERM,
            ..
        }) => {
            return Err(Fault::Precondition(format!(
                "openat2 is refused on {shown}: Linux 5.6 or newer is needed, and a seccomp profile that allows it"
            )));
        }
        other => other?,
    };
    let lock = match retry_on_intr(|| flock(&lock, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Lock(lock),
        Err(Errno::WOULDBLOCK) => {
            let mut holder = [0u8; HOLDER_BYTES];
            let n = beneath::fill_at(&lock, LOCK_FILE, &mut holder, 0).unwrap_or(0);
            let holder = match String::from_utf8_lossy(&holder[..n]).trim() {
                "" => String::new(),
                number => format!(" (process {number})"),
            };
            return Err(Fault::Unavailable(format!(
                "the store {shown} is in use by another skillgate{holder}: stop it, or give this one another root"
            )));
        }
        Err(errno) => return Err(Fault::os("lock", &format!("{shown}/{LOCK_FILE}"))(errno)),
    };
    // Only so that the refusal above can name who holds it: a store whose disk is full opens all the same, so that there is room
    // again when something expires or is deleted. Written over what was there, which most file systems do when they are full, and
    // of one length, so that nothing of another number is left behind it.
    let own = format!("{:<1$}\n", std::process::id(), HOLDER_BYTES - 1);
    if beneath::write_all(&lock.0, LOCK_FILE, own.as_bytes()).is_err() {
        // No number, rather than that of one that has ended.
        let _ = ftruncate(&lock.0, 0);
    }
    Ok(lock)
}

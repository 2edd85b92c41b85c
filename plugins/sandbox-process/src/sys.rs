//! The kernel, one thin wrapper per call: arguments are checked types, an error is an [`io::Error`], nothing is decided
//! here. With `entry.rs` this is all the unsafe code of the crate; the parts are by subject.
#![allow(
    unsafe_code,
    reason = "system calls; each wrapper says why it is sound"
)]

mod credentials;
mod fds;
mod image;
mod keeper;
mod memory;
mod mounts;
mod network;
mod pinned;
mod process;
pub(crate) mod python;
mod scheduling;
mod sockets;

pub(crate) use credentials::*;
pub(crate) use fds::*;
pub(crate) use image::*;
pub(crate) use keeper::*;
pub(crate) use memory::*;
pub(crate) use mounts::*;
pub(crate) use network::*;
pub(crate) use pinned::*;
pub(crate) use process::*;
pub(crate) use scheduling::*;
pub(crate) use sockets::*;

use std::ffi::CString;
use std::io;
use std::path::Path;

/// The result of a system call that gives a count, an id or zero.
fn check(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

/// A path or name for the kernel; an inner NUL is an error, never a cut.
pub(crate) fn cstr(s: impl AsRef<[u8]>) -> io::Result<CString> {
    CString::new(s.as_ref())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte in a path"))
}

/// A file of /proc: the names in it are whoever's who gave them, any bytes, and must not hide the rest.
pub(crate) fn proc_text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// The kernel's unit of memory.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Nanoseconds of CLOCK_MONOTONIC: the one clock that the plugin and the launcher share.
pub(crate) fn now_ns() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is a valid out pointer; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

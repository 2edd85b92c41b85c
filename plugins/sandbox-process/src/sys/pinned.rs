//! Pages that a fork gets its own copy of at once.
//!
//! Otherwise it gets each by a page fault when it first writes to it, which costs up to three times as much. What the forks of one
//! process write to before they do anything of their own is nearly the same each time, so one of them can find it out for all.
//!
//! The kernel copies ahead what is pinned: a device could write to it, and must not find it in the fork (fork(2) does so since
//! Linux 5.12). Buffers that are registered with an io_uring(7) are pinned, for as long as that lives.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use super::memory::{Mapping, NAME};
use super::{check, page_bytes};

/// Addresses of whole pages side by side.
pub(crate) type Pages = Range<usize>;

/// So many bytes of /proc/PID/pagemap are read at once: on the stack, since what is looked for is what is written to.
const READ_BYTES: usize = 2048;
/// An entry of pagemap, and of it: the page is there, a file's, nobody else's (proc_pid_pagemap(5)).
const ENTRY_BYTES: usize = 8;
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

// <linux/io_uring.h>
const IORING_REGISTER_BUFFERS: libc::c_uint = 0;
const IORING_SETUP_R_DISABLED: u32 = 1 << 6;

/// struct io_uring_params. What is not asked for is 0, and what the kernel answers is of no use here.
#[repr(C)]
#[derive(Default)]
struct RingParams {
    entries: [u32; 2],
    flags: u32,
    rest: [u32; 27],
}

/// What a process can write to and a fork would share with it, of its own /proc/PID/maps. No file's, but the one of
/// [`super::have_forks_map_memory`].
pub(crate) fn writable_places(maps: &str) -> Vec<Pages> {
    maps.lines()
        .filter_map(Mapping::of)
        .filter(|mapping| mapping.rights == "rw-p")
        .filter(|mapping| match mapping.name.strip_prefix("/memfd:") {
            Some(name) => name.as_bytes() == NAME.to_bytes(),
            None => ["", "[heap]", "[stack]"].contains(&mapping.name),
        })
        .map(|mapping| mapping.pages)
        .collect()
}

/// The pages in these places that a process has for itself, by its /proc/PID/pagemap: in a fork, those that it has written to.
/// `found` gets them, as many side by side as there are.
pub(crate) fn own_pages(
    places: &[Pages],
    pagemap: &File,
    mut found: impl FnMut(Pages) -> io::Result<()>,
) -> io::Result<()> {
    let page = page_bytes();
    let mut last = 0..0;
    let mut entries = [0; READ_BYTES];
    for place in places {
        let some_pages = READ_BYTES / ENTRY_BYTES * page;
        for start in place.clone().step_by(some_pages) {
            let count = (place.end - start).min(some_pages) / page;
            let entries = &mut entries[..count * ENTRY_BYTES];
            pagemap.read_exact_at(entries, (start / page * ENTRY_BYTES) as u64)?;
            for (at, entry) in (start..)
                .step_by(page)
                .zip(entries.chunks_exact(ENTRY_BYTES))
            {
                let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
                if entry & (PRESENT | OF_FILE | EXCLUSIVE) == PRESENT | EXCLUSIVE {
                    if last.end != at && !last.is_empty() {
                        found(last.clone())?;
                    }
                    if last.end != at {
                        last.start = at;
                    }
                    last.end = at + page;
                }
            }
        }
    }
    if last.is_empty() {
        return Ok(());
    }
    found(last)
}

/// Has forks of this process get copies of these pages, from now on and as long as it lives. They can be written to and are no
/// file's, but the one of [`super::have_forks_map_memory`].
///
/// An error where the host does not let this process have a ring (sysctl kernel.io_uring_disabled, a filter of system calls) or
/// lock so much memory (RLIMIT_MEMLOCK): then nothing has changed. This is about speed alone.
pub(crate) fn have_forks_copy(pages: &[Pages]) -> io::Result<()> {
    let mut params = RingParams {
        // Nothing can be submitted to it, ever.
        flags: IORING_SETUP_R_DISABLED,
        ..RingParams::default()
    };
    // SAFETY: the parameters are the kernel's struct, which it fills in.
    let ring = check(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut params) })?;
    // SAFETY: it is new, and nobody else's; the kernel has set close-on-exec.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let buffers: Vec<libc::iovec> = pages
        .iter()
        .map(|pages| libc::iovec {
            iov_base: pages.start as *mut libc::c_void,
            iov_len: pages.len(),
        })
        .collect();
    // SAFETY: a list of so many. The kernel says so if one is no memory that can be written to, and nobody writes to them: no
    // request can be made.
    check(unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            IORING_REGISTER_BUFFERS,
            buffers.as_ptr(),
            buffers.len(),
        )
    })?;
    // It goes with the process.
    let _ = ring.into_raw_fd();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{self, Fork};

    #[test]
    fn what_a_fork_would_share() {
        for (line, is_one) in [
            ("100000-102000 rw-p 0 00:00 0 ", true),
            ("100000-102000 rw-p 0 00:00 0   [heap]", true),
            ("100000-102000 rw-p 0 00:00 0   [stack]", true),
            (
                "100000-102000 rw-p 0 00:01 7 /memfd:skillgate-memory (deleted)",
                true,
            ),
            ("100000-102000 rw-p 0 00:01 7 /memfd:other (deleted)", false),
            ("100000-102000 rw-p 0 fe:00 12 /usr/lib/x.so", false),
            ("100000-102000 rw-s 0 00:00 0 ", false),
            ("100000-102000 r--p 0 00:00 0 ", false),
            ("100000-102000 r--p 0 00:00 0   [vvar]", false),
            ("100000", false),
        ] {
            let pages = 0x10_0000..0x10_2000;
            let expected = Vec::from_iter(is_one.then_some(pages));
            assert_eq!(writable_places(line), expected, "{line}");
        }
    }

    /// A mapping of this test's own, with something in each page.
    fn written(pages: usize) -> Pages {
        let bytes = pages * page_bytes();
        let (flags, rights) = (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            libc::PROT_READ | libc::PROT_WRITE,
        );
        // SAFETY: a new mapping, which is nobody else's and stays.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: it is that long. Small pages, as what is looked at is one by one.
        unsafe {
            libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE);
            start.cast::<u8>().write_bytes(7, bytes);
        }
        start as usize..start as usize + bytes
    }

    /// What a fork of this process has for itself of these pages, before it has done anything.
    fn own_of_a_fork(place: &Pages) -> Vec<Pages> {
        let Fork::Parent { pid, pidfd } = sys::clone_process(0, None).unwrap() else {
            loop {
                // SAFETY: no arguments. Nothing else may happen in a copy of a process with threads.
                unsafe { libc::pause() };
            }
        };
        let mut found = Vec::new();
        let own = File::open(format!("/proc/{pid}/pagemap")).and_then(|pagemap| {
            own_pages(std::slice::from_ref(place), &pagemap, |pages| {
                found.push(pages);
                Ok(())
            })
        });
        sys::kill_by_pidfd(std::os::fd::AsFd::as_fd(&pidfd)).unwrap();
        sys::wait(pid).unwrap();
        own.unwrap();
        found
    }

    #[test]
    fn a_fork_has_its_own_of_what_is_copied_ahead() {
        let page = page_bytes();
        // More than are looked at in one go.
        let count = READ_BYTES / ENTRY_BYTES + 9;
        let place = written(count);
        let of =
            |pages: Range<usize>| place.start + pages.start * page..place.start + pages.end * page;
        assert_eq!(own_of_a_fork(&place), []);
        let wanted = [of(1..3), of(4..5), of(count - 9 - 1..count - 9 + 1)];
        if let Err(e) = have_forks_copy(&wanted) {
            let hosts = [libc::EPERM, libc::ENOSYS, libc::ENOMEM].map(Some);
            assert!(hosts.contains(&e.raw_os_error()), "{e}");
            println!("not looked at, the host forbids it: {e}");
            return;
        }
        assert_eq!(own_of_a_fork(&place), wanted);
    }

    #[test]
    fn what_cannot_be_written_to_is_not_copied() {
        let pages = written(1);
        // SAFETY: of the mapping above.
        unsafe {
            libc::mprotect(
                pages.start as *mut libc::c_void,
                pages.len(),
                libc::PROT_READ,
            )
        };
        have_forks_copy(std::slice::from_ref(&pages)).unwrap_err();
    }
}

//! The system calls: bytes with descriptors, and waiting for a process by descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use tokio::io::unix::AsyncFd;

use super::frame::FDS_MAX;

/// Buffers that one system call sends.
pub(crate) const PARTS_MAX: usize = 32;

/// Room for the control message of [`FDS_MAX`] descriptors, aligned as a `cmsghdr`.
type Control = [u64; 160];

/// Receives bytes, and the descriptors that come with them; `None` in their place: this process may have no more, and some
/// were lost. 0: the other side has closed.
pub(crate) fn receive(
    socket: &UnixStream,
    buffer: &mut [u8],
    fds: &mut VecDeque<Option<OwnedFd>>,
    flags: i32,
) -> io::Result<usize> {
    let mut control: Control = [0; 160];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    loop {
        // SAFETY: all-zero bytes are a valid msghdr: null pointers with lengths of 0.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>();
        let flags = flags | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: an open descriptor; the message's pointers are to memory that is ours, of the lengths that it says.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        if n < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        let before = fds.len();
        // SAFETY: filled by recvmsg just now.
        unsafe { collect(&message, fds) };
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            // A part of them is of no use to anybody, and room for others.
            fds.truncate(before);
            fds.push_back(None);
        }
        return Ok(n.unsigned_abs());
    }
}

/// Bytes that have been sent to this end of a socket or of a pipe and not been received yet.
pub(crate) fn holds(end: &impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: an open descriptor, and a number that the kernel writes.
    if unsafe { libc::ioctl(end.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Waits until a process has ended (`pidfd`), which is true, or there is something to read at `other`, its end included.
pub(crate) fn ends_before(pidfd: &impl AsFd, other: &impl AsFd) -> io::Result<bool> {
    const FOR_EVER: libc::c_int = -1;
    let readable = |fd: BorrowedFd<'_>| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut both = [readable(pidfd.as_fd()), readable(other.as_fd())];
    // SAFETY: structs that are ours, and their count.
    while unsafe { libc::poll(both.as_mut_ptr(), 2, FOR_EVER) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(both[0].revents != 0)
}

/// # Safety
/// `message` was filled by recvmsg, and nobody has taken its descriptors.
unsafe fn collect(message: &libc::msghdr, fds: &mut VecDeque<Option<OwnedFd>>) {
    // SAFETY: a message with a control buffer, which the macros walk within its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null: a header within the control buffer, which is aligned for it.
        let (level, kind, len) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len,
            )
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: only arithmetic.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: the data of this header.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<i32>();
            for i in 0..len.saturating_sub(before) / size_of::<i32>() {
                // SAFETY: within the length that the kernel wrote.
                let fd = unsafe { data.add(i).read_unaligned() };
                // SAFETY: the kernel made it for us just now.
                fds.push_back(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        // SAFETY: as CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// Why descriptors were not sent ([`are_too_many`]).
pub(crate) const TOO_MANY: &str = "its descriptors were not sent: more of this user's are under way between processes than a \
                                   process may have open (RLIMIT_NOFILE)";

/// The system takes no more descriptors now, and nothing was sent. The socket is as it was (unix(7)).
pub(crate) fn are_too_many(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETOOMANYREFS)
}

/// Sends as much of the parts as goes, with the descriptors at the first byte.
pub(crate) fn send(
    socket: &UnixStream,
    parts: &[&[u8]],
    fds: &[OwnedFd],
    flags: i32,
) -> io::Result<usize> {
    let mut control: Control = [0; 160];
    let vectors: Vec<libc::iovec> = parts
        .iter()
        .take(PARTS_MAX)
        .map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        })
        .collect();
    // SAFETY: all-zero bytes are a valid msghdr: null pointers with lengths of 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len();
    if !fds.is_empty() {
        if fds.len() > FDS_MAX {
            return Err(io::Error::other("too many descriptors at once"));
        }
        let bytes = u32::try_from(size_of_val(fds)).unwrap_or(0);
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: only arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: the control buffer has room for a header and FDS_MAX descriptors.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data = libc::CMSG_DATA(header).cast::<i32>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    let flags = flags | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: an open descriptor; the message's pointers are to memory that lives, of the lengths that it says, and
        // sendmsg only reads it.
        let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        if n >= 0 {
            return Ok(n.unsigned_abs());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reading from it and writing to it wait for nothing any more.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an open descriptor, and numbers.
    let code = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has the runtime watch a descriptor. Must be called inside one.
pub(crate) fn watched<T: AsRawFd + Into<OwnedFd>>(owner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: a type that can be turned into an `OwnedFd` owns one open descriptor, always the same.
    Ok(unsafe { AsyncFd::register(owner) }?)
}

/// Has the runtime watch a descriptor, of whatever kind: for a gateway, which has no unsafe code. Must be called inside one.
///
/// # Errors
/// The kernel's, of a descriptor that cannot be waited for, as a file's.
pub fn watched_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watched(fd)
}

/// A descriptor that becomes readable when the process ends.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) };
    match i32::try_from(fd) {
        // SAFETY: made for us just now.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

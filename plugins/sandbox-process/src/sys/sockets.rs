//! Sockets, and messages over them that carry descriptors (unix(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;
use super::fds::own_fd;

/// An AF_UNIX pair, close-on-exec.
pub(crate) fn socketpair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for the two descriptors.
    let ret = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            kind | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        )
    };
    check(ret.into())?;
    Ok((own_fd(fds[0].into())?, own_fd(fds[1].into())?))
}

/// Writes what fits; never raises SIGPIPE on sockets.
pub(crate) fn send(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads at most `buf.len()` bytes of `buf`.
    check(unsafe {
        libc::send(
            fd.as_raw_fd(),
            buf.as_ptr().cast(),
            buf.len(),
            libc::MSG_NOSIGNAL,
        )
    } as _)
    .map(|n| n as usize)
}

/// The most descriptors that one message may carry.
const MESSAGE_FDS_MAX: usize = 16;
const CONTROL_BYTES: usize = 128;

/// Sends one message with descriptors over a SOCK_SEQPACKET socket.
pub(crate) fn send_message(
    socket: BorrowedFd<'_>,
    data: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_flagged(socket, data, fds, 0)
}

/// The same, but never waits for a reader: `WouldBlock`.
pub(crate) fn try_send_message(
    socket: BorrowedFd<'_>,
    data: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_flagged(socket, data, fds, libc::MSG_DONTWAIT)
}

fn send_flagged(
    socket: BorrowedFd<'_>,
    data: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<()> {
    assert!(fds.len() <= MESSAGE_FDS_MAX);
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let bytes = size_of_val(raw.as_slice());
    let mut control = [0u64; CONTROL_BYTES / 8];
    let mut iov = libc::iovec {
        iov_base: data.as_ptr() as *mut _,
        iov_len: data.len(),
    };
    // SAFETY: an all-zero msghdr is valid (null pointers, zero lengths).
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if !raw.is_empty() {
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: pure arithmetic.
        msg.msg_controllen = unsafe { libc::CMSG_SPACE(bytes as u32) } as _;
        // SAFETY: `control` is aligned for cmsghdr and larger than CMSG_SPACE of MESSAGE_FDS_MAX descriptors (80 bytes),
        // so the first header and its data lie inside it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
            std::ptr::copy_nonoverlapping(
                raw.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                bytes,
            );
        }
    }
    loop {
        // SAFETY: msg points to iov, data and control, all alive during the call.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &msg, libc::MSG_NOSIGNAL | flags) };
        match check(sent as _) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => return other.map(drop),
        }
    }
}

/// Whether it is for lack of a free descriptor ([`receive_message`] then has taken the message away, and closed what came).
pub(crate) fn is_lack_of_files(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EMFILE)
}

/// From now on nobody can send this socket descriptors (unix(7), Linux 6.16). `false`: the kernel is older; what comes is thrown
/// away unseen, and whoever reads it closes it.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    let bytes = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the kernel reads one int.
    let set = unsafe {
        let fd = socket.as_raw_fd();
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            bytes,
        )
    };
    set == 0
}

/// Receives one message. `None`: the other end is closed. A cut message is an error, EMFILE where descriptors lack.
pub(crate) fn receive_message(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    whole(receive(socket, buf, 0)?)
}

/// The same, but it is no error where descriptors lack: what came without one is there.
pub(crate) fn receive_what_fits(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let received = receive(socket, buf, 0)?;
    whole(received.map(|r| Received { lacks: false, ..r }))
}

/// The same, and an error where none is there: others may take it.
pub(crate) fn take_message(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    whole(receive(socket, buf, libc::MSG_DONTWAIT)?)
}

/// A message, as far as it could be taken over.
struct Received {
    bytes: usize,
    fds: Vec<OwnedFd>,
    /// There is room for all that may be sent, so some descriptors could not be installed (unix(7)).
    lacks: bool,
    is_cut: bool,
}

fn whole(received: Option<Received>) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    match received {
        None => Ok(None),
        Some(Received { lacks: true, .. }) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        Some(Received { is_cut: true, .. }) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message was cut",
        )),
        Some(Received { bytes, fds, .. }) => Ok(Some((bytes, fds))),
    }
}

fn receive(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    flags: libc::c_int,
) -> io::Result<Option<Received>> {
    let mut control = [0u64; CONTROL_BYTES / 8];
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: an all-zero msghdr is valid (null pointers, zero lengths).
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL_BYTES as _;
    let n = loop {
        // SAFETY: the kernel writes into buf and control within the lengths given.
        let ret =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &mut msg, libc::MSG_CMSG_CLOEXEC | flags) };
        match check(ret as _) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => break other? as usize,
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel has filled control up to msg_controllen; the CMSG macros stay within it. Each SCM_RIGHTS
    // payload is a list of descriptors that were installed for this call.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&msg);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header)
                        .cast::<RawFd>()
                        .add(i)
                        .read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&msg, header);
        }
    }
    if n == 0 && fds.is_empty() {
        return Ok(None);
    }
    Ok(Some(Received {
        bytes: n,
        fds,
        lacks: msg.msg_flags & libc::MSG_CTRUNC != 0,
        is_cut: msg.msg_flags & libc::MSG_TRUNC != 0,
    }))
}

/// What has been sent over an AF_UNIX socket and is still to be received, with what the kernel needs for it (SIOCOUTQ, unix(7)).
pub(crate) fn unread_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) }.into())?;
    Ok(bytes as usize)
}

/// Ends a socket in both directions, for everybody who holds it.
pub(crate) fn shut_down(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) }.into()).map(drop)
}

/// Says to the other end of a socket that nothing more will come; what it sends can still be read.
pub(crate) fn shut_down_writing(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) }.into()).map(drop)
}

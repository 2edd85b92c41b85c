//! The network of a run: a loopback interface and one listening socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::check;
use super::fds::own_fd;

/// Connections that wait to be accepted: what is sent to them is the kernel's memory, counted for nobody before they are. The
/// kernel cuts it to net.core.somaxconn.
const BACKLOG: libc::c_int = 128;
/// What one of the listener's connections keeps of what a run sends until it is read; the kernel takes twice that, for its own
/// part. On a loopback interface it is read at once, so that more would make nothing faster.
const RECEIVE_BYTES: libc::c_int = 128 << 10;

/// Brings the loopback interface of this network namespace up (netdevice(7)).
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = tcp_socket()?;
    // SAFETY: an all-zero ifreq is valid plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads the name, which is NUL-terminated, and the flags.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) }.into())
        .map(drop)
}

/// A socket that listens on 127.0.0.1.
pub(crate) fn listen_on_loopback(port: u16) -> io::Result<OwnedFd> {
    let socket = tcp_socket()?;
    // SAFETY: an all-zero sockaddr_in is valid plain data.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    let size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let address = std::ptr::from_ref(&address).cast();
    // SAFETY: the address is a sockaddr_in of the size given.
    check(unsafe { libc::bind(socket.as_raw_fd(), address, size) }.into())?;
    let kept = RECEIVE_BYTES;
    let bytes = size_of_val(&kept) as libc::socklen_t;
    // SAFETY: the kernel reads one int.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const kept).cast(),
            bytes,
        )
    };
    // Before it listens: connections have what it has then.
    check(set.into())?;
    // SAFETY: no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) }.into())?;
    Ok(socket)
}

fn tcp_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own_fd(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }.into())
}

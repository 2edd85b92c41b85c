//! Which addresses are this machine's own: those that the kernel's routes deliver here (rtnetlink(7), ip-route(8)). The source
//! of a packet to an address does not tell: to a second address of an interface it is the first one.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{connect, recv, send, socket_with};

const KERNEL: SocketAddrNetlink = SocketAddrNetlink::new(0, 0);

// linux/netlink.h, linux/rtnetlink.h
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// `struct nlmsghdr`; `struct rtmsg`, and where in it the type of a route is; `struct rtattr`.
const HEAD_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
const ROUTE_TYPE_AT: usize = 7;
const ATTRIBUTE_BYTES: usize = 4;

/// Where the kernel is asked. One question after the other, each of two system calls that wait for nothing.
#[derive(Debug)]
pub(super) struct Routes(OwnedFd);

impl Routes {
    /// # Errors
    /// The socket's: no file left, or a host that lets this process have no `AF_NETLINK`.
    pub(super) fn open() -> Result<Self, Errno> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, None)?;
        connect(&socket, &KERNEL)?;
        Ok(Routes(socket))
    }

    /// Whether a packet to an address stays on this machine. Where no route leads to it none does, and a connection fails.
    ///
    /// # Errors
    /// The socket's, and what the kernel says other than that no route leads there.
    pub(super) fn lead_here(&self, address: IpAddr) -> Result<bool, Errno> {
        send(&self.0, &question(address), SendFlags::DONTWAIT)?;
        let mut answer = [0; 1024];
        // The kernel has answered by now: it does so within the call that asks.
        let (bytes, _) = recv(&self.0, &mut answer, RecvFlags::DONTWAIT)?;
        is_local(answer.get(..bytes).unwrap_or(&answer))
    }
}

/// `RTM_GETROUTE`: which way a packet to this address takes.
fn question(address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
    };
    let attribute_bytes = ATTRIBUTE_BYTES + octets.len();
    let bytes = HEAD_BYTES + ROUTE_BYTES + attribute_bytes;
    let mut text = Vec::with_capacity(bytes);
    text.extend((bytes as u32).to_ne_bytes());
    text.extend(RTM_GETROUTE.to_ne_bytes());
    text.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and sender: this socket has one question at a time, and the kernel alone at its other end.
    text.extend([0; 8]);
    // rtm_family, rtm_dst_len; the rest says nothing.
    text.extend([family, octets.len() as u8 * 8]);
    text.extend([0; ROUTE_BYTES - 2]);
    text.extend((attribute_bytes as u16).to_ne_bytes());
    text.extend(RTA_DST.to_ne_bytes());
    text.extend(octets);
    text
}

/// What the kernel says to that.
fn is_local(answer: &[u8]) -> Result<bool, Errno> {
    let body = answer.get(HEAD_BYTES..).ok_or(Errno::BADMSG)?;
    match u16::from_ne_bytes([answer[4], answer[5]]) {
        RTM_NEWROUTE => {
            let kind = body.get(ROUTE_TYPE_AT).ok_or(Errno::BADMSG)?;
            Ok(*kind == RTN_LOCAL)
        }
        NLMSG_ERROR => {
            let code = body.first_chunk().ok_or(Errno::BADMSG)?;
            match Errno::from_raw_os_error(-i32::from_ne_bytes(*code)) {
                // None; one that is unreachable, prohibited or a black hole; a host without this family.
                Errno::NETUNREACH
                | Errno::HOSTUNREACH
                | Errno::ACCESS
                | Errno::INVAL
                | Errno::AFNOSUPPORT
                | Errno::OPNOTSUPP => Ok(false),
                error => Err(error),
            }
        }
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses() {
        let routes = Routes::open().unwrap();
        for (address, is_own) in [
            ("127.0.0.1", true),
            // A packet to it would come from 127.0.0.1.
            ("127.0.0.2", true),
            ("127.255.255.254", true),
            ("1.1.1.1", false),
            ("2606:4700::1111", false),
            ("8.8.8.8", false),
        ] {
            let said = routes.lead_here(address.parse().unwrap());
            assert_eq!(said, Ok(is_own), "{address}");
        }
    }

    #[test]
    fn what_is_no_answer_is_not_taken_for_one() {
        let message = |kind: u16, body: &[u8]| {
            let head = [&[0; 4], &kind.to_ne_bytes()[..], &[0; 10]].concat();
            is_local(&[head, body.to_vec()].concat())
        };
        let error = |errno: Errno| message(NLMSG_ERROR, &(-errno.raw_os_error()).to_ne_bytes());
        assert_eq!(message(RTM_NEWROUTE, &[2, 32, 0, 0, 0, 0, 0, 2]), Ok(true));
        assert_eq!(message(RTM_NEWROUTE, &[2, 32, 0, 0, 0, 0, 0, 1]), Ok(false));
        assert_eq!(error(Errno::NETUNREACH), Ok(false));
        for unknown in [Errno::NOBUFS, Errno::NOMEM, Errno::PERM] {
            assert_eq!(error(unknown), Err(unknown));
        }
        for broken in [
            message(RTM_NEWROUTE, &[2, 32]),
            message(NLMSG_ERROR, &[1]),
            message(3, &[0; 16]),
            is_local(&[]),
            is_local(&[0; HEAD_BYTES - 1]),
        ] {
            assert_eq!(broken, Err(Errno::BADMSG));
        }
    }
}

//! What a child of a zygote is made of, before anything of it lives: the ends of its sockets and pipes, and its order.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::nursery::Maker;
use super::zygotes::Ordered;
use crate::cgroup::RunGroup;
use crate::sys;
use crate::zygote::Order;

/// The ends that are not the child's own.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) report: OwnedFd,
    pub(super) notice: OwnedFd,
    pub(super) orders: OwnedFd,
    /// For the plugin: orders, channel, output, notice.
    pub(super) plugins: [OwnedFd; 4],
}

/// The ends that are the child's, and what else it is told.
pub(super) struct Theirs {
    orders: OwnedFd,
    channel: OwnedFd,
    output: OwnedFd,
    report: OwnedFd,
}

impl Theirs {
    pub(super) fn make() -> io::Result<(Sockets, Self)> {
        let (orders, orders_in) = sys::socketpair(libc::SOCK_SEQPACKET)?;
        let (channel, channel_in) = sys::socketpair(libc::SOCK_STREAM)?;
        let (output, output_in) = sys::pipe()?;
        let (notice, notice_in) = sys::socketpair(libc::SOCK_SEQPACKET)?;
        let (report, report_in) = sys::pipe()?;
        sys::set_nonblocking(report.as_fd())?;
        sys::set_nonblocking(output.as_fd())?;
        let sockets = Sockets {
            report,
            notice: notice_in,
            orders: orders.try_clone()?,
            plugins: [orders, channel, output, notice],
        };
        let theirs = Theirs {
            orders: orders_in,
            channel: channel_in,
            output: output_in,
            report: report_in,
        };
        Ok((sockets, theirs))
    }

    /// Orders it.
    pub(super) fn send(&self, maker: &Maker, child: &Ordered) -> io::Result<()> {
        let group = child.group.as_ref();
        let entrance = group.map(RunGroup::entrance).unwrap_or_default();
        let order = Order {
            spec: child.spec.clone(),
            outer_id: child.lease.id.outer(),
            user: child.lease.user.is_some(),
            born_in: entrance.born_in.is_some(),
            idle_ns: child.idle_ns,
        };
        let lease = &child.lease;
        sys::give(self.output.as_fd(), lease.id.outer());
        let mut fds = vec![lease.network.as_fd(), lease.ipc.as_fd()];
        fds.extend(lease.user.as_ref().map(AsFd::as_fd));
        fds.extend([&self.orders, &self.channel, &self.output, &self.report].map(AsFd::as_fd));
        fds.extend(entrance.born_in);
        fds.extend(entrance.tasks);
        sys::send_message(maker.control.as_fd(), &serde_json::to_vec(&order)?, &fds)
    }
}

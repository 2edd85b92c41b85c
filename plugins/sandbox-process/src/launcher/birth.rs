//! What a child of a zygote is made of: the ends of its sockets and pipes, and its init, which the launcher makes itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::sock_filter;

use super::leases::Lease;
use super::nursery::Zygote;
use super::run::Process;
use super::zygotes::Ordered;
use crate::cgroup::Entrance;
use crate::isolate::Ground;
use crate::isolate::init::{Init, init_in};
use crate::sys::{self, Fork};
use crate::wire::{PoolNeeds, RunSpec};
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
    /// Between its two processes.
    progress: [OwnedFd; 2],
    entrance: Entrance,
    spec: RunSpec,
}

impl Theirs {
    /// A child that fits `needs`, before anything of it lives.
    pub(super) fn make(needs: &PoolNeeds, entrance: Entrance) -> io::Result<(Sockets, Self)> {
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
            progress: sys::socketpair(libc::SOCK_SEQPACKET)?.into(),
            entrance,
            spec: RunSpec {
                max_pids: needs.limits.pids,
                memory_bytes: needs.limits.memory_bytes,
                disk_bytes: needs.disk_bytes,
                disk_inodes: needs.disk_inodes,
                ..RunSpec::default()
            },
        };
        Ok((sockets, theirs))
    }

    /// Makes its init: a copy of the launcher that is born in the zygote's mount namespace and never in the launcher's own.
    /// `home` is the launcher's mount namespace.
    pub(super) fn bear_init(
        &self,
        ground: &Ground,
        filter: &[sock_filter],
        zygote: &Zygote,
        lease: &Lease,
        home: BorrowedFd<'_>,
    ) -> io::Result<Process> {
        sys::enter_namespace(zygote.pidfd.as_fd(), libc::CLONE_NEWNS)?;
        let born_in = self.entrance.born_in.as_ref().map(AsFd::as_fd);
        let born = sys::clone_process(init_in(ground), born_in);
        if let Ok(Fork::Child) = born {
            let init = Init {
                ground,
                spec: &self.spec,
                outer_id: lease.outer_id,
                entrance: &self.entrance,
                network: lease.network.as_fd(),
                ipc: lease.ipc.as_fd(),
                user: lease.user.as_ref().map(AsFd::as_fd),
                report: self.report.as_fd(),
                progress: self.progress[1].as_fd(),
                filter,
            };
            // Nothing may ever return into the launcher's code, not even a panic.
            let become_init = std::panic::AssertUnwindSafe(|| init.become_init());
            let Err(_) = std::panic::catch_unwind(become_init);
            sys::exit_now(124)
        }
        // In any case: every path that the plugin names is one of here.
        sys::enter_namespace(home, libc::CLONE_NEWNS)?;
        match born? {
            Fork::Parent { pid, pidfd } => Ok(Process { pid, pidfd }),
            Fork::Child => unreachable!("a child does not come here"),
        }
    }

    /// Orders process 2.
    pub(super) fn send(&self, zygote: &Zygote, child: &Ordered) -> io::Result<()> {
        let order = Order {
            spec: self.spec.clone(),
            outer_id: child.lease.outer_id,
            user: child.lease.user.is_some(),
            born_in: self.entrance.born_in.is_some(),
            idle_ns: child.idle_ns,
        };
        let mut fds = vec![
            child.init.pidfd.as_fd(),
            self.progress[0].as_fd(),
            self.orders.as_fd(),
            self.channel.as_fd(),
            self.output.as_fd(),
            self.report.as_fd(),
        ];
        fds.extend(self.entrance.born_in.as_ref().map(AsFd::as_fd));
        fds.extend(self.entrance.tasks.iter().map(AsFd::as_fd));
        sys::send_message(zygote.control.as_fd(), &serde_json::to_vec(&order)?, &fds)
    }
}

//! A zygote's child, from its birth to the first line of user code.
//!
//! It is born as process 1 of its pid namespace with the launcher's rights, leaves those behind for a user namespace of the
//! run's own, builds what the run will live in, and seals itself: from there on it is what the run will be, and may do
//! what the run may. Then it becomes two ([`sys::divide`]), of which process 1 only reaps. Process 2 rehearses and waits.
//! What its run is given on top is put up by the launcher, from outside.
//!
//! Between the activation and the job's first byte every step is one that needs to know the run: the rest is done ahead.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libc::sock_filter;

use super::interior::Interior;
use super::{
    At as _, Failure, Ground, INSIDE_ID, Step, die_first, drop_rights, give_up, new_proc,
    own_rules, tell,
};
use crate::cgroup::Entrance;
use crate::sys::{self, Poll, python};
use crate::wire::{Report, RunSpec};
use crate::zygote::{READY, REHEARSAL_FDS};
use crate::{landlock, seccomp};

/// Where the lowest of the descriptors that a child keeps for itself goes: out of the way of those with fixed numbers.
const KEPT_FD_MIN: RawFd = 16;

/// The longest order of a waiting child: a [`RunSpec`] without mounts.
const ORDERS_BYTES_MAX: usize = 1024;

/// What is the same for every child of a zygote, worked out before the first.
pub(crate) struct Inside {
    ground: Ground,
    name: CString,
    /// The last layer, for runs without and with network.
    filters: [Vec<sock_filter>; 2],
}

impl Inside {
    pub(crate) fn prepare(ground: Ground) -> io::Result<Self> {
        let name = ground
            .interpreter
            .program
            .rsplit('/')
            .next()
            .unwrap_or_default();
        Ok(Inside {
            name: sys::cstr(name)?,
            ground,
            filters: [false, true].map(seccomp::last_of_child),
        })
    }

    /// The launcher's pidfd.
    pub(crate) fn launcher(&self) -> BorrowedFd<'_> {
        self.ground.launcher.as_fd()
    }

    /// What a child is born in. Its network, ipc and user namespaces are leased, and its mount namespace it makes itself, once
    /// it is in that user namespace: to have one before and leave it would wait for every processor of the host.
    pub(crate) fn born_in(&self) -> libc::c_int {
        let always = libc::CLONE_NEWPID | libc::CLONE_NEWUTS;
        if self.ground.drops_groups {
            always
        } else {
            // An ordinary user's takes something away (`build`) that in a user namespace of the run's own cannot be.
            always | libc::CLONE_NEWNS
        }
    }
}

/// The namespaces that are leased to a run.
pub(crate) struct Leased {
    pub(crate) network: OwnedFd,
    pub(crate) ipc: OwnedFd,
    /// `None`: excused.
    pub(crate) user: Option<OwnedFd>,
}

/// One child: what has come with its order.
pub(crate) struct Child {
    pub(crate) inside: &'static Inside,
    /// What is known of its run.
    pub(crate) spec: RunSpec,
    /// The id of the run in the launcher's user namespace, where it has no namespace of its own.
    pub(crate) outer_id: u32,
    /// How long it waits for a run before it rehearses.
    pub(crate) idle_ns: u64,
    pub(crate) orders: OwnedFd,
    pub(crate) channel: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) report: OwnedFd,
    /// The way into its group, where it was not born there.
    pub(crate) tasks: Vec<OwnedFd>,
}

impl Child {
    /// In a copy of the zygote, that has just been made with [`Inside::born_in`]. Returns in process 2.
    pub(crate) fn be_born(mut self, leased: Leased) -> Self {
        let ready = self
            .build(leased)
            .and_then(|()| self.seal())
            .and_then(|()| sys::divide(self.report.as_fd()).at(Step::Init))
            .and_then(|()| self.wait_ready());
        if let Err(failure) = ready {
            // Where that is process 1, all ends with it; where it is process 2, process 1 sees it end.
            give_up(self.report.as_fd(), &failure)
        }
        python::after_fork_child();
        self
    }

    fn build(&self, leased: Leased) -> Result<(), Failure> {
        let ground = &self.inside.ground;
        // First of all, so that no later mistake can reach another child's socket or the zygote's.
        self.close_inherited(&leased).at(Step::Descriptors)?;
        sys::set_process_name(c"skillgate-init");
        let entrance = Entrance {
            born_in: None,
            tasks: self.tasks.iter().map(AsFd::as_fd).collect(),
        };
        entrance.enter().at(Step::JoinGroup)?;
        sys::unshare(libc::CLONE_NEWCGROUP).at(Step::CgroupNamespace)?;
        sys::enter_namespace(leased.network.as_fd(), libc::CLONE_NEWNET).at(Step::Network)?;
        sys::enter_namespace(leased.ipc.as_fd(), libc::CLONE_NEWIPC).at(Step::Network)?;
        // The session is the zygote's, which has no terminal; that of the program is its own (`wait_ready`).
        sys::new_process_group().at(Step::Session)?;
        sys::set_hostname("sandbox").at(Step::Hostname)?;
        let proc = new_proc(true).at(Step::Proc)?;
        if !ground.drops_groups {
            // The zygote's was in sight, without which an ordinary user gets none; with it goes all that it shows.
            sys::detach(c"/proc").at(Step::Proc)?;
        }
        leave_rights(self.inside, &leased).at(Step::Identity)?;
        sys::attach(proc.as_fd(), "/proc").at(Step::Proc)?;
        become_user(leased.user.is_some(), self.outer_id).at(Step::Identity)?;
        self.interior().mount_writable(None).at(Step::Writable)
    }

    /// The last steps. The launcher opens the gate of a run with network, and puts up what else a run is given.
    fn seal(&self) -> Result<(), Failure> {
        let (ground, network) = (&self.inside.ground, self.spec.network);
        // Who has this may enter it, whoever may look into this process.
        let mounts = sys::open("/proc/self/ns/mnt", libc::O_RDONLY).at(Step::Mounts)?;
        sys::set_no_new_privs().at(Step::NoNewPrivileges)?;
        if let Some(abi) = ground.landlock_abi {
            let rules = own_rules(ground, abi, network).at(Step::Landlock)?;
            landlock::enter(abi, rules.as_fd()).at(Step::Landlock)?;
        }
        drop_rights().at(Step::Capabilities)?;
        // Nothing and nobody looks into it.
        ground.die_with_launcher().at(Step::ParentDeath)?;
        sys::install_filter(&self.inside.filters[usize::from(network)]).at(Step::Filter)?;
        sys::send_message(self.orders.as_fd(), READY, &[mounts.as_fd()]).at(Step::Mounts)
    }

    fn interior(&self) -> Interior<'_> {
        Interior {
            ground: &self.inside.ground,
            spec: &self.spec,
        }
    }

    fn close_inherited(&self, leased: &Leased) -> io::Result<()> {
        let mut keep = vec![
            leased.network.as_raw_fd(),
            leased.ipc.as_raw_fd(),
            self.orders.as_raw_fd(),
            self.channel.as_raw_fd(),
            self.output.as_raw_fd(),
            self.report.as_raw_fd(),
            self.inside.ground.launcher.as_raw_fd(),
        ];
        keep.extend(leased.user.as_ref().map(AsRawFd::as_raw_fd));
        keep.extend(self.tasks.iter().map(AsRawFd::as_raw_fd));
        sys::close_all_from(3, &keep)?;
        // Nothing that is opened from here on gets a number that is given out below.
        sys::dup_to(0, 3)
    }

    /// Process 2 has a place of its own for everything.
    fn wait_ready(&mut self) -> Result<(), Failure> {
        sys::new_session().at(Step::Standard)?;
        sys::set_umask(0o022);
        sys::set_process_name(c"skillgate-idle");
        std::env::set_current_dir("/workspace").at(Step::Standard)?;
        for fd in [
            &mut self.orders,
            &mut self.channel,
            &mut self.output,
            &mut self.report,
        ] {
            *fd = sys::dup_above(fd.as_fd(), KEPT_FD_MIN).at(Step::Descriptors)?;
        }
        self.place_descriptors().at(Step::Descriptors)
    }

    /// Where the guest finds itself: 0 is /dev/null, 1 and 2 are the output, 3 the channel.
    fn place_descriptors(&self) -> io::Result<()> {
        let null = sys::open("/dev/null", libc::O_RDONLY)?;
        sys::dup_to(null.as_raw_fd(), 0)?;
        self.place_output()?;
        sys::dup_to_own(self.channel.as_raw_fd(), 3)
    }

    fn place_output(&self) -> io::Result<()> {
        sys::dup_to(self.output.as_raw_fd(), 1)?;
        sys::dup_to(self.output.as_raw_fd(), 2)
    }

    /// Whether no run has wanted it for as long as it is told to wait.
    pub(crate) fn is_idle(&self) -> bool {
        let mut orders = [Poll::readable(self.orders.as_fd())];
        sys::poll(&mut orders, Some(self.idle_ns)).is_ok() && !orders[0].is_ready()
    }

    /// In the end: see [`crate::zygote::activate`].
    pub(crate) fn activate(mut self) {
        match self.try_activate() {
            // The numbers of its descriptors are free for the run: nothing of this may close them when it goes.
            Ok(true) => std::mem::forget(self),
            // Never used.
            Ok(false) => sys::exit_now(0),
            Err(failure) => give_up(self.report.as_fd(), &failure),
        }
    }

    fn try_activate(&mut self) -> Result<bool, Failure> {
        self.place_output().at(Step::Descriptors)?;
        // What is open goes before there is a run, which would wait for it.
        let keep = [self.orders.as_raw_fd(), self.report.as_raw_fd()];
        sys::close_all_from(4, &keep).at(Step::Descriptors)?;
        let Some(spec) = receive(self.orders.as_fd()).at(Step::Descriptors)? else {
            return Ok(false);
        };
        self.spec = spec;
        self.interior().set_limits().at(Step::Limits)?;
        // What a program of its own would be called.
        sys::set_process_name(&self.inside.name);
        // The last word that is believed: process 1 has the memory of the run.
        tell(self.report.as_fd(), &Report::Begun);
        sys::close_all_from(4, &[]).at(Step::Descriptors)?;
        Ok(true)
    }
}

/// The run that a child is for. `None`: there will be none.
fn receive(orders: BorrowedFd<'_>) -> io::Result<Option<RunSpec>> {
    let mut buf = [0; ORDERS_BYTES_MAX];
    Ok(match sys::receive_message(orders, &mut buf)? {
        Some((n, _)) => Some(serde_json::from_slice(&buf[..n])?),
        None => None,
    })
}

/// What a run's activation does before anything else, without consequences.
fn rehearse_orders() -> io::Result<()> {
    let (orders, from) = sys::socketpair(libc::SOCK_SEQPACKET)?;
    let spec = RunSpec {
        run_id: "run_00000000000000000000000000000000".into(),
        ..RunSpec::default()
    };
    sys::send_message(from.as_fd(), &serde_json::to_vec(&spec)?, &[])?;
    receive(orders.as_fd()).map(drop)
}

/// The part of a rehearsal that is not Python, and what the rest needs: there is a socket, and until the run is there 1 and 2
/// lead to a pipe that ends here.
pub(crate) fn place_rehearsal() -> io::Result<()> {
    rehearse_orders()?;
    let (nowhere, to_nowhere) = sys::pipe()?;
    let (nowhere, to_nowhere) = (above(nowhere)?, above(to_nowhere)?);
    let (one, other) = sys::socketpair(libc::SOCK_STREAM)?;
    let (one, other) = (above(one)?, above(other)?);
    sys::dup_to(to_nowhere.as_raw_fd(), 1)?;
    sys::dup_to(to_nowhere.as_raw_fd(), 2)?;
    sys::dup_to(one.as_raw_fd(), REHEARSAL_FDS[0])?;
    sys::dup_to(other.as_raw_fd(), REHEARSAL_FDS[1])?;
    // Its reading end lives as long as the process waits, so that the rehearsal can write.
    std::mem::forget(nowhere);
    Ok(())
}

/// The same descriptor, out of the way of those with fixed numbers.
pub(crate) fn above(fd: OwnedFd) -> io::Result<OwnedFd> {
    sys::dup_above(fd.as_fd(), KEPT_FD_MIN)
}

/// Into the run's own user namespace, with a mount namespace that belongs to it: until then its mounts may be the zygote's.
fn leave_rights(inside: &Inside, leased: &Leased) -> io::Result<()> {
    if inside.ground.drops_groups {
        sys::drop_groups()?;
    }
    sys::set_securebits(sys::SECURE_NO_SETUID_FIXUP)?;
    if let Some(user) = &leased.user {
        sys::enter_namespace(user.as_fd(), libc::CLONE_NEWUSER)?;
    }
    if leased.user.is_some() || inside.born_in() & libc::CLONE_NEWNS == 0 {
        sys::unshare(libc::CLONE_NEWNS)?;
    }
    Ok(())
}

/// In the run's user namespace, if it has one: becomes its user.
fn become_user(namespace: bool, outer_id: u32) -> io::Result<()> {
    // Again: what was said in the namespace that has been left does not count here.
    sys::set_securebits(sys::SECURE_NO_SETUID_FIXUP)?;
    let id = if namespace { INSIDE_ID } else { outer_id };
    sys::set_gid(id)?;
    sys::set_uid(id)?;
    // Dumpable, since else /proc/self is not one's own.
    sys::set_dumpable(true)?;
    die_first()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RUN_ID_BYTES_MAX;

    #[test]
    fn the_longest_order_fits() {
        let spec = RunSpec {
            run_id: "x".repeat(RUN_ID_BYTES_MAX),
            deadline_ns: u64::MAX,
            max_pids: u32::MAX,
            cpu_ms: u64::MAX,
            memory_bytes: u64::MAX,
            disk_bytes: u64::MAX,
            disk_inodes: u64::MAX,
            mounts: Vec::new(),
            network: false,
        };
        let message = serde_json::to_vec(&spec).unwrap();
        assert!(message.len() <= ORDERS_BYTES_MAX, "{}", message.len());
    }
}

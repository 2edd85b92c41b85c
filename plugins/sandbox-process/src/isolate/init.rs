//! Process 1 of a zygote's child: a copy of the launcher, a fraction of a Python's size, born among the zygote's mounts.
//!
//! It leaves the launcher's rights behind for a user namespace of the run's own and builds what the run will live in.
//! When process 2 has entered that, it seals itself, and from there on only keeps the namespace. The launcher ends it when process 2 has
//! ended, and with it all that process 2 has left behind.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::sock_filter;

use super::interior::Interior;
use super::{
    At as _, Failure, Ground, INSIDE_ID, Step, close_ways_to_rights, give_up, new_proc, own_rules,
};
use crate::cgroup::Entrance;
use crate::sys;
use crate::wire::RunSpec;

/// What it is born in. Its network, ipc and user namespaces are leased, and its mount namespace it makes itself, once it is
/// in that user namespace: to have one before and leave it would wait for every processor of the host.
pub(crate) fn init_in(ground: &Ground) -> libc::c_int {
    let always = libc::CLONE_NEWPID | libc::CLONE_NEWUTS;
    if ground.drops_groups {
        always
    } else {
        // An ordinary user's takes something away (`build`) that in a user namespace of the run's own cannot be.
        always | libc::CLONE_NEWNS
    }
}

/// What process 1 and 2 say to each other, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Word {
    /// Process 1: what there is to enter is in place.
    Built = b'b',
    /// Process 2: it has entered.
    Entered = b'e',
    /// Process 1: it has no right left.
    Sealed = b's',
}

/// One to be.
pub(crate) struct Init<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) spec: &'a RunSpec,
    /// The id of the run in the launcher's user namespace, where it has no namespace of its own.
    pub(crate) outer_id: u32,
    pub(crate) entrance: &'a Entrance,
    pub(crate) network: BorrowedFd<'a>,
    pub(crate) ipc: BorrowedFd<'a>,
    /// `None`: excused.
    pub(crate) user: Option<BorrowedFd<'a>>,
    pub(crate) report: BorrowedFd<'a>,
    /// To process 2 and back.
    pub(crate) progress: BorrowedFd<'a>,
    /// [`crate::seccomp::of_init`]
    pub(crate) filter: &'a [sock_filter],
}

impl Init<'_> {
    /// For a process that has just been made with [`init_in`].
    pub(crate) fn become_init(&self) -> ! {
        match self.build().and_then(|()| self.seal()) {
            Ok(()) => loop {
                // Without a time and without a descriptor: no more than its end ends it.
                let _ = sys::poll(&mut [], None);
            },
            // Process 2 ends with it.
            Err(failure) => give_up(self.report, &failure),
        }
    }

    fn build(&self) -> Result<(), Failure> {
        // First of all, so that no later mistake can reach another child's socket or the launcher's.
        self.close_inherited().at(Step::Descriptors)?;
        sys::set_process_name(c"skillgate-init");
        self.entrance.enter().at(Step::JoinGroup)?;
        sys::unshare(libc::CLONE_NEWCGROUP).at(Step::CgroupNamespace)?;
        sys::enter_namespace(self.network, libc::CLONE_NEWNET).at(Step::Network)?;
        sys::enter_namespace(self.ipc, libc::CLONE_NEWIPC).at(Step::Network)?;
        sys::new_session().at(Step::Session)?;
        sys::set_hostname("sandbox").at(Step::Hostname)?;
        let proc = new_proc(true).at(Step::Proc)?;
        if !self.ground.drops_groups {
            // The zygote's was in sight, without which an ordinary user gets none; with it goes all that it shows.
            sys::detach(c"/proc").at(Step::Proc)?;
        }
        self.leave_rights().at(Step::Identity)?;
        sys::attach(proc.as_fd(), "/proc").at(Step::Proc)?;
        let owner = become_user(self.user.is_some(), self.outer_id).at(Step::Identity)?;
        self.interior().mount_writable(owner).at(Step::Writable)
    }

    fn seal(&self) -> Result<(), Failure> {
        tell(self.progress, Word::Built).at(Step::Init)?;
        // Until then it can be looked into, which is what the kernel asks of one whose namespaces others may enter.
        if !hear(self.progress, Word::Entered).at(Step::Init)? {
            // Its process 2 is gone, or has said why.
            sys::exit_now(127);
        }
        self.ground.die_with_launcher().at(Step::ParentDeath)?;
        let interior = self.interior();
        interior.set_common_limits().at(Step::Limits)?;
        interior.set_limits().at(Step::Limits)?;
        sys::set_no_new_privs().at(Step::NoNewPrivileges)?;
        if let Some(abi) = self.ground.landlock_abi {
            let rules = own_rules(self.ground, abi, false).at(Step::Landlock)?;
            sys::landlock_enter(rules.as_fd()).at(Step::Landlock)?;
        }
        close_ways_to_rights().at(Step::Capabilities)?;
        sys::drop_capabilities().at(Step::Capabilities)?;
        // The kernel reaps for a process that does not want to hear of it.
        sys::ignore_signals(&[libc::SIGCHLD]).at(Step::Standard)?;
        tell(self.progress, Word::Sealed).at(Step::Init)?;
        sys::close_all_from(0, &[self.report.as_raw_fd()]).at(Step::Descriptors)?;
        sys::install_filter(self.filter).at(Step::Filter)
    }

    fn interior(&self) -> Interior<'_> {
        Interior {
            ground: self.ground,
            spec: self.spec,
        }
    }

    fn close_inherited(&self) -> io::Result<()> {
        let mut keep = vec![
            self.report.as_raw_fd(),
            self.progress.as_raw_fd(),
            self.network.as_raw_fd(),
            self.ipc.as_raw_fd(),
            self.ground.launcher.as_raw_fd(),
        ];
        keep.extend(self.user.map(|user| user.as_raw_fd()));
        keep.extend(self.entrance.tasks.iter().map(AsRawFd::as_raw_fd));
        sys::close_all_from(4, &keep)
    }

    /// Into the run's own user namespace, with a mount namespace that belongs to it: until then its mounts may be the
    /// zygote's.
    fn leave_rights(&self) -> io::Result<()> {
        if self.ground.drops_groups {
            sys::drop_groups()?;
        }
        sys::set_securebits(sys::SECURE_NO_SETUID_FIXUP)?;
        if let Some(user) = self.user {
            sys::enter_namespace(user, libc::CLONE_NEWUSER)?;
        }
        if self.user.is_some() || init_in(self.ground) & libc::CLONE_NEWNS == 0 {
            sys::unshare(libc::CLONE_NEWNS)?;
        }
        Ok(())
    }
}

/// In the run's user namespace, if it has one: becomes its user. Gives the id.
pub(super) fn become_user(namespace: bool, outer_id: u32) -> io::Result<u32> {
    // Again: what was said in the namespace that has been left does not count here.
    sys::set_securebits(sys::SECURE_NO_SETUID_FIXUP)?;
    let id = if namespace { INSIDE_ID } else { outer_id };
    sys::set_gid(id)?;
    sys::set_uid(id)?;
    // Dumpable, since else /proc/self is not one's own.
    sys::set_dumpable(true)?;
    // The run's processes are the first to be killed when the host is out of memory.
    std::fs::write("/proc/self/oom_score_adj", "900")?;
    Ok(id)
}

pub(super) fn tell(progress: BorrowedFd<'_>, word: Word) -> io::Result<()> {
    sys::write(progress, &[word as u8]).map(drop)
}

/// Waits for the other's word. `false`: it has ended, or says something else.
pub(super) fn hear(progress: BorrowedFd<'_>, word: Word) -> io::Result<bool> {
    let mut said = [0];
    Ok(sys::read(progress, &mut said)? == 1 && said[0] == word as u8)
}

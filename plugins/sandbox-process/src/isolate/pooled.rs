//! A child of a zygote, from its birth to the first line of user code.
//!
//! Process 1 (init) leaves the launcher's rights behind for a user namespace of the run's own, builds what both live in,
//! makes process 2 and seals itself. Process 2 rehearses and waits. All that it still may is to mount in its own mount
//! namespace, which is how it puts up what the run has been given; then it seals itself too. No byte of a job has been
//! read by then, and init's seal has been waited for: user code never has a neighbour with rights.
//!
//! Between the activation and the job's first byte every step is one that needs to know the run: the rest is done ahead.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libc::sock_filter;

use super::{
    At as _, Failure, GATE_PORT, Ground, INSIDE_ID, Isolation, Step, close_ways_to_rights, new_proc,
};
use crate::cgroup::Entrance;
use crate::landlock;
use crate::root::WRITABLE;
use crate::seccomp;
use crate::sys::{self, Fork, python};
use crate::wire::{Report, RunSpec};
use crate::zygote::REHEARSAL_FDS;

/// Where the lowest of the descriptors that a child keeps for itself goes: out of the way of those with fixed numbers.
const KEPT_FD_MIN: RawFd = 16;

/// What is the same for every child of a zygote, worked out before the first.
pub(crate) struct Inside {
    ground: Ground,
    name: CString,
    /// For runs without and with network.
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
            filters: [seccomp::program(false), seccomp::program(true)],
        })
    }
}

/// One child: what has come with its order.
pub(crate) struct Child {
    pub(crate) spec: RunSpec,
    pub(crate) outer_id: u32,
    pub(crate) orders: OwnedFd,
    pub(crate) channel: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) report: OwnedFd,
    pub(crate) notice: OwnedFd,
    pub(crate) network: OwnedFd,
    pub(crate) ipc: OwnedFd,
    /// `None`: excused.
    pub(crate) user: Option<OwnedFd>,
    pub(crate) entrance: Entrance,
    /// In process 2.
    pub(crate) later: Option<Later>,
}

/// What process 2 has for its activation.
pub(crate) struct Later {
    inside: Inside,
    /// Ends with a byte when init is sealed.
    init_sealed: OwnedFd,
    /// Landlock rules for a run without network.
    rules: Option<OwnedFd>,
}

impl Child {
    /// From the copy of the zygote to process 2, which is what returns.
    pub(crate) fn be_born(self, inside: Inside) -> Self {
        match self.try_be_born(&inside) {
            Ok(init_sealed) => self.become_waiting(inside, init_sealed),
            Err(failure) => give_up(self.report.as_fd(), &failure),
        }
    }

    /// Process 2 has, in the end, the pipe that tells of init's seal.
    fn try_be_born(&self, inside: &Inside) -> Result<OwnedFd, Failure> {
        // First of all, so that no later mistake can reach another child's socket or the zygote's.
        self.close_inherited(inside).at(Step::Descriptors)?;
        self.entrance.enter().at(Step::JoinGroup)?;
        sys::unshare(libc::CLONE_NEWCGROUP).at(Step::CgroupNamespace)?;
        sys::enter_namespace(self.network.as_fd(), libc::CLONE_NEWNET).at(Step::Network)?;
        sys::enter_namespace(self.ipc.as_fd(), libc::CLONE_NEWIPC).at(Step::Network)?;
        sys::new_session().at(Step::Session)?;
        sys::set_hostname("sandbox").at(Step::Hostname)?;
        let proc = new_proc(true).at(Step::Proc)?;
        if !inside.ground.drops_groups {
            // The zygote's was in sight, without which an ordinary user gets none; with it goes all that it shows.
            sys::detach(c"/proc").at(Step::Proc)?;
        }
        sys::attach(proc.as_fd(), "/proc").at(Step::Proc)?;
        self.prepare_memory(inside).at(Step::Identity)?;
        let owner = self.change_identity(&inside.ground).at(Step::Identity)?;
        let isolation = self.isolation(&inside.ground, &[]);
        isolation.mount_writable(owner).at(Step::Writable)?;
        isolation.set_common_limits().at(Step::Limits)?;
        sys::set_no_new_privs().at(Step::NoNewPrivileges)?;
        close_ways_to_rights().at(Step::Capabilities)?;
        // Nothing and nobody looks into what still has rights.
        isolation.die_with_launcher().at(Step::ParentDeath)?;
        let (init_sealed, seal) = sys::pipe().at(Step::Descriptors)?;
        match sys::clone_process(0, None).at(Step::Program)? {
            Fork::Parent { pid, .. } => self.become_init(inside, pid, seal),
            Fork::Child => {
                drop(seal);
                Ok(init_sealed)
            }
        }
    }

    fn isolation<'a>(&'a self, ground: &'a Ground, mounts: &'a [OwnedFd]) -> Isolation<'a> {
        Isolation {
            ground,
            spec: &self.spec,
            outer_id: self.outer_id,
            entrance: &self.entrance,
            mounts,
            output: self.output.as_fd(),
            channel: self.channel.as_fd(),
            report: self.report.as_fd(),
            notice: Some(self.notice.as_fd()),
            arguments: None,
        }
    }

    fn close_inherited(&self, inside: &Inside) -> io::Result<()> {
        let mut keep = vec![
            self.orders.as_raw_fd(),
            self.channel.as_raw_fd(),
            self.output.as_raw_fd(),
            self.report.as_raw_fd(),
            self.notice.as_raw_fd(),
            self.network.as_raw_fd(),
            self.ipc.as_raw_fd(),
            inside.ground.launcher.as_raw_fd(),
        ];
        keep.extend(self.user.iter().map(AsRawFd::as_raw_fd));
        keep.extend(self.entrance.tasks.iter().map(AsRawFd::as_raw_fd));
        sys::close_all_from(3, &keep)?;
        // Nothing that is opened from here on gets a number that is given out below.
        sys::dup_to(0, 3)
    }

    /// Process 1.
    fn become_init(&self, inside: &Inside, program: libc::pid_t, seal: OwnedFd) -> ! {
        sys::set_process_name(c"skillgate-init");
        let sealed = || -> Result<(), Failure> {
            self.seal(inside, None)?;
            sys::write(seal.as_fd(), b"s").at(Step::Standard)?;
            sys::close_all_from(0, &[self.report.as_raw_fd()]).at(Step::Descriptors)?;
            sys::install_filter(&inside.filters[0]).at(Step::Filter)
        };
        match sealed() {
            Ok(()) => self.isolation(&inside.ground, &[]).reap(program),
            // Process 2 ends with it.
            Err(failure) => give_up(self.report.as_fd(), &failure),
        }
    }

    /// Process 2: has a place of its own for everything, and Python is told that it is another process.
    fn become_waiting(mut self, inside: Inside, init_sealed: OwnedFd) -> Self {
        match self.wait_ready(&inside, init_sealed) {
            Ok(later_fds) => {
                let [init_sealed, rules] = later_fds;
                self.later = init_sealed.map(|init_sealed| Later {
                    inside,
                    init_sealed,
                    rules,
                });
                python::after_fork_child();
                self
            }
            Err(failure) => give_up(self.report.as_fd(), &failure),
        }
    }

    fn wait_ready(
        &mut self,
        inside: &Inside,
        init_sealed: OwnedFd,
    ) -> Result<[Option<OwnedFd>; 2], Failure> {
        sys::new_session().at(Step::Standard)?;
        sys::set_umask(0o022);
        sys::set_process_name(c"skillgate-idle");
        // Of its own: it does not come with a fork.
        sys::set_parent_death_signal(libc::SIGKILL).at(Step::ParentDeath)?;
        std::env::set_current_dir("/workspace").at(Step::Standard)?;
        let rules = match inside.ground.landlock_abi {
            Some(_) => Some(self.rules(&inside.ground, false).at(Step::Landlock)?),
            None => None,
        };
        for fd in [
            &mut self.orders,
            &mut self.channel,
            &mut self.output,
            &mut self.report,
            &mut self.notice,
        ]
        .into_iter()
        .chain(&mut self.user)
        {
            *fd = sys::dup_above(fd.as_fd(), KEPT_FD_MIN).at(Step::Descriptors)?;
        }
        let kept = [
            Some(above(init_sealed).at(Step::Descriptors)?),
            rules.map(above).transpose().at(Step::Descriptors)?,
        ];
        self.place_rehearsal().at(Step::Descriptors)?;
        Ok(kept)
    }

    /// Where the guest finds itself: 0 is /dev/null, 3 the channel. Until its run is there 1 and 2 lead to a pipe that
    /// ends here, and there is a socket to rehearse on.
    fn place_rehearsal(&self) -> io::Result<()> {
        let null = above(sys::open("/dev/null", libc::O_RDONLY)?)?;
        let (nowhere, to_nowhere) = sys::pipe()?;
        let (nowhere, to_nowhere) = (above(nowhere)?, above(to_nowhere)?);
        let (one, other) = sys::socketpair(libc::SOCK_STREAM)?;
        let (one, other) = (above(one)?, above(other)?);
        sys::dup_to(null.as_raw_fd(), 0)?;
        sys::dup_to(to_nowhere.as_raw_fd(), 1)?;
        sys::dup_to(to_nowhere.as_raw_fd(), 2)?;
        sys::dup_to(self.channel.as_raw_fd(), 3)?;
        sys::dup_to(one.as_raw_fd(), REHEARSAL_FDS[0])?;
        sys::dup_to(other.as_raw_fd(), REHEARSAL_FDS[1])?;
        // Its reading end lives as long as the process waits, so that the rehearsal can write.
        std::mem::forget(nowhere);
        Ok(())
    }

    /// Process 2, in the end: see [`crate::zygote::activate`].
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
        let Some(later) = self.later.take() else {
            return Ok(false);
        };
        let mut sealed = [0];
        match sys::read(later.init_sealed.as_fd(), &mut sealed) {
            Ok(1) => {}
            Ok(_) => return Ok(false),
            Err(e) => return Err(e).at(Step::ParentDeath),
        }
        sys::dup_to(self.output.as_raw_fd(), 1).at(Step::Descriptors)?;
        sys::dup_to(self.output.as_raw_fd(), 2).at(Step::Descriptors)?;
        let Some((spec, mounts)) = self.receive().at(Step::Descriptors)? else {
            return Ok(false);
        };
        let prepared = std::mem::replace(&mut self.spec, spec);
        let isolation = self.isolation(&later.inside.ground, &mounts);
        isolation.resize_writable(&prepared).at(Step::Writable)?;
        isolation.attach_mounts().at(Step::Mounts)?;
        self.seal(&later.inside, later.rules.as_ref().map(AsFd::as_fd))?;
        sys::close_all_from(4, &[self.report.as_raw_fd()]).at(Step::Descriptors)?;
        // What a program of its own would be called.
        sys::set_process_name(&later.inside.name);
        let filter = &later.inside.filters[usize::from(self.spec.network)];
        sys::install_filter(filter).at(Step::Filter)?;
        sys::close_all_from(4, &[]).at(Step::Descriptors)?;
        std::mem::forget((later, mounts));
        Ok(true)
    }

    /// The run that this child is for. `None`: there will be none.
    fn receive(&self) -> io::Result<Option<(RunSpec, Vec<OwnedFd>)>> {
        // A buffer for the longest would be most of what a waiting child has of its own.
        let mut buf = vec![0; sys::next_message_bytes(self.orders.as_fd())?.max(16)];
        let Some((n, mut mounts)) = sys::receive_message(self.orders.as_fd(), &mut buf)? else {
            return Ok(None);
        };
        let spec: RunSpec = serde_json::from_slice(&buf[..n])?;
        while mounts.len() < spec.mounts.len() {
            match sys::receive_message(self.orders.as_fd(), &mut buf)? {
                Some((_, more)) if !more.is_empty() => mounts.extend(more),
                _ => return Ok(None),
            }
        }
        Ok(Some((spec, mounts)))
    }

    /// The last that needs the launcher's rights and is not about namespaces.
    fn prepare_memory(&self, inside: &Inside) -> io::Result<()> {
        if inside.ground.drops_groups {
            sys::drop_groups()?;
        }
        // Dumpable, since else /proc/self is not one's own.
        sys::set_dumpable(true)?;
        std::fs::write("/proc/self/oom_score_adj", "900")
    }

    /// Into the run's own user namespace, as the run's own user, with a mount namespace that belongs to it. Gives that
    /// user's id as it is seen there.
    fn change_identity(&self, ground: &Ground) -> io::Result<u32> {
        sys::set_securebits(sys::SECURE_NO_SETUID_FIXUP)?;
        let user = self.user.as_ref().filter(|_| ground.user_namespace);
        let id = match user {
            Some(user) => {
                sys::enter_namespace(user.as_fd(), libc::CLONE_NEWUSER)?;
                // What was said above was of the namespace that has been left.
                sys::set_securebits(sys::SECURE_NO_SETUID_FIXUP)?;
                INSIDE_ID
            }
            None => self.outer_id,
        };
        sys::set_gid(id)?;
        sys::set_uid(id)?;
        if user.is_some() {
            sys::unshare(libc::CLONE_NEWNS)?;
        }
        Ok(id)
    }

    /// The last steps, but for the filter.
    fn seal(&self, inside: &Inside, rules: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        let ground = &inside.ground;
        self.isolation(ground, &[]).set_limits().at(Step::Limits)?;
        if ground.landlock_abi.is_some() {
            let own;
            let rules = match rules {
                Some(rules) if !self.spec.network => rules,
                _ => {
                    own = self.rules(ground, self.spec.network).at(Step::Landlock)?;
                    own.as_fd()
                }
            };
            sys::landlock_enter(rules).at(Step::Landlock)?;
        }
        sys::drop_capabilities().at(Step::Capabilities)
    }

    fn rules(&self, ground: &Ground, network: bool) -> io::Result<OwnedFd> {
        let interpreter = &ground.interpreter;
        let executable: Vec<String> = [Some(&interpreter.program), interpreter.loader.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        landlock::rules(
            ground.landlock_abi.unwrap_or_default(),
            &executable,
            &WRITABLE.map(|w| w.0),
            network.then_some(GATE_PORT),
        )
    }
}

/// The same descriptor, out of the way.
fn above(fd: OwnedFd) -> io::Result<OwnedFd> {
    sys::dup_above(fd.as_fd(), KEPT_FD_MIN)
}

/// Says what has gone wrong, and ends; as process 1 this ends process 2 too.
fn give_up(report: BorrowedFd<'_>, failure: &Failure) -> ! {
    let report_text = Report::Failed {
        step: format!("{:?}", failure.step),
        error: failure.error.to_string(),
    };
    let mut line = serde_json::to_vec(&report_text).unwrap_or_default();
    line.push(b'\n');
    // Nobody listens any more: the launcher is gone, and with it the child.
    let _ = sys::write(report, &line);
    sys::exit_now(127)
}

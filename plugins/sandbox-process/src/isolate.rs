//! What turns a copy of the launcher into a run: one list of steps, in an order that has reasons.
//!
//! The steps serve a child of a warmed interpreter too (`pooled.rs`): they start from detached mounts, descriptors and
//! numbers, and from nothing else that the launcher has.

mod interior;
pub(crate) mod pooled;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use skillgate_plugin_guest::BOOTSTRAP;

use crate::cgroup::Entrance;
use crate::guard::{Guard, Without};
use crate::interpreter::Interpreter;
use crate::root::{GUEST, STAGING, WRITABLE};
use crate::sys::{self, Fork, NODEV, NOEXEC, NOSUID};
use crate::wire::{Notice, Report, RunSpec};
use crate::{landlock, seccomp};
use interior::Interior;
pub(crate) use interior::{CORE_BYTES, set_common_limits};

/// Namespaces that a run is born in. Its cgroup namespace comes a step later, when it is in its group, and its user
/// namespace last, so that the others belong to the launcher's and nothing inside has rights over them.
pub(crate) const BORN_IN: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;
/// Where a run finds its gate, on its own loopback interface: the port that proxies are used to have.
pub(crate) const GATE_PORT: u16 = 3128;
/// The user and group of a run, as it sees itself.
pub(crate) const INSIDE_ID: u32 = 1000;

/// What every interpreter starts with.
pub(crate) const ENVIRONMENT: [&str; 4] = [
    "HOME=/workspace",
    "PATH=/usr/bin",
    "LANG=C.UTF-8",
    "TMPDIR=/tmp",
];

/// What is the same for every run of a launcher.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Where the template root is attached.
    pub(crate) template: CString,
    pub(crate) interpreter: Interpreter,
    /// `None`: excused.
    pub(crate) landlock_abi: Option<u32>,
    /// `false`: excused.
    pub(crate) user_namespace: bool,
    /// Whether the supplementary groups can be dropped (an ordinary user's namespace forbids it).
    pub(crate) drops_groups: bool,
    /// `false`: for want of a cgroup each process has a limit of memory of its own.
    pub(crate) memory_by_cgroup: bool,
    /// To see whether the launcher is still there.
    pub(crate) launcher: OwnedFd,
    pub(crate) without: Without,
}

impl Ground {
    fn keeps(&self, guard: Guard) -> bool {
        self.without.keeps(guard)
    }

    /// Flags for [`sys::clone_process`].
    pub(crate) fn born_in(&self) -> libc::c_int {
        [
            (Guard::PidNamespace, libc::CLONE_NEWPID),
            (Guard::NetNamespace, libc::CLONE_NEWNET),
            (Guard::IpcNamespace, libc::CLONE_NEWIPC),
            (Guard::UtsNamespace, libc::CLONE_NEWUTS),
        ]
        .into_iter()
        .filter(|(guard, _)| !self.keeps(*guard))
        .fold(BORN_IN, |flags, (_, left_out)| flags & !left_out)
    }

    /// Last, after every change of credentials, each of which clears it.
    fn die_with_launcher(&self) -> io::Result<()> {
        if self.keeps(Guard::Undumpable) {
            sys::set_dumpable(false)?;
        }
        if self.keeps(Guard::ParentDeath) {
            sys::set_parent_death_signal(libc::SIGKILL)?;
        }
        // It may have died before the line above; the parent's number is of no use, it is 0 in a new pid namespace.
        if sys::is_alive(self.launcher.as_fd())? {
            Ok(())
        } else {
            Err(io::Error::other("the launcher has ended"))
        }
    }
}

/// What is of this run.
#[derive(Debug)]
pub(crate) struct Isolation<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) spec: &'a RunSpec,
    /// The id of the run in the launcher's user namespace.
    pub(crate) outer_id: u32,
    pub(crate) entrance: &'a Entrance<'a>,
    /// Detached, with all their attributes; in the order of `spec.mounts`.
    pub(crate) mounts: &'a [OwnedFd],
    pub(crate) output: BorrowedFd<'a>,
    pub(crate) channel: BorrowedFd<'a>,
    pub(crate) report: BorrowedFd<'a>,
    /// Where the listener of a run with network goes; `None`: the probe, which has none.
    pub(crate) notice: Option<BorrowedFd<'a>>,
    /// What to execute instead of the guest, for the probe.
    pub(crate) arguments: Option<Vec<CString>>,
}

/// Which step failed. Mostly in the order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Descriptors,
    JoinGroup,
    CgroupNamespace,
    Session,
    Hostname,
    Network,
    Propagation,
    Proc,
    Root,
    Writable,
    Mounts,
    Limits,
    Identity,
    NoNewPrivileges,
    Landlock,
    Capabilities,
    ParentDeath,
    Program,
    Standard,
    /// Of a zygote's child: to become two.
    Init,
    Filter,
    Execute,
}

/// A step and what it said.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) error: io::Error,
}

trait At<T> {
    fn at(self, step: Step) -> Result<T, Failure>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, step: Step) -> Result<T, Failure> {
        self.map_err(|error| Failure { step, error })
    }
}

impl Isolation<'_> {
    /// Becomes the run. For a process that [`sys::clone_process`] has just made with [`Ground::born_in`].
    pub(crate) fn become_init(&self) -> ! {
        let result = self.isolate().and_then(|()| {
            // User code is never process 1: libraries that watch for a fork by the process id would miss it, and init
            // must survive to reap.
            match sys::clone_process(0, None).at(Step::Program)? {
                Fork::Child => Err(self.become_program()),
                Fork::Parent { pid, .. } => Ok(pid),
            }
        });
        match result {
            Ok(pid) => self.init(pid),
            Err(failure) => give_up(self.report, &failure),
        }
    }

    fn isolate(&self) -> Result<(), Failure> {
        // First of all, so that no later mistake can reach another run's socket or the launcher's.
        self.close_inherited().at(Step::Descriptors)?;
        // Before any memory is used on behalf of the run.
        self.entrance.enter().at(Step::JoinGroup)?;
        // In its group, so that this is the root of what it sees.
        if self.ground.keeps(Guard::CgroupNamespace) {
            sys::unshare(libc::CLONE_NEWCGROUP).at(Step::CgroupNamespace)?;
        }
        // No controlling terminal to push input into, no signals from another's group.
        sys::new_session().at(Step::Session)?;
        if self.ground.keeps(Guard::UtsNamespace) {
            sys::set_hostname("sandbox").at(Step::Hostname)?;
        }
        // While this process still has rights over the network namespace.
        self.open_gate().at(Step::Network)?;
        // The mounts are a copy that still follows the host's. From here nothing comes in and nothing goes out.
        sys::set_propagation(libc::MS_PRIVATE).at(Step::Propagation)?;
        // /proc of the new pid namespace, not in place yet: in a user namespace the kernel makes one only while another,
        // unmasked one is in sight, so before the host's tree is gone.
        let proc = new_proc(self.ground.keeps(Guard::HiddenProc)).at(Step::Proc)?;
        let host = self.host_tree().at(Step::Root)?;
        // Early: every path from here on is one of the inside.
        self.enter_root().at(Step::Root)?;
        // While this process may still mount: /proc, then the run's own tmpfs, then what others have given, which is put
        // on top and cannot be hidden by it.
        sys::attach(proc.as_fd(), "/proc").at(Step::Proc)?;
        self.interior()
            .mount_writable(Some(self.outer_id))
            .at(Step::Writable)?;
        self.interior()
            .attach_mounts(self.mounts)
            .at(Step::Mounts)?;
        if let Some(host) = host {
            sys::attach(host.as_fd(), STAGING).at(Step::Root)?;
        }
        // The last things that need rights in the launcher's user namespace are done: leave it.
        take_identity(
            self.outer_id,
            self.ground.drops_groups,
            self.ground.user_namespace,
            self.inside_id(),
        )
        .at(Step::Identity)?;
        // In the new user namespace: processes are counted per user and namespace.
        if self.ground.keeps(Guard::ResourceLimits) {
            set_common_limits().at(Step::Limits)?;
            self.interior().set_limits().at(Step::Limits)?;
        }
        // Needed by the two filters below, and it makes a set-user-id file worth nothing.
        sys::set_no_new_privs().at(Step::NoNewPrivileges)?;
        // Last of what opens files, since it is about them; before the rights go, none of which it needs.
        self.enter_landlock().at(Step::Landlock)?;
        if self.ground.keeps(Guard::Capabilities) {
            drop_rights().at(Step::Capabilities)?;
        }
        // After every change of credentials, each of which would clear it.
        self.ground.die_with_launcher().at(Step::ParentDeath)
        // The system call filter is the program's own last step: it forbids most of the above.
    }

    fn close_inherited(&self) -> io::Result<()> {
        if !self.ground.keeps(Guard::Descriptors) {
            return Ok(());
        }
        let mut keep = vec![
            self.output.as_raw_fd(),
            self.channel.as_raw_fd(),
            self.report.as_raw_fd(),
            self.ground.launcher.as_raw_fd(),
        ];
        keep.extend(self.notice.map(|notice| notice.as_raw_fd()));
        keep.extend(
            self.mounts
                .iter()
                .map(AsFd::as_fd)
                .chain(self.entrance.tasks.iter().copied())
                .map(|fd| fd.as_raw_fd()),
        );
        sys::close_all_from(4, &keep)
    }

    /// Without network the interface stays down.
    fn open_gate(&self) -> io::Result<()> {
        match self.notice {
            Some(notice) if self.spec.network => open_gate(notice),
            _ => Ok(()),
        }
    }

    fn enter_root(&self) -> io::Result<()> {
        std::env::set_current_dir(std::ffi::OsStr::new(
            self.ground.template.to_str().map_err(io::Error::other)?,
        ))?;
        sys::pivot_to_cwd()?;
        // The old root lies on top of the new one at this moment: this takes it and the whole host's tree away.
        sys::detach(c".")?;
        std::env::set_current_dir("/")
    }

    /// What a run is not to see, for the test that shows what happens when it does.
    fn host_tree(&self) -> io::Result<Option<OwnedFd>> {
        if self.ground.keeps(Guard::OwnRoot) {
            return Ok(None);
        }
        let at = sys::open("/", libc::O_PATH)?;
        sys::clone_mounts(at.as_fd()).map(Some)
    }

    fn interior(&self) -> Interior<'_> {
        Interior {
            ground: self.ground,
            spec: self.spec,
        }
    }

    fn inside_id(&self) -> u32 {
        if self.ground.keeps(Guard::Capabilities) {
            INSIDE_ID
        } else {
            0
        }
    }

    fn enter_landlock(&self) -> io::Result<()> {
        let Some(abi) = self.ground.landlock_abi else {
            return Ok(());
        };
        let rules = own_rules(self.ground, abi, self.spec.network)?;
        landlock::enter(abi, rules.as_fd())
    }

    /// Process 2: the interpreter. Returns only when it could not.
    fn become_program(&self) -> Failure {
        match self.program() {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    fn program(&self) -> Result<std::convert::Infallible, Failure> {
        let arguments = self
            .arguments
            .clone()
            .map_or_else(|| guest_arguments(&self.ground.interpreter), Ok)
            .at(Step::Standard)?;
        let environment = environment(&self.spec.run_id).at(Step::Standard)?;
        let program = sys::cstr(&self.ground.interpreter.program).at(Step::Standard)?;
        let filter = seccomp::program(self.spec.network);
        sys::new_session().at(Step::Standard)?;
        self.place_descriptors().at(Step::Standard)?;
        sys::reset_signals().at(Step::Standard)?;
        sys::set_umask(0o022);
        std::env::set_current_dir("/workspace").at(Step::Standard)?;
        if self.ground.keeps(Guard::Seccomp) {
            sys::install_filter(&filter).at(Step::Filter)?;
        }
        tell(self.report, &Report::Ready);
        Err(sys::execute(&program, &arguments, &environment)).at(Step::Execute)
    }

    /// 0 is /dev/null, 1 and 2 are the one pipe (so that the order is kept), 3 is the channel.
    fn place_descriptors(&self) -> io::Result<()> {
        let null = sys::open("/dev/null", libc::O_RDONLY)?;
        sys::dup_to(null.as_raw_fd(), 0)?;
        sys::dup_to(self.output.as_raw_fd(), 1)?;
        sys::dup_to(self.output.as_raw_fd(), 2)?;
        sys::dup_to(self.channel.as_raw_fd(), 3)?;
        drop(null);
        // The report pipe goes with exec.
        if self.ground.keeps(Guard::Descriptors) {
            sys::close_all_from(4, &[self.report.as_raw_fd()])?;
        }
        Ok(())
    }

    /// Process 1: reaps, and ends when the program has ended, which ends everything that it has left behind.
    fn init(&self, program: libc::pid_t) -> ! {
        // Neither the pipe nor the channel may stay open because init has them; and what init does is on the list too.
        let alone = sys::close_all_from(4, &[self.report.as_raw_fd()]);
        if alone
            .and_then(|()| {
                if self.ground.keeps(Guard::Seccomp) {
                    sys::install_filter(&seccomp::program(self.spec.network))?;
                }
                Ok(())
            })
            .is_err()
        {
            sys::exit_now(126);
        }
        reap(self.report, program)
    }
}

/// Process 1 from now on: it reaps, and ends when the program has, which ends everything that that has left behind.
fn reap(report: BorrowedFd<'_>, program: libc::pid_t) -> ! {
    loop {
        match sys::wait(-1) {
            Ok(Some((pid, exit))) if pid == program => {
                tell(
                    report,
                    &Report::Exited {
                        code: exit.code,
                        signal: exit.signal,
                    },
                );
                sys::exit_now(0)
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => sys::exit_now(125),
        }
    }
}

/// What a run's processes say of themselves, to the launcher.
fn tell(to: BorrowedFd<'_>, report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    // Nobody listens any more: the launcher is gone, and with it the run.
    let _ = sys::write(to, &line);
}

/// Gives a zygote's child that waits what its run has beside: `mounts` as in `spec`, and the size of its disk if it was
/// made with another (`resize`). For the launcher, in the child's mount namespace.
pub(crate) fn furnish(
    ground: &Ground,
    spec: &RunSpec,
    mounts: &[OwnedFd],
    resize: bool,
) -> Result<(), Failure> {
    let interior = Interior { ground, spec };
    if resize {
        interior.resize_writable().at(Step::Writable)?;
    }
    interior.attach_mounts(mounts).at(Step::Mounts)
}

/// A run's landlock rules, made where its writable directories are in place.
fn own_rules(ground: &Ground, abi: u32, network: bool) -> io::Result<OwnedFd> {
    let interpreter = &ground.interpreter;
    let executable: Vec<String> = [Some(&interpreter.program), interpreter.loader.as_ref()]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    landlock::rules(
        abi,
        &executable,
        &WRITABLE.map(|w| w.0),
        network.then_some(GATE_PORT),
    )
}

/// Says what has gone wrong, and ends. Where that is process 1, the whole run ends with it.
fn give_up(report: BorrowedFd<'_>, failure: &Failure) -> ! {
    tell(
        report,
        &Report::Failed {
            step: format!("{:?}", failure.step),
            error: failure.error.to_string(),
        },
    );
    sys::exit_now(127)
}

/// In the network namespace of a run with network: the interface, and the one thing there, a listener, of which the
/// plugin gets the only descriptor.
pub(crate) fn open_gate(notice: BorrowedFd<'_>) -> io::Result<()> {
    sys::loopback_up()?;
    let listener = sys::listen_on_loopback(GATE_PORT)?;
    let message = serde_json::to_vec(&Notice::Listening)?;
    sys::send_message(notice, &message, &[listener.as_fd()])
}

/// From the launcher's user to the run's own, in a user namespace that maps it alone.
pub(crate) fn take_identity(
    outer_id: u32,
    drops_groups: bool,
    user_namespace: bool,
    inside_id: u32,
) -> io::Result<()> {
    // The capabilities stay through the change of ids: a host that restricts who may make user namespaces asks for
    // them, and the bounding set comes later.
    sys::set_securebits(sys::SECURE_NO_SETUID_FIXUP)?;
    if drops_groups {
        sys::drop_groups()?;
    }
    sys::set_gid(outer_id)?;
    sys::set_uid(outer_id)?;
    // Dumpable, since else /proc/self is not one's own.
    sys::set_dumpable(true)?;
    // Before landlock, which forbids writing to /proc.
    die_first()?;
    if user_namespace {
        sys::unshare(libc::CLONE_NEWUSER)?;
        // A process may map its own id, and only that, without any right outside, when it gives up setgroups.
        let map = format!("{inside_id} {outer_id} 1");
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/gid_map", &map)?;
        fs::write("/proc/self/uid_map", &map)?;
    }
    Ok(())
}

/// The run's processes are the first to be killed when the host is out of memory. The gateway may have been started as one of
/// those that are (`OOMScoreAdjust=`, a pod without a request of memory): then that is left, since who has no CAP_SYS_RESOURCE
/// in the first user namespace may not be less likely to be killed than he was made (proc(5)), and nobody needs to be.
pub(crate) fn die_first() -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    const FIRST: i32 = 900;
    let is_first = |now: &str| now.trim().parse().is_ok_and(|now: i32| now >= FIRST);
    if is_first(&fs::read_to_string(FILE)?) {
        return Ok(());
    }
    fs::write(FILE, FIRST.to_string())
}

fn new_proc(hidden: bool) -> io::Result<OwnedFd> {
    let options = [("subset", Some("pid")), ("hidepid", Some("invisible"))];
    let options = if hidden { &options[..] } else { &[] };
    sys::new_mount(c"proc", options, NOSUID | NODEV | NOEXEC)
}

/// All five sets, and the switches that could give something back.
pub(crate) fn drop_rights() -> io::Result<()> {
    // First, while there is the right to: from here nothing can come back, or be gained.
    sys::drop_ambient_set()?;
    sys::drop_bounding_set()?;
    sys::set_securebits(sys::SECURE_ALL_LOCKED)?;
    sys::drop_capabilities()
}

fn guest_arguments(interpreter: &Interpreter) -> io::Result<Vec<CString>> {
    let bootstrap = format!("{GUEST}/{BOOTSTRAP}");
    [interpreter.program.as_str(), "-I", "-S", "-B", &bootstrap]
        .into_iter()
        .map(sys::cstr)
        .collect()
}

/// What a run starts with. The request's own variables and the secrets come with the job, through the channel.
fn environment(run_id: &str) -> io::Result<Vec<CString>> {
    let id = format!("SKILLGATE_RUN_ID={run_id}");
    ENVIRONMENT
        .into_iter()
        .chain([id.as_str()])
        .map(sys::cstr)
        .collect()
}

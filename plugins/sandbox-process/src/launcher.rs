//! The launcher: a small process with one thread that makes runs and sees them end.
//!
//! It knows limits and mounts, never a job. It ends when its socket does (the gateway has gone, however): kills every
//! run, removes the groups, exits. The other way round, a run's init asks the kernel to be killed when the launcher
//! dies. So whichever of the three dies, nothing is left but empty groups, which the next launcher sweeps.
//!
//! How many descriptors it has. A zygote's child has 19 at most, whether it waits or runs: its pidfd, its notice, report and orders,
//! three namespaces, and of its control group (version 1) two of memory and ten that are lent; and four more, the plugin's ends, until
//! the plugin has it. A run with an interpreter of its own has 15. So many wait as the plugin asks for (`PoolRules::for_each`: within a quarter of what the gateway may open), so many run as
//! the host has runs. Of those that are over, what can be lent again is kept, 13 each: of `kept_max` at most, which is of no more than
//! there ever were at once, since the next one has it first. Nothing but the pace of this one thread bounds those that are over
//! and not gone: that have answered and linger, that the plugin still puts away, whose group is busy. So the hard bound of all
//! is RLIMIT_NOFILE. Where it is met what is kept goes (`make_room`); then a run is refused, as not executed, and a child is
//! made later.

mod back_off;
mod birth;
mod children;
mod ids;
mod lacking;
mod lasting;
mod leases;
mod load;
mod lock;
mod nursery;
mod pace;
mod restraint;
mod run;
mod start;
mod strays;
mod zygotes;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use crate::cgroup::{Groups, RunGroup};
use crate::guard::Guard;
use crate::isolate::{CORE_BYTES, Ground};
use crate::probe::{self, Standing};
use crate::root;
use crate::sys::{self, Poll, Watch};
use crate::wire::{Hello, HelloReply, MESSAGE_BYTES_MAX, Notice, Promises, Request};
pub(crate) use ids::{Id, Ids, UID_ROOM};
use leases::Leases;
use load::Load;
pub(crate) use lock::take_from;
use lock::{Lock, lock};
use pace::Pace;
use restraint::{Hold, Restraint};
use run::{Happened, LINGER_LONG_NS, LINGER_NS, Returning, Run, tell};
pub(crate) use start::{detached, enter};
use strays::Strays;
use zygotes::{Ordered, Zygotes};

/// How often the CPU time of runs with such a limit is looked at.
const CPU_CHECK_NS: u64 = 50_000_000;
/// How often the removal of a group that was busy is tried again.
const REMOVE_AGAIN_NS: u64 = 5_000_000;
/// Requests that are read before the launcher looks at its runs again.
const MESSAGES_AT_ONCE: usize = 32;

/// The program. What it returns is the exit code of the process.
pub(crate) fn main() -> i32 {
    sys::set_process_name(c"skillgate-runs");
    match std::panic::catch_unwind(serve) {
        Ok(Ok(())) => 0,
        // There is nobody to tell: the socket that would carry it is what has failed.
        Ok(Err(_)) => 1,
        Err(_) => 2,
    }
}

fn serve() -> io::Result<()> {
    let control = take_descriptors()?;
    be_nobodys()?;
    let mut buf = vec![0; MESSAGE_BYTES_MAX];
    let Some((_, mut fds)) = sys::receive_message(control.as_fd(), &mut buf)? else {
        return Ok(());
    };
    let file = fds
        .pop()
        .ok_or_else(|| io::Error::other("the first message has no descriptor"))?;
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text)?;
    let hello: Hello = serde_json::from_str(&text)?;
    let (reply, launcher) = match Launcher::prepare(hello) {
        Ok((reply, launcher)) => (reply, Some(launcher)),
        Err(reply) => (*reply, None),
    };
    sys::send_message(control.as_fd(), &serde_json::to_vec(&reply)?, &[])?;
    match launcher {
        Some(mut launcher) => launcher.work(control.as_fd(), &mut buf),
        None => Ok(()),
    }
}

/// The socket came as descriptor 0. Afterwards 0 to 3 are /dev/null, so that nothing of the launcher's ever lies where
/// a run's descriptors go, and nothing else that the gateway had is open.
fn take_descriptors() -> io::Result<OwnedFd> {
    let control = {
        // It is only borrowed here; descriptor 0 is overwritten below.
        let stdin = io::stdin();
        sys::dup_above(stdin.as_fd(), 10)?
    };
    sys::close_all_from(1, &[control.as_raw_fd()])?;
    let null = sys::open("/dev/null", libc::O_RDWR)?;
    for fd in 0..4 {
        if fd != null.as_raw_fd() {
            sys::dup_to(null.as_raw_fd(), fd)?;
        }
    }
    if null.as_raw_fd() < 4 {
        // It is one of the four, and stays.
        std::mem::forget(null);
    }
    Ok(control)
}

/// Nothing of the gateway's surroundings matters from here on, and no signal that is meant for the gateway ends the
/// launcher before its socket does: a terminal's ^C and a service manager's SIGTERM reach every process, while the
/// gateway still waits for its runs.
fn be_nobodys() -> io::Result<()> {
    sys::ignore_signals(&[
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
    ])?;
    // Whoever has started the gateway may ignore it, and what is ignored stays so in the programs that are executed.
    sys::hear_of_children()?;
    // The first process of a session (one started by `setsid`, in a container) stays what it is.
    let _ = sys::new_session();
    // The roots that are built here are for other users.
    sys::set_umask(0o022);
    std::env::set_current_dir("/")?;
    let core = libc::RLIMIT_CORE as i32;
    if sys::hard_limit(core)? < CORE_BYTES {
        // For root alone: who else starts the gateway with none has runs with none.
        let _ = sys::set_limit(core, CORE_BYTES);
    }
    let files = libc::RLIMIT_NOFILE as i32;
    sys::set_limit(files, sys::hard_limit(files)?)
}

/// Why something was not made for a run.
struct Cannot {
    message: String,
    /// There was no descriptor left.
    lacks_files: bool,
}

impl Cannot {
    fn new(what: &str, e: &io::Error) -> Self {
        Cannot {
            message: format!("{what}: {e}"),
            lacks_files: sys::is_lack_of_files(e),
        }
    }
}

struct Launcher {
    ground: Ground,
    ids: Ids,
    groups: Option<Groups>,
    runs: BTreeMap<u32, Run>,
    leaving: Vec<RunGroup>,
    /// The ends of zygotes' children and of who wants them. Many wait, and few have something to say.
    children_watch: Watch,
    zygotes: Option<Zygotes>,
    leases: Option<Leases>,
    /// The launcher's own mount namespace, for the way back from a run's.
    home: OwnedFd,
    /// Have been ordered and did not come. Their namespaces are nobody else's until it is known that nothing of them lives.
    lost: Vec<Ordered>,
    /// May be what is left of them.
    strays: Vec<Strays>,
    hold: Hold,
    /// When it was last looked for children that lack.
    restraint: Restraint,
    load: Load,
    pace: Pace,
    processors: u32,
    /// How many children there have been.
    children: u64,
    /// Of children that are reaped.
    returning: Vec<Returning>,
    /// Held while this launcher lives.
    lock: Lock,
}

impl Launcher {
    /// Takes the lock, sweeps, builds the root and tries every layer.
    fn prepare(hello: Hello) -> Result<(HelloReply, Self), Box<HelloReply>> {
        let broken = |what: &str, e: io::Error| {
            Box::new(HelloReply::Broken {
                message: format!("{what}: {e}"),
            })
        };
        let state = Path::new(&hello.state_dir);
        let lock = lock(state).map_err(|e| broken("state directory", e))?;
        let standing = probe::stand().map_err(|missing| {
            Box::new(HelloReply::Refused {
                report: vec![*missing],
            })
        })?;
        let template = state.join("root");
        match std::fs::DirBuilder::new().mode(0o700).create(&template) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(broken("state directory", e));
            }
            _ => {}
        }
        let without = hello.without;
        let groups = if without.keeps(Guard::ControlGroup) {
            let kept_max = hello.zygotes.as_ref().map_or(0, |z| z.kept_max);
            let parent = hello.cgroup_parent.as_deref();
            Groups::make(&hello.instance, parent, hello.cpus, kept_max).map_err(|e| e.to_string())
        } else {
            Err("left out".into())
        };
        let mut interpreter = hello.interpreter;
        if hello.zygotes.is_some() {
            interpreter
                .add_libraries_of_this()
                .map_err(|e| broken("the launcher's own libraries", e))?;
        }
        let built = root::build(&template, &interpreter, &hello.guest, &without);
        let launcher =
            sys::pidfd_open(std::process::id() as _).map_err(|e| broken("pidfd_open", e))?;
        let template = sys::cstr(template.to_string_lossy().as_bytes())
            .map_err(|e| broken("state directory", e))?;
        let ground = Ground {
            template,
            interpreter,
            landlock_abi: sys::landlock_abi()
                .ok()
                .filter(|_| without.keeps(Guard::Landlock)),
            user_namespace: without.keeps(Guard::UserNamespace),
            drops_groups: standing == Standing::Root,
            memory_by_cgroup: groups.as_ref().is_ok_and(|g| g.has("memory")),
            launcher,
            without,
        };
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let home = sys::open("/proc/self/ns/mnt", libc::O_RDONLY)
            .map_err(|e| broken("/proc/self/ns/mnt", e))?;
        let ids = Ids::new(standing, hello.uid_base);
        let trial = ids
            .take(|_| false)
            .map_err(|e| broken("a user id for runs", e))?;
        let mut launcher = Launcher {
            home,
            lost: Vec::new(),
            strays: Vec::new(),
            ground,
            ids,
            groups: None,
            runs: BTreeMap::new(),
            leaving: Vec::new(),
            children_watch: Watch::new().map_err(|e| broken("epoll_create1", e))?,
            zygotes: None,
            leases: None,
            hold: Hold::default(),
            restraint: Restraint::NONE,
            load: Load::new(processors),
            pace: Pace::NONE,
            processors,
            children: 0,
            returning: Vec::new(),
            lock,
        };
        let outcome = probe::layers(
            &mut launcher.ground,
            (&launcher.ids, &trial),
            groups,
            built,
            &hello.downgrades,
        );
        launcher.groups = outcome.groups;
        let has = |name: &str| launcher.groups.as_ref().is_some_and(|g| g.has(name));
        if outcome.refused {
            if let Some(groups) = &mut launcher.groups {
                // What stays is empty and swept by the next start.
                let _ = groups.remove();
            }
            return Err(Box::new(HelloReply::Refused {
                report: outcome.report,
            }));
        }
        if let Some(rules) = hello.zygotes {
            let with_user = launcher.ground.user_namespace;
            let leases = Leases::new(with_user, rules.kept_max)
                .map_err(|e| broken("network and ipc namespaces", e))?;
            launcher.leases = Some(leases);
            launcher.zygotes = Some(Zygotes::new(rules));
        }
        // From here on there are copies of this process: what keeps the pace, the init of a run with an interpreter of its
        // own, and a zygote before it is one. The way to here took some megabytes.
        sys::trim_memory();
        sys::have_forks_inherit_code(false);
        let (pace, paced) = Pace::start(launcher.ground.launcher.as_fd(), hello.pace_ns);
        launcher.pace = pace;
        let reply = HelloReply::Ready {
            report: outcome.report,
            promises: Promises {
                cpu: has("cpuacct"),
                processors: has("cpu"),
                counts_all: launcher.groups.as_ref().is_some_and(Groups::counts_all),
                memory: has("memory"),
                pids: has("pids"),
            },
            paced,
            is_alone: launcher.lock.is_certain,
        };
        Ok((reply, launcher))
    }

    /// Until the socket ends.
    fn work(&mut self, control: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<()> {
        let mut last_cpu_check = 0;
        loop {
            self.mind_zygotes(control);
            let mut polls = vec![
                Poll::readable(control),
                Poll::readable(self.children_watch.as_fd()),
            ];
            let mut asked = Vec::new();
            for (slot, run) in &self.runs {
                for (what, fd) in run.to_be_asked().into_iter().flatten() {
                    asked.push((*slot, what));
                    polls.push(Poll::readable(fd));
                }
            }
            let of_runs = polls.len();
            polls.extend(
                self.returning
                    .iter()
                    .map(|r| Poll::hung_up(r.notice.as_fd())),
            );
            if let Some(zygotes) = &self.zygotes {
                polls.extend(zygotes.sockets().map(Poll::readable));
            }
            let lacks = self.groups.as_ref().is_some_and(Groups::lacks);
            sys::poll(&mut polls, if lacks { Some(0) } else { self.patience() })?;
            if lacks && !polls.iter().any(Poll::is_ready) {
                // Nobody waits for anything.
                let stale = self.groups.as_mut().and_then(Groups::make_ahead);
                self.leaving.extend(stale);
            }
            // What has come back is looked for before more can come back.
            let mut returned = polls[of_runs..].iter().map(Poll::is_ready);
            let back = self
                .returning
                .extract_if(.., |_| returned.next() == Some(true));
            for back in back.collect::<Vec<_>>() {
                if let Some(leases) = &mut self.leases {
                    leases.give_back(back.lease, !back.is_connected);
                }
                self.leaving.extend(back.group);
            }
            for ((slot, what), _) in asked
                .into_iter()
                .zip(&polls[2..of_runs])
                .filter(|(_, poll)| poll.is_ready())
            {
                self.attend(control, slot, what);
            }
            if polls[1].is_ready() {
                for token in self.children_watch.said()? {
                    self.attend_child(control, token);
                }
            }
            let groups = &mut self.groups;
            self.leaving
                .retain_mut(|group| !groups.as_mut().is_some_and(|g| g.take_back(group)));
            let now = sys::now_ns();
            if now >= last_cpu_check + CPU_CHECK_NS {
                last_cpu_check = now;
                self.check_cpu();
            }
            for run in self.runs.values_mut() {
                if now >= run.deadline_ns {
                    run.deadline_passed = true;
                    run.kill();
                }
                if run.ends_ns.is_some_and(|at| now >= at) {
                    run.kill();
                }
                if run.look(now) {
                    self.pace.keep(self.ground.launcher.as_fd(), now);
                }
            }
            let mut more = [polls[0]];
            for _ in 0..MESSAGES_AT_ONCE {
                if !more[0].is_ready() {
                    break;
                }
                match sys::receive_message(control, buf) {
                    Ok(Some((n, fds))) => self.serve(control, &buf[..n], fds),
                    // Whose run it was sees its sockets closed. The others need not suffer for it.
                    Err(e) if sys::is_lack_of_files(&e) => self.make_room(),
                    // An error is the end too: the plugin went without reading something.
                    Ok(None) | Err(_) => return self.finish(),
                }
                more = [Poll::readable(control)];
                sys::poll(&mut more, Some(0))?;
            }
        }
    }

    fn serve(&mut self, control: BorrowedFd<'_>, message: &[u8], fds: Vec<OwnedFd>) {
        match serde_json::from_slice(message) {
            Ok(Request::Run(spec)) => self.start(&spec, fds),
            Ok(Request::Pool(needs)) => self.pool(control, needs),
            Ok(Request::Activate { taken, spec }) => self.activate(control, &taken, spec),
            Ok(Request::Taken(taken)) => self.taken(&taken),
            Err(e) => {
                // Of a run its notice socket is the last: it must not wait for nothing.
                if let Some(notice) = fds.last() {
                    let message = format!("the launcher cannot read a request: {e}");
                    tell(notice.as_fd(), &Notice::Failed { message }, None);
                }
            }
        }
    }

    /// There was no descriptor left.
    fn make_room(&mut self) {
        make_room(&mut self.leases, &mut self.groups, &mut self.leaving);
    }

    fn patience(&self) -> Option<u64> {
        let now = sys::now_ns();
        let deadline = self
            .runs
            .values()
            .filter(|r| !r.killed)
            .map(|r| r.next_ns().saturating_sub(now))
            .min();
        let cpu = self
            .runs
            .values()
            .any(|r| r.cpu_limit_us > 0)
            .then_some(CPU_CHECK_NS);
        let restrained = self.restraint.again_ns.map(|at| at.saturating_sub(now));
        let leaving = (!self.leaving.is_empty()).then_some(REMOVE_AGAIN_NS);
        let zygotes = self.zygotes.as_ref().and_then(|z| z.patience(now));
        [deadline, cpu, restrained, leaving, zygotes]
            .into_iter()
            .flatten()
            .min()
    }

    /// For how long a child that is let go of now stays.
    fn linger_ns(&self, now: u64) -> u64 {
        if self.has_many_runs() {
            LINGER_LONG_NS
        } else if self.load.is_high(now) {
            0
        } else {
            LINGER_NS
        }
    }

    /// The id of a run that executes its interpreter, in the launcher's user namespace.
    fn outer_id(&self, id: &Id) -> u32 {
        if self.ground.without.keeps(Guard::OwnUser) {
            id.outer()
        } else {
            sys::effective_ids().0
        }
    }

    /// Something has happened to a run: it has said something, it has ended, or the plugin has let go of it.
    fn attend(&mut self, control: BorrowedFd<'_>, slot: u32, what: Happened) {
        let now = sys::now_ns();
        // One that has ended a moment ago has nothing more to say.
        let Some(run) = self.runs.get_mut(&slot) else {
            return;
        };
        match what {
            Happened::Said => run.hear(),
            Happened::Ready => self.furnish(control, slot),
            Happened::LetGo => {
                let linger_ns = self.linger_ns(now);
                self.load.has_ended(now);
                self.hold.answered(now, linger_ns);
                if let Some(run) = self.runs.get_mut(&slot) {
                    run.let_go(now, linger_ns);
                }
            }
            Happened::Ended => {
                self.hold.ended();
                let Some(mut run) = self.runs.remove(&slot) else {
                    return;
                };
                if !run.is_over() {
                    self.load.has_ended(now);
                }
                self.judge_birth(control, &mut run, now);
                let (group, returning) = run.finish();
                self.leaving.extend(group);
                self.returning.extend(returning);
            }
        }
    }

    fn check_cpu(&mut self) {
        for run in self
            .runs
            .values_mut()
            .filter(|r| r.cpu_limit_us > 0 && !r.killed)
        {
            if run.cpu_us().is_some_and(|us| us >= run.cpu_limit_us) {
                run.cpu_exhausted = true;
                run.kill();
            }
        }
    }

    /// The gateway has gone: end everything and take the groups away.
    fn finish(&mut self) -> io::Result<()> {
        self.pace.end();
        for run in self.runs.values_mut() {
            run.kill();
        }
        let ordered = self.zygotes.as_mut().map(Zygotes::finish);
        self.lost.extend(ordered.unwrap_or_default());
        self.end_all_strays();
        while let Some((_, run)) = self.runs.pop_first() {
            let (group, returning) = run.finish();
            self.leaving.extend(group);
            self.returning.extend(returning);
        }
        let returning = self.returning.drain(..);
        self.leaving.extend(returning.filter_map(|r| r.group));
        for _ in 0..200 {
            self.leaving.retain_mut(|group| !group.try_remove());
            if self.leaving.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_nanos(REMOVE_AGAIN_NS));
        }
        self.groups.as_mut().map_or(Ok(()), Groups::remove)
    }
}

/// What is kept for the next runs has descriptors: it is let go of.
fn make_room(
    leases: &mut Option<Leases>,
    groups: &mut Option<Groups>,
    leaving: &mut Vec<RunGroup>,
) {
    if let Some(leases) = leases {
        leases.let_go();
    }
    leaving.extend(groups.as_mut().map(Groups::let_go).unwrap_or_default());
}

//! The launcher: a small process with one thread that makes runs and sees them end.
//!
//! It knows limits and mounts, never a job. It ends when its socket does (the gateway has gone, however): kills every
//! run, removes the groups, exits. The other way round, a run's init asks the kernel to be killed when the launcher
//! dies. So whichever of the three dies, nothing is left but empty groups, which the next launcher sweeps.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use crate::cgroup::{GroupLimits, Groups, RunGroup};
use crate::guard::{Guard, Without};
use crate::isolate::{Ground, Isolation};
use crate::probe::{self, Standing};
use crate::root;
use crate::sys::{self, Exit, Fork, NODEV, NOEXEC, NOSUID, NOSYMFOLLOW, Poll, RDONLY};
use crate::wire::{End, Hello, HelloReply, MESSAGE_BYTES_MAX, MountSpec, Notice, Report, RunSpec};

/// How often the CPU time of runs with such a limit is looked at.
const CPU_CHECK_NS: u64 = 50_000_000;
/// How often the removal of a group that was busy is tried again.
const REMOVE_AGAIN_NS: u64 = 5_000_000;
/// How long a launcher waits for the one before it to end.
const LOCK_WAIT: Duration = Duration::from_secs(5);

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
    // The first process of a session (one started by `setsid`, in a container) stays what it is.
    let _ = sys::new_session();
    // The roots that are built here are for other users.
    sys::set_umask(0o022);
    std::env::set_current_dir("/")?;
    let files = libc::RLIMIT_NOFILE as i32;
    sys::set_limit(files, sys::hard_limit(files)?)
}

struct Launcher {
    ground: Ground,
    standing: Standing,
    uid_base: u32,
    groups: Option<Groups>,
    runs: BTreeMap<u32, Run>,
    leaving: Vec<RunGroup>,
    /// Held while this launcher lives.
    _lock: OwnedFd,
}

struct Run {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    notice: OwnedFd,
    report: OwnedFd,
    heard: Vec<u8>,
    failed: Option<String>,
    exited: Option<(i32, i32)>,
    group: Option<RunGroup>,
    deadline_ns: u64,
    cpu_limit_us: u64,
    cpu_exhausted: bool,
    deadline_passed: bool,
    killed: bool,
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
            Groups::make(&hello.instance, hello.cgroup_parent.as_deref(), hello.cpus)
                .map_err(|e| e.to_string())
        } else {
            Err("left out".into())
        };
        let built = root::build(&template, &hello.interpreter, &hello.guest, &without);
        let launcher =
            sys::pidfd_open(std::process::id() as _).map_err(|e| broken("pidfd_open", e))?;
        let template = sys::cstr(template.to_string_lossy().as_bytes())
            .map_err(|e| broken("state directory", e))?;
        let ground = Ground {
            template,
            interpreter: hello.interpreter.clone(),
            landlock_abi: sys::landlock_abi()
                .ok()
                .filter(|_| without.keeps(Guard::Landlock)),
            user_namespace: without.keeps(Guard::UserNamespace),
            drops_groups: standing == Standing::Root,
            memory_by_cgroup: groups.as_ref().is_ok_and(|g| g.has("memory")),
            launcher,
            without,
        };
        let mut launcher = Launcher {
            ground,
            standing,
            uid_base: hello.uid_base,
            groups: None,
            runs: BTreeMap::new(),
            leaving: Vec::new(),
            _lock: lock,
        };
        let outcome = probe::layers(
            &mut launcher.ground,
            standing,
            hello.uid_base,
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
        let reply = HelloReply::Ready {
            report: outcome.report,
            enforces_cpu: has("cpuacct"),
            enforces_memory: has("memory"),
            enforces_pids: has("pids"),
        };
        Ok((reply, launcher))
    }

    /// Until the socket ends.
    fn work(&mut self, control: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<()> {
        let mut last_cpu_check = 0;
        loop {
            let slots: Vec<u32> = self.runs.keys().copied().collect();
            let mut polls = vec![Poll::readable(control)];
            for run in self.runs.values() {
                polls.extend([
                    Poll::readable(run.report.as_fd()),
                    Poll::readable(run.pidfd.as_fd()),
                    Poll::readable(run.notice.as_fd()),
                ]);
            }
            sys::poll(&mut polls, self.patience())?;
            for (slot, polls) in slots.iter().zip(polls[1..].chunks(3)) {
                self.attend(
                    *slot,
                    [
                        polls[0].is_ready(),
                        polls[1].is_ready(),
                        polls[2].is_ready(),
                    ],
                );
            }
            self.leaving.retain_mut(|group| !group.try_remove());
            let now = sys::now_ns();
            if now >= last_cpu_check + CPU_CHECK_NS {
                last_cpu_check = now;
                self.check_cpu();
            }
            for run in self.runs.values_mut().filter(|r| now >= r.deadline_ns) {
                run.deadline_passed = true;
                run.kill();
            }
            if polls[0].is_ready() {
                match sys::receive_message(control, buf) {
                    Ok(Some((n, fds))) => self.start(&buf[..n], fds),
                    // An error is the end too: the plugin went without reading something.
                    Ok(None) | Err(_) => return self.finish(),
                }
            }
        }
    }

    fn patience(&self) -> Option<u64> {
        let now = sys::now_ns();
        let deadline = self
            .runs
            .values()
            .filter(|r| !r.killed)
            .map(|r| r.deadline_ns.saturating_sub(now))
            .min();
        let cpu = self
            .runs
            .values()
            .any(|r| r.cpu_limit_us > 0)
            .then_some(CPU_CHECK_NS);
        let leaving = (!self.leaving.is_empty()).then_some(REMOVE_AGAIN_NS);
        [deadline, cpu, leaving].into_iter().flatten().min()
    }

    /// A message with a run to start. Whatever is wrong with it is told on the run's own socket.
    fn start(&mut self, message: &[u8], fds: Vec<OwnedFd>) {
        let Ok([output, channel, notice]) = <[OwnedFd; 3]>::try_from(fds) else {
            return;
        };
        if let Err(message) = self.try_start(message, &output, &channel, &notice) {
            tell(notice.as_fd(), &Notice::Failed { message }, None);
        }
    }

    fn try_start(
        &mut self,
        message: &[u8],
        output: &OwnedFd,
        channel: &OwnedFd,
        notice: &OwnedFd,
    ) -> Result<(), String> {
        let spec: RunSpec = serde_json::from_slice(message)
            .map_err(|e| format!("the launcher cannot read a run: {e}"))?;
        let mounts = spec
            .mounts
            .iter()
            .map(|mount| detached(mount, &self.ground.without))
            .collect::<Result<Vec<_>, _>>()?;
        let slot = (0..)
            .find(|s| !self.runs.contains_key(s))
            .unwrap_or(u32::MAX);
        let limits = GroupLimits {
            memory_bytes: spec.memory_bytes,
            pids: spec.max_pids.saturating_add(1),
        };
        let (group, entrance) = match &mut self.groups {
            Some(groups) => groups
                .make_run(limits)
                .map(|(g, e)| (Some(g), e))
                .map_err(|e| format!("control group: {e}"))?,
            None => (
                None,
                crate::cgroup::Entrance {
                    born_in: None,
                    tasks: Vec::new(),
                },
            ),
        };
        let started = self.spawn(&spec, slot, &mounts, &entrance, [output, channel, notice]);
        let (pid, pidfd, report) = match started {
            Ok(started) => started,
            Err(e) => {
                self.leaving.extend(group);
                return Err(format!("cannot make a process with its namespaces: {e}"));
            }
        };
        let notice = notice.try_clone().map_err(|e| e.to_string());
        let run = Run {
            pid,
            pidfd,
            report,
            heard: Vec::new(),
            failed: None,
            exited: None,
            group,
            deadline_ns: spec.deadline_ns,
            cpu_limit_us: spec.cpu_ms.saturating_mul(1000),
            cpu_exhausted: false,
            deadline_passed: false,
            killed: false,
            notice: notice?,
        };
        tell(
            run.notice.as_fd(),
            &Notice::Started,
            Some(run.pidfd.as_fd()),
        );
        self.runs.insert(slot, run);
        Ok(())
    }

    fn spawn(
        &self,
        spec: &RunSpec,
        slot: u32,
        mounts: &[OwnedFd],
        entrance: &crate::cgroup::Entrance,
        [output, channel, notice]: [&OwnedFd; 3],
    ) -> io::Result<(libc::pid_t, OwnedFd, OwnedFd)> {
        let (report, report_in) = sys::pipe()?;
        sys::set_nonblocking(report.as_fd())?;
        let isolation = Isolation {
            ground: &self.ground,
            spec,
            outer_id: self.outer_id(slot),
            entrance,
            mounts,
            output: output.as_fd(),
            channel: channel.as_fd(),
            report: report_in.as_fd(),
            notice: Some(notice.as_fd()),
            arguments: None,
        };
        match sys::clone_process(
            self.ground.born_in(),
            entrance.born_in.as_ref().map(AsFd::as_fd),
        )? {
            Fork::Child => enter(&isolation),
            Fork::Parent { pid, pidfd } => Ok((pid, pidfd, report)),
        }
    }

    fn outer_id(&self, slot: u32) -> u32 {
        if self.ground.without.keeps(Guard::OwnUser) {
            self.standing.outer_id(self.uid_base, slot)
        } else {
            sys::effective_ids().0
        }
    }

    /// Something has happened to a run: it has said something, it has ended, or the plugin has let go of it.
    fn attend(&mut self, slot: u32, [report, ended, notice]: [bool; 3]) {
        let Some(run) = self.runs.get_mut(&slot) else {
            return;
        };
        if report || ended {
            run.hear();
        }
        if notice {
            run.kill();
        }
        if ended {
            let Some(run) = self.runs.remove(&slot) else {
                return;
            };
            self.leaving.extend(run.finish());
        }
    }

    fn check_cpu(&mut self) {
        for run in self
            .runs
            .values_mut()
            .filter(|r| r.cpu_limit_us > 0 && !r.killed)
        {
            if run
                .group
                .as_ref()
                .and_then(|g| g.used().cpu_us)
                .is_some_and(|us| us >= run.cpu_limit_us)
            {
                run.cpu_exhausted = true;
                run.kill();
            }
        }
    }

    /// The gateway has gone: end everything and take the groups away.
    fn finish(&mut self) -> io::Result<()> {
        for run in self.runs.values_mut() {
            run.kill();
        }
        while let Some((_, run)) = self.runs.pop_first() {
            self.leaving.extend(run.finish());
        }
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

impl Run {
    fn kill(&mut self) {
        // The kernel refuses only for a process that is not ours to kill, which this one is.
        let _ = sys::kill_by_pidfd(self.pidfd.as_fd());
        self.killed = true;
    }

    fn hear(&mut self) {
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = sys::read(self.report.as_fd(), &mut buf) {
            self.heard.extend_from_slice(&buf[..n]);
        }
        while let Some(end) = self.heard.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Report::Ready) => tell(self.notice.as_fd(), &Notice::Ready, None),
                Ok(Report::Failed { step, error }) => {
                    self.failed = Some(format!("isolation step {step}: {error}"))
                }
                Ok(Report::Exited { code, signal }) => self.exited = Some((code, signal)),
                Err(e) => self.failed = Some(format!("init said something strange: {e}")),
            }
        }
    }

    /// Reaps init (which is dead or has been killed), tells the plugin and gives the group back for removal.
    fn finish(mut self) -> Option<RunGroup> {
        let exit = sys::wait(self.pid)
            .ok()
            .flatten()
            .map(|(_, exit)| exit)
            .unwrap_or_default();
        self.hear();
        let notice = match self.failed.take() {
            Some(message) => Notice::Failed { message },
            None => Notice::Ended(self.end(exit)),
        };
        tell(self.notice.as_fd(), &notice, None);
        self.group
    }

    fn end(&self, init: Exit) -> End {
        let used = self.group.as_ref().map(RunGroup::used).unwrap_or_default();
        // Without init's word the program was killed with it.
        let (exit_code, signal) = self.exited.unwrap_or((-1, init.signal));
        End {
            exit_code,
            signal,
            cpu_us: used.cpu_us.unwrap_or(init.cpu_us),
            peak_memory_bytes: used.peak_memory_bytes.unwrap_or(init.peak_rss_bytes),
            oom_kills: used.oom_kills,
            pids_refused: used.pids_refused,
            cpu_exhausted: self.cpu_exhausted,
            deadline_passed: self.deadline_passed,
        }
    }
}

/// In the child: nothing may ever return into the launcher's code, not even a panic.
pub(crate) fn enter(isolation: &Isolation<'_>) -> ! {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| isolation.become_init()));
    match result {
        Ok(never) => never,
        Err(_) => sys::exit_now(124),
    }
}

fn tell(notice: BorrowedFd<'_>, what: &Notice, pidfd: Option<BorrowedFd<'_>>) {
    let fds: Vec<BorrowedFd<'_>> = pidfd.into_iter().collect();
    // The plugin has let go of the run: then nobody needs to know.
    let _ = serde_json::to_vec(what).map(|text| sys::send_message(notice, &text, &fds));
}

/// The mount of a directory or file that the plugin holds open: opened by its path in this mount namespace, and
/// only used when it is the same file.
fn detached(spec: &MountSpec, without: &Without) -> Result<OwnedFd, String> {
    let named = |e: io::Error| format!("mount {}: {e}", spec.target);
    let at = sys::open(&spec.path, libc::O_PATH | libc::O_NOFOLLOW).map_err(named)?;
    let stat = sys::stat(at.as_fd()).map_err(named)?;
    if (stat.dev, stat.ino) != (spec.dev, spec.ino) {
        return Err(format!(
            "mount {}: its path leads to something else now",
            spec.target
        ));
    }
    let mount = sys::clone_mount(at.as_fd()).map_err(named)?;
    let flags = if without.keeps(Guard::MountFlags) {
        NOSUID | NODEV | NOEXEC | NOSYMFOLLOW
    } else {
        0
    };
    sys::restrict(mount.as_fd(), RDONLY | flags).map_err(named)?;
    Ok(mount)
}

/// One launcher per state directory: an earlier one is given time to end.
fn lock(state: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = state.join("launcher.lock");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)?;
    let lock = OwnedFd::from(file);
    let until = std::time::Instant::now() + LOCK_WAIT;
    while !sys::try_lock(lock.as_fd())? {
        if std::time::Instant::now() > until {
            return Err(io::Error::other(format!(
                "another launcher holds {}; is a second gateway using this directory?",
                path.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(lock)
}

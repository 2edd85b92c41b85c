//! Starting the launcher, starting it again when it has died or reads nothing any more, and ending it.

mod silence;

use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skillgate_plugin_sdk::model::Error;
use skillgate_plugin_sdk::{Host, Level, abi};

use crate::entry;
use crate::launcher;
use crate::pool::{self, Pool, PoolRules};
use crate::sys::{self, Poll};
use crate::wire::{
    EXCUSED, Hello, HelloReply, LayerReport, LayerState, MESSAGE_BYTES_MAX, Paced, Promises,
};
pub(crate) use silence::Silence;

const TARGET: &str = "sandbox_process::supervisor";
/// How long a launcher may take to try every layer and start an interpreter from a cold disk.
const START_NS: u64 = 90_000_000_000;
/// How long a launcher may take to end every run and leave.
const END_WAIT: Duration = Duration::from_secs(5);
/// How long one that was killed is waited for. In a call of a file system that does not answer it lives until that does.
const KILLED_WAIT: Duration = Duration::from_secs(1);
/// One that dies closes its descriptors one after the other, within so long.
const DYING_NS: u64 = 100_000_000;
/// What one that seems to be hung is given to read something.
const AWAKE_NS: u64 = 100_000_000;
/// How often it is looked whether one has ended, or reads.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How often who waits for a launcher looks whether it still wants one.
const WANTED_EVERY: Duration = Duration::from_millis(20);
const BACK_OFF_FIRST: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// The connection to a launcher that has said that it is ready.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub(crate) control: OwnedFd,
    pub(crate) promises: Promises,
    /// Where short runs do not wait for the kernel's clock behind one that lasts.
    pub(crate) paced: Paced,
    /// `None`: every run is an interpreter of its own.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) silence: Arc<Silence>,
    hears: Mutex<Option<JoinHandle<()>>>,
    dead: AtomicBool,
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // For the launcher, which then ends every run, and for the thread that hears it. It may have gone before.
        let _ = sys::shut_down(self.control.as_fd());
        let hears = self.hears.get_mut().map(Option::take);
        if let Ok(Some(thread)) = hears {
            // A panic of it has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Launcher {
    /// One of which there is a socket and nothing else.
    #[cfg(test)]
    pub(crate) fn of_nothing(control: OwnedFd) -> Self {
        Launcher {
            control,
            promises: Promises::default(),
            paced: Paced::default(),
            pool: None,
            silence: Arc::default(),
            hears: Mutex::default(),
            dead: AtomicBool::new(false),
        }
    }

    /// For a run of which it knows nothing any more: it has died, or had no descriptors left for this one.
    pub(crate) fn has_lost_a_run(&self) {
        let mut gone = [Poll::hung_up(self.control.as_fd())];
        let waited = sys::poll_until(&mut gone, sys::now_ns() + DYING_NS);
        if waited.is_err() || gone[0].is_ready() {
            self.mark_dead();
        }
    }

    fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    fn unread_bytes(&self) -> usize {
        // Where that cannot be asked, nothing is known against it.
        sys::unread_bytes(self.control.as_fd()).unwrap_or(0)
    }

    /// Whether [`Launcher::is_hung`] is worth its time.
    fn seems_hung(&self) -> bool {
        self.silence.is_long(self.unread_bytes() > 0, sys::now_ns())
    }

    /// One that seems so, lives and does nothing: it is stopped, or in a call of a file system that does not answer.
    fn is_hung(&self) -> bool {
        let first = self.unread_bytes();
        // On a machine that has slept both have, and it reads a moment later.
        let until_ns = sys::now_ns() + AWAKE_NS;
        while sys::now_ns() < until_ns {
            let left = self.unread_bytes();
            if left == 0 || left < first {
                self.silence.end();
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }
}

/// One launcher at a time.
#[derive(Debug)]
pub(crate) struct Supervisor(Arc<Starter>);

/// What a launcher is started from, by a thread that does nothing else: whoever waits for one may have no time left before it is
/// there.
#[derive(Debug)]
struct Starter {
    program: OwnedFd,
    hello: Hello,
    pool: Option<PoolRules>,
    host: Host,
    /// Never held for longer than a moment.
    state: Mutex<State>,
    /// A start is over.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody makes the next launcher, or sees whether this one is hung.
    starting: bool,
    /// The last that has.
    thread: Option<JoinHandle<()>>,
    /// Why there is none after it.
    failed: Option<Error>,
    current: Option<Arc<Launcher>>,
    child: Option<Child>,
    /// Killed, and not seen to end.
    unended: Vec<Child>,
    report: Vec<LayerReport>,
    starts: u64,
    failures: u32,
    not_before: Option<Instant>,
}

/// A start that is under way, however it ends.
struct Starting<'a>(&'a Starter);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.starting = false;
        if std::thread::panicking() {
            let why = "the start of the launcher of runs has panicked";
            state.failed = Some(unavailable(why, BACK_OFF_MAX));
        }
        drop(state);
        self.0.settled.notify_all();
    }
}

impl Supervisor {
    /// Starts the first launcher; an error is the reason why the instance cannot be made.
    pub(crate) fn start(
        program: OwnedFd,
        hello: Hello,
        pool: Option<PoolRules>,
        host: Host,
    ) -> Result<Self, Error> {
        let supervisor = Supervisor(Arc::new(Starter {
            program,
            hello,
            pool,
            host,
            state: Mutex::default(),
            settled: Condvar::new(),
        }));
        supervisor.launcher(|| false)?;
        Ok(supervisor)
    }

    /// The launcher that lives, or a new one. While one starts it waits until `is_over`; it refuses while it is too soon to try
    /// again.
    pub(crate) fn launcher(&self, is_over: impl Fn() -> bool) -> Result<Arc<Launcher>, Error> {
        let mut state = self.0.state();
        let mut has_waited = false;
        loop {
            if !state.starting {
                if let Some(living) = state.living() {
                    return Ok(living);
                }
                if let Some(why) = state.failed.as_ref().filter(|_| has_waited) {
                    return Err(why.clone());
                }
                if let Some(wait) = state
                    .not_before
                    .and_then(|t| t.checked_duration_since(Instant::now()))
                {
                    let mut why =
                        "the launcher of runs could not be started and is tried again soon"
                            .to_owned();
                    if let Some(failed) = &state.failed {
                        why += &format!(": {}", failed.message);
                    }
                    return Err(unavailable(&why, wait));
                }
                state = self.begin(state);
            }
            has_waited = true;
            // Where no thread could be had it is over already, and the next look tells how.
            if state.starting {
                if is_over() {
                    let why = "the launcher of runs is being started";
                    return Err(unavailable(why, BACK_OFF_FIRST));
                }
                let waited = self.0.settled.wait_timeout(state, WANTED_EVERY);
                (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The one in the place of one that has died. `None`: that lives, or there is none now.
    pub(crate) fn after(
        &self,
        dead: &Arc<Launcher>,
        is_over: impl Fn() -> bool,
    ) -> Option<Arc<Launcher>> {
        let launcher = self.launcher(is_over).ok();
        launcher.filter(|it| !Arc::ptr_eq(it, dead))
    }

    fn begin<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.starting = true;
        state.failed = None;
        if let Some(last) = state.thread.take() {
            // It has nothing left to do. A panic of it has been reported where it happened.
            let _ = last.join();
        }
        let starter = Arc::clone(&self.0);
        let thread = std::thread::Builder::new()
            .name("skillgate-start".into())
            .spawn(move || starter.replace());
        if let Ok(thread) = thread {
            state.thread = Some(thread);
            return state;
        }
        // Without a thread to be had: better a run that waits too long than none at all.
        drop(state);
        self.0.replace();
        self.0.state()
    }

    /// What is known of the layers, and how often a launcher was started.
    pub(crate) fn report(&self) -> (Vec<LayerReport>, u64) {
        let state = self.0.state();
        (state.report.clone(), state.starts)
    }

    /// The process id of the launcher, when none is being started, for tests that kill it.
    pub(crate) fn pid(&self) -> Option<u32> {
        let settled = self.0.settled.wait_while(self.0.state(), |s| s.starting);
        let state = settled.unwrap_or_else(PoisonError::into_inner);
        state.child.as_ref().map(Child::id)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let thread = self.0.state().thread.take();
        if let Some(thread) = thread {
            // It executes code of a file that may not be there for long. A panic of it has been reported where it happened.
            let _ = thread.join();
        }
        // The socket's end tells the launcher to end every run. Nobody else holds it: every run is over.
        let current = self.0.state().current.take();
        drop(current);
        self.0.end_child(END_WAIT);
    }
}

impl Starter {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves at worst a launcher too many, which ends with its socket.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new launcher in the place of the one that has died, or that is ended here since it is hung.
    fn replace(&self) {
        let _starting = Starting(self);
        let current = self.state().current.clone();
        if let Some(current) = current.filter(|l| !l.is_dead()) {
            if !current.is_hung() {
                return;
            }
            current.mark_dead();
            self.host.log(
                Level::Error,
                TARGET,
                "the launcher of runs lives and reads nothing: it is ended, with the runs under way. Was it stopped, or is a file \
                 system that a run is given files of not answering?",
                &[("silent_ms", &silence::LONG_MS.to_string())],
            );
        }
        let before = self.state().current.take();
        drop(before);
        self.end_child(Duration::ZERO);
        match self.spawn() {
            Ok(launcher) => {
                let mut state = self.state();
                state.failures = 0;
                state.not_before = None;
                let again = state.starts > 0;
                state.starts += 1;
                state.current = Some(launcher);
                drop(state);
                if again {
                    self.host.log(
                        Level::Warn,
                        TARGET,
                        "the launcher of runs had died, or was ended, and another has been started",
                        &[],
                    );
                }
            }
            Err(e) => {
                let mut state = self.state();
                state.failures += 1;
                let wait = BACK_OFF_FIRST
                    .saturating_mul(1 << state.failures.min(8).saturating_sub(1))
                    .min(BACK_OFF_MAX);
                state.not_before = Some(Instant::now() + wait);
                state.failed = Some(e);
                drop(state);
                self.end_child(END_WAIT);
            }
        }
    }

    fn spawn(&self) -> Result<Arc<Launcher>, Error> {
        let broken = |what: &str, e: io::Error| {
            Error::new(abi::E_UNAVAILABLE, format!("{what}: {e}")).not_executed()
        };
        let unended: Vec<_> = self.state().unended.iter().map(Child::id).collect();
        let state_dir = Path::new(&self.hello.state_dir);
        launcher::take_from(&unended, state_dir).map_err(|e| broken("state directory", e))?;
        let (control, theirs) =
            sys::socketpair(libc::SOCK_SEQPACKET).map_err(|e| broken("socketpair", e))?;
        let child = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()))
            .arg0("skillgate-runs")
            .env_clear()
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                let e = entry::without_loader(&e).map_or(e, io::Error::other);
                broken(
                    "cannot execute the launcher of runs (the plugin's own file)",
                    e,
                )
            })?;
        self.state().child = Some(child);
        let reply = self
            .greet(&control)
            .map_err(|e| broken("the launcher of runs does not answer", e))?;
        match reply {
            HelloReply::Ready {
                report,
                promises,
                paced,
                is_alone,
            } => {
                self.state().report = report;
                if !is_alone {
                    let said = "the file system of the sandbox's state directory has no locks: see to it that no other gateway has \
                                this directory";
                    let dir = ("dir", &*self.hello.state_dir);
                    self.host.log(Level::Warn, TARGET, said, &[dir]);
                }
                let (pool, hears) = match self.pool {
                    Some(rules) => {
                        let own = control.try_clone().map_err(|e| broken("socket", e))?;
                        let pool = Arc::new(Pool::new(own, rules));
                        let hears = pool::listen(&pool, &self.host)
                            .map_err(|e| broken("a thread for the pool", e))?;
                        pool.open();
                        (Some(pool), Some(hears))
                    }
                    None => (None, None),
                };
                let silence = pool.as_ref().map(|p| p.silence.clone());
                Ok(Arc::new(Launcher {
                    control,
                    promises,
                    paced,
                    pool,
                    silence: silence.unwrap_or_default(),
                    hears: Mutex::new(hears),
                    dead: AtomicBool::new(false),
                }))
            }
            HelloReply::Refused { report } => {
                self.state().report = report.clone();
                Err(refusal(&report))
            }
            HelloReply::Broken { message } => {
                Err(Error::new(abi::E_UNAVAILABLE, message).not_executed())
            }
        }
    }

    /// The first message and its answer.
    fn greet(&self, control: &OwnedFd) -> io::Result<HelloReply> {
        let file = sys::memfd(c"skillgate-hello")?;
        let mut writer = std::fs::File::from(file.try_clone()?);
        writer.write_all(&serde_json::to_vec(&self.hello)?)?;
        io::Seek::rewind(&mut writer)?;
        sys::send_message(control.as_fd(), b"hello", &[file.as_fd()])?;
        let mut ready = [Poll::readable(control.as_fd())];
        sys::poll_until(&mut ready, sys::now_ns() + START_NS)?;
        if !ready[0].is_ready() {
            return Err(io::Error::other("it took too long to start"));
        }
        let mut buf = vec![0; MESSAGE_BYTES_MAX];
        let (n, _) = sys::receive_message(control.as_fd(), &mut buf)?
            .ok_or_else(|| io::Error::other("it ended while starting"))?;
        Ok(serde_json::from_slice(&buf[..n])?)
    }

    /// Waits for the launcher to leave, then makes it.
    fn end_child(&self, patience: Duration) {
        let mut state = self.state();
        state.unended.retain_mut(|child| !has_ended(child));
        let Some(mut child) = state.child.take() else {
            return;
        };
        drop(state);
        if ends_within(&mut child, patience) {
            return;
        }
        // Fails only when it is already gone.
        let _ = child.kill();
        if !ends_within(&mut child, KILLED_WAIT) {
            self.state().unended.push(child);
        }
    }
}

impl State {
    /// The launcher, where nothing is known against it.
    fn living(&mut self) -> Option<Arc<Launcher>> {
        let current = self.current.as_ref()?;
        if self.child.as_mut().is_some_and(has_ended) {
            current.mark_dead();
        }
        let lives = !current.is_dead() && !current.seems_hung();
        lives.then(|| current.clone())
    }
}

/// Reaps it if it has.
fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn ends_within(child: &mut Child, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while !has_ended(child) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}

fn unavailable(message: &str, wait: Duration) -> Error {
    Error::new(abi::E_UNAVAILABLE, message)
        .not_executed()
        .retryable(wait.as_millis().clamp(1, 60_000) as u32)
}

/// Names every missing layer and what to do about it.
fn refusal(report: &[LayerReport]) -> Error {
    let missing: Vec<String> = report
        .iter()
        .filter(|l| l.state == LayerState::Missing && !l.detail.ends_with(EXCUSED))
        .map(|l| format!("{} (needed: {})", l.in_words(), l.advice))
        .collect();
    let mut error = Error::new(
        abi::E_PRECONDITION,
        format!("this host cannot isolate runs: {}", missing.join("; ")),
    );
    error.detail_json = serde_json::to_string(report).unwrap_or_default();
    error
}

/// The plugin's own file, opened so that it can be executed later, whatever becomes of its name. A file that cannot be
/// executed as it is (no x bit, a noexec mount) is copied into memory.
pub(crate) fn own_program(file: Option<PathBuf>) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt;
    let path = file.or_else(sys::own_file).ok_or_else(|| {
        io::Error::other("the dynamic loader does not know the plugin's own file")
    })?;
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let opened = sys::open(path.as_os_str().as_bytes(), libc::O_RDONLY).map_err(named)?;
    if is_executable(&opened) {
        return Ok(opened);
    }
    let copy = sys::memfd_of_program(c"skillgate-runs").map_err(|e| {
        let why = "it cannot be executed where it is, and the host lets no copy in memory be executed (vm.memfd_noexec); \
                   make the file executable (chmod 755), on a file system without noexec";
        named(io::Error::new(e.kind(), format!("{why}: {e}")))
    })?;
    io::copy(
        &mut std::fs::File::from(opened),
        &mut std::fs::File::from(copy.try_clone()?),
    )
    .map_err(named)?;
    // Opened again for reading: a file that somebody may write to is not executed.
    sys::open(
        format!("/proc/self/fd/{}", copy.as_raw_fd()),
        libc::O_RDONLY,
    )
}

fn is_executable(file: &OwnedFd) -> bool {
    let mode = sys::stat(file.as_fd()).map_or(0, |s| s.mode);
    mode & 0o111 == 0o111 && !sys::is_noexec(file.as_fd()).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Where its name leads to says nothing: the gateway gives a file in memory, and a file can be a mount of its own.
    #[test]
    fn whether_it_can_be_executed_is_asked_of_the_file_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.so");
        std::fs::write(&path, "").unwrap();
        let path = path.to_str().unwrap();
        let judged = |path: &str| is_executable(&sys::open(path, libc::O_RDONLY).unwrap());
        let allow = |mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        allow(0o644);
        assert!(!judged(path));
        allow(0o755);
        let place = sys::open(dir.path().to_str().unwrap(), libc::O_PATH).unwrap();
        assert_eq!(judged(path), !sys::is_noexec(place.as_fd()).unwrap());

        match sys::clone_mount_at(path) {
            Ok(mount) => {
                sys::restrict(mount.as_fd(), sys::NOEXEC).unwrap();
                assert!(!judged(&format!("/proc/self/fd/{}", mount.as_raw_fd())));
            }
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "not as root"),
        }
        match sys::memfd_of_program(c"program") {
            Ok(program) => assert!(is_executable(&program)),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EACCES), "vm.memfd_noexec is 2"),
        }
    }
}

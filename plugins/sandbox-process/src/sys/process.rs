//! Making, watching and ending processes. For the single-threaded launcher and its children only, but for
//! [`kill_by_pidfd`] and [`is_alive`].

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;
use super::fds::own_fd;

/// Which side of a fork this is.
#[derive(Debug)]
pub(crate) enum Fork {
    Parent { pid: libc::pid_t, pidfd: OwnedFd },
    Child,
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Where the C library keeps this thread's id: a raw clone must renew it, as fork() would. Null on a kernel without
/// CHECKPOINT_RESTORE; then only the C library's cached id is stale, which nothing in a child uses.
pub(super) fn tid_address() -> u64 {
    let mut address: u64 = 0;
    // SAFETY: PR_GET_TID_ADDRESS writes one pointer.
    let ret = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &mut address as *mut u64, 0, 0, 0) };
    if ret == 0 { address } else { 0 }
}

/// Makes a child with new namespaces (`flags`), born in the cgroup (v2) when one is given. The child is a copy of this
/// process: allowed only because the launcher (and the zygote) has one thread, so no lock can be held by a thread that
/// is not copied.
pub(crate) fn clone_process(
    flags: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<Fork> {
    let mut pidfd: RawFd = -1;
    let tid = tid_address();
    let mut args = CloneArgs {
        flags: flags as u32 as u64 | libc::CLONE_PIDFD as u64,
        pidfd: &mut pidfd as *mut RawFd as u64,
        // A brother (CLONE_PARENT) tells its parent by the signal that this process tells it by; the kernel wants a 0.
        exit_signal: if flags & libc::CLONE_PARENT == 0 {
            libc::SIGCHLD as u64
        } else {
            0
        },
        child_tid: tid,
        ..CloneArgs::default()
    };
    if tid != 0 {
        args.flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
    }
    if let Some(cgroup) = cgroup {
        args.flags |= 0x2_0000_0000; // CLONE_INTO_CGROUP
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: no CLONE_VM: the child runs on a copy of this stack and memory, so this is fork(). `args` is a clone_args
    // of the size given; `pidfd` is a valid out pointer; child_tid is this thread's own id word or 0.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &args as *const CloneArgs,
            size_of::<CloneArgs>(),
        )
    })?;
    if pid == 0 {
        return Ok(Fork::Child);
    }
    // SAFETY: clone3 has just made this descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Fork::Parent {
        pid: pid as _,
        pidfd,
    })
}

/// A descriptor of a process; readable when it has ended.
pub(crate) fn pidfd_open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// SIGKILL. For the init of a pid namespace it ends everything in it. A process that is gone is no error.
pub(crate) fn kill_by_pidfd(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed.
    match check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            none,
            0,
        )
    }) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// Whether the process has not ended yet.
pub(crate) fn is_alive(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut list = [super::Poll::readable(pidfd)];
    super::poll(&mut list, Some(0))?;
    Ok(!list[0].is_ready())
}

/// How a process ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) signal: i32,
    /// CPU time of it and of everything that it has waited for.
    pub(crate) cpu_us: u64,
    /// The largest resident set of any of them.
    pub(crate) peak_rss_bytes: u64,
}

/// What wait(2) says of an end: the exit code or -1, the signal or 0.
pub(super) fn code_and_signal(status: i32) -> (i32, i32) {
    if libc::WIFEXITED(status) {
        (libc::WEXITSTATUS(status), 0)
    } else {
        (-1, libc::WTERMSIG(status))
    }
}

/// Waits for the end of a child and reaps it. One that has been reaped is no error: its number may be another's (waitid(2)).
pub(crate) fn reap(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let options = libc::WEXITED | libc::__WALL;
    loop {
        let fd = pidfd.as_raw_fd() as libc::id_t;
        // SAFETY: a null siginfo is allowed.
        let ret = unsafe { libc::waitid(libc::P_PIDFD, fd, std::ptr::null_mut(), options) };
        match check(ret.into()) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
            other => return other.map(drop),
        }
    }
}

/// Kills and reaps a child by its number, which is nobody else's until it is reaped. An error where it is none.
pub(crate) fn end_child(pid: libc::pid_t) -> io::Result<()> {
    let id = libc::id_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: an all-zero siginfo is valid plain data.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid out pointer. Nothing is waited for and nothing reaped: it is seen whether it is a child.
    check(unsafe { libc::waitid(libc::P_PID, id, &mut info, options) }.into())?;
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, libc::SIGKILL) }.into())?;
    wait(pid).map(drop)
}

/// Waits for a child, or for any (-1), and reaps it. `None`: no child.
pub(crate) fn wait(pid: libc::pid_t) -> io::Result<Option<(libc::pid_t, Exit)>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: status and usage are valid out pointers.
        let ret = unsafe { libc::wait4(pid, &mut status, libc::__WALL, &mut usage) };
        match check(ret.into()) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(e) => return Err(e),
            Ok(pid) => {
                let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
                let (code, signal) = code_and_signal(status);
                let exit = Exit {
                    code,
                    signal,
                    cpu_us: us(usage.ru_utime) + us(usage.ru_stime),
                    peak_rss_bytes: usage.ru_maxrss as u64 * 1024,
                };
                return Ok(Some((pid as _, exit)));
            }
        }
    }
}

/// A session of its own, without a controlling terminal.
pub(crate) fn new_session() -> io::Result<()> {
    // SAFETY: no arguments.
    check(unsafe { libc::setsid() }.into()).map(drop)
}

/// A process group of its own in the session it was born in: no signal to a group reaches it from outside, and none leaves.
/// In a session without a terminal, that is all that a session of its own would give to a process that nobody looks for; and
/// the kernel makes a scheduling group with each session, of as many parts as the host has processors (sched(7), "autogroup").
pub(crate) fn new_process_group() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setpgid(0, 0) }.into()).map(drop)
}

/// Every signal as a new program expects it: default action, nothing blocked. By raw calls, since the C library refuses
/// to touch the two that it uses itself, and whoever has started the gateway may have ignored those too.
pub(crate) fn reset_signals() -> io::Result<()> {
    // The kernel's struct sigaction: handler (0: default), flags, restorer, mask.
    let action = [0u64; 4];
    let no_signal = 0u64;
    let size = size_of::<u64>();
    for signal in 1..=64 {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            let none = std::ptr::null::<u64>();
            // SAFETY: `action` has the size of the kernel's struct with a mask of `size` bytes; the old one is not asked for.
            check(unsafe {
                libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), none, size)
            })?;
        }
    }
    let (how, none) = (libc::SIG_SETMASK, std::ptr::null::<u64>());
    // SAFETY: the set is `size` bytes; the old one is not asked for.
    check(unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &no_signal as *const u64,
            none,
            size,
        )
    })
    .map(drop)
}

/// Signals that do nothing from now on.
pub(crate) fn ignore_signals(signals: &[libc::c_int]) -> io::Result<()> {
    signals.iter().try_for_each(|s| dispose(*s, libc::SIG_IGN))
}

/// The end of a child is told, and the child stays until it is waited for (sigaction(2)).
pub(crate) fn hear_of_children() -> io::Result<()> {
    dispose(libc::SIGCHLD, libc::SIG_DFL)
}

/// `how`: SIG_IGN or SIG_DFL.
fn dispose(signal: libc::c_int, how: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: neither is a function: nothing of ours runs when the signal comes.
    if unsafe { libc::signal(signal, how) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The mode bits that new files never get.
pub(crate) fn set_umask(mask: u32) {
    // SAFETY: no pointers, cannot fail.
    unsafe { libc::umask(mask) };
}

/// Replaces this program. Returns only on failure.
pub(crate) fn execute(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let list = |v: &[CString]| {
        v.iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect::<Vec<_>>()
    };
    let (argv, envp) = (list(args), list(env));
    // SAFETY: both lists are null-terminated and point to NUL-terminated strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Gives memory that is not in use back to the kernel: what a process has is what a copy of it costs.
pub(crate) fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Ends this process at once: no destructors, no buffers, since a fork shares them with its parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

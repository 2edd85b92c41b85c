//! What a plugin's process gives up before it loads anything.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Ends the process, here and now: no destructor of a plugin's library runs beside its threads.
pub(crate) fn end(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

fn check(code: libc::c_long) -> io::Result<libc::c_long> {
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(code)
}

/// The gateway's socket, which is standard input. Everything else that is open is closed: whatever the gateway has open is
/// not for this process.
pub(crate) fn socket() -> io::Result<UnixStream> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: memory for a stat; the number need not be open.
    check(unsafe { libc::fstat(0, stat.as_mut_ptr()) }.into())?;
    // SAFETY: fstat has succeeded, and so filled it.
    if unsafe { stat.assume_init() }.st_mode & libc::S_IFMT != libc::S_IFSOCK {
        return Err(io::Error::other("standard input is no socket"));
    }
    // SAFETY: nothing in this process has opened a descriptor that it still means to use: it has only just begun.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) })?;
    // SAFETY: duplicates an open descriptor.
    let fd = check(unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: made just now.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let null = File::open("/dev/null")?;
    // The plugin, and what it starts, find nothing at standard input.
    // SAFETY: two open descriptors; standard input is nobody's object in this process.
    check(unsafe { libc::dup2(null.as_raw_fd(), 0) }.into())?;
    Ok(UnixStream::from(socket))
}

extern "C" fn nothing(_: libc::c_int) {}

/// A name. No memory dumps: it may hold secrets. The gateway ends it, not a signal to all processes of the service or terminal.
pub(crate) fn process() -> io::Result<()> {
    // SAFETY: reads a NUL-terminated name of at most 16 bytes.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, c"skillgate-host".as_ptr()) }.into())?;
    // SAFETY: takes numbers.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into())?;
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads the struct.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) }.into())?;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // A handler, not "ignore": what the plugin starts begins with the default again.
        // SAFETY: all-zero bytes are a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: a handler that does nothing is safe at any moment.
        check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }.into())?;
    }
    Ok(())
}

/// Nothing that this thread, and those that it starts, execute gains privileges.
pub(crate) fn no_new_privs() -> io::Result<()> {
    // SAFETY: takes numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into()).map(drop)
}

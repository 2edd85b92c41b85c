//! Descriptors: pipes, files, polling.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use super::{check, cstr};

/// Takes a descriptor that a system call has just returned.
pub(super) fn own_fd(ret: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(ret)?;
    // SAFETY: the kernel has just made this descriptor for this call; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A pipe: read end, write end; close-on-exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for the two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    Ok((own_fd(fds[0].into())?, own_fd(fds[1].into())?))
}

/// Makes a run's output its own: who has a pipe open opens it by a name (`/dev/stdout`) only where he may use a file of its owner.
pub(crate) fn give(pipe: BorrowedFd<'_>, owner: u32) {
    // To lack the right to is no reason to refuse a run, which has it open in any case.
    let _ = std::os::unix::fs::fchown(pipe, Some(owner), Some(owner));
}

/// A counter to wake a poll from another thread.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own_fd(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }.into())
}

/// An anonymous file that is read.
pub(crate) fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    memfd_as(name, libc::MFD_NOEXEC_SEAL)
}

/// An anonymous file that is executed. EACCES: the host forbids that (sysctl vm.memfd_noexec = 2).
pub(crate) fn memfd_of_program(name: &CStr) -> io::Result<OwnedFd> {
    memfd_as(name, libc::MFD_EXEC)
}

/// Said in any case: with vm.memfd_noexec (Linux 6.3) the kernel takes who says neither for one that does not execute it, or
/// refuses him.
fn memfd_as(name: &CStr, what_for: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: `name` is NUL-terminated.
    let make = |flags| own_fd(unsafe { libc::memfd_create(name.as_ptr(), flags) }.into());
    match make(libc::MFD_CLOEXEC | what_for) {
        // Older kernels do not know the flags.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => make(libc::MFD_CLOEXEC),
        made => made,
    }
}

/// Non-blocking from now on. It is a property of the open description: never set it on one that is shared with a run.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }.into()).map(drop)
}

/// Reads; 0 is the end, `WouldBlock` for a non-blocking descriptor without data.
pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
    check(unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) } as _)
        .map(|n| n as usize)
}

/// Reads once, at most so many bytes, behind what `buf` has.
pub(crate) fn read_more(
    fd: BorrowedFd<'_>,
    buf: &mut Vec<u8>,
    bytes_max: usize,
) -> io::Result<usize> {
    buf.reserve(bytes_max);
    let room = buf.spare_capacity_mut();
    // SAFETY: the kernel writes at most `bytes_max` bytes, for which there is room.
    let n = check(unsafe { libc::read(fd.as_raw_fd(), room.as_mut_ptr().cast(), bytes_max) } as _)?;
    // SAFETY: so many has it written.
    unsafe { buf.set_len(buf.len() + n as usize) };
    Ok(n as usize)
}

/// Reads once, from this offset of a file.
pub(crate) fn read_at(fd: BorrowedFd<'_>, buf: &mut [u8], offset: i64) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
    check(unsafe { libc::pread(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), offset) } as _)
        .map(|n| n as usize)
}

/// Writes to a pipe or an eventfd or a file of the kernel.
pub(crate) fn write(fd: BorrowedFd<'_>, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads at most `buf.len()` bytes of `buf`.
    check(unsafe { libc::write(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len()) } as _)
        .map(|n| n as usize)
}

/// What to wait for, and what has happened.
#[derive(Clone, Copy)]
pub(crate) struct Poll {
    pub(crate) fd: RawFd,
    pub(crate) events: i16,
    pub(crate) happened: i16,
}

impl Poll {
    /// Readable, or closed.
    pub(crate) fn readable(fd: BorrowedFd<'_>) -> Self {
        Poll {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            happened: 0,
        }
    }
    /// There is room for more.
    pub(crate) fn writable(fd: BorrowedFd<'_>) -> Self {
        Poll {
            fd: fd.as_raw_fd(),
            events: libc::POLLOUT,
            happened: 0,
        }
    }
    /// Closed by the other side altogether: it will neither say nor hear anything more.
    pub(crate) fn hung_up(fd: BorrowedFd<'_>) -> Self {
        Poll {
            fd: fd.as_raw_fd(),
            events: 0,
            happened: 0,
        }
    }
    /// Nothing, in a place of the list that is looked at by its index.
    pub(crate) fn nothing() -> Self {
        Poll {
            fd: -1,
            events: 0,
            happened: 0,
        }
    }
    /// There is something to read, an end or an error.
    pub(crate) fn is_ready(&self) -> bool {
        self.happened != 0
    }
}

/// Many descriptors of which few have something to say: asking does not take longer for those that have not (epoll(7)).
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        own_fd(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }.into()).map(Watch)
    }

    /// Says `token` once, when there is something to read, an end or an error.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32,
            u64: token,
        };
        let (list, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: the event is read during the call.
        check(unsafe { libc::epoll_ctl(list, libc::EPOLL_CTL_ADD, fd, &mut event) }.into())
            .map(drop)
    }

    /// What there is now, without waiting; there may be more.
    pub(crate) fn said(&self) -> io::Result<Vec<u64>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let (list, room) = (self.0.as_raw_fd(), events.len() as i32);
        // SAFETY: there is room for so many, and the call does not wait.
        let count = check(unsafe { libc::epoll_wait(list, events.as_mut_ptr(), room, 0) }.into())?;
        Ok(events[..count as usize].iter().map(|e| e.u64).collect())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until something has happened or `timeout_ns` are over (`None`: for ever). Signals only end the wait.
pub(crate) fn poll(list: &mut [Poll], timeout_ns: Option<u64>) -> io::Result<()> {
    let mut fds: Vec<libc::pollfd> = list
        .iter()
        .map(|p| libc::pollfd {
            fd: p.fd,
            events: p.events,
            revents: 0,
        })
        .collect();
    let ts = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as _,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    let ts_ptr = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is a list of its own length, the timeout is null or alive, no signal mask.
    let ret = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as _, ts_ptr, std::ptr::null()) };
    match check(ret.into()) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
        other => other?,
    };
    for (p, fd) in list.iter_mut().zip(fds) {
        p.happened = fd.revents;
    }
    Ok(())
}

/// The same until a moment of [`super::now_ns`], however many signals come before.
pub(crate) fn poll_until(list: &mut [Poll], until_ns: u64) -> io::Result<()> {
    loop {
        let left_ns = until_ns.saturating_sub(super::now_ns());
        poll(list, Some(left_ns))?;
        if left_ns == 0 || list.iter().any(Poll::is_ready) {
            return Ok(());
        }
    }
}

/// Makes `to` a copy of `from` that survives exec. `from` must differ from `to`.
pub(crate) fn dup_to(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: no pointers. The caller owns the table: a child before exec, with no owner of `to` left.
    check(unsafe { libc::dup3(from, to, 0) }.into()).map(drop)
}

/// The same for a descriptor that no program gets which the process executes.
pub(crate) fn dup_to_own(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: as above.
    check(unsafe { libc::dup3(from, to, libc::O_CLOEXEC) }.into()).map(drop)
}

/// A copy at `at_least` or above, close-on-exec.
pub(crate) fn dup_above(fd: BorrowedFd<'_>, at_least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own_fd(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, at_least) }.into())
}

/// Closes every descriptor from `first` on except those of `keep`. For a process that has just been made: the values
/// of the parent that own these descriptors are never used or dropped in it.
pub(crate) fn close_all_from(first: RawFd, keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<RawFd> = keep.iter().copied().filter(|k| *k >= first).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut low = first as u32;
    for k in keep.iter().map(|k| *k as u32).chain([u32::MAX]) {
        let high = if k == u32::MAX {
            u32::MAX
        } else {
            k.wrapping_sub(1)
        };
        if k > low {
            // SAFETY: no pointers; see above for the owners.
            check(unsafe { libc::syscall(libc::SYS_close_range, low, high, 0) })?;
        }
        low = k.wrapping_add(1);
    }
    Ok(())
}

/// Opens a path.
pub(crate) fn open(path: impl AsRef<[u8]>, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = cstr(path)?;
    // SAFETY: `path` is NUL-terminated; no O_CREAT, so no mode is read.
    own_fd(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }.into())
}

/// Opens a name in an open directory.
pub(crate) fn open_at(dir: BorrowedFd<'_>, name: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
    let name = cstr(name)?;
    // SAFETY: `name` is NUL-terminated; no O_CREAT, so no mode is read.
    own_fd(unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC) }.into())
}

/// Takes a descriptor that this process was started with, by the number that its maker has promised.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; fails for a number that is not open.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    // SAFETY: it is open, and the caller is the one that it was made for.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Where an open descriptor is in the caller's mount namespace.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Device and inode: whether two descriptors are the same file. Works for O_PATH descriptors too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
}

/// The attributes of an open descriptor.
pub(crate) fn stat(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    // SAFETY: an all-zero stat is valid plain data.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is a valid out pointer.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut st) }.into())?;
    Ok(Stat {
        dev: st.st_dev,
        ino: st.st_ino,
        mode: st.st_mode,
        uid: st.st_uid,
    })
}

/// An exclusive lock on the open description; `false`: somebody else has it.
pub(crate) fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: no pointers.
    match check(unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }.into()) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
        Err(e) => Err(e),
    }
}

/// An exclusive lock on one byte of a file that is open for writing, which need not be there: the open description has it,
/// until that is closed or [`unlock_byte`]. `false`: somebody else has it.
pub(crate) fn try_lock_byte(fd: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    match lock_byte(fd, at, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

pub(crate) fn unlock_byte(fd: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    lock_byte(fd, at, libc::F_UNLCK)
}

fn lock_byte(fd: BorrowedFd<'_>, at: u64, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: an all-zero flock is valid: from the file's beginning, and no process id, which F_OFD_SETLK wants.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_start = at as libc::off_t;
    lock.l_len = 1;
    // SAFETY: `lock` lives through the call, which reads it alone.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    check(done.into()).map(drop)
}

/// The file that the code of this library was loaded from.
pub(crate) fn own_file() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: an all-zero Dl_info is valid (null pointers).
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = own_file as fn() -> Option<PathBuf>;
    // SAFETY: `here` is an address inside this library and `info` a valid out pointer.
    let found = unsafe { libc::dladdr(here as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives the loader's own NUL-terminated name, which lives as long as this library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// Whether nothing can be executed from the mount that a descriptor is on.
pub(crate) fn is_noexec(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: an all-zero statvfs is valid plain data.
    let mut st: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is a valid out pointer.
    check(unsafe { libc::fstatvfs(fd.as_raw_fd(), &mut st) }.into())?;
    Ok(st.f_flag & libc::ST_NOEXEC != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt as _;

    use super::*;

    /// `vm.memfd_noexec` (Linux 6.3) goes by it.
    #[test]
    fn what_is_made_in_memory_says_whether_it_is_executed() {
        let may_be_executed = |file: &OwnedFd| stat(file.as_fd()).unwrap().mode & 0o111 != 0;
        let named = |flags| {
            // SAFETY: the name is NUL-terminated.
            own_fd(unsafe { libc::memfd_create(c"x".as_ptr(), flags) }.into())
        };
        let is_known = named(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL).is_ok();
        let data = memfd(c"data").unwrap();
        assert_eq!(may_be_executed(&data), !is_known);
        match memfd_of_program(c"program") {
            Ok(program) => assert!(may_be_executed(&program)),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EACCES), "vm.memfd_noexec is 2"),
        }
    }

    /// A gateway gets signals, and has handlers for them: whichever of its threads they come to waits on.
    #[test]
    fn a_signal_ends_no_wait_that_has_an_end() {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: the handler does nothing, which it may do at any time, and this test alone has a use for the signal.
        let before = unsafe { libc::signal(libc::SIGURG, nothing as *const () as usize) };
        assert_ne!(before, libc::SIG_ERR);
        let (silent, _stays_open) = pipe().unwrap();
        let until_ns = super::super::now_ns() + 300_000_000;
        let waits = std::thread::spawn(move || {
            poll_until(&mut [Poll::readable(silent.as_fd())], until_ns).unwrap();
            super::super::now_ns()
        });
        while !waits.is_finished() {
            // SAFETY: the thread has not been joined, so that this is its name still.
            unsafe { libc::pthread_kill(waits.as_pthread_t(), libc::SIGURG) };
            std::thread::yield_now();
        }
        assert!(waits.join().unwrap() >= until_ns);
    }
}

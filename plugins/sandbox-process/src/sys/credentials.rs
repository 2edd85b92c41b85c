//! Who a process is and what it may do.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::check;
use super::fds::own_fd;

fn prctl(option: libc::c_int, a: libc::c_ulong, b: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: only options whose arguments are numbers are used in this file.
    check(unsafe { libc::prctl(option, a, b, 0 as libc::c_ulong, 0 as libc::c_ulong) }.into())
        .map(|v| v as _)
}

/// Effective user and group.
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: no arguments, cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Replaces the supplementary groups by none. `PermissionDenied` in a user namespace that denies it.
pub(crate) fn drop_groups() -> io::Result<()> {
    // SAFETY: a list of length zero is not read.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) })
        .map(drop)
}

/// All three group ids. The raw call: this process has one thread, and glibc's wrapper would signal others.
pub(crate) fn set_gid(gid: u32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) }).map(drop)
}

/// All three user ids.
pub(crate) fn set_uid(uid: u32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }).map(drop)
}

/// SECBIT_NO_SETUID_FIXUP: a change of the user id leaves the capabilities alone.
pub(crate) const SECURE_NO_SETUID_FIXUP: u32 = 1 << 2;
/// Every bit with its lock, but KEEP_CAPS, which is only locked.
pub(crate) const SECURE_ALL_LOCKED: u32 = 0b1110_1111;

/// The securebits of this process.
pub(crate) fn set_securebits(bits: u32) -> io::Result<()> {
    prctl(libc::PR_SET_SECUREBITS, bits.into(), 0).map(drop)
}

/// Nothing that is executed from now on can gain rights.
pub(crate) fn set_no_new_privs() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map(drop)
}

/// Whether /proc/PID belongs to the process itself and it may be traced and dumped.
pub(crate) fn set_dumpable(yes: bool) -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, yes.into(), 0).map(drop)
}

/// The signal that this process gets when its parent ends. Cleared by a change of credentials.
pub(crate) fn set_parent_death_signal(signal: libc::c_int) -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, signal as _, 0).map(drop)
}

/// The name in `ps`.
pub(crate) fn set_process_name(name: &std::ffi::CStr) {
    // SAFETY: PR_SET_NAME reads a NUL-terminated string; a failure changes nothing.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr() as libc::c_ulong, 0, 0, 0) };
}

/// Empties the bounding set: 64 is more than any kernel has; the first unknown one ends it.
pub(crate) fn drop_bounding_set() -> io::Result<()> {
    for cap in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, cap, 0) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && cap > 0 => return Ok(()),
            other => other?,
        };
    }
    Ok(())
}

/// Empties the ambient set.
pub(crate) fn drop_ambient_set() -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as _, 0).map(drop)
}

/// Empties the effective, permitted and inheritable sets.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let header = [0x2008_0522u32, 0]; // _LINUX_CAPABILITY_VERSION_3, this process
    let data = [0u32; 6];
    // SAFETY: header and data have the layout of version 3: two words, and two times three words.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) }).map(drop)
}

/// New namespaces for this process.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers; the process has one thread.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Enters a namespace; `kind` is its CLONE_NEW* flag. A pid namespace is for the children to come.
pub(crate) fn enter_namespace(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers; the process has one thread.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }.into()).map(drop)
}

/// The name of the machine, in this process's UTS namespace.
pub(crate) fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length are of `name`.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into()).map(drop)
}

/// Soft and hard limit of a resource (`libc::RLIMIT_*`).
pub(crate) fn set_limit(resource: i32, value: u64) -> io::Result<()> {
    set_soft_limit(resource, value, value)
}

/// A soft limit below the hard one: reaching it is a signal with a name of its own, not SIGKILL.
pub(crate) fn set_soft_limit(resource: i32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the new limit is a valid rlimit; the old one is not asked for.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            &limit as *const libc::rlimit,
            std::ptr::null::<c_void>(),
        )
    })
    .map(drop)
}

/// The hard limit of a resource.
pub(crate) fn hard_limit(resource: i32) -> io::Result<u64> {
    limits(resource).map(|limits| limits.rlim_max)
}

/// The soft and the hard limit of a resource.
pub(crate) fn limits(resource: i32) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the new limit is null (unchanged); `limit` is a valid out pointer.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            std::ptr::null::<c_void>(),
            &mut limit as *mut libc::rlimit,
        )
    })?;
    Ok(limit)
}

/// Installs a system call filter for this process and all that it starts.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let prog = libc::sock_fprog {
        len: u16::try_from(program.len())
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?,
        filter: program.as_ptr() as *mut _,
    };
    // SAFETY: `prog` describes `program`, which the kernel only reads and copies.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &prog as *const libc::sock_fprog,
        )
    })
    .map(drop)
}

/// The newest landlock ABI of this kernel; an error when it has none.
pub(crate) fn landlock_abi() -> io::Result<u32> {
    // SAFETY: with LANDLOCK_CREATE_RULESET_VERSION the attribute is null and its size 0.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<c_void>(),
            0,
            1,
        )
    })
    .map(|v| v as u32)
}

/// What a ruleset handles: file system rights, network rights, scopes. Words beyond the kernel's ABI must not be sent.
pub(crate) fn landlock_ruleset(words: &[u64]) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of_val(words)` bytes.
    own_fd(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            words.as_ptr(),
            size_of_val(words),
            0,
        )
    })
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// Allows `access` below an open directory or on a file.
pub(crate) fn landlock_allow(
    ruleset: BorrowedFd<'_>,
    at: BorrowedFd<'_>,
    access: u64,
) -> io::Result<()> {
    let rule = PathBeneath {
        allowed_access: access,
        parent_fd: at.as_raw_fd(),
    };
    // SAFETY: rule type 1 (LANDLOCK_RULE_PATH_BENEATH) reads a struct of this packed layout.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            1,
            &rule as *const PathBeneath,
            0,
        )
    })
    .map(drop)
}

#[repr(C)]
struct NetPort {
    allowed_access: u64,
    port: u64,
}

/// Allows `access` to a TCP port. From ABI 4.
pub(crate) fn landlock_allow_port(
    ruleset: BorrowedFd<'_>,
    port: u16,
    access: u64,
) -> io::Result<()> {
    let rule = NetPort {
        allowed_access: access,
        port: port.into(),
    };
    // SAFETY: rule type 2 (LANDLOCK_RULE_NET_PORT) reads a struct of this layout.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            2,
            &rule as *const NetPort,
            0,
        )
    })
    .map(drop)
}

/// Puts this process under a ruleset, for ever. `flags`: landlock_restrict_self(2).
pub(crate) fn landlock_enter(ruleset: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    let number = libc::SYS_landlock_restrict_self;
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(number, ruleset.as_raw_fd(), flags) }).map(drop)
}

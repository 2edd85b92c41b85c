//! The mount API of Linux 5.2 and later: every mount is a descriptor until it is put in place, so nothing is ever
//! bound by a path that somebody else could swap.

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::fds::own_fd;
use super::{check, cstr};

const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSCONFIG_CMD_RECONFIGURE: u32 = 7;
const FSPICK_CLOEXEC: u32 = 1;
const FSPICK_EMPTY_PATH: u32 = 8;
const OPEN_TREE_CLONE: u32 = 1;
const OPEN_TREE_CLOEXEC: u32 = libc::O_CLOEXEC as u32;
const AT_RECURSIVE: u32 = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
const EMPTY: &CStr = c"";

/// MOUNT_ATTR_RDONLY
pub(crate) const RDONLY: u64 = 0x1;
/// MOUNT_ATTR_NOSUID
pub(crate) const NOSUID: u64 = 0x2;
/// MOUNT_ATTR_NODEV
pub(crate) const NODEV: u64 = 0x4;
/// MOUNT_ATTR_NOEXEC
pub(crate) const NOEXEC: u64 = 0x8;
/// MOUNT_ATTR_NOSYMFOLLOW
pub(crate) const NOSYMFOLLOW: u64 = 0x0020_0000;

fn fsconfig(
    fs: BorrowedFd<'_>,
    cmd: u32,
    key: Option<&CStr>,
    value: Option<&CStr>,
) -> io::Result<()> {
    let key = key.map_or(std::ptr::null(), CStr::as_ptr);
    let value = value.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: key and value are null or NUL-terminated and alive, which is what these commands read.
    check(unsafe { libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), cmd, key, value, 0) })
        .map(drop)
}

/// A new file system, mounted nowhere yet. An option without a value is a flag.
pub(crate) fn new_mount(
    fs_name: &CStr,
    options: &[(&str, Option<&str>)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    // SAFETY: `fs_name` is NUL-terminated.
    let fs = own_fd(unsafe { libc::syscall(libc::SYS_fsopen, fs_name.as_ptr(), FSOPEN_CLOEXEC) })?;
    for (key, value) in options {
        let key = cstr(key)?;
        match value {
            Some(value) => fsconfig(
                fs.as_fd(),
                FSCONFIG_SET_STRING,
                Some(&key),
                Some(&cstr(value)?),
            )?,
            None => fsconfig(fs.as_fd(), FSCONFIG_SET_FLAG, Some(&key), None)?,
        }
    }
    fsconfig(fs.as_fd(), FSCONFIG_CMD_CREATE, None, None)?;
    // SAFETY: no pointers.
    own_fd(unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            fs.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            attributes,
        )
    })
}

/// Makes the whole file system of a mount read-only, in every mount of it.
pub(crate) fn seal_file_system(mount: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the path is the empty, NUL-terminated string.
    let fs = own_fd(unsafe {
        libc::syscall(
            libc::SYS_fspick,
            mount.as_raw_fd(),
            EMPTY.as_ptr(),
            FSPICK_CLOEXEC | FSPICK_EMPTY_PATH,
        )
    })?;
    fsconfig(fs.as_fd(), FSCONFIG_SET_FLAG, Some(c"ro"), None)?;
    fsconfig(fs.as_fd(), FSCONFIG_CMD_RECONFIGURE, None, None)
}

/// Gives the file system that is mounted at a path other options.
pub(crate) fn change_file_system(at: &CStr, options: &[(&str, &str)]) -> io::Result<()> {
    // SAFETY: the path is NUL-terminated.
    let fs = own_fd(unsafe {
        libc::syscall(
            libc::SYS_fspick,
            libc::AT_FDCWD,
            at.as_ptr(),
            FSPICK_CLOEXEC,
        )
    })?;
    for (key, value) in options {
        fsconfig(
            fs.as_fd(),
            FSCONFIG_SET_STRING,
            Some(&cstr(key)?),
            Some(&cstr(value)?),
        )?;
    }
    fsconfig(fs.as_fd(), FSCONFIG_CMD_RECONFIGURE, None, None)
}

/// A detached copy of the mount at an open descriptor: that directory or file alone, without what is mounted below.
pub(crate) fn clone_mount(at: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_tree(at, 0)
}

/// The same of what is at a path; a link is not followed.
pub(crate) fn clone_mount_at(path: &str) -> io::Result<OwnedFd> {
    let path = cstr(path)?;
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_SYMLINK_NOFOLLOW as u32;
    // SAFETY: the path is NUL-terminated.
    own_fd(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// The same with everything that is mounted below.
pub(crate) fn clone_mounts(at: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_tree(at, AT_RECURSIVE)
}

fn open_tree(at: BorrowedFd<'_>, more: u32) -> io::Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as u32 | more;
    // SAFETY: the path is the empty, NUL-terminated string.
    own_fd(unsafe { libc::syscall(libc::SYS_open_tree, at.as_raw_fd(), EMPTY.as_ptr(), flags) })
}

/// Puts a detached mount at a path.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: impl AsRef<[u8]>) -> io::Result<()> {
    let target = cstr(target)?;
    // SAFETY: both paths are NUL-terminated.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            EMPTY.as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })
    .map(drop)
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes a directory, or an empty file, in a mount that may be in no place yet.
pub(crate) fn make_in(at: BorrowedFd<'_>, name: &str, directory: bool) -> io::Result<()> {
    let name = cstr(name)?;
    if directory {
        // SAFETY: `name` is NUL-terminated.
        return check(unsafe { libc::mkdirat(at.as_raw_fd(), name.as_ptr(), 0o755) }.into())
            .map(drop);
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: `name` is NUL-terminated; a mode comes with O_CREAT.
    own_fd(unsafe { libc::openat(at.as_raw_fd(), name.as_ptr(), flags, 0o444) }.into()).map(drop)
}

/// Adds attributes to a mount.
pub(crate) fn restrict(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let attr = MountAttr {
        set: attributes,
        clear: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the empty path is NUL-terminated; `attr` is a mount_attr of the size given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            EMPTY.as_ptr(),
            libc::AT_EMPTY_PATH,
            &attr as *const MountAttr as *const c_void,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// The propagation of the whole tree: `MS_SLAVE` or `MS_PRIVATE`.
pub(crate) fn set_propagation(kind: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the target is NUL-terminated; the other pointers may be null for a change of propagation.
    check(
        unsafe {
            libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | kind,
                std::ptr::null(),
            )
        }
        .into(),
    )
    .map(drop)
}

/// Detaches what is mounted at a path, with everything below.
pub(crate) fn detach(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` is NUL-terminated.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }.into()).map(drop)
}

/// Makes the current directory (a mount) the root and stacks the old root on top of it, ready to be detached.
pub(crate) fn pivot_to_cwd() -> io::Result<()> {
    // SAFETY: both paths are NUL-terminated.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(drop)
}

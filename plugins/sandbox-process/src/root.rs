//! The read-only root of every run, built once when the launcher starts.
//!
//! It is one tmpfs, filled and then sealed (the file system itself, not only a mount of it), attached in the launcher's
//! own mount namespace over a directory of the plugin's. A run gets it by being cloned with a copy of that namespace
//! and pivoting into it. Nothing in it came from anybody but the operator.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::guard::{Guard, Without};
use crate::interpreter::Interpreter;
use crate::sys::{self, NODEV, NOEXEC, NOSUID, RDONLY};

/// Where a run's own tmpfs is put together; in a zygote the file that it loads lies there first.
pub(crate) const STAGING: &str = "/.run";
/// The guest's files, inside.
pub(crate) const GUEST: &str = "/usr/lib/skillgate";
/// Writable directories inside: where, and which part of the run's tmpfs.
pub(crate) const WRITABLE: [(&str, &str); 3] = [
    ("/workspace", "workspace"),
    ("/tmp", "tmp"),
    ("/dev/shm", "shm"),
];
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
const SIZE: &str = "512m";

/// Builds the template and attaches it at `at`.
pub(crate) fn build(
    at: &Path,
    interpreter: &Interpreter,
    guest: &[(String, String)],
    without: &Without,
) -> io::Result<()> {
    let options = [("size", Some(SIZE)), ("mode", Some("0755"))];
    let mount = sys::new_mount(c"tmpfs", &options, NOSUID | NODEV)?;
    sys::attach(mount.as_fd(), at.as_os_str().as_bytes())?;
    let root = Root { at };
    for dir in [
        "/proc",
        "/tmp",
        "/workspace",
        "/skills",
        "/blobs",
        "/dev/shm",
        "/etc",
        GUEST,
        STAGING,
    ] {
        root.directory(dir)?;
    }
    root.file(
        "/etc/passwd",
        b"root:x:0:0::/:/sbin/nologin\nsandbox:x:1000:1000::/workspace:/sbin/nologin\n",
        0o444,
    )?;
    root.file("/etc/group", b"root:x:0:\nsandbox:x:1000:\n", 0o444)?;
    // The name of the machine (`isolate`), too: programs ask for its address.
    let hosts = b"127.0.0.1 localhost\n127.0.1.1 sandbox\n::1 localhost\n";
    root.file("/etc/hosts", hosts, 0o444)?;
    root.file(
        "/etc/nsswitch.conf",
        b"passwd: files\ngroup: files\nhosts: files dns\n",
        0o444,
    )?;
    for (name, text) in guest {
        root.file(&format!("{GUEST}/{name}"), text.as_bytes(), 0o444)?;
    }
    for (name, hex) in &interpreter.compiled {
        root.file(&format!("{GUEST}/{name}"), &bytes_of(hex)?, 0o444)?;
    }
    for (inside, outside) in &interpreter.copies {
        let content = fs::read(outside).map_err(|e| named(e, outside))?;
        // What is executed, the loader too, can be executed and not read: the kernel then keeps every process that runs it from
        // being dumped (a core handler runs as root on the host) and from being looked into.
        let runs = *inside == interpreter.program || Some(inside) == interpreter.loader.as_ref();
        let mode = if runs && without.keeps(Guard::Undumpable) {
            0o111
        } else {
            0o555
        };
        root.file(inside, &content, mode)?;
    }
    if let Some((inside, outside)) = &interpreter.certificates {
        let content = fs::read(outside).map_err(|e| named(e, outside))?;
        root.file(inside, &content, 0o444)?;
    }
    for (inside, to) in &interpreter.links {
        if let Some(parent) = Path::new(inside).parent().and_then(Path::to_str) {
            root.directory(parent)?;
        }
        symlink(to, root.path(inside)).map_err(|e| named(e, inside))?;
    }
    for (inside, outside) in &interpreter.shown {
        let executable = *inside == interpreter.shown[0].0 || inside.ends_with("lib-dynload");
        root.directory(inside)?;
        root.show(
            outside,
            inside,
            RDONLY | NOSUID | NODEV | if executable { 0 } else { NOEXEC },
        )?;
    }
    for inside in &interpreter.hidden {
        let empty = sys::new_mount(
            c"tmpfs",
            &[("size", Some("4k")), ("mode", Some("0555"))],
            RDONLY | NOSUID | NODEV | NOEXEC,
        )?;
        sys::attach(empty.as_fd(), root.path(inside).as_os_str().as_bytes())?;
    }
    for name in DEVICES {
        let inside = format!("/dev/{name}");
        root.file(&inside, b"", 0o444)?;
        root.show(&inside, &inside, RDONLY | NOSUID | NOEXEC)?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(to, root.path(&format!("/dev/{name}")))?;
    }
    if !without.keeps(Guard::ReadOnlyRoot) {
        return Ok(());
    }
    sys::seal_file_system(mount.as_fd())?;
    sys::restrict(mount.as_fd(), RDONLY)
}

struct Root<'a> {
    at: &'a Path,
}

impl Root<'_> {
    /// The path outside of a path inside.
    fn path(&self, inside: &str) -> PathBuf {
        self.at.join(inside.trim_start_matches('/'))
    }

    fn directory(&self, inside: &str) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(self.path(inside))
            .map_err(|e| named(e, inside))
    }

    fn file(&self, inside: &str, content: &[u8], mode: u32) -> io::Result<()> {
        if let Some(parent) = Path::new(inside).parent().and_then(Path::to_str) {
            self.directory(parent)?;
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path(inside))
            .map_err(|e| named(e, inside))?;
        io::Write::write_all(&mut file, content).map_err(|e| named(e, inside))?;
        // After the content, and without the umask.
        file.set_permissions(fs::Permissions::from_mode(mode))
    }

    fn show(&self, outside: &str, inside: &str, attributes: u64) -> io::Result<()> {
        let mount = detached(outside, attributes).map_err(|e| named(e, outside))?;
        sys::attach(mount.as_fd(), self.path(inside).as_os_str().as_bytes())
            .map_err(|e| named(e, inside))
    }
}

/// A detached mount of one file or directory of the host.
fn detached(outside: &str, attributes: u64) -> io::Result<OwnedFd> {
    let at = sys::open(outside, libc::O_PATH)?;
    let mount = sys::clone_mount(at.as_fd())?;
    sys::restrict(mount.as_fd(), attributes)?;
    Ok(mount)
}

fn named(e: io::Error, what: &str) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

fn bytes_of(hex: &str) -> io::Result<Vec<u8>> {
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair)
            .ok()
            .and_then(|p| u8::from_str_radix(p, 16).ok())
    };
    let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a compiled module is not hex"))
}

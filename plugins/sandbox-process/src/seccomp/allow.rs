//! The system calls that a run may make, one per line, each with its reason. What is not here is refused with EPERM.
//!
//! Numbers are those of `asm/unistd_64.h` (x86-64) and `asm-generic/unistd.h` (aarch64); `None`: not on that machine.

use super::Entry;
use super::Rule::{Always, Answer, AnyOf, NoneOf, OneOf, OrAnswer};
use super::{Test, UPPER_HALF};

/// Any CLONE_NEW* flag: time, mount, cgroup, uts, ipc, user, pid and network namespaces.
const CLONE_NEW_ANY: u32 = 0x7e02_0080;
const CLONE_PIDFD: u32 = 0x1000;
const ARCH_SET_FS: u32 = 0x1002;
const ARCH_GET_FS: u32 = 0x1003;
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const SOCK_STREAM: u32 = 1;
/// Without SOCK_NONBLOCK and SOCK_CLOEXEC.
const SOCKET_TYPE: u32 = !0o2_004_000;
const IPPROTO_TCP: u32 = 6;
const SOL_SOCKET: u32 = 1;
const ALL_BITS: u32 = u32::MAX;
/// Connects and sends at once, past what watches connect().
const MSG_FASTOPEN: u32 = 0x2000_0000;
/// Data past the others. Of sockets of AF_UNIX a part of the kernel of its own (Linux 5.15), which nothing that we run uses, and
/// which has been a way out of sandboxes (CVE-2025-38236).
const MSG_OOB: u32 = 1;

/// Without PRIVATE_FLAG and CLOCK_REALTIME.
const FUTEX_OPERATION: u32 = !0x180;
/// WAIT, WAKE, REQUEUE, CMP_REQUEUE, WAKE_OP, WAIT_BITSET and WAKE_BITSET.
const FUTEX_WAITS: &[u32] = &[0, 1, 3, 4, 5, 9, 10];
/// LOCK_PI, UNLOCK_PI, TRYLOCK_PI, WAIT_REQUEUE_PI, CMP_REQUEUE_PI and LOCK_PI2: a run has no priorities that could be inherited, and
/// these have been ways into the kernel more than once (CVE-2014-3153, CVE-2021-3347). The C library says of such a mutex that
/// there is none.
const FUTEX_INHERITS: &[u32] = &[6, 7, 8, 11, 12, 13];

/// TCP_NODELAY, KEEPIDLE, KEEPINTVL, KEEPCNT, QUICKACK and USER_TIMEOUT; never TCP_ULP (TLS in the kernel) or others that
/// load modules.
const TCP_OPTIONS: &[u32] = &[1, 4, 5, 6, 12, 18];
/// The same and TCP_INFO.
const TCP_QUESTIONS: &[u32] = &[1, 4, 5, 6, 11, 12, 18];

/// Reads the host's disk and not its memory, as fast as the disk can, and hardly uses a processor, which is all that is counted.
const O_DIRECT: u32 = libc::O_DIRECT as u32;

/// DUPFD, GETFD, SETFD, GETFL, GETLK, OFD_GETLK, DUPFD_CLOEXEC and GETPIPE_SZ; never SETPIPE_SZ: with a small pipe the gateway is
/// woken, and wakes, for each page of a run's output.
const FCNTL_COMMANDS: &[u32] = &[0, 1, 2, 3, 5, 36, 1030, 1032];
/// SETFL. Not with O_ASYNC: signals are sent under a lock of the whole host.
const F_SETFL: u32 = 4;
const NOT_FOR_SETFL: u32 = libc::O_ASYNC as u32 | O_DIRECT;
/// SETLK, SETLKW, OFD_SETLK and OFD_SETLKW. A lock of bytes is memory of the kernel that no control group counts
/// (`file_lock_cache`) and no limit bounds, any number of them for one file that can be read; and each that lies on a file
/// which others read too is passed by each of their closes. Within one process such a lock excludes nothing.
const RECORD_LOCKS: &[u32] = &[6, 7, 37, 38];

/// Without MS_SYNC: nothing is written, but whether something is mapped there is told.
const MSYNC_FLAGS: &[u32] = &[0, 1, 2, 3];
/// MS_SYNC, and with MS_INVALIDATE.
const MSYNC_WAITS: &[u32] = &[4, 6];

/// It is 1, by which a core handler of the host is not called; 0 would call it. Who sets it wants no core, and gets none: it is
/// answered as if it had been made, unless what there was before is asked for with it.
const RLIMIT_CORE: u32 = 4;
/// All others.
const LIMITS: &[u32] = &[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const OWN: Test = Test {
    arg: 0,
    mask: ALL_BITS,
    values: &[0],
};
const OF_CORES: Test = Test {
    arg: 1,
    mask: ALL_BITS,
    values: &[RLIMIT_CORE],
};

/// Pages that the host has set aside, which the control group of memory does not count.
const MAP_HUGETLB: u32 = 0x40000;

/// SO_REUSEADDR, TYPE, ERROR, SNDBUF, RCVBUF, KEEPALIVE, OOBINLINE, LINGER, REUSEPORT, PASSCRED, PEERCRED, RCVLOWAT, SNDLOWAT,
/// RCVTIMEO and SNDTIMEO of both kinds, ACCEPTCONN, PROTOCOL and DOMAIN; never PEERPIDFD, which is a descriptor of whoever made
/// the socket, outside of the run's pid namespace.
const SOCKET_QUESTIONS: &[u32] = &[
    2, 3, 4, 7, 8, 9, 10, 13, 15, 16, 17, 18, 19, 20, 21, 30, 38, 39, 66, 67,
];

/// SO_REUSEADDR, SNDBUF, RCVBUF, KEEPALIVE, OOBINLINE, REUSEPORT, PASSCRED, RCVLOWAT, SNDLOWAT, and RCVTIMEO and SNDTIMEO of
/// both kinds; never ATTACH_FILTER and its like, which are programs for the kernel, nor LINGER, by which whoever closes a
/// socket last waits: that is the gateway, if it is sent there.
const SOCKET_OPTIONS: &[u32] = &[2, 7, 8, 9, 10, 15, 16, 18, 19, 20, 21, 66, 67];

/// TCGETS, FIONREAD, TIOCGWINSZ, FIONCLEX, FIOCLEX, FIONBIO.
const IOCTL_REQUESTS: &[u32] = &[0x5401, 0x541b, 0x5413, 0x5450, 0x5451, 0x5421];
/// One file shares what another holds. Answered as a tmpfs answers it, where no file can: pathlib of Python 3.14 copies then, and
/// takes any other error for the end of it.
const FICLONE: u32 = 0x4004_9409;

/// GET_PDEATHSIG, GET_DUMPABLE, SET_NAME, GET_NAME, CAPBSET_READ, GET_SECUREBITS, GET_NO_NEW_PRIVS and SET_VMA (the C library's
/// allocator names its memory); never SET_PDEATHSIG, by which a run's process 1 would outlive the launcher.
const PRCTL_OPTIONS: &[u32] = &[2, 3, 15, 16, 23, 27, 39, 0x5356_4d41];

/// NORMAL, SEQUENTIAL, RANDOM, WILLNEED, DONTNEED, FREE, DONTFORK, DOFORK, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP, WIPEONFORK,
/// KEEPONFORK, POPULATE_READ, POPULATE_WRITE, GUARD_INSTALL and GUARD_REMOVE; never MERGEABLE, which tells what other runs have
/// in memory, nor COLD and PAGEOUT, which take files from them.
const MEMORY_ADVICE: &[u32] = &[
    0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 102, 103,
];

/// NORMAL, RANDOM, SEQUENTIAL, WILLNEED and NOREUSE; never DONTNEED, which takes files from the memory of all.
const FILE_ADVICE: &[u32] = &[0, 1, 2, 3, 5];

/// NOWAIT reads only what is in memory already, and so tells whether others have read it; DONTCACHE puts out of memory what it
/// has read.
const RWF_OF_OTHERS: u32 = 0x8 | 0x80;

#[rustfmt::skip]
pub(super) const ALLOWED: &[Entry] = &[
    // files and directories; where they lead is decided by the mounts and by landlock
    Entry { name: "read", x86_64: Some(0), aarch64: Some(63), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "write", x86_64: Some(1), aarch64: Some(64), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "readv", x86_64: Some(19), aarch64: Some(65), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "writev", x86_64: Some(20), aarch64: Some(66), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "pread64", x86_64: Some(17), aarch64: Some(67), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "pwrite64", x86_64: Some(18), aarch64: Some(68), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "preadv", x86_64: Some(295), aarch64: Some(69), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "pwritev", x86_64: Some(296), aarch64: Some(70), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "preadv2", x86_64: Some(327), aarch64: Some(286), rule: NoneOf { arg: 5, mask: RWF_OF_OTHERS }, reason: "reads within open files, whoever else has read them" },
    Entry { name: "pwritev2", x86_64: Some(328), aarch64: Some(287), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "lseek", x86_64: Some(8), aarch64: Some(62), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "sendfile", x86_64: Some(40), aarch64: Some(71), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "copy_file_range", x86_64: Some(326), aarch64: Some(285), rule: Always, reason: "reads, writes and moves within open files" },
    Entry { name: "open", x86_64: Some(2), aarch64: None, rule: NoneOf { arg: 1, mask: O_DIRECT }, reason: "opens what the mounts show" },
    Entry { name: "openat", x86_64: Some(257), aarch64: Some(56), rule: NoneOf { arg: 2, mask: O_DIRECT }, reason: "opens what the mounts show" },
    Entry { name: "creat", x86_64: Some(85), aarch64: None, rule: Always, reason: "opens what the mounts show" },
    Entry { name: "close", x86_64: Some(3), aarch64: Some(57), rule: Always, reason: "closes; subprocess closes ranges" },
    Entry { name: "close_range", x86_64: Some(436), aarch64: Some(436), rule: Always, reason: "closes; subprocess closes ranges" },
    Entry { name: "stat", x86_64: Some(4), aarch64: None, rule: Always, reason: "looks at files" },
    Entry { name: "fstat", x86_64: Some(5), aarch64: Some(80), rule: Always, reason: "looks at files" },
    Entry { name: "lstat", x86_64: Some(6), aarch64: None, rule: Always, reason: "looks at files" },
    Entry { name: "newfstatat", x86_64: Some(262), aarch64: Some(79), rule: Always, reason: "looks at files" },
    Entry { name: "statx", x86_64: Some(332), aarch64: Some(291), rule: Always, reason: "looks at files" },
    Entry { name: "statfs", x86_64: Some(137), aarch64: Some(43), rule: Always, reason: "looks at files" },
    Entry { name: "fstatfs", x86_64: Some(138), aarch64: Some(44), rule: Always, reason: "looks at files" },
    Entry { name: "access", x86_64: Some(21), aarch64: None, rule: Always, reason: "looks at files" },
    Entry { name: "faccessat", x86_64: Some(269), aarch64: Some(48), rule: Always, reason: "looks at files" },
    Entry { name: "faccessat2", x86_64: Some(439), aarch64: Some(439), rule: Always, reason: "looks at files" },
    Entry { name: "readlink", x86_64: Some(89), aarch64: None, rule: Always, reason: "looks at files" },
    Entry { name: "readlinkat", x86_64: Some(267), aarch64: Some(78), rule: Always, reason: "looks at files" },
    Entry { name: "getdents", x86_64: Some(78), aarch64: None, rule: Always, reason: "looks at files" },
    Entry { name: "getdents64", x86_64: Some(217), aarch64: Some(61), rule: Always, reason: "looks at files" },
    Entry { name: "getxattr", x86_64: Some(191), aarch64: Some(8), rule: Always, reason: "asks for extended attributes: shutil.copy2 gives up on EPERM here (setting them stays refused)" },
    Entry { name: "lgetxattr", x86_64: Some(192), aarch64: Some(9), rule: Always, reason: "asks for extended attributes: shutil.copy2 gives up on EPERM here (setting them stays refused)" },
    Entry { name: "fgetxattr", x86_64: Some(193), aarch64: Some(10), rule: Always, reason: "asks for extended attributes: shutil.copy2 gives up on EPERM here (setting them stays refused)" },
    Entry { name: "listxattr", x86_64: Some(194), aarch64: Some(11), rule: Always, reason: "asks for extended attributes: shutil.copy2 gives up on EPERM here (setting them stays refused)" },
    Entry { name: "llistxattr", x86_64: Some(195), aarch64: Some(12), rule: Always, reason: "asks for extended attributes: shutil.copy2 gives up on EPERM here (setting them stays refused)" },
    Entry { name: "flistxattr", x86_64: Some(196), aarch64: Some(13), rule: Always, reason: "asks for extended attributes: shutil.copy2 gives up on EPERM here (setting them stays refused)" },
    Entry { name: "mkdir", x86_64: Some(83), aarch64: None, rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "mkdirat", x86_64: Some(258), aarch64: Some(34), rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "rmdir", x86_64: Some(84), aarch64: None, rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "unlink", x86_64: Some(87), aarch64: None, rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "unlinkat", x86_64: Some(263), aarch64: Some(35), rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "rename", x86_64: Some(82), aarch64: None, rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "renameat", x86_64: Some(264), aarch64: Some(38), rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "renameat2", x86_64: Some(316), aarch64: Some(276), rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "link", x86_64: Some(86), aarch64: None, rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "linkat", x86_64: Some(265), aarch64: Some(37), rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "symlink", x86_64: Some(88), aarch64: None, rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "symlinkat", x86_64: Some(266), aarch64: Some(36), rule: Always, reason: "makes, moves and removes names in the writable directories" },
    Entry { name: "chmod", x86_64: Some(90), aarch64: None, rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "fchmod", x86_64: Some(91), aarch64: Some(52), rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "fchmodat", x86_64: Some(268), aarch64: Some(53), rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "fchmodat2", x86_64: Some(452), aarch64: Some(452), rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "utime", x86_64: Some(132), aarch64: None, rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "utimes", x86_64: Some(235), aarch64: None, rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "utimensat", x86_64: Some(280), aarch64: Some(88), rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "futimesat", x86_64: Some(261), aarch64: None, rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "umask", x86_64: Some(95), aarch64: Some(166), rule: Always, reason: "modes and times of one's own files" },
    Entry { name: "truncate", x86_64: Some(76), aarch64: Some(45), rule: Always, reason: "sizes of one's own files; bounded by the tmpfs" },
    Entry { name: "ftruncate", x86_64: Some(77), aarch64: Some(46), rule: Always, reason: "sizes of one's own files; bounded by the tmpfs" },
    Entry { name: "fallocate", x86_64: Some(285), aarch64: Some(47), rule: Always, reason: "sizes of one's own files; bounded by the tmpfs" },
    Entry { name: "fadvise64", x86_64: Some(221), aarch64: Some(223), rule: OneOf { arg: 3, values: FILE_ADVICE }, reason: "advice for one's own reading" },
    Entry { name: "fsync", x86_64: Some(74), aarch64: Some(82), rule: Answer(0), reason: "flushing of one's own files, which are in memory: there is nothing to do. Files that can only be read lie on the host's disk, which would flush for each call" },
    Entry { name: "fdatasync", x86_64: Some(75), aarch64: Some(83), rule: Answer(0), reason: "flushing of one's own files, which are in memory: there is nothing to do. Files that can only be read lie on the host's disk, which would flush for each call" },
    Entry { name: "flock", x86_64: Some(73), aarch64: Some(32), rule: Answer(0), reason: "as locks of ranges: nothing counts them, and each on a file that all read is passed by whoever closes that file" },
    Entry { name: "fcntl", x86_64: Some(72), aarch64: Some(25), rule: OrAnswer { any: &[
        &[Test { arg: 1, mask: ALL_BITS, values: FCNTL_COMMANDS }],
        &[Test { arg: 1, mask: ALL_BITS, values: &[F_SETFL] }, Test { arg: 2, mask: NOT_FOR_SETFL, values: &[0] }],
    ], tests: &[Test { arg: 1, mask: ALL_BITS, values: RECORD_LOCKS }], answer: 0 }, reason: "flags and duplicates; sqlite asks for locks of ranges and gives up without; never F_NOTIFY and F_SETLEASE, which tell of what other runs do with shared files" },
    Entry { name: "getcwd", x86_64: Some(79), aarch64: Some(17), rule: Always, reason: "where am I" },
    Entry { name: "chdir", x86_64: Some(80), aarch64: Some(49), rule: Always, reason: "where am I" },
    Entry { name: "fchdir", x86_64: Some(81), aarch64: Some(50), rule: Always, reason: "where am I" },
    Entry { name: "dup", x86_64: Some(32), aarch64: Some(23), rule: Always, reason: "duplicates and pipes" },
    Entry { name: "dup2", x86_64: Some(33), aarch64: None, rule: Always, reason: "duplicates and pipes" },
    Entry { name: "dup3", x86_64: Some(292), aarch64: Some(24), rule: Always, reason: "duplicates and pipes" },
    Entry { name: "pipe", x86_64: Some(22), aarch64: None, rule: Always, reason: "duplicates and pipes" },
    Entry { name: "pipe2", x86_64: Some(293), aarch64: Some(59), rule: Always, reason: "duplicates and pipes" },
    // memory; bounded by the cgroup
    Entry { name: "brk", x86_64: Some(12), aarch64: Some(214), rule: Always, reason: "the allocator, threads' stacks, files in memory, ctypes" },
    Entry { name: "mmap", x86_64: Some(9), aarch64: Some(222), rule: NoneOf { arg: 3, mask: MAP_HUGETLB }, reason: "the allocator, threads' stacks, files in memory, ctypes" },
    Entry { name: "munmap", x86_64: Some(11), aarch64: Some(215), rule: Always, reason: "the allocator, threads' stacks, files in memory, ctypes" },
    Entry { name: "mprotect", x86_64: Some(10), aarch64: Some(226), rule: Always, reason: "the allocator, threads' stacks, files in memory, ctypes" },
    Entry { name: "mremap", x86_64: Some(25), aarch64: Some(216), rule: Always, reason: "the allocator, threads' stacks, files in memory, ctypes" },
    Entry { name: "madvise", x86_64: Some(28), aarch64: Some(233), rule: OneOf { arg: 2, values: MEMORY_ADVICE }, reason: "the allocator and threads' stacks, about one's own memory" },
    Entry { name: "msync", x86_64: Some(26), aarch64: Some(227), rule: OrAnswer { any: &[&[Test { arg: 2, mask: ALL_BITS, values: MSYNC_FLAGS }]], tests: &[Test { arg: 2, mask: ALL_BITS, values: MSYNC_WAITS }], answer: 0 }, reason: "flushing of one's own files, as with fsync" },
    // processes and threads; bounded by the cgroup
    Entry { name: "fork", x86_64: Some(57), aarch64: None, rule: Always, reason: "new processes without new namespaces: the flags are in plain sight" },
    Entry { name: "vfork", x86_64: Some(58), aarch64: None, rule: Always, reason: "new processes without new namespaces: the flags are in plain sight" },
    Entry { name: "clone", x86_64: Some(56), aarch64: Some(220), rule: NoneOf { arg: 0, mask: CLONE_NEW_ANY | CLONE_PIDFD }, reason: "threads and processes, never with a new namespace, nor with a descriptor" },
    Entry { name: "clone3", x86_64: Some(435), aarch64: Some(435), rule: Answer(libc::ENOSYS), reason: "its flags are in memory, where a filter cannot look: the C library falls back to clone" },
    Entry { name: "execve", x86_64: Some(59), aarch64: Some(221), rule: Always, reason: "runs what may be run: the mounts and landlock leave the interpreter alone" },
    Entry { name: "exit", x86_64: Some(60), aarch64: Some(93), rule: Always, reason: "ends and waits" },
    Entry { name: "exit_group", x86_64: Some(231), aarch64: Some(94), rule: Always, reason: "ends and waits" },
    Entry { name: "wait4", x86_64: Some(61), aarch64: Some(260), rule: Always, reason: "ends and waits" },
    Entry { name: "waitid", x86_64: Some(247), aarch64: Some(95), rule: Always, reason: "ends and waits" },
    Entry { name: "getpid", x86_64: Some(39), aarch64: Some(172), rule: Always, reason: "who am I" },
    Entry { name: "getppid", x86_64: Some(110), aarch64: Some(173), rule: Always, reason: "who am I" },
    Entry { name: "gettid", x86_64: Some(186), aarch64: Some(178), rule: Always, reason: "who am I" },
    Entry { name: "getuid", x86_64: Some(102), aarch64: Some(174), rule: Always, reason: "who am I" },
    Entry { name: "geteuid", x86_64: Some(107), aarch64: Some(175), rule: Always, reason: "who am I" },
    Entry { name: "getgid", x86_64: Some(104), aarch64: Some(176), rule: Always, reason: "who am I" },
    Entry { name: "getegid", x86_64: Some(108), aarch64: Some(177), rule: Always, reason: "who am I" },
    Entry { name: "getresuid", x86_64: Some(118), aarch64: Some(148), rule: Always, reason: "who am I" },
    Entry { name: "getresgid", x86_64: Some(120), aarch64: Some(150), rule: Always, reason: "who am I" },
    Entry { name: "getgroups", x86_64: Some(115), aarch64: Some(158), rule: Always, reason: "who am I" },
    Entry { name: "getpgid", x86_64: Some(121), aarch64: Some(155), rule: Always, reason: "who am I" },
    Entry { name: "getpgrp", x86_64: Some(111), aarch64: None, rule: Always, reason: "who am I" },
    Entry { name: "getsid", x86_64: Some(124), aarch64: Some(156), rule: Always, reason: "who am I" },
    Entry { name: "setpgid", x86_64: Some(109), aarch64: Some(154), rule: Always, reason: "job control within the run" },
    Entry { name: "setsid", x86_64: Some(112), aarch64: Some(157), rule: Always, reason: "job control within the run" },
    Entry { name: "set_tid_address", x86_64: Some(218), aarch64: Some(96), rule: Always, reason: "set up of threads by the C library" },
    Entry { name: "set_robust_list", x86_64: Some(273), aarch64: Some(99), rule: Always, reason: "set up of threads by the C library" },
    Entry { name: "rseq", x86_64: Some(334), aarch64: Some(293), rule: Always, reason: "set up of threads by the C library" },
    Entry { name: "futex", x86_64: Some(202), aarch64: Some(98), rule: OrAnswer { any: &[&[Test { arg: 1, mask: FUTEX_OPERATION, values: FUTEX_WAITS }]], tests: &[Test { arg: 1, mask: FUTEX_OPERATION, values: FUTEX_INHERITS }], answer: libc::ENOSYS }, reason: "waiting for threads and locks, without the inheritance of priorities" },
    Entry { name: "sched_yield", x86_64: Some(24), aarch64: Some(124), rule: Always, reason: "waiting for threads and locks" },
    Entry { name: "membarrier", x86_64: Some(324), aarch64: Some(283), rule: Always, reason: "waiting for threads and locks" },
    Entry { name: "sched_getaffinity", x86_64: Some(204), aarch64: Some(123), rule: Always, reason: "how many processors there are" },
    Entry { name: "getcpu", x86_64: Some(309), aarch64: Some(168), rule: Always, reason: "how many processors there are" },
    Entry { name: "sched_getscheduler", x86_64: Some(145), aarch64: Some(120), rule: Always, reason: "questions about its own scheduling" },
    Entry { name: "sched_getparam", x86_64: Some(143), aarch64: Some(121), rule: Always, reason: "questions about its own scheduling" },
    Entry { name: "sched_get_priority_max", x86_64: Some(146), aarch64: Some(125), rule: Always, reason: "questions about its own scheduling" },
    Entry { name: "sched_get_priority_min", x86_64: Some(147), aarch64: Some(126), rule: Always, reason: "questions about its own scheduling" },
    Entry { name: "getpriority", x86_64: Some(140), aarch64: Some(141), rule: Always, reason: "questions about its own scheduling" },
    Entry { name: "arch_prctl", x86_64: Some(158), aarch64: None, rule: OneOf { arg: 0, values: &[ARCH_SET_FS, ARCH_GET_FS] }, reason: "the dynamic loader sets the thread pointer" },
    Entry { name: "prctl", x86_64: Some(157), aarch64: Some(167), rule: OneOf { arg: 0, values: PRCTL_OPTIONS }, reason: "names of threads and of memory, and questions" },
    Entry { name: "prlimit64", x86_64: Some(302), aarch64: Some(261), rule: OrAnswer { any: &[
        &[OWN, Test { arg: 1, mask: ALL_BITS, values: LIMITS }],
        &[OWN, OF_CORES, Test { arg: 2, mask: ALL_BITS, values: &[0] }, Test { arg: 2 | UPPER_HALF, mask: ALL_BITS, values: &[0] }],
    ], tests: &[OWN, OF_CORES, Test { arg: 3, mask: ALL_BITS, values: &[0] }, Test { arg: 3 | UPPER_HALF, mask: ALL_BITS, values: &[0] }], answer: 0 }, reason: "one's own limits, which can only go down; not those of init" },
    Entry { name: "getrlimit", x86_64: Some(97), aarch64: Some(163), rule: Always, reason: "one's own limits and use" },
    Entry { name: "setrlimit", x86_64: Some(160), aarch64: Some(164), rule: OrAnswer { any: &[&[Test { arg: 0, mask: ALL_BITS, values: LIMITS }]], tests: &[Test { arg: 0, mask: ALL_BITS, values: &[RLIMIT_CORE] }], answer: 0 }, reason: "one's own limits and use" },
    Entry { name: "getrusage", x86_64: Some(98), aarch64: Some(165), rule: Always, reason: "one's own limits and use" },
    // signals; the pid namespace holds nobody else
    Entry { name: "kill", x86_64: Some(62), aarch64: Some(129), rule: Always, reason: "sends within the run" },
    Entry { name: "tkill", x86_64: Some(200), aarch64: Some(130), rule: Always, reason: "sends within the run" },
    Entry { name: "tgkill", x86_64: Some(234), aarch64: Some(131), rule: Always, reason: "sends within the run" },
    Entry { name: "rt_sigaction", x86_64: Some(13), aarch64: Some(134), rule: Always, reason: "handles signals" },
    Entry { name: "rt_sigprocmask", x86_64: Some(14), aarch64: Some(135), rule: Always, reason: "handles signals" },
    Entry { name: "rt_sigreturn", x86_64: Some(15), aarch64: Some(139), rule: Always, reason: "handles signals" },
    Entry { name: "rt_sigpending", x86_64: Some(127), aarch64: Some(136), rule: Always, reason: "handles signals" },
    Entry { name: "rt_sigtimedwait", x86_64: Some(128), aarch64: Some(137), rule: Always, reason: "handles signals" },
    Entry { name: "rt_sigsuspend", x86_64: Some(130), aarch64: Some(133), rule: Always, reason: "handles signals" },
    Entry { name: "sigaltstack", x86_64: Some(131), aarch64: Some(132), rule: Always, reason: "handles signals" },
    Entry { name: "restart_syscall", x86_64: Some(219), aarch64: Some(128), rule: Always, reason: "handles signals" },
    Entry { name: "pause", x86_64: Some(34), aarch64: None, rule: Always, reason: "handles signals" },
    Entry { name: "alarm", x86_64: Some(37), aarch64: None, rule: Always, reason: "alarms; one of each kind per process" },
    Entry { name: "setitimer", x86_64: Some(38), aarch64: Some(103), rule: Always, reason: "alarms; one of each kind per process" },
    Entry { name: "getitimer", x86_64: Some(36), aarch64: Some(102), rule: Always, reason: "alarms; one of each kind per process" },
    // time; setting it needs rights that are gone and is not listed
    Entry { name: "time", x86_64: Some(201), aarch64: None, rule: Always, reason: "reads clocks and sleeps" },
    Entry { name: "gettimeofday", x86_64: Some(96), aarch64: Some(169), rule: Always, reason: "reads clocks and sleeps" },
    Entry { name: "clock_gettime", x86_64: Some(228), aarch64: Some(113), rule: Always, reason: "reads clocks and sleeps" },
    Entry { name: "clock_getres", x86_64: Some(229), aarch64: Some(114), rule: Always, reason: "reads clocks and sleeps" },
    Entry { name: "clock_nanosleep", x86_64: Some(230), aarch64: Some(115), rule: Always, reason: "reads clocks and sleeps" },
    Entry { name: "nanosleep", x86_64: Some(35), aarch64: Some(101), rule: Always, reason: "reads clocks and sleeps" },
    Entry { name: "times", x86_64: Some(100), aarch64: Some(153), rule: Always, reason: "reads clocks and sleeps" },
    // Waiting for descriptors; selectors and asyncio use poll where there is no epoll. Each entry of an epoll is one more that a
    // wake of what it waits for has to pass, with interrupts off, and there can be millions for one descriptor: what wakes it
    // pays, which may be the gateway that reads from a pipe, the clock's interrupt (timerfd), or with a lock of the whole host
    // whatever ends a process (pidfd).
    Entry { name: "poll", x86_64: Some(7), aarch64: None, rule: Always, reason: "asyncio, selectors, subprocess" },
    Entry { name: "ppoll", x86_64: Some(271), aarch64: Some(73), rule: Always, reason: "asyncio, selectors, subprocess" },
    Entry { name: "select", x86_64: Some(23), aarch64: None, rule: Always, reason: "asyncio, selectors, subprocess" },
    Entry { name: "pselect6", x86_64: Some(270), aarch64: Some(72), rule: Always, reason: "asyncio, selectors, subprocess" },
    Entry { name: "eventfd", x86_64: Some(284), aarch64: None, rule: Always, reason: "asyncio, selectors, subprocess" },
    Entry { name: "eventfd2", x86_64: Some(290), aarch64: Some(19), rule: Always, reason: "asyncio, selectors, subprocess" },
    Entry { name: "ioctl", x86_64: Some(16), aarch64: Some(29), rule: OrAnswer { any: &[&[Test { arg: 1, mask: ALL_BITS, values: IOCTL_REQUESTS }]], tests: &[Test { arg: 1, mask: ALL_BITS, values: &[FICLONE] }], answer: libc::EOPNOTSUPP }, reason: "is it a terminal, how much is there to read, blocking or not; a file is copied where it cannot be cloned; never TIOCSTI or TIOCLINUX" },
    // sockets between one's own processes
    Entry { name: "bind", x86_64: Some(49), aarch64: Some(200), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "listen", x86_64: Some(50), aarch64: Some(201), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "accept", x86_64: Some(43), aarch64: Some(202), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "accept4", x86_64: Some(288), aarch64: Some(242), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "connect", x86_64: Some(42), aarch64: Some(203), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "getsockname", x86_64: Some(51), aarch64: Some(204), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "getpeername", x86_64: Some(52), aarch64: Some(205), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "getsockopt", x86_64: Some(55), aarch64: Some(209), rule: AnyOf(&[
        &[Test { arg: 1, mask: ALL_BITS, values: &[SOL_SOCKET] }, Test { arg: 2, mask: ALL_BITS, values: SOCKET_QUESTIONS }],
    ]), reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "setsockopt", x86_64: Some(54), aarch64: Some(208), rule: AnyOf(&[
        &[Test { arg: 1, mask: ALL_BITS, values: &[SOL_SOCKET] }, Test { arg: 2, mask: ALL_BITS, values: SOCKET_OPTIONS }],
    ]), reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "shutdown", x86_64: Some(48), aarch64: Some(210), rule: Always, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "sendto", x86_64: Some(44), aarch64: Some(206), rule: NoneOf { arg: 3, mask: MSG_OOB }, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "recvfrom", x86_64: Some(45), aarch64: Some(207), rule: NoneOf { arg: 3, mask: MSG_OOB }, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "sendmsg", x86_64: Some(46), aarch64: Some(211), rule: NoneOf { arg: 2, mask: MSG_OOB }, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "recvmsg", x86_64: Some(47), aarch64: Some(212), rule: NoneOf { arg: 2, mask: MSG_OOB }, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "sendmmsg", x86_64: Some(307), aarch64: Some(269), rule: NoneOf { arg: 3, mask: MSG_OOB }, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "recvmmsg", x86_64: Some(299), aarch64: Some(243), rule: NoneOf { arg: 3, mask: MSG_OOB }, reason: "multiprocessing and asyncio; a socket of another family cannot be made" },
    Entry { name: "socket", x86_64: Some(41), aarch64: Some(198), rule: OneOf { arg: 0, values: &[AF_UNIX] }, reason: "AF_VSOCK is not bound by network namespaces, AF_NETLINK and AF_ALG are wide doors into the kernel" },
    Entry { name: "socketpair", x86_64: Some(53), aarch64: Some(199), rule: OneOf { arg: 0, values: &[AF_UNIX] }, reason: "the same" },
    // the system
    Entry { name: "getrandom", x86_64: Some(318), aarch64: Some(278), rule: Always, reason: "random numbers" },
    Entry { name: "uname", x86_64: Some(63), aarch64: Some(160), rule: Always, reason: "name and size of the machine" },
    Entry { name: "sysinfo", x86_64: Some(99), aarch64: Some(179), rule: Always, reason: "name and size of the machine" },
];

/// What takes the place of the lines of the same name for a run with network. Its namespace holds a loopback interface
/// and the gate; IPv6, datagrams, raw sockets and netlink have nothing to lead to there, so there are none.
#[rustfmt::skip]
pub(super) const NETWORK: &[Entry] = &[
    Entry { name: "socket", x86_64: Some(41), aarch64: Some(198), rule: AnyOf(&[
        &[Test { arg: 0, mask: ALL_BITS, values: &[AF_UNIX] }],
        &[Test { arg: 0, mask: ALL_BITS, values: &[AF_INET] }, Test { arg: 1, mask: SOCKET_TYPE, values: &[SOCK_STREAM] }, Test { arg: 2, mask: ALL_BITS, values: &[0, IPPROTO_TCP] }],
    ]), reason: "the way to the gate is TCP; landlock does not know multipath TCP and SCTP" },
    Entry { name: "setsockopt", x86_64: Some(54), aarch64: Some(208), rule: AnyOf(&[
        &[Test { arg: 1, mask: ALL_BITS, values: &[SOL_SOCKET] }, Test { arg: 2, mask: ALL_BITS, values: SOCKET_OPTIONS }],
        &[Test { arg: 1, mask: ALL_BITS, values: &[IPPROTO_TCP] }, Test { arg: 2, mask: ALL_BITS, values: TCP_OPTIONS }],
    ]), reason: "what HTTP clients set" },
    Entry { name: "getsockopt", x86_64: Some(55), aarch64: Some(209), rule: AnyOf(&[
        &[Test { arg: 1, mask: ALL_BITS, values: &[SOL_SOCKET] }, Test { arg: 2, mask: ALL_BITS, values: SOCKET_QUESTIONS }],
        &[Test { arg: 1, mask: ALL_BITS, values: &[IPPROTO_TCP] }, Test { arg: 2, mask: ALL_BITS, values: TCP_QUESTIONS }],
    ]), reason: "what HTTP clients ask" },
    Entry { name: "sendto", x86_64: Some(44), aarch64: Some(206), rule: NoneOf { arg: 3, mask: MSG_FASTOPEN | MSG_OOB }, reason: "a connection is made by connect() alone" },
    Entry { name: "sendmsg", x86_64: Some(46), aarch64: Some(211), rule: NoneOf { arg: 2, mask: MSG_FASTOPEN | MSG_OOB }, reason: "the same" },
    Entry { name: "sendmmsg", x86_64: Some(307), aarch64: Some(269), rule: NoneOf { arg: 3, mask: MSG_FASTOPEN | MSG_OOB }, reason: "the same" },
];

/// What a zygote does beside, and its children until they are sealed: taken away by their last filter.
#[rustfmt::skip]
pub(super) const BIRTH: &[Entry] = &[
    Entry { name: "clone3", x86_64: Some(435), aarch64: Some(435), rule: Always, reason: "a child, with its pidfd" },
    Entry { name: "setns", x86_64: Some(308), aarch64: Some(268), rule: Always, reason: "into the namespaces that are leased to it" },
    Entry { name: "unshare", x86_64: Some(272), aarch64: Some(97), rule: Always, reason: "into the namespaces that are its own" },
    Entry { name: "sethostname", x86_64: Some(170), aarch64: Some(161), rule: Always, reason: "the same name for every run" },
    Entry { name: "umount2", x86_64: Some(166), aarch64: Some(39), rule: Always, reason: "an ordinary user's takes the zygote's /proc away" },
    Entry { name: "open_tree", x86_64: Some(428), aarch64: Some(428), rule: Always, reason: "shows the run's tmpfs in its places" },
    Entry { name: "chown", x86_64: Some(92), aarch64: None, rule: Always, reason: "the run's directories are the run's" },
    Entry { name: "fchownat", x86_64: Some(260), aarch64: Some(54), rule: Always, reason: "the run's directories are the run's" },
    Entry { name: "prctl", x86_64: Some(157), aarch64: Some(167), rule: Always, reason: "ends every way to rights" },
    Entry { name: "setgroups", x86_64: Some(116), aarch64: Some(159), rule: Always, reason: "becomes the user of the run" },
    Entry { name: "setresgid", x86_64: Some(119), aarch64: Some(149), rule: Always, reason: "becomes the user of the run" },
    Entry { name: "setresuid", x86_64: Some(117), aarch64: Some(147), rule: Always, reason: "becomes the user of the run" },
    Entry { name: "capset", x86_64: Some(126), aarch64: Some(91), rule: Always, reason: "drops its rights" },
    Entry { name: "seccomp", x86_64: Some(317), aarch64: Some(277), rule: Always, reason: "the last filter" },
    Entry { name: "landlock_create_ruleset", x86_64: Some(444), aarch64: Some(444), rule: Always, reason: "the rules of the run" },
    Entry { name: "landlock_add_rule", x86_64: Some(445), aarch64: Some(445), rule: Always, reason: "the rules of the run" },
    Entry { name: "landlock_restrict_self", x86_64: Some(446), aarch64: Some(446), rule: Always, reason: "the rules of the run" },
    Entry { name: "move_mount", x86_64: Some(429), aarch64: Some(429), rule: Always, reason: "puts up what the run is given" },
    Entry { name: "fsopen", x86_64: Some(430), aarch64: Some(430), rule: Always, reason: "places for what the run is given" },
    Entry { name: "fsconfig", x86_64: Some(431), aarch64: Some(431), rule: Always, reason: "places for what the run is given, and the size of its disk" },
    Entry { name: "fsmount", x86_64: Some(432), aarch64: Some(432), rule: Always, reason: "places for what the run is given" },
    Entry { name: "fspick", x86_64: Some(433), aarch64: Some(433), rule: Always, reason: "the size of its disk" },
    Entry { name: "mount_setattr", x86_64: Some(442), aarch64: Some(442), rule: Always, reason: "what is given is read-only" },
];

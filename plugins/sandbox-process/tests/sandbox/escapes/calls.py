# System calls: doors of the kernel that a run has no business with, each by its number on x86-64 (see `call`).

# Reached by anybody to whom no filter says no.
for _name, _number, _args, _sure in (
    ("ptrace: be traced", 101, (0, 0, 0, 0), True),
    ("personality: no address randomisation", 135, (0x0040000,), True),
    ("modify_ldt", 154, (0, 0, 0), True),
    ("adjtimex", 159, (0,), True),
    ("settimeofday", 164, (1, 1), True),
    ("quotactl", 179, (0, 0, 0, 0), False),
    ("io_setup", 206, (1, 0), True),
    ("lookup_dcookie", 212, (0, 0, 0), False),
    ("timer_create", 222, (0, 0, 0), True),
    ("clock_settime", 227, (0, 0), True),
    ("mbind", 237, (0, 0, 0, 0, 0, 0), True),
    ("set_mempolicy", 238, (0, 0, 0), True),
    ("mq_open", 240, (0, 0, 0, 0), True),
    ("add_key", 248, (0, 0, 0, 0, 0), True),
    ("request_key", 249, (0, 0, 0, 0), True),
    ("keyctl", 250, (0, -3, 0, 0, 0), True),
    ("ioprio_set: idle", 251, (1, 0, 3 << 13), True),
    ("inotify_init", 253, (), True),
    ("migrate_pages", 256, (0, 0, 0, 0), True),
    ("splice", 275, (-1, 0, -1, 0, 1, 0), True),
    ("tee", 276, (-1, -1, 1, 0), True),
    ("vmsplice", 278, (-1, 0, 0, 0), True),
    ("move_pages", 279, (0, 0, 0, 0, 0, 0), True),
    ("signalfd4", 289, (-1, 0, 0, 0), True),
    ("perf_event_open", 298, (0, 0, -1, -1, 0), True),
    ("fanotify_init", 300, (0x200, 0), True),
    ("name_to_handle_at", 303, (-100, 0, 0, 0, 0), True),
    ("open_by_handle_at", 304, (-1, 0, 0), True),
    ("clock_adjtime", 305, (0, 0), True),
    ("setns", 308, (-1, 0), True),
    ("kcmp", 312, (0, 0, 0, 0, 0), False),
    ("sched_setattr", 314, (0, 0, 0), True),
    ("seccomp: what is there", 317, (2, 0, 0), True),
    ("memfd_create", 319, (0, 0), True),
    ("bpf", 321, (0, 0, 8), True),
    ("execveat", 322, (-1, 0, 0, 0, 0), True),
    ("userfaultfd", 323, (1,), True),
    ("pkey_alloc", 330, (0, 0), True),
    ("io_uring_setup", 425, (1, 0), True),
    ("io_uring_enter", 426, (-1, 0, 0, 0, 0, 0), True),
    ("io_uring_register", 427, (-1, 0, 0, 0), True),
    ("open_tree", 428, (-1, 0, 0), True),
    ("fsconfig", 431, (-1, 0, 0, 0, 0), True),
    ("process_madvise", 440, (-1, 0, 0, 0, 0), True),
    ("landlock_create_ruleset", 444, (0, 0, 1), True),
    ("memfd_secret", 447, (0,), False),
    ("process_mrelease", 448, (-1, 0), True),
    ("cachestat: what others have read", 451, (-1, 0, 0, 0), False),
    ("statmount", 457, (0, 0, 0, 0), False),
    ("listmount", 458, (0, 0, 0, 0), False),
    ("mlock2", 325, (0, 0, 8), True),
    ("mincore: what others have read", 27, (1, 1, 0), True),
    ("sched_setaffinity", 203, (0, 0, 0), True),
    ("sched_setscheduler", 144, (0, 99, 0), True),
    ("pidfd_getfd", 438, (-1, 0, 0), True),
    ("process_vm_readv", 310, (0, 0, 0, 0, 0, 1), True),
    ("process_vm_writev", 311, (0, 0, 0, 0, 0, 1), True),
    ("rt_sigqueueinfo", 129, (0, 0, 0), True),
    ("shmget", 29, (0, 1 << 60, 0), True),
    ("semget", 64, (0, 1 << 30, 0), True),
    ("msgget of nothing", 68, (0x7FFFFFF1, 0), True),
    ("setfsuid", 122, (0,), True),
    ("ustat", 136, (0, 0), False),
    ("sysfs", 139, (3,), False),
    ("setpriority", 141, (0, 0, 19), True),
    ("kexec_file_load", 320, (-1, -1, 0, 0, 0xFFFF), False),
):
    if is_here(_number):
        attempt("call " + _name, ESCAPE, SECCOMP, sure=_sure)(lambda w, n=_number, a=_args: reaches(n, *a))

# The kernel asks for a right before it looks at anything else. None of them could do harm with what it is given.
for _name, _number, _args, _sure in (
    ("mount: a tree", 428, (-100, b"/", 1), True),
    ("umount2", 166, (b"/etc", 0), True),
    ("fsopen", 430, (b"tmpfs", 0), True),
    ("fspick", 433, (-100, b"/", 0), True),
    ("fsmount", 432, (-1, 0, 0), True),
    ("reboot", 169, (0, 0, 0, 0), True),
    ("swapon", 167, (b"/nothing", 0), True),
    ("swapoff", 168, (b"/nothing",), True),
    ("acct", 163, (b"/nothing",), True),
    ("sethostname", 170, (b"mine", 4), True),
    ("setdomainname", 171, (b"mine", 4), True),
    ("setgroups", 116, (1, struct.pack("I", 42)), True),
    ("setpriority: before all others", 141, (0, 0, -10 & (2**64 - 1)), True),
    ("ioprio_set: before all others", 251, (1, 0, 1 << 13), True),
    ("iopl", 172, (3,), False),
    ("ioperm", 173, (0x80, 1, 1), False),
    ("init_module", 175, (0, 0, 0), False),
    ("finit_module", 313, (-1, 0, 0), False),
    ("delete_module", 176, (0, 0), False),
    ("kexec_load", 246, (0, 0, 0, 0xFFFF), False),
    ("vhangup", 153, (), True),
    ("mknod: a disk", 133, (b"/workspace/disk", 0o60666, 0x0800), True),
    ("mknodat: a console", 259, (-100, b"/workspace/tty", 0o20666, 0x0501), True),
    ("syslog: clear the kernel's log level", 103, (8, 0, 99), False),
):
    if is_here(_number):
        attempt("right " + _name, ESCAPE, SECCOMP, *ROOT, sure=_sure)(lambda w, n=_number, a=_args: reaches(n, *a))

for _name, _number, _args in (
    ("setresuid: another's", 117, (1234, 1234, 1234)),
    ("setresgid: another's", 119, (1234, 1234, 1234)),
    ("chown: to another", 92, (b"/tmp", 1234, 1234)),
):
    # Not mapped in the user namespace is an answer too, and a no.
    if is_here(_number):
        attempt("right " + _name, ESCAPE, SECCOMP, *ROOT)(lambda w, n=_number, a=_args: call(n, *a) == 0)

# Landlock says no to every change of the mounts too.
def _mount(*args):
    call(165, *args)
    # What comes after this attempt has the same mounts.
    call(166, args[1], 2)
    return "mounted"


for _name, _args in (
    ("mount", (b"none", b"/dev/shm", b"tmpfs", 0, 0)),
    ("mount: the system's /proc", (b"none", b"/dev/shm", b"proc", 0, 0)),
    ("mount: bind over the interpreter", (b"/workspace", b"/usr/bin", 0, 0x1000, 0)),
):
    attempt("right " + _name, ESCAPE, SECCOMP, LANDLOCK, *ROOT)(lambda w, a=_args: _mount(*a))
attempt("right mount: other flags for the root", ESCAPE, SECCOMP, LANDLOCK, *ROOT)(
    lambda w: reaches(165, b"none", b"/", 0, 0x1027, 0)
)
attempt("right pivot_root", ESCAPE, SECCOMP, LANDLOCK, *ROOT)(lambda w: reaches(155, b"/workspace", b"/tmp"))

# A right over one's own user namespace is enough.
for _name, _number, _args in (
    ("chroot", 161, (b"/workspace",)),
    ("capset", 126, (struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 1 << 21, 1 << 21, 0, 0, 0, 0))),
    ("prctl: securebits", 157, (28, 0)),
    ("prctl: drop from the bounding set", 157, (24, 21)),
):
    attempt("right " + _name, INTERNAL, SECCOMP, CAPABILITIES)(lambda w, n=_number, a=_args: reaches(n, *a))



@attempt("right to keep a right over execution", INTERNAL, SECCOMP, CAPABILITIES)
def _(w):
    admin = 1 << 21
    call(126, struct.pack("Ii", 0x20080522, 0), struct.pack("6I", admin, admin, admin, 0, 0, 0))
    return call(157, 47, 2, 21, 0, 0) == 0


for _name, _args, _sure in (
    ("dumpable again", (4, 1), True),
    ("another filter", (22, 2, 0), True),
    ("memory map", (35, 1, 0), False),
    ("let others trace", (0x59616D61, -1), False),
    ("reaper of others", (36, 1), True),
    ("timer slack", (29, 1), True),
    ("machine check", (33, 1, 1), True),
    ("speculation", (53, 0, 2, 0, 0), False),
    ("core scheduling", (62, 1, 0, 0, 0), False),
    ("outlive the launcher", (1, 0), True),
):
    attempt("prctl " + _name, ESCAPE, SECCOMP, sure=_sure)(lambda w, a=_args: reaches(157, *a))
# A core handler that the host has behind a pipe is root there, and is called for a limit of 0 as for one of 2 and more (core(5)).
for _name, _number, _args in (("", 160, (4,)), (", by the newer call", 302, (0, 4))):
    def _(w, number=_number, args=_args):
        call(number, *args, struct.pack("QQ", 0, 0), 0)
        limits = ctypes.create_string_buffer(16)
        call(302, 0, 4, 0, limits)
        return struct.unpack("QQ", limits.raw) == (0, 0) and "lowered"

    attempt("have a core handler called" + _name, ESCAPE, SECCOMP)(_)


@attempt("read the loader, and be dumped by executing it", INTERNAL, UNDUMPABLE)
def _(w):
    with open(w["loader"], "rb") as f:
        return len(f.read())


attempt("end process 1 by a signal", ESCAPE, KERNEL)(lambda w: fork(lambda: os.kill(1, 9)) and None)

_NAMESPACES = {
    "time": 0x80, "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "pid": 0x20000000, "net": 0x40000000,
}
for _name, _flag in _NAMESPACES.items():
    attempt("unshare " + _name, ESCAPE, SECCOMP, CAPABILITIES)(lambda w, f=_flag: call(272, f) == 0)


def _clone(flags, number=56):
    if number == 56:
        pid = call(56, flags | signal.SIGCHLD, 0, 0, 0, 0)
    else:
        pid = call(435, struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a process in it"


for _name, _flag in _NAMESPACES.items():
    if _name != "time":
        attempt("clone " + _name, ESCAPE, SECCOMP, CAPABILITIES)(lambda w, f=_flag: _clone(f))
    attempt("clone3 " + _name, ESCAPE, SECCOMP, CAPABILITIES)(lambda w, f=_flag: _clone(f, 435))
attempt("unshare user", ESCAPE, SECCOMP)(lambda w: call(272, 0x10000000) == 0)
attempt("clone user", ESCAPE, SECCOMP)(lambda w: _clone(0x10000000))
attempt("clone3 user", ESCAPE, SECCOMP)(lambda w: _clone(0x10000000, 435))


@attempt("unshare user, then mount as its root", ESCAPE, SECCOMP, LANDLOCK)
def _(w):
    call(272, 0x10020000)
    call(165, b"none", b"/workspace", b"tmpfs", 0, 0)
    return "a mount"


@attempt("a new session keyring", LATERAL, SECCOMP)
def _(w):
    return call(250, 1, 0)


@attempt("a key that others could find", LATERAL, SECCOMP)
def _(w):
    return call(248, b"user", b"skillgate-canary", b"x", 1, -4)


def _machine_code(code):
    import mmap

    m = mmap.mmap(-1, 4096, prot=7)
    m.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))() > 0


# getpid of i386 and of x32; mov eax, n; int 0x80 or syscall; ret.
if not IS_AARCH64:
    attempt("a call by int 0x80", ESCAPE, SECCOMP, sure=False)(lambda w: _machine_code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"))
    attempt("a call by the x32 table", ESCAPE, SECCOMP, sure=False)(lambda w: _machine_code(b"\xb8\x27\x00\x00\x40\x0f\x05\xc3"))


# Linux 5.14 has none.
@attempt("data past the others, between one's own sockets", ESCAPE, SECCOMP, sure=False)
def _(w):
    import socket

    a, _b = socket.socketpair()
    return a.send(b"x", socket.MSG_OOB) == 1 and "sent"


@attempt("a lock that inherits priorities", ESCAPE, SECCOMP)
def _(w):
    word = ctypes.c_uint(0)
    return call(202, ctypes.addressof(word), 6, 0, 0) == 0 and "locked"


@attempt("a program in memory alone", ESCAPE, SECCOMP)
def _(w):
    fd = os.memfd_create("x", 0)
    with open("/skills/given/program", "rb") as f:
        os.write(fd, f.read())
    return fork(lambda: os.execve("/proc/self/fd/%d" % fd, ["x", "--version"], {})) == 0 and "it ran"


@attempt("a program in memory alone, by descriptor", ESCAPE, SECCOMP)
def _(w):
    fd = os.memfd_create("x", 0)
    with open("/skills/given/program", "rb") as f:
        os.write(fd, f.read())
    return fork(lambda: os.execve(fd, ["x", "--version"], {})) == 0 and "it ran"


@attempt("terminal: push input", ESCAPE, SECCOMP, KERNEL)
def _(w):
    call(16, 0, 0x5412, b"x")
    return "pushed"


for _name, _request in (
    ("flags of a file", 0x80086601), ("map of blocks", 1), ("signals of a descriptor", 0x8901),
    ("TIOCLINUX", 0x541C), ("entropy of the kernel", 0x80045200),
):
    def _(w, request=_request):
        fd = os.open("/dev/urandom" if request == 0x80045200 else "/workspace", os.O_RDONLY)
        return reaches(16, fd, request, ctypes.create_string_buffer(8))

    attempt("ioctl " + _name, ESCAPE, SECCOMP, *((LANDLOCK,) if _request == 0x80045200 else ()), sure=_request == 0x80045200)(_)


@attempt("ioctl clone of a file", ESCAPE, SECCOMP)
def _(w):
    # The kernel itself would say that there is no such descriptor to clone from.
    try:
        call(16, os.open("/workspace", os.O_RDONLY), 0x40049409, 9999)
    except OSError as e:
        return None if e.errno == errno.EOPNOTSUPP else "it answers " + errno.errorcode[e.errno]
    return "it works"

# Others: processes, sockets, memory and descriptors that are not the run's, and more of everything than it may have.

PAIRS = (("the outside", "outside_pid"), ("the launcher", "launcher_pid"), ("a neighbour", "neighbour_pid"))

for _who, _pid in PAIRS:
    # The kernel answers these for every process that has a number here. The answer itself may be 0: a session or a group
    # whose leader is outside of this namespace (what a container's shell is in).
    attempt("session of " + _who, HOST_LEAK, PID_NAMESPACE)(lambda w, p=_pid: [os.getsid(w[p])])
    attempt("group of " + _who, HOST_LEAK, PID_NAMESPACE)(lambda w, p=_pid: [os.getpgid(w[p])])
    attempt("priority of " + _who, HOST_LEAK, PID_NAMESPACE)(lambda w, p=_pid: [os.getpriority(os.PRIO_PROCESS, w[p])])
    attempt("processors of " + _who, HOST_LEAK, PID_NAMESPACE)(lambda w, p=_pid: os.sched_getaffinity(w[p]))
    attempt("a descriptor of " + _who, HOST_LEAK, PID_NAMESPACE, SECCOMP)(lambda w, p=_pid: os.pidfd_open(w[p]))
    attempt("command line of " + _who, HOST_LEAK, PID_NAMESPACE, HIDDEN_PROC)(
        lambda w, p=_pid: (os.open("/proc/%d/cmdline" % w[p], os.O_RDONLY), "open")[1]
    )
    # A signal that does nothing to a process that runs; the right to send it is the right to send any.
    attempt("signal " + _who, LATERAL, PID_NAMESPACE, LANDLOCK, OWN_USER)(lambda w, p=_pid: os.kill(w[p], signal.SIGCONT) is None)
    attempt("signal " + _who + " by descriptor", LATERAL, PID_NAMESPACE, SECCOMP, LANDLOCK, OWN_USER)(
        lambda w, p=_pid: signal.pidfd_send_signal(os.pidfd_open(w[p]), signal.SIGCONT) is None
    )
    attempt("limits of " + _who, LATERAL, PID_NAMESPACE, SECCOMP, OWN_USER, sure=_pid == "outside_pid")(
        lambda w, p=_pid: call(302, w[p], 7, 0, ctypes.create_string_buffer(16)) == 0
    )
    attempt("memory of " + _who, HOST_LEAK, PID_NAMESPACE, LANDLOCK, *ROOT, sure=False)(
        lambda w, p=_pid: os.open("/proc/%d/mem" % w[p], os.O_RDONLY)
    )
    attempt("environment of " + _who, HOST_LEAK, PID_NAMESPACE, *ROOT, sure=False)(
        lambda w, p=_pid: os.read(os.open("/proc/%d/environ" % w[p], os.O_RDONLY), 10)
    )
    attempt("trace " + _who, LATERAL, SECCOMP, PID_NAMESPACE, LANDLOCK, *ROOT, sure=False)(
        lambda w, p=_pid: call(101, 0x4206, w[p], 0, 0) == 0
    )


@attempt("every process of the host", HOST_LEAK, PID_NAMESPACE, HIDDEN_PROC)
def _(w):
    return str(w["outside_pid"]) in os.listdir("/proc") and "seen"


@attempt("signal everything", PEER_DOS, KERNEL)
def _(w):
    # From a group of its own: within the run it would end the run.
    return os.kill(w["outside_pid"], 0) is None and w["pid_namespace"] and "it is there"


def _traced(pid):
    call(101, 16, pid, 0, 0)
    return "traced"


@attempt("trace a process of mine", INTERNAL, SECCOMP, UNDUMPABLE)
def _(w):
    return with_child(_traced)


def _vectors():
    mine = ctypes.create_string_buffer(8)
    address = ctypes.addressof(mine)
    return mine, struct.pack("QQ", address, 8)


attempt("read a process of mine", INTERNAL, SECCOMP, UNDUMPABLE)(
    lambda w: with_child(lambda pid: call(310, pid, _vectors()[1], 1, _vectors()[1], 1, 0) == 8)
)
attempt("write to a process of mine", INTERNAL, SECCOMP, UNDUMPABLE)(
    lambda w: with_child(lambda pid: call(311, pid, _vectors()[1], 1, _vectors()[1], 1, 0) == 8)
)
attempt("take a descriptor of a process of mine", INTERNAL, SECCOMP, UNDUMPABLE)(
    lambda w: with_child(lambda pid: call(438, os.pidfd_open(pid), 1, 0))
)
attempt("open the memory of a process of mine", INTERNAL, UNDUMPABLE)(
    lambda w: with_child(lambda pid: os.open("/proc/%d/mem" % pid, os.O_RDONLY))
)
attempt("limits of init", INTERNAL, SECCOMP)(lambda w: call(302, 1, 7, 0, ctypes.create_string_buffer(16)) == 0)
for _signal in ("KILL", "STOP", "TERM", "HUP", "SEGV"):
    # Init of a pid namespace takes none that it has no handler for from inside: sent, it does nothing.
    def _(w, number=getattr(signal, "SIG" + _signal)):
        if not w["pid_namespace"]:
            return None
        os.kill(1, number)
        return None

    attempt("end init by SIG" + _signal, SELF_DOS, KERNEL)(_)

# === descriptors ===


def _foreign():
    """Descriptors that are neither the run's four nor the pipe of the attempt."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            pass  # the one that lists the directory
    known = [v for fd, v in found.items() if fd < 4]
    return {fd: v for fd, v in found.items() if fd >= 4 and v not in known and not v.startswith(("pipe:", "/proc/"))}


attempt("a descriptor that was left open", HOST_LEAK, DESCRIPTORS, EXECUTION)(lambda w: _foreign())
attempt("a directory that was left open", ESCAPE, DESCRIPTORS, EXECUTION)(
    lambda w: [fd for fd in _foreign() if stat.S_ISDIR(os.fstat(fd).st_mode)]
)
attempt("a socket that was left open", LATERAL, DESCRIPTORS, EXECUTION)(
    lambda w: [fd for fd in _foreign() if stat.S_ISSOCK(os.fstat(fd).st_mode)]
)


@attempt("block the gateway's end of the output", HOST_DOS, KERNEL)
def _(w):
    # Flags are of the open description; the other end of a pipe has one of its own. The gateway goes on: see the result.
    for fd in (0, 1, 2, 3):
        os.set_blocking(fd, False)
        os.set_blocking(fd, True)
    return None


@attempt("move another's place in a file", LATERAL, KERNEL)
def _(w):
    return os.lseek(0, 5, os.SEEK_SET) and os.lseek(0, 0, os.SEEK_CUR) and None


@attempt("send a descriptor to the gateway", HOST_DOS, KERNEL)
def _(w):
    # It may be sent: whoever does not ask for descriptors does not get them. The frame is not sent whole, and harmless.
    s = socket.socket(fileno=os.dup(3))
    try:
        socket.send_fds(s, [], [0])
    finally:
        s.detach()
    return None


@attempt("read what the gateway has sent to others", LATERAL, KERNEL)
def _(w):
    s = socket.socket(fileno=os.dup(3))
    try:
        return s.recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    finally:
        s.close()


# === sockets ===

for _name, _family, _kind, _protocol in (
    ("TCP", 2, 1, 0), ("UDP", 2, 2, 0), ("TCP over IPv6", 10, 1, 0), ("UDP over IPv6", 10, 2, 0), ("ping", 2, 2, 1),
    ("netlink: routes", 16, 3, 0), ("netlink: uevents", 16, 3, 15), ("netlink: audit", 16, 3, 9), ("netlink: netfilter", 16, 3, 12),
    ("netlink: sock_diag", 16, 3, 4), ("netlink: generic", 16, 3, 16), ("multipath TCP", 2, 1, 262), ("SCTP", 2, 1, 132), ("DCCP", 2, 6, 33),
    ("vsock", 40, 1, 0), ("alg", 38, 5, 0), ("xdp", 44, 3, 0), ("can", 29, 3, 1), ("bluetooth", 31, 3, 1), ("tipc", 30, 1, 0),
    ("key", 15, 3, 2), ("rds", 21, 5, 0), ("x25", 9, 5, 0), ("ax25", 3, 5, 0), ("kcm", 41, 5, 0), ("qipcrtr", 42, 2, 0), ("smc", 43, 1, 0),
    ("phonet", 35, 2, 0), ("nfc", 39, 3, 0), ("mctp", 45, 2, 0), ("rxrpc", 33, 2, 2), ("pppox", 24, 1, 0), ("llc", 26, 2, 0),
):
    attempt("socket " + _name, EXFIL, SECCOMP, sure=_family in (2, 10, 16) and _protocol in (0, 4, 15, 16) and _name != "ping")(
        lambda w, f=_family, k=_kind, p=_protocol: call(41, f, k, p)
    )
for _name, _family, _kind, _protocol in (("raw IP", 2, 3, 255), ("raw ICMP", 2, 3, 1), ("packet", 17, 3, 0x0300), ("packet, cooked", 17, 2, 0x0300)):
    attempt("socket " + _name, EXFIL, SECCOMP, *ROOT, sure=_family == 2)(lambda w, f=_family, k=_kind, p=_protocol: call(41, f, k, p))
for _name, _family, _kind in (("TCP", 2, 1), ("UDP", 2, 2)):
    attempt("a pair of sockets " + _name, EXFIL, SECCOMP, KERNEL)(lambda w, f=_family, k=_kind: call(53, f, k, 0, ctypes.create_string_buffer(8)))


@attempt("connect to a port of the host", EXFIL, SECCOMP, NET_NAMESPACE, LANDLOCK)
def _(w):
    s = socket.create_connection(("127.0.0.1", w["port"]), 2)
    return s.recv(100)


@attempt("connect to a port of the host over IPv6", EXFIL, SECCOMP, NET_NAMESPACE, LANDLOCK)
def _(w):
    s = socket.socket(socket.AF_INET6)
    s.settimeout(2)
    s.connect(("::ffff:127.0.0.1", w["port"]))
    return s.recv(100)


@attempt("a datagram to a port of the host", EXFIL, SECCOMP, NET_NAMESPACE)
def _(w):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    s.sendto(b"x", ("127.0.0.1", w["udp_port"]))
    return s.recv(100)


@attempt("listen on a port of the host", LATERAL, SECCOMP, NET_NAMESPACE, LANDLOCK)
def _(w):
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    # Bound in a namespace of its own it is nobody's; that namespace has no interface that is up.
    with socket.create_connection(s.getsockname(), 1):
        return "somebody could connect"


@attempt("ask a name server", EXFIL, SECCOMP, NET_NAMESPACE, sure=False)
def _(w):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return s.sendto(b"\0" * 12, ("198.51.100.1", 53))


@attempt("a way out to the world", EXFIL, SECCOMP, NET_NAMESPACE, LANDLOCK, sure=False)
def _(w):
    s = socket.socket()
    s.settimeout(1)
    s.connect(("198.51.100.1", 443))
    return "connected"


for _who, _socket in (("the outside", "abstract"), ("a neighbour", "neighbour_abstract")):

    def _(w, name=_socket):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(2)
        s.connect("\0" + w[name])
        return "connected"

    attempt("an abstract socket of " + _who, LATERAL, NET_NAMESPACE, LANDLOCK)(_)


@attempt("an abstract datagram to the outside", LATERAL, NET_NAMESPACE, LANDLOCK)
def _(w):
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "\0" + w["abstract_datagram"])


@attempt("names of sockets of the host", HOST_LEAK, NET_NAMESPACE)
def _(w):
    return w["abstract"] in open("/proc/self/net/unix").read() and "seen"


@attempt("connections of the host", HOST_LEAK, NET_NAMESPACE)
def _(w):
    return "%04X" % w["port"] in open("/proc/self/net/tcp").read() and "seen"


@attempt("the name of the host", HOST_LEAK, UTS_NAMESPACE)
def _(w):
    return os.uname().nodename == w["hostname"] and w["hostname"]


attempt("a filter program on a socket", ESCAPE, SECCOMP)(
    lambda w: socket.socketpair()[0].setsockopt(1, 26, struct.pack("HxxxxxxP", 1, _filter_address())) is None
)


def _filter_address():
    _filter_address.code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF))
    return ctypes.addressof(_filter_address.code)


# === memory and messages of others ===

attempt("shared memory of the host (System V)", LATERAL, SECCOMP, IPC_NAMESPACE)(lambda w: [call(29, w["ipc_key"], 0, 0)])
attempt("messages of the host (System V)", LATERAL, SECCOMP, IPC_NAMESPACE)(lambda w: [call(68, w["ipc_key"], 0)])
attempt("semaphores of the host (System V)", LATERAL, SECCOMP, IPC_NAMESPACE)(lambda w: [call(64, w["ipc_key"], 0, 0)])
attempt("messages of the host (POSIX)", LATERAL, SECCOMP, IPC_NAMESPACE, LANDLOCK)(
    lambda w: [call(240, w["queue"].encode(), os.O_RDONLY | os.O_NONBLOCK, 0, 0)]
)
attempt("memory that stays (System V)", HOST_DOS, SECCOMP)(lambda w: [call(31, call(29, 0, 4096, 0o1600), 0, 0)])


@attempt("a queue that stays (POSIX)", HOST_DOS, SECCOMP, RESOURCE_LIMITS, LANDLOCK)
def _(w):
    fd = call(240, b"made", os.O_CREAT | os.O_RDWR, 0o600, 0)
    call(241, b"made")
    return fd


@attempt("a lock that another run of the same files meets", LATERAL, SECCOMP)
def _(w):
    import fcntl

    # Another opening of the file is another owner, in whichever run.
    one, other = (os.open("/skills/given/open", os.O_RDONLY) for _ in range(2))
    fcntl.flock(one, fcntl.LOCK_EX)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "the other one's"


@attempt("be told what others read", LATERAL, SECCOMP)
def _(w):
    import fcntl

    # It comes as soon as any run on the host reads there.
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    return fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS) == 0


attempt("a file that all read, out of memory", PEER_DOS, SECCOMP)(
    lambda w: os.posix_fadvise(os.open(os.__file__, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED) is None
)
attempt("ask whether others have read a file", LATERAL, SECCOMP, sure=False)(
    lambda w: os.preadv(os.open(os.__file__, os.O_RDONLY), [bytearray(1)], 0, os.RWF_NOWAIT)
)


attempt("a descriptor of whoever made a socket", HOST_LEAK, SECCOMP)(lambda w: reaches(55, 3, 1, 77, 0, 0))
attempt("a file that all read, out of memory (by reading)", PEER_DOS, SECCOMP)(lambda w: reaches(327, -1, 0, 0, 0, 0, 0x80))


@attempt("a lock that no control group counts", HOST_DOS, SECCOMP)
def _(w):
    import fcntl

    one, other = (os.open(os.__file__, os.O_RDONLY) for _ in range(2))
    fcntl.lockf(one, fcntl.LOCK_SH, 1, 7)
    # Asked by an owner of another kind (F_OFD_GETLK), who would meet it.
    asked = fcntl.fcntl(other, 36, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 100, 0))
    return struct.unpack_from("h", asked)[0] != fcntl.F_UNLCK


attempt("pages that the host has set aside", HOST_DOS, SECCOMP)(lambda w: reaches(9, 0, 2 << 20, 3, 0x40022, -1, 0))


def _is_made(*words):
    """A call that can only fail: without an error it was answered and not made."""
    try:
        call(*words)
    except OSError as e:
        return errno.errorcode[e.errno]


# What wakes one descriptor passes each entry for it, in the gateway, in an interrupt, or with a lock of the whole host.
attempt("many entries for one descriptor", HOST_DOS, SECCOMP)(lambda w: [select.epoll().fileno()])
attempt("the clock's interrupt", HOST_DOS, SECCOMP)(lambda w: [call(283, 1, 0)])
attempt("the end of a process", HOST_DOS, SECCOMP)(lambda w: [os.pidfd_open(os.getpid())])
attempt("the end of a process, from its birth", HOST_DOS, SECCOMP)(lambda w: reaches(56, 0x1000 | signal.SIGCHLD, 0, 0, 0, 0))


@attempt("a wake for each page of the output", HOST_DOS, SECCOMP)
def _(w):
    import fcntl

    return fcntl.fcntl(1, 1031, 4096)


# Not every file system can do it.
attempt("the host's disk, past its memory", HOST_DOS, SECCOMP, sure=False)(
    lambda w: [os.open(os.__file__, os.O_RDONLY | os.O_DIRECT)]
)


@attempt("the host's disk, past its memory (later)", HOST_DOS, SECCOMP, sure=False)
def _(w):
    import fcntl

    return fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), fcntl.F_SETFL, os.O_DIRECT) == 0


# What can only be read lies on the host's disk, which flushes each time.
attempt("flush the host's disk", HOST_DOS, SECCOMP)(lambda w: _is_made(74, -1))
attempt("flush the host's disk (data alone)", HOST_DOS, SECCOMP)(lambda w: _is_made(75, -1))
attempt("flush the host's disk (a mapping)", HOST_DOS, SECCOMP)(lambda w: _is_made(26, 0, 4096, 4))


def _advise(advice):
    import mmap

    with open(os.__file__, "rb") as file:
        return mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, prot=mmap.PROT_READ).madvise(advice) is None


# Whether the kernel can do the first, and does the other for files of others, is its own matter.
attempt("see what others have in memory (merged pages)", LATERAL, SECCOMP, sure=False)(lambda w: _advise(12))
attempt("a file that all read, out of memory (its mapping)", PEER_DOS, SECCOMP)(lambda w: _advise(21))


@attempt("make whoever closes a socket wait", PEER_DOS, SECCOMP)
def _(w):
    one, _other = socket.socketpair()
    return one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100_000)) is None


# === more than there is ===


@attempt("more files open than 1024", HOST_DOS, RESOURCE_LIMITS)
def _(w):
    return [os.dup(0) for _ in range(1100)]


@attempt("an address space without end", HOST_DOS, RESOURCE_LIMITS)
def _(w):
    import mmap

    return mmap.mmap(-1, 1 << 40, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=0)


@attempt("memory that cannot be swapped", HOST_DOS, RESOURCE_LIMITS, sure=False)
def _(w):
    import mmap

    return mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)


def _fill(files, size):
    made = []
    try:
        for i in range(files):
            made.append("/workspace/fill%d" % i)
            fd = os.open(made[-1], os.O_WRONLY | os.O_CREAT)
            try:
                size and os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        return "%d files of %d bytes" % (files, size)
    finally:
        for path in made:
            os.path.exists(path) and os.unlink(path)


def _one_large_file():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return _fill(1, 40 << 20)


attempt("more disk than 32 MiB", HOST_DOS, DISK_LIMITS)(lambda w: _fill(5, 8 << 20))
attempt("a file of more than 32 MiB", HOST_DOS, DISK_LIMITS, RESOURCE_LIMITS)(lambda w: _one_large_file())
attempt("more files than 1000", HOST_DOS, DISK_LIMITS)(lambda w: _fill(1100, 0))


@attempt("more processes than 32", HOST_DOS, CONTROL_GROUP, RESOURCE_LIMITS)
def _(w):
    pids = []
    try:
        for _ in range(60):
            pid = os.fork()
            if pid == 0:
                time.sleep(SECONDS_MAX)
                os._exit(0)
            pids.append(pid)
        return len(pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


@attempt("a higher limit of my own", SELF_DOS, *ROOT, sure=False)
def _(w):
    import resource

    pending_signals = 11
    soft, hard = resource.getrlimit(pending_signals)
    return call(160, pending_signals, struct.pack("QQ", soft, hard + 1)) == 0 and "raised"


@attempt("not to be the first when memory is short", HOST_DOS, LANDLOCK, *ROOT, sure=False)
def _(w):
    return os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000")

# Files: what is outside, what is not to be written, what is not to be executed, what /proc tells.


@attempt("read a file of the host", HOST_LEAK, OWN_ROOT)
def _(w):
    return os.read(first_open(w["file"], os.O_RDONLY), 100) == w["canary"].encode() and w["canary"]


@attempt("read the host's accounts", HOST_LEAK, OWN_ROOT)
def _(w):
    text = os.read(os.open("/.run/etc/passwd", os.O_RDONLY), 65536)
    return b"daemon:" in text and "accounts"


@attempt("read the host's passwords", HOST_LEAK, OWN_ROOT, OWN_USER, sure=False)
def _(w):
    return os.read(first_open("/etc/shadow", os.O_RDONLY), 10)


@attempt("read the gateway's state", HOST_LEAK, OWN_ROOT, OWN_USER)
def _(w):
    return os.listdir(first_open(w["state"], os.O_RDONLY))


@attempt("list the host's root", HOST_LEAK, OWN_ROOT)
def _(w):
    return "home" in os.listdir("/") + os.listdir("/.run") and "it is there"


@attempt("write a file of the host", INTEGRITY, OWN_ROOT, LANDLOCK)
def _(w):
    return os.write(first_open(w["scratch"], os.O_WRONLY), b"x")


@attempt("make a file on the host", INTEGRITY, OWN_ROOT, LANDLOCK)
def _(w):
    return os.open("/.run" + w["open_directory"] + "/made", os.O_WRONLY | os.O_CREAT, 0o666)


@attempt("connect to a socket file of the host", LATERAL, OWN_ROOT)
def _(w):
    s = socket.socket(socket.AF_UNIX)
    s.connect("/.run" + w["socket_file"])
    return s.recv(100)


@attempt("a control group of the host", HOST_DOS, OWN_ROOT, LANDLOCK, OWN_USER, sure=False)
def _(w):
    return os.open("/.run" + w["group_file"], os.O_WRONLY)


@attempt("the host's kernel settings", HOST_DOS, OWN_ROOT, LANDLOCK, OWN_USER, sure=False)
def _(w):
    return os.open("/.run/proc/sys/kernel/core_pattern", os.O_WRONLY)


for _name, _climb in (
    ("by ..", lambda p: "/" + "../" * 60 + p[1:]),
    ("by .. from the workspace", lambda p: "/workspace/" + "../" * 60 + p[1:]),
    ("by .. from a skill", lambda p: "/skills/given/" + "../" * 60 + p[1:]),
    ("by .. from a blob", lambda p: "/blobs/given/" + "../" * 60 + p[1:]),
    ("by .. from /proc/self/cwd", lambda p: "/proc/self/cwd/" + "../" * 60 + p[1:]),
    ("by the root of /proc/self", lambda p: "/proc/self/root" + p),
    ("by the root of a thread", lambda p: "/proc/thread-self/root" + p),
    ("by /dev/fd", lambda p: "/dev/fd/0/../../.." + p),
    ("by a path of 4095 bytes", lambda p: "/" + "./" * ((4094 - len(p)) // 2) + p[1:]),
    ("by a path of 5000 bytes", lambda p: "/" + "./" * 2500 + p[1:]),
):
    attempt("read a file of the host " + _name, HOST_LEAK, KERNEL)(
        lambda w, climb=_climb: os.read(os.open(climb(w["file"]), os.O_RDONLY), 100)
    )


@attempt("climb out of a directory that moves", ESCAPE, KERNEL)
def _(w):
    os.makedirs("/workspace/m/a/b/c", exist_ok=True)
    os.chdir("/workspace/m/a/b/c")
    os.rename("/workspace/m/a/b", "/workspace/moved")
    return os.read(os.open("../" * 60 + w["file"][1:], os.O_RDONLY), 100)


@attempt("climb from a deep directory", ESCAPE, KERNEL)
def _(w):
    os.chdir("/tmp")
    for _ in range(50):
        os.makedirs("d" * 200, exist_ok=True)
        os.chdir("d" * 200)
    try:
        return os.read(os.open("../" * 200 + w["file"][1:], os.O_RDONLY), 100)
    finally:
        for _ in range(50):
            os.chdir("..")
            os.rmdir("d" * 200)


attempt("a link in the workspace", HOST_LEAK, KERNEL)(
    lambda w: [os.symlink(w["file"], "/workspace/link"), os.read(os.open("/workspace/link", os.O_RDONLY), 100)]
)
attempt("a hard link to a file of the root", INTEGRITY, KERNEL)(lambda w: os.link("/etc/passwd", "/workspace/hard") is None)
attempt("a link of a skill is followed", HOST_LEAK, MOUNT_FLAGS)(lambda w: open("/skills/given/link").read())
attempt("a device of a skill is opened", ESCAPE, MOUNT_FLAGS)(lambda w: os.read(os.open("/skills/given/device", os.O_RDONLY), 1))


def _execute(path):
    return fork(lambda: os.execve(path, [path], {})) == 0 and "it ran"


attempt("execute a program of a skill", ESCAPE, MOUNT_FLAGS, LANDLOCK)(lambda w: _execute("/skills/given/program"))
attempt("execute a set-user-id program of a skill", ESCAPE, MOUNT_FLAGS, LANDLOCK)(lambda w: _execute("/skills/given/setuid"))
for _directory in ("/workspace", "/tmp", "/dev/shm"):

    def _script(w, directory=_directory):
        path = directory + "/script"
        with open(path, "w") as f:
            f.write("#!/usr/bin/python3 -IS\nimport os\nos._exit(0)\n")
        os.chmod(path, 0o755)
        return _execute(path)

    def _program(w, directory=_directory):
        path = directory + "/program"
        with open("/skills/given/program", "rb") as of, open(path, "wb") as f:
            f.write(of.read())
        os.chmod(path, 0o4755)
        return fork(lambda: os.execve(path, [path, "--version"], {})) == 0 and "it ran"

    def _library(w, directory=_directory):
        import mmap

        path = directory + "/library"
        with open("/skills/given/program", "rb") as of, open(path, "wb") as f:
            f.write(of.read())
        with open(path, "rb") as f:
            return mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)

    attempt("execute a script in " + _directory, ESCAPE, MOUNT_FLAGS, LANDLOCK)(_script)
    attempt("execute a program in " + _directory, ESCAPE, MOUNT_FLAGS, LANDLOCK)(_program)
    attempt("map a library of " + _directory, ESCAPE, MOUNT_FLAGS)(_library)
    attempt("another's files in " + _directory, LATERAL, KERNEL)(
        lambda w, d=_directory: [n for n in os.listdir(d) if "neighbour" in n]
    )

for _path in ("/usr/lib/skillgate/bootstrap.py", "/usr/bin/python3", "/etc/passwd", "/etc/hosts"):

    def _(w, path=_path):
        path = os.path.realpath(path)
        mode = stat.S_IMODE(os.stat(path).st_mode)
        os.chmod(path, 0o644)
        try:
            return os.close(os.open(path, os.O_WRONLY)) is None and "open for writing"
        finally:
            os.chmod(path, mode)

    # A set-user-id bit, a date, an owner: landlock knows nothing of them.
    attempt("write to " + _path, INTEGRITY, READ_ONLY_ROOT, LANDLOCK, OWN_USER, sure="python" not in _path)(_)
    attempt("date of " + _path, INTEGRITY, READ_ONLY_ROOT, OWN_USER)(lambda w, p=_path: os.utime(p) is None)
for _directory in ("/", "/usr/lib/skillgate", "/etc", "/dev", "/skills", "/blobs"):
    # Those of mounts are on a read-only one in any case.
    _covers = (KERNEL,) if _directory in ("/skills", "/blobs") else (READ_ONLY_ROOT, LANDLOCK, OWN_USER)
    attempt("make a directory in " + _directory, INTEGRITY, *_covers)(
        lambda w, d=_directory: os.rmdir(d + "/made") if os.mkdir(d + "/made") else "made"
    )
attempt("write to the standard library", INTEGRITY, KERNEL)(lambda w: os.open(os.__file__, os.O_WRONLY))
attempt("write to a skill", INTEGRITY, KERNEL)(lambda w: os.open("/skills/given/open", os.O_WRONLY))
attempt("write to a blob", INTEGRITY, KERNEL)(lambda w: os.open("/blobs/given/open", os.O_WRONLY))
attempt("change the mode of a skill's file", INTEGRITY, KERNEL)(lambda w: os.chmod("/skills/given/open", 0o600) is None)
attempt("remove a file of a skill", INTEGRITY, KERNEL)(lambda w: os.unlink("/skills/given/open") is None)
attempt("a lease on a file of all runs", PEER_DOS, OWN_USER, sure=False)(
    lambda w: __import__("fcntl").fcntl(os.open(os.__file__, os.O_RDONLY), 1024, 0) == 0
)

# What the system tells in /proc.
for _path, _sure in (
    ("cmdline", True), ("cpuinfo", True), ("meminfo", True), ("uptime", True), ("loadavg", True), ("stat", True), ("version", True),
    ("filesystems", True), ("devices", True), ("interrupts", False), ("modules", False), ("kallsyms", False), ("partitions", False),
    ("diskstats", False), ("swaps", False), ("cgroups", False), ("config.gz", False), ("timer_list", False), ("sched_debug", False),
    ("vmallocinfo", False), ("iomem", True), ("keys", False), ("key-users", False), ("locks", False), ("sys/kernel/random/boot_id", True),
    ("sys/kernel/osrelease", True), ("sys/kernel/core_pattern", True), ("sys/kernel/random/entropy_avail", True),
):
    attempt("read /proc/" + _path, HOST_LEAK, HIDDEN_PROC, sure=_sure)(
        lambda w, p=_path: os.read(os.open("/proc/" + p, os.O_RDONLY), 50)
    )
attempt("read /proc/kcore", HOST_LEAK, HIDDEN_PROC, *ROOT, sure=False)(lambda w: os.read(os.open("/proc/kcore", os.O_RDONLY), 4))
attempt("read /proc/kmsg", HOST_LEAK, HIDDEN_PROC, *ROOT, sure=False)(lambda w: os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK))
for _path in ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sysrq-trigger", "sys/vm/drop_caches", "sys/kernel/hostname"):
    # Opened and not written to.
    attempt("write /proc/" + _path, ESCAPE, HIDDEN_PROC, LANDLOCK, OWN_USER, sure=_path.endswith(("core_pattern", "hostname")))(
        lambda w, p=_path: os.open("/proc/" + p, os.O_WRONLY)
    )
for _path in ("comm", "oom_score_adj", "clear_refs", "autogroup", "uid_map", "gid_map", "setgroups", "loginuid"):
    attempt("write /proc/self/" + _path, INTEGRITY, LANDLOCK, UNDUMPABLE, sure=_path in ("comm", "clear_refs"))(
        lambda w, p=_path: os.open("/proc/self/" + p, os.O_WRONLY)
    )
for _path in ("attr/exec", "timerslack_ns"):
    attempt("write /proc/self/" + _path, INTEGRITY, LANDLOCK, sure=False)(lambda w, p=_path: os.open("/proc/self/" + p, os.O_WRONLY))
attempt("write /proc/self/mem", INTEGRITY, LANDLOCK, UNDUMPABLE)(lambda w: os.open("/proc/self/mem", os.O_RDWR))
for _path in ("mem", "maps", "environ", "pagemap", "smaps", "auxv", "stack", "io", "syscall"):
    attempt("read /proc/1/" + _path, INTERNAL, UNDUMPABLE, sure=_path in ("maps", "environ", "auxv"))(
        lambda w, p=_path: (os.read(os.open("/proc/1/" + p, os.O_RDONLY), 10), "read")[1]
    )
for _path in ("exe", "cwd", "root", "ns/mnt"):
    attempt("follow /proc/1/" + _path, INTERNAL, UNDUMPABLE)(lambda w, p=_path: os.readlink("/proc/1/" + p))
attempt("see init's descriptors", INTERNAL, UNDUMPABLE)(lambda w: os.readlink("/proc/1/fd/0"))
attempt("read the interpreter's program", HOST_LEAK, UNDUMPABLE)(
    lambda w: os.open(os.path.realpath("/usr/bin/python3"), os.O_RDONLY)
)
attempt("the host's groups in /proc/self/cgroup", HOST_LEAK, CGROUP_NAMESPACE)(
    lambda w: "skillgate-" in open("/proc/self/cgroup").read() and "names of groups"
)
attempt("the host's directories in /proc/self/mountinfo", HOST_LEAK, known="the kernel names the source of every mount")(
    lambda w: os.path.dirname(w["file"]) in open("/proc/self/mountinfo").read() and "a path of the host"
)
for _name in ("kmsg", "mem", "port", "kvm", "fuse", "net/tun", "vsock", "ptmx", "tty", "console", "loop-control", "snapshot", "mqueue"):
    attempt("open /dev/" + _name, ESCAPE, KERNEL)(lambda w, n=_name: os.open("/dev/" + n, os.O_RDONLY))
attempt("open /sys", HOST_LEAK, KERNEL)(lambda w: os.listdir("/sys"))

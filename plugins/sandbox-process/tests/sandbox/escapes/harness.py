"""The attempts of the other files of this directory are appended to this text and run inside a sandbox.

An attempt is a function of the world (`w`: what the test has put outside, see `world.rs`). It returns what it has got, in a
few words, or nothing, or it raises OSError. It may be killed for it, or change its process: the next one then has another.
`covers` names every guard that stops it by itself: with any of them in place it fails, with all of them left out it succeeds.
"""

import ctypes
import errno
import json
import os
import select
import signal
import socket
import stat
import struct
import time

# What an attempt is after.
ESCAPE, HOST_LEAK, EXFIL, LATERAL = "Escape", "HostLeak", "Exfil", "Lateral"
HOST_DOS, PEER_DOS, SELF_DOS, INTEGRITY, INTERNAL = "HostDoS", "PeerDoS", "SelfDoS", "Integrity", "InternalRead"

OWN_ROOT, READ_ONLY_ROOT, MOUNT_FLAGS, HIDDEN_PROC = "OwnRoot", "ReadOnlyRoot", "MountFlags", "HiddenProc"
PID_NAMESPACE, NET_NAMESPACE, IPC_NAMESPACE = "PidNamespace", "NetNamespace", "IpcNamespace"
UTS_NAMESPACE, CGROUP_NAMESPACE, USER_NAMESPACE = "UtsNamespace", "CgroupNamespace", "UserNamespace"
OWN_USER, CAPABILITIES, SECCOMP, LANDLOCK = "OwnUser", "Capabilities", "Seccomp", "Landlock"
CONTROL_GROUP, RESOURCE_LIMITS, DISK_LIMITS = "ControlGroup", "ResourceLimits", "DiskLimits"
DESCRIPTORS, UNDUMPABLE = "Descriptors", "Undumpable"
# Not a guard of ours: a rule of the kernel that is always there.
KERNEL = "Kernel"
# Closed by executing the interpreter; a forked one has executed nothing.
EXECUTION = "Execution"
# To be root, and to be it outside: nobody is who lacks one of the first three, whatever the call.
ROOT = (CAPABILITIES, USER_NAMESPACE, OWN_USER)

ATTEMPTS = {}
STOPPED_BY = (OSError, MemoryError)
# How long one may take. Nothing that is stopped takes any time; on a busy host all else may.
SECONDS_MAX = 20


def attempt(name, kind, *covers, sure=True, known=None):
    """`sure=False`: kernels differ, or it cannot be seen to succeed. `known`: it succeeds, and why that is accepted."""

    def keep(function):
        assert name not in ATTEMPTS, name
        ATTEMPTS[name] = (function, {"kind": kind, "covers": covers, "sure": sure, "known": known})
        return function

    return keep


LIBC = ctypes.CDLL(None, use_errno=True)

IS_AARCH64 = os.uname().machine == "aarch64"
# System calls are named by their numbers on x86-64. These are others on aarch64 (asm-generic/unistd.h); from 424 on they are
# the same everywhere.
ON_AARCH64 = {
    9: 222, 16: 29, 26: 227, 27: 232, 29: 194, 31: 195, 41: 198, 53: 199, 55: 209, 56: 220, 64: 190, 68: 186, 74: 82,
    75: 83, 101: 117, 103: 116, 116: 159, 117: 147, 119: 149, 122: 151, 126: 91, 129: 138, 135: 92, 141: 140, 144: 119,
    153: 58, 155: 41, 157: 167, 159: 171, 160: 164, 161: 51, 163: 89, 164: 170, 165: 40, 166: 39, 167: 224, 168: 225,
    169: 142, 170: 161, 171: 162, 175: 105, 176: 106, 179: 60, 203: 122, 206: 0, 212: 18, 222: 107, 227: 112, 237: 235,
    238: 237, 240: 180, 241: 181, 246: 104, 248: 217, 249: 218, 250: 219, 251: 30, 256: 238, 259: 33, 272: 97, 275: 76,
    276: 77, 278: 75, 279: 239, 283: 85, 289: 74, 298: 241, 300: 262, 302: 261, 303: 264, 304: 265, 305: 266, 308: 268,
    310: 270, 311: 271, 312: 272, 313: 273, 314: 274, 317: 277, 319: 279, 320: 294, 321: 280, 322: 281, 323: 282,
    325: 284, 327: 286, 330: 289,
}


def is_here(number):
    """Whether this machine has that system call at all."""
    return not IS_AARCH64 or number >= 424 or number in ON_AARCH64


def call(number, *args):
    """A system call by its number on x86-64. Fails with OSError."""
    number = ON_AARCH64.get(number, number) if IS_AARCH64 else number
    ctypes.set_errno(0)
    words = [a if isinstance(a, (ctypes.Array, ctypes.c_char_p, bytes)) else ctypes.c_long(a) for a in args]
    words += [ctypes.c_long(0)] * (6 - len(words))
    result = LIBC.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), errno.errorcode.get(ctypes.get_errno(), "?"))
    return result


def reaches(number, *args):
    """Whether the kernel looks at the arguments of a call: any answer but a plain no is one."""
    try:
        call(number, *args)
    except OSError as e:
        return None if e.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES) else "it answers " + errno.errorcode[e.errno]
    return "it works"


def fork(function):
    """Runs something in another process: its exit code, or minus its signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = function() or 0
        except STOPPED_BY:
            code = 1
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


def with_child(function):
    """Gives the process id of a sleeping child."""
    ready, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(say, b"x")
        time.sleep(SECONDS_MAX)
        os._exit(0)
    try:
        os.read(ready, 1)
        return function(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def outside_paths(path):
    """Where a file of the host might be found from in here."""
    up = "../" * 40
    yield from (path, "/.run" + path, "/proc/1/root" + path, "/workspace/" + up + path.lstrip("/"))


def first_open(path, flags):
    """A descriptor of a file of the host."""
    last = OSError(errno.ENOENT, "no way there")
    for candidate in outside_paths(path):
        try:
            return os.open(candidate, flags)
        except FileNotFoundError:
            continue
        except OSError as e:
            last = e
    raise last


def judge(function, w):
    """["got" | "stopped" | "broken", what]"""
    try:
        got = function(w)
        return ["got" if got else "stopped", str(got or "nothing")[:200]]
    except STOPPED_BY as e:
        return ["stopped", errno.errorcode.get(getattr(e, "errno", None), type(e).__name__)]
    except BaseException as e:  # a mistake of the attempt's must not pass for a guard that works
        return ["broken", repr(e)[:200]]


def open_fds():
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    # Without the one that has listed them.
    return {fd for fd in listed if os.path.lexists("/proc/self/fd/%d" % fd)}


def series(names, w, say):
    """Attempts one after the other, until one succeeds: what got nothing has changed nothing for the next."""
    os.setsid()
    mine = open_fds()
    for name in names:
        outcome = judge(ATTEMPTS[name][0], w)
        os.write(say, (json.dumps([name] + outcome) + "\n").encode())
        if outcome[0] != "stopped":
            break
        for fd in open_fds() - mine:
            os.close(fd)
    os._exit(0)


def lines(heard):
    """What is said, until its end or until nothing was said for too long."""
    text = b""
    while select.select([heard], [], [], SECONDS_MAX)[0]:
        data = os.read(heard, 65536)
        if not data:
            break
        text += data
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def attempt_all(w):
    outcomes = {}
    left = list(ATTEMPTS)
    while left:
        heard, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(heard)
            series(left, w, say)
        os.close(say)
        said = lines(heard)
        outcomes.update((name, [word, what]) for name, word, what in said)
        os.close(heard)
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # it has changed who it is; it ends by itself
        status = os.waitpid(pid, 0)[1]
        left = [name for name in left if name not in outcomes]
        if left and (not said or said[-1][1] == "stopped"):
            # It ended in the middle of the next one.
            outcomes[left.pop(0)] = ["stopped", "status %d" % status]
    return outcomes


def main(args):
    if args.get("list"):
        return {name: about for name, (_, about) in ATTEMPTS.items()}
    return attempt_all(args["world"])



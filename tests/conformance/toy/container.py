"""An ordinary container, imagined: what a probe of the cases would find there, without one.

The user is 1000 and the group 0, as some platforms have it, and nothing can be written but `/workspace`, where the run
begins in a directory of its own.
"""

import builtins
import posixpath
import types

CWD = "/workspace/x"


def refuse(*_):
    raise PermissionError(1, "not permitted")


def become_group(gid):
    """The kernel grants a process the group that it is in."""
    if gid != 0:
        refuse()


def resolve(path):
    return posixpath.normpath(posixpath.join(CWD, path))


def write(path, *_):
    if resolve(path) == "/workspace" or resolve(path).startswith("/workspace/"):
        return open("/dev/null", "r+b")
    raise PermissionError(13, "not permitted", path)


PATH = types.SimpleNamespace(join=posixpath.join, dirname=posixpath.dirname, realpath=resolve)
OS = types.SimpleNamespace(path=PATH, mkdir=write, getgid=lambda: 0, setuid=refuse, setgid=become_group, setreuid=refuse,
                           setgroups=refuse, chroot=refuse, nice=refuse, mknod=refuse, __file__="/usr/lib/python3/os.py")
MODULES = {"os": OS, "sys": types.SimpleNamespace(executable="/usr/bin/python3"),
           "socket": types.SimpleNamespace(sethostname=refuse)}


def probed(code, args):
    """What `main` of the code says there."""
    inside = {"__builtins__": dict(vars(builtins), open=write, __import__=lambda name, *_: MODULES[name])}
    exec(compile(code, "code.py", "exec"), inside)
    return inside["main"](args)

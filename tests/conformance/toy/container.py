"""An ordinary container, imagined: what a probe of the cases would find there, without one.

The user is 1000 and the group 0, as some platforms have it, and nothing can be written but `/workspace`, where the run
begins in a directory of its own.
"""

import builtins
import posixpath
import types

CWD = "/workspace/x"
# What probes say in a container that somebody else would make.
SAYS = {"uid": 1000, "euid": 1000, "gid": 0, "groups": [0], "pids": 12, "reached": [], "file": "/app/skill.py", "data": "mine",
        "wrote": False, "cwd": "/app", "before": ["main.py"], "text": "é", "here": False, "seen": [], "ours": ["/var/lib/dpkg"],
        "env": ["GPG_KEY"], "secret": [], "in-proc": False, "value": False, "runs": 1, "there": 2, "first": "---\n",
        "phrases": "# Phrases\n\nGrüß Gott\n",
        "files": ["SKILL.md", "__init__.py", "resources/deep/er/data.json", "resources/phrases.md", "skill.toml"]}
# And in one that is as tight but for one place. The last two are `probed`'s.
HOLES = {"hole-root": {"uid": 0}, "hole-processes": {"reached": [1]}, "hole-files": {"seen": ["/etc/shadow"]},
         "hole-environment": {"secret": ["API_KEY"]}, "hole-skill": {"wrote": True}, "hole-neighbours": {"runs": 2},
         "hole-become-root": {}, "hole-writes": {}}
# What this container does not keep from its runs: `hole-become-root` or `hole-writes`.
hole = None


def refuse(*_):
    raise PermissionError(1, "not permitted")


def become_group(gid):
    """The kernel grants a process the group that it is in."""
    if gid != 0:
        refuse()


def resolve(path):
    return posixpath.normpath(posixpath.join(CWD, path))


def become_user(uid):
    if hole != "hole-become-root":
        refuse()


def write(path, *_):
    if hole == "hole-writes" or resolve(path) == "/workspace" or resolve(path).startswith("/workspace/"):
        return open("/dev/null", "r+b")
    raise PermissionError(13, "not permitted", path)


PATH = types.SimpleNamespace(join=posixpath.join, dirname=posixpath.dirname, realpath=resolve)
OS = types.SimpleNamespace(path=PATH, mkdir=write, getgid=lambda: 0, setuid=become_user, setgid=become_group, setreuid=refuse,
                           setgroups=refuse, chroot=refuse, nice=refuse, mknod=refuse, __file__="/usr/lib/python3/os.py")
MODULES = {"os": OS, "sys": types.SimpleNamespace(executable="/usr/bin/python3"),
           "socket": types.SimpleNamespace(sethostname=refuse)}


def probed(code, args):
    """What `main` of the code says there."""
    inside = {"__builtins__": dict(vars(builtins), open=write, __import__=lambda name, *_: MODULES[name])}
    exec(compile(code, "code.py", "exec"), inside)
    return inside["main"](args)

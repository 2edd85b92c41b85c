"""What `os` says of the machine, where a run has another one."""

from __future__ import annotations

import os

from . import hints, state
import runtime.log

_SHELL = "/bin/sh"
_NO_PROGRAM = 127 << 8
_system = os.system


def install() -> None:
    _put("system", _system_that_says_why)
    for name in ("cpu_count", "process_cpu_count"):  # the second since Python 3.13
        if hasattr(os, name):
            _put(name, _at_most_the_runs(getattr(os, name)))


def _put(name, function) -> None:
    function.__module__, function.__name__, function.__qualname__ = "os", name, name  # where pickle looks for it
    setattr(os, name, function)


def _system_that_says_why(command):
    """`os.system`. Without a shell it gives a number and no word: it is the shell that would say what is wrong."""
    status = _system(command)
    if status == _NO_PROGRAM and not os.path.exists(_SHELL):
        runtime.log.warning("os.system: " + hints.NO_SHELL)
    return status


def _at_most_the_runs(count):
    """A run is given some of the processors: who divides work by their number is to make no more parts of it."""

    def cpu_count():
        found, run = count(), state.current
        given = run and run.job["processors"]
        return min(found, given) if found and given else found

    return cpu_count

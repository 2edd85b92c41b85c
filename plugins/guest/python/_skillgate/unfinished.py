"""What the code has begun and not waited for when its function has returned: it is ended with the run.

Counted is what Python would wait for at the end of a program: threads and `multiprocessing`'s processes that are not daemons.
Of executors it is what they still have to do: one that was left open and has nothing to do loses nothing. What is read here may
be of the code's own making: what is called is Python's, and all of it may fail.
"""

from __future__ import annotations

import os
import sys
from _thread import _count as _threads_started
from _thread import get_ident
from time import sleep
from types import ModuleType
from typing import Iterator, Tuple

from .text import one_line

_EXECUTOR = os.path.join(os.path.dirname(os.__file__), "concurrent", "futures", "thread.py")
# One that has told the function that it is done has a few lines to go.
_LOOKS = 10
_LOOK_S = 0.001

_frames = sys._current_frames
_waitpid = os.waitpid
_kill = os.kill
_own = object.__getattribute__


def warning(function: str) -> str:
    """A sentence for the log; none when there is nothing to say, as in most runs."""
    if not _threads_started() and "multiprocessing.process" not in sys.modules:
        return ""
    threads, processes = counted()
    for _ in range(_LOOKS):
        if not threads and not processes:
            return ""
        sleep(_LOOK_S)
        threads, processes = counted()
    if not threads and not processes:
        return ""
    found = [_number(threads, "thread", "threads")] * bool(threads) + [_number(processes, "process", "processes")] * bool(processes)
    is_one = threads + processes == 1
    return "%s still worked when %s() returned and %s ended with the run: join() or end %s first" % (
        " and ".join(found),
        one_line(function, 80),
        "was" if is_one else "were",
        "it" if is_one else "them",
    )


def counted() -> Tuple[int, int]:
    """How many threads, and how many processes."""
    threads = processes = 0
    idle = set()
    if _threads_started() and "threading" in sys.modules:
        manager = _variables("concurrent.futures.process").get("_ExecutorManagerThread")
        for thread, frame in _threads():
            own = _own(thread, "__dict__")
            if type(thread) is manager:
                if not own["pending_work_items"]:
                    idle.update(own["processes"])
            # `run` has taken out what it was to call when it is done with it.
            elif own["_daemonic"] is False and "_target" in own and not _waits_for_work(frame):
                threads += 1
    if "multiprocessing.process" in sys.modules:
        children = _variables("multiprocessing.process").get("_children")
        if type(children) is set and children:
            processes = sum(pid not in idle and _is_alive(pid) for pid in _pids(children.copy()))
    return threads, processes


def _threads() -> Iterator[tuple]:
    """All but the one that asks, each with what it executes."""
    names, frames = _variables("threading"), _frames()
    active = names.get("_active")
    for ident, thread in active.copy().items() if type(active) is dict else ():
        # The main thread is under another's number where that has imported `threading` first.
        if type(ident) is int and ident != get_ident() and thread is not names.get("_main_thread") and ident in frames:
            yield thread, frames[ident]


def _waits_for_work(frame) -> bool:
    """Whether it is an executor's thread that has none."""
    if frame.f_code.co_name != "_worker" or frame.f_code.co_filename != _EXECUTOR:
        return False
    queue = frame.f_locals.get("work_queue")
    return type(queue) is _variables("_queue").get("SimpleQueue") and queue.empty()


def _pids(processes: set) -> Iterator[int]:
    ended = set(map(id, _finalized()))
    for process in processes:
        if id(process) in ended:
            continue
        own = _own(process, "__dict__")
        pid = _own(own["_popen"], "__dict__")["pid"]
        if not own["_config"].get("daemon") and type(pid) is int and pid > 0:
            yield pid


def _finalized() -> Iterator[object]:
    """What Python itself ends at the end of a program, before it waits for any process: a `Manager`'s server, for one."""
    finalizers = _variables("multiprocessing.util").get("_finalizer_registry")
    for key, finalizer in finalizers.copy().items() if type(finalizers) is dict else ():
        # The first of the two is its priority, or None: then nobody ends it at the end.
        if type(key) is tuple and type(key[0]) is int and key[0] >= 0:
            args = _own(finalizer, "__dict__")["_args"]
            yield from args if type(args) is tuple else ()


def _is_alive(pid: int) -> bool:
    try:
        return _waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        pass  # it has been waited for, or is another process's child: `forkserver`'s
    try:
        _kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _variables(name: str) -> dict:
    module = sys.modules.get(name)
    return module.__dict__ if type(module) is ModuleType else {}


def _number(count: int, one: str, more: str) -> str:
    return "%d %s" % (count, one if count == 1 else more)

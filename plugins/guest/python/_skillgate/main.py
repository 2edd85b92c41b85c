"""One run, from the job frame to the result frame."""

from __future__ import annotations

import builtins
import gc
import importlib
import linecache
import marshal
import os
import sys
import time
from io import StringIO
from json import dumps as _dumps
from types import FunctionType, ModuleType
from typing import Optional

from . import compiled, failure, imports, left, library, loading, machine, memory, state, unfinished
from .channel import Channel, ChannelLost
from .failure import EntrypointNotFound
from .state import Layout
from .strict_json import Encoder, dumps
from .text import one_line, plain, type_name

import runtime.blobs
import runtime.log
import runtime.run

CODE_MODULE = "run_code"
SUMMARY_CHARS_MAX = 1000
_INLINE_BYTES_MAX = 1024 * 1024
_EXIT_LOST_CHANNEL = 70
_LINGER_S = 0.1
_FUNCTIONS_LISTED_MAX = 10
_RECURSION_LIMIT = 1000
# Given back before a failure is described: after a MemoryError there may be nothing else to work with.
_RESERVE_BYTES = 256 * 1024

# Bound now, so that what the code does to `os`, `sys` and `importlib` does not reach the way out.
_exit = os._exit
_sleep = time.sleep
_write = os.write
_recursion_limit, _set_recursion_limit = sys.getrecursionlimit, sys.setrecursionlimit
# Kept, since to free them is to write where nothing of a run is.
_first_argv, _first_main = sys.argv, sys.modules["__main__"]


def _help(*args, **named):
    """`help`, which imports nothing before it is called."""
    import pydoc

    return pydoc.help(*args, **named)


# Scripts end by the first two. An interpreter has them from the module `site`, which also looks for packages, and is left out.
builtins.exit = builtins.quit = sys.exit
builtins.help = _help
machine.install()
library.install()

_DEFAULT_ENV = {"HOME": "/workspace", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"}
# What `os.environ` holds: to ask itself takes some calls of Python code for each variable.
_environment = dict(os.environ)

# Encoding, errors and line buffering of what the code prints to.
_STREAMS = ("utf-8", "backslashreplace", True)

# The skill beside this file that a rehearsal runs, and the code.
_REHEARSAL = "rehearsal"
_REHEARSED_ID = b"run_%032d"
_MADE_ID = _REHEARSED_ID % 0
_REHEARSED = "def main(args):\n    print('hello', args['name'])\n    return {'hello': args['name'], 'n': [1, 2.5, None]}\n"
# Both, once they are known: the layout and the job as it is sent.
_rehearsals = []
_rehearsed = 0

# The result when even making one fails.
_NO_MEMORY = (
    b'{"status":"failed","spilled":false,"summary":null,'
    b'"error":{"type":"MemoryError","message":"MemoryError: no memory left to describe the failure"}}'
)


def warm(modules=()) -> None:
    """For an interpreter from which runs are forked: touches what a run would touch first, imports `modules` (of
    the standard library), and leaves no state that one run could see of another."""
    global _environment
    for name in modules:
        importlib.import_module(name)
    _environment = dict(os.environ)  # with what those modules have changed
    # It has tried here what it can use, and runs may not have all of that.
    selectors = sys.modules.get("selectors")
    if selectors and hasattr(selectors, "PollSelector"):
        selectors.DefaultSelector = selectors.PollSelector
    imports.change_loaded()
    imports.copy_builtins()
    names = {}
    exec(loading.compile_source("def main(args):\n    return {'a': [1, 2.5, None, 'é']}\n", "<warm>"), names)
    Encoder(len, 4096).encode(names["main"]({}))
    try:
        raise ValueError("warm")
    except ValueError as exc:
        failure.describe(exc, "main")
    gc.collect()
    memory.fill_gaps()
    gc.freeze()  # what is there now stays in pages that the children share


def rehearse(fd: int, peer: int, layout: Layout = Layout(), times: int = 1, skill: bool = True) -> None:
    """Does a run of code and one of a skill that do nothing, over the two ends of a socket, and takes back all that a run
    would find of them. In a forked interpreter that has time, once: the real run then meets few pages for the first time.
    In the one that is forked from, more times: the code of what runs do is moved to few pages and specialised there, and
    the forks neither do that again nor write to other pages for it. Without `skill` it is the run of code alone, which does
    what every run does. Closes both descriptors."""
    global _rehearsed
    gc.enable()
    if not _rehearsals:
        _settle(layout)
        _rehearsals.extend(_make_rehearsals(layout))
    # As in a run the C library has not had this value in its environment before: it keeps them all.
    now = _REHEARSED_ID % _rehearsed
    _rehearsed += 1

    def once():
        for place, frames in _rehearsals if skill else _rehearsals[:1]:
            _rehearse_once(fd, peer, place, frames.replace(_MADE_ID, now))

    for at in range(times):
        if at == 1:  # the first has done what no other does
            memory.bring_together(once, serve)  # which calls the same
        else:
            once()
    os.close(fd)
    os.close(peer)
    gc.disable()


def _make_rehearsals(layout: Layout):
    """The jobs of both, of the same shape as any other: what has another length is put where no page was touched."""
    beside = layout._replace(skills=os.path.dirname(__file__))
    skill = {"name": _REHEARSAL, "version": "0.1.0", "entrypoint": "main.py", "function": "main"}
    file = imports.entry_file(beside.skills, skill)
    with open(file, "rb") as opened:
        source = opened.read()
    made = source, marshal.dumps(loading.compile_source(source, file))
    index = [(file, *map(len, made))]
    made_id = _MADE_ID.decode("ascii")
    of_code, of_skill = (layout, _REHEARSED, None, (), (), ()), (beside, None, _REHEARSAL, [skill], index, made)
    for place, code, name, skills, index, made in of_code, of_skill:
        job = {
            "run_id": made_id,
            "timeout_ms": 60000,
            "deadline_ns": time.monotonic_ns() + 60_000_000_000,
            "code": code,
            "skill": name,
            "function": "main",
            "args": {"name": "x"},
            "skills": skills,
            "blobs": [],
            "env": {**_environment, "TMPDIR": layout.tmp, "SKILLGATE_RUN_ID": made_id},
            "secrets": {},
            "output_bytes": 4096,
            "processors": 1,
            "compile": False,
            "compiled": index,
        }
        frames = [b"J" + _dumps(job).encode("utf-8")]
        if index:
            frames.append(b"K" + b"".join(made))
        yield place, b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)


def _rehearse_once(fd: int, peer: int, layout: Layout, frames: bytes) -> None:
    # Nothing here goes through what there is many of, the modules above all: to look at an object is to write to its page.
    environment = _environment.copy()
    # What a run takes up beyond this: an object each of sizes that are rare, for which CPython begins new pages, and one that
    # comes from the C library.
    room = [bytes(n) for n in (256, 400, 416, 432, 3000)]  # noqa: F841  (that it is taken up is its use)
    _write(peer, frames)
    argv, import_module = sys.argv, importlib.import_module
    modules, main = len(sys.modules), sys.modules["__main__"]
    channel = Channel(fd)
    _finish(channel, _answer(channel, layout, []))
    _unfinished(state.current)  # and not said: what there may be is not a run's
    file = code_file()
    if file in linecache.cache:  # it was one of code
        del linecache.cache[file]
        try:
            os.unlink(file)
        except OSError:
            pass  # where nothing can be written there was nothing written
    stay = []
    while len(sys.modules) > modules:  # the last is the first to be taken out
        name, module = sys.modules.popitem()
        if name != CODE_MODULE and name.partition(".")[0] != imports.PACKAGE:
            stay.append((name, module))
    sys.modules.update(reversed(stay))
    sys.modules["__main__"] = main
    sys.argv, importlib.import_module = argv, import_module
    del sys.meta_path[0]  # the finder
    _set_environment(environment)
    state.current = None
    compiled.forget()
    runtime.run._begin("", None, None)
    runtime.run.deadline = runtime.run._ends = None


def refresh_randomness() -> None:
    """Makes this process's randomness its own. A forked interpreter inherits generators' state, and OpenSSL takes
    no notice of a fork between processes that have the same pid in different namespaces."""
    loaded = sys.modules.get
    if loaded("random"):
        loaded("random").seed()
    if loaded("ssl"):
        loaded("ssl").RAND_add(os.urandom(48), 48.0)
    if loaded("tempfile"):
        loaded("tempfile")._name_sequence = None
        loaded("tempfile").tempdir = None
    if loaded("uuid"):
        loaded("uuid")._node = None
        loaded("uuid")._last_timestamp = None
    if loaded("multiprocessing.process"):
        loaded("multiprocessing.process").current_process().authkey = os.urandom(32)


def prepare(fd: int, layout: Layout = Layout(), settled: bool = False) -> list:
    """What can be done before there is a job in `fd`, in the process that will serve it: for `serve`, which takes it out.
    `settled`: it has been forked from one that has rehearsed, is in its workspace, and no program that it starts gets `fd`,
    where reading waits."""
    refresh_randomness()
    if not settled:
        _settle(layout)
        os.set_inheritable(fd, False)
        os.set_blocking(fd, True)
    reserve = bytes(_RESERVE_BYTES)  # room, and no page of it touched
    return [Channel(fd), reserve]


def serve(prepared: list, layout: Layout = Layout(), lingers: bool = False) -> None:
    """Reads the job, runs it, sends the result and ends the process. Does not return. `lingers`: somebody else ends it, who
    knows when the processor has nothing better to do; it waits a while for that."""
    gc.enable()
    channel, reserve = prepared
    del prepared[:]
    begun = []
    try:
        result = _answer(channel, layout, begun)
        text = _unfinished(begun[0])
        if text:
            _warn(text)
    except ChannelLost as exc:
        _lost(exc)
    except BaseException as exc:  # SystemExit and KeyboardInterrupt are failures of the run like any other
        del reserve
        if not channel.is_owner:
            _end_child(exc)
        result = _failed(begun[0] if begun else None, exc)
    try:
        _finish(channel, result)
    except BaseException as exc:
        _lost(exc)
    try:
        if lingers:
            _sleep(_LINGER_S)
    finally:
        # Not sys.exit: threads, exit handlers and destructors of the code do not hold the answer.
        _exit(0)


def _answer(channel: Channel, layout: Layout, begun: list) -> bytes:
    """From the job to the result of a run that does not fail. `begun` gets the run as soon as there is one."""
    job = channel.receive_job()
    run = _prepare(job, channel, layout)
    begun.append(run)
    value = _execute(job, layout)
    _check_owner(channel)
    if run.job["code"] is not None:
        left.warn_of_files(run, code_file())
    _set_recursion_limit(max(_RECURSION_LIMIT, _recursion_limit()))
    return _completed(run, value, min(int(job.get("output_bytes", 4096)), _INLINE_BYTES_MAX))


def _finish(channel: Channel, result: bytes) -> None:
    _flush()
    channel.finish(result)


# -- before -------------------------------------------------------------------------------------------------------


def _set_environment(wanted: dict) -> None:
    """What is there already is left alone: each change is one of C's too."""
    for name in list(_environment):
        if name not in wanted:
            del os.environ[name], _environment[name]
    for name, value in wanted.items():
        if _environment.get(name) != value:
            os.environ[name] = _environment[name] = value


def _settle(layout: Layout) -> None:
    """What is the same for every run."""
    try:
        os.chdir(layout.workspace)  # a forked interpreter comes with its launcher's directory
    except FileNotFoundError:
        pass  # a sandbox that names its workspace otherwise has set the directory itself
    sys.dont_write_bytecode = True
    set_streams()


def set_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        # By lines, so that stdout and stderr keep their order in the one pipe that both are.
        if (stream.encoding, stream.errors, stream.line_buffering) != _STREAMS:
            stream.reconfigure(encoding=_STREAMS[0], errors=_STREAMS[1], line_buffering=_STREAMS[2])


def _prepare(job: dict, channel: Channel, layout: Layout) -> state.Run:
    _set_environment({**_DEFAULT_ENV, **(job.get("env") or {}), **(job.get("secrets") or {})})
    run = state.Run(channel, layout, job)
    state.current = run
    if job.get("compiled"):
        compiled.keep(job["compiled"], channel.receive_code())
    runtime.run._begin(job["run_id"], job.get("timeout_ms"), job.get("args"), job.get("deadline_ns"))
    return run


# -- the code -----------------------------------------------------------------------------------------------------


def _execute(job: dict, layout: Layout):
    """Loads the code or the skill, calls its function and gives what it returned, awaited. For a job that says `compile`
    the skill is not loaded: what is given is its code, for the jobs of later runs."""
    if job.get("compile"):
        return compiled.make(_entry_file(job, layout), loading.compile_source)
    of_code = job.get("code") is not None
    finder = imports.install(job.get("skills") or (), layout.skills, untouched=not of_code)
    module = _load_code(job["code"]) if of_code else _load_skill(job, layout, finder)
    function = _find_function(module, job["function"], job["code"] if of_code else "")
    value = function(runtime.run.args)
    return _await(value) if _is_awaitable(value) else value


def code_file() -> str:
    return "%s/%s.py" % (_environment["TMPDIR"], CODE_MODULE)


def _load_code(code: str) -> ModuleType:
    """Saves the code as a temporary module and imports it."""
    path = code_file()
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            _write_all(file, code.encode("utf-8"))
        finally:
            os.close(file)
    except OSError:
        pass  # a full or missing directory: tracebacks have the text below
    return module_of_code(code, path)


def module_of_code(code: str, path: str) -> ModuleType:
    code = code.lstrip("\ufeff")  # in the lines, too: no compiler takes a part of them with it
    # The lines as Python counts them: `splitlines` would end some at characters like \x0c and \u2028 too.
    lines = StringIO(code, None).readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"  # as linecache does with a file's: traceback counts on it
    # No time of change (None): the text stays, whatever the code does to the file.
    linecache.cache[path] = (len(code), None, lines, path)
    sys.argv = [path]
    module = ModuleType(CODE_MODULE)
    module.__file__ = path
    # Under the second name `unittest.main`, `doctest.testmod`, `cProfile.run` and others of the library look for it.
    sys.modules[CODE_MODULE] = sys.modules["__main__"] = module
    exec(loading.compile_source(code, path), module.__dict__)
    return module


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[_write(fd, data) :]


def _load_skill(job: dict, layout: Layout, finder: imports.Finder) -> ModuleType:
    sys.argv = [_entry_file(job, layout)]
    return finder.load_first(imports.module_name(job["skill"]))


def _entry_file(job: dict, layout: Layout) -> str:
    name = job["skill"]
    for skill in job["skills"]:
        if skill["name"] == name:
            break
    file = imports.entry_file(layout.skills, skill)
    if not os.path.isfile(file):
        raise EntrypointNotFound("skill %r has no file %r" % (name, skill["entrypoint"]))
    return file


def _find_function(module: ModuleType, name: str, code: str):
    # The namespace itself: a skill mounted below this one's name must not take the place of its function.
    names = module.__dict__
    function = names.get(name)
    if callable(function):
        return function
    is_code = module.__name__ == CODE_MODULE
    where = "the code" if is_code else names.get("__file__", module.__name__)
    if name in names:
        why = "%r is a %s and not a function" % (one_line(name, 100), one_line(type(function).__name__, 100))
    else:
        why = "there is no function %r" % one_line(name, 100)
    found = [n for n, v in names.items() if type(v) is FunctionType and v.__module__ == module.__name__]
    found = [one_line(n, 100) for n in found if not n.startswith("_")]
    listed = ", ".join(found[:_FUNCTIONS_LISTED_MAX]) or "none"
    if len(found) > _FUNCTIONS_LISTED_MAX:
        listed += ", and %d more" % (len(found) - _FUNCTIONS_LISTED_MAX)
    remedy = "define it, or correct runtime.export in the manifest"
    if is_code:
        done, does = "is done", ""
        if _has_guard(code):
            done, does = "is done, but nothing below `if __name__ == '__main__':`, which is not so in a run", "does that and "
        remedy = "what it does outside of functions %s; write `def main(args):`, which %sreturns the result, or name another as entrypoint"
        remedy %= done, does
    raise EntrypointNotFound("%s in %s; its functions: %s (%s)" % (why, where, listed, remedy))


def _has_guard(code: str) -> bool:
    """Whether it has something that a program does and an import leaves: whoever wrote it believes that it was done."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings(record=True):  # they have been said, of the code that was run
            tests = [ast.dump(node.test) for node in ast.parse(code.lstrip("\ufeff")).body if type(node) is ast.If]
    except Exception:
        return False  # it was compiled, and may be too deep for this
    return any("'__name__'" in test and "'__main__'" in test for test in tests)


def _is_awaitable(value) -> bool:
    return hasattr(type(value), "__await__")


def _await(value):
    """`asyncio.run`, but executor threads that still work do not hold the result."""
    import asyncio

    async def wait():
        return await value

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(wait())
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        # What one was still to put away, and could not.
        failed = [task for task in pending if not task.cancelled() and task.exception() is not None]
        for task in failed:
            message = "a task that was cancelled when main() returned has failed"
            loop.call_exception_handler({"message": message, "exception": task.exception(), "task": task})
        loop.run_until_complete(loop.shutdown_asyncgens())


# -- after --------------------------------------------------------------------------------------------------------


def _completed(run: state.Run, value, inline_bytes: int) -> bytes:
    spill = runtime.blobs._Spill()
    try:
        output = Encoder(spill.write, inline_bytes).encode(value)
    except BaseException:
        spill.abort()
        raise
    if output is None:
        # The last of the run's blobs is its output, whatever its threads still do.
        run.channel.keep()
        spill.commit()
    summary = run.summary
    if summary is None and issubclass(type(value), dict):
        said = dict.get(value, "summary")
        summary = plain(said) if issubclass(type(said), str) else None
    said = b"null" if summary is None else dumps(_short(summary))
    if output is None:
        return b'{"status":"completed","spilled":true,"summary":' + said + b"}"
    return b'{"status":"completed","spilled":false,"summary":' + said + b',"output":' + output + b"}"


def _failed(run: Optional[state.Run], exc: BaseException) -> bytes:
    """The result of one that has failed, with or without having got so far as to be a run."""
    try:
        if issubclass(type(exc), MemoryError):
            failure.release_memory(exc)
        _set_recursion_limit(max(_RECURSION_LIMIT, _recursion_limit()))
        error = failure.describe(exc, "main" if run is None else run.function)
        summary = run.summary if run is not None else None
        result = {"status": "failed", "spilled": False, "summary": _short(summary), "error": error}
        return dumps(result)
    except MemoryError:
        return _NO_MEMORY
    except BaseException:  # something of the exception's that describe did not foresee: its type is still known
        error = {"type": type_name(type(exc)), "message": "%s (it cannot be described)" % type_name(type(exc))}
        result = {"status": "failed", "spilled": False, "summary": None, "error": error}
        return dumps(result)


def _short(summary):
    if summary is None or len(summary) <= SUMMARY_CHARS_MAX:
        return summary
    return summary[: SUMMARY_CHARS_MAX - 1] + "…"


def _unfinished(run: state.Run) -> str:
    try:
        return unfinished.warning(run.function)
    except BaseException:
        return ""  # what is read may be of the code's own making: its result is what it is


def _warn(text: str) -> None:
    try:
        _flush()
        _write(2, ("[warning] %s\n" % text).encode("utf-8"))
    except BaseException:
        pass  # nor does it fail for a descriptor 2 that the code has closed


def _flush() -> None:
    """What the code has printed goes out before the result. It may have closed or replaced the streams."""
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name).flush()
        except BaseException:  # a stream of the code's own making may do anything; its text is then lost
            continue


def _check_owner(channel: Channel) -> None:
    """A child that the code has forked and that came back to here has nothing to report."""
    if not channel.is_owner:
        _flush()
        _exit(0)


def _end_child(exc: BaseException) -> None:
    """Ends a child that the code has forked, as an interpreter ends by this: its parent asks how."""
    status = 1
    try:
        if issubclass(type(exc), SystemExit):
            code = exc.code
            if code is None or type(code) is int:
                status = (code or 0) & 0xFF
            else:
                print(code, file=sys.stderr)
        else:
            import traceback

            traceback.print_exception(type(exc), exc, exc.__traceback__)
    except BaseException:  # what the code has made may not let itself be said
        pass
    _flush()
    _exit(status)


def _lost(exc: BaseException) -> None:
    """Ends a run whose result cannot be sent. The sandbox sees the channel end without one; the log says why."""
    try:
        _flush()
        _write(2, ("[error] the result cannot be sent: %s\n" % one_line(str(exc), 300)).encode("utf-8"))
    except BaseException:
        pass  # descriptor 2 is gone too
    _exit(_EXIT_LOST_CHANNEL)

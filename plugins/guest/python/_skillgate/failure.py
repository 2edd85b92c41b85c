"""A run's failure as a type and a text: the traceback as Python would print it, without our own frames.

Everything here looks at objects that the code made and that may lie, raise, or be huge. So classes are asked at
the level of C, texts are cut, and frames, causes and groups are counted.
"""

from __future__ import annotations

import errno
import importlib
import linecache
import os
import sys
import traceback
from collections import deque
from itertools import islice

from . import state
from .imports import SkillImport, compile_source
from .strict_json import NotSerializable
from .text import cut_middle, one_line, plain, type_name, type_qualname

MESSAGE_BYTES_MAX = 8 * 1024
_TEXT_CHARS_MAX = 6 * 1024
_HEAD_FRAMES, _TAIL_FRAMES = 16, 32
_CHAIN_MAX, _NOTES_MAX = 8, 8
_GROUP_MEMBERS_MAX, _GROUP_DEPTH_MAX = 8, 3
_SOURCE_BYTES_MAX = 4 * 1024 * 1024
_LINE_CHARS_MAX, _REPEATS_SHOWN = 200, 3
_GROUP_END = "+------------------------------------"
# Names to suggest are looked for among so many of so many characters, and not for each exception of groups in groups.
_SUGGESTED_OF_MAX, _SUGGESTED_CHARS_MAX, _SUGGESTED_DEPTH_MAX = 750, 40, 2
_SUGGESTED_LIKE = 0.7

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Of an import that fails, what is between its statement and the error.
_IMPORTING = (_LIBRARY, "<frozen importlib", importlib.__file__)
_STANDARD = os.path.dirname(os.__file__) + os.sep
_SOCKET, _SUBPROCESS, _GETPASS, _UNITTEST, *_COMMAND_LINES = (
    _STANDARD + name + ".py" for name in ("socket", "subprocess", "getpass", "unittest/main", "argparse", "optparse")
)
_GET_VARIABLE = type(os.environ).__getitem__.__code__
_class_dict = type.__dict__["__dict__"].__get__
_Group = getattr(sys.modules["builtins"], "BaseExceptionGroup", None)

_cause = BaseException.__dict__["__cause__"].__get__
_context = BaseException.__dict__["__context__"].__get__
_suppressed = BaseException.__dict__["__suppress_context__"].__get__
_traceback = BaseException.__dict__["__traceback__"].__get__
_errno, _filename, _strerror = (getattr(OSError, name).__get__ for name in ("errno", "filename", "strerror"))
_members = _Group.__dict__["exceptions"].__get__ if _Group else None
_mro = type.__dict__["__mro__"].__get__
# Python 3.9 does not say what was looked for.
_name_of = NameError.name.__get__ if hasattr(NameError, "name") else None
_attribute_of, _object_of = (
    (AttributeError.name.__get__, AttributeError.obj.__get__) if hasattr(AttributeError, "name") else (None, None)
)

_RUNTIME = ("runtime", "runtime.blobs", "runtime.log", "runtime.run")
# The protocol's methods, of which code may think that they are its functions.
_TOOLS = frozenset(
    "create_blob create_skill describe_skill execute_skill list_skills load_skills_protocol_guide read_blob read_skill_file run_code".split()
)
_INSTALLERS = frozenset(("pip", "pip3", "ensurepip", "uv", "conda"))
_READS_BLOBS = (
    'a blob is read by `from runtime import blobs`: blobs.read_text(id), blobs.open(id, "r"), or blobs.path(id) for a file\'s name; '
    "its id must be in input_blobs of the call"
)
_VERSION = "this run has Python %d.%d" % sys.version_info[:2]
NO_SHELL = "a run has no shell and, unless its operator gives it some, no programs but Python: do it in Python"

_ACROSS = {
    "cause": "\nThe above exception was the direct cause of the following exception:\n\n",
    "context": "\nDuring handling of the above exception, another exception occurred:\n\n",
}


class EntrypointNotFound(Exception):
    """The code was loaded and has no such function. Its text is the whole message."""


def describe(exc: BaseException, function: str) -> dict:
    """`{"type", "message"}` of an exception that left the code whose `function` was to be called."""
    kind = type(exc)
    if kind is EntrypointNotFound:
        return {"type": "EntrypointNotFound", "message": _text(exc)}
    if kind is NotSerializable and _is_ours(exc):
        # Made by the check of the returned value: no line of the code has raised it.
        return {"type": "OutputNotSerializable", "message": "the return value is not JSON: " + _text(exc)}
    name = type_name(kind)
    try:
        message = _render(exc, 0).rstrip("\n")
    except BaseException as second:  # the formatter ran out of memory or met something yet unknown
        message = "%s (no traceback: %s while formatting it)" % (name, type_name(type(second)))
    try:
        hint = _hint(exc, kind, function)
    except BaseException:  # the code has put something else in the place of os.environ
        hint = None
    if hint:
        # Before it: the run's summary is the last line that begins with the class, and behind that are the exception's notes and
        # the other lines of its text.
        message = hint + "\n" + message
    return {"type": _known_limit(exc, kind) or name, "message": cut_middle(message, MESSAGE_BYTES_MAX)}


def release_memory(exc: BaseException) -> None:
    """Frees the local variables of the frames that have ended, so that a MemoryError can be reported."""
    trace = _traceback(exc)
    while trace is not None:
        try:
            trace.tb_frame.clear()
        except RuntimeError:
            pass  # a frame that still runs: ours
        trace = trace.tb_next


def _is_ours(exc) -> bool:
    return not _frames(_traceback(exc))[0]


def _known_limit(exc, kind):
    """The contract's word for a limit that Python reports in its own way."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if kind is OSError:
        # A file that was made longer than the whole disk, by truncate() or seek(). A blob that is too large has it too.
        full += (errno.EFBIG,)
    # Either may be an object of the code's, which compares in its own way.
    number = _errno(exc) if issubclass(kind, OSError) else None
    if type(number) is int and number in full:
        return "DiskFull"
    args = exc.args if kind is RuntimeError else ()
    if len(args) == 1 and type(args[0]) is str and args[0] == "can't start new thread":
        return "TooManyProcesses"
    return None


def _hint(exc, kind, function):
    if kind is SystemExit:
        return _ended(_raised_in(exc)) % one_line(function, 80)
    if kind is TypeError and _is_ours(exc):
        # No line of the function has run: its call was refused.
        return "%s() is called with one argument, a dict with the arguments of the call" % one_line(function, 80)
    if issubclass(kind, OSError) and _is_ours(exc) and _is_of_blobs(kind):
        # Whoever reads this must not call it again for that: what it does is done.
        return (
            "%s() has returned; what it returned is too large for an answer and could not be stored as a blob: return less"
            % one_line(function, 80)
        )
    if kind is ModuleNotFoundError and type(exc.name) is str and exc.name.split(".")[0] not in ("skills", "runtime"):
        can = "a run can import the standard library, `runtime` and mounted skills (`from skills.<name> import ...`)"
        return can + ", and nothing can be installed" + _beside(exc)
    if kind is ImportError:
        return _module_of_the_directory(exc) or _names_of(exc.name) or _version_of(exc)
    if issubclass(kind, SyntaxError) and _raised_by(exc) is compile_source.__code__:
        return _VERSION  # in another it may be right; not of a text that the code reads or has compiled
    # Python calls these "temporary failure" and "no such file": that sends its reader to try again, or to look for the file.
    for link in _chain(exc):
        where = _raised_in(link)
        has_proxy = "HTTPS_PROXY" in os.environ or "HTTP_PROXY" in os.environ
        if _is_of_the_network(link, where, has_proxy):
            if has_proxy:
                return "this run reaches its granted hosts through the proxy that HTTPS_PROXY names, and not directly"
            return "this run has no network: a skill names hosts in permissions.network, and the policy grants them or not"
        if _installs(link, where):
            return "nothing can be installed in a run: it has the standard library, `runtime` and mounted skills"
        if where == _SUBPROCESS and issubclass(type(link), (FileNotFoundError, PermissionError)):
            # It names the directory that the program was to begin in, where that is what is not there.
            return None if _filename(link) is not None and _filename(link) is _local(link, "cwd") else NO_SHELL
        if type(link) is KeyError and _raised_by(link) is _GET_VARIABLE:
            return _no_variable(link)
        said = _refused(link, where) or _misnamed(link)
        if said:
            return said
    return None


def _ended(where) -> str:
    if where in _COMMAND_LINES:
        return "a run has no command line: read what is needed from args, the dict that %s() gets"
    text = "the code ended the interpreter before %s() returned: "
    return text + ("call `unittest.main(exit=False)`" if where == _UNITTEST else "return a value instead")


def _version_of(exc):
    """For a name that the library may have in another version."""
    name, text = exc.name, exc.msg
    if type(name) is not str or type(text) is not str or not text.startswith("cannot import name "):
        return None
    return _VERSION if name.partition(".")[0] in getattr(sys, "stdlib_module_names", ()) else None


def _installs(exc, where) -> bool:
    """Whether it is of a program that installs packages, and that failed or could not be started."""
    failed = type(exc) is getattr(sys.modules.get("subprocess"), "CalledProcessError", None)
    command = exc.cmd if failed else _local(exc, "args") if where == _SUBPROCESS else None
    items = command[:64] if type(command) in (list, tuple) else (command,)
    words = " ".join(item[:_LINE_CHARS_MAX] for item in items if type(item) is str).split()
    return not _INSTALLERS.isdisjoint(word.rpartition("/")[2] for word in words)


def _names_of(name):
    """What a module of `runtime` has, for who has asked it for something else."""
    module = sys.modules.get(name) if type(name) is str and name in _RUNTIME else None
    names = module.__dict__.get("__all__") if type(module) is type(sys) else None
    return "%s has %s" % (name, one_line(", ".join(names[:64]), 400)) if type(names) is list else None


def _runtime_of(exc):
    """The name of runtime's module that has no such attribute."""
    wanted = _object_of(exc) if _object_of and type(exc) is AttributeError else None
    return next((name for name in _RUNTIME if wanted is not None and sys.modules.get(name) is wanted), None)


def _misnamed(exc):
    name = _name_of(exc) if _name_of and type(exc) is NameError else None
    if type(name) is not str or name not in _TOOLS:
        return _names_of(_runtime_of(exc))
    text = "%s is a tool of the caller's, and no function of the code: " % name
    if name.endswith("_blob"):
        return text + "`from runtime import blobs`, then blobs.read_text(id), blobs.write_text(text, kind=...)"
    return text + "mount the skill, and `from skills.<name> import main`"


def _is_of_the_network(exc, where, has_proxy: bool) -> bool:
    if not issubclass(type(exc), OSError):
        return False
    # Names are looked up, and addresses connected to, by functions of C, whose caller may be any code.
    name, number = type_name(type(exc)), _errno(exc)
    if type(number) is int and number in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return True
    if name == "PermissionError" and where != _SOCKET:
        # What is refused may be a file; that of a socket has no name. Without a proxy there is no such socket.
        is_refused = type(number) is int and number == errno.EACCES and _strerror(exc) == os.strerror(errno.EACCES)
        return has_proxy and is_refused and _filename(exc) is None and "_socket" in sys.modules
    return name in ("gaierror", "herror", "PermissionError")


def _no_variable(exc) -> str:
    name = exc.args[0] if len(exc.args) == 1 else None
    return (
        "this run has no %s: a skill names its secrets in permissions.secrets, and the policy grants them or not; "
        "code that mounts a skill does not get that skill's"
    ) % ("variable " + one_line(name, 80) if type(name) is str else "such variable")


def _beside(exc) -> str:
    """What a skill's own code can import besides. Its author knows the file as the manifest has it: `code/helper.py`."""
    skill = _importer(exc)
    if skill is None:
        return ""
    text = "; the modules beside this skill's entrypoint are imported by their own names: `import %s`"
    head, _, rest = exc.name.partition(".")
    if rest and head == skill.directory.rpartition("/")[2]:
        return text % one_line(rest, 80) + ", without `%s.`" % one_line(head, 80)
    return text % "helper"


def _module_of_the_directory(exc):
    """`from code import helper`, where the library has a module `code` too: Python says that this has no `helper`."""
    skill = _importer(exc)
    if skill is None or exc.name != skill.directory.rpartition("/")[2] or type(exc.msg) is not str:
        return None
    wanted = exc.msg.partition("cannot import name '")[2].partition("'")[0]
    if not skill.knows(wanted):
        return None
    return "the modules beside this skill's entrypoint are imported by their own names: `import %s`, and not from `%s`" % (
        one_line(wanted, 80),
        one_line(exc.name, 80),
    )


def _importer(exc):
    """The import of the skill whose module has the statement that failed."""
    found, trace = None, _traceback(exc)
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_IMPORTING):
            found = trace.tb_frame
        trace = trace.tb_next
    skill = None if found is None else found.f_builtins.get("__import__")
    return skill if type(skill) is SkillImport else None


def _is_of_blobs(kind) -> bool:
    from runtime.blobs import BlobError

    return issubclass(kind, BlobError)


def _asks_a_terminal(exc) -> bool:
    """Whether the code's own line that led to it reads what whoever starts a program gives it."""
    head, _, tail = _frames(_traceback(exc))
    for filename, line, _, _, names in reversed(head + tail):
        if not filename.startswith((_STANDARD, "<frozen")):
            source = _source_line(filename, line, names)  # of a statement of several lines it is one
            return "sys.argv" in source or "sys.stdin" in source
    return False


def _refused(exc, where):
    """For what the system says of a sandbox as it would of a user who lacks a right, or who has pressed a key."""
    if type(exc) is EOFError and (where == _GETPASS or _text(exc) == "EOF when reading a line"):
        return "nobody types anything in a run: what it needs comes with the arguments of the call"
    if type_name(type(exc)) in ("IndexError", "JSONDecodeError", "EOFError") and _asks_a_terminal(exc):
        return "a run has no command line and no standard input: what it needs is in the arguments of the call"
    if not issubclass(type(exc), OSError):
        return None
    number, file = _errno(exc), _filename(exc)
    # The code may raise it, too, in words of its own.
    if number == errno.EPERM and _strerror(exc) == os.strerror(errno.EPERM):
        return "the sandbox refuses this system call to every run: do without it"
    blobs = ("blob:",) if state.current is None else ("blob:", state.current.layout.blobs + "/")
    if number == errno.ENOENT and type(file) is str and file.startswith(blobs) and not _is_of_blobs(type(exc)):
        return _READS_BLOBS
    if number in (errno.EACCES, errno.EROFS) and type(file) is str and state.current is not None:
        layout = state.current.layout
        if not os.path.abspath(file).startswith((layout.workspace + "/", layout.tmp + "/")):
            text = "a run writes files"
            if number == errno.EACCES:
                # It may have been opened to be read: that it says of both.
                text = "a run may not open this file: it reads its skills, its blobs, the Python library and what it wrote itself, and writes"
            return text + " below its current directory (%s) and %s alone" % (layout.workspace, layout.tmp)
    return None


def _chain(exc):
    for _ in range(_CHAIN_MAX):
        if exc is None:
            return
        yield exc
        exc = _cause(exc) or _context(exc)


def _raised_in(exc):
    code = _raised_by(exc)
    return None if code is None else code.co_filename


def _raised_by(exc):
    frame = _last_frame(exc)
    return None if frame is None else frame.f_code


def _local(exc, name):
    return _last_frame(exc).f_locals.get(name)


def _last_frame(exc):
    trace = _traceback(exc)
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame


# -- text of exceptions -------------------------------------------------------------------------------------------


def _render(exc, depth: int) -> str:
    """`depth`: in how many groups it is, in Python's way to draw them."""
    parts = []
    seen = set()
    link = None
    while exc is not None and len(seen) < _CHAIN_MAX:
        seen.add(id(exc))
        parts.append(_single(exc, depth) + (_margin(_ACROSS[link], depth) if link else ""))
        cause, context = _cause(exc), _context(exc)
        if cause is not None:
            exc, link = cause, "cause"
        elif context is not None and not _suppressed(exc):
            exc, link = context, "context"
        else:
            exc = None
        if id(exc) in seen:
            exc = None
    return "".join(reversed(parts))


def _single(exc, depth: int) -> str:
    shown, left_out, tail = _frames(_traceback(exc))
    is_group = _Group and issubclass(type(exc), _Group)
    text = ""
    if shown:
        text = "Exception Group " if is_group else ""
        text += "Traceback (most recent call last):\n" + _lines(shown)
        if left_out:
            text += "  [%d more frames]\n" % left_out
        text += _lines(tail)
    text += _last_lines(exc, depth)
    if not is_group:
        return _margin(text, depth)
    if depth:
        return _margin(text, depth) + _group(exc, depth)
    text = _margin(text, 1)
    if shown:
        text = text.replace("|", "+", 1)
    return text + _group(exc, 1)


def _margin(text: str, depth: int) -> str:
    if not depth:
        return text
    edge = "  " * depth + "| "
    return "".join(edge + line + "\n" for line in text[:-1].split("\n"))


def _last_lines(exc, depth: int) -> str:
    kind = type(exc)
    if issubclass(kind, SyntaxError):
        try:
            text = "".join(traceback.format_exception_only(kind, exc))
            return plain(text if len(text) <= _TEXT_CHARS_MAX else _cut(text) + "\n")
        except Exception:
            pass  # attributes that are not what they should be: like any other exception
    name = type_qualname(kind)
    module = _class_dict(kind).get("__module__")
    if type(module) is str and module not in ("builtins", "__main__", "run_code"):
        name = one_line(module, 120) + "." + name
    text = _text(exc)
    if depth <= _SUGGESTED_DEPTH_MAX:
        try:
            text += _suggestion(exc, kind)
        except BaseException:  # what the names are looked for in may be of the code's own making
            pass
    lines = "%s: %s\n" % (name, text) if text else name + "\n"
    for note in _notes(exc):
        lines += note + "\n"
    return lines


def _text(exc) -> str:
    try:
        text = str(exc)
        if len(text) > _TEXT_CHARS_MAX:
            half = _TEXT_CHARS_MAX // 2
            text = "%s ... [%d characters left out] ... %s" % (
                str.__getitem__(text, slice(0, half)),
                str.__len__(text) - 2 * half,
                str.__getitem__(text, slice(-half, None)),
            )
        return plain(text)
    except BaseException:  # the class's own __str__ may raise anything
        return "<str() of this exception failed>"


def _notes(exc):
    try:
        notes = object.__getattribute__(exc, "__dict__").get("__notes__")
    except Exception:
        return []
    if type(notes) is not list:
        return []
    return [plain(_cut(note)) for note in notes[:_NOTES_MAX] if type(note) is str]


def _cut(text: str) -> str:
    """The mark is for whoever looks for secrets, too: what is before it may be half of one."""
    return text if len(text) <= _TEXT_CHARS_MAX else text[:_TEXT_CHARS_MAX] + "…"


def _group(exc, depth: int) -> str:
    members, edge = _members(exc), "  " * depth
    if depth > _GROUP_DEPTH_MAX:
        return edge + "| [%d exceptions inside]\n" % len(members)
    text, first = "", "+-"
    for number, member in enumerate(members[:_GROUP_MEMBERS_MAX], 1):
        text += edge + first + "+---------------- %d ----------------\n" % number + _render(member, depth + 1)
        first = "  "
    more = len(members) - _GROUP_MEMBERS_MAX
    if more > 0:
        text += edge + "  +---------------- ... ----------------\n"
        text += edge + "  | and %d more exception%s\n" % (more, "s" if more > 1 else "")
    # A group that is the last of its group has ended both.
    if text[:-1].rpartition("\n")[2].lstrip(" ") != _GROUP_END:
        text += edge + "  " + _GROUP_END + "\n"
    return text


# -- names that were meant ----------------------------------------------------------------------------------------


def _suggestion(exc, kind) -> str:
    """As Python prints it behind the text, where an exception does not have it."""
    if _name_of and issubclass(kind, NameError):
        wrong, frame = _name_of(exc), _last_frame(exc)
        if type(wrong) is not str or frame is None:
            return ""
        meant = _closest(wrong, (frame.f_locals, frame.f_globals, frame.f_builtins))
        if wrong in sys.stdlib_module_names:
            return meant + (" Or did" if meant else ". Did") + " you forget to import %r?" % wrong
        return meant
    if _attribute_of and issubclass(kind, AttributeError):
        wrong = _attribute_of(exc)
        # Of runtime's the hint names them all: the closest is often one that does something else.
        return _closest(wrong, _attributes(_object_of(exc))) if type(wrong) is str and not _runtime_of(exc) else ""
    return ""


def _attributes(value):
    """The namespaces in which an attribute is looked for, without the value's own `__dir__`."""
    for base in _mro(type(value)):
        yield _class_dict(base)
    if issubclass(type(value), type):
        for base in _mro(value):
            yield _class_dict(base)
    else:
        try:
            yield object.__getattribute__(value, "__dict__")
        except AttributeError:
            pass  # it has none


def _closest(wrong: str, namespaces) -> str:
    if len(wrong) > _SUGGESTED_CHARS_MAX:
        return ""
    from difflib import get_close_matches

    names = {}
    for namespace in namespaces:
        for name in namespace:
            if type(name) is str and len(name) <= _SUGGESTED_CHARS_MAX and name.startswith("_") == wrong.startswith("_"):
                names[name] = None
            if len(names) > _SUGGESTED_OF_MAX:
                return ""  # as Python: to compare them all takes too long
    found = get_close_matches(wrong, names, 1, _SUGGESTED_LIKE)
    return ". Did you mean: '%s'?" % plain(found[0]) if found and found[0] in names else ""


# -- frames -------------------------------------------------------------------------------------------------------


def _frames(trace):
    """First frames, how many are left out, last frames; none of them ours or of the import machinery."""
    head, tail, count = [], deque(maxlen=_TAIL_FRAMES), 0
    while trace is not None:
        code = trace.tb_frame.f_code
        filename = code.co_filename
        if not filename.startswith((_LIBRARY, "<frozen importlib")):
            entry = (filename, trace.tb_lineno or 0, code, trace.tb_lasti, trace.tb_frame.f_globals)
            if len(head) < _HEAD_FRAMES:
                head.append(entry)
            else:
                tail.append(entry)
            count += 1
        trace = trace.tb_next
    return head, count - len(head) - len(tail), list(tail)


def _lines(frames) -> str:
    text, last, repeats = "", None, 0
    for filename, line, code, at, names in frames:
        name = code.co_name
        if (filename, line, name) == last:
            repeats += 1
            if repeats >= _REPEATS_SHOWN:
                continue
        else:
            text += _repeated(repeats)
            last, repeats = (filename, line, name), 0
        text += '  File "%s", line %d, in %s\n' % (one_line(filename, 240), line, one_line(name, 120))
        source = _source_line(filename, line, names)
        shown = one_line(source, _LINE_CHARS_MAX)
        if shown:
            text += "    %s\n" % shown + _marks(code, at, line, source)
    return text + _repeated(repeats)


def _repeated(repeats: int) -> str:
    more = repeats - _REPEATS_SHOWN + 1
    return "  [Previous line repeated %d more times]\n" % more if more > 0 else ""


def _source_line(filename: str, line: int, names) -> str:
    # A code object may name any file: only plain files of a sensible size are opened.
    try:
        if filename not in linecache.cache and not filename.startswith("<"):
            if not os.path.isfile(filename) or os.path.getsize(filename) > _SOURCE_BYTES_MAX:
                return ""
        # What the code has put there may be anything. One more tells that it goes on.
        return plain(str.__getitem__(linecache.getline(filename, line, names), slice(0, _LINE_CHARS_MAX + 1)))
    except Exception:
        return ""  # a line of source is a courtesy


def _marks(code, at: int, line: int, source: str) -> str:
    """The line of `^` and `~` that Python, since 3.11, has below one of source: which of its parts was executed."""
    if not hasattr(code, "co_positions") or len(source) > _LINE_CHARS_MAX or not source.strip().isprintable():
        return ""
    try:
        begins, ends, left, right = next(islice(code.co_positions(), at // 2, None))
        if begins != line:
            return ""
        of_part = {"line": source, "end_lineno": ends, "colno": left, "end_colno": right}
        frame = traceback.FrameSummary("", line, "", lookup_line=False, **of_part)
        printed = "".join(traceback.StackSummary.from_list([frame]).format()).split("\n")
        marks = printed[2] if len(printed) > 3 else ""  # below the file's and the source's
        return marks + "\n" if marks and set(marks) <= set(" ^~") else ""
    except Exception:
        return ""  # so are they

"""A run's failure as a type and a text: what to do (`hints`), and the traceback as Python would print it, without our own
frames.

Everything here and in `hints` looks at objects that the code made and that may lie, raise, or be huge. So classes are asked
at the level of C (`raised`), texts are cut, and frames, causes and groups are counted.
"""

from __future__ import annotations

import errno
import sys
import traceback
from itertools import islice

from .hints import hint, runtime_of
from .raised import (
    CHAIN_MAX,
    LINE_CHARS_MAX,
    TEXT_CHARS_MAX,
    attribute_of,
    cause_of,
    context_of,
    errno_of,
    frames_of,
    is_ours,
    last_frame,
    name_of,
    object_of,
    source_line,
    suppresses_context,
    text_of,
    traceback_of,
)
from .strict_json import NotSerializable
from .text import cut_middle, one_line, plain, type_name, type_qualname

MESSAGE_BYTES_MAX = 8 * 1024
_NOTES_MAX = 8
_GROUP_MEMBERS_MAX = 8
_GROUP_DEPTH_MAX = 3
_REPEATS_SHOWN = 3
_GROUP_END = "+------------------------------------"
# Names to suggest are looked for among so many of so many characters, and not for each exception of groups in groups.
_SUGGESTED_OF_MAX = 750
_SUGGESTED_CHARS_MAX = 40
_SUGGESTED_DEPTH_MAX = 2
_SUGGESTED_LIKE = 0.7

_class_dict = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__
_Group = getattr(sys.modules["builtins"], "BaseExceptionGroup", None)
_members = _Group.__dict__["exceptions"].__get__ if _Group else None

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
        return {"type": "EntrypointNotFound", "message": text_of(exc)}
    if kind is NotSerializable and is_ours(exc):
        # Made by the check of the returned value: no line of the code has raised it.
        return {"type": "OutputNotSerializable", "message": "the return value is not JSON: " + text_of(exc)}
    name = type_name(kind)
    try:
        message = _render(exc, 0).rstrip("\n")
    except BaseException as second:  # the formatter ran out of memory or met something yet unknown
        message = "%s (no traceback: %s while formatting it)" % (name, type_name(type(second)))
    try:
        said = hint(exc, kind, function)
    except BaseException:  # the code has put something else in the place of os.environ
        said = None
    if said:
        # Before it: the run's summary is the last line that begins with the class, and behind that are the exception's notes and
        # the other lines of its text.
        message = said + "\n" + message
    return {"type": _known_limit(exc, kind) or name, "message": cut_middle(message, MESSAGE_BYTES_MAX)}


def release_memory(exc: BaseException) -> None:
    """Frees the local variables of the frames that have ended, so that a MemoryError can be reported."""
    trace = traceback_of(exc)
    while trace is not None:
        try:
            trace.tb_frame.clear()
        except RuntimeError:
            pass  # a frame that still runs: ours
        trace = trace.tb_next


def _known_limit(exc, kind):
    """The contract's word for a limit that Python reports in its own way."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if kind is OSError:
        # A file that was made longer than the whole disk, by truncate() or seek(). A blob that is too large has it too.
        full += (errno.EFBIG,)
    # Either may be an object of the code's, which compares in its own way.
    number = errno_of(exc) if issubclass(kind, OSError) else None
    if type(number) is int and number in full:
        return "DiskFull"
    args = exc.args if kind is RuntimeError else ()
    if len(args) == 1 and type(args[0]) is str and args[0] == "can't start new thread":
        return "TooManyProcesses"
    return None


# -- text of exceptions -------------------------------------------------------------------------------------------


def _render(exc, depth: int) -> str:
    """`depth`: in how many groups it is, in Python's way to draw them."""
    parts = []
    seen = set()
    link = None
    while exc is not None and len(seen) < CHAIN_MAX:
        seen.add(id(exc))
        parts.append(_single(exc, depth) + (_margin(_ACROSS[link], depth) if link else ""))
        cause, context = cause_of(exc), context_of(exc)
        if cause is not None:
            exc, link = cause, "cause"
        elif context is not None and not suppresses_context(exc):
            exc, link = context, "context"
        else:
            exc = None
        if id(exc) in seen:
            exc = None
    return "".join(reversed(parts))


def _single(exc, depth: int) -> str:
    shown, left_out, tail = frames_of(traceback_of(exc))
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
            return plain(text if len(text) <= TEXT_CHARS_MAX else _cut(text) + "\n")
        except Exception:
            pass  # attributes that are not what they should be: like any other exception
    name = type_qualname(kind)
    module = _class_dict(kind).get("__module__")
    if type(module) is str and module not in ("builtins", "__main__", "run_code"):
        name = one_line(module, 120) + "." + name
    text = text_of(exc)
    if depth <= _SUGGESTED_DEPTH_MAX:
        try:
            text += _suggestion(exc, kind)
        except BaseException:  # what the names are looked for in may be of the code's own making
            pass
    lines = "%s: %s\n" % (name, text) if text else name + "\n"
    for note in _notes(exc):
        lines += note + "\n"
    return lines


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
    return text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "…"


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
    if name_of and issubclass(kind, NameError):
        wrong, frame = name_of(exc), last_frame(exc)
        if type(wrong) is not str or frame is None:
            return ""
        meant = _closest(wrong, (frame.f_locals, frame.f_globals, frame.f_builtins))
        if wrong in sys.stdlib_module_names:
            return meant + (" Or did" if meant else ". Did") + " you forget to import %r?" % wrong
        return meant
    if attribute_of and issubclass(kind, AttributeError):
        wrong = attribute_of(exc)
        # Of runtime's the hint names them all: the closest is often one that does something else.
        return _closest(wrong, _attributes(object_of(exc))) if type(wrong) is str and not runtime_of(exc) else ""
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
        source = source_line(filename, line, names)
        shown = one_line(source, LINE_CHARS_MAX)
        if shown:
            text += "    %s\n" % shown + _marks(code, at, line, source)
    return text + _repeated(repeats)


def _repeated(repeats: int) -> str:
    more = repeats - _REPEATS_SHOWN + 1
    return "  [Previous line repeated %d more times]\n" % more if more > 0 else ""


def _marks(code, at: int, line: int, source: str) -> str:
    """The line of `^` and `~` that Python, since 3.11, has below one of source: which of its parts was executed."""
    if not hasattr(code, "co_positions") or len(source) > LINE_CHARS_MAX or not source.strip().isprintable():
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
        return ""  # the marks are a courtesy

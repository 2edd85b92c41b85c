"""What there is to know of an exception that the code has raised, asked without its own help."""

from __future__ import annotations

import linecache
import os
from collections import deque

from .text import plain

TEXT_CHARS_MAX = 6 * 1024
LINE_CHARS_MAX = 200
CHAIN_MAX = 8
_HEAD_FRAMES = 16
_TAIL_FRAMES = 32
_SOURCE_BYTES_MAX = 4 * 1024 * 1024
_LINES_MAX = 5000

LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

cause_of = BaseException.__dict__["__cause__"].__get__
context_of = BaseException.__dict__["__context__"].__get__
suppresses_context = BaseException.__dict__["__suppress_context__"].__get__
traceback_of = BaseException.__dict__["__traceback__"].__get__
errno_of = OSError.errno.__get__
filename_of = OSError.filename.__get__
strerror_of = OSError.strerror.__get__
# Python 3.9 does not say what was looked for.
name_of = NameError.name.__get__ if hasattr(NameError, "name") else None
attribute_of = AttributeError.name.__get__ if hasattr(AttributeError, "name") else None
object_of = AttributeError.obj.__get__ if hasattr(AttributeError, "obj") else None


def chain(exc):
    """It, and what it was raised from or while handling."""
    for _ in range(CHAIN_MAX):
        if exc is None:
            return
        yield exc
        cause = cause_of(exc)  # its truth would be what its class says
        exc = context_of(exc) if cause is None else cause


def raised_in(exc):
    """The file whose line has raised it."""
    code = raised_by(exc)
    return None if code is None else code.co_filename


def raised_by(exc):
    frame = last_frame(exc)
    return None if frame is None else frame.f_code


def local_of(exc, name):
    return last_frame(exc).f_locals.get(name)


def last_frame(exc):
    trace = traceback_of(exc)
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame


def text_of(exc) -> str:
    """What `str` makes of it, cut."""
    try:
        text = str(exc)
        if len(text) > TEXT_CHARS_MAX:
            half = TEXT_CHARS_MAX // 2
            text = "%s ... [%d characters left out] ... %s" % (
                str.__getitem__(text, slice(0, half)),
                str.__len__(text) - 2 * half,
                str.__getitem__(text, slice(-half, None)),
            )
        return plain(text)
    except BaseException:  # the class's own __str__ may raise anything
        return "<str() of this exception failed>"


def is_ours(exc) -> bool:
    """Whether no line of the code has led to it."""
    return not frames_of(traceback_of(exc))[0]


def frames_of(trace):
    """First frames, how many are left out, last frames; none of them ours or of the import machinery."""
    head, tail, count = [], deque(maxlen=_TAIL_FRAMES), 0
    while trace is not None:
        code = trace.tb_frame.f_code
        filename = code.co_filename
        if not filename.startswith((LIBRARY, "<frozen importlib")):
            entry = (filename, trace.tb_lineno or 0, code, trace.tb_lasti, trace.tb_frame.f_globals)
            if len(head) < _HEAD_FRAMES:
                head.append(entry)
            else:
                tail.append(entry)
            count += 1
        trace = trace.tb_next
    return head, count - len(head) - len(tail), list(tail)


def source_line(filename: str, line: int, names) -> str:
    """`names`: the module's, whose loader may have the text."""
    try:
        # What the code has put there may be anything. One more tells that it goes on.
        text = linecache.getline(filename, line, names) if _may_be_read(filename) else ""
        return plain(str.__getitem__(text, slice(0, LINE_CHARS_MAX + 1)))
    except Exception:
        return ""  # a line of source is a courtesy


def source_lines(filename: str, names) -> list:
    """The first of a file, as many as are looked through."""
    try:
        lines = linecache.getlines(filename, names) if _may_be_read(filename) else []
        return [line if type(line) is str else "" for line in lines[:_LINES_MAX]]
    except Exception:
        return []


def _may_be_read(filename: str) -> bool:
    """A code object may name any file: only plain files of a sensible size are opened."""
    if filename in linecache.cache or filename.startswith("<"):
        return True
    return os.path.isfile(filename) and os.path.getsize(filename) <= _SOURCE_BYTES_MAX

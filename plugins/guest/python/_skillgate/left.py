"""What an agent's code has written and does not keep: it would be looked for in the next run, which has a disk of its own."""

from __future__ import annotations

import os
from itertools import islice

from runtime.log import warning

from . import state
from .text import one_line

_LISTED_MAX = 64
_NAMED_MAX = 3
# Of the library's own making; whoever begins a name with a dot does not look for the file either.
_SCRATCH = (".", "tmp", "pymp-", "__pycache__")

# What the size of a directory of tmpfs says (mm/shmem.c, BOGO_DIRENT_SIZE): 20 bytes for each name, `.` and `..` included.
_EMPTY_BYTES = 40
_ONE_NAME_BYTES = 60

_scandir = os.scandir
_stat = os.stat


def warn_of_files(run: state.Run, code_file: str) -> None:
    """A line in the log for files below the workspace and the directory for temporary ones, of a run that has stored no blob:
    who has stored one knows how. `code_file` is the code itself, and what `blobs.path` has copied is a blob already."""
    try:
        if run.created or _is_nothing_left(run.layout):
            return
        names = _names(run.layout, {code_file, *run.spooled.values()})
        if names:
            warning(_text(names))
    except Exception:
        pass  # the code has taken away a directory, a stream, or all memory: this is a courtesy


def _is_nothing_left(layout: state.Layout) -> bool:
    """Nothing but the code, as most runs have it, by the sizes of the two alone: to read them costs a run after a pause, when
    nothing of that is in the processor's caches, more than twice as much. Where a size says something else they are read."""
    return _stat(layout.workspace).st_size == _EMPTY_BYTES and _stat(layout.tmp).st_size == _ONE_NAME_BYTES


def _names(layout: state.Layout, ours: set) -> list:
    """As its current directory leads to them, where the code has not changed that."""
    with _scandir(layout.workspace) as entries:
        names = [entry.name for entry in islice(entries, _LISTED_MAX) if _is_looked_for(entry)]
    with _scandir(layout.tmp) as entries:
        others = [entry.path for entry in islice(entries, _LISTED_MAX) if _is_looked_for(entry)]
    return sorted(names) + sorted(path for path in others if path not in ours)


def _is_looked_for(entry: os.DirEntry) -> bool:
    """A socket or a pipe has nothing to keep. Of an entry this is known without a look at what it names."""
    if entry.name.startswith(_SCRATCH):
        return False
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink()


def _text(names: list) -> str:
    named = ", ".join(one_line(name, 80) for name in names[:_NAMED_MAX])
    if len(names) > _NAMED_MAX:
        named += " and others"
    verb = "is" if len(names) == 1 else "are"
    advice = "`from runtime import blobs`, and blobs.write_file(path, kind=...) keeps a file and gives its id, to be returned"
    return "%s %s gone with this run: %s" % (named, verb, advice)

"""Code of skills that has been compiled before: by a run that did nothing else, for the runs that come.

A file is read in each run all the same, and its code taken from here for exactly the source that it was made from. So what is
loaded is what the file says, whatever the sandbox has kept and for how long.
"""

from __future__ import annotations

import os
from io import FileIO
from marshal import dumps, loads
from typing import Dict, Iterator, Tuple

# Of one skill, source and code together; what is beyond is compiled when it is imported.
BYTES_MAX = 256 * 1024
_LOOKED_AT_MAX = 1000

# path -> where the source of its code lies in the frame, where its code, and where that ends.
_known: Dict[str, Tuple[int, int, int]] = {}
_frame = b""


def keep(index, frame: bytes) -> None:
    """`index`: of each file its path, and the lengths in bytes of the source and of the code that are next in `frame`."""
    global _frame
    _frame = frame
    end = 0
    for path, source_bytes, code_bytes in index:
        start, middle = end, end + source_bytes
        end = middle + code_bytes
        _known[path] = start, middle, end


def forget() -> None:
    global _frame
    _known.clear()
    _frame = b""


def code_of(path: str, source: bytes):
    """The code of a file that says `source`, or None."""
    found = _known.get(path)
    if found is None:
        return None
    start, middle, end = found
    return loads(_frame[middle:end]) if _frame[start:middle] == source else None


def make(entry: str, compile_source) -> list:
    """Of an entrypoint and the modules beside and below it: path, source and code, both in base64. Runs none of it. Left out
    is what would be told to whoever imports it: an error, a warning."""
    import warnings
    from binascii import b2a_base64

    made, left = [], BYTES_MAX
    for path in _modules(entry):
        with FileIO(path) as file:
            source = file.read(left + 1) or b""
        if len(source) > left:
            continue
        with warnings.catch_warnings(record=True) as warned:
            try:
                code = dumps(compile_source(source, path))
            except Exception:  # of a hostile source it can be any; its own run compiles it again, and says which
                continue
        if warned or len(source) + len(code) > left:
            continue
        left -= len(source) + len(code)
        made.append((path, *(b2a_base64(part, newline=False).decode("ascii") for part in (source, code))))
    return made


def _modules(entry: str) -> Iterator[str]:
    yield entry
    looked_at = 0
    for directory, below, files in os.walk(os.path.dirname(entry)):
        below[:] = sorted(name for name in below if name.isidentifier())
        for name in sorted(files):
            path = "%s/%s" % (directory, name)
            if name.endswith(".py") and name[:-3].isidentifier() and path != entry and os.path.isfile(path):
                yield path
        looked_at += len(below) + len(files)
        if looked_at > _LOOKED_AT_MAX:
            return

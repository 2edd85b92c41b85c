"""Where an interpreter that is forked has its objects.

A child shares its parent's pages until it writes to them, or gets copies of them at its birth: that is much of what a short
run costs. The room between the objects of an interpreter is strewn over all its pages, and so is what is put there.
When that room is taken up, new objects lie side by side, on few pages.
"""

import gc
import sys
from types import CodeType, FunctionType

# CPython has objects of up to 512 bytes in pools, each for one size (a multiple of 16); larger ones are the C
# library's. Where that is not so, some memory is taken up for nothing.
_POOL_BYTES = 16 * 1024 if sys.version_info >= (3, 10) else 4096
_POOL_HEAD_BYTES = 48
_ROW = 6  # objects, side by side from a pool's first on: it is a new one
_BATCH = 16  # objects: of the largest it is half a pool, and what is touched is to be little
_SMALL_BYTES = range(16, 513, 16)
_LARGE_BYTES = (65536, 49152, 32768, 24576, 16384, 12288, 8192, 6144, 4096, 3072, 2048, 1536, 1024, 768, 576)
_END_BYTES = 127 * 1024  # the C library asks the system for each object that is larger
_ENDS = 8  # of which one at least lies behind all gaps
_TAKEN_BYTES_MAX = 256 * 1024  # by objects of one size

_taken = []


def fill_gaps() -> None:
    """Takes up the room between the objects that there are, for good."""
    for size in _SMALL_BYTES:
        _take_small(size)
    # There are few gaps that have room for one.
    end = max(map(id, [bytes(_END_BYTES) for _ in range(_ENDS)]))
    for size in _LARGE_BYTES:
        _take_large(size, end)


def bring_together(work, *also) -> None:
    """Does `work`, and moves the code of the functions that it called, and of `also`, to pages of its own. An interpreter
    writes to the code that it executes: it counts who holds it and, since 3.11, keeps there what it has learnt of its
    operands. In what has been moved it has learnt nothing yet."""
    called = {id(function.__code__): function.__code__ for function in also}

    def note(frame, event, _):
        if event == "call":
            called[id(frame.f_code)] = frame.f_code  # by identity: two that are equal may be of two files

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    functions = [o for o in gc.get_objects() if type(o) is FunctionType and id(o.__code__) in called]
    fill_gaps()
    moved = {}
    for function in functions:
        function.__code__ = _move(function.__code__, called, moved)


def _move(code: CodeType, called: dict, moved: dict) -> CodeType:
    """A copy of code that is in `called`, the same for all who hold it. Both are by `id`."""
    if id(code) not in called:
        return code
    if id(code) not in moved:
        # A function within a function is made anew, at each call, of the code that is among the constants.
        constants = tuple(_move(c, called, moved) if type(c) is CodeType else c for c in code.co_consts)
        moved[id(code)] = code.replace(co_consts=constants)
    return moved[id(code)]


def _take_small(size: int) -> None:
    blocks = []
    for _ in range(_TAKEN_BYTES_MAX // size // _BATCH + 1):
        unseen = max(len(blocks) - _ROW, 0)
        blocks += _blocks(size)
        for at in range(unseen, len(blocks) - _ROW + 1):
            if id(blocks[at]) % _POOL_BYTES == _POOL_HEAD_BYTES and _is_row(blocks[at : at + _ROW], size):
                del blocks[at:]  # the new pool, as a whole, is for whatever comes
                _taken.extend(blocks)
                return
    _taken.extend(blocks)


def _is_row(blocks: list, size: int) -> bool:
    first = id(blocks[0])
    return all(id(block) == first + at * size for at, block in enumerate(blocks))


def _take_large(size: int, end: int) -> None:
    for _ in range(_TAKEN_BYTES_MAX // size):
        block = bytes(size - sys.getsizeof(b""))
        if id(block) > end:
            return
        _taken.append(block)


def _blocks(size: int) -> list:
    """Objects of so many bytes. Nothing else is made meanwhile: a number or a list would lie between them."""
    if size == 16:
        new, argument = object, ()
    elif size == 32:
        new, argument = float, (size,)
    else:
        new, argument = bytes, (size - sys.getsizeof(b""),)
    blocks = [None] * _BATCH
    for at in range(_BATCH):
        blocks[at] = new(*argument)
    return blocks

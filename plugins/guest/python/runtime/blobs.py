"""Blobs: large data by id, so that it never passes through the model.

Reading works for the run's input blobs (`input_blobs` of the call) and for blobs that the run itself has written.
Every write gives the id of a new blob ("blob:..."), which the caller finds in `output_blobs`. Blobs do not change.

    text = blobs.read_text(args["transcript"])
    with blobs.open(args["big_csv"], "r") as lines:      # does not load the blob into memory
        for line in lines: ...
    return {"report": blobs.write_text(report, kind="text/markdown")}
"""

import builtins as _builtins
import io as _io
import os as _os
from _thread import allocate_lock as _allocate_lock
from _thread import get_ident as _get_ident
from errno import EFBIG as _EFBIG
from errno import EIO as _EIO
from errno import ENOENT as _ENOENT
from errno import ENOSPC as _ENOSPC
from json import dumps as _dumps
from json import loads as _loads

from _skillgate import state as _state
from _skillgate.channel import DATA_BYTES_MAX as _PIECE_BYTES
from _skillgate.channel import Refused as _Refused
from _skillgate.strict_json import Encoder as _Encoder
from _skillgate.strict_json import NotSerializable as _NotSerializable

__all__ = [
    "BlobError",
    "BlobNotFound",
    "BlobTooLarge",
    "DiskFull",
    "created",
    "list",
    "open",
    "path",
    "read_bytes",
    "read_json",
    "read_text",
    "write_bytes",
    "write_file",
    "write_json",
    "write_text",
]

_TEXT_CHARS = 256 * 1024
_KIND_CHARS_MAX = 255
# So many blobs are written at once, and the returned value beside them: a gateway takes no more of a run, and its threads may be
# many. Of more than these each waits for another.
_WRITTEN_AT_ONCE = 7
_places = [_allocate_lock() for _ in range(_WRITTEN_AT_ONCE)]
_KIND_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&-^_.+")


class BlobError(OSError):
    """A blob could not be read or written."""

    __module__ = "runtime"


class BlobNotFound(BlobError, FileNotFoundError):
    """This run may not read such a blob, or there is none."""

    __module__ = "runtime"


class BlobTooLarge(BlobError):
    """The blob would be larger than the gateway allows."""

    __module__ = "runtime"


class DiskFull(BlobError):
    """The gateway's store, or the caller's share of it, is full."""

    __module__ = "runtime"


# -- reading ------------------------------------------------------------------------------------------------------


def read_text(blob_id: str, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The whole blob as text. UnicodeDecodeError when it is not text of that encoding."""
    return read_bytes(blob_id).decode(encoding, errors)


def read_bytes(blob_id: str) -> bytes:
    """The whole blob. For more than some megabytes use `open`, which needs no memory for it."""
    with _raw(blob_id) as raw:
        return raw.readall()


def read_json(blob_id: str):
    """The value of a JSON blob. json.JSONDecodeError (a ValueError) when it is not JSON."""
    return _loads(read_bytes(blob_id))


def open(blob_id: str, mode: str = "rb", encoding: str = "utf-8", errors: str = "strict", newline=None):
    """The blob as an open file, to be read from begin to end or by `seek`; use it in a `with` statement.

    `mode` is "rb" (bytes, the default) or "r" (text). Pass `newline=""` for the `csv` module.
    """
    if mode not in ("r", "rt", "rb"):
        raise ValueError('mode %r: a blob is opened for reading, with "rb" or "r"; to make one use write_...' % mode)
    binary = _io.BufferedReader(_raw(blob_id), 128 * 1024)
    return binary if mode == "rb" else _io.TextIOWrapper(binary, encoding, errors, newline)


def path(blob_id: str) -> str:
    """A path under which the blob is a plain read-only file, for libraries that want a file name.

    Input blobs are files already. A blob written by this run is copied to the temporary directory once.
    """
    run = _state.require("runtime.blobs")
    file = _file_of_input(run, blob_id)
    if file is not None and _os.path.isfile(file):
        return file
    if blob_id not in run.spooled:
        target = _os.path.join(_os.environ.get("TMPDIR", run.layout.tmp), "blob-" + blob_id[len("blob:") :])
        # Of threads that want it at once each makes one of its own: under the name that is given is the whole of it, always.
        own = "%s.%d.%d" % (target, _os.getpid(), _get_ident())
        try:
            with _raw(blob_id) as source, _builtins.open(own, "wb") as out:
                for piece in iter(lambda: source.read(_PIECE_BYTES), b""):
                    out.write(piece)
            _os.replace(own, target)
        except BaseException:
            if _os.path.exists(own):
                _os.unlink(own)
            raise
        run.spooled[blob_id] = target
    return run.spooled[blob_id]


def list():
    """The ids of the run's input blobs, in the caller's order."""
    return [*_state.require("runtime.blobs").input_blobs]


def created():
    """The ids of the blobs that this run has written so far, oldest first."""
    return [*_state.require("runtime.blobs").created]


# -- writing ------------------------------------------------------------------------------------------------------


def write_text(content: str, kind: str = "text/plain") -> str:
    """A new blob of that text as UTF-8. `kind` is its MIME type ("text/csv", "text/markdown"). Gives its id."""
    if not isinstance(content, str):
        raise TypeError("write_text takes a str, not %s: see write_bytes and write_json" % type(content).__name__)
    with _Writer(kind) as writer:
        for start in range(0, len(content), _TEXT_CHARS):
            writer.write(content[start : start + _TEXT_CHARS].encode("utf-8"))
    return writer.id


def write_bytes(content, kind: str = "application/octet-stream") -> str:
    """A new blob of those bytes (bytes, bytearray, memoryview). Gives its id."""
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError("write_bytes takes bytes, not %s: see write_text and write_json" % type(content).__name__)
    with _Writer(kind) as writer:
        writer.write(content)
    return writer.id


def write_json(obj, kind: str = "application/json") -> str:
    """A new blob of that value as compact JSON. Gives its id.

    What JSON cannot say (NaN, bytes, sets, keys that are not strings, objects) is a TypeError that names its place.
    """
    with _Writer(kind) as writer:
        try:
            _Encoder(writer.write).encode(obj)
        except _NotSerializable as exc:
            raise TypeError(str(exc)) from None
    return writer.id


def write_file(file, kind: str = "application/octet-stream") -> str:
    """A new blob of the content of a file (a path, or a file opened in binary mode). Gives its id.

    The file is read in pieces: a large one needs no memory.
    """
    if hasattr(file, "read"):
        return _write_stream(file, kind)
    with _builtins.open(file, "rb") as stream:
        return _write_stream(stream, kind)


# -- how ----------------------------------------------------------------------------------------------------------


def _write_stream(stream, kind: str) -> str:
    with _Writer(kind) as writer:
        while True:
            piece = stream.read(_PIECE_BYTES)
            if not piece:
                break
            if isinstance(piece, str):
                raise TypeError("write_file takes a file opened in binary mode")
            writer.write(piece)
    return writer.id


class _Writer:
    """A blob under way. Leaving the `with` block by an exception throws it away."""

    def __init__(self, kind: str, waits: bool = True):
        if not isinstance(kind, str):
            raise TypeError("kind is a MIME type such as 'text/csv', not %s" % type(kind).__name__)
        if not _is_mime_type(kind):
            raise ValueError("kind is a MIME type such as 'text/csv' or 'application/json', not %.100r" % kind)
        self._run = _state.require("runtime.blobs")
        self._size = 0
        # A forked child may have no thread that would make room, and is refused in any case.
        self._place = _take_place() if waits and self._run.channel.is_owner else None
        try:
            self._writer = _call(self._run, lambda channel: channel.call_json(b"C", {"kind": kind}))["writer"]
        except BaseException:
            self._leave()
            raise
        self.id = ""

    def write(self, data) -> None:
        view = memoryview(data).cast("B") if len(data) else b""
        head = self._writer.to_bytes(8, "little")
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            _call(self._run, lambda channel: channel.call(b"W", head, piece))
            self._size += len(piece)

    def commit(self) -> None:
        request = {"writer": self._writer, "commit": True}
        self.id = _call(self._run, lambda channel: channel.call_json(b"F", request))["id"]
        self._run.created[self.id] = self._size

    def abort(self) -> None:
        request = {"writer": self._writer, "commit": False}
        _call(self._run, lambda channel: channel.call_json(b"F", request))

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        try:
            if kind is None:
                self.commit()
                return
            try:
                self.abort()
            except Exception:
                pass  # the first exception says more; the sandbox drops what was not committed
        finally:
            self._leave()

    def _leave(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.release()


def _take_place():
    for place in _places:
        if place.acquire(False):
            return place
    # Whoever has it lets go of it when its blob is written.
    place = _places[_get_ident() % len(_places)]
    place.acquire()
    return place


def _is_mime_type(kind: str) -> bool:
    """Whether a gateway takes it: `type/subtype`, and parameters perhaps."""
    if len(kind) > _KIND_CHARS_MAX or not (kind.isascii() and kind.isprintable()):
        return False
    major, _, minor = kind.partition(";")[0].rstrip().partition("/")
    return bool(major and minor) and _KIND_CHARS.issuperset(major + minor)


class _Spill:
    """Where a returned value goes when it is too large for the answer."""

    _writer = None

    def write(self, data: bytes) -> None:
        if self._writer is None:
            self._writer = _Writer("application/json", waits=False)
        self._writer.write(data)

    def commit(self) -> None:
        self._writer.commit()

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.__exit__(BaseException, None, None)


class _CreatedBlob(_io.RawIOBase):
    """Reads a blob through the channel."""

    def __init__(self, run, blob_id: str, size):
        self._run = run
        self._id = blob_id
        self._size = size
        self._at = 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._at

    def seek(self, offset, whence=_os.SEEK_SET):
        if whence == _os.SEEK_CUR:
            offset += self._at
        elif whence == _os.SEEK_END:
            if self._size is None:
                raise _io.UnsupportedOperation("the size of %s is not known" % self._id)
            offset += self._size
        if offset < 0:
            raise ValueError("a position before the begin of %s" % self._id)
        self._at = offset
        return offset

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")
        request = {"id": self._id, "offset": self._at, "len": min(len(view), _PIECE_BYTES)}
        data = _call(self._run, lambda channel: channel.fetch(b"G", request))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self):
        pieces = []
        while True:
            piece = self.read(_PIECE_BYTES)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)


def _raw(blob_id: str):
    """An unbuffered file of a blob that this run may read."""
    run = _state.require("runtime.blobs")
    file = _file_of_input(run, blob_id)
    if file is not None:
        try:
            return _io.FileIO(file, "rb")
        except FileNotFoundError:
            pass  # a sandbox that gives input blobs through the channel only
    return _CreatedBlob(run, blob_id, run.created.get(blob_id))


def _file_of_input(run, blob_id):
    """The path of an input blob, None for one of the run's own; others are refused."""
    if not isinstance(blob_id, str):
        raise TypeError("a blob id is a str, not %s" % type(blob_id).__name__)
    if blob_id in run.created:
        return None
    if blob_id in run.input_blobs:
        return _os.path.join(run.layout.blobs, blob_id[len("blob:") :])
    hint = "" if blob_id.startswith("blob:") else " (an id begins with 'blob:')"
    raise BlobNotFound(
        _ENOENT, "this run cannot read that blob: its id must be in input_blobs of the call%s" % hint, blob_id
    )


def _call(run, exchange):
    """One exchange with the sandbox; its refusals as exceptions of this module."""
    try:
        return exchange(run.channel)
    except _Refused as refused:
        error, message = refused.error, refused.message
    if error == "not_found":
        raise BlobNotFound(_ENOENT, message)
    if error == "too_large":
        raise BlobTooLarge(_EFBIG, message)
    if error == "disk_full":
        raise DiskFull(_ENOSPC, message)
    raise BlobError(_EIO, "%s: %s" % (error, message))

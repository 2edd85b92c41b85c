"""The run's channel to the sandbox: length-prefixed frames over one stream socket.

A frame is a u32 little-endian length of what follows, one byte of type, and the payload. The guest asks one thing
at a time and each request is answered; the result is the last frame and is not. The descriptor belongs to the
process that was started: user code can break it (by closing it, say), and then the run fails and says so, rather
than sending a result into whatever file got the number.
"""

from __future__ import annotations

import os
from _thread import RLock
from json import dumps as _dumps
from json import loads as _loads

JOB_BYTES_MAX = 24 * 1024 * 1024
FRAME_BYTES_MAX = 1024 * 1024 + 64 * 1024
DATA_BYTES_MAX = 1024 * 1024
_RESULT_WAIT_S = 5.0
_FIRST_READ_BYTES = 4096

_IDLE, _WRITING, _READING, _CLOSED = range(4)

# Bound now: user code may replace the names in `os` (a test double, a mistake), and the result must still go out.
_read, _readv, _writev, _fstat, _getpid = os.read, os.readv, os.writev, os.fstat, os.getpid


class ChannelLost(ConnectionError):
    """The channel is gone or in an unknown state; nothing more can be asked or told."""


class Refused(Exception):
    """The sandbox answered with an error. `error` is one of the protocol's words, `message` is for people."""

    def __init__(self, error: str, message: str):
        super().__init__(message)
        self.error = error
        self.message = message


class Channel:
    """One end of the channel. Safe to use from several threads; not from a forked child."""

    def __init__(self, fd: int):
        os.set_inheritable(fd, False)
        os.set_blocking(fd, True)
        self._fd = fd
        self._identity = self._identify()
        self._pid = _getpid()
        self._lock = RLock()
        self._state = _IDLE

    # -- requests ---------------------------------------------------------------------------------------------

    def receive_job(self) -> dict:
        """The first frame. ValueError (or RecursionError) when its JSON is beyond what Python reads."""
        self._check()
        # Nothing follows before it is answered, so most jobs come with one read.
        try:
            frame = _read(self._fd, _FIRST_READ_BYTES)
        except OSError as cause:
            raise ChannelLost("the run's channel is closed: %s" % cause) from None
        if len(frame) < 5:
            frame += self._read(5 - len(frame))
        end = 4 + self._length(frame[:4], JOB_BYTES_MAX)
        if len(frame) < end:
            frame += self._read(end - len(frame))
        if frame[4:5] != b"J":
            raise ChannelLost("the first frame is %r and not a job" % frame[4:5])
        return _loads(str(memoryview(frame)[5:end], "utf-8"))

    def call(self, kind: bytes, *parts) -> dict:
        """A request that is answered with JSON."""
        return _loads(self._exchange(kind, b"O", parts))

    def call_json(self, kind: bytes, request: dict) -> dict:
        return self.call(kind, _dumps(request).encode("utf-8"))

    def fetch(self, kind: bytes, request: dict) -> bytes:
        """A request that is answered with bytes."""
        return bytes(self._exchange(kind, b"D", (_dumps(request).encode("utf-8"),)))

    def finish(self, payload: bytes) -> None:
        """Sends the result. The channel can send nothing afterwards, from no thread."""
        # A request of another thread may be under way; the sandbox answers it, so this wait is short.
        if not self._lock.acquire(True, _RESULT_WAIT_S):
            raise ChannelLost("another thread holds the channel")
        # The lock is never given back: threads that still run must not speak after the result.
        if self._state in (_WRITING, _CLOSED):
            raise ChannelLost("a request was interrupted half-way")
        self._send(b"R", (payload,))
        self._state = _CLOSED

    @property
    def is_owner(self) -> bool:
        """Whether this is the process that was started, and not a forked child of it."""
        return _getpid() == self._pid

    # -- frames -----------------------------------------------------------------------------------------------

    def _exchange(self, kind: bytes, expected: bytes, parts):
        with self._lock:
            if not self.is_owner:
                raise RuntimeError("runtime.blobs works in the first process of the run, not in a forked child")
            if self._state != _IDLE:
                raise RuntimeError(
                    "the run's channel cannot be used here: a signal handler interrupted or re-entered a runtime call"
                )
            # Whatever is raised between here and the end (by a signal handler, say) leaves the state where it
            # was, so that nobody takes the rest of this exchange for the next one.
            self._state = _WRITING
            self._send(kind, parts)
            self._state = _READING
            answer, payload = self._receive(FRAME_BYTES_MAX)
            self._state = _IDLE
        if answer == expected:
            return payload
        if answer == b"E":
            error = _loads(payload)
            raise Refused(str(error.get("error")), str(error.get("message")))
        raise ChannelLost("the sandbox answered %r to %r" % (answer, kind))

    def _send(self, kind: bytes, parts) -> None:
        self._check()
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        header = (sum(len(view) for view in views) + 1).to_bytes(4, "little") + kind
        views.insert(0, memoryview(header))
        while views:
            try:
                sent = _writev(self._fd, views)
            except OSError as cause:
                raise ChannelLost("the run's channel is closed: %s" % cause) from None
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _receive(self, bytes_max: int):
        self._check()
        frame = self._read(self._length(self._read(4), bytes_max))
        return bytes(frame[:1]), memoryview(frame)[1:].tobytes()

    @staticmethod
    def _length(header: bytes, bytes_max: int) -> int:
        length = int.from_bytes(header, "little")
        if not 1 <= length <= bytes_max:
            raise ChannelLost("a frame of %d bytes, where 1 to %d are allowed" % (length, bytes_max))
        return length

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            try:
                got = _readv(self._fd, [view])
            except OSError as cause:
                raise ChannelLost("the run's channel is closed: %s" % cause) from None
            if not got:
                raise ChannelLost("the sandbox has closed the run's channel")
            view = view[got:]
        return buffer

    def _identify(self):
        status = _fstat(self._fd)
        return status.st_dev, status.st_ino

    def _check(self) -> None:
        """Refuses when the number now names another file: user code closed the channel and opened something."""
        try:
            same = self._identify() == self._identity
        except OSError:
            same = False
        if not same:
            raise ChannelLost("the code has closed the run's channel (descriptor %d)" % self._fd)

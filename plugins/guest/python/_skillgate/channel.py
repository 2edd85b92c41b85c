"""The run's channel to the sandbox: length-prefixed frames over one stream socket.

A frame is a u32 little-endian length of what follows, one byte of type, and the payload. The first is the job, in JSON;
if its `compiled` is not empty the second is what that is the index of (`compiled.keep`). The guest asks one thing at a time and each request is answered; the result is the last frame and is not. The descriptor belongs to the
process that was started: user code can break it (by closing it, say), and then the run fails and says so, rather
than sending a result into whatever file got the number.
"""

from __future__ import annotations

import os
from _thread import RLock
from json import JSONDecoder

from .strict_json import dumps

JOB_BYTES_MAX = 24 * 1024 * 1024
FRAME_BYTES_MAX = 1024 * 1024 + 64 * 1024
DATA_BYTES_MAX = 1024 * 1024
_RESULT_WAIT_S = 5.0
_HEADER_BYTES = 5

_IDLE, _WRITING, _READING, _CLOSED = range(4)

# Bound now: user code may replace the names in `os` (a test double, a mistake), and the result must still go out.
_read, _writev, _fstat, _getpid = os.read, os.writev, os.fstat, os.getpid
_decode = JSONDecoder().raw_decode


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
        self._fd = fd
        self._identity = _identity(_fstat(fd))
        self._pid = _getpid()
        self._lock = RLock()
        self._state = _IDLE
        # The parts of the frame that is being sent, and how many bytes of it each write has sent.
        self._leaving = (), []

    # -- requests ---------------------------------------------------------------------------------------------

    def receive_job(self) -> dict:
        """The first frame. ValueError (or RecursionError) when its JSON is beyond what Python reads."""
        kind, payload = self._receive(JOB_BYTES_MAX)
        if kind != b"J":
            raise ChannelLost("the first frame is %r and not a job" % kind)
        return _value(payload)

    def receive_code(self) -> bytes:
        """The second frame, if the job's `compiled` says that there is one."""
        kind, payload = self._receive(FRAME_BYTES_MAX)
        if kind != b"K":
            raise ChannelLost("the second frame is %r and not compiled code" % kind)
        return payload

    def call(self, kind: bytes, *parts) -> dict:
        """A request that is answered with JSON."""
        return _value(self._exchange(kind, b"O", parts))

    def call_json(self, kind: bytes, request: dict) -> dict:
        return self.call(kind, dumps(request))

    def fetch(self, kind: bytes, request: dict) -> bytes:
        """A request that is answered with bytes."""
        return self._exchange(kind, b"D", (dumps(request),))

    def keep(self) -> None:
        """No other thread can send anything afterwards: the lock is never given back."""
        # A request of another thread may be under way; the sandbox answers it, so this wait is short.
        if not self._lock.acquire(True, _RESULT_WAIT_S):
            raise ChannelLost("another thread holds the channel")

    def finish(self, payload: bytes) -> None:
        """Sends the result. The channel can send nothing afterwards, from no thread."""
        # Threads that still run must not speak after the result.
        self.keep()
        if self._state == _CLOSED:
            raise ChannelLost("the result has been sent already")
        if any(self._leaving[1]):
            # A request was interrupted half-way: the sandbox takes the result when it has the whole of that.
            self._check()
            self._write_rest()
        self._send(b"R", (payload,))
        self._state = _CLOSED

    @property
    def is_owner(self) -> bool:
        """Whether this is the process that was started, and not a forked child of it."""
        return _getpid() == self._pid

    # -- frames -----------------------------------------------------------------------------------------------

    def _exchange(self, kind: bytes, expected: bytes, parts):
        # Before the lock: a thread that had it at the fork is not in the child, which would wait for ever.
        if not self.is_owner:
            raise RuntimeError("runtime.blobs works in the first process of the run, not in a forked child")
        with self._lock:
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
            error = _value(payload)
            raise Refused(str(error.get("error")), str(error.get("message")))
        raise ChannelLost("the sandbox answered %r to %r" % (answer, kind))

    def _send(self, kind: bytes, parts) -> None:
        self._check()
        length = 1
        for part in parts:
            length += len(part)
        self._leaving = (length.to_bytes(4, "little") + kind, *parts), []
        self._write_rest()

    def _write_rest(self) -> None:
        """Sends what is left of a frame."""
        parts, sent = self._leaving
        while True:
            rest = _behind(parts, sum(sent))
            if not rest:
                break
            try:
                # All in one call: a signal handler that raises right after it does not take the count with it.
                sent.extend(map(_writev, (self._fd,), (rest,)))
            except OSError as cause:
                if _is_of_a_handler(cause):
                    raise
                raise ChannelLost("the run's channel is closed: %s" % cause) from None
        self._leaving = (), []

    def _receive(self, bytes_max: int):
        """Type and payload of the next frame."""
        self._check()
        header = self._exactly(_HEADER_BYTES)
        length = int.from_bytes(header[:4], "little")
        if not 1 <= length <= bytes_max:
            raise ChannelLost("a frame of %d bytes, where 1 to %d are allowed" % (length, bytes_max))
        return header[4:], self._exactly(length - 1)

    def _exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            try:
                piece = _read(self._fd, count)
            except OSError as cause:
                if _is_of_a_handler(cause):
                    raise
                raise ChannelLost("the run's channel is closed: %s" % cause) from None
            if not piece:
                raise ChannelLost("the sandbox has closed the run's channel")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)  # the one piece itself, as a rule

    def _check(self) -> None:
        """Refuses when the number now names another file: user code closed the channel and opened something."""
        try:
            found = _identity(_fstat(self._fd))
        except OSError as cause:
            if _is_of_a_handler(cause):
                raise
            found = None
        if found != self._identity:
            raise ChannelLost("the code has closed the run's channel (descriptor %d)" % self._fd)


class NoChannel(Channel):
    """Of a process that the run has started anew (`spawned`): it has none, and is answered as a forked one is."""

    is_owner = False

    def __init__(self):
        pass


def _behind(parts, count: int) -> list:
    """What comes after so many bytes."""
    rest = []
    for part in parts:
        if count < len(part):
            rest.append(memoryview(part)[count:] if count else part)
        count = max(0, count - len(part))
    return rest


def _identity(status):
    return status.st_dev, status.st_ino


def _is_of_a_handler(cause: OSError) -> bool:
    """Whether a signal handler has raised it (TimeoutError, say): a call of the system's has no frame of its own."""
    return cause.__traceback__.tb_next is not None


def _value(payload: bytes):
    """The JSON of a frame. `json.loads` does the same, and looks for other encodings and for white space before."""
    text = payload.decode("utf-8")
    value, end = _decode(text)
    if end != len(text):
        raise ValueError("text behind the JSON of a frame")
    return value

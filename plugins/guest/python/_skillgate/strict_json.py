"""JSON out of untrusted Python values: compact, UTF-8, and nothing that is not JSON.

`json.dumps` prints NaN, lone surrogates and doubled keys, and believes subclasses that lie about their content.
This walk reads containers at the level of C, refuses what JSON cannot say, and names the path of the value. It
gives bytes to a sink in pieces, so a large value is never held as text whole.
"""

from __future__ import annotations

import sys
from json.encoder import encode_basestring as _quote  # not the ASCII one: characters stay as they are

from .text import one_line, type_name

DEPTH_MAX = 100
_PATH_CHARS_MAX = 200
_PIECE_BYTES = 64 * 1024

_str_encode = str.encode
_dict_items = dict.items
_list_iter = list.__iter__
_tuple_iter = tuple.__iter__
_int_repr = int.__repr__
_int_float = int.__float__
_float_repr = float.__repr__

# What to do instead, by the name of the class.
_HINTS = {
    "bytes": "decode it, or store it with runtime.blobs.write_bytes and return the id",
    "bytearray": "decode it, or store it with runtime.blobs.write_bytes and return the id",
    "set": "return a list",
    "frozenset": "return a list",
    "generator": "return a list of its items",
    "datetime": "return its isoformat()",
    "date": "return its isoformat()",
    "Decimal": "return a str or a float",
    "coroutine": "await it",
}


class NotSerializable(TypeError):
    """A value that JSON cannot say. The text names its path, what it is and what to do."""


def dumps(value) -> bytes:
    """The JSON of a value of ours, for the channel. `json.dumps` asks a class that the code may have changed."""
    return Encoder(None, sys.maxsize).encode(value)


class Encoder:
    """Writes one value to `sink`, a function that takes bytes. The first `inline_bytes` bytes may stay with the
    encoder: `encode` gives them back when the whole value is no longer, and the sink was then never called."""

    def __init__(self, sink, inline_bytes: int = 0):
        self._sink = sink
        self._buffer = bytearray()
        self._piece_bytes = max(_PIECE_BYTES, inline_bytes + 1)
        self._inline_bytes = inline_bytes
        self._flushed = False
        self._path = []
        self._open = set()

    def encode(self, value):
        """The JSON as bytes when it fits inline, else None, and the sink has all of it."""
        self._value(value)
        if not self._flushed and len(self._buffer) <= self._inline_bytes:
            return bytes(self._buffer)
        self._flush()
        return None

    def _value(self, value) -> None:
        put = self._buffer
        kind = type(value)
        if value is None:
            put += b"null"
        elif value is True:
            put += b"true"
        elif value is False:
            put += b"false"
        elif issubclass(kind, str):
            put += self._string(value, "string")
        elif issubclass(kind, int):
            put += self._integer(value)
        elif issubclass(kind, float):
            text = _float_repr(value)
            if text in ("nan", "inf", "-inf"):
                raise self._refusal("is %s, which JSON does not have: return None or a string" % text)
            put += text.encode("ascii")
        elif issubclass(kind, dict):
            self._object(value)
        elif issubclass(kind, list):
            self._array(value, _list_iter)
        elif issubclass(kind, tuple):
            self._array(value, _tuple_iter)
        else:
            name = type_name(kind)
            hint = _HINTS.get(name, "convert it to str, int, float, bool, None, list or dict")
            raise self._refusal("is of type %s, which is not JSON: %s" % (name, hint))
        if len(put) >= self._piece_bytes:
            self._flush()

    def _object(self, value) -> None:
        self._enter(value)
        put = self._buffer
        put += b"{"
        # A copy: another thread may still change the dict.
        pairs = list(_dict_items(value))
        # Equal keys in one dict take a subclass of str with its own __eq__.
        seen = None
        for key, _ in pairs:
            if type(key) is not str:
                seen = set()
                break
        first = True
        for key, item in pairs:
            if not issubclass(type(key), str):
                raise self._refusal("has a key of type %s: JSON keys are strings" % type_name(type(key)))
            if not first:
                put += b","
            first = False
            name = self._string(key, "key")
            if seen is not None:
                if name in seen:
                    raise self._refusal("has the key %s twice" % one_line(name.decode("utf-8"), 60))
                seen.add(name)
            put += name
            put += b":"
            self._path.append(key)
            self._value(item)
            self._path.pop()
        put += b"}"
        self._open.discard(id(value))

    def _array(self, value, iterate) -> None:
        self._enter(value)
        put = self._buffer
        put += b"["
        for index, item in enumerate(iterate(value)):
            if index:
                put += b","
            self._path.append(index)
            self._value(item)
            self._path.pop()
        put += b"]"
        self._open.discard(id(value))

    def _enter(self, value) -> None:
        if id(value) in self._open:
            raise self._refusal("contains itself")
        if len(self._path) >= DEPTH_MAX:
            raise self._refusal("is nested more than %d levels deep" % DEPTH_MAX)
        self._open.add(id(value))

    def _string(self, value, what: str) -> bytes:
        try:
            raw = _str_encode(value, "utf-8")
        except UnicodeEncodeError as cause:
            raise self._refusal(
                "%s a lone surrogate at position %d, which is not text"
                % ("is a string with" if what == "string" else "has a key with", cause.start)
            ) from None
        return _quote(raw.decode("utf-8")).encode("utf-8")

    def _integer(self, value) -> bytes:
        # Most readers, the gateway among them, keep numbers as doubles. What one holds has fewer digits than Python's own
        # least limit for a text of an integer.
        try:
            _int_float(value)
        except OverflowError:
            raise self._refusal("is an integer beyond 1.8e308, the end of a double: return it as a string") from None
        return _int_repr(value).encode("ascii")

    def _flush(self) -> None:
        self._flushed = True
        if self._buffer:
            self._sink(bytes(self._buffer))
            del self._buffer[:]

    def _refusal(self, why: str) -> NotSerializable:
        return NotSerializable("the value at %s %s" % (_pointer(self._path), why))


def _pointer(path) -> str:
    text = "$"
    for step in path:
        if type(step) is int:
            text += "[%d]" % step
        else:
            key = _str_encode(step, "utf-8", "backslashreplace").decode("utf-8")
            text += "." + key if key.isidentifier() else "[%s]" % _quote(key[:_PATH_CHARS_MAX])
        if len(text) > 2 * _PATH_CHARS_MAX:
            break
    return one_line(text, _PATH_CHARS_MAX)

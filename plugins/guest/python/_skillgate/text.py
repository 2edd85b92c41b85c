"""Text from untrusted objects: real characters, no lone surrogates, a known length."""

from __future__ import annotations

# C-level, so that a subclass of str cannot answer for itself.
_encode = str.encode
_getitem = str.__getitem__
_type_name = type.__dict__["__name__"].__get__
_type_qualname = type.__dict__["__qualname__"].__get__

TYPE_CHARS_MAX = 128


def plain(text: str) -> str:
    """The same text as an exact str that UTF-8 can carry; lone surrogates become `\\udc80`."""
    return _encode(text, "utf-8", "backslashreplace").decode("utf-8")


def one_line(text: str, chars_max: int) -> str:
    """At most `chars_max` characters, all printable."""
    text = plain(_getitem(text, slice(0, chars_max + 1)))
    text = "".join(c if c.isprintable() else " " for c in text).strip()
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def type_name(cls: type) -> str:
    """The class's own name, whatever its metaclass says; one line."""
    return one_line(_type_name(cls), TYPE_CHARS_MAX) or "Exception"


def type_qualname(cls: type) -> str:
    return one_line(_type_qualname(cls), TYPE_CHARS_MAX) or type_name(cls)


def cut_middle(text: str, bytes_max: int) -> str:
    """Head and tail of `text` in at most about `bytes_max` bytes of UTF-8, never inside a character."""
    data = text.encode("utf-8")
    if len(data) <= bytes_max:
        return text
    head, tail = bytes_max * 3 // 8, bytes_max * 5 // 8 - 64
    return "%s\n... [%d bytes left out] ...\n%s" % (
        data[:head].decode("utf-8", "ignore"),
        len(data) - head - tail,
        data[-tail:].decode("utf-8", "ignore"),
    )

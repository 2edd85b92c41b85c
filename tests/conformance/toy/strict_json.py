"""JSON that keeps what it was given: members that are there twice are marked, and half a character is an error."""

import json


class Twice(ValueError):
    """A key of an object in which a name is there twice."""


def marked(pairs):
    members = dict(pairs)
    if len(members) != len(pairs):
        members[Twice] = True
    return members


def has_twins(value):
    if isinstance(value, dict):
        return Twice in value or any(has_twins(v) for v in value.values())
    return isinstance(value, list) and any(has_twins(v) for v in value)


def no_constant(name):
    raise ValueError(name)


def read(text, twins=marked, replace=False):
    """`twins` makes an object of its members; with `replace` half a character becomes another."""
    value = json.loads(text, object_pairs_hook=twins, parse_constant=no_constant)
    if replace:
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    if "\\u" in text:
        json.dumps(list(strings(value)), ensure_ascii=False).encode("utf-8")  # lone surrogates
    return value


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key is not Twice:
                yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)

"""Greets somebody."""

from runtime import log

NAME_CHARS_MAX = 200


def main(args):
    greeting = greet(args.get("name", "world"))
    log.info(greeting)
    return {"greeting": greeting}


def greet(name):
    """`Ada` -> `Hello, Ada!`"""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"name is not a text of 1 to {NAME_CHARS_MAX} characters: {name!r:.80}")
    return f"Hello, {name}!"

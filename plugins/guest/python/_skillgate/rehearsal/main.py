"""The skill of a rehearsal: a little of what most skills do."""

import os

from runtime import log


def main(args):
    greeting = greet(args.get("name", "world"))
    log.info(greeting)
    return {"greeting": greeting, "numbers": [1, 2.5, None, True], "separator": os.sep}


def greet(name):
    if not isinstance(name, str):
        raise ValueError(f"name is no text: {name!r:.80}")
    return f"Hello, {name}!"

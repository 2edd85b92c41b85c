"""The skill of a rehearsal: a little of what most skills do."""

import json

from runtime import log


def main(args):
    greeting = greet(args.get("name", "world"))
    log.info(greeting)
    return {"greeting": greeting, "numbers": json.loads("[1, 2.5, null, true]")}


def greet(name):
    if not isinstance(name, str):
        raise ValueError(f"name is no text: {name!r:.80}")
    return f"Hello, {name}!"

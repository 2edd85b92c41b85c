"""The little YAML that the suite's front matter is written in."""

import json
import re


def front_matter_of(lines):
    """A mapping of the little YAML that the cases write: blocks by their indentation, `>`, and JSON with bare words."""
    out, n = {}, 0
    while n < len(lines):
        key, _, value = lines[n].partition(":")
        inner = []
        for line in lines[n + 1:]:
            if not line.startswith("  "):
                break
            inner.append(line[2:])
        n += 1 + len(inner)
        if value.strip() == ">":
            out[key] = " ".join(inner) + "\n"
        elif inner and inner[0].startswith("- "):
            out[key] = [scalar(item[2:]) for item in inner]
        else:
            out[key] = front_matter_of(inner) if inner else scalar(value.strip())
    return out


def scalar(text):
    if text[:1] not in ("{", "["):
        return json.loads(text) if text.startswith('"') else text

    def quoted(word):
        return word[0] if word[0] in ("true", "false", "null") or word[0].startswith('"') else json.dumps(word[0])

    return json.loads(re.sub(r'"[^"]*"|[A-Za-z][\w. -]*', quoted, text))

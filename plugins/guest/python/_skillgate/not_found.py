"""The words of an import below `skills` that finds nothing: what to write instead.

Skills are given as the job has them, by the whole names of their modules.
"""

from __future__ import annotations

from keyword import iskeyword
from typing import Dict, Iterator, List, Optional

_LISTED_MAX = 20
_MEANT_MAX = 3


def not_mounted(wanted: str, skills: Dict[str, dict], can_be_named: bool) -> str:
    """`can_be_named`: whoever calls has a parameter for it."""
    meant = _mounted_instead(wanted, skills)
    if meant:
        return "skill %r is not mounted%s" % (wanted, meant)
    text = "skill %r is not mounted: " % wanted
    if can_be_named:
        text += "add it to mount_skills"
    else:
        text += "execute_skill mounts the skill alone that it executes; call that from run_code, with both in mount_skills"
    names = sorted(full for full, skill in skills.items() if skill["entrypoint"])
    if names:
        more = len(names) - _LISTED_MAX
        text += " (mounted: %s%s)" % (", ".join(names[:_LISTED_MAX]), ", and %d more" % more if more > 0 else "")
    return text


def no_module(wanted: str, full: str, skills: Dict[str, dict], names: dict, neighbours: frozenset) -> str:
    """Of one in a skill: `wanted` in that whose module is `full` and has `names`."""
    skill = skills[full]
    text = "skill %r has no module %r" % (skill["name"], wanted)
    parts, path = wanted.split("."), _path(skill)
    own = "%s: %s itself is the module of %s: %%s" % (text, full, skill["entrypoint"])
    if parts == path[: len(parts)]:
        return own % _import_of(full, skill)
    folder = path[:-1]
    is_as_filed = bool(folder) and parts[: len(folder)] == folder
    inside = parts[len(folder) :] if is_as_filed else parts
    if inside == ["main"] or inside == [skill["function"]]:
        return own % _import_of(full, skill)
    if is_as_filed and inside[0] in neighbours:
        return text + ": it is `%s.%s`, without `%s.`" % (full, ".".join(inside), ".".join(folder))
    if len(inside) == 1 and inside[0] in names:
        return own % _import_of(full, skill, inside[0])
    # One whose name begins with this one's, perhaps.
    return text + _mounted_instead("%s.%s" % (skill["name"], wanted), skills)


def outside(directory: str, name: str, depth: int) -> str:
    """For a module that has written `from ..name import`, with dots that lead out of its skill. `depth`: in how many packages
    of the skill it is."""
    text = "a skill's modules are found in the directory of its entrypoint (%s) and below: " % directory
    head, _, rest = name.partition(".")
    if head == directory.rpartition("/")[2]:
        name = rest
    else:
        text += "move %s there and " % ("`%s`" % head if head else "it")
    return text + "write `from %s%s import ...`" % ("." * (1 + max(0, depth)), name)


def _mounted_instead(wanted: str, skills: Dict[str, dict]) -> str:
    meant = ("%s: %s" % (skills[full]["name"], _import_of(full, skills[full])) for full in _meant(wanted, skills))
    told = ", and ".join(meant)
    return "; mounted is " + told if told else ""


def _meant(wanted: str, skills: Dict[str, dict]) -> List[str]:
    """Modules of skills whose name has been spelled otherwise; of those that have it as their begin or end few, or none."""
    whole, part = [], []
    for full, skill in sorted(skills.items()):
        spellings = set(_spellings(wanted, skill))
        words = skill["name"].split(".")
        if _plain(skill["name"]) in spellings:
            whole.append(full)
        elif any(_plain("".join(words[n:])) in spellings or _plain("".join(words[:n])) in spellings for n in range(1, len(words))):
            part.append(full)
    found = whole or part
    return found if len(found) <= _MEANT_MAX else []


def _spellings(wanted: str, skill: dict) -> Iterator[str]:
    """`wanted`, and without what at its end names a part of the skill."""
    parts, ends = wanted.split("."), {"main", skill["function"], *_path(skill)}
    yield _plain(wanted)
    while len(parts) > 1 and parts.pop() in ends:
        yield _plain("".join(parts))


def _plain(name: str) -> str:
    return name.replace(".", "").replace("-", "").replace("_", "").lower()


def _path(skill: dict) -> List[str]:
    """`code/main.py` -> `["code", "main"]`; of an instruction skill nothing."""
    entrypoint = skill["entrypoint"] or ""
    return (entrypoint[:-3] if entrypoint.endswith(".py") else entrypoint).split("/") if entrypoint else []


def _import_of(full: str, skill: dict, name: Optional[str] = None) -> str:
    if not skill["entrypoint"]:
        return "an instruction skill, which has files to read and no code to import"
    name = name or skill["function"]
    if all(part.isidentifier() and not iskeyword(part) for part in full.split(".")):
        return "`from %s import %s`" % (full, name)
    return "`importlib.import_module(%r).%s`" % (full, name)

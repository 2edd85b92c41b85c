"""The words of an import below `skills` that finds nothing: what to write instead."""

from __future__ import annotations

_LISTED_MAX = 20


def not_mounted(wanted: str, mounted: list, can_be_named: bool) -> str:
    """`can_be_named`: whoever calls has a parameter for it."""
    text = "skill %r is not mounted: " % wanted
    if can_be_named:
        text += "add it to mount_skills"
    else:
        text += "execute_skill mounts the skill alone that it executes; call that from run_code, with both in mount_skills"
    if mounted:
        names, more = sorted(mounted), len(mounted) - _LISTED_MAX
        text += " (mounted: %s%s)" % (", ".join(names[:_LISTED_MAX]), ", and %d more" % more if more > 0 else "")
    return text


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

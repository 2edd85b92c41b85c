"""What belongs to the one run of this process. Empty until `serve` fills it."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional


class Layout(NamedTuple):
    """Where things are inside the sandbox."""

    skills: str = "/skills"
    blobs: str = "/blobs"
    workspace: str = "/workspace"
    tmp: str = "/tmp"


class Run:
    """The current run, as the package `runtime` sees it."""

    def __init__(self, channel, layout: Layout, job: dict):
        self.channel = channel
        self.layout = layout
        # What a process that it starts anew (`spawned`) is told of it.
        self.job = {name: job.get(name) for name in ("code", "skill", "skills", "function", "blobs", "processors")}
        self.function = str(job["function"])
        self.input_blobs = tuple(job.get("blobs") or ())
        # Of the blobs made by this run: id -> size in bytes, in the order in which they were made.
        self.created: Dict[str, int] = {}
        # Of those that `blobs.path` has copied out: id -> path.
        self.spooled: Dict[str, str] = {}
        self.summary: Optional[str] = None


current: Optional[Run] = None


def require(what: str) -> Run:
    """The current run, or an error that says where `what` works."""
    if current is None:
        raise RuntimeError("%s works inside a skillgate run only" % what)
    return current

"""Helpers for code that runs in skillgate: skills and `run_code` programs.

    from runtime import blobs, log
    import runtime

    def main(args):
        rows = blobs.read_text(args["csv_blob"]).splitlines()   # a blob of `input_blobs`
        log.info(f"{len(rows)} rows")                           # a line of logs_preview
        report = blobs.write_json({"rows": rows})               # becomes one of output_blobs
        runtime.summary(f"Read {len(rows)} rows.")              # the run's one-line summary
        return {"rows": len(rows), "report": report}            # small: at most 4 KB as JSON

`runtime.blobs`   read input blobs, make new ones
`runtime.log`     lines for the run's log
`runtime.run`     this run: `id`, `args`, `deadline`, `remaining()`
`runtime.summary` what happened, in one sentence for people
"""

from _skillgate import state as _state
from _skillgate.text import plain as _plain

from . import blobs, log, run
from .blobs import BlobError, BlobNotFound, BlobTooLarge, DiskFull

__all__ = ["BlobError", "BlobNotFound", "BlobTooLarge", "DiskFull", "blobs", "log", "run", "summary"]


def summary(text: str) -> None:
    """Sets the run's summary: one or two sentences that say what was done ("Synced 742 leads (5 failed).").

    The last call counts. At most 1000 characters are kept. Without a call, a string at the key "summary" of the
    returned dict is taken.
    """
    if not isinstance(text, str):
        raise TypeError("summary takes a str, not %s" % type(text).__name__)
    _state.require("runtime.summary").summary = _plain(text)

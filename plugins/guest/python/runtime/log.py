"""Lines for the run's log, which the caller gets as `logs_preview` (at most 2 KB of it).

    log.info("connected")      ->  [info] connected

`print` goes to the same place. Do not log secrets.
"""

import os as _os
import sys as _sys

__all__ = ["debug", "error", "info", "warning"]

_write = _os.write


def debug(msg) -> None:
    """For whoever debugs the code."""
    _line("debug", msg)


def info(msg) -> None:
    """What is going on."""
    _line("info", msg)


def warning(msg) -> None:
    """Something is not as it should be, and the run goes on."""
    _line("warning", msg)


def error(msg) -> None:
    """Something failed. The run goes on: raise an exception to fail it."""
    _line("error", msg)


def _line(level: str, msg) -> None:
    # Every line of a text gets the mark, so that none can look like another call's.
    text = "".join("[%s] %s\n" % (level, line) for line in str(msg).splitlines() or [""])
    for name in ("stdout", "stderr"):
        try:
            getattr(_sys, name).flush()  # what was printed before comes before
        except (AttributeError, OSError, ValueError):
            continue  # closed or replaced by the code
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    try:
        while data:
            # Straight to the descriptor: a redirected sys.stderr does not lose log lines.
            data = data[_write(2, data) :]
    except OSError:
        pass  # the code has closed it; a lost line must not fail the run

"""Starts one run: `python -I -S -B bootstrap.py`, with the channel to the sandbox at descriptor 3.

A launcher that keeps warm interpreters imports this file instead, calls `warm()` once, forks, and calls
`prepare(fd)` and `serve()` in the child, with a `rehearse()` between the two if nobody waits for it. Importing it makes
no state that belongs to a run. After `warm()` the launcher leaves `os.environ` and the builtins as they are.
"""

import os.path
import sys

_LIBRARY = os.path.dirname(os.path.abspath(__file__))
if _LIBRARY not in sys.path:
    # At the end: nothing here may shadow the standard library.
    sys.path.append(_LIBRARY)

if __name__ != "__main__":
    # To be forked from. What is imported from here on is what each run uses: that lies side by side, too.
    from _skillgate.memory import fill_gaps

    fill_gaps()

from _skillgate.main import prepare, rehearse, serve, warm  # noqa: E402  (needs the path above)

__all__ = ["prepare", "rehearse", "serve", "warm"]

CHANNEL_FD = 3

if __name__ == "__main__":
    serve(prepare(CHANNEL_FD))

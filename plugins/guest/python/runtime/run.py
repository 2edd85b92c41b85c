"""This run.

`id`        the run's id, "run_...": use it as an idempotency key towards other systems
`args`      the arguments, the same dict that the entrypoint gets
`deadline`  when the run will be ended, in Unix seconds, or None
`remaining` seconds until then
"""

from time import monotonic as _monotonic
from time import time as _time
from typing import Any, Dict, Optional

__all__ = ["args", "deadline", "id", "remaining"]

id: str = ""
args: Dict[str, Any] = {}
deadline: Optional[float] = None
_ends: Optional[float] = None


def remaining() -> Optional[float]:
    """Seconds until the run is ended, never below 0; None when there is no deadline."""
    return None if _ends is None else max(0.0, _ends - _monotonic())


def _begin(run_id: str, timeout_ms: Optional[int], arguments: Optional[dict], deadline_ns: Optional[int] = None) -> None:
    """`deadline_ns`: by the clock of `time.monotonic`. Without it the time begins now."""
    global id, args, deadline, _ends
    id = run_id
    args = {} if arguments is None else arguments
    if timeout_ms is not None:
        now = _monotonic()
        _ends = now + timeout_ms / 1000 if deadline_ns is None else deadline_ns / 1e9
        deadline = _time() + (_ends - now)

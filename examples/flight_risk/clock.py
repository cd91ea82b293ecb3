"""The replay clock: the holdout's days at wall speed, so that a feature that is fresh for 30 s is so here too."""

from __future__ import annotations

import os
import time
from functools import cache

REPLAY = "FLIGHT_RISK_REPLAY"
STILL = float("inf")
"""The wall time of a replay that does not move."""
DEFAULT_START = 1387573200
"""Friday 20 December 2013, 16:00 in New York: the last weekend before Christmas begins."""


def now() -> float:
    """Seconds since the epoch, in the holdout.

    FLIGHT_RISK_REPLAY="<start in the holdout>@<wall time of the start>" sets it, both in seconds since the epoch, so
    that several processes share a clock. Without it the replay starts when this process first asks. With the start
    alone the clock stands still there: answers can be compared.
    """
    start, wall = anchor()
    return start if wall == STILL else start + time.time() - wall


@cache
def anchor() -> tuple[float, float]:
    """Return where the replay starts in the holdout, and when in wall time.

    Raises:
        ValueError: FLIGHT_RISK_REPLAY is malformed.
    """
    text = os.environ.get(REPLAY)
    if not text:
        return float(DEFAULT_START), time.time()
    start, moves, wall = text.partition("@")
    try:
        return float(start), float(wall) if moves else STILL
    except ValueError:
        raise ValueError(
            f"{REPLAY} is {text!r}, expected one number, or two with @ between\n\n"
            f"hint: {REPLAY}={DEFAULT_START}@$(date +%s)"
        ) from None


def replay_from_now() -> str:
    """Return a value for FLIGHT_RISK_REPLAY: the one that is set, else the default day, beginning now."""
    return os.environ.get(REPLAY) or f"{DEFAULT_START}@{time.time():.3f}"

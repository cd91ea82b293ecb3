"""Memory that keeps growing: by an amount that matters, and without slowing down.

Caches and pools grow, too, and then stop. So a span is cut into quarters, and each must have a lowest value well above
that of the one before. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from tailcut.observe.alerts.rules import Finding, Level

_MIB = 1024.0**2
_LEAST_BYTES = 32 * _MIB
_DAY_MINUTES = 24 * 60
_LEAST_MINUTES = 8
_LEAST_PROJECTED = 25
"""Minutes from which on growth is projected over a day."""
_STEADY_SHARE = 1 / 6
"""Of all growth, what each of the three steps between quarters must have: half of what it has if growth is even."""


class _Growth(NamedTuple):
    """Bytes at the beginning of a span and what was added, each step of it."""

    minutes: int
    base: float
    grown: float
    is_steady: bool


class MemoryGrowth:
    """A sample of memory per minute of the last day. For one thread.

    Args:
        limit: bytes that the process may have; infinity where there is no limit.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._samples: deque[float] = deque(maxlen=_DAY_MINUTES)

    def add(self, value: float) -> None:
        """Add the bytes of a minute after the warm-up."""
        self._samples.append(value)

    def find(self, share: float) -> Finding | None:
        """Judge the whole time, its second half, and so on; None with too few samples.

        Args:
            share: of the memory at the beginning of a span, by which it must have grown.
        """
        samples, minutes, found = np.array(self._samples), len(self._samples), []
        while minutes >= _LEAST_MINUTES:
            found.append(_growth(samples[-minutes:]))
            minutes //= 2
        if not found:
            return None
        worst = max(found, key=lambda each: (self._is_leak(each, share), each.is_steady, each.grown))
        level: Level = "bad" if self._is_leak(worst, share) else "between" if worst.is_steady else "good"
        text = (
            f"memory of the server and its executors grew by {worst.grown / _MIB:.0f} MiB from {worst.base / _MIB:.0f} "
            f"MiB in {worst.minutes} min and goes on"
        )
        if self._limit < float("inf"):
            text += f"; the limit is {self._limit / _MIB:.0f} MiB"
        percent = 100 * worst.grown / max(worst.base, 1.0)
        return Finding("memory_leak", "", "", "ticket", level, percent, 100 * share, "memory", text)

    def _is_leak(self, growth: _Growth, share: float) -> bool:
        if not growth.is_steady:
            return False
        per_day = growth.grown / (0.75 * growth.minutes) * _DAY_MINUTES
        is_near = growth.minutes >= _LEAST_PROJECTED and growth.base + growth.grown + per_day >= self._limit
        return growth.grown >= share * growth.base or is_near


def _growth(samples: np.ndarray) -> _Growth:
    lows = np.array([quarter.min() for quarter in np.array_split(samples, 4)])
    grown = float(lows[-1] - lows[0])
    is_steady = grown >= _LEAST_BYTES and float(np.diff(lows).min()) >= _STEADY_SHARE * grown
    return _Growth(len(samples), float(lows[0]), grown, is_steady)

"""How much longer than expected one batch in twenty takes: the upper quantile of the last hundred."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 100
_BEYOND = 5
"""Of the last hundred batches, five may lie beyond the upper quantile."""

FIRST_LATE = 1.1
"""The upper quantile as long as little is known."""

_MOST = 3.0


class TailQuantile:
    """The last batches of a kind, by what they took over what was expected of them."""

    __slots__ = ("_ratios", "_sorted")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, ratio: float) -> None:
        """Take in a batch: its time over what was expected."""
        ratios, ordered = self._ratios, self._sorted
        if len(ratios) == _WINDOW:
            del ordered[bisect_left(ordered, ratios.popleft())]
        ratios.append(ratio)
        insort(ordered, ratio)

    @property
    def late(self) -> float:
        """The upper quantile, 1 to 3.

        The largest never counts: where a server starts, one of its first ten batches is often twice as long.
        """
        count = len(self._sorted)
        if count <= _BEYOND:
            return FIRST_LATE
        return min(max(self._sorted[-1 - max(count * _BEYOND // _WINDOW, 1)], 1.0), _MOST)

"""Fixed-bucket histograms that cost one bisection to count into, exposed only when somebody scrapes.

A histogram object with locks per stage would cost more than the stages themselves at 10,000 requests a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil

LATENCY_BOUNDS_NS: tuple[int, ...] = (
    *(round(step * 10**exponent * 1000) for exponent in range(7) for step in (1, 2.5, 5)),
    10_000_000_000,
)
"""Upper bounds from 1 microsecond to 10 seconds, three a decade: wide enough for a cache hit and for a time-out."""

ROW_BOUNDS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds for batch sizes in rows."""


class Histogram:
    """Counts of values at or below each bound, with the sum; the last count holds what lies above every bound.

    Args:
        bounds: ascending upper bounds (inclusive, as Prometheus has them).
        counts, total: of values that were counted elsewhere.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(
        self, bounds: tuple[int, ...] = LATENCY_BOUNDS_NS, counts: list[int] | None = None, total: int = 0
    ) -> None:
        if any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"bounds must ascend, got {bounds}")
        self.bounds = bounds
        self.counts = counts or [0] * (len(bounds) + 1)
        self.total = total

    def add(self, value: int, times: int = 1) -> None:
        """Count a value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add_all(self, places: Sequence[int], total: int) -> None:
        """Count values that were looked up already.

        Args:
            places: of each value, the index of the first bound that it does not exceed.
            total: their sum.
        """
        counts = self.counts
        for place in places:
            counts[place] += 1
        self.total += total

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return, per bound and then for infinity, how many values were at or below it."""
        return list(accumulate(self.counts))


def quantile_of(counts: Sequence[int], bounds: Sequence[int], share: float) -> int:
    """Return the bound that at least ``share`` of the counted values are at or below; 0 where none was counted.

    Args:
        counts: per bound, not cumulative, and one more for what lies above every bound: such count as the last bound.
    """
    wanted = ceil(sum(counts) * share)
    place = bisect_left(list(accumulate(counts)), wanted)
    return bounds[min(place, len(bounds) - 1)] if wanted else 0

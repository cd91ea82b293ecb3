"""What a batch takes: the base of planning, of admission and of Retry-After. Learned in ``core.learning``.

Expected times lie on points at 1, 2, 4, ... rows with straight lines between: models whose larger batches grow dearer
than in proportion (caches overflow) are met as well as those with a base cost. Beside what is expected stands how much
longer a batch may take: the 95th percentile of what was seen over what was expected, and how long a hiccup lasts.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple, Protocol


class CostSource(Protocol):
    """Knows what batches take: ``core.learning.Costs``, or one ``Cost`` for all kinds."""

    def of(self, kind: int, /) -> Cost: ...


class Cost(NamedTuple):
    """What batches take, as known at one moment, in nanoseconds.

    Attributes:
        base_ns, row_ns: the line ``base_ns + row_ns * rows``, where there are no points.
        points: expected at 1, 2, 4, ... rows; never falling.
        late: upper quantile of a batch's time over what was expected of it; at least 1.
        hiccup_ns: how much longer than expected a batch takes that is an outlier; 0 where there were none lately.
        steps: batch sizes that the runtime has prepared, ascending: a batch costs what the next larger one costs.
    """

    base_ns: float
    row_ns: float
    points: tuple[float, ...] = ()
    late: float = 1.0
    hiccup_ns: float = 0.0
    steps: tuple[int, ...] = ()

    def of(self, kind: int) -> Cost:
        """Return itself: where all rows are of one kind, a cost may stand for all of them."""
        return self

    def batch_ns(self, rows: float) -> float:
        """Return what is expected of a batch; 0 where nothing is known."""
        if self.steps:
            rows = self.padded(rows)
        points = self.points
        if not points:
            return self.base_ns + self.row_ns * rows
        if rows < 1:
            return points[0] * rows
        place = int(rows).bit_length() - 1
        if place + 1 >= len(points):
            return points[-1] * rows / (1 << (len(points) - 1))
        lower = 1 << place
        return points[place] + (points[place + 1] - points[place]) * (rows - lower) / lower

    def late_ns(self, rows: float) -> float:
        """Return what a batch takes at most, in nineteen of twenty cases."""
        return self.late * self.batch_ns(rows)

    def drain_ns(self, rows: float, batch_rows: float) -> float:
        """Return the time of ``rows`` in batches of ``batch_rows``, one after the other."""
        full, rest = divmod(rows, batch_rows)
        return full * self.batch_ns(batch_rows) + (self.batch_ns(rest) if rest else 0.0)

    def worth_rows(self, rows: int) -> int:
        """Return how many of ``rows`` should share the next batch: all, unless fewer rows each cost clearly less.

        Fewer do where the runtime would fill the batch up to a much larger prepared size, and where large batches are
        dearer than in proportion.
        """
        if rows < 2 or not (self.steps or self.points):
            return rows
        best, best_ns = rows, self.batch_ns(rows) / rows
        for smaller in self._smaller(rows):
            each_ns = self.batch_ns(smaller) / smaller
            if each_ns < best_ns * (_WORTH if best == rows else 1.0):
                best, best_ns = smaller, each_ns
        return best

    def _smaller(self, rows: int) -> list[int]:
        """Sizes below ``rows`` that are worth a thought, largest first."""
        if self.steps:
            return [step for step in reversed(self.steps) if step < rows]
        return [1 << power for power in range((rows - 1).bit_length() - 1, -1, -1)]

    def padded(self, rows: float) -> float:
        """Rows that the runtime computes for ``rows``: full largest batches, and the rest filled up."""
        steps = self.steps
        full, rest = divmod(rows, steps[-1])
        return full * steps[-1] + (steps[bisect_left(steps, rest)] if rest else 0)


_WORTH = 0.95
"""A smaller batch must cost at most this part, per row."""

FREE = Cost(0.0, 0.0)
"""Nothing is known: every deadline that has not passed can be met."""


def left_ns(passed_ns: float, rows: int, cost: Cost) -> float:
    """Return what a batch still takes that has run for ``passed_ns``.

    Once it has taken longer than nineteen of twenty do, it is taken for a hiccup like those that were seen.
    """
    expected_ns = cost.batch_ns(rows)
    if cost.hiccup_ns and passed_ns > cost.late * expected_ns:
        expected_ns += cost.hiccup_ns
    return max(expected_ns - passed_ns, 0.0)

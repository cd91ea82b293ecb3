"""What a batch takes: the base of planning, of admission and of Retry-After. Learned in ``scheduler.latency_learner``.

Expected times lie on points at 1, 2, 4, ... rows with straight lines between: models whose larger batches grow dearer
than in proportion (caches overflow) are met as well as those with a base cost. Beside what is expected stands how much
longer a batch may take: the 95th percentile of what was seen over what was expected, and how long a hiccup lasts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, Protocol


class CostSource(Protocol):
    """Knows what batches take: ``scheduler.latency_learner.Costs``, or one ``BatchCost`` for all kinds."""

    def of(self, kind: int, /) -> BatchCost: ...


class BatchCost(NamedTuple):
    """What batches take, as known at one moment, in nanoseconds.

    Attributes:
        base_ns, row_ns: the line ``base_ns + row_ns * rows``, where there are no points.
        points: expected at 1, 2, 4, ... rows; never falling.
        late: upper quantile of a batch's time over what was expected of it; at least 1.
        hiccup_ns: how much longer than expected a batch takes that is an outlier; 0 where there were none lately.
        shaped: whether lone rows and batches were both seen: before, how much batching gains is only guessed.
        steps: batch sizes that the runtime has prepared, ascending: a batch costs what the next larger one costs.
        doubts: part of each point by which it may be less than is known.
        fears: part of each point by which it may be more, where no batch of its size has shown it.
        short_late: ``late`` of batches of which less than ``fine_ns`` is expected. What else runs on their core for
            some milliseconds is much to a lone row, and nothing to a large batch that would be judged by it.
        fine_ns: see ``short_late``.
    """

    base_ns: float
    row_ns: float
    points: tuple[float, ...] = ()
    late: float = 1.0
    hiccup_ns: float = 0.0
    steps: tuple[int, ...] = ()
    shaped: bool = False
    doubts: tuple[float, ...] = ()
    fears: tuple[float, ...] = ()
    short_late: float = 1.0
    fine_ns: float = 0.0

    def of(self, kind: int) -> BatchCost:
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
        expected_ns = self.batch_ns(rows)
        return expected_ns + self.spread_ns(expected_ns)

    def spread_ns(self, expected_ns: float) -> float:
        """Return how much longer than so expected one batch in twenty takes."""
        return ((self.late if expected_ns >= self.fine_ns else self.short_late) - 1.0) * expected_ns

    def sure_ns(self, left_ns: float) -> float:
        """Return what may be expected of a batch that ends within ``left_ns`` in nineteen of twenty cases."""
        sure_ns = left_ns / self.late
        return sure_ns if sure_ns >= self.fine_ns else min(left_ns / self.short_late, self.fine_ns)

    def drain_ns(self, rows: float, batch_rows: float) -> float:
        """Return the time of ``rows`` in batches of ``batch_rows``, one after the other."""
        full, rest = divmod(rows, batch_rows)
        return full * self.batch_ns(batch_rows) + (self.batch_ns(rest) if rest else 0.0)

    def worth_rows(self, rows: int, least: int = 1, *, tried: bool = True, busy_rows: int = 0) -> int:
        """Return how many of ``rows`` should share the next batch.

        With m rows a batch, the mean row waits ``T(m) (rows / m + 1) / 2``; what that costs more of the executor's
        time than the best size, those who come later wait for, taken to be ``_FOLLOWERS`` times as many, or as many as
        ran since an executor was idle: what has lasted for long will last for as long again. So all share it where that
        saves much, and else do not wait for the slowest of them to little avail; and sizes are avoided that the runtime
        would mostly fill up, or that are dearer than in proportion.

        Args:
            least: no batch can be smaller: the first request brings so many.
            tried: it may be a size of which little is known; else such a size is taken to be dearer than it seems.
            busy_rows: that ran since an executor was idle and nothing waited.
        """
        if rows < 2 or not self.shaped:
            return rows
        whole_ns = self.batch_ns(rows)
        if whole_ns < _SHORT_NS:
            return rows
        sizes = self._sizes(rows, least)
        each_ns = self._each_ns(sizes, self._hoped_ns if tried else self._feared_ns)
        least_ns = min(each_ns)
        followers = rows * min(max(busy_rows / rows, _FOLLOWERS), _MOST_FOLLOWERS)
        waits = [
            each * (rows + size) / 2 + followers * (each - least_ns) for size, each in zip(sizes, each_ns, strict=True)
        ]
        return sizes[waits.index(min(waits))]

    def full_rows(self, rows: int, least: int = 1, *, tried: bool = False) -> int:
        """Return how many of at most ``rows`` share a batch where all that counts is how much is done.

        The most of them, but for sizes that are dearer by the row than a smaller one.

        Args:
            least: as for ``worth_rows``.
            tried: as for ``worth_rows``; not where no batch is to run.
        """
        if rows < 2 or not self.shaped:
            return rows
        sizes = self._sizes(rows, least)
        each_ns = self._each_ns(sizes, self._hoped_ns if tried else self.batch_ns)
        limit_ns = _NO_DEARER * min(each_ns)
        return next(size for size, each in zip(sizes, each_ns, strict=True) if each <= limit_ns)

    @staticmethod
    def _each_ns(sizes: list[int], batch_ns: Callable[[int], float]) -> list[float]:
        """What a row takes of batches of these sizes."""
        return [batch_ns(size) / size for size in sizes]

    def _hoped_ns(self, rows: int) -> float:
        """Return the least that a batch may take: sizes of which little is known are so tried now and then.

        Else a size that once seemed dear, by a hiccup or in a slow minute, would never be seen again.
        """
        if not self.doubts:
            return self.batch_ns(rows)
        return self.batch_ns(rows) * (1.0 - self._between(self.doubts, rows))

    def _feared_ns(self, rows: int) -> float:
        """Return the most that a batch may take on average, for where no size is to be tried.

        Else large batches of which nothing is known but a guess run in bursts, when all wait for them to no avail. A
        size that has run once, in warm-up for one, is not feared any more.
        """
        if not self.fears:
            return self.batch_ns(rows)
        return self.batch_ns(rows) * (1.0 + self._between(self.fears, rows))

    def _between(self, parts: tuple[float, ...], rows: int) -> float:
        """Return what holds for a size of what is known of the points."""
        place, share = self._place(rows)
        return parts[place] + share * (parts[place + 1] - parts[place]) if share else parts[place]

    def _place(self, rows: int) -> tuple[int, float]:
        """Where a size stands among the points, and how far on the way to the next; 0 at the last."""
        size = int(self.padded(rows)) if self.steps else rows
        place = size.bit_length() - 1
        if place + 1 >= len(self.points):
            return len(self.points) - 1, 0.0
        return place, size / (1 << place) - 1.0

    def _sizes(self, rows: int, least: int) -> list[int]:
        """``rows``, and smaller sizes from ``least`` on that are worth a thought, largest first."""
        sizes = reversed(self.steps) if self.steps else [1 << power for power in range(rows.bit_length(), -1, -1)]
        return [rows, *[size for size in sizes if least <= size < rows]]

    def padded(self, rows: float) -> float:
        """Rows that the runtime computes for ``rows``: full largest batches, and the rest filled up."""
        steps = self.steps
        full, rest = divmod(rows, steps[-1])
        return full * steps[-1] + (steps[bisect_left(steps, rest)] if rest else 0)


_SHORT_NS = 2_000_000.0
"""Batches up to this long are not divided: what the event loop does for each of them is no longer small beside it."""

_FOLLOWERS = 8.0
"""Found by simulation of loads from 0.3 to 0.95 of the capacity, steady and in bursts: with so many no latency
percentile was worse than with largest batches, and where batching gains ten percent the p95 was a tenth lower."""

_MOST_FOLLOWERS = 64.0
"""Beyond that what is known of two sizes is not exact enough."""

DRIFT = 1.05
"""What is promised rests on batches that take this much longer than expected: so far off is the mean of twenty batches
that vary by a fifth."""

_NO_DEARER = 1.02
"""What is learned of two sizes differs by so much although they cost the same. (With five percent batches of eight were
taken instead of four, which on two cores of a Zen 4 cost four percent less by the row, texts of 128 tokens.)"""

FREE = BatchCost(0.0, 0.0)
"""Nothing is known: every deadline that has not passed can be met."""


def left_ns(passed_ns: float, rows: int, cost: BatchCost) -> float:
    """Return what a batch still takes that has run for ``passed_ns``.

    Once it has taken longer than nineteen of twenty do, it may be a hiccup like those that were seen, or a little late.
    Which one shows with time only: it is taken to need twice as long again as it has run, as far as that is no more
    than such a hiccup. (Of times with a tail that falls as the square, Pareto's, one in nine that have lasted so long
    lasts longer than that.) To take each for the longest hiccup would refuse all who come while a short batch is a
    millisecond late.
    """
    expected_ns = cost.batch_ns(rows)
    if cost.hiccup_ns and passed_ns > expected_ns + cost.spread_ns(expected_ns):
        expected_ns = min(expected_ns + cost.hiccup_ns, 3 * passed_ns)
    return max(expected_ns - passed_ns, 0.0)

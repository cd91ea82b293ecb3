"""What batches take, learned from every one that ends; per length class where rows differ in length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from math import log2

from tailcut.scheduler.latency_model import FREE, Cost
from tailcut.scheduler.latency_table import LatencyTable, nearest

_OUTLIER = 3.0
"""A batch of a known size that takes more than this many times the expected time is a hiccup."""

_OUTLIER_FLOOR_NS = 1_000_000.0
"""No batch up to this long is a hiccup."""

_KNOWN_TIMES = 2
"""From so many batches of a size on the next may be called late."""

_KNOWN_BATCHES = 5
"""From this many batches on there is an expectation that a hiccup can be measured by."""

_FINE = 8
"""Batches of which less is expected than this part of the largest are late by a measure of their own: a lone row that
took 13 ms instead of 7, because something else ran on its core, says nothing of batches that take 250."""

_FEAR = 0.1
"""A size that no batch has shown, but those of other sizes or kinds, may be so much dearer than it seems."""

_FIRST_HICCUP = 4.0
_ERA = 2000
"""Batches after which a hiccup begins to be forgotten; after twice as many it is."""


class CostModel:
    """Learns what the batches of one kind take.

    ``scheduler.latency_table`` predicts the time of each size. This class learns how much longer than that one in
    twenty takes, and how long hiccups are.

    Args:
        steps: see ``Cost``.
        run_rows: rows of the largest run of the model, where larger batches run as several (``runtimes.sliced``): they
            cost no more by the row, and a hiccup is one run's; 0 where batches run whole.
    """

    __slots__ = (
        "_batches",
        "_cost",
        "_era",
        "_late",
        "_run_rows",
        "_short",
        "_steps",
        "_table",
        "_worst",
    )

    def __init__(self, steps: tuple[int, ...] = (), *, run_rows: int = 0) -> None:
        self._steps = steps
        self._run_rows = run_rows
        self._batches = 0
        self._table = LatencyTable()
        self._late = TailQuantile()
        self._short = TailQuantile()
        self._era = 0
        self._worst = [[0.0, 0.0], [0.0, 0.0]]
        self._cost: Cost | None = FREE

    def seed(self, points: Mapping[int, float], *, octaves: float = 0.0) -> None:
        """Start from what was measured elsewhere: rows -> nanoseconds (warm-up, the registry's evidence).

        Args:
            octaves: of rows of another kind, so many times twice as long, or half; 0 for those of its own.
        """
        if not points:
            return
        for rows in sorted(points):
            self._learn(rows, points[rows])
        if octaves:
            self._table.distrust(octaves)
        self._batches = max(self._batches, min(len(points), _KNOWN_BATCHES))
        self._cost = None

    def observe(self, rows: int, duration_ns: float) -> None:
        """Learn from one finished batch."""
        self._batches += 1
        ratio, before = self._learn(rows, duration_ns)
        if before >= _KNOWN_TIMES:
            # That the first of its size took longer than was guessed says nothing of the next.
            expected_ns = max(duration_ns, 1.0) / ratio
            largest_ns = self._table.expected_ns(1 << max(self._table.sizes))
            (self._late if expected_ns >= largest_ns / _FINE else self._short).add(ratio)
        self._cost = None

    @property
    def cost(self) -> Cost:
        """What is known now; ``FREE`` before the first batch."""
        cost = self._cost
        return cost if cost is not None else self._fit()

    def _learn(self, rows: int, duration_ns: float) -> tuple[float, int]:
        """Learn from a batch; return how many times longer than expected it took, and how many of its size had run."""
        duration_ns = max(duration_ns, 1.0)
        if self._steps:
            rows = int(Cost(0.0, 0.0, steps=self._steps).padded(rows))
        before = self._count(nearest(rows))
        ratio = self._table.learn(rows, duration_ns)
        if before and ratio > _OUTLIER and duration_ns > _OUTLIER_FLOOR_NS and self._batches > _KNOWN_BATCHES:
            self._remember_hiccup(duration_ns * (1.0 - 1.0 / ratio))
        return ratio, before

    def _count(self, power: int) -> int:
        """Return how many batches have run of a size, given as a power of two."""
        size = self._table.sizes.get(power)
        return size.count if size is not None else 0

    def _remember_hiccup(self, longer_ns: float) -> None:
        """Keep the two longest hiccups of this era and of the one before."""
        if self._batches - self._era > _ERA:
            self._era = self._batches
            self._worst = [[0.0, 0.0], self._worst[0]]
        self._worst[0] = sorted([*self._worst[0], longer_ns])[1:]

    def _fit(self) -> Cost:
        points = self._table.points
        variances = self._table.variances
        counts = [self._count(power) for power in range(len(points))]
        for at in range(len(points) - 2, -1, -1):
            # Of two that contradict each other the one that less is known of is wrong.
            known = [points[more] for more in range(at + 1, len(points)) if variances[more] < variances[at]]
            points[at] = min([points[at], *known, *([] if counts[at] else points[at + 1 : at + 2])])
        for at in range(1, len(points)):
            points[at] = max(points[at], points[at - 1])
            if 0 < self._run_rows < 1 << at and not counts[at]:
                points[at] = min(points[at], 2 * points[at - 1])
        if self._batches - self._era > 2 * _ERA:
            self._worst = [[0.0, 0.0], [0.0, 0.0]]
        # The second longest: what happened once in thousands of batches is no habit of this machine.
        hiccup_ns = sorted([*self._worst[0], *self._worst[1]])[-2]
        if self._batches < _ERA:
            # Machines have hiccups: until it is known how long they are here, the first should not break a promise.
            hiccup_ns = max(hiccup_ns, _FIRST_HICCUP * self._run_ns(points))
        base_ns = max(2 * points[0] - points[1], 0.0) if len(points) > 1 else 0.0
        shaped = len(points) > 1 and 0 in self._table.sizes
        fears = tuple([0.0 if count else _FEAR for count in counts])
        sizes = (self._steps, shaped, tuple(self._table.doubts), fears)
        lates = (self._short.late, points[-1] / _FINE)
        row_ns = points[0] - base_ns
        cost = self._cost = Cost(base_ns, row_ns, tuple(points), self._late.late, hiccup_ns, *sizes, *lates)
        return cost

    def _run_ns(self, points: Sequence[float]) -> float:
        """Return the time of the largest run: a hiccup lengthens one run of a sliced batch, not all of them."""
        return points[min(nearest(self._run_rows), len(points) - 1)] if self._run_rows else points[-1]


class LatencyLearner:
    """The cost models of one variant: one per kind of rows, where kinds differ (length classes of padded rows).

    Args:
        steps, run_rows: see ``CostModel``.
    """

    __slots__ = ("_make", "_models", "_only")

    def __init__(self, steps: tuple[int, ...] = (), *, run_rows: int = 0) -> None:
        self._make = partial(CostModel, steps, run_rows=run_rows)
        self._only = self._make()
        self._models: dict[int, CostModel] = {0: self._only}

    @property
    def cost(self) -> Cost:
        """Of the rows of a variant whose rows are all of one kind."""
        return self._only.cost

    def of(self, kind: int) -> Cost:
        """Return what batches of a kind take; of an unknown kind, from the nearest known one in proportion."""
        if not kind:
            return self._only.cost
        model = self._models.get(kind)
        return model.cost if model is not None else self._guess(kind)

    def seed(self, points: Mapping[int, float], kind: int = 0) -> None:
        """See ``CostModel.seed``."""
        self._model(kind).seed(points)

    def observe(self, rows: int, duration_ns: float, kind: int = 0) -> None:
        """See ``CostModel.observe``."""
        (self._model(kind) if kind else self._only).observe(rows, duration_ns)

    def _model(self, kind: int) -> CostModel:
        model = self._models.get(kind)
        if model is None:
            model = self._make()
            points = {1 << place: point for place, point in enumerate(self._guess(kind).points)}
            nearest = self._nearest(kind)
            model.seed(points, octaves=abs(log2(kind / nearest)) if nearest else 1.0)
            self._models[kind] = model
        return model

    def _nearest(self, kind: int) -> int:
        """Return the kind of which something is known that is most like a kind; 0 where there is none."""
        known = [each for each, model in self._models.items() if each and model.cost.points]
        return min(known, key=lambda each: max(each / kind, kind / each), default=0)

    def _guess(self, kind: int) -> Cost:
        nearest = self._nearest(kind)
        if not nearest:
            return self._only.cost
        cost = self._models[nearest].cost
        # Shorter rows are not taken to cost less than half: what does not depend on the length is not known.
        scale = max(kind / nearest, 0.5)
        return cost._replace(
            base_ns=scale * cost.base_ns,
            row_ns=scale * cost.row_ns,
            points=tuple([scale * point for point in cost.points]),
            hiccup_ns=scale * cost.hiccup_ns,
            fine_ns=scale * cost.fine_ns,
        )


def kind_of(elements: int) -> int:
    """Return the length class of rows with so many elements: rounded up to 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    if elements <= 2:
        return max(elements, 1)
    half = 1 << ((elements - 1).bit_length() - 2)
    return 3 * half if elements <= 3 * half else 4 * half


# -- The tail's quantile -----------------------------------------------------------------------------------------------


# How much longer than expected one batch in twenty takes: the upper quantile of the last hundred.

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

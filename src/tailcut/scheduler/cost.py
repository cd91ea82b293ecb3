"""Batch times: as planned with, and learned from every batch; per length class where rows differ in length."""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import exp, log, log2, sqrt
from typing import NamedTuple, Protocol

# The base of planning, of admission and of Retry-After. Expected times lie on points at 1, 2, 4, ... rows with straight
# lines between: models whose larger batches grow dearer than in proportion (caches overflow) are met as well as those
# with a base cost. Beside what is expected stands how much longer a batch may take: the 95th percentile of what was
# seen over what was expected, and how long a hiccup lasts.


class CostSource(Protocol):
    """Knows what batches take: ``LatencyLearner``, or one ``BatchCost`` for all kinds."""

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
        each_ns = [(self._hoped_ns(size) if tried else self._feared_ns(size)) / size for size in sizes]
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
        each_ns = [(self._hoped_ns(size) if tried else self.batch_ns(size)) / size for size in sizes]
        limit_ns = _NO_DEARER * min(each_ns)
        return next(size for size, each in zip(sizes, each_ns, strict=True) if each <= limit_ns)

    def _hoped_ns(self, rows: int) -> float:
        """Return the least that a batch may take: sizes of which little is known are so tried now and then.

        Else a size that once seemed dear, by a hiccup or in a slow minute, would never be seen again.
        """
        return self.batch_ns(rows) * (1.0 - self._between(self.doubts, rows))

    def _feared_ns(self, rows: int) -> float:
        """Return the most that a batch may take on average, for where no size is to be tried.

        Else large batches of which nothing is known but a guess run in bursts, when all wait for them to no avail. A
        size that has run once, in warm-up for one, is not feared any more.
        """
        return self.batch_ns(rows) * (1.0 + self._between(self.fears, rows))

    def _between(self, parts: tuple[float, ...], rows: int) -> float:
        """Return what holds for a size of what is known of the points; 0 where nothing is."""
        size = int(self.padded(rows)) if self.steps else rows
        place = size.bit_length() - 1
        if place + 1 >= len(parts):
            return parts[-1] if parts else 0.0
        return parts[place] + (size / (1 << place) - 1.0) * (parts[place + 1] - parts[place])

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

    ``LatencyTable`` predicts the time of each size. This class learns how much longer than that one in
    twenty takes, and how long hiccups are.

    Args:
        steps: see ``BatchCost``.
        run_rows: rows of the largest run of the model, where larger batches run as several (``runtimes.sliced``): they
            cost no more by the row, and a hiccup is one run's; 0 where batches run whole.
    """

    def __init__(self, steps: tuple[int, ...] = (), *, run_rows: int = 0) -> None:
        self._steps = steps
        self._run_rows = run_rows
        self._batches = 0
        self._table = LatencyTable()
        self._late = TailQuantile()
        self._short = TailQuantile()
        self._era = 0
        self._worst = [[0.0, 0.0], [0.0, 0.0]]
        self._cost: BatchCost | None = FREE

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
    def cost(self) -> BatchCost:
        """What is known now; ``FREE`` before the first batch."""
        cost = self._cost
        return cost if cost is not None else self._fit()

    def _learn(self, rows: int, duration_ns: float) -> tuple[float, int]:
        """Learn from a batch; return how many times longer than expected it took, and how many of its size had run."""
        duration_ns = max(duration_ns, 1.0)
        if self._steps:
            rows = int(BatchCost(0.0, 0.0, steps=self._steps).padded(rows))
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

    def _fit(self) -> BatchCost:
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
            # A hiccup lengthens one run of a sliced batch, not all of them.
            largest = min(nearest(self._run_rows), len(points) - 1) if self._run_rows else -1
            hiccup_ns = max(hiccup_ns, _FIRST_HICCUP * points[largest])
        base_ns = max(2 * points[0] - points[1], 0.0) if len(points) > 1 else 0.0
        shaped = len(points) > 1 and 0 in self._table.sizes
        fears = tuple([0.0 if count else _FEAR for count in counts])
        sizes = (self._steps, shaped, tuple(self._table.doubts), fears)
        lates = (self._short.late, points[-1] / _FINE)
        row_ns = points[0] - base_ns
        cost = self._cost = BatchCost(base_ns, row_ns, tuple(points), self._late.late, hiccup_ns, *sizes, *lates)
        return cost


class LatencyLearner:
    """The cost models of one variant: one per kind of rows, where kinds differ (length classes of padded rows).

    Args:
        steps, run_rows: see ``CostModel``.
    """

    def __init__(self, steps: tuple[int, ...] = (), *, run_rows: int = 0) -> None:
        self._make = partial(CostModel, steps, run_rows=run_rows)
        self._only = self._make()
        self._models: dict[int, CostModel] = {0: self._only}

    @property
    def cost(self) -> BatchCost:
        """Of the rows of a variant whose rows are all of one kind."""
        return self._only.cost

    def of(self, kind: int) -> BatchCost:
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

    def _guess(self, kind: int) -> BatchCost:
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


# -- Latency table -----------------------------------------------------------------------------------------------------


# Predicted batch times: a table by size, 1, 2, 4, ... rows, times one speed factor that all sizes share. The speed is
# learned and forgotten within some twenty batches, and at once where batches agree that it changed. The table changes
# slowly: the fewer batches of a size have run, the more of an error is the size's. Each is a weighted mean of
# logarithms, with a variance that says how much the next error counts.

_UNKNOWN, _KIND, _KIND_STEP, _STEP = 4.0, 0.1, 0.015, 0.06
"""Variances. Of a size that has never run. Where the table is of rows of another length: of the speed, and of a size
for each doubling of rows (a third, and an eighth). Of a size for each doubling of rows where the table proved wrong."""

_SPEED, _SHAPE = 0.0025, 2e-6
"""Variance that each batch adds. To the speed, as a part of the noise: the last twenty batches count. To each size: a
tenth more or less within five thousand."""

_DEAR, _LATER = 0.3, 1e-3
"""A size whose last batch took so much longer may have met a hiccup. Its variance grows by so much with each batch, so
that a size which seems twice as dear as it is runs again within some five hundred."""

_FASTER, _SLOW, _USUAL, _RESTLESS = 4.0, 0.15, 5e-5, 0.5
"""No hiccup makes a batch faster. If the machine is slower than usual by more than ``_SLOW``, one batch that is faster
by so many times the noise says that it has recovered. The speed stays uncertain for a few batches, in case it has not.
What lasts for twenty thousand batches becomes usual."""

_NOISE, _LEAST_NOISE, _MOST_NOISE, _LEARNS_NOISE, _SIGMAS = 0.0025, 0.0012, 0.04, 0.02, 3.0
"""Variance of one batch: a twentieth at first, and from a thirtieth to a fifth. An error counts as at most three times
its standard deviation: one hiccup says little."""

_RUN, _NEWS, _WRONG = 3, 0.05, 1.0
"""Three errors in a row of one sign, each larger than the noise and five percent, are a change. If each is a factor of
three, the table is wrong as well."""


_FOLLOWS = 100
"""What sizes that run have in common is shared by those that do not: half of it by one that last ran so many batches
ago. In a slow spell the speed rises, and later the sizes that run are corrected downwards. A size that does not run
would keep the higher speed and rise with each spell."""


@dataclass(slots=True)
class SizeTime:
    """The logarithm of a size's time in nanoseconds at speed 0, its variance, and how many batches of it have run.

    ``ran_at`` is the number of its last batch.
    """

    log: float
    variance: float = _UNKNOWN
    growth: float = _SHAPE
    count: int = 0
    ran_at: int = 0


class LatencyTable:
    """Learns the times of batches of one kind; ``sizes`` holds those known, by the power of two of their rows."""

    def __init__(self) -> None:
        self.sizes: dict[int, SizeTime] = {}
        self._noise = self._variance = _NOISE
        self._speed = self._slow = self._restless = 0.0
        self._last = self._batches = 0
        self._errors: dict[int, list[float]] = {}

    def distrust(self, octaves: float) -> None:
        """Doubt all times: they are of rows of another kind, so many times twice as long, or half."""
        self._variance, self._last = _KIND, 0
        for power, size in self.sizes.items():
            size.variance, size.count = _KIND_STEP * max(octaves, 1.0) ** 2 * power, 0

    @property
    def points(self) -> list[float]:
        """Expected times of 1, 2, 4, ... rows."""
        known = self._known()
        return [_on_line(known, 1 << power) for power in range(max(self.sizes, default=-1) + 1)]

    @property
    def variances(self) -> list[float]:
        """Variance of the logarithm of each point, the speed aside."""
        sizes = range(max(self.sizes, default=-1) + 1)
        return [self.sizes[at].variance if at in self.sizes else _UNKNOWN for at in sizes]

    @property
    def doubts(self) -> list[float]:
        """Part of each point, one standard deviation, by which it may be less; 0 for the size that ran last."""
        return [0.0 if at == self._last else 1.0 - exp(-sqrt(each)) for at, each in enumerate(self.variances)]

    def expected_ns(self, rows: int) -> float:
        """Return the time on a straight line between the nearest known sizes; beyond the largest, in proportion."""
        return _on_line(self._known(), rows)

    def _known(self) -> list[tuple[int, float]]:
        """Return rows and expected times of the known sizes, ascending, from (0, 0.0) on."""
        return [(0, 0.0), *sorted((1 << at, exp(size.log + self._speed)) for at, size in self.sizes.items())]

    def learn(self, rows: int, duration_ns: float) -> float:
        """Learn from a batch; return how many times longer than expected it took."""
        at, noise = nearest(rows), self._noise
        if at not in self.sizes:
            guess_ns = self.expected_ns(1 << at) if self.sizes else duration_ns / rows * (1 << at)
            self.sizes[at] = SizeTime(log(guess_ns) - self._speed)
        size, ratio = self.sizes[at], duration_ns / self.expected_ns(rows)
        error, known = log(ratio), size.count > 0
        if known:
            self._age(at, error)
        total = self._variance + size.variance + noise
        most = max(_SIGMAS * sqrt(max(total - self._restless, noise)), sqrt(self._restless) + _SIGMAS * sqrt(noise))
        cut = min(max(error, -most), most)
        faster = cut * self._variance / total
        self._speed += faster
        self._variance *= 1.0 - self._variance / total
        self._batches += 1
        own = cut * size.variance / total
        rests = {power: self._rests(other) for power, other in self.sizes.items() if power != at}
        shared = own / (1.0 + len(rests) - sum(rests.values())) if known else 0.0
        for power, other in self.sizes.items():
            if power == at or (power > at and not known and not other.count):  # larger guesses follow the first batch
                other.log += own
            else:
                other.log += shared * rests[power]
        told = 1.0 if known or not error else cut / error  # what is cut from a first error is left to the second
        size.variance *= 1.0 - told * size.variance / total
        if known:
            self._slow = max(self._slow + faster, 0.0) * (1.0 - _USUAL)
            learned = noise + _LEARNS_NOISE * (min(error**2, _SIGMAS**2 * noise) - noise)
            self._noise = min(max(learned, _LEAST_NOISE), _MOST_NOISE)
        size.growth = _LATER if error > max(_DEAR, _SIGMAS * sqrt(noise)) else _SHAPE
        size.count, size.ran_at, self._last = size.count + 1, self._batches, at
        return ratio

    def _rests(self, size: SizeTime) -> float:
        """Return how far a size follows those that run, near 0 for the one that ran last, up to 1."""
        passed = self._batches - size.ran_at
        return passed / (passed + _FOLLOWS)

    def _age(self, at: int, error: float) -> None:
        """Add to the variances what may have changed since the last batch."""
        beyond = _FASTER * sqrt(self._noise)
        self._restless *= _RESTLESS
        if self._slow > _SLOW and -max(self._slow + beyond, _WRONG) < error < -beyond:
            self._restless = min(self._slow, -error) ** 2
        news, own = self._news(-1, error), self._news(at, error)
        self._variance += _SPEED * self._noise + self._restless + news**2
        self.sizes[at].variance += 0.0 if news else own**2
        for power, size in self.sizes.items():
            size.variance += size.growth + (_STEP * power if news > _WRONG else 0.0)

    def _news(self, key: int, error: float) -> float:
        """Return the least of the last errors, of one size or (-1) of all, where they agree that something changed."""
        errors = self._errors[key] = [*self._errors.get(key, [0.0] * _RUN)[1:], error]
        least = max(min(errors), -max(errors))
        return least if least > max(_NEWS, sqrt(self._noise)) else 0.0


def _on_line(known: list[tuple[int, float]], rows: int) -> float:
    above = bisect(known, (rows, 0.0))
    (less, less_ns), (more, more_ns) = known[above - 1 : above + 1] if above < len(known) else (known[0], known[-1])
    # Two weights: the difference of a long and a short time would lose the short one.
    return (less_ns * (more - rows) + more_ns * (rows - less)) / (more - less)


def nearest(rows: int) -> int:
    """Return the power of the size 1, 2, 4, ... that is nearest to ``rows``; halfway, of the larger."""
    return (4 * rows // 3).bit_length() - 1

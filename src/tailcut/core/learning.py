"""What batches take, learned from every one that ends; per length class where rows differ in length."""

from __future__ import annotations

from collections.abc import Mapping

from tailcut.core.costs import FREE, Cost
from tailcut.core.drift import ODD, Drift
from tailcut.core.lateness import Lateness

_SHIFT = 0.05
"""Weight of a batch on all sizes together."""

_BEND = 0.052
"""Least weight of a batch on its own size. Three times as much where errors do not cancel out: a machine that runs at
half its speed is noticed within twenty batches, and noise of a fifth moves the mean by no more than a thirtieth."""

_FADE = 0.996
_MOST_SEEN = 24.0
"""What was seen of a size counts so much less with every batch, and as so many batches at most. A model's shape hardly
ever changes; its speed does, which all sizes follow."""

_DOUBT, _MOST_DOUBT = 0.1, 0.5
"""What is known of a size from one batch may be a tenth too much; the less, the more have shown it."""

_OUTLIER = 3.0
"""A batch counts as at most this many times what was expected: one hiccup must not close the door to all others."""

_IN_A_ROW = 3
"""From so many batches in a row on that are far off the expectation was wrong, and is given up quickly."""

_OUTLIER_FLOOR_NS = 1_000_000.0
"""No batch up to this long is an outlier."""

_KNOWN_BATCHES = 5
"""From this many batches on there is an expectation that an outlier can be measured by."""

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

    Each batch moves all points in proportion to how far off the expectation was, and those beside its size some more:
    so do both the machine's speed and the model's shape show. Robust: see ``_OUTLIER``, ``drift.ODD``. Of the speed
    about the last twenty batches count; the shape is remembered, and sizes that were not seen for long are tried again.

    Args:
        steps: see ``Cost``.
    """

    __slots__ = (
        "_batches",
        "_cost",
        "_drift",
        "_drifts",
        "_era",
        "_late",
        "_points",
        "_seen",
        "_short",
        "_shown",
        "_steps",
        "_strange",
        "_worst",
    )

    def __init__(self, steps: tuple[int, ...] = ()) -> None:
        self._steps = steps
        self._batches = 0
        self._points: list[float] = []
        self._seen: list[float] = []
        self._shown: list[bool] = []
        self._late = Lateness()
        self._short = Lateness()
        self._strange = 0
        self._drift = Drift()
        self._drifts: list[Drift] = []
        self._era = 0
        self._worst = [[0.0, 0.0], [0.0, 0.0]]
        self._cost: Cost | None = FREE

    def seed(self, points: Mapping[int, float], *, guessed: bool = False) -> None:
        """Start from what was measured elsewhere: rows -> nanoseconds (warm-up, the registry's evidence).

        Args:
            guessed: of rows of another kind.
        """
        for rows in sorted(points):
            self._learn(rows, points[rows], shows=not guessed)
        self._batches = max(self._batches, min(len(points), _KNOWN_BATCHES))
        self._cost = None

    def observe(self, rows: int, duration_ns: float) -> None:
        """Learn from one finished batch."""
        self._batches += 1
        ratio = self._learn(rows, duration_ns)
        expected_ns = max(duration_ns, 1.0) / ratio
        (self._late if expected_ns >= self._points[-1] / _FINE else self._short).add(ratio)
        self._cost = None

    @property
    def cost(self) -> Cost:
        """What is known now; ``FREE`` before the first batch."""
        cost = self._cost
        return cost if cost is not None else self._fit()

    def _learn(self, rows: int, duration_ns: float, *, shows: bool = True) -> float:
        """Move the points; return how many times longer the batch took than was expected."""
        duration_ns = max(duration_ns, 1.0)
        if self._steps:
            rows = int(Cost(0.0, 0.0, steps=self._steps).padded(rows))
        place = rows.bit_length() - 1
        share = rows / (1 << place) - 1.0
        points, seen = self._points, self._seen
        while len(points) < place + (2 if share else 1):
            points.append(2 * points[-1] if points else duration_ns / rows)
            seen.append(0.0)
            self._shown.append(False)
            self._drifts.append(Drift())
        expected_ns = points[place] * (1.0 - share) + points[place + 1] * share if share else points[place]
        ratio = duration_ns / expected_ns
        self._strange = self._strange + 1 if not 1.0 / _OUTLIER <= ratio <= _OUTLIER else 0
        off = self._tempered(ratio, duration_ns, expected_ns) - 1.0
        at = place if share < 0.5 else place + 1
        self._shown[at] = self._shown[at] or shows
        bend, shift = self._gain(off)
        step = max(1.0 / (seen[at] + 1.0), bend)
        # A size that no batch has shown yet is only guessed: it says nothing of the others.
        trust = min(seen[at], 1.0)
        news = 0.5 if self._strange >= _IN_A_ROW else 0.0
        own_off = off
        if self._drifts[at].has_news(off):
            bend = 3 * _BEND
        elif bend == _BEND and not news and seen[at] >= 1.0:
            # One batch that is far too slow says something of the machine, and hardly anything of its own size.
            own_off = min(off, ODD)
        for other, weight in enumerate(seen):
            here = (1.0 - share) if other == place else share if other == place + 1 else 0.0
            follows = max(trust * max(shift, step / (1.0 + weight)), news)
            own = max(1.0 / (weight + 1.0), bend, news)
            moves = here * (shift * off + max(own - shift, 0.0) * own_off) + (1.0 - here) * follows * off
            points[other] *= 1.0 + moves
            seen[other] = min(weight * _FADE + here, _MOST_SEEN)
        if 0.0 in seen:
            _guess(points, seen)
        return ratio

    def _gain(self, off: float) -> tuple[float, float]:
        """Return how much this batch weighs, on its own size and on all: little as long as errors cancel out."""
        if 0 < self._strange < _IN_A_ROW:
            return _BEND, _SHIFT
        return (3 * _BEND, 3 * _SHIFT) if self._drift.has_news(off) else (_BEND, _SHIFT)

    def _tempered(self, ratio: float, duration_ns: float, expected_ns: float) -> float:
        """Cut outliers, and remember how long they were."""
        if ratio <= _OUTLIER or duration_ns <= _OUTLIER_FLOOR_NS or self._batches <= _KNOWN_BATCHES:
            return ratio
        if self._batches - self._era > _ERA:
            self._era = self._batches
            self._worst = [[0.0, 0.0], self._worst[0]]
        self._worst[0] = sorted([*self._worst[0], duration_ns - expected_ns])[1:]
        limit = _OUTLIER * 2.0 ** max(self._strange - _IN_A_ROW + 1, 0)
        return min(ratio, max(limit, _OUTLIER_FLOOR_NS / expected_ns))

    def _fit(self) -> Cost:
        points = list(self._points)
        for at in range(1, len(points)):
            points[at] = max(points[at], points[at - 1])
        if self._batches - self._era > 2 * _ERA:
            self._worst = [[0.0, 0.0], [0.0, 0.0]]
        # The second longest: what happened once in thousands of batches is no habit of this machine.
        hiccup_ns = sorted([*self._worst[0], *self._worst[1]])[-2]
        if self._batches < _ERA:
            # Machines have hiccups: until it is known how long they are here, the first should not break a promise.
            hiccup_ns = max(hiccup_ns, _FIRST_HICCUP * points[-1])
        base_ns = max(2 * points[0] - points[1], 0.0) if len(points) > 1 else 0.0
        shaped = len(points) > 1 and self._seen[0] > 0.0
        doubts = tuple([min(_DOUBT / max(seen, 1e-9), _MOST_DOUBT) for seen in self._seen])
        fears = tuple([0.0 if shown else _FEAR for shown in self._shown])
        sizes = (self._steps, shaped, doubts, fears)
        lates = (self._short.late, points[-1] / _FINE)
        row_ns = points[0] - base_ns
        cost = self._cost = Cost(base_ns, row_ns, tuple(points), self._late.late, hiccup_ns, *sizes, *lates)
        return cost


def _guess(points: list[float], seen: list[float]) -> None:
    """Set the points that no batch has shown yet from those on either side; beyond the last in proportion."""
    known = [at for at, weight in enumerate(seen) if weight]
    for at, weight in enumerate(seen):
        if weight:
            continue
        below = max([place for place in known if place < at], default=None)
        above = min([place for place in known if place > at], default=None)
        if below is None and above is not None:
            points[at] = points[above] / (1 << (above - at))
        elif above is None and below is not None:
            points[at] = points[below] * (1 << (at - below))
        elif below is not None and above is not None:
            part = ((1 << at) - (1 << below)) / ((1 << above) - (1 << below))
            points[at] = points[below] + (points[above] - points[below]) * part


class Costs:
    """The cost models of one variant: one per kind of rows, where kinds differ (length classes of padded rows).

    Args:
        steps: see ``Cost``.
    """

    __slots__ = ("_models", "_only", "_steps")

    def __init__(self, steps: tuple[int, ...] = ()) -> None:
        self._steps = steps
        self._only = CostModel(steps)
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
            model = CostModel(self._steps)
            guess = self._guess(kind)
            model.seed({1 << place: point for place, point in enumerate(guess.points)}, guessed=True)
            self._models[kind] = model
        return model

    def _guess(self, kind: int) -> Cost:
        known = [each for each, model in self._models.items() if each and model.cost.points]
        if not known:
            return self._only.cost
        nearest = min(known, key=lambda each: max(each / kind, kind / each))
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

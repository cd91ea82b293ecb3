"""The drift detector of one model: evidence per column, the effect's size, and when both are an alarm.

Each bet's wealth is restarted after Shiryaev and Roberts: before every block it gets the share of a month that has
passed, so that a change may begin at any time:

    R <- (R + months passed) * product of (1 + stake * (payoff - bound)) over the block's rows

Without drift the expected sum of R, averaged over bets, columns and outputs whatever their dependence, is at most the
months that have passed. An alarm needs this sum, over columns whose effect is large enough, to exceed
1 / false_alarms_per_month: then the mean time between false alarms is at least the budget's, for all columns together.
Source: Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2024.

The effect is that of the whole current window: a window as long as the rhythm of the traffic (a day, a week) keeps
mornings from being a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array, Bools, Doubles, Keys
from tailcut.observe.drift.sketch import LARGEST, Role, Sketch, plain_category
from tailcut.observe.live.figures import DriftColumn


class Moved(msgspec.Struct, frozen=True):
    """A column that has drifted.

    Attributes:
        role, name: of the column.
        psi: its population stability index in the current window.
        evidence: log10 of its evidence as a share of what an alarm needs.
        since_s: estimate of when it began to differ.
    """

    role: Role
    name: str
    psi: float
    evidence: float
    since_s: float


class DriftAlarm(msgspec.Struct, frozen=True):
    """Columns whose drift is shown, the largest effect first."""

    at_s: float
    columns: tuple[Moved, ...]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A detector's snapshot.

    Attributes:
        rows: rows that were given since it began.
        counted: of them, those that counted: the first of each entity in a window.
        alarms: how many there were.
        window_rows: rows that counted in the current window.
        columns: of inputs and outputs.
        is_judged: whether a whole window has been seen, before which there is no alarm.
    """

    rows: int
    counted: int
    alarms: int
    window_rows: int
    columns: tuple[DriftColumn, ...]
    is_judged: bool = False


MONTH_S = 30 * 86_400.0
"""What a month is in ``false_alarms_per_month``."""
_CALM = 0.5
"""Of the limit of the effect: a column below it has come back."""
_LOOKS = 16
"""How often per window it is looked whether a column has come back."""


Cells = npt.NDArray[np.intp]


class Cellular:
    """Places the values of batches into the cells of sketches.

    Args:
        sketches: of all columns.

    Attributes:
        width: cells of a column, at most.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self.width = max(each.cells for each in sketches)
        self._numeric = [place for place, each in enumerate(sketches) if each.is_numeric]
        self._coded = [place for place, each in enumerate(sketches) if not each.is_numeric]
        self._columns = len(sketches)
        most = max((len(sketches[place].edges) for place in self._numeric), default=0)
        # (edges, numeric columns), a row after the other: the loop below is over them.
        self._edges = np.full((most, len(self._numeric)), np.inf)
        for at, place in enumerate(self._numeric):
            edges = sketches[place].edges
            self._edges[: len(edges), at] = edges
        self._missing = np.array([sketches[place].cells - 1 for place in self._numeric], np.intp)
        self._codes = {place: _Codes(sketches[place]) for place in self._coded}

    def place(self, values: Sequence[Array]) -> Cells:
        """Return the cell of each value.

        Args:
            values: per column, in the order of the sketches: (rows,).

        Returns:
            (rows, columns) of cell numbers.
        """
        found = np.empty((len(values[0]), self._columns), np.intp)
        if self._numeric:
            numbers = np.empty((len(found), len(self._numeric)))
            for at, place in enumerate(self._numeric):
                numbers[:, at] = values[place]
            found[:, self._numeric] = self._place_numbers(numbers)
        for place, codes in self._codes.items():
            found[:, place] = codes.place(values[place])
        return found

    def count(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Count (rows, columns) of cells: (columns, ``width``)."""
        offsets = np.arange(self._columns) * self.width
        counted = np.bincount((cells + offsets).ravel(), minlength=self._columns * self.width)
        return counted.reshape(self._columns, self.width).astype(np.int64, copy=False)

    def _place_numbers(self, numbers: Doubles) -> Cells:
        found = np.zeros(numbers.shape, np.intp)
        numbers = np.clip(numbers, -LARGEST, LARGEST)
        for edges in self._edges:
            found += numbers >= edges
        return np.where(np.isnan(numbers), self._missing, found)


class _Codes:
    """Places categories into the cells of one sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self._missing = sketch.cells - 1
        self._unseen = sketch.cells - 2
        self._rest = sketch.cells - 3
        # Where not all categories of the reference are known by name, a new one cannot be told from a rare one.
        self._stranger = self._unseen if sketch.all_known else self._rest
        self._cell: dict[int | str, int] = {each: self._rest for each in sketch.others}
        self._cell |= {each: place for place, each in enumerate(sketch.categories)}
        self._cell[""] = self._missing
        whole = sorted((key, cell) for key, cell in self._cell.items() if isinstance(key, int))
        self._keys = np.array([key for key, _ in whole], np.int64)
        self._cells = np.array([cell for _, cell in whole], np.intp)

    def place(self, values: Array) -> Cells:
        if values.dtype.kind in "biu" and len(self._keys):
            wanted = values.astype(np.int64)
            at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
            return np.where(self._keys[at] == wanted, self._cells[at], self._stranger)
        find = self._cell.get
        found = [find(plain_category(value), self._stranger) for value in values.tolist()]
        return np.array(found, np.intp)


NONE = 0
"""Key of a row that belongs to no entity, and stands for itself."""
_BITS = 21
_MIX = np.int64(-7046029254386353131)
"""2^64 divided by the golden ratio, as a signed number: keys that are close get places that are not."""


class OncePerWindow:
    """Remembers which entities have been counted in the current window; of bounded size.

    A table of 2^21 places, 2 MB, tells by an entity's hash whether it was counted. Of two entities with the same place
    only the first is: of 250,000 some 6 % are left out. Where a quarter of the places are taken, every second entity is
    left out from then on, by its hash, so that late rows of a window count as much as early ones.
    """

    def __init__(self) -> None:
        self._taken: Bools | None = None
        self._count = 0
        self._one_in = 1
        self._window = -1

    def first(self, entities: Keys, window: int) -> Bools:
        """Tell which rows count as their entity's first in the window, (rows,), and remember them.

        Args:
            entities: (rows,) of hashes; ``NONE``: no entity.
            window: number of the window; another one than before begins anew.
        """
        if self._taken is None or window != self._window:
            self._taken = np.zeros(2**_BITS, np.bool_)
            self._count, self._window = 0, window
        mixed = entities * _MIX
        places = (mixed >> (64 - _BITS)) & (2**_BITS - 1)
        _, firsts = np.unique(entities, return_index=True)  # of rows of one entity in the same batch, too
        counts = np.zeros(len(entities), np.bool_)
        counts[firsts] = True
        counts &= ~self._taken[places] & ((mixed >> 16) % self._one_in == 0) & (entities != NONE)
        self._taken[places[counts]] = True
        self._count += int(np.count_nonzero(counts))
        if self._count > 2 ** (_BITS - 2):
            self._one_in *= 2
            self._count //= 2  # that would still be counted
        return np.asarray(counts | (entities == NONE), np.bool_)


GROUPS = 10
"""Groups of equal share that the values of a column of numbers are compared in, as is the custom for this index."""

Counts = npt.NDArray[np.int64]


class Effect:
    """The population stability index of columns, and the distributions that it compares.

    Args:
        sketches: of the columns.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        width = max(each.cells for each in sketches)
        groups = [_groups(each) for each in sketches]
        self._most = max(max(each) + 1 for each in groups)
        self._group = np.zeros((len(sketches), width, self._most))
        self._reference = np.zeros((len(sketches), width))
        for place, (sketch, group) in enumerate(zip(sketches, groups, strict=True)):
            self._group[place, np.arange(sketch.cells), group] = 1
            self._reference[place, : sketch.cells] = [*sketch.counts, sketch.missing]
        self._used = self._group.any(1)
        self._rows = np.array([each.effective_rows for each in sketches])

    def psi(self, counts: Counts) -> Doubles:
        """Return sum((q - p) ln(q / p)) over the groups of each column, (columns,); 0 without rows.

        Half a row is added to each group (Jeffreys), so that an empty one is no infinity. What two samples of one
        population are expected to differ by, (groups - 1)(1/n + 1/m), is taken off (Yurdakul and Naranjo, "Statistical
        properties of the population stability index", 2020).

        Args:
            counts: (columns, cells) of the window.
        """
        rows = counts.sum(1)
        expected = self._shares(self._reference)
        found = self._shares(counts)
        terms = np.where(self._used, (found - expected) * np.log(found / expected), 0.0)
        chance = (self._used.sum(1) - 1) * (1 / self._rows + 1 / np.maximum(rows, 1))
        return np.where(rows > 0, np.maximum(terms.sum(1) - chance, 0.0), 0.0)

    def _shares(self, counts: npt.NDArray[np.generic]) -> Doubles:
        grouped = np.matmul(counts[:, None, :].astype(np.float64), self._group)[:, 0]
        raised = np.where(self._used, grouped + 0.5, 1.0)
        return np.asarray(raised / np.where(self._used, raised, 0.0).sum(1, keepdims=True), np.float64)


def _groups(sketch: Sketch) -> list[int]:
    """Return the group of each cell; the last one is what is missing."""
    if not sketch.is_numeric:
        # What is not seen in the reference, and what is missing, weigh as much as a frequent category.
        return list(range(sketch.cells))
    tenths = np.minimum((transform(sketch) * GROUPS).astype(int), GROUPS - 1)
    used, groups = np.unique(tenths, return_inverse=True)
    return [*groups.tolist(), len(used)]


_FINENESS = 16
"""Blocks are merged that together are so many times shorter than they are old: four a second give some 250 blocks."""
_WINDOWS = 8
"""What is older than so many windows is forgotten."""


@dataclass
class _Block:
    begin_s: float
    end_s: float
    counts: Counts


class BlockCounts:
    """Counts per column and cell, in blocks that grow coarser with their age.

    Args:
        window_s: length of the current window.
        empty: (columns, cells) of zeros.
    """

    def __init__(self, window_s: float, empty: Counts) -> None:
        self._window_s = window_s
        self._empty = empty
        self._blocks: list[_Block] = []

    def add(self, begin_s: float, end_s: float, counts: Counts) -> None:
        """Add what was counted from one time to another, which is later than all before."""
        self._blocks.append(_Block(begin_s, end_s, counts))
        oldest_s = end_s - _WINDOWS * self._window_s
        self._blocks = list(self._merged(each for each in self._blocks if each.end_s > oldest_s))

    def current(self, now_s: float) -> Counts:
        """Return what was counted within the window before ``now_s``, (columns, cells)."""
        return sum((each.counts for each in self._blocks if each.end_s > now_s - self._window_s), start=self._empty)

    def since(self, column: int, gain: Callable[[Counts], float]) -> float | None:
        """Estimate when a column changed: the time from which on a bet on it has won the most.

        Args:
            column: its place.
            gain: of (cells,) of counts: the logarithm that they added to the bet.

        Returns:
            the time; None where nothing was counted or no span of the past has won.
        """
        gains: Doubles = np.array([gain(each.counts[column]) for each in self._blocks])
        if not len(gains):
            return None
        won = np.cumsum(gains[::-1])[::-1]
        best = int(np.argmax(won))
        return self._blocks[best].begin_s if won[best] > 0 else None

    def _merged(self, blocks: Iterable[_Block]) -> Iterator[_Block]:
        """Merge neighbours that are old enough for it, two by two."""
        now_s = self._blocks[-1].end_s
        before: _Block | None = None
        for block in blocks:
            if before is None:
                before = block
            elif _FINENESS * (block.end_s - before.begin_s) <= now_s - block.end_s:
                yield _Block(before.begin_s, block.end_s, before.counts + block.counts)
                before = None
            else:
                yield before
                before = block
        if before is not None:
            yield before


class DriftSettings(NamedTuple):
    """How drift is judged.

    Attributes:
        false_alarms_per_month: of all columns of the model together, above 0.
        min_effect: total variation distance below which a change is no drift: a share of rows.
        psi: population stability index that a column must exceed in the current window.
        window_s: length of the current window, in which an entity counts once.
    """

    false_alarms_per_month: float = 1.0
    min_effect: float = 0.03
    psi: float = 0.1
    window_s: float = 86_400.0


class Detector:
    """Watches the columns of one model. Deterministic; times come in.

    Args:
        sketches: of the reference, at least one; ``update`` takes values in this order.
        settings: how drift is judged.

    Attributes:
        sketches: of the reference.
        rows: how many rows were given.
        counted: how many of them counted: the first of each entity in a window.
        alarms: how many there were.
    """

    def __init__(self, sketches: Sequence[Sketch], settings: DriftSettings) -> None:
        self.sketches = tuple(sketches)
        self.rows = self.counted = self.alarms = 0
        self._settings = settings
        self._cells = Cellular(sketches)
        self._effect = Effect(sketches)
        self._bets = Bets(sketches, settings.min_effect)
        self._wealth = np.full(self._bets.shares.shape, -np.inf)
        self._empty = np.zeros((len(sketches), self._cells.width), np.int64)
        self._history = BlockCounts(settings.window_s, self._empty)
        self._once = OncePerWindow()
        self._drifting: Bools = np.zeros(len(sketches), np.bool_)
        self._since_s: list[float | None] = [None] * len(sketches)
        self._alarmed_s = np.zeros(len(sketches))
        self._begin_s = self._last_s = self._looked_s = float("nan")

    def update(self, values: Sequence[Array], now_s: float, entities: Keys | None = None) -> DriftAlarm | None:
        """Take a block of rows.

        Args:
            values: per column, in the order of ``sketches``: (rows,).
            now_s: when the block ended; not before that of the last one.
            entities: (rows,) of hashes, 0 for none; None: each row stands for itself.

        Returns:
            an alarm where this block completes one. Its columns give no further alarm until they have come back.
        """
        cells, settings = self._cells.place(values), self._settings
        self.rows += len(cells)
        if entities is not None:
            cells = cells[self._once.first(entities, int(now_s // settings.window_s))]
        self.counted += len(cells)
        counts = self._cells.count(cells)
        if np.isnan(self._last_s):
            passed_s, self._begin_s, self._looked_s = settings.window_s, now_s, now_s
        else:
            passed_s = max(now_s - self._last_s, 0.0)
        self._history.add(now_s if np.isnan(self._last_s) else self._last_s, now_s, counts)
        self._last_s = now_s
        self._bet(counts, passed_s / MONTH_S)
        if self._drifting.any():
            self._look_for_calm(now_s)
        return self._alarm(now_s) if self._has_window(now_s) else None

    def state(self) -> State:
        """Return what is known now: per column effect, evidence, since when, and both distributions."""
        current = self._history.current(self._last_s) if self.rows else self._empty
        psi, evidence = self._effect.psi(current), self._evidence()
        columns = [
            self._column(place, current[place], float(psi[place]), float(evidence[place]))
            for place in range(len(self.sketches))
        ]
        return State(
            rows=self.rows, counted=self.counted, alarms=self.alarms, window_rows=int(current[0].sum()),
            columns=tuple(columns), is_judged=self._has_window(self._last_s),
        )  # fmt: skip

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _has_window(self, now_s: float) -> bool:
        return now_s - self._begin_s >= self._settings.window_s

    def _bet(self, counts: npt.NDArray[np.int64], months: float) -> None:
        won = np.matmul(counts[:, None, :].astype(np.float64), self._bets.table)[:, 0]
        fresh = np.log(months) + self._bets.shares if months > 0 else np.full_like(self._wealth, -np.inf)
        self._wealth = np.logaddexp(self._wealth, fresh) + won

    def _evidence(self) -> Doubles:
        """Return the evidence per column, (columns,): log10 of its share of what an alarm needs."""
        wealth = np.logaddexp.reduce(self._wealth, axis=1)
        return np.asarray(
            (wealth + np.log(self._settings.false_alarms_per_month / len(self.sketches))) / np.log(10), np.float64
        )

    def _alarm(self, now_s: float) -> DriftAlarm | None:
        evidence = np.where(self._drifting, -np.inf, self._evidence())
        if _sum(evidence) <= 0:
            return None
        psi = self._effect.psi(self._history.current(now_s))
        evidence = np.where(psi > self._settings.psi, evidence, -np.inf)
        if _sum(evidence) <= 0:
            return None
        # Those that would be half of the evidence that is needed, or more, are named; the strongest in any case.
        strong = (evidence > np.log10(0.5)) | (evidence == evidence.max())
        places = sorted(np.flatnonzero(strong).tolist(), key=lambda place: -float(psi[place]))
        moved = [self._moved(place, now_s, float(psi[place]), float(evidence[place])) for place in places]
        self.alarms += 1
        return DriftAlarm(now_s, tuple(moved))

    def _moved(self, place: int, now_s: float, psi: float, evidence: float) -> Moved:
        since_s = self._since(place)
        self._since_s[place] = now_s if since_s is None else since_s
        self._drifting[place] = True
        self._alarmed_s[place] = now_s
        self._wealth[place] = -np.inf
        sketch = self.sketches[place]
        return Moved(sketch.role, sketch.name, psi, evidence, self._since_s[place] or now_s)

    def _since(self, place: int) -> float | None:
        """Estimate since when a column is different: by its bet that has won the most."""
        best = int(np.argmax(self._wealth[place]))
        table = self._bets.table[place, :, best]
        return self._history.since(place, lambda counts: float(counts @ table))

    def _look_for_calm(self, now_s: float) -> None:
        """Let columns that have come back give alarms again; a whole window must have passed."""
        window_s = self._settings.window_s
        if now_s - self._looked_s < window_s / _LOOKS:
            return
        self._looked_s = now_s
        psi = self._effect.psi(self._history.current(now_s))
        calm = self._drifting & (psi < _CALM * self._settings.psi) & (now_s - self._alarmed_s >= window_s)
        for place in np.flatnonzero(calm).tolist():
            self._drifting[place], self._since_s[place] = False, None
            self._wealth[place] = -np.inf

    def _column(self, place: int, current: npt.NDArray[np.int64], psi: float, evidence: float) -> DriftColumn:
        sketch = self.sketches[place]
        counts, before = current[: sketch.cells], np.array([*sketch.counts, sketch.missing])
        shares, expected = counts / max(int(counts.sum()), 1), before / sketch.rows
        outside = [0, -2] if sketch.is_numeric else [-2]
        return DriftColumn(
            role=sketch.role,
            name=sketch.name,
            psi=psi,
            evidence=evidence if isfinite(evidence) else None,
            drifting=bool(self._drifting[place]),
            since_s=self._since_s[place],
            missing=float(shares[-1]),
            unseen=float(shares[outside].sum()),
            labels=sketch.labels(),
            reference=tuple(expected.tolist()),
            current=tuple(shares.tolist()),
        )


def _sum(evidence: Doubles) -> float:
    """Add evidence up: (columns,) of log10 -> log10."""
    return float(np.logaddexp.reduce(evidence * np.log(10))) / float(np.log(10))


# -- Bets against no change --------------------------------------------------------------------------------------------


# Bets on a column's cells: what is wagered against "no drift", and what a row in each cell pays. The payoff of a bet is
# a bounded function g of a row's cell. For numbers: the mid-point probability integral transform u of the value against
# the reference (ties share the middle of their range), as u - 1/2 (location) and |2u - 1| - 1/2 (spread), and
# indicators of both tails; for categories an indicator of each frequent one; for all of them indicators of what is
# missing and of what the reference has not seen. Each is bet on in both directions where both can be shown.
#
# The null hypothesis is composite. Rows may come from any distribution within total variation ``min_effect`` of the
# population that the reference was drawn from, and the reference is an estimate from n rows. So a bet is against the
# largest mean that this allows:
#
#     E[g] <= mean of g in the reference + z sd(g) / sqrt(n) + z^2 range(g) / 3n + min_effect range(g)  =:  b
#
# z is such that the bound fails for any of all bets with probability 5 % over references (Bonferroni; Bernstein's
# form). Then 1 + l (g - b) with 0 <= l <= 1 / (b - min g) has a mean of at most 1: its product over rows is an
# e-process, of which a mixture over a few stakes l needs no tuning. Source: Waudby-Smith and Ramdas, "Estimating means
# of bounded random variables by betting", JRSS B 86 (2024).

STAKES = (0.1, 0.3, 0.6, 0.9)
"""Shares of the largest stake that the mixture is over."""
REFERENCE_ERROR = 0.05
"""Probability that the reference's own sampling error goes beyond the band of any bet."""
_TAIL = 0.05
_INDICATED = 12
"""Categories that have bets of their own; others are bet on together."""
_LEAST_ROOM = 0.02
"""A bet whose bound leaves less than this to win, as a share of its range, is not made."""


class Bets:
    """The bets on all columns, as tables.

    Args:
        sketches: of the columns.
        min_effect: total variation distance below which a change is no drift, from 0 to under 1.

    Attributes:
        table: (columns, cells, bets) of the logarithm that one row in the cell adds to the wealth of each bet; a bet is
            a payoff in one direction at one stake.
        shares: (columns, bets) of the logarithm of a bet's share of its column's wealth; -inf where there is none.
    """

    def __init__(self, sketches: Sequence[Sketch], min_effect: float) -> None:
        width = max(each.cells for each in sketches)
        payoffs = [np.concatenate([payoff, -payoff]) for payoff in map(payoffs_of, sketches)]
        z = NormalDist().inv_cdf(1 - REFERENCE_ERROR / max(sum(map(len, payoffs)), 1))
        tables = [_increments(each, found, z, min_effect) for each, found in zip(sketches, payoffs, strict=True)]
        most = max(table.shape[1] for table in tables)
        self.table = np.zeros((len(sketches), width, most))
        self.shares = np.full((len(sketches), most), -np.inf)
        for place, table in enumerate(tables):
            cells, bets = table.shape
            self.table[place, :cells, :bets] = table
            self.shares[place, :bets] = -np.log(max(bets, 1))


def transform(sketch: Sketch) -> Doubles:
    """Return the mid-point probability integral transform of each cell of a column of numbers, (cells - 1,) in 0..1.

    A value below all of the reference has 0, one above 1.
    """
    counts = np.array(sketch.counts, np.float64)
    known = counts.sum()
    if not known:
        return np.full(len(counts), 0.5)
    return np.asarray((np.cumsum(counts) - counts / 2) / known, np.float64)


def payoffs_of(sketch: Sketch) -> Doubles:
    """Return the payoffs on a column, (payoffs, cells): every one is bounded."""
    cells = np.arange(sketch.cells)
    missing = cells == cells[-1]
    if sketch.is_numeric:
        u = np.append(transform(sketch), 0.5)
        spread = np.where(missing, 0.0, np.abs(2 * u - 1) - 0.5)
        outside = (cells == 0) | (cells == cells[-2])
        low, high = (u < _TAIL) & ~missing, (u > 1 - _TAIL) & ~missing
        return np.array([u - 0.5, spread, low, high, outside, missing], np.float64)
    own = min(_INDICATED, len(sketch.categories))
    rare = (cells >= own) & (cells < cells[-2])
    unseen = cells == cells[-2]
    return np.array([*(cells == place for place in range(own)), rare, unseen, missing], np.float64)


def band(sketch: Sketch, payoff: Doubles, z: float, min_effect: float) -> float:
    """Return the largest mean of a payoff that is no drift.

    Args:
        sketch: of the column.
        payoff: (cells,).
        z: quantile of the normal distribution for the reference's error.
        min_effect: see ``Bets``.
    """
    shares = np.array([*sketch.counts, sketch.missing], np.float64) / sketch.rows
    mean = float(shares @ payoff)
    variance = max(float(shares @ np.square(payoff)) - mean**2, 0.0)
    reach = float(payoff.max() - payoff.min())
    n = sketch.effective_rows
    return mean + z * sqrt(variance / n) + z**2 * reach / (3 * n) + min_effect * reach


def _increments(sketch: Sketch, payoffs: Doubles, z: float, min_effect: float) -> Doubles:
    """Return (cells, bets) of the logarithm of what a row adds."""
    found = []
    for payoff in payoffs:
        bound = band(sketch, payoff, z, min_effect)
        if payoff.max() - bound <= _LEAST_ROOM * (payoff.max() - payoff.min()):
            continue  # it cannot win
        largest = 1 / (bound - payoff.min())
        found += [np.log1p(stake * largest * (payoff - bound)) for stake in STAKES]
    return np.array(found, np.float64).T if found else np.zeros((sketch.cells, 0))

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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array, Bools, Doubles, Keys
from tailcut.observe.drift.bets import Bets
from tailcut.observe.drift.cells import Cellular
from tailcut.observe.drift.effect import Effect
from tailcut.observe.drift.entities import OncePerWindow
from tailcut.observe.drift.history import History
from tailcut.observe.drift.sketch import Sketch
from tailcut.observe.drift.state import Alarm, ColumnState, Histogram, Moved, State

MONTH_S = 30 * 86_400.0
"""What a month is in ``false_alarms_per_month``."""
_CALM = 0.5
"""Of the limit of the effect: a column below it has come back."""
_LOOKS = 16
"""How often per window it is looked whether a column has come back."""


class Settings(NamedTuple):
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

    def __init__(self, sketches: Sequence[Sketch], settings: Settings) -> None:
        self.sketches = tuple(sketches)
        self.rows = self.counted = self.alarms = 0
        self._settings = settings
        self._cells = Cellular(sketches)
        self._effect = Effect(sketches)
        self._bets = Bets(sketches, settings.min_effect)
        self._wealth = np.full(self._bets.shares.shape, -np.inf)
        self._empty = np.zeros((len(sketches), self._cells.width), np.int64)
        self._history = History(settings.window_s, self._empty)
        self._once = OncePerWindow()
        self._drifting: Bools = np.zeros(len(sketches), np.bool_)
        self._since_s: list[float | None] = [None] * len(sketches)
        self._alarmed_s = np.zeros(len(sketches))
        self._begin_s = self._last_s = self._looked_s = float("nan")

    def update(self, values: Sequence[Array], now_s: float, entities: Keys | None = None) -> Alarm | None:
        """Take a block of rows.

        Args:
            values: per column, in the order of ``sketches``: (rows,).
            now_s: when the block ended; not before that of the last one.
            entities: (rows,) of hashes, 0 for none; None: each row stands for itself.

        Returns:
            an alarm where this block completes one. Its columns give no further alarm until they have come back.
        """
        return self.update_cells(self._cells.place(values), now_s, entities)

    def update_cells(self, cells: npt.NDArray[np.intp], now_s: float, entities: Keys | None = None) -> Alarm | None:
        """As ``update``, of values whose cells are known: (rows, columns)."""
        settings = self._settings
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

    def _alarm(self, now_s: float) -> Alarm | None:
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
        return Alarm(now_s, tuple(moved))

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

    def _column(self, place: int, current: npt.NDArray[np.int64], psi: float, evidence: float) -> ColumnState:
        sketch = self.sketches[place]
        counts, before = current[: sketch.cells], np.array([*sketch.counts, sketch.missing])
        shares, expected = counts / max(int(counts.sum()), 1), before / sketch.rows
        outside = [0, -2] if sketch.is_numeric else [-2]
        return ColumnState(
            role=sketch.role,
            name=sketch.name,
            psi=psi,
            evidence=evidence,
            drifting=bool(self._drifting[place]),
            since_s=self._since_s[place],
            missing=float(shares[-1]),
            missing_reference=float(expected[-1]),
            unseen=float(shares[outside].sum()),
            reference=Histogram(sketch.labels(), tuple(expected.tolist())),
            current=Histogram(sketch.labels(), tuple(shares.tolist())),
        )


def _sum(evidence: Doubles) -> float:
    """Add evidence up: (columns,) of log10 -> log10."""
    return float(np.logaddexp.reduce(evidence * np.log(10))) / float(np.log(10))

"""Paired bootstrap of a drop: rows are drawn again, the same ones for both models, and the drop is studentised.

Sources: the bootstrap-t of Efron 1979 and Hall 1988, "Theoretical Comparison of Bootstrap Confidence Intervals", whose
one-sided error falls with 1/n where the percentile interval's falls with 1/sqrt(n); the monotone cubic transformation
of Hall 1992, "On the Removal of Skewness by Transformation", for slices, where it needs no drawing.

What was never seen has no spread: a fault that strikes one row in a thousand is absent from most samples of 500, and
every resample of those then says that it is absent. So no limit goes below what the rows can show at all: a fault that
strikes fewer rows than 1 - alpha ** (1 / rows), each from a good answer to a bad one.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.gate.distributions import crossing, normal_below, normal_quantile, student_below
from tailcut.gate.influence import InfluenceParts
from tailcut.gate.paired import rows_to_see

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
UNITS = 20_000
"""Rows are drawn one by one up to so many of them; more are first put into so many random groups of equal size, whose
means have the same mean, spread and skewness of that mean. It bounds the work."""

_TAIL = 0.01
_CELLS = 4_000_000


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A drop and how sure it is.

    Args:
        drop: the metric's drop.
        se: its standard error.
        rows: rows that it rests on.
        fewest: of these, rows of the smallest group; see ``InfluenceParts``.
        damage: see ``InfluenceParts``.
        skew: third cumulant of the drop over se cubed; sets Hall's transformation where there is no ``drawn``.
        drawn: studentised drops of resamples, ascending; empty where it was not drawn.
    """

    drop: float
    se: float
    rows: int
    fewest: int
    damage: float
    skew: float
    drawn: Floats

    def p_below(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or more": small where it is shown to be less."""
        if self.drop >= margin:
            return 1.0
        return max(self._tail((self.drop - margin) / self.se if self.se else -math.inf), self._unseen(margin))

    def p_above(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or less": small where harm beyond it is shown."""
        if self.drop <= margin:
            return 1.0
        return self._turned()._tail((margin - self.drop) / self.se if self.se else -math.inf)

    def upper(self, alpha: float) -> float:
        """One-sided upper limit of the drop at confidence 1 - ``alpha``; infinite where the rows bound nothing."""
        return max(self.drop + self._reach(alpha), self.damage * -math.expm1(math.log(alpha) / self.fewest))

    def lower(self, alpha: float) -> float:
        """One-sided lower limit of the drop at confidence 1 - ``alpha``; may be minus infinity."""
        return self.drop - self._turned()._reach(alpha)

    def rows_needed(self, drop: float, budget: float, alpha: float, power: float = 0.8) -> int | None:
        """Rows that would decide it were the true drop ``drop``; None where that is the budget.

        The error of the drop falls with the square root of the rows; and at least the rows that could show a fault
        as rare as the budget allows.
        """
        gap = budget - drop
        if gap == 0.0:
            return None
        z = normal_quantile(1.0 - alpha) + normal_quantile(power)
        needed = self.rows * (z * self.se / gap) ** 2
        seen = rows_to_see(min(budget / self.damage, 1.0), alpha) if gap > 0 and self.damage else 1.0
        return math.ceil(max(needed, seen * self.rows / self.fewest)) if needed < 1e15 else None

    def _turned(self) -> Estimate:
        """The same for how much better the variant is."""
        return msgspec.structs.replace(self, drop=-self.drop, skew=-self.skew, drawn=-self.drawn[::-1])

    def _reach(self, alpha: float) -> float:
        """How far above the drop its limit stands, unseen faults aside."""
        if not self.se:
            return 0.0
        steps = 1.0
        while self._tail(-steps) > alpha:
            steps *= 2.0
            if steps > 1e6:
                return math.inf
        return self.se * crossing(lambda far: self._tail(-far), alpha, 0.0, steps)

    def _unseen(self, margin: float) -> float:
        """Chance to see none of the rows of a fault that alone makes the drop ``margin``."""
        return (1.0 - margin / self.damage) ** self.fewest if self.damage > margin else 0.0

    def _tail(self, t: float) -> float:
        """Chance of a studentised drop at or below ``t``, t <= 0, were the margin true."""
        if self.drawn.size:
            return _drawn_below(self.drawn, t)
        if math.isinf(t):
            return 0.0
        return student_below(
            t + self.skew * t * t / 3.0 + self.skew**2 * t**3 / 27.0 + self.skew / 6.0, self.fewest - 1
        )


def estimate(parts: InfluenceParts, *, seed: int | np.random.Generator | None, resamples: int = RESAMPLES) -> Estimate:
    """Estimate a drop's distribution.

    Args:
        parts: what each row adds, see ``influence``.
        seed: of the drawing; the same seed gives the same result. None: nothing is drawn, Hall's transformation serves.
        resamples: how many times the rows are drawn.

    Raises:
        ValueError: a group of fewer than 2 rows: it has no spread.
    """
    if min(values.size for values in parts.values) < 2:
        raise ValueError(f"groups of {[values.size for values in parts.values]} rows: each needs 2 to have a spread")
    variance = sum(float(np.var(values, ddof=1)) / values.size for values in parts.values)
    third = sum(float(np.mean((values - values.mean()) ** 3)) / values.size**2 for values in parts.values)
    # Rounding leaves a spread where there is none: equal values minus their own mean.
    largest = max(float(np.max(np.abs(values))) for values in parts.values)
    se = math.sqrt(variance) if math.sqrt(variance) > 1e-14 * largest else 0.0
    drawn = np.empty(0)
    if seed is not None and se:
        drawn = np.sort(_studentised(parts.values, np.random.default_rng(seed), resamples))
    return Estimate(
        drop=parts.drop,
        se=se,
        rows=sum(values.size for values in parts.values),
        fewest=parts.fewest or min(values.size for values in parts.values),
        damage=parts.damage,
        skew=third / se**3 if se else 0.0,
        drawn=drawn,
    )


def _studentised(groups: tuple[Floats, ...], rng: np.random.Generator, resamples: int) -> Floats:
    """(drop of a resample - drop) / its standard error, one per resample."""
    moved, variance = np.zeros(resamples), np.zeros(resamples)
    for values in groups:
        units = _units(values, rng)
        chunk = max(1, _CELLS // units.size)
        for start in range(0, resamples, chunk):
            stop = min(start + chunk, resamples)
            found = units[rng.integers(0, units.size, (stop - start, units.size))]
            means = found.mean(axis=1)
            moved[start:stop] += means
            squares = np.einsum("ij,ij->i", found, found)
            variance[start:stop] += np.maximum(squares - units.size * means**2, 0.0) / (units.size - 1) / units.size
    # A resample without spread says nothing of its own error: it counts as the worst on its side.
    worst = np.where(moved == 0.0, 0.0, np.copysign(np.inf, moved))
    return np.divide(moved, np.sqrt(variance), out=worst, where=variance > 0.0)


def _units(values: Floats, rng: np.random.Generator) -> Floats:
    """Centred values to draw from: the rows, or means of random groups of them."""
    size = -(-values.size // UNITS)
    if size > 1:
        count = values.size // size
        values = rng.permutation(values)[: count * size].reshape(count, size).mean(axis=1)
    centred: Floats = values - values.mean()
    return centred


def _drawn_below(drawn: Floats, t: float) -> float:
    """Share of resamples at or below ``t``; the outermost hundredth is continued as a normal tail.

    The far tail is asked for where many tests share the error; counting would end at 1 in ``drawn.size``.
    """
    count = drawn.size
    edge = max(int(_TAIL * count), 1)
    if t >= drawn[edge] or not np.isfinite(drawn[edge]):
        return float(np.searchsorted(drawn, t, side="right") + 1) / (count + 1)
    inner = min(edge * 10, count - 1)
    z_edge, z_inner = normal_quantile((edge + 1) / (count + 1)), normal_quantile((inner + 1) / (count + 1))
    slope = (float(drawn[inner]) - float(drawn[edge])) / (z_inner - z_edge)
    if slope <= 0.0 or not math.isfinite(slope) or math.isinf(t):
        return 1.0 / (count + 1)
    return normal_below(z_edge + (t - float(drawn[edge])) / slope)

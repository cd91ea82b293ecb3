"""Bets on a column's cells: what is wagered against "no drift", and what a row in each cell pays.

The payoff of a bet is a bounded function g of a row's cell. For numbers: the mid-point probability integral transform u
of the value against the reference (ties share the middle of their range), as u - 1/2 (location) and |2u - 1| - 1/2
(spread), and indicators of both tails; for categories an indicator of each frequent one; for all of them indicators of
what is missing and of what the reference has not seen. Each is bet on in both directions where both can be shown.

The null hypothesis is composite. Rows may come from any distribution within total variation ``min_effect`` of the
population that the reference was drawn from, and the reference is an estimate from n rows. So a bet is against the
largest mean that this allows:

    E[g] <= mean of g in the reference + z sd(g) / sqrt(n) + z^2 range(g) / 3n + min_effect range(g)  =:  b

z is such that the bound fails for any of all bets with probability 5 % over references (Bonferroni; Bernstein's form).
Then 1 + l (g - b) with 0 <= l <= 1 / (b - min g) has a mean of at most 1: its product over rows is an e-process, of
which a mixture over a few stakes l needs no tuning.
Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

from tailcut.common.tensors import Doubles
from tailcut.observe.drift.sketch import Sketch

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
        payoffs = [_both_ways(payoffs_of(each)) for each in sketches]
        z = _quantile(sum(map(len, payoffs)))
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


def _both_ways(payoffs: Doubles) -> Doubles:
    return np.concatenate([payoffs, -payoffs])


def _quantile(bets: int) -> float:
    return NormalDist().inv_cdf(1 - REFERENCE_ERROR / max(bets, 1))


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

"""A sequential test of paired rounds: the signed-rank interval, repeated at scheduled looks.

Where two variants are equally fast, either may be the slower one of a round, so that the logarithm of their ratio is
symmetric about 0, however heavy its tails are. The signed-rank test needs no more than that (Wilcoxon 1945, Biometrics
Bulletin 1:80; its interval: Hodges and Lehmann 1963, Ann. Math. Statist. 34:598). Student's interval is shorter where
rounds are normal, and several times as long where one in ten met a burst.

Looking after every round would call equal variants different in the end. The error is therefore spread over a fixed
schedule of looks (Lan and DeMets 1983, Biometrika 70:659), and what each look spends adds up to the whole. The
intervals hold at all looks together, whichever is the last (Jennison and Turnbull 1989, J. R. Statist. Soc. B 51:305).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

LEAST = 6
"""Rounds before the first look: of fewer, all in favour of one variant are too likely by chance."""

_STEP = 4.0 / 3.0
"""From one look to the next: looks that hardly add rounds spend error for nothing."""


class Interval(NamedTuple):
    """Where the middle of a symmetric distribution lies; infinite ends where nothing is shown."""

    middle: float
    low: float
    high: float


NOTHING = Interval(math.nan, -math.inf, math.inf)


class Look(NamedTuple):
    """One planned look: from ``rounds`` on, at most ``error`` at each end of the interval."""

    rounds: int
    error: float


@cache
def schedule(most: int, error: float) -> tuple[Look, ...]:
    """Plan the looks at up to ``most`` rounds.

    Args:
        most: rounds, at least ``LEAST``.
        error: of each end of the interval over all looks together.
    """
    counts = [LEAST]
    while counts[-1] < most:
        counts.append(min(most, math.ceil(counts[-1] * _STEP)))
    # The first look takes what the strongest result of its rounds needs, the others share the rest alike. A rank test
    # knows some levels only: what one look leaves over, the next one has.
    first = min(error, max(0.5**LEAST, error / len(counts)))
    looks: list[Look] = []
    spent = 0.0
    for place, count in enumerate(counts):
        planned = first + (error - first) * place / max(len(counts) - 1, 1)
        if level := _level(count, planned - spent):
            looks.append(Look(count, level))
            spent += level
    return tuple(looks)


def interval(values: Sequence[float], error: float) -> Interval:
    """Bound the middle of a symmetric distribution by its values.

    Args:
        values: independent of each other, one or more.
        error: largest chance that an end of the interval is on the wrong side.
    """
    array = np.asarray(values, dtype=np.float64)
    first, second = np.triu_indices(len(array))
    averages = np.sort((array[first] + array[second]) / 2.0)
    middle = float(np.median(averages))
    outside = _outside(len(array), error)
    if outside == 0:
        return NOTHING._replace(middle=middle)
    return Interval(middle, float(averages[outside - 1]), float(averages[-outside]))


def _outside(count: int, error: float) -> int:
    """Count the averages that lie beyond the interval, the end itself included; 0: it has no end."""
    return int(np.searchsorted(_below(count), error * (1.0 + 1e-9), side="right"))


def _level(count: int, error: float) -> float:
    """Return the largest level of the test up to ``error``; 0 where it has none."""
    outside = _outside(count, error)
    return float(_below(count)[outside - 1]) if outside else 0.0


@cache
def _below(count: int) -> np.ndarray:
    """Compute P(W <= w) of the signed-rank statistic of ``count`` values, (count * (count + 1) / 2 + 1,)."""
    chances = np.ones(1)
    for rank in range(1, count + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += 0.5 * chances
        longer[rank:] += 0.5 * chances
        chances = longer
    return np.cumsum(chances)

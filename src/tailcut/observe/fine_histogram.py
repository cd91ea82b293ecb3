"""Histograms fine enough to compare percentiles: neighbouring bounds differ by 4 %, counts of several add up.

The histograms of /metrics have three bounds a decade, between which a percentile is a guess. Here a percentile is at
most 2 % off, so that a change of 15 % is seen. Source of the idea: HdrHistogram and DDSketch (Masson et al., 2019),
whose buckets also grow by a constant factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

RATIO = 1.04
"""Of each bound to the one below it."""

_FIRST_NS, _LAST_NS = 1_000, 100_000_000_000

BOUNDS_NS: Counts = np.unique(
    np.round(_FIRST_NS * RATIO ** np.arange(ceil(log(_LAST_NS / _FIRST_NS) / log(RATIO)) + 1)).astype(np.int64)
)
"""Upper bounds, inclusive, from 1 microsecond to 100 seconds."""

PLACES = len(BOUNDS_NS) + 1
"""Counts of a histogram: one per bound, and one for what lies above the last."""


class FineHistogram(NamedTuple):
    """One histogram, or several along the first axes.

    Attributes:
        places: counts, shape (..., ``PLACES``).
        total_ns: sum of the values, shape (...).
    """

    places: Counts
    total_ns: Counts

    @classmethod
    def empty(cls, *shape: int) -> FineHistogram:
        """Return histograms without a value."""
        return cls(np.zeros((*shape, PLACES), np.int64), np.zeros(shape, np.int64))

    @property
    def counted(self) -> Counts:
        """How many values were counted, shape (...)."""
        return np.asarray(self.places.sum(-1))

    def copy(self) -> FineHistogram:
        """Return counts that do not change any more."""
        return FineHistogram(self.places.copy(), self.total_ns.copy())

    def plus(self, other: FineHistogram) -> FineHistogram:
        """Return both together."""
        return FineHistogram(self.places + other.places, self.total_ns + other.total_ns)

    def since(self, before: FineHistogram | None) -> FineHistogram:
        """Return what was counted since ``before``, an earlier copy; None: all of it."""
        if before is None:
            return self.copy()
        return FineHistogram(self.places - before.places, self.total_ns - before.total_ns)


def places_of(values_ns: Counts) -> Counts:
    """Return, per value, the index of the count that it belongs to; of the same shape."""
    return np.searchsorted(BOUNDS_NS, values_ns)


def percentile_ns(counts: Counts | Sequence[int], share: float) -> float:
    """Return a percentile of one histogram, ``PLACES`` counts, in nanoseconds; see ``percentiles_ns``."""
    return float(percentiles_ns(np.asarray(counts)[None], (share,))[0, 0])


def percentiles_ns(counts: Counts, shares: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return, in nanoseconds, the values that shares of the counted ones are at or below; NaN where none was counted.

    Args:
        counts: (histograms, ``PLACES``). Within a place, values are taken to be spread evenly on a logarithmic scale.
        shares: from 0 to 1; of few values, a share is at least that of the first one.

    Returns:
        (histograms, shares).
    """
    running = np.cumsum(counts, axis=1)
    totals = running[:, -1:]
    wanted = np.maximum(totals * np.asarray(shares), 1.0)
    at_least = np.ceil(wanted).astype(np.int64)  # which is as good, and compares faster
    place = np.array([row.searchsorted(each) for row, each in zip(running, at_least, strict=True)])
    place = np.minimum(place, len(BOUNDS_NS) - 1)
    rows, under = np.arange(len(counts))[:, None], np.maximum(place - 1, 0)
    high = BOUNDS_NS[place].astype(np.float64)
    low = np.where(place > 0, BOUNDS_NS[under], high / RATIO)
    before = np.where(place > 0, running[rows, under], 0)
    within = np.clip((wanted - before) / np.maximum(running[rows, place] - before, 1), 0.0, 1.0)
    return np.where(totals > 0, np.exp(np.log(low) + (np.log(high) - np.log(low)) * within), np.nan)

"""The block bootstrap: intervals for ratios and percentiles of series whose neighbours resemble one another.

A slow minute follows a slow minute: minutes that are drawn one by one give intervals that are far too narrow. Blocks
are drawn instead, around the end of the series (circular block bootstrap; Politis and Romano 1992, "A Circular
Block-Resampling Procedure for Stationary Data"). They are a tenth of the series: few and long blocks with Student's
quantile hold where dependence cannot be estimated well (Schmeiser 1982, "Batch Size Effects in the Analysis of
Simulation Output", Operations Research 30:556).
"""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from tailcut.gate.distributions import student_quantile
from tailcut.observe.comparison.records import Change

Values = npt.NDArray[np.float64]
Pair = tuple[Values, Values]
"""A series of the earlier span, and of the recent one."""

BLOCKS = 10
"""In a series."""

RESAMPLES = 600
"""Of a standard deviation they give 3 %."""

_CONFIDENCE = 0.995
"""A comparison looks at some twenty figures: of 95 % intervals one would exclude 0 by chance."""


def draw_weights(count: int, seed: int, resamples: int = RESAMPLES) -> Values:
    """Return how often each of ``count`` elements is in each resample of blocks, (resamples, count)."""
    rng = np.random.default_rng(seed)
    length = ceil(count / BLOCKS)
    starts = rng.integers(0, count, (resamples, ceil(count / length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    flat = places + np.arange(resamples)[:, None] * count
    return np.bincount(flat.ravel(), minlength=resamples * count).reshape(resamples, count).astype(np.float64)


def ratio_change(above: Pair, below: Pair, weights: Values, *, is_relative: bool = True) -> Change:
    """Compare the ratio of two sums in both spans; see ``change_of``.

    Args:
        weights: of ``draw_weights``; elements at the same place of both spans are drawn together.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [float(one.sum() / other.sum()) for one, other in zip(above, below, strict=True)]
        drawn = [(weights @ one) / (weights @ other) for one, other in zip(above, below, strict=True)]
    return change_of((values[0], values[1]), (drawn[0], drawn[1]), weights.shape[1], is_relative=is_relative)


def change_of(values: tuple[float, float], drawn: Pair, count: int, *, is_relative: bool = True) -> Change:
    """Return the change of an estimate with Student's interval, from its standard deviation over resamples.

    Args:
        drawn: the estimate in each resample.
        count: elements of the series.
        is_relative: whether it is relative to the earlier value, and not the difference. There is none where a value
            is 0: all is NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if is_relative:
            change, replicates = float(np.log(values[1] / values[0])), np.log(drawn[1] / drawn[0])
        else:
            change, replicates = values[1] - values[0], drawn[1] - drawn[0]
    known = replicates[np.isfinite(replicates)]
    freedom = max(count / ceil(count / BLOCKS) - 1.0, 1.0)
    error = float(known.std(ddof=1)) * sqrt((freedom + 1) / freedom) if known.size > 1 else np.inf
    reach = student_quantile(0.5 + _CONFIDENCE / 2, freedom) * error
    found = (change, change - reach, change + reach) if np.isfinite(change) else (np.nan, np.nan, np.nan)
    value, low, high = (float(np.expm1(each)) for each in found) if is_relative else found
    return Change(before=values[0], after=values[1], change=value, low=low, high=high)

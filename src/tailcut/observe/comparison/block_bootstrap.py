"""The block bootstrap: intervals for means and percentiles of a series whose neighbours resemble one another.

A slow minute follows a slow minute: minutes that are drawn one by one give intervals that are far too narrow. Blocks
are drawn instead, around the end of the series (circular block bootstrap; Politis and Romano 1992, "A Circular
Block-Resampling Procedure for Stationary Data"). They are a tenth of the series: few and long blocks with Student's
quantile hold where dependence cannot be estimated well (Schmeiser 1982, "Batch Size Effects in the Analysis of
Simulation Output", Operations Research 30:556).
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.gate.distributions import student_below, student_quantile

Values = npt.NDArray[np.float64]

BLOCKS = 10
"""In a series."""

_MOST_FACTOR = 0.97
"""A disturbance that lasts longer than thirty elements is a change."""

RESAMPLES = 600
"""Of a standard deviation they give 3 %."""


class Interval(NamedTuple):
    """An estimate with its interval, and how likely one as far from 0 is by chance."""

    value: float
    low: float
    high: float
    p: float


class Blocks(NamedTuple):
    """How a series is resampled.

    Attributes:
        length: of a block, in elements.
        inflation: factor of the standard deviation for what blocks of this length miss of the dependence.
        freedom: of Student's t.
    """

    length: int
    inflation: float
    freedom: float


def choose_blocks(series: Values) -> Blocks:
    """Choose the blocks for the mean of a series.

    What reaches from block to block they miss. It is taken from an ARMA(1, 1) model, a slow disturbance under
    independent noise: its autocovariance falls by one factor from lag to lag. The freedom is at most what as many
    independent elements would leave.

    Args:
        series: (n,), in order; NaN where there is no value.
    """
    length = ceil(series.size / BLOCKS)
    freedom = series.size / length - 1.0
    known = series[np.isfinite(series)]
    n = known.size
    if n < BLOCKS:
        return Blocks(length, 1.0, max(min(n - 1.0, freedom), 1.0))
    variance, first, factor = _disturbance(_autocovariance(known, 2), n)
    if first <= 0.0:
        return Blocks(length, 1.0, freedom)
    all_of_it = variance + 2 * first / (1 - factor)
    inside = np.arange(1, length)
    seen = variance + 2 * first * float(((1 - inside / length) * factor ** (inside - 1)).sum())
    independent = n * variance / all_of_it
    return Blocks(length, sqrt(all_of_it / seen), max(min(freedom, independent - 1.0), 1.0))


def _autocovariance(known: Values, lags: int) -> Values:
    centred = known - known.mean()
    return np.array([float(centred[lag:] @ centred[: known.size - lag]) for lag in range(lags + 1)]) / known.size


def _disturbance(found: Values, n: int) -> tuple[float, float, float]:
    """Return the variance, the autocovariance at lag 1, and the factor from lag to lag; 0 and 0 without dependence.

    The mean that was subtracted is of the series itself, which lowers every autocovariance by the mean's own variance.
    The factor is taken one standard error higher: too low a one would name what did not change.
    """
    if found[1] <= 2 * found[0] / sqrt(n):
        return float(found[0]), 0.0, 0.0
    lifted = found
    factor = 0.0
    for _ in range(3):
        factor = float(np.clip(lifted[2] / lifted[1], 0.0, 1.0))
        factor = min(factor + sqrt((1 - factor**2) / n), _MOST_FACTOR)
        lifted = found + (lifted[0] + 2 * lifted[1] / (1 - factor)) / n
    return float(lifted[0]), float(lifted[1]), factor


def draw_weights(count: int, length: int, seed: int, resamples: int = RESAMPLES) -> Values:
    """Return how often each of ``count`` elements is in each resample of blocks, (resamples, count)."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, count, (resamples, ceil(count / length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    flat = places + np.arange(resamples)[:, None] * count
    return np.bincount(flat.ravel(), minlength=resamples * count).reshape(resamples, count).astype(np.float64)


def interval(value: float, replicates: Values, blocks: Blocks, confidence: float = 0.95) -> Interval:
    """Return Student's interval around an estimate, with the standard deviation of its replicates.

    Args:
        replicates: the estimate in each resample.
    """
    known = replicates[np.isfinite(replicates)]
    freedom = blocks.freedom
    error = float(known.std(ddof=1)) * blocks.inflation * sqrt((freedom + 1) / freedom) if known.size > 1 else np.inf
    if not np.isfinite(value) or not error:
        return Interval(value, value, value, 1.0 if not value else 0.0)
    reach = student_quantile(0.5 + confidence / 2, freedom) * error
    p = 2 * student_below(-abs(value) / error, freedom)
    return Interval(value, value - reach, value + reach, min(p, 1.0))

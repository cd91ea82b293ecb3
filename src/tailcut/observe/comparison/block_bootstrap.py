"""The block bootstrap: intervals for means and percentiles of a series whose neighbours resemble one another.

A slow minute follows a slow minute: minutes that are drawn one by one give intervals that are far too narrow. Blocks
are drawn instead, around the end of the series (circular block bootstrap; Politis and Romano 1992, "A Circular
Block-Resampling Procedure for Stationary Data"). Their length follows from the autocorrelation (Politis and White 2004,
"Automatic Block-Length Selection for the Dependent Bootstrap", Econometric Reviews 23:53, with the correction of
Patton, Politis and White 2009).
"""

from __future__ import annotations

from math import ceil, log10, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.gate.distributions import student_below, student_quantile
from tailcut.observe.fine_histogram import BOUNDS_NS, RATIO

Values = npt.NDArray[np.float64]

FEWEST_BLOCKS = 8
"""A length is cut so that there are as many: of fewer nothing can be said."""

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

    Where the series is short for its dependence, blocks that are short enough to be many miss a part of it. That part
    is taken from an ARMA(1, 1) model, a slow disturbance under independent noise: its autocovariance falls by one
    factor from lag to lag. The freedom is what as many independent elements would leave.

    Args:
        series: (n,), in order; NaN where there is no value.
    """
    known = series[np.isfinite(series)]
    n = known.size
    if n < FEWEST_BLOCKS:
        return Blocks(1, 1.0, max(n - 1.0, 1.0))
    lags = min(ceil(sqrt(n)) + 5, n - 1)
    found = _autocovariance(known, lags)
    length = min(_length(found, n), max(series.size // FEWEST_BLOCKS, 1))
    variance, first, factor = _disturbance(found, n)
    if first <= 0.0:
        return Blocks(length, 1.0, max(n / length - 1.0, 1.0))
    all_of_it = variance + 2 * first / (1 - factor)
    inside = np.arange(1, length)
    seen = variance + 2 * first * float(((1 - inside / length) * factor ** (inside - 1)).sum())
    independent = n * variance / all_of_it
    return Blocks(length, sqrt(all_of_it / seen), max(min(n / length, independent) - 1.0, 1.0))


def _autocovariance(known: Values, lags: int) -> Values:
    centred = known - known.mean()
    return np.array([float(centred[lag:] @ centred[: known.size - lag]) for lag in range(lags + 1)]) / known.size


def _length(found: Values, n: int) -> int:
    """Return the length of Politis and White, from autocovariances of n elements."""
    lags, near = len(found) - 1, 5
    if found[0] <= 0.0:
        return 1
    small = np.abs(found[1:] / found[0]) < 2 * sqrt(log10(n) / n)
    last = next((lag for lag in range(lags - near + 1) if small[lag : lag + near].all()), lags - near)
    if not last:
        return 1
    band = min(2 * last, lags)
    taper = np.clip(2 * (1 - np.arange(1, band + 1) / band), 0.0, 1.0)  # the trapezoid of the paper
    spectrum = found[0] + 2 * float(taper @ found[1 : band + 1])
    slope = 2 * float(taper @ (np.arange(1, band + 1) * found[1 : band + 1]))
    if spectrum <= 0.0:
        return lags
    length: float = (1.5 * n) ** (1 / 3) * abs(slope / spectrum) ** (2 / 3)
    return max(ceil(length), 1)


def _disturbance(found: Values, n: int) -> tuple[float, float, float]:
    """Return the variance, the autocovariance at lag 1, and the factor from lag to lag; 0 and 0 without dependence.

    The mean that was subtracted is of the series itself, which lowers every autocovariance by the mean's own variance.
    """
    if found[1] <= 2 * found[0] / sqrt(n):
        return float(found[0]), 0.0, 0.0
    lifted = found
    for _ in range(3):
        factor = float(np.clip(lifted[2] / lifted[1], 0.0, _MOST_FACTOR))
        lifted = found + (lifted[0] + 2 * lifted[1] / (1 - factor)) / n
    return float(lifted[0]), float(lifted[1]), float(np.clip(lifted[2] / lifted[1], 0.0, _MOST_FACTOR))


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


def percentiles_ns(histograms: Values, share: float) -> Values:
    """Return a percentile per histogram; see ``fine_histogram.percentile_ns``.

    Args:
        histograms: fine ones, (n, ``PLACES``); counts need not be whole.
    """
    running = np.cumsum(histograms, axis=1)
    total = running[:, -1]
    wanted = share * total
    places = np.minimum((running >= wanted[:, None]).argmax(axis=1), len(BOUNDS_NS) - 1)
    rows = np.arange(len(running))
    high = BOUNDS_NS[places].astype(np.float64)
    low = np.where(places > 0, BOUNDS_NS[np.maximum(places - 1, 0)], high / RATIO)
    before = np.where(places > 0, running[rows, np.maximum(places - 1, 0)], 0.0)
    within = (wanted - before) / np.maximum(running[rows, places] - before, 1e-12)
    found: Values = np.exp(np.log(low) + np.log(high / low) * np.clip(within, 0.0, 1.0))
    found[total <= 0] = np.nan
    return found

"""Exact percentiles, their spread over rounds, and bootstrap intervals.

A percentile here is the nearest-rank one: the smallest observed value that at least the share q of all observations
does not exceed (Hyndman and Fan 1996, "Sample Quantiles in Statistical Packages", definition 1). It is always a value
that some request really saw, and never an average of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a latency distribution, in milliseconds. ``mean`` is there for breakdowns that must add up."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over several rounds: the median round, and the lowest and highest one."""

    mid: float
    low: float
    high: float
    values: tuple[float, ...]


def rank(count: int, share: float) -> int:
    """Find the 0-based index, among ``count`` sorted values, of the nearest-rank percentile ``share`` (0 to 1)."""
    # 1e-9 undoes what binary fractions add: 0.95 * 20 must be 19, not 19.000000000000004.
    return min(max(int(np.ceil(share * count - 1e-9)) - 1, 0), count - 1)


def percentile(values: npt.ArrayLike, share: float) -> float:
    """Find the nearest-rank percentile of ``values`` (any order).

    Args:
        values: observations, shape [n], n >= 1.
        share: 0.95 for p95.

    Raises:
        ValueError: no values, or a share outside 0 to 1.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("no values")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share}; it must lie between 0 and 1")
    index = rank(array.size, share)
    return float(np.partition(array, index)[index])


def summarise(values_ms: npt.ArrayLike) -> Percentiles | None:
    """Describe a distribution of milliseconds; None where there is nothing to describe."""
    ordered = np.sort(np.asarray(values_ms, dtype=np.float64))
    count = int(ordered.size)
    if count == 0:
        return None

    def at(share: float) -> float:
        return float(ordered[rank(count, share)])

    return Percentiles(
        count=count,
        mean=float(ordered.mean()),
        p50=at(0.5),
        p90=at(0.9),
        p95=at(0.95),
        p99=at(0.99),
        p999=at(0.999),
        max=float(ordered[-1]),
    )


def spread(values: Sequence[float]) -> Spread:
    """Describe one figure over rounds: median round (the higher of two middle ones), lowest, highest.

    Rounds are of what should be low, milliseconds or CPU seconds: of two middle ones the higher flatters nobody.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    return Spread(mid=sorted(values)[len(values) // 2], low=min(values), high=max(values), values=tuple(values))


def bootstrap(
    values: npt.ArrayLike,
    statistic: Callable[[Values], float],
    *,
    seed: int,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Estimate an interval for ``statistic`` by the percentile bootstrap.

    Source: Efron 1979, "Bootstrap Methods: Another Look at the Jackknife". Observations must be independent: give it
    one figure per round, not the requests of one run (their latencies hang together through the queue).

    Args:
        values: observations, shape [n], n >= 1.
        statistic: what is estimated from a sample of shape [n].
        seed: of the resampling; the same seed gives the same interval.
        resamples: how many samples are drawn with replacement.
        confidence: the interval's coverage, 0 to 1.

    Raises:
        ValueError: no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("no values")
    rng = np.random.default_rng(seed)
    drawn = [statistic(array[rng.integers(0, array.size, array.size)]) for _ in range(resamples)]
    tail = (1 - confidence) / 2
    return percentile(drawn, tail), percentile(drawn, 1 - tail)

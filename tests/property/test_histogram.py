"""Histograms count every value once and their quantiles bound the exact ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.core.histogram import LATENCY_BOUNDS_NS, Histogram

values = st.lists(st.integers(0, 20_000_000_000), min_size=1, max_size=200)


@given(values)
def test_counts_and_sum(observed: list[int]) -> None:
    """Every value lies in exactly the bucket whose bounds enclose it."""
    histogram = Histogram()
    for value in observed:
        histogram.add(value)
    assert histogram.count == len(observed)
    assert histogram.total == sum(observed)
    for bound, below in zip(LATENCY_BOUNDS_NS, histogram.cumulative(), strict=False):
        assert below == sum(value <= bound for value in observed)
    assert histogram.cumulative()[-1] == len(observed)


@given(values, st.floats(0, 1))
def test_quantile_bounds_the_exact_one(observed: list[int], q: float) -> None:
    """The reported quantile is never below the exact one and at most one bucket above it."""
    histogram = Histogram()
    for value in observed:
        histogram.add(value)
    exact = sorted(observed)[max(1, math.ceil(q * len(observed))) - 1]
    reported = histogram.quantile(q)
    assert reported >= exact
    lower = max((bound for bound in LATENCY_BOUNDS_NS if bound < reported), default=-1)
    assert exact > lower


def test_refuses_nonsense() -> None:
    """An empty histogram has no quantile, bounds must ascend, q must be a share."""
    with pytest.raises(ValueError, match="empty"):
        Histogram().quantile(0.5)
    with pytest.raises(ValueError, match="ascend"):
        Histogram((2, 1))
    with pytest.raises(ValueError, match="q must lie"):
        Histogram().quantile(1.5)

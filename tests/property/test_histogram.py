"""Histograms count every value once, in the bucket whose bounds enclose it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.histogram import LATENCY_BOUNDS_NS, Histogram

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


@pytest.mark.parametrize("bounds", [(2, 1), (1, 1)])
def test_bounds_that_do_not_ascend_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Histogram(bounds)

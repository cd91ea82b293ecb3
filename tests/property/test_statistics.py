from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.statistics import bootstrap, percentile, spread, summarise

values = st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=200)
shares = st.floats(min_value=0, max_value=1)


@given(values, shares)
def test_a_percentile_is_a_value_that_was_seen(seen: list[float], share: float) -> None:
    assert percentile(seen, share) in seen


@given(values, shares)
def test_enough_values_lie_at_or_below_a_percentile(seen: list[float], share: float) -> None:
    found = percentile(seen, share)
    assert sum(value <= found for value in seen) >= share * len(seen) - 1e-6
    assert sum(value < found for value in seen) < share * len(seen) + 1e-6 or found == min(seen)


@given(values, shares, shares)
def test_percentiles_are_monotone(seen: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert percentile(seen, low) <= percentile(seen, high)


@given(values)
def test_a_summary_agrees_with_single_percentiles(seen: list[float]) -> None:
    shape = summarise(seen)
    assert shape is not None
    assert [shape.p50, shape.p90, shape.p95, shape.p99, shape.p999, shape.max] == [
        percentile(seen, share) for share in (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
    ]


@given(values)
def test_a_spread_encloses_its_middle(seen: list[float]) -> None:
    found = spread(seen)
    assert found.low <= found.mid <= found.high


@given(values, st.integers(0, 2**32))
def test_a_bootstrap_interval_is_seeded_and_inside_the_values(seen: list[float], seed: int) -> None:
    def median(sample: np.ndarray) -> float:
        return percentile(sample, 0.5)

    low, high = bootstrap(seen, median, seed=seed, resamples=50)
    assert min(seen) <= low <= high <= max(seen)
    assert (low, high) == bootstrap(seen, median, seed=seed, resamples=50)

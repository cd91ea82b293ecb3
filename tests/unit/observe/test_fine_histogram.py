from __future__ import annotations

import math

import numpy as np
import pytest

from tailcut.observe.fine_histogram import BOUNDS_NS, PLACES, RATIO, percentile_ns, places_of


def counted(values_ns: np.ndarray) -> np.ndarray:
    return np.bincount(places_of(values_ns), minlength=PLACES)


def test_neighbouring_bounds_differ_by_at_most_five_percent() -> None:
    assert max(BOUNDS_NS[1:] / BOUNDS_NS[:-1]) <= 1.05
    assert BOUNDS_NS[0] <= 1_000
    assert BOUNDS_NS[-1] >= 100e9


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("median_ns", [3_000, 2_000_000, 4_000_000_000])
def test_a_percentile_is_within_a_place_of_the_exact_one(share: float, median_ns: int) -> None:
    values_ns = np.random.default_rng(7).lognormal(math.log(median_ns), 0.5, 20_000).astype(np.int64)
    exact = float(np.quantile(values_ns, share))
    assert percentile_ns(counted(values_ns), share) == pytest.approx(exact, rel=RATIO - 1)


def test_counts_of_several_add_up() -> None:
    values_ns = np.random.default_rng(7).integers(1_000, 10**9, 1_000)
    assert (counted(values_ns[:400]) + counted(values_ns[400:]) == counted(values_ns)).all()


def test_of_nothing_there_is_no_percentile_and_what_is_too_slow_counts_as_the_last_bound() -> None:
    assert math.isnan(percentile_ns([0] * PLACES, 0.5))
    assert percentile_ns(counted(np.array([10**15])), 0.5) == pytest.approx(BOUNDS_NS[-1], rel=0.05)

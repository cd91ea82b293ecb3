from __future__ import annotations

import math

import numpy as np
import pytest

from tailcut.observe.fine_histogram import BOUNDS_NS, PLACES, RATIO, percentile_ns, percentiles_ns, places_of


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


def test_percentiles_of_few_values_are_at_least_the_first_and_the_same_in_any_company() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((60, PLACES), np.int64)
    for row in range(1, len(counts)):
        np.add.at(counts[row], rng.integers(0, PLACES, row // 4 + 1), rng.integers(1, 3, row // 4 + 1))
    shares = (0.0, 0.01, 0.5, 0.95, 1.0)
    found = percentiles_ns(counts, shares)
    assert np.isnan(found[0]).all()
    for row, percentiles in zip(counts[1:], found[1:], strict=True):
        places = np.repeat(np.arange(PLACES), row)  # of each value, ascending
        for share, percentile in zip(shares, percentiles, strict=True):
            ranked = places[max(math.ceil(share * len(places)), 1) - 1]
            high = BOUNDS_NS[min(ranked, PLACES - 2)]
            assert high / 1.05 <= percentile <= high * (1 + 1e-9)
            assert percentile_ns(row, share) == percentile

from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.slo import samples_needed
from tailcut.common.statistics import bootstrap, percentile, spread, summarise


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.05, 1), (0.5, 10), (0.51, 11), (0.95, 19), (0.951, 20), (1.0, 20)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile(np.arange(20, 0, -1), share) == expected


def test_a_summary_holds_every_percentile() -> None:
    shape = summarise(range(1, 1001))
    assert shape is not None
    assert (shape.count, shape.p50, shape.p90, shape.p95, shape.p99, shape.p999, shape.max) == (
        1000, 500, 900, 950, 990, 999, 1000,
    )  # fmt: skip
    assert shape.mean == pytest.approx(500.5)


def test_nothing_has_no_summary() -> None:
    assert summarise([]) is None


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share is"):
        percentile([1.0], share)


def test_no_values_are_refused() -> None:
    for function in (lambda: percentile([], 0.5), lambda: spread([]), lambda: bootstrap([], np.mean, seed=0)):
        with pytest.raises(ValueError, match="no values"):
            function()


def test_samples_needed_grow_with_the_tail() -> None:
    assert [samples_needed(share) for share in (0.5, 0.95, 0.99, 0.999)] == [40, 400, 2000, 20000]


def test_a_spread_keeps_all_rounds() -> None:
    seen = spread([3.0, 1.0, 2.0])
    assert (seen.low, seen.mid, seen.high, seen.values) == (1.0, 2.0, 3.0, (3.0, 1.0, 2.0))


def test_of_two_middle_rounds_a_spread_has_the_higher() -> None:
    assert spread([5.0, 2.0]).mid == 5.0
    assert spread([4.0, 1.0, 3.0, 2.0]).mid == 3.0

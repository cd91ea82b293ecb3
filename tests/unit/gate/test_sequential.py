"""gate.sequential: the schedule of looks, and the signed-rank interval."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.gate.sequential import LEAST, interval, schedule


@settings(deadline=None)
@given(st.integers(LEAST, 200), st.sampled_from([0.005, 0.025, 0.05]))
def test_the_looks_spend_the_error_and_no_more(most: int, error: float) -> None:
    looks = schedule(most, error)
    assert sum(look.error for look in looks) <= error * (1 + 1e-9)
    assert all(look.error > 0.0 for look in looks)
    assert [look.rounds for look in looks] == sorted({look.rounds for look in looks})
    assert all(LEAST <= look.rounds <= most for look in looks)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=30), st.floats(-3.0, 3.0), st.floats(0.001, 0.2))
def test_an_interval_has_its_middle_inside_and_moves_with_the_values(
    values: list[float], shift: float, error: float
) -> None:
    found = interval(values, error)
    assert found.low <= found.middle <= found.high
    moved = interval([each + shift for each in values], error)
    assert moved.middle == pytest.approx(found.middle + shift, abs=1e-9)
    mirrored = interval([-each for each in values], error)
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


@pytest.mark.parametrize(("count", "error"), [(6, 0.0157), (8, 0.025), (9, 0.01), (10, 0.05)])
def test_the_level_is_exact_over_all_signs(count: int, error: float) -> None:
    """Of values that may as well have had the other sign, an end is on the wrong side as often as the error allows."""
    sizes = [1.0 + place + 0.1 * place**2 for place in range(count)]
    signs = list(itertools.product((-1.0, 1.0), repeat=count))
    wrong = sum(
        interval([size * sign for size, sign in zip(sizes, each, strict=True)], error).low > 0 for each in signs
    )
    assert 0 < wrong / len(signs) <= error
    assert wrong / len(signs) > error - 0.02, "no smaller than it has to be"


def test_too_few_values_bound_nothing() -> None:
    assert interval([1.0] * 5, 0.0157) == (1.0, -math.inf, math.inf)
    assert interval([1.0] * 6, 0.0157) == (1.0, 1.0, 1.0)


def test_a_burst_in_one_of_many_rounds_moves_the_interval_little() -> None:
    calm = [-0.2, -0.25, -0.18, -0.22, -0.3, -0.15, -0.21, -0.24, -0.19, -0.26, -0.17, -0.23, -0.28, -0.2]
    assert interval([*calm, 6.0], 0.01).high < 0.0 < sum([*calm, 6.0])

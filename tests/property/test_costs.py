"""What is made of the times of batches: how late they are, how much of a figure is known, and which sizes follow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.core.costs import Cost, left_ns
from tailcut.core.learning import CostModel

MS = 1e6
SIZES = (1, 2, 4, 8, 16, 32)
SEVEN = {rows: 7.0 * rows * MS for rows in SIZES}
"""Nothing is gained by sharing: seven milliseconds a row."""


@given(
    expected_ns=st.floats(1e5, 1e9),
    late=st.floats(1.0, 3.0),
    hiccup_ns=st.floats(1e5, 3e9),
    passed=st.floats(0.0, 10.0),
)
def test_a_batch_that_is_late_takes_as_long_again_and_no_longer_than_a_hiccup(
    expected_ns: float, late: float, hiccup_ns: float, passed: float
) -> None:
    cost = Cost(0.0, 0.0, (expected_ns,), late=late, hiccup_ns=hiccup_ns)
    passed_ns = passed * expected_ns
    left = left_ns(passed_ns, 1, cost)
    if passed_ns <= late * expected_ns * (1 - 1e-9):
        assert left == pytest.approx(max(expected_ns - passed_ns, 0.0))
    elif passed_ns > late * expected_ns * (1 + 1e-9):
        assert left == pytest.approx(max(min(passed_ns, expected_ns + hiccup_ns - passed_ns), 0.0))


@given(left_ms=st.floats(0.1, 1e4), late=st.floats(1.0, 3.0), fine_ms=st.floats(0.0, 100.0))
def test_a_batch_that_is_sure_to_end_in_time_ends_in_time_when_it_is_late(
    left_ms: float, late: float, fine_ms: float
) -> None:
    cost = Cost(0.0, 1.0, late=late, fine_ns=fine_ms * MS)
    sure_ns = cost.sure_ns(left_ms * MS)
    if sure_ns > 0:
        assert sure_ns + cost.spread_ns(sure_ns) == pytest.approx(left_ms * MS)


def test_what_delays_lone_rows_for_some_milliseconds_is_not_expected_of_large_batches_in_proportion() -> None:
    """Of lone rows every fifth takes six milliseconds more: another thread had the core. Large ones do not take 1.8."""
    draw, model = random.Random(1), CostModel()
    model.seed(SEVEN, runs=5)
    for _ in range(300):
        model.observe(1, (7.0 + (6.0 if draw.random() < 0.2 else 0.0)) * MS)
    cost = model.cost
    assert cost.late_ns(1) > 12 * MS
    assert cost.late_ns(32) < 1.35 * cost.batch_ns(32)


def test_one_slow_batch_of_the_first_ten_is_not_what_one_in_twenty_takes() -> None:
    model = CostModel()
    model.seed(SEVEN, runs=5)
    for number in range(12):
        model.observe(32, (2.0 if number == 3 else 1.0) * SEVEN[32])
    assert model.cost.late < 1.15
    for number in range(12):
        model.observe(32, (2.0 if number == 3 else 1.0) * SEVEN[32])
    assert model.cost.late < 1.15
    for number in range(100):
        model.observe(32, (1.6 if number % 10 == 3 else 1.0) * SEVEN[32])
    assert model.cost.late > 1.3


@pytest.mark.parametrize(("runs", "most"), [(5, 1.2), (1, 2.0)])
def test_the_first_row_of_all_moves_what_was_measured_of_other_sizes_the_less_the_more_runs_that_was(
    runs: int, most: float
) -> None:
    """Everybody connects while it runs, so that it takes three times as long."""
    model = CostModel()
    model.seed(SEVEN, runs=runs)
    model.observe(1, 20.0 * MS)
    assert model.cost.batch_ns(8) < most * SEVEN[8]
    assert (model.cost.batch_ns(8) > 1.2 * SEVEN[8]) == (runs == 1)


def test_beyond_the_size_where_sharing_ends_to_gain_batches_do_not_grow() -> None:
    """Eight rows take half of what they take alone; each beyond them takes two thirds of a lone one."""
    knee = {rows: (5.0 + 2.0 * rows if rows <= 8 else 21.0 + 4.0 * (rows - 8)) * MS for rows in SIZES}
    model = CostModel()
    model.seed(knee)
    assert knee[32] < 0.6 * 32 * knee[1]
    assert model.cost.worth_rows(32, tried=False) == 8
    model = CostModel()
    model.seed({rows: (10.0 + rows) * MS for rows in SIZES})
    assert model.cost.worth_rows(32, tried=False) == 32


def test_where_no_size_is_to_be_tried_one_that_is_only_guessed_must_seem_clearly_better() -> None:
    """Large batches seem a tenth cheaper by the row, but none has run: those who wait do not have to find out."""
    points = (7.0, 14.0, 28.0, 56.0, 104.0)
    known = Cost(0.0, 0.0, tuple(point * MS for point in points), shaped=True, doubts=(0.0,) * 5)
    assert known.worth_rows(16, tried=False) == 16
    guessed = known._replace(doubts=(0.0, 0.0, 0.0, 0.0, 0.5))
    assert guessed.worth_rows(16, tried=False) < 16
    assert guessed.worth_rows(16, tried=True) == 16
    between = guessed.worth_rows(12, tried=False)
    assert between < 12

"""What is made of the times of batches: how late they are, what is known of a size, and which sizes follow."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailcut.scheduler.cost import FREE, BatchCost, CostModel, LatencyLearner, left_ns

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
def test_a_batch_that_is_late_takes_twice_as_long_again_and_no_longer_than_a_hiccup(
    expected_ns: float, late: float, hiccup_ns: float, passed: float
) -> None:
    cost = BatchCost(0.0, 0.0, (expected_ns,), late=late, hiccup_ns=hiccup_ns)
    passed_ns = passed * expected_ns
    left = left_ns(passed_ns, 1, cost)
    if passed_ns <= late * expected_ns * (1 - 1e-9):
        assert left == pytest.approx(max(expected_ns - passed_ns, 0.0))
    elif passed_ns > late * expected_ns * (1 + 1e-9):
        assert left == pytest.approx(max(min(2 * passed_ns, expected_ns + hiccup_ns - passed_ns), 0.0))


@given(left=st.floats(1e5, 1e10), late=st.floats(1.0, 3.0), short_late=st.floats(1.0, 3.0), fine=st.floats(0.0, 1e8))
def test_a_batch_that_is_sure_to_end_in_time_ends_in_time_when_it_is_late(
    left: float, late: float, short_late: float, fine: float
) -> None:
    cost = BatchCost(0.0, 1.0, late=late, short_late=short_late, fine_ns=fine)
    assume(abs(left / late - fine) > 1e-6 * fine)  # there one measure takes over from the other
    sure = cost.sure_ns(left) * (1 - 1e-9)
    assert sure + cost.spread_ns(sure) <= left
    more = cost.sure_ns(left) * (1 + 1e-6)
    assert more + cost.spread_ns(more) > left


def test_what_delays_lone_rows_for_some_milliseconds_is_not_expected_of_large_batches() -> None:
    """Of lone rows every fifth takes six milliseconds more: another thread had the core. Large ones do not take 1.8."""
    draw, model = random.Random(1), CostModel()
    model.seed(SEVEN)
    for _ in range(300):
        model.observe(1, (7.0 + (6.0 if draw.random() < 0.2 else 0.0)) * MS)
    cost = model.cost
    assert cost.late_ns(1) > 12 * MS
    assert cost.late_ns(32) < 1.15 * cost.batch_ns(32)


@pytest.mark.parametrize("before", [1, 32])
def test_how_late_large_batches_are_is_kept_while_lone_rows_run_and_the_other_way_round(before: int) -> None:
    """With noise of a fifth, one in twenty takes 1.39 times as long."""
    draw, model = random.Random(2), CostModel()
    model.seed(SEVEN)
    for rows in (before, 33 - before):
        for _ in range(300):
            model.observe(rows, SEVEN[rows] * draw.lognormvariate(0.0, 0.2))
    for rows in (1, 32):
        assert 1.25 < model.cost.late_ns(rows) / model.cost.batch_ns(rows) < 1.6


def test_one_slow_batch_of_the_first_ten_is_not_what_one_in_twenty_takes() -> None:
    model = CostModel()
    model.seed(SEVEN)
    for number in range(12):
        model.observe(32, (2.0 if number == 3 else 1.0) * SEVEN[32])
    assert model.cost.late < 1.15
    for number in range(100):
        model.observe(32, (1.6 if number % 10 == 3 else 1.0) * SEVEN[32])
    assert model.cost.late > 1.3


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
    points = {1: 7.0 * MS, 2: 14.0 * MS, 4: 28.0 * MS, 8: 56.0 * MS, 16: 104.0 * MS}
    costs = LatencyLearner()
    costs.seed(points, kind=8)
    assert costs.of(8).worth_rows(16, tried=False) == 16
    # Rows of another length are taken to behave alike; all that has run of them is small.
    for _ in range(10):
        for rows in (1, 2, 4, 8):
            costs.observe(rows, 10 * rows * 7.0 * MS, kind=64)
    assert costs.of(64).worth_rows(16, tried=True) == 16
    assert costs.of(64).worth_rows(16, tried=False) < 16
    assert costs.of(64).worth_rows(12, tried=False) < 12
    assert costs.of(48).worth_rows(16, tried=False) < 16
    costs.observe(16, 10 * points[16], kind=64)
    assert costs.of(64).worth_rows(16, tried=False) == 16


def test_a_size_that_warm_up_has_shown_is_not_feared_however_long_ago() -> None:
    """A batch of eight takes a tenth less than eight rows alone; for a while only lone ones come."""
    pays = {1: 5.45 * MS, 2: 10.6 * MS, 4: 20.6 * MS, 8: 39.1 * MS}
    model = CostModel()
    model.seed(pays)
    for _ in range(1000):
        model.observe(1, pays[1])
    assert model.cost.worth_rows(8, tried=False) == 8


def test_batches_that_run_in_slices_are_not_guessed_to_be_dearer_but_may_be() -> None:
    """By the row thirty-two take a fifth more than two, as other lengths have it; then they are seen to."""
    dearer = {rows: (6.0 + 0.3 * rows.bit_length()) * rows * MS for rows in SIZES}
    whole, sliced = CostModel(), CostModel(run_rows=1)
    for model in (whole, sliced):
        model.seed(dearer, octaves=1.0)
    each = {rows: [model.cost.batch_ns(rows) / rows for model in (whole, sliced)] for rows in SIZES}
    assert each[32][0] > 1.15 * each[1][0]
    assert all(each[rows][1] <= 1.0001 * each[1][1] for rows in SIZES)
    for _ in range(20):
        for rows in (1, 16, 32):
            sliced.observe(rows, dearer[rows])
    assert sliced.cost.batch_ns(32) == pytest.approx(dearer[32], rel=0.02)
    assert LatencyLearner(run_rows=4).cost == FREE


def test_the_longer_nobody_was_idle_the_more_counts_how_much_is_done() -> None:
    """Thirty-two rows take two percent less by the row than eight: worth it for those who come later, if many do."""
    shape = {1: 6.8, 2: 6.6, 4: 6.4, 8: 6.3, 16: 6.22, 32: 6.17}
    cost = BatchCost(0.0, 6.8 * MS, points=tuple([rows * row_ms * MS for rows, row_ms in shape.items()]), shaped=True)
    worth = [cost.worth_rows(32, busy_rows=rows) for rows in (0, 100, 1_000, 3_000, 30_000)]
    assert worth == sorted(worth)
    assert worth[0] <= 8
    assert worth[-1] == 32
    assert cost.worth_rows(32) == worth[0]


def test_rows_that_are_far_longer_are_guessed_with_more_doubt_than_neighbours() -> None:
    """Four rows of sixteen times the length take four times as much by the row as is guessed: lone ones do not."""
    costs = LatencyLearner()
    costs.seed({1: 1.6 * MS, 2: 1.7 * MS, 4: 1.8 * MS, 8: 2.8 * MS}, kind=8)
    for _ in range(50):
        costs.observe(1, 6.5 * MS, kind=128)
    for _ in range(5):
        costs.observe(4, 28.0 * MS, kind=128)
    assert costs.of(128).batch_ns(1) < 8.0 * MS
    assert costs.of(128).batch_ns(4) / (28.0 * MS) == pytest.approx(1.0, abs=0.1)
    near, far = LatencyLearner(), LatencyLearner()
    for guessed, kind in ((near, 64), (far, 8)):
        guessed.seed({rows: rows * 6.0 * MS for rows in SIZES}, kind=kind)
        guessed.observe(1, 6.0 * MS, kind=128)
    assert far.of(128).doubts[3] > 1.5 * near.of(128).doubts[3]


def test_the_first_hiccup_is_expected_of_one_run_and_not_of_all_runs_of_a_batch() -> None:
    """The largest batch is eight runs of four, and one of them may take five times as long."""
    shape = {rows: 6.0 * rows * MS for rows in SIZES}
    whole, sliced, small = CostModel(), CostModel(run_rows=4), CostModel(run_rows=64)
    for model in (whole, sliced, small):
        model.seed(shape)
    assert whole.cost.hiccup_ns == pytest.approx(4 * shape[32], rel=0.05)
    assert sliced.cost.hiccup_ns == pytest.approx(4 * shape[4], rel=0.05)
    assert small.cost.hiccup_ns == pytest.approx(4 * shape[32], rel=0.05), "its batches run whole"
    for _ in range(10):
        sliced.observe(32, shape[32])
    assert sliced.cost.hiccup_ns == pytest.approx(4 * shape[4], rel=0.05)
    for _ in range(3):
        sliced.observe(32, 5 * shape[32])
    assert sliced.cost.hiccup_ns > 3 * shape[32], "what was seen counts"

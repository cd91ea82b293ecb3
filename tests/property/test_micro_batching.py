"""The division of batches: every row runs once, in order, whatever was learned."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tailcut.scheduler.micro_batching import Division

MS = 1e6


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.0, 1e10)), min_size=1, max_size=60))
def test_runs_add_up_to_the_batch_whatever_they_took(batches: list[tuple[int, float]]) -> None:
    division = Division()
    for rows, took_ns in batches:
        runs = division.runs(rows)
        assert sum(runs) == rows
        assert min(runs) >= 1
        division.learn(runs, [took_ns * run for run in runs])


@given(st.integers(2, 64), st.floats(0.001, 1.99))
def test_batches_of_less_than_two_milliseconds_run_whole(rows: int, batch_ms: float) -> None:
    division = Division()
    for _ in range(20):
        assert division.runs(rows) == [rows]
        division.learn([rows], [batch_ms * MS])
    assert division.is_short(rows)


def test_what_larger_batches_took_calls_no_small_one_short() -> None:
    """Thirty-two rows in 1.5 ms, then eight in 4: a batch of those is long enough to be divided."""
    division = Division()
    division.learn([8], [4 * MS])
    division.learn([32], [1.5 * MS])
    assert division.is_short(32)
    assert not division.is_short(8)


def test_nothing_is_short_before_anything_ran() -> None:
    assert not Division().is_short(1)


def test_the_first_batch_runs_whole_and_then_its_halves_are_tried() -> None:
    division = Division()
    assert division.runs(32) == [32]
    division.learn([32], [320 * MS])
    assert division.runs(32) == [16, 16]
    division.learn([16, 16], [120 * MS, 120 * MS])
    assert division.runs(32) == [16, 8, 8], "beside what is best so far"


def test_a_size_that_does_not_divide_the_batch_leaves_runs_that_differ_by_one() -> None:
    division = Division()
    for _ in range(200):
        runs = division.runs(32)
        division.learn(runs, [(6.0 + 0.2 * run.bit_length()) * run * MS if run > 1 else 9 * MS for run in runs])
    for rows in (31, 7):
        usual = Counter(tuple(division.runs(rows)) for _ in range(30)).most_common(1)[0][0]
        assert max(usual) - min(usual) <= 1
        assert max(usual) in (2, 3)
        assert sum(usual) == rows

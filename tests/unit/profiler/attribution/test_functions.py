"""How often stacks are looked at: code that runs for little of the time is looked at more often, and for longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.profiler.attribution.functions import code_s, functions_of, plan_looks
from tailcut.profiler.records import Recording, Request, Sample, Span, Stage

_MS = 1_000_000


def test_busy_code_is_looked_at_fifty_times_a_second() -> None:
    """For six seconds, where the recording is that long."""
    assert plan_looks(2.0, longest_s=15.0, threads=4) == (50.0, 6.0)
    assert plan_looks(2.0, longest_s=2.0, threads=4) == (100.0, 2.0)


def test_quick_code_is_looked_at_more_often_and_then_for_longer() -> None:
    often, longer = plan_looks(0.25, 15.0, 4), plan_looks(0.1, 15.0, 4)
    assert often == (pytest.approx(400 / 0.25 / 6), 6.0)
    assert longer == (500.0, pytest.approx(400 / 0.1 / 500))


def test_each_thread_more_takes_more_of_a_core_to_look_at() -> None:
    assert plan_looks(0.01, 15.0, 40).rate == 125.0
    assert plan_looks(0.01, 15.0, 400).rate == 50.0


@given(st.floats(0.0, 4.0), st.floats(0.1, 60.0), st.integers(0, 500))
def test_looks_suffice_or_are_as_many_as_may_be(share: float, longest_s: float, threads: int) -> None:
    rate, seconds = plan_looks(share, longest_s, threads)
    assert 50.0 <= rate <= 500.0
    assert 0.0 < seconds <= longest_s * (1 + 1e-9)
    fastest = plan_looks(0.0, longest_s, threads).rate
    assert rate * seconds * share >= 400 * (1 - 1e-9) or (rate == fastest and seconds == pytest.approx(longest_s))


def request(*spans: tuple[Stage, int, int, int]) -> Request:
    """One with spans of (stage, begin, end, parent), times in milliseconds."""
    made = [
        Span(stage=stage, label="", place="", start_ns=begin * _MS, end_ns=end * _MS, parent=parent)
        for stage, begin, end, parent in spans
    ]
    return Request(
        number=0, intended_ns=0, sent_ns=0, entered_ns=0, left_ns=1, done_ns=1, status=200, spans=tuple(made)
    )


def test_what_code_calls_and_waits_for_is_none_of_its_time() -> None:
    handled = request(
        (Stage.FRAMEWORK, 0, 20, -1), (Stage.CODE, 2, 12, 0), (Stage.SQL, 3, 7, 1), (Stage.CODE, 8, 10, 1)
    )
    assert code_s([handled, request((Stage.FRAMEWORK, 0, 20, -1))]) == pytest.approx(0.006)


def test_calls_that_overlap_or_end_later_are_left_out_once() -> None:
    calls = [(Stage.HTTP, 2, 8, 0), (Stage.HTTP, 3, 9, 0), (Stage.CODE, 8, 30, 0)]
    assert code_s([request((Stage.CODE, 0, 10, -1), *calls)]) == pytest.approx(0.002 + 0.022)


def sample(place: str, milliseconds: int) -> Sample:
    return Sample(stack=(place,), at_ns=0, weight_ns=milliseconds * _MS, place=place, code=("read", "app.py:1"))


def test_functions_are_told_whole_but_not_those_of_one_name() -> None:
    seen = [("work (app.py:3)", 2), ("work (app.py:4)", 3), ("<lambda> (app.py:8)", 4), ("<lambda> (app.py:9)", 1)]
    found = functions_of(
        Recording(
            target="app:app", rate=1.0, duration_s=1.0, requests=(), sample_interval_ns=_MS,
            samples=tuple(sample(*one) for one in seen),
        )
    )[("read", "app.py:1")]  # fmt: skip
    assert [(one.function, one.samples) for one in found] == [
        ("work (app.py:4)", 5),
        ("<lambda> (app.py:8)", 4),
        ("<lambda> (app.py:9)", 1),
    ]

"""When the next executor is opened, and when it is expected, whatever happened before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.scheduler.restart_backoff import RestartBackoff

EVENTS = st.lists(st.tuples(st.sampled_from(["began", "ended", "failed", "lost"]), st.floats(0, 100)), max_size=30)


@given(EVENTS, st.floats(0.001, 60))
def test_pauses_are_bounded_and_what_is_expected_never_lies_in_the_past(
    events: list[tuple[str, float]], load_s: float
) -> None:
    reopening, now_s = RestartBackoff(load_s), 0.0
    for what, passes_s in events:
        now_s += passes_s
        if what == "lost":
            reopening.lost(now_s, lived_s=passes_s)
        else:
            getattr(reopening, what)(now_s)
        left_s = reopening.left_s(now_s)
        assert left_s is None or left_s >= 0
        assert reopening.retry_s(now_s) >= 0
        assert reopening.pause_s <= 30
        assert reopening.may(now_s + 30.001)


def test_what_is_expected_shrinks_as_it_loads_and_grows_again_where_it_is_overdue() -> None:
    reopening = RestartBackoff(1.0)
    assert reopening.left_s(10.0) == pytest.approx(1.2)
    reopening.began(10.0)
    assert reopening.left_s(10.5) == pytest.approx(0.7)
    assert reopening.left_s(11.0) == pytest.approx(0.2)
    assert reopening.left_s(20.0) == pytest.approx(2.0)


def test_a_slower_loading_is_believed_at_once_and_a_quicker_one_by_half() -> None:
    reopening = RestartBackoff(1.0)
    reopening.began(0.0)
    reopening.ended(3.0)
    assert reopening.load_s == pytest.approx(3.0)
    reopening.began(10.0)
    reopening.ended(11.0)
    assert reopening.load_s == pytest.approx(2.0)


def test_the_first_death_costs_no_pause_and_those_that_follow_it_more_and_more() -> None:
    reopening, pauses = RestartBackoff(1.0), []
    for now_s in (0.0, 1.0, 2.0, 10.0, 20.0, 40.0):
        reopening.lost(now_s, lived_s=1.0)
        left_s = reopening.left_s(now_s)
        assert left_s is not None
        pauses.append(round(left_s - 1.2, 6))
    assert pauses == [0, 0.25, 0.5, 1, 2, 4]
    reopening.lost(100.0, lived_s=61.0)
    assert reopening.may(100.0), "it did not die of its start"


def test_after_a_failed_opening_nobody_knows_when_one_comes() -> None:
    reopening = RestartBackoff(1.0)
    reopening.began(0.0)
    reopening.failed(1.0)
    assert reopening.left_s(1.0) is None
    assert reopening.retry_s(1.0) == pytest.approx(1.25)
    assert not reopening.may(1.2)
    reopening.began(1.3)
    assert reopening.left_s(1.3) is None
    reopening.ended(2.3)
    assert reopening.left_s(2.3) is not None

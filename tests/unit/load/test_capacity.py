from __future__ import annotations

import pytest

from tailcut.load.capacity import CapacitySearch


def search_against(true_capacity: float, *, start: float = 10.0, **limits: float) -> CapacitySearch:
    search = CapacitySearch(start, **limits)
    while (rate := search.next_rate()) is not None:
        assert len(search.steps) < 100, "the search does not end"
        search.record(rate, passed=rate <= true_capacity, cause="too slow")
    return search


@pytest.mark.parametrize("true_capacity", [1, 9.99, 10, 77, 1000, 9_999])
def test_the_search_ends_just_below_the_true_capacity(true_capacity: float) -> None:
    search = search_against(true_capacity)
    assert true_capacity / 1.05 <= search.capacity <= true_capacity
    assert search.confirmed
    assert len(search.steps) < 25


def test_nothing_passes() -> None:
    search = search_against(0.0)
    assert search.capacity == 0
    assert not search.confirmed


def test_everything_passes_up_to_the_highest_rate() -> None:
    search = search_against(1e9, max_rate=320)
    assert (search.capacity, search.confirmed, search.first_miss) == (320, True, None)


def test_the_first_miss_names_the_limit() -> None:
    miss = search_against(77).first_miss
    assert miss is not None
    assert 77 < miss.rate <= 77 * 1.11
    assert miss.cause == "too slow"


def test_a_winner_that_fails_its_repeat_is_a_miss() -> None:
    search = CapacitySearch(100, tolerance=0.5)
    search.record(100, passed=True)
    search.record(200, passed=False)
    assert search.next_rate() == pytest.approx(141.42, abs=0.01)
    search.record(141.42, passed=True)
    assert search.next_rate() == 141.42
    search.record(141.42, passed=False, cause="noise")
    assert search.capacity == 100
    assert search.next_rate() == 100
    search.record(100, passed=True)
    assert search.next_rate() is None
    assert (search.capacity, search.confirmed) == (100, True)

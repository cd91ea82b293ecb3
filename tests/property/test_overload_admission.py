"""Who boards while a backlog stands is answered in time, by what is known of batches, and so is who boarded before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailcut.scheduler.admission import OverloadAdmission, applies, most_rows, tightest_ns
from tailcut.scheduler.cost import BatchCost
from tailcut.scheduler.overload_detector import LatencyTarget, OverloadDetector
from tailcut.scheduler.request_queue import DEFAULT_LEVEL, QueueEntry, RequestQueue

FULL = 8
LIMIT = 100.0

boardings = st.builds(
    lambda base, row, late, starts, gap: OverloadAdmission(BatchCost(base, row, late=late), sorted(starts), FULL, gap),
    st.floats(0, 60),
    st.floats(0.5, 20),
    st.floats(1, 2),
    st.lists(st.floats(0, 80), min_size=1, max_size=4),
    st.one_of(st.just(0.0), st.floats(0.1, 50)),
)


@given(boardings, st.integers(0, 40), st.integers(1, 12), st.floats(0, 100))
def test_who_boards_is_in_time_and_makes_nobody_late(
    boarding: OverloadAdmission, ahead: int, rows: int, tightest: float
) -> None:
    if boarding.check(ahead, rows, LIMIT, tightest) is not None:
        return
    batches = -(-(ahead + rows) // FULL)
    rounds, place = divmod(batches - 1, len(boarding.starts_ns))
    own = ahead + rows - (batches - 1) * FULL
    start = boarding.starts_ns[place] + rounds * boarding.cost.batch_ns(FULL)
    assert start + boarding.cost.batch_ns(own) <= LIMIT
    if batches == 1:
        assert start + boarding.cost.late_ns(own) <= tightest, "else the scheduler would cut the batch"


@given(boardings, st.integers(0, 40), st.floats(0, 1))
def test_who_is_told_when_a_place_opens_has_none_before(boarding: OverloadAdmission, ahead: int, share: float) -> None:
    missed = boarding.check(ahead, 1, LIMIT, float("inf"))
    if missed is None:
        return
    passed = 0.99 * share * missed.opens_ns
    assert passed <= missed.end_ns
    sooner = boarding._replace(starts_ns=[max(start - passed, 0) for start in boarding.starts_ns])
    assert sooner.check(ahead, 1, LIMIT, float("inf")) is not None


def test_a_place_on_the_second_executor_opens_while_the_first_is_still_busy() -> None:
    busy = OverloadAdmission(BatchCost(0.0, 10.0), [50.0, 60.0], FULL, gap_ns=1.0)
    missed = busy.check(FULL, 1, 120.0, float("inf"))
    assert missed is not None
    assert missed.opens_ns == 24
    assert busy._replace(starts_ns=[26.0, 36.0]).check(FULL, 1, 120.0, float("inf")) is None


@given(st.lists(st.tuples(st.integers(10, 90), st.booleans()), min_size=1, max_size=12))
def test_who_has_left_is_waited_for_no_more(waiters: list[tuple[int, bool]]) -> None:
    """Clients that give up leave their entries in the queue until these come to the top."""
    overload, waiting = OverloadDetector(LatencyTarget(100, 200)), RequestQueue[QueueEntry]()
    overload.stands = True
    entries = [QueueEntry(1, 200, lane, target_ns=target) for target, lane in waiters]
    for entry in entries:
        waiting.add(entry)
    # All of one lane leave, and of the other whoever is most urgent.
    stay = sorted((entry for entry in entries if not entry.lane), key=lambda entry: entry.target_ns)[1:]
    for entry in entries:
        if entry not in stay:
            waiting.leave(entry)
    assert applies(overload, waiting, DEFAULT_LEVEL)
    assert tightest_ns(waiting, 5) == min((entry.target_ns - 5 for entry in stay), default=float("inf"))


@given(boardings, st.integers(0, 20))
def test_less_that_waits_never_costs_a_place(boarding: OverloadAdmission, ahead: int) -> None:
    if len(boarding.starts_ns) > 1 and ahead % FULL == FULL - 1:
        return  # the next would be the first of another batch, which another executor runs, and it may be a small one
    if boarding.check(ahead + 1, 1, LIMIT, float("inf")) is None:
        assert boarding.check(ahead, 1, LIMIT, float("inf")) is None


def test_the_first_waits_until_there_is_time_for_a_full_batch() -> None:
    busy = OverloadAdmission(BatchCost(0.0, 10.0), [80.0], FULL, gap_ns=1.0)
    missed = busy.check(0, 1, 120.0, float("inf"))
    assert missed is not None
    assert missed.end_ns == 80 + 1.05 * 80
    assert missed.opens_ns == 44
    assert busy._replace(starts_ns=[80 - 44.0]).check(0, 1, 120.0, float("inf")) is None
    rarely = busy._replace(gap_ns=40.0)
    assert rarely.check(0, 1, 120.0, float("inf")) is None, "so few come that the batch will be a small one"


def test_nobody_boards_a_batch_that_would_be_cut_for_those_who_are_in_it() -> None:
    busy = OverloadAdmission(BatchCost(0.0, 10.0, late=1.5), [10.0], FULL, gap_ns=20.0)
    assert busy.check(3, 1, 1000.0, 70.0) is None
    assert busy.check(3, 1, 1000.0, 69.0) is not None, "expected at 50, but one in twenty takes half as long again"


@given(st.integers(1, 64), st.floats(0, 100), st.floats(0.1, 50))
def test_a_full_batch_leaves_time_to_board_it(max_rows: int, base: float, row: float) -> None:
    cost, target = BatchCost(base, row), LatencyTarget(100, 1000)
    rows = most_rows(cost, max_rows, target)
    assert 1 <= rows <= max_rows
    assert rows == 1 or cost.batch_ns(rows) <= 80
    assert rows == max_rows or 1.05 * cost.batch_ns(rows + 1) > 79.9


def test_sizes_that_are_dearer_by_the_row_are_not_full_ones() -> None:
    cost = BatchCost(0.0, 0.0, points=(10.0, 15.0, 20.0, 60.0), shaped=True)
    assert cost.full_rows(8) == 4
    assert cost.full_rows(3) == 3
    assert BatchCost(0.0, 0.0, points=(10.0, 20.5, 42.0, 80.0), shaped=True).full_rows(8) == 8
    assert BatchCost(0.0, 0.0, points=(10.0, 20.0, 40.0, 81.0), shaped=True).full_rows(8) == 8, "as good as the same"
    assert BatchCost(0.0, 0.0, points=(10.0, 20.0, 40.0, 83.0), shaped=True).full_rows(8) == 4
    assert BatchCost(0.0, 0.0, points=(10.0, 20.0, 40.0, 90.0)).full_rows(8) == 8, "nothing is known of lone rows"

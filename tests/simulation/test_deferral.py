"""Late requests wait for those on time, but never until it is too late for them: played with exact costs."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.scheduler.cost import BatchCost, CostSource
from tailcut.scheduler.overload_detector import LatencyTarget
from tailcut.scheduler.scheduler import QueueEntry, Scheduler

MS = 1_000_000
NOW = 1000 * MS


def late(rows: int, due_ms: float, lane: str = "a", kind: int = 0) -> QueueEntry:
    """A request that has missed its target long ago; its deadline comes in ``due_ms``."""
    return QueueEntry(rows, NOW + int(due_ms * MS), lane, target_ns=1, kind=kind)


def on_time(rows: int, target_ms: float, lane: str = "b", kind: int = 0) -> QueueEntry:
    """A request that is to be answered in ``target_ms``, and has long until its deadline."""
    target_ns = NOW + int(target_ms * MS)
    return QueueEntry(rows, target_ns + 5000 * MS, lane, target_ns=target_ns, kind=kind)


def scheduler_of(waiting: list[QueueEntry], *, merge: bool = True) -> Scheduler[QueueEntry]:
    """A scheduler in which these wait."""
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=32, max_queue_rows=1000, merge=merge, target=LatencyTarget(100 * MS, 10_000 * MS)
    )
    for entry in waiting:
        scheduler.offer(entry)
    return scheduler


def missed(
    costs: CostSource,
    waiting: list[QueueEntry],
    coming: list[tuple[float, QueueEntry]],
    *,
    busy_ms: tuple[float, ...] = (0.0,),
    merge: bool = True,
) -> list[QueueEntry]:
    """Play until nothing waits; return who was not answered before the deadline.

    Args:
        coming: (milliseconds, request).
        busy_ms: for how long each executor still runs something else.
    """
    scheduler = scheduler_of(waiting, merge=merge)
    events: list[tuple[int, int, QueueEntry | None]] = []
    for number, (at_ms, entry) in enumerate(coming):
        heappush(events, (NOW + int(at_ms * MS), number, entry))
    for number, at_ms in enumerate(busy_ms, len(coming)):
        heappush(events, (NOW + int(at_ms * MS), number, None))
    idle, number, found = 0, len(events), []
    while events:
        now_ns = events[0][0]
        while events and events[0][0] == now_ns:
            entry = heappop(events)[2]
            idle += entry is None
            if entry is not None:
                scheduler.offer(entry)
        plan = scheduler.plan(now_ns, idle, costs, executors=len(busy_ms))
        found += plan.expired
        for batch in plan.batches:
            number, idle = number + 1, idle - 1
            end_ns = now_ns + int(costs.of(batch[0].kind).batch_ns(sum(each.rows for each in batch)))
            found += [each for each in batch if end_ns > each.deadline_ns]
            heappush(events, (end_ns, number, None))
    assert not scheduler.waiting.rows
    return found


def one_by_one(every_ms: float, lane: str = "b", count: int = 60) -> list[tuple[float, QueueEntry]]:
    """Requests on time that leave no time for others."""
    return [(at * every_ms, on_time(1, at * every_ms + 200, lane)) for at in range(1, count)]


LINE = BatchCost(0.0, 6.5 * MS)


def test_of_several_executors_only_one_may_be_free() -> None:
    waiting = [*[late(1, 110) for _ in range(16)], on_time(1, 200)]
    assert not missed(LINE, waiting, one_by_one(6.5), busy_ms=(0.0, 208.0, 208.0, 208.0))


def test_those_who_make_way_for_others_leave_the_choice_open() -> None:
    """The next batch was to end before the first target; without who is given up it would be three times as long."""
    waiting = [late(1, 40), *[on_time(1, 20) for _ in range(6)], *[on_time(1, 100) for _ in range(10)]]
    assert not missed(BatchCost(0.0, 6.0 * MS), waiting, [])


def test_late_ones_that_fill_up_a_batch_make_it_longer() -> None:
    cost = BatchCost(20.0 * MS, 2.0 * MS)
    waiting = [on_time(1, 100, "a"), *[late(1, 300, "a") for _ in range(20)], late(1, 50, "b")]
    assert not missed(cost, waiting, [])


@pytest.mark.parametrize(
    ("cost", "waiting", "every_ms"),
    [
        (BatchCost(20.0 * MS, 2.0 * MS), [late(1, 92, lane) for lane in "cdef"], 22.0),
        (BatchCost(20.0 * MS, 6.0 * MS), [late(1, 77) for _ in range(5)], 26.0),
        (BatchCost(8.0 * MS, 6.0 * MS), [late(1, 53) for _ in range(5)], 14.0),
        (BatchCost(90.0 * MS, 1.0 * MS), [late(1, 305) for _ in range(33)], 91.0),
    ],
)
def test_several_late_ones_take_what_their_own_batches_take(
    cost: BatchCost, waiting: list[QueueEntry], every_ms: float
) -> None:
    assert not missed(cost, [*waiting, on_time(1, 200)], one_by_one(every_ms))


@pytest.mark.parametrize(
    ("waiting", "executors"),
    [
        ([on_time(8, 100), *[on_time(1, 500) for _ in range(20)], late(1, 30)], 1),
        ([late(8, 65), *[on_time(1, 500) for _ in range(30)]], 4),
    ],
)
def test_where_batches_are_not_shared_each_takes_its_own_time(waiting: list[QueueEntry], executors: int) -> None:
    assert not missed(LINE, waiting, one_by_one(6.5), merge=False, busy_ms=(0.0,) * executors)


class Crossing:
    """Rows of kind 2 take long, however many they are; those of kind 1 the longer the more they are."""

    def of(self, kind: int) -> BatchCost:
        return BatchCost(90.0 * MS, 1.0 * MS) if kind == 2 else LINE


def test_what_is_short_in_full_batches_may_be_long_alone() -> None:
    coming = [(6.5 * at, on_time(1, 6.5 * at + 200, "b", kind=1)) for at in range(1, 60)]
    assert not missed(Crossing(), [late(1, 98, "c", kind=2), on_time(1, 100, "b", kind=1)], coming)


def test_of_several_executors_the_others_may_run_what_takes_longer() -> None:
    class Kinds:
        def of(self, kind: int) -> BatchCost:
            return BatchCost(0.0, (20.0 if kind == 2 else 1.0) * MS)

    waiting = [late(1, 100, "a", kind=1), *[on_time(1, 330, "b", kind=2) for _ in range(16)]]
    assert not missed(Kinds(), waiting, [], busy_ms=(0.0, 300.0))
    shared = [late(1, 190, "a"), *[on_time(1, 130) for _ in range(40)]]
    assert not missed(BatchCost(90.0 * MS, 1.0 * MS), shared, [], busy_ms=(0.0, 122.0))


def test_late_ones_that_share_the_next_batch_do_not_go_before_it() -> None:
    """Alone they would make all late who are on time."""
    waiting = [late(1, 150), *[on_time(1, 130, "a") for _ in range(8)], on_time(1, 500)]
    scheduler = scheduler_of(waiting)
    [batch] = scheduler.plan(NOW, 1, BatchCost(90.0 * MS, 1.0 * MS)).batches
    assert len(batch) == 9


def test_whose_priority_is_lower_drives_nobody_out() -> None:
    low = QueueEntry(1, NOW + 25 * MS, "a", 3, target_ns=1)
    first = [on_time(1, 20) for _ in range(3)]
    scheduler = scheduler_of([low, late(10, 400), *first])
    [batch] = scheduler.plan(NOW, 1, LINE).batches
    assert set(batch) <= set(first)


def test_rows_of_one_request_stay_together() -> None:
    waiting = [*[late(20, 560) for _ in range(5)], on_time(1, 200)]
    assert not missed(BatchCost(90.0 * MS, 1.0 * MS), waiting, one_by_one(91.0, count=8))


def test_who_waits_in_other_lanes_makes_the_next_batch_no_longer() -> None:
    waiting = [*[on_time(1, 100, f"lane {number}") for number in range(15)], *[late(1, 145) for _ in range(8)]]
    found = Counter[bool]()
    scheduler = scheduler_of(waiting)
    now_ns = NOW
    while scheduler.waiting.rows:
        [batch] = scheduler.plan(now_ns, 1, LINE).batches
        now_ns += int(LINE.batch_ns(len(batch)))
        for entry in batch:
            found[now_ns <= (entry.deadline_ns if entry.target_ns == 1 else entry.target_ns)] += 1
    assert found[False] <= 2


@pytest.mark.parametrize(("hiccup_ms", "waits"), [(0.0, True), (40.0, False), (1000.0, False)])
def test_there_is_time_for_a_hiccup(hiccup_ms: float, *, waits: bool) -> None:
    """But no more than half of what a deadline leaves; here that is long past."""
    cost = LINE._replace(hiccup_ns=hiccup_ms * MS)
    scheduler = scheduler_of([late(1, 50), first := on_time(1, 200)])
    [batch] = scheduler.plan(NOW, 1, cost).batches
    assert (batch == [first]) is waits


@settings(max_examples=150)
@given(
    base_ms=st.floats(0.0, 40.0),
    row_ms=st.floats(0.5, 10.0),
    count=st.integers(1, 20),
    lanes=st.integers(1, 3),
    spare=st.floats(1.01, 4.0),
    every_ms=st.floats(2.0, 30.0),
    merge=st.booleans(),
)
def test_whoever_could_be_in_time_at_first_is_in_the_end(
    base_ms: float, row_ms: float, count: int, lanes: int, spare: float, every_ms: float, *, merge: bool
) -> None:
    """All late ones have the time that they take together in any order; whoever comes goes first for no longer."""
    cost = BatchCost(base_ms * MS, row_ms * MS)
    alone_ms = (base_ms + row_ms) * count if not merge else (base_ms * lanes + row_ms * count)
    waiting = [late(1, spare * alone_ms + 1, f"late {number % lanes}") for number in range(count)]
    assert not missed(cost, waiting, one_by_one(every_ms), merge=merge)

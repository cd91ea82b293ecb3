"""The scheduler keeps its rules for every sequence of offers, cancels, expiries and plans."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailcut.scheduler.cost import FREE, BatchCost, CostModel
from tailcut.scheduler.scheduler import QueueEntry, Scheduler

MAX_ROWS = 8
MAX_QUEUE = 40


class Machine(RuleBasedStateMachine):
    """Drives a scheduler beside a plain list that knows what must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: Scheduler[QueueEntry] = Scheduler(max_rows=MAX_ROWS, max_queue_rows=MAX_QUEUE)
        self.now_ns = 0
        self.waiting: list[QueueEntry] = []
        self.left: set[int] = set()
        self.all: list[QueueEntry] = []

    def _urgency(self, entry: QueueEntry) -> tuple[int, bool, int]:
        """Priority; then who can meet the SLO's target; then the earliest target, or deadline of those who cannot."""
        late = entry.target_ns <= self.now_ns
        return entry.level, late, entry.deadline_ns if late else entry.target_ns

    def _leave(self, entry: QueueEntry) -> None:
        assert id(entry) not in self.left, "an entry left twice"
        self.left.add(id(entry))
        self.waiting.remove(entry)

    @rule(
        rows=st.integers(1, MAX_ROWS),
        slack=st.integers(0, 50),
        sooner=st.integers(0, 40),
        lane=st.sampled_from("abc"),
        priority=st.integers(0, 2),
    )
    def offer(self, rows: int, slack: int, sooner: int, lane: str, priority: int) -> None:
        deadline_ns = self.now_ns + slack
        entry = QueueEntry(rows, deadline_ns, lane, priority, target_ns=deadline_ns - min(sooner, slack))
        self.all.append(entry)
        fits = sum(e.rows for e in self.waiting) + rows <= MAX_QUEUE
        assert self.scheduler.offer(entry) is fits
        if fits:
            self.waiting.append(entry)

    @rule(step=st.integers(0, 30))
    def advance(self, step: int) -> None:
        self.now_ns += step

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.waiting))
        assert self.scheduler.cancel(entry)
        assert not self.scheduler.cancel(entry)
        self._leave(entry)

    @rule()
    def expire(self) -> None:
        due = [e for e in self.waiting if e.deadline_ns <= self.now_ns]
        assert {id(e) for e in self.scheduler.waiting.expire(self.now_ns)} == {id(e) for e in due}
        for entry in due:
            self._leave(entry)

    @rule(idle=st.integers(0, 3))
    def plan(self, idle: int) -> None:
        alive = [e for e in self.waiting if e.deadline_ns > self.now_ns]
        batches, expired, _ = self.scheduler.plan(self.now_ns, idle)
        assert len(batches) <= idle
        if idle and alive:
            assert batches, "an executor stayed idle while work waited"
            first = batches[0][0]
            assert first in alive
            assert self._urgency(first) == min(self._urgency(e) for e in alive)
        for entry in expired:
            assert entry.deadline_ns <= self.now_ns
            self._leave(entry)
        for batch in batches:
            assert batch
            assert sum(e.rows for e in batch) <= MAX_ROWS
            assert len({e.lane for e in batch}) == 1
            urgency = [self._urgency(e) for e in batch]
            assert urgency == sorted(urgency)
            for entry in batch:
                assert entry.deadline_ns > self.now_ns
                self._leave(entry)

    @invariant()
    def rows_are_counted(self) -> None:
        assert self.scheduler.waiting.rows == sum(e.rows for e in self.waiting)
        assert self.scheduler.waiting.next_deadline_ns() == min((e.deadline_ns for e in self.waiting), default=None)
        late = [e for heap in self.scheduler.waiting.late.values() for *_, e in heap if e.waiting]
        assert self.scheduler.waiting.late_entries == len(late)
        assert self.scheduler.waiting.late_rows == sum(e.rows for e in late)
        soonest = [e.deadline_ns for e in self.scheduler.waiting.soonest_late()]
        assert soonest == sorted(e.deadline_ns for e in late)
        assert all(e.target_ns <= self.now_ns for e in late)


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 100)), min_size=1, max_size=50))
def test_everything_leaves_once_when_executors_are_there(items: list[tuple[int, int]]) -> None:
    """Given enough executors, every entry of one lane leaves in one pass, in deadline order."""
    scheduler: Scheduler[QueueEntry] = Scheduler(max_rows=8, max_queue_rows=10_000)
    entries = [QueueEntry(rows, deadline) for rows, deadline in items]
    for entry in entries:
        assert scheduler.offer(entry)
    batches, expired, _ = scheduler.plan(0, len(entries))
    flat = [e for batch in batches for e in batch]
    assert not expired
    assert len(flat) == len(entries)
    assert {id(e) for e in flat} == {id(e) for e in entries}
    assert [e.deadline_ns for e in flat] == sorted(e.deadline_ns for e in entries)
    assert scheduler.waiting.rows == 0


@given(st.integers(1, 20))
def test_without_merging_every_request_is_its_own_batch(n: int) -> None:
    """Given merge=False, batches hold one entry each."""
    scheduler: Scheduler[QueueEntry] = Scheduler(max_rows=8, max_queue_rows=1000, merge=False)
    for _ in range(n):
        scheduler.offer(QueueEntry(1, 10))
    batches, *_ = scheduler.plan(0, n)
    assert [len(batch) for batch in batches] == [1] * n


ITEMS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 100)), min_size=1, max_size=40)


@given(ITEMS, st.integers(0, 20), st.integers(0, 5), st.integers(1, 3), st.booleans())
def test_every_batch_is_predicted_to_be_in_time_and_nothing_is_lost(
    items: list[tuple[int, int]], base_ns: int, row_ns: int, idle: int, probe: bool
) -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(max_rows=8, max_queue_rows=10_000)
    entries = [QueueEntry(rows, deadline) for rows, deadline in items]
    for entry in entries:
        scheduler.offer(entry)
    cost = BatchCost(base_ns, row_ns)
    batches, expired, _ = scheduler.plan(0, idle, cost, probe=probe)
    feasible = [entry for entry in entries if cost.batch_ns(entry.rows) < entry.deadline_ns]
    if feasible or probe:
        assert batches, "an executor stayed idle"
    if feasible:
        for batch in batches:
            assert cost.batch_ns(sum(e.rows for e in batch)) < min(e.deadline_ns for e in batch)
    elif probe:
        assert len(batches) == len(batches[0]) == 1
    left = [id(e) for batch in batches for e in batch] + [id(e) for e in expired]
    assert len(left) == len(set(left))
    assert scheduler.waiting.rows == sum(e.rows for e in entries if id(e) not in left)
    assert {id(e) for e in entries if e.waiting} == {id(e) for e in entries} - set(left)


@given(st.integers(0, 10**8), st.integers(1, 10**7), st.lists(st.integers(1, 64), min_size=2, max_size=60))
def test_the_cost_model_finds_the_line_behind_its_samples(base_ns: int, row_ns: int, sizes: list[int]) -> None:
    """Within 3 %: of sizes that never ran it keeps some of what it took them for at first."""
    model = CostModel()
    assert model.cost is FREE
    for rows in (1, 64, *sizes):
        model.observe(rows, base_ns + row_ns * rows)
    for rows in (1, 8, 64):
        assert abs(model.cost.batch_ns(rows) - (base_ns + row_ns * rows)) <= 0.03 * (base_ns + row_ns * rows)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 10**10)), min_size=1, max_size=60))
def test_a_prediction_is_never_negative_and_never_falls_with_rows(samples: list[tuple[int, int]]) -> None:
    model = CostModel()
    for rows, duration_ns in samples:
        model.observe(rows, duration_ns)
    predicted = [model.cost.batch_ns(rows) for rows in range(1, 65)]
    assert predicted[0] >= -1e-3
    assert predicted == sorted(predicted)

"""Who is refused unread would be refused as well if it were read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.concurrency.dispatching import Bench

from tailcut.errors import Shed
from tailcut.scheduler.admission import Admission, AdmissionRequest, Executors
from tailcut.scheduler.cost import LatencyLearner
from tailcut.scheduler.overload_detector import LatencyTarget, OverloadDetector
from tailcut.scheduler.scheduler import QueueEntry, Scheduler

MS = 1_000_000
NOW = 2_000 * MS


def standing(target: LatencyTarget, now_ns: int) -> OverloadDetector:
    """Some were late for long."""
    overload = OverloadDetector(target)
    overload.see(max(now_ns - 2 * target.timeout_ns, 0), late=True)
    overload.see(now_ns, late=True)
    assert overload.stands
    return overload


class Crowded(Bench):
    """A backlog stands, and each executor is busy with a batch of 130 ms."""

    async def begin(self) -> None:
        self.open()
        scheduler = self.dispatcher.scheduler
        scheduler.overload = standing(LatencyTarget(60 * MS, 500 * MS), self.clock.monotonic_ns())
        self.dispatcher.costs.seed({1: 10.0 * MS, 2: 60.0 * MS, 4: 130.0 * MS})
        for _ in self.executors:
            self.submit(1, 1, 1, 1, slack_s=0.5)
            await self.settle()

    def ask(self, rows: int = 1) -> None:
        self.dispatcher.check_room(rows, self.clock.monotonic_ns() + 500 * MS)

    @property
    def refuses(self) -> bool:
        return self.dispatcher.refused_unread(self.clock.monotonic_ns()) is not None


def test_nobody_while_an_executor_is_idle_and_nothing_waits() -> None:
    bench = Crowded(executors=2)

    async def main() -> None:
        await bench.begin()
        with pytest.raises(Shed, match="exceeds the 54 ms that the SLO leaves"):
            bench.ask()
        assert bench.refuses
        bench.executors[0].finish()
        await bench.settle()
        bench.ask()
        assert not bench.refuses
        bench.executors[1].finish()
        await bench.settle()

    bench.run(main())


def test_each_is_looked_at_as_it_comes_while_all_had_one_row() -> None:
    bench = Crowded(executors=1)

    async def main() -> None:
        await bench.begin()
        overload = bench.dispatcher.scheduler.overload
        assert overload is not None
        for _ in range(30):  # the backlog stays, whatever time passes
            with pytest.raises(Shed):
                bench.ask()
            overload.refused(0, 0.0, 0, 1.0)  # and nothing is remembered of the last refusal
            assert bench.refuses
        bench.ask(rows=2)  # it takes longer than the SLO, so that it is judged by its deadline
        overload.refused(0, 0.0, 0, 1.0)
        assert not bench.refuses
        bench.executors[0].finish()
        await bench.settle()
        bench.dispatcher.single = True
        assert not bench.refuses, "an executor is idle and nobody waits"

    bench.run(main())


def test_those_of_whom_nobody_was_read_yet_count_as_well() -> None:
    """Else a backlog would be over as soon as it began: until the first batch of it ends, all may be refused."""
    bench = Crowded(executors=1)

    async def main() -> None:
        await bench.begin()
        overload = bench.dispatcher.scheduler.overload
        assert overload is not None
        for _ in range(110):
            bench.clock.advance(0.0005)
            assert bench.refuses
        for passed_s, stands in ((0.5, True), (1.25, False)):
            bench.clock.advance(passed_s)
            with suppress(Shed):
                bench.ask()
            assert overload.stands is stands, "at first 110 came, and then one"
        bench.executors[0].finish()
        await bench.settle()

    bench.run(main())


def test_a_backlog_ends_although_all_who_come_are_refused_unread() -> None:
    bench = Crowded(executors=1)

    async def main() -> None:
        await bench.begin()
        overload = bench.dispatcher.scheduler.overload
        assert overload is not None
        assert bench.refuses
        bench.clock.advance(1.25)
        bench.executors[0].finish()
        bench.submit(1, 1, 1, 1, slack_s=0.5)
        await bench.settle()
        assert bench.refuses
        assert not overload.stands, "two came in twenty times the limit"
        bench.executors[0].finish()
        await bench.settle()

    bench.run(main())


def test_a_while_has_a_hundred_requests() -> None:
    overload, at_ns = standing(LatencyTarget(60 * MS, 500 * MS), NOW), NOW
    for _ in range(99):
        at_ns += 6 * MS
        overload.arrived(at_ns, 32, 1.0)
    assert overload.stands
    overload.arrived(at_ns + 1, 1, 1.0)
    assert not overload.stands
    overload.see(at_ns + 2, late=True)
    overload.see(at_ns + 400 * MS, late=True)
    assert not overload.stands, "it begins anew with the first who is late"


def test_nobody_for_what_a_tenant_is_refused_for_its_own_backlog() -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=4, max_queue_rows=100, target=LatencyTarget(60 * MS, 500 * MS)
    )
    scheduler.overload = standing(LatencyTarget(60 * MS, 500 * MS), NOW)
    costs = LatencyLearner()
    costs.seed({1: 10.0 * MS, 2: 10.0 * MS, 4: 10.0 * MS})
    admission, busy = Admission(scheduler, costs), Executors(usable=1, idle=0, left_ns=5.0 * MS)
    assert admission.check(NOW, AdmissionRequest(1, NOW + 500 * MS, tenant="small"), busy) is None
    for _ in range(12):
        scheduler.offer(QueueEntry(1, NOW + 500 * MS, tenant="large", target_ns=NOW + 60 * MS))
    refusal = admission.check(NOW, AdmissionRequest(1, NOW + 500 * MS, tenant="large"), busy)
    assert refusal is not None
    assert refusal.why == "slo"
    assert admission.check(NOW, AdmissionRequest(1, NOW + 500 * MS), busy) is None, "a token without a tenant"
    assert not scheduler.overload.is_full(NOW, scheduler.waiting.rows)

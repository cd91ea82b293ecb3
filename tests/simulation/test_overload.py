"""Overload, simulated: what is offered beyond the capacity must not cost those who can be served.

A discrete-event simulation of arrivals, one executor, the scheduler and the cost model, on a clock of its own; the
model takes 5 ms a batch and 2 ms a row, requests wait at most 500 ms.
"""

from __future__ import annotations

import asyncio
from random import Random

import numpy as np
import pytest
from tests.concurrency.dispatching import Bench

from tailcut.errors import QueueTimeout, Shed
from tailcut.models.batch_item import BatchItem

BASE_S, ROW_S, MAX_ROWS, TIMEOUT_S = 0.005, 0.002, 32, 0.5
CAPACITY = MAX_ROWS / (BASE_S + ROW_S * MAX_ROWS)
"""Rows per second in full batches: 463.8."""


class Simulation:
    """Offers one-row requests at a constant rate to a dispatcher with one executor."""

    def __init__(self, *, rate: float, noise: float = 0.0, seeded: bool = True, wrong: float = 1.0) -> None:
        self.bench = Bench(max_rows=MAX_ROWS, max_queue_rows=1024)
        self.rate = rate
        self.items: list[BatchItem] = []
        self.shed: list[Shed] = []
        self.end_ns = 0
        self.computed = 0
        self._random = Random(1)
        self._noise = noise
        self._seeds = [1, 2, 4, 8, 16, 32] if seeded else []
        self._wrong = wrong

    def play(self, seconds: float) -> None:
        self.bench.run(self._play(seconds))

    @property
    def good(self) -> list[BatchItem]:
        return [t for t in self.items if t.future.done() and t.future.exception() is None]

    @property
    def in_time(self) -> list[BatchItem]:
        """Answered in time while the load lasted; what is left at its end takes no time and proves nothing."""
        return [t for t in self.good if t.finished_ns <= t.deadline_ns and t.finished_ns < self.end_ns]

    def _duration_s(self, rows: int) -> float:
        return (BASE_S + ROW_S * rows) * (1 + self._random.uniform(-self._noise, self._noise))

    async def _play(self, seconds: float) -> None:
        self.bench.open()
        for rows in self._seeds:
            self.bench.dispatcher.costs.observe(rows, self._wrong * (BASE_S + ROW_S * rows) * 1e9)
        executor = self.bench.executors[0]
        clock = self.bench.clock
        begun_s = clock.monotonic_s()
        arrivals, ends_s, now_s = 0, None, 0.0
        while now_s < seconds:
            next_s = (arrivals + 1) / self.rate
            to_s = next_s if ends_s is None else min(next_s, ends_s)
            await clock.pass_time(max(begun_s + to_s - clock.monotonic_s(), 0.0))
            now_s = to_s
            if ends_s is not None and ends_s <= now_s:
                executor.finish()
                ends_s = None
            else:
                arrivals += 1
                try:
                    self.items += self.bench.submit(float(arrivals), slack_s=TIMEOUT_S)
                except Shed as shed:
                    self.shed.append(shed)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if ends_s is None and executor.batch is not None:
                ends_s = now_s + self._duration_s(sum(item.rows for item in executor.batch))
        self.end_ns = clock.monotonic_ns()
        self.computed = sum(rows for rows, _ in self.bench.batches)
        while executor.batch is not None:
            executor.finish()
            await self.bench.settle()


@pytest.mark.parametrize("load", [1.5, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_under_overload_nine_tenths_of_the_capacity_are_answered_in_time(load: float, noise: float) -> None:
    simulation = Simulation(rate=load * CAPACITY, noise=noise)
    simulation.play(4.0)
    assert len(simulation.in_time) >= 0.9 * CAPACITY * 4.0
    assert simulation.computed - len(simulation.in_time) <= 0.05 * simulation.computed, "computed too late"
    assert simulation.shed, "the rest is refused at once"
    wait_s = float(np.median([shed.retry_after_s for shed in simulation.shed]))
    assert (BASE_S + ROW_S * MAX_ROWS) < wait_s < TIMEOUT_S, "what runs and waits takes that long"


def test_half_the_capacity_is_answered_whole() -> None:
    simulation = Simulation(rate=0.5 * CAPACITY, noise=0.2)
    simulation.play(2.0)
    assert not simulation.shed
    assert len(simulation.good) == len(simulation.items)


@pytest.mark.parametrize("wrong", [0.0, 0.1, 30.0])
def test_a_wrong_prediction_corrects_itself(wrong: float) -> None:
    """Predicted to take no time, a tenth or thirty times of what it does: four seconds later nobody can tell."""
    simulation = Simulation(rate=2 * CAPACITY, seeded=True, wrong=wrong)
    simulation.play(6.0)
    late = [t for t in simulation.in_time if t.finished_ns > (simulation.bench.clock.monotonic_s() - 2) * 1e9]
    assert len(late) >= 0.9 * CAPACITY * 2


def test_a_prediction_that_nothing_can_meet_still_lets_one_request_at_a_time_through() -> None:
    bench = Bench()

    async def main() -> None:
        bench.open()
        bench.dispatcher.costs.observe(1, 3600e9)
        for _ in range(3):
            (first,) = bench.submit(1, slack_s=1)
            await bench.settle()
            with pytest.raises(Shed, match=r"predicted latency of .* ms .* exceeds the deadline of 1000 ms"):
                bench.submit(2, slack_s=1)
            bench.executors[0].finish()
            await bench.settle()
            assert first.future.done()
        assert bench.runtime.rows == [1, 1, 1]

    bench.run(main())


def test_who_has_more_time_is_let_in_where_others_are_shed_and_who_has_less_goes_first() -> None:
    bench = Bench(max_rows=1, max_queue_rows=100)

    async def main() -> None:
        bench.open()
        bench.dispatcher.costs.observe(1, 1e9)
        bench.submit(0, slack_s=60)
        await bench.settle()
        patient = [bench.submit(n, slack_s=60)[0] for n in range(1, 9)]
        (soon,) = bench.submit(9, slack_s=3)  # eight wait, but all of them can wait longer
        with pytest.raises(Shed):
            bench.submit(10, slack_s=2)
        bench.submit(11, slack_s=60)
        await bench.clock.pass_time(1)
        bench.executors[0].finish()
        await bench.settle()
        assert bench.executors[0].batch == [soon]
        assert not any(item.future.done() for item in patient)

    bench.run(main())


def test_what_cannot_end_in_time_is_expired_and_not_computed() -> None:
    bench = Bench(max_rows=1)

    async def main() -> None:
        bench.open()
        bench.dispatcher.costs.observe(1, 1e9)
        bench.submit(0, slack_s=60)
        await bench.settle()
        (late,) = bench.submit(1, slack_s=2.45)
        bench.submit(2, slack_s=60)
        await bench.clock.pass_time(1.5)  # the first batch took longer than it should
        bench.executors[0].finish()
        await bench.settle()
        assert isinstance(late.future.exception(), QueueTimeout)
        bench.executors[0].finish()
        assert [batch["x"].item() for batch in bench.runtime.batches] == [0, 2]

    bench.run(main())

"""Rows of different lengths: whether a request is in time depends on its own length, which is known once it is read."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.concurrency.dispatching import Bench, ManualExecutor

from tailcut.errors import Shed
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.scheduler.cost import LatencyLearner, kind_of
from tailcut.scheduler.scheduler import Scheduler
from tailcut.testing.clock import FakeClock
from tailcut.testing.runtimes import StubRuntime

MS = 1_000_000
SHORT, LONG = 16, 256


def test_a_long_row_is_refused_where_a_short_one_is_in_time() -> None:
    async def main() -> None:
        costs = LatencyLearner()
        costs.seed({1: 5.0 * MS, 2: 10.0 * MS, 4: 20.0 * MS}, kind_of(SHORT))
        costs.seed({1: 80.0 * MS, 2: 160.0 * MS, 4: 320.0 * MS}, kind_of(LONG))
        scheduler: Scheduler[BatchItem] = Scheduler(max_rows=4, max_queue_rows=64)
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher(scheduler, Bench(), loop, clock.monotonic_ns, costs=costs, lengths=True)
        dispatcher.add(ManualExecutor(StubRuntime(), dispatcher.on_done, clock))

        def ask(length: int, left_ms: int) -> list[BatchItem]:
            deadline_ns = clock.monotonic_ns() + left_ms * MS
            dispatcher.check_room(1, deadline_ns)
            return dispatcher.submit({"x": np.zeros((1, length), np.float32)}, 1, ("y",), deadline_ns, length)

        items = ask(SHORT, 60)
        await clock.settle()
        for _ in range(2):
            items += ask(SHORT, 60)
        with pytest.raises(Shed, match=r"\(2 rows queued\) exceeds the deadline of 60 ms"):
            ask(LONG, 60)
        items += ask(SHORT, 60) + ask(LONG, 500)
        assert scheduler.waiting.rows == 4
        dispatcher.cancel(items)

    clock = FakeClock()
    clock.run(main())

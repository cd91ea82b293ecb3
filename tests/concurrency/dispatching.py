"""A dispatcher under test: time stands still, batches end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

from tailcut.errors import TailcutError
from tailcut.models.batch_item import BatchItem, join, run_batch
from tailcut.models.dispatch.dispatcher import Dispatcher, ExecutorSet
from tailcut.models.executors import Done
from tailcut.scheduler.scheduler import Scheduler
from tailcut.testing.clock import FakeClock
from tailcut.testing.runtimes import StubRuntime

S = 1_000_000_000


class ManualExecutor:
    """Ends a batch when the test says so."""

    run_rows = 0

    def __init__(self, runtime: StubRuntime, done: Done, clock: FakeClock) -> None:
        self.runtime = runtime
        self.batch: Sequence[BatchItem] | None = None
        self.closed = False
        self._done = done
        self._clock = clock

    def start(self, batch: Sequence[BatchItem]) -> None:
        assert self.batch is None, "a second batch was started on a busy executor"
        self.batch = batch
        self._started_ns = self._clock.monotonic_ns()

    def finish(self, error: TailcutError | None = None) -> None:
        batch, self.batch = self.batch, None
        assert batch is not None
        result = error or run_batch(self.runtime, batch)
        self._done(self, batch, result, self._started_ns, self._clock.monotonic_ns())

    def close(self, timeout_s: float) -> None:
        self.closed = True


class Bench:
    """A dispatcher on a loop whose time stands still, with manual executors that share one stub runtime."""

    def __init__(
        self,
        executors: int = 1,
        max_rows: int = 4,
        max_queue_rows: int = 16,
        merge: bool = True,
        at_once: int | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.runtime = StubRuntime()
        self.batches: list[tuple[int, int]] = []
        self._executors, self._at_once = executors, at_once
        self._scheduler: Scheduler[BatchItem] = Scheduler(max_rows=max_rows, max_queue_rows=max_queue_rows, merge=merge)
        self.executors: list[ManualExecutor] = []
        self.loop_errors: list[dict[str, Any]] = []
        self.ran = asyncio.Event()
        self._creep_s, self._creeps_after = 0.0, 0

    def batch(self, rows: int, duration_ns: int, *arrays: object) -> None:
        self.batches.append((rows, duration_ns))
        self.ran.set()

    def creep(self, seconds: float, after: int = 0) -> None:
        """Let time move by this much whenever the dispatcher asks for it, from the ``after``-th time on."""
        self._creep_s, self._creeps_after = seconds, after

    def _now_ns(self) -> int:
        self._creeps_after -= 1
        if self._creeps_after < 0:
            self.clock.advance(self._creep_s)
        return self.clock.monotonic_ns()

    def open(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        self.dispatcher = Dispatcher(self._scheduler, self, loop, self._now_ns, running=ExecutorSet(2, self._at_once))
        for _ in range(self._executors):
            executor = ManualExecutor(self.runtime, self.dispatcher.on_done, self.clock)
            self.executors.append(executor)
            self.dispatcher.add(executor)

    def submit(
        self, *values: float, slack_s: float = 10.0, lane: object = None, at_once: bool = False
    ) -> list[BatchItem]:
        inputs = {"x": np.array(values, np.float32).reshape(-1, 1)}
        deadline_ns = self.clock.monotonic_ns() + int(slack_s * S)
        return self.dispatcher.submit(inputs, len(values), ("y",), deadline_ns, lane, at_once=at_once)

    async def settle(self) -> None:
        await self.clock.settle()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.clock.run(main)
        assert self.loop_errors == []


def answer(items: Sequence[BatchItem]) -> list[float]:
    outputs = join([item.future.result() for item in items])
    values: list[float] = outputs["y"].tolist()
    return values


def error_of(item: BatchItem) -> BaseException | None:
    assert item.future.done()
    return item.future.exception()

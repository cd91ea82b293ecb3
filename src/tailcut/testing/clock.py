"""A clock that moves only when a test moves it, and an event loop that lives on it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SETTLE_ROUNDS = 40
_IDLE_ROUNDS = 3


class FakeClock:
    """Time that stands still until ``advance`` or ``pass_time`` moves it.

    ``run`` runs a coroutine on an event loop whose every timer (``asyncio.sleep``, ``asyncio.timeout``,
    ``call_later``) follows this clock, so code under test needs no special hooks::

        clock = FakeClock()
        async def main():
            task = asyncio.create_task(asyncio.sleep(3600))
            await clock.pass_time(3600)
            assert task.done()
        clock.run(main())

    On an ordinary loop, give code under test ``clock.monotonic_s`` and ``clock.sleep`` and move time with ``advance``.
    """

    def __init__(self, monotonic_s: float = 1_000.0, wall_s: float = 1_700_000_000.0) -> None:
        self._now_s = monotonic_s
        self._wall_offset_s = wall_s - monotonic_s
        self._timers: list[float] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic_s(self) -> float:
        """Monotonic seconds."""
        return self._now_s

    def monotonic_ns(self) -> int:
        """Monotonic nanoseconds."""
        return round(self._now_s * 1e9)

    def wall_s(self) -> float:
        """Seconds since the epoch."""
        return self._now_s + self._wall_offset_s

    def advance(self, seconds: float) -> None:
        """Move time at once; ``sleep``s that end by then wake in order. Tasks run when the loop gets its turn."""
        self._move_to(self._now_s + seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved by ``seconds``; works on any event loop."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + seconds, next(self._order), future))
        await future

    async def pass_time(self, seconds: float) -> None:
        """Move time from timer to timer up to ``seconds``, letting every task run at each step."""
        target_s = self._now_s + seconds
        await self.settle()
        while (when_s := self._next_s()) is not None and when_s <= target_s:
            self._move_to(max(when_s, self._now_s))
            await self.settle()
        self._move_to(target_s)
        await self.settle()

    async def settle(self) -> None:
        """Let every task that can run without time or threads run until it waits."""
        loop = asyncio.get_running_loop()
        idle = 0
        for _ in range(_SETTLE_ROUNDS):
            await asyncio.sleep(0)
            # A timer that is due is not among what is ready before the next round, hence more than one.
            idle = 0 if getattr(loop, "_ready", True) else idle + 1
            if idle == _IDLE_ROUNDS:
                return

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` like ``asyncio.run``, on a loop whose time is this clock's."""
        with asyncio.Runner(loop_factory=lambda: _FakeTimeLoop(self)) as runner:
            return runner.run(main)

    def note_timer(self, when_s: float) -> None:
        """Remember that a timer ends at ``when_s``; the loop calls this."""
        heapq.heappush(self._timers, when_s)

    def _next_s(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        ends = [self._timers[0]] if self._timers else []
        ends += [self._sleepers[0][0]] if self._sleepers else []
        return min(ends, default=None)

    def _move_to(self, now_s: float) -> None:
        self._now_s = now_s
        while self._timers and self._timers[0] <= now_s:
            heapq.heappop(self._timers)
        while self._sleepers and self._sleepers[0][0] <= now_s:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)


class _FakeTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def time(self) -> float:
        return self._clock.monotonic_s()

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._clock.note_timer(when)
        return super().call_at(when, callback, *args, context=context)

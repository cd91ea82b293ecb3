"""Has the kernel switch less between the threads of this process, while they have their cores to themselves.

Where a model runs on the event loop, the loop and the HTTP server's thread wake each other for every request; with
SCHED_BATCH neither interrupts the other, which on a core of their own is worth a tenth of the throughput and a third of
the p99. What decides is ``core.contention``.

Source: sched(7), "SCHED_BATCH"; the kernel's Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter

from tailcut.core.contention import Contention
from tailcut.engine.engine import Engine
from tailcut.errors import NotReady
from tailcut.observe.exposition import Sample

log = logging.getLogger("tailcut.server")

_LOOK_S = 1.0
_TASKS = "/proc/self/task"


class Scheduling:
    """Sets the policy of all threads of the process.

    A policy that somebody gave the process (chrt, systemd) stays, and so does the usual one where the kernel does not
    tell how long threads wait.

    Args:
        policy: ``server.scheduling``.
        times_s: see ``thread_times_s``.
    """

    def __init__(
        self, engine: Engine, policy: str, times_s: Callable[[], tuple[float, float] | None] | None = None
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._times_s = times_s or thread_times_s
        self._contention = Contention(len(os.sched_getaffinity(0)))
        self._is_batch = False
        self._last = (0.0, 0.0, 0.0)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, unless there is nothing to decide."""
        if self._policy == "normal" or os.sched_getscheduler(0) != os.SCHED_OTHER:
            return
        if self._policy == "batch":
            self._set(batch=True)
        elif self._times_s() is not None:
            loop.call_later(_LOOK_S, self._look, loop)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows."""
        text = "1 while the threads of the server do not interrupt each other (SCHED_BATCH)."
        yield Sample("tailcut_scheduling_batch", text, "gauge", {}, float(self._is_batch))

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        times_s, now_s = self._times_s(), perf_counter()
        if times_s is not None:
            (then_s, cpu_s, waited_s), self._last = self._last, (now_s, *times_s)
            # What a thread took goes with it when it ends.
            took_s, late_s = max(times_s[0] - cpu_s, 0.0), max(times_s[1] - waited_s, 0.0)
            alone = then_s > 0.0 and self._contention.look(now_s - then_s, took_s, late_s)
            # Threads that compute for long would hold up a loop that does not go before them.
            wanted = alone and self._is_inline
            if wanted or self._is_batch:
                self._set(batch=wanted)
        loop.call_later(_LOOK_S, self._look, loop)

    @property
    def _is_inline(self) -> bool:
        with suppress(NotReady):
            opened = self._engine.opened
            return opened.executor == "inline" and opened.path.fallback is None
        return False

    def _set(self, *, batch: bool) -> None:
        """Set it for all threads: they were begun before, and by others than Python."""
        if batch != self._is_batch:
            log.debug("scheduling is now %s", "batch" if batch else "normal")
        self._is_batch = batch
        wanted = os.SCHED_BATCH if batch else os.SCHED_OTHER
        for task in os.listdir(_TASKS):
            with suppress(OSError):  # it ended meanwhile, or may not be changed
                if os.sched_getscheduler(int(task)) != wanted:
                    os.sched_setscheduler(int(task), wanted, os.sched_param(0))


def thread_times_s() -> tuple[float, float] | None:
    """Return how long all threads have computed and waited for a core; None where the kernel does not say."""
    cpu_ns = waited_ns = 0
    try:
        for task in os.listdir(_TASKS):
            with suppress(FileNotFoundError, ProcessLookupError), open(f"{_TASKS}/{task}/schedstat") as file:
                cpu, waited, _ = file.read().split()
                cpu_ns += int(cpu)
                waited_ns += int(waited)
    except (OSError, ValueError):
        return None
    return (cpu_ns / 1e9, waited_ns / 1e9) if cpu_ns else None

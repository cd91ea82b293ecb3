"""Has the kernel switch less between the threads of this process, while they have their cores to themselves.

Where a model runs in threads of its own that fill the cores, the event loop interrupts it for every request; and while
more is asked than these can answer, they get longer slices (``slices``). Where it runs on the loop beside gRPC's
threads, they wake each other; with SCHED_BATCH neither interrupts the other. What decides is ``scheduler.contention``,
and ``scheduler.overload_detector``.

Source: sched(7), "SCHED_BATCH"; the kernel's Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat";
proc_stat(5), "cpu".
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from time import perf_counter, perf_counter_ns
from typing import NamedTuple

from tailcut.errors import NotReady
from tailcut.models.executors.in_process import THREADS
from tailcut.models.runtimes.priority import is_loading
from tailcut.observe.exposition import Sample
from tailcut.scheduler.contention import Contention, Saturation
from tailcut.serving.deployment import Engine
from tailcut.transport.time_slices import Slices

log = logging.getLogger("tailcut.server")

_LOOK_S = 1.0
_TASKS = "/proc/self/task"
_LONGEST = 256
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_AT_WORK = 0.1
"""Share of the time from which on threads beside the loop (loaders, hooks, streams) compute for long: a loop that does
not go before them would wait for them."""

_SLICES_NS = 10_000_000, 40_000_000
_OF_LIMIT = 8
"""Of threads that run models while a backlog stands: so many parts of the SLO's limit, within these bounds. With a
quarter of it they had more of the core still, but requests were seen so late that those answered were beyond the SLO
(docs/explanation/scheduling.md)."""

_FAR = 0.5
"""Share of the cores' time below which ``Saturation`` says no whatever others did, so that nobody need look."""


class Times(NamedTuple):
    """Seconds, of the threads that there are.

    Attributes:
        cpu_s: that all have computed.
        waited_s: that all have waited for a core.
        beside_s: that Python's own threads beside the main one have computed; the HTTP server's are not Python's.
    """

    cpu_s: float
    waited_s: float
    beside_s: float


class Scheduling:
    """Sets the policy of all threads of the process.

    A policy that somebody gave the process or a thread (chrt, systemd) stays, and so does the usual one where the
    kernel does not tell how long threads wait.

    Args:
        policy: ``server.scheduling`` of the manifest.
        wakes: whether another thread carries the requests, and wakes the event loop for each.
        times: see ``thread_times``.
        busy_s: see ``cores_busy_s``.
        slices: of the threads that run models.
    """

    def __init__(
        self,
        engine: Engine,
        policy: str,
        *,
        wakes: bool = True,
        times: Callable[[], Times | None] | None = None,
        busy_s: Callable[[Collection[int]], float | None] | None = None,
        slices: Slices | None = None,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._wakes = wakes
        self._times = times or thread_times
        self._cores = os.sched_getaffinity(0)
        self._busy_s = busy_s or cores_busy_s
        self._contention = Contention(len(self._cores))
        self._saturation = Saturation(len(self._cores))
        self._slices = slices or Slices()
        self._is_batch = False
        self._last: tuple[float, Times] | None = None
        self._last_busy_s: float | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, unless there is nothing to decide."""
        if self._policy == "normal" or not _is(0, os.SCHED_OTHER):
            return
        if self._policy == "batch":
            self._set(batch=True)
        elif self._times() is not None:
            loop.call_later(_LOOK_S, self._look, loop)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows."""
        text = "1 while the threads of the server do not interrupt each other (SCHED_BATCH)."
        yield Sample("tailcut_scheduling_batch", text, "gauge", {}, float(self._is_batch))
        text = "1 while threads that run models have longer time slices, because more comes than they can answer."
        yield Sample("tailcut_scheduling_long_slices", text, "gauge", {}, float(self._slices.longer))

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(_LOOK_S, self._look, loop)
        times, now_s, last = self._times(), perf_counter(), self._last
        if times is None:
            self._give(wanted=False)
            return
        self._last = now_s, times
        if last is None:
            return
        # What a thread took goes with it when it ends.
        passed_s = now_s - last[0]
        cpu_s, waited_s, beside_s = [max(now - then, 0.0) for now, then in zip(times, last[1], strict=True)]
        alone = self._contention.look(passed_s, cpu_s, waited_s)
        executor = self._executor()
        if executor == "inline":
            wanted = self._wakes and alone and beside_s < _AT_WORK * passed_s
        else:
            wanted = executor == "thread" and self._fills_cores(passed_s, cpu_s)
        if wanted or self._is_batch:
            self._set(batch=wanted)
        self._give(wanted=wanted and executor == "thread")

    def _executor(self) -> str:
        """Where the model runs; empty where answers may wait for the event loop alone."""
        with suppress(NotReady):
            opened = self._engine.opened
            pipeline, executor = opened.pipeline, opened.executor
            if pipeline.fallback is not None:
                return ""
            # Answers of a cache wait for no model; nor should they for the end of a time slice.
            waits = pipeline.tensor_cache is None and pipeline.entity_cache is None and not is_loading()
            return executor if executor == "inline" or waits else ""
        return ""

    def _give(self, *, wanted: bool) -> None:
        """Set the slices for as long as more comes than can be answered within the SLO, and that lasts."""
        overload = None
        with suppress(NotReady):
            overload = self._engine.opened.pipeline.dispatcher.scheduler.overload
        slice_ns = 0
        if overload is not None and wanted and overload.is_seen(perf_counter_ns()):
            least_ns, most_ns = _SLICES_NS
            slice_ns = min(max(overload.target.limit_ns // _OF_LIMIT, least_ns), most_ns)
        self._slices.give(model_threads() if slice_ns else (), slice_ns)
        if overload is not None:
            overload.unseen_ns = slice_ns if self._slices.longer else 0

    def _fills_cores(self, passed_s: float, cpu_s: float) -> bool:
        """Whether the process fills its cores and nobody else computes there."""
        if cpu_s < _FAR * len(self._cores) * passed_s:
            self._last_busy_s = None
            return self._saturation.look(passed_s, cpu_s, cpu_s)
        busy_s, last_s = self._busy_s(self._cores), self._last_busy_s
        self._last_busy_s = busy_s
        if busy_s is None or last_s is None:
            return self._saturation.yields
        return self._saturation.look(passed_s, cpu_s, busy_s - last_s)

    def _set(self, *, batch: bool) -> None:
        """Set it for all threads, also those that Python did not begin."""
        usual, wanted = (os.SCHED_OTHER, os.SCHED_BATCH) if batch else (os.SCHED_BATCH, os.SCHED_OTHER)
        with suppress(OSError):
            for task in map(int, os.listdir(_TASKS)):
                if _is(task, usual):
                    with suppress(OSError):  # it has ended, or this is not allowed here
                        os.sched_setscheduler(task, wanted, os.sched_param(0))
        self._is_batch = _is(0, os.SCHED_BATCH)


def model_threads() -> list[int]:
    """Return the ids of the threads that run models."""
    return [each.native_id for each in threading.enumerate() if each.name.startswith(THREADS) and each.native_id]


def thread_times() -> Times | None:
    """Return what the kernel says of this process's threads; None where it does not say."""
    main = threading.main_thread()
    beside = {thread.native_id for thread in threading.enumerate() if thread is not main}
    cpu_ns = waited_ns = beside_ns = 0
    try:
        for task in map(int, os.listdir(_TASKS)):
            with suppress(FileNotFoundError, ProcessLookupError):
                # Not open(): this is done every second, for every thread, on the event loop.
                file = os.open(f"{_TASKS}/{task}/schedstat", os.O_RDONLY)
                try:
                    cpu, waited, _ = map(int, os.read(file, _LONGEST).split())
                finally:
                    os.close(file)
                cpu_ns += cpu
                waited_ns += waited
                beside_ns += cpu if task in beside else 0
    except (OSError, ValueError):
        return None
    return Times(cpu_ns / 1e9, waited_ns / 1e9, beside_ns / 1e9) if cpu_ns else None


def cores_busy_s(cores: Collection[int]) -> float | None:
    """Return the seconds since the start that cores were busy, with anything; None where the kernel does not say."""
    ticks = 0
    try:
        with open("/proc/stat", "rb") as file:
            for line in file:
                name, *values = line.split()
                if not name.startswith(b"cpu"):
                    break
                if name[3:] and int(name[3:]) in cores:
                    user, nice, system, _, _, hard, soft = map(int, values[:7])
                    ticks += user + nice + system + hard + soft
    except (OSError, ValueError):
        return None
    return ticks / _TICKS_PER_S


def _is(task: int, policy: int) -> bool:
    with suppress(OSError):
        return os.sched_getscheduler(task) == policy
    return False

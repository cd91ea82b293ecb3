"""The executors of one variant: as many as the work wants, and each replaced when it dies, hangs or wears out.

Owned by the event loop; executors are opened and closed in threads of their own. What an executor runs is never
dropped: one that goes ends its batch first, and the batch of one that died or hangs runs once more elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from tailcut.common.histogram import quantile_of
from tailcut.common.tensors import Arrays
from tailcut.errors import ExecutorLost, TailcutError
from tailcut.models.background_loading import in_background
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.dispatcher import Coming, Dispatcher
from tailcut.models.executors import THREADS, Executor, InlineExecutor, ProcessExecutor, ThreadExecutor
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.remote import RemoteRuntime
from tailcut.models.shared_runtime import is_lent
from tailcut.observe.path_metrics import EXECUTORS, EXECUTORS_HUNG, EXECUTORS_TARGET
from tailcut.observe.recorder import Recorder
from tailcut.observe.sample import Sample, counter
from tailcut.scheduler.pool_scaling import PoolObservation, Scaler, ScalingLimits, Wear
from tailcut.scheduler.restart_backoff import RestartBackoff
from tailcut.system.machine import free_bytes

_FREE_SHARE = 0.8
"""Of the memory that is free, what another executor may take: others allocate too while it loads."""


@dataclass(eq=False)
class ExecutorHandle:
    """One executor and what is known of it.

    ``warm_bytes`` is what its process held when it was warm; 0 where it has none of its own.
    """

    executor: Executor
    runtime: Runtime
    opened_s: float
    warm_bytes: int = 0
    requests: int = 0

    @property
    def growth(self) -> float:
        """Of its memory since it was warm, as a share."""
        if self.warm_bytes and isinstance(self.runtime, RemoteRuntime):
            return self.runtime.resident_bytes / self.warm_bytes - 1.0
        return 0.0


EXECUTORS_OPENED = counter("tailcut_executors_opened", "Executors started after the first ones.")
EXECUTORS_TERMINATED = counter("tailcut_executors_terminated", "Executors ended, by reason.", "reason")

log = logging.getLogger("tailcut.server")

_LOOK_S = 0.25

_MOST_ABANDONED = 4
"""Threads that hang cannot be killed; with this many of them the server is not made worse by another."""

_CLOSE_S = 10.0
_LEAVE_S = 300.0
_LEAVE_FIRST_S = 30.0
"""An executor that is to go and hangs in its last batch for this long is not waited for; less long where there is no
room for its successor before it has gone."""

_HUNG_HINT = 'another executor replaces it; with pool.executor = "process" a hung executor can be killed'


class Pool:
    """Keeps a dispatcher in executors.

    Args:
        dispatcher: that the executors work for.
        kind: "inline", "thread" or "process".
        runtimes: open and warm, one per executor to begin with.
        open_one: opens and warms up one more; blocks.
        limits: fewest and most executors.
        wear: when one is replaced.
        recorder: whose latencies say how requests fare.
        load_s: how long opening one took.
        size_bytes: what the runtime of one is taken to hold, where its process does not tell.

    Attributes:
        opened, lost, replaced: how many executors were opened later, died or hung, and wore out.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        kind: str,
        runtimes: Sequence[Runtime],
        open_one: Callable[[], Runtime],
        *,
        limits: ScalingLimits,
        wear: Wear,
        recorder: Recorder,
        load_s: float,
        size_bytes: int = 0,
    ) -> None:
        self.kind = kind
        self.opened = self.lost = self.replaced = 0
        self._dispatcher = dispatcher
        self._open_one = open_one
        self._wear = wear
        self._reopening = RestartBackoff(load_s)
        self._size_bytes = size_bytes
        self._loop = asyncio.get_running_loop()
        self._scaler = Scaler(limits)
        self._load = PoolLoad(dispatcher, recorder)
        self._handles: dict[Executor, ExecutorHandle] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._worn: ExecutorHandle | None = None
        self._goes_first: ExecutorHandle | None = None
        self._stopped = False
        self._abandoned: set[Executor] = set()
        self._wanted = len(runtimes)
        self._timer: asyncio.TimerHandle | None = None
        dispatcher.on_stuck = self._on_stuck
        dispatcher.coming = self._coming
        for runtime in runtimes:
            self._handle(runtime)
        if kind != "inline":
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    @property
    def size(self) -> int:
        """Executors ready for batches."""
        return len(self._handles)

    @property
    def runtimes(self) -> list[Runtime]:
        """Of the executors that take batches."""
        return [handle.runtime for handle in self._handles.values()]

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of the pool."""
        yield EXECUTORS(self.size, self.kind)
        yield EXECUTORS_TARGET(self._wanted)
        yield EXECUTORS_HUNG(len(self._abandoned))
        yield EXECUTORS_OPENED(self.opened)
        for reason, count in (("lost", self.lost), ("recycled", self.replaced)):
            yield EXECUTORS_TERMINATED(count, reason)

    def stop(self) -> None:
        """Look no more, and abandon what is being opened; the dispatcher closes the executors."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._dispatcher.on_stuck = self._dispatcher.coming = None
        if self._opening is not None:
            self._opening.cancel()

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _handle(self, runtime: Runtime) -> None:
        executor: Executor
        warm_bytes = 0
        if isinstance(runtime, RemoteRuntime):
            executor = ProcessExecutor(runtime, self._done, self._on_lost, self._loop)
            warm_bytes = runtime.resident_bytes
        elif self.kind == "inline":
            executor = InlineExecutor(runtime, self._dispatcher.on_done)
        else:
            name = f"{THREADS}{self.opened + len(self._handles)}"
            executor = ThreadExecutor(runtime, self._done, self._loop, name)
        self._handles[executor] = ExecutorHandle(executor, runtime, perf_counter(), warm_bytes)
        self._dispatcher.add(executor)

    def _done(
        self,
        executor: Executor,
        batch: Sequence[BatchItem],
        result: list[Arrays] | TailcutError,
        started_ns: int,
        finished_ns: int,
    ) -> None:
        handle = self._handles.get(executor)
        if handle is not None:
            self._load.busy_ns += finished_ns - started_ns
            handle.requests += len(batch)
        else:
            self._abandoned.discard(executor)  # it came to its end after all, and its thread with it
        self._dispatcher.on_done(executor, batch, result, started_ns, finished_ns)

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_S, self._look)
        now_s = perf_counter()
        there, opening = len(self._handles), int(self._opening is not None)
        self._wanted = self._scaler.target(self._load.seen(now_s, there, opening, self._reopening.load_s))
        if self._opening is not None or self._goes_first is not None:
            return
        may_open = self._reopening.may(now_s)
        if there < self._wanted:
            if may_open:
                self._open(f"{there} of {self._wanted} executors: {self._scaler.why}" if self._scaler.why else "")
        elif there > self._wanted:
            running = self._dispatcher.running
            handle = min(self._handles.values(), key=lambda one: (running.turn(one.executor), one.opened_s))
            self._retire(handle, f"one executor stops, {there - 1} remain: {self._scaler.why}")
        elif self._wear and may_open:
            self._replace_worn(now_s)

    def _replace_worn(self, now_s: float) -> None:
        for handle in self._handles.values():
            why = self._wear.reason(handle.requests, now_s - handle.opened_s, handle.growth)
            if not why:
                continue
            free = free_bytes()
            if free is None or max(handle.warm_bytes, self._size_bytes) <= _FREE_SHARE * free:
                self._worn = handle
                self._open(f"an executor is replaced: {why}")
            elif is_lent(handle.runtime):
                continue  # it would hold its memory until its streams have ended
            else:
                self._goes_first = handle
                self.replaced += 1
                self._retire(handle, f"an executor stops before its successor starts, because memory is short: {why}")
            return

    def _open(self, why: str) -> None:
        if self._stopped:
            return  # an executor was lost while the others end their batches
        if why:
            log.info("%s", why)
        self._opening = self._loop.create_task(self._opened())

    async def _opened(self) -> None:
        """Open one executor and put it to use; then let the one go whose place it takes."""
        worn, self._worn = self._worn, None
        self._reopening.began(perf_counter())
        try:
            runtime = await in_background(self._open_one, lambda runtime: runtime.close())
        except TailcutError as error:
            self._reopening.failed(perf_counter())
            log.error("an executor could not start, next attempt in %.3g s: %s", self._reopening.pause_s, error)
            return
        finally:
            self._opening = None
        self._reopening.ended(perf_counter())
        self._handle(runtime)
        self.opened += 1
        if worn is not None and worn.executor in self._handles:
            self.replaced += 1
            self._retire(worn, "")

    def _retire(self, handle: ExecutorHandle, why: str) -> None:
        """Let an executor end its batch, then close it."""
        if why:
            log.info("%s", why)
        del self._handles[handle.executor]
        idle = self._dispatcher.remove(handle.executor)
        if idle.done():
            self._close(handle)
            return
        error = ExecutorLost("an executor hung in its last batch", hint=_HUNG_HINT)
        leave_s = _LEAVE_FIRST_S if handle is self._goes_first else _LEAVE_S
        hung = self._loop.call_later(leave_s, self._dispatcher.fail, handle.executor, error)
        idle.add_done_callback(lambda _: hung.cancel())
        idle.add_done_callback(lambda _: self._close(handle))

    def _close(self, handle: ExecutorHandle) -> None:
        if isinstance(handle.executor, ProcessExecutor):
            handle.executor.detach()
        # Handed over at once, so that the end of the event loop waits for it.
        closing = self._loop.run_in_executor(None, handle.executor.close, _CLOSE_S)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        if handle is self._goes_first:
            closing.add_done_callback(lambda _: self._gone())

    def _gone(self) -> None:
        """Open the successor of an executor that had to go first."""
        self._goes_first = None
        if self._opening is None:
            self._open("")

    def _coming(self) -> Coming | None:
        """Say when an executor comes where none is there; None where none does."""
        if self._stopped or self.kind == "inline" or (self._handles and self.kind == "thread"):
            return None  # a thread that hangs and was not given up takes its place for as long as it does
        now_s = perf_counter()
        return Coming(self._reopening.left_s(now_s), self._reopening.retry_s(now_s))

    def _on_lost(self, executor: Executor, error: TailcutError) -> None:
        """Replace a process that is gone; its batch runs elsewhere."""
        handle = self._handles.pop(executor, None)
        self.lost += 1
        log.error("%s", error)
        self._dispatcher.fail(executor, error)
        if handle is None:
            return  # it was to go, and ended before its last batch did
        self._close(handle)
        now_s = perf_counter()
        self._reopening.lost(now_s, now_s - handle.opened_s)
        if self._opening is None and self._reopening.may(now_s):
            self._open("")

    def _on_stuck(self, executor: Executor) -> None:
        """Do without an executor that hangs: a process is killed, a thread can only be left to itself."""
        handle = self._handles.get(executor)
        if handle is None or self.kind == "inline":
            return
        if isinstance(executor, ProcessExecutor):
            log.error("an executor process hangs in a batch and is killed")
            executor.kill()
            return
        if len(self._abandoned) >= _MOST_ABANDONED:
            return
        del self._handles[executor]
        self._abandoned.add(executor)
        self.lost += 1
        error = ExecutorLost("the thread that ran the request hangs", hint=_HUNG_HINT)
        log.error("an executor thread hangs in a batch and is abandoned; another replaces it")
        self._dispatcher.fail(executor, error)
        self._close(handle)
        if self._opening is None:
            self._open("")


# -- How busy the pool is ----------------------------------------------------------------------------------------------


_SHARE = 0.95


class PoolLoad:
    """Reads the queue and the recorder, and remembers what they said at the last look.

    Attributes:
        busy_ns: that executors have spent in batches that ended; the pool adds to it.
    """

    def __init__(self, dispatcher: Dispatcher, recorder: Recorder) -> None:
        self.busy_ns = 0
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._counts: list[int] = []
        self._last_s = 0.0

    def seen(self, now_s: float, executors: int, opening: int, load_s: float) -> PoolObservation:
        """Return what happened since the last look."""
        # A long batch is known of when it ends. All of it at once would look like more work than there are executors
        # to have done it; what is over is the next look's.
        most_ns = int(max(executors, 1) * max(now_s - self._last_s, 0.0) * 1e9)
        busy_ns = min(self.busy_ns, most_ns)
        self.busy_ns -= busy_ns
        self._last_s = now_s
        return PoolObservation(
            now_s=now_s,
            executors=executors,
            opening=opening,
            busy_s=busy_ns / 1e9,
            queued_s=self._dispatcher.admission.queued_ns() / 1e9,
            p95_s=self._p95_s(),
            load_s=load_s,
        )

    def _p95_s(self) -> float:
        """Of the requests that were answered since the last look; 0 where there were none."""
        histograms = self._recorder.answered
        if not histograms:
            return 0.0
        counts = [sum(each) for each in zip(*(histogram.counts for histogram in histograms), strict=True)]
        before, self._counts = self._counts, counts
        if len(before) != len(counts) or any(old > new for old, new in zip(before, counts, strict=True)):
            before = [0] * len(counts)  # the first look, or an objective changed: histograms began again at 0
        fresh = [new - old for new, old in zip(counts, before, strict=True)]
        return quantile_of(fresh, histograms[0].bounds, _SHARE) / 1e9

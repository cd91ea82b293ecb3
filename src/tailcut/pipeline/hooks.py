"""The user's preprocess and postprocess: quick calls on the event loop, slow ones in threads, within the deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import perf_counter_ns
from typing import Any, TypeVar

from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.errors import HookError, HookTimeout, NotReady, Shed, TailcutError
from tailcut.models.executors import JobThread
from tailcut.models.shed_errors import stopping
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import RowTransform
from tailcut.scheduler.executor_placement import ALL_ROWS, HookPlacement

log = logging.getLogger("tailcut.server")

T = TypeVar("T")

_MAX_THREADS = 8
"""Threads for calls that wait for something; those that compute share the interpreter however many there are."""

_MAX_WAITING = 1024
"""Calls that may wait for a thread."""

_STUCK_FACTOR = 10
"""A call is stuck after this many times what was expected of it, but not before ``stuck_after_s``."""

_LATE_HINT = "send a longer timeout or make the hook faster; a running call cannot be stopped"


@dataclass(slots=True, eq=False)
class _Job:
    """One call of a hook that does not run on the event loop."""

    name: str
    placement: HookPlacement
    rows: int
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    context: Context = field(default_factory=copy_context)
    started_ns: int = 0
    stuck_ns: int = 0


def _attempt(job: _Job) -> Any:
    try:
        return job.context.run(job.work)
    except TailcutError as error:
        return error
    except BaseException as error:
        kind = type(error).__name__
        return HookError(f"{job.name} failed ({kind})", hint="see the server's log", detail=str(error))


class Hooks:
    """Where each call of the user's hooks runs, and the threads for the slow ones. Owned by the event loop.

    Threads are made when a call needs one. A call whose request has ended, at its deadline or because its client left,
    is dropped where it still waits; where it runs it runs on, its result is dropped, and its thread is busy
    until it returns.

    Args:
        preprocess, postprocess: whether the user has this hook; what the manifest does by itself runs on the loop.
        stuck_after_s: when all threads run calls for longer than this, and than ten times what was expected, the
            hooks are not healthy: calls that need a thread are refused at once instead of at their deadline.
        on_loop: whether quick calls may run on the event loop.
    """

    def __init__(
        self,
        transform: RowTransform,
        *,
        preprocess: bool,
        postprocess: bool,
        stuck_after_s: float,
        on_loop: bool = True,
        max_threads: int = _MAX_THREADS,
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        self.preprocess = _placement(preprocess, on_loop)
        self.postprocess = _placement(postprocess, on_loop)
        self.calls = {"preprocess": 0, "postprocess": 0}
        self._transform = transform
        self._stuck_after_ns = int(stuck_after_s * 1e9)
        self._max_threads = max_threads
        self._max_waiting = max_waiting
        self._loop = asyncio.get_running_loop()
        self._idle: list[JobThread[_Job]] = []
        self._busy: dict[JobThread[_Job], _Job] = {}
        self._waiting: dict[_Job, None] = {}
        self._closed = False

    @property
    def busy(self) -> int:
        """Threads that run a hook."""
        return len(self._busy)

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return len(self._waiting)

    @property
    def healthy(self) -> bool:
        """Whether a thread is idle, can be made, or will be free in reasonable time."""
        if len(self._busy) < self._max_threads:
            return True
        now_ns = perf_counter_ns()
        return any(job.stuck_ns > now_ns for job in self._busy.values())

    def inputs(
        self, context: RequestContext, rows: Sequence[Mapping[str, Any]], from_client: bool
    ) -> Coroutine[Any, Any, Arrays]:
        """Run preprocess in a thread; see ``RowTransform.inputs`` for what it returns and raises.

        Raises:
            HookTimeout: the deadline passed while it waited or ran.
            Shed, NotReady: no thread can take it.
        """
        work = partial(self._transform.inputs, rows, from_client=from_client)
        return self._run(Stage.PREPROCESS, self.preprocess, context, len(rows), work)

    def answers(self, context: RequestContext, outputs: Arrays, rows: int) -> Coroutine[Any, Any, list[Any]]:
        """Run postprocess in a thread; see ``RowTransform.answers`` and ``inputs`` for what it returns and raises."""
        work = partial(self._transform.answers, outputs, rows)
        return self._run(Stage.POSTPROCESS, self.postprocess, context, rows, work)

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits, let running calls end for at most ``timeout_s``, end the threads."""
        self._closed = True
        for job in list(self._waiting):
            _fail(job, stopping())
        awaited = [job.future for job in self._busy.values() if not job.future.done()]
        if awaited:
            await asyncio.wait(awaited, timeout=timeout_s)
        for job in self._busy.values():
            _fail(job, stopping())
        for worker in [*self._idle, *self._busy]:
            worker.start(None)
        self._idle.clear()

    async def _run(
        self, stage: Stage, placement: HookPlacement, context: RequestContext, rows: int, work: Callable[[], T]
    ) -> T:
        name = stage.name.lower()
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(name, placement, rows, work, future)
        timer = None
        try:
            if context.gone:
                raise asyncio.CancelledError  # the client left between two waits
            left_ns = context.deadline_ns - perf_counter_ns()
            self._check_room(name, left_ns)
            self.calls[name] += 1
            timer = self._loop.call_later(left_ns / 1e9, self._expire, job)
            context.waiting = future
            self._waiting[job] = None
            self._start_next()
            return await future
        finally:
            context.waiting = None
            if timer is not None:
                timer.cancel()
            self._waiting.pop(job, None)
            context.timings.lap(stage, perf_counter_ns())

    def _check_room(self, name: str, left_ns: int) -> None:
        if self._closed:
            raise stopping()
        if left_ns <= 0:
            raise HookTimeout(f"the deadline passed before {name} could run", hint="send a longer timeout")
        if not self.healthy:
            raise NotReady(
                f"{name} cannot run: all {self._max_threads} hook threads are stuck ({self._shown_busy()})",
                hint="fix the hook that does not return (give its waits a timeout) and restart the server",
            )
        if len(self._waiting) >= self._max_waiting:
            raise Shed(
                f"{len(self._waiting)} calls of hooks wait for a thread, the limit is {self._max_waiting}",
                hint=f"retry later, lower the rate, or make {name} faster",
            )

    def _start_next(self) -> None:
        """Give waiting jobs to threads, in order, as long as there are threads."""
        while self._waiting and (worker := self._free()) is not None:
            job = next(iter(self._waiting))
            del self._waiting[job]
            if job.future.done():
                self._idle.append(worker)
                continue
            job.started_ns = perf_counter_ns()
            expected_ns = job.placement.cost.batch_ns(job.rows)
            job.stuck_ns = job.started_ns + max(self._stuck_after_ns, int(_STUCK_FACTOR * expected_ns))
            self._busy[worker] = job
            worker.start(job)

    def _free(self) -> JobThread[_Job] | None:
        if self._idle:
            return self._idle.pop()
        if len(self._busy) < self._max_threads:
            return JobThread(_attempt, self._on_done, self._loop, f"tailcut-hook-{len(self._busy)}")
        return None

    def _on_done(self, worker: JobThread[_Job], job: _Job, result: Any, started_ns: int, finished_ns: int) -> None:
        del self._busy[worker]
        if isinstance(result, TailcutError):
            _fail(job, result)  # and nothing is learned: a call that fails at once does not make the hook quick
        else:
            job.placement.observe(job.rows, finished_ns - started_ns, perf_counter_ns())
            if not job.future.done():
                job.future.set_result(result)
        if self._closed:
            worker.start(None)
            return
        self._idle.append(worker)
        self._start_next()

    def _expire(self, job: _Job) -> None:
        if job.started_ns:
            ran_ms = (perf_counter_ns() - job.started_ns) / 1e6
            said = f"the deadline passed while {job.name} ran, after {ran_ms:.0f} ms"
        else:
            said = (
                f"the deadline passed while {job.name} waited for a thread: all {self._max_threads} hook threads are "
                f"busy ({self._shown_busy()})"
            )
        _fail(job, HookTimeout(said, hint=_LATE_HINT))

    def _shown_busy(self) -> str:
        names = [job.name for job in self._busy.values()]
        return ", ".join(f"{names.count(name)} with {name}" for name in self.calls if name in names)


def _fail(job: _Job, error: TailcutError) -> None:
    if not job.future.done():
        job.future.set_exception(error)


def _placement(exists: bool, on_loop: bool) -> HookPlacement:
    """Return where the calls of a hook run; without a hook, what the manifest does by itself runs on the loop."""
    if not exists:
        return HookPlacement(inline_rows=ALL_ROWS, look_ns=ALL_ROWS)
    return HookPlacement(back_ns=0.0 if on_loop else inf)


def ran_inline(placement: HookPlacement, context: RequestContext, stage: Stage, rows: int) -> None:
    """End a hook's stage. It began with the last lap, so that what the hook took needs no clock of its own."""
    now_ns = perf_counter_ns()
    took_ns = now_ns - context.timings.last_ns
    context.timings.lap(stage, now_ns)
    if took_ns > placement.look_ns:
        back_ns = placement.back_ns
        placement.observe(rows, took_ns, now_ns, on_loop=True)
        if placement.back_ns > back_ns:
            log.warning(
                "%s of %d rows took %.0f ms on the event loop, and all other requests waited; its calls run in threads "
                'for the next %.0f s; if it waits for something or is slow at times, set pool.hooks = "thread"',
                stage.name.lower(),
                rows,
                took_ns / 1e6,
                (placement.back_ns - now_ns) / 1e9,
            )

"""Drives the scheduler: hands batches to idle executors and every item its one end.

Owned by the event loop: every method is called on it. Submissions of one turn of the loop are planned together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from time import perf_counter_ns

from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.models import shed_errors
from tailcut.models.batch_item import BatchItem, bytes_of, cut, length_class
from tailcut.models.dispatch.batch_retry import BatchRetry
from tailcut.models.dispatch.deadline_timer import NEVER_NS
from tailcut.models.dispatch.deadlines import Deadlines, expire
from tailcut.models.dispatch.executor_set import BatchObserver, Coming, ExecutorSet
from tailcut.models.executors.in_process import Executor
from tailcut.scheduler.admission import Admission, Request
from tailcut.scheduler.batching_delay import Fixed
from tailcut.scheduler.latency_learner import LatencyLearner
from tailcut.scheduler.request_queue import DEFAULT_LEVEL
from tailcut.scheduler.scheduler import Scheduler

_SHORT_NS, _SOME = 1_000_000, 7
"""Of batches that are expected to take up to a millisecond, one in eight is learned from: they come fast enough."""


class Dispatcher:
    """The one place where batches are formed for a device.

    Args:
        observer: told the rows and duration of every finished batch.
        running, costs, admission: holds the executors, none yet; of the scheduler.
        lengths: whether rows differ in length, so that costs are learned per length class.

    ``on_stuck`` hears once of an executor whose batch takes far too long; ``coming`` says when the next one is there;
    ``kind`` is that of the shortest rows that came, ``single`` whether all requests had one row.
    """

    def __init__(
        self,
        scheduler: Scheduler[BatchItem],
        observer: BatchObserver,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int] = perf_counter_ns,
        *,
        running: ExecutorSet | None = None,
        costs: LatencyLearner | None = None,
        admission: Admission[BatchItem] | None = None,
        lengths: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.costs = costs or LatencyLearner()
        self.admission = admission or Admission(scheduler, self.costs)
        self.batch_retry = BatchRetry()
        self.on_stuck: Callable[[Executor], None] | None = None
        self.coming: Callable[[], Coming | None] | None = None
        self._lengths = lengths
        self._observer = observer
        self._loop = loop
        self._clock_ns = clock_ns
        self.running = ExecutorSet(1.0) if running is None else running
        self._closed, self._kick_due, self._runs, self.kind, self.single = False, False, 0, 0, True
        self._admitted_ns = -1
        self._delays_lone = isinstance(scheduler.window, Fixed)  # by that rule lone requests wait for some
        self._deadlines = Deadlines(loop, clock_ns, scheduler, self.running, self._tell_stuck)
        self._window: asyncio.TimerHandle | None = None
        self._ended: asyncio.Event | None = None

    def add(self, executor: Executor) -> None:
        """Put an idle executor to use; at any time."""
        self.running.join(executor)
        self._schedule_kick()

    def remove(self, executor: Executor) -> asyncio.Future[None]:
        """Give an executor no further batch. The future is done when it runs none; the caller closes it then."""
        self._schedule_kick()  # one that rested may begin in its place
        return self.running.leave(executor)

    def fail(self, executor: Executor, error: TailcutError) -> None:
        """Do without an executor that died or hangs: its batch runs once more elsewhere, each request alone.

        Alone, because one of them may have killed it. Who was run again before, or is late, gets ``error``. What the
        executor still reports of its batch is ignored; the caller closes it.
        """
        now_ns = NEVER_NS if self._closed else self._clock_ns()
        for item in self.batch_retry.rescue(self.running.lose(executor), error, now_ns):
            self.scheduler.offer(item, again=True)
        self._schedule_kick()
        self._tell_ended()

    @property
    def healthy(self) -> bool:
        """Whether at least one executor is not stuck in a batch that runs far longer than it should."""
        return self.running.usable > 0

    def check_room(self, rows: int, deadline_ns: int = NEVER_NS, *, priority: int = 0, tenant: str = "") -> None:
        """Refuse what could not be queued now, or not be answered in time; priority and tenant as for ``submit``.

        Raises:
            TooLarge: the queue could never take the rows.
            Shed: it cannot now, they would be answered after ``deadline_ns``, or the tenant asks for too much.
            NotReady: the dispatcher is closed, or no executor is there and the next one comes too late.
        """
        running = self.running
        if self._closed:
            raise shed_errors.unavailable()
        self._admitted_ns, self.single = deadline_ns, self.single and rows == 1
        if not tenant and len(running.executors) > len(running.stuck):
            # As admission says, in short: what is let in without doubt should not pay for asking.
            if running.idle and not self.scheduler.waiting.rows and rows <= self.scheduler.max_queue_rows:
                return
            if self.admission.is_easy(self._clock_ns(), rows, deadline_ns, self.kind):
                return
        # Its length is not known yet: as if it were one of the shortest.
        self._admit(Request(rows, deadline_ns, priority or DEFAULT_LEVEL, tenant, kind=self.kind), counted=False)

    def _admit(self, request: Request, *, counted: bool) -> None:
        now_ns = self._clock_ns()
        executors = self.running.seen(now_ns, self.costs, self.coming)
        refusal = self.admission.check(now_ns, request, executors, counted=counted)
        if refusal is not None:
            raise shed_errors.of(refusal, request, executors)

    def run_now(self, inputs: Arrays, rows: int, outputs: Sequence[str], deadline_ns: int) -> tuple[Arrays, int] | None:
        """Run rows at once and past the queue, where nothing waits and an inline executor is there to run them.

        Nothing is queued, so the scheduler would decide the same. This saves the item, its future and the planning,
        which cost a lone request more than a small model does.

        Returns:
            the outputs and the nanoseconds that the model took; None where the rows must be submitted.
        """
        inline, scheduler = self.running.inline, self.scheduler
        if inline is None or self._closed or scheduler.queue_rows or rows > scheduler.max_rows or self._delays_lone:
            return None
        started_ns = self._clock_ns()
        if started_ns >= deadline_ns:
            return None  # the scheduler says so, as it does to everybody
        found = inline.run_now(inputs, rows, outputs)
        duration_ns = self._clock_ns() - started_ns
        self._runs += 1
        if not self._runs & _SOME:
            self.costs.observe(rows, duration_ns, length_class(inputs, rows) if self._lengths else 0)
        self._observer.batch(rows, duration_ns)
        return found, duration_ns

    def submit(
        self,
        inputs: Arrays,
        rows: int,
        outputs: Sequence[str],
        deadline_ns: int,
        lane: Hashable,
        at_once: bool = False,
        priority: int = 0,
        tenant: str = "",
        since_ns: int = 0,
    ) -> list[BatchItem]:
        """Queue rows for an executor.

        Args:
            at_once: plan now, not at the end of this loop iteration, because nobody is there to share a batch.
            priority: 1 runs first, larger later; 0 is the default, between 1 and 3.
            tenant: whose request it is; empty where there is one tenant.
            since_ns: when the request came: the SLO counts from then; 0 for now.

        Returns:
            one item, or several in row order where ``rows`` exceeds the largest batch. Await their futures.

        Raises TooLarge, Shed and NotReady as ``check_room``; nothing was queued then.
        """
        if self._closed:
            raise shed_errors.unavailable()
        scheduler, size_bytes = self.scheduler, bytes_of(inputs)
        kind = length_class(inputs, rows) if self._lengths else 0
        full = scheduler.waiting.size_bytes + size_bytes > scheduler.max_queue_bytes
        if full or deadline_ns != self._admitted_ns or kind != self.kind:
            # Others were let in since; or nobody asked yet, or for shorter rows.
            self._admit(Request(rows, deadline_ns, priority or DEFAULT_LEVEL, tenant, size_bytes, kind), counted=True)
        self._admitted_ns, self.kind = -1, min(kind, self.kind or kind)
        future = self._loop.create_future()
        now_ns = self._clock_ns()
        target_ns = scheduler.target_ns(since_ns or now_ns, deadline_ns)
        whole = BatchItem(
            inputs, rows, outputs, deadline_ns, lane, future, priority, now_ns, size_bytes, tenant, kind, target_ns
        )
        items = [whole] if rows <= scheduler.max_rows else cut(whole, scheduler.max_rows, self._loop)
        for item in items:
            scheduler.waiting.add(item)  # there is room for the whole, or it would have been refused
        self._deadlines.note(deadline_ns)
        if at_once:
            self._kick()
        elif not self._kick_due:
            self._schedule_kick()
        return items

    def cancel(self, items: Sequence[BatchItem]) -> None:
        """Drop what has not started of a request whose client is gone; its futures are cancelled."""
        for item in items:
            self.scheduler.cancel(item)
            item.future.cancel()

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits, let running batches end for at most ``timeout_s``, then close; blocks nothing."""
        self._refuse()
        if self.running:
            self._ended = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout_s)
        self.close(0)

    def close(self, timeout_s: float) -> None:
        """Fail what waits, stop the executors after their running batch; blocks for at most ``timeout_s``."""
        self._refuse()
        give_up_ns = perf_counter_ns() + int(timeout_s * 1e9)
        for executor in self.running.executors:
            executor.close(max(give_up_ns - perf_counter_ns(), 0) / 1e9)
        # Later: the answers of batches that ended meanwhile are on their way through the loop.
        self._loop.call_soon(lambda: shed_errors.end_all([item for item, _ in self.running.items()]))

    def _refuse(self) -> None:
        """Take nothing more and fail what waits."""
        self._closed = True
        self._deadlines.cancel()
        if self._window is not None:
            self._window.cancel()
        shed_errors.end_all(self.scheduler.expire(NEVER_NS))

    def _schedule_kick(self) -> None:
        if not self._kick_due:
            self._kick_due = True
            # While a model runs on the loop nothing can be read: what came meanwhile is read first, in one more turn.
            soon = self._loop.call_soon
            soon(self._kick) if self.running.inline is None else soon(soon, self._kick)

    def _kick(self) -> None:
        self._kick_due = False
        running = self.running
        if running.idle and self.scheduler.queue_rows:
            now_ns = self._clock_ns()
            idle, count = len(running.idle), max(running.usable, 1)
            plan = self.scheduler.plan(now_ns, idle, self.costs, executors=count, probe=not running)
            self.admission.learn(len(plan.expired))
            for batch in plan.batches:
                executor = running.idle.pop()
                self._deadlines.note(running.begin(executor, batch, now_ns, self.costs.of(batch[0].kind)))
                executor.start(batch)
            for item in plan.expired:
                expire(item, now_ns)
            if plan.again_ns:
                if self._window is not None:
                    self._window.cancel()
                self._window = self._loop.call_later((plan.again_ns - now_ns) / 1e9, self._schedule_kick)
        self._deadlines.arm()

    def on_done(
        self,
        executor: Executor,
        batch: Sequence[BatchItem],
        result: list[Arrays] | TailcutError,
        started_ns: int,
        finished_ns: int,
    ) -> None:
        """Take an executor back that has finished a batch, and hand every item its end, or one more run alone."""
        ended = self.running.end(executor)
        if ended is None:
            return  # it was given up: its items run elsewhere, or were told
        for item in batch:
            item.started_ns, item.finished_ns = started_ns, finished_ns
        now_ns = self._clock_ns()
        if self.scheduler.queue_rows and executor is not self.running.inline:
            self._schedule_kick()  # before the answers are written: nobody would compute meanwhile
        for item in self.batch_retry.hand_out(batch, result, NEVER_NS if self._closed else now_ns):
            self.scheduler.offer(item, again=True)
        # All of the time that the executor was taken: handing over and waiting for the event loop included.
        kind = batch[0].kind
        self._runs += 1
        told = not self._runs & _SOME or not 0.0 < self.costs.of(kind).batch_ns(ended.rows) <= _SHORT_NS
        if told and not isinstance(result, TailcutError):  # of a batch that failed nobody knows how much of it ran
            self.costs.observe(ended.rows, now_ns - ended.started_ns, kind)
        self._observer.batch(ended.rows, finished_ns - started_ns)
        if self.scheduler.queue_rows:
            self._schedule_kick()
        else:
            self.scheduler.rest(nothing_runs=not self.running)
        self._tell_ended()

    def _tell_stuck(self, executor: Executor) -> None:
        self._schedule_kick()  # another may begin in its place
        if self.on_stuck is not None:
            self.on_stuck(executor)

    def _tell_ended(self) -> None:
        if self._ended is not None and not self.running:
            self._ended.set()

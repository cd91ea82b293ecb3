"""What happens when time passes: requests whose deadline has come are told so, and batches are found to be stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailcut.errors import InferTimeout, QueueTimeout
from tailcut.models import shed_errors
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.deadline_timer import NEVER_NS, DeadlineTimer
from tailcut.models.dispatch.executor_set import ExecutorSet
from tailcut.models.executors.in_process import Executor
from tailcut.scheduler.scheduler import Scheduler


class Deadlines:
    """Watches what waits and what runs. Owned by the dispatcher.

    Args:
        stuck: told of each executor whose batch takes far too long, once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int],
        scheduler: Scheduler[BatchItem],
        running: ExecutorSet,
        stuck: Callable[[Executor], None],
    ) -> None:
        self._clock_ns = clock_ns
        self._scheduler = scheduler
        self._running = running
        self._stuck = stuck
        self._wakeup = DeadlineTimer(loop, clock_ns, self._look)
        self.note = self._wakeup.note
        self.cancel = self._wakeup.cancel

    def arm(self) -> None:
        """Make sure that the next deadline is not slept through."""
        if self._running or self._scheduler.queue_rows:
            self._wakeup.arm(self._earliest_ns)

    def _earliest_ns(self) -> int:
        # Nothing is left out for having passed by now: it would be slept through if it passed since the last look.
        moments_ns = self._running.moments_ns()
        waiting_ns = self._scheduler.next_deadline_ns()
        if waiting_ns is not None:
            moments_ns.append(waiting_ns)
        return min(moments_ns, default=NEVER_NS)

    def _look(self) -> None:
        now_ns = self._clock_ns()
        for item in self._scheduler.expire(now_ns):
            expire(item, now_ns)
        for item, started in self._running.items():
            if item.deadline_ns <= now_ns and not item.future.done():
                item.started_ns, item.finished_ns = started.started_ns, now_ns
                message = "the deadline passed while the model was running"
                item.future.set_exception(shed_errors.late(InferTimeout, message))
        for executor in self._running.find_stuck(now_ns):
            self._stuck(executor)
        self.arm()


def expire(item: BatchItem, now_ns: int) -> None:
    """Tell a request that it is not computed because it would be late."""
    item.started_ns = item.finished_ns = now_ns
    message = "no executor can answer before the deadline; the request was not computed"
    if item.alone:
        message = "its batch failed, and the deadline passes before the request can be run alone"
    if not item.future.done():
        item.future.set_exception(shed_errors.late(QueueTimeout, message))

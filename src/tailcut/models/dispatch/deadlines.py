"""What happens when time passes: requests whose deadline has come are told so, and batches are found to be stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailcut.errors import InferTimeout, QueueTimeout
from tailcut.models import shed_errors as refusals
from tailcut.models.batch_item import Ticket
from tailcut.models.dispatch.deadline_timer import NEVER_NS, Wakeup
from tailcut.models.dispatch.executor_set import Running
from tailcut.models.executors.in_process import Executor
from tailcut.scheduler.scheduler import Planner


class Deadlines:
    """Watches what waits and what runs. Owned by the dispatcher.

    Args:
        stuck: told of each executor whose batch takes far too long, once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int],
        planner: Planner[Ticket],
        running: Running,
        stuck: Callable[[Executor], None],
    ) -> None:
        self._clock_ns = clock_ns
        self._planner = planner
        self._running = running
        self._stuck = stuck
        self._wakeup = Wakeup(loop, clock_ns, self._look)
        self.note = self._wakeup.note
        self.cancel = self._wakeup.cancel

    def arm(self) -> None:
        """Make sure that the next deadline is not slept through."""
        if self._running or self._planner.queue_rows:
            self._wakeup.arm(self._earliest_ns)

    def _earliest_ns(self) -> int:
        # Nothing is left out for having passed by now: it would be slept through if it passed since the last look.
        moments_ns = self._running.moments_ns()
        waiting_ns = self._planner.next_deadline_ns()
        if waiting_ns is not None:
            moments_ns.append(waiting_ns)
        return min(moments_ns, default=NEVER_NS)

    def _look(self) -> None:
        now_ns = self._clock_ns()
        for ticket in self._planner.expire(now_ns):
            expire(ticket, now_ns)
        for ticket, started in self._running.tickets():
            if ticket.deadline_ns <= now_ns and not ticket.future.done():
                ticket.started_ns, ticket.finished_ns = started.started_ns, now_ns
                message = "the deadline passed while the model was running"
                ticket.future.set_exception(refusals.late(InferTimeout, message))
        for executor in self._running.find_stuck(now_ns):
            self._stuck(executor)
        self.arm()


def expire(ticket: Ticket, now_ns: int) -> None:
    """Tell a request that it is not computed because it would be late."""
    ticket.started_ns = ticket.finished_ns = now_ns
    message = "no executor can answer before the deadline; the request was not computed"
    if ticket.alone:
        message = "its batch failed, and the deadline passes before the request can be run alone"
    if not ticket.future.done():
        ticket.future.set_exception(refusals.late(QueueTimeout, message))

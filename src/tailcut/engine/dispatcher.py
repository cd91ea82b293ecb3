"""Drives the planner: hands batches to idle executors and every ticket its one end.

Owned by the event loop: every method is called on it. Submissions of one loop iteration are planned together, so
requests that arrived at once share a batch although nothing ever waits for a window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Protocol

from tailcut.core.batching import Planner
from tailcut.core.costs import CostModel
from tailcut.core.tensors import Arrays
from tailcut.engine import refusals
from tailcut.engine.executors import Executor
from tailcut.engine.isolation import Isolation
from tailcut.engine.running import Running
from tailcut.engine.ticket import Ticket, split
from tailcut.engine.wakeup import NEVER_NS, Wakeup
from tailcut.errors import InferTimeout, QueueTimeout, TailcutError


class BatchObserver(Protocol):
    """Told of every batch that ran."""

    def batch(self, rows: int, duration_ns: int) -> None: ...


class Dispatcher:
    """The one place where batches are formed for a device.

    Args:
        planner: decides; owns what waits.
        observer: told the rows and duration of every finished batch.
        clock_ns: monotonic nanoseconds.
        stuck_after_s: see ``Running``.
    """

    def __init__(
        self,
        planner: Planner[Ticket],
        observer: BatchObserver,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int] = perf_counter_ns,
        *,
        stuck_after_s: float = 1.0,
    ) -> None:
        self.planner = planner
        self.costs = CostModel()
        self.isolation = Isolation()
        self._observer = observer
        self._loop = loop
        self._clock_ns = clock_ns
        self._running = Running(stuck_after_s)
        self.on_stuck: Callable[[Executor], None] | None = None
        self._kick_due = False
        self._wakeup = Wakeup(loop, clock_ns, self._on_deadline)
        self._closed = False
        self._ended: asyncio.Event | None = None

    def add(self, executor: Executor) -> None:
        """Put an idle executor to use; at any time."""
        self._running.join(executor)
        self._schedule_kick()

    def remove(self, executor: Executor) -> asyncio.Future[None]:
        """Give an executor no further batch. The future is done when it runs none; the caller closes it then."""
        return self._running.leave(executor)

    def fail(self, executor: Executor, error: TailcutError) -> None:
        """Do without an executor that died or hangs: its batch runs once more elsewhere, each request alone.

        Alone, because one of them may have killed it. Who was run again before, or whose deadline has passed, gets
        ``error``. What the executor still reports of its batch is ignored; the caller closes it.
        """
        now_ns = NEVER_NS if self._closed else self._clock_ns()
        for ticket in self.isolation.rescue(self._running.lose(executor), error, now_ns):
            self.planner.offer(ticket, again=True)
        self._schedule_kick()
        self._tell_ended()

    @property
    def healthy(self) -> bool:
        """Whether at least one executor is not stuck in a batch that runs far longer than it should."""
        return self._running.usable > 0

    @property
    def running_rows(self) -> int:
        """Rows that are being computed now."""
        return self._running.rows

    def check_room(self, rows: int, deadline_ns: int = NEVER_NS) -> None:
        """Refuse what could not be queued now, or not be answered in time.

        Raises:
            TooLarge: the queue could never take the rows.
            Shed: the queue cannot take the rows now, or they would be answered after ``deadline_ns``.
            NotReady: the dispatcher is closed or every executor is stuck.
        """
        if self._closed or self._running.usable <= 0:
            raise refusals.unavailable()
        planner = self.planner
        waiting = planner.queue_rows
        if waiting + rows > planner.max_queue_rows:
            raise refusals.full(rows, waiting, planner.max_queue_rows, self._drain_s())
        if not waiting and self._running.idle:
            return  # whatever is predicted: a prediction that is too high must not close the door
        now_ns = self._clock_ns()
        left_ns = deadline_ns - now_ns
        if left_ns <= 0 or self._wait_ns(now_ns, waiting, rows) <= left_ns:
            return  # the planner answers what is too late already, as it does for everybody
        first = planner.rows_before(deadline_ns)
        if (wait_ns := self._wait_ns(now_ns, first, rows)) > left_ns:
            raise refusals.too_slow(rows, first, wait_ns / 1e9, left_ns / 1e9, self._drain_s())

    def run_now(self, inputs: Arrays, rows: int, outputs: Sequence[str], deadline_ns: int) -> tuple[Arrays, int] | None:
        """Run rows at once and past the queue, where nothing waits and an inline executor is there to run them.

        With nobody to share a batch and nobody to let go first, the planner could only decide the same; this saves
        the ticket, its future and the planning, which cost a lone request more than a small model does.

        Returns:
            the outputs and the nanoseconds that the model took; None where the rows must be submitted.

        Raises:
            InferenceError: the model failed.
        """
        inline = self._running.inline
        if inline is None or self._closed or self.planner.queue_rows or rows > self.planner.max_rows:
            return None
        started_ns = self._clock_ns()
        if started_ns >= deadline_ns:
            return None  # the planner says so, as it does to everybody
        found = inline.run_now(inputs, rows, outputs)
        duration_ns = self._clock_ns() - started_ns
        self.costs.observe(rows, duration_ns)
        self._observer.batch(rows, duration_ns)
        return found, duration_ns

    def submit(
        self,
        inputs: Arrays,
        rows: int,
        outputs: Sequence[str],
        deadline_ns: int,
        lane: Hashable,
        *,
        at_once: bool = False,
        priority: int = 0,
        tenant: str = "",
    ) -> list[Ticket]:
        """Queue rows for an executor.

        Args:
            at_once: plan now instead of at the end of this loop iteration, because nobody is there to share a batch.

        Returns:
            one ticket, or several in row order where ``rows`` exceeds the largest batch. Await their futures.

        Raises:
            TooLarge, Shed, NotReady: see ``check_room``; nothing was queued.
        """
        self.check_room(rows, deadline_ns)
        planner = self.planner
        future = self._loop.create_future
        if rows <= planner.max_rows:
            tickets = [Ticket(inputs, rows, outputs, deadline_ns, lane, future())]
        else:
            parts = split(inputs, rows, planner.max_rows)
            tickets = [Ticket(part, n, outputs, deadline_ns, lane, future()) for part, n in parts]
        for ticket in tickets:
            planner.offer(ticket)
        self._wakeup.note(deadline_ns)
        if at_once:
            self._kick()
        else:
            self._schedule_kick()
        return tickets

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Drop what has not started of a request whose client is gone; its futures are cancelled."""
        for ticket in tickets:
            self.planner.cancel(ticket)
            ticket.future.cancel()

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits, let running batches end for at most ``timeout_s``, then close; blocks nothing."""
        self._refuse()
        if self._running:
            self._ended = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout_s)
        self.close(0)

    def close(self, timeout_s: float) -> None:
        """Fail what waits, stop the executors after their running batch; blocks for at most ``timeout_s``."""
        self._refuse()
        give_up_ns = perf_counter_ns() + int(timeout_s * 1e9)
        for executor in self._running.executors:
            executor.close(max(give_up_ns - perf_counter_ns(), 0) / 1e9)
        # Later, because the answers of batches that ended meanwhile are on their way through the loop.
        self._loop.call_soon(self._fail_running)

    def _refuse(self) -> None:
        """Take nothing more and fail what waits."""
        self._closed = True
        self._wakeup.cancel()
        batches, expired = self.planner.plan(-(2**62), 2**31)
        self._fail_all([*(ticket for batch in batches for ticket in batch), *expired])

    def _fail_running(self) -> None:
        self._fail_all([ticket for ticket, _ in self._running.tickets()])

    def _fail_all(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._fail(ticket, refusals.stopping())

    def _wait_ns(self, now_ns: int, ahead_rows: int, rows: int) -> float:
        """When ``rows`` that come now, behind ``ahead_rows``, are predicted to be answered, from now."""
        cost, running = self.costs.cost, self._running
        left_ns = running.left_ns(now_ns, cost)
        return cost.wait_ns(left_ns, ahead_rows, rows, self.planner.batch_rows, running.usable)

    def _drain_s(self) -> float:
        """Seconds until all that runs and waits now is done."""
        return max(self._wait_ns(self._clock_ns(), self.planner.queue_rows, 0) / 1e9, 0.001)

    def _schedule_kick(self) -> None:
        if not self._kick_due:
            self._kick_due = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kick_due = False
        if self._running.idle and self.planner.queue_rows:
            now_ns = self._clock_ns()
            cost = self.costs.cost
            batches, expired = self.planner.plan(now_ns, len(self._running.idle), cost, probe=not self._running)
            for batch in batches:
                executor = self._running.idle.pop()
                self._wakeup.note(self._running.begin(executor, batch, now_ns, cost))
                executor.start(batch)
            for ticket in expired:
                self._expire(ticket, now_ns)
        if self._running or self.planner.queue_rows:
            self._wakeup.arm(self._earliest_ns)

    def _on_done(
        self,
        executor: Executor,
        batch: Sequence[Ticket],
        result: list[Arrays] | TailcutError,
        started_ns: int,
        finished_ns: int,
    ) -> None:
        """Hand every ticket of a finished batch its end, or one more run alone, and take the executor back."""
        ended = self._running.end(executor)
        if ended is None:
            return  # it was given up: its tickets run elsewhere, or were told
        for ticket in batch:
            ticket.started_ns = started_ns
            ticket.finished_ns = finished_ns
        for ticket in self.isolation.hand_out(batch, result, NEVER_NS if self._closed else self._clock_ns()):
            self.planner.offer(ticket, again=True)
        self.costs.observe(ended.rows, finished_ns - started_ns)
        self._observer.batch(ended.rows, finished_ns - started_ns)
        if self.planner.queue_rows:
            self._schedule_kick()
        self._tell_ended()

    def _tell_ended(self) -> None:
        if self._ended is not None and not self._running:
            self._ended.set()

    @property
    def on_done(self) -> Callable[..., None]:
        """The callback to build executors with."""
        return self._on_done

    def _earliest_ns(self) -> int:
        # What has expired already and still runs was told so; there is nothing more to wake for.
        now_ns = self._clock_ns()
        deadlines = self._running.moments_ns()
        waiting_ns = self.planner.next_deadline_ns()
        if waiting_ns is not None:
            deadlines.append(max(waiting_ns, now_ns + 1))
        return min([ns for ns in deadlines if ns > now_ns], default=NEVER_NS)

    def _on_deadline(self) -> None:
        now_ns = self._clock_ns()
        for ticket in self.planner.expire(now_ns):
            self._expire(ticket, now_ns)
        for ticket, started in self._running.tickets():
            if ticket.deadline_ns <= now_ns and not ticket.future.done():
                ticket.started_ns, ticket.finished_ns = started.started_ns, now_ns
                message = "the deadline passed while the model was running"
                self._fail(ticket, refusals.late(InferTimeout, message))
        for executor in self._running.find_stuck(now_ns):
            if self.on_stuck is not None:
                self.on_stuck(executor)
        if self._running or self.planner.queue_rows:
            self._wakeup.arm(self._earliest_ns)

    def _expire(self, ticket: Ticket, now_ns: int) -> None:
        ticket.started_ns = ticket.finished_ns = now_ns
        message = "no executor can answer before the deadline; the request was not computed"
        if ticket.alone:
            message = "its batch failed, and the deadline passes before the request can be run alone"
        self._fail(ticket, refusals.late(QueueTimeout, message))

    @staticmethod
    def _fail(ticket: Ticket, error: TailcutError) -> None:
        if not ticket.future.done():
            ticket.future.set_exception(error)

"""Drives the planner: hands batches to idle executors and every ticket its one end.

Owned by the event loop: every method is called on it. Submissions of one loop iteration are planned together, so
requests that arrived at once share a batch although nothing ever waits for a window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from time import perf_counter_ns
from typing import Protocol

from tailcut.core.batching import Planner
from tailcut.core.costs import Throughput
from tailcut.core.tensors import Arrays
from tailcut.engine.executors import Executor, InlineExecutor
from tailcut.engine.ticket import Ticket
from tailcut.engine.wakeup import NEVER_NS, Wakeup
from tailcut.errors import DeadlineExceeded, InferTimeout, NotReady, QueueTimeout, Shed, TailcutError, TooLarge


class BatchObserver(Protocol):
    """Told of every batch that ran."""

    def batch(self, rows: int, duration_ns: int) -> None: ...


class Dispatcher:
    """The one place where batches are formed for a device.

    Args:
        planner: decides; owns what waits.
        observer: told the rows and duration of every finished batch.
        clock_ns: monotonic nanoseconds.
    """

    def __init__(
        self,
        planner: Planner[Ticket],
        observer: BatchObserver,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.planner = planner
        self.throughput = Throughput()
        self._observer = observer
        self._loop = loop
        self._clock_ns = clock_ns
        self._executors: list[Executor] = []
        self._idle: list[Executor] = []
        self._running: dict[Executor, Sequence[Ticket]] = {}
        self._started_ns: dict[Executor, int] = {}
        self._stuck: set[Executor] = set()
        self._inline: InlineExecutor | None = None
        self._kick_due = False
        self._wakeup = Wakeup(loop, clock_ns, self._on_deadline)
        self._closed = False

    def add(self, executor: Executor) -> None:
        """Put an idle executor to use."""
        self._executors.append(executor)
        self._idle.append(executor)
        if isinstance(executor, InlineExecutor):
            self._inline = executor
        self._schedule_kick()

    @property
    def healthy(self) -> bool:
        """Whether at least one executor is not stuck in a batch that all its waiters have given up."""
        return len(self._stuck) < len(self._executors)

    @property
    def running_rows(self) -> int:
        """Rows that are being computed now."""
        return sum(ticket.rows for batch in self._running.values() for ticket in batch)

    def check_room(self, rows: int) -> None:
        """Refuse what could not be queued now.

        Raises:
            TooLarge: the queue could never take the rows.
            Shed: the queue cannot take the rows now.
            NotReady: the dispatcher is closed or every executor is stuck.
        """
        if self._closed or len(self._stuck) >= len(self._executors):
            raise NotReady("no executor is available", hint="retry; if it lasts, see /v2/health/ready and the log")
        if self.planner.queue_rows + rows > self.planner.max_queue_rows:
            self._shed(rows)

    def run_now(self, inputs: Arrays, rows: int, outputs: Sequence[str], deadline_ns: int) -> tuple[Arrays, int] | None:
        """Run rows at once and past the queue, where nothing waits and an inline executor is there to run them.

        With nobody to share a batch and nobody to let go first, the planner could only decide the same; this saves
        the ticket, its future and the planning, which cost a lone request more than a small model does.

        Returns:
            the outputs and the nanoseconds that the model took; None where the rows must be submitted.

        Raises:
            InferenceError: the model failed.
        """
        inline = self._inline
        if inline is None or self._closed or self.planner.queue_rows or rows > self.planner.max_rows:
            return None
        started_ns = self._clock_ns()
        if started_ns >= deadline_ns:
            return None  # the planner says so, as it does to everybody
        found = inline.run_now(inputs, rows, outputs)
        duration_ns = self._clock_ns() - started_ns
        self.throughput.observe(rows, duration_ns)
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
    ) -> list[Ticket]:
        """Queue rows for an executor.

        Args:
            at_once: plan now instead of at the end of this loop iteration, because nobody is there to share a batch.

        Returns:
            one ticket, or several in row order where ``rows`` exceeds the largest batch. Await their futures.

        Raises:
            TooLarge, Shed, NotReady: see ``check_room``; nothing was queued.
        """
        self.check_room(rows)
        planner = self.planner
        future = self._loop.create_future
        if rows <= planner.max_rows:
            tickets = [Ticket(inputs, rows, outputs, deadline_ns, lane, future())]
        else:
            tickets = [
                Ticket(
                    {name: array[at : at + planner.max_rows] for name, array in inputs.items()},
                    min(planner.max_rows, rows - at),
                    outputs,
                    deadline_ns,
                    lane,
                    future(),
                )
                for at in range(0, rows, planner.max_rows)
            ]
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

    def close(self, timeout_s: float) -> None:
        """Fail what waits, stop the executors after their running batch, at the latest after ``timeout_s``."""
        self._closed = True
        self._wakeup.cancel()
        batches, expired = self.planner.plan(-(2**62), 2**31)
        self._fail_all([*(ticket for batch in batches for ticket in batch), *expired])
        give_up_ns = perf_counter_ns() + int(timeout_s * 1e9)
        for executor in self._executors:
            executor.close(max(give_up_ns - perf_counter_ns(), 0) / 1e9)
        # Later, because the answers of batches that ended meanwhile are on their way through the loop.
        self._loop.call_soon(self._fail_running)

    def _fail_running(self) -> None:
        self._fail_all([ticket for batch in self._running.values() for ticket in batch])

    def _fail_all(self, tickets: Sequence[Ticket]) -> None:
        error = NotReady("the server is stopping", hint="send the request again, to another replica")
        for ticket in tickets:
            self._fail(ticket, error)

    def _shed(self, rows: int) -> None:
        waiting, limit = self.planner.queue_rows, self.planner.max_queue_rows
        if rows > limit:
            raise TooLarge(
                f"{rows} rows exceed the queue's limit of {limit} rows",
                hint="send fewer rows in one request, or raise batching.max_queue_rows",
            )
        wait_s = self.throughput.drain_s(waiting, len(self._executors))
        raise Shed(
            f"the queue is full: {waiting} rows wait, the limit is {limit}",
            hint="retry after Retry-After seconds; add executors or raise batching.max_queue_rows",
            retry_after_s=max(wait_s, 0.001),
        )

    def _schedule_kick(self) -> None:
        if not self._kick_due:
            self._kick_due = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kick_due = False
        if self._idle and self.planner.queue_rows:
            now_ns = self._clock_ns()
            batches, expired = self.planner.plan(now_ns, len(self._idle))
            for batch in batches:
                executor = self._idle.pop()
                self._running[executor] = batch
                self._started_ns[executor] = now_ns
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
        """Hand every ticket of a finished batch its end and take the executor back."""
        del self._running[executor]
        self._stuck.discard(executor)
        self._idle.append(executor)
        rows = 0
        for index, ticket in enumerate(batch):
            rows += ticket.rows
            ticket.started_ns = started_ns
            ticket.finished_ns = finished_ns
            if ticket.future.done():
                continue
            if isinstance(result, TailcutError):
                ticket.future.set_exception(result)
            else:
                ticket.future.set_result(result[index])
        self.throughput.observe(rows, finished_ns - started_ns)
        self._observer.batch(rows, finished_ns - started_ns)
        if self.planner.queue_rows:
            self._schedule_kick()

    @property
    def on_done(self) -> Callable[..., None]:
        """The callback to build executors with."""
        return self._on_done

    def _earliest_ns(self) -> int:
        # What has expired already and still runs was told so; there is nothing more to wake for.
        now_ns = self._clock_ns()
        deadlines = [ticket.deadline_ns for batch in self._running.values() for ticket in batch]
        waiting_ns = self.planner.next_deadline_ns()
        if waiting_ns is not None:
            deadlines.append(max(waiting_ns, now_ns + 1))
        return min([ns for ns in deadlines if ns > now_ns], default=NEVER_NS)

    def _on_deadline(self) -> None:
        now_ns = self._clock_ns()
        for ticket in self.planner.expire(now_ns):
            self._expire(ticket, now_ns)
        for executor, batch in self._running.items():
            for ticket in batch:
                if ticket.deadline_ns <= now_ns and not ticket.future.done():
                    ticket.started_ns, ticket.finished_ns = self._started_ns[executor], now_ns
                    self._fail(ticket, _late(InferTimeout, "while the model was running"))
            if all(ticket.deadline_ns <= now_ns for ticket in batch):
                self._stuck.add(executor)
        if self._running or self.planner.queue_rows:
            self._wakeup.arm(self._earliest_ns)

    def _expire(self, ticket: Ticket, now_ns: int) -> None:
        ticket.started_ns = ticket.finished_ns = now_ns
        self._fail(ticket, _late(QueueTimeout, "while the request waited for an executor; it was not computed"))

    @staticmethod
    def _fail(ticket: Ticket, error: TailcutError) -> None:
        if not ticket.future.done():
            ticket.future.set_exception(error)


def _late(kind: type[DeadlineExceeded], phase: str) -> DeadlineExceeded:
    return kind(
        f"the deadline passed {phase}",
        hint="send a longer timeout, lower the rate, or add executors; slo.timeout is the default deadline",
    )

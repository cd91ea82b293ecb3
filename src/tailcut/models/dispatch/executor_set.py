"""The executors of one dispatcher: which are idle, what the busy ones run, which are stuck, and which are to go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from tailcut.models import shed_errors
from tailcut.models.batch_item import BatchItem
from tailcut.models.executors.in_process import Executor, InlineExecutor
from tailcut.scheduler.admission import Executors
from tailcut.scheduler.latency_model import Cost, CostSource, left_ns

_STUCK_FACTOR = 10
"""A batch is stuck after this many times its predicted time, but not before ``stuck_after_s``."""


class BatchObserver(Protocol):
    """Told of every batch that ran."""

    def batch(self, rows: int, duration_ns: int) -> None: ...


class Started(NamedTuple):
    """A batch on an executor; from ``stuck_ns`` on it has run far longer than any batch should."""

    items: Sequence[BatchItem]
    rows: int
    started_ns: int
    stuck_ns: int


class Coming(NamedTuple):
    """What a pool says of its next executor while there is none.

    Attributes:
        left_s: until it is expected to be ready; None where nobody knows, because the last could not be opened.
        retry_s: after which it is worth asking again.
    """

    left_s: float | None
    retry_s: float


class ExecutorSet:
    """The executors of one dispatcher and their batches. Owned by the event loop.

    Args:
        stuck_after_s: an executor whose batch runs longer than this, and than ten times what was predicted, counts
            as stuck until the batch ends. The deadlines of those who wait for it have no say: one client's short
            time-out tells nothing about the model.
        at_once: most batches that run at a time, at least 1; None for as many as there are executors. Where models
            compute on the processor's cores, executors beyond those only take turns: batches are as late as all of them
            together, and smaller than the queue would have filled them by then.

    Attributes:
        executors: all that take batches now, busy or idle.
        idle: those of them that run nothing and may begin now; the last of them began last, and begins next.
        inline: the one that runs batches on the event loop, where there is one.
        stuck: busy ones whose batch takes far too long.
    """

    def __init__(self, stuck_after_s: float, at_once: int | None = None) -> None:
        self.executors: list[Executor] = []
        self.idle: list[Executor] = []
        self.at_once = at_once
        self._spare: list[Executor] = []
        """That run nothing, and would make more than may run at a time."""
        self.inline: InlineExecutor | None = None
        self.stuck: set[Executor] = set()
        self._stuck_after_ns = int(stuck_after_s * 1e9)
        self._started: dict[Executor, Started] = {}
        self._leaving: dict[Executor, asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._started)

    @property
    def usable(self) -> int:
        """Batches that can run at a time: executors that are neither stuck nor leaving, no more than ``at_once``."""
        found = len(self.executors) - len(self.stuck)
        return found if self.at_once is None else min(found, self.at_once)

    def join(self, executor: Executor) -> None:
        """Put an idle executor to use; before it others run what comes, whose caches are warm."""
        self.executors.append(executor)
        self.idle.insert(0, executor)
        if isinstance(executor, InlineExecutor):
            self.inline = executor
        self._limit_idle()

    def turn(self, executor: Executor) -> int:
        """Return how soon an executor would be missed: 0 for the one that would begin last, the most for busy ones."""
        resting = [*self._spare, *self.idle]
        return resting.index(executor) if executor in resting else len(self.executors)

    def leave(self, executor: Executor) -> asyncio.Future[None]:
        """Give an executor no further batch; the future is done when it runs none."""
        done = self._leaving.get(executor)
        if done is not None:
            return done
        done = asyncio.get_running_loop().create_future()
        self._forget(executor)
        if executor in self._started:
            self._leaving[executor] = done
        else:
            done.set_result(None)
        self._limit_idle()
        return done

    def lose(self, executor: Executor) -> Sequence[BatchItem]:
        """Forget an executor that is dead; return what it was running."""
        self._forget(executor)
        started = self._started.pop(executor, None)
        self._left(executor)
        self._limit_idle()
        return started.items if started is not None else ()

    def begin(self, executor: Executor, items: Sequence[BatchItem], now_ns: int, cost: Cost) -> int:
        """Note a batch; return from when on it is stuck."""
        rows = sum([item.rows for item in items])
        stuck_ns = now_ns + max(self._stuck_after_ns, int(_STUCK_FACTOR * cost.batch_ns(rows)))
        self._started[executor] = Started(items, rows, now_ns, stuck_ns)
        return stuck_ns

    def end(self, executor: Executor) -> Started | None:
        """Take an executor back whose batch has ended; None where it was lost meanwhile."""
        started = self._started.pop(executor, None)
        if started is None:
            return None
        self.stuck.discard(executor)
        if executor in self._leaving:
            self._left(executor)
        else:
            self.idle.append(executor)
        self._limit_idle()
        return started

    @property
    def rows(self) -> int:
        """Rows that are being computed."""
        return sum([started.rows for started in self._started.values()])

    def items(self) -> Iterator[tuple[BatchItem, Started]]:
        """Yield every item that is being computed, with its batch."""
        for started in self._started.values():
            for item in started.items:
                yield item, started

    def seen(self, now_ns: int, costs: CostSource, coming: Callable[[], Coming | None] | None) -> Executors:
        """Return what the executors are doing; where there is none, the next is one that is busy until it is there.

        Args:
            coming: says when the next one is ready; None where none comes.

        Raises:
            NotReady: there is none, and nobody knows when one comes.
        """
        if self.usable > 0:
            ends_ns = self.ends_ns(now_ns, costs)
            return Executors(self.usable, len(self.idle), sum(ends_ns), ends_ns)
        expected = coming() if coming is not None else None
        if expected is None or expected.left_s is None:
            raise shed_errors.unavailable(expected.retry_s if expected is not None else 0.0)
        return Executors(0, 0, expected.left_s * 1e9)

    def ends_ns(self, now_ns: int, costs: CostSource) -> list[float]:
        """Return what each running batch still takes, ascending; those that are stuck or leave are not counted on."""
        return sorted(
            [
                left_ns(now_ns - started.started_ns, started.rows, costs.of(started.items[0].kind))
                for executor, started in self._started.items()
                if executor not in self.stuck and executor not in self._leaving
            ]
        )

    def find_stuck(self, now_ns: int) -> list[Executor]:
        """Look which executors are stuck; return those that were not before."""
        found = [
            executor
            for executor, started in self._started.items()
            if started.stuck_ns <= now_ns and self._may_stick(executor)
        ]
        self.stuck.update(found)
        self._limit_idle()
        return found

    def moments_ns(self) -> list[int]:
        """Return when what has not happened yet is due, even where that has passed: nobody may have looked since."""
        moments = [started.stuck_ns for executor, started in self._started.items() if self._may_stick(executor)]
        return moments + [item.deadline_ns for item, _ in self.items() if not item.future.done()]

    def _may_stick(self, executor: Executor) -> bool:
        return executor not in self.stuck and executor not in self._leaving

    def _forget(self, executor: Executor) -> None:
        self.stuck.discard(executor)
        if executor in self.executors:
            self.executors.remove(executor)
        for waiting in (self.idle, self._spare):
            if executor in waiting:
                waiting.remove(executor)
        if executor is self.inline:
            self.inline = None

    def _limit_idle(self) -> None:
        """Keep as many executors idle as may begin a batch; executors that are stuck or leaving do not count."""
        if self.at_once is None:
            return
        room = max(self.at_once - sum([self._may_stick(executor) for executor in self._started]), 0)
        while len(self.idle) > room:
            self._spare.append(self.idle.pop(0))  # the one that ended last stays: its caches are warm
        while len(self.idle) < room and self._spare:
            self.idle.append(self._spare.pop())

    def _left(self, executor: Executor) -> None:
        done = self._leaving.pop(executor, None)
        if done is not None and not done.done():
            done.set_result(None)

"""What runs now: the batch of every busy executor, how long it still takes, and which executors are stuck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tailcut.core.costs import Cost
from tailcut.engine.executors import Executor
from tailcut.engine.ticket import Ticket

_STUCK_FACTOR = 10
"""A batch is stuck after this many times its predicted time, but not before ``stuck_after_s``."""


class Started(NamedTuple):
    """A batch on an executor; from ``stuck_ns`` on it has run far longer than any batch should."""

    tickets: Sequence[Ticket]
    rows: int
    started_ns: int
    stuck_ns: int


class Running:
    """The busy executors of one dispatcher.

    Args:
        stuck_after_s: an executor whose batch runs longer than this, and than ten times what was predicted, counts
            as stuck until the batch ends. The deadlines of those who wait for it have no say: one client's short
            time-out tells nothing about the model.
    """

    def __init__(self, stuck_after_s: float) -> None:
        self.stuck: set[Executor] = set()
        self._stuck_after_ns = int(stuck_after_s * 1e9)
        self._started: dict[Executor, Started] = {}

    def __bool__(self) -> bool:
        return bool(self._started)

    def begin(self, executor: Executor, tickets: Sequence[Ticket], now_ns: int, cost: Cost) -> int:
        """Note a batch; return from when on it is stuck."""
        rows = sum([ticket.rows for ticket in tickets])
        stuck_ns = now_ns + max(self._stuck_after_ns, int(_STUCK_FACTOR * cost.batch_ns(rows)))
        self._started[executor] = Started(tickets, rows, now_ns, stuck_ns)
        return stuck_ns

    def end(self, executor: Executor) -> int:
        """Forget a batch that has ended; return its rows."""
        self.stuck.discard(executor)
        return self._started.pop(executor).rows

    @property
    def rows(self) -> int:
        """Rows that are being computed."""
        return sum([started.rows for started in self._started.values()])

    def tickets(self) -> Iterator[tuple[Ticket, Started]]:
        """Yield every ticket that is being computed, with its batch."""
        for started in self._started.values():
            for ticket in started.tickets:
                yield ticket, started

    def left_ns(self, now_ns: int, cost: Cost) -> float:
        """Return what the running batches still take, summed; stuck ones are not counted on."""
        return sum(
            [
                max(started.started_ns + cost.batch_ns(started.rows) - now_ns, 0.0)
                for executor, started in self._started.items()
                if executor not in self.stuck
            ]
        )

    def find_stuck(self, now_ns: int) -> None:
        """Look which executors are stuck."""
        self.stuck.update(executor for executor, started in self._started.items() if started.stuck_ns <= now_ns)

    def moments_ns(self) -> list[int]:
        """Return when something is due: deadlines, and when a batch becomes stuck."""
        moments = [started.stuck_ns for started in self._started.values()]
        return moments + [ticket.deadline_ns for ticket, _ in self.tickets()]

"""Tasks that share cores: each has a core of its own or, where there are too few, all have the same part of them."""

from __future__ import annotations

from heapq import heappop, heappush
from math import ulp

_NEAR_NS = 0.01
"""What has so little left is done."""


class ProcessorSharing:
    """Tasks on some cores, on a clock of the caller's own.

    All running tasks advance alike, so one counter of work done by each since the start says when any ends. Source:
    the fluid model of processor sharing, L. Kleinrock, Queueing Systems vol. 2 (1976), section 4.4.

    Args:
        cores: that the tasks share with the work that comes first (the interpreter's); 0: every task has its own.
    """

    def __init__(self, cores: float = 0.0) -> None:
        self._cores = cores
        self._done_ns = 0.0
        self._seen_ns = self._first_ns = 0.0
        self._tasks: list[tuple[float, int, int]] = []
        self._count = 0

    def start(self, now_ns: float, first_ns: float, work_ns: float, task: int) -> None:
        """Begin a task.

        Args:
            first_ns: time that the work that comes first has had of the cores so far.
            work_ns: what the task takes with a core of its own.
        """
        self._advance(now_ns, first_ns)
        self._count += 1
        heappush(self._tasks, (self._done_ns + work_ns, self._count, task))

    def finished(self, now_ns: float, first_ns: float) -> list[int]:
        """Take out the tasks that have ended, in their order."""
        if not self._tasks:
            self._seen_ns, self._first_ns = now_ns, first_ns
            return []
        self._advance(now_ns, first_ns)
        found = []
        while self._tasks and self._tasks[0][0] <= self._done_ns + self._near_ns():
            found.append(heappop(self._tasks)[2])
        return found

    def next_ns(self) -> float | None:
        """Return when the next task ends if the work that comes first rests until then; None where none runs."""
        if not self._tasks:
            return None
        speed = min(1.0, self._cores / len(self._tasks)) if self._cores else 1.0
        return self._seen_ns + max(self._tasks[0][0] - self._done_ns, self._near_ns() / 2) / speed

    def _near_ns(self) -> float:
        # After a day the clock's own rounding is coarser than the constant: a shorter step would not move it.
        return max(_NEAR_NS, 2 * ulp(self._seen_ns))

    def _advance(self, now_ns: float, first_ns: float) -> None:
        elapsed_ns = now_ns - self._seen_ns
        taken_ns = first_ns - self._first_ns
        self._seen_ns, self._first_ns = now_ns, first_ns
        if self._tasks:
            if self._cores:
                elapsed_ns = min(elapsed_ns, (self._cores * elapsed_ns - taken_ns) / len(self._tasks))
            self._done_ns += max(elapsed_ns, 0.0)

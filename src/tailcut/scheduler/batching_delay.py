"""Whether requests wait for company although an executor is idle: never, by a fixed rule, or where it is a gain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tailcut.scheduler.cost import BatchCost
from tailcut.scheduler.request_queue import E, Heap, Item

_MS = 1_000_000
_OFFSETS_NS = tuple([(1 << power) * _MS for power in range(6)])
"""Windows that are considered: 1 to 32 ms. Shorter ones are below what an event loop's timers can do."""

_FORGETTING = 0.1
"""Weight of the newest start from idle: about the last twenty count."""

_PROVEN = 10
"""Starts from idle that were seen before any request waits."""

_CLEARLY = 1.1
"""Waiting must save those who come so many times what it costs those who wait, or it is not worth what it risks."""


class Window(ABC):
    """Decides whether a lane may wait for more rows although an executor is idle."""

    @abstractmethod
    def until_ns(self, now_ns: int, heap: Heap[E], cost: BatchCost, max_rows: int, idle: int) -> int:
        """Return when a batch of the lane should start at the latest; ``now_ns`` or earlier for at once.

        Args:
            idle: executors, where all of them are; 0 while one runs.
        """

    def rows(self, rows: int) -> int:
        """Return how many of ``rows`` to put into a batch that starts now."""
        return rows

    def started(self, entries: Iterable[E]) -> None:  # noqa: B027  (not every rule learns)
        """Record the start of a batch."""


class Fixed(Window):
    """The rule that people know from Triton: a preferred size at once, else whatever came within a delay.

    A batch starts as soon as it has ``max_rows``; or one of the preferred sizes can be formed, of which the largest is;
    or its oldest request has waited for the delay. Beyond that rule it starts where a longer wait would make a request
    in it miss what it is due at: the SLO's target, or its deadline where it is late already.

    Args:
        delay_ns: longest wait for company.
        preferred: numbers of rows.
    """

    def __init__(self, delay_ns: int, preferred: Sequence[int] = ()) -> None:
        self._delay_ns = delay_ns
        self._preferred = tuple(sorted(preferred, reverse=True))

    def until_ns(self, now_ns: int, heap: Heap[E], cost: BatchCost, max_rows: int, idle: int) -> int:
        """See ``Window``."""
        waiting = [item for item in heap if item[3].waiting]
        rows = sum([item[3].rows for item in waiting])
        if rows >= max_rows or not waiting or (self._preferred and rows >= self._preferred[-1]):
            return now_ns
        oldest_ns = min([item[3].arrived_ns for item in waiting])
        return min(oldest_ns + self._delay_ns, _safe_ns(waiting, cost.late_ns(rows)))

    def rows(self, rows: int) -> int:
        """See ``Window``."""
        return next((size for size in self._preferred if size <= rows), rows)


class Gain(Window):
    """Waits where that is predicted to lower the summed latency of those who wait and of those who come meanwhile.

    Whoever comes just after a batch has begun waits for all of it; where requests come in clumps (one page that asks
    thirty questions), or fast beside what a batch of one takes, a short wait serves all of them in one batch. How many
    rows come within 1, 2, 4, ... ms after the first one is learned from the starts from idle. With k rows here and n
    more expected within w:

        at once  k T(k) + n (T(k) + T(n))    against    waiting  (k + n) (w + T(k + n))

    on one executor; where others are idle too, the next ones start on those at once.

    For requests that come one by one n is 0, and nobody waits. With random arrivals at rate r and T(n) = b + a n
    waiting gains only if r (b - a) > 1 + r w: where more than one comes during what a batch costs at least. (When it
    is optimal to hold a batch server back: Deb and Serfozo, "Optimal control of batch service queues", 1973.)

    Args:
        limit_ns: the p95 target: nobody waits where the whole is not predicted to stay within it.
    """

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns
        self._came = [0.0] * len(_OFFSETS_NS)
        self._counts = [0] * len(_OFFSETS_NS)
        self._begun_ns = 0
        self._starts = 0
        self._open = False

    def until_ns(self, now_ns: int, heap: Heap[E], cost: BatchCost, max_rows: int, idle: int) -> int:
        """See ``Window``."""
        if not idle or cost.batch_ns(max_rows) <= _MS:
            return now_ns  # what comes meanwhile finds company in any case, or waits for less than a window
        waiting = [item for item in heap if item[3].waiting]
        if not waiting:
            return now_ns
        oldest_ns = min([item[3].arrived_ns for item in waiting])
        if not self._open or oldest_ns != self._begun_ns:
            if now_ns - oldest_ns > _MS:
                return now_ns  # it came while a batch ran
            if self._open:
                self._learn()
            self._open = True
            self._begun_ns = oldest_ns
        rows = sum([item[3].rows for item in waiting])
        if self._starts < _PROVEN or self._came[-1] < 1.0 or rows >= max_rows or cost.batch_ns(rows) <= _MS:
            return now_ns
        return self._best_ns(now_ns, waiting, rows, cost, max_rows, idle)

    def started(self, entries: Iterable[E]) -> None:
        """See ``Window``."""
        if self._open:
            for entry in entries:
                offset_ns = entry.arrived_ns - self._begun_ns
                if 0 < offset_ns <= _OFFSETS_NS[-1]:
                    for at, limit_ns in enumerate(_OFFSETS_NS):
                        self._counts[at] += entry.rows if offset_ns <= limit_ns else 0

    def _learn(self) -> None:
        self._starts += 1
        weight = max(_FORGETTING, 1.0 / self._starts)
        self._came = [mean + weight * (count - mean) for mean, count in zip(self._came, self._counts, strict=True)]
        self._counts = [0] * len(_OFFSETS_NS)

    def _best_ns(
        self, now_ns: int, waiting: list[Item[E]], rows: int, cost: BatchCost, max_rows: int, idle: int
    ) -> int:
        """Return the end of the window that gains most; ``now_ns`` where none gains."""
        passed_ns = now_ns - self._begun_ns
        here = max([at for at, offset_ns in enumerate(_OFFSETS_NS) if offset_ns <= passed_ns], default=-1)
        before_ns, before = (_OFFSETS_NS[here], self._came[here]) if here >= 0 else (0, 0.0)
        after_ns, after = (
            _OFFSETS_NS[min(here + 1, len(_OFFSETS_NS) - 1)],
            self._came[min(here + 1, len(self._came) - 1)],
        )
        part = (passed_ns - before_ns) / (after_ns - before_ns) if after_ns > before_ns else 1.0
        already = max(before + (after - before) * min(part, 1.0), rows - waiting[0][3].rows)
        best_ns, most_ns = now_ns, 0.0
        alone_ns, lone_ns = cost.batch_ns(rows), cost.batch_ns(1)
        for offset_ns, came in zip(_OFFSETS_NS[here + 1 :], self._came[here + 1 :], strict=True):
            more = min(came - already, max_rows - rows)
            if more <= 0.0:
                continue
            until_ns = self._begun_ns + offset_ns
            together_ns = cost.batch_ns(rows + more)
            late_ns = together_ns + cost.spread_ns(together_ns)
            if until_ns + late_ns - self._begun_ns > self._limit_ns or until_ns > _safe_ns(waiting, late_ns):
                break
            first = min(more, idle - 1)
            behind = more - first
            apart_ns = first * lone_ns + behind * (alone_ns / idle + cost.batch_ns(behind / idle))
            later_ns = until_ns - now_ns + together_ns
            costs_ns, saves_ns = rows * (later_ns - alone_ns), apart_ns - more * later_ns
            if saves_ns > _CLEARLY * costs_ns and saves_ns - costs_ns > most_ns:
                best_ns, most_ns = until_ns, saves_ns - costs_ns
        return best_ns


def _safe_ns(waiting: list[Item[E]], batch_ns: float) -> int:
    """Return until when a batch may start that is in time for all of them."""
    return min([item[1] for item in waiting]) - int(batch_ns) - 1

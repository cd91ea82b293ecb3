"""The planner: which waiting requests run next, together, on which idle executor. A state machine without I/O.

Rules, in order:
1. An entry whose deadline has passed, or would pass before a batch of it alone ended, is never computed; it is handed
   back as expired.
2. Entries of different lanes never share a batch (a lane is everything that must match: shapes, requested outputs).
3. Higher priority first, then the earliest deadline, then arrival order.
4. Work-conserving: while an executor is idle and an entry that can be in time waits, a batch starts; no window is ever
   waited for.
5. A batch holds at most ``max_rows`` rows; an entry is never split here (the dispatcher splits before it offers).
6. A batch ends before the tightest deadline in it. Where it would not, it is cut, if those left behind can still run
   after it in time; else the tightest are given up where more rows are in time without them, because batches cut
   short under load cost more requests than they save (early drop: Shen et al., "Nexus", SOSP 2019, section 4.3).

Every entry that was accepted leaves exactly once: in a batch, as expired, or by ``cancel``.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from tailcut.core.costs import FREE, Cost


class Entry:
    """One waiting request, or one part of a request that was split.

    Args:
        rows: how many rows it brings (a client's pre-batch of n rows counts as n).
        deadline_ns: when its answer is due.
        lane: entries with equal lanes may share a batch.
        priority: larger runs first.
    """

    __slots__ = ("deadline_ns", "lane", "priority", "rows", "waiting")

    def __init__(self, rows: int, deadline_ns: int, lane: Hashable = None, priority: int = 0) -> None:
        self.rows = rows
        self.deadline_ns = deadline_ns
        self.lane = lane
        self.priority = priority
        self.waiting = False


E = TypeVar("E", bound=Entry)
_Item = tuple[int, int, int, E]
_Heap = list[_Item[E]]


def _in_time(entry: Entry, now_ns: int, cost: Cost) -> bool:
    """Whether a batch of the entry alone, started now, would end before its deadline."""
    return now_ns + cost.batch_ns(entry.rows) < entry.deadline_ns


class Plan(NamedTuple, Generic[E]):
    """What to do now.

    Attributes:
        batches: start each on an idle executor; at most as many as were idle.
        expired: answer each with a queue timeout.
    """

    batches: list[list[E]]
    expired: list[E]


class Planner(Generic[E]):
    """Holds what waits and decides what runs.

    Args:
        max_rows: most rows in one batch.
        max_queue_rows: most rows that may wait.
        merge: whether entries share batches at all.
    """

    def __init__(self, *, max_rows: int, max_queue_rows: int, merge: bool = True) -> None:
        self.max_rows = max_rows
        self.max_queue_rows = max_queue_rows
        self.merge = merge
        self.queue_rows = 0
        self._entries = 0
        self._latest_ns = 0
        self._lanes: dict[Hashable, _Heap[E]] = {}
        self._sequence = 0

    def offer(self, entry: E, *, again: bool = False) -> bool:
        """Accept an entry into the queue, or return False where it would exceed ``max_queue_rows``.

        Args:
            again: it was accepted before and its batch failed, so there is a place for it whatever waits now.
        """
        if not again and self.queue_rows + entry.rows > self.max_queue_rows:
            return False
        entry.waiting = True
        self.queue_rows += entry.rows
        self._entries += 1
        self._latest_ns = max(self._latest_ns, entry.deadline_ns)
        self._sequence += 1
        item = (-entry.priority, entry.deadline_ns, self._sequence, entry)
        heap = self._lanes.get(entry.lane)
        if heap is None:
            self._lanes[entry.lane] = [item]
        else:
            heappush(heap, item)
        return True

    def cancel(self, entry: E) -> bool:
        """Take a waiting entry out (its client is gone); False where it was not waiting any more."""
        if not entry.waiting:
            return False
        self._leave(entry)
        return True

    @property
    def batch_rows(self) -> float:
        """Rows of a full batch, as far as what waits tells."""
        if self.merge:
            return self.max_rows
        return self.queue_rows / self._entries if self._entries else 1.0

    def rows_before(self, deadline_ns: int) -> int:
        """Return how many waiting rows are due no later than ``deadline_ns``: those that would run first."""
        if deadline_ns >= self._latest_ns:
            return self.queue_rows
        waiting = [item[3] for heap in self._lanes.values() for item in heap if item[3].waiting]
        return sum([entry.rows for entry in waiting if entry.deadline_ns <= deadline_ns])

    def plan(self, now_ns: int, idle: int, cost: Cost = FREE, *, probe: bool = False) -> Plan[E]:
        """Fill up to ``idle`` batches from what waits at ``now_ns``.

        Args:
            cost: how long a batch is predicted to take.
            probe: nothing runs. Where no batch is predicted to be in time, the entry with the most time left runs all
                the same: a prediction that is too high is only ever corrected by a batch that runs.
        """
        batches: list[list[E]] = []
        expired: list[E] = []
        while idle > len(batches) and self._lanes:
            if len(self._lanes) > 1:
                # An expired or cancelled head would make its lane look more urgent than it is.
                for lane in list(self._lanes):
                    self._prune(lane, now_ns, cost, expired)
                if not self._lanes:
                    break
            batch = self._fill(self._most_urgent_lane(), now_ns, cost, idle - len(batches) > 1, expired)
            if batch:
                batches.append(batch)
        if probe and not batches and expired:
            longest = max(expired, key=lambda entry: entry.deadline_ns)
            if longest.deadline_ns > now_ns:
                expired.remove(longest)
                batches.append([longest])
        return Plan(batches, expired)

    def expire(self, now_ns: int) -> list[E]:
        """Take out every waiting entry whose deadline has passed, also while no executor is idle."""
        expired: list[E] = []
        for lane, heap in list(self._lanes.items()):
            # Priorities keep the heap from being ordered by deadline alone, so all of it is looked at.
            kept = [item for item in heap if item[3].waiting and item[1] > now_ns]
            if len(kept) == len(heap):
                continue
            for item in heap:
                if item[3].waiting and item[1] <= now_ns:
                    self._leave(item[3])
                    expired.append(item[3])
            if kept:
                kept.sort()  # a sorted list is a heap
                self._lanes[lane] = kept
            else:
                del self._lanes[lane]
        return expired

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of what waits, or None where nothing does."""
        deadlines = [item[1] for heap in self._lanes.values() for item in heap if item[3].waiting]
        return min(deadlines, default=None)

    def _most_urgent_lane(self) -> Hashable:
        lanes = self._lanes
        if len(lanes) == 1:
            return next(iter(lanes))
        return min(lanes, key=lambda lane: lanes[lane][0][:3])

    def _prune(self, lane: Hashable, now_ns: int, cost: Cost, expired: list[E]) -> None:
        """Drop the heads of ``lane`` that will not run; the lane is gone when nothing is left."""
        heap = self._lanes[lane]
        while heap:
            entry = heap[0][3]
            if entry.waiting:
                if _in_time(entry, now_ns, cost):
                    return
                self._give_up(entry, expired)
            heappop(heap)
        del self._lanes[lane]

    def _fill(self, lane: Hashable, now_ns: int, cost: Cost, more_idle: bool, expired: list[E]) -> list[E]:
        """Take one batch out of ``lane``.

        Args:
            more_idle: whether what is left behind can start at once on another executor.
        """
        heap = self._lanes[lane]
        taken: list[_Item[E]] = []
        while True:
            rows = self._take(heap, taken, now_ns, cost, expired)
            end_ns = now_ns + cost.batch_ns(rows)
            if not taken or end_ns < min([item[1] for item in taken]):
                break
            count, cut_rows = _longest_in_time(taken, now_ns, cost)
            left = taken[count:]
            start_ns = now_ns if more_idle else now_ns + cost.batch_ns(cut_rows)
            in_time = start_ns + cost.batch_ns(rows - cut_rows) < min([item[1] for item in left])
            if in_time or sum([item[3].rows for item in taken if item[1] > end_ns]) <= cut_rows:
                del taken[count:]
                for item in left:
                    heappush(heap, item)
                break
            for item in taken:
                if item[1] <= end_ns:
                    self._give_up(item[3], expired)
            taken = [item for item in taken if item[1] > end_ns]
        for item in taken:
            self._leave(item[3])
        if not heap:
            del self._lanes[lane]
        return [item[3] for item in taken]

    def _take(self, heap: _Heap[E], taken: list[_Item[E]], now_ns: int, cost: Cost, expired: list[E]) -> int:
        """Move heads from ``heap`` to ``taken`` until it is full; return the rows of ``taken``."""
        rows = sum([item[3].rows for item in taken])
        while heap:
            entry = heap[0][3]
            if entry.waiting:
                if not _in_time(entry, now_ns, cost):
                    self._give_up(entry, expired)
                elif taken and (rows + entry.rows > self.max_rows or not self.merge):
                    break
                else:
                    taken.append(heap[0])
                    rows += entry.rows
            heappop(heap)
        return rows

    def _give_up(self, entry: E, expired: list[E]) -> None:
        self._leave(entry)
        expired.append(entry)

    def _leave(self, entry: E) -> None:
        entry.waiting = False
        self.queue_rows -= entry.rows
        self._entries -= 1


def _longest_in_time(items: _Heap[E], now_ns: int, cost: Cost) -> tuple[int, int]:
    """Return how many of ``items``, from the first on, can share a batch that is in time for all, and their rows."""
    rows, tightest_ns = 0, items[0][1]
    for count, (_, deadline_ns, _, entry) in enumerate(items):
        tightest_ns = min(tightest_ns, deadline_ns)
        if now_ns + cost.batch_ns(rows + entry.rows) >= tightest_ns:
            return count, rows
        rows += entry.rows
    return len(items), rows

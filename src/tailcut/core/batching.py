"""The planner: which waiting requests run next, together, on which idle executor. A state machine without I/O.

Rules, in order:
1. An entry whose deadline has passed is never computed; it is handed back as expired.
2. Entries of different lanes never share a batch (a lane is everything that must match: shapes, requested outputs).
3. Higher priority first, then the earliest deadline, then arrival order.
4. Work-conserving: while an executor is idle and an entry waits, a batch starts; no window is ever waited for.
5. A batch holds at most ``max_rows`` rows; an entry is never split here (the dispatcher splits before it offers).

Every entry that was accepted leaves exactly once: in a batch, as expired, or by ``cancel``.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar


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
_Heap = list[tuple[int, int, int, E]]


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
        self._lanes: dict[Hashable, _Heap[E]] = {}
        self._sequence = 0

    def offer(self, entry: E) -> bool:
        """Accept an entry into the queue, or return False where it would exceed ``max_queue_rows``."""
        if self.queue_rows + entry.rows > self.max_queue_rows:
            return False
        entry.waiting = True
        self.queue_rows += entry.rows
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
        entry.waiting = False
        self.queue_rows -= entry.rows
        return True

    def plan(self, now_ns: int, idle: int) -> Plan[E]:
        """Fill up to ``idle`` batches from what waits at ``now_ns``."""
        batches: list[list[E]] = []
        expired: list[E] = []
        while idle > len(batches) and self._lanes:
            if len(self._lanes) > 1:
                # An expired or cancelled head would make its lane look more urgent than it is.
                for lane in list(self._lanes):
                    self._prune(lane, now_ns, expired)
                if not self._lanes:
                    break
            batch = self._fill(self._most_urgent_lane(), now_ns, expired)
            if batch:
                batches.append(batch)
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

    def _prune(self, lane: Hashable, now_ns: int, expired: list[E]) -> None:
        """Drop the heads of ``lane`` that will not run; the lane is gone when nothing is left."""
        heap = self._lanes[lane]
        while heap:
            _, deadline_ns, _, entry = heap[0]
            if entry.waiting:
                if deadline_ns > now_ns:
                    return
                expired.append(entry)
                self._leave(entry)
            heappop(heap)
        del self._lanes[lane]

    def _fill(self, lane: Hashable, now_ns: int, expired: list[E]) -> list[E]:
        heap = self._lanes[lane]
        batch: list[E] = []
        room = self.max_rows
        while heap:
            _, deadline_ns, _, entry = heap[0]
            if entry.waiting:
                if deadline_ns <= now_ns:
                    expired.append(entry)
                elif batch and (entry.rows > room or not self.merge):
                    break
                else:
                    batch.append(entry)
                    room -= entry.rows
                self._leave(entry)
            heappop(heap)
        if not heap:
            del self._lanes[lane]
        return batch

    def _leave(self, entry: E) -> None:
        entry.waiting = False
        self.queue_rows -= entry.rows

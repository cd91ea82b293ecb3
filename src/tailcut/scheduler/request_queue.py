"""What waits for an executor: entries in lanes, each lane a heap by urgency, with the sums that decisions need.

An entry is on time, or late: past the moment by which the SLO wants its answer, but before its deadline.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from operator import itemgetter
from typing import Generic, TypeVar

DEFAULT_LEVEL = 2
"""Level of an entry that brings no priority: 1 is more urgent, 3 and above are less."""

_GRAIN = 23
"""Deadlines are summed up in grains of 2^23 ns (8 ms)."""


class QueueEntry:
    """One waiting request, or one part of a request that was split.

    Args:
        rows: how many rows it brings (a client's pre-batch of n rows counts as n).
        deadline_ns: when its answer is due.
        target_ns: when the SLO wants it; at most ``deadline_ns``, which it is where 0 is given.
        lane: entries with equal lanes may share a batch.
        priority: as clients send it: 1 runs first; 0 is the default, ``DEFAULT_LEVEL``.
        arrived_ns: when it came.
        size_bytes: of its tensors.
        tenant: whose it is.
        kind: which cost model its rows follow (see ``scheduler.cost.kind_of``); one for all entries of a lane.
    """

    __slots__ = (
        "arrived_ns",
        "deadline_ns",
        "kind",
        "lane",
        "late",
        "level",
        "rows",
        "size_bytes",
        "target_ns",
        "tenant",
        "waiting",
    )

    def __init__(
        self,
        rows: int,
        deadline_ns: int,
        lane: Hashable = None,
        priority: int = 0,
        *,
        arrived_ns: int = 0,
        size_bytes: int = 0,
        tenant: str = "",
        kind: int = 0,
        target_ns: int = 0,
    ) -> None:
        self.rows = rows
        self.deadline_ns = deadline_ns
        self.target_ns = target_ns or deadline_ns
        self.lane = lane
        self.level = priority or DEFAULT_LEVEL
        self.arrived_ns = arrived_ns
        self.size_bytes = size_bytes
        self.tenant = tenant
        self.kind = kind
        self.waiting = False
        self.late = False


E = TypeVar("E", bound=QueueEntry)
K = TypeVar("K", int, str)
Item = tuple[int, int, int, E]
"""Level, when it is due, number of arrival, entry: what is smaller is more urgent."""

Heap = list[Item[E]]
Lanes = dict[Hashable, Heap[E]]


class RequestQueue(Generic[E]):
    """The queue. An entry that is cancelled stays in its heap, marked, until it comes to the top.

    Attributes:
        rows, entries, size_bytes: of all that waits.
        lanes: lane -> heap by target, of what is on time; none is empty.
        late: lane -> heap by deadline, of what is late; none is empty.
        late_entries, late_rows: how many are late.
        kinds: rows by kind.
        tenants: rows by tenant, where a tenant is named.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.entries = 0
        self.size_bytes = 0
        self.lanes: Lanes[E] = {}
        self.late: Lanes[E] = {}
        self.late_entries = 0
        self.late_rows = 0
        self.kinds: dict[int, int] = {}
        self.tenants: dict[str, int] = {}
        self._demand: dict[int, dict[int, int]] = {}
        self._latest: dict[int, int] = {}
        self._sequence = 0

    def add(self, entry: E) -> None:
        """Let an entry wait."""
        entry.waiting = True
        entry.late = False
        rows, level, deadline_ns = entry.rows, entry.level, entry.deadline_ns
        self.rows += rows
        self.entries += 1
        self.size_bytes += entry.size_bytes
        grain = deadline_ns >> _GRAIN
        demand = self._demand.get(level)
        if demand is None:
            self._demand[level] = {grain: rows}
            self._latest[level] = deadline_ns
        else:
            demand[grain] = demand.get(grain, 0) + rows
            self._latest[level] = max(self._latest[level], deadline_ns)
        if entry.kind or entry.tenant:
            self._count(entry, rows)
        self._sequence += 1
        item = (level, entry.target_ns, self._sequence, entry)
        heap = self.lanes.get(entry.lane)
        if heap is None:
            self.lanes[entry.lane] = [item]
        else:
            heappush(heap, item)

    def in_lane(self, lane: Hashable) -> Heap[E]:
        """Return all that waits in a lane, in no order: what is late waits for company together with the others."""
        late = self.late.get(lane)
        if late is None:
            return self.lanes[lane]
        return self.lanes.get(lane, []) + late

    def delay(self, entry: E) -> None:
        """Let an entry that was taken from its heap wait on as a late one."""
        entry.late = True
        self.late_entries += 1
        self.late_rows += entry.rows
        self._sequence += 1
        heappush(self.late.setdefault(entry.lane, []), (entry.level, entry.deadline_ns, self._sequence, entry))

    def leave(self, entry: E) -> None:
        """Mark an entry as gone; whoever took it from its heap calls this, or it is taken out later."""
        entry.waiting = False
        rows, level = entry.rows, entry.level
        if entry.late:
            self.late_entries -= 1
            self.late_rows -= rows
        self.rows -= rows
        self.entries -= 1
        self.size_bytes -= entry.size_bytes
        demand, grain = self._demand[level], entry.deadline_ns >> _GRAIN
        if demand[grain] != rows:
            demand[grain] -= rows
        else:
            del demand[grain]
            if not demand:
                del self._demand[level], self._latest[level]
        if entry.kind or entry.tenant:
            self._count(entry, -rows)

    def expire(self, now_ns: int) -> list[E]:
        """Take out every entry whose deadline has passed."""
        expired: list[E] = []
        for lanes in (self.lanes, self.late) if self.late else (self.lanes,):
            for lane, heap in list(lanes.items()):
                # Levels keep the heap from being ordered by deadline alone, so all of it is looked at.
                kept = [item for item in heap if item[3].waiting and item[3].deadline_ns > now_ns]
                if len(kept) == len(heap):
                    continue
                for item in heap:
                    if item[3].waiting and item[3].deadline_ns <= now_ns:
                        self.leave(item[3])
                        expired.append(item[3])
                if kept:
                    kept.sort()  # a sorted list is a heap
                    lanes[lane] = kept
                else:
                    del lanes[lane]
        return expired

    def prune(self) -> None:
        """Take out what has left and come to the top, so that each lane's first entry is one that waits."""
        for lanes in (self.lanes, self.late):
            for lane in [lane for lane, heap in lanes.items() if not heap[0][3].waiting]:
                heap = lanes[lane]
                while heap and not heap[0][3].waiting:
                    heappop(heap)
                if not heap:
                    del lanes[lane]

    @property
    def urgent_ns(self) -> int:
        """When the first of what waits should be answered: by its target, or its deadline where it is late already."""
        return min([heap[0][1] for heap in self._heaps()], default=0)

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of what waits, or None where nothing does."""
        return min(
            [item[3].deadline_ns for heap in self._heaps() for item in heap if item[3].waiting],
            default=None,
        )

    def soonest_late(self) -> Iterator[E]:
        """Yield the late entries, the earliest deadline first; nothing may come or go meanwhile."""
        heaps = list(self.late.values())
        first: Item[E] | None = None
        if heaps and len(self._demand) == 1:
            # Of one level, so that the first is known before anything is sorted; mostly no more is asked for.
            first = min([heap[0] for heap in heaps])
            if first[3].waiting:
                yield first[3]
        if first is not None and len(heaps) == 1:
            [found] = heaps
            found.sort()  # a sorted list is a heap; next time it is sorted but for what came since
        else:
            found = sorted([item for heap in heaps for item in heap], key=itemgetter(1, 2))
        for item in found:
            if item is not first and item[3].waiting:
                yield item[3]

    def _heaps(self) -> Iterator[Heap[E]]:
        yield from self.lanes.values()
        yield from self.late.values()

    def rows_before(self, level: int, deadline_ns: int) -> int:
        """Return how many rows run before an entry of this level and deadline that comes now (to a grain)."""
        if len(self._demand) == 1 and level in self._demand and deadline_ns >= self._latest[level]:
            return self.rows
        grain = deadline_ns >> _GRAIN
        found = 0
        for other, demand in self._demand.items():
            if other < level:
                found += sum(demand.values())
            elif other == level:
                found += sum([rows for at, rows in demand.items() if at <= grain])
        return found

    def is_all_of(self, level: int) -> bool:
        """Whether all that waits is of this level."""
        return not self._demand or (len(self._demand) == 1 and level in self._demand)

    def later(self, level: int, deadline_ns: int) -> Iterator[tuple[int, int]]:
        """Yield (deadline, rows) of what an entry of this level and deadline would go before, soonest first."""
        demand = self._demand.get(level)
        if demand is None or deadline_ns >= self._latest[level]:
            return
        grain = deadline_ns >> _GRAIN
        for at in sorted([at for at in demand if at > grain]):
            yield at << _GRAIN, demand[at]

    def _count(self, entry: E, rows: int) -> None:
        if entry.kind:
            _add(self.kinds, entry.kind, rows)
        if entry.tenant:
            _add(self.tenants, entry.tenant, rows)


def _add(sums: dict[K, int], key: K, rows: int) -> None:
    found = sums.get(key, 0) + rows
    if found:
        sums[key] = found
    else:
        del sums[key]

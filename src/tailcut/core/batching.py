"""The planner: which waiting requests run next, together, on which idle executor. A state machine without I/O.

Rules, in order:
1. An entry whose deadline has passed, or is expected to pass before a batch of it alone ended, is never computed; it is
   handed back as expired.
2. Entries of different lanes never share a batch (a lane is everything that must match: shapes, requested outputs).
3. Higher priority first, then the earliest deadline, then arrival order.
4. Work-conserving: while an executor is idle and an entry that can be in time waits, a batch starts; unless the window
   says that waiting is a gain for those who wait and endangers no deadline (see ``core.windows``).
5. A batch holds at most ``max_rows`` rows, and fewer where more would make each row clearly dearer (a prepared batch
   size that would be mostly padding); an entry is never split here (the dispatcher splits before it offers).
6. A batch ends before the tightest deadline in it, even if it takes as long as one in twenty does. Where it would not,
   it is cut, if those left behind can still run after it in time; else the tightest are given up where more rows are in
   time without them, because batches cut short under load cost more requests than they save (early drop: Shen et al.,
   "Nexus", SOSP 2019, section 4.3). Where more waits than fits, a cut must not take the time of more rows than
   it saves. For an entry that is only in time if all goes as expected, that has to do.

Every entry that was accepted leaves exactly once: in a batch, as expired, or by ``cancel``.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, NamedTuple

from tailcut.core.costs import FREE, Cost, CostSource
from tailcut.core.waiting import DEFAULT_LEVEL, E, Entry, Heap, Item, Waiting
from tailcut.core.windows import Window

__all__ = ["Entry", "Plan", "Planner"]


class Plan(NamedTuple, Generic[E]):
    """What to do now.

    Attributes:
        batches: start each on an idle executor; at most as many as were idle.
        expired: answer each with a queue timeout.
        again_ns: plan again then at the latest, although nothing comes: a window ends; 0 where none is open.
    """

    batches: list[list[E]]
    expired: list[E]
    again_ns: int = 0


class Planner(Generic[E]):
    """Holds what waits and decides what runs.

    Args:
        max_rows: most rows in one batch.
        max_queue_rows: most rows that may wait.
        max_queue_bytes: most bytes of tensors that may wait.
        merge: whether entries share batches at all.
        window: decides about waiting; None to never wait.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_queue_rows: int,
        max_queue_bytes: int = 1 << 62,
        merge: bool = True,
        window: Window | None = None,
    ) -> None:
        self.max_rows = max_rows
        self.max_queue_rows = max_queue_rows
        self.max_queue_bytes = max_queue_bytes
        self.merge = merge
        self.window = window
        self.waiting: Waiting[E] = Waiting()

    @property
    def queue_rows(self) -> int:
        """Rows that wait."""
        return self.waiting.rows

    def offer(self, entry: E, *, again: bool = False) -> bool:
        """Accept an entry into the queue, or return False where it would exceed ``max_queue_rows`` or its bytes.

        Args:
            again: it was accepted before and its batch failed, so there is a place for it whatever waits now.
        """
        waiting = self.waiting
        if not again and (
            waiting.rows + entry.rows > self.max_queue_rows
            or waiting.size_bytes + entry.size_bytes > self.max_queue_bytes
        ):
            return False
        waiting.add(entry)
        return True

    def cancel(self, entry: E) -> bool:
        """Take a waiting entry out (its client is gone); False where it was not waiting any more."""
        if not entry.waiting:
            return False
        self.waiting.leave(entry)
        return True

    @property
    def batch_rows(self) -> float:
        """Rows of a full batch, as far as what waits tells."""
        if self.merge:
            return self.max_rows
        return self.waiting.rows / self.waiting.entries if self.waiting.entries else 1.0

    def rows_before(self, deadline_ns: int, level: int = DEFAULT_LEVEL) -> int:
        """Return how many waiting rows would run before an entry that comes now."""
        return self.waiting.rows_before(level, deadline_ns)

    def plan(self, now_ns: int, idle: int, costs: CostSource = FREE, *, probe: bool = False) -> Plan[E]:
        """Fill up to ``idle`` batches from what waits at ``now_ns``.

        Args:
            costs: how long a batch is predicted to take.
            probe: nothing runs. Where no batch is predicted to be in time, the entry with the most time left runs all
                the same: a prediction that is too high is only ever corrected by a batch that runs.
        """
        batches: list[list[E]] = []
        expired: list[E] = []
        lanes = self.waiting.lanes
        held: list[Hashable] = []
        again_ns = 0
        while idle > len(batches) and len(lanes) > len(held):
            lane = self._next_lane(now_ns, costs, expired, held)
            if lane is _NONE:
                break
            cost = costs.of(lanes[lane][0][3].kind)
            if self.window is not None:
                free = idle if probe and not batches else 0
                until_ns = self.window.until_ns(now_ns, lanes[lane], cost, self.max_rows, free)
                if until_ns > now_ns:
                    again_ns = min(again_ns or until_ns, until_ns)
                    held.append(lane)
                    continue
            batch = self._fill(lane, now_ns, cost, idle - len(batches) > 1, expired)
            if batch:
                batches.append(batch)
                if self.window is not None:
                    self.window.started(batch)
        if probe and not batches and not again_ns and expired:
            longest = max(expired, key=lambda entry: entry.deadline_ns)
            if longest.deadline_ns > now_ns:
                expired.remove(longest)
                batches.append([longest])
        return Plan(batches, expired, again_ns)

    def expire(self, now_ns: int) -> list[E]:
        """Take out every waiting entry whose deadline has passed, also while no executor is idle."""
        return self.waiting.expire(now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of what waits, or None where nothing does."""
        return self.waiting.next_deadline_ns()

    def _next_lane(self, now_ns: int, costs: CostSource, expired: list[E], held: list[Hashable]) -> Hashable:
        """Return the lane whose head is most urgent; ``_NONE`` where all are held back or empty."""
        lanes = self.waiting.lanes
        if len(lanes) == 1 and not held:
            return next(iter(lanes))
        # An expired or cancelled head would make its lane look more urgent than it is.
        for lane in list(lanes):
            if lane not in held:
                self._prune(lane, now_ns, costs, expired)
        return min((lane for lane in lanes if lane not in held), key=lambda lane: lanes[lane][0][:3], default=_NONE)

    def _prune(self, lane: Hashable, now_ns: int, costs: CostSource, expired: list[E]) -> None:
        """Drop the heads of ``lane`` that will not run; the lane is gone when nothing is left."""
        heap = self.waiting.lanes[lane]
        cost = costs.of(heap[0][3].kind)
        while heap:
            entry = heap[0][3]
            if entry.waiting:
                if now_ns + cost.batch_ns(entry.rows) < entry.deadline_ns:
                    return
                self._give_up(entry, expired)
            heappop(heap)
        del self.waiting.lanes[lane]

    def _fill(self, lane: Hashable, now_ns: int, cost: Cost, more_idle: bool, expired: list[E]) -> list[E]:
        """Take one batch out of ``lane``.

        Args:
            more_idle: whether what is left behind can start at once on another executor.
        """
        heap = self.waiting.lanes[lane]
        taken: list[Item[E]] = []
        while True:
            rows = self._take(heap, taken, now_ns, cost, expired)
            end_ns = now_ns + cost.late_ns(rows)
            if not taken or end_ns < min([item[1] for item in taken]):
                break
            due_ns = [_due_ns(item, now_ns, cost) for item in taken]
            end_ns = now_ns + cost.batch_ns(rows)
            if end_ns < min(due_ns):
                break
            hopeless = [item for item in taken if item[1] <= end_ns]
            count, cut_rows = _longest_in_time(taken, due_ns, now_ns, cost)
            if not (heap and _is_dear(cut_rows, rows, cost)):
                start_ns = now_ns if more_idle else now_ns + cost.batch_ns(cut_rows)
                in_time = start_ns + cost.batch_ns(rows - cut_rows) < min(due_ns[count:])
                without_rows = sum([item[3].rows for item, due in zip(taken, due_ns, strict=True) if due > end_ns])
                if in_time or without_rows <= cut_rows:
                    self._put_back(heap, taken, count)
                    break
                hopeless = [item for item, due in zip(taken, due_ns, strict=True) if due <= end_ns]
            elif not hopeless:
                break  # they are expected in time, if not surely; behind them more wait than a cut could save
            for item in hopeless:
                self._give_up(item[3], expired)
            taken = [item for item in taken if item[3].waiting]
        self._trim(heap, taken, cost)
        for item in taken:
            self.waiting.leave(item[3])
        if not heap:
            del self.waiting.lanes[lane]
        return [item[3] for item in taken]

    def _take(self, heap: Heap[E], taken: list[Item[E]], now_ns: int, cost: Cost, expired: list[E]) -> int:
        """Move heads from ``heap`` to ``taken`` until it is full; return the rows of ``taken``."""
        rows = sum([item[3].rows for item in taken])
        alone_rows, alone_end_ns = -1, 0.0
        while heap:
            entry = heap[0][3]
            if entry.waiting:
                if entry.rows != alone_rows:  # most bring the same number
                    alone_rows, alone_end_ns = entry.rows, now_ns + cost.batch_ns(entry.rows)
                if alone_end_ns >= entry.deadline_ns:
                    self._give_up(entry, expired)
                elif taken and (rows + entry.rows > self.max_rows or not self.merge):
                    break
                else:
                    taken.append(heap[0])
                    rows += entry.rows
            heappop(heap)
        return rows

    def _trim(self, heap: Heap[E], taken: list[Item[E]], cost: Cost) -> None:
        """Leave behind what would make the batch dearer than it is worth."""
        if len(taken) < 2:
            return
        rows = sum([item[3].rows for item in taken])
        worth = cost.worth_rows(rows)
        if self.window is not None:
            worth = min(worth, self.window.rows(rows))
        if worth >= rows:
            return
        count, kept = 1, taken[0][3].rows
        while count < len(taken) and kept + taken[count][3].rows <= worth:
            kept += taken[count][3].rows
            count += 1
        self._put_back(heap, taken, count)

    @staticmethod
    def _put_back(heap: Heap[E], taken: list[Item[E]], count: int) -> None:
        for item in taken[count:]:
            heappush(heap, item)
        del taken[count:]

    def _give_up(self, entry: E, expired: list[E]) -> None:
        self.waiting.leave(entry)
        expired.append(entry)


_NONE = object()
_DEAR = 1.25


def _due_ns(item: Item[E], now_ns: int, cost: Cost) -> float:
    """Return when a batch must be expected to end for an entry to be in time, even if it then takes long.

    Where the entry is not sure to be in time even alone, it is enough that it is expected to be.
    """
    left_ns = item[1] - now_ns
    sure_ns = left_ns / cost.late
    return now_ns + (sure_ns if cost.batch_ns(item[3].rows) < sure_ns else left_ns)


def _is_dear(cut_rows: int, rows: int, cost: Cost) -> bool:
    """Whether a batch cut to ``cut_rows`` would take the time of more rows than it saves."""
    return cost.batch_ns(cut_rows) * rows > _DEAR * cut_rows * cost.batch_ns(rows)


def _longest_in_time(items: list[Item[E]], due_ns: list[float], now_ns: int, cost: Cost) -> tuple[int, int]:
    """Return how many of ``items``, from the first on, can share a batch that is in time for all, and their rows."""
    rows, tightest_ns = 0, due_ns[0]
    for count, (item, due) in enumerate(zip(items, due_ns, strict=True)):
        tightest_ns = min(tightest_ns, due)
        if now_ns + cost.batch_ns(rows + item[3].rows) >= tightest_ns:
            return count, rows
        rows += item[3].rows
    return len(items), rows

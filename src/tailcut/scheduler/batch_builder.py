"""Forms one batch out of a lane: who is in it, who is left behind, and who is given up. See ``scheduler.scheduler``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from heapq import heappop, heappush
from math import inf
from typing import Generic

from tailcut.scheduler.batching_delay import Window
from tailcut.scheduler.latency_model import BatchCost
from tailcut.scheduler.overload_detector import OverloadDetector
from tailcut.scheduler.request_queue import E, Heap, Item, Lanes, RequestQueue

_NO_LEVEL = 1 << 62
_DEAR = 1.25
_CHEAPER = 0.8
"""Late entries fill up a batch of those on time where all together cost so much less than one after the other, or
where a backlog stands: then there is no better time for them."""

_EASY = 2.0
"""Sizes of which little is known are tried where a batch could take so much longer than expected."""

_PATIENT = 4.0
"""Who is to make way for others must have time for so many batches of his own after his target."""


class BatchBuilder(Generic[E]):
    """Takes batches out of what waits.

    Args:
        max_rows, merge, window, overload: see ``scheduler.scheduler.Scheduler``.

    Attributes:
        cap_ns: how long a batch may take for the sake of other models on the same cores.
        busy_rows: that were taken since an executor was idle and nothing waited; who knows of that sets it to 0.
    """

    def __init__(
        self,
        waiting: RequestQueue[E],
        max_rows: int,
        merge: bool,
        window: Window | None,
        overload: OverloadDetector | None,
    ) -> None:
        self._waiting = waiting
        self._max_rows = max_rows
        self._merge = merge
        self._window = window
        self._overload = overload
        self._delayed_level = _NO_LEVEL
        self.cap_ns = inf
        self.busy_rows = 0

    def take(
        self, lanes: Lanes[E], lane: Hashable, now_ns: int, cost: BatchCost, more_idle: bool, expired: list[E]
    ) -> list[E]:
        """Take one batch out of a lane; whoever cannot be in time goes to ``expired``, or waits on as late.

        None is taken where some on time become late while others are: without them the batch may be longer than the
        late ones can wait for. Whoever asks chooses anew.

        Args:
            lanes: those on time, or the late ones.
            more_idle: whether what is left behind can start at once on another executor.
        """
        heap = lanes[lane]
        taken: list[Item[E]] = []
        late_before = self._waiting.late_entries if lanes is not self._waiting.late else 0
        self._delayed_level = _NO_LEVEL
        while True:
            rows = self._trim(heap, taken, self._collect(heap, taken, now_ns, cost, expired), now_ns, cost)
            if self._waiting.late_entries > late_before > 0:
                _put_back(heap, taken, 0)
                break
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
                    _put_back(heap, taken, count)
                    break
                hopeless = [item for item, due in zip(taken, due_ns, strict=True) if due <= end_ns]
            elif not hopeless:
                break  # they are expected in time, if not surely; behind them more wait than a cut could save
            taken = self._without(hopeless, taken, now_ns, cost, expired)
        if not heap:
            del lanes[lane]
        if taken and lanes is not self._waiting.late and self._waiting.late:
            self._fill_up(lane, taken, now_ns, cost)
        for item in taken:
            self._waiting.leave(item[3])
            self.busy_rows += item[3].rows
        return [item[3] for item in taken]

    def prune(self, lanes: Lanes[E], lane: Hashable, now_ns: int, cost: BatchCost, expired: list[E]) -> None:
        """Drop the heads of a lane that will not run there; the lane is gone when nothing is left."""
        heap = lanes[lane]
        while heap:
            item = heap[0]
            if item[3].waiting:
                if now_ns + _needs_ns(item, cost) < item[1]:
                    return
                self.give_up(item[3], now_ns, cost, expired)
            heappop(heap)
        del lanes[lane]

    def give_up(self, entry: E, now_ns: int, cost: BatchCost, expired: list[E]) -> None:
        """Hand an entry back as expired; where it has missed its target only, let it wait on as late."""
        if not entry.late and now_ns + cost.batch_ns(entry.rows) < entry.deadline_ns:
            self._waiting.delay(entry)
            self._delayed_level = min(self._delayed_level, entry.level)
        else:
            self._waiting.leave(entry)
            expired.append(entry)

    def _without(
        self, hopeless: list[Item[E]], taken: list[Item[E]], now_ns: int, cost: BatchCost, expired: list[E]
    ) -> list[Item[E]]:
        """Give up some of those taken; return the others."""
        for item in hopeless:
            self.give_up(item[3], now_ns, cost, expired)
        gone = {item[2] for item in hopeless}
        return [item for item in taken if item[2] not in gone]

    def _collect(self, heap: Heap[E], taken: list[Item[E]], now_ns: int, cost: BatchCost, expired: list[E]) -> int:
        """Move heads from ``heap`` to ``taken`` until it is full; return the rows of ``taken``."""
        rows = sum([item[3].rows for item in taken])
        alone_rows, sure_ns = -1, 0.0
        while heap:
            item = heap[0]
            entry = item[3]
            if entry.waiting:
                if entry.rows != alone_rows:  # most bring the same number
                    alone_rows, sure_ns = entry.rows, now_ns + cost.late_ns(entry.rows)
                if sure_ns >= item[1] and now_ns + _needs_ns(item, cost) >= item[1]:
                    self.give_up(entry, now_ns, cost, expired)
                elif not taken and entry.level > self._delayed_level:
                    break  # who was given up just now is late, but has priority
                elif taken and (rows + entry.rows > self._max_rows or not self._merge):
                    break
                else:
                    taken.append(item)
                    rows += entry.rows
            heappop(heap)
        return rows

    def _trim(self, heap: Heap[E], taken: list[Item[E]], rows: int, now_ns: int, cost: BatchCost) -> int:
        """Leave behind what would make the batch dearer than it is worth; return the rows of ``taken``, now."""
        if len(taken) < 2:
            return rows
        least = taken[0][3].rows
        if self._is_pressed:
            worth = cost.full_rows(rows, least, tried=True)
        else:
            # Whoever is in a batch that is tried out, or is to serve those who come later, is not to be late for it.
            has_time = now_ns + _EASY * cost.batch_ns(rows) < min([item[1] for item in taken])
            worth = cost.worth_rows(rows, least, tried=has_time, busy_rows=self.busy_rows if has_time else 0)
        if self._window is not None:
            worth = min(worth, self._window.rows(rows))
        if self.cap_ns < inf:
            worth = min(worth, rows_within(cost, rows, self.cap_ns))
        if worth >= rows:
            return rows
        count, kept = 1, taken[0][3].rows
        while count < len(taken) and kept + taken[count][3].rows <= worth:
            kept += taken[count][3].rows
            count += 1
        _put_back(heap, taken, count)
        return kept

    def _fill_up(self, lane: Hashable, taken: list[Item[E]], now_ns: int, cost: BatchCost) -> None:
        """Let late entries share a batch of those on time, where that is cheaper and makes none of these late."""
        heap = self._waiting.late.get(lane)
        if heap is None or not self._merge:
            return
        rows, more = sum([item[3].rows for item in taken]), 0
        tightest_ns = min([_due_ns(item, now_ns, cost) for item in taken])
        found: list[Item[E]] = []
        while heap:
            entry = heap[0][3]
            if entry.waiting:
                together = rows + more + entry.rows
                end_ns = now_ns + cost.batch_ns(together)
                latest_ns = min(tightest_ns, heap[0][1], now_ns + self.cap_ns)
                if together > self._max_rows or end_ns >= latest_ns:
                    break
                found.append(heap[0])
                more += entry.rows
                tightest_ns = min(tightest_ns, heap[0][1])
            heappop(heap)
        more -= self._surplus(heap, found, rows + more)
        if found and (self._is_pressed or is_cheaper(rows, more, cost)):
            taken += found
        else:
            for item in found:
                heappush(heap, item)
        if not heap:
            del self._waiting.late[lane]

    @property
    def _is_pressed(self) -> bool:
        """Whether a backlog stands, so that what counts is how much is done."""
        return self._overload is not None and self._overload.stands

    def _surplus(self, heap: Heap[E], found: list[Item[E]], rows: int) -> int:
        """Leave behind what the window does not want in a batch of ``rows``; return how many rows that is."""
        if self._window is None:
            return 0
        worth, kept = self._window.rows(rows), rows
        while found and kept > worth:
            heappush(heap, found[-1])
            kept -= found.pop()[3].rows
        return rows - kept


def _needs_ns(item: Item[E], cost: BatchCost) -> float:
    """Return what an entry on its own must be given to be in time.

    As much as one in twenty takes, where it is the target that it would miss: it waits on, and another is in time for
    sure. But no more than is expected where it never had twice as much, or has no such time left after its target.
    """
    entry = item[3]
    alone_ns = cost.batch_ns(entry.rows)
    late_ns = alone_ns + cost.spread_ns(alone_ns)
    can_wait = entry.deadline_ns - item[1] > _PATIENT * late_ns and item[1] - entry.arrived_ns > 2 * late_ns
    return late_ns if can_wait else alone_ns


def rows_within(cost: BatchCost, most: int, limit_ns: float) -> int:
    """Return how many rows a batch may have to take no longer than so; at least one, at most ``most``."""
    return max(bisect_right(range(1, most + 1), limit_ns, key=cost.batch_ns), 1)


def _put_back(heap: Heap[E], taken: list[Item[E]], count: int) -> None:
    for item in taken[count:]:
        heappush(heap, item)
    del taken[count:]


def _due_ns(item: Item[E], now_ns: int, cost: BatchCost) -> float:
    """Return when a batch must be expected to end for an entry to be in time, even if it then takes long.

    Where the entry is not sure to be in time even alone, it is enough that it is expected to be.
    """
    left_ns = item[1] - now_ns
    sure_ns = cost.sure_ns(left_ns)
    return now_ns + (sure_ns if cost.batch_ns(item[3].rows) < sure_ns else left_ns)


def is_cheaper(rows: int, more: int, cost: BatchCost) -> bool:
    """Whether late rows should fill up a batch of others: see ``_CHEAPER``."""
    return cost.batch_ns(rows + more) < _CHEAPER * (cost.batch_ns(rows) + cost.batch_ns(more))


def _is_dear(cut_rows: int, rows: int, cost: BatchCost) -> bool:
    """Whether a batch cut to ``cut_rows`` would take the time of more rows than it saves."""
    return cost.batch_ns(cut_rows) * rows > _DEAR * cut_rows * cost.batch_ns(rows)


def _longest_in_time(items: list[Item[E]], due_ns: list[float], now_ns: int, cost: BatchCost) -> tuple[int, int]:
    """Return how many of ``items``, from the first on, can share a batch that is in time for all, and their rows."""
    rows, tightest_ns = 0, due_ns[0]
    for count, (item, due) in enumerate(zip(items, due_ns, strict=True)):
        tightest_ns = min(tightest_ns, due)
        if now_ns + cost.batch_ns(rows + item[3].rows) >= tightest_ns:
            return count, rows
        rows += item[3].rows
    return len(items), rows

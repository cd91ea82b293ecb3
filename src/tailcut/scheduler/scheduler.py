"""The scheduler: which waiting requests run next, together, on which idle executor. A state machine without I/O.

Rules, in order:
1. An entry whose deadline has passed, or is expected to pass before a batch of it alone ended, is never computed; it is
   handed back as expired.
2. Entries of different lanes never share a batch (a lane is everything that must match: shapes, requested outputs).
3. Higher priority first; then what can still be answered within the SLO before what cannot, because an answer that is
   late already loses less by waiting; then the earliest (of the SLO's targets, of the late ones' deadlines), then
   arrival order. What is late goes first once it would otherwise miss its deadline. (Why a burst's queue is not
   drained in order of arrival: B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015, "Adaptive LIFO".)
4. Work-conserving: while an executor is idle and an entry that can be in time waits, a batch starts; unless the window
   says that waiting is a gain for those who wait and endangers no deadline (see ``scheduler.batching_delay``).
5. A batch holds at most ``max_rows`` rows, and fewer where more would make each row clearly dearer (a prepared batch
   size that would be mostly padding); an entry is never split here (the dispatcher splits before it offers).
6. A batch ends before the tightest target (of late ones: deadline) in it, even if it takes as long as one in twenty
   does; who would not be in time then even alone, but could have been, makes way for those who will be. Where it would
   not, it is cut, if those left behind can still run after it in time; else the tightest are given up where more rows
   are in time without them, because batches cut short under load cost more requests than they save (early drop: Shen
   et al., "Nexus", SOSP 2019, section 4.3). Where more waits than fits, a cut must not take the time of more rows than
   it saves. For an entry that is only in time if all goes as expected, that has to do. What is given up for its target
   waits on as late.

Every entry that was accepted leaves exactly once: in a batch, as expired, or by ``cancel``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Hashable
from heapq import heappop, heappush
from math import inf
from typing import Generic, NamedTuple

from tailcut.scheduler.batching_delay import Window
from tailcut.scheduler.cost import FREE, BatchCost, CostSource
from tailcut.scheduler.overload_detector import LatencyTarget, OverloadDetector
from tailcut.scheduler.request_queue import E, Heap, Item, Lanes, QueueEntry, RequestQueue

__all__ = ["Plan", "QueueEntry", "Scheduler"]

_NO_LEVEL = 1 << 62
_DEAR = 1.25
_CHEAPER = 0.8
"""Late entries fill up a batch of those on time where all together cost so much less than one after the other, or
where a backlog stands: then there is no better time for them."""

_EASY = 2.0
"""Sizes of which little is known are tried where a batch could take so much longer than expected."""

_PATIENT = 4.0
"""An entry is given up for others only if its deadline is at least so many of its batch times after its target."""

_NONE = object()
"""No lane."""


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


class Next(NamedTuple):
    """How long the next batch of a lane of those on time takes at most, in nineteen of twenty cases.

    Attributes:
        alone_ns: of those on time.
        filled_ns: where late ones of its lane fill it up.
        aboard: whether all late ones of its lane are sure to.
    """

    lane: Hashable
    alone_ns: float
    filled_ns: float
    aboard: bool


class Scheduler(Generic[E]):
    """Holds what waits and decides what runs.

    Args:
        max_rows: most rows in one batch.
        max_queue_rows: most rows that may wait.
        max_queue_bytes: most bytes of tensors that may wait.
        merge: whether entries share batches at all.
        window: decides about waiting; None to never wait.
        target: of the SLO; None where deadlines are all that counts.

    Attributes:
        overload: whether a backlog stands; None without a target.
        waiting: the queue.
        cap_ns: how long a batch may take for the sake of other models on the same cores.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_queue_rows: int,
        max_queue_bytes: int = 1 << 62,
        merge: bool = True,
        window: Window | None = None,
        target: LatencyTarget | None = None,
    ) -> None:
        self.max_rows = max_rows
        self.max_queue_rows = max_queue_rows
        self.max_queue_bytes = max_queue_bytes
        self.merge = merge
        self.window = window
        self.overload = OverloadDetector(target) if target is not None else None
        self.waiting: RequestQueue[E] = RequestQueue()
        self.cap_ns = inf
        self._busy_rows = 0
        """Rows that were taken since an executor was idle and nothing waited."""
        self._delayed_level = _NO_LEVEL

    def offer(self, entry: E) -> bool:
        """Accept an entry into the queue, or return False where it would exceed ``max_queue_rows`` or its bytes."""
        waiting = self.waiting
        size_bytes = waiting.size_bytes + entry.size_bytes
        if waiting.rows + entry.rows > self.max_queue_rows or size_bytes > self.max_queue_bytes:
            return False
        waiting.add(entry)
        return True

    def cancel(self, entry: E) -> bool:
        """Take a waiting entry out (its client is gone); False where it was not waiting any more."""
        if not entry.waiting:
            return False
        self.waiting.leave(entry)
        return True

    def target_ns(self, since_ns: int, deadline_ns: int) -> int:
        """Return by when a batch must end for the SLO's sake; the request's deadline where there is no target."""
        return self.overload.by_ns(since_ns, deadline_ns) if self.overload is not None else deadline_ns

    def rest(self, *, nothing_runs: bool) -> None:
        """Note that a batch ended and nothing waits; and whether nothing runs either."""
        self._busy_rows = 0
        if nothing_runs and self.overload is not None:
            self.overload.rest()

    @property
    def batch_rows(self) -> float:
        """Rows of a full batch, as far as what waits tells."""
        if self.merge:
            return self.max_rows
        return self.waiting.rows / self.waiting.entries if self.waiting.entries else 1.0

    def plan(
        self, now_ns: int, idle: int, costs: CostSource = FREE, *, executors: int = 1, probe: bool = False
    ) -> Plan[E]:
        """Fill up to ``idle`` batches from what waits at ``now_ns``.

        Args:
            costs: how long a batch is predicted to take.
            executors: how many there are, idle or not.
            probe: nothing runs. Where no batch is predicted to be in time, the entry with the most time left runs all
                the same: a prediction that is too high is only ever corrected by a batch that runs.
        """
        batches: list[list[E]] = []
        expired: list[E] = []
        held: list[Hashable] = []
        again_ns = 0
        while idle > len(batches):
            lanes, lane = self._next(now_ns, costs, executors, expired, held)
            if lane is _NONE:
                break
            cost = costs.of(lanes[lane][0][3].kind)
            if self.window is not None:
                free = idle if probe and not batches else 0
                until_ns = self.window.until_ns(now_ns, self.waiting.in_lane(lane), cost, self.max_rows, free)
                if until_ns > now_ns:
                    again_ns = min(again_ns or until_ns, until_ns)
                    held.append(lane)
                    continue
            batch = self._take(lanes, lane, now_ns, cost, idle - len(batches) > 1, expired)
            if batch:
                batches.append(batch)
                if self.window is not None:
                    self.window.started(batch)
        if len(batches) < idle and not self.waiting.entries:
            self._busy_rows = 0
        if probe and not batches and not again_ns and expired:
            longest = max(expired, key=lambda entry: entry.deadline_ns)
            if longest.deadline_ns > now_ns:
                expired.remove(longest)
                batches.append([longest])
        if self.overload is not None:
            self.overload.see(now_ns, late=self.waiting.late_entries > 0)
        return Plan(batches, expired, again_ns)

    def _next(
        self, now_ns: int, costs: CostSource, executors: int, expired: list[E], held: Container[Hashable]
    ) -> tuple[Lanes[E], Hashable]:
        """Return the lane that is next, and whether among those on time or the late ones; ``_NONE`` where none is."""
        waiting = self.waiting
        lane = self._most_urgent(waiting.lanes, now_ns, costs, expired, held)
        if not waiting.late:
            return waiting.lanes, lane
        late = self._most_urgent(waiting.late, now_ns, costs, expired, held)
        if late is _NONE or lane is _NONE:
            return (waiting.lanes, lane) if late is _NONE else (waiting.late, late)
        level, late_level = waiting.lanes[lane][0][0], waiting.late[late][0][0]
        if late_level < level or (late_level == level and self._is_pressing(now_ns, costs, lane, executors)):
            return waiting.late, late
        return waiting.lanes, lane

    def _most_urgent(
        self, lanes: Lanes[E], now_ns: int, costs: CostSource, expired: list[E], held: Container[Hashable]
    ) -> Hashable:
        """Return the lane whose head is most urgent; ``_NONE`` where all are held back or empty."""
        if len(lanes) == 1 and not self.waiting.late:
            [lane] = lanes
            return _NONE if lane in held else lane
        # An expired or cancelled head would make its lane look more urgent than it is.
        for lane in list(lanes):
            if lane not in held:
                self._prune(lanes, lane, now_ns, costs.of(lanes[lane][0][3].kind), expired)
        return min((lane for lane in lanes if lane not in held), key=lambda lane: lanes[lane][0][:3], default=_NONE)

    def _is_pressing(self, now_ns: int, costs: CostSource, lane: Hashable, executors: int) -> bool:
        """Whether what is late should run before those on time.

        It should where it would otherwise miss its deadline. And while a backlog stands it should as far as that makes
        nobody else late: those on time were let in with so much to spare, and the next would be no fewer.

        Args:
            lane: of those on time that would run first.
        """
        waiting, overload = self.waiting, self.overload
        cost = costs.of(waiting.lanes[lane][0][3].kind)
        if not self._can_wait(now_ns, self._next_batch(lane, now_ns, cost), costs, executors):
            return True
        if overload is None or not overload.stands:
            return False
        full = max(self.batch_rows, 1.0)
        row_ns = max([of.late_ns(full) for of in map(costs.of, waiting.kinds)], default=cost.late_ns(full)) / full
        return row_ns / executors * waiting.late_rows <= overload.target.limit_ns - overload.aim.limit_ns

    # -- Forming a batch out of a lane ---------------------------------------------------------------------------------

    def _take(
        self, lanes: Lanes[E], lane: Hashable, now_ns: int, cost: BatchCost, more_idle: bool, expired: list[E]
    ) -> list[E]:
        """Take one batch out of a lane.

        An entry that cannot meet its deadline goes to ``expired``; one that misses only its target is queued as late.
        Returns no batch where entries became late while late ones were queued: without them the batch may take longer
        than the late ones can wait. The caller then chooses again.

        Args:
            lanes: those on time, or the late ones.
            more_idle: whether what is left behind can start at once on another executor.
        """
        heap = lanes[lane]
        taken: list[Item[E]] = []
        late_before = self.waiting.late_entries if lanes is not self.waiting.late else 0
        self._delayed_level = _NO_LEVEL
        while True:
            rows = self._trim(heap, taken, self._collect(heap, taken, now_ns, cost, expired), now_ns, cost)
            if self.waiting.late_entries > late_before > 0:
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
        if taken and lanes is not self.waiting.late and self.waiting.late:
            self._fill_up(lane, taken, now_ns, cost)
        for item in taken:
            self.waiting.leave(item[3])
            self._busy_rows += item[3].rows
        return [item[3] for item in taken]

    def _prune(self, lanes: Lanes[E], lane: Hashable, now_ns: int, cost: BatchCost, expired: list[E]) -> None:
        """Drop the heads of a lane that will not run there; the lane is gone when nothing is left."""
        heap = lanes[lane]
        while heap:
            item = heap[0]
            if item[3].waiting:
                if now_ns + _needs_ns(item, cost) < item[1]:
                    return
                self._give_up(item[3], now_ns, cost, expired)
            heappop(heap)
        del lanes[lane]

    def _give_up(self, entry: E, now_ns: int, cost: BatchCost, expired: list[E]) -> None:
        """Hand an entry back as expired; where it has missed its target only, let it wait on as late."""
        if not entry.late and now_ns + cost.batch_ns(entry.rows) < entry.deadline_ns:
            self.waiting.delay(entry)
            self._delayed_level = min(self._delayed_level, entry.level)
        else:
            self.waiting.leave(entry)
            expired.append(entry)

    def _without(
        self, hopeless: list[Item[E]], taken: list[Item[E]], now_ns: int, cost: BatchCost, expired: list[E]
    ) -> list[Item[E]]:
        """Give up some of those taken; return the others."""
        for item in hopeless:
            self._give_up(item[3], now_ns, cost, expired)
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
                    self._give_up(entry, now_ns, cost, expired)
                elif not taken and entry.level > self._delayed_level:
                    break  # who was given up just now is late, but has priority
                elif taken and (rows + entry.rows > self.max_rows or not self.merge):
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
            worth = cost.worth_rows(rows, least, tried=has_time, busy_rows=self._busy_rows if has_time else 0)
        if self.window is not None:
            worth = min(worth, self.window.rows(rows))
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
        heap = self.waiting.late.get(lane)
        if heap is None or not self.merge:
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
                if together > self.max_rows or end_ns >= latest_ns:
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
            del self.waiting.late[lane]

    @property
    def _is_pressed(self) -> bool:
        """Whether a backlog stands, so that what counts is how much is done."""
        return self.overload is not None and self.overload.stands

    def _surplus(self, heap: Heap[E], found: list[Item[E]], rows: int) -> int:
        """Leave behind what the window does not want in a batch of ``rows``; return how many rows that is."""
        if self.window is None:
            return 0
        worth, kept = self.window.rows(rows), rows
        while found and kept > worth:
            heappush(heap, found[-1])
            kept -= found.pop()[3].rows
        return rows - kept

    # -- When late requests run ----------------------------------------------------------------------------------------

    # Whether requests that are late for the SLO must run now, or else would miss their deadlines behind those on time.
    #
    # They can wait where the next batch of those on time runs first and all of them are still in time after it: then
    # there is another choice. So what that batch takes, and what the late ones take together, must not be
    # underestimated.

    def _next_batch(self, lane: Hashable, now_ns: int, cost: BatchCost) -> Next:
        """Bound the next batch of a lane of those on time.

        It has no more rows than wait there. And it is expected to end before its first target: where some make way for
        others in it, it is chosen anew.
        """
        waiting, max_rows = self.waiting, self.max_rows
        _, target_ns, _, head = waiting.lanes[lane][0]
        own_ns = cost.late_ns(head.rows)
        if not self.merge:
            return Next(lane, own_ns, own_ns, aboard=False)
        left_ns = target_ns - now_ns
        # Of a batch that is expected to end by then; short ones have a lateness of their own.
        late_ns = left_ns + max(cost.spread_ns(left_ns), (cost.short_late - 1.0) * min(left_ns, cost.fine_ns))
        rows, late_rows = (_rows(heap, max_rows) for heap in (waiting.lanes[lane], waiting.late.get(lane, [])))
        together = rows + late_rows
        return Next(
            lane,
            max(own_ns, min(cost.late_ns(rows), late_ns)),
            max(own_ns, min(cost.late_ns(min(together, max_rows)), late_ns)),
            aboard=together <= max_rows and cost.late_ns(together) < left_ns and is_cheaper(rows, late_rows, cost),
        )

    def _can_wait(self, now_ns: int, after: Next, costs: CostSource, executors: int) -> bool:
        """Say whether all late entries of a batch's level would be in time after it, the earliest deadline first.

        There is to be time for a hiccup, as at admission, but for no longer than half of what the deadline gives. Of
        several executors the others may have just begun: either this one does it alone, or all of them, a full batch
        later.

        Args:
            after: the batch that would run first.
            executors: how many there are, idle or not.
        """
        waiting, max_rows, merge = self.waiting, self.max_rows, self.merge
        known = [costs.of(kind) for kind in (*waiting.kinds, 0)]
        slowest_ns = max([cost.late_ns(max_rows) for cost in known])
        safe_ns = now_ns + after.filled_ns + self._late_batches() * slowest_ns
        safe_ns += max([cost.hiccup_ns for cost in known])
        filling: dict[Hashable, tuple[int, float]] = {}
        level, took_ns = waiting.lanes[after.lane][0][0], 0.0
        for entry in waiting.soonest_late():
            deadline_ns, rows = entry.deadline_ns, entry.rows
            if deadline_ns > safe_ns:
                return True  # and so are all after it
            cost = costs.of(entry.kind)
            if entry.level != level or now_ns + cost.batch_ns(rows) >= deadline_ns:
                continue  # another's turn, or nothing saves it any more
            held, held_ns = filling.get(entry.lane, (0, 0.0)) if merge else (0, 0.0)
            if held + rows > max_rows:
                held, held_ns = 0, 0.0
            batch_ns = cost.late_ns(held + rows)
            filling[entry.lane] = held + rows, batch_ns
            took_ns += batch_ns - held_ns
            if entry.lane != after.lane:
                end_ns = after.filled_ns + took_ns
            else:
                end_ns = after.filled_ns if after.aboard else after.alone_ns + took_ns
            if executors > 1:
                others_ns = max(after.filled_ns, slowest_ns)
                end_ns = min(end_ns, others_ns + took_ns / executors + batch_ns * (1.0 - 1.0 / executors))
            if now_ns + end_ns + min(cost.hiccup_ns, (deadline_ns - entry.target_ns) / 2) >= deadline_ns:
                return False
        return True

    def _late_batches(self) -> int:
        """Return in how many batches all late ones run at most: of a lane two in a row have more than a full one."""
        waiting = self.waiting
        most = 2 * waiting.late_rows // self.max_rows + len(waiting.late)
        return min(waiting.late_entries, most) if self.merge else waiting.late_entries


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


def _rows(heap: Heap[E], most: int) -> int:
    """Return how many rows wait in a heap, up to ``most``; of a long one all are taken to wait."""
    return most if len(heap) > 2 * most else min(sum([item[3].rows for item in heap if item[3].waiting]), most)

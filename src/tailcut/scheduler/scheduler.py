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

from collections.abc import Container, Hashable
from typing import Generic, NamedTuple

from tailcut.scheduler.batch_builder import BatchBuilder, is_cheaper
from tailcut.scheduler.batching_delay import Window
from tailcut.scheduler.latency_model import FREE, BatchCost, CostSource
from tailcut.scheduler.overload_detector import LatencyTarget, OverloadDetector
from tailcut.scheduler.request_queue import DEFAULT_LEVEL, E, Heap, Lanes, QueueEntry, RequestQueue

__all__ = ["Plan", "QueueEntry", "Scheduler"]


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
        self._builder = BatchBuilder(self.waiting, max_rows, merge, window, self.overload)

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

    def target_ns(self, since_ns: int, deadline_ns: int) -> int:
        """Return by when a batch must end for the SLO's sake; the request's deadline where there is no target."""
        return self.overload.by_ns(since_ns, deadline_ns) if self.overload is not None else deadline_ns

    def rest(self, *, nothing_runs: bool) -> None:
        """Note that a batch ended and nothing waits; and whether nothing runs either."""
        self._builder.busy_rows = 0
        if nothing_runs and self.overload is not None:
            self.overload.rest()

    @property
    def batch_rows(self) -> float:
        """Rows of a full batch, as far as what waits tells."""
        if self.merge:
            return self.max_rows
        return self.waiting.rows / self.waiting.entries if self.waiting.entries else 1.0

    def rows_before(self, deadline_ns: int, level: int = DEFAULT_LEVEL) -> int:
        """Return how many waiting rows would run before an entry that comes now."""
        return self.waiting.rows_before(level, deadline_ns)

    def limit_batches(self, cap_ns: float) -> None:
        """Have no batch take longer than so, for the sake of other models on the same cores."""
        self._builder.cap_ns = cap_ns

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
            batch = self._builder.take(lanes, lane, now_ns, cost, idle - len(batches) > 1, expired)
            if batch:
                batches.append(batch)
                if self.window is not None:
                    self.window.started(batch)
        if len(batches) < idle and not self.waiting.entries:
            self._builder.busy_rows = 0
        if probe and not batches and not again_ns and expired:
            longest = max(expired, key=lambda entry: entry.deadline_ns)
            if longest.deadline_ns > now_ns:
                expired.remove(longest)
                batches.append([longest])
        if self.overload is not None:
            self.overload.see(now_ns, late=self.waiting.late_entries > 0)
        return Plan(batches, expired, again_ns)

    def expire(self, now_ns: int) -> list[E]:
        """Take out every waiting entry whose deadline has passed, also while no executor is idle."""
        return self.waiting.expire(now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of what waits, or None where nothing does."""
        return self.waiting.next_deadline_ns()

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
                self._builder.prune(lanes, lane, now_ns, costs.of(lanes[lane][0][3].kind), expired)
        return min((lane for lane in lanes if lane not in held), key=lambda lane: lanes[lane][0][:3], default=_NONE)

    def _is_pressing(self, now_ns: int, costs: CostSource, lane: Hashable, executors: int) -> bool:
        """Whether what is late should run before those on time.

        It should where it would otherwise miss its deadline. And while a backlog stands it should as far as that makes
        nobody else late: those on time were let in with so much to spare, and the next would be no fewer.

        Args:
            lane: of those on time that would run first.
        """
        waiting, max_rows, merge = self.waiting, self.max_rows, self.merge
        cost = costs.of(waiting.lanes[lane][0][3].kind)
        after = next_batch(waiting, lane, now_ns, cost, max_rows=max_rows, merge=merge)
        if not can_wait(waiting, now_ns, after, costs, executors=executors, max_rows=max_rows, merge=merge):
            return True
        overload = self.overload
        if overload is None or not overload.stands:
            return False
        full = max(self.batch_rows, 1.0)
        row_ns = max([of.late_ns(full) for of in map(costs.of, waiting.kinds)], default=cost.late_ns(full)) / full
        return row_ns / executors * waiting.late_rows <= overload.target.limit_ns - overload.aim.limit_ns


_NONE = object()


# -- When a batch waits for more rows ----------------------------------------------------------------------------------


# Whether requests that are late for the SLO must run now, or else would miss their deadlines behind those on time.
#
# They can wait where the next batch of those on time runs first and all of them are still in time after it: then there
# is another choice. So what that batch takes, and what the late ones take together, must not be underestimated.


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


def next_batch(
    waiting: RequestQueue[E], lane: Hashable, now_ns: int, cost: BatchCost, *, max_rows: int, merge: bool
) -> Next:
    """Bound the next batch of a lane of those on time.

    It has no more rows than wait there. And it is expected to end before its first target: where some make way for
    others in it, it is chosen anew (``scheduler.batch_builder``).

    Args:
        max_rows, merge: see ``Scheduler``.
    """
    _, target_ns, _, head = waiting.lanes[lane][0]
    own_ns = cost.late_ns(head.rows)
    if not merge:
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


def can_wait(
    waiting: RequestQueue[E],
    now_ns: int,
    after: Next,
    costs: CostSource,
    *,
    executors: int,
    max_rows: int,
    merge: bool,
) -> bool:
    """Say whether all late entries of a batch's level would be in time after it, the earliest deadline first.

    There is to be time for a hiccup, as at admission, but for no longer than half of what the deadline gives. Of
    several executors the others may have just begun: either this one does it alone, or all of them, a full batch later.

    Args:
        after: the batch that would run first.
        executors: how many there are, idle or not.
        max_rows, merge: see ``Scheduler``.
    """
    known = [costs.of(kind) for kind in (*waiting.kinds, 0)]
    slowest_ns = max([cost.late_ns(max_rows) for cost in known])
    safe_ns = now_ns + after.filled_ns + _batches(waiting, max_rows, merge=merge) * slowest_ns
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


def _batches(waiting: RequestQueue[E], max_rows: int, *, merge: bool) -> int:
    """Return in how many batches all that is late runs at most: of a lane two in a row have more than a full one."""
    entries = waiting.late_entries
    return min(entries, 2 * waiting.late_rows // max_rows + len(waiting.late)) if merge else entries


def _rows(heap: Heap[E], most: int) -> int:
    """Return how many rows wait in a heap, up to ``most``; of a long one all are taken to wait."""
    return most if len(heap) > 2 * most else min(sum([item[3].rows for item in heap if item[3].waiting]), most)

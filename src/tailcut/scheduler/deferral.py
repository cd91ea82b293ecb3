"""Whether requests that are late for the SLO must run now, or else would miss their deadlines behind those on time.

They can wait where the next batch of those on time runs first and all of them are still in time after it: then there is
another choice. So what that batch takes, and what the late ones take together, must not be underestimated.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from tailcut.scheduler.batch_builder import is_cheaper
from tailcut.scheduler.latency_model import Cost, CostSource
from tailcut.scheduler.request_queue import E, Heap, RequestQueue


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
    waiting: RequestQueue[E], lane: Hashable, now_ns: int, cost: Cost, *, max_rows: int, merge: bool
) -> Next:
    """Bound the next batch of a lane of those on time.

    It has no more rows than wait there. And it is expected to end before its first target: where some make way for
    others in it, it is chosen anew (``scheduler.batch_builder``).

    Args:
        max_rows, merge: see ``scheduler.scheduler.Scheduler``.
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
        max_rows, merge: see ``scheduler.scheduler.Scheduler``.
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

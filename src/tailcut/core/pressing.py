"""Whether requests that are late for the SLO must run now, or else would miss their deadlines behind those on time.

They can wait where the next batch of those on time runs first and all of them are still in time after it: then there is
another choice. So what that batch takes, and what the late ones take together, must not be underestimated.
"""

from __future__ import annotations

from collections.abc import Hashable

from tailcut.core.costs import Cost, CostSource
from tailcut.core.waiting import E, Waiting


def next_batch_ns(waiting: Waiting[E], lane: Hashable, now_ns: int, cost: Cost, *, max_rows: int, merge: bool) -> float:
    """Return how long the next batch of a lane of those on time takes at most, in nineteen of twenty cases.

    It has no more rows than wait on time, and of the late ones those that may fill it up. And it is expected to end
    before its first target: whoever would be in it although it does not is given up first, and then chosen anew.

    Args:
        max_rows, merge: see ``core.batching.Planner``.
    """
    _, target_ns, _, head = waiting.lanes[lane][0]
    own_ns = cost.late_ns(head.rows)
    if not merge:
        return own_ns
    rows = waiting.rows if lane in waiting.late else waiting.rows - waiting.late_rows
    return max(own_ns, min(cost.late_ns(min(rows, max_rows)), cost.late * (target_ns - now_ns)))


def can_wait(
    waiting: Waiting[E],
    now_ns: int,
    first_ns: float,
    costs: CostSource,
    *,
    executors: int,
    max_rows: int,
    merge: bool,
) -> bool:
    """Say whether all that is late would be in time after ``first_ns``, the earliest deadline first.

    There is to be time for a hiccup, as at admission, but for no longer than half of what the deadline gives. Of
    several executors the others may have just begun: either this one does it alone, or all of them, a full batch later.

    Args:
        executors: how many there are, idle or not.
        max_rows, merge: see ``core.batching.Planner``.
    """
    safe_ns = now_ns + first_ns + _all_ns(waiting, costs, max_rows, merge=merge)
    rows_of: dict[Hashable, int] = {}
    took_ns = 0.0
    for entry in waiting.soonest_late():
        deadline_ns = entry.deadline_ns
        if deadline_ns > safe_ns:
            return True  # and so are all after it
        cost = costs.of(entry.kind)
        if now_ns + cost.batch_ns(entry.rows) >= deadline_ns:
            continue  # nothing saves it any more
        before = rows_of.get(entry.lane, 0) if merge else 0
        took_ns += _drain_ns(before + entry.rows, cost, max_rows) - _drain_ns(before, cost, max_rows)
        rows_of[entry.lane] = before + entry.rows
        end_ns = first_ns + took_ns
        if executors > 1:
            end_ns = min(end_ns, cost.late_ns(max_rows) + took_ns / executors)
        if now_ns + end_ns + min(cost.hiccup_ns, (deadline_ns - entry.target_ns) / 2) >= deadline_ns:
            return False
    return True


def _drain_ns(rows: int, cost: Cost, max_rows: int) -> float:
    """Return what rows of one lane take on one executor, in batches as large as can be."""
    full, rest = divmod(rows, max_rows)
    return full * cost.late_ns(max_rows) + (cost.late_ns(rest) if rest else 0.0)


def _all_ns(waiting: Waiting[E], costs: CostSource, max_rows: int, *, merge: bool) -> float:
    """Return what all that is late takes on one executor at most, and a hiccup."""
    rows = waiting.late_rows
    known = [costs.of(kind) for kind in waiting.kinds or (0,)]
    batches = rows // max_rows + len(waiting.late) if merge else waiting.late_entries
    longest_ns = max([cost.late_ns(min(rows, max_rows)) for cost in known])
    return batches * longest_ns + max([cost.hiccup_ns for cost in known])

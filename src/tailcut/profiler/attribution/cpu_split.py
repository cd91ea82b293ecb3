"""A span's own time as CPU and waiting, where only some of it was measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailcut.profiler.attribution.span_table import Flat, Ints
from tailcut.profiler.attribution.stages import less_children, self_of
from tailcut.profiler.records import Stage

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

QUEUEING = frozenset({Stage.WAIT, Stage.LOCK, Stage.LOOP, Stage.ACCEPT})
WAITING = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.RECEIVE, Stage.NETWORK, Stage.UNATTRIBUTED})
"""Stages that take no CPU where nobody says how much: a driver's own is in what the process used beside the spans."""
FETCHING = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP})

_UNHINDERED = 0.1
_MOSTLY = 0.5


def handling_share(flat: Flat) -> Floats:
    """Share of each span of user code that lies between the first fetch of its request and the end of the last.

    What happens there is done for the fetches: statements are put together, rows are read.
    """
    share = np.zeros(len(flat.name))
    fetching = flat.is_of(FETCHING)
    if not fetching.any():
        return share
    first_ns, last_ns = first_and_last(flat, fetching)
    start_ns = np.clip(flat.start_ns, first_ns[flat.request], None)
    inside_ns = np.maximum(np.minimum(flat.end_ns, last_ns[flat.request]) - start_ns, 0)
    length_ns = flat.end_ns - flat.start_ns
    own_ns, own_inside_ns = less_children(flat, length_ns), less_children(flat, inside_ns)
    code = flat.is_of({Stage.CODE}) & (own_ns > 0)
    share[code] = np.clip(own_inside_ns[code] / own_ns[code], 0.0, 1.0)
    return share


def first_and_last(flat: Flat, spans: Bools | Ints) -> tuple[Ints, Ints]:
    """When each request's first of these spans begins and its last ends, shape [n]; without any: after and before all.

    Args:
        spans: which, as a mask of shape [spans] or as places.
    """
    count = len(flat.requests)
    first_ns, last_ns = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(first_ns, flat.request[spans], flat.start_ns[spans])
    np.maximum.at(last_ns, flat.request[spans], flat.end_ns[spans])
    return first_ns, last_ns


def divide_own(flat: Flat, self_ns: Ints, delay_ns: Ints, code_share: float) -> tuple[Floats, Floats]:
    """Divide each span's own time into CPU and waiting, shape [spans] each.

    Args:
        self_ns, delay_ns: as of ``Attribution``.
    """
    queueing, waiting = flat.is_of(QUEUEING), flat.is_of(WAITING)
    known = self_of(flat, flat.cpu_ns)
    # A query's answer may have waited for a core, because the database had it: that is the query's time here.
    own_ns: Floats = (self_ns + np.where(waiting, delay_ns, 0)).astype(np.float64)
    cpu_ns = np.where(waiting | queueing, 0.0, own_ns * code_share)
    cpu_ns = np.where(known >= 0, np.minimum(known, own_ns), cpu_ns)
    cpu_ns = _share_cpu(flat, own_ns, cpu_ns, waiting | queueing)
    wait_ns = _less_delay(flat, np.maximum(own_ns - cpu_ns, 0.0), waiting | queueing)
    for name in np.unique(flat.name[queueing]).tolist():
        mine = flat.name == name
        cpu_ns[mine] = 0.0
        wait_ns[mine] = np.minimum(wait_ns[mine], np.quantile(own_ns[mine], _UNHINDERED))
    return cpu_ns, wait_ns


def holds_loop(flat: Flat, cpu_ns: Floats, wait_ns: Floats, held_ns: Floats) -> Bools:
    """Tell what waits and holds the event loop meanwhile, as ``time.sleep`` and drivers that block do, shape [spans].

    Args:
        held_ns: for how long each span's own part held the loop, shape [spans].
    """
    blocked_ns = np.clip(held_ns - cpu_ns, 0.0, wait_ns)
    # What a driver that awaits was seen to compute is known otherwise (``unattributed``).
    driven = flat.is_of(WAITING) & (flat.cpu_ns < 0)
    held: Bools = (flat.thread == 0) & ~driven & (blocked_ns > 0) & (blocked_ns >= _MOSTLY * wait_ns)
    return held


def fetch_lengths(flat: Flat, cpu_ns: Floats) -> Floats:
    """For how long each fetch waits from its start to its end, whatever ran beside it, shape [spans].

    What is a part of another fetch is in that one's; what is no fetch has none. Both are 0.
    """
    fetching = flat.is_of(FETCHING)
    length_ns = (flat.end_ns - flat.start_ns).astype(np.float64) - cpu_ns
    inner = np.flatnonzero(flat.parent >= 0)
    others = inner[~fetching[inner]]
    np.subtract.at(length_ns, flat.parent[others], flat.end_ns[others] - flat.start_ns[others])
    nested = np.zeros(len(fetching), dtype=bool)
    nested[inner] = fetching[flat.parent[inner]]
    return np.where(fetching & ~nested, np.maximum(length_ns, 0.0), 0.0)


def _within(flat: Flat, outer: Ints, inner: Ints, chosen: Bools) -> Ints:
    """Choose of the spans those of a kind that lie in others on the same thread, of which the other thing is known."""
    found = np.flatnonzero((flat.parent >= 0) & (inner < 0) & chosen)
    above = flat.parent[found]
    same = (flat.thread[found] == flat.thread[above]) & (outer[above] >= 0)
    return np.array(found[same], dtype=np.int64)


def _share_cpu(flat: Flat, own_ns: Floats, cpu_ns: Floats, waiting: Bools) -> Floats:
    """Where a span's CPU time is known and that of spans inside it is not: what computes has it first.

    What is left belongs to the waiting ones (a driver that reads rows), in proportion to their length.
    """
    computing = _within(flat, flat.cpu_ns, flat.cpu_ns, ~waiting)
    others = _within(flat, flat.cpu_ns, flat.cpu_ns, waiting)
    parents = np.unique(flat.parent[np.concatenate([computing, others])])
    rest_ns = np.zeros(len(own_ns))
    rest_ns[parents] = flat.cpu_ns[parents]
    told = np.flatnonzero((flat.parent >= 0) & (flat.cpu_ns >= 0))
    np.subtract.at(rest_ns, flat.parent[told], flat.cpu_ns[told].astype(np.float64))
    rest_ns = np.maximum(rest_ns, 0.0)
    claim_ns, length_ns = own_ns.copy(), np.zeros(len(own_ns))
    np.add.at(claim_ns, flat.parent[computing], own_ns[computing])
    np.add.at(length_ns, flat.parent[others], own_ns[others])
    share = _ratio(rest_ns, claim_ns)
    left = _ratio(np.maximum(rest_ns - claim_ns, 0.0), length_ns)
    cpu_ns = cpu_ns.copy()
    cpu_ns[parents] = own_ns[parents] * share[parents]
    cpu_ns[computing] = own_ns[computing] * share[flat.parent[computing]]
    cpu_ns[others] = own_ns[others] * left[flat.parent[others]]
    return cpu_ns


def _less_delay(flat: Flat, wait_ns: Floats, waiting: Bools) -> Floats:
    """Take from the waits of what computes the time in which its thread was ready to run and had no core.

    Where that is known of each span inside a span, it has been taken out of their own time before.
    """
    computing = _within(flat, flat.delay_ns, flat.delay_ns, ~waiting)
    others = _within(flat, flat.delay_ns, flat.delay_ns, waiting)
    parents = np.unique(flat.parent[np.concatenate([computing, others])])
    blocked_ns = np.zeros(len(wait_ns))
    blocked_ns[parents] = wait_ns[parents]
    np.add.at(blocked_ns, flat.parent[computing], wait_ns[computing])
    kept = 1.0 - _ratio(np.maximum(flat.delay_ns, 0).astype(np.float64), blocked_ns)
    wait_ns = wait_ns.copy()
    wait_ns[parents] *= kept[parents]
    wait_ns[computing] *= kept[flat.parent[computing]]
    return wait_ns


def _ratio(part: Floats, whole: Floats) -> Floats:
    """A share, at most 1; 1 of nothing is nothing."""
    return np.minimum(np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0), 1.0)

"""What only so many requests may hold at once: locks, semaphores, connection pools; found by who waited for whom.

Nobody records for how long a lock is held: its span is the wait for it. But where somebody waits all the time between
one request's getting it and the next one's, the first held it for just that long; where there are several of it, one of
them came back in that time. What of such a holder's own time lies in there tells, by the line of code, what every
request does while it holds it, also one that nobody waited for.

Executors are among them; of those it is known before how many threads they have, and what runs there (``pools``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.profiler.attribution.lock_handoffs import in_turn, stand_for_all
from tailcut.profiler.attribution.span_table import Flat, Ints, Name
from tailcut.profiler.attribution.stages import less_children
from tailcut.profiler.recording.trace_sampling import POOLS, THREADING
from tailcut.profiler.records import EXECUTOR, PROCESS_POOL, Stage, Wait

Floats = npt.NDArray[np.float64]

_ANOTHER = "another thread"
_NEVER_PLAYED = frozenset(
    {"Redis's connection pool", "aiosqlite's thread", _ANOTHER, "asyncio.Event", "asyncio.Condition",
     "asyncio.Queue", EXECUTOR, PROCESS_POOL, "anyio.CapacityLimiter"}
)  # fmt: skip
"""Labels of waits that do not come back when requests are played: who holds what they wait for is not known.

So it is with executors that have no name, or are several of one name.
"""
_CALLS = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.PREPROCESS, Stage.MODEL})
_LEAST_SEEN = 10
"""Times that it went from one to another who waited: fewer say nothing."""
_LEAST_KNOWN = 3
"""Of these, from one that was traced: only of those it is known what they did meanwhile."""
_MOST_OVERTAKEN = 0.25
"""Of these, how many may get it who came later than the next: more are several things of one name, a lock per key."""
_LEAST_WAITED = 0.05
"""Of the time of the slowest tenth of the requests: what is waited for less is not what the rate ends at."""
_MOST_TAKINGS = 1.5
"""Of one lock in a request that waits for it: who takes it more often holds it also where nobody was seen to wait."""
_ALWAYS = 0.75
_ALL = 0.9
"""Of a line's own time: that much is taken for all of it."""
_NOTHING = 0.1
"""Of all the time that it is held: of what a line does there, if it does most elsewhere, less is taken for none."""


class Hold(NamedTuple):
    """Something that only so many hold at once.

    Attributes:
        label: what it is, as its waits are called.
        at_once: how many.
        pool: it is a connection pool.
        threads: they are an executor's threads; else, where it is no pool, it is a lock or a semaphore.
        processes: they are worker processes of a pool, which is an executor as well.
    """

    label: str
    at_once: int
    pool: bool
    threads: bool = False
    processes: bool = False


class Taken(NamedTuple):
    """When something is held.

    Attributes:
        depth_ns: how long after a request was due it usually has it.
        hold: what it is.
        share: of each span's own time, for how much of it, shape [spans].
    """

    depth_ns: float
    hold: Hold
    share: Floats


@dataclass(frozen=True)
class Holds:
    """What is held, and when.

    Attributes:
        found: those of which enough was seen.
        share: of each span's own time, how much of it each is held for, shape [found, spans].
        waits: spans that are waits for one of these, which come back when requests are played, shape [spans].
        unknown: those that were waited for, but of which too little was seen or which are ``never_played``, with the
            spans that waited.
    """

    found: tuple[Hold, ...]
    share: Floats
    waits: npt.NDArray[np.bool_]
    unknown: Mapping[str, Ints] = field(default_factory=dict)


def find_holds(flat: Flat, executors: Sequence[Taken] = (), others: Sequence[Wait] | None = None) -> Holds:
    """Find what requests waited for that others held.

    Args:
        executors: whose threads are known.
        others: waits for locks of the requests that were not traced; None: all were. What several hold at once is found
            among all requests only: of the others nobody knows when they gave it back.
    """
    played = {one.hold.label for one in executors}
    names: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    for number, name in enumerate(flat.names):
        if (label := _label(name)) and label not in played:
            names[label, name.stage is Stage.WAIT].append(number)
    found = list(executors)
    waits = np.zeros(len(flat.name), dtype=bool)
    unknown: dict[str, Ints] = {}
    for (label, pool), mine in names.items():
        spans = np.flatnonzero(np.isin(flat.name, mine))
        spans = _unexplained(flat, spans, played) if label == _ANOTHER else spans
        spans = spans[np.argsort(flat.end_ns[spans], kind="stable")]
        known = not never_played(label) and waited_share(flat, spans, flat.end_ns - flat.start_ns) >= _LEAST_WAITED
        seen = _seen(flat, spans, label, pool, others) if known else None
        if seen is None:
            unknown[label] = spans
            continue
        waits[spans] = True
        depth_ns = float(np.median(flat.end_ns[spans] - flat.intended_ns[flat.request[spans]]))
        found.append(Taken(depth_ns, *seen))
    # Who holds several has taken first what requests take first.
    found.sort(key=lambda one: one.depth_ns)
    share = np.array([one.share for one in found]).reshape(len(found), len(flat.name))
    return Holds(tuple(one.hold for one in found), share, waits, unknown)


def never_played(label: str) -> bool:
    """Tell of a wait for what is not known as an executor or found in ``find_holds`` whether it never can be."""
    return label in _NEVER_PLAYED or label.startswith((f"{EXECUTOR} of ", f"{PROCESS_POOL} of "))


def _unexplained(flat: Flat, spans: Ints, executors: Collection[str]) -> Ints:
    """Leave out waits for another thread in which the same code waits for one of these executors: that is its thread.

    Args:
        executors: labels of the waits for them.
    """
    names = [number for number, name in enumerate(flat.names) if name.stage is Stage.WAIT and name.label in executors]
    handed = np.flatnonzero(np.isin(flat.name, names) & (flat.parent >= 0))
    first_ns, last_ns = np.full(len(flat.name), np.iinfo(np.int64).max), np.zeros(len(flat.name), dtype=np.int64)
    np.minimum.at(first_ns, flat.parent[handed], flat.start_ns[handed])
    np.maximum.at(last_ns, flat.parent[handed], flat.end_ns[handed])
    above = flat.parent[spans]
    apart = (flat.end_ns[spans] <= first_ns[above]) | (flat.start_ns[spans] >= last_ns[above])
    return spans[(above < 0) | apart]


def _label(name: Name) -> str:
    """What a span waits for that others hold; empty where it is something else."""
    if name.stage is Stage.LOCK:
        # "threading.Lock of app.py:48" says which it is; of others only the line that waits does.
        return name.label if " of " in name.label or not name.place else f"{name.label} at {name.place}"
    return name.label if name.stage is Stage.WAIT and (name.label in POOLS or never_played(name.label)) else ""


def waited_share(flat: Flat, spans: Ints, took_ns: Ints) -> float:
    """How much of the time of the slowest tenth of an endpoint's requests some spans take; of that with the most.

    A lock of a quick endpoint is nothing beside the time of a slow one, and may still be what the rate ends at.

    Args:
        took_ns: of each span, shape [all spans].
    """
    waited_ns = np.bincount(flat.request[spans], weights=took_ns[spans], minlength=len(flat.requests))
    found = 0.0
    for endpoint in np.unique(flat.endpoint[flat.request[spans]]):
        mine = flat.endpoint == endpoint
        slow = mine & (flat.wall_ns >= np.quantile(flat.wall_ns[mine], 0.9))
        found = max(found, float(waited_ns[slow].sum() / max(flat.wall_ns[slow].sum(), 1)))
    return found


def _seen(flat: Flat, spans: Ints, label: str, pool: bool, others: Sequence[Wait] | None) -> tuple[Hold, Floats] | None:
    """Say how many hold it, and what they do meanwhile; None where too little was seen.

    Args:
        spans: that waited for it, by when they got it.
        others: as of ``find_holds``.
    """
    takings = np.unique(flat.request[spans], return_counts=True)[1]
    start_ns, got_ns, spans = in_turn(flat, spans, [one for one in others or () if one.label == label])
    # From each one's getting it to the next one's, who had been waiting all the time.
    handed = np.flatnonzero(start_ns[1:] <= got_ns[:-1])
    traced = handed[spans[handed] >= 0]
    if len(handed) < _LEAST_SEEN or len(traced) < _LEAST_KNOWN:
        return None
    if np.mean(start_ns[handed + 1] < start_ns[handed]) > _MOST_OVERTAKEN:
        return None
    if others is not None and not (label.startswith(THREADING) and stand_for_all(flat, spans, got_ns, handed)):
        return None
    if not pool and "Semaphore" not in label:
        if takings.mean() > _MOST_TAKINGS:
            return None
        alone = [(int(spans[one]), int(got_ns[one]), int(got_ns[one + 1])) for one in traced.tolist()]
        return Hold(label, 1, pool), _share_held(flat, alone)
    held = _until_last_call(flat, spans, pool)
    at_once = _at_once(held, (start_ns[handed + 1] + got_ns[handed + 1]) // 2, got_ns[handed + 1] - got_ns[handed])
    return (Hold(label, at_once, pool), _share_held(flat, held)) if at_once else None


def _at_once(held: Sequence[tuple[int, int, int]], waiting_ns: Ints, between_ns: Ints) -> int:
    """Count how many hold it while others wait; 0 where that is not always the same, or does not explain the waits.

    Args:
        held: span that waited, from when it had it until when.
        waiting_ns: moments at which somebody waited.
        between_ns: from one's getting it to the next one's, who had been waiting all the time.
    """
    begin_ns = np.sort([begin for _, begin, _ in held])
    end_ns = np.sort([end for _, _, end in held])
    taken = np.searchsorted(begin_ns, waiting_ns, side="right") - np.searchsorted(end_ns, waiting_ns, side="right")
    most = np.arange(1, len(held) + 1) - np.searchsorted(end_ns, begin_ns, side="right")
    usual = float(np.median(taken))
    # As many as hold it for so long give it back so often.
    explained = float(np.mean(end_ns) - np.mean(begin_ns)) / max(float(between_ns.mean()), 1.0)
    if usual < _ALWAYS * float(most.max()) or abs(explained - usual) > max(1.0, (1.0 - _ALWAYS) * usual):
        return 0
    return max(round(explained), 1)


def _until_last_call(flat: Flat, spans: Ints, pool: bool) -> list[tuple[int, int, int]]:
    """From each getting to the end of the last call that needs it: of a pool, a query; else the caller's own calls."""
    calls = np.array([name.stage is Stage.SQL if pool else name.stage in _CALLS for name in flat.names], dtype=bool)
    again_ns: dict[int, int] = {}
    held: list[tuple[int, int, int]] = []
    for span in reversed(spans.tolist()):
        request, got_ns = int(flat.request[span]), int(flat.end_ns[span])
        mine = slice(int(flat.first[request]), int(flat.first[request + 1]))
        inside = calls[flat.name[mine]] & (flat.start_ns[mine] >= got_ns)
        inside &= flat.start_ns[mine] < again_ns.get(request, int(flat.done_ns[request]))
        if not pool:
            inside &= flat.parent[mine] == flat.parent[span]
        above = int(flat.parent[span])
        outside_ns = int(flat.end_ns[above]) if above >= 0 else int(flat.left_ns[request])
        until_ns = int(flat.end_ns[mine][inside].max()) if inside.any() else max(outside_ns, got_ns)
        again_ns[request] = int(flat.start_ns[span])
        held.append((span, got_ns, until_ns))
    return held


def _share_held(flat: Flat, held: Sequence[tuple[int, int, int]]) -> Floats:
    """What of each span's own time lies in what is held, by the line of code, shape [spans].

    Args:
        held: span that waited, from when it had it until when.
    """
    inside_ns = np.zeros(len(flat.name), dtype=np.int64)
    holders = np.zeros(len(flat.requests), dtype=bool)
    for span, from_ns, until_ns in held:
        request = int(flat.request[span])
        holders[request] = True
        mine = slice(int(flat.first[request]), int(flat.first[request + 1]))
        overlap_ns = np.minimum(flat.end_ns[mine], until_ns) - np.maximum(flat.start_ns[mine], from_ns)
        inside_ns[mine] += np.maximum(overlap_ns, 0)
    own_ns = np.maximum(less_children(flat, flat.end_ns - flat.start_ns), 0)
    own_inside_ns = np.clip(less_children(flat, inside_ns), 0, own_ns)
    lines: dict[tuple[str, str], int] = {}
    line_of = [lines.setdefault((str(one.stage), one.place or one.label), len(lines)) for one in flat.names]
    line = np.array(line_of, dtype=np.int64)[flat.name]
    seen = holders[flat.request]
    sums = (np.bincount(line[seen], weights=of[seen], minlength=len(lines)) for of in (own_inside_ns, own_ns))
    inside, whole = sums
    share: Floats = np.divide(inside, whole, out=np.zeros(len(lines)), where=whole > 0)
    # Until the next one has it and runs, the holder goes on: that is no part of what it holds it for.
    some = inside >= _NOTHING * sum(until_ns - from_ns for _, from_ns, until_ns in held)
    share = np.where(share > _ALL, 1.0, np.where(some, share, 0.0))
    asks = np.isin(flat.endpoint, flat.endpoint[holders])
    return np.where(asks[flat.request], share[line], 0.0)

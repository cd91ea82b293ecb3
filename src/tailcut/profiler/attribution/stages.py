"""Each moment of a request's wall time belongs to one stage; sums are exact, in whole nanoseconds.

A moment belongs to the innermost span that covers it; where several run side by side, each gets the same part, and what
only waits gets none. But a collection of garbage stops them all, what others do on the event loop holds up what runs
there, and time in which a span's thread was ready to run but had no core is a wait. Code that goes on computing
while other threads work for it has its part, too: where it waits for them, that is a span of its own.

What no span covers is between client and server (network, or waiting to be accepted), or held up in the same ways. Else
nobody knows.

Requests whose spans lie one after the other and inside one another, nearly all, are done at once, as sums over arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tailcut.profiler.attribution.gaps import Gaps, attribute_gaps
from tailcut.profiler.attribution.span_table import STAGE_AT, STAGES, Bools, Flat, Ints, flatten
from tailcut.profiler.attribution.stalls import Stalls
from tailcut.profiler.records import Recording, Stage

_ON_LOOP = frozenset({Stage.FRAMEWORK, Stage.CODE})
"""Stages that make no headway while others hold the event loop. What awaits an answer does: it may come meanwhile."""
_WAITING = frozenset({Stage.WAIT, Stage.LOCK, Stage.LOOP})
"""Stages in which a request does nothing. Where it does something elsewhere meanwhile, that is what takes its time."""
_APART = _WAITING | {Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.PREPROCESS, Stage.MODEL}
"""Stages that may wait for another thread without a span for it: waits inside a driver's call are not recorded."""


@dataclass(frozen=True)
class Attribution:
    """Where the time went.

    Attributes:
        flat: the requests and spans.
        stage_ns: per request and stage (in the order of ``flat.STAGES``), shape [n, stages].
        self_ns: what belongs to each span itself, shape [spans].
        delay_ns: in which it belonged to it, too, but its thread had no core, shape [spans].
        gaps: what no span covers.
        stalls: what held up the process.
    """

    flat: Flat
    stage_ns: Ints
    self_ns: Ints
    delay_ns: Ints
    gaps: Gaps
    stalls: Stalls


class _Own(NamedTuple):
    """Of each span's own time, shape [spans]: its part, all of it, where its thread had no core, what held it up."""

    self_ns: Ints
    shared_ns: Ints
    delay_ns: Ints
    gc_ns: Ints
    loop_ns: Ints


def attribute(recording: Recording) -> Attribution:
    """Attribute the wall time of every request that was answered."""
    flat = flatten(recording.requests)
    stage_ns = np.zeros((len(flat.requests), len(STAGES)), dtype=np.int64)
    place_of = {one.number: place for place, one in enumerate(flat.requests)}
    wall_ns = (int(flat.intended_ns.min()), int(flat.done_ns.max())) if len(flat.requests) else (0, 0)
    stalls = Stalls.of(recording.moments, place_of, wall_ns)
    own, gaps = _own(flat, stalls)
    self_ns, delay_ns = _attribute_spans(flat, own, stage_ns)
    attribute_gaps(flat, gaps, stalls, stage_ns, beside=bool(recording.pilot.loop))
    return Attribution(flat, stage_ns, self_ns, delay_ns, gaps, stalls)


def self_of(flat: Flat, values: Ints) -> Ints:
    """Take from each span's CPU time or delay what its children had of it; -1 where that is not known, shape [spans].

    Only children on the same thread have had a part. Where that of one of them is not known, neither is the rest.
    """
    left = values.copy()
    children = np.flatnonzero(flat.parent >= 0)
    children = children[flat.thread[children] == flat.thread[flat.parent[children]]]
    np.subtract.at(left, flat.parent[children], values[children])
    left = np.maximum(left, 0)
    left[values < 0] = -1
    left[flat.parent[children[values[children] < 0]]] = -1
    return left


def _attribute_spans(flat: Flat, own: _Own, stage_ns: Ints) -> tuple[Ints, Ints]:
    """Add the spans' time to ``stage_ns``; return what belongs to each span itself, and the delays taken from it."""
    if not len(flat.name):
        return own.self_ns, own.self_ns
    on_loop = flat.is_of(_ON_LOOP) & (flat.thread == 0)
    loop_ns = np.where(on_loop, own.loop_ns, 0)
    self_ns: Ints = own.self_ns - own.gc_ns - loop_ns
    delay_ns = np.maximum(own.delay_ns, 0)
    # A span that shares its time with others has the same share of its thread's delay.
    beside = own.shared_ns > own.self_ns
    part = own.self_ns[beside] / own.shared_ns[beside]
    delay_ns[beside] = (delay_ns[beside] * part).astype(np.int64)
    delay_ns = np.minimum(delay_ns, self_ns)
    self_ns = self_ns - delay_ns
    np.add.at(stage_ns, (flat.request, flat.stage), self_ns)
    for stage, took_ns in ((Stage.GC, own.gc_ns), (Stage.LOOP, loop_ns), (Stage.WAIT, delay_ns)):
        np.add.at(stage_ns[:, STAGE_AT[stage]], flat.request, took_ns)
    return self_ns, delay_ns


def _own(flat: Flat, stalls: Stalls) -> tuple[_Own, Gaps]:
    """Find each span's own time, and the time that no span covers."""
    order, plain = _plain(flat)
    self_ns = less_children(flat, flat.end_ns - flat.start_ns)
    own = _Own(
        self_ns,
        self_ns.copy(),
        self_of(flat, flat.delay_ns),
        less_children(flat, stalls.gc_ns(flat.start_ns, flat.end_ns)),
        less_children(flat, stalls.loop_ns(flat.request, flat.start_ns, flat.end_ns)),
    )
    roots = order[(flat.parent[order] < 0) & plain[flat.request[order]]]
    gaps = Gaps.between(flat, roots, np.flatnonzero(plain))
    rank = _ranks(flat)
    waits = flat.is_of(_WAITING)
    computes = _computes(flat)
    uncovered: list[tuple[int, int, int]] = []
    for number in np.flatnonzero(~plain).tolist():
        found = _sweep_one(flat, stalls, rank, own.delay_ns, waits, computes, number)
        low, high = int(flat.first[number]), int(flat.first[number + 1])
        own.self_ns[low:high], own.shared_ns[low:high] = found.self_ns, found.shared_ns
        own.gc_ns[low:high], own.loop_ns[low:high] = found.gc_ns, found.loop_ns
        uncovered += [(number, start, end) for start, end in found.gaps]
    gaps.add(uncovered)
    return own, gaps


def less_children(flat: Flat, values: Ints) -> Ints:
    """Return what is left of each span's value without those of its children, shape [spans]; may be below 0.

    What another thread does meanwhile takes nothing from who computes.
    """
    left = values.copy()
    inner = np.flatnonzero((flat.parent >= 0) & ~_beside(flat))
    np.subtract.at(left, flat.parent[inner], values[inner])
    return left


def _computes(flat: Flat) -> Bools:
    """Tell which spans do not await, and have a span in them where they wait for another thread, shape [spans]."""
    found: Bools = (flat.cpu_ns >= 0) & ~flat.is_of(_APART)
    return found


def _beside(flat: Flat) -> Bools:
    """Tell which spans run on another thread while what handed them over goes on computing, shape [spans]."""
    found: Bools = (flat.parent >= 0) & _computes(flat)[flat.parent] & (flat.thread != flat.thread[flat.parent])
    return found


def _sweep_one(
    flat: Flat, stalls: Stalls, rank: Ints, delay_ns: Ints, waits: Bools, computes: Bools, number: int
) -> Swept:
    low, high = int(flat.first[number]), int(flat.first[number + 1])
    parent = flat.parent[low:high]
    wall_ns = int(flat.intended_ns[number]), int(flat.done_ns[number])
    long = low + np.flatnonzero(flat.end_ns[low:high] > flat.start_ns[low:high])  # spans of no length end no stretch
    edges = np.unique(np.concatenate([flat.start_ns[long], flat.end_ns[long], wall_ns]))
    start, end = edges[:-1], edges[1:]
    gc_ns = stalls.gc_ns(start, end).tolist()
    loop_ns = stalls.loop_ns(np.full(len(start), number), start, end).tolist()
    return sweep(
        flat.start_ns[low:high].tolist(),
        flat.end_ns[low:high].tolist(),
        np.where(parent >= 0, parent - low, -1).tolist(),
        # All that decides about a span's own time: spans that are equal in it may get the odd nanosecond in any order.
        list(
            zip(
                rank[flat.name[low:high]].tolist(),
                flat.thread[low:high].tolist(),
                delay_ns[low:high].tolist(),
                strict=True,
            )
        ),
        waits[low:high].tolist(),
        flat.thread[low:high].tolist(),
        computes[low:high].tolist(),
        wall_ns,
        dict(zip(start.tolist(), zip(gc_ns, loop_ns, strict=True), strict=True)),
    )


def _ranks(flat: Flat) -> Ints:
    """Each name's place in the order of names, shape [names]."""
    order = sorted(range(len(flat.names)), key=flat.names.__getitem__)
    return np.argsort(np.array(order, dtype=np.int64))


def _plain(flat: Flat) -> tuple[Ints, Bools]:
    """Sort the spans, and tell which requests' spans neither overlap nor leave their parents, nor run beside them."""
    plain = np.ones(len(flat.requests), dtype=bool)
    plain[flat.request[_beside(flat)]] = False
    inner = np.flatnonzero(flat.parent >= 0)
    outer = flat.parent[inner]
    leaves = (flat.start_ns[inner] < flat.start_ns[outer]) | (flat.end_ns[inner] > flat.end_ns[outer])
    plain[flat.request[inner[leaves]]] = False
    order = np.lexsort((flat.end_ns, flat.start_ns, flat.parent, flat.request))
    before, after = order[:-1], order[1:]
    siblings = (flat.request[before] == flat.request[after]) & (flat.parent[before] == flat.parent[after])
    overlap = siblings & (flat.start_ns[after] < flat.end_ns[before])
    plain[flat.request[after[overlap]]] = False
    return order, plain


# -- The sweep ---------------------------------------------------------------------------------------------------------


# One request whose spans overlap: from moment to moment, which spans are innermost.


class Swept(NamedTuple):
    """What belongs to each span itself, and of that what the process was held up, and the intervals without a span.

    Attributes:
        shared_ns: each span's whole time, of which ``self_ns`` is its share; equal where nothing ran beside it.
    """

    self_ns: list[int]
    shared_ns: list[int]
    gc_ns: list[int]
    loop_ns: list[int]
    gaps: list[tuple[int, int]]


def sweep(
    start_ns: Sequence[int],
    end_ns: Sequence[int],
    parent: Sequence[int],
    names: Sequence[Any],
    waits: Sequence[bool],
    thread: Sequence[int],
    computes: Sequence[bool],
    wall_ns: tuple[int, int],
    held_up: Mapping[int, tuple[int, int]],
) -> Swept:
    """Divide a request's time among its spans.

    Args:
        start_ns, end_ns: within ``wall_ns``.
        parent: index of the enclosing span; -1: none. Children may outlive their parents.
        names: decide, where a time does not divide evenly, who gets the odd nanosecond: never the spans' order. Any
            values that sort as the names do.
        waits: whether a span only waits. It has no part of a time in which another one does something: what it
            waits for, often enough (a future, a lock).
        thread: where each one ran.
        computes: whether a span goes on by itself while other threads work for it: only those inside it that run on
            its own thread have its time.
        wall_ns: from when to when.
        held_up: how long collections, and others' work on the loop, took from each moment at which a span starts or
            ends to the next.
    """
    above = [
        [one for one in _above(parent, number) if not computes[one] or thread[one] == thread[number]]
        for number in range(len(parent))
    ]
    rank = [(names[number], start_ns[number], end_ns[number]) for number in range(len(names))]
    events = [(at, 1, number) for number, at in enumerate(start_ns) if end_ns[number] > at]
    events += [(at, 0, number) for number, at in enumerate(end_ns) if at > start_ns[number]]
    events.sort()
    covered = [0] * len(parent)
    active: set[int] = set()
    found = Swept([0] * len(parent), [0] * len(parent), [0] * len(parent), [0] * len(parent), [])
    last = wall_ns[0]
    for at, begins, number in [*events, (wall_ns[1], 0, -1)]:
        if at > last:
            leaves = [one for one in active if not covered[one]]
            if len(leaves) > 1:
                leaves = [one for one in leaves if not waits[one]] or leaves
            if leaves:
                leaves.sort(key=rank.__getitem__)
                _divide(found, leaves, at - last, held_up.get(last, (0, 0)))
            else:
                found.gaps.append((last, at))
            last = at
        if number < 0:
            break
        (active.add if begins else active.discard)(number)
        for one in above[number]:
            covered[one] += 1 if begins else -1
    return found


def _divide(found: Swept, leaves: list[int], length_ns: int, held_ns: tuple[int, int]) -> None:
    gc_ns, loop_ns = held_ns
    for number in leaves:
        found.shared_ns[number] += length_ns
    _share((found.self_ns,), leaves, length_ns - gc_ns - loop_ns)
    if gc_ns:
        _share((found.self_ns, found.gc_ns), leaves, gc_ns)
    if loop_ns:
        _share((found.self_ns, found.loop_ns), leaves, loop_ns)


def _share(columns: tuple[list[int], ...], leaves: list[int], length_ns: int) -> None:
    each, odd = divmod(length_ns, len(leaves))
    for place, number in enumerate(leaves):
        for column in columns:
            column[number] += each + (place < odd)


def _above(parent: Sequence[int], number: int) -> list[int]:
    found: list[int] = []
    at = parent[number]
    while at >= 0 and at != number and len(found) < len(parent):
        found.append(at)
        at = parent[at]
    return found

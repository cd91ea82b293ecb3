"""Whose threads requests run in: the pool's for synchronous handlers, or an executor's, which is played as one as well.

How many threads an executor has, the profiled process said; that nobody else has them is known by the wait for one of
them, which every function begins with that is handed to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tailcut.profiler.attribution.cpu_split import FETCHING, QUEUEING, Bools
from tailcut.profiler.attribution.span_table import Flat, Ints, Name
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.forecast.lock_model import Hold, Taken
from tailcut.profiler.records import BACK_FROM_PROCESS, PROCESS_POOL, Stage

_ABOUT = 0.25
"""Of how many requests an executor's threads are enough for at once: where that is further from a whole number, what
requests do in it at the same time is not the same for all."""


@dataclass(frozen=True)
class Pools:
    """Threads that requests run in.

    Attributes:
        executors: those that can be played.
        in_pool: which spans hold a thread of the pool for synchronous handlers, shape [spans].
        in_process: which ran in a worker process of a pool, shape [spans].
        host: of those, the span of the service that handed the call over; of others the span itself, shape [spans].
    """

    executors: tuple[Taken, ...]
    in_pool: Bools
    in_process: Bools
    host: Ints


def find_pools(found: Attribution, threads: Mapping[str, int]) -> Pools:
    """Find who runs where.

    Args:
        threads: of each executor, by the label of the waits for it; what runs in others counts as the pool's.
    """
    flat = found.flat
    inside = np.zeros(len(flat.name), dtype=bool)
    executors: list[Taken] = []
    for label, count in threads.items():
        names = [number for number, name in enumerate(flat.names) if name.label == label and name.stage is Stage.WAIT]
        waits = np.isin(flat.name, names)
        runs = np.isin(flat.thread, flat.thread[waits]) & (flat.thread != 0) & ~waits
        if (taken := _taken(found, runs, label, count)) is not None:
            executors.append(taken)
            inside |= runs
    in_process = _in_process(flat)
    in_pool = _in_pool(flat) & ~inside & ~in_process
    # A handler in the pool that waits for what it handed to an executor has both threads.
    in_pool |= _with_inner(flat, in_pool) & (inside | in_process)
    return Pools(tuple(executors), in_pool, in_process, _hosts(flat, in_process))


def _in_process(flat: Flat) -> Bools:
    """Say which spans ran in a worker process: in its threads, which have numbers of their own, shape [spans]."""
    names = [number for number, name in enumerate(flat.names) if is_process_wait(name)]
    waits = np.isin(flat.name, names)
    found: Bools = np.isin(flat.thread, flat.thread[waits]) & (flat.thread != 0) & ~waits
    return found


def is_process_wait(name: Name) -> bool:
    """Tell a wait for a worker process from others."""
    return name.stage is Stage.WAIT and name.label.startswith(PROCESS_POOL)


def is_process_hop(name: Name) -> bool:
    """Tell what handing a call to a worker process costs beside it: the wait for one, and the way back."""
    return is_process_wait(name) or (name.stage is Stage.LOOP and name.label == BACK_FROM_PROCESS)


def _hosts(flat: Flat, in_process: Bools) -> Ints:
    """Find for each span in a worker the span of the service around it, shape [spans]."""
    host = np.arange(len(flat.name))
    while len(inner := np.flatnonzero(in_process[host] & (flat.parent[host] >= 0))):
        host[inner] = flat.parent[host[inner]]
    return host


def _taken(found: Attribution, runs: Bools, label: str, threads: int) -> Taken | None:
    """Say for how many requests at once an executor has threads; None where it is not used, or where that varies.

    A request that has several things done in it at once has several of its threads, and waits for them together.

    Args:
        runs: what ran in its threads, shape [spans].
    """
    flat = found.flat
    # What a task hands over to the executor that it runs in itself has one thread more.
    inner = (flat.parent >= 0) & runs[flat.parent] & (flat.thread == flat.thread[flat.parent])
    outermost = np.flatnonzero(runs & ~inner)
    if not len(outermost):
        return None
    held = _with_inner(flat, runs)
    request_ns = float((found.self_ns + found.delay_ns)[held].sum())
    enough_for = threads * request_ns / max(float(_recorded_ns(flat)[outermost].sum()), 1.0)
    at_once = min(max(round(enough_for), 1), threads)
    if abs(at_once - enough_for) > _ABOUT * enough_for:
        return None
    depth_ns = float(np.median(flat.start_ns[outermost] - flat.intended_ns[flat.request[outermost]]))
    process = label.startswith(PROCESS_POOL)
    return Taken(depth_ns, Hold(label, at_once, False, True, process), held.astype(np.float64))


def _recorded_ns(flat: Flat) -> Ints:
    """How long spans took, also beyond their request's reply, shape [spans]."""
    return np.array([span.end_ns - span.start_ns for one in flat.requests for span in one.spans], dtype=np.int64)


def _with_inner(flat: Flat, spans: Bools) -> Bools:
    """Add the spans inside of some, on whatever thread: who waits for them keeps its own, shape [spans]."""
    held = spans.copy()
    inner = np.flatnonzero(flat.parent >= 0)
    inner = inner[flat.start_ns[inner] < flat.end_ns[flat.parent[inner]]]
    while len(more := inner[held[flat.parent[inner]] & ~held[inner]]):
        held[more] = True
    return held


def _in_pool(flat: Flat) -> Bools:
    """Say which spans ran in a pool's thread, shape [spans].

    What a pool runs has a span of code there. A fetch right below what awaits it is in the driver's own thread.
    """
    handed = (flat.parent >= 0) & (flat.thread != flat.thread[flat.parent])
    return np.asarray((flat.thread != 0) & ~(flat.is_of(FETCHING | QUEUEING) & handed), dtype=np.bool_)

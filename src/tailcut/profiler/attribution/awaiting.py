"""What of the user's code on the event loop was awaiting: its time seems to be the code's, but nothing of it runs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tailcut.profiler.attribution.functions import SpanName, seen_ns, seen_shares
from tailcut.profiler.attribution.span_table import Bools, Floats, Ints
from tailcut.profiler.attribution.stages import Attribution, less_children, self_of
from tailcut.profiler.attribution.stalls import Stalls
from tailcut.profiler.records import Recording, Stage

_ENOUGH = 0.5
"""Of the time in which a function ran: where samples saw less, what they saw does not speak for it,"""
_MANY = 40
"""unless they are so many: of quick code most looks are lost, because its stacks change meanwhile."""

_SHORT_NS = 1e6
"""What code on the event loop computes in callbacks too short to be noted."""


def awaited_ns(found: Attribution, recording: Recording) -> Floats:
    """Say of each span's own time how much was an await of something that is not hooked, at least.

    That is what is left of user code on the event loop, where no span in it awaits, less the callbacks in which the
    request held the loop (whether they computed or blocked), and at least the code's part of the CPU time that the
    process used, but for what models' threads may have had: many short callbacks are known by that only.

    Returns:
        shape [spans]; zeros where neither is known, or CPU time is not.
    """
    flat, pilot = found.flat, recording.pilot
    none = np.zeros(len(flat.name))
    if not pilot.cpu_s or not len(flat.name):
        return none
    code = found.flat.is_of({Stage.CODE}) & (flat.thread == 0) & (self_of(flat, flat.cpu_ns) < 0)
    own_ns = np.where(code, found.self_ns, 0)
    held_ns = ran_ns(found, recording)
    computing = _computing_share(recording, found, code, held_ns)
    busy_ns = np.maximum(np.minimum(held_ns, own_ns), own_ns * computing)
    return np.where(code, np.maximum(own_ns - busy_ns, 0.0), none)


def poorly_seen(found: Attribution, recording: Recording, waited_ns: Floats) -> frozenset[SpanName]:
    """Name the code of whose time, less what it awaited, samples saw too little.

    Args:
        waited_ns: of ``awaited_ns``.
    """
    ran_ns = _by_code(found, np.maximum(found.self_ns - waited_ns, 0.0))
    shares, seen, many_ns = seen_shares(recording, ran_ns), seen_ns(recording), _MANY * recording.sample_interval_ns
    return frozenset(name for name, share in shares.items() if share < _ENOUGH and seen[name] < many_ns)


def ran_ns(found: Attribution, recording: Recording) -> Floats:
    """Say for how long each span's own part held the event loop in its request's callbacks, shape [spans].

    Short callbacks are not noted.
    """
    flat = found.flat
    if not len(flat.name):
        return np.zeros(0)
    place_of = {one.number: place for place, one in enumerate(flat.requests)}
    stalls = Stalls.of(recording.moments, place_of, (int(flat.intended_ns.min()), int(flat.done_ns.max())))
    held = stalls.own_ns(flat.request, flat.start_ns, flat.end_ns)
    return np.maximum(less_children(flat, held), 0).astype(np.float64)


def _computing_share(recording: Recording, found: Attribution, code: Bools, held_ns: Floats) -> float:
    """Return how much of the code computed, at most: what the process used beside spans that tell their CPU time.

    Where models ran, their threads may have used it: then the code computed what the rest allows, and what it was seen
    to.

    Args:
        code: which spans it is, shape [spans].
        held_ns: for how long each was seen on its thread, shape [spans].
    """
    flat = found.flat
    code_ns = float(found.self_ns[code].sum())
    every = len(recording.requests)
    if not code_ns or not every:
        return 1.0
    used_ns = recording.pilot.cpu_s * 1e9 * len(flat.requests) / every
    outermost = (flat.cpu_ns >= 0) & ((flat.parent < 0) | (flat.cpu_ns[flat.parent] < 0))
    left_ns = used_ns - float(flat.cpu_ns[outermost].sum())
    cores = max(int(recording.machine.get("cores", "1")), 1)
    threads_ns = float(found.self_ns[flat.is_of({Stage.MODEL})].sum()) * (cores - 1)
    sure_ns = float(np.minimum(found.self_ns, np.maximum(held_ns, _SHORT_NS))[code].sum())
    return min(max(left_ns - threads_ns, min(left_ns, sure_ns), 0.0) / code_ns, 1.0)


def _by_code(found: Attribution, spent_ns: Floats | Ints) -> dict[SpanName, float]:
    flat = found.flat
    sums = np.bincount(flat.name, weights=spent_ns, minlength=len(flat.names)).tolist()
    took_ns: defaultdict[SpanName, float] = defaultdict(float)
    for name, took in zip(flat.names, sums, strict=True):
        if name.stage == Stage.CODE:
            took_ns[name.label, name.place] += took
    return took_ns

"""Awaits of what is not hooked, in the user's code on the event loop: the time counts as code, but nothing runs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tailcut.profiler.attribution.functions import SpanName
from tailcut.profiler.attribution.span_table import Bools, Floats
from tailcut.profiler.attribution.stages import Attribution, less_children, self_of
from tailcut.profiler.records import Recording, Stage

_LEAST_LOOKS = 20
"""Looks that a function should have been seen in: with fewer, one that was not seen says nothing."""
_ENOUGH = 0.5
"""Of the time in which a function ran: where samples saw less, what they saw does not speak for it,"""
_MANY = 40
"""unless they are so many: of quick code most looks are lost, because its stacks change meanwhile."""

_SHORT_NS = 1e6
"""What code on the event loop computes in callbacks too short to be noted."""


def awaited_ns(found: Attribution, recording: Recording) -> Floats:
    """Return, per span, the least part of its own time that was an await of something that is not hooked.

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
    held_ns = ran_ns(found)
    computing = _computing_share(recording, found, code, held_ns)
    busy_ns = np.maximum(np.minimum(held_ns, own_ns), own_ns * computing)
    return np.where(code, np.maximum(own_ns - busy_ns, 0.0), none)


def poorly_seen(found: Attribution, recording: Recording, waited_ns: Floats) -> frozenset[SpanName]:
    """Name the code that samples saw for too little of the time in which it ran.

    Args:
        waited_ns: of ``awaited_ns``.
    """
    if not recording.samples or not recording.sampled_s:
        return frozenset()
    seen_ns: defaultdict[SpanName, int] = defaultdict(int)
    for sample in recording.samples:
        seen_ns[sample.code] += sample.weight_ns
    flat, part = found.flat, recording.sampled_s / recording.duration_s
    ran = np.bincount(flat.name, weights=np.maximum(found.self_ns - waited_ns, 0.0), minlength=len(flat.names)) * part
    expected_ns: defaultdict[SpanName, float] = defaultdict(float)
    for name, ran_ns in zip(flat.names, ran.tolist(), strict=True):
        if name.stage == Stage.CODE:
            expected_ns[name.label, name.place] += ran_ns
    least_ns, many_ns = _LEAST_LOOKS * recording.sample_interval_ns, _MANY * recording.sample_interval_ns
    return frozenset(
        name
        for name, ran_ns in expected_ns.items()
        # One that was never seen may have a name that stacks write in another way.
        if name in seen_ns and ran_ns >= least_ns and seen_ns[name] < min(_ENOUGH * ran_ns, many_ns)
    )


def ran_ns(found: Attribution) -> Floats:
    """Return how long each span's own part held the event loop in callbacks of its request, shape [spans].

    Short callbacks are not recorded.
    """
    flat = found.flat
    held = found.stalls.own_ns(flat.request, flat.start_ns, flat.end_ns)
    return np.maximum(less_children(flat, held), 0).astype(np.float64)


def _computing_share(recording: Recording, found: Attribution, code: Bools, held_ns: Floats) -> float:
    """Return how much of the code computed, at most: what the process used beside spans that tell their CPU time.

    Where models ran, their threads may have used it: then the code computed at least what was recorded of it.

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

"""What of the user's code on the event loop was awaiting: its time seems to be the code's, but nothing of it runs."""

from __future__ import annotations

import numpy as np

from tailcut.core.profiling.attribution import Attribution, less_children, self_of
from tailcut.core.profiling.dividing import Floats
from tailcut.core.profiling.holdups import Holdups
from tailcut.core.profiling.records import Recording, Stage


def awaited_ns(found: Attribution, recording: Recording) -> Floats:
    """Say of each span's own time how much was an await of something that is not hooked, at least.

    That is what is left of user code on the event loop, where no span in it awaits, less the callbacks in which the
    request held the loop (whether they computed or blocked), and at least the code's part of the CPU time that the
    process used: many short callbacks are known by that only.

    Returns:
        shape [spans]; zeros where callbacks are not watched or CPU time is not known.
    """
    flat, pilot = found.flat, recording.pilot
    none = np.zeros(len(flat.name))
    if pilot.loop != "asyncio" or not pilot.cpu_s or not len(flat.name):
        return none
    code = np.array([name.stage == Stage.CODE for name in flat.names], dtype=bool)[flat.name]
    code &= (flat.thread == 0) & (self_of(flat, flat.cpu_ns) < 0)
    own_ns = np.where(code, found.self_ns, 0)
    held_ns = _held_ns(found, recording)
    busy_ns = np.maximum(np.minimum(held_ns, own_ns), own_ns * _computing(found, recording, float(own_ns.sum())))
    return np.where(code, np.maximum(own_ns - busy_ns, 0.0), none)


def _held_ns(found: Attribution, recording: Recording) -> Floats:
    """How long each span's own part of its request's callbacks held the event loop."""
    flat = found.flat
    place_of = {one.number: place for place, one in enumerate(flat.requests)}
    holdups = Holdups.of(recording.moments, place_of, (int(flat.intended_ns.min()), int(flat.done_ns.max())))
    held = holdups.own_ns(flat.request, flat.start_ns, flat.end_ns)
    return np.maximum(less_children(flat, held), 0).astype(np.float64)


def _computing(found: Attribution, recording: Recording, code_ns: float) -> float:
    """The most of that code that can have been computing: all CPU time that no span tells of was it."""
    flat = found.flat
    seen = len(flat.requests) / max(len(recording.requests), 1)
    told = (flat.cpu_ns >= 0) & ((flat.parent < 0) | (flat.cpu_ns[flat.parent] < 0))
    left_ns = recording.pilot.cpu_s * 1e9 * seen - float(flat.cpu_ns[told].sum())
    return min(max(left_ns / code_ns, 0.0), 1.0) if code_ns else 1.0

"""Apportion CPU time of the process that no span covers.

Whoever serves the request on the interpreter (the HTTP server, a driver that awaits) makes it as much longer. What
is done after the reply takes the interpreter from others. Threads inside a model's call and child processes take cores.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from tailcut.profiler.attribution.cpu_split import FETCHING, WAITING, Bools, Floats
from tailcut.profiler.attribution.span_table import Flat, Ints
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.forecast.phases import Part
from tailcut.profiler.records import Recording, Stage

_EVERYBODYS = 0.2
"""Of what tracing takes of a core for a request that is traced: what each pays, traced or not, since hooks look whether
it is, and callbacks of the event loop are timed. The pilot of flight_risk, in turns: 0.15 ms a request at one in two,
0.08 at one in eight, 0.03 where none is traced.
"""
_BLOCKS = 0.5
"""Of the time of a step after the reply: what is off the core for more than that waits, and not for a core."""
_SHORT_NS = 1e6
"""What a driver's call computes, and code on the event loop, in callbacks too short to be noted."""


class UnattributedCpu(NamedTuple):
    """CPU time that no span covers.

    Attributes:
        served_ns: per request, on the interpreter, before the reply: the HTTP server's.
        driving_ns: the same of each request that has calls of drivers that await: theirs; 0: the request has none.
            Shape [n].
        late: of each request, what is computed after its reply; n of them.
        model_share: of a model's own time: what its other threads compute meanwhile.
        beside_ns: per request, what is left: on any core, and nobody waits for it.
    """

    served_ns: float
    driving_ns: Floats
    late: tuple[tuple[Part, ...], ...]
    model_share: float
    beside_ns: float


def read_untold(
    recording: Recording, found: Attribution, cpu_ns: Floats, wait_ns: Floats, network_ns: Ints, seen_ns: Floats
) -> UnattributedCpu:
    """Say whose the CPU time is that the process used beside what spans have.

    No request was served for longer than it took: what its time between client and server cannot hold, nor the calls
    of drivers that await, is given to the threads of models, and what those cannot have computed to nobody.

    Args:
        cpu_ns, wait_ns: of each span, shape [spans].
        network_ns: of each request, between client and server, shape [n].
        seen_ns: for how long each span held the event loop, as far as that was seen, shape [spans].
    """
    flat, count = found.flat, len(found.flat.requests)
    if not recording.pilot.cpu_s or not count:
        return UnattributedCpu(0.0, np.zeros(count), ((),) * count, 0.0, 0.0)
    models = flat.is_of({Stage.MODEL})
    late, late_models_ns = late_parts(recording, flat, cpu_ns), _late_ns(flat, cpu_ns, models)
    late_ns = sum(part.cpu_ns for parts in late for part in parts)
    whole_ns = max(_used_ns(recording, found) - float(cpu_ns.sum()) - late_ns - late_models_ns, 0.0)
    awaited = flat.is_of(WAITING) & (flat.thread == 0) & (flat.cpu_ns < 0)
    awaited_ns = np.where(awaited, np.minimum(wait_ns, np.maximum(seen_ns, _SHORT_NS)), 0.0)
    drivers = awaited & flat.is_of(FETCHING)
    # The server's first: alike in every request. What drivers compute goes with their calls.
    receiving_ns = float(awaited_ns[~drivers].sum()) / count
    server_ns = min(whole_ns / count, float(np.median(network_ns)) + receiving_ns)
    driving_ns, calling = np.zeros(count), np.unique(flat.request[drivers])
    driven_ns = min(whole_ns - server_ns * count, float(awaited_ns[drivers].sum()))
    driving_ns[calling] = max(driven_ns, 0.0) / max(len(calling), 1)
    rest_ns = max(whole_ns - server_ns * count - float(driving_ns.sum()), 0.0)
    model_ns = float((cpu_ns + wait_ns)[models].sum())
    share = min(rest_ns / model_ns, float(_cores(recording) - 1)) if model_ns else 0.0
    beside_ns = max(rest_ns - share * model_ns, 0.0) + late_models_ns
    return UnattributedCpu(server_ns, driving_ns, late, share, beside_ns / count)


def late_parts(recording: Recording, flat: Flat, cpu_ns: Floats) -> tuple[tuple[Part, ...], ...]:
    """Lay out what each request leaves to be computed after its reply.

    That is what was counted as background work. Where nothing was, it is what spans tell that began after the reply, in
    equal parts.
    """
    count = len(flat.requests)
    late_ns = _late_ns(flat, cpu_ns, ~flat.is_of({Stage.MODEL})) / max(count, 1)
    if not recording.background:
        return ((_late(late_ns, 0.0, "thread"),) if late_ns else (),) * count
    found: defaultdict[int, list[Part]] = defaultdict(list)
    for one in recording.background:
        found[one.request].append(_late(float(one.cpu_ns), float(one.took_ns), one.where))
    return tuple(tuple(found[one.number]) for one in flat.requests)


def _late(cpu_ns: float, took_ns: float, where: str) -> Part:
    """A part after the reply. What holds the event loop without computing, as ``time.sleep`` does, blocks it."""
    off_ns = max(took_ns - cpu_ns, 0.0)
    blocks = where == "loop" and off_ns > _BLOCKS * took_ns
    wait_ns = off_ns if blocks else 0.0
    return Part(
        Stage.UNATTRIBUTED, -1, cpu_ns, wait_ns, False, late=True, loop=where == "loop", blocks=blocks,
        process=where == "process",
    )  # fmt: skip


def computing_share(recording: Recording, found: Attribution, code: Bools, ran_ns: Floats) -> float:
    """Say how much of the code whose CPU time nobody told was computing, at most: what the process used beside spans.

    Where models ran, their threads may have used it: then the code computed what the rest allows, and what it was seen
    to. Code that awaits what is not hooked seems to run, but takes no core.

    Args:
        code: which spans it is, shape [spans].
        ran_ns: for how long each was seen on its thread, shape [spans].

    Returns:
        1 where the process's CPU time is not known.
    """
    flat = found.flat
    code_ns = float(found.self_ns[code].sum())
    if not recording.pilot.cpu_s or not code_ns:
        return 1.0
    left_ns = _used_ns(recording, found) - float(flat.cpu_ns[_outermost(flat)].sum())
    threads_ns = float(found.self_ns[flat.is_of({Stage.MODEL})].sum()) * (_cores(recording) - 1)
    sure_ns = float(np.minimum(found.self_ns, np.maximum(ran_ns, _SHORT_NS))[code].sum())
    return min(max(left_ns - threads_ns, min(left_ns, sure_ns), 0.0) / code_ns, 1.0)


def _used_ns(recording: Recording, found: Attribution) -> float:
    """CPU time of the process that the good requests are responsible for."""
    count = len(found.flat.requests)
    every = max(len(recording.requests) + len(recording.untraced), 1)
    return recording.pilot.cpu_s * 1e9 * count / every + _tracing_ns(recording) * (1.0 - recording.traced) * count


def _tracing_ns(recording: Recording) -> float:
    """What tracing takes of a core for each request that is traced, and for no other.

    What was measured is the mean of all, with what everybody pays: added = (traced + everybody's) x what is looked for.
    """
    overhead = recording.overhead
    if overhead is None or not overhead.rounds:
        return 0.0
    added_ms = float(np.median([seen.cpu_ms - plain.cpu_ms for plain, seen in overhead.rounds]))
    return max(added_ms, 0.0) * 1e6 / (recording.traced + _EVERYBODYS)


def _late_ns(flat: Flat, cpu_ns: Floats, which: Bools) -> float:
    """What such spans computed that began after their request's reply, but for what is in the request's time."""
    late = (flat.start_ns >= flat.left_ns[flat.request]) & which
    return max(float(flat.cpu_ns[late & _outermost(flat)].sum()) - float(cpu_ns[late].sum()), 0.0)


def _outermost(flat: Flat) -> Bools:
    """Which spans tell CPU time that no span around them has told, shape [spans]."""
    found: Bools = (flat.cpu_ns >= 0) & ((flat.parent < 0) | (flat.cpu_ns[flat.parent] < 0))
    return found


def _cores(recording: Recording) -> int:
    return max(int(recording.machine.get("cores", "1")), 1)

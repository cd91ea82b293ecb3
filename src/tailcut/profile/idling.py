"""Runs at half the rate, before a recording and after it: what does a request take of a core where fewer come?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailcut.core.profiling.idling import fit_slope
from tailcut.core.profiling.records import Recording
from tailcut.load import LoadPlan, RunFacts, Samples, measure

_ENOUGH, _LEAST_S, _MOST_S = 200.0, 4.0, 10.0
_WARM_S = 0.5


def cpu_each_s(samples: Samples, facts: RunFacts) -> float:
    """Tell what a request that was replied to took of a core in a run, in seconds; 0 where that is not known."""
    replies = int(((samples.intended_ns >= samples.measured_from_ns) & (samples.status > 0)).sum())
    return (facts.cpu_s or 0.0) / replies if replies else 0.0


def at_half(load: LoadPlan) -> float:
    """Send half of the load for some seconds and return what a request took, as ``cpu_each_s``.

    Raises:
        LoadTestError: it could not be sent.
    """
    rate = (load.rate or 0.0) / 2
    duration_s = min(max(_ENOUGH / rate, _LEAST_S), _MOST_S)
    return cpu_each_s(
        *measure(msgspec.structs.replace(load, rate=rate, duration_s=duration_s, warmup_s=_WARM_S, seed=load.seed + 4))
    )


def with_slope(recording: Recording, each_s: float, halves_s: Sequence[float]) -> Recording:
    """Add by which power of the rate a request takes less of a core.

    Args:
        each_s: what a request took while it was recorded.
        halves_s: what one took at half the rate, before the recording and after it.
    """
    half_s = sum(halves_s) / len(halves_s) if halves_s and min(halves_s) > 0 else 0.0
    if not half_s or each_s <= 0:
        return recording
    slope = fit_slope((recording.rate / 2, half_s), (recording.rate, each_s))
    return msgspec.structs.replace(recording, pilot=msgspec.structs.replace(recording.pilot, cpu_slope=slope))

"""The simulation is made to repeat what was measured, before any lever.

Waits outside the process (a database's answer) are recorded with what made the database slow at that moment: the
requests' own load, which the simulation lets them wait for again, as well as other things.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from tailcut.core.profiling.forecast import forecast, latency_ms
from tailcut.core.profiling.levers import State
from tailcut.core.profiling.work import Work, waiting
from tailcut.core.statistics import percentile

_MOST_WAIT_SCALE = 1.6
_STEPS = 7
_SEED = 5
_CLOSE = 1.02
_LEAST_KEPT = 0.5
"""Of the spread of waits, whatever the p95: a database has slow queries of its own, and the median moves with it."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How well the simulation repeats what was measured, before any lever.

    Attributes:
        wait_scale: what waits were scaled by, so that the medians agree.
        spread_kept: of what requests wait beyond the median one, the share that was left, so that the p95 agrees; half
            of it at least.
        measured_p50_ms, measured_p95_ms, simulated_p50_ms, simulated_p95_ms: at the rate of the recording.
    """

    wait_scale: float
    spread_kept: float = 1.0
    measured_p50_ms: float
    measured_p95_ms: float
    simulated_p50_ms: float
    simulated_p95_ms: float

    @property
    def p95_error(self) -> float:
        """Simulated over measured p95, less one."""
        return self.simulated_p95_ms / self.measured_p95_ms - 1.0 if self.measured_p95_ms else 0.0


def calibrate(state: State) -> tuple[State, Calibration]:
    """Scale the waits so that the simulated median is the measured one, and the p95 no more than the measured one.

    The longest waits are those that the requests' own load has most of, so theirs is what is taken out where the
    simulated p95 is too long. Where it is too short something is not simulated, and no wait is made longer for it.
    """
    p50_ms, p95_ms = (percentile(state.work.latency_ns, share) / 1e6 for share in (0.5, 0.95))
    scale = _wait_scale(state, p50_ms)
    state = replace(state, work=state.work.scaled(wait=scale))
    kept = _spread_kept(state, p95_ms)
    state = replace(state, work=_drawn_in(state.work, kept))
    again = forecast(state, state.work.rate)
    return state, Calibration(
        wait_scale=scale,
        spread_kept=kept,
        measured_p50_ms=p50_ms,
        measured_p95_ms=p95_ms,
        simulated_p50_ms=again.p50_ms,
        simulated_p95_ms=again.p95_ms,
    )


def _wait_scale(state: State, p50_ms: float) -> float:
    low, high = 0.0, _MOST_WAIT_SCALE
    for _ in range(_STEPS):
        middle = (low + high) / 2
        scaled = replace(state, work=state.work.scaled(wait=middle))
        if latency_ms(scaled, state.work.rate, 0.5, seed=_SEED) > p50_ms:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _spread_kept(state: State, p95_ms: float) -> float:
    """How much of the waits' spread may stay; 1 where the p95 is no longer than the measured one anyway."""

    def simulated_ms(kept: float) -> float:
        return forecast(replace(state, work=_drawn_in(state.work, kept)), state.work.rate).p95_ms

    if simulated_ms(1.0) <= _CLOSE * p95_ms:
        return 1.0
    low, high = _LEAST_KEPT, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if simulated_ms(middle) > p95_ms:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _drawn_in(work: Work, kept: float) -> Work:
    """Shorten the waits of requests that wait longer than the median one, but for a share of what they wait beyond."""
    waits_ns = [sum(part.wait_ns for part in job) for job in work.jobs]
    usual_ns = float(np.median(waits_ns)) if waits_ns else 0.0
    factors = [(usual_ns + kept * (one - usual_ns)) / one if one > usual_ns else 1.0 for one in waits_ns]
    return replace(work, jobs=tuple(waiting(job, factor) for job, factor in zip(work.jobs, factors, strict=True)))

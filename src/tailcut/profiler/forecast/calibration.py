"""The simulation is brought near to what was measured, before any lever.

Waits outside the process (a database's answer) are recorded with what made the database slow at that moment: the
requests' own load, which the simulation lets them wait for again, as well as other things.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import msgspec
import numpy as np

from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.cpu_split import FETCHING
from tailcut.profiler.forecast.forecast import forecast, latency_ms
from tailcut.profiler.forecast.state import NONE, Excess, State, recorded_ns
from tailcut.profiler.forecast.work import Work

_MOST_WAIT_SCALE = 1.6
_STEPS, _CUT_STEPS = 7, 4
_SEED, _SEEDS = 5, (5, 6, 7)
_CLOSE = 1.02
_LEAST_KEPT = 0.5
"""Of the spread of waits, whatever the p95: a database has slow queries of its own, and the median moves with it."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How well the simulation repeats what was measured, before any lever.

    Attributes:
        wait_scale: what waits were scaled by, so that the medians agree.
        spread_kept: of what requests wait for fetches beyond the median one, the share that was left; half at least.
        excess: share of the p95 that is too much even then.
        measured_p50_ms, measured_p95_ms, simulated_p50_ms, simulated_p95_ms: at the rate of the recording; simulated
            before the spread was cut, because what a cut takes away says nothing for the simulation.
    """

    wait_scale: float
    spread_kept: float = 1.0
    excess: float = 0.0
    measured_p50_ms: float
    measured_p95_ms: float
    simulated_p50_ms: float
    simulated_p95_ms: float

    @property
    def p95_error(self) -> float:
        """Simulated over measured p95, less one."""
        return self.simulated_p95_ms / self.measured_p95_ms - 1.0 if self.measured_p95_ms else 0.0


def calibrate(state: State) -> tuple[State, Calibration]:
    """Scale the waits so that the simulated median is the measured one; then bring a p95 that is too long nearer.

    Where queries wait for the database's cores in the simulation, requests wait for their own load there, and once more
    in what was recorded: the longest waits have most of that, so what is beyond the median one is cut. The median falls
    with it by some percent. What is too much even so is taken off what is foretold, as far as levers leave the fetches
    that were recorded. Where the p95 is too short something is not simulated, and no wait is made longer for it.
    """
    p50_ms, p95_ms = (percentile(state.work.latency_ns, share) / 1e6 for share in (0.5, 0.95))
    scale = _wait_scale(state, p50_ms)
    state = replace(state, work=state.work.scaled(wait=scale))
    found = forecast(state, state.work.rate)
    kept, excess = 1.0, NONE
    if state.service.has_database and found.p95_ms > _CLOSE * p95_ms > 0.0:
        kept = _spread_kept(state, p95_ms / found.p95_ms)
        state = replace(state, work=_drawn_in(state.work, kept))
        excess = Excess(max(1.0 - p95_ms / forecast(state, state.work.rate).p95_ms, 0.0), recorded_ns(state.work))
        state = replace(state, excess=excess)
    return state, Calibration(
        wait_scale=scale,
        spread_kept=kept,
        excess=excess.share,
        measured_p50_ms=p50_ms,
        measured_p95_ms=p95_ms,
        simulated_p50_ms=found.p50_ms,
        simulated_p95_ms=found.p95_ms,
    )


def _wait_scale(state: State, p50_ms: float) -> float:
    def too_long(scale: float) -> bool:
        work = state.work.scaled(wait=scale)
        return latency_ms(replace(state, work=work), work.rate, 0.5, seed=_SEED) > p50_ms

    return _halved(too_long, 0.0, _MOST_WAIT_SCALE, _STEPS)


def _spread_kept(state: State, wanted: float) -> float:
    """How much of the spread of fetches' waits may stay for the p95 to become so many times what it is."""

    def p95_ms(work: Work) -> float:
        return median([latency_ms(replace(state, work=work), work.rate, 0.95, seed=seed) for seed in _SEEDS])

    most_ms = wanted * p95_ms(state.work)
    return _halved(lambda kept: p95_ms(_drawn_in(state.work, kept)) > most_ms, _LEAST_KEPT, 1.0, _CUT_STEPS)


def _halved(too_much: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Find what is just not too much, by halving the interval."""
    for _ in range(steps):
        middle = (low + high) / 2
        if too_much(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _drawn_in(work: Work, kept: float) -> Work:
    """Shorten the fetches' waits of requests that wait for them longer than the median one, but for a share of that."""
    waits_ns = [sum(part.wait_ns for part in job if part.stage in FETCHING) for job in work.jobs]
    usual_ns = float(np.median(waits_ns)) if waits_ns else 0.0
    factors = [(usual_ns + kept * (one - usual_ns)) / one if one > usual_ns else 1.0 for one in waits_ns]
    jobs = tuple(
        tuple(part.scaled(wait=factor) if part.stage in FETCHING else part for part in job)
        for job, factor in zip(work.jobs, factors, strict=True)
    )
    return replace(work, jobs=jobs)

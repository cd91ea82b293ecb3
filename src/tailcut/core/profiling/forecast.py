"""What the p95 and the capacity would be: requests drawn whole from those measured, played through queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np

from tailcut.core.profiling.levers import State
from tailcut.core.profiling.queueing import At, Phase, Played, Service, play
from tailcut.core.profiling.records import Stage
from tailcut.core.profiling.work import Job
from tailcut.core.statistics import percentile

REQUESTS = 2500
ROUNDS = 3
_CAPACITY_REQUESTS = 1500
_CAPACITY_TOLERANCE = 0.05
_MOST_WAIT_SCALE = 1.6
_STEPS = 7
_HIGHEST_RATE = 1e6


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be expected at a rate.

    Attributes:
        rate: requests per second.
        p50_ms, p95_ms: the median of the rounds.
        p95_low_ms, p95_high_ms: the lowest and the highest round.
        busy_share: of the time that the interpreter works; 1 and more: the queue grows without end.
        capacity: highest rate within the limit; None where none was asked for.
    """

    rate: float
    p50_ms: float
    p95_ms: float
    p95_low_ms: float
    p95_high_ms: float
    busy_share: float
    capacity: float | None = None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How well the simulation repeats what was measured, before any lever.

    Attributes:
        wait_scale: what waits were scaled by, so that the medians agree.
        measured_p50_ms, measured_p95_ms, simulated_p50_ms, simulated_p95_ms: at the rate of the recording.
    """

    wait_scale: float
    measured_p50_ms: float
    measured_p95_ms: float
    simulated_p50_ms: float
    simulated_p95_ms: float

    @property
    def p95_error(self) -> float:
        """Simulated over measured p95, less one."""
        return self.simulated_p95_ms / self.measured_p95_ms - 1.0 if self.measured_p95_ms else 0.0


def forecast(
    state: State, rate: float, *, limit_ms: float | None = None, share: float = 0.95, rounds: int = ROUNDS
) -> Forecast:
    """Play requests at a rate, in rounds; and search the highest rate at which the percentile keeps within a limit.

    Args:
        rate: requests per second, Poisson arrivals.
        limit_ms: None: no search for the capacity.
        share: the percentile that the limit is for; what is told as p95 is this one.
        rounds: with arrivals and requests of their own.
    """
    laid = _Laid(state)
    played = [laid.play(rate, REQUESTS, seed) for seed in range(rounds)]
    tails = sorted(percentile(one.latency_ns, share) / 1e6 for one in played)
    middles = sorted(percentile(one.latency_ns, 0.5) / 1e6 for one in played)
    return Forecast(
        rate=rate,
        p50_ms=middles[rounds // 2],
        p95_ms=tails[rounds // 2],
        p95_low_ms=tails[0],
        p95_high_ms=tails[-1],
        busy_share=max(one.busy_share for one in played),
        capacity=None if limit_ms is None else _capacity(state, laid, limit_ms, share),
    )


def capacity(state: State, limit_ms: float, *, share: float = 0.95) -> float:
    """Find the highest rate at which a percentile keeps within a limit, to five percent; 0 where there is none."""
    return _capacity(state, _Laid(state), limit_ms, share)


def _capacity(state: State, laid: _Laid, limit_ms: float, share: float) -> float:
    def within(rate: float) -> bool:
        played = laid.play(rate, _CAPACITY_REQUESTS, 11)
        return percentile(played.latency_ns, share) / 1e6 <= limit_ms

    high = _saturation(state)
    if not within(min(1.0, high / 100)):
        return 0.0
    if high >= _HIGHEST_RATE and within(_HIGHEST_RATE):
        return _HIGHEST_RATE
    low = next((high / parts for parts in (2, 8) if within(high / parts)), high / 100)
    return _highest(within, low, high)


def calibrate(state: State) -> tuple[State, Calibration]:
    """Scale the waits so that the simulated median is the measured one.

    Waits outside the process (a database's answer) are recorded with what made the database slow at that moment: the
    requests' own load as well as other things.
    """
    work = state.work
    p50_ms = percentile(work.latency_ns, 0.5) / 1e6
    low, high = 0.0, _MOST_WAIT_SCALE
    for _ in range(_STEPS):
        middle = (low + high) / 2
        played = _Laid(_scaled(state, middle)).play(work.rate, _CAPACITY_REQUESTS, 5)
        if percentile(played.latency_ns, 0.5) / 1e6 > p50_ms:
            high = middle
        else:
            low = middle
    chosen = (low + high) / 2
    state = _scaled(state, chosen)
    again = forecast(state, work.rate)
    return state, Calibration(
        wait_scale=chosen,
        measured_p50_ms=p50_ms,
        measured_p95_ms=percentile(work.latency_ns, 0.95) / 1e6,
        simulated_p50_ms=again.p50_ms,
        simulated_p95_ms=again.p95_ms,
    )


def _scaled(state: State, wait: float) -> State:
    return replace(state, work=state.work.scaled(wait=wait))


def _highest(within: Callable[[float], bool], low: float, high: float) -> float:
    while high / low > 1 + _CAPACITY_TOLERANCE:
        middle = float(np.sqrt(low * high))
        if within(middle):
            low = middle
        else:
            high = middle
    return low


def _saturation(state: State) -> float:
    """The rate at which something has no time left, at least: the interpreters, the executors, the pool's threads."""
    service, work = state.service, state.work
    model_ns = work.cpu_of(Stage.MODEL) * (1.0 - service.batch_share * (1 - 1 / service.max_rows))
    python_ns = work.cpu_ns - work.cpu_of(Stage.MODEL)
    limits = [_HIGHEST_RATE]
    if service.executors:
        limits.append(service.executors / max(model_ns, 1.0) * 1e9)
    else:
        python_ns += model_ns
    database_ns, processes = work.wait_of(Stage.SQL) * service.database_share, max(service.processes, 1)
    limits.append(processes / max(python_ns, 1.0) * 1e9)
    if service.beside:
        limits.append((processes + service.database) / max(python_ns + database_ns, 1.0) * 1e9)
    elif service.database:
        limits.append(service.database / max(database_ns, 1.0) * 1e9)
    return 1.1 * min(limits)


class _Laid:
    """Requests laid out in phases, to be played at several rates."""

    def __init__(self, state: State) -> None:
        self._service = state.service
        self._phases = [phases_of(job, state.service) for job in state.work.jobs]

    def play(self, rate: float, count: int, seed: int) -> Played:
        generator = np.random.default_rng(seed)
        arrivals_ns = np.cumsum(generator.exponential(1e9 / rate, count))
        chosen = generator.integers(0, len(self._phases), count).tolist()
        return play(self._service, arrivals_ns, [self._phases[place] for place in chosen])


def phases_of(job: Job, service: Service) -> list[Phase]:
    """Lay out a request's phases, those alike that follow one another as one."""
    phases: list[Phase] = []
    threads = [number for number, part in enumerate(job) if part.thread] if service.threads else []
    last = threads[-1] if threads else -1
    queries = service.database > 0 or service.beside
    computing = service.database_share if queries else 0.0

    def add(at: At, length_ns: float) -> None:
        if phases and phases[-1][0] is at and at is not At.MODEL:
            phases[-1] = (at, phases[-1][1] + length_ns)
        elif length_ns > 0:
            phases.append((at, length_ns))

    for number, part in enumerate(job):
        if threads and number == threads[0]:
            phases.append((At.TAKE, 0.0))
        in_database_ns = part.wait_ns * computing if part.stage == Stage.SQL else 0.0
        add(At.NOWHERE, part.wait_ns - in_database_ns)
        add(At.DATABASE, in_database_ns)
        add(At.MODEL if part.stage == Stage.MODEL else At.PYTHON, part.cpu_ns)
        if number == last:
            phases.append((At.GIVE, 0.0))
    return phases

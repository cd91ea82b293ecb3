"""What the p95 and the capacity would be: requests drawn whole from those measured, played through queues."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.statistics import percentile, rank
from tailcut.profiler.forecast.cpu_scaling import FARTHEST
from tailcut.profiler.forecast.idle_cost import at_rate, factor_at
from tailcut.profiler.forecast.phases import Job, Part
from tailcut.profiler.forecast.queueing import Played, keeps_within, play
from tailcut.profiler.forecast.service_model import THREAD, At, Phase, ServiceModel
from tailcut.profiler.forecast.state import State
from tailcut.profiler.records import Stage

REQUESTS = 2500
ROUNDS = 3
_CAPACITY_REQUESTS = 1500
_CAPACITY_TOLERANCE = 0.05
_HIGHEST_RATE = 1e6
_LEAST_RATE = 1.0
_BEYOND = 1.1
_TAIL = 0.9
"""From this percentile on what is known of the p95 holds."""


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
    tails = sorted(laid.percentile_ms(one, share) for one in played)
    middles = sorted(percentile(one.latency_ns, 0.5) / 1e6 for one in played)
    return Forecast(
        rate=rate,
        p50_ms=middles[rounds // 2],
        p95_ms=tails[rounds // 2],
        p95_low_ms=tails[0],
        p95_high_ms=tails[-1],
        busy_share=max(one.busy_share for one in played),
        capacity=None if limit_ms is None else _capacity(laid, limit_ms, share),
    )


def latency_ms(state: State, rate: float, share: float, *, seed: int) -> float:
    """Play requests at a rate once, fewer than for a forecast; return a percentile."""
    laid = _Laid(state)
    return laid.percentile_ms(laid.play(rate, _CAPACITY_REQUESTS, seed), share)


def capacity(state: State, limit_ms: float, *, share: float = 0.95) -> float:
    """Find the highest rate at which a percentile keeps within a limit, to five percent; 0 where there is none."""
    return _capacity(_Laid(state), limit_ms, share)


def _capacity(laid: _Laid, limit_ms: float, share: float) -> float:
    def within(rate: float) -> bool:
        # So few requests may be answered in time before a queue that grows is long.
        if rate > laid.saturation(rate):
            return False
        return laid.keeps_within(rate, _CAPACITY_REQUESTS, 11, limit_ms=limit_ms, share=share)

    most = laid.saturation(_HIGHEST_RATE)
    high, least = _BEYOND * most, min(_LEAST_RATE, most / 100)
    if most >= _HIGHEST_RATE and within(_HIGHEST_RATE):
        return _HIGHEST_RATE
    # Where requests take less of a core the more come, a percentile may fall with the rate before it rises.
    tried = {high / 2, high / 8, high / 100, least, *(rate for rate in laid.changing if rate < high)}
    low = next((rate for rate in sorted(tried, reverse=True) if within(rate)), 0.0)
    return _highest(within, low, high) if low else 0.0


def _highest(within: Callable[[float], bool], low: float, high: float) -> float:
    while high / low > 1 + _CAPACITY_TOLERANCE:
        middle = float(np.sqrt(low * high))
        if within(middle):
            low = middle
        else:
            high = middle
    return low


def _saturation(state: State) -> float:
    """The rate at which something has no time left: the interpreters, the executors, the machine's cores, a lock."""
    service, work = state.service, state.work
    batched = _batched(service)
    process_ns, process_model_ns = work.process_of(), work.process_of(Stage.MODEL)
    model_ns = (work.cpu_of(Stage.MODEL) - process_model_ns) * batched
    python_ns = work.cpu_ns - work.cpu_of(Stage.MODEL) - (process_ns - process_model_ns)
    computed_ns, database_ns = python_ns + model_ns, work.wait_of(Stage.SQL) * service.database_share
    processes = max(service.processes, 1)
    cores = service.cores or processes + service.executors
    used_ns = computed_ns + process_ns + work.beside_of(model=True) * batched + work.beside_of(model=False)
    limits = [(cores, used_ns), (processes, python_ns if service.executors else computed_ns)]
    if service.executors:
        limits.append((service.executors, model_ns))
    if service.beside:
        limits.append((cores + service.database, used_ns + database_ns))
    elif service.database:
        limits.append((service.database, database_ns))
    limits += [(at_once, work.held_ns(hold) * batched) for hold, at_once in enumerate(service.held)]
    if service.loops:
        limits.append((processes, python_ns + work.blocking_ns))
    return min(_HIGHEST_RATE, *(servers / max(took_ns, 1.0) * 1e9 for servers, took_ns in limits))


def _batched(service: ServiceModel) -> float:
    """What is left of a row's time in a full batch."""
    return 1.0 - service.batch_share * (1 - 1 / service.max_rows)


class _Laid:
    """Requests laid out in phases, to be played at several rates."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._excess = state.excess.of(state.work)
        # By the factor of a rate: beyond those that it is known for, all rates have the same.
        self._at: dict[float, tuple[ServiceModel, list[list[Phase]], float]] = {}
        recorded = state.work.rate
        self.changing = (
            (recorded / FARTHEST, recorded, recorded * FARTHEST**0.5, recorded * FARTHEST)
            if state.known.path_slope
            else ()
        )

    def play(self, rate: float, count: int, seed: int) -> Played:
        return play(*self._drawn(rate, count, seed))

    def keeps_within(self, rate: float, count: int, seed: int, *, limit_ms: float, share: float) -> bool:
        """Return whether a percentile of the simulated latencies is within a limit; stops once too many are late."""
        late = count - 1 - rank(count, share)
        limit_ns = limit_ms * 1e6 / self._kept(share) if self._kept(share) > 0.0 else math.inf
        return keeps_within(*self._drawn(rate, count, seed), limit_ns=limit_ns, late=late)

    def _drawn(
        self, rate: float, count: int, seed: int
    ) -> tuple[ServiceModel, npt.NDArray[np.float64], list[list[Phase]]]:
        """Draw arrivals, and which of the requests laid out each is."""
        service, phases, _ = self._lay(rate)
        generator = np.random.default_rng(seed)
        arrivals_ns = np.cumsum(generator.exponential(1e9 / rate, count))
        chosen = generator.integers(0, len(phases), count).tolist()
        return service, arrivals_ns, [phases[place] for place in chosen]

    def percentile_ms(self, played: Played, share: float) -> float:
        """A percentile of what was played, without what is known to be too much of it (``state.Excess``)."""
        return percentile(played.latency_ns, share) / 1e6 * self._kept(share)

    def _kept(self, share: float) -> float:
        return 1.0 - self._excess if share >= _TAIL else 1.0

    def saturation(self, rate: float) -> float:
        """The rate at which something would have no time left, if requests took what they do at this one."""
        return self._lay(rate)[2]

    def _lay(self, rate: float) -> tuple[ServiceModel, list[list[Phase]], float]:
        factor = factor_at(self._state, rate)
        if factor not in self._at:
            state = at_rate(self._state, rate)
            phases = [phases_of(job, state.service) for job in state.work.jobs]
            self._at[factor] = state.service, phases, _saturation(state)
        return self._at[factor]


def phases_of(job: Job, service: ServiceModel) -> list[Phase]:
    """Lay out a request's phases, those alike that follow one another as one."""
    phases: list[Phase] = []
    computing = service.database_share if service.has_database else 0.0
    taken: list[int] = []
    for part in [part for part in job if not part.late]:
        if not part.cpu_ns + part.wait_ns:
            phases += _beside(part, service)
            continue
        at = At.WORKER if part.process else At.MODEL if part.stage == Stage.MODEL else At.PYTHON
        in_executor = at is At.MODEL and (service.executors or service.batch_share)
        there = service.loops and part.loop and not part.process and not in_executor
        # A thread goes back to its pool where a part follows on the event loop: whoever awaits holds none.
        in_thread = part.thread and service.threads > 0
        _take_and_give(phases, taken, part, in_thread, loop_of(service) if there and part.blocks else 0)
        phases += _beside(part, service)
        in_database_ns = part.wait_ns * computing if part.stage == Stage.SQL else 0.0
        _add(phases, At.NOWHERE, part.wait_ns - in_database_ns)
        _add(phases, At.DATABASE, in_database_ns)
        if there and not part.blocks and part.cpu_ns:
            _take_and_give(phases, taken, part, in_thread, loop_of(service))
        _add(phases, at, part.cpu_ns)
    phases += [(At.GIVE, float(what)) for what in reversed(taken)]
    return phases + _once_answered(job, service)


def loop_of(service: ServiceModel) -> int:
    """What stands for the event loop's thread among what is taken: it comes after all of ``ServiceModel.held``."""
    return len(service.held) + 1


def _late(part: Part, service: ServiceModel) -> list[Phase]:
    """What is computed after the reply, on the event loop's thread in one turn."""
    phases: list[Phase] = []
    _add(phases, At.NOWHERE, part.wait_ns)
    _add(phases, At.WORKER if part.process else At.PYTHON, part.cpu_ns)
    if service.loops and part.loop:
        loop = float(loop_of(service))
        return [(At.TAKE, loop), *phases, (At.GIVE, loop)]
    return phases


def _once_answered(job: Job, service: ServiceModel) -> list[Phase]:
    """What is computed, and what is held, beside a request that is done."""
    phases: list[Phase] = [(At.ANSWERED, 0.0)]
    for part in job:
        if part.late:
            phases += _late(part, service)
        elif part.after_ns:
            phases += [(At.TAKE, float(what + 1)) for what in part.held]
            phases.append((At.NOWHERE, part.after_ns))
            phases += [(At.GIVE, float(what + 1)) for what in reversed(part.held)]
    return phases if len(phases) > 1 else []


def _beside(part: Part, service: ServiceModel) -> list[Phase]:
    """What other threads compute meanwhile, about as long each as the part itself."""
    if not part.beside_ns:
        return []
    took_ns = part.cpu_ns + part.wait_ns
    threads = min(max(round(part.beside_ns / took_ns), 1), max(service.cores - 1, 1)) if took_ns else 1
    # Rows share what a model's other threads do in a batch as they share the call; taken as in a full one.
    shared = _batched(service) if part.stage == Stage.MODEL else 1.0
    return [(At.BESIDE, part.beside_ns * shared / threads)] * threads


def _take_and_give(phases: list[Phase], taken: list[int], part: Part, in_thread: bool, loop: int) -> None:
    """Give back what a part does not hold, and take what it does.

    Only in ascending order: what was found out may be wrong, and requests that take two locks in either order wait for
    each other for ever. The event loop comes last, and nobody waits for anything else while he has it.

    Args:
        loop: what stands for it; 0: the part does not need it.
    """
    wanted = [*((THREAD,) if in_thread else ()), *(one + 1 for one in part.held)]
    if taken == ([*wanted, loop] if loop else wanted):
        return  # most parts need what the one before them held
    missing = any(what not in taken for what in wanted)
    for what in [one for one in reversed(taken) if one not in wanted and (one != loop or not loop or missing)]:
        phases.append((At.GIVE, float(what)))
        taken.remove(what)
    for what in [*wanted, *((loop,) if loop else ())]:
        if what not in taken and (not taken or what > taken[-1]):
            phases.append((At.TAKE, float(what)))
            taken.append(what)


def _add(phases: list[Phase], at: At, length_ns: float) -> None:
    if phases and phases[-1][0] is at and at is not At.MODEL:
        phases[-1] = (at, phases[-1][1] + length_ns)
    elif length_ns > 0:
        phases.append((at, length_ns))

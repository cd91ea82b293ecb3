"""What a request takes of a core at another rate: the longer a core idles before it, the more its caches have lost.

On machines whose cores are slow to wake, and wherever others use them in between, the same code takes several times as
long at 80 requests/s as in a closed loop. Between 80 and 20,000 requests/s that was about a power of the rate
(docs/explanation/scheduling.md), and so it is taken here: fitted to two rates, and carried on to twice and to half of
the recording's rate only, because nobody has seen what comes beyond.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from tailcut.core.profiling.cached import OWN_PATH
from tailcut.core.profiling.levers import State
from tailcut.core.profiling.records import Stage
from tailcut.core.profiling.work import Job, Part

FASTEST = 1000.0
"""Requests per second at which tailcut's own path is asked, at most: beyond it what one takes hardly changes."""
FARTHEST = 2.0
"""How many times the rate of the recording, or what part of it, the power is believed for."""


def fit_slope(low: tuple[float, float], high: tuple[float, float]) -> float:
    """Find by which power of the rate a request takes less of a core.

    Args:
        low: a rate, and what a request took there, in whichever unit.
        high: the same at a higher rate.

    Returns:
        0: it takes the same at both, or more at the higher one (which is no matter of caches); 1: the core is as busy
        at both.

    Raises:
        ValueError: rates that do not rise, or times that are not positive.
    """
    if not 0 < low[0] < high[0] or low[1] <= 0 or high[1] <= 0:
        raise ValueError(f"rates and times are positive and the second rate is higher, but these are {low} and {high}")
    return min(max(log(low[1] / high[1]) / log(high[0] / low[0]), 0.0), 1.0)


def cpu_factor(slope: float, recorded: float, rate: float) -> float:
    """Say what a request takes of a core at a rate, as a multiple of what it took at the recorded one.

    Args:
        slope: as ``fit_slope`` finds it.
        recorded, rate: requests per second.
    """
    if slope == 0 or recorded <= 0:
        return 1.0
    times = min(max(rate / recorded, 1.0 / FARTHEST), FARTHEST)
    return float(times**-slope)


def factors_at(state: State, rate: float) -> tuple[float, float]:
    """Say what requests take of a core at a rate, as multiples: all that was recorded, and tailcut's own path."""
    work = state.work
    return cpu_factor(work.cpu_slope, work.rate, rate), cpu_factor(state.known.path_slope, work.rate, rate)


def alike(state: State) -> State:
    """Let requests take the same of a core at all rates."""
    return replace(state, work=replace(state.work, cpu_slope=0.0), known=replace(state.known, path_slope=0.0))


def at_rate(state: State, rate: float) -> State:
    """Scale what is computed, by the service and by its database, to another rate."""
    work, service = state.work, state.service
    own, path = factors_at(state, rate)
    if own == path == 1.0:
        return state
    queries = service.database > 0 or service.beside
    # What the database computes of a query's time falls with it; what the query is on its way does not.
    computing = service.database_share if queries else 0.0
    waiting = 1.0 - computing + computing * own

    def scale(part: Part) -> Part:
        cpu = path if part.name == OWN_PATH else own
        wait = waiting if part.stage is Stage.SQL else 1.0
        return part._replace(
            cpu_ns=part.cpu_ns * cpu, wait_ns=part.wait_ns * wait, beside_ns=part.beside_ns * cpu
        )  # fmt: skip

    def change(job: Job) -> Job:
        return tuple(scale(part) for part in job)

    jobs = tuple(change(job) for job in work.jobs)
    service = replace(service, database_share=computing * own / waiting) if queries else service
    return replace(state, work=replace(work, jobs=jobs), service=service)

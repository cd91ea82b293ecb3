"""What a request takes of a core at another rate: the longer a core idles before it, the more its caches have lost.

On machines whose cores are slow to wake, and wherever others use them in between, the same code takes several times as
long at 80 requests/s as in a closed loop. Between 80 and 20,000 requests/s that was about a power of the rate
(docs/explanation/scheduling.md), and so it is taken here: fitted to two rates, and carried on to twice and to half of
the recording's rate only, because nobody has seen what comes beyond.
"""

from __future__ import annotations

from dataclasses import replace

from tailcut.profiler.forecast.cached_requests import HANDED_OVER, OWN_PATH
from tailcut.profiler.forecast.cpu_scaling import cpu_factor
from tailcut.profiler.forecast.phases import Job, Part
from tailcut.profiler.forecast.state import State
from tailcut.profiler.records import Stage

FASTEST = 1000.0
"""Requests per second at which tailcut's own path is asked, at most: beyond it what one takes hardly changes."""


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
    # What the database computes of a query's time falls with it; what the query is on its way does not.
    computing = service.database_share if service.has_database else 0.0
    waiting = 1.0 - computing + computing * own

    def scale(part: Part) -> Part:
        cpu = path if part.name in (OWN_PATH, HANDED_OVER) else own
        wait = path if part.name == HANDED_OVER else waiting if part.stage is Stage.SQL else 1.0
        return part._replace(
            cpu_ns=part.cpu_ns * cpu, wait_ns=part.wait_ns * wait, beside_ns=part.beside_ns * cpu
        )  # fmt: skip

    def change(job: Job) -> Job:
        return tuple(scale(part) for part in job)

    jobs = tuple(change(job) for job in work.jobs)
    service = replace(service, database_share=computing * own / waiting) if service.has_database else service
    return replace(state, work=replace(work, jobs=jobs), service=service)

"""What tailcut's own path takes of a core at another rate: the longer a core idles before it, the colder its caches.

On machines whose cores are slow to wake, and wherever others use them in between, the same code takes several times as
long at 80 requests/s as in a closed loop. Between 80 and 20,000 requests/s that was about a power of the rate
(docs/explanation/scheduling.md), and so it is taken here: fitted to two rates, and carried on to twice and to half of
the recording's rate only, because nobody has seen what comes beyond.
"""

from __future__ import annotations

from dataclasses import replace

from tailcut.profiler.forecast.cached_requests import HANDED_OVER, OWN_PATH
from tailcut.profiler.forecast.cpu_scaling import cpu_factor
from tailcut.profiler.forecast.phases import Part
from tailcut.profiler.forecast.state import State

FASTEST = 1000.0
"""Requests per second at which tailcut's own path is asked, at most: beyond it what one takes hardly changes."""


def factor_at(state: State, rate: float) -> float:
    """Say what a request takes of a core in tailcut's own path at a rate, as a multiple."""
    return cpu_factor(state.known.path_slope, state.work.rate, rate)


def at_rate(state: State, rate: float) -> State:
    """Scale tailcut's own path to another rate; what was recorded takes the same at all rates."""
    factor = factor_at(state, rate)
    if factor == 1.0:
        return state

    def scale(part: Part) -> Part:
        if part.name == OWN_PATH:
            return part._replace(cpu_ns=part.cpu_ns * factor)
        if part.name == HANDED_OVER:
            return part._replace(cpu_ns=part.cpu_ns * factor, wait_ns=part.wait_ns * factor)
        return part

    jobs = tuple(tuple(scale(part) for part in job) for job in state.work.jobs)
    return replace(state, work=replace(state.work, jobs=jobs))

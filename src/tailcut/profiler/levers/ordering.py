"""In which order to pull levers: greedily, what wins most given those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tailcut.profiler.forecast.forecast import Forecast, capacity, forecast
from tailcut.profiler.forecast.state import LeverName, State
from tailcut.profiler.levers.inapplicable import Facts
from tailcut.profiler.levers.levers import pull

WORTH = 0.05
"""Of the percentile: a lever that lowers it by less wins next to nothing."""
_MORE_CAPACITY = 0.10
_ENOUGH = 5.0
"""Times the rate: who bears so much needs no lever for the capacity alone."""


class Step(NamedTuple):
    """A lever, what is foretold once it is pulled, too, and whether it is for the capacity alone."""

    lever: LeverName
    after: Forecast
    for_capacity: bool


def order_levers(
    state: State, alone: Mapping[LeverName, Forecast], facts: Facts, share: float, *, within_ms: float = 0.0
) -> list[Step]:
    """Pull, one after the other, what lowers the percentile most given those pulled; then what adds capacity.

    The latter where it is wanted, and leaves the percentile where it is, or within the SLO.

    Args:
        alone: what is foretold of each lever that is not refused, with no other one.
        share: of the requests that the percentile is about.
        within_ms: what the percentile may be, where an SLO says so.
    """
    left, steps, before = list(alone), list[Step](), facts.now
    rate, limit_ms = facts.now.rate, facts.limit_ms
    while left:
        tried: Mapping[LeverName, Forecast] = alone
        if steps:
            tried = {lever: forecast(pull(state, lever), rate, share=share, rounds=1) for lever in left}
        best = min(left, key=lambda lever: tried[lever].p95_ms)
        after = _after(state, best, alone if not steps else {}, facts, share)
        quicker = after.p95_ms < (1 - WORTH) * before.p95_ms
        if not quicker:
            if (before.capacity or 0.0) >= _ENOUGH * rate:
                break
            most_ms = max((1 + WORTH) * before.p95_ms, within_ms / facts.off)
            room = {
                lever: alone[lever].capacity or 0.0
                if not steps
                else capacity(pull(state, lever), limit_ms, share=share)
                for lever in left
                if tried[lever].p95_ms <= most_ms
            }
            best = max(room, key=lambda lever: room[lever], default=best)
            if room.get(best, 0.0) <= (1 + _MORE_CAPACITY) * (before.capacity or 0.0):
                break
            after = _after(state, best, alone if not steps else {}, facts, share)
        steps.append(Step(best, after, not quicker))
        left.remove(best)
        state, before = pull(state, best), after
    return steps


def _after(state: State, lever: LeverName, known: Mapping[LeverName, Forecast], facts: Facts, share: float) -> Forecast:
    """Return what is foretold once a lever is pulled, too."""
    if lever in known:
        return known[lever]
    return forecast(pull(state, lever), facts.now.rate, limit_ms=facts.limit_ms, share=share)

"""A variant beside another over the rounds that they share: which of these count, and what the looks so far showed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailcut.gate.sequential import LEAST, NOTHING, Interval, Look, interval
from tailcut.registry.evidence import Round

DISTURBED = 0.1
"""Cores that other processes take, or a hypervisor, in a round beyond what they take in the variant's median round."""

_LEFT_OUT = 3
"""At most one shared round in so many is left out: what disturbs more often is how the machine is."""

_LEAST_MS = 1e-6
"""CPU time below it was not seen by the clock."""


class Standing(NamedTuple):
    """What the looks so far say of a variant beside another.

    Attributes:
        looks: that were taken.
        latency, cpu, gpu: logarithms of the ratios. ``cpu`` is None where it is no evidence, because a GPU does the
            work; ``gpu`` is of the time that it is held, None unless both run on one.
        rounds, left_out: that they rest on, and that do not count.
    """

    looks: int = 0
    latency: Interval = NOTHING
    cpu: Interval | None = NOTHING
    rounds: int = 0
    left_out: int = 0
    gpu: Interval | None = None


UNSEEN = Standing()


def look(
    before: Standing,
    mine: Mapping[int, Round],
    other: Mapping[int, Round] | float,
    plan: Sequence[Look],
    *,
    last: bool = False,
) -> Standing:
    """Look at the rounds if it is time; each look of the plan is taken once.

    Args:
        before: what earlier looks showed.
        mine, other: rounds by number; in place of the other ones, a limit of the latency in milliseconds.
        plan: of all looks.
        last: there are no more rounds: the next look is taken now, whatever rounds there are, and spends the error of
            those that will not be taken.
    """
    theirs = mine if isinstance(other, float) else other
    shared = sorted(mine.keys() & theirs.keys())
    if not last and len(shared) < (plan[before.looks].rounds if before.looks < len(plan) else math.inf):
        return before
    kept = undisturbed(mine, theirs, shared)
    if last and len(kept) < LEAST:
        kept = shared
    reached = sum(each.rounds <= len(kept) for each in plan)
    if last and reached == before.looks < len(plan) and len(kept) > before.rounds:
        reached += 1
    if reached <= before.looks:
        return before
    # The last look has all that is left: what ended the rounds is the clock, whatever they showed.
    error = sum(each.error for each in plan[before.looks :]) if last else plan[reached - 1].error
    limits = [other if isinstance(other, float) else other[number].latency_ms for number in kept]
    latency = interval(
        [math.log(mine[number].latency_ms / limit) for number, limit in zip(kept, limits, strict=True)], error
    )
    if last and math.isinf(latency.high) and before.looks:
        return before  # the last rounds are too few for what this look may spend
    on_gpu = any(found[number].gpu_ms is not None for found in (mine, theirs) for number in kept)
    cpu = [math.log(max(mine[number].cpu_ms, _LEAST_MS) / max(theirs[number].cpu_ms, _LEAST_MS)) for number in kept]
    held = [(mine[number].gpu_ms or 0.0, theirs[number].gpu_ms or 0.0) for number in kept]
    gpu = [math.log(one / two) for one, two in held if one >= _LEAST_MS and two >= _LEAST_MS]
    return Standing(
        reached,
        latency,
        None if on_gpu else interval(cpu, error),
        len(kept),
        len(shared) - len(kept),
        interval(gpu, error) if on_gpu and len(gpu) == len(kept) else None,
    )


def undisturbed(mine: Mapping[int, Round], other: Mapping[int, Round], shared: Sequence[int]) -> list[int]:
    """Name those of the shared rounds that count: in which other processes took no more than usual beside either.

    Each variant is compared with its own median round: what it causes itself, such as a database's work, is in all of
    them. Where other processes disturb more than one round in ``_LEFT_OUT``, every round counts.
    """
    usual = [statistics.median(each.others for each in found.values()) + DISTURBED for found in (mine, other)]
    kept = [number for number in shared if mine[number].others <= usual[0] and other[number].others <= usual[1]]
    return kept if (len(shared) - len(kept)) * _LEFT_OUT <= len(shared) else list(shared)

"""What profiling itself costs: the same load on processes of the application without it and with it, in turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec
import numpy as np

from tailcut.core.profiling.comparing import NEAR_P50, NEAR_P95, Round, Values, longer, undisturbed
from tailcut.core.profiling.records import Latencies, Overhead
from tailcut.core.profiling.thinning import is_traced
from tailcut.core.statistics import percentile, samples_needed
from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, RunFacts, Samples, measure
from tailcut.profile.idling import cpu_each_s
from tailcut.profile.trials import OnStep, check_answered, counted

ROUNDS = 9
"""Pairs of runs."""
REQUESTS, _TRACED = 160.0, 80.0
"""Of each run, at least, and of those that are traced."""
_LONGEST_S = 10.0
"""Of each run, however few requests that is: eighteen of them, and whoever waits for them, have no more patience."""
PAIRS = 3
"""Of processes, at least: one's luck lasts as long as it does."""
_EACH = 9
"""Rounds of a pair, at most: then more of it would say less than another one."""
_SHORT_START_S = 10.0
"""Whoever takes longer to start is started once per side: the rest would take minutes."""
_WARM_S = 0.3
_FIRST_S = 1.0
_FIRST_REQUESTS = 40.0
"""Of a new process, left out: its caches, its pools' connections and prepared statements are still to be made."""

Begin = Callable[[], None]


class Sides(NamedTuple):
    """The load on one process without profiling and on one with it, and what lets that one forget what it heard.

    Of how many requests one is traced, ``one_in`` says: those are compared, as it is those that the profile shows.
    """

    plain: LoadPlan
    seen: LoadPlan
    begin: Begin
    one_in: int = 1


Open = Callable[[int], AbstractContextManager[Sides]]
"""Starts the pair of processes of a number."""


def run_s(least_s: float, rate: float, one_in: int) -> float:
    """Choose how long a run is.

    Args:
        least_s: as the user wants it.
        rate: requests per second.
        one_in: of how many requests one is traced.
    """
    return max(least_s, min(max(REQUESTS, _TRACED * one_in) / rate, _LONGEST_S))


def pairs_for(rounds: int, start_s: float) -> int:
    """Choose how many processes there are of each kind.

    Args:
        rounds: that are measured.
        start_s: how long the application takes to start.
    """
    return min(max(PAIRS, -(-rounds // _EACH)), rounds) if start_s <= _SHORT_START_S else 1


def measure_overhead(start: Open, *, pairs: int, rounds: int, say: OnStep) -> Overhead:
    """Send the same load to the application without profiling and with it.

    Both runs of a round have the same arrivals and payloads, and both processes of a pair the same history, so that
    what differs is profiling and chance.

    Args:
        start: starts a pair of processes.
        pairs: of processes, one after the other.
        rounds: pairs of runs, at least; each pair of processes gets as many.
        say: hears what is being done.

    Raises:
        ProfileError: a run was not answered.
    """
    each = -(-rounds // pairs)
    found: list[list[Round]] = []
    told: list[tuple[Latencies, Latencies]] = []
    rate = 0.0
    for pair in range(pairs):
        say(f"measuring profiling's own overhead: starting processes {pair + 1} of {pairs}")
        with start(pair) as sides:
            rate = sides.seen.rate or 0.0
            found.append([])
            for number in range(pair * each, (pair + 1) * each):
                say(f"measuring profiling's own overhead, round {number + 1} of {each * pairs}")
                if not found[-1]:
                    _warm_up(sides)
                round_, latencies = _round(sides, number)
                found[-1].append(round_)
                told.append(latencies)
    return _compared(rate, found, told, pairs)


def _warm_up(sides: Sides) -> None:
    for load in (sides.plain, sides.seen):
        duration_s = max(_FIRST_S, _FIRST_REQUESTS / (load.rate or 1.0))
        samples, _ = measure(msgspec.structs.replace(load, duration_s=duration_s, warmup_s=0.0))
        check_answered(load, samples)


def _round(sides: Sides, number: int) -> tuple[Round, tuple[Latencies, Latencies]]:
    seed = sides.seen.seed + 100 + number
    # The order changes from round to round: the first of a pair may meet a machine that just idled.
    order = (1, 0) if number % 2 else (0, 1)
    runs: dict[int, tuple[Samples, RunFacts]] = {}
    for side in order:
        if side:
            # It shall hold no more than in a recording.
            sides.begin()
        load = msgspec.structs.replace((sides.plain, sides.seen)[side], seed=seed, warmup_s=_WARM_S)
        samples, facts = measure(load)
        check_answered(load, samples)
        runs[side] = samples, facts
    # Only what was answered on both sides can be compared.
    both = counted(runs[0][0]) & counted(runs[1][0])
    both &= is_traced(np.arange(len(both)), sides.one_in)
    if not both.any():
        raise ProfileError(
            f"no request of round {number + 1} got a good answer with profiling and without it",
            hint="do its answers depend on what it was asked before? --no-overhead leaves these rounds out",
        )
    plain_ms, seen_ms = (_took_ms(runs[side][0])[both] for side in (0, 1))
    told = (_latencies(plain_ms, *runs[0]), _latencies(seen_ms, *runs[1]))
    return Round(plain_ms, seen_ms), told


def _took_ms(samples: Samples) -> Values:
    took_ms: Values = (samples.done_ns - samples.intended_ns) / 1e6
    return took_ms


def _latencies(took_ms: Values, samples: Samples, facts: RunFacts) -> Latencies:
    return Latencies(
        requests=len(took_ms),
        p50_ms=percentile(took_ms, 0.5),
        p95_ms=percentile(took_ms, 0.95),
        cpu_ms=cpu_each_s(samples, facts) * 1e3,
    )


def _compared(rate: float, found: list[list[Round]], told: list[tuple[Latencies, Latencies]], pairs: int) -> Overhead:
    kept = undisturbed(found)
    p50, p95 = (longer(kept, near, seed=len(told)) for near in (NEAR_P50, NEAR_P95))
    return Overhead(
        rate=rate, rounds=tuple(told), p50_share=p50.share, p95_share=p95.share, note=_note(kept, len(told)),
        p50_range=p50.between, p95_range=p95.between, processes=pairs,
    )  # fmt: skip


def _note(kept: list[list[Round]], rounds: int) -> str:
    left, requests = sum(map(len, kept)), sum(len(one.plain_ms) for had in kept for one in had)
    notes = []
    if left < rounds:
        notes.append(f"{rounds - left} of them left out, in which something else had the machine")
    if requests < samples_needed(0.95):
        notes.append(f"these rest on {requests} requests, better {samples_needed(0.95)}")
    return "; ".join(notes)

"""What profiling itself costs: the same load on processes of the application without it and with it, in turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec
import numpy as np

from tailcut.common.slo import samples_needed
from tailcut.common.statistics import percentile
from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, RunFacts, Samples, measure
from tailcut.profiler.overhead_comparison import NEAR_P50, NEAR_P95, Round, Rounds, Values, longer, undisturbed
from tailcut.profiler.overhead_records import Everyone, Latencies, Overhead
from tailcut.profiler.recording.trace_sampling import is_traced
from tailcut.profiler.trials import OnStep, check_answered, counted

ROUNDS = 9
"""Pairs of runs."""
REQUESTS, _TRACED = 160.0, 45.0
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

    Of how many requests one is traced, ``one_in`` says. Those are compared, as it is those that the profile shows, and
    all, as they make the service's p95.
    """

    plain: LoadPlan
    seen: LoadPlan
    begin: Begin
    one_in: int = 1


class _Compared(NamedTuple):
    """The requests of a round that were traced, and all of them, and what the traced ones took."""

    traced: Round
    every: Round
    told: tuple[Latencies, Latencies]


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
    found: list[list[_Compared]] = []
    rate, one_in = 0.0, 1
    for pair in range(pairs):
        say(f"measuring profiling's own overhead: starting processes {pair + 1} of {pairs}")
        with start(pair) as sides:
            rate, one_in = sides.seen.rate or 0.0, sides.one_in
            found.append([])
            for number in range(pair * each, (pair + 1) * each):
                say(f"measuring profiling's own overhead, round {number + 1} of {each * pairs}")
                if not found[-1]:
                    _warm_up(sides)
                found[-1].append(_round(sides, number))
    return _summarised(rate, found, one_in)


def _warm_up(sides: Sides) -> None:
    for load in (sides.plain, sides.seen):
        duration_s = max(_FIRST_S, _FIRST_REQUESTS / (load.rate or 1.0))
        samples, _ = measure(msgspec.structs.replace(load, duration_s=duration_s, warmup_s=0.0))
        check_answered(load, samples)


def _round(sides: Sides, number: int) -> _Compared:
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
    traced = both & is_traced(np.arange(len(both)), sides.one_in)
    if not traced.any():
        raise ProfileError(
            f"in round {number + 1} no request was answered well in both runs, with profiling and without it",
            hint="leave out --thorough, which needs these rounds; or reset the application's state between two runs, "
            "if its answers depend on earlier requests",
        )
    plain_ms, seen_ms = (_took_ms(runs[side][0]) for side in (0, 1))
    told = (_latencies(plain_ms[traced], *runs[0]), _latencies(seen_ms[traced], *runs[1]))
    return _Compared(Round(plain_ms[traced], seen_ms[traced]), Round(plain_ms[both], seen_ms[both], traced[both]), told)


def _took_ms(samples: Samples) -> Values:
    took_ms: Values = (samples.done_ns - samples.intended_ns) / 1e6
    return took_ms


def _latencies(took_ms: Values, samples: Samples, facts: RunFacts) -> Latencies:
    return Latencies(
        requests=len(took_ms),
        p50_ms=percentile(took_ms, 0.5),
        p95_ms=percentile(took_ms, 0.95),
        cpu_ms=_cpu_each_s(samples, facts) * 1e3,
    )


def _cpu_each_s(samples: Samples, facts: RunFacts) -> float:
    """Tell what a request that was replied to took of a core in a run, in seconds; 0 where that is not known."""
    replies = int(((samples.intended_ns >= samples.measured_from_ns) & (samples.status > 0)).sum())
    return (facts.cpu_s or 0.0) / replies if replies else 0.0


def _summarised(rate: float, found: list[list[_Compared]], one_in: int) -> Overhead:
    told = [one.told for had in found for one in had]
    every, seed = undisturbed([[one.every for one in had] for had in found]), len(told)
    kept = {id(one) for had in every for one in had}
    traced = [chosen for had in found if (chosen := [one.traced for one in had if id(one.every) in kept])]
    p50, p95 = (longer(traced, near, seed=seed) for near in (NEAR_P50, NEAR_P95))
    return Overhead(
        rate=rate, rounds=tuple(told), p50_share=p50.share, p95_share=p95.share, note=_note(every, len(told)),
        p50_range=p50.between, p95_range=p95.between, processes=len(found),
        everyone=_everyone(every, one_in, seed) if one_in > 1 else None,
    )  # fmt: skip


def _everyone(rounds: Rounds, one_in: int, seed: int) -> Everyone:
    p50, p95 = (longer(rounds, near, seed=seed) for near in (NEAR_P50, NEAR_P95))
    return Everyone(one_in=one_in, p50=p50, p95=p95)


def _note(kept: list[list[Round]], rounds: int) -> str:
    left, requests = sum(map(len, kept)), sum(len(one.plain_ms) for had in kept for one in had)
    notes = []
    if left < rounds:
        notes.append(f"{rounds - left} of them left out because other processes disturbed them")
    if requests < samples_needed(0.95):
        notes.append(f"these rest on {requests} requests, at least {samples_needed(0.95)} are needed")
    return "; ".join(notes)

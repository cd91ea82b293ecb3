"""Runs beside the recording: can the application bear the rate, and what does profiling itself cost."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log10

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from tailcut.core.profiling.records import Latencies, Overhead
from tailcut.core.slo import Objectives
from tailcut.core.statistics import bootstrap, samples_needed, spread, summarise
from tailcut.errors import ProfileError
from tailcut.ladder.pilot import queue_grows
from tailcut.load import LoadPlan, LoadResult, SearchLimits, find_capacity, measure, summarise_run

_TRIAL_S = 2.0
_LONGEST_TRIAL_S = 20.0
_TRIAL_REQUESTS = 60
_WARM_S = 0.5
_SEARCH_S = 20.0
_BELOW, _LEAST_RPS = 64, 10.0
"""The search comes from far below: whoever was asked for too much is still busy with it in the next trial. But slow
trials take long."""

_COMFORT = 0.7
_MOST_LOST = 0.02

OnStep = Callable[[str], None]
"""Hears, in words, what is being done."""
Begin = Callable[[], None]


def bears(load: LoadPlan) -> bool:
    """Say whether answers keep up with the plan's rate."""
    return not _grows(_run(_trial(load)))


def _trial(load: LoadPlan) -> LoadPlan:
    # What is in flight at the window's edges must not decide.
    duration_s = min(max(_TRIAL_S, _TRIAL_REQUESTS / (load.rate or 1.0)), _LONGEST_TRIAL_S)
    return msgspec.structs.replace(load, duration_s=duration_s, warmup_s=1.0, seed=load.seed + 1)


def _grows(result: LoadResult) -> str:
    lost = result.errors.get("timeout", 0)
    return f"{lost} requests were given up" if lost else queue_grows(result)


def too_fast(target: str, load: LoadPlan) -> ProfileError:
    """Look for the rate that the application bears without profiling, and say it.

    Args:
        target: the application's name.
        load: the load that was too much, on an application that is not profiled.
    """
    asked = load.rate or 0.0
    base = msgspec.structs.replace(load, duration_s=_TRIAL_S, warmup_s=_WARM_S)
    limits = SearchLimits(tolerance=0.1, max_rate=asked, max_total_s=_SEARCH_S)
    start_rate = max(asked / _BELOW, min(asked / 4, _LEAST_RPS), 2.0)
    found = find_capacity(base, Objectives(errors=0.5), start_rate=start_rate, limits=limits, judge=_grows).rate
    if found >= asked * 0.95:
        return ProfileError(
            f"{target} bears {asked:g} requests/s, but not while it is profiled",
            hint=f"profile it at half of that: {_rounded(asked / 2):g} requests/s",
        )
    bearable = f"it bears about {found:.3g} requests/s" if found else "it bears not even 2 requests/s"
    way = f"give a rate of at most {_rounded(found * _COMFORT):g}" if found else "give payloads that ask for less"
    return ProfileError(
        f"{target} cannot bear {asked:g} requests/s: its queue grows, and the profile would show that queue only;"
        f" {bearable}",
        hint=f"{way}; half of what it bears shows the stages best",
    )


def measure_overhead(without: LoadPlan, with_: LoadPlan, *, rounds: int, begin: Begin, say: OnStep) -> Overhead:
    """Send the same load to the application without profiling and with it, in turns.

    Both runs of a round have the same arrivals and payloads, so what a round is compared by is their quotient: from
    round to round it differs by what else the machine did, and not by which requests came close together.

    Args:
        without: the load on the application as it is.
        with_: the same on the profiled one.
        rounds: pairs of runs.
        begin: lets the profiled one forget what was recorded: it shall hold no more than in a recording.
        say: hears what is being done.

    Raises:
        ProfileError: a run was not answered at all.
    """
    # The profiled one has answered the trial; caches and prepared statements of the other are filled like its own.
    _run(_trial(without))
    pairs: list[tuple[Latencies, Latencies]] = []
    for number in range(rounds):
        say(f"measuring profiling's own overhead, round {number + 1} of {rounds}")
        seed = with_.seed + 100 + number
        plain, seen = (msgspec.structs.replace(one, seed=seed, warmup_s=_WARM_S) for one in (without, with_))
        begin()
        # The order changes from round to round: the first of a pair may meet a machine that just idled.
        if number % 2:
            profiled = _latencies(seen)
            pairs.append((_latencies(plain), profiled))
        else:
            pairs.append((_latencies(plain), _latencies(seen)))
    (p50, p50_range), (p95, p95_range) = (_longer(pairs, name) for name in ("p50_ms", "p95_ms"))
    return Overhead(
        rate=with_.rate or 0.0, rounds=tuple(pairs), p50_share=p50, p95_share=p95, note=_few(pairs),
        p50_range=p50_range, p95_range=p95_range,
    )  # fmt: skip


def _longer(pairs: list[tuple[Latencies, Latencies]], name: str) -> tuple[float, tuple[float, float]]:
    """How much longer it takes with profiling, as a share, and the interval that this lies in.

    The median of the rounds: one that something else disturbed spoils one quotient of many.
    """
    shares = [getattr(seen, name) / getattr(plain, name) - 1.0 for plain, seen in pairs]
    return _middle(shares), bootstrap(shares, _middle, seed=len(shares))


def _middle(values: ArrayLike) -> float:
    return spread(np.asarray(values, dtype=np.float64).tolist()).mid


def _few(pairs: list[tuple[Latencies, Latencies]]) -> str:
    fewest, better = min(sum(pair[side].requests for pair in pairs) for side in (0, 1)), samples_needed(0.95)
    return f"its p95 rests on {fewest} requests, better {better}" if fewest < better else ""


def _latencies(load: LoadPlan) -> Latencies:
    result = _run(load)
    if result.latency_ms is None or result.errors.get("timeout", 0) > _MOST_LOST * result.requests:
        profiled = "with profiling" if load.numbered else "without profiling"
        raise ProfileError(
            f"{result.requests - sum(result.statuses.values())} of {result.requests} requests got no answer within"
            f" {load.timeout_s:g} s {profiled}, at a rate that was fine before",
            hint="the application hangs now and then: a deadlock, or a database that locks?",
        )
    return Latencies(
        requests=result.latency_ms.count,
        p50_ms=result.latency_ms.p50,
        p95_ms=result.latency_ms.p95,
        cpu_ms=result.cpu_s_per_1000 or 0.0,
    )


def _run(load: LoadPlan) -> LoadResult:
    samples, facts = measure(load)
    result = summarise_run(load, samples, facts)
    if result.latency_ms is None:
        # An application that redirects is as good as any other; what it answers is not 2xx.
        good = (samples.intended_ns >= samples.measured_from_ns) & (samples.status > 0) & (samples.status < 400)
        latency_ms = summarise((samples.done_ns - samples.intended_ns)[good] / 1e6)
        result = msgspec.structs.replace(result, latency_ms=latency_ms)
    return result


def _rounded(rate: float) -> float:
    """Two digits, downwards."""
    if rate <= 0:
        return rate
    step = 10.0 ** (floor(log10(rate)) - 1)
    return floor(rate / step) * step

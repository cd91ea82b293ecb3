"""Runs beside the recording: can the application bear the rate, and which can it."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log10

import msgspec

from tailcut.common.slo import Objectives
from tailcut.errors import ProfileError
from tailcut.ladder.pilot import queue_grows
from tailcut.load import LoadPlan, LoadResult, RunFacts, Samples, SearchLimits, find_capacity, measure, summarise_run
from tailcut.load.recorder import Failure

_TRIAL_S = 2.0
_LONGEST_TRIAL_S = 8.0
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


def bears(load: LoadPlan) -> bool:
    """Say whether answers keep up with the plan's rate."""
    trial = _trial(load)
    return not _grows(summarise_run(trial, *measure(trial)))


def fell_behind(load: LoadPlan, samples: Samples, facts: RunFacts) -> bool:
    """Say whether answers did not keep up in a run.

    Raises:
        ProfileError: too many requests were not answered at all.
    """
    check_answered(load, samples)
    return bool(queue_grows(summarise_run(load, samples, facts)))


def check_answered(load: LoadPlan, samples: Samples) -> None:
    """Refuse an application that leaves requests without an answer, at a rate that it bears.

    Raises:
        ProfileError: more than one in fifty had none.
    """
    measured = (samples.intended_ns >= samples.measured_from_ns) & (samples.status != 0)
    silent, requests = int((measured & (samples.status < 0)).sum()), int(measured.sum())
    if silent <= _MOST_LOST * requests:
        return
    profiled = "with profiling" if load.numbered else "without profiling"
    late = int((measured & (samples.status == Failure.TIMEOUT)).sum())
    if late <= silent / 2:
        raise ProfileError(
            f"{silent} of {requests} requests got no answer {profiled}, {silent - late} of them because their"
            " connections ended without one, at a rate that was fine before",
            hint="see what it printed: a process of the application may have died, or its server may end connections",
        )
    raise ProfileError(
        f"{silent} of {requests} requests got no answer within {load.timeout_s:g} s {profiled}, at a rate that was fine"
        " before",
        hint="the application hangs at times: look at its threads while it does (py-spy dump --pid), at its locks and "
        "its database; if it is only slow, allow more with --timeout",
    )


def _trial(load: LoadPlan) -> LoadPlan:
    # What is in flight at the window's edges must not decide.
    duration_s = min(max(_TRIAL_S, _TRIAL_REQUESTS / (load.rate or 1.0)), _LONGEST_TRIAL_S)
    return msgspec.structs.replace(load, duration_s=duration_s, warmup_s=1.0, seed=load.seed + 1)


def _grows(result: LoadResult) -> str:
    lost = result.errors.get("timeout", 0)
    return f"{lost} requests were abandoned" if lost else queue_grows(result)


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
            f"{target} sustains {asked:g} requests/s, but not while it is profiled",
            hint=f"profile it at half of that: --rate {_rounded(asked / 2):g}",
        )
    bearable = f"it sustains about {found:.3g} requests/s" if found else "it does not sustain 2 requests/s"
    way = "give cheaper payloads: --payloads"
    if found:
        way = f"give a rate of at most {_rounded(found * _COMFORT):g}, such as --rate {_rounded(found / 2):g}"
    return ProfileError(
        f"{target} cannot sustain {asked:g} requests/s: its queue grows, and the profile would show only that queue; "
        f"{bearable}",
        hint=f"{way}; half of its capacity shows the stages best",
    )


def _rounded(rate: float) -> float:
    """Two digits, downwards."""
    if rate <= 0:
        return rate
    step = 10.0 ** (floor(log10(rate)) - 1)
    return floor(rate / step) * step

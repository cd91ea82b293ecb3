"""Whether the application sustains the rate: in a run before the recording, and in the recording itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, RunFacts, Samples, measure, summarise_run
from tailcut.load.recorder import Failure
from tailcut.profiler.outside import too_fast

_TRIAL_S = 2.0
_LONGEST_TRIAL_S = 8.0
_TRIAL_REQUESTS = 60
_MOST_LOST = 0.02

OnStep = Callable[[str], None]
"""Hears, in words, what is being done."""


def try_rate(load: LoadPlan, target: str) -> None:
    """Send the load for some seconds.

    Raises:
        ProfileError: answers do not keep up with its rate; with one that the application sustains.
    """
    trial = _trial(load)
    check_rate(trial, *measure(trial), target)


def check_rate(load: LoadPlan, samples: Samples, facts: RunFacts, target: str) -> None:
    """Refuse a run in which answers did not keep up.

    Raises:
        ProfileError: they did not; with a rate that the application sustains.
    """
    if error := too_fast(summarise_run(load, samples, facts), target):
        raise error


def check_answered(load: LoadPlan, samples: Samples) -> None:
    """Refuse an application that leaves requests without an answer, at a rate that it bears.

    Raises:
        ProfileError: more than one in fifty had none.
    """
    measured = (samples.intended_ns >= samples.measured_from_ns) & (samples.status != 0)
    silent, requests = int((measured & (samples.status < 0)).sum()), int(measured.sum())
    if silent <= _MOST_LOST * requests:
        return
    late = int((measured & (samples.status == Failure.TIMEOUT)).sum())
    if late <= silent / 2:
        raise ProfileError(
            f"{silent} of {requests} requests got no answer, {silent - late} of them because their"
            " connections ended without one, at a rate that was fine before",
            hint="see what it printed: a process of the application may have died, or its server may end connections",
        )
    raise ProfileError(
        f"{silent} of {requests} requests got no answer within {load.timeout_s:g} s, at a rate that was fine before",
        hint="the application hangs at times: look at its threads while it does (py-spy dump --pid), at its locks and "
        "its database; if it is only slow, allow more with --timeout",
    )


def _trial(load: LoadPlan) -> LoadPlan:
    # What is in flight at the window's edges must not decide.
    duration_s = min(max(_TRIAL_S, _TRIAL_REQUESTS / (load.rate or 1.0)), _LONGEST_TRIAL_S)
    return msgspec.structs.replace(load, duration_s=duration_s, warmup_s=1.0, seed=load.seed + 1)

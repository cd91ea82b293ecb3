"""What a request takes of a core at the rate of a recording and at half of it: more, where a core idles in between?"""

from __future__ import annotations

import time

import msgspec

from tailcut.errors import LoadTestError, ProfileError
from tailcut.load import LoadPlan, RunFacts, Samples, measure
from tailcut.profiler.forecast.cpu_scaling import fit_slope
from tailcut.profiler.trials import OnStep, check_answered, counted
from tailcut.system.cpu_time import cpu_seconds

_REQUESTS, _FEWEST = 200.0, 150.0
"""Of each run. Of fewer than the latter, what requests ask for differs more than what they take of a core."""
_LEAST_S, _MOST_S = 4.0, 12.0
_WARM_S = 0.5
_IDLE_S = 1.0
_GOOD = 0.98


def cpu_each_s(samples: Samples, facts: RunFacts, idle_share: float = 0.0) -> float:
    """Tell what a request that was replied to took of a core in a run, in seconds; 0 where that is not known.

    Args:
        idle_share: of a core that the process takes while nobody asks it.
    """
    replies = int(((samples.intended_ns >= samples.measured_from_ns) & (samples.status > 0)).sum())
    used_s = (facts.cpu_s or 0.0) - idle_share * facts.window_s
    return max(used_s, 0.0) / replies if replies else 0.0


def measure_slope(load: LoadPlan, say: OnStep) -> float:
    """Find by which power of the rate a request takes less of a core, between half of a load and the load.

    The same requests are sent at both rates, twice, the second time the other way round: what the application keeps
    of the first time, and a machine that gets slower meanwhile, make one of the two smaller, and that one counts. So
    does not what the process takes while nobody asks it.

    Args:
        load: with the process's id.
        say: hears why it is not known.

    Returns:
        0: the same at both, or it is not known: too few requests in ``_MOST_S``, or they were not answered.
    """
    rate = load.rate or 0.0
    half_s = min(max(2 * _REQUESTS / rate, _LEAST_S), _MOST_S) if rate else 0.0
    if half_s * rate / 2 < _FEWEST:
        return 0.0
    # Half as long, warm-up included: then they are the same requests.
    half = msgspec.structs.replace(load, rate=rate / 2, duration_s=half_s, warmup_s=2 * _WARM_S, seed=load.seed + 4)
    whole = msgspec.structs.replace(half, rate=rate, duration_s=half_s / 2, warmup_s=_WARM_S)
    say(f"at {rate / 2:g} and {rate:g} requests/s, in turns: comparing CPU time per request")
    try:
        idle_share = _idle_share(load.pid)
        took = [_each_s(one, idle_share) for one in (half, whole, whole, half)]
    except (LoadTestError, ProfileError, KeyboardInterrupt) as error:
        say(f"that is not known: {'it was interrupted' if isinstance(error, KeyboardInterrupt) else error}")
        return 0.0
    if min(took) <= 0:
        say("that is not known: the CPU time of the process is not available")
        return 0.0
    return min(fit_slope((rate / 2, each), (rate, other)) for each, other in ((took[0], took[1]), (took[3], took[2])))


def _each_s(load: LoadPlan, idle_share: float) -> float:
    samples, facts = measure(load)
    check_answered(load, samples)
    asked, good = int((samples.intended_ns >= samples.measured_from_ns).sum()), int(counted(samples).sum())
    if good < _GOOD * asked:
        raise ProfileError(
            f"{good} of {asked} requests at {load.rate:g}/s got a good answer, {_GOOD:.0%} must",
            hint="give payloads that the application answers: --payloads",
        )
    return cpu_each_s(samples, facts, idle_share)


def _idle_share(pid: int) -> float:
    """Tell how much of a core a process takes while nobody asks it."""
    before_s, began_s = cpu_seconds(pid), time.monotonic()
    time.sleep(_IDLE_S)
    return (cpu_seconds(pid) - before_s) / (time.monotonic() - began_s)

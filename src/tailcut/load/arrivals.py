"""When an open-loop client means to send each request: a pure pacer.

Every pace is one idea: a cumulative rate L(t), the number of requests meant to have been sent by time t. Inverting L at
0, 1, 2, ... gives an even pace; inverting it at the points of a unit-rate Poisson process gives a Poisson process of
that rate (time change: Cinlar, "Introduction to Stochastic Processes", 1975, section 4.7). A trace brings its times.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.errors import LoadTestError

Kind = Literal["poisson", "constant"]
Offsets = npt.NDArray[np.int64]

MAX_ARRIVALS = 20_000_000
"""Most requests of one run; their times and samples are held in memory (about 50 bytes a request)."""


MAX_SPAN_S = 9e9
"""Longest time from the first to the last request: nanoseconds are counted in 64 bits."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast, and for how long, requests are sent.

    Args:
        start_rate: requests per second at the start.
        end_rate: requests per second at the end; equal to ``start_rate`` for a steady pace.
        duration_s: seconds that are measured.
        warmup_s: seconds before them, at ``start_rate``, that are sent but not measured.
        kind: ``poisson`` (independent users) or ``constant`` (evenly spaced).
    """

    start_rate: float
    end_rate: float
    duration_s: float
    warmup_s: float = 0.0
    kind: Kind = "poisson"


def steady(rate: float, duration_s: float, *, warmup_s: float = 0.0, kind: Kind = "poisson") -> Pace:
    """Make a pace whose rate does not change."""
    return Pace(start_rate=rate, end_rate=rate, duration_s=duration_s, warmup_s=warmup_s, kind=kind)


def offsets_ns(pace: Pace, seed: int) -> Offsets:
    """Compute the intended send time of every request, in nanoseconds from the start, ascending.

    Raises:
        LoadTestError: a rate or duration that is not positive, or more than ``MAX_ARRIVALS`` requests.
    """
    _check(pace)
    total = expected_count(pace)
    if pace.kind == "constant":
        points = np.arange(int(np.ceil(total - 1e-9)), dtype=np.float64)
    else:
        points = _unit_poisson(total, np.random.default_rng(seed))
    return np.floor(_inverse(pace, points) * 1e9).astype(np.int64)


def trace_ns(times_s: npt.NDArray[np.float64]) -> Offsets:
    """Turn recorded times (seconds, any origin, ascending) into offsets from the first one.

    Raises:
        LoadTestError: the trace is empty, not finite, goes back in time or lasts longer than ``MAX_SPAN_S``.
    """
    if times_s.size == 0:
        raise LoadTestError("the trace is empty", hint="write one time per line, in seconds")
    if not np.isfinite(times_s).all():
        line = int(np.flatnonzero(~np.isfinite(times_s))[0]) + 1
        raise LoadTestError(f"time {line} of the trace is {times_s[line - 1]}", hint="write finite numbers")
    steps = np.diff(times_s)
    if (steps < 0).any():
        at = int(np.flatnonzero(steps < 0)[0])
        raise LoadTestError(
            f"the trace is not ascending: {times_s[at + 1]:g} s follows {times_s[at]:g} s (time {at + 2})",
            hint="sort the file",
        )
    if times_s[-1] - times_s[0] > MAX_SPAN_S:
        raise LoadTestError(
            f"the trace lasts {times_s[-1] - times_s[0]:g} s; the limit is {MAX_SPAN_S:g} s",
            hint="write its times in seconds",
        )
    offsets: Offsets = np.round((times_s - times_s[0]) * 1e9).astype(np.int64)
    return offsets


def expected_count(pace: Pace) -> float:
    """Compute how many requests the pace sends on average, warm-up included."""
    return pace.start_rate * pace.warmup_s + (pace.start_rate + pace.end_rate) / 2 * pace.duration_s


def _inverse(pace: Pace, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # In the ramp L(t) = a t + (b - a) t^2 / 2T. The root is written as 2y / (a + sqrt(a^2 + 2 s y)), which loses no
    # digits where the slope s is tiny.
    a, slope = pace.start_rate, (pace.end_rate - pace.start_rate) / pace.duration_s
    in_warmup = a * pace.warmup_s
    y = np.maximum(points - in_warmup, 0.0)
    root = np.sqrt(np.maximum(a * a + 2 * slope * y, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        ramp = np.where(y > 0, 2 * y / (a + root), 0.0)
        warm = points / a if a > 0 else points
    times = np.where(points < in_warmup, warm, pace.warmup_s + ramp)
    return np.minimum(times, np.nextafter(pace.warmup_s + pace.duration_s, 0.0))


def _unit_poisson(total: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    chunk = int(total + 6 * np.sqrt(total) + 16)
    points = np.cumsum(rng.exponential(size=chunk))
    while points[-1] < total:
        points = np.concatenate([points, points[-1] + np.cumsum(rng.exponential(size=chunk))])
    return points[points < total]


def _check(pace: Pace) -> None:
    rates = (pace.start_rate, pace.end_rate)
    if not all(np.isfinite(rate) and rate >= 0 for rate in rates) or max(rates) == 0:
        raise LoadTestError(f"the rate is {rates[0]:g}:{rates[1]:g} requests/s", hint="give a rate above 0")
    if not (np.isfinite(pace.duration_s) and pace.duration_s > 0):
        raise LoadTestError(f"the duration is {pace.duration_s:g} s", hint="give a duration above 0, such as 30s")
    if not (np.isfinite(pace.warmup_s) and pace.warmup_s >= 0):
        raise LoadTestError(f"the warm-up is {pace.warmup_s:g} s", hint="give 0s or more")
    if expected_count(pace) > MAX_ARRIVALS:
        raise LoadTestError(
            f"the run would send {expected_count(pace):.0f} requests; the limit is {MAX_ARRIVALS}",
            hint="lower the rate or the duration",
        )


def bursts_ns(rate: float, duration_s: float, seed: int, *, on_s: float = 0.25, off_s: float = 0.25) -> Offsets:
    """Compute send times that come in bursts: Poisson at a steady pace while on, none while off.

    Args:
        rate: requests per second on average; while on it is higher by ``(on_s + off_s) / on_s``.

    Raises:
        LoadTestError: see ``offsets_ns``.
    """
    _check(steady(rate, duration_s))
    cycles = duration_s / (on_s + off_s)
    busy_s = int(cycles) * on_s + min((cycles - int(cycles)) * (on_s + off_s), on_s)
    pace = steady(rate * (on_s + off_s) / on_s, busy_s)
    at_s = offsets_ns(pace, seed) / 1e9
    cycle, within_s = np.divmod(at_s, on_s)
    return np.floor((cycle * (on_s + off_s) + within_s) * 1e9).astype(np.int64)

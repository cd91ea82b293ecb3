"""Leaks: a level, such as memory, that keeps growing since the warm-up, by an amount that matters.

Caches and pools grow, too, and then stop. A leak is a growth that is certain, that has not slowed down, and that is
large already or will reach a limit soon. Source of the slope and its interval: Theil 1950 and Sen 1968 ("Estimates of
the regression coefficient based on Kendall's tau"), over medians of blocks, because neighbouring samples hang together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.manifest.schema.observe import AlertName
from tailcut.observe.alerts.findings import Finding, Level

Floats = npt.NDArray[np.float64]

SAMPLE_S = 10.0
WARM_UP_S = 60.0

_BLOCKS = 10
_SPANS_S = (300.0, 1_800.0, 4 * 3_600.0, 24 * 3_600.0)
_LEAST_SPAN_S = 240.0
_NORMAL_995 = 2.576
_STEADY_SHARE = 0.3
"""Of all growth, what the second half must have: a level that settles within the span has a quarter or less."""
_HORIZON_S = 24 * 3_600.0
_LEAST_PROJECTED_S = 1_500.0
"""Span from which on a line is drawn as far as ``_HORIZON_S``."""
_FINE_S, _COARSE_S = 2 * 3_600.0, 120.0


class Quantity(NamedTuple):
    """What may leak.

    Attributes:
        unit, scale: of texts; a value divided by ``scale`` is in ``unit``.
        least: growth below which there is no alarm, in the value's own unit.
    """

    alert: AlertName
    what: str
    unit: str
    scale: float
    least: float
    place: str
    hint: str


MEMORY = Quantity(
    "memory_leak",
    "memory of the server and its executors",
    "MiB",
    1024.0**2,
    32 * 1024.0**2,
    "memory",
    "look at hooks and feature functions that keep what they are given; pool.recycle_requests replaces executors",
)
GPU_MEMORY = Quantity(
    "gpu_memory_leak",
    "GPU memory of the server",
    "MiB",
    1024.0**2,
    64 * 1024.0**2,
    "gpu",
    "look at hooks that keep tensors; pool.recycle_requests replaces executors",
)
DESCRIPTORS = Quantity(
    "descriptor_leak",
    "the number of open files and sockets",
    "",
    1.0,
    128.0,
    "descriptors",
    "look at what hooks and feature functions open and do not close (ls -l /proc/PID/fd)",
)
THREADS = Quantity(
    "thread_leak",
    "the number of threads",
    "",
    1.0,
    64.0,
    "threads",
    "look at hooks and feature functions that start threads or pools per request",
)


class Slope(NamedTuple):
    """Growth per second, with its 99 % interval, and the total growth over ``span_s`` from ``base`` on."""

    per_s: float
    low: float
    high: float
    base: float
    growth: float
    is_steady: bool
    span_s: float


class Levels:
    """Samples of one quantity since the warm-up; old ones are thinned out. For one thread.

    Args:
        limit: that the quantity cannot exceed; infinity where there is none.
    """

    def __init__(self, quantity: Quantity, limit: float = inf) -> None:
        self.quantity = quantity
        self.limit = limit
        self._times: list[float] = []
        self._values: list[float] = []

    def add(self, at_s: float, value: float) -> None:
        """Add a sample; ``at_s`` is of a monotonic clock and starts with the process."""
        if at_s < WARM_UP_S:
            return
        self._times.append(at_s)
        self._values.append(value)
        if len(self._times) % 64 == 0:
            self._thin(at_s)

    def slope(self, span_s: float) -> Slope | None:
        """Fit the last ``span_s``; None where there is less than ``_LEAST_SPAN_S`` or too few samples."""
        times, values = np.array(self._times), np.array(self._values)
        recent = times >= times[-1] - span_s if len(times) else np.zeros(0, bool)
        times, values = times[recent], values[recent]
        if len(times) < 2 * _BLOCKS or times[-1] - times[0] < _LEAST_SPAN_S:
            return None
        return fit(times, values)

    @property
    def slopes(self) -> list[Slope]:
        """Fits of the spans, the shortest first; those that are no longer than the one before are left out."""
        found: list[Slope] = []
        for span_s in _SPANS_S:
            slope = self.slope(span_s)
            if slope is not None and (not found or slope.span_s > 1.5 * found[-1].span_s):
                found.append(slope)
        return found

    def _thin(self, now_s: float) -> None:
        """Keep every sample of the last hours, one per ``_COARSE_S`` of the day before, and none older."""
        kept = [
            place
            for place, at_s in enumerate(self._times)
            if now_s - at_s <= _FINE_S
            or (
                now_s - at_s <= _SPANS_S[-1] and (not place or self._times[place - 1] // _COARSE_S != at_s // _COARSE_S)
            )
        ]
        self._times = [self._times[place] for place in kept]
        self._values = [self._values[place] for place in kept]


def fit(times: Floats, values: Floats) -> Slope:
    """Fit a line through medians of blocks that are equally long, whatever the samples' distances.

    Args:
        times: seconds, ascending, shape (samples,), at least ``2 * _BLOCKS`` of them.
        values: shape (samples,).
    """
    cuts = np.searchsorted(times, np.linspace(times[0], times[-1], _BLOCKS + 1)[1:-1])
    blocks = [each for each in zip(np.split(times, cuts), np.split(values, cuts), strict=True) if len(each[0])]
    at = np.array([float(np.median(when)) for when, _ in blocks])
    level = np.array([float(np.median(what)) for _, what in blocks])
    count = len(blocks)
    first, second = np.triu_indices(count, 1)
    slopes = np.sort((level[second] - level[first]) / (at[second] - at[first]))
    # Sen 1968: Kendall's S has variance n(n-1)(2n+5)/18; the interval leaves out so many of the slopes at each end.
    spread = _NORMAL_995 * sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = int(max((len(slopes) - spread) / 2, 0))
    high = int(min((len(slopes) + spread) / 2, len(slopes) - 1))
    growth = float(level[-1] - level[0])
    later = float(level[-1] - level[count // 2 - 1])
    return Slope(
        per_s=float(np.median(slopes)),
        low=float(slopes[low]),
        high=float(slopes[high]),
        base=float(level[0]),
        growth=growth,
        is_steady=growth > 0 and later >= _STEADY_SHARE * growth,
        span_s=float(times[-1] - times[0]),
    )


def find_leaks(levels: Sequence[Levels], growth: float) -> Iterator[Finding]:
    """Yield a finding per quantity that has samples enough.

    Args:
        growth: share of the level at the beginning of a span by which it must have grown.
    """
    for each in levels:
        slopes = each.slopes
        if slopes:
            worst = max(slopes, key=lambda slope: (_is_leak(slope, each, growth), slope.growth / max(slope.base, 1.0)))
            yield _finding(each, worst, growth)


def _is_leak(slope: Slope, levels: Levels, growth: float) -> bool:
    if slope.low <= 0 or not slope.is_steady or slope.growth < levels.quantity.least:
        return False
    projected = slope.base + slope.growth + slope.low * _HORIZON_S
    is_projected = slope.span_s >= _LEAST_PROJECTED_S and projected >= levels.limit
    return slope.growth >= growth * slope.base or is_projected


def _finding(levels: Levels, slope: Slope, growth: float) -> Finding:
    quantity = levels.quantity
    is_leak = _is_leak(slope, levels, growth)
    grown, base = slope.growth / quantity.scale, slope.base / quantity.scale
    per_hour, low, high = (value * 3600 / quantity.scale for value in (slope.per_s, slope.low, slope.high))
    unit = f" {quantity.unit}" if quantity.unit else ""
    until = ""
    if levels.limit < inf and slope.per_s > 0:
        left_h = (levels.limit - slope.base - slope.growth) / slope.per_s / 3600
        until = f"; the limit of {levels.limit / quantity.scale:.0f}{unit} is reached in {max(left_h, 0.0):.1f} h"
    text = (
        f"{quantity.what} grew by {grown:.0f}{unit} from {base:.0f}{unit} in {slope.span_s / 60:.0f} min and goes on: "
        f"{per_hour:.0f}{unit} an hour (99 % interval {low:.0f} to {high:.0f}){until}"
    )
    level: Level = "bad" if is_leak else "between" if slope.low > 0 else "good"
    percent = 100 * slope.growth / max(slope.base, 1.0)
    return Finding(
        quantity.alert,
        "",
        "",
        "ticket",
        level,
        percent,
        growth * 100,
        "%",
        quantity.place,
        text,
        quantity.hint,
    )

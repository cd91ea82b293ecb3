"""Power-law fit of CPU time per request against the rate."""

from __future__ import annotations

from math import log

FARTHEST = 2.0
"""How many times the rate of the recording, or what part of it, the power is believed for."""


def fit_slope(low: tuple[float, float], high: tuple[float, float]) -> float:
    """Find by which power of the rate a request takes less of a core.

    Args:
        low: a rate, and what a request took there, in whichever unit.
        high: the same at a higher rate.

    Returns:
        0: it takes the same at both, or more at the higher one (which is no matter of caches); 1: the core is as busy
        at both.

    Raises:
        ValueError: rates that do not rise, or times that are not positive.
    """
    if not 0 < low[0] < high[0] or low[1] <= 0 or high[1] <= 0:
        raise ValueError(f"rates and times are positive and the second rate is higher, but these are {low} and {high}")
    return min(max(log(low[1] / high[1]) / log(high[0] / low[0]), 0.0), 1.0)


def cpu_factor(slope: float, recorded: float, rate: float) -> float:
    """Say what a request takes of a core at a rate, as a multiple of what it took at the recorded one.

    Args:
        slope: as ``fit_slope`` finds it.
        recorded, rate: requests per second.
    """
    if slope == 0 or recorded <= 0:
        return 1.0
    times = min(max(rate / recorded, 1.0 / FARTHEST), FARTHEST)
    return float(times**-slope)

"""The few distribution functions that the gate needs, without SciPy: serving does not carry it.

Sources: the incomplete beta function by its continued fraction (Abramowitz and Stegun 1964, 26.5.8, evaluated after
Lentz 1976); Student's t and the binomial through it (26.7.1, 26.5.24); limits of a share by Clopper and Pearson 1934.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

_NORMAL = NormalDist()
_STEPS = 100_000
_TINY = 1e-300


def normal_below(z: float) -> float:
    """Chance that a standard normal value lies below ``z``; accurate far out in both tails."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def normal_quantile(share: float) -> float:
    """Find the value below which a standard normal one lies with chance ``share``, 0 < share < 1."""
    return _NORMAL.inv_cdf(share)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b) for 0 <= x <= 1 and a, b > 0."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return min(math.exp(log_front) * _fraction(x, a, b) / a, 1.0)


def student_below(t: float, freedom: float) -> float:
    """Chance that Student's t with ``freedom`` degrees of freedom lies below ``t``."""
    if math.isinf(t):
        return 0.0 if t < 0 else 1.0
    tail = 0.5 * incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
    return tail if t < 0 else 1.0 - tail


def share_upper(hits: int, rows: int, alpha: float) -> float:
    """Compute the one-sided upper limit of a share, ``hits`` of ``rows`` seen, at confidence 1 - ``alpha``."""
    if hits >= rows:
        return 1.0
    # P(X <= hits; share) = I_{1-share}(rows - hits, hits + 1) falls as the share rises.
    return crossing(lambda share: incomplete_beta(1.0 - share, rows - hits, hits + 1) - alpha, hits / rows, 1.0)


def crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Find where a falling function goes from above 0 to 0 or below, to 45 halvings of [low, high].

    Returns the upper end of the last bracket, so that the function is not above 0 there; ``low`` where it never is
    above 0, ``high`` where it always is.
    """
    if falling(low) <= 0.0:
        return low
    for _ in range(45):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return high


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = _away(1.0 + term / c), 1.0 / _away(1.0 + term * d)
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY

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


def student_quantile(share: float, freedom: float) -> float:
    """Return the t that Student's t with ``freedom`` degrees of freedom lies below with chance ``share`` (>= 0.5)."""
    return crossing(lambda t: 1.0 - student_below(t, freedom), 1.0 - share, 0.0, 1e6)


def share_upper(hits: float, rows: float, alpha: float) -> float:
    """Compute the one-sided upper limit of a share, ``hits`` of ``rows`` seen, at confidence 1 - ``alpha``."""
    if hits >= rows:
        return 1.0
    # P(X <= hits; share) = I_{1-share}(rows - hits, hits + 1) falls as the share rises.
    return crossing(lambda share: incomplete_beta(1.0 - share, rows - hits, hits + 1), alpha, hits / rows, 1.0)


def crossing(p_of: Callable[[float], float], alpha: float, low: float, high: float) -> float:
    """Find where a falling p-value comes down to ``alpha``, to 1e-11 of [low, high]; steps may be in it.

    The ITP method of Oliveira and Takahashi 2020, ACM Trans. Math. Softw. 47:5: false position, pulled towards the
    middle just so far that it never takes more than one evaluation beyond halving; on the logarithm, which is nearly
    straight in a tail. Returns the bracket's upper end, so that p is not above ``alpha`` there; ``low`` where it never
    is, ``high`` where it always is.
    """

    def falling(at: float) -> float:
        return math.log(max(p_of(at), _TINY) / alpha)

    at_low, at_high = falling(low), falling(high)
    if at_low <= 0.0 or at_high > 0.0:
        return low if at_low <= 0.0 else high
    close, pull = 1e-11 * (high - low), 0.2 / (high - low)
    allowed = high - low
    while high - low > close:
        width, middle = high - low, 0.5 * (low + high)
        guess = (high * at_low - low * at_high) / (at_low - at_high)
        side = math.copysign(1.0, middle - guess)
        shift = max(pull * width * width, 0.25 * close)
        nearer = guess + side * shift if shift <= abs(middle - guess) else middle
        reach = max(allowed - 0.5 * width, 0.0)
        point = nearer if abs(nearer - middle) <= reach else middle - side * reach
        allowed *= 0.5
        if not low < point < high:
            break
        value = falling(point)
        low, at_low, high, at_high = (point, value, high, at_high) if value > 0.0 else (low, at_low, point, value)
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

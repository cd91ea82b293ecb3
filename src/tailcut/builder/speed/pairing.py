"""Which two variants make a pair, and from which input length on the second one runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

import msgspec

LEAST_GAIN = 0.03
"""A pair holds two models in memory: below 3 % less time (geometric mean over lengths) it is not worth that."""


class LengthSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of variants.

    Attributes:
        short: the variant that runs inputs of at most ``at``.
        long: the variant that runs the others.
        at: longest measured length at which ``short`` runs.
        single: the best variant alone: least geometric mean over all lengths.
        ratio: the pair's time over that of ``single``, geometric mean over all lengths; 1 or less.
    """

    short: str
    long: str
    at: int
    single: str
    ratio: float

    @property
    def pays(self) -> bool:
        """Whether it is worth two models in memory."""
        return self.ratio <= 1.0 - LEAST_GAIN


def best_switch(ms: Mapping[str, Mapping[int, float]]) -> LengthSwitch | None:
    """Find the pair and the switch point with the least time.

    Every length counts alike, as a ratio, so that long inputs (few, slow, and what the high percentiles are made of)
    weigh neither more nor less than short ones.

    Args:
        ms: variant -> length -> milliseconds; two variants or more, the same lengths for each, two or more.

    Returns:
        None where one variant is the fastest at every length.
    """
    lengths = sorted(next(iter(ms.values())))
    cost = {name: [log(found[length]) for length in lengths] for name, found in ms.items()}
    single = min(cost, key=lambda name: sum(cost[name]))
    best = (sum(cost[single]), single, single, len(lengths))
    for count in range(1, len(lengths)):
        short = min(cost, key=lambda name: sum(cost[name][:count]))
        long = min(cost, key=lambda name: sum(cost[name][count:]))
        if short != long:
            best = min(best, (sum(cost[short][:count]) + sum(cost[long][count:]), short, long, count))
    total, short, long, count = best
    if short == long:
        return None
    ratio = exp((total - sum(cost[single])) / len(lengths))
    return LengthSwitch(short=short, long=long, at=lengths[count - 1], single=single, ratio=ratio)

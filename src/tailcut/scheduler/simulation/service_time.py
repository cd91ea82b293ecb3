"""Service times for simulations: what a batch takes, drawn from a cost and its noise, or from what was measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tailcut.scheduler.latency_model import Cost

Service = Callable[[int], float]


def steady(cost: Cost) -> Service:
    """Every batch takes what is expected of it."""
    return cost.batch_ns


def noisy(cost: Cost, seed: int, *, sigma: float = 0.1, hiccups: float = 0.0, hiccup_times: float = 5.0) -> Service:
    """Lognormal noise around the expectation, its mean kept; and now and then a hiccup.

    Args:
        sigma: of the logarithm: 0.1 is about ten percent.
        hiccups: share of the batches that are hit by one.
        hiccup_times: what such a batch takes, in times of what is expected.
    """
    generator = np.random.default_rng(seed)

    def draw(rows: int) -> float:
        times = float(np.exp(generator.normal(-sigma * sigma / 2, sigma))) if sigma else 1.0
        if hiccups and generator.random() < hiccups:
            times = hiccup_times
        return cost.batch_ns(rows) * times

    return draw


def measured(samples: Mapping[int, Sequence[float]], seed: int) -> Service:
    """Draw from measured nanoseconds by rows; between two measured sizes, in proportion.

    Args:
        samples: rows -> what batches of so many rows took; at least one of each.
    """
    generator = np.random.default_rng(seed)
    sizes = sorted(samples)
    medians = {rows: float(np.median(samples[rows])) for rows in sizes}

    def draw(rows: int) -> float:
        place = min(bisect_left(sizes, rows), len(sizes) - 1)
        above = sizes[place]
        found = float(samples[above][int(generator.integers(len(samples[above])))])
        if above == rows:
            return found
        if place == 0 or above < rows:
            return found * rows / above
        below = sizes[place - 1]
        typical = np.interp(rows, [below, above], [medians[below], medians[above]])
        return found * float(typical) / medians[above]

    return draw

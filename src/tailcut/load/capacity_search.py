"""Which rate to try next when the highest rate within an SLO is wanted: a pure search.

Geometric rise until a rate misses, geometric bisection between the highest pass and the lowest miss, then a repeat of
the winner. A winner that fails its repeat is a miss: the search goes on below it.
"""

from __future__ import annotations

from math import sqrt

import msgspec


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One rate that was tried. ``cause`` says why it missed; empty where it passed."""

    rate: float
    passed: bool
    cause: str = ""
    confirming: bool = False


class CapacitySearch:
    """Decides the next rate from the steps so far. One owner; no clock.

    Args:
        start_rate: first rate, requests per second.
        tolerance: bisection ends when the lowest miss is within this share above the highest pass.
        factor: how fast the rate rises until the first miss, and falls before the first pass.
        max_rate: never tried above it.
        min_rate: given up below it.
    """

    def __init__(
        self,
        start_rate: float,
        *,
        tolerance: float = 0.05,
        factor: float = 2.0,
        max_rate: float = 100_000.0,
        min_rate: float = 0.5,
    ) -> None:
        self._start = min(start_rate, max_rate)
        self._tolerance = tolerance
        self._factor = factor
        self._max = max_rate
        self._min = min_rate
        self._passed = 0.0
        self._missed = float("inf")
        self._confirmed = False
        self.steps: list[Step] = []

    @property
    def capacity(self) -> float:
        """The highest rate that passed and was not refuted; 0 where none did."""
        return self._passed

    @property
    def confirmed(self) -> bool:
        """Whether the capacity passed twice."""
        return self._confirmed

    @property
    def first_miss(self) -> Step | None:
        """The lowest rate that missed: what limits the capacity."""
        missed = [step for step in self.steps if not step.passed]
        return min(missed, key=lambda step: step.rate, default=None)

    def next_rate(self) -> float | None:
        """The rate to try next; None when the search is over."""
        if not self.steps:
            return self._start
        if self._passed == 0.0:
            below = self._missed / self._factor
            return below if below >= self._min else None
        if self._missed == float("inf") and self._passed < self._max:
            return min(self._passed * self._factor, self._max)
        if self._missed > self._passed * (1 + self._tolerance) and self._passed < self._max:
            return sqrt(self._passed * self._missed)
        return None if self._confirmed else self._passed

    def record(self, rate: float, *, passed: bool, cause: str = "") -> Step:
        """Take in the outcome of a step at ``rate``."""
        confirming = rate == self._passed and bool(self.steps)
        step = Step(rate=rate, passed=passed, cause=cause, confirming=confirming)
        self.steps.append(step)
        if passed and confirming:
            self._confirmed = True
        elif passed:
            self._passed = max(self._passed, rate)
        else:
            self._missed = min(self._missed, rate)
            lower = [one.rate for one in self.steps if one.passed and one.rate < self._missed]
            self._passed = max(lower, default=0.0)
        return step

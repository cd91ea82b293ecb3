"""How many executors a pool should have, and which of them are worn out: decided from what was seen, without a clock.

Executors are wanted for three reasons, and the largest counts:
1. The work that arrives: busy executors, and what arrives faster than it is computed, extrapolated by as long as an
   executor takes to load, spread so that none is busier than ``_BUSY_AIM``.
2. The queue: what waits must be gone, with the executors that are there by then, before it costs more than
   ``_QUEUE_SHARE`` of the latency limit.
3. The latency: the p95 of the last moments is over its limit although executors are busy.

Up goes at once, down only after ``_QUIET_S`` without a need for what would go, one executor at a time: loading takes
seconds and processor time, an idle executor costs memory only. Each time that one which went is missed soon after, the
next waits twice as long to go.

Sources: the surcharge for load time, INFaaS (Romero et al., USENIX ATC 2021, section 5.2); queues of many servers need
spare servers in proportion to the load's root (Halfin and Whitt 1981), which ``_BUSY_AIM`` stands in for at the small
counts of one machine.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

_BUSY_AIM = 0.7
_BUSY_DOWN = 0.5
"""Share of busy time up to which one executor less would do: far enough below ``_BUSY_AIM`` that pools do not flap."""

_QUEUE_SHARE = 0.25
_QUIET_S = 30.0
_LONGEST_QUIET_S = 240.0
_SOON = 2.0
"""An executor that is needed again within so many times the quiet after which it went should not have gone. A crash
that is made good, or one that did not go after all, says nothing of that."""

_FORGETTING_S = 1.0
"""Time constant of the averages: a burst of a quarter of a second is the queue's business, a second is the pool's."""

_SHORTEST_S = 1e-3
"""Two looks are taken to be so far apart at least: what comes in a moment is no rate."""


class ScalingLimits(NamedTuple):
    """Least and most executors, and the latency (seconds) that the SLO allows at its percentile."""

    least: int
    most: int
    latency_s: float


class PoolObservation(NamedTuple):
    """What a pool looked like at ``now_s``.

    Attributes:
        executors: that take batches.
        opening: that are being loaded.
        busy_s: executor seconds of work since the last look, those that ran on included.
        queued_s: executor seconds of work that waits.
        p95_s: of the requests since the last look; 0 where there were none.
        load_s: how long an executor takes to load.
    """

    now_s: float
    executors: int
    opening: int
    busy_s: float
    queued_s: float
    p95_s: float
    load_s: float


class Scaler:
    """Decides the size of one pool. Owned by whoever looks; no clock."""

    def __init__(self, limits: ScalingLimits) -> None:
        self._limits = limits
        self._last_s: float | None = None
        self._queued_s = 0.0
        self._demand = 0.0
        self._growth = 0.0
        self._needed_s: float | None = None
        self._quiet_s = _QUIET_S
        self._shrunk_s: float | None = None
        self._shrunk_to = 0
        self.why = ""

    def target(self, seen: PoolObservation) -> int:
        """Return how many executors there should be, those that are being loaded included.

        ``why`` then says in a few words what decided.
        """
        there = seen.executors + seen.opening
        if self._last_s is None or seen.now_s <= self._last_s:
            self._last_s, self._queued_s, self._needed_s = seen.now_s, seen.queued_s, seen.now_s
            return self._within(there)
        self._learn(seen, max(seen.now_s - self._last_s, _SHORTEST_S))
        self._last_s, self._queued_s = seen.now_s, seen.queued_s
        needed, why = self._needed(seen)
        if needed > there:
            self.why, self._needed_s = why, seen.now_s
            if there <= self._shrunk_to < needed:
                self._missed(seen.now_s)
            return self._within(needed)
        if there <= 1 or self._demand > (there - 1) * _BUSY_DOWN or needed == there:
            self._needed_s = seen.now_s
        quiet = self._needed_s is not None and seen.now_s - self._needed_s >= self._quiet_s
        if quiet and not seen.opening:  # else one more may be on its way in the place of one that is worn out
            self.why, self._needed_s = f"busy {self._demand:.2f} of {there}", seen.now_s
            if there > self._limits.least:
                self._shrunk_s, self._shrunk_to = seen.now_s, there - 1
            return self._within(there - 1)
        return self._within(there)

    def _missed(self, now_s: float) -> None:
        """Wait longer before the next one goes where the last one is needed again soon; else as long as ever."""
        if self._shrunk_s is not None:
            soon = now_s - self._shrunk_s <= _SOON * self._quiet_s
            self._quiet_s = min(2.0 * self._quiet_s, _LONGEST_QUIET_S) if soon else _QUIET_S
            self._shrunk_s = None

    def _learn(self, seen: PoolObservation, passed_s: float) -> None:
        """Average the demand: executor seconds of work that arrived per second, computed already or not."""
        arrived = max(seen.busy_s + seen.queued_s - self._queued_s, 0.0) / passed_s
        weight = min(passed_s / _FORGETTING_S, 1.0)
        growth = (arrived - self._demand) / max(passed_s, _FORGETTING_S)
        self._demand += weight * (arrived - self._demand)
        self._growth += weight * (growth - self._growth)

    def _needed(self, seen: PoolObservation) -> tuple[int, str]:
        ahead = self._demand + max(self._growth, 0.0) * seen.load_s
        wanted = ceil(round(min(ahead, 2.0 * self._demand) / _BUSY_AIM, 6))
        why = f"work for {ahead:.2f} executors arrives"
        allowed_s = _QUEUE_SHARE * self._limits.latency_s
        late_s = seen.queued_s / max(seen.executors, 1)
        if late_s > allowed_s:
            # What is loading comes too late for what waits now, but not for what comes behind it.
            drained = ceil(round(self._demand + seen.queued_s / max(self._limits.latency_s, seen.load_s), 6))
            if max(drained, seen.executors + 1) > wanted:
                wanted, why = max(drained, seen.executors + 1), f"{late_s * 1e3:.0f} ms of work wait"
        if seen.p95_s > self._limits.latency_s and self._demand > _BUSY_DOWN * seen.executors:
            there = seen.executors + max(seen.opening, 1)
            if there > wanted:
                wanted, why = there, f"p95 {seen.p95_s * 1e3:.0f} ms"
        return wanted, why

    def _within(self, wanted: int) -> int:
        return min(max(wanted, self._limits.least), self._limits.most)


class Wear(NamedTuple):
    """When an executor is replaced by a fresh one; 0 is never.

    Attributes:
        requests: it has answered.
        age_s: since it was opened.
        growth: of its memory since it was warm, as a share (0.5: half as much again).
    """

    requests: int = 0
    age_s: float = 0.0
    growth: float = 0.0

    def __bool__(self) -> bool:
        return any(self)

    def reason(self, requests: int, age_s: float, growth: float) -> str:
        """Return why an executor is worn out; empty where it is not."""
        if self.requests and requests >= self.requests:
            return f"{requests} requests, the limit is {self.requests}"
        if self.age_s and age_s >= self.age_s:
            return f"{age_s:.0f} s old, the limit is {self.age_s:.0f} s"
        if self.growth and growth >= self.growth:
            return f"memory grew by {growth:.0%}, the limit is {self.growth:.0%}"
        return ""

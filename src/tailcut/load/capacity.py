"""Search the highest rate within an SLO by running steps at the rates that a pure search asks for.

Geometric rise until a rate misses, geometric bisection between the highest pass and the lowest miss, then a repeat of
the winner. A winner that fails its repeat is a miss: the search goes on below it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import sqrt

import msgspec

from tailcut.common.slo import Objectives
from tailcut.errors import LoadTestError
from tailcut.load.plan import LoadPlan
from tailcut.load.result import LoadResult
from tailcut.load.runner import OnProgress, measure
from tailcut.load.summary import summarise_run

_STEP_SAMPLES = 40
"""Requests a step should have: a slow rate is measured for longer, up to ``_LONGEST_STEP_S``."""
_LONGEST_STEP_S = 20.0
_MIN_RATE = 2.0


class RateStep(msgspec.Struct, frozen=True, kw_only=True):
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

    Attributes:
        capacity: the highest rate that passed and was not refuted; 0 where none did.
        confirmed: whether it passed twice.
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
        self._missed = float("inf")
        self.capacity = 0.0
        self.confirmed = False
        self.steps: list[RateStep] = []

    @property
    def first_miss(self) -> RateStep | None:
        """The lowest rate that missed: what limits the capacity."""
        missed = [step for step in self.steps if not step.passed]
        return min(missed, key=lambda step: step.rate, default=None)

    def next_rate(self) -> float | None:
        """The rate to try next; None when the search is over."""
        if not self.steps:
            return self._start
        if self.capacity == 0.0:
            below = self._missed / self._factor
            return below if below >= self._min else None
        if self._missed == float("inf") and self.capacity < self._max:
            return min(self.capacity * self._factor, self._max)
        if self._missed > self.capacity * (1 + self._tolerance) and self.capacity < self._max:
            return sqrt(self.capacity * self._missed)
        return None if self.confirmed else self.capacity

    def record(self, rate: float, *, passed: bool, cause: str = "") -> RateStep:
        """Take in the outcome of a step at ``rate``."""
        confirming = rate == self.capacity and bool(self.steps)
        step = RateStep(rate=rate, passed=passed, cause=cause, confirming=confirming)
        self.steps.append(step)
        if passed and confirming:
            self.confirmed = True
        elif passed:
            self.capacity = max(self.capacity, rate)
        else:
            self._missed = min(self._missed, rate)
            lower = [one.rate for one in self.steps if one.passed and one.rate < self._missed]
            self.capacity = max(lower, default=0.0)
        return step


class CapacityStep(RateStep, frozen=True, kw_only=True):
    """One rate that was tried, with what was seen."""

    stopped_early: bool
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    throughput_rps: float
    error_share: float
    took_s: float


class CapacityResult(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that stayed within the objectives.

    Args:
        rate: requests per second; 0 where even the lowest rate missed.
        confirmed: whether that rate passed a second time.
        limit: why the lowest missing rate missed; empty where none did.
        complete: whether the search ended by itself; otherwise its time was up and ``rate`` is a lower bound.
        generator_limited: the generator itself was late in a step that missed: the server's capacity may be higher.
        steps: every step, in order.
    """

    objectives: str
    rate: float
    confirmed: bool
    limit: str
    complete: bool
    generator_limited: bool
    steps: tuple[CapacityStep, ...]


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a search ends.

    Args:
        tolerance: how close the answer is, as a share of it.
        max_rate: highest rate that is tried.
        max_total_s: no new step starts after this long.
    """

    tolerance: float = 0.05
    max_rate: float = 20_000.0
    max_total_s: float = 300.0


Judge = Callable[[LoadResult], str]
"""Says why a step missed; empty where it passed."""


def find_capacity(
    plan: LoadPlan,
    slo: Objectives,
    *,
    start_rate: float = 50.0,
    limits: SearchLimits = SearchLimits(),  # noqa: B008  (frozen)
    judge: Judge | None = None,
    on_step: Callable[[CapacityStep], None] | None = None,
    on_progress: OnProgress | None = None,
) -> CapacityResult:
    """Search the highest rate at which ``slo`` holds.

    Args:
        plan: how each step runs; its duration (longer at rates that would give few samples) and warm-up
            are a step's, its rate is ignored.
        slo: what a step must meet.
        start_rate: first rate, requests per second.
        limits: when the search ends.
        judge: another rule for what misses, in place of ``slo``'s findings; a step that can no longer meet ``slo`` is
            still ended early.
        on_step: called after each step.
        on_progress: as in ``run``.

    Raises:
        LoadTestError: the objectives are empty, or a step cannot run.
    """
    if not slo.latency and slo.errors is None and judge is None:
        raise LoadTestError(
            "the search for capacity needs an SLO", hint="give --slo, for example --slo p95=25ms,errors=0.1%"
        )
    search = CapacitySearch(start_rate, tolerance=limits.tolerance, max_rate=limits.max_rate, min_rate=_MIN_RATE)
    base = msgspec.structs.replace(plan, rate=None, ramp=None, trace="", slo=slo)
    began_s = time.monotonic()
    steps: list[CapacityStep] = []
    sent, late_generator = 0, False
    complete = True
    while (rate := search.next_rate()) is not None:
        if time.monotonic() - began_s > limits.max_total_s:
            complete = False
            break
        step_plan = _step_plan(base, rate, len(steps), sent)
        sent += int(rate * (step_plan.warmup_s + step_plan.duration_s))
        step_began_s = time.monotonic()
        samples, facts = measure(step_plan, on_progress=on_progress, stop_hopeless=True)
        result = summarise_run(step_plan, samples, facts)
        cause = judge(result) if judge is not None else result.first_miss
        done = search.record(rate, passed=not cause, cause=cause)
        late_generator = late_generator or bool(cause and result.generator_cpu_share > 0.9)
        steps.append(_describe(result, done, time.monotonic() - step_began_s))
        if on_step is not None:
            on_step(steps[-1])
        if cause:
            _settle(base, slo)
    miss = search.first_miss
    return CapacityResult(
        objectives=str(slo),
        rate=search.capacity,
        confirmed=search.confirmed,
        limit=f"{miss.cause} (at {miss.rate:.4g} req/s)" if miss else "",
        complete=complete,
        generator_limited=late_generator,
        steps=tuple(steps),
    )


def _step_plan(base: LoadPlan, rate: float, place: int, sent: int) -> LoadPlan:
    # Other arrivals, but the same stream of payloads going on: what was popular stays popular, as on a live server.
    return msgspec.structs.replace(
        base,
        rate=rate,
        duration_s=max(base.duration_s, min(_STEP_SAMPLES / rate, _LONGEST_STEP_S)),
        seed=base.seed + place,
        payload_seed=base.seed,
        payload_offset=sent,
    )


def _describe(result: LoadResult, done: RateStep, took_s: float) -> CapacityStep:
    latency = result.latency_ms
    return CapacityStep(
        **msgspec.structs.asdict(done),
        stopped_early=bool(result.stopped),
        p50_ms=latency.p50 if latency else None,
        p95_ms=latency.p95 if latency else None,
        p99_ms=latency.p99 if latency else None,
        throughput_rps=result.throughput_rps,
        error_share=result.failed / result.requests if result.requests else 0.0,
        took_s=took_s,
    )


def _settle(plan: LoadPlan, slo: Objectives, *, tries: int = 10) -> None:
    # A server may still be working off the queue of a step that missed; the next step must not inherit it.
    limit_ms = (slo.loosest_ns or int(plan.timeout_s * 1e9)) / 1e6
    probe = msgspec.structs.replace(
        plan, rate=20.0, arrivals="constant", duration_s=0.5, warmup_s=0.0, slo=Objectives(), pid=0
    )
    for _ in range(tries):
        samples, facts = measure(probe)
        latency = summarise_run(probe, samples, facts).latency_ms
        if latency is not None and latency.p90 <= limit_ms:
            return

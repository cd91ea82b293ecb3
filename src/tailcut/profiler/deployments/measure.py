"""Serve a deployment under two loads, and measure what its requests take of each resource: for ``tailcut simulate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, measure, summarise_run
from tailcut.load.runner import OnProgress
from tailcut.manifest.subject import Subject
from tailcut.profiler.deployments.deployment import Served, started
from tailcut.profiler.deployments.request_costs import LoadFigures, RequestCosts
from tailcut.profiler.deployments.server_counters import Counted, Counters, read_counters
from tailcut.profiler.outside import too_fast, unanswered
from tailcut.scheduler.simulation.request_steps import Steps
from tailcut.system.machine import usable_cores

LOW, HIGH = 0.2, 0.6
"""Loads that are measured, as shares of what the busiest resource bears; at others requests are a mixture of both."""

_NEAR_ENOUGH, _HIGHER = 0.75, 3
_PROBE_S = 2.0
_WARMUP_S = 3.0
_REQUESTS, _SHORTEST_S, _LONGEST_S = 2000, 4.0, 20.0
_DEFAULT_RATE = 50.0


class Measured(NamedTuple):
    """A deployment as it was measured.

    Attributes:
        costs: at each rate, ascending.
        requests: their steps, of each rate.
        capacity: requests per second that the busiest resource bears at most.
        executor, executors: kind and number.
        cores: that the server had.
        hook_wait: share of a hook's time in threads in which it waits.
        spread: standard deviation of the logarithm of a batch's time; None where sizes differ too much to tell.
        where: which cores the server and the load had.
    """

    costs: tuple[RequestCosts, ...]
    requests: tuple[list[Steps], ...]
    capacity: float
    executor: str
    executors: int
    cores: float
    hook_wait: float
    spread: float | None
    where: str


def measure_deployment(
    subject: Subject,
    payloads: str,
    *,
    path: str,
    environment: Mapping[str, str],
    tell: Callable[[str], None],
    on_progress: OnProgress | None = None,
) -> Measured:
    """Serve the deployment here, and take its figures under a low and a high load.

    Args:
        subject, environment: as in ``deployment.record_deployment``.
        payloads: what is sent; empty: the manifest's ``ladder.traffic``.
        path: where it is sent; empty: ``/predict/{model}``.
        tell: says what goes on.

    Raises:
        ManifestError: the traffic is missing.
        StartError: it does not come up, or does not answer the first request.
        ProfileError: it answers nothing, or cannot bear the load.
    """
    deployment = subject.manifest.deployment
    timeout_s = float(deployment.slo.timeout_s)
    # One seed of the payloads: traffic whose favourites changed between the loads would find cold caches.
    plan = LoadPlan(url=path, payloads=payloads, payload_seed=0, warmup_s=_WARMUP_S, timeout_s=timeout_s)
    with started(subject, plan, environment=environment) as served:
        bench = _Bench(served, deployment.name, on_progress)
        rate = float(deployment.slo.rate or _DEFAULT_RATE)
        tell(f"measuring {deployment.name} at {rate:g} requests/s: {served.where}")
        first = bench.load(rate, _PROBE_S)
        # The high one first: it fills the caches, and the low one finds them as they are after hours.
        high = bench.load_borne(HIGH * first.capacity(), tell)
        for _ in range(_HIGHER):
            # Warm caches and full batches bear more than was seen, and what a request costs falls with the rate.
            if high.rate >= _NEAR_ENOUGH * HIGH * high.capacity():
                break
            high = bench.load_borne(HIGH * high.capacity(), tell)
        low = bench.load_borne(min(LOW / HIGH * high.rate, LOW * high.capacity()), tell)
        served.process.check_alive("under load")
    return Measured(
        costs=(low.costs(), high.costs()),
        requests=(low.steps(low.handover_ns), high.steps(low.handover_ns, low)),
        capacity=high.capacity(),
        executor=high.executor,
        executors=high.executors,
        cores=high.cores,
        hook_wait=low.hook_wait,
        spread=low.spread(),
        where=served.where,
    )


class _Bench:
    """A served deployment and what its loads have in common."""

    def __init__(self, served: Served, name: str, on_progress: OnProgress | None) -> None:
        self.served = served
        self.name = name
        self.on_progress = on_progress
        self._sent = 0

    def load_borne(self, rate: float, tell: Callable[[str], None]) -> LoadFigures:
        """Send a load of ``_REQUESTS`` or so; where it is more than the deployment bears, a lower one.

        Raises:
            ProfileError: it does not even bear that.
        """
        for last in (False, False, True):
            tell(f"measuring {self.name} at {rate:.3g} requests/s")
            found, error = self._load(rate, min(max(_REQUESTS / rate, _SHORTEST_S), _LONGEST_S))
            if error is None:
                break
            if last:
                raise error
            rate = HIGH * found.borne
        return found

    def load(self, rate: float, duration_s: float) -> LoadFigures:
        """Send one load, be it more than the deployment bears or not."""
        return self._load(rate, duration_s)[0]

    def _load(self, rate: float, duration_s: float) -> tuple[LoadFigures, ProfileError | None]:
        # Each load goes on where the last one ended: payloads that were sent before would find warm caches.
        plan = msgspec.structs.replace(
            self.served.plan, rate=rate, duration_s=duration_s, seed=int(rate), payload_offset=self._sent
        )
        before = self._counters()
        samples, facts = measure(plan, on_progress=self.on_progress)
        after = self._counters()
        self._sent += len(samples.status)
        result = summarise_run(plan, samples, facts)
        target = f"deployment {self.name}"
        if not result.answered:
            raise unanswered(result, target)
        cores = 1.0 if self.served.core is not None else float(usable_cores())
        found = LoadFigures(rate, samples, Counted(before, after), plan.warmup_s + facts.window_s, cores)
        return found, too_fast(result, target)

    def _counters(self) -> Counters:
        process = self.served.process
        return read_counters(process.port, self.name, process.pid)

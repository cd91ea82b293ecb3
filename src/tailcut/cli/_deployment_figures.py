"""What ``tailcut simulate`` knows of a deployment beside its batches: measured, or named as missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tailcut.cli.console import note
from tailcut.cli.progress import ProgressLine
from tailcut.manifest import Deployment
from tailcut.manifest.subject import Subject
from tailcut.scheduler.latency_learner import LatencyLearner
from tailcut.scheduler.simulation.request_steps import Steps, drawn, nearness

if TYPE_CHECKING:
    from tailcut.profiler.deployments.measure import Measured
    from tailcut.profiler.deployments.request_costs import RequestCosts

_FEWEST = 20
"""Batches of a size that make its mean under load worth more than the bare runtime's in proportion."""


def measured_here(subject: Subject, payloads: str, path: str) -> Measured:
    """Serve the deployment here under its traffic and take its figures; tell what goes on.

    Args:
        payloads, path: what is sent, and where; empty: the manifest's.

    Raises:
        TailcutError: it does not come up, or answers nothing.
    """
    from tailcut.profiler.deployments.measure import measure_deployment
    from tailcut.profiler.deployments.surroundings import surroundings

    with surroundings(subject.manifest, note) as environment, ProgressLine() as line:
        return measure_deployment(
            subject,
            payloads,
            path=path,
            environment=environment,
            tell=line.note,
            on_progress=line.show,
        )


def missing(deployment: Deployment | None, *, measure: bool, request_us: float) -> str:
    """Say what the simulation leaves out where nothing was measured, and how to get it."""
    assumed = f"an executor without overhead, {request_us:g} us on the event loop per request"
    if deployment is None:
        return f"not included: features and hooks (there is no manifest); assumed: {assumed}"
    groups = len(deployment.features.groups)
    parts = [f"{groups} feature group{'s' * (groups > 1)}"] if groups else []
    parts += [name for name in ("preprocess", "postprocess") if getattr(deployment.model, name)]
    parts += [f"cache.{name}" for name in ("entity", "tensor") if getattr(deployment.cache, name).enabled]
    left_out = f"not included: {', '.join(parts)}; " if parts else ""
    way = (
        "--measure found no traffic: give --payloads, or set ladder.traffic in the manifest"
        if measure
        else "--measure serves the deployment here under its traffic and measures them"
    )
    return f"{left_out}assumed: {assumed}; {way}"


def requests_at(measured: Measured, rate: float, seed: int) -> Callable[[int], Steps]:
    """Return what draws the requests at a rate: those of the measured rates, by how near they are."""
    return drawn(measured.requests, nearness([one.rate for one in measured.costs], rate), seed)


def batches_at(measured: Measured, known_ns: Mapping[int, float], rate: float) -> dict[int, float]:
    """Return what batches take as served: rows -> nanoseconds.

    Sizes that were not seen under load are longer than the bare runtime's in the proportion of those that were.

    Args:
        known_ns: of the bare runtime.
    """
    costs = LatencyLearner()
    costs.seed(known_ns)
    expected = costs.cost.batch_ns
    shares = nearness([one.rate for one in measured.costs], rate)
    found: dict[int, float] = {}
    for share, one in zip(shares, measured.costs, strict=True):
        served = sum(ms * 1e6 * one.batches[rows] for rows, ms in one.batch_ms.items())
        bare = sum(expected(rows) * one.batches[rows] for rows in one.batch_ms)
        longer = served / bare if bare else 1.0
        for rows in {*known_ns, *(rows for each in measured.costs for rows in each.batch_ms)}:
            seen = one.batches.get(rows, 0) >= _FEWEST
            took_ns = one.batch_ms[rows] * 1e6 if seen else expected(rows) * longer
            found[rows] = found.get(rows, 0.0) + share * took_ns
    return dict(sorted(found.items()))


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """The measured figures, for files.

    Attributes:
        costs: at each measured rate, ascending.
        capacity: requests per second that the busiest resource allows at most.
        executor, executors: kind and number that served.
        cores: that the server had.
        hook_wait: share of a hook's time in threads in which it waits.
        where: which cores the server and the load had.
    """

    costs: tuple[RequestCosts, ...]
    capacity: float
    executor: str
    executors: int
    cores: float
    hook_wait: float
    where: str


def lines_of(deployed: Deployed) -> Iterator[str]:
    """Yield what was measured, for people: the lower rate first."""
    costs = deployed.costs
    rates = " and ".join(f"{one.rate:.3g}/s" for one in costs)
    cached = _both([f"{one.cached:.0%}" for one in costs])
    loop = _both([f"{one.loop_ms:.2f}" for one in costs])
    yield (
        f"measured here now at {rates} ({deployed.where}): {loop} ms on the event loop per request, "
        f"{cached} answered from caches; {deployed.executors} x {deployed.executor}, "
        f"{costs[0].handover_ms:.2f} ms to hand a request over; "
        f"the busiest resource allows {deployed.capacity:.3g} requests/s"
    )
    if costs[-1].groups:
        waited = _both([f"{one.fetched:.1%}" for one in costs])
        took = _both([f"{one.fetch_ms:.2f}" for one in costs])
        yield f"features: {waited} of requests wait for a source, {took} ms"
        yield "  " + ", ".join(
            f"{group.name}: {'no look-ups' if group.hits is None else f'{group.hits:.1%} hits'}"
            f"{'' if group.call_ms is None else f', {group.call_ms:.2f} ms a call'}"
            for group in costs[-1].groups
        )
    hooks = [
        f"{name} {ms:.2f} ms {_place(threads, deployed.hook_wait)}"
        for name, ms, threads in (
            ("preprocess", costs[-1].preprocess_ms, costs[-1].preprocess_threads),
            ("postprocess", costs[-1].postprocess_ms, costs[-1].postprocess_threads),
        )
        if ms
    ]
    if hooks:
        yield f"hooks: {'; '.join(hooks)}"


def _both(texts: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(texts))


def _place(threads: float, wait: float) -> str:
    return f"in threads, {wait:.0%} of it waiting" if threads >= 0.5 else "on the event loop"

"""Turns the manifest's batching section and a variant's evidence into a dispatcher that knows what batches take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from math import ceil
from typing import Any

from tailcut.common.runtime_spec import spec_of
from tailcut.manifest import Batching, Deployment, Slo
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.dispatcher import BatchObserver, Cores, Dispatcher, ExecutorSet
from tailcut.models.runtimes.bucketed import buckets_of
from tailcut.models.runtimes.sliced import run_rows_of
from tailcut.registry import Variant
from tailcut.scheduler.admission import Admission
from tailcut.scheduler.batching_delay import Fixed, Gain, Window
from tailcut.scheduler.core_budget import CoreBudget
from tailcut.scheduler.cost import LatencyLearner
from tailcut.scheduler.overload_detector import LatencyTarget
from tailcut.scheduler.scheduler import Scheduler
from tailcut.system.machine import usable_cores


def make_dispatcher(
    deployment: Deployment,
    variant: Variant,
    warm_up_ns: Mapping[int, float],
    kind: int,
    observer: BatchObserver,
    loop: asyncio.AbstractEventLoop,
    budget: CoreBudget | None = None,
) -> Dispatcher:
    """Make the dispatcher of a variant; executors are added by who has them.

    Args:
        warm_up_ns: nanoseconds by rows, as warm-up saw them on this machine; empty where it saw none.
        kind: length class of the rows that it ran.
        observer: told of every batch.
        budget: of the cores that it shares with other models.
    """
    settings = deployment.batching
    scheduler: Scheduler[BatchItem] = Scheduler(
        max_rows=most_rows(settings, variant),
        max_queue_rows=settings.max_queue_rows,
        max_queue_bytes=int(settings.max_queue_bytes),
        merge=merges(settings, variant),
        window=None if variant.evidence.rows_alone else make_window(settings, deployment.slo),
        target=make_target(settings, deployment.slo),
    )
    costs = make_costs(deployment, variant, warm_up_ns, kind)
    admission = Admission(
        scheduler, costs, tenant_share=float(settings.tenant_share), tenant_rows_per_s=settings.tenant_rate
    )
    return Dispatcher(
        scheduler,
        observer,
        loop,
        running=ExecutorSet(deployment.slo.timeout_s, at_once(variant.runtime, variant.settings, usable_cores())),
        costs=costs,
        admission=admission,
        lengths=_lengths(deployment),
        cores=_cores(deployment, variant, budget),
    )


def _cores(deployment: Deployment, variant: Variant, budget: CoreBudget | None) -> Cores | None:
    """Return what joins the budget of cores; None for models that may wait for something else than a core."""
    if budget is None or at_once(variant.runtime, variant.settings, 1.0) is None:
        return None
    target = make_target(deployment.batching, deployment.slo)
    return partial(
        budget.join,
        deployment.name,
        share=deployment.pool.share,
        width=deployment.pool.threads_of(variant.settings),
        limit_ns=target.limit_ns if target is not None else float(deployment.slo.timeout_s) * 1e9,
    )


def at_once(runtime: str, settings: Mapping[str, Any], cores: float) -> int | None:
    """Return how many batches may run at a time; None where only the executors say.

    That is as many as there are cores, where all that a batch does is known to be computing on them. Models of other
    libraries, and the user's own, may wait for something else meanwhile, and a device's time is not the cores'.
    """
    on_cores = all(str(settings.get(key, "cpu")).lower().startswith("cpu") for key in ("device", "provider"))
    if not spec_of(runtime).computes or not on_cores:
        return None
    return max(ceil(cores), 1)


def merges(settings: Batching, variant: Variant) -> bool:
    """Whether requests share batches: the manifest and the variant's evidence both have a say."""
    return settings.mode != "off" and not variant.evidence.rows_alone


def most_rows(settings: Batching, variant: Variant) -> int:
    """Return the rows of the largest batch: one where rows run alone, those of one request too."""
    return 1 if variant.evidence.rows_alone else settings.max_rows


def make_window(settings: Batching, slo: Slo) -> Window | None:
    """Return what decides about waiting; None where nobody ever waits for company."""
    if settings.mode == "fixed":
        return Fixed(int(settings.max_queue_delay_s * 1e9), settings.preferred_rows)
    if settings.mode == "off":
        return None
    # Where the SLO names no p95, half of the time-out leaves room for what cannot be foreseen.
    return Gain(int((slo.p95_s or slo.p99_s or slo.timeout_s / 2) * 1e9))


def make_target(settings: Batching, slo: Slo) -> LatencyTarget | None:
    """Return what the SLO wants of one request; None where it names no percentile, or only deadlines are to count.

    Of two limits the looser: beyond it a request is late whatever the others do.
    """
    limits_s = [limit_s for limit_s in (slo.p95_s, slo.p99_s) if limit_s is not None and limit_s < slo.timeout_s]
    if not limits_s or settings.order == "deadline":
        return None
    return LatencyTarget(int(max(limits_s) * 1e9), int(slo.timeout_s * 1e9))


def make_costs(deployment: Deployment, variant: Variant, warm_up_ns: Mapping[int, float], kind: int) -> LatencyLearner:
    """Return what is known before the first batch: from the build where it was on such a machine, and from warm-up."""
    costs = LatencyLearner(buckets_of(variant.settings, variant.name), run_rows=run_rows_of(variant.settings))
    if _lengths(deployment):
        # The build's times are of texts of all lengths; warm-up's are of one.
        if warm_up_ns:
            costs.seed(warm_up_ns, kind)
        return costs
    tuning = variant.evidence.tuning if variant.trust.level == "trusted" else None
    for points in (tuning.points if tuning is not None else {}, warm_up_ns):
        if points:
            costs.seed(points)
    return costs


def built_ns(deployment: Deployment, variant: Variant, rows: int) -> float | None:
    """Return the build's median of batches of so many rows, in nanoseconds.

    Returns:
        None where the build timed none on such a machine with as many threads as are served with.
    """
    tuning = variant.evidence.tuning
    same_threads = deployment.pool.threads_of(variant.settings) == variant.settings.get("threads", 1)
    return tuning.median_ns(rows) if tuning and same_threads and variant.trust.level == "trusted" else None


def _lengths(deployment: Deployment) -> bool:
    return any(-1 in tensor.shape[1:] for tensor in deployment.model.inputs)

"""Refuses requests before their bodies are read, while a backlog stands.

At three times the capacity two of three requests are refused, and what refusing them takes is taken from those that are
answered. Reading and checking a body is most of it.
"""

from __future__ import annotations

from tailcut.errors import Shed, TailcutError
from tailcut.models import shed_errors
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.pipeline.pipeline import Pipeline
from tailcut.scheduler.admission import Request


def refused_unread(pipeline: Pipeline, now_ns: int) -> TailcutError | None:
    """Return why a request of the usual kind is refused that comes now; None where that takes a closer look.

    The usual kind brings no deadline, no priority and no tenant. Where a cache may know the answer, or a fallback may
    give one, nobody is refused unread. Where rows differ in length, a short one may have had a chance after a long one
    that was refused a few milliseconds before; where all requests so far had one row, each is looked at as it comes.
    (How many rows it has is not known before it is read. More rows may be let in where one is not: a request that
    takes longer than the SLO alone is judged by its deadline.)
    """
    dispatcher = pipeline.dispatcher
    scheduler = dispatcher.scheduler
    overload = scheduler.overload
    if overload is None or not overload.stands:
        return None
    if not scheduler.queue_rows and dispatcher.running.idle:
        return None  # it would run at once
    if pipeline.fallback is not None or pipeline.tensor_cache is not None or pipeline.entity_cache is not None:
        return None
    if not overload.is_full(now_ns, scheduler.queue_rows):
        return _foreseen(dispatcher, now_ns, now_ns + overload.target.timeout_ns) if dispatcher.single else None
    overload.arrived(now_ns, 1)
    limit_ms = overload.target.limit_ns / 1e6
    return Shed(
        f"overload: more waits than can be answered within the SLO's limit of {limit_ms:g} ms",
        hint="retry after Retry-After seconds, lower the rate, add executors or cores, or set "
        "batching.order = 'deadline' to be answered late",
        retry_after_s=max(overload.retry_ns / 1e9, 0.001),
    )


def _foreseen(dispatcher: Dispatcher, now_ns: int, deadline_ns: int) -> TailcutError | None:
    """Return why it would be refused once it was read. It is asked again then, and counts as come here if refused."""
    if dispatcher.running.usable <= 0:
        return None
    request = Request(1, deadline_ns, kind=dispatcher.kind)
    executors = dispatcher.running.seen(now_ns, dispatcher.costs, dispatcher.coming)
    refusal = dispatcher.admission.check(now_ns, request, executors, counted=True)
    if refusal is None:
        return None
    dispatcher.admission.came(now_ns, request, executors)
    return shed_errors.of(refusal, request, executors)

"""Refuses requests before their bodies are read, while a backlog stands.

At three times the capacity two of three requests are refused, and what refusing them takes is taken from those that are
answered. Reading and checking a body is most of it.
"""

from __future__ import annotations

from tailcut.engine.path import Path
from tailcut.errors import Shed


def refused_unread(path: Path, now_ns: int) -> Shed | None:
    """Return why a request of the usual kind is refused that comes now; None where that takes a closer look.

    The usual kind brings no deadline, no priority and no tenant. Where a cache may know the answer, or a fallback may
    give one, nobody is refused unread. Where rows differ in length, a short one may have had a chance after a long one
    that was refused a few milliseconds before.
    """
    planner = path.dispatcher.planner
    overload = planner.overload
    if overload is None or not overload.is_full(now_ns, planner.queue_rows):
        return None
    if not planner.queue_rows and path.dispatcher.running.idle:
        return None  # it would run at once
    if path.fallback is not None or path.tensor_cache is not None or path.entity_cache is not None:
        return None
    overload.arrived(now_ns, 1)
    limit_ms = overload.target.limit_ns / 1e6
    return Shed(
        f"overload: more waits than can be answered within the SLO's limit of {limit_ms:g} ms",
        hint="retry after Retry-After seconds, lower the rate, add executors, or set batching.order = 'deadline' to be "
        "answered late",
        retry_after_s=max(overload.retry_ns / 1e9, 0.001),
    )

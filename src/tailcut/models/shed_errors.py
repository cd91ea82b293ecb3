"""Errors of requests that are shed: refused on arrival, past their deadline, or caught by a server that stops."""

from __future__ import annotations

from collections.abc import Iterable

from tailcut.errors import DeadlineExceeded, NotReady, Shed, TooLarge
from tailcut.models.batch_item import BatchItem
from tailcut.scheduler.admission import AdmissionRequest, Executors, Refusal


def unavailable(retry_s: float = 0.0) -> NotReady:
    """Return the error for a pool without a usable executor: closed, all stuck, or the last one failed to open.

    Args:
        retry_s: when one may be ready; 0 if unknown.
    """
    hint = "retry; if it lasts, see /v2/health/ready and the log"
    return NotReady("no executor is available", hint=hint, retry_after_s=retry_s)


def end_all(items: Iterable[BatchItem]) -> None:
    """Fail all items because the server stops."""
    for item in items:
        if not item.future.done():
            item.future.set_exception(stopping())


def stopping() -> NotReady:
    """Return the error for a request that the server's stop interrupts."""
    return NotReady("the server is stopping", hint="send the request to another replica")


def of(refusal: Refusal, request: AdmissionRequest, executors: Executors) -> Shed | TooLarge | NotReady:
    """Return the error of a request that admission refused."""
    if refusal.never:
        return TooLarge(
            f"{refusal.value:.0f} {refusal.why} exceed the queue's limit of {refusal.limit:.0f} {refusal.why}",
            hint=f"send fewer rows in one request, or raise batching.max_queue_{refusal.why}",
        )
    if not executors.usable and refusal.why in {"late", "slo", "crowds"}:
        return NotReady(
            f"no executor is ready, the next is expected in {executors.left_ns / 1e6:.0f} ms; the predicted latency "
            f"of {refusal.value / 1e6:.0f} ms exceeds the deadline of {refusal.limit / 1e6:.0f} ms",
            hint="retry after Retry-After seconds, send a longer timeout, or set pool.executors = 2 for a spare "
            "executor",
            retry_after_s=max(refusal.retry_ns / 1e9, 0.001),
        )
    message, hint = _words(refusal, request)
    return Shed(message, hint=hint, retry_after_s=max(refusal.retry_ns / 1e9, 0.001))


def overloaded(limit_ns: float, retry_ns: float) -> Shed:
    """Return the error of a request that is shed unread: the queue holds all that can be answered within the SLO."""
    return Shed(
        f"overload: the queue is too long for the SLO's limit of {limit_ns / 1e6:g} ms",
        hint="retry after Retry-After seconds, lower the rate, add executors or cores, or set "
        "batching.order = 'deadline' for late answers",
        retry_after_s=max(retry_ns / 1e9, 0.001),
    )


def _words(refusal: Refusal, request: AdmissionRequest) -> tuple[str, str]:
    """Return the message and the hint."""
    retry = "retry after Retry-After seconds"
    match refusal.why:
        case "rows" | "bytes":
            return (
                f"the queue is full: {refusal.value:.0f} {refusal.why}, the limit is {refusal.limit:.0f}",
                f"{retry}; add executors or cores, or raise batching.max_queue_{refusal.why}",
            )
        case "tenant":
            return (
                f"{refusal.value:.0f} rows of this tenant are queued, its share of the queue is {refusal.limit:.0f}",
                f"{retry}, lower the rate, or raise batching.tenant_share",
            )
        case "rate":
            return (
                f"this tenant sends more than {refusal.limit:g} rows/s",
                f"{retry}, lower the rate, or raise batching.tenant_rate",
            )
        case "crowds":
            return (
                f"accepting {request.rows} rows would make accepted requests miss their deadlines: "
                f"{refusal.value / 1e6:.0f} ms are needed, {refusal.limit / 1e6:.0f} ms are left",
                f"{retry}, lower the rate, or add executors or cores",
            )
    if refusal.why == "slo":
        return (
            f"overload: the predicted latency of {refusal.value / 1e6:.0f} ms ({refusal.ahead_rows} rows queued) "
            f"exceeds the {refusal.limit / 1e6:.0f} ms that the SLO leaves",
            f"{retry}, lower the rate, add executors or cores, or set batching.order = 'deadline' for late answers",
        )
    return (
        f"the predicted latency of {refusal.value / 1e6:.0f} ms ({refusal.ahead_rows} rows queued) exceeds the "
        f"deadline of {refusal.limit / 1e6:.0f} ms",
        f"{retry}, send a longer timeout, lower the rate, or add executors or cores",
    )


def late(kind: type[DeadlineExceeded], message: str) -> DeadlineExceeded:
    """Return the error for a deadline that has passed or can no longer be met."""
    return kind(
        message,
        hint="send a longer timeout, lower the rate, or add executors or cores; slo.timeout is the default deadline",
    )

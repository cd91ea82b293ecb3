"""What a request is told that gets no answer from the model: refused at the door, too late, or the server stops."""

from __future__ import annotations

from collections.abc import Iterable

from tailcut.errors import DeadlineExceeded, NotReady, Shed, TooLarge
from tailcut.models.batch_item import BatchItem
from tailcut.scheduler.admission import Executors, Refusal, Request


def unavailable(retry_s: float = 0.0) -> NotReady:
    """No executor takes batches: the dispatcher is closed, or all are stuck, or the last one could not be opened.

    Args:
        retry_s: when one may be there; 0 where nobody knows.
    """
    hint = "retry; if it lasts, see /v2/health/ready and the log"
    return NotReady("no executor is available", hint=hint, retry_after_s=retry_s)


def end_all(items: Iterable[BatchItem]) -> None:
    """Tell all of them that the server stops."""
    for item in items:
        if not item.future.done():
            item.future.set_exception(stopping())


def stopping() -> NotReady:
    """The server ends while the request waits or runs."""
    return NotReady("the server is stopping", hint="send the request again, to another replica")


def of(refusal: Refusal, request: Request, executors: Executors) -> Shed | TooLarge | NotReady:
    """Return the error of a request that admission refused."""
    if refusal.never:
        return TooLarge(
            f"{refusal.value:.0f} {refusal.why} exceed the queue's limit of {refusal.limit:.0f} {refusal.why}",
            hint=f"send fewer rows in one request, or raise batching.max_queue_{refusal.why}",
        )
    if not executors.usable and refusal.why in {"late", "slo", "crowds"}:
        return NotReady(
            f"no executor is ready: the next is expected in {executors.left_ns / 1e6:.0f} ms, an answer in "
            f"{refusal.value / 1e6:.0f} ms, the deadline is in {refusal.limit / 1e6:.0f} ms",
            hint="retry after Retry-After seconds, or send a longer timeout; with pool.executors = 2 one is left",
            retry_after_s=max(refusal.retry_ns / 1e9, 0.001),
        )
    message, hint = _words(refusal, request)
    return Shed(message, hint=hint, retry_after_s=max(refusal.retry_ns / 1e9, 0.001))


def _words(refusal: Refusal, request: Request) -> tuple[str, str]:
    """What happened, and the way out."""
    retry = "retry after Retry-After seconds"
    match refusal.why:
        case "rows" | "bytes":
            return (
                f"the queue is full: {refusal.value:.0f} {refusal.why} wait, the limit is {refusal.limit:.0f}",
                f"{retry}; add executors or cores, or raise batching.max_queue_{refusal.why}",
            )
        case "tenant":
            return (
                f"{refusal.value:.0f} rows of this tenant wait already, its share of the queue is {refusal.limit:.0f}",
                f"{retry}, lower the rate, or raise batching.tenant_share",
            )
        case "rate":
            return (
                f"this tenant sends more than {refusal.limit:g} rows/s",
                f"{retry}, lower the rate, or raise batching.tenant_rate",
            )
        case "crowds":
            return (
                f"{request.rows} rows would make requests late that were accepted before: "
                f"{refusal.value / 1e6:.0f} ms are needed, {refusal.limit / 1e6:.0f} ms are left",
                f"{retry}, lower the rate, or add executors or cores",
            )
    if refusal.why == "slo":
        return (
            f"overload: an answer for {request.rows} rows behind {refusal.ahead_rows} that wait is expected in "
            f"{refusal.value / 1e6:.0f} ms, while a backlog stands the SLO leaves {refusal.limit / 1e6:.0f} ms",
            f"{retry}, lower the rate, add executors or cores, or set batching.order = 'deadline' to be answered late",
        )
    return (
        f"an answer for {request.rows} rows behind {refusal.ahead_rows} that wait is expected in "
        f"{refusal.value / 1e6:.0f} ms, the deadline is in {refusal.limit / 1e6:.0f} ms",
        f"{retry}, send a longer timeout, lower the rate, or add executors or cores",
    )


def late(kind: type[DeadlineExceeded], message: str) -> DeadlineExceeded:
    """The deadline passed, or no executor can meet it any more."""
    return kind(
        message,
        hint="send a longer timeout, lower the rate, or add executors or cores; slo.timeout is the default deadline",
    )

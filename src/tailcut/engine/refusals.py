"""What a request is told that gets no answer from the model: refused at the door, too late, or the server stops."""

from __future__ import annotations

from tailcut.errors import DeadlineExceeded, NotReady, Shed, TooLarge


def unavailable() -> NotReady:
    """No executor takes batches: the dispatcher is closed, or all are stuck."""
    return NotReady("no executor is available", hint="retry; if it lasts, see /v2/health/ready and the log")


def stopping() -> NotReady:
    """The server ends while the request waits or runs."""
    return NotReady("the server is stopping", hint="send the request again, to another replica")


def full(rows: int, waiting: int, limit: int, drain_s: float) -> Shed | TooLarge:
    """The queue cannot take ``rows`` more, now or ever."""
    if rows > limit:
        return TooLarge(
            f"{rows} rows exceed the queue's limit of {limit} rows",
            hint="send fewer rows in one request, or raise batching.max_queue_rows",
        )
    return Shed(
        f"the queue is full: {waiting} rows wait, the limit is {limit}",
        hint="retry after Retry-After seconds; add executors or raise batching.max_queue_rows",
        retry_after_s=drain_s,
    )


def too_slow(rows: int, waiting: int, wait_s: float, left_s: float, drain_s: float) -> Shed:
    """The answer is predicted to come after the deadline."""
    return Shed(
        f"an answer for {rows} rows behind {waiting} that wait is expected in {wait_s * 1e3:.0f} ms, "
        f"the deadline is in {left_s * 1e3:.0f} ms",
        hint="retry after Retry-After seconds, send a longer timeout, lower the rate, or add executors",
        retry_after_s=drain_s,
    )


def late(kind: type[DeadlineExceeded], message: str) -> DeadlineExceeded:
    """The deadline passed, or no executor can meet it any more."""
    return kind(
        message,
        hint="send a longer timeout, lower the rate, or add executors; slo.timeout is the default deadline",
    )

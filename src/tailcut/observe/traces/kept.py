"""What is copied of a request that is kept, and the last of them. Spans are made of it when somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailcut.observe.sinks import FinishedRequest
from tailcut.observe.traces.trace_context import RequestTrace

_LONGEST_ID = 128
_REFRESH_NS = 10_000_000_000


class Kept(NamedTuple):
    """A request that is kept; times are nanoseconds of its timings' clock.

    Attributes:
        reason: why it is kept; empty for one that another request sent.
        ns: per stage; see ``Timings``.
        groups, batches: see ``RequestContext``.
        calls: requests to other models that it sent.
        wall_ns: what to add to its times for nanoseconds since the epoch; one number for the whole trace.
    """

    reason: str
    model: str
    route: str
    code: str
    variant: str
    version: str
    cache: str
    request_id: str
    trace: RequestTrace
    start_ns: int
    ns: Sequence[int]
    groups: Sequence[Sequence[Any]]
    batches: Sequence[tuple[int, ...]]
    calls: tuple[Kept, ...]
    wall_ns: int

    @property
    def total_ns(self) -> int:
        """Nanoseconds from its begin to its end."""
        return sum(self.ns)

    @property
    def failed(self) -> bool:
        """Whether it ended with an error; one that has not ended did not."""
        return self.code not in {"ok", ""}


class WallClock:
    """The difference of the time since the epoch to a monotonic clock, taken anew every 10 s.

    A trace uses one value of it, so that a step of the clock moves whole traces and tears none apart.
    """

    def __init__(self, monotonic_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._taken_ns = 0
        self._difference_ns = 0

    def difference_ns(self) -> int:
        """Return what to add to a time of the monotonic clock."""
        now_ns = self._monotonic_ns()
        if not self._taken_ns or now_ns - self._taken_ns >= _REFRESH_NS:
            self._taken_ns, self._difference_ns = now_ns, self._wall_ns() - now_ns
        return self._difference_ns


def copied(
    request: FinishedRequest,
    model: str,
    reason: str,
    trace: RequestTrace,
    wall_ns: int,
    versions: Mapping[tuple[str, str], str],
) -> Kept:
    """Copy what a trace is made of, with the requests that it sent to other models.

    Args:
        versions: by model and variant.
    """
    timings = request.timings
    calls: list[Kept] = []
    for name, call in trace.calls:
        if call.origin is not None and (place := call.origin.trace) is not None:
            place.is_closed = True
            calls.append(copied(call, name, "", place, wall_ns, versions))
    release(trace)
    return Kept(
        reason,
        model,
        request.route,
        request.code,
        request.variant,
        versions.get((model, request.variant), ""),
        request.cache,
        request.request_id or _sent_id(request),
        trace,
        timings.start_ns,
        timings.ns,
        tuple(request.groups),
        request.batches,
        tuple(calls),
        wall_ns,
    )


def release(trace: RequestTrace) -> None:
    """Forget the requests that were sent in the course of one: they know it, and a circle would keep them in memory."""
    for _, call in trace.calls:
        if call.origin is not None and call.origin.trace is not None:
            release(call.origin.trace)
    trace.calls = []


def _sent_id(request: FinishedRequest) -> str:
    """Return the ``x-request-id`` that a client sent, where it is one."""
    found = request.headers.get("x-request-id") if request.headers is not None else None
    return found if found and len(found) <= _LONGEST_ID and found.isascii() and found.isprintable() else ""


class Ring:
    """The last kept requests, found by trace id and request id. Written by the event loop only.

    Where it is full the oldest of the most frequent reason goes: a flood of one kind leaves the others in place.

    Args:
        size: how many are held.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._by_reason: dict[str, deque[Kept]] = {}
        self._by_id: dict[int | str, Kept] = {}
        self._by_batch: dict[int, list[Kept]] = {}

    def __len__(self) -> int:
        return self._held

    def __iter__(self) -> Iterator[Kept]:
        for held in self._by_reason.values():
            yield from held

    def add(self, kept: Kept) -> None:
        """Hold a request."""
        if self._held == self._size:
            self._forget(max(self._by_reason.values(), key=len).popleft())
        else:
            self._held += 1
        self._by_reason.setdefault(kept.reason, deque()).append(kept)
        self._by_id[kept.trace.trace_id] = kept
        if kept.request_id:
            self._by_id[kept.request_id] = kept
        for batch in kept.batches:
            if batch:
                self._by_batch.setdefault(batch[0], []).append(kept)

    def find(self, key: int | str) -> Kept | None:
        """Return the last request with a trace id, as a number, or with a request id."""
        return self._by_id.get(key)

    def in_batch(self, number: int) -> tuple[Kept, ...]:
        """Return the requests of a batch; callable from any thread."""
        return tuple(self._by_batch.get(number, ()))

    def _forget(self, kept: Kept) -> None:
        for key in (kept.trace.trace_id, kept.request_id):
            if self._by_id.get(key) is kept:
                del self._by_id[key]
        for batch in kept.batches:
            held = self._by_batch.get(batch[0]) if batch else None
            if held is not None:
                # A new list: another thread may be reading the old one.
                left = [each for each in held if each is not kept]
                if left:
                    self._by_batch[batch[0]] = left
                else:
                    del self._by_batch[batch[0]]

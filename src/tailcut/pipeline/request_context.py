"""One request on its way through the engine, and how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from typing import Any

from tailcut.common.tensors import Keys
from tailcut.common.timings import Timings
from tailcut.errors import TailcutError
from tailcut.observe.request_log.capture import Capture
from tailcut.observe.traces.trace_context import RequestHeaders, TraceOrigin, Tracer
from tailcut.pipeline.served_variant import ServedVariant


class RequestContext:
    """One request on its way: its record, its deadline and what it holds.

    Attributes:
        served: the variant that answers it, from its admission to its end; None before.
        priority: as the client sent it: 1 runs first, larger later; 0, the default, between 1 and 3.
        refusal: why there is no room for it, where a cache may still know its answer (see ``Router.admit``).
        request_id: by which the log names it, where the client sent one and the log may need it.
        asked_ns: the shortest deadline that the client asked for, from the begin; 0 where it asked for none.
        is_streamed: whether its answer is a stream, with whose end it ends.
        is_exact: whether only the served variant may answer, and nothing past its TTL: what it answers is kept under
            the version of that variant.
        code: how it ended: "ok", or the error's; empty before.
        entities: a hash of the entity of each row that goes to the model, where drift is watched; else None.
        tracer: gives it its place in a trace; None where nothing is traced, and then the following stay as they are.
        headers: of the request, where they name it or its trace.
        origin: finds its place in a trace, where somebody may ask for that before its end.
        groups: its feature groups: name, begin and end (nanoseconds; 0 for those of the stage), hits, misses, stale.
        batches: in which its rows ran: see ``BatchItem.batch``.
        logged: what the request log gets of it; None where it is not one of the sample.
    """

    served: ServedVariant | None = None
    priority = 0
    refusal: TailcutError | None = None
    request_id = ""
    asked_ns = 0
    is_streamed = False
    is_exact = False
    code = ""
    cache = "off"
    entities: Keys | None = None
    tracer: Tracer | None = None
    headers: RequestHeaders | None = None
    origin: TraceOrigin | None = None
    groups: Iterable[Sequence[Any]] = ()
    batches: Sequence[tuple[int, ...]] = ()
    disconnected: Callable[[], Awaitable[None]] | None = None
    gone = False
    waiting: asyncio.Future[Any] | None = None
    logged: Capture | None = None

    def __init__(self, route: str, start_ns: int, deadline_ns: int, tenant: str, variant: str) -> None:
        self.route = route
        self.timings = Timings(start_ns)
        self.deadline_ns = deadline_ns
        self.tenant = tenant
        self.variant = variant

    def abandon(self) -> None:
        """Drop the work of a client that is gone: whatever the request waits for is cancelled."""
        self.gone = True
        if self.waiting is not None:
            self.waiting.cancel()


class Arrivals:
    """Requests that the HTTP server has read, whose handling begins within this turn of the event loop.

    Attributes:
        coming: how many.
    """

    __slots__ = ("coming",)

    def __init__(self) -> None:
        self.coming = 0


class InFlight:
    """Its length is the number of a model's requests in flight, and of arriving requests to any model."""

    __slots__ = ("_arrivals", "_in_flight")

    def __init__(self, in_flight: Sized, arrivals: Arrivals) -> None:
        self._in_flight = in_flight
        self._arrivals = arrivals

    def __len__(self) -> int:
        return len(self._in_flight) + self._arrivals.coming

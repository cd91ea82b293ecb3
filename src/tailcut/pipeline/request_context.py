"""One request on its way through the engine, the variant that answers it, and how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from typing import Any

from tailcut.common.tensors import Keys
from tailcut.common.timings import Timings
from tailcut.common.validation import InputSpec
from tailcut.errors import TailcutError
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.models.value_limits import PathLimits
from tailcut.observe.request_log.capture import Capture
from tailcut.observe.traces.trace_context import RequestHeaders, TraceOrigin, Tracer


class ServedVariant:
    """One loaded variant of a deployment. A request keeps the one that admitted it to its end.

    Args:
        name, version: of the variant and its version in the registry; in replies.
        deployment_version: hash of everything that an answer of this variant depends on, but for the models that its
            features come from; part of cache keys, then called ``own_version``.
        features_version: adds the versions of models that compute features; None where there are none.
        dispatcher: its queue and executors.
        limits: of the values of requests; None where the form of the inputs is all that counts.
        input_specs: forms of the inputs, where there are no limits.
        outputs: names of all outputs: the tuple of the pipeline, since requests for all of them share batches.
        rows_alone: whether each row runs alone, because rows of a batch influence each other.
        needs_entities: whether batches carry a hash of each row's entity, because its drift is watched.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        name: str = "",
        version: str = "",
        deployment_version: bytes,
        features_version: Callable[[bytes], bytes] | None = None,
        limits: PathLimits | None = None,
        input_specs: tuple[InputSpec, ...] = (),
        outputs: tuple[str, ...] = (),
        rows_alone: bool = False,
        needs_entities: bool = False,
    ) -> None:
        self.dispatcher = dispatcher
        self.name = name
        self.version = version
        self.limits = limits
        self.specs = input_specs if limits is None else limits.specs
        self.outputs = outputs
        self.rows_alone = rows_alone
        self.needs_entities = needs_entities
        self.own_version = deployment_version
        self._features_version = features_version

    @property
    def deployment_version(self) -> bytes:
        """The hash, with the current versions of the models that features come from."""
        if self._features_version is None:
            return self.own_version
        return self._features_version(self.own_version)


class RequestContext:
    """One request on its way: its record, its deadline and what it holds.

    Attributes:
        served: the variant that answers it, from its admission to its end; None before.
        priority: as the client sent it: 1 runs first, larger later; 0, the default, between 1 and 3.
        refusal: why there is no room for it, where a cache may still know its answer (see ``Pipeline.admit``).
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

    def __init__(self) -> None:
        self.coming = 0


class InFlight:
    """Its length is the number of a model's requests in flight, and of arriving requests to any model."""

    def __init__(self, in_flight: Sized, arrivals: Arrivals) -> None:
        self._in_flight = in_flight
        self._arrivals = arrivals

    def __len__(self) -> int:
        return len(self._in_flight) + self._arrivals.coming

"""What is copied of a request that is kept, the last of them, and their spans, which are made when somebody asks.

Attributes of spans are named after OpenTelemetry's semantic conventions for HTTP and RPC, of the version that the
exporter names; tailcut's own begin with ``tailcut.``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tailcut.common.timings import STAGE_NAMES, Stage
from tailcut.observe.outcomes import CODES
from tailcut.observe.sinks import FinishedRequest
from tailcut.observe.traces.trace_context import RequestTrace, derived_id

_LONGEST_ID = 128


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
        seed: of the ids of batches: 64 bits, drawn once per process.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
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

    def batch_link(self, number: int) -> Link:
        """Return the link to the span of a batch, which is a trace of its own: the same one for all members."""
        high, low, own = (derived_id(self._seed, 3 * number + at) for at in range(3))
        return Link(f"{high:016x}{low:016x}", f"{own:016x}", "batch")

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


# -- Spans of a kept request, made from its timings: pure, and the same whenever they are made -------------------------


Value = str | int | float | bool

_QUEUE, _INFER, _FEATURES = int(Stage.QUEUE), int(Stage.INFER), int(Stage.FEATURES)
_GROUPS, _BATCHES = 64, 1024
"""First numbers from which the ids of the spans of groups (``features.group_times``) and of batches are derived."""

_HTTP = {
    "infer": "/v2/models/{}/infer",
    "predict": "/predict/{}",
    "generate": "/v2/models/{}/generate",
    "generate_stream": "/v2/models/{}/generate_stream",
}
_RPC = {"grpc_infer": "ModelInfer", "grpc_stream": "ModelStreamInfer"}
_RPC_SERVICE = "inference.GRPCInferenceService"


class Link(msgspec.Struct, frozen=True):
    """A span of another trace that a span has to do with.

    Attributes:
        what: "batch", "neighbour" of a batch, or "member" of it.
    """

    trace_id: str
    span_id: str
    what: str


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a request.

    Attributes:
        parent_id: empty where it begins its trace.
        kind: "server" or "internal".
        start_ns: nanoseconds since the epoch.
        error: code of the error that it ended with; empty where it ended well.
        flags: of the trace (see ``trace_context``).
        is_remote: whether its parent is of another process.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str = "internal"
    start_ns: int
    duration_ns: int
    attributes: dict[str, Value] = {}
    links: tuple[Link, ...] = ()
    error: str = ""
    state: str = ""
    flags: int = 0
    is_remote: bool = False

    @property
    def end_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self.start_ns + self.duration_ns


def spans_of(kept: Kept, ring: Ring) -> list[Span]:
    """Return the spans of a request, its own first, and of those that it sent to other models."""
    made = [_own_span(kept)]
    maker = _Maker(kept, ring)
    made.extend(maker.stages())
    for call in kept.calls:
        made.extend(spans_of(call, ring))
    return made


def batch_span(number: int, members: Sequence[Kept], ring: Ring) -> Span | None:
    """Return the span of a batch, which links to its kept members; None where none of them is held any more."""
    for kept in members:
        for batch in kept.batches:
            if batch and batch[0] == number:
                _, requests, rows, started_ns, finished_ns = batch
                own = ring.batch_link(number)
                return Span(
                    name=f"batch {kept.model}",
                    trace_id=own.trace_id,
                    span_id=own.span_id,
                    parent_id="",
                    start_ns=started_ns + kept.wall_ns,
                    duration_ns=max(finished_ns - started_ns, 0),
                    attributes={
                        "tailcut.model": kept.model,
                        "tailcut.variant": kept.variant,
                        "tailcut.batch.id": own.span_id,
                        "tailcut.batch.requests": requests,
                        "tailcut.batch.rows": rows,
                    },
                    links=tuple([_link(each, "member") for each in members]),
                )
    return None


class _Maker:
    def __init__(self, kept: Kept, ring: Ring) -> None:
        self._kept = kept
        self._ring = ring
        self._trace_id = f"{kept.trace.trace_id:032x}"
        self._span_id = f"{kept.trace.span_id:016x}"

    def stages(self) -> Iterator[Span]:
        """Yield the spans of the stages, one behind the other, with their parts."""
        kept, at_ns = self._kept, self._kept.start_ns
        for stage, ran_ns in enumerate(kept.ns):
            took_ns = max(ran_ns, 0)
            if stage == _QUEUE:
                yield from self._batched(at_ns, took_ns, max(kept.ns[_INFER], 0))
            elif stage != _INFER and took_ns:
                yield self._span(STAGE_NAMES[stage], 1 + stage, at_ns, at_ns + took_ns, stage=STAGE_NAMES[stage])
                if stage == _FEATURES:
                    yield from self._groups(at_ns, at_ns + took_ns)
            at_ns += took_ns

    def _groups(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """Yield the spans of feature groups, within that of the stage."""
        parent_id = f"{derived_id(self._kept.trace.span_id, 1 + _FEATURES):016x}"
        for at, (name, group_start_ns, group_end_ns, hits, misses, stale) in enumerate(self._kept.groups):
            failed = group_end_ns < 0
            result = "error" if failed else "stale" if stale else "miss" if misses else "hit"
            first_ns = min(max(group_start_ns, start_ns), end_ns)
            yield self._span(
                f"feature {name}",
                _GROUPS + at,
                first_ns,
                min(max(group_end_ns, first_ns), end_ns) if group_end_ns > 0 else end_ns,
                parent_id=parent_id,
                error="error" if failed else "",
                attributes={
                    "tailcut.feature.group": name,
                    "tailcut.feature.result": result,
                    "tailcut.feature.hits": hits,
                    "tailcut.feature.misses": misses,
                    "tailcut.feature.stale": stale,
                },
            )

    def _batched(self, start_ns: int, queue_ns: int, infer_ns: int) -> Iterator[Span]:
        """Yield the spans of the queue, the batch and the model.

        The time until the event loop takes the answer back is the batch's here; in the timings it is the queue's.
        """
        batches = [batch for batch in self._kept.batches if batch]
        end_ns = start_ns + queue_ns + infer_ns
        began_ns = min((batch[3] for batch in batches), default=start_ns)
        if not batches or not start_ns <= began_ns < end_ns:
            began_ns = start_ns + queue_ns
        if began_ns > start_ns:
            yield self._span("queue", 1 + _QUEUE, start_ns, began_ns, stage="queue")
        if end_ns > began_ns and batches:
            yield self._batch(batches, began_ns, end_ns)
            parent_id = f"{derived_id(self._kept.trace.span_id, _BATCHES):016x}"
            for at, (_, _, _, model_start_ns, model_end_ns) in enumerate(batches):
                first_ns = min(max(model_start_ns, began_ns), end_ns)
                last_ns = min(max(model_end_ns, first_ns), end_ns)
                yield self._span("model", _BATCHES + 1 + at, first_ns, last_ns, parent_id=parent_id, stage="infer")
        elif end_ns > began_ns:
            yield self._span("model", 1 + _INFER, began_ns, end_ns, stage="infer")

    def _batch(self, batches: Sequence[tuple[int, ...]], start_ns: int, end_ns: int) -> Span:
        links: list[Link] = []
        for number, requests, *_ in batches:
            if requests > 1:
                links.append(self._ring.batch_link(number))
                mates = [each for each in self._ring.in_batch(number) if each.trace is not self._kept.trace]
                links += [_link(each, "neighbour") for each in mates]
        found: dict[str, Value] = {
            "tailcut.batch.id": self._ring.batch_link(batches[0][0]).span_id,
            "tailcut.batch.requests": max(batch[1] for batch in batches),
            "tailcut.batch.rows": sum(batch[2] for batch in batches),
        }
        return self._span("batch", _BATCHES, start_ns, end_ns, attributes=found, links=tuple(links))

    def _span(
        self,
        name: str,
        number: int,
        start_ns: int,
        end_ns: int,
        *,
        parent_id: str = "",
        stage: str = "",
        attributes: dict[str, Value] | None = None,
        links: tuple[Link, ...] = (),
        error: str = "",
    ) -> Span:
        return Span(
            name=name,
            trace_id=self._trace_id,
            span_id=f"{derived_id(self._kept.trace.span_id, number):016x}",
            parent_id=parent_id or self._span_id,
            start_ns=start_ns + self._kept.wall_ns,
            duration_ns=end_ns - start_ns,
            attributes={"tailcut.stage": stage} if attributes is None else attributes,
            links=links,
            error=error,
            state=self._kept.trace.state,
            flags=self._kept.trace.flags,
        )


def _own_span(kept: Kept) -> Span:
    trace = kept.trace
    name, kind, found = _described(kept)
    found["tailcut.model"], found["tailcut.route"] = kept.model, kept.route
    optional = {
        "tailcut.variant": kept.variant,
        "tailcut.version": kept.version,
        "tailcut.cache": kept.cache,
        "tailcut.kept": kept.reason,
        "tailcut.request_id": kept.request_id,
        "error.type": kept.code if kept.failed else "",
    }
    found.update((key, value) for key, value in optional.items() if value)
    return Span(
        name=name,
        trace_id=f"{trace.trace_id:032x}",
        span_id=f"{trace.span_id:016x}",
        parent_id=f"{trace.parent_id:016x}" if trace.parent_id else "",
        kind=kind,
        start_ns=kept.start_ns + kept.wall_ns,
        duration_ns=kept.total_ns,
        attributes=found,
        # Of a server's span a client's mistake is no error, after the semantic conventions of HTTP.
        error=kept.code if kept.failed and (CODES.get(kept.code, 500) >= 500 or kept.code == "shed") else "",
        state=trace.state,
        flags=trace.flags,
        is_remote=trace.caller is None and trace.parent_id != 0,
    )


def _described(kept: Kept) -> tuple[str, str, dict[str, Value]]:
    """Return name, kind and the attributes of the protocol."""
    found: dict[str, Value] = {}
    if (path := _HTTP.get(kept.route)) is not None:
        path = path.format(kept.model)
        status = 200 if not kept.failed else CODES.get(kept.code, 500)
        found = {"http.request.method": "POST", "http.route": path, "http.response.status_code": status}
        return f"POST {path}", "server", found
    if (method := _RPC.get(kept.route)) is not None:
        found = {"rpc.system": "grpc", "rpc.service": _RPC_SERVICE, "rpc.method": method}
        return f"{_RPC_SERVICE}/{method}", "server", found
    return f"predict {kept.model}", "internal", found


def _link(kept: Kept, what: str) -> Link:
    """Return the link to the span of a member of a batch that stands for it."""
    span_id = derived_id(kept.trace.span_id, _BATCHES)
    return Link(f"{kept.trace.trace_id:032x}", f"{span_id:016x}", what)


# -- A kept request as it is shown -------------------------------------------------------------------------------------


class BatchMate(msgspec.Struct, frozen=True):
    """Another kept request that ran in the same batch."""

    trace_id: str
    request_id: str
    reason: str
    duration_ms: float


class FoundTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A kept request.

    Attributes:
        reason: why it was kept; see ``sink.REASONS``.
        started_s: seconds since the epoch.
        stages_ms: milliseconds of each stage that it met, by name.
        spans: its own first; those of requests that it sent to other models last.
        batch_requests, batch_rows: of the batches in which it ran; 0 where it ran in none.
        batch: kept requests that ran in the same batches.
    """

    trace_id: str
    request_id: str
    model: str
    route: str
    code: str
    reason: str
    variant: str
    version: str
    cache: str
    started_s: float
    duration_ms: float
    stages_ms: dict[str, float]
    spans: tuple[Span, ...]
    batch_requests: int
    batch_rows: int
    batch: tuple[BatchMate, ...]


def found_trace(kept: Kept, ring: Ring) -> FoundTrace:
    """Make what is shown of a kept request."""
    batches = [batch for batch in kept.batches if batch]
    mates = {id(each): each for batch in batches for each in ring.in_batch(batch[0]) if each is not kept}
    return FoundTrace(
        trace_id=f"{kept.trace.trace_id:032x}",
        request_id=kept.request_id,
        model=kept.model,
        route=kept.route,
        code=kept.code,
        reason=kept.reason,
        variant=kept.variant,
        version=kept.version,
        cache=kept.cache,
        started_s=(kept.start_ns + kept.wall_ns) / 1e9,
        duration_ms=kept.total_ns / 1e6,
        stages_ms={name: took_ns / 1e6 for name, took_ns in zip(STAGE_NAMES, kept.ns, strict=True) if took_ns},
        spans=tuple(spans_of(kept, ring)),
        batch_requests=max((batch[1] for batch in batches), default=0),
        batch_rows=sum(batch[2] for batch in batches),
        batch=tuple(
            BatchMate(f"{each.trace.trace_id:032x}", each.request_id, each.reason, each.total_ns / 1e6)
            for each in mates.values()
        ),
    )

"""Exports kept requests with OpenTelemetry's SDK, off the event loop.

Imported only where traces are exported: the SDK is of the extra ``otel``.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from google.protobuf.message import DecodeError
from opentelemetry import context, trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from tailcut.observe.traces.kept import Kept, Ring, Span, batch_span, spans_of
from tailcut.observe.traces.settings import ExportSettings
from tailcut.observe.traces.trace_context import SAMPLED
from tailcut.system.worker_thread import WorkerThread
from tailcut.version import version

if TYPE_CHECKING:
    from requests import Response

log = logging.getLogger("tailcut.server")

_EVERY_S = 0.5
"""Between two looks at a short queue: waking a thread for each trace would cost the event loop more than the trace."""
_AT_ONCE = 128
_MAX_BATCHES = 4096
"""Batches whose spans were exported that are remembered, so that each is exported once."""
_SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
_SCOPE = InstrumentationScope("tailcut", version(), _SCHEMA_URL)
_KINDS = {"internal": trace.SpanKind.INTERNAL, "server": trace.SpanKind.SERVER}


class SpanTarget:
    """A destination of spans. Used by one thread at a time.

    Attributes:
        where: its name, in the log.
    """

    where = "the application's OpenTelemetry provider"

    def send(self, traces: Sequence[Sequence[Span]]) -> tuple[int, str]:
        """Send the spans of traces; return how many traces were not taken whole, at most, and why."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what it holds."""


class Collector(SpanTarget):
    """A collector that takes OTLP over HTTP, with the environment's certificates, time-out, compression and headers.

    Args:
        service: name of this process, unless the environment gives it another.
    """

    def __init__(self, settings: ExportSettings, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http import Compression, trace_exporter
        from requests import Session

        is_chosen = any(os.environ.get(f"OTEL_EXPORTER_OTLP_{part}COMPRESSION") for part in ("TRACES_", ""))
        compression = None if is_chosen else Compression.Gzip
        self._session = session = Session()
        self._send, session.request = session.request, self._request  # type: ignore[method-assign]
        self._otlp = trace_exporter.OTLPSpanExporter(
            settings.url, headers=dict(settings.headers), compression=compression, session=session
        )
        self._resource = Resource.create(
            {
                "service.name": service,
                "service.instance.id": str(uuid4()),
                "host.name": socket.gethostname(),
                "process.pid": os.getpid(),
                **OTELResourceDetector().detect().attributes,
            },
            _SCHEMA_URL,
        )
        self._log = logging.getLogger(trace_exporter.__name__)
        self._log.addFilter(self._is_of_others)
        self._thread = self._rejected = 0
        self._why = ""
        self.where = settings.url.partition("?")[0]

    def send(self, traces: Sequence[Sequence[Span]]) -> tuple[int, str]:
        """Send the spans, again while that may help and time is left."""
        self._thread, self._rejected, self._why = threading.get_ident(), 0, "it was not sent"
        spans = _Spans(_readable(span, self._resource) for found in traces for span in found)
        is_sent = self._otlp.export(spans) is SpanExportResult.SUCCESS
        self._thread = 0
        return min(self._rejected, len(traces)) if is_sent else len(traces), self._why

    def close(self) -> None:
        """Close the connection."""
        self._log.removeFilter(self._is_of_others)
        self._otlp.shutdown()  # type: ignore[no-untyped-call]

    def _request(self, *args: Any, **kwargs: Any) -> Response:
        """Make a request, and keep why it failed, or what was rejected: the exporter returns only whether it did."""
        try:
            # Given here, because requests prefers REQUESTS_CA_BUNDLE to what the session has.
            response = self._send(*args, **{"verify": self._session.verify} | kwargs)
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
            raise
        self._why = f"HTTP {response.status_code}"
        if 300 <= response.status_code < 400:  # the exporter takes it for a success
            response.status_code = 400
        if response.ok:
            with suppress(DecodeError):  # a body that is none of OTLP says nothing
                taken = ExportTraceServiceResponse.FromString(response.content).partial_success
                self._rejected = taken.rejected_spans
                self._why = f"it rejected {taken.rejected_spans} spans: {taken.error_message}"
        return response

    def _is_of_others(self, record: logging.LogRecord) -> bool:
        """Drop what the exporter logs of each try here: ``Exporter`` logs when it begins to fail, and when it ends."""
        return record.thread != self._thread


class _Spans(list[ReadableSpan]):
    """Spans that are encoded one by one: before each the interpreter lock is given up, so that requests go first."""

    def __iter__(self) -> Iterator[ReadableSpan]:
        for span in super().__iter__():
            time.sleep(0)
            yield span


class ApplicationProvider(SpanTarget):
    """Makes spans of an application's provider, with their ids and times; its sampler and processors see them."""

    def __init__(self, provider: TracerProvider) -> None:
        self._ids = _GivenIds()
        self._tracer = cast(Tracer, provider.get_tracer("tailcut", version(), _SCHEMA_URL))
        self._tracer.id_generator = self._ids

    def send(self, traces: Sequence[Sequence[Span]]) -> tuple[int, str]:
        """Start and end each span."""
        for spans in traces:
            dropped: set[str] = set()
            for span in spans:
                # Of a trace that its sampler drops nothing is made.
                if span.parent_id in dropped or not self._make(span):
                    dropped.add(span.span_id)
        return 0, ""

    def _make(self, span: Span) -> bool:
        """Make a span; return whether it is recorded."""
        self._ids.trace_id, self._ids.span_id = int(span.trace_id, 16), int(span.span_id, 16)
        above = trace.INVALID_SPAN if (parent := _parent(span)) is None else trace.NonRecordingSpan(parent)
        made = self._tracer.start_span(
            span.name,
            trace.set_span_in_context(above),
            _KINDS[span.kind],
            span.attributes,
            _links(span),
            span.start_ns,
        )
        if span.error:
            made.set_status(trace.StatusCode.ERROR, span.error)
        made.end(span.end_ns)
        return made.is_recording() or made.get_span_context().trace_flags.sampled


class _GivenIds(IdGenerator):
    """Gives the ids that it was given."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id

    def is_trace_id_random(self) -> bool:
        return True


class Exporter:
    """Hands kept requests to a target. ``offer`` is the event loop's; all else happens in a thread.

    Args:
        ring: has the other requests of a batch.
        most: traces that wait; further ones are dropped.

    Attributes:
        exported: traces that were sent.
        dropped: traces that were not: the queue was full, the collector failed or rejected them, or the server stopped.
        errors: batches of traces that were not taken whole.
    """

    def __init__(self, target: SpanTarget, ring: Ring, *, most: int) -> None:
        self.exported = self.errors = 0
        # With all keys from the start: another thread iterates it while this one counts.
        self.dropped: Counter[str] = Counter(queue=0, collector=0, stop=0)
        self._target = target
        self._ring = ring
        self._offered = 0
        self._batches: OrderedDict[int, None] = OrderedDict()
        self._is_failing = self._is_stopped = False
        self._dropped_before = 0
        self._worker: WorkerThread[Kept] = WorkerThread(
            "tailcut-traces",
            self._export,
            "traces are not exported",
            most=most,
            at_once=_AT_ONCE,
            every_s=_EVERY_S,
            wakes_at=min(_AT_ONCE, most),
            begin=_trace_no_requests,
            end=target.close,
        )
        self._worker.start()

    def offer(self, kept: Kept) -> None:
        """Take a kept request, or drop and count it."""
        if self._worker.put(kept):
            self._offered += 1
        else:
            self.dropped["queue"] += 1

    def close(self, timeout_s: float) -> None:
        """Export what waits, for at most ``timeout_s``, which blocks; what is left is dropped and counted."""
        self._worker.close(timeout_s)
        self._is_stopped = True
        self.dropped["stop"] = self._offered - self.exported - self.dropped["collector"]

    def _export(self, traces: Sequence[Kept]) -> None:
        if self._is_stopped or not traces:
            return
        try:
            lost, why = self._target.send([self._spans(kept) for kept in traces])
        except Exception as error:  # what it was about must not end the export
            log.exception("traces could not be exported")
            lost, why = len(traces), f"{type(error).__name__}: {error}"
        if not self._is_stopped:
            self._count(len(traces), lost, why)

    def _count(self, traces: int, lost: int, why: str) -> None:
        self.dropped["collector"] += lost
        self.errors += bool(lost)
        self.exported += traces - lost
        if lost and not self._is_failing:
            self._dropped_before = self.dropped.total()
            text = "traces cannot be exported to %s: %s; %d were dropped, further ones are counted"
            log.warning(text, self._target.where, why, lost)
        elif self._is_failing and not lost:
            dropped = self.dropped.total() - self._dropped_before
            log.warning("traces are exported to %s again; %d were dropped meanwhile", self._target.where, dropped)
        self._is_failing = bool(lost)

    def _spans(self, kept: Kept) -> list[Span]:
        found = spans_of(kept, self._ring)
        for number, requests, *_ in filter(None, kept.batches):
            if requests > 1 and number not in self._batches:
                self._batches[number] = None
                if len(self._batches) > _MAX_BATCHES:
                    self._batches.popitem(last=False)
                members = self._ring.in_batch(number) or (kept,)
                if (of_batch := batch_span(number, members, self._ring)) is not None:
                    found.append(of_batch)
        return found


def _trace_no_requests() -> None:
    """Have an instrumentation of the application leave out the thread's requests to the collector."""
    context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        _context(span, span.span_id),
        parent=_parent(span),
        resource=resource,
        attributes=span.attributes,
        links=_links(span),
        kind=_KINDS[span.kind],
        status=trace.Status(trace.StatusCode.ERROR, span.error) if span.error else trace.Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _parent(span: Span) -> trace.SpanContext | None:
    return _context(span, span.parent_id, span.is_remote) if span.parent_id else None


def _links(span: Span) -> list[trace.Link]:
    return [trace.Link(_context(link, link.span_id), {"tailcut.link": link.what}) for link in span.links]


def _context(of: Any, span_id: str, is_remote: bool = False) -> trace.SpanContext:
    """Return the SDK's form of a span's identity: sampled, because it was decided to keep it."""
    state = trace.TraceState.from_header([of.state]) if getattr(of, "state", "") else None
    return trace.SpanContext(int(of.trace_id, 16), int(span_id, 16), is_remote, trace.TraceFlags(SAMPLED), state)

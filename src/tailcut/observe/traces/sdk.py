"""Hands kept requests to the OpenTelemetry provider of an application that tailcut is a part of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tailcut.observe.traces import attributes as names
from tailcut.observe.traces.exporter import Sent
from tailcut.observe.traces.spans import Span
from tailcut.observe.traces.trace_context import SAMPLED, format_traceparent
from tailcut.version import version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def sdk_provider() -> TracerProvider | None:
    """Return the SDK's tracer provider that the application has set; None where it has set none."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return None
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    found = trace.get_tracer_provider()
    return found if isinstance(found, TracerProvider) else None


def with_current_span(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers with the application's current span as ``traceparent``; as they are where there is none.

    Args:
        headers: names in lower case, and values.
    """
    from opentelemetry import trace

    current = trace.get_current_span().get_span_context()
    if not current.is_valid:
        return headers
    found = [pair for pair in headers if pair[0] not in {"traceparent", "tracestate"}]
    found.append(("traceparent", format_traceparent(current.trace_id, current.span_id, int(current.trace_flags))))
    if current.trace_state:
        found.append(("tracestate", current.trace_state.to_header()))
    return found


class SdkDestination:
    """Makes spans of a provider, with the ids and times that they have; its sampler and processors see them."""

    where = "the application's OpenTelemetry provider"

    def __init__(self, provider: TracerProvider) -> None:
        self._ids = _GivenIds()
        self._tracer = cast(Any, provider.get_tracer(names.SCOPE, version(), names.SCHEMA_URL))
        self._tracer.id_generator = self._ids

    def encoded(self, traces: Sequence[Sequence[Span]]) -> Sequence[Sequence[Span]]:
        """Return the spans as they are."""
        return traces

    def send(self, body: Sequence[Sequence[Span]], timeout_s: float) -> Sent:
        """Start and end each span."""
        for trace in body:
            dropped: set[str] = set()
            for span in trace:
                # Of a trace that its sampler drops nothing is made.
                if span.parent_id in dropped or not self._make(span):
                    dropped.add(span.span_id)
        return Sent("sent")

    def close(self) -> None:
        """The provider is the application's."""

    def _make(self, span: Span) -> bool:
        """Make a span; return whether it is recorded."""
        from opentelemetry import trace

        self._ids.trace_id, self._ids.span_id = int(span.trace_id, 16), int(span.span_id, 16)
        context = trace.set_span_in_context(trace.INVALID_SPAN)
        if span.parent_id:
            context = trace.set_span_in_context(trace.NonRecordingSpan(_context(span, span.parent_id, span.is_remote)))
        made = self._tracer.start_span(
            span.name,
            context=context,
            kind=trace.SpanKind.SERVER if span.kind == "server" else trace.SpanKind.INTERNAL,
            attributes=span.attributes,
            links=[trace.Link(_context(link, link.span_id), {names.LINK: link.what}) for link in span.links],
            start_time=span.start_ns,
        )
        if span.error:
            made.set_status(trace.StatusCode.ERROR, span.error)
        made.end(end_time=span.end_ns)
        return bool(made.is_recording() or made.get_span_context().trace_flags.sampled)


class _GivenIds:
    """An ``IdGenerator`` that gives the ids that it was given."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id

    def is_trace_id_random(self) -> bool:
        return True


def _context(of: Any, span_id: str, is_remote: bool = False) -> Any:
    """Return the SDK's form of a span's identity: sampled, because it was decided to keep it."""
    from opentelemetry import trace

    state = trace.TraceState.from_header([of.state]) if getattr(of, "state", "") else None
    flags = trace.TraceFlags(SAMPLED)
    return trace.SpanContext(int(of.trace_id, 16), int(span_id, 16), is_remote, flags, state)

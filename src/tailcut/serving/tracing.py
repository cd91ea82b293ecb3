"""The traces of a host: which requests are kept, and where they go."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tailcut.common.extras import install
from tailcut.errors import MissingExtra
from tailcut.manifest.host import HostManifest
from tailcut.observe.sample import Sample, counter
from tailcut.observe.traces.kept import FoundTrace
from tailcut.observe.traces.settings import ExportSettings, export_settings
from tailcut.observe.traces.sink import NEVER_SLOW_NS, TraceSink
from tailcut.observe.traces.trace_context import format_traceparent
from tailcut.serving.engine import Engine
from tailcut.serving.host_state import HostState

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from tailcut.observe.traces.exporter import Exporter, SpanTarget

log = logging.getLogger("tailcut.server")

EXPORTED = counter(
    "tailcut_traces_exported",
    "Traces sent to the collector, or to the application's OpenTelemetry provider.",
    of_host=True,
)
DROPPED = counter(
    "tailcut_traces_dropped",
    "Traces dropped: more of a kind than are kept in a second (rate), the queue was full (queue), the collector failed "
    "or refused them (collector), or the server stopped (stop).",
    "reason",
    of_host=True,
)
EXPORT_ERRORS = counter("tailcut_trace_export_errors", "Batches of traces that could not be exported.", of_host=True)

_SERVICE = "tailcut"
"""Name of the service where there are several models."""
_LONGEST_FLUSH_S = 2.0


def check_export(manifest: HostManifest) -> None:
    """See whether traces could be exported as the manifest says; asks no collector.

    Raises:
        StartError: the manifest's collector cannot be used; MissingExtra where what it needs is not installed.
    """
    traces = manifest.observe.traces
    settings = export_settings(traces) if traces.enabled else None
    if settings is not None:
        _has_exporter(settings)


def sdk_provider() -> TracerProvider | None:
    """Return the tracer provider of OpenTelemetry's SDK that the application has set; None where it has set none."""
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


class HostTraces:
    """Traces of the requests to all models of a host. Owned by the event loop.

    Attributes:
        sink: decides which are kept, and holds the last ones; None where tracing is off.
        in_application: whether the process is another application's, whose OpenTelemetry provider is then used.
        has_provider: whether it has one.
    """

    def __init__(self, manifest: HostManifest, state: HostState, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._manifest = manifest
        self._exporters: list[Exporter] = []
        self.in_application = self.has_provider = False
        settings = manifest.observe.traces
        self.sink: TraceSink | None = None
        if settings.enabled:
            self.sink = TraceSink(self._slow_ns, share=float(settings.sample), size=settings.keep)
            state.tracer = self.sink.tracer
            state.sinks.add(self.sink, batches=False)

    def start(self) -> None:
        """Begin to export.

        Raises:
            StartError: the manifest's collector cannot be used; MissingExtra where what it needs is not installed.
        """
        if self.sink is None or self._exporters:
            return
        provider = sdk_provider() if self.in_application else None
        self.has_provider = provider is not None
        if provider is not None:
            from tailcut.observe.traces.exporter import ApplicationProvider

            self._export_to(self.sink, ApplicationProvider(provider))
        settings = export_settings(self._manifest.observe.traces)
        # What the environment says is said to the application's provider, too: not twice.
        if settings is not None and (settings.is_asked_for or provider is None) and _has_exporter(settings):
            from tailcut.observe.traces.exporter import Collector

            name = self._manifest.name if self._manifest.is_single else _SERVICE
            self._export_to(self.sink, Collector(settings, name))

    async def close(self) -> None:
        """Export what waits, for a bounded time."""
        server = self._manifest.server
        bound_s = min(max(float(server.kill_s) - float(server.drain_s), 0.4) / 4, _LONGEST_FLUSH_S)
        await asyncio.gather(*(asyncio.to_thread(exporter.close, bound_s) for exporter in self._exporters))
        if self.sink is not None:
            self.sink.exporters.clear()

    def _export_to(self, sink: TraceSink, target: SpanTarget) -> None:
        from tailcut.observe.traces.exporter import Exporter

        most = self._manifest.observe.traces.queue
        exporter = Exporter(target, sink.ring, most=most)
        self._exporters.append(exporter)
        sink.exporters.append(exporter.offer)

    def find(self, key: str) -> FoundTrace | None:
        """Return the last kept request with a trace id or a request id; None where none is held."""
        self._flush()
        return self.sink.find(key) if self.sink is not None else None

    def recent(self, which: str, minutes: float, most: int = 20) -> list[FoundTrace]:
        """Return kept requests of the last minutes; see ``TraceSink.recent``."""
        self._flush()
        return self.sink.recent(which, minutes, most) if self.sink is not None else []

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of traces."""
        if self.sink is None:
            return
        yield from self.sink.samples()
        dropped = Counter(rate=self.sink.limited.total())
        for exporter in self._exporters:
            dropped.update(exporter.dropped)
        yield EXPORTED(sum(exporter.exported for exporter in self._exporters))
        for reason in ("rate", "queue", "collector", "stop"):
            yield DROPPED(dropped[reason], reason)
        yield EXPORT_ERRORS(sum(exporter.errors for exporter in self._exporters))

    def _flush(self) -> None:
        """Have requests decided on that ended just now: who asked one may look for it at once."""
        for engine in self._engines.values():
            engine.sinks.flush()

    def _slow_ns(self, model: str) -> int:
        """Return the loosest latency limit of a model's SLO; where it has none no request is slow."""
        engine = self._engines.get(model)
        limits = [] if engine is None else [each.limit_ns for each in engine.deployment.slo.latency]
        return max(limits, default=NEVER_SLOW_NS)


def _has_exporter(settings: ExportSettings) -> bool:
    """Import what sends to a collector; False where the environment names it and the package is absent."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError:
        hint = install("opentelemetry.exporter")
        if settings.is_asked_for:
            message = "observe.traces.endpoint needs opentelemetry-exporter-otlp-proto-http"
            raise MissingExtra(message, hint=hint) from None
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but traces are not exported without %s", hint)
        return False
    return True

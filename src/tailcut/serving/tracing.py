"""The traces of a host: which requests are kept, and where they go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailcut.manifest.host import HostManifest
from tailcut.observe.sample import Sample
from tailcut.observe.traces.found import FoundTrace
from tailcut.observe.traces.sink import NEVER_SLOW_NS, TraceSink
from tailcut.serving.deployment import Engine
from tailcut.serving.host_state import HostState


class HostTraces:
    """Traces of the requests to all models of a host. Owned by the event loop.

    Attributes:
        sink: decides which are kept, and holds the last ones; None where tracing is off.
    """

    def __init__(self, manifest: HostManifest, state: HostState, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._settings = settings = manifest.observe.traces
        self.sink: TraceSink | None = None
        if settings.enabled:
            self.sink = TraceSink(self._slow_ns, share=float(settings.sample), size=settings.keep)
            state.tracer = self.sink.tracer
            state.sinks.add(self.sink, batches=False)

    def start(self) -> None:
        """Begin to export."""

    async def close(self) -> None:
        """Export what is left, for a bounded time."""

    def find(self, key: str) -> FoundTrace | None:
        """Return the last kept request with a trace id or a request id; None where none is held."""
        return self.sink.find(key) if self.sink is not None else None

    def recent(self, which: str, minutes: float, most: int = 20) -> list[FoundTrace]:
        """Return kept requests of the last minutes; see ``TraceSink.recent``."""
        return self.sink.recent(which, minutes, most) if self.sink is not None else []

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of traces."""
        if self.sink is not None:
            yield from self.sink.samples()

    def _slow_ns(self, model: str) -> int:
        """Return the loosest latency limit of a model's SLO; where it has none no request is slow."""
        engine = self._engines.get(model)
        limits = [] if engine is None else [each.limit_ns for each in engine.deployment.slo.latency]
        return max(limits, default=NEVER_SLOW_NS)

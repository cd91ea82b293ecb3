"""/metrics in the Prometheus text format, made from the recorder's arrays at scrape time.

Names: ``tailcut_`` + the word that design.md uses + unit; seconds and bytes as Prometheus asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tailcut.common.histogram import Histogram
from tailcut.common.timings import STAGE_NAMES
from tailcut.observe.outcomes import outcome_of
from tailcut.observe.recorder import Recorder

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One value of a counter or gauge that lives elsewhere and is read at scrape time."""

    name: str
    help: str
    kind: str
    labels: dict[str, str]
    value: float


Source = Callable[[], Iterable[Sample]]


class Exposition:
    """Turns a recorder and further sources into the Prometheus text format.

    Args:
        model: value of the ``model`` label on everything.
    """

    def __init__(self, recorder: Recorder, model: str, sources: Iterable[Source] = ()) -> None:
        self._recorder = recorder
        self._model = model
        self._sources = list(sources)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        # Open files and their limit, memory, CPU: under the names that every dashboard knows.
        ProcessCollector(registry=self._registry)

    def add(self, source: Source) -> None:
        """Show what ``source`` yields, too."""
        self._sources.append(source)

    def render(self) -> bytes:
        """Return the whole page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield metric families (called by prometheus_client)."""
        recorder = self._recorder
        stage = HistogramMetricFamily(
            "tailcut_stage_seconds", "Request time by stage of the path.", labels=["model", "stage"]
        )
        for name, histogram in zip(STAGE_NAMES, recorder.stages, strict=True):
            if histogram.count:
                _add(stage, [self._model, name], histogram, 1e-9)
        yield stage
        total = HistogramMetricFamily(
            "tailcut_request_seconds",
            "Request time from parsed headers to encoded reply; outcome is ok, 4xx or 5xx.",
            labels=["model", "route", "outcome"],
        )
        for (route, outcome), histogram in recorder.ended.items():
            _add(total, [self._model, route, outcome], histogram, 1e-9)
        yield total
        requests = CounterMetricFamily(
            "tailcut_requests",
            "Requests by route, variant, outcome (ok, 4xx, 5xx), code (ok or the error's) and cache (hit, miss, stale; "
            "off without a look-up and for errors).",
            labels=["model", "route", "variant", "outcome", "code", "cache"],
        )
        for (route, variant, code, cache), count in recorder.requests.items():
            requests.add_metric([self._model, route, variant, outcome_of(code), code, cache], count)
        yield requests
        yield self._single("tailcut_batch_rows", "Rows per batch.", recorder.batch_rows, 1)
        yield self._single("tailcut_batch_seconds", "Batch duration.", recorder.batch_ns, 1e-9)
        yield self._single("tailcut_loop_lag_seconds", "Event loop lag.", recorder.loop_lag, 1e-9)
        yield from self._collect_sources()

    def _single(self, name: str, text: str, histogram: Histogram, scale: float) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["model"])
        _add(family, [self._model], histogram, scale)
        return family

    def _collect_sources(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for source in self._sources:
            for sample in source():
                labels = ["model", *sample.labels]
                family = families.get(sample.name)
                if family is None:
                    kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                    family = families[sample.name] = kind(sample.name, sample.help, labels=labels)
                family.add_metric([self._model, *sample.labels.values()], sample.value)
        yield from families.values()


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram, scale: float) -> None:
    bounds = [f"{bound * scale:.10g}" for bound in histogram.bounds] + ["+Inf"]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    family.add_metric(labels, buckets, histogram.total * scale)

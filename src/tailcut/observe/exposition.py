"""/metrics in the Prometheus text format, made from the recorder's arrays at scrape time.

Names: ``tailcut_`` + the word that design.md uses + unit; seconds and bytes as Prometheus asks for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tailcut.common.histogram import Histogram
from tailcut.common.timings import STAGE_NAMES
from tailcut.observe.failures import NewErrors
from tailcut.observe.outcomes import outcome_of
from tailcut.observe.recorder import Recorder
from tailcut.observe.sample import Metric, Sample, Source, counter, gauge, histogram

log = logging.getLogger("tailcut.server")

STAGE_SECONDS = histogram("tailcut_stage_seconds", "Request time by stage of the path.", "stage")
REQUEST_SECONDS = histogram(
    "tailcut_request_seconds",
    "Request time from parsed headers to encoded reply; outcome is ok, 4xx or 5xx.",
    "route",
    "outcome",
)
REQUESTS = counter(
    "tailcut_requests",
    "Requests by route, variant, outcome (ok, 4xx, 5xx), code (ok or the error's) and cache (hit, miss, stale; "
    "off without a look-up and for errors).",
    "route",
    "variant",
    "outcome",
    "code",
    "cache",
)
BATCH_ROWS = histogram("tailcut_batch_rows", "Rows per batch.")
BATCH_SECONDS = histogram("tailcut_batch_seconds", "Batch duration.")
LOOP_LAG = histogram("tailcut_loop_lag_seconds", "Event loop lag.", of_host=True)
SOURCE_ERRORS = counter(
    "tailcut_metric_source_errors",
    "Errors of metric sources while /metrics was rendered: what the source has not yielded is missing on the page, and "
    "the log has each error once.",
    of_host=True,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


THREADS = gauge("tailcut_process_threads", "Threads of the server's process.", of_host=True)


def process_samples() -> Iterator[Sample]:
    """Yield the threads of this process; nothing where there is no /proc."""
    with suppress(OSError):
        yield THREADS(len(os.listdir("/proc/self/task")))


class ModelSeries(NamedTuple):
    """What is shown of one model, under its name as the label ``model``."""

    model: str
    recorder: Recorder
    source: Source


class Exposition:
    """Turns recorders and further sources into the Prometheus text format.

    Args:
        models: yields what there is to show of each model.
        loop_lag: nanoseconds by which the event loop woke up late.
        sources: of the process as a whole, without the label ``model``.
    """

    def __init__(
        self, models: Callable[[], Iterable[ModelSeries]], loop_lag: Histogram, sources: Iterable[Source] = ()
    ) -> None:
        self._models = models
        self._loop_lag = loop_lag
        self._sources = list(sources)
        self._failed = 0
        self._new_errors = NewErrors()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        # Open files and their limit, memory, CPU: under the names that every dashboard knows.
        self._process = ProcessCollector(registry=self._registry)

    def add(self, source: Source) -> None:
        """Show what ``source`` yields, too: it is of the process as a whole."""
        self._sources.append(source)

    def render(self) -> bytes:
        """Return the whole page."""
        return generate_latest(self._registry)

    def families(self, model: ModelSeries | None) -> Iterator[Family]:
        """Yield what is counted of one model beside latencies, or of the process; the values do not change any more.

        Latencies are in the recorder, finer than on the page.

        Raises:
            Exception: a source's own: its counters are then not taken for ones that are gone.
        """
        if model is not None:
            yield from self._of_models([model], latencies=False)
            yield from self._of_sources([model], ())
            return
        yield from self._of_loop()
        yield from self._of_sources((), [*self._sources, self._errors])
        yield from self._process.collect()

    def collect(self) -> Iterator[Family]:
        """Yield metric families (called by prometheus_client)."""
        models = list(self._models())
        yield from self._of_models(models)
        yield from self._of_loop()
        isolated = [each._replace(source=partial(self._isolated, each.source)) for each in models]
        others: list[Source] = [partial(self._isolated, each) for each in self._sources]
        yield from self._of_sources(isolated, [*others, self._errors])

    @staticmethod
    def _of_models(models: Iterable[ModelSeries], *, latencies: bool = True) -> Iterator[Family]:
        stage, total, rows, seconds = map(_histograms, (STAGE_SECONDS, REQUEST_SECONDS, BATCH_ROWS, BATCH_SECONDS))
        requests = CounterMetricFamily(REQUESTS.name, REQUESTS.help, labels=REQUESTS.all_labels)
        for model, recorder, _ in models:
            for name, times in zip(STAGE_NAMES, recorder.stages if latencies else (), strict=latencies):
                if times.count:
                    _add(stage, [model, name], times, 1e-9)
            for (route, outcome), times in recorder.ended.items() if latencies else ():
                _add(total, [model, route, outcome], times, 1e-9)
            for (route, variant, code, cache), count in recorder.requests.items():
                requests.add_metric([model, route, variant, outcome_of(code), code, cache], count)
            _add(rows, [model], recorder.batch_rows, 1)
            _add(seconds, [model], recorder.batch_ns, 1e-9)
        yield from (stage, total, requests, rows, seconds)

    def _of_loop(self) -> Iterator[Family]:
        lag = _histograms(LOOP_LAG)
        _add(lag, [], self._loop_lag, 1e-9)
        yield lag

    @staticmethod
    def _of_sources(models: Iterable[ModelSeries], others: Iterable[Source]) -> Iterator[Family]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        sources = [({"model": each.model}, each.source) for each in models]
        for of_model, source in (*sources, *(({}, source) for source in others)):
            for sample in source():
                labels = {**of_model, **sample.labels}
                family = families.get(sample.name)
                if family is None:
                    kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                    family = families[sample.name] = kind(sample.name, sample.help, labels=list(labels))
                family.add_metric(list(labels.values()), sample.value)
        yield from families.values()

    def _isolated(self, source: Source) -> Iterator[Sample]:
        """Yield what a source yields; an error ends it, and no other source."""
        try:
            yield from source()
        except Exception as error:
            self._failed += 1
            if self._new_errors.has(error):
                log.error("a part of /metrics is missing: one of its sources failed", exc_info=error)

    def _errors(self) -> Iterator[Sample]:
        yield SOURCE_ERRORS(self._failed)


def _histograms(metric: Metric) -> HistogramMetricFamily:
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.all_labels)


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram, scale: float) -> None:
    bounds = [f"{bound * scale:.10g}" for bound in histogram.bounds] + ["+Inf"]
    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
    family.add_metric(labels, buckets, histogram.total * scale)

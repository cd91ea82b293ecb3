"""One span of the history as arrays: per bucket of time, what the requests of each model took and what was counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.observe import exposition, path_metrics
from tailcut.observe.fine_histogram import PLACES
from tailcut.observe.history.history import History
from tailcut.observe.history.rows import CountRow, LatencyRow

Values = npt.NDArray[np.float64]


class StageSeries(NamedTuple):
    """A stage per bucket.

    Attributes:
        requests: that met it, (buckets,).
        total_ns: (buckets,).
        histograms: (buckets, ``PLACES``).
    """

    requests: Values
    total_ns: Values
    histograms: Values

    @classmethod
    def empty(cls, buckets: int) -> StageSeries:
        """Return a stage that no request met."""
        return cls(np.zeros(buckets), np.zeros(buckets), np.zeros((buckets, PLACES)))

    def added(self, other: StageSeries) -> StageSeries:
        """Return both together."""
        return StageSeries(
            self.requests + other.requests, self.total_ns + other.total_ns, self.histograms + other.histograms
        )


Stages = dict[str, StageSeries]


@dataclass
class ModelSpan:
    """A model in one span.

    Attributes:
        stages: by variant and stage.
        counts: of counters by name and labels, (buckets,).
        versions: that were served, "variant version".
    """

    stages: dict[str, Stages] = field(default_factory=dict)
    counts: dict[str, list[tuple[Mapping[str, str], Values]]] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)

    def sums(self, name: str, buckets: int, wanted: Callable[[Mapping[str, str]], bool]) -> Values:
        """Return a counter per bucket, over all labels that are wanted."""
        found = [values for labels, values in self.counts.get(name, ()) if wanted(labels)]
        return np.sum(found, axis=0) if found else np.zeros(buckets)

    def together(self) -> Stages:
        """Return the stages of all variants together."""
        found: Stages = {}
        for stages in self.stages.values():
            for stage, series in stages.items():
                found[stage] = found[stage].added(series) if stage in found else series
        return found


@dataclass
class Span:
    """Everything in one span.

    Attributes:
        minutes: that the history has, per bucket.
    """

    length_s: int
    buckets: int
    minutes: Values
    models: dict[str, ModelSpan]


def read_span(history: History, since_s: int, until_s: int, bucket_s: int, model: str | None) -> Span:
    """Read a span.

    Args:
        model: None for all.

    Raises:
        StoreError: the history cannot be read.
    """
    buckets = -(-(until_s - since_s) // bucket_s)
    span = Span(until_s - since_s, buckets, np.zeros(buckets), {})
    for start_s, minutes in history.coverage(since_s, until_s, bucket_s=bucket_s):
        span.minutes[(start_s - since_s) // bucket_s] = minutes
    for row in history.latency(since_s, until_s, model=model, bucket_s=bucket_s):
        _add_latency(span, row, (row.start_s - since_s) // bucket_s)
    for counted in _counted(history, since_s, until_s, bucket_s, model):
        _add_count(span, counted, (counted.start_s - since_s) // bucket_s)
    return span


def _counted(history: History, since_s: int, until_s: int, bucket_s: int, model: str | None) -> Iterator[CountRow]:
    for name in _NAMES:
        yield from history.counts(since_s, until_s, model=model, name=name, bucket_s=bucket_s)


def _add_latency(span: Span, row: LatencyRow, bucket: int) -> None:
    stages = span.models.setdefault(row.model, ModelSpan()).stages.setdefault(row.variant, {})
    series = stages.setdefault(row.stage, StageSeries.empty(span.buckets))
    series.requests[bucket] += row.requests
    series.total_ns[bucket] += row.total_ns
    series.histograms[bucket] += row.histogram


def _add_count(span: Span, row: CountRow, bucket: int) -> None:
    model = span.models.setdefault(row.model, ModelSpan())
    if row.name == _SERVED:
        model.versions.add(f"{row.labels.get('variant', '')} {row.labels.get('version', '')}".strip())
        return
    known = model.counts.setdefault(row.name, [])
    values = next((values for labels, values in known if labels == row.labels), None)
    if values is None:
        values = np.zeros(span.buckets)
        known.append((row.labels, values))
    values[bucket] += row.value


REQUESTS = exposition.REQUESTS.series[0]
FEATURE_LOOKUPS = path_metrics.FEATURE_LOOKUPS.series[0]
PREDICTION_LOOKUPS = path_metrics.PREDICTION_CACHE_LOOKUPS.series[0]
_, BATCH_ROWS, BATCHES = exposition.BATCH_ROWS.series
_SERVED = path_metrics.SERVED.series[0]
_NAMES = (REQUESTS, FEATURE_LOOKUPS, PREDICTION_LOOKUPS, BATCH_ROWS, BATCHES, _SERVED)

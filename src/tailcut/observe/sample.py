"""Metrics: the definition of each, and its values, which live elsewhere and are read when /metrics is asked.

A metric is defined once, next to what it counts; whatever else names it, such as the reference and dashboards, takes
the name from there, so that no series is named that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Sample(NamedTuple):
    """One value of a counter or gauge."""

    name: str
    help: str
    kind: str
    labels: dict[str, str]
    value: float


Source = Callable[[], Iterable[Sample]]


class Metric(NamedTuple):
    """A definition.

    Attributes:
        name: without the suffix that Prometheus gives a counter or a histogram.
        help: one sentence.
        kind: "counter", "gauge" or "histogram".
        labels: without "model".
        of_host: whether it is of the process as a whole; else it has the label "model" too.
    """

    name: str
    help: str
    kind: str
    labels: tuple[str, ...]
    of_host: bool

    def __call__(self, value: float, *labels: str) -> Sample:
        """Return a value of a counter or gauge, given one value per label."""
        return Sample(self.name, self.help, self.kind, dict(zip(self.labels, labels, strict=True)), value)

    @property
    def all_labels(self) -> tuple[str, ...]:
        """As they are on /metrics."""
        return self.labels if self.of_host else ("model", *self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """Names on /metrics."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
        return (f"{self.name}_total",) if self.kind == "counter" else (self.name,)


METRICS: dict[str, Metric] = {}
"""Every metric that is defined in what has been imported, by its name."""


def gauge(name: str, help: str, *labels: str, of_host: bool = False) -> Metric:  # Prometheus' word
    """Define a gauge."""
    return _defined(Metric(name, help, "gauge", labels, of_host))


def counter(name: str, help: str, *labels: str, of_host: bool = False) -> Metric:
    """Define a counter."""
    return _defined(Metric(name, help, "counter", labels, of_host))


def histogram(name: str, help: str, *labels: str, of_host: bool = False) -> Metric:
    """Define a histogram."""
    return _defined(Metric(name, help, "histogram", labels, of_host))


def _defined(metric: Metric) -> Metric:
    if METRICS.setdefault(metric.name, metric) != metric:
        raise ValueError(f"the metric {metric.name} is defined twice, and differently")
    return metric

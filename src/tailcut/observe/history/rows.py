"""Rows of the history, as they are read: latencies with their histograms, and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tailcut.observe.fine_histogram import Counts, percentile_ns

Kind = Literal["counter", "gauge"]

MINUTE_S = 60


class LatencyRow(NamedTuple):
    """Latencies of one model, variant and stage in one bucket of time.

    Attributes:
        start_s: when the bucket begins, in Unix seconds.
        stage: of ``latency_figures.STAGES``: those of the path, and "request" for all of it. Answered requests only.
        requests: that met the stage.
        total_ns: sum of what they took, in nanoseconds.
        histogram: of what they took, (``fine_histogram.PLACES``,).
    """

    start_s: int
    model: str
    variant: str
    stage: str
    requests: int
    total_ns: int
    histogram: Counts

    def percentile_ns(self, share: float) -> float:
        """Return a percentile in nanoseconds; NaN where nothing was counted."""
        return percentile_ns(self.histogram, share)


class CountRow(NamedTuple):
    """A counter's growth, or a gauge, in one bucket of time.

    Attributes:
        start_s: when the bucket begins, in Unix seconds.
        model: empty for the process.
        name: as on /metrics, such as "tailcut_requests_total"; of a histogram its "_sum" and "_count".
        labels: as on /metrics, without the model.
        value: a counter's growth; a gauge's mean.
    """

    start_s: int
    model: str
    name: str
    labels: Mapping[str, str]
    kind: Kind
    value: float

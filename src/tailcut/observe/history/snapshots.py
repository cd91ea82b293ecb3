"""Takes what a minute adds to the history from the same sources as /metrics, so that the two cannot disagree."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from prometheus_client import Metric as Family

from tailcut.observe.exposition import REQUEST_SECONDS, STAGE_SECONDS, ModelSeries
from tailcut.observe.history.blobs import to_bytes
from tailcut.observe.history.tables import Series, Snapshot, labels_text
from tailcut.observe.latency_figures import LATENCY, STAGES, StageCounts

log = logging.getLogger("tailcut.server")

MOST_SERIES = 5_000
"""Counters and gauges that are followed; further ones are left out and counted."""

_FORGOTTEN_AFTER = 60
"""Snapshots in which a counter was not seen; one that comes back with its old value would be counted twice."""

_IN_HISTOGRAMS = {STAGE_SECONDS.name, REQUEST_SECONDS.name, LATENCY.name}
"""Families that say what the fine histograms say."""

_CONSTANT = {"process_start_time_seconds", "process_virtual_memory_bytes", "python_info"}
_KINDS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_sum", "_count")}
"""Endings of the series that are kept, by a family's type."""


class _Counter(NamedTuple):
    """A counter's value, the snapshot it was last seen in, and of which model (empty: the process) that was."""

    value: float
    part: int
    source: str


class Differences:
    """Growth of counters and histograms since the last snapshot; of the event loop that owns the counts.

    Attributes:
        left_out: series of which there were too many, added up over all minutes.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._latencies: dict[tuple[str, str], StageCounts] = {}
        self._counters: dict[Series, _Counter] = {}
        self._texts: dict[tuple[tuple[str, str], ...], tuple[str, str]] = {}

    def take(
        self, minute: int, part: int, keep_from: int, model: ModelSeries | None, families: Sequence[Family] | None
    ) -> Snapshot:
        """Return what has been counted of a model, or of the process, since the last call, and gauges as they are.

        Args:
            minute, part, keep_from: see ``Snapshot``.
            model: None for the process.
            families: None where they could not be taken: what they have counted comes with the next ones.
        """
        latencies = list(self._grown(model)) if model is not None else []
        source = model.model if model is not None else ""
        if families is None:
            for series, counter in self._counters.items():
                if counter.source == source:
                    self._counters[series] = counter._replace(part=part)
        numbers = list(self._numbers(families or (), part, source))
        return Snapshot(minute, part, keep_from, latencies, numbers)

    def end(self, part: int) -> None:
        """Forget counters that were not seen for an hour, such as those of a model that was removed."""
        old = [series for series, counter in self._counters.items() if counter.part <= part - _FORGOTTEN_AFTER]
        for series in old:
            del self._counters[series]

    def _grown(self, model: ModelSeries) -> Iterator[tuple[Series, int, int, bytes]]:
        model.recorder.flush()
        for variant, counts in model.recorder.latency.counts.items():
            key = model.model, variant
            now, before = counts.copy(), self._latencies.get(key)
            self._latencies[key] = now
            if before is not None and (now.places < before.places).any():
                before = None  # the model was removed and came again: another recorder counts from 0
            places = now.places if before is None else now.places - before.places
            totals = now.total_ns if before is None else now.total_ns - before.total_ns
            for stage, found, total_ns in zip(STAGES, places, totals.tolist(), strict=True):
                if requests := int(found.sum()):
                    yield Series("latency", model.model, stage, variant), requests, total_ns, to_bytes(found)

    def _numbers(self, families: Iterable[Family], part: int, source: str) -> Iterator[tuple[Series, float]]:
        gauges = 0
        for family in families:
            endings = () if family.name in _IN_HISTOGRAMS | _CONSTANT else _KINDS.get(family.type, ())
            kind = "gauge" if family.type == "gauge" else "counter"
            wanted = {f"{family.name}{ending}" for ending in endings}
            for name, labels, value, *_ in family.samples if wanted else ():
                if name not in wanted or not isfinite(value):
                    continue
                series = Series(kind, *self._named(name, labels))
                if kind == "counter":
                    grown = self._growth(series, _Counter(value, part, source))
                    if grown:
                        yield series, grown
                elif gauges < MOST_SERIES:
                    gauges += 1
                    yield series, value
                else:
                    self._leave_out()

    def _growth(self, series: Series, now: _Counter) -> float:
        """Return by how much a counter grew; one that is lower than before has begun again at 0."""
        before = self._counters.get(series)
        if before is None:
            if not now.value:
                return 0.0  # most are never counted: of each way in which a request can end there is one
            if len(self._counters) >= MOST_SERIES:
                self._leave_out()
                return 0.0
        self._counters[series] = now
        return now.value if before is None or now.value < before.value else now.value - before.value

    def _leave_out(self) -> None:
        if not self.left_out:
            log.warning(
                "the history and the alerts follow %d counters, and as many gauges of a model; further ones are left "
                "out, and counted in tailcut_history_dropped_total: serve fewer models or feature groups by one server",
                MOST_SERIES,
            )
        self.left_out += 1

    def _named(self, name: str, labels: Mapping[str, str]) -> tuple[str, str, str]:
        """Return the model, the name and the labels' text; the same few labels come every minute."""
        key = tuple(labels.items())
        found = self._texts.get(key)
        if found is None:
            rest = {label: value for label, value in key if label != "model"}
            found = labels.get("model", ""), labels_text(rest)
            if len(self._texts) < MOST_SERIES:
                self._texts[key] = found
        return found[0], name, found[1]

"""Writes the history of a running server: once a minute, one snapshot, handed to the thread that writes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric as Family

from tailcut.observe.alerts.evaluator import AlertEvaluator
from tailcut.observe.exposition import REQUEST_SECONDS, STAGE_SECONDS, ModelSeries
from tailcut.observe.fine_histogram import FineHistogram
from tailcut.observe.history import MINUTE_S, SCHEMA, History, HistorySnapshot, Series, Tables, to_bytes
from tailcut.observe.latency_figures import LATENCY, STAGES
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.store import SqliteFile, StoreWriter

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
        self._latencies: dict[tuple[str, str], FineHistogram] = {}
        self._counters: dict[Series, _Counter] = {}

    def take(
        self, minute: int, part: int, keep_from: int, model: ModelSeries | None, families: Sequence[Family] | None
    ) -> HistorySnapshot:
        """Return what has been counted of a model, or of the process, since the last call, and gauges as they are.

        Args:
            minute, part, keep_from: see ``HistorySnapshot``.
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
        return HistorySnapshot(minute, part, keep_from, latencies, numbers)

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
            grown = now.since(before)
            for stage, found, total_ns in zip(STAGES, grown.places, grown.total_ns.tolist(), strict=True):
                if requests := int(found.sum()):
                    series = Series("latency", model.model, stage, (("variant", variant),))
                    yield series, requests, total_ns, to_bytes(found)

    def _numbers(self, families: Iterable[Family], part: int, source: str) -> Iterator[tuple[Series, float]]:
        gauges = 0
        for family in families:
            endings = () if family.name in _IN_HISTOGRAMS | _CONSTANT else _KINDS.get(family.type, ())
            kind = "gauge" if family.type == "gauge" else "counter"
            wanted = {f"{family.name}{ending}" for ending in endings}
            for name, labels, value, *_ in family.samples if wanted else ():
                if name not in wanted or not isfinite(value):
                    continue
                series = Series.of(kind, labels.get("model", ""), name, labels)
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


ROWS = counter("tailcut_history_rows", "Rows written to the history.", of_host=True)
DROPPED = counter(
    "tailcut_history_dropped",
    "Rows missing in the history: it could not be written, or there were too many series.",
    of_host=True,
)
PENDING = gauge("tailcut_history_pending", "Rows that wait until the history can be written again.", of_host=True)
FAILURES = counter(
    "tailcut_history_failures",
    "Failures to take what a model, or the process, has counted in a minute, for the history and the alerts; the log "
    "has the first of each.",
    of_host=True,
)
BYTES = gauge("tailcut_history_bytes", "Size of the history's file.", of_host=True)

_AFTER_S = 0.01
"""Behind the full minute, so that a timer that fires early does not fire twice."""


_TRUSTED_AT_START_S, _TRUSTED_AFTER_STEP_S = 3600.0, 86_400.0
"""For which the wall clock has to run like the monotonic one before rows are removed for their age."""


class HistoryRecorder:
    """Takes a snapshot at every full minute of the wall clock. Owned by the event loop.

    A snapshot belongs to the minute in which the middle of the time since the last one lies, counted back from now: the
    time that passed is of the monotonic clock, so that a wall clock that is set moves rows and loses none. Nor are old
    rows removed until the clock has been right for a while: one that is a year ahead would remove all.

    Args:
        path: of the file; None: snapshots go to the listeners only.
        models: what there is to count.
        families: the rest of it; see ``Exposition.families``.
        keep_s: for which rows are kept.
        size_bytes: that the file does not exceed; the oldest rows give way.

    Attributes:
        history: reads what was written; None without a file.
        listeners: receive every snapshot, too.
    """

    def __init__(
        self,
        path: Path | None,
        models: Callable[[], Iterable[ModelSeries]],
        families: Callable[[ModelSeries | None], Iterable[Family]],
        *,
        keep_s: float,
        size_bytes: int,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._families = families
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._differences = Differences()
        self._tables = Tables(size_bytes, keep_s)
        self._keep_minutes = int(keep_s // MINUTE_S)
        self._file: SqliteFile | None = None
        self._writer: StoreWriter | None = None
        self.history: History | None = None
        if path is not None:
            self._file = SqliteFile(path, SCHEMA, size_bytes=size_bytes)
            self._writer = StoreWriter(self._file)
            self.history = History(path)
        self._last_s = monotonic_s()
        self._last_wall_s = wall_s()
        self._trusted_s = self._last_s + _TRUSTED_AT_START_S
        self._part = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: Iterator[None] = iter(())
        self._failures = 0
        self._told: set[str] = set()
        self.listeners: list[AlertEvaluator] = []

    def own_history(self) -> History | None:
        """Return ``history`` while the file is this server's; None while another one writes it. From any thread."""
        return self.history if self._file is not None and self._file.is_taken else None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open the file, in the writer's thread, and take a snapshot at every full minute from now on."""
        if self._writer is not None:
            self._writer.submit(lambda connection: 0, 0)
        self._schedule(loop)

    def take(self) -> None:
        """Hand what has been counted since the last call to the writer."""
        for _ in chain(self._pieces, self._in_pieces()):
            pass

    def _in_pieces(self) -> Iterator[None]:
        """Take a snapshot, model by model: of twenty it takes as long as a scrape, and requests go between."""
        now_s, wall_s = self._monotonic_s(), self._wall_s()
        passed_s = now_s - self._last_s
        if abs(wall_s - self._last_wall_s - passed_s) > MINUTE_S:
            self._trusted_s = now_s + _TRUSTED_AFTER_STEP_S
        self._last_s, self._last_wall_s = now_s, wall_s
        self._part += 1
        minute = int((wall_s - passed_s / 2) // MINUTE_S)
        key = minute, self._part, minute - self._keep_minutes if now_s >= self._trusted_s else 0
        for model in (*self._models(), None):
            self._take_piece(key, model)
            yield
        self._differences.end(self._part)
        for listener in self.listeners:
            with self._guarded("of the minute's end"):
                listener.end_minute()

    def _take_piece(self, key: tuple[int, int, int], model: ModelSeries | None) -> None:
        """Take what one model, or the process, has counted; a failure is counted, and the others' are taken."""
        what = f"of model {model.model}" if model is not None else "of the process"
        families: list[Family] | None = None
        with self._guarded(f"{what}, by one of its sources"):
            families = list(self._families(model))
        with self._guarded(what):
            snapshot = self._differences.take(*key, model, families)
            if self._writer is not None:
                self._writer.submit(lambda connection: self._tables.write(connection, snapshot), snapshot.rows)
            for listener in self.listeners:
                listener.receive(snapshot)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Count what fails, and tell the first failure of each: a minute has the figures of many."""
        try:
            yield
        except Exception:
            self._failures += 1
            if what not in self._told:
                self._told.add(what)
                log.exception(
                    "the figures %s could not be taken for the history and the alerts; the others were. Further "
                    "failures are counted in tailcut_history_failures_total",
                    what,
                )

    def stop(self) -> None:
        """Take the running minute, if it was started; ``close`` follows, off the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.take()

    def close(self, timeout_s: float) -> None:
        """Wait until everything is written, for at most ``timeout_s``."""
        if self._writer is not None:
            self._writer.close(timeout_s)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of the history."""
        yield FAILURES(self._failures)
        if self._writer is None:
            return
        figures = self._writer.figures
        yield ROWS(figures.written)
        yield DROPPED(figures.dropped + self._differences.left_out)
        yield PENDING(figures.pending)
        yield BYTES(figures.size_bytes)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        def tick() -> None:
            self._schedule(loop)
            self._pieces = self._in_pieces()
            self._step(loop)

        self._timer = loop.call_later(MINUTE_S - self._wall_s() % MINUTE_S + _AFTER_S, tick)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take one piece per turn of the event loop."""
        if next(self._pieces, self) is None:
            loop.call_soon(self._step, loop)

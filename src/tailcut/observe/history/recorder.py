"""Writes the history of a running server: once a minute, one snapshot, handed to the thread that writes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from prometheus_client import Metric as Family

from tailcut.observe.exposition import ModelSeries
from tailcut.observe.history.history import History
from tailcut.observe.history.rows import MINUTE_S
from tailcut.observe.history.snapshots import Differences
from tailcut.observe.history.tables import SCHEMA, Snapshot, Tables
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.store import SqliteFile, StoreWriter

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

log = logging.getLogger("tailcut.server")

_AFTER_S = 0.01
"""Behind the full minute, so that a timer that fires early does not fire twice."""


_TRUSTED_AT_START_S, _TRUSTED_AFTER_STEP_S = 3600.0, 86_400.0
"""For which the wall clock has to run like the monotonic one before rows are removed for their age."""


class Listener(Protocol):
    """Receives snapshots as they are taken, on the event loop; it must not block."""

    def receive(self, snapshot: Snapshot) -> None:
        """Receive what one model, or the process, has counted."""
        ...

    def end_minute(self) -> None:
        """Know that all of a minute's snapshots have been received."""
        ...


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
        self._writer: StoreWriter | None = None
        self.history: History | None = None
        if path is not None:
            self._writer = StoreWriter(SqliteFile(path, SCHEMA, size_bytes=size_bytes))
            self.history = History(path)
        self._last_s = monotonic_s()
        self._last_wall_s = wall_s()
        self._trusted_s = self._last_s + _TRUSTED_AT_START_S
        self._part = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: Iterator[None] = iter(())
        self._failures = 0
        self._told: set[str] = set()
        self.listeners: list[Listener] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open the file, in the writer's thread, and take a snapshot at every full minute from now on."""
        if self._writer is not None:
            self._writer.submit(lambda connection: 0, 0)
        self._schedule(loop)

    def take(self) -> None:
        """Hand what has been counted since the last call to the writer."""
        for _ in self._pieces:
            pass
        for _ in self._in_pieces():
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
            self._write(self._differences.take(*key, model, families))

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

    def _write(self, snapshot: Snapshot) -> None:
        if self._writer is not None:
            self._writer.submit(lambda connection: self._tables.write(connection, snapshot), snapshot.rows)
        for listener in self.listeners:
            listener.receive(snapshot)

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

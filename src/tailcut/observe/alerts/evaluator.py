"""Evaluates the alerts of a server once a minute, in a thread of its own, and tells what fires."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tailcut.errors import StoreError
from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.alarms import Alarm, Alarms, Condition, Event
from tailcut.observe.alerts.evidence import BUDGET_MINUTES, SHORT_MINUTES, Evidence, MovedColumns, SlowRequest
from tailcut.observe.alerts.findings import OF_GROUPS, OF_MODELS, OF_PROCESS, SEVERITIES, Finding
from tailcut.observe.alerts.latency_growth import Growth
from tailcut.observe.alerts.levels import DESCRIPTORS, GPU_MEMORY, MEMORY, SAMPLE_S, THREADS, Levels
from tailcut.observe.alerts.likely_place import STAGE_NS, STAGE_REQUESTS
from tailcut.observe.alerts.messages import log_line, message_of
from tailcut.observe.alerts.minute_counts import Key, MinuteCounts
from tailcut.observe.alerts.probes import Figures
from tailcut.observe.alerts.rules import evaluate
from tailcut.observe.alerts.series import (
    ALERTS,
    CACHE_BYTES,
    CPU_PERIODS,
    CPU_PERIODS_METRIC,
    CPU_THROTTLED,
    CPU_THROTTLED_METRIC,
    EVALUATIONS,
    FEATURE_LOOKUPS,
    FEATURE_SOURCE_ERRORS,
    FEATURE_SOURCE_SECONDS,
    FEATURE_STALE,
    MESSAGES,
    PROCESS_BYTES,
    REQUESTS,
    SLO_GOOD,
    SLO_REQUESTS,
)
from tailcut.observe.alerts.state_file import Kept, StateFile
from tailcut.observe.alerts.webhook import Webhook, WebhookFigures
from tailcut.observe.alerts.week_before import WeekBefore
from tailcut.observe.failures import NewErrors
from tailcut.observe.history import CountRow, History
from tailcut.observe.history.tables import Snapshot
from tailcut.observe.sample import Sample

log = logging.getLogger("tailcut.server")

_LONG = {SLO_GOOD: BUDGET_MINUTES, SLO_REQUESTS: BUDGET_MINUTES}
_SHORT = (
    REQUESTS,
    FEATURE_LOOKUPS,
    FEATURE_STALE,
    FEATURE_SOURCE_ERRORS,
    FEATURE_SOURCE_SECONDS,
    CPU_PERIODS,
    CPU_THROTTLED,
)
_WANTED = frozenset((*_LONG, *_SHORT))
_LEVELS = (MEMORY, DESCRIPTORS, THREADS, GPU_MEMORY)
_MOST_SNAPSHOTS = 1_000
_MOST_OUTBOX = 64
_FINE_MINUTES, _COARSE_S = 6 * 60 + 5, 300
"""Of the time before the start: what only windows of days are about is read in steps of 5 minutes."""
_SLOWEST = 3
_SLOWEST_WITHIN_S = 900.0


class AlertsState(NamedTuple):
    """What the page and ``tailcut top`` show; nothing of it changes any more.

    Attributes:
        active: alarms that fire, the oldest first.
        resolved: recent ones, the newest last.
        pending: conditions that were bad in the last evaluation only.
        evaluated_s: Unix seconds of the last evaluation; 0 before the first.
        failure: of the last evaluation; empty where it did not fail.
    """

    active: tuple[Alarm, ...] = ()
    resolved: tuple[Alarm, ...] = ()
    pending: tuple[Condition, ...] = ()
    evaluated_s: float = 0.0
    evaluations: int = 0
    failures: int = 0
    failure: str = ""
    webhook: WebhookFigures | None = None


Served = Mapping[str, Collection[str] | None]


class Sources(NamedTuple):
    """What the evaluator reads beside the snapshots; from its thread unless that is said.

    Attributes:
        probe: figures of the process.
        history: across restarts, and of last week; None: not kept.
        server: whose rows of the history are counted; None: of all servers that write it.
        slow: requests of which traces are kept; called on the event loop.
        moved: what the drift detectors say.
        served: models that are served, or about to be, with their feature groups; None as groups: not known. Called on
            the event loop. None: no model is taken to be gone.
    """

    probe: Callable[[], Figures]
    history: History | None = None
    server: str | None = None
    slow: Callable[[], Sequence[SlowRequest]] = tuple
    moved: Callable[[], Sequence[MovedColumns]] = tuple
    served: Callable[[], Served] | None = None


class Alerts:
    """The alerts of one server: receives snapshots on the event loop, and does all else in its thread.

    Args:
        state_file: where alarms are kept over restarts; None: nowhere.
        webhook: None: alarms are logged and shown only.
        labels: of the server, in messages of the webhook.
        models: names of the server's; called on the event loop.
        memory_bytes: that the process may have; 0: no limit is known.
    """

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        *,
        state_file: Path | None = None,
        webhook: Webhook | None = None,
        labels: Mapping[str, str] | None = None,
        models: Callable[[], Iterable[str]] = tuple,
        memory_bytes: int = 0,
        most_descriptors: float = float("inf"),
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._webhook = webhook
        self._labels = labels or {}
        self._names = models
        self._wall_s, self._monotonic_s = wall_s, monotonic_s
        self._started_s = monotonic_s()
        self._file = StateFile(state_file)
        self._counts = MinuteCounts(_LONG, SHORT_MINUTES)
        self._week = WeekBefore(sources.history)
        self._models: dict[str, None] = {}
        self._cache_bytes: dict[tuple[str, str], float] = {}
        self._part = self._minute = -1
        limits = (MEMORY, memory_bytes or float("inf")), (DESCRIPTORS, most_descriptors)
        self._levels = {each.alert: Levels(each, dict(limits).get(each, float("inf"))) for each in _LEVELS}
        self._figures: Figures | None = None
        self._alarms = Alarms(self._slowest, "\0".join(self._labels.values()))
        self._outbox: list[Event] = []
        self._state = AlertsState()
        self._new_errors = NewErrors()
        self._changed = threading.Condition()
        self._slow: Sequence[SlowRequest] = ()
        self._served: Served | None = None
        self._snapshots: deque[Snapshot] = deque(maxlen=_MOST_SNAPSHOTS)
        self._minute_is_over = self._closing = False
        self._thread: threading.Thread | None = None

    # -- On the event loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to evaluate; what was kept is read in the thread."""
        self._thread = threading.Thread(target=self._run, name="tailcut-alerts", daemon=True)
        self._thread.start()

    def receive(self, snapshot: Snapshot) -> None:
        """Take what a model, or the process, has counted in a minute; returns at once."""
        self._snapshots.append(snapshot)

    def end_minute(self) -> None:
        """Have the minute evaluated whose snapshots have been received; returns at once."""
        self._slow = self._sources.slow()
        self._served = self._sources.served() if self._sources.served is not None else None
        with self._changed:
            self._minute_is_over = True
            self._changed.notify_all()

    @property
    def state(self) -> AlertsState:
        """As of the last evaluation; from any thread."""
        return self._state._replace(webhook=self._webhook.figures if self._webhook is not None else None)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows."""
        firing = {(each.alert, each.model, each.severity) for alarm in self._state.active for each in alarm.findings}
        for model in (*self._names(), ""):
            for alert in OF_MODELS if model else OF_PROCESS:
                for severity in SEVERITIES[alert]:
                    yield ALERTS(float((alert, model, severity) in firing), alert, model, severity)
        figures = self._figures
        if figures is not None:
            yield PROCESS_BYTES(figures.memory_bytes)
        yield CPU_PERIODS_METRIC(figures.periods if figures is not None else 0)
        yield CPU_THROTTLED_METRIC(figures.throttled if figures is not None else 0)
        for outcome, count in (("ok", self._state.evaluations), ("failed", self._state.failures)):
            yield EVALUATIONS(count, outcome)
        if self._webhook is not None:
            sent = self._webhook.figures
            for outcome, count in (("delivered", sent.delivered), ("failed", sent.failed), ("dropped", sent.dropped)):
                yield MESSAGES(count, outcome)

    def close(self, timeout_s: float) -> None:
        """End the threads; an alarm that the webhook has not got is sent after the next start."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._webhook is not None:
            self._webhook.close(timeout_s)
            if self._thread is not None and not self._thread.is_alive():
                self._keep()
        self._file.close()

    # -- In the thread -----------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Read what was kept: alarms that fire, messages that wait, counts of the history."""
        self._take_over()
        self._show()
        self._backfill()

    def sample(self) -> None:
        """Read the figures of the process."""
        figures = self._figures = self._sources.probe()
        at_s = self._monotonic_s() - self._started_s
        # Caches are bounded: their growth is no leak.
        memory_bytes = max(figures.memory_bytes - sum(self._cache_bytes.values()), 0)
        values = memory_bytes, figures.descriptors, figures.threads, figures.gpu_bytes
        for quantity, value in zip(_LEVELS, values, strict=True):
            if value >= 0:
                self._levels[quantity.alert].add(at_s, value)

    def evaluate(self) -> list[Event]:
        """Take the snapshots that were received, evaluate, tell what changed; returns it."""
        if not self._file.is_open:
            self._take_over()
        while self._snapshots:
            self._take(self._snapshots.popleft())
        now_s = self._wall_s()
        events = self._alarms.update(evaluate(self._evidence(now_s)), now_s, self._is_gone)
        for event in events:
            self._tell(event)
        self._keep()
        self._show()
        self._state = self._state._replace(evaluated_s=now_s, evaluations=self._state.evaluations + 1, failure="")
        return events

    def _run(self) -> None:
        self._guarded(self.restore)
        due_s = self._monotonic_s()
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._minute_is_over, max(due_s - self._monotonic_s(), 0.0)
                )
                closing, is_over = self._closing, self._minute_is_over
                self._minute_is_over = False
            if closing:
                return
            if self._monotonic_s() >= due_s:
                due_s = self._monotonic_s() + SAMPLE_S
                self._guarded(self.sample)
            if is_over:
                self._guarded(self.evaluate)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Run a piece of work; what it raises is counted and logged once, and ends nothing."""
        try:
            work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self._state = self._state._replace(failures=self._state.failures + 1, failure=said)
            if self._new_errors.has(error):
                log.error("the alerts could not be evaluated; it is tried every minute", exc_info=error)

    def _take(self, snapshot: Snapshot) -> None:
        if self._part != snapshot.part:
            # What is new would be counted as old, and not be judged, until a clock that was set back has caught up.
            self._part, self._minute = snapshot.part, max(snapshot.minute, self._counts.newest + 1)
            self._counts.advance(self._minute)
            self._cache_bytes = {}  # a model that is gone has no cache any more
        minute = self._minute
        for series, count, total_ns, _ in snapshot.latencies:
            self._models.setdefault(series.model)
            stage = (("stage", series.name),)
            self._counts.add(minute, Key(series.model, STAGE_NS, stage), total_ns)
            self._counts.add(minute, Key(series.model, STAGE_REQUESTS, stage), count)
        for series, value in snapshot.numbers:
            if series.kind == "counter" and series.name in _WANTED:
                self._count(minute, series.model, series.name, json.loads(series.labels or "{}"), value)
            elif series.name == CACHE_BYTES:
                self._cache_bytes[series.model, series.labels] = value
            if series.model and series.name != ALERTS.name:
                self._models.setdefault(series.model)

    def _count(self, minute: int, model: str, name: str, labels: Mapping[str, str], value: float) -> None:
        self._counts.add(minute, Key.of(model, name, labels), value)

    def _evidence(self, now_s: float) -> Evidence:
        return Evidence(
            settings=self._settings,
            counts=self._counts,
            models=tuple(self._models),
            uptime_minutes=int((self._monotonic_s() - self._started_s) // 60),
            growth=self._growth(now_s),
            levels=tuple(self._levels.values()),
            moved=self._sources.moved(),
            gpus=self._figures.gpus if self._figures is not None else (),
        )

    def _is_gone(self, finding: Finding) -> bool:
        """Whether this cannot be judged any more: the alert is off, or its model or feature group is not served."""
        if finding.alert in self._settings.off:
            return True
        if self._served is None or not finding.model:
            return False
        groups = self._served.get(finding.model, ())
        return finding.model not in self._served or (
            finding.alert in OF_GROUPS and groups is not None and finding.subject not in groups
        )

    def _growth(self, now_s: float) -> Mapping[str, Growth]:
        """Return the growth of p95; none while the history cannot be read, which its own metrics say."""
        if "p95_growth" in self._settings.off:
            return {}
        with suppress(StoreError):
            return self._week.compare(now_s, self._settings.p95_requests)
        return {}

    def _backfill(self) -> None:
        """Count what the history has of this server from before its start: others' errors are alarms of their own."""
        history, server = self._sources.history, self._sources.server
        if history is None:
            return
        now_s = self._wall_s()
        self._counts.advance(int(now_s // 60) - 1)
        with suppress(StoreError):  # there is none yet, or it cannot be read: it begins now
            for name in (*_LONG, *_SHORT):
                fine_s = now_s - 60 * (_FINE_MINUTES if name in _LONG else SHORT_MINUTES)
                if name in _LONG:
                    long_s = now_s - 60 * _LONG[name]
                    self._add_rows(history.counts(long_s, fine_s, name=name, server=server, bucket_s=_COARSE_S))
                self._add_rows(history.counts(fine_s, now_s, name=name, server=server))
            for row in history.latency(now_s - 60 * SHORT_MINUTES, now_s, server=server):
                stage, minute = (("stage", row.stage),), row.start_s // 60
                self._models.setdefault(row.model)
                self._counts.add(minute, Key(row.model, STAGE_NS, stage), row.total_ns)
                self._counts.add(minute, Key(row.model, STAGE_REQUESTS, stage), row.requests)

    def _add_rows(self, rows: Iterable[CountRow]) -> None:
        for row in rows:
            if row.model:
                self._models.setdefault(row.model)
            self._count(row.start_s // 60, row.model, row.name, row.labels, row.value)

    def _take_over(self) -> None:
        """Go on with the alarms that were kept, once the server that kept them has ended."""
        kept = self._file.open()
        if kept is None:
            return
        self._alarms.adopt(kept.memory)
        self._outbox = [*kept.outbox, *self._outbox][-_MOST_OUTBOX:]
        if self._webhook is not None:
            for event in kept.outbox:
                self._webhook.submit(message_of(event, self._labels))

    def _slowest(self, alarm: Alarm) -> Sequence[tuple[str, float]]:
        since_s = alarm.since_s - _SLOWEST_WITHIN_S
        found = [each for each in self._slow if alarm.model in {"", each.model} and each.ended_s >= since_s]
        found.sort(key=lambda each: -each.milliseconds)
        return [(each.trace_id, each.milliseconds) for each in found[:_SLOWEST]]

    def _tell(self, event: Event) -> None:
        level = {"resolved": logging.INFO, "firing": logging.WARNING, "raised": logging.WARNING}[event.kind]
        if event.kind != "resolved" and event.alarm.severity == "page":
            level = logging.ERROR
        log.log(level, "%s", log_line(event), extra={"model": event.alarm.model} if event.alarm.model else {})
        if self._webhook is not None:
            self._outbox = [*self._outbox, event][-_MOST_OUTBOX:]
            self._webhook.submit(message_of(event, self._labels))

    def _keep(self) -> None:
        if self._webhook is not None:
            done = set(self._webhook.take_done())
            self._outbox = [event for event in self._outbox if event.id not in done]
        self._file.write(Kept(memory=self._alarms.memory, outbox=self._outbox))

    def _show(self) -> None:
        memory = self._alarms.memory
        pending = tuple(msgspec.structs.replace(each) for each in self._alarms.pending)
        self._state = self._state._replace(
            active=tuple(self._alarms.active), resolved=tuple(memory.resolved), pending=pending
        )
